/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grants.h - the devices that a session can use, by its user, its groups and its process's control group.
 */
#ifndef ZD_SERVER_GRANTS_H
#define ZD_SERVER_GRANTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define ZD_MAX_GRANTS         128u
#define ZD_GRANT_CGROUP_BYTES 256u
#define ZD_ALL_DEVICES        UINT64_MAX

struct zd_creds;

enum zd_grant_kind { ZD_GRANT_EVERYONE, ZD_GRANT_USER, ZD_GRANT_GROUP, ZD_GRANT_CGROUP };

struct zd_grant {
	enum zd_grant_kind kind;
	uint64_t devices; /* a bit for each */
	uid_t uid;
	gid_t gid;
	char cgroup[ZD_GRANT_CGROUP_BYTES]; /* an absolute path; includes the groups below it */
};

struct zd_grants {
	unsigned count; /* 0: every session can use all devices */
	struct zd_grant all[ZD_MAX_GRANTS];
};

/* Returns the devices of all grants that apply to the process at the other end of `sock`. Reads its control
 * group from /proc, if a grant names one. */
uint64_t zd_grants_devices(const struct zd_grants *grants, int sock, const struct zd_creds *creds);

/* Returns whether a process with these lines of /proc/PID/cgroup is in the control group `path`, or below
 * it. Of version 1 only the hierarchy with the controller `devices` counts. */
bool zd_grants_in_cgroup(const char *lines, const char *path);

#endif
