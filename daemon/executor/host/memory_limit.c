/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_limit.c - reads the memory limits of control groups, versions 1 and 2.
 *
 * /proc/self/cgroup names the process's group in each hierarchy. Limits of the groups above also apply. In a
 * container the named path can start above the mounted part. Groups that are not mounted have no limit.
 */
#include "executor/host/memory_limit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define LINE_BYTES 4096u

struct hierarchy {
	const char *mount;
	const char *limits[2], *used;
	const char *cache[2]; /* lines of memory.stat, including the groups below */
};

static const struct hierarchy v1 = {
        .mount = "/sys/fs/cgroup/memory",
        .limits = {"memory.limit_in_bytes"},
        .used = "memory.usage_in_bytes",
        .cache = {"total_active_file", "total_inactive_file"},
};
/* Above the high limit the kernel delays the processes of the group. Pinned memory cannot be reclaimed: the
 * delays would not end. */
static const struct hierarchy v2 = {
        .mount = "/sys/fs/cgroup",
        .limits = {"memory.high", "memory.max"},
        .used = "memory.current",
        .cache = {"active_file", "inactive_file"},
};

static FILE *open_file(const char *group, const char *name, char path[PATH_MAX])
{
	int nbytes = snprintf(path, PATH_MAX, "%s/%s", group, name);
	return nbytes < PATH_MAX ? fopen(path, "re") : NULL;
}

/* Without a limit, version 2 writes "max", and version 1 a number that is larger than any memory. */
static bool read_bytes(const char *group, const char *name, char path[PATH_MAX], uint64_t *bytes)
{
	FILE *file = open_file(group, name, path);
	bool found = file && fscanf(file, "%" SCNu64, bytes) == 1;
	if (file)
		(void)fclose(file);
	return found;
}

static uint64_t cached_bytes(const struct hierarchy *hierarchy, const char *group)
{
	char path[PATH_MAX], line[128], name[64];
	uint64_t bytes, sum = 0;
	FILE *file = open_file(group, "memory.stat", path);
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%63s %" SCNu64, name, &bytes) == 2 &&
		    (strcmp(name, hierarchy->cache[0]) == 0 || strcmp(name, hierarchy->cache[1]) == 0))
			sum += bytes;
	}
	if (file)
		(void)fclose(file);
	return sum;
}

static uint64_t used_bytes(const struct hierarchy *hierarchy, const char *group)
{
	char path[PATH_MAX];
	uint64_t used, cached = cached_bytes(hierarchy, group);
	if (!read_bytes(group, hierarchy->used, path, &used))
		return 0;
	return used > cached ? used - cached : 0;
}

static bool group_exceeded(const struct hierarchy *hierarchy, const char *group, uint64_t bytes,
                           bool beside_used, struct zd_memory_limit *limit)
{
	struct zd_memory_limit found;
	for (size_t i = 0; i < ZD_ARRAY_LEN(hierarchy->limits) && hierarchy->limits[i]; i++) {
		if (!read_bytes(group, hierarchy->limits[i], found.file, &found.bytes))
			continue;
		found.used_bytes = used_bytes(hierarchy, group);
		uint64_t used = beside_used ? found.used_bytes : 0;
		if (used > found.bytes || bytes > found.bytes - used) {
			*limit = found;
			return true;
		}
	}
	return false;
}

/* From the group to the root of the hierarchy. */
static bool groups_exceeded(const char *root, const struct hierarchy *hierarchy, const char *path,
                            uint64_t bytes, bool beside_used, struct zd_memory_limit *limit)
{
	char group[PATH_MAX];
	size_t mount_bytes = strlen(root) + strlen(hierarchy->mount);
	int nbytes = snprintf(group, sizeof(group), "%s%s%s", root, hierarchy->mount, path);
	if (nbytes < 0 || (size_t)nbytes >= sizeof(group))
		return false;
	for (;;) {
		char *last = strrchr(group + mount_bytes, '/');
		if (group_exceeded(hierarchy, group, bytes, beside_used, limit))
			return true;
		if (!last)
			return false;
		*last = '\0';
	}
}

/* A line is "4:memory:/path" in version 1, in which several controllers can share a hierarchy ("cpu,memory"),
 * and "0::/path" in version 2. Writes '\0' after the path. NULL: the line's hierarchy has no memory
 * controller. */
static const struct hierarchy *parse_line(char *line, const char **path)
{
	char *controllers = strchr(line, ':');
	char *last = controllers ? strchr(controllers + 1, ':') : NULL;
	if (!last)
		return NULL;
	*last = '\0';
	*path = last + 1;
	last[1 + strcspn(last + 1, "\n")] = '\0';
	if (strcmp(line, "0:") == 0)
		return &v2;
	for (char *rest, *name = strtok_r(controllers + 1, ",", &rest); name;
	     name = strtok_r(NULL, ",", &rest)) {
		if (strcmp(name, "memory") == 0)
			return &v1;
	}
	return NULL;
}

bool zd_memory_limit_exceeded(const char *root, uint64_t bytes, bool beside_used,
                              struct zd_memory_limit *limit)
{
	char line[LINE_BYTES], path[PATH_MAX];
	bool exceeded = false;
	FILE *file = open_file(root, "proc/self/cgroup", path);
	while (file && !exceeded && fgets(line, sizeof(line), file)) {
		const char *group;
		const struct hierarchy *hierarchy = parse_line(line, &group);
		exceeded = hierarchy && groups_exceeded(root, hierarchy, group, bytes, beside_used, limit);
	}
	if (file)
		(void)fclose(file);
	return exceeded;
}
