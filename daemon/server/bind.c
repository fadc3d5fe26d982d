/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bind.c - the daemon's socket in the file system.
 *
 * A connection attempt shows whether a daemon serves an existing socket file. Another daemon could bind
 * between that attempt and bind(), so the folder is locked meanwhile. The lock is on the folder's own
 * descriptor, so no lock file remains. No client can connect before listen(), so permissions are set in time.
 */
#include "server/bind.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "proto/frame.h"

#define LISTEN_BACKLOG 512
#define LOCK_WAIT_MS   5000
#define LOCK_RETRY_MS  10

/* Opens the folder and locks it. Closing the descriptor unlocks it. */
static int lock_folder(const struct sockaddr_un *address, int *folder_fd, struct zd_err *err)
{
	struct sockaddr_un copy = *address; /* dirname() modifies its argument */
	const char *path = address->sun_path;
	const char *folder = dirname(copy.sun_path);
	const struct timespec retry = {.tv_nsec = LOCK_RETRY_MS * 1000000L};
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 && errno == ENOENT)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "%s: the folder %s does not exist", path, folder);
	if (fd < 0)
		return zd_err_errno(err, errno, "%s: opening the folder %s", path, folder);
	/* With a limit, because every process that may read the folder can lock it. */
	for (int waited_ms = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; waited_ms += LOCK_RETRY_MS) {
		if (errno == EWOULDBLOCK && waited_ms < LOCK_WAIT_MS) {
			(void)nanosleep(&retry, NULL);
			continue;
		}
		if (errno == EWOULDBLOCK)
			(void)zd_err_set(err, ZEROD_E_BUSY, "%s: another program keeps the folder %s locked",
			                 path, folder);
		else
			(void)zd_err_errno(err, errno, "%s: locking the folder %s", path, folder);
		(void)close(fd);
		return err ? err->status : ZEROD_E_SYSTEM;
	}
	*folder_fd = fd;
	return 0;
}

/* Reports the process that listens there, after a successful connect(). */
static int already_running(int sock, const char *path, struct zd_err *err)
{
	struct ucred peer = {.pid = 0};
	socklen_t bytes = sizeof(peer);

	(void)getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
	return zd_err_set(err, ZEROD_E_EXISTS, "%s: already running (pid %d)", path, (int)peer.pid);
}

/* Returns 0 if no process listens at the socket file, so that it may be removed. */
static int probe_stale(const struct sockaddr_un *address, struct zd_err *err)
{
	const char *path = address->sun_path;
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc = 0;

	if (sock < 0)
		return zd_err_errno(err, errno, "making a socket");
	if (connect(sock, (const struct sockaddr *)address, sizeof(*address)) == 0)
		rc = already_running(sock, path, err);
	else if (errno == EAGAIN)
		rc = zd_err_set(err, ZEROD_E_EXISTS, "%s: already running, and too busy to say which process",
		                path);
	else if (errno == EPROTOTYPE)
		rc = zd_err_set(err, ZEROD_E_EXISTS, "%s: another kind of server listens there", path);
	else if (errno != ECONNREFUSED && errno != ENOENT)
		rc = zd_err_errno(err, errno, "%s: asking whether a daemon listens there", path);
	(void)close(sock);
	return rc;
}

/* Removes the socket file of a former daemon; rejects any other file. */
static int make_way(const struct sockaddr_un *address, struct zd_err *err)
{
	const char *path = address->sun_path;
	struct stat found;
	int rc;

	if (lstat(path, &found) < 0)
		return errno == ENOENT ? 0 : zd_err_errno(err, errno, "%s: reading its type", path);
	if (!S_ISSOCK(found.st_mode))
		return zd_err_set(err, ZEROD_E_EXISTS, "%s: exists and is not a socket", path);
	rc = probe_stale(address, err);
	if (rc)
		return rc;
	if (unlink(path) < 0 && errno != ENOENT)
		return zd_err_errno(err, errno, "%s: removing the socket of a daemon that ended", path);
	return 0;
}

/* The folder is locked, and the path does not exist. */
static int bind_and_listen(struct zd_bound *bound, mode_t mode, struct zd_err *err)
{
	const char *path = bound->address.sun_path;
	struct stat made;

	if (bind(bound->sock, (const struct sockaddr *)&bound->address, sizeof(bound->address)) < 0)
		return zd_err_errno(err, errno, "%s: binding the socket", path);
	if (chmod(path, mode) < 0 || lstat(path, &made) < 0 || listen(bound->sock, LISTEN_BACKLOG) < 0) {
		(void)zd_err_errno(err, errno, "%s: listening", path);
		(void)unlink(path);
		return ZEROD_E_SYSTEM;
	}
	bound->device = made.st_dev;
	bound->inode = made.st_ino;
	return 0;
}

int zd_bind(const char *path, mode_t mode, struct zd_bound *bound, struct zd_err *err)
{
	struct zd_bound b = {.sock = -1};
	int folder = -1;
	int rc = zd_frame_address(path, &b.address, err);

	if (rc == 0)
		rc = lock_folder(&b.address, &folder, err);
	if (rc)
		return rc;
	rc = make_way(&b.address, err);
	if (rc == 0) {
		b.sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		rc = b.sock < 0 ? zd_err_errno(err, errno, "making a socket")
		                : bind_and_listen(&b, mode, err);
	}
	(void)close(folder);
	if (rc == 0)
		*bound = b;
	else if (b.sock >= 0)
		(void)close(b.sock);
	return rc;
}

void zd_bound_unlink(const struct zd_bound *bound)
{
	struct stat found;
	int folder = -1;

	/* The file is removed even without the lock, which another program may keep: a file left behind is
	 * the greater harm. */
	(void)!lock_folder(&bound->address, &folder, NULL);
	if (lstat(bound->address.sun_path, &found) == 0 && found.st_dev == bound->device &&
	    found.st_ino == bound->inode)
		(void)unlink(bound->address.sun_path);
	if (folder >= 0)
		(void)close(folder);
}
