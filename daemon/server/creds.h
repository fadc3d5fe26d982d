/* SPDX-License-Identifier: Apache-2.0 */
/* creds.h - the identity of the process at the other end of a Unix socket, and its pidfd. */
#ifndef ZD_SERVER_CREDS_H
#define ZD_SERVER_CREDS_H

#include <stdbool.h>
#include <sys/types.h>

#define ZD_CREDS_GROUPS 32u

struct zd_err;

/* Groups of the configuration. An empty list means everybody. */
struct zd_creds_groups {
	unsigned count;
	gid_t gids[ZD_CREDS_GROUPS];
};

struct zd_creds {
	uid_t uid;
	gid_t gid;
	pid_t pid;
	int pidfd;   /* readable when the process has ended; -1: it could not be opened, and pid is 0.
	                zd_creds_deinit() closes it */
	bool tenant; /* `uid` is the socket's, for all peers, which are in no group */
};

/* Returns the ids that the connected process had at the time of connect(). Errors: DISCONNECTED if that
 * process has already ended, SYSTEM. For a process outside the daemon's pid namespace, the kernel reports pid
 * 0, and from Linux 6.5 on also the pidfd. */
int zd_creds_get(int sock, struct zd_creds *creds, struct zd_err *err) __attribute__((warn_unused_result));
/* Lets the process count as `uid`, whoever it is. */
void zd_creds_set_tenant(struct zd_creds *creds, uid_t uid);
/* Returns only the user, or (uid_t)-1 if the kernel does not report it. */
uid_t zd_creds_uid(int sock);
/* Checks whether the daemon can serve the process. It must be able to watch the process's end, and, unless
 * the process is a tenant, to distinguish its user from others. Errors: PERMISSION with the reason. */
int zd_creds_check(const struct zd_creds *creds, struct zd_err *err) __attribute__((warn_unused_result));
/* Closes the pidfd. */
void zd_creds_deinit(struct zd_creds *creds);

/* Returns whether `group` was the connecting process's group, or one of its supplementary groups. False if
 * the kernel does not report these. */
bool zd_creds_in_group(int sock, const struct zd_creds *creds, gid_t group);
/* Returns whether the process was in one of `groups`, or `groups` is empty. */
bool zd_creds_in_groups(int sock, const struct zd_creds *creds, const struct zd_creds_groups *groups);

#endif
