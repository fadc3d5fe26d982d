/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, state tables, small allocations, names of statuses and dtypes, log lines. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zerod.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sm.h"
#include "base/text.h"
#include "tests/support/test.h"

/* ---- Errors -------------------------------------------------------------------------------------------- */

TEST(err_text)
{
	struct zd_err err = ZD_ERR_NONE;

	assert_int_equal(zd_err_set(&err, ZEROD_E_MISMATCH, "rank %d has %s", 3, "float16"),
	                 ZEROD_E_MISMATCH);
	assert_int_equal(err.status, ZEROD_E_MISMATCH);
	assert_string_equal(err.text, "rank 3 has float16");
	/* A text that grows on its way up. */
	assert_int_equal(zd_err_set(&err, err.status, "unit a: %s", err.text), ZEROD_E_MISMATCH);
	assert_string_equal(err.text, "unit a: rank 3 has float16");
	assert_int_equal(zd_err_set(NULL, ZEROD_E_BUSY, "nobody reads %s", "this"), ZEROD_E_BUSY);
}

TEST(err_text_is_cut)
{
	char big[2 * ZD_ERR_TEXT_BYTES];
	struct zd_err err = ZD_ERR_NONE;

	for (size_t i = 0; i + 3 < sizeof(big); i += 3)
		memcpy(big + i, "\xe2\x82\xac", 4);
	(void)zd_err_set(&err, ZEROD_E_INVALID, "x%s", big);
	assert_int_equal(strlen(err.text), 1 + (ZD_ERR_TEXT_BYTES - 2) / 3 * 3);
	assert_true(zd_utf8_valid(err.text, strlen(err.text)));
}

TEST(err_errno)
{
	char big[2 * ZD_ERR_TEXT_BYTES];
	struct zd_err err = ZD_ERR_NONE;
	const char *reason = ": No such file or directory";

	assert_int_equal(zd_err_errno(&err, ENOENT, "opening %s", "/x"), ZEROD_E_SYSTEM);
	assert_string_equal(err.text, "opening /x: No such file or directory");
	assert_int_equal(zd_err_errno(NULL, ENOENT, "nobody"), ZEROD_E_SYSTEM);

	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	(void)zd_err_errno(&err, ENOENT, "%s", big);
	assert_int_equal(strlen(err.text), ZD_ERR_TEXT_BYTES - 1);
	assert_string_equal(err.text + strlen(err.text) - strlen(reason), reason);
}

/* ---- Things that end the process ----------------------------------------------------------------------- */

/* Runs fn in a child and returns what it wrote to stderr before it died of SIGABRT. */
static const char *words_before_abort(void (*fn)(void))
{
	static char words[4096];
	size_t used = 0;
	ssize_t got;
	int ends[2], status = 0;
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		/* cmocka's handlers would turn the signal into a failed test of the child. */
		(void)signal(SIGABRT, SIG_DFL);
		(void)dup2(ends[1], STDERR_FILENO);
		fn();
		_exit(0);
	}
	close(ends[1]);
	while ((got = read(ends[0], words + used, sizeof(words) - 1 - used)) > 0)
		used += (size_t)got;
	words[used] = '\0';
	close(ends[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	return words;
}

static void fail_assertion(void)
{
	zd_assert(1 + 1 == 3);
}

TEST(assertions_abort)
{
	const char *words = words_before_abort(fail_assertion);

	zd_assert(1 + 1 == 2);
	assert_non_null(strstr(words, "fail_assertion: assertion failed: 1 + 1 == 3"));
	assert_non_null(strstr(words, "test_base.c:"));
}

enum { IDLE, BUSY, DONE, NSTATES };
static const char *const state_names[] = {"idle", "busy", "done"};
static const uint32_t allowed[] = {
        [IDLE] = ZD_SM_TO(BUSY),
        [BUSY] = ZD_SM_TO(IDLE) | ZD_SM_TO(DONE),
        [DONE] = 0,
};
static const struct zd_sm machine = {"worker", NSTATES, state_names, allowed};

static void move_wrongly(void)
{
	uint8_t worker = IDLE;

	zd_sm_move(&machine, &worker, DONE);
}

static void move_nowhere(void)
{
	uint8_t worker = BUSY;

	zd_sm_move(&machine, &worker, NSTATES);
}

static void move_from_nowhere(void)
{
	uint8_t worker = 200;

	zd_sm_move(&machine, &worker, IDLE);
}

TEST(state_tables)
{
	uint8_t worker = IDLE;

	zd_sm_move(&machine, &worker, BUSY);
	zd_sm_move(&machine, &worker, IDLE);
	zd_sm_move(&machine, &worker, BUSY);
	zd_sm_move(&machine, &worker, DONE);
	assert_int_equal(worker, DONE);
	assert_string_equal(zd_sm_name(&machine, worker), "done");
	assert_string_equal(zd_sm_name(&machine, NSTATES), "?");

	assert_string_equal(words_before_abort(move_wrongly), "worker: no move from idle (0) to done (2)\n");
	assert_string_equal(words_before_abort(move_nowhere), "worker: no move from busy (1) to ? (3)\n");
	assert_string_equal(words_before_abort(move_from_nowhere),
	                    "worker: no move from ? (200) to idle (0)\n");
}

static void overflowing_allocation(void)
{
	free(zd_realloc(NULL, SIZE_MAX / 2, 4));
}

TEST(allocations)
{
	unsigned char *bytes = zd_calloc(3, 5);
	char *copy = zd_strdup("text");
	void *empty = zd_calloc(0, 8);

	for (size_t i = 0; i < 15; i++)
		assert_int_equal(bytes[i], 0);
	memset(bytes, 7, 15);
	bytes = zd_realloc(bytes, 1000, 3);
	for (size_t i = 0; i < 15; i++)
		assert_int_equal(bytes[i], 7);
	bytes = zd_realloc(bytes, 0, 3);
	assert_non_null(bytes);
	assert_non_null(empty);
	assert_string_equal(copy, "text");
	free(bytes);
	free(copy);
	free(empty);
	assert_non_null(strstr(words_before_abort(overflowing_allocation), "out of memory"));
}

TEST(arithmetic)
{
	struct outer {
		int first;
		struct zd_err member;
	} outer;

	assert_int_equal(zd_align_up(0, 256), 0);
	assert_int_equal(zd_align_up(1, 256), 256);
	assert_int_equal(zd_align_up(256, 256), 256);
	assert_int_equal(zd_align_up((1ull << 50) - 1, 2 << 20), 1ull << 50);
	assert_int_equal(zd_min_u64(UINT64_MAX, 3), 3);
	assert_int_equal(zd_max_u64(UINT64_MAX, 3), UINT64_MAX);
	assert_ptr_equal(ZD_CONTAINER_OF(&outer.member, struct outer, member), &outer);
}

/* ---- Names --------------------------------------------------------------------------------------------- */

enum { RESERVED = -2 }; /* of the programs: wrong usage */

TEST(status_names)
{
	assert_string_equal(zerod_status_name(ZEROD_OK), "OK");
	assert_string_equal(zerod_status_name(ZEROD_E_NOT_HELD), "NOT_HELD");
	assert_string_equal(zerod_status_name(ZEROD_E_FORKED), "FORKED");
	assert_string_equal(zerod_status_name(RESERVED), "UNKNOWN");
	for (int status = ZEROD_E_INTERRUPTED; status <= ZEROD_OK; status++) {
		if (status == RESERVED)
			continue;
		assert_string_not_equal(zerod_status_name(status), "UNKNOWN");
		for (int other = ZEROD_E_INTERRUPTED; other < status; other++)
			assert_string_not_equal(zerod_status_name(status), zerod_status_name(other));
	}
	assert_string_equal(zerod_status_name(1), "UNKNOWN");
	assert_string_equal(zerod_status_name(ZEROD_E_INTERRUPTED - 1), "UNKNOWN");
	assert_string_equal(zerod_status_name(INT32_MIN), "UNKNOWN");
	assert_string_equal(zerod_status_name(INT32_MAX), "UNKNOWN");
}

TEST(dtype_table)
{
	static const size_t bytes[] = {0, 4, 2, 2, 1, 1, 1, 2, 4, 8, 1, 1, 0};

	for (int dtype = 0; dtype < (int)ZD_ARRAY_LEN(bytes); dtype++) {
		assert_int_equal(zerod_dtype_bytes((enum zerod_dtype)dtype), bytes[dtype]);
		assert_int_equal(strcmp(zerod_dtype_name((enum zerod_dtype)dtype), "unknown") != 0,
		                 bytes[dtype] != 0);
	}
	assert_int_equal(zerod_dtype_bytes((enum zerod_dtype) - 1), 0);
	assert_int_equal(zerod_dtype_bytes((enum zerod_dtype)INT32_MAX), 0);
	assert_string_equal(zerod_dtype_name((enum zerod_dtype) - 1), "unknown");
	assert_string_equal(zerod_dtype_name(ZEROD_BFLOAT16), "bfloat16");
}

/* ---- Log ----------------------------------------------------------------------------------------------- */

static char logged[2048];
static unsigned nlogged;

static void remember(const struct zd_log_line *line)
{
	int used = snprintf(logged, sizeof(logged), "%d|%s", (int)line->level, line->text);

	for (size_t i = 0; i < line->nfields; i++)
		used += snprintf(logged + used, sizeof(logged) - (size_t)used, "|%s=%s", line->fields[i].key,
		                 line->fields[i].value);
	nlogged++;
}

TEST(log_to_sink)
{
	const struct zd_log_field fields[] = {{"ZEROD_SESSION", "7"}, {"ZEROD_JOB", "demo"}};

	nlogged = 0;
	zd_log_set_sink(remember);
	zd_log(ZD_LOG_NOTICE, "rank %d\njoined", 2);
	assert_string_equal(logged, "5|rank 2?joined");
	/* No name can look like another line, or turn the rest of its own around. */
	zd_log(ZD_LOG_NOTICE, "job '%s'", "a\xe2\x80\xa8\xe2\x80\xae");
	assert_string_equal(logged, "5|job 'a\\u2028\\u202e'");
	zd_log_with(ZD_LOG_ERROR, fields, 2, "lost");
	assert_string_equal(logged, "3|lost|ZEROD_SESSION=7|ZEROD_JOB=demo");

	zd_log(ZD_LOG_DEBUG, "not by default");
	assert_int_equal(nlogged, 3);
	zd_log_set_level(ZD_LOG_DEBUG);
	zd_log(ZD_LOG_DEBUG, "now");
	assert_string_equal(logged, "7|now");
	zd_log_set_level(ZD_LOG_WARNING);
	zd_log(ZD_LOG_NOTICE, "too quiet");
	assert_int_equal(nlogged, 4);
	zd_log_set_level(ZD_LOG_INFO);
	zd_log_set_sink(NULL);
}

static void log_and_die(void)
{
	const struct zd_log_field field = {"ZEROD_DEVICE", "0"};

	zd_log_with(ZD_LOG_WARNING, &field, 1, "no %s", "room");
	abort();
}

TEST(log_to_stderr)
{
	assert_string_equal(words_before_abort(log_and_die), "warning: no room ZEROD_DEVICE=0\n");
}
