/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_faults.c - the cuda backend when GPUs lack something, fail, or the driver refuses; over the
 * driver's double. */
#define TEST_BACKEND zd_backend_cuda

#include "driver/driver.h"
#include "tests/unit/driver/cases.h"
#include "tests/support/sweep.h"
#include "tests/unit/executor/backend_fixture.h"
#include "tests/unit/executor/cuda_scene.h"

static int open_error(struct zd_err *err)
{
	struct zd_backend_config config = {.done = done};
	struct zd_backend *backend = NULL;
	int rc = ops->open(&config, &backend, err);
	assert_null(backend);
	return rc;
}

/* ---- GPUs that will not do ----------------------------------------------------------------------------- */

static void test_gpu_for_one_process_is_refused(void **state)
{
	struct zd_err err = ZD_ERR_NONE;
	(void)state;
	assert_int_equal(open_error(&err), ZEROD_E_INVALID);
	assert_non_null(strstr(err.text,
	                       "GPU-7a65726f-d00b-4e00-8000-000000000000 is in compute mode "
	                       "EXCLUSIVE_PROCESS: trainers cannot use the GPU while the daemon runs"));
}

static void test_gpu_without_memory_operations_is_refused(void **state)
{
	struct zd_err err = ZD_ERR_NONE;
	(void)state;
	assert_int_equal(open_error(&err), ZEROD_E_UNSUPPORTED);
	assert_non_null(strstr(err.text, "has no 64-bit memory operations on streams"));
}

static void test_auto_without_gpus(void **state)
{
	struct zd_err err = ZD_ERR_NONE;
	(void)state;
	assert_ptr_equal(zd_backend_auto(&err), &zd_backend_host);
	assert_string_equal(err.text, "the CUDA driver shows this process no GPU");
	assert_int_equal(open_error(&err), ZEROD_E_NOT_FOUND);
}

/* The peer's part of the memory is reached by neither; bytes come all the same. */
GPUS_TEST(test_gpus_that_do_not_reach_each_other, 4, "ZD_DOUBLE_NO_PEER=0-1,1-3")
{
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(create(f, i, i + 1, SEGMENT).completion.status, 0);
	uint8_t *from = map_segment(f, 1, SEGMENT), *to = map_segment(f, 2, SEGMENT);
	memset(from, 0x5a, SEGMENT);
	assert_int_equal(
	        wait_op(f, submit(f, copy(0, at(1, 0, SEGMENT), 1, at(2, 0, SEGMENT)))).completion.status, 0);
	assert_memory_equal(from, to, SEGMENT);
	assert_int_equal(
	        wait_op(f, submit(f, copy(1, at(2, 0, SEGMENT), 3, at(4, 0, SEGMENT)))).completion.status, 0);
	munmap(from, SEGMENT);
	munmap(to, SEGMENT);
}

/* ---- Commands that fail -------------------------------------------------------------------------------- */

/* Only the one command: the GPU serves on, but its waiters are not told of bytes that never came. */
SESSION_TEST(test_command_that_finds_no_memory, 2, "ZD_DOUBLE_FAIL=cuMemcpyAsync:1:2")
{
	make_segments(f, 2);
	struct record record = wait_op(f, submit(f, push_of(0, 1, 1)));
	assert_int_equal(record.completion.status, ZEROD_E_NO_MEMORY);
	assert_non_null(strstr(record.completion.error, "CUDA_ERROR_OUT_OF_MEMORY"));
	assert_int_equal(wait_op(f, submit(f, push_of(0, 1, 2))).completion.status, 0);
	assert_int_equal(atomic_load(&c->daemon_page[0]), ZD_FENCE_ABORTED);
	struct zd_command set = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, 0, 2}};
	wait_op(f, submit(f, set));
	assert_int_equal(wait_op(f, submit(f, push_of(0, 1, 3))).completion.status, 0);
	assert_int_equal(atomic_load(&c->daemon_page[0]), 3);
}

/* The GPU is given up, with the driver's words; the others and what the CPU does go on. */
SESSION_TEST(test_gpu_that_fails, 4, "ZD_DOUBLE_FAIL=cuMemcpyAsync:1:719")
{
	struct zd_fence fence = {7, 1};
	make_segments(f, 4);
	uint64_t watched = submit(f, watch(0, SESSION, 1, &fence));
	struct record record = wait_op(f, submit(f, push_of(0, 1, 1)));
	assert_int_equal(record.completion.status, ZEROD_E_DEVICE);
	assert_non_null(
	        strstr(record.completion.error, "GPU-7a65726f-d00b-4e00-8000-000000000000 has failed"));
	assert_int_equal(atomic_load(&c->daemon_page[0]), ZD_FENCE_ABORTED);
	/* All that it is asked for later fails, whatever it is, and so does what is for its memory. */
	assert_int_equal(wait_op(f, submit(f, push_of(0, 2, 2))).completion.status, ZEROD_E_DEVICE);
	assert_int_equal(wait_op(f, submit(f, fill(0, at(1, 0, MIB)))).completion.status, ZEROD_E_DEVICE);
	assert_int_equal(create(f, 0, 9, SEGMENT).completion.status, ZEROD_E_DEVICE);
	assert_int_equal(wait_op(f, submit(f, push_of(1, 0, 1))).completion.status, ZEROD_E_DEVICE);
	/* The others. */
	assert_int_equal(wait_op(f, submit(f, push_of(2, 3, 1))).completion.status, 0);
	assert_int_equal(atomic_load(&c->daemon_page[2]), 1);
	/* The CPU's part. */
	struct zd_command set = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, 0, 2}};
	assert_int_equal(wait_op(f, submit(f, set)).completion.status, 0);
	assert_int_equal(atomic_load(&c->daemon_page[0]), 2);
	assert_int_equal(times_completed(f, watched), 0);
	atomic_store(&c->client_page[7], 1);
	assert_int_equal(wait_op(f, watched).completion.status, 0);
}

/* Of many that are queued when the GPU fails, what had completed before is done, all others fail, and every
 * waiter is freed. */
SESSION_TEST(test_gpu_that_fails_among_many, 2, "ZD_DOUBLE_FAIL=cuMemcpyBatchAsync:3:719")
{
	uint64_t pushes[300];
	bool failed = false;
	make_segments(f, 2);
	for (unsigned i = 0; i < ZD_ARRAY_LEN(pushes); i++)
		pushes[i] = submit(f, push_of(0, 1, i + 1));
	for (unsigned i = 0; i < ZD_ARRAY_LEN(pushes); i++) {
		int status = wait_op(f, pushes[i]).completion.status;
		assert_true(status == ZEROD_E_DEVICE || (status == 0 && !failed));
		failed |= status != 0;
	}
	assert_true(failed);
	assert_int_equal(atomic_load(&c->daemon_page[0]), ZD_FENCE_ABORTED);
}

/* The driver is too old for batches, or refuses one: its copies are given one by one. */
SESSION_TEST(test_copies_without_batches, 2, "ZD_DOUBLE_LACKS=cuMemcpyBatchAsync")
{
	uint64_t pushes[100];
	make_segments(f, 2);
	uint8_t *from = map_segment(f, 1, SEGMENT), *to = map_segment(f, 2, SEGMENT);
	memset(from, 0x5a, SEGMENT);
	for (unsigned i = 0; i < ZD_ARRAY_LEN(pushes); i++)
		pushes[i] = submit(f, push_of(0, 1, i + 1));
	for (unsigned i = 0; i < ZD_ARRAY_LEN(pushes); i++)
		assert_int_equal(wait_op(f, pushes[i]).completion.status, 0);
	assert_memory_equal(to + MIB, from, MIB);
	assert_int_equal(atomic_load(&c->daemon_page[0]), ZD_ARRAY_LEN(pushes));
	munmap(from, SEGMENT);
	munmap(to, SEGMENT);
}
CASE_AGAIN(test_copies_without_batches, again, .env = {"ZD_DOUBLE_FAIL=cuMemcpyBatchAsync:1:2"})

/* A push that is on its way when the GPU is given up: its command ends behind it, or its target might be
 * somebody else's by then; and its store does not undo the abort. */
SESSION_TEST(test_gpu_that_fails_under_a_push, 2, "ZD_DOUBLE_COPY_US=200000",
             "ZD_DOUBLE_LACKS=cuMemcpyBatchAsync", "ZD_DOUBLE_FAIL=cuMemcpyAsync:2:1")
{
	make_segments(f, 2);
	uint8_t *from = map_segment(f, 1, SEGMENT), *to = map_segment(f, 2, SEGMENT);
	memset(from, 0x5a, SEGMENT);
	uint64_t slow = submit(f, push_of(0, 1, 1)), refused = submit(f, push_of(0, 1, 2));
	wait_counter(&c->daemon_page[0], (uint64_t)ZD_FENCE_ABORTED);
	struct record record = wait_op(f, slow);
	assert_memory_equal(to + MIB, from, MIB);
	assert_true(record.completion.status == 0 || record.completion.status == ZEROD_E_DEVICE);
	assert_int_equal(wait_op(f, refused).completion.status, ZEROD_E_DEVICE);
	assert_int_equal(atomic_load(&c->daemon_page[0]), ZD_FENCE_ABORTED);
	munmap(from, SEGMENT);
	munmap(to, SEGMENT);
}

/* Its first piece has no store of its own: the command ends all the same, and behind that piece. */
SESSION_TEST(test_push_whose_second_piece_fails, 2, "ZD_DOUBLE_FAIL=cuMemcpyAsync:2:2")
{
	const uint64_t bytes = 65 * MIB;
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(create(f, i, i + 1, bytes).completion.status, 0);
	uint8_t *from = map_segment(f, 1, bytes), *to = map_segment(f, 2, bytes);
	memset(from, 0x5a, bytes);
	struct zd_command push = copy(0, at(1, 0, bytes), 1, at(2, 0, bytes));
	push.signal = (struct zd_signal){SESSION, 0, 1};
	int status = wait_op(f, submit(f, push)).completion.status;
	assert_true(status == ZEROD_E_NO_MEMORY || status == ZEROD_E_DEVICE);
	assert_memory_equal(to, from, 64 * MIB);
	assert_int_equal(to[64 * MIB], 0);
	wait_counter(&c->daemon_page[0], (uint64_t)ZD_FENCE_ABORTED);
	munmap(from, bytes);
	munmap(to, bytes);
}
CASE_AGAIN(test_push_whose_second_piece_fails, again,
           .env = {"ZD_DOUBLE_COPY_US=20000", "ZD_DOUBLE_FAIL=cuMemcpyAsync:2:1"})

/* The GPU that makes a copy within another one is lost under it. Only that copy fails: the others stay
 * at home. */
SESSION_TEST(test_way_across_that_is_lost, 2, "ZD_DOUBLE_FAIL=cuMemcpyAsync:1:719")
{
	const uint64_t size = LARGE;
	struct zd_command set = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, 0, 1}};
	make_segments(f, 2);
	uint8_t *bytes = map_segment(f, 1, SEGMENT);
	memset(bytes, 0x5a, size);
	struct record record = wait_op(f, submit(f, round_of(size, 1)));
	assert_int_equal(record.completion.status, ZEROD_E_DEVICE);
	assert_int_equal(atomic_load(&c->daemon_page[0]), ZD_FENCE_ABORTED);
	wait_op(f, submit(f, set));
	assert_int_equal(wait_op(f, submit(f, round_of(size, 2))).completion.status, 0);
	assert_int_equal(atomic_load(&c->daemon_page[0]), 2);
	assert_memory_equal(bytes + SEGMENT / 2, bytes, size);
	assert_int_equal(wait_op(f, submit(f, push_of(1, 0, 1))).completion.status, ZEROD_E_DEVICE);
	munmap(bytes, SEGMENT);
}

SESSION_TEST(test_session_that_cannot_be_registered, 2, "ZD_DOUBLE_FAIL=cuMemHostRegister:1:2")
{
	make_segments(f, 2);
	struct record record = wait_op(f, submit(f, push_of(0, 1, 1)));
	assert_int_equal(record.completion.status, ZEROD_E_NO_MEMORY);
	assert_int_equal(atomic_load(&c->daemon_page[0]), ZD_FENCE_ABORTED);
	assert_int_equal(wait_op(f, submit(f, push_of(1, 0, 1))).completion.status, 0);
	assert_int_equal(atomic_load(&c->daemon_page[1]), 1);
}

/* The first two segments are the ways round of the two GPUs. */
GPUS_TEST(test_segment_that_fails_leaves_nothing, 2, "ZD_DOUBLE_LEAKS=1", "ZD_DOUBLE_FAIL=cuMemSetAccess:3:2")
{
	assert_int_equal(create(f, 0, 1, SEGMENT).completion.status, ZEROD_E_NO_MEMORY);
	assert_int_equal(ops->segment_fd(f->backend, 1), -1);
	assert_int_equal(create(f, 0, 1, SEGMENT).completion.status, 0);
}

/* As when there are no more descriptors: that is no fault of the GPU. */
GPUS_TEST(test_segment_that_cannot_be_exported, 2, "ZD_DOUBLE_LEAKS=1",
          "ZD_DOUBLE_FAIL=cuMemExportToShareableHandle:3:304")
{
	struct record record = create(f, 0, 1, SEGMENT);
	assert_int_equal(record.completion.status, ZEROD_E_DEVICE);
	assert_non_null(strstr(record.completion.error, "exporting a segment: "));
	assert_int_equal(create(f, 0, 1, SEGMENT).completion.status, 0);
}

/* ---- Every call in turn -------------------------------------------------------------------------------- */

static void sum(struct fixture *f)
{
	const struct zd_location inputs[] = {at(1, 0, MIB), at(1, MIB, MIB)};
	struct zd_command reduce = {.kind = ZD_CMD_REDUCE};
	reduce.u.reduce = (struct zd_reduce_desc){.numel = MIB / 4,
	                                          .input_dtype = ZEROD_FLOAT32,
	                                          .target_dtype = ZEROD_FLOAT32,
	                                          .ninputs = 2,
	                                          .inputs = inputs,
	                                          .target = at(1, 3 * MIB, MIB),
	                                          .prescale = 1,
	                                          .postscale = 1};
	wait_op(f, submit(f, reduce));
}

/* Copies within a GPU. */
static void go_round(struct fixture *f, struct client *c, uint64_t round)
{
	struct zd_command large = round_of(LARGE, 2 * round - 1), small = round_of(64 * KIB, 2 * round);
	large.signal.timeline = small.signal.timeline = 2;
	uint64_t first = submit(f, large), second = submit(f, small);
	wait_counter(&c->daemon_page[2], 2 * round);
	wait_op(f, first);
	wait_op(f, second);
}

/* A start, what a gather and a sum do, an end. Whatever fails: each command ends once, each waiter is
 * freed. */
static void one_life(void **state)
{
	int rc = open_devices(state, 2);
	struct fixture *f = *state;
	if (rc) {
		free(f);
		return;
	}
	struct client c = open_session(f, SESSION);
	bool made = true;
	for (uint32_t i = 0; i < 2; i++)
		made &= create(f, i, i + 1, SEGMENT).completion.status == 0;
	for (uint64_t round = 1; round <= 2 && made; round++) {
		uint64_t pushes[] = {submit(f, push_of(0, 1, round)), submit(f, push_of(1, 0, round))};
		wait_op(f, submit(f, fill(0, at(1, 2 * MIB, MIB))));
		go_round(f, &c, round);
		for (uint32_t i = 0; i < 2; i++) {
			wait_counter(&c.daemon_page[i], round);
			wait_op(f, pushes[i]);
		}
		struct zd_fence fence = {5, round};
		uint64_t watched = submit(f, watch(0, SESSION, 1, &fence));
		atomic_store(&c.client_page[5], round);
		assert_int_equal(wait_op(f, watched).completion.status, 0);
		sum(f);
	}
	struct zd_command destroy = {.kind = ZD_CMD_SEGMENT_DESTROY};
	destroy.u.segment.segment = 1;
	wait_op(f, submit(f, destroy));
	ops->session_close(f->backend, SESSION, true);
	forget_session(&c);
	close_all(state);
}

/* How many calls of the driver a life takes, as the double counts them. */
static unsigned long count_calls(const char *path)
{
	char line[256];
	unsigned long calls = 0;
	FILE *file = fopen(path, "re");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		(void)sscanf(line, "%*s all %lu", &calls);
	(void)fclose(file);
	return calls;
}

static void test_every_call_fails_once(void **state)
{
	static const int results[] = {ZD_CU_OUT_OF_MEMORY, ZD_CU_INVALID_HANDLE, ZD_CU_ILLEGAL_ADDRESS};
	char dir[] = CASE_DIR, count[PATH_MAX], fail[ZD_ARRAY_LEN(results)][64];
	struct case_running lives[ZD_ARRAY_LEN(results)];
	struct a_case life = CASE(one_life);
	void *one = &life;
	(void)state;
	assert_non_null(mkdtemp(dir));
	(void)snprintf(count, sizeof(count), "ZD_DOUBLE_COUNT=%s/calls", dir);
	life.env[0] = count;
	case_run(&one);
	unsigned long calls = count_calls(strchr(count, '=') + 1);
	case_remove_dir(dir);
	assert_in_range(calls, 50, 1000);
	life.env[1] = "ZD_DOUBLE_LEAKS=1";
	for (unsigned long i = 1; i <= calls; i += sweep_step()) {
		for (size_t j = 0; j < ZD_ARRAY_LEN(results); j++) {
			(void)snprintf(fail[j], sizeof(fail[j]), "ZD_DOUBLE_FAIL=%lu:%d", i, results[j]);
			life.env[0] = fail[j];
			lives[j] = case_start(&life);
		}
		for (size_t j = 0; j < ZD_ARRAY_LEN(results); j++) {
			print_message("%s\n", fail[j]);
			case_finish(&lives[j]);
		}
	}
}

int main(int argc, char **argv)
{
	struct a_case cases[] = {
	        CASE(test_gpu_for_one_process_is_refused, "ZD_DOUBLE_COMPUTE_MODE=3"),
	        CASE(test_gpu_without_memory_operations_is_refused, "ZD_DOUBLE_ATTRIBUTES=122=0"),
	        CASE(test_auto_without_gpus, "ZD_DOUBLE_DEVICES=0"),
	        CASE(one_life, "ZD_DOUBLE_LEAKS=1"),
	};
	const struct CMUnitTest every[] = {cmocka_unit_test(test_every_call_fails_once)};
	int failed = argc > 1 ? 0 : cmocka_run_group_tests(every, NULL, NULL);
	return failed + case_main(cases, ZD_ARRAY_LEN(cases), argc, argv);
}
