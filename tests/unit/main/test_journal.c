/* SPDX-License-Identifier: Apache-2.0 */
/* test_journal.c - entries as the journal takes them, and a journal that does not read. */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "main/journal.h"
#include "tests/support/test.h"

struct scene {
	char folder[32], path[48];
	int reader;
	struct zd_journal journal;
};

static int setup(void **state)
{
	struct scene *scene = zd_calloc(1, sizeof(*scene));
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	(void)snprintf(scene->folder, sizeof(scene->folder), "/tmp/zerod-journal-XXXXXX");
	assert_non_null(mkdtemp(scene->folder));
	(void)snprintf(scene->path, sizeof(scene->path), "%s/socket", scene->folder);
	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", scene->path);
	scene->reader = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(scene->reader, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(zd_journal_open(&scene->journal, scene->path), 0);
	*state = scene;
	return 0;
}

static int teardown(void **state)
{
	struct scene *scene = *state;

	(void)close(scene->journal.sock);
	if (scene->reader >= 0)
		(void)close(scene->reader);
	(void)unlink(scene->path);
	assert_int_equal(rmdir(scene->folder), 0);
	free(scene);
	return 0;
}

#define SCENE_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup, teardown)

/* Appends a field in the form that systemd documents for the journal's protocol. */
static size_t put(char *at, const char *key, const char *value)
{
	size_t nkey = strlen(key), nvalue = strlen(value);

	memcpy(at, key, nkey);
	at[nkey] = '\n';
	for (size_t i = 0; i < 8; i++)
		at[nkey + 1 + i] = (char)((uint64_t)nvalue >> (8 * i));
	memcpy(at + nkey + 9, value, nvalue);
	at[nkey + 9 + nvalue] = '\n';
	return nkey + nvalue + 10;
}

SCENE_TEST(test_entry)
{
	const struct zd_log_field fields[] = {{"ZEROD_SESSION", "7"}, {"ZEROD_NAME", "a=b\nc"}};
	const struct zd_log_line line = {
	        .level = ZD_LOG_NOTICE, .text = "two\nlines", .nfields = 2, .fields = fields};
	char expected[512], found[512];
	size_t nbytes = 0;

	nbytes += put(expected + nbytes, "MESSAGE", "two\nlines");
	nbytes += put(expected + nbytes, "PRIORITY", "5");
	nbytes += put(expected + nbytes, "SYSLOG_IDENTIFIER", "zerod");
	nbytes += put(expected + nbytes, "ZEROD_SESSION", "7");
	nbytes += put(expected + nbytes, "ZEROD_NAME", "a=b\nc");
	assert_int_equal(zd_journal_send(&scene->journal, &line), 0);
	assert_int_equal(recv(scene->reader, found, sizeof(found), MSG_DONTWAIT), (ssize_t)nbytes);
	assert_memory_equal(found, expected, nbytes);
}

SCENE_TEST(test_journal_does_not_read)
{
	const struct zd_log_line line = {.level = ZD_LOG_INFO, .text = "line"};
	unsigned sent = 0;
	char found[512];

	while (zd_journal_send(&scene->journal, &line) == 0)
		sent++;
	assert_int_equal(errno, EAGAIN);
	for (unsigned i = 0; i < sent; i++)
		assert_true(recv(scene->reader, found, sizeof(found), MSG_DONTWAIT) > 0);
	assert_int_equal(zd_journal_send(&scene->journal, &line), 0);
}

SCENE_TEST(test_no_journal)
{
	const struct zd_log_line line = {.level = ZD_LOG_INFO, .text = "line"};
	struct zd_journal nowhere;

	assert_int_equal(zd_journal_open(&nowhere, "/nonexistent/socket"), 0);
	assert_int_equal(zd_journal_send(&nowhere, &line), -1);
	assert_int_equal(errno, ENOENT);
	(void)close(nowhere.sock);
	(void)close(scene->reader);
	scene->reader = -1;
	assert_int_equal(zd_journal_send(&scene->journal, &line), -1);
	assert_int_equal(errno, ECONNREFUSED);
}
