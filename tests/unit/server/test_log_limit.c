/* SPDX-License-Identifier: Apache-2.0 */
/* test_log_limit.c - how many lines of the log one user's sessions may cause. */
#include <stdio.h>
#include <unistd.h>

#include "base/err.h"
#include "server/log_limit.h"
#include "server/loop.h"
#include "tests/support/test.h"

#define ALICE 1000u
#define BOB   1001u

#define WINDOW_MS 200

static struct zd_loop loop;
static struct zd_log_limit limit;
static char reported[256];
static unsigned nreports;

static void remember(const struct zd_log_line *line)
{
	(void)snprintf(reported, sizeof(reported), "%s", line->text);
	nreports++;
}

static int setup(void **state)
{
	struct zd_err err;

	(void)state;
	nreports = 0;
	zd_log_set_sink(remember);
	assert_int_equal(zd_loop_init(&loop, &err), 0);
	zd_log_limit_init(&limit, &loop, WINDOW_MS);
	return 0;
}

#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, NULL)

static void close_limit(void)
{
	zd_log_limit_close(&limit);
	zd_loop_deinit(&loop);
	zd_log_set_sink(NULL);
}

static unsigned count_admitted(uid_t uid, enum zd_log_level level, unsigned lines)
{
	unsigned admitted = 0;

	for (unsigned i = 0; i < lines; i++)
		admitted += zd_log_limit_admits(&limit, uid, level);
	return admitted;
}

SETUP_TEST(test_others_keep_their_lines)
{
	assert_int_equal(count_admitted(ALICE, ZD_LOG_INFO, 76000), ZD_LOG_LIMIT_LINES);
	assert_int_equal(count_admitted(BOB, ZD_LOG_WARNING, 3), 3);
	assert_int_equal(nreports, 0);
	while (nreports == 0)
		(void)zd_loop_run_once(&loop, true);
	assert_string_equal(reported, "uid 1000: 75500 lines of the log dropped, beyond 500 within 200 ms");
	assert_int_equal(nreports, 1);
	/* The next window. */
	assert_int_equal(count_admitted(ALICE, ZD_LOG_INFO, 7), 7);
	close_limit();
	assert_int_equal(nreports, 1);
}

/* Lines of a level that is not logged are no lines. */
SETUP_TEST(test_level)
{
	assert_int_equal(count_admitted(ALICE, ZD_LOG_DEBUG, 1000), 0);
	assert_int_equal(count_admitted(ALICE, ZD_LOG_INFO, 1), 1);
	close_limit();
	assert_int_equal(nreports, 0);
}

SETUP_TEST(test_end_reports)
{
	(void)count_admitted(ALICE, ZD_LOG_INFO, ZD_LOG_LIMIT_LINES + 2);
	close_limit();
	assert_int_equal(nreports, 1);
	assert_non_null(strstr(reported, "uid 1000: 2 lines of the log dropped"));
}

int main(void)
{
	(void)alarm(60);
	return test_run(NULL, NULL);
}
