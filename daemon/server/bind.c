/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bind.c - the daemon's socket in the file system.
 *
 * A connection attempt shows whether a daemon serves an existing socket file. Another daemon could bind
 * between that attempt and bind(). The socket's name is therefore locked in between, by a lock on a file next
 * to it. The file exists only during this time, and no other user can open it. Other users could lock the
 * folder itself, and any file that they can read. The socket receives its permissions before its name, and
 * its owner before it listens. Further users can therefore never connect in between.
 */
#include "server/bind.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "proto/frame.h"

#define LISTEN_BACKLOG 512
#define LOCK_WAIT_MS   5000
#define LOCK_RETRY_MS  10

/* Reports the process that listens on the socket, after a successful connect(). */
static int already_running(int sock, const char *path, struct zd_err *err)
{
	struct ucred peer = {.pid = 0};
	socklen_t bytes = sizeof(peer);

	(void)getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
	return zd_err_set(err, ZEROD_E_EXISTS, "%s: already running (pid %d)", path, (int)peer.pid);
}

/* Returns 0 if no process listens on the socket file, which can then be removed. */
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
		rc = zd_err_set(err, ZEROD_E_EXISTS,
		                "%s: already running, and too busy to report its process", path);
	else if (errno == EPROTOTYPE)
		rc = zd_err_set(err, ZEROD_E_EXISTS, "%s: another kind of server listens on it", path);
	else if (errno != ECONNREFUSED && errno != ENOENT)
		rc = zd_err_errno(err, errno, "%s: checking whether a daemon listens on it", path);
	(void)close(sock);
	return rc;
}

/* ---- The lock ------------------------------------------------------------------------------------------ */

struct lock {
	char path[sizeof(((struct sockaddr_un *)0)->sun_path) + sizeof(".lock")];
	int fd; /* -1: not held */
};

static int open_failed(const struct lock *lock, const struct sockaddr_un *address, struct zd_err *err)
{
	struct sockaddr_un copy = *address; /* dirname() modifies its argument */
	int failure = errno;

	if (failure == ENOENT)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "%s: the folder %s does not exist",
		                  address->sun_path, dirname(copy.sun_path));
	if (failure == ELOOP)
		return zd_err_set(err, ZEROD_E_EXISTS,
		                  "%s: expected a file of the daemon's user alone, found a symbolic link",
		                  lock->path);
	/* For a user who cannot write to the folder, a running daemon is the better reason. */
	if (failure == EACCES && probe_stale(address, err) != 0)
		return err ? err->status : ZEROD_E_EXISTS;
	return zd_err_errno(err, failure, "%s: opening the lock", lock->path);
}

/* A file that another user has made, or may open, can be locked by that user at any time. */
static int check_lock(const struct lock *lock, const struct stat *found, struct zd_err *err)
{
	if (S_ISREG(found->st_mode) && found->st_uid == geteuid() && !(found->st_mode & 077))
		return 0;
	return zd_err_set(err, ZEROD_E_EXISTS,
	                  "%s: expected a file of the daemon's user alone, found one of uid %u with mode "
	                  "%04o: it can be removed while no daemon starts",
	                  lock->path, (unsigned)found->st_uid, (unsigned)found->st_mode & 07777);
}

/* Returns 1 if the file is locked and still has its name, 0 if another daemon holds or has removed it, and a
 * status otherwise. */
static int try_lock(struct lock *lock, const struct sockaddr_un *address, struct zd_err *err)
{
	struct stat opened, named;
	int fd = open(lock->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);

	if (fd < 0)
		return open_failed(lock, address, err);
	int rc = fstat(fd, &opened) < 0 ? zd_err_errno(err, errno, "%s: reading its owner", lock->path)
	                                : check_lock(lock, &opened, err);
	if (rc == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
		rc = lstat(lock->path, &named) == 0 && named.st_dev == opened.st_dev &&
		     named.st_ino == opened.st_ino;
	else if (rc == 0 && errno != EWOULDBLOCK)
		rc = zd_err_errno(err, errno, "%s: locking it", lock->path);
	if (rc == 1)
		lock->fd = fd;
	else
		(void)close(fd);
	return rc;
}

/* With a limit, because a daemon that holds the lock can be stopped. */
static int lock_name(struct lock *lock, const struct sockaddr_un *address, struct zd_err *err)
{
	const struct timespec retry = {.tv_nsec = LOCK_RETRY_MS * 1000000L};
	int rc = 0;

	*lock = (struct lock){.fd = -1};
	(void)snprintf(lock->path, sizeof(lock->path), "%s.lock", address->sun_path);
	for (int waited_ms = 0; waited_ms <= LOCK_WAIT_MS; waited_ms += LOCK_RETRY_MS) {
		rc = try_lock(lock, address, err);
		if (rc != 0)
			return rc < 0 ? rc : 0;
		(void)nanosleep(&retry, NULL);
	}
	return zd_err_set(err, ZEROD_E_BUSY, "%s: another daemon has locked it", lock->path);
}

/* The file is removed first: a daemon that waits for it finds that it has lost its name. */
static void unlock_name(struct lock *lock)
{
	if (lock->fd < 0)
		return;
	(void)unlink(lock->path);
	(void)close(lock->fd);
	lock->fd = -1;
}

/* ---- The socket ---------------------------------------------------------------------------------------- */

/* Removes the socket file of a former daemon; rejects any other file. */
static int make_way(const struct sockaddr_un *address, struct zd_err *err)
{
	const char *path = address->sun_path;
	struct stat found;

	if (lstat(path, &found) < 0)
		return errno == ENOENT ? 0 : zd_err_errno(err, errno, "%s: reading its type", path);
	if (!S_ISSOCK(found.st_mode))
		return zd_err_set(err, ZEROD_E_EXISTS, "%s: exists and is not a socket", path);
	int rc = probe_stale(address, err);
	if (rc)
		return rc;
	if (unlink(path) < 0 && errno != ENOENT)
		return zd_err_errno(err, errno, "%s: removing the socket of a daemon that ended", path);
	return 0;
}

/* Rejects any file except a socket: another user can have put a file in its place. */
static int set_owner(const char *path, uid_t owner, gid_t group, struct zd_err *err)
{
	struct stat found;
	int fd, rc = 0;

	if (owner == (uid_t)-1 && group == (gid_t)-1)
		return 0;
	fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return zd_err_errno(err, errno, "%s: opening the socket's file", path);
	if (fstat(fd, &found) < 0 || !S_ISSOCK(found.st_mode))
		rc = zd_err_set(err, ZEROD_E_EXISTS, "%s: is not a socket any more", path);
	else if (fchownat(fd, "", owner, group, AT_EMPTY_PATH) < 0)
		rc = zd_err_errno(err, errno, "%s: changing the owner", path);
	(void)close(fd);
	return rc;
}

/* The name is locked, and the path does not exist. */
static int bind_and_listen(struct zd_bound *bound, mode_t mode, uid_t owner, gid_t group, struct zd_err *err)
{
	const char *path = bound->address.sun_path;
	struct stat made;

	/* bind() sets the file's mode to the mode of the socket, less the umask. No other thread creates
	 * files yet. */
	if (fchmod(bound->sock, mode) < 0)
		return zd_err_errno(err, errno, "setting the permissions of a socket");
	mode_t mask = umask(0);
	int rc = bind(bound->sock, (const struct sockaddr *)&bound->address, sizeof(bound->address));
	(void)umask(mask);
	if (rc < 0)
		return zd_err_errno(err, errno, "%s: binding the socket", path);
	rc = set_owner(path, owner, group, err);
	if (rc == 0 && (lstat(path, &made) < 0 || listen(bound->sock, LISTEN_BACKLOG) < 0))
		rc = zd_err_errno(err, errno, "%s: listening", path);
	if (rc) {
		(void)unlink(path);
		return rc;
	}
	bound->device = made.st_dev;
	bound->inode = made.st_ino;
	return 0;
}

int zd_bind_for(const char *path, mode_t mode, uid_t owner, gid_t group, struct zd_bound *bound,
                struct zd_err *err)
{
	struct zd_bound b = {.sock = -1};
	struct lock lock;
	int rc = zd_frame_address(path, &b.address, err);

	if (rc == 0)
		rc = lock_name(&lock, &b.address, err);
	if (rc)
		return rc;
	rc = make_way(&b.address, err);
	if (rc == 0) {
		b.sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		rc = b.sock < 0 ? zd_err_errno(err, errno, "making a socket")
		                : bind_and_listen(&b, mode, owner, group, err);
	}
	unlock_name(&lock);
	if (rc == 0)
		*bound = b;
	else if (b.sock >= 0)
		(void)close(b.sock);
	return rc;
}

int zd_bind(const char *path, mode_t mode, struct zd_bound *bound, struct zd_err *err)
{
	return zd_bind_for(path, mode, (uid_t)-1, (gid_t)-1, bound, err);
}

void zd_bound_unlink(const struct zd_bound *bound)
{
	struct stat found;
	struct lock lock;

	/* The file is removed even without the lock, which a stopped daemon can hold: a remaining file is the
	 * greater harm. */
	(void)!lock_name(&lock, &bound->address, NULL);
	if (lstat(bound->address.sun_path, &found) == 0 && found.st_dev == bound->device &&
	    found.st_ino == bound->inode)
		(void)unlink(bound->address.sun_path);
	unlock_name(&lock);
}
