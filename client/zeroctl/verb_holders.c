// SPDX-License-Identifier: Apache-2.0
/*
 * verb_holders.c - zeroctl holders: the processes that hold durable state while no daemon runs.
 *
 * They are found in /proc, because a holder serves only its daemon: `zerod --hold NUMBER SOCKET`. Root sees
 * the descriptors of all holders, other users those of their own.
 */
#include "ctl.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define END_WAIT_MS 5000
#define PATH_BYTES  128

static const struct zd_ctl_column columns[] = {
        {"SOCKET", "socket", ZD_CTL_TEXT, 0, NULL},
        {"PID", "pid", ZD_CTL_COUNT, 0, NULL},
        {"UID", "uid", ZD_CTL_COUNT, 0, NULL},
        {"SINCE", "age_ns", ZD_CTL_AGE, 0, NULL},
        {"DAEMON", "has_daemon", ZD_CTL_YES_NO, 0, NULL},
        {"SEGMENTS", "segments", ZD_CTL_COUNT, 0, NULL},
        {"BYTES", "bytes", ZD_CTL_BYTES, 0, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

struct holder {
	pid_t pid;
	uid_t uid;
	char socket_path[PATH_BYTES];
	uint64_t age_ns, segments, bytes;
	bool has_daemon;
};

/* Returns the bytes of the file below /proc/PID, followed by a zero. */
static size_t read_of(pid_t pid, const char *name, char *text, size_t room)
{
	char path[64];
	(void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t nbytes = fd < 0 ? -1 : read(fd, text, room - 1);
	if (fd >= 0)
		(void)close(fd);
	text[nbytes > 0 ? nbytes : 0] = '\0';
	return nbytes > 0 ? (size_t)nbytes : 0;
}

/* Whether the process is a holder; copies the path of its socket. */
static bool is_holder(pid_t pid, char socket_path[PATH_BYTES])
{
	char line[512];
	const char *at = line, *words[4] = {NULL};
	size_t nbytes = read_of(pid, "cmdline", line, sizeof(line));
	for (size_t i = 0; i < 4 && at < line + nbytes; i++, at += strlen(at) + 1)
		words[i] = at;
	if (!words[3] || strcmp(words[0], "zerod") != 0 || strcmp(words[1], "--hold") != 0)
		return false;
	(void)snprintf(socket_path, PATH_BYTES, "%s", words[3]);
	return true;
}

/* In addition to the held descriptors, the process has its listening socket, one for its daemon, and
 * /dev/null. */
static void count_descriptors(struct holder *holder)
{
	char path[64], link[PATH_BYTES];
	unsigned nsockets = 0;
	(void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)holder->pid);
	DIR *folder = opendir(path);
	for (const struct dirent *entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
		struct stat found;
		ssize_t nbytes = readlinkat(dirfd(folder), entry->d_name, link, sizeof(link) - 1);
		link[nbytes > 0 ? nbytes : 0] = '\0';
		if (strncmp(link, "socket:", 7) == 0)
			nsockets++;
		else if (nbytes > 0 && strcmp(link, "/dev/null") != 0 &&
		         !strstr(link, "memfd:zerod-registry"))
			holder->segments++;
		if (strstr(link, "memfd:") && fstatat(dirfd(folder), entry->d_name, &found, 0) == 0)
			holder->bytes += (uint64_t)found.st_blocks * 512;
	}
	if (folder)
		(void)closedir(folder);
	holder->has_daemon = nsockets > 1;
}

/* Fills *holder if the process is one. */
static bool look_at(pid_t pid, struct holder *holder)
{
	char path[32];
	struct stat found;
	*holder = (struct holder){.pid = pid};
	(void)snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	if (!is_holder(pid, holder->socket_path) || stat(path, &found) < 0)
		return false;
	holder->uid = found.st_uid;
	holder->age_ns = zd_ctl_process_age_ns(pid);
	count_descriptors(holder);
	return true;
}

static json_t *row_of(const struct holder *holder)
{
	return json_pack("{s:s,s:i,s:I,s:I,s:b,s:I,s:I}", "socket", holder->socket_path, "pid",
	                 (int)holder->pid, "uid", ZD_CTL_INT(holder->uid), "age_ns",
	                 ZD_CTL_INT(holder->age_ns), "has_daemon", holder->has_daemon, "segments",
	                 ZD_CTL_INT(holder->segments), "bytes", ZD_CTL_INT(holder->bytes));
}

/* Calls `fn` for each holder until it returns true. */
static bool find(bool (*fn)(const struct holder *holder, void *arg), void *arg)
{
	DIR *folder = opendir("/proc");
	bool done = false;
	for (const struct dirent *entry = folder ? readdir(folder) : NULL; entry && !done;
	     entry = readdir(folder)) {
		struct holder holder;
		if (isdigit((unsigned char)entry->d_name[0]) && look_at((pid_t)atoi(entry->d_name), &holder))
			done = fn(&holder, arg);
	}
	if (folder)
		(void)closedir(folder);
	return done;
}

static bool add_row(const struct holder *holder, void *arg)
{
	json_t *row = row_of(holder); /* NULL: its path is not UTF-8 */
	if (row)
		(void)json_array_append_new(arg, row);
	return false;
}

static int list(struct zd_ctl *ctl)
{
	int status = zd_ctl_choose_columns(ctl, columns, NULL);
	if (status)
		return status;
	json_t *rows = json_array();
	(void)find(add_row, rows);
	return zd_ctl_print_rows(ctl, rows, columns, "holders");
}

struct wanted {
	const char *path;
	struct holder found;
};

static bool is_wanted(const struct holder *holder, void *arg)
{
	struct wanted *wanted = arg;
	if (strcmp(holder->socket_path, wanted->path) != 0)
		return false;
	wanted->found = *holder;
	return true;
}

static int kill_and_wait(const struct holder *holder, int pidfd)
{
	struct pollfd ended = {.fd = pidfd, .events = POLLIN};
	char path[PATH_BYTES + sizeof(".state")];
	struct holder again;
	struct stat left;
	if (!look_at(holder->pid, &again) || strcmp(again.socket_path, holder->socket_path) != 0)
		return 0; /* it has ended by itself */
	if (again.has_daemon)
		return zd_ctl_fail(
		        ZEROD_E_BUSY,
		        "a daemon uses the holder of %s; `zeroctl end-job` frees the memory of a job",
		        holder->socket_path);
	if (syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0) < 0)
		return zd_ctl_fail(errno == EPERM ? ZEROD_E_PERMISSION : ZEROD_E_SYSTEM, "process %d: %s",
		                   (int)holder->pid, strerror(errno));
	if (poll(&ended, 1, END_WAIT_MS) != 1)
		return zd_ctl_fail(ZEROD_E_DEADLINE, "process %d does not end", (int)holder->pid);
	(void)snprintf(path, sizeof(path), "%s.state", holder->socket_path);
	if (lstat(path, &left) == 0 && S_ISSOCK(left.st_mode) && left.st_uid == again.uid)
		(void)unlink(path);
	printf("ended process %d, which held %" PRIu64 " segments of %s\n", (int)holder->pid, again.segments,
	       holder->socket_path);
	return 0;
}

static int end(const char *socket_path)
{
	struct wanted wanted = {.path = socket_path};
	if (!find(is_wanted, &wanted))
		return zd_ctl_fail(ZEROD_E_NOT_FOUND, "no process holds state of %s", socket_path);
	int pidfd = (int)syscall(SYS_pidfd_open, wanted.found.pid, 0);
	if (pidfd < 0)
		return zd_ctl_fail(ZEROD_E_SYSTEM, "process %d: %s", (int)wanted.found.pid, strerror(errno));
	int status = kill_and_wait(&wanted.found, pidfd);
	(void)close(pidfd);
	return status;
}

int zd_ctl_holders(struct zd_ctl *ctl)
{
	return ctl->end ? end(ctl->end) : list(ctl);
}
