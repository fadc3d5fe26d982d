/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.h - runs one of the project's programs for a test and catches what it says.
 *
 * Every wait has a deadline; a program that is still there then is killed, and its test fails.
 */
#ifndef ZD_TESTS_PROGRAM_H
#define ZD_TESTS_PROGRAM_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM_DEADLINE_MS 120000

struct program {
	pid_t pid;
	int out, err; /* ends of pipes; -1 when the program has closed them */
	char *out_text, *err_text;
	size_t out_bytes, err_bytes;
	int status; /* exit code; 128 + signal */
};

static inline long program_now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* $BUILD/bin/<args[0]> with the arguments, NULL at the end. `stdout_path` NULL: a pipe. */
static inline void program_start(struct program *program, const char *const *args, const char *stdout_path)
{
	int out[2], err[2];
	char path[4096];
	const char *build = getenv("BUILD");
	snprintf(path, sizeof(path), "%s/bin/%s", build ? build : "build", args[0]);
	*program = (struct program){.out = -1, .err = -1};
	if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
		abort();
	program->pid = fork();
	if (program->pid == 0) {
		int file = stdout_path ? open(stdout_path, O_WRONLY | O_CLOEXEC) : out[1];
		dup2(file, STDOUT_FILENO);
		dup2(err[1], STDERR_FILENO);
		unsetenv("ZEROD_SOCKET");
		execv(path, (char *const *)args);
		fprintf(stderr, "cannot run %s: %s\n", path, strerror(errno));
		_exit(127);
	}
	close(out[1]);
	close(err[1]);
	program->out = out[0];
	program->err = err[0];
	program->out_text = calloc(1, 1);
	program->err_text = calloc(1, 1);
}

static inline void program_read(int *fd, char **text, size_t *bytes)
{
	char chunk[65536];
	ssize_t length = read(*fd, chunk, sizeof(chunk));
	if (length <= 0) {
		close(*fd);
		*fd = -1;
		return;
	}
	*text = realloc(*text, *bytes + (size_t)length + 1);
	memcpy(*text + *bytes, chunk, (size_t)length);
	*bytes += (size_t)length;
	(*text)[*bytes] = '\0';
}

/* Reads until stdout contains `text` (NULL: until both pipes end); false when that does not come to pass. */
static inline bool program_read_until(struct program *program, const char *text)
{
	const long give_up_ms = program_now_ms() + PROGRAM_DEADLINE_MS;
	while (!(text && strstr(program->out_text, text)) && (program->out >= 0 || program->err >= 0)) {
		struct pollfd fds[] = {{.fd = program->out, .events = POLLIN},
		                       {.fd = program->err, .events = POLLIN}};
		long left_ms = give_up_ms - program_now_ms();
		if (left_ms <= 0 || poll(fds, 2, (int)left_ms) == 0) {
			kill(program->pid, SIGKILL);
			return false;
		}
		if (fds[0].revents)
			program_read(&program->out, &program->out_text, &program->out_bytes);
		if (fds[1].revents)
			program_read(&program->err, &program->err_text, &program->err_bytes);
	}
	return !text || strstr(program->out_text, text);
}

/* Waits for the program's end. */
static inline void program_wait(struct program *program)
{
	int wait_status;
	program_read_until(program, NULL);
	while (waitpid(program->pid, &wait_status, 0) < 0 && errno == EINTR)
		continue;
	program->status = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

static inline void program_free(struct program *program)
{
	free(program->out_text);
	free(program->err_text);
	*program = (struct program){.out = -1, .err = -1};
}

#endif
