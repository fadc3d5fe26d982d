/* SPDX-License-Identifier: Apache-2.0 */
/* test_marker.c - the file beside the socket that says what is kept. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "main/marker.h"
#include "tests/support/test.h"

static char folder[32], socket_path[64];
static struct zd_marker marker, elsewhere;

static int setup(void **state)
{
	(void)state;
	(void)snprintf(folder, sizeof(folder), "/tmp/zd-marker-XXXXXX");
	assert_non_null(mkdtemp(folder));
	(void)snprintf(socket_path, sizeof(socket_path), "%s/zerod.sock", folder);
	zd_marker_init(&marker, socket_path, "holder");
	zd_marker_init(&elsewhere, socket_path, "systemd");
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	(void)unlink(marker.path);
	assert_int_equal(rmdir(folder), 0); /* there is no other file */
	return 0;
}

#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, teardown)

SETUP_TEST(test_is_read_again)
{
	struct stat found;

	assert_int_equal(zd_marker_read(&marker), ZD_KEPT_NOTHING);
	zd_marker_write(&marker, ZD_KEPT_NOTHING);
	zd_marker_write(&marker, ZD_KEPT_JOBS);
	assert_int_equal(zd_marker_read(&marker), ZD_KEPT_JOBS);
	assert_int_equal(stat(marker.path, &found), 0);
	assert_int_equal(found.st_mode & 07777, 0600);
	zd_marker_write(&marker, ZD_KEPT_LOST);
	assert_int_equal(zd_marker_read(&marker), ZD_KEPT_LOST);
	zd_marker_write(&marker, ZD_KEPT_NOTHING);
	assert_int_equal(access(marker.path, F_OK), -1);
}

/* The jobs may still be in that store. */
SETUP_TEST(test_of_another_store)
{
	zd_marker_write(&elsewhere, ZD_KEPT_JOBS);
	assert_int_equal(zd_marker_read(&marker), ZD_KEPT_NOTHING);
}

static void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	(void)fputs(text, file);
	assert_int_equal(fclose(file), 0);
}

/* No store outlives a boot; neither does a file that is cut, or that another user can choose. */
SETUP_TEST(test_means_nothing)
{
	char target[64];

	write_text(marker.path, "jobs holder 01234567-89ab-cdef-0123-456789abcdef\n");
	assert_int_equal(zd_marker_read(&marker), ZD_KEPT_NOTHING);
	write_text(marker.path, "jobs holder");
	assert_int_equal(zd_marker_read(&marker), ZD_KEPT_NOTHING);
	zd_marker_write(&marker, ZD_KEPT_JOBS);
	(void)snprintf(target, sizeof(target), "%s/target", folder);
	assert_int_equal(rename(marker.path, target), 0);
	assert_int_equal(symlink(target, marker.path), 0);
	assert_int_equal(zd_marker_read(&marker), ZD_KEPT_NOTHING);
	assert_int_equal(unlink(target), 0);
	if (geteuid() == 0) {
		zd_marker_write(&marker, ZD_KEPT_JOBS);
		assert_int_equal(chown(marker.path, 65534, 65534), 0);
		assert_int_equal(zd_marker_read(&marker), ZD_KEPT_NOTHING);
	}
}

/* A daemon was killed while it wrote. */
SETUP_TEST(test_a_rest_is_replaced)
{
	char rest[sizeof(marker.path) + 8];

	(void)snprintf(rest, sizeof(rest), "%s.new", marker.path);
	write_text(rest, "jo");
	zd_marker_write(&marker, ZD_KEPT_JOBS);
	assert_int_equal(zd_marker_read(&marker), ZD_KEPT_JOBS);
	assert_int_equal(access(rest, F_OK), -1);
}
