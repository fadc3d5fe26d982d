/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda.c - the cuda backend's devices through its interface, over the driver's double: opening,
 * segments, commands. */
#define TEST_BACKEND zd_backend_cuda

#include <fcntl.h>

#include "tests/unit/executor/backend_fixture.h"
#include "tests/unit/executor/cuda_double.h"
#include "tests/unit/executor/copy_cases.h"

#define GRANULARITY (2 * MIB)

/* ---- Opening ------------------------------------------------------------------------------------------- */

BACKEND_TEST(test_devices_have_names_and_arenas, open_two)
{
	struct zd_device_config info[2];
	assert_int_equal(ops->device_count(f->backend), 2);
	for (uint32_t i = 0; i < 2; i++) {
		ops->device_info(f->backend, i, &info[i]);
		assert_memory_equal(info[i].name, "GPU-", 4);
		assert_int_equal(strlen(info[i].name), 40);
		assert_int_equal(info[i].arena_bytes, 64 * MIB);
		assert_int_equal(info[i].segment_align_bytes, GRANULARITY);
	}
	assert_string_not_equal(info[0].name, info[1].name);
}

static int open_with(const char *devices, uint64_t arena_bytes, struct zd_backend **backend,
                     struct zd_err *err)
{
	struct zd_backend_config config = {.devices = devices, .arena_bytes = arena_bytes, .done = done};
	*backend = NULL;
	return ops->open(&config, backend, err);
}

TEST(test_default_arena)
{
	struct zd_backend *backend;
	struct zd_device_config info;
	assert_int_equal(open_with(NULL, 0, &backend, NULL), 0);
	assert_int_equal(ops->device_count(backend), 4);
	ops->device_info(backend, 3, &info);
	uint64_t percent = (4096 * MIB) / 100;
	assert_int_equal(info.arena_bytes, percent * 80 / GRANULARITY * GRANULARITY);
	ops->close(backend);
}

TEST(test_devices_by_name_and_number)
{
	struct zd_backend *backend;
	struct zd_device_config last, chosen;
	char list[128];
	assert_int_equal(open_with("all", MIB * 64, &backend, NULL), 0);
	ops->device_info(backend, 3, &last);
	ops->close(backend);
	(void)snprintf(list, sizeof(list), "%s, 1", last.name);
	assert_int_equal(open_with(list, MIB * 64, &backend, NULL), 0);
	assert_int_equal(ops->device_count(backend), 2);
	ops->device_info(backend, 0, &chosen);
	assert_string_equal(chosen.name, last.name);
	ops->close(backend);
}

TEST(test_open_refuses)
{
	static const struct {
		const char *devices;
		uint64_t arena_bytes;
		int status;
		const char *text;
	} cases[] = {
	        {"4", 0, ZEROD_E_NOT_FOUND, "'4' is no GPU: expected a number from 0 to 3"},
	        {"1x", 0, ZEROD_E_NOT_FOUND, "'1x'"},
	        {"0,1,0", 0, ZEROD_E_INVALID, "listed twice"},
	        {" , ", 0, ZEROD_E_INVALID, "empty"},
	        {"GPU-00000000-0000-0000-0000-000000000000", 0, ZEROD_E_NOT_FOUND, "does not see"},
	        {"all", 5ull << 30, ZEROD_E_NO_MEMORY, "requested an arena of 5 GiB, device 0 (GPU-"},
	        {"all", 5ull << 30, ZEROD_E_NO_MEMORY, "has 4 GiB"},
	        {"all", MIB, ZEROD_E_INVALID, "less than the 2 MiB"},
	};
	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		struct zd_backend *backend;
		struct zd_err err = ZD_ERR_NONE;
		assert_int_equal(open_with(cases[i].devices, cases[i].arena_bytes, &backend, &err),
		                 cases[i].status);
		assert_non_null(strstr(err.text, cases[i].text));
		assert_null(backend);
	}
	ops->close(NULL);
}

TEST(test_auto_finds_the_gpus)
{
	struct zd_err err = ZD_ERR_NONE;
	assert_ptr_equal(zd_backend_auto(&err), &zd_backend_cuda);
	assert_int_equal(err.status, 0);
}

/* ---- Segments ------------------------------------------------------------------------------------------ */

static uint64_t destroy(struct fixture *f, uint32_t segment)
{
	struct zd_command command = {.kind = ZD_CMD_SEGMENT_DESTROY};
	command.u.segment.segment = segment;
	return submit(f, command);
}

BACKEND_TEST(test_segment_lives_from_create_to_destroy, open_two)
{
	assert_int_equal(ops->segment_fd(f->backend, 1), -1);
	for (int round = 0; round < 2; round++) {
		assert_int_equal(create(f, 0, 1, GRANULARITY).completion.status, 0);
		assert_true(fcntl(ops->segment_fd(f->backend, 1), F_GETFD) & FD_CLOEXEC);
		uint8_t *seen = map_segment(f, 1, GRANULARITY);
		for (size_t i = 0; i < GRANULARITY; i++)
			assert_int_equal(seen[i], 0);
		memset(seen, 0xff, GRANULARITY);
		assert_int_equal(wait_op(f, destroy(f, 1)).completion.status, 0);
		assert_int_equal(ops->segment_fd(f->backend, 1), -1);
		assert_int_equal(seen[GRANULARITY - 1], 0xff); /* a client's mapping outlives it */
		munmap(seen, GRANULARITY);
	}
}

BACKEND_TEST(test_segment_that_does_not_fit, open_two)
{
	struct record record = create(f, 0, 1, 8192 * MIB);
	assert_int_equal(record.completion.status, ZEROD_E_NO_MEMORY);
	assert_non_null(strstr(record.completion.error, "8 GiB does not fit on GPU-"));
	assert_non_null(strstr(record.completion.error, "of 4 GiB are free"));
	assert_int_equal(ops->segment_fd(f->backend, 1), -1);
	/* The id and the device serve on. */
	assert_int_equal(create(f, 0, 1, GRANULARITY).completion.status, 0);
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

/* Each in its turn, and every byte arrives. */
BACKEND_TEST(test_long_pushes_to_all, open_four)
{
	const uint64_t bytes = 40 * MIB;
	uint64_t pushes[12];
	unsigned n = 0;
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(create(f, i, i + 1, 4 * bytes).completion.status, 0);
		uint8_t *seen = map_segment(f, i + 1, 4 * bytes);
		memset(seen + i * bytes, (int)i + 1, bytes);
		munmap(seen, 4 * bytes);
	}
	for (uint32_t i = 0; i < 4; i++) {
		for (uint32_t to = 0; to < 4; to++) {
			if (to != i)
				pushes[n++] = submit(f, copy(i, at(i + 1, i * bytes, bytes), to,
				                             at(to + 1, i * bytes, bytes)));
		}
	}
	while (n > 0)
		assert_int_equal(wait_op(f, pushes[--n]).completion.status, 0);
	for (uint32_t i = 0; i < 4; i++) {
		uint8_t *seen = map_segment(f, i + 1, 4 * bytes);
		for (uint64_t byte = 0; byte < 4 * bytes; byte += 4093)
			assert_int_equal(seen[byte], byte / bytes + 1);
		munmap(seen, 4 * bytes);
	}
}

/* More pieces than go without a store of their own, the last of a few bytes. */
BACKEND_TEST(test_a_push_in_pieces, open_two)
{
	const uint64_t bytes = 5 * 64 * MIB + 4096;
	struct client c = open_session(f, SESSION);
	struct zd_command push = copy(0, at(1, 0, bytes), 1, at(2, 0, bytes));
	assert_int_equal(create(f, 0, 1, bytes).completion.status, 0);
	assert_int_equal(create(f, 1, 2, bytes).completion.status, 0);
	uint8_t *from = map_segment(f, 1, bytes), *to = map_segment(f, 2, bytes);
	for (uint64_t byte = 0; byte < bytes; byte += 4093)
		from[byte] = (uint8_t)(byte >> 12);
	push.signal = (struct zd_signal){SESSION, 0, 1};
	uint64_t submitted = submit(f, push);
	wait_counter(&c.daemon_page[0], 1);
	assert_memory_equal(from, to, bytes);
	assert_int_equal(wait_op(f, submitted).completion.status, 0);
	munmap(from, bytes);
	munmap(to, bytes);
	ops->session_close(f->backend, SESSION, true);
	forget_session(&c);
}

BACKEND_TEST(test_more_commands_than_fly_at_once, open_two)
{
	uint64_t last = 0;
	assert_int_equal(create(f, 0, 1, GRANULARITY).completion.status, 0);
	assert_int_equal(create(f, 1, 2, GRANULARITY).completion.status, 0);
	for (uint32_t i = 0; i < 500; i++)
		last = submit(f, copy(0, at(1, i * 256, 256), 1, at(2, i * 256, 256)));
	assert_int_equal(wait_op(f, last).completion.status, 0);
}

/* Small copies within a GPU go by another way than large ones; the counter that they store into never runs
 * ahead of their bytes. */
BACKEND_TEST(test_copies_within_a_device_keep_their_order, open_two)
{
	static const uint64_t sizes[] = {9 * MIB, 256,      5 * MIB, 64 << 10, 2 * MIB,
	                                 0,       17 * MIB, 512,     MIB,      4096};
	struct client c = open_session(f, SESSION);
	uint64_t ends[ZD_ARRAY_LEN(sizes)], ops_of[ZD_ARRAY_LEN(sizes)], end = 0, seen = 0;
	assert_int_equal(create(f, 0, 1, 128 * MIB).completion.status, 0);
	uint8_t *bytes = map_segment(f, 1, 128 * MIB);
	memset(bytes, 0x5a, 64 * MIB);
	for (unsigned i = 0; i < ZD_ARRAY_LEN(sizes); i++) {
		struct zd_command own = copy(0, at(1, end, sizes[i]), 0, at(1, 64 * MIB + end, sizes[i]));
		own.signal = (struct zd_signal){SESSION, 0, i + 1};
		ops_of[i] = submit(f, own);
		end += sizes[i];
		ends[i] = end;
	}
	while (seen < ZD_ARRAY_LEN(sizes)) {
		uint64_t now = atomic_load(&c.daemon_page[0]);
		assert_in_range(now, seen, ZD_ARRAY_LEN(sizes));
		for (; seen < now; seen++)
			assert_true(ends[seen] == 0 || bytes[64 * MIB + ends[seen] - 1] == 0x5a);
	}
	for (unsigned i = 0; i < ZD_ARRAY_LEN(sizes); i++)
		assert_int_equal(wait_op(f, ops_of[i]).completion.status, 0);
	assert_memory_equal(bytes + 64 * MIB, bytes, end);
	munmap(bytes, 128 * MIB);
	forget_session(&c);
}

/* ---- Close --------------------------------------------------------------------------------------------- */

BACKEND_TEST(test_close_with_work_queued, open_two)
{
	struct client c = open_session(f, SESSION);
	struct zd_fence never = {0, 1};
	assert_int_equal(create(f, 0, 1, 32 * MIB).completion.status, 0);
	assert_int_equal(create(f, 1, 2, 32 * MIB).completion.status, 0);
	uint64_t watched = submit(f, watch(0, SESSION, 1, &never));
	uint64_t first = 0;
	for (uint64_t i = 1; i <= 100; i++) {
		struct zd_command push = copy(0, at(1, 0, 32 * MIB), 1, at(2, 0, 32 * MIB));
		push.signal = (struct zd_signal){SESSION, 0, i};
		uint64_t op = submit(f, push);
		first = first ? first : op;
	}
	close_backend(f);
	assert_int_equal(wait_op(f, watched).completion.status, ZEROD_E_SHUTDOWN);
	uint64_t done_well = 0;
	for (uint64_t op = first; op < first + 100; op++) {
		int status = wait_op(f, op).completion.status;
		assert_true(status == 0 ? done_well == op - first : status == ZEROD_E_SHUTDOWN);
		done_well += status == 0;
	}
	/* The fence of a copy that was not made is not signalled. */
	if (done_well < 100)
		assert_int_equal(atomic_load(&c.daemon_page[0]), ZD_FENCE_ABORTED);
	else
		assert_int_equal(atomic_load(&c.daemon_page[0]), 100);
	forget_session(&c);
}

/* A push has as many pieces under way as may be, and more to come. */
BACKEND_TEST(test_close_amid_a_push, open_two)
{
	const uint64_t bytes = 8 * 64 * MIB;
	assert_int_equal(create(f, 0, 1, bytes).completion.status, 0);
	assert_int_equal(create(f, 1, 2, bytes).completion.status, 0);
	uint64_t submitted = submit(f, copy(0, at(1, 0, bytes), 1, at(2, 0, bytes)));
	close_backend(f);
	int status = wait_op(f, submitted).completion.status;
	assert_true(status == 0 || status == ZEROD_E_SHUTDOWN);
}

/* A word that something follows changes nothing but who is awake: also when nothing does. */
BACKEND_TEST(test_expected_commands, open_two)
{
	assert_int_equal(create(f, 0, 1, MIB).completion.status, 0);
	assert_int_equal(create(f, 1, 2, MIB).completion.status, 0);
	for (uint32_t i = 0; i < 100; i++) {
		zd_backend_cuda.expect(f->backend, i % 2);
		uint64_t op = submit(f, copy(0, at(1, 0, MIB), 1, at(2, 0, MIB)));
		assert_int_equal(wait_op(f, op).completion.status, 0);
	}
	zd_backend_cuda.expect(f->backend, 0);
	close_backend(f);
}

/* Nobody here waits for its fences. */
BACKEND_TEST(test_sum_with_fences_is_not_begun, open_two)
{
	static const struct zd_fence fences[] = {{.timeline = 3, .value = 1}};
	const uint64_t bytes = 1000 * sizeof(float);
	assert_int_equal(create(f, 0, 1, GRANULARITY).completion.status, 0);
	float *seen = (float *)(void *)map_segment(f, 1, GRANULARITY);
	for (size_t i = 0; i < 2000; i++)
		seen[i] = i < 1000 ? 1.0f : 5.0f;
	const struct zd_location input = at(1, 0, bytes);
	struct zd_command sum = {.kind = ZD_CMD_REDUCE};
	sum.u.reduce = (struct zd_reduce_desc){.nfences = 1,
	                                       .fences = fences,
	                                       .numel = 1000,
	                                       .input_dtype = ZEROD_FLOAT32,
	                                       .target_dtype = ZEROD_FLOAT32,
	                                       .ninputs = 1,
	                                       .inputs = &input,
	                                       .target = at(1, bytes, bytes),
	                                       .prescale = 1.0f,
	                                       .postscale = 1.0f,
	                                       .overwrite = true};
	struct record record = wait_op(f, submit(f, sum));
	assert_int_equal(record.completion.status, 0);
	assert_true(record.completion.result.not_begun);
	for (size_t i = 0; i < 1000; i++)
		assert_true(seen[1000 + i] == 5.0f);

	sum.u.reduce.nfences = 0; /* as it comes again */
	record = wait_op(f, submit(f, sum));
	assert_false(record.completion.result.not_begun);
	assert_true(record.completion.result.sum_squares == 1000);
	for (size_t i = 0; i < 1000; i++)
		assert_true(seen[1000 + i] == 1.0f);
	munmap(seen, GRANULARITY);
}

int main(int argc, char **argv)
{
	(void)argc;
	use_double(argv);
	return test_run(NULL, NULL);
}
