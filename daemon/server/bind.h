/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bind.h - the daemon's socket in the file system: created once, never replaced while a daemon serves it,
 * removed at the end.
 */
#ifndef ZD_SERVER_BIND_H
#define ZD_SERVER_BIND_H

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>

struct zd_err;

/* Identifies the socket file, so that no other file is removed. */
struct zd_bound {
	int sock; /* listens; non-blocking and close-on-exec */
	struct sockaddr_un address;
	dev_t device;
	ino_t inode;
};

/*
 * Binds the path and listens on it, with these permissions. Replaces a socket of a former daemon. INVALID:
 * the path is too long or empty. NOT_FOUND: its folder does not exist. EXISTS: a daemon listens on it (the
 * text has its pid), the file is not a socket, or another user's file has the lock's name, PATH.lock. BUSY:
 * another daemon has the lock. SYSTEM: other errors. Changes the process's umask for a moment.
 */
int zd_bind(const char *path, mode_t mode, struct zd_bound *bound, struct zd_err *err)
        __attribute__((warn_unused_result));
/* As zd_bind(), for a file of this owner and group; (uid_t)-1 and (gid_t)-1 are the daemon's. SYSTEM: the
 * daemon may not change the file's owner to them. */
int zd_bind_for(const char *path, mode_t mode, uid_t owner, gid_t group, struct zd_bound *bound,
                struct zd_err *err) __attribute__((warn_unused_result));
/* Removes the socket file if it is still the one that zd_bind() created. The caller closes the socket. */
void zd_bound_unlink(const struct zd_bound *bound);

#endif
