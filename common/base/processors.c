/* SPDX-License-Identifier: Apache-2.0 */
/*
 * processors.c - the number of processors that this process may keep busy.
 *
 * A container mostly sees all processors, and has a quota for a share of them. The limiting quota can be that
 * of any group above the process's own. All of them are therefore read. In a container, the path of the own
 * group can exist on the host only: then the existing folders on that path are read.
 */
#include "base/processors.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS   "/sys/fs/cgroup"
#define OWN_LINE "0::" /* of /proc/self/cgroup: version 2's */

#define MOST_PROCESSORS (1u << 20)

/* Enlarges the set until it has room for all processors that the system may have. */
static unsigned by_affinity(void)
{
	int rc = -1, count = 0;

	for (size_t room = CPU_SETSIZE; rc != 0 && room <= MOST_PROCESSORS; room *= 2) {
		cpu_set_t *set = CPU_ALLOC(room);

		rc = set ? sched_getaffinity(0, CPU_ALLOC_SIZE(room), set) : 0;
		count = set && rc == 0 ? CPU_COUNT_S(CPU_ALLOC_SIZE(room), set) : 0;
		CPU_FREE(set);
	}
	return count > 0 ? (unsigned)count : 1;
}

/* Finds the first line with this beginning; `line` is the line, cut to its size, without the newline. */
static bool find_line(const char *path, const char *begin, char *line, size_t line_bytes)
{
	FILE *file = fopen(path, "re");
	bool found = false;

	if (!file)
		return false;
	while (!found && fgets(line, (int)line_bytes, file))
		found = strncmp(line, begin, strlen(begin)) == 0;
	(void)fclose(file);
	line[found ? strcspn(line, "\n") : 0] = '\0';
	return found;
}

/* "200000 100000": two processors' time in each 100 ms; "max 100000": no limit. */
static unsigned by_quota(const char *group, unsigned processors)
{
	char path[PATH_MAX + sizeof("/cpu.max")], line[64], *end;
	unsigned long long quota, period;

	(void)snprintf(path, sizeof(path), "%s/cpu.max", group);
	if (!find_line(path, "", line, sizeof(line)))
		return processors;
	quota = strtoull(line, &end, 10);
	period = end > line ? strtoull(end, NULL, 10) : 0;
	if (period == 0 || quota / period >= processors)
		return processors;
	return quota >= period ? (unsigned)(quota / period) : 1;
}

unsigned zd_processors(const char *root)
{
	char path[PATH_MAX], own[PATH_MAX];
	unsigned processors = by_affinity();
	size_t top;

	(void)snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	if (!find_line(path, OWN_LINE, own, sizeof(own)))
		return processors;
	top = (size_t)snprintf(path, sizeof(path), "%s" GROUPS, root);
	if ((size_t)snprintf(path, sizeof(path), "%s" GROUPS "%s", root, own + strlen(OWN_LINE)) >=
	    sizeof(path))
		return processors;
	for (;;) {
		processors = by_quota(path, processors);
		if (strlen(path) <= top)
			return processors;
		*strrchr(path, '/') = '\0';
	}
}
