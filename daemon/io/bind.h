/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bind.h - the daemon's socket in the file system: made once, never taken from a daemon that lives, removed
 * at the end.
 */
#ifndef ZD_IO_BIND_H
#define ZD_IO_BIND_H

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>

struct zd_err;

/* Which file is ours, so that nobody else's is removed. */
struct zd_bound {
	int sock; /* listens; non-blocking and close-on-exec */
	struct sockaddr_un address;
	dev_t device;
	ino_t inode;
};

/*
 * Binds and listens at the path, with these permissions. A socket that a former daemon left behind is
 * replaced. INVALID: the path is too long or empty. NOT_FOUND: its folder does not exist. EXISTS: a daemon
 * listens there (which process), or it is something else than a socket. BUSY: another program keeps the
 * folder locked. SYSTEM: the rest.
 */
int zd_bind(const char *path, mode_t mode, struct zd_bound *bound, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Removes the file, if it still is the one that zd_bind() made. The socket is the caller's to close. */
void zd_bound_unlink(const struct zd_bound *bound);

#endif
