// SPDX-License-Identifier: Apache-2.0
/*
 * private.c - a private daemon in a temporary folder, which is removed at the end.
 */
#include "bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_DEADLINE_NS 30000000000ull
#define STOP_DEADLINE_NS  15000000000ull /* longer than the daemon waits for its sessions */

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* Returns the folder of this program, or "" if the system does not report it. */
static void own_folder(char *folder, size_t folder_bytes)
{
	ssize_t length = readlink("/proc/self/exe", folder, folder_bytes - 1);
	folder[length > 0 ? length : 0] = '\0';
	char *slash = strrchr(folder, '/');
	if (slash)
		*slash = '\0';
}

/* Writes "2,3", or "all". */
static void list_gpus(const struct zd_private_options *options, char *text, size_t text_bytes)
{
	size_t length = 0;
	snprintf(text, text_bytes, "all");
	for (uint32_t i = 0; i < options->ngpus && length < text_bytes; i++)
		length += (size_t)snprintf(text + length, text_bytes - length, "%s%u", i ? "," : "",
		                           options->first_gpu + i);
}

static void key_file(const struct zd_private *daemon, char *path, size_t path_bytes)
{
	snprintf(path, path_bytes, "%s/key", daemon->dir);
}

static int write_key(const struct zd_private *daemon, struct zd_err *err)
{
	static uint8_t key[32];
	static bool has_key;
	char path[96];
	if (!has_key && getentropy(key, sizeof(key)))
		return zd_err_errno(err, errno, "random bytes for a key");
	has_key = true;
	key_file(daemon, path, sizeof(path));
	int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	ssize_t written = file < 0 ? -1 : write(file, key, sizeof(key));
	int failure = written < 0 ? errno : EIO;
	if (file >= 0)
		close(file);
	if (written != (ssize_t)sizeof(key))
		return zd_err_errno(err, failure, "cannot write %s", path);
	return 0;
}

_Noreturn static void exec_daemon(const struct zd_private_options *options, const struct zd_private *daemon)
{
	char folder[4000], beside[4096], log_path[96], devices[16], gpus[8 * ZD_BENCH_MAX_RANKS], arena[24];
	char host_arena[24];
	char key_path[96];
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	own_folder(folder, sizeof(folder));
	snprintf(beside, sizeof(beside), "%s/zerod", folder);
	snprintf(log_path, sizeof(log_path), "%s/zerod.log", daemon->dir);
	key_file(daemon, key_path, sizeof(key_path));
	snprintf(devices, sizeof(devices), "%u", options->devices);
	list_gpus(options, gpus, sizeof(gpus));
	snprintf(arena, sizeof(arena), "%llu", (unsigned long long)options->arena_bytes);
	snprintf(host_arena, sizeof(host_arena), "%llu", (unsigned long long)options->host_arena_bytes);
	int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log >= 0) {
		dup2(log, STDOUT_FILENO);
		dup2(log, STDERR_FILENO);
	}
	zd_bench_child_signals();
	const char *const args[] = {"zerod",
	                            "--foreground",
	                            "--socket",
	                            daemon->socket_path,
	                            "--arena",
	                            arena,
	                            "--host-arena",
	                            host_arena,
	                            "--backend",
	                            options->cuda ? "cuda" : "host",
	                            options->cuda ? "--gpus" : "--devices",
	                            options->cuda ? gpus : devices,
	                            "--key-file",
	                            key_path,
	                            options->nccl_path ? "--nccl" : NULL,
	                            options->nccl_path,
	                            NULL};
	execv(beside, (char *const *)args);
	if (errno == ENOENT)
		execvp("zerod", (char *const *)args);
	fprintf(stderr, "cannot run %s: %s\n", beside, strerror(errno));
	_exit(127);
}

/* Reads the end of the daemon's log, for a message. */
static void read_log(const struct zd_private *daemon, char *text, size_t text_bytes)
{
	char log_path[96];
	snprintf(log_path, sizeof(log_path), "%s/zerod.log", daemon->dir);
	FILE *log = fopen(log_path, "r");
	size_t length = 0;
	if (log) {
		if (fseek(log, -(long)text_bytes + 1, SEEK_END))
			rewind(log);
		length = fread(text, 1, text_bytes - 1, log);
		fclose(log);
	}
	while (length && text[length - 1] == '\n')
		length--;
	text[length] = '\0';
	for (char *end = text; (end = strchr(end, '\n'));)
		*end = ' ';
}

static int await_ready(struct zd_private *daemon, struct zd_err *err)
{
	struct zerod_options options = ZEROD_INIT(options);
	options.socket_path = daemon->socket_path;
	options.name = "zerobench";
	char log[384];
	const uint64_t give_up_ns = zd_bench_now_ns() + START_DEADLINE_NS;
	for (;;) {
		zerod_client *client;
		int status = zerod_connect(&options, &client);
		if (status == 0) {
			zerod_close(client);
			return 0;
		}
		if (waitpid(daemon->pid, NULL, WNOHANG) == daemon->pid) {
			daemon->pid = 0;
			read_log(daemon, log, sizeof(log));
			return zd_err_set(err, ZEROD_E_CONNECT, "the private daemon did not start: %s", log);
		}
		if (zd_bench_interrupted())
			return zd_err_set(err, ZEROD_E_ABORTED, "interrupted");
		/* The daemon listens before it has opened its devices. If that fails, the daemon ends. */
		const bool may_come = status == ZEROD_E_CONNECT || status == ZEROD_E_DISCONNECTED;
		if (!may_come || zd_bench_now_ns() > give_up_ns) {
			read_log(daemon, log, sizeof(log));
			return zd_err_set(err, status, "the private daemon does not serve: %s; its log: %s",
			                  zerod_last_error(NULL), log);
		}
		nap();
	}
}

int zd_private_start(const struct zd_private_options *options, struct zd_private *daemon, struct zd_err *err)
{
	*daemon = (struct zd_private){0};
	const char *base = getenv("TMPDIR");
	/* A long TMPDIR would leave no room for the socket's name. */
	if (!base || *base != '/' || strlen(base) > 32)
		base = "/tmp";
	snprintf(daemon->dir, sizeof(daemon->dir), "%s/zerobench-XXXXXX", base);
	if (!mkdtemp(daemon->dir)) {
		int failure = errno;
		daemon->dir[0] = '\0';
		return zd_err_errno(err, failure, "cannot create a folder in %s", base);
	}
	snprintf(daemon->socket_path, sizeof(daemon->socket_path), "%s/zerod.sock", daemon->dir);
	int status = write_key(daemon, err);
	fflush(NULL);
	if (!status)
		daemon->pid = fork();
	if (!status && daemon->pid == 0)
		exec_daemon(options, daemon);
	if (!status && daemon->pid < 0) {
		status = zd_err_errno(err, errno, "cannot fork a daemon");
		daemon->pid = 0;
	}
	if (!status)
		status = await_ready(daemon, err);
	if (status)
		zd_private_stop(daemon);
	return status;
}

static void end_process(pid_t pid)
{
	const uint64_t give_up_ns = zd_bench_now_ns() + STOP_DEADLINE_NS;
	kill(pid, SIGTERM);
	for (;;) {
		pid_t ended = waitpid(pid, NULL, WNOHANG);
		if (ended == pid || (ended < 0 && errno != EINTR))
			return;
		if (zd_bench_now_ns() > give_up_ns)
			kill(pid, SIGKILL);
		nap();
	}
}

static void remove_folder(const char *path)
{
	DIR *folder = opendir(path);
	if (!folder)
		return;
	const struct dirent *entry;
	while ((entry = readdir(folder)))
		unlinkat(dirfd(folder), entry->d_name, 0); /* "." and ".." cannot be removed */
	closedir(folder);
	rmdir(path);
}

void zd_private_stop(struct zd_private *daemon)
{
	if (daemon->pid)
		end_process(daemon->pid);
	if (daemon->dir[0])
		remove_folder(daemon->dir);
	*daemon = (struct zd_private){0};
}
