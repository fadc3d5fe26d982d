/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon_fixture.c - a private zerod for a test.
 *
 * The daemon tells of its states as it tells systemd: over a datagram socket that is ours. Nothing here
 * sleeps to wait for something, except to look again at a log file.
 */
#include "daemon_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_MS 30000 /* sanitizers and a busy machine included */
#define RETRY_NS    2000000L
#define MOST_PASSED 256u /* descriptors */
#define MAX_ARGS    48
#define NOTE_BYTES  1024
#define CHUNK_BYTES 4096
#define NOTIFY_NAME "notify"
#define ZEROD       "bin/zerod"

/* ---- Small things -------------------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int left_ms(int64_t deadline_ms)
{
	int64_t left = deadline_ms - now_ms();

	return left > 0 ? (int)left : 0;
}

__attribute__((format(printf, 1, 2))) static int fail(const char *format, ...)
{
	va_list args;

	(void)fputs("daemon fixture: ", stderr);
	va_start(args, format);
	(void)vfprintf(stderr, format, args);
	va_end(args);
	(void)fputc('\n', stderr);
	return -1;
}

static void show_log(const struct zd_daemon *daemon)
{
	FILE *log = fopen(daemon->log_path, "re");
	char line[CHUNK_BYTES];

	while (log && fgets(line, sizeof(line), log))
		(void)fprintf(stderr, "    zerod: %s", line);
	if (log)
		(void)fclose(log);
}

/* `name` is under $BUILD. */
static const char *program(const char *name, char path[CHUNK_BYTES])
{
	const char *build = getenv("BUILD");

	(void)snprintf(path, CHUNK_BYTES, "%s/%s", build ? build : "build", name);
	return path;
}

/* ---- The folder ---------------------------------------------------------------------------------------- */

static int write_text(const char *path, const char *text, mode_t mode)
{
	FILE *file = fopen(path, "we");

	if (!file || fchmod(fileno(file), mode) < 0 || fputs(text, file) < 0 || fclose(file) != 0)
		return fail("writing %s: %s", path, strerror(errno));
	return 0;
}

static int make_folder(struct zd_daemon *daemon)
{
	(void)snprintf(daemon->dir, sizeof(daemon->dir), "/tmp/zerod-test-XXXXXX");
	if (!mkdtemp(daemon->dir))
		return fail("making a temporary folder: %s", strerror(errno));
	(void)snprintf(daemon->socket_path, sizeof(daemon->socket_path), "%s/zerod.sock", daemon->dir);
	(void)snprintf(daemon->config_path, sizeof(daemon->config_path), "%s/zerod.conf", daemon->dir);
	(void)snprintf(daemon->log_path, sizeof(daemon->log_path), "%s/log", daemon->dir);
	(void)snprintf(daemon->key_path, sizeof(daemon->key_path), "%s/key", daemon->dir);
	return write_text(daemon->key_path, "the key of all daemons of the tests\n", 0600);
}

static void notify_address(const struct zd_daemon *daemon, struct sockaddr_un *address)
{
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	(void)snprintf(address->sun_path, sizeof(address->sun_path), "%s/" NOTIFY_NAME, daemon->dir);
}

static int open_notify(struct zd_daemon *daemon)
{
	struct sockaddr_un address;

	notify_address(daemon, &address);
	(void)unlink(address.sun_path);
	daemon->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (daemon->notify < 0 ||
	    bind(daemon->notify, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return fail("making %s: %s", address.sun_path, strerror(errno));
	return 0;
}

/* Everything that may be in the folder, and the folder. What else is there is the daemon's fault. */
static int remove_folder(struct zd_daemon *daemon)
{
	struct sockaddr_un address;
	int rc;

	notify_address(daemon, &address);
	(void)unlink(address.sun_path);
	(void)unlink(daemon->config_path);
	(void)unlink(daemon->key_path);
	(void)unlink(daemon->log_path);
	rc = rmdir(daemon->dir);
	if (rc == 0)
		return 0;
	rc = fail("%s: the daemon left something behind (%s)", daemon->dir, strerror(errno));
	(void)unlink(daemon->socket_path);
	(void)rmdir(daemon->dir);
	return rc;
}

/* ---- Processes ----------------------------------------------------------------------------------------- */

static int pass_descriptors(const struct zd_daemon_options *options)
{
	int copies[MOST_PASSED];
	char text[16];

	if (options->npassed > MOST_PASSED)
		return -1;
	for (unsigned i = 0; i < options->npassed; i++) /* out of the way of the numbers below */
		copies[i] = fcntl(options->passed_fds[i], F_DUPFD_CLOEXEC, 3 + (int)options->npassed);
	for (unsigned i = 0; i < options->npassed; i++)
		if (dup2(copies[i], 3 + (int)i) < 0 || close(copies[i]) < 0)
			return -1;
	(void)snprintf(text, sizeof(text), "%d", (int)getpid());
	(void)setenv("LISTEN_PID", text, 1);
	(void)snprintf(text, sizeof(text), "%u", options->npassed);
	(void)setenv("LISTEN_FDS", text, 1);
	return setenv("LISTEN_FDNAMES", options->passed_names, 1);
}

/* Runs in the child. */
_Noreturn static void run_daemon(const struct zd_daemon *daemon, const struct zd_daemon_options *options,
                                 char *const *argv)
{
	struct sockaddr_un address;
	/* With the test that started it, should that be killed. */
	int rc = prctl(PR_SET_PDEATHSIG, SIGKILL);
	int log = open(daemon->log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	char path[CHUNK_BYTES];

	notify_address(daemon, &address);
	if (rc < 0 || log < 0 || dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0)
		_exit(126);
	(void)close(log);
	(void)setenv("NOTIFY_SOCKET", address.sun_path, 1);
	(void)setenv("NCCL_HOSTID", daemon->dir, 1); /* to NCCL, each daemon is a node */
	(void)unsetenv("LISTEN_FDS");
	(void)unsetenv("WATCHDOG_USEC");
	if (options->npassed > 0 && pass_descriptors(options) < 0)
		_exit(126);
	(void)execv(program(options->program ? options->program : ZEROD, path), argv);
	(void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
	_exit(127);
}

static int spawn(const struct zd_daemon_options *options, struct zd_daemon *daemon)
{
	char devices[16];
	const char *argv[MAX_ARGS] = {"zerod",      "--foreground",
	                              "--backend",  "host",
	                              "--socket",   daemon->socket_path,
	                              "--arena",    options->arena ? options->arena : "64M",
	                              "--devices",  devices,
	                              "--key-file", daemon->key_path};
	size_t argc = 12;

	(void)snprintf(devices, sizeof(devices), "%u", options->devices ? options->devices : 2);
	if (access(daemon->config_path, F_OK) == 0) {
		argv[argc++] = "--config";
		argv[argc++] = daemon->config_path;
	}
	for (const char *const *arg = options->args; arg && *arg; arg++) {
		if (argc == MAX_ARGS - 1)
			return fail("more than %d arguments", MAX_ARGS);
		argv[argc++] = *arg;
	}
	argv[argc] = NULL;
	daemon->pid = fork();
	if (daemon->pid == 0)
		run_daemon(daemon, options, (char *const *)argv);
	if (daemon->pid < 0) {
		daemon->pid = 0;
		return fail("fork: %s", strerror(errno));
	}
	return 0;
}

/* Waits for the child's end: its exit status, or 128 + the signal. */
static int reap(pid_t pid, int *status)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd ended = {.fd = pidfd, .events = POLLIN};
	int raw, polled;

	if (pidfd < 0)
		return fail("pidfd_open: %s", strerror(errno));
	do
		polled = poll(&ended, 1, DEADLINE_MS);
	while (polled < 0 && errno == EINTR);
	(void)close(pidfd);
	if (polled == 0) {
		(void)kill(pid, SIGABRT);
		(void)waitpid(pid, &raw, 0);
		return fail("process %d did not end within %d s", (int)pid, DEADLINE_MS / 1000);
	}
	if (waitpid(pid, &raw, 0) != pid)
		return fail("waitpid: %s", strerror(errno));
	*status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
	return 0;
}

/* ---- What tests call ----------------------------------------------------------------------------------- */

static bool note_has(const char *note, const char *line)
{
	size_t bytes = strlen(line);

	for (const char *at = strstr(note, line); at; at = strstr(at + 1, line))
		if ((at == note || at[-1] == '\n') && (at[bytes] == '\0' || at[bytes] == '\n'))
			return true;
	return false;
}

void (*zd_daemon_on_note)(const char *note, int fd);

bool zd_daemon_read_note(const struct zd_daemon *daemon, char *note, size_t note_bytes)
{
	struct iovec part = {.iov_base = note, .iov_len = note_bytes - 1};
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr header = {.msg_iov = &part,
	                        .msg_iovlen = 1,
	                        .msg_control = control.bytes,
	                        .msg_controllen = sizeof(control.bytes)};
	ssize_t bytes = recvmsg(daemon->notify, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	const struct cmsghdr *rights = bytes > 0 ? CMSG_FIRSTHDR(&header) : NULL;
	int fd = -1;

	if (rights)
		memcpy(&fd, CMSG_DATA(rights), sizeof(fd));
	note[bytes > 0 ? bytes : 0] = '\0';
	if (bytes > 0 && zd_daemon_on_note)
		zd_daemon_on_note(note, fd);
	else if (fd >= 0)
		(void)close(fd);
	return bytes > 0;
}

int zd_daemon_wait_notify(struct zd_daemon *daemon, const char *line)
{
	int64_t deadline_ms = now_ms() + DEADLINE_MS;
	int pidfd = (int)syscall(SYS_pidfd_open, daemon->pid, 0);
	struct pollfd events[2] = {{.fd = daemon->notify, .events = POLLIN}, {.fd = pidfd, .events = POLLIN}};
	char note[NOTE_BYTES];
	int rc = 1;

	while (rc > 0) {
		bool read;
		int polled = poll(events, 2, left_ms(deadline_ms));

		if (polled < 0 && errno == EINTR)
			continue;
		read = zd_daemon_read_note(daemon, note, sizeof(note));
		if (read && note_has(note, line))
			rc = 0;
		else if (!read && polled > 0 && events[1].revents)
			rc = fail("the daemon ended before it notified of %s", line);
		else if (polled <= 0)
			rc = fail("the daemon did not notify of %s within %d s", line, DEADLINE_MS / 1000);
	}
	if (pidfd >= 0)
		(void)close(pidfd);
	if (rc)
		show_log(daemon);
	return rc;
}

int zd_daemon_wait_log(struct zd_daemon *daemon, const char *text)
{
	int64_t deadline_ms = now_ms() + DEADLINE_MS;
	const struct timespec retry = {.tv_nsec = RETRY_NS};
	char line[CHUNK_BYTES];

	while (left_ms(deadline_ms) > 0) {
		FILE *log = fopen(daemon->log_path, "re");
		bool found = false;

		while (log && !found && fgets(line, sizeof(line), log))
			found = strstr(line, text) != NULL;
		if (log)
			(void)fclose(log);
		if (found)
			return 0;
		(void)nanosleep(&retry, NULL);
	}
	show_log(daemon);
	return fail("its log does not say \"%s\" within %d s", text, DEADLINE_MS / 1000);
}

int zd_daemon_zeroctl(const struct zd_daemon *daemon, const char *command)
{
	char path[CHUNK_BYTES], line[CHUNK_BYTES + 256];
	int status;

	(void)snprintf(line, sizeof(line), "%s --socket %s %s", program("bin/zeroctl", path),
	               daemon->socket_path, command);
	status = system(line);
	return status == 0 ? 0 : fail("%s: wait status %d", line, status);
}

int zd_daemon_count_fds(const struct zd_daemon *daemon)
{
	char path[64];
	int count = 0;
	DIR *folder;

	(void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)daemon->pid);
	folder = opendir(path);
	if (!folder)
		return fail("%s: %s", path, strerror(errno));
	for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder))
		count += entry->d_name[0] != '.';
	(void)closedir(folder);
	return count;
}

int zd_daemon_restart(const struct zd_daemon_options *options, struct zd_daemon *daemon)
{
	static const struct zd_daemon_options defaults;

	if (!options)
		options = &defaults;
	if (daemon->notify >= 0)
		(void)close(daemon->notify);
	if (options->config && write_text(daemon->config_path, options->config, 0644) != 0)
		return -1;
	if (open_notify(daemon) != 0 || spawn(options, daemon) != 0)
		return -1;
	return zd_daemon_wait_notify(daemon, "READY=1");
}

int zd_daemon_start(const struct zd_daemon_options *options, struct zd_daemon *daemon)
{
	int status;

	*daemon = (struct zd_daemon){.notify = -1};
	if (make_folder(daemon) != 0)
		return -1;
	if (zd_daemon_restart(options, daemon) == 0)
		return 0;
	if (daemon->pid > 0) {
		(void)kill(daemon->pid, SIGKILL);
		if (reap(daemon->pid, &status) == 0)
			(void)fail("the daemon that did not start has status %d", status);
		daemon->pid = 0;
	}
	(void)unlink(daemon->socket_path);
	(void)close(daemon->notify);
	daemon->notify = -1;
	(void)remove_folder(daemon);
	return -1;
}

int zd_daemon_finish(struct zd_daemon *daemon)
{
	int status = 0, rc = 0;

	if (daemon->pid > 0)
		rc = reap(daemon->pid, &status);
	daemon->pid = 0;
	if (rc == 0 && status != 0)
		rc = fail("the daemon ended with status %d", status);
	if (rc == 0 && access(daemon->socket_path, F_OK) == 0)
		rc = fail("%s: the daemon left its socket behind", daemon->socket_path);
	if (rc)
		show_log(daemon);
	(void)close(daemon->notify);
	daemon->notify = -1;
	return remove_folder(daemon) != 0 ? -1 : rc;
}

int zd_daemon_stop(struct zd_daemon *daemon)
{
	if (daemon->notify < 0 || !daemon->dir[0]) /* a zeroed structure was never started */
		return 0;
	if (daemon->pid > 0)
		(void)kill(daemon->pid, SIGTERM);
	else
		(void)unlink(daemon->socket_path); /* was killed */
	return zd_daemon_finish(daemon);
}

int zd_daemon_kill(struct zd_daemon *daemon)
{
	int status, rc;

	(void)kill(daemon->pid, SIGKILL);
	rc = reap(daemon->pid, &status);
	daemon->pid = 0;
	return rc;
}

int zd_daemon_run(const char *const *args, int *status, char *output, size_t output_bytes)
{
	const char *argv[MAX_ARGS] = {"zerod"};
	char path[CHUNK_BYTES], rest[CHUNK_BYTES];
	size_t argc = 1, used = 0;
	int64_t deadline_ms = now_ms() + DEADLINE_MS;
	struct pollfd readable = {.events = POLLIN};
	int ends[2];
	ssize_t bytes;
	pid_t pid;

	for (; *args && argc < MAX_ARGS - 1; args++)
		argv[argc++] = *args;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return fail("pipe: %s", strerror(errno));
	pid = fork();
	if (pid == 0) {
		(void)dup2(ends[1], STDOUT_FILENO);
		(void)dup2(ends[1], STDERR_FILENO);
		(void)unsetenv("NOTIFY_SOCKET");
		(void)execv(program(ZEROD, path), (char *const *)argv);
		_exit(127);
	}
	(void)close(ends[1]);
	readable.fd = ends[0];
	for (;;) {
		size_t room = output_bytes - 1 - used, taken;

		if (poll(&readable, 1, left_ms(deadline_ms)) <= 0)
			break;
		bytes = read(ends[0], rest, sizeof(rest));
		if (bytes <= 0)
			break;
		taken = (size_t)bytes < room ? (size_t)bytes : room;
		memcpy(output + used, rest, taken);
		used += taken;
	}
	output[used] = '\0';
	(void)close(ends[0]);
	return pid < 0 ? fail("fork: %s", strerror(errno)) : reap(pid, status);
}
