// SPDX-License-Identifier: Apache-2.0
/*
 * test_zerobench.c - zerobench measures, verifies, fails clearly and leaves nothing behind. Speed is not
 * judged here.
 */
#include <dirent.h>
#include <jansson.h>

#include "tests/it/program.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/test.h"

static char folder[] = "/tmp/zerobench-test-XXXXXX"; /* where its private daemons go */

static int start(void **state)
{
	(void)state;
	return mkdtemp(folder) ? setenv("TMPDIR", folder, 1) : -1;
}

static int stop(void **state)
{
	(void)state;
	return rmdir(folder);
}

static void assert_nothing_left(void)
{
	DIR *dir = opendir(folder);
	assert_non_null(dir);
	const struct dirent *entry;
	while ((entry = readdir(dir)))
		assert_int_equal(entry->d_name[0], '.');
	closedir(dir);
}

/* Runs zerobench to its end, which is of this status and says this. */
static void expect_end(const char *const *args, int status, const char *text)
{
	struct program program;
	program_start(&program, args, NULL);
	program_wait(&program);
	if (program.status != status || !strstr(program.err_text, text))
		fail_msg("%d: %s", program.status, program.err_text);
	program_free(&program);
}

static json_t *run_json(const char *const *args)
{
	struct program program;
	program_start(&program, args, NULL);
	program_wait(&program);
	if (program.status)
		print_error("%s\n", program.err_text);
	assert_int_equal(program.status, 0);
	json_error_t error;
	json_t *report = json_loads(program.out_text, 0, &error);
	assert_non_null(report);
	assert_int_equal(json_integer_value(json_object_get(report, "schema")), 2);
	assert_string_equal(json_string_value(json_object_get(report, "op")), args[2]);
	assert_non_null(json_string_value(json_object_get(json_object_get(report, "machine"), "kernel")));
	program_free(&program);
	assert_nothing_left();
	return report;
}

static void expect_no_wrong(const char *op, const char *dtype, const char *ranks)
{
	const char *const args[] = {"zerobench", "--op", op,    "-b",     "1000",    "-e", "64K",
	                            "-f",        "8",    "-n",  "2",      "-w",      "1",  "-r",
	                            ranks,       "-d",   dtype, "--json", "--start", NULL};
	json_t *report = run_json(args);
	const json_t *results = json_object_get(report, "results");
	assert_int_equal(json_array_size(results), 3);
	for (size_t i = 0; i < 3; i++) {
		const json_t *row = json_array_get(results, i);
		assert_true(json_is_integer(json_object_get(row, "wrong")));
		assert_int_equal(json_integer_value(json_object_get(row, "wrong")), 0);
		assert_true(json_integer_value(json_object_get(json_object_get(row, "time_ns"), "p50")) > 0);
		assert_true(json_integer_value(json_object_get(json_object_get(row, "baseline_ns"), "p50")) >
		            0);
	}
	json_decref(report);
}

TEST(gathers_are_verified)
{
	expect_no_wrong("gather", "float", "4");
	expect_no_wrong("gather", "half", "3");
	expect_no_wrong("gather", "bfloat16", "5"); /* one device has two ranks */
}

TEST(sums_are_verified)
{
	expect_no_wrong("reduce", "float", "4");
	expect_no_wrong("reduce", "half", "3");
	expect_no_wrong("reduce", "bfloat16", "5");
}

TEST(requests_are_measured)
{
	const char *const args[] = {"zerobench", "--op", "rpc",    "-n",      "200",
	                            "-w",        "2",    "--json", "--start", NULL};
	json_t *report = run_json(args);
	assert_int_equal(json_array_size(json_object_get(report, "results")), 5);
	assert_int_equal(json_array_size(json_object_get(report, "targets")), 3);
	json_decref(report);
}

TEST(scale_is_measured)
{
	const char *const args[] = {"zerobench", "--op", "scale",   "-n", "40",     "-r", "3",
	                            "-w",        "1",    "--units", "50", "--json", NULL};
	json_t *report = run_json(args);
	assert_int_equal(json_array_size(json_object_get(report, "targets")), 2);
	json_decref(report);
}

TEST(the_table_has_nccl_tests_columns)
{
	const char *const args[] = {"zerobench", "-b", "4K", "-e", "4K",      "-n", "1",
	                            "-c",        "0",  "-g", "2",  "--start", NULL};
	struct program program;
	program_start(&program, args, NULL);
	program_wait(&program);
	assert_int_equal(program.status, 0);
	assert_non_null(strstr(program.out_text, "algbw   busbw  #wrong"));
	assert_non_null(strstr(program.out_text, "4096"));
	assert_non_null(strstr(program.out_text, "N/A")); /* -c 0: nobody looked */
	program_free(&program);
	assert_nothing_left();
}

TEST(wrong_usage_is_named)
{
	const char *const wrong[][2] = {{"--op", "dance"}, {"-b", "lots"},   {"-r", "0"},
	                                {"-f", "1"},       {"-d", "double"}, {"-n", "many"}};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		const char *const args[] = {"zerobench", wrong[i][0], wrong[i][1], NULL};
		expect_end(args, 2, wrong[i][1]);
	}
	const char *const args[] = {"zerobench", "--socket", "/nonexistent/zerod.sock", NULL};
	expect_end(args, 25, "/nonexistent/zerod.sock");
}

/* The exit status says whether a target was missed, whichever it is on this machine. */
TEST(strict_tells_of_missed_targets)
{
	const char *const args[] = {"zerobench", "--op", "rpc",    "-n",       "50",
	                            "-w",        "0",    "--json", "--strict", NULL};
	struct program program;
	json_error_t error;
	json_t *report, *target;
	size_t index;
	bool missed = false;
	program_start(&program, args, NULL);
	program_wait(&program);
	report = json_loads(program.out_text, 0, &error);
	assert_non_null(report);
	json_array_foreach(json_object_get(report, "targets"), index, target)
	        missed = missed || json_is_false(json_object_get(target, "met"));
	assert_int_equal(program.status, missed ? 100 : 0);
	json_decref(report);
	program_free(&program);
}

/* Wherever the operation is named. */
TEST(options_without_effect_are_refused)
{
	const struct {
		const char *args[4], *text;
	} cases[] = {
	        {{"--op", "rpc", "-b", "1M"}, "rpc takes no --minbytes"},
	        {{"-e", "1M", "--op", "scale"}, "scale takes no --maxbytes"},
	        {{"--op", "rpc", "-f", "2"}, "rpc takes no --stepfactor"},
	        {{"--check", "0", "--op", "scale"}, "scale takes no --check"},
	        {{"--op", "rpc", "-d", "half"}, "rpc takes no --datatype"},
	        {{"--units", "7", "--op", "reduce"}, "reduce takes no --units"},
	        {{"--peer", "nccl-ce", "--op", "reduce"}, "--peer=nccl-ce gathers within a node"},
	        {{"--peer", "gossip", "-r", "2"}, "expected nccl, nccl-ce or none"},
	        {{"--units", "7", "--op", "all_reduce"}, "all_reduce takes no --units"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *const *given = cases[i].args;
		const char *const args[] = {"zerobench", given[0], given[1], given[2], given[3], NULL};
		expect_end(args, 2, cases[i].text);
	}
}

/* zerobench --backend starts a private daemon, and ignores the daemon that the environment names. */
TEST(a_backend_is_a_private_daemons)
{
	const char *const args[] = {"zerobench", "--op", "gather", "-b",        "4K",   "-e",     "4K", "-n",
	                            "1",         "-w",   "0",      "--backend", "host", "--json", NULL};
	setenv("ZEROD_SOCKET", "/nonexistent/zerod.sock", 1);
	json_decref(run_json(args));
	unsetenv("ZEROD_SOCKET");
	const char *const both[] = {"zerobench", "--socket", "/x", "--backend", "host", NULL};
	expect_end(both, 2, "--backend needs a new one");
}

/* One rank's failure is everybody's end, with its words. */
TEST(a_failing_rank_ends_the_run)
{
	struct zd_daemon node;
	assert_int_equal(zd_daemon_start(NULL, &node), 0); /* two devices of 64 MiB */
	const char *const args[] = {"zerobench",      "-b", "1G", "-e", "1G", "-n", "1", "--socket",
	                            node.socket_path, NULL};
	expect_end(args, 18, "NO_MEMORY");
	assert_int_equal(zd_daemon_stop(&node), 0);
}

TEST(a_dying_daemon_ends_the_run)
{
	struct zd_daemon node;
	assert_int_equal(zd_daemon_start(NULL, &node), 0);
	const char *const args[] = {"zerobench", "--op",           "rpc", "-n", "10000000",
	                            "--socket",  node.socket_path, NULL};
	struct program program;
	program_start(&program, args, NULL);
	assert_true(program_read_until(&program, "# request"));
	assert_int_equal(zd_daemon_kill(&node), 0);
	program_wait(&program);
	/* DISCONNECTED, or CONNECT when its rank had not come that far. */
	assert_true(program.status == 26 || program.status == 25);
	program_free(&program);
	assert_int_equal(zd_daemon_restart(NULL, &node), 0);
	assert_int_equal(zd_daemon_stop(&node), 0);
}

TEST(an_interrupt_leaves_nothing_behind)
{
	const char *const args[] = {"zerobench", "--op", "rpc", "-n", "10000000", "--start", NULL};
	struct program program;
	program_start(&program, args, NULL);
	assert_true(program_read_until(&program, "# request"));
	kill(program.pid, SIGINT);
	program_wait(&program);
	assert_int_equal(program.status, 16);
	assert_non_null(strstr(program.err_text, "interrupted"));
	program_free(&program);
	assert_nothing_left();
}

/* As with `zerobench | head`. */
TEST(a_closed_output_leaves_nothing_behind)
{
	const char *const args[] = {"zerobench", "-b", "4K",   "-e",      "64M", "-f",
	                            "2",         "-n", "1000", "--start", NULL};
	struct program program;
	program_start(&program, args, NULL);
	assert_true(program_read_until(&program, "# op gather"));
	close(program.out);
	program.out = -1;
	program_wait(&program);
	assert_int_equal(program.status, 16);
	program_free(&program);
	assert_nothing_left();
}

int main(void)
{
	return test_run(start, stop);
}
