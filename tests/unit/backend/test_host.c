/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_host.c - the host backend through its interface: order of commands, watches, fence pages, seals, errors, close.
 *
 * Completions are recorded by op. A test that must know what an executor is doing holds it inside the completion of one
 * op (the gate); nothing here sleeps or depends on how fast anything is.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/err.h"
#include "base/mem.h"

#define MAX_OPS        1024u
#define DEADLINE_S     60
#define KIB            ((uint64_t)1 << 10)
#define MIB            ((uint64_t)1 << 20)
#define SESSION        7u
#define NOT_A_TIMELINE (UINT64_MAX / 2)

struct record {
	unsigned times;
	unsigned order; /* 1: completed first */
	struct zd_completion completion;
};

struct fixture {
	struct zd_backend *backend;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct record records[MAX_OPS];
	unsigned completed;
	uint64_t last_op; /* given out by next_op() */
	uint64_t gate_op; /* its completion stays in its executor until the gate opens */
	bool gate_open;
};

static const struct zd_backend_ops *const ops = &zd_backend_host;

/* ---- Completions --------------------------------------------------------------------------------- */

static struct timespec deadline(void)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += DEADLINE_S;
	return until;
}

static void done(void *arg, const struct zd_completion *completion)
{
	struct fixture *f = arg;
	pthread_mutex_lock(&f->lock);
	struct record *record = &f->records[completion->op];
	record->times++;
	record->order = ++f->completed;
	record->completion = *completion;
	pthread_cond_broadcast(&f->changed);
	while (completion->op == f->gate_op && !f->gate_open)
		pthread_cond_wait(&f->changed, &f->lock);
	pthread_mutex_unlock(&f->lock);
}

static struct record wait_op(struct fixture *f, uint64_t op)
{
	struct timespec until = deadline();
	int rc = 0;
	pthread_mutex_lock(&f->lock);
	while (f->records[op].times == 0 && rc == 0)
		rc = pthread_cond_timedwait(&f->changed, &f->lock, &until);
	struct record record = f->records[op];
	pthread_mutex_unlock(&f->lock);
	assert_int_equal(record.times, 1);
	return record;
}

static unsigned times_completed(struct fixture *f, uint64_t op)
{
	pthread_mutex_lock(&f->lock);
	unsigned times = f->records[op].times;
	pthread_mutex_unlock(&f->lock);
	return times;
}

static void set_gate(struct fixture *f, uint64_t op, bool open)
{
	pthread_mutex_lock(&f->lock);
	f->gate_op = op;
	f->gate_open = open;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

static uint64_t next_op(struct fixture *f)
{
	assert_true(f->last_op + 1 < MAX_OPS);
	return ++f->last_op;
}

/* ---- Commands -------------------------------------------------------------------------------------- */

static uint64_t submit(struct fixture *f, struct zd_command command)
{
	command.op = next_op(f);
	ops->submit(f->backend, &command);
	return command.op;
}

static struct record create(struct fixture *f, uint32_t device, uint32_t segment, uint64_t bytes)
{
	struct zd_command command = {.kind = ZD_CMD_SEGMENT_CREATE, .device = device};
	command.u.segment.segment = segment;
	command.u.segment.bytes = bytes;
	return wait_op(f, submit(f, command));
}

static struct zd_location at(uint32_t segment, uint64_t offset, uint64_t bytes)
{
	return (struct zd_location){segment, offset, bytes};
}

static struct zd_command copy(uint32_t device, struct zd_location src, uint32_t dst_device,
                              struct zd_location dst)
{
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = device};
	command.u.copy.src = src;
	command.u.copy.dst_device = dst_device;
	command.u.copy.dst = dst;
	return command;
}

static struct zd_command fill(uint32_t device, struct zd_location where)
{
	struct zd_command command = {.kind = ZD_CMD_FILL, .device = device};
	command.u.fill = where;
	return command;
}

static struct zd_command watch(uint32_t device, uint64_t session, uint32_t nfences,
                               const struct zd_fence *fences)
{
	struct zd_command command = {.kind = ZD_CMD_WATCH, .device = device};
	command.u.watch.session = session;
	command.u.watch.nfences = nfences;
	command.u.watch.fences = fences;
	return command;
}

/* ---- What a client sees ------------------------------------------------------------------------------ */

static uint8_t *map_segment(struct fixture *f, uint32_t segment, uint64_t bytes)
{
	int fd = ops->segment_fd(f->backend, segment);
	assert_true(fd >= 0);
	void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(mapped, MAP_FAILED);
	return mapped;
}

struct client {
	int client_fd, daemon_fd;
	_Atomic uint64_t *client_page, *daemon_page;
};

static struct client open_session(struct fixture *f, uint64_t session)
{
	struct client c = {.client_fd = -1};
	struct zd_err err = ZD_ERR_NONE;
	assert_int_equal(ops->session_open(f->backend, session, &c.client_fd, &c.daemon_fd, &err), 0);
	c.client_page = mmap(NULL, ZD_FENCE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, c.client_fd, 0);
	c.daemon_page = mmap(NULL, ZD_FENCE_PAGE_BYTES, PROT_READ, MAP_SHARED, c.daemon_fd, 0);
	assert_ptr_not_equal(c.client_page, MAP_FAILED);
	assert_ptr_not_equal(c.daemon_page, MAP_FAILED);
	return c;
}

static void forget_session(struct client *c)
{
	munmap(c->client_page, ZD_FENCE_PAGE_BYTES);
	munmap(c->daemon_page, ZD_FENCE_PAGE_BYTES);
	close(c->client_fd);
	close(c->daemon_fd);
}

/* As libzerod waits: sleeps in futex(2) on the low word until the counter has reached the value. */
static void wait_counter(_Atomic uint64_t *counter, uint64_t value)
{
	const struct timespec patience = {.tv_sec = DEADLINE_S};
	uint64_t seen;
	while (!zd_fence_reached(seen = atomic_load_explicit(counter, memory_order_acquire), value)) {
		long rc = syscall(SYS_futex, counter, FUTEX_WAIT, (uint32_t)seen, &patience, NULL, 0);
		assert_true(rc == 0 || errno == EAGAIN || errno == EINTR);
	}
}

/* ---- Setup ---------------------------------------------------------------------------------------------- */

static int open_devices(void **state, uint32_t ndevices)
{
	struct fixture *f = zd_calloc(1, sizeof(*f));
	struct zd_backend_config config = {
	        .ndevices = ndevices,
	        .arena_bytes = 64 * MIB,
	        .done = done,
	        .done_arg = f,
	};
	struct zd_err err = ZD_ERR_NONE;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
	*state = f;
	return ops->open(&config, &f->backend, &err);
}

static int open_two(void **state)
{
	return open_devices(state, 2);
}

static int open_four(void **state)
{
	return open_devices(state, 4);
}

static void close_backend(struct fixture *f)
{
	ops->close(f->backend);
	f->backend = NULL;
}

static int close_all(void **state)
{
	struct fixture *f = *state;
	close_backend(f);
	for (uint64_t op = 1; op <= f->last_op; op++)
		assert_int_equal(f->records[op].times, 1);
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->lock);
	free(f);
	return 0;
}

/* ---- Opening ---------------------------------------------------------------------------------------------- */

static void test_devices_have_names_and_arenas(void **state)
{
	struct fixture *f = *state;
	struct zd_device_config info;
	assert_int_equal(ops->device_count(f->backend), 2);
	ops->device_info(f->backend, 1, &info);
	assert_string_equal(info.name, "host1");
	assert_int_equal(info.arena_bytes, 64 * MIB);
}

static void test_default_arena(void **state)
{
	(void)state;
	struct zd_backend_config config = {.ndevices = 1, .done = done};
	struct zd_backend *backend = NULL;
	struct zd_device_config info;
	assert_int_equal(ops->open(&config, &backend, NULL), 0);
	ops->device_info(backend, 0, &info);
	assert_int_equal(info.arena_bytes, 1024 * MIB);
	ops->close(backend);
}

static void test_open_refuses(void **state)
{
	(void)state;
	static const struct {
		uint32_t ndevices;
		uint64_t arena_bytes;
		int status;
		const char *text;
	} cases[] = {
	        {0, MIB, ZEROD_E_INVALID, "found 0"},
	        {ZD_MAX_DEVICES + 1, MIB, ZEROD_E_INVALID, "1 to 64 devices"},
	        {1, 100, ZEROD_E_INVALID, "100 B"},
	        {1, UINT64_MAX, ZEROD_E_INVALID, "arena"},
	        {1, ZD_MAX_BYTES, ZEROD_E_NO_MEMORY, "1 PiB"},
	        {ZD_MAX_DEVICES, (uint64_t)1 << 44, ZEROD_E_NO_MEMORY, "64 of 16 TiB"},
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

/* ---- Segments ------------------------------------------------------------------------------------------------ */

static void test_segment_lives_from_create_to_destroy(void **state)
{
	struct fixture *f = *state;
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
		assert_int_equal(seen[8 * KIB - 1], 0xff); /* a client's mapping outlives it */
		munmap(seen, 8 * KIB);
	}
}

static void test_segment_cannot_be_resized_by_a_client(void **state)
{
	struct fixture *f = *state;
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

static void test_absurd_segment_is_an_error(void **state)
{
	struct fixture *f = *state;
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
static void test_file_size_limit_is_an_error(void **state)
{
	struct fixture *f = *state;
	struct rlimit before;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	struct rlimit small = {.rlim_cur = 64 * KIB, .rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	struct record record = create(f, 0, 1, MIB);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(record.completion.status, ZEROD_E_NO_MEMORY);
}

static void test_no_descriptors_is_an_error(void **state)
{
	struct fixture *f = *state;
	struct rlimit before;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	struct rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
	int client_fd = -5, daemon_fd = -6;
	struct zd_err err = ZD_ERR_NONE;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	int rc = ops->session_open(f->backend, SESSION, &client_fd, &daemon_fd, &err);
	struct record record = create(f, 0, 1, 4 * KIB);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(rc, ZEROD_E_SYSTEM);
	assert_int_equal(record.completion.status, ZEROD_E_SYSTEM);
	assert_int_equal(client_fd, -5);
	assert_int_equal(daemon_fd, -6);

	struct client c = open_session(f, SESSION);
	forget_session(&c);
}

/* ---- The lane -------------------------------------------------------------------------------------------------- */

static void test_copies_move_bytes_between_devices(void **state)
{
	struct fixture *f = *state;
	const uint64_t bytes = 3 * MIB + 4096; /* several slices and a rest */
	assert_int_equal(create(f, 0, 1, bytes).completion.status, 0);
	assert_int_equal(create(f, 1, 2, bytes).completion.status, 0);
	uint8_t *a = map_segment(f, 1, bytes);
	uint8_t *b = map_segment(f, 2, bytes);
	for (uint64_t i = 0; i < bytes; i++)
		a[i] = (uint8_t)(i * 2654435761u >> 13);
	struct record record =
	        wait_op(f, submit(f, copy(0, at(1, 256, bytes - 512), 1, at(2, 256, bytes - 512))));
	assert_int_equal(record.completion.status, 0);
	assert_memory_equal(a + 256, b + 256, bytes - 512);
	for (size_t i = 0; i < 256; i++) { /* and not one more */
		assert_int_equal(b[i], 0);
		assert_int_equal(b[bytes - 256 + i], 0);
	}
	munmap(a, bytes);
	munmap(b, bytes);
}

/* Each copy takes what the one before it wrote: any other order leaves another result. */
static void test_lane_runs_in_order(void **state)
{
	struct fixture *f = *state;
	enum { STEPS = 200 };
	const uint64_t bytes = 64 * KIB;
	assert_int_equal(create(f, 0, 1, (STEPS + 1) * bytes).completion.status, 0);
	uint8_t *seen = map_segment(f, 1, (STEPS + 1) * bytes);
	memset(seen, 0x5a, bytes);
	uint64_t first = 0, last = 0;
	for (uint64_t i = 0; i < STEPS; i++) {
		last = submit(f, copy(0, at(1, i * bytes, bytes), 0, at(1, (i + 1) * bytes, bytes)));
		first = first ? first : last;
	}
	wait_op(f, last);
	for (uint64_t i = 0; i < bytes; i++)
		assert_int_equal(seen[STEPS * bytes + i], 0x5a);
	for (uint64_t op = first; op < last; op++)
		assert_true(wait_op(f, op).order < wait_op(f, op + 1).order);
	munmap(seen, (STEPS + 1) * bytes);
}

static void test_fill_zeroes_its_place_only(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(create(f, 0, 1, 2 * MIB).completion.status, 0);
	uint8_t *seen = map_segment(f, 1, 2 * MIB);
	memset(seen, 0xff, 2 * MIB);
	assert_int_equal(wait_op(f, submit(f, fill(0, at(1, 256, 2 * MIB - 512)))).completion.status, 0);
	for (uint64_t i = 0; i < 2 * MIB; i++)
		assert_int_equal(seen[i], i < 256 || i >= 2 * MIB - 256 ? 0xff : 0);
	munmap(seen, 2 * MIB);
}

static void test_empty_commands_complete(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(wait_op(f, submit(f, copy(0, at(0, 0, 0), 1, at(0, 0, 0)))).completion.status, 0);
	assert_int_equal(wait_op(f, submit(f, fill(0, at(0, 0, 0)))).completion.status, 0);
	assert_int_equal(wait_op(f, submit(f, watch(0, SESSION, 0, NULL))).completion.status,
	                 ZEROD_E_ABORTED);
}

static void test_reduce_reports_its_result(void **state)
{
	struct fixture *f = *state;
	enum { NUMEL = 200000 }; /* several slices */
	const uint64_t bytes = NUMEL * sizeof(float);
	assert_int_equal(create(f, 0, 1, 3 * MIB).completion.status, 0);
	float *seen = (float *)(void *)map_segment(f, 1, 3 * MIB);
	for (size_t i = 0; i < NUMEL; i++) {
		seen[i] = 1.0f;
		seen[NUMEL + i] = 2.0f;
		seen[2 * NUMEL + i] = 0.5f;
	}
	const struct zd_location inputs[] = {at(1, 0, bytes), at(1, bytes, bytes)};
	struct zd_command reduce = {.kind = ZD_CMD_REDUCE};
	reduce.u.reduce = (struct zd_reduce_desc){
	        .numel = NUMEL,
	        .input_dtype = ZEROD_FLOAT32,
	        .target_dtype = ZEROD_FLOAT32,
	        .ninputs = 2,
	        .inputs = inputs,
	        .target = at(1, 2 * bytes, bytes),
	        .prescale = 2.0f,
	        .postscale = 0.25f,
	};
	struct record record = wait_op(f, submit(f, reduce));
	assert_int_equal(record.completion.status, 0);
	for (size_t i = 0; i < NUMEL; i++)
		assert_true(seen[2 * NUMEL + i] == 2.0f); /* (1 + 2) * 2 / 4 + 0.5 */
	assert_true(record.completion.result.sum_squares == 4.0 * NUMEL);
	assert_false(record.completion.result.overflow);

	seen[NUMEL + 12345] = 3e38f;
	record = wait_op(f, submit(f, reduce));
	assert_true(record.completion.result.overflow);
	munmap(seen, 3 * MIB);
}

/* ---- Watches ------------------------------------------------------------------------------------------------------ */

static void test_watch_waits_for_all_its_fences(void **state)
{
	struct fixture *f = *state;
	struct client c = open_session(f, SESSION);
	struct zd_fence fences[] = {{0, 1}, {ZD_TIMELINES - 1, 40}, {3, 2}};
	uint64_t op = submit(f, watch(0, SESSION, 3, fences));
	memset(fences, 0, sizeof(fences)); /* the caller's array is the caller's again */
	/* A watch that was given later on the same executor shows that `op` has been looked at in between. */
	static const uint64_t order[][2] = {{3, 2}, {0, 9}, {ZD_TIMELINES - 1, 39}};
	for (size_t i = 0; i < ZD_ARRAY_LEN(order); i++) {
		atomic_store(&c.client_page[order[i][0]], order[i][1]);
		struct zd_fence passed = {(uint32_t)order[i][0], order[i][1]};
		wait_op(f, submit(f, watch(0, SESSION, 1, &passed)));
		assert_int_equal(times_completed(f, op), 0);
	}
	atomic_store(&c.client_page[ZD_TIMELINES - 1], 40);
	assert_int_equal(wait_op(f, op).completion.status, 0);
	forget_session(&c);
}

static void test_abort_value_passes_every_fence(void **state)
{
	struct fixture *f = *state;
	struct client c = open_session(f, SESSION);
	struct zd_fence fence = {5, 1000};
	uint64_t op = submit(f, watch(1, SESSION, 1, &fence));
	atomic_store(&c.client_page[5], (uint64_t)ZD_FENCE_ABORTED);
	assert_int_equal(wait_op(f, op).completion.status, 0);
	forget_session(&c);
}

static void test_watch_does_not_hold_up_the_lane(void **state)
{
	struct fixture *f = *state;
	struct client c = open_session(f, SESSION);
	struct zd_fence fence = {0, 1};
	assert_int_equal(create(f, 0, 1, MIB).completion.status, 0);
	uint64_t watch_op = submit(f, watch(0, SESSION, 1, &fence));
	uint64_t fill_op = submit(f, fill(0, at(1, 0, MIB)));
	assert_int_equal(wait_op(f, fill_op).completion.status, 0);
	assert_int_equal(times_completed(f, watch_op), 0);
	atomic_store(&c.client_page[0], 1);
	assert_int_equal(wait_op(f, watch_op).completion.status, 0);
	forget_session(&c);
}

/* The fence passes while a long command runs; its watch must not wait for the command's end. Whether the fence was
 * written in time is a matter of luck, so this is tried until it was. */
static void test_lane_does_not_hold_up_a_watch(void **state)
{
	struct fixture *f = *state;
	struct client c = open_session(f, SESSION);
	const uint64_t bytes = 32 * MIB;
	assert_int_equal(create(f, 0, 1, bytes).completion.status, 0);
	uint8_t *seen = map_segment(f, 1, bytes);
	bool overtaken = false;
	for (uint64_t attempt = 1; attempt <= 100 && !overtaken; attempt++) {
		struct zd_fence fence = {0, attempt};
		uint64_t watch_op = submit(f, watch(0, SESSION, 1, &fence));
		atomic_store((_Atomic uint8_t *)seen, 0xff);
		uint64_t long_op = submit(f, fill(0, at(1, 0, bytes)));
		while (atomic_load((_Atomic uint8_t *)seen) && times_completed(f, long_op) == 0)
			; /* it begins with the first byte */
		atomic_store(&c.client_page[0], attempt);
		overtaken = wait_op(f, watch_op).order < wait_op(f, long_op).order;
	}
	assert_true(overtaken);
	munmap(seen, bytes);
	forget_session(&c);
}

static void test_session_close_aborts_watches(void **state)
{
	struct fixture *f = *state;
	struct client c = open_session(f, SESSION);
	struct client other = open_session(f, SESSION + 1);
	struct zd_fence fence = {0, 1};
	uint64_t on_0 = submit(f, watch(0, SESSION, 1, &fence));
	uint64_t on_1 = submit(f, watch(1, SESSION, 1, &fence));
	uint64_t kept = submit(f, watch(1, SESSION + 1, 1, &fence));
	ops->session_close(f->backend, SESSION);
	assert_int_equal(wait_op(f, on_0).completion.status, ZEROD_E_ABORTED);
	assert_int_equal(wait_op(f, on_1).completion.status, ZEROD_E_ABORTED);
	assert_int_equal(times_completed(f, kept), 0);
	atomic_store(&other.client_page[0], 1);
	assert_int_equal(wait_op(f, kept).completion.status, 0);
	ops->session_close(f->backend, SESSION); /* unknown by now: ignored */
	forget_session(&c);
	forget_session(&other);
}

/* ---- Fence pages ------------------------------------------------------------------------------------------------------ */

static void test_pages_start_at_zero_and_are_read(void **state)
{
	struct fixture *f = *state;
	struct client c = open_session(f, SESSION);
	for (uint32_t i = 0; i < ZD_TIMELINES; i++) {
		assert_int_equal(atomic_load(&c.client_page[i]), 0);
		assert_int_equal(atomic_load(&c.daemon_page[i]), 0);
		assert_int_equal(ops->timeline_read(f->backend, SESSION, i), 0);
	}
	atomic_store(&c.client_page[17], 0x123456789abcdefull);
	assert_true(ops->timeline_read(f->backend, SESSION, 17) == 0x123456789abcdefull);
	assert_true(ops->timeline_read(f->backend, SESSION, ZD_TIMELINES) == NOT_A_TIMELINE);
	assert_true(ops->timeline_read(f->backend, SESSION + 1, 0) == NOT_A_TIMELINE);
	ops->session_close(f->backend, SESSION);
	assert_true(ops->timeline_read(f->backend, SESSION, 17) == NOT_A_TIMELINE);
	forget_session(&c);
}

static void test_client_cannot_write_the_daemon_page(void **state)
{
	struct fixture *f = *state;
	struct client c = open_session(f, SESSION);
	uint64_t value = 1;
	void *mapped = mmap(NULL, ZD_FENCE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, c.daemon_fd, 0);
	assert_ptr_equal(mapped, MAP_FAILED);
	assert_int_equal(errno, EPERM);
	assert_int_equal(mprotect(c.daemon_page, ZD_FENCE_PAGE_BYTES, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(pwrite(c.daemon_fd, &value, sizeof(value), 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(
	        fallocate(c.daemon_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, ZD_FENCE_PAGE_BYTES),
	        -1);
	/* The daemon still can. */
	struct zd_command signal = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, 2, 77}};
	wait_op(f, submit(f, signal));
	assert_int_equal(atomic_load(&c.daemon_page[2]), 77);
	forget_session(&c);
}

static void test_client_cannot_resize_a_page(void **state)
{
	struct fixture *f = *state;
	struct client c = open_session(f, SESSION);
	const int fds[] = {c.client_fd, c.daemon_fd};
	for (size_t i = 0; i < ZD_ARRAY_LEN(fds); i++) {
		assert_int_equal(ftruncate(fds[i], 0), -1);
		assert_int_equal(errno, EPERM);
		assert_int_equal(ftruncate(fds[i], 2 * (off_t)ZD_FENCE_PAGE_BYTES), -1);
		assert_int_equal(errno, EPERM);
		assert_int_equal(fcntl(fds[i], F_ADD_SEALS, F_SEAL_WRITE), -1);
		assert_int_equal(errno, EPERM);
	}
	forget_session(&c);
}

static void test_signal_comes_after_the_bytes(void **state)
{
	struct fixture *f = *state;
	enum { ROUNDS = 300 };
	const uint64_t bytes = 64 * KIB;
	struct client c = open_session(f, SESSION);
	assert_int_equal(create(f, 0, 1, bytes).completion.status, 0);
	assert_int_equal(create(f, 1, 2, bytes).completion.status, 0);
	uint8_t *src = map_segment(f, 1, bytes);
	uint8_t *dst = map_segment(f, 2, bytes);
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		memset(src, (int)round, bytes);
		struct zd_command command = copy(0, at(1, 0, bytes), 1, at(2, 0, bytes));
		command.signal = (struct zd_signal){SESSION, 9, round};
		ops->submit(f->backend, &command); /* op 0: the signal is all that tells */
		wait_counter(&c.daemon_page[9], round);
		for (uint64_t i = 0; i < bytes; i += 64)
			assert_int_equal(dst[i], (uint8_t)round);
		assert_int_equal(dst[bytes - 1], (uint8_t)round);
	}
	munmap(src, bytes);
	munmap(dst, bytes);
	forget_session(&c);
}

/* A command that was given before the close still has its page to signal into. */
static void test_pages_outlive_the_session_for_queued_commands(void **state)
{
	struct fixture *f = *state;
	struct client c = open_session(f, SESSION);
	set_gate(f, f->last_op + 1, false);
	uint64_t gate = submit(f, fill(0, at(0, 0, 0)));
	wait_op(f, gate); /* the executor is inside done() now, and stays there */
	struct zd_command signal = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, 0, 5}};
	uint64_t before = submit(f, signal);
	ops->session_close(f->backend, SESSION);
	signal.signal.value = 6;
	uint64_t after = submit(f, signal); /* names a session that is gone: done, seen by nobody */
	set_gate(f, gate, true);
	assert_int_equal(wait_op(f, before).completion.status, 0);
	assert_int_equal(wait_op(f, after).completion.status, 0);
	assert_int_equal(atomic_load(&c.daemon_page[0]), 5);
	forget_session(&c);
}

/* ---- Many at once -------------------------------------------------------------------------------------------------------- */

struct trainer {
	struct fixture *f;
	struct client c;
	pthread_t thread;
};

enum { TRAINERS = 16, TRAINER_STEPS = 40 };

/* Answers each signal of the daemon with its own counter. */
static void *trainer_main(void *arg)
{
	struct trainer *t = arg;
	for (uint64_t step = 1; step <= TRAINER_STEPS; step++) {
		wait_counter(&t->c.daemon_page[0], step);
		atomic_store_explicit(&t->c.client_page[0], step, memory_order_release);
	}
	return NULL;
}

static void test_many_sessions(void **state)
{
	struct fixture *f = *state;
	struct trainer trainers[TRAINERS];
	uint64_t watches[TRAINERS];
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(create(f, i, i + 1, MIB).completion.status, 0);
	for (uint32_t i = 0; i < TRAINERS; i++) {
		trainers[i] = (struct trainer){.f = f, .c = open_session(f, i + 1)};
		assert_int_equal(pthread_create(&trainers[i].thread, NULL, trainer_main, &trainers[i]), 0);
	}
	for (uint64_t step = 1; step <= TRAINER_STEPS; step++) {
		for (uint32_t i = 0; i < TRAINERS; i++) {
			struct zd_fence fence = {0, step};
			struct zd_command command =
			        copy(i % 4, at(i % 4 + 1, i * 4 * KIB, 4 * KIB), (i + 1) % 4,
			             at((i + 1) % 4 + 1, 512 * KIB + i * 4 * KIB, 4 * KIB));
			command.signal = (struct zd_signal){i + 1, 0, step};
			ops->submit(f->backend, &command);
			watches[i] = submit(f, watch((i + 2) % 4, i + 1, 1, &fence));
		}
		for (uint32_t i = 0; i < TRAINERS; i++)
			assert_int_equal(wait_op(f, watches[i]).completion.status, 0);
	}
	for (uint32_t i = 0; i < TRAINERS; i++) {
		pthread_join(trainers[i].thread, NULL);
		ops->session_close(f->backend, i + 1);
		forget_session(&trainers[i].c);
	}
}

/* ---- Close ------------------------------------------------------------------------------------------------------------------ */

struct closer {
	struct fixture *f;
	pthread_t thread;
};

static void *closer_main(void *arg)
{
	close_backend(((struct closer *)arg)->f);
	return NULL;
}

/* The executor is held while close() begins, so that most of the work is still queued when it is told to stop. */
static void test_close_with_work_queued(void **state)
{
	struct fixture *f = *state;
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
	assert_int_equal(atomic_load(&c.daemon_page[0]), 0); /* what was not done is not signalled */
	forget_session(&c);
}

#define TEST(name, setup) cmocka_unit_test_setup_teardown(name, setup, close_all)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(test_devices_have_names_and_arenas, open_two),
	        cmocka_unit_test(test_default_arena),
	        cmocka_unit_test(test_open_refuses),
	        TEST(test_segment_lives_from_create_to_destroy, open_two),
	        TEST(test_segment_cannot_be_resized_by_a_client, open_two),
	        TEST(test_absurd_segment_is_an_error, open_two),
	        TEST(test_file_size_limit_is_an_error, open_two),
	        TEST(test_no_descriptors_is_an_error, open_two),
	        TEST(test_copies_move_bytes_between_devices, open_two),
	        TEST(test_lane_runs_in_order, open_two),
	        TEST(test_fill_zeroes_its_place_only, open_two),
	        TEST(test_empty_commands_complete, open_two),
	        TEST(test_reduce_reports_its_result, open_two),
	        TEST(test_watch_waits_for_all_its_fences, open_two),
	        TEST(test_abort_value_passes_every_fence, open_two),
	        TEST(test_watch_does_not_hold_up_the_lane, open_two),
	        TEST(test_lane_does_not_hold_up_a_watch, open_two),
	        TEST(test_session_close_aborts_watches, open_two),
	        TEST(test_pages_start_at_zero_and_are_read, open_two),
	        TEST(test_client_cannot_write_the_daemon_page, open_two),
	        TEST(test_client_cannot_resize_a_page, open_two),
	        TEST(test_signal_comes_after_the_bytes, open_two),
	        TEST(test_pages_outlive_the_session_for_queued_commands, open_two),
	        TEST(test_many_sessions, open_four),
	        TEST(test_close_with_work_queued, open_two),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
