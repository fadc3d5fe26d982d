/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listed.c - what processes on one node see of each other, by files in ZD_DOUBLE_DIR.
 *
 *   gpu-INDEX-pid-PID   locked while the process has a context there. The lock belongs to the open file, so
 *                       that a forked child keeps it beyond its parent's death, as it keeps the context.
 *                       Files stay behind: a name that is unlinked while a child holds the lock would not be
 *                       found any more.
 *   taken-INDEX         bytes of that GPU's memory that somebody else has
 *   lost-INDEX          the result that every call in a context on that GPU gives from now on, as 214 for an
 *                       ECC error
 *   xid-INDEX, busy-INDEX   see nvml.c
 */
#include "tests/double/double.h"
#include "tests/double/listing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

int double_listed_add(int index)
{
	char path[PATH_MAX];
	int fd, result;

	if (!double_config()->dir)
		return -1;
	(void)snprintf(path, sizeof(path), "%s/gpu-%d-pid-%d", double_config()->dir, index, (int)getpid());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return -1;
	/* A process that lists the device holds the lock only for a moment. */
	do
		result = flock(fd, LOCK_EX);
	while (result && errno == EINTR);
	return fd;
}

bool double_listed_others(int index)
{
	DIR *dir = double_config()->dir ? opendir(double_config()->dir) : NULL;
	const struct dirent *entry;
	bool found = false;

	while (dir && !found && (entry = readdir(dir)) != NULL) {
		pid_t pid = double_listed_pid(entry->d_name, index);

		found = pid > 0 && pid != getpid() && double_listed_is(double_config()->dir, entry->d_name);
	}
	if (dir)
		(void)closedir(dir);
	return found;
}

/* The number in such a file; 0 without it. */
static uint64_t read_number(const char *what, int index)
{
	char path[PATH_MAX], text[32] = "";
	uint64_t number = 0;
	FILE *file;

	if (!double_config()->dir)
		return 0;
	(void)snprintf(path, sizeof(path), "%s/%s-%d", double_config()->dir, what, index);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fgets(text, sizeof(text), file))
		number = strtoull(text, NULL, 10);
	(void)fclose(file);
	return number;
}

uint64_t double_taken_bytes(int index)
{
	return read_number("taken", index);
}

int double_lost_to(int index)
{
	return (int)read_number("lost", index);
}
