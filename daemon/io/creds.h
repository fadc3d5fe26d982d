/* SPDX-License-Identifier: Apache-2.0 */
/* creds.h - who is at the other end of a Unix socket, and how to notice its death. */
#ifndef ZD_IO_CREDS_H
#define ZD_IO_CREDS_H

#include <stdbool.h>
#include <sys/types.h>

struct zd_err;

struct zd_creds {
	uid_t uid;
	gid_t gid;
	pid_t pid;
	int pidfd; /* becomes readable when the process has ended; the holder of the struct closes it */
};

/* Of the process that connected, as it was then. DISCONNECTED when it has ended already, SYSTEM otherwise. */
int zd_creds_get(int sock, struct zd_creds *creds, struct zd_err *err) __attribute__((warn_unused_result));
/* Its user alone; (uid_t)-1 where the socket does not say. */
uid_t zd_creds_uid(int sock);
/* Closes the pidfd. */
void zd_creds_deinit(struct zd_creds *creds);

/* Was `group` the connecting process's group, or one of its supplementary ones? False when the kernel does
 * not say. */
bool zd_creds_in_group(int sock, const struct zd_creds *creds, gid_t group);

#endif
