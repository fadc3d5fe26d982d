/* SPDX-License-Identifier: Apache-2.0 */
/* creds.h - the identity of the process at the other end of a Unix socket, and its pidfd. */
#ifndef ZD_SERVER_CREDS_H
#define ZD_SERVER_CREDS_H

#include <stdbool.h>
#include <sys/types.h>

struct zd_err;

struct zd_creds {
	uid_t uid;
	gid_t gid;
	pid_t pid;
	int pidfd; /* readable when the process has ended; zd_creds_deinit() closes it */
};

/* Returns the ids that the connected process had at the time of connect(). Errors: DISCONNECTED if that
 * process has ended already, SYSTEM. */
int zd_creds_get(int sock, struct zd_creds *creds, struct zd_err *err) __attribute__((warn_unused_result));
/* Returns the user alone; (uid_t)-1 if the kernel does not report it. */
uid_t zd_creds_uid(int sock);
/* Closes the pidfd. */
void zd_creds_deinit(struct zd_creds *creds);

/* Returns whether `group` was the connecting process's group, or one of its supplementary groups. False if
 * the kernel does not report these. */
bool zd_creds_in_group(int sock, const struct zd_creds *creds, gid_t group);

#endif
