/* SPDX-License-Identifier: Apache-2.0 */
/* test_id_key.c - files with the key of unique ids: which are read, and which are refused and why. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "server/id_key.h"
#include "tests/support/test.h"

static char folder[] = "/tmp/zerod-test-XXXXXX";
static char path[64];

static int setup(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	(void)snprintf(path, sizeof(path), "%s/key", folder);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	(void)unlink(path);
	return rmdir(folder);
}

static void write_key(char fill, size_t count, mode_t mode)
{
	char bytes[ZD_ID_KEY_MOST_BYTES + 1];
	int file;

	(void)unlink(path);
	file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(file >= 0 && count <= sizeof(bytes));
	memset(bytes, fill, sizeof(bytes));
	bytes[0] = '#';
	assert_int_equal(write(file, bytes, count), count);
	assert_int_equal(fchmod(file, mode), 0);
	(void)close(file);
}

static void expect_refused(int status, const char *text)
{
	struct zd_id_key key, before;
	struct zd_err err = ZD_ERR_NONE;

	memset(&key, 0x33, sizeof(key));
	before = key;
	assert_int_equal(zd_id_key_read(path, &key, &err), status);
	if (!strstr(err.text, text) || !strstr(err.text, path))
		fail_msg("%s", err.text);
	assert_memory_equal(&key, &before, sizeof(key));
}

TEST(test_read)
{
	static const struct {
		size_t count;
		mode_t mode;
	} files[] = {{ZD_ID_KEY_LEAST_BYTES, 0400},
	             {ZD_ID_KEY_LEAST_BYTES + 1, 0600},
	             {ZD_ID_KEY_MOST_BYTES, 0600}};
	struct zd_id_key keys[ZD_ARRAY_LEN(files)], again, other;

	for (size_t i = 0; i < ZD_ARRAY_LEN(files); i++) {
		write_key('k', files[i].count, files[i].mode);
		assert_int_equal(zd_id_key_read(path, &keys[i], NULL), 0);
		assert_int_equal(zd_id_key_read(path, &again, NULL), 0);
		assert_memory_equal(&keys[i], &again, sizeof(again));
		assert_true(keys[i].shared);
		for (size_t k = 0; k < i; k++) {
			assert_memory_not_equal(keys[i].secret, keys[k].secret, sizeof(again.secret));
			assert_memory_not_equal(keys[i].name, keys[k].name, sizeof(again.name));
		}
	}
	write_key('l', ZD_ID_KEY_LEAST_BYTES, 0600);
	assert_int_equal(zd_id_key_read(path, &other, NULL), 0);
	assert_memory_not_equal(other.secret, keys[0].secret, sizeof(other.secret));
	assert_memory_not_equal(other.secret, other.name, sizeof(other.name));
}

TEST(test_modes)
{
	static const mode_t others[] = {0440, 0640, 0604, 0620, 0602, 0610, 0601, 0666};

	for (size_t i = 0; i < ZD_ARRAY_LEN(others); i++) {
		char text[32];

		(void)snprintf(text, sizeof(text), "found mode %04o", (unsigned)others[i]);
		write_key('k', ZD_ID_KEY_LEAST_BYTES, others[i]);
		expect_refused(ZEROD_E_PERMISSION, text);
	}
}

TEST(test_owner)
{
	write_key('k', ZD_ID_KEY_LEAST_BYTES, 0600);
	if (chown(path, geteuid() + 1, (gid_t)-1) < 0) {
		print_message("# the files of others: only root can make one\n");
		skip();
	}
	expect_refused(ZEROD_E_PERMISSION, "found one of uid");
}

TEST(test_sizes)
{
	write_key('k', 0, 0600);
	expect_refused(ZEROD_E_INVALID, "expected 32 to 4096 bytes, found 0");
	write_key('k', ZD_ID_KEY_LEAST_BYTES - 1, 0600);
	expect_refused(ZEROD_E_INVALID, "expected 32 to 4096 bytes, found 31");
	write_key('k', ZD_ID_KEY_MOST_BYTES + 1, 0600);
	expect_refused(ZEROD_E_INVALID, "found 4097 or more");
	assert_int_equal(truncate(path, 0), 0);
	assert_int_equal(truncate(path, 64), 0); /* zeros */
	expect_refused(ZEROD_E_INVALID, "expected random bytes, found one byte repeated");
}

TEST(test_no_file)
{
	(void)unlink(path);
	expect_refused(ZEROD_E_NOT_FOUND, "no such file");
	assert_int_equal(mkfifo(path, 0600), 0);
	expect_refused(ZEROD_E_INVALID, "expected a regular file");
}

TEST(test_made)
{
	struct zd_id_key a, b;

	char runtime[] = "/tmp/zerod-id-key-XXXXXX", file[64], other[64];
	int fd;

	assert_non_null(mkdtemp(runtime));
	assert_int_equal(setenv("XDG_RUNTIME_DIR", runtime, 1), 0);
	(void)snprintf(file, sizeof(file), "%s/zerod-ids-%u.key", runtime, (unsigned)geteuid());
	assert_int_equal(zd_id_key_make(&a, NULL), 0);
	assert_int_equal(zd_id_key_make(&b, NULL), 0); /* another daemon of this user */
	assert_false(a.shared);
	assert_memory_equal(a.secret, b.secret, sizeof(a.secret));
	assert_int_equal(chmod(file, 0644), 0); /* others may have read it */
	assert_int_equal(zd_id_key_make(&b, NULL), 0);
	assert_memory_not_equal(a.secret, b.secret, sizeof(a.secret));
	assert_memory_not_equal(a.name, b.name, sizeof(a.name));
	assert_int_equal(unlink(file), 0);
	(void)snprintf(other, sizeof(other), "%s/other", runtime); /* a key file, as others know it */
	fd = open(other, O_WRONLY | O_CREAT | O_EXCL, 0600);
	assert_int_equal(write(fd, a.secret, sizeof(a.secret)), sizeof(a.secret));
	assert_int_equal(close(fd), 0);
	assert_int_equal(symlink(other, file), 0);
	assert_int_equal(zd_id_key_read(other, &a, NULL), 0);
	assert_int_equal(zd_id_key_make(&b, NULL), 0);
	assert_memory_not_equal(a.secret, b.secret, sizeof(a.secret));
	assert_int_equal(unlink(file), 0);
	assert_int_equal(unlink(other), 0);
	assert_int_equal(rmdir(runtime), 0);
	assert_int_equal(unsetenv("XDG_RUNTIME_DIR"), 0);
}

int main(void)
{
	return test_run(setup, teardown);
}
