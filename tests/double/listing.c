/* SPDX-License-Identifier: Apache-2.0 */
/* listing.c - who is listed on a GPU: those whose file is still locked. */
#include "tests/double/listing.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

pid_t double_listed_pid(const char *name, int index)
{
	int found = -1, pid = 0, used = 0;

	/* NOLINTNEXTLINE(bugprone-unchecked-string-to-number-conversion): our own names */
	if (sscanf(name, "gpu-%d-pid-%d%n", &found, &pid, &used) != 2 || name[used] || found != index)
		return 0;
	return (pid_t)pid;
}

/* Shared, so that several may look at the same time. */
bool double_listed_is(const char *dir, const char *name)
{
	char path[PATH_MAX];
	bool held;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	held = flock(fd, LOCK_SH | LOCK_NB) != 0;
	(void)close(fd);
	return held;
}
