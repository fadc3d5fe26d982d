/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grants.c - the devices that a session can use.
 *
 * The configuration names the devices of a control group, because the kernel does not: version 2 decides by
 * BPF programs, which cannot be read or queried without privileges. The path of a process's control group
 * comes from the kernel. A user can move a process only within a part of the tree that was delegated to that
 * user. The files that the process sees under /dev prove nothing, because its mount namespace is the user's
 * own.
 */
#include "server/grants.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/creds.h"

#define CGROUP_BYTES 16384u /* of /proc/PID/cgroup; version 1 has a line for each of a dozen hierarchies */

static bool has_ended(const struct zd_creds *creds)
{
	struct pollfd end = {.fd = creds->pidfd, .events = POLLIN};

	return poll(&end, 1, 0) != 0;
}

/* Reads /proc/PID/cgroup; "" if it cannot be read. */
static void read_cgroup(const struct zd_creds *creds, char lines[CGROUP_BYTES])
{
	char path[64];

	lines[0] = '\0';
	if (creds->pid <= 0 || creds->pidfd < 0)
		return;
	(void)snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)creds->pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	ssize_t nbytes = read(fd, lines, CGROUP_BYTES - 1);
	(void)close(fd);
	/* While the process lives, its pid is no other process's. */
	lines[nbytes > 0 && !has_ended(creds) ? nbytes : 0] = '\0';
}

/* Returns whether the comma-separated list contains the word. */
static bool has_word(const char *list, size_t list_bytes, const char *word)
{
	size_t word_bytes = strlen(word);

	for (const char *at = list; at < list + list_bytes;) {
		const char *comma = memchr(at, ',', (size_t)(list + list_bytes - at));
		const char *end = comma ? comma : list + list_bytes;

		if ((size_t)(end - at) == word_bytes && memcmp(at, word, word_bytes) == 0)
			return true;
		at = end + 1;
	}
	return false;
}

/* A line is "hierarchy:controllers:path". Version 2 is hierarchy 0, without controllers. */
static bool line_is_in(const char *line, size_t line_bytes, const char *path)
{
	size_t path_bytes = strlen(path);
	const char *controllers = memchr(line, ':', line_bytes);

	if (!controllers)
		return false;
	controllers++;
	const char *found = memchr(controllers, ':', (size_t)(line + line_bytes - controllers));
	if (!found ||
	    !(memcmp(line, "0::", 3) == 0 || has_word(controllers, (size_t)(found - controllers), "devices")))
		return false;
	found++;
	while (path_bytes > 0 && path[path_bytes - 1] == '/')
		path_bytes--;
	if ((size_t)(line + line_bytes - found) < path_bytes || memcmp(found, path, path_bytes) != 0)
		return false;
	found += path_bytes;
	return found == line + line_bytes || *found == '/';
}

bool zd_grants_in_cgroup(const char *lines, const char *path)
{
	while (*lines) {
		size_t bytes = strcspn(lines, "\n");

		if (line_is_in(lines, bytes, path))
			return true;
		lines += bytes + (lines[bytes] == '\n');
	}
	return false;
}

static bool applies(const struct zd_grant *grant, int sock, const struct zd_creds *creds, const char *lines)
{
	switch (grant->kind) {
	case ZD_GRANT_EVERYONE:
		return true;
	case ZD_GRANT_USER:
		return grant->uid == creds->uid;
	case ZD_GRANT_GROUP:
		return zd_creds_in_group(sock, creds, grant->gid);
	case ZD_GRANT_CGROUP:
		return zd_grants_in_cgroup(lines, grant->cgroup);
	}
	return false;
}

uint64_t zd_grants_devices(const struct zd_grants *grants, int sock, const struct zd_creds *creds)
{
	uint64_t devices = grants->count ? 0 : ZD_ALL_DEVICES;
	char *lines = NULL;

	for (unsigned i = 0; i < grants->count; i++) {
		const struct zd_grant *grant = &grants->all[i];

		if (grant->kind == ZD_GRANT_CGROUP && !lines) {
			lines = zd_calloc(1, CGROUP_BYTES);
			read_cgroup(creds, lines);
		}
		if (applies(grant, sock, creds, lines))
			devices |= grant->devices;
	}
	free(lines);
	return devices;
}
