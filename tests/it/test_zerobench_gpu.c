/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_zerobench_gpu.c - zerobench's gathers and reductions on GPUs, over the doubles of the driver, of NCCL
 * and of cuBLAS: it measures all three ways, notices wrong bytes, and says what it cannot do. Speed is not
 * judged here.
 */
#include <jansson.h>

#include "tests/it/program.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

#define MAX_ARGS 32

/* zerobench with a private daemon on GPUs, few iterations, and these arguments. */
static void run(struct program *program, const char *const *more)
{
	const char *args[MAX_ARGS] = {"zerobench", "--backend", "cuda", "-n", "2", "-w", "1"};
	size_t count = 7;

	while (*more && count < MAX_ARGS - 1)
		args[count++] = *more++;
	args[count] = NULL;
	program_start(program, args, NULL);
	program_wait(program);
}

static json_t *run_json(const char *const *more)
{
	struct program program;
	json_error_t error;
	json_t *report;

	run(&program, more);
	if (program.status)
		print_error("%s\n", program.err_text);
	assert_int_equal(program.status, 0);
	report = json_loads(program.out_text, 0, &error);
	assert_non_null(report);
	program_free(&program);
	return report;
}

static void expect_failure(const char *const *more, int status, const char *text)
{
	struct program program;

	run(&program, more);
	if (program.status != status || !strstr(program.err_text, text))
		print_error("%d: %s\n", program.status, program.err_text);
	assert_int_equal(program.status, status);
	assert_non_null(strstr(program.err_text, text));
	program_free(&program);
}

static json_int_t p50(const json_t *row, const char *way)
{
	return json_integer_value(json_object_get(json_object_get(row, way), "p50"));
}

/* Rows of sizes; figures have no "bytes". */
static size_t expect_rows(const json_t *report, bool has_nccl, bool has_pushes)
{
	const json_t *results = json_object_get(report, "results");
	size_t rows = 0, index;
	const json_t *row;

	json_array_foreach(results, index, row)
	{
		if (!json_object_get(row, "bytes"))
			continue;
		rows++;
		assert_int_equal(json_integer_value(json_object_get(row, "wrong")), 0);
		assert_true(p50(row, "zerod_ns") > 0);
		assert_int_equal(p50(row, "nccl_ns") > 0, has_nccl);
		assert_int_equal(p50(row, "pushes_ns") > 0, has_pushes);
	}
	return rows;
}

static bool has_target(const json_t *report, const char *text)
{
	const json_t *targets = json_object_get(report, "targets");
	const json_t *target;
	size_t index;

	json_array_foreach(targets, index, target)
	{
		if (strstr(json_string_value(json_object_get(target, "what")), text))
			return true;
	}
	return false;
}

static double figure(const json_t *report, const char *what)
{
	const json_t *results = json_object_get(report, "results");
	const json_t *row;
	size_t index;

	json_array_foreach(results, index, row)
	{
		const char *found = json_string_value(json_object_get(row, "what"));

		if (found && strcmp(found, what) == 0)
			return json_number_value(json_object_get(row, "value"));
	}
	return 0;
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

/* The largest unit is gathered in place. */
TEST(three_ways_are_measured)
{
	const char *const args[] = {"-r", "2", "-b", "1000", "-e", "10M", "-f", "100", "--json", NULL};
	json_t *report = run_json(args);

	assert_int_equal(expect_rows(report, true, true), 3);
	assert_true(figure(report, "rank 0's gather, the last rank 5 ms late, p50") > 0);
	assert_true(figure(report, "the same by NCCL, p50") > 0);
	assert_true(has_target(report, "a rank 5 ms late / all on time"));
	assert_true(has_target(report, "in a batch"));
	assert_true(has_target(report, "trainer's CPU"));
	assert_true(has_target(report, "daemon's CPU"));
	assert_false(has_target(report, "products"));
	json_decref(report);
}

TEST(products_slow_down)
{
	const char *const args[] = {"-r", "2",        "-b",     "64K",     "-e",     "64K",
	                            "-d", "bfloat16", "--load", "gemm:64", "--json", NULL};
	json_t *report = run_json(args);

	assert_int_equal(expect_rows(report, true, true), 1);
	assert_true(has_target(report, "products of 64: slowdown by zerod"));
	assert_true(has_target(report, "zerod's % - NCCL's %"));
	json_decref(report);
}

TEST(one_rank_gathers_alone)
{
	const char *const args[] = {"-r", "3", "-b", "4K", "-e", "4K", "--alone", "--json", NULL};
	json_t *report = run_json(args);

	assert_int_equal(expect_rows(report, true, true), 1);
	json_decref(report);
}

TEST(reductions_are_measured)
{
	const char *const args[] = {"--op", "reduce_scatter", "-r", "3", "-b", "1K", "-e", "64K", "-f",
	                            "8",    "--json",         NULL};
	json_t *report = run_json(args);

	assert_int_equal(expect_rows(report, true, true), 3);
	assert_true(has_target(report, "reduction of 64 KiB"));
	assert_false(has_target(report, "in a batch"));
	json_decref(report);
}

/* zerobench reports how much reductions slow the products, and how many bytes were reduced. */
TEST(reductions_slow_products_down)
{
	const char *const args[] = {"--op", "reduce", "-r",       "2",      "-b",      "64K",    "-e",
	                            "64K",  "-d",     "bfloat16", "--load", "gemm:64", "--json", NULL};
	json_t *report = run_json(args);

	assert_int_equal(expect_rows(report, true, true), 1);
	assert_true(figure(report, "a product alone") > 0);
	assert_true(figure(report, "a product beside zerod's reductions") > 0);
	assert_true(figure(report, "a product beside NCCL's reductions") > 0);
	assert_true(figure(report, "reduced by zerod beside products, a rank") > 0);
	assert_true(figure(report, "reduced by NCCL beside products, a rank") > 0);
	assert_true(has_target(report, "products of 64: slowdown by zerod"));
	json_decref(report);
}

/* More buckets than are in turn; what is no whole one is left out. */
TEST(a_backward_is_measured)
{
	const char *const args[] = {"--op", "reduce", "-r", "2",          "-b",  "4K",     "-e",
	                            "4K",   "-f",     "2",  "--backward", "22K", "--json", NULL};
	const char *const shared[] = {"--op", "reduce", "-r",         "3",  "-b", "4K",
	                              "-e",   "4K",     "--backward", "8K", NULL};
	json_t *report = run_json(args);
	struct program program;

	assert_int_equal(expect_rows(report, true, true), 1);
	assert_int_equal((int)(figure(report, "a backward's gradients") * 1024 + 0.5), 20); /* KiB */
	assert_true(figure(report, "its buckets") == 5);
	assert_true(figure(report, "backward by zerod, p50") > 0);
	assert_true(figure(report, "backward_begin, p50") > 0);
	assert_true(figure(report, "backward by NCCL, p50") > 0);
	assert_true(has_target(report, "a backward: speed / NCCL's"));
	json_decref(report);
	setenv("ZD_DOUBLE_DEVICES", "1", 1);
	run(&program, shared);
	assert_int_equal(program.status, 0);
	assert_non_null(strstr(program.out_text, "backward by zerod, p50"));
	assert_null(strstr(program.out_text, "backward by NCCL"));
	program_free(&program);
	unsetenv("ZD_DOUBLE_DEVICES");
}

/* In several daemons, or under NCCL, all results are right, and only what is promised of that is judged. */
TEST(daemons_are_measured)
{
	static const char *const ops[] = {"gather", "reduce", "all_reduce"};
	static const char *const ways[][2] = {{"--nodes", "2"}, {"--nodes", "4"}, {"--collectives", "nccl"}};

	for (size_t op = 0; op < 3; op++) {
		for (size_t way = 0; way < 3; way++) {
			if (way != op && sweep_step() > 1)
				continue;
			const char *const args[] = {"--op",       ops[op],      "-r",     "4",  "-b",
			                            "1M",         "-e",         "1M",     "-d", "bfloat16",
			                            ways[way][0], ways[way][1], "--json", NULL};
			json_t *report = run_json(args);

			assert_int_equal(expect_rows(report, true, true), 1);
			assert_true(has_target(report, "of 1 MiB: speed / NCCL's"));
			assert_false(has_target(report, "CPU"));
			assert_false(has_target(report, "us"));
			json_decref(report);
		}
	}
}

TEST(gathers_between_daemons_slow_products_down)
{
	const char *const args[] = {"-r",      "2", "-b",     "64K",     "-e",     "64K",
	                            "--nodes", "2", "--load", "gemm:64", "--json", NULL};
	json_t *report = run_json(args);

	assert_true(figure(report, "a product beside zerod's gathers") > 0);
	assert_false(has_target(report, "slowdown"));
	json_decref(report);
}

/* NCCL supports one rank per GPU. */
TEST(ranks_share_a_gpu)
{
	const char *const shared[] = {"-r", "3", "-b", "4K", "-e", "4K", "--json", NULL};
	const char *const one[] = {"-b", "4K", "-e", "4K", "--json", NULL};
	json_t *report;

	setenv("ZD_DOUBLE_DEVICES", "1", 1);
	report = run_json(shared);
	assert_int_equal(expect_rows(report, false, true), 1);
	json_decref(report);
	report = run_json(one); /* one rank, for there is one GPU */
	assert_int_equal(expect_rows(report, false, false), 1);
	json_decref(report);
	unsetenv("ZD_DOUBLE_DEVICES");
}

TEST(the_table_names_what_it_compares_with)
{
	const char *const args[] = {"-r", "2", "-b", "4K", "-e", "4K", NULL};
	struct program program;

	run(&program, args);
	assert_int_equal(program.status, 0);
	assert_non_null(strstr(program.out_text, "# NCCL 2.28.9"));
	assert_non_null(strstr(program.out_text, "pushes"));
	assert_non_null(strstr(program.out_text, "# target: 32 x 1 MiB in a batch"));
	program_free(&program);
}

/* A gather that moves nothing is fast, and wrong. */
TEST(wrong_bytes_are_counted)
{
	const char *const args[] = {"-r", "2", "-b", "4K", "-e", "4K", NULL};

	setenv("ZD_DOUBLE_NCCL_IDLE", "1", 1);
	expect_failure(args, 28, "elements are wrong");
	unsetenv("ZD_DOUBLE_NCCL_IDLE");
}

TEST(what_cannot_be_is_named)
{
	const char *const alone[] = {"--op", "reduce_scatter", "--alone", NULL};
	const char *const nccl[] = {"-r", "2", "-e", "64K", "--nccl", "/nonexistent/libnccl.so", NULL};
	const char *const ranks[] = {"-r", "17", "-e", "64K", NULL};
	const char *const large[] = {"-r", "4", "-e", "64G", NULL};
	const char *const load[] = {"--load", "dance", NULL};
	const char *const host[] = {"--backend", "host", "--load", "gemm:64", NULL};
	const char *const backend[] = {"--backend", "abacus", NULL};
	const char *const backward[] = {"--backward", "1M", NULL};
	const char *const odd[] = {"-r", "3", "-e", "64K", "--nodes", "2", NULL};
	const char *const nobody[] = {"--nodes", "8", NULL};
	const char *const emulated[] = {"--backend", "host", "--nodes", "2", NULL};
	const char *const together[] = {"--alone", "--collectives", "nccl", NULL};
	const char *const collectives[] = {"--collectives", "pigeons", NULL};
	const char *const engines[] = {"-r", "2", "-e", "64K", "--peer", "nccl-ce", NULL};
	const char *const engines_on_host[] = {"--backend", "host", "--peer", "nccl-ce", NULL};
	const char *const many[] = {"--op", "reduce", "-r", "2", "-e", "64K", "--backward", "1T", NULL};

	expect_failure(alone, 22, "no rank reduces alone");
	expect_failure(nccl, 3, "/nonexistent/libnccl.so");
	expect_failure(ranks, 1, "17 ranks");
	expect_failure(large, 25, "an arena of");
	expect_failure(load, 2, "dance");
	expect_failure(host, 22, "--load");
	expect_failure(backend, 2, "abacus");
	expect_failure(backward, 22, "--backward is for reduce_scatter");
	expect_failure(many, 25, "an arena of");
	expect_failure(odd, 1, "3 ranks on");
	expect_failure(nobody, 3, "4 GPUs for 8 daemons");
	expect_failure(emulated, 2, "--nodes needs private daemons on GPUs");
	expect_failure(together, 2, "cannot gather alone");
	expect_failure(collectives, 2, "pigeons");
	expect_failure(engines, 22, "has no ncclMemAlloc");
	setenv("ZD_DOUBLE_NCCL_VERSION", "22703", 1);
	expect_failure(engines, 22, "for copy engines 2.28 or newer is needed");
	unsetenv("ZD_DOUBLE_NCCL_VERSION");
	expect_failure(engines_on_host, 22, "--peer");
}

TEST(no_gpu_is_named)
{
	const char *const args[] = {NULL};

	setenv("ZD_DOUBLE_DEVICES", "0", 1);
	expect_failure(args, 3, "no GPU");
	unsetenv("ZD_DOUBLE_DEVICES");
}

static int start(void **state)
{
	const char *build = getenv("BUILD");
	char path[4096];

	(void)state;
	snprintf(path, sizeof(path), "%s/tests/double", build ? build : "build");
	return setenv("LD_LIBRARY_PATH", path, 1); /* of the programs that are started */
}

int main(void)
{
	return test_run(start, NULL);
}
