/* SPDX-License-Identifier: Apache-2.0 */
/* id_key.c - the key that authenticates unique ids. The bytes that it is derived from are erased at once. */
#include "server/id_key.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"

/* Another purpose needs another label: no value that is computed for one is valid for the other. */
#define LABEL_SECRET "zerod: unique ids, version 1"
#define LABEL_NAME   "zerod: name of a key, version 1"

static int derive(const void *bytes, size_t count, struct zd_id_key *key, struct zd_err *err)
{
	static const struct zd_mac_part secret = {LABEL_SECRET, sizeof(LABEL_SECRET)};
	static const struct zd_mac_part name = {LABEL_NAME, sizeof(LABEL_NAME)};
	uint8_t whole_name[ZD_MAC_BYTES];
	int rc = zd_mac(bytes, count, &secret, 1, key->secret, err);

	if (!rc)
		rc = zd_mac(bytes, count, &name, 1, whole_name, err);
	if (!rc)
		memcpy(key->name, whole_name, sizeof(key->name));
	return rc;
}

/* With an access list, the group's bits are its mask. */
static int check_file(int fd, const char *path, struct zd_err *err)
{
	struct stat found;

	if (fstat(fd, &found) < 0)
		return zd_err_errno(err, errno, "key_file %s: reading its owner", path);
	if (!S_ISREG(found.st_mode))
		return zd_err_set(err, ZEROD_E_INVALID, "key_file %s: expected a regular file", path);
	if (found.st_uid != 0 && found.st_uid != geteuid())
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "key_file %s: expected a file of root or of the daemon's user, uid %u, "
		                  "found one of uid %u",
		                  path, (unsigned)geteuid(), (unsigned)found.st_uid);
	if (found.st_mode & 077)
		return zd_err_set(err, ZEROD_E_PERMISSION,
		                  "key_file %s: expected a file that only its owner can read and write, such "
		                  "as of mode 0400, found mode %04o",
		                  path, (unsigned)found.st_mode & 07777);
	return 0;
}

/* Returns the number of bytes, or -1 with errno. */
static ssize_t read_all(int fd, uint8_t *bytes, size_t room_bytes)
{
	size_t used = 0;

	while (used < room_bytes) {
		ssize_t got = read(fd, bytes + used, room_bytes - used);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -1;
		if (got == 0)
			break;
		used += (size_t)got;
	}
	return (ssize_t)used;
}

static int read_key(int fd, const char *path, struct zd_id_key *key, struct zd_err *err)
{
	uint8_t bytes[ZD_ID_KEY_MOST_BYTES + 1];
	ssize_t count = read_all(fd, bytes, sizeof(bytes));
	int rc;

	if (count < 0)
		return zd_err_errno(err, errno, "key_file %s: reading it", path);
	if (count < (ssize_t)ZD_ID_KEY_LEAST_BYTES || count > (ssize_t)ZD_ID_KEY_MOST_BYTES)
		rc = zd_err_set(err, ZEROD_E_INVALID, "key_file %s: expected %u to %u bytes, found %zd%s",
		                path, ZD_ID_KEY_LEAST_BYTES, ZD_ID_KEY_MOST_BYTES, count,
		                count > (ssize_t)ZD_ID_KEY_MOST_BYTES ? " or more" : "");
	else if (memcmp(bytes, bytes + 1, (size_t)count - 1) == 0)
		rc = zd_err_set(err, ZEROD_E_INVALID,
		                "key_file %s: expected random bytes, found one byte repeated", path);
	else
		rc = derive(bytes, (size_t)count, key, err);
	explicit_bzero(bytes, sizeof(bytes));
	return rc;
}

static int read_file(const char *path, int more_flags, struct zd_id_key *key, struct zd_err *err)
{
	struct zd_id_key made = {.shared = true};
	/* A FIFO would block. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | more_flags);

	if (fd < 0 && errno == ENOENT)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "key_file %s: no such file", path);
	if (fd < 0)
		return zd_err_errno(err, errno, "key_file %s: opening it", path);
	int rc = check_file(fd, path, err);
	if (!rc)
		rc = read_key(fd, path, &made, err);
	(void)close(fd);
	if (!rc)
		*key = made;
	explicit_bzero(&made, sizeof(made));
	return rc;
}

int zd_id_key_read(const char *path, struct zd_id_key *key, struct zd_err *err)
{
	return read_file(path, 0, key, err);
}

static int make_alone(struct zd_id_key *key, struct zd_err *err)
{
	struct zd_id_key made = {.shared = false};
	uint8_t bytes[ZD_MAC_BYTES];

	if (getentropy(bytes, sizeof(bytes)) < 0)
		return zd_err_errno(err, errno, "random bytes for a key");
	int rc = derive(bytes, sizeof(bytes), &made, err);
	explicit_bzero(bytes, sizeof(bytes));
	if (!rc)
		*key = made;
	explicit_bzero(&made, sizeof(made));
	return rc;
}

/* Creates the file with all of its bytes, or not at all. Another daemon can do so at the same time. */
static void make_file(const char *path)
{
	uint8_t bytes[2 * ZD_ID_KEY_LEAST_BYTES];
	char temporary[PATH_MAX];
	int fd;

	if (snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path) >= (int)sizeof(temporary))
		return;
	fd = mkostemp(temporary, O_CLOEXEC); /* of mode 0600 */
	if (fd < 0)
		return;
	bool is_written = getentropy(bytes, sizeof(bytes)) == 0 &&
	                  write(fd, bytes, sizeof(bytes)) == (ssize_t)sizeof(bytes);
	explicit_bzero(bytes, sizeof(bytes));
	(void)close(fd);
	if (is_written)
		(void)link(temporary, path); /* never replaces a file */
	(void)unlink(temporary);
}

int zd_id_key_make(struct zd_id_key *key, struct zd_err *err)
{
	const char *folder = getenv("XDG_RUNTIME_DIR");
	char path[PATH_MAX];
	struct zd_err why;

	if (snprintf(path, sizeof(path), "%s/zerod-ids-%u.key", folder && folder[0] == '/' ? folder : "/tmp",
	             (unsigned)geteuid()) >= (int)sizeof(path))
		return make_alone(key, err);
	/* In /tmp others may make a link, to a file of root's that they know the bytes of. */
	int rc = read_file(path, O_NOFOLLOW, key, &why);
	if (rc == ZEROD_E_NOT_FOUND) {
		make_file(path);
		rc = read_file(path, O_NOFOLLOW, key, &why);
	}
	key->shared = false;
	return rc ? make_alone(key, err) : 0;
}
