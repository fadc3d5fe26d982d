/* SPDX-License-Identifier: Apache-2.0 */
/*
 * creds.c - the identity of the process at the other end of a Unix socket.
 *
 * The kernel stores a connecting process's ids with the socket. They cannot be forged, and do not change when
 * the process later drops or gains privileges. The pidfd refers to that very process: a child that inherits
 * the socket does not keep the session alive.
 */
#include "server/creds.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

/* Linux 6.5; its number is the same on all architectures but parisc and sparc. */
#if !defined(SO_PEERPIDFD) && !defined(__hppa__) && !defined(__sparc__)
#define SO_PEERPIDFD 77
#endif

#define MAX_GROUPS  65536 /* the kernel's NGROUPS_MAX */
#define ALL_UIDS    UINT32_MAX
#define NOBODYS_UID 65534u /* the kernel's default for overflowuid */

/* Returns the pidfd of the peer, or -1 with errno. */
static int peer_pidfd(int sock, pid_t pid)
{
#ifdef SO_PEERPIDFD
	int fd = -1;
	socklen_t bytes = sizeof(fd);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) == 0)
		return fd;
	if (errno != ENOPROTOOPT)
		return -1;
#else
	(void)sock;
#endif
	if (pid <= 0)
		return -1;
	/* On an older kernel the pid is looked up. If the peer has ended since connect() and its pid was
	 * reused, the pidfd refers to another process. The session then ends with the socket's end of
	 * stream. */
	return (int)syscall(SYS_pidfd_open, pid, 0);
}

int zd_creds_get(int sock, struct zd_creds *creds, struct zd_err *err)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
		return zd_err_errno(err, errno, "reading the peer's credentials");
	int pidfd = peer_pidfd(sock, peer.pid);
	if (peer.pid > 0 && pidfd < 0 && (errno == ESRCH || errno == EINVAL))
		return zd_err_set(err, ZEROD_E_DISCONNECTED, "the peer, process %d, has ended",
		                  (int)peer.pid);
	if (peer.pid > 0 && pidfd < 0)
		return zd_err_errno(err, errno, "opening process %d", (int)peer.pid);
	*creds = (struct zd_creds){.uid = peer.uid, .gid = peer.gid, .pid = peer.pid, .pidfd = pidfd};
	return 0;
}

/* The uid that the kernel reports for users without a uid in this process's user namespace. */
static uid_t overflow_uid(void)
{
	FILE *file = fopen("/proc/sys/kernel/overflowuid", "re");
	unsigned uid;

	if (!file || fscanf(file, "%u", &uid) != 1)
		uid = NOBODYS_UID;
	if (file)
		(void)fclose(file);
	return uid;
}

/* Returns whether every user has a uid here, as in the initial user namespace: then overflowuid is one user's
 * own. */
static bool all_uids_are_mapped(void)
{
	FILE *file = fopen("/proc/self/uid_map", "re");
	uint32_t first, outside, count;
	bool all = file && fscanf(file, "%" SCNu32 " %" SCNu32 " %" SCNu32, &first, &outside, &count) == 3 &&
	           first == 0 && count == ALL_UIDS;

	if (file)
		(void)fclose(file);
	return all;
}

/* A session's memory is reused when its process has ended. Without a pidfd, only the end of the connection
 * would report the end, and the process's kernels can continue after it. */
static int check_process(const struct zd_creds *creds, struct zd_err *err)
{
	if (creds->pidfd < 0)
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "the client is outside the daemon's pid namespace (pid 0), so the daemon "
		                  "cannot watch its end: run both in one pid namespace, or with Linux 6.5");
	if (creds->pid == 0 && !creds->tenant)
		return zd_err_set(
		        err, ZEROD_E_PERMISSION,
		        "the client is outside the daemon's pid namespace (pid 0), so the daemon "
		        "cannot watch its end by number: run both in one pid namespace, or give the "
		        "client a tenant's socket ([socket NAME] of zerod.conf)");
	return 0;
}

int zd_creds_check(const struct zd_creds *creds, struct zd_err *err)
{
	int rc = check_process(creds, err);

	if (rc || creds->tenant)
		return rc;
	if (creds->uid == overflow_uid() && !all_uids_are_mapped())
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "the client's user has no uid in the daemon's user namespace (uid %u), so "
		                  "the daemon cannot distinguish it from others",
		                  (unsigned)creds->uid);
	return 0;
}

void zd_creds_set_tenant(struct zd_creds *creds, uid_t uid)
{
	creds->uid = uid;
	creds->tenant = true;
}

uid_t zd_creds_uid(int sock)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0 ? (uid_t)-1 : peer.uid;
}

void zd_creds_deinit(struct zd_creds *creds)
{
	if (creds->pidfd >= 0)
		(void)close(creds->pidfd);
	creds->pidfd = -1;
}

bool zd_creds_in_group(int sock, const struct zd_creds *creds, gid_t group)
{
	gid_t *groups = NULL;
	socklen_t bytes = 0;
	bool found = creds->gid == group;

	if (found || creds->tenant)
		return found && !creds->tenant;
#ifdef SO_PEERGROUPS
	/* Without a buffer the kernel returns the needed size. */
	if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) == 0 || errno != ERANGE ||
	    bytes > MAX_GROUPS * sizeof(gid_t))
		return false;
	groups = zd_calloc(bytes / sizeof(gid_t) + 1, sizeof(gid_t));
	if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) == 0)
		for (size_t i = 0; i < bytes / sizeof(gid_t) && !found; i++)
			found = groups[i] == group;
	free(groups);
#else
	(void)sock;
	(void)groups;
	(void)bytes;
#endif
	return found;
}

bool zd_creds_in_groups(int sock, const struct zd_creds *creds, const struct zd_creds_groups *groups)
{
	for (unsigned i = 0; i < groups->count; i++)
		if (zd_creds_in_group(sock, creds, groups->gids[i]))
			return true;
	return groups->count == 0;
}
