/* SPDX-License-Identifier: Apache-2.0 */
/* test_host.c - the host backend's devices through its interface: opening, segments, commands, close. */
#include <fcntl.h>
#include <sys/resource.h>

#include "tests/unit/executor/backend_fixture.h"
#include "tests/unit/executor/copy_cases.h"

/* ---- Completions --------------------------------------------------------------------------------------- */

/* The last failure replaces the first one; the leak sanitizer checks that the first text is freed. */
TEST(test_completion_has_the_last_failure)
{
	struct zd_completion completion = {.op = 1};
	zd_completion_fail(&completion, ZEROD_E_DEVICE, "a first failure");
	zd_completion_fail(&completion, ZEROD_E_ABORTED, "a second one");
	assert_int_equal(completion.status, ZEROD_E_ABORTED);
	assert_string_equal(completion.error, "a second one");
	zd_completion_deinit(&completion);
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

/* Each copy takes what the one before it wrote: any other order leaves another result. */
BACKEND_TEST(test_lane_runs_in_order, open_two)
{
	const uint64_t steps = 200;
	const uint64_t bytes = 64 * KIB;
	assert_int_equal(create(f, 0, 1, (steps + 1) * bytes).completion.status, 0);
	uint8_t *seen = map_segment(f, 1, (steps + 1) * bytes);
	memset(seen, 0x5a, bytes);
	uint64_t first = 0, last = 0;
	for (uint64_t i = 0; i < steps; i++) {
		last = submit(f, copy(0, at(1, i * bytes, bytes), 0, at(1, (i + 1) * bytes, bytes)));
		first = first ? first : last;
	}
	wait_op(f, last);
	for (uint64_t i = 0; i < bytes; i++)
		assert_int_equal(seen[steps * bytes + i], 0x5a);
	for (uint64_t op = first; op < last; op++)
		assert_true(wait_op(f, op).order < wait_op(f, op + 1).order);
	munmap(seen, (steps + 1) * bytes);
}

BACKEND_TEST(test_devices_have_names_and_arenas, open_two)
{
	struct zd_device_config info;
	assert_int_equal(ops->device_count(f->backend), 2);
	ops->device_info(f->backend, 1, &info);
	assert_string_equal(info.name, "host1");
	assert_int_equal(info.arena_bytes, 64 * MIB);
}

TEST(test_default_arena)
{
	struct zd_backend_config config = {.ndevices = 1, .done = done};
	struct zd_backend *backend = NULL;
	struct zd_device_config info;
	assert_int_equal(ops->open(&config, &backend, NULL), 0);
	ops->device_info(backend, 0, &info);
	assert_int_equal(info.arena_bytes, 1024 * MIB);
	ops->close(backend);
}

TEST(test_open_refuses)
{
	static const struct {
		uint64_t arena_bytes;
		uint32_t ndevices;
		int status;
		const char *text;
	} cases[] = {
	        {MIB, 0, ZEROD_E_INVALID, "found 0"},
	        {MIB, ZD_MAX_DEVICES + 1, ZEROD_E_INVALID, "1 to 64 devices"},
	        {100, 1, ZEROD_E_INVALID, "100 B"},
	        {UINT64_MAX, 1, ZEROD_E_INVALID, "arena"},
	        {ZD_MAX_BYTES, 1, ZEROD_E_NO_MEMORY, "1 PiB"},
	        {(uint64_t)1 << 44, ZD_MAX_DEVICES, ZEROD_E_NO_MEMORY, "64 of 16 TiB"},
	};
	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		struct zd_backend_config config = {
		        .ndevices = cases[i].ndevices, .arena_bytes = cases[i].arena_bytes, .done = done};
		struct zd_backend *backend = NULL;
		struct zd_err err = ZD_ERR_NONE;
		assert_int_equal(ops->open(&config, &backend, &err), cases[i].status);
		assert_non_null(strstr(err.text, cases[i].text));
		assert_null(backend);
	}
	ops->close(NULL);
}

/* ---- Segments ------------------------------------------------------------------------------------------ */

BACKEND_TEST(test_segment_lives_from_create_to_destroy, open_two)
{
	assert_int_equal(ops->segment_fd(f->backend, 1), -1);
	for (int round = 0; round < 2; round++) {
		assert_int_equal(create(f, 0, 1, 8 * KIB).completion.status, 0);
		uint8_t *seen = map_segment(f, 1, 8 * KIB);
		for (size_t i = 0; i < 8 * KIB; i++)
			assert_int_equal(seen[i], 0);
		memset(seen, 0xff, 8 * KIB);
		struct zd_command destroy = {.kind = ZD_CMD_SEGMENT_DESTROY};
		destroy.u.segment.segment = 1;
		assert_int_equal(wait_op(f, submit(f, destroy)).completion.status, 0);
		assert_int_equal(ops->segment_fd(f->backend, 1), -1);
		assert_int_equal(seen[8 * KIB - 1], 0); /* the mapping outlives it, the memory does not */
		munmap(seen, 8 * KIB);
	}
}

BACKEND_TEST(test_segment_cannot_be_resized_by_a_client, open_two)
{
	assert_int_equal(create(f, 0, 1, 8 * KIB).completion.status, 0);
	int fd = ops->segment_fd(f->backend, 1);
	assert_int_equal(ftruncate(fd, 4 * KIB), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fd, 16 * KIB), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	assert_int_equal(errno, EPERM);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

BACKEND_TEST(test_absurd_segment_is_an_error, open_two)
{
	struct record record = create(f, 0, 1, ZD_MAX_BYTES);
	assert_int_equal(record.completion.status, ZEROD_E_NO_MEMORY);
	assert_non_null(strstr(record.completion.error, "1 PiB"));
	/* One that could be mapped, but never filled. */
	record = create(f, 0, 1, (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) * 2);
	assert_int_equal(record.completion.status, ZEROD_E_NO_MEMORY);
	assert_non_null(strstr(record.completion.error, "available"));
	assert_int_equal(ops->segment_fd(f->backend, 1), -1);
	/* The id and the device serve on. */
	assert_int_equal(create(f, 0, 1, 4 * KIB).completion.status, 0);
}

/* Beyond RLIMIT_FSIZE the kernel raises SIGXFSZ, which must end nobody. */
BACKEND_TEST(test_file_size_limit_is_an_error, open_two)
{
	struct rlimit before;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	struct rlimit small = {.rlim_cur = 64 * KIB, .rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	struct record record = create(f, 0, 1, MIB);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(record.completion.status, ZEROD_E_NO_MEMORY);
}

BACKEND_TEST(test_no_descriptors_is_an_error, open_two)
{
	struct rlimit before;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	struct rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
	int client_fd = -5, daemon_fd = -6;
	struct zd_err err = ZD_ERR_NONE;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	int rc = ops->session_open(f->backend, SESSION, getpid(), -1, &client_fd, &daemon_fd, &err);
	struct record record = create(f, 0, 1, 4 * KIB);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(rc, ZEROD_E_SYSTEM);
	assert_int_equal(record.completion.status, ZEROD_E_SYSTEM);
	assert_int_equal(client_fd, -5);
	assert_int_equal(daemon_fd, -6);

	struct client c = open_session(f, SESSION);
	forget_session(&c);
}

/* ---- Close --------------------------------------------------------------------------------------------- */

struct closer {
	struct fixture *f;
	pthread_t thread;
};

static void *closer_main(void *arg)
{
	close_backend(((struct closer *)arg)->f);
	return NULL;
}

/* The executor is held while close() begins, so that most of the work is still queued when it is told to
 * stop. */
BACKEND_TEST(test_close_with_work_queued, open_two)
{
	struct client c = open_session(f, SESSION);
	struct zd_fence never = {0, 1};
	assert_int_equal(create(f, 0, 1, MIB).completion.status, 0);
	set_gate(f, f->last_op + 1, false);
	uint64_t gate = submit(f, fill(0, at(0, 0, 0)));
	wait_op(f, gate);
	uint64_t watched = submit(f, watch(0, SESSION, 1, &never));
	uint64_t elsewhere = submit(f, watch(1, SESSION, 1, &never));
	struct zd_command command = fill(0, at(1, 0, MIB));
	command.signal = (struct zd_signal){SESSION, 0, 1};
	for (int i = 0; i < 100; i++)
		submit(f, command);
	struct zd_command destroy = {.kind = ZD_CMD_SEGMENT_DESTROY};
	destroy.u.segment.segment = 1;
	uint64_t destroyed = submit(f, destroy);

	struct closer closer = {.f = f};
	assert_int_equal(pthread_create(&closer.thread, NULL, closer_main, &closer), 0);
	wait_op(f, elsewhere); /* device 1 has been told to stop, and so device 0 before it */
	set_gate(f, gate, true);
	pthread_join(closer.thread, NULL);

	for (uint64_t op = watched; op <= destroyed; op++)
		assert_int_equal(wait_op(f, op).completion.status, ZEROD_E_SHUTDOWN);
	assert_int_equal(atomic_load(&c.daemon_page[0]),
	                 ZD_FENCE_ABORTED); /* what was not done is not signalled */
	forget_session(&c);
}
