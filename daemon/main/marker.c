/* SPDX-License-Identifier: Apache-2.0 */
/* marker.c - a file next to the socket that says which durable jobs the store should have. */
#include "main/marker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define LINE_BYTES 128u
#define BOOT_BYTES 64u

static const char *const words[] = {[ZD_KEPT_NOTHING] = "", [ZD_KEPT_JOBS] = "jobs", [ZD_KEPT_LOST] = "lost"};

void zd_marker_init(struct zd_marker *marker, const char *socket_path, const char *place)
{
	int bytes = snprintf(marker->path, sizeof(marker->path), "%s.kept", socket_path);

	if (bytes >= (int)sizeof(marker->path))
		marker->path[0] = '\0';
	marker->place = place;
}

static void read_boot(char boot[BOOT_BYTES])
{
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

	if (!file || !fgets(boot, BOOT_BYTES, file))
		(void)snprintf(boot, BOOT_BYTES, "unknown\n");
	if (file)
		(void)fclose(file);
}

static void make_line(const struct zd_marker *marker, enum zd_kept kept, char line[LINE_BYTES])
{
	char boot[BOOT_BYTES];

	read_boot(boot);
	(void)snprintf(line, LINE_BYTES, "%s %s %s", words[kept], marker->place, boot);
}

/* A file of another user is ignored. */
static int open_own(const char *path)
{
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat found;

	if (fd >= 0 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid())
		return fd;
	if (fd >= 0)
		(void)close(fd);
	return -1;
}

enum zd_kept zd_marker_read(const struct zd_marker *marker)
{
	char found[LINE_BYTES], line[LINE_BYTES];
	enum zd_kept kept = ZD_KEPT_NOTHING;
	int fd = open_own(marker->path);

	if (fd < 0)
		return ZD_KEPT_NOTHING;
	ssize_t nbytes = read(fd, found, sizeof(found) - 1);
	(void)close(fd);
	found[nbytes > 0 ? nbytes : 0] = '\0';
	for (unsigned i = ZD_KEPT_JOBS; i <= ZD_KEPT_LOST; i++) {
		make_line(marker, i, line);
		if (strcmp(found, line) == 0)
			kept = i;
	}
	return kept;
}

/* The name of the file until it is complete. An existing file with this name was left by a daemon that was
 * killed. */
static int write_new(const char *path, const char *line)
{
	size_t nbytes = strlen(line);
	int fd, rc = -1;

	(void)unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -1;
	if (write(fd, line, nbytes) == (ssize_t)nbytes)
		rc = 0;
	if (close(fd) < 0)
		rc = -1;
	return rc;
}

static void remove_own(const char *path)
{
	struct stat found;

	if (lstat(path, &found) == 0 && found.st_uid == geteuid() && unlink(path) < 0)
		zd_log(ZD_LOG_WARNING, "removing %s: %s", path, strerror(errno));
}

void zd_marker_write(const struct zd_marker *marker, enum zd_kept kept)
{
	char path[sizeof(marker->path) + sizeof(".new")], line[LINE_BYTES];

	if (!marker->path[0])
		return;
	if (kept == ZD_KEPT_NOTHING) {
		remove_own(marker->path);
		return;
	}
	(void)snprintf(path, sizeof(path), "%s.new", marker->path);
	make_line(marker, kept, line);
	if (write_new(path, line) < 0 || rename(path, marker->path) < 0) {
		zd_log(ZD_LOG_WARNING,
		       "writing %s: %s; the next daemon cannot tell whether durable jobs are lost",
		       marker->path, strerror(errno));
		remove_own(path);
	}
}
