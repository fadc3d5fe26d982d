/* SPDX-License-Identifier: Apache-2.0 */
/* fence_cases.h - what watches, signals and fence pages do on every backend. */
#ifndef ZD_TEST_FENCE_CASES_H
#define ZD_TEST_FENCE_CASES_H

#include <fcntl.h>

#include "tests/unit/executor/backend_fixture.h"

#define NOT_A_TIMELINE (UINT64_MAX / 2)

BACKEND_TEST(test_watch_waits_for_all_its_fences, open_two)
{
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

BACKEND_TEST(test_abort_value_passes_every_fence, open_two)
{
	struct client c = open_session(f, SESSION);
	struct zd_fence fence = {5, 1000};
	uint64_t op = submit(f, watch(1, SESSION, 1, &fence));
	atomic_store(&c.client_page[5], (uint64_t)ZD_FENCE_ABORTED);
	assert_int_equal(wait_op(f, op).completion.status, 0);
	forget_session(&c);
}

BACKEND_TEST(test_watch_does_not_hold_up_the_queue, open_two)
{
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

BACKEND_TEST(test_session_close_aborts_watches, open_two)
{
	struct client c = open_session(f, SESSION);
	struct client other = open_session(f, SESSION + 1);
	struct zd_fence fence = {0, 1};
	uint64_t on_0 = submit(f, watch(0, SESSION, 1, &fence));
	uint64_t on_1 = submit(f, watch(1, SESSION, 1, &fence));
	uint64_t kept = submit(f, watch(1, SESSION + 1, 1, &fence));
	ops->session_close(f->backend, SESSION, true);
	assert_int_equal(wait_op(f, on_0).completion.status, ZEROD_E_ABORTED);
	assert_int_equal(wait_op(f, on_1).completion.status, ZEROD_E_ABORTED);
	assert_int_equal(times_completed(f, kept), 0);
	atomic_store(&other.client_page[0], 1);
	assert_int_equal(wait_op(f, kept).completion.status, 0);
	ops->session_close(f->backend, SESSION, true); /* unknown by now: ignored */
	forget_session(&c);
	forget_session(&other);
}

BACKEND_TEST(test_pages_start_at_zero_and_are_read, open_two)
{
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
	ops->session_close(f->backend, SESSION, true);
	assert_true(ops->timeline_read(f->backend, SESSION, 17) == NOT_A_TIMELINE);
	forget_session(&c);
}

BACKEND_TEST(test_client_cannot_resize_a_page, open_two)
{
	struct client c = open_session(f, SESSION);
	const int fds[] = {c.client_fd, c.daemon_fd};
	for (size_t i = 0; i < ZD_ARRAY_LEN(fds); i++) {
		assert_int_equal(ftruncate(fds[i], 0), -1);
		assert_int_equal(errno, EPERM);
		assert_int_equal(ftruncate(fds[i], 2 * (off_t)PAGE_BYTES), -1);
		assert_int_equal(errno, EPERM);
		assert_int_equal(fcntl(fds[i], F_ADD_SEALS, F_SEAL_WRITE), -1);
		assert_int_equal(errno, EPERM);
	}
	forget_session(&c);
}

BACKEND_TEST(test_signal_comes_after_the_bytes, open_two)
{
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

/* Waiters of a failed command must not be told that it went well by the one behind it. */
BACKEND_TEST(test_aborted_timeline_stays_so, open_two)
{
	struct client c = open_session(f, SESSION);
	struct zd_command set = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, 0, ZD_FENCE_ABORTED}};
	assert_int_equal(create(f, 0, 1, 4096).completion.status, 0);
	wait_op(f, submit(f, set));
	struct zd_command command = fill(0, at(1, 0, 4096));
	command.signal = (struct zd_signal){SESSION, 0, 5};
	wait_op(f, submit(f, command));
	assert_int_equal(atomic_load(&c.daemon_page[0]), ZD_FENCE_ABORTED);
	set.signal.value = 5;
	wait_op(f, submit(f, set));
	assert_int_equal(atomic_load(&c.daemon_page[0]), 5);
	command.signal.value = 6;
	wait_op(f, submit(f, command));
	assert_int_equal(atomic_load(&c.daemon_page[0]), 6);
	forget_session(&c);
}

/* A command that was given before the close still has its page to signal into. */
BACKEND_TEST(test_pages_outlive_the_session_for_queued_commands, open_two)
{
	struct client c = open_session(f, SESSION);
	set_gate(f, f->last_op + 1, false);
	uint64_t gate = submit(f, fill(0, at(0, 0, 0)));
	wait_op(f, gate); /* the executor is inside done() now, and stays there */
	struct zd_command signal = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, 0, 5}};
	uint64_t before = submit(f, signal);
	ops->session_close(f->backend, SESSION, false);
	signal.signal.value = 6;
	uint64_t after = submit(f, signal); /* names a session that is gone: done, seen by nobody */
	set_gate(f, gate, true);
	assert_int_equal(wait_op(f, before).completion.status, 0);
	assert_int_equal(wait_op(f, after).completion.status, 0);
	assert_int_equal(atomic_load(&c.daemon_page[0]), 5);
	forget_session(&c);
}

/* ---- Many at once -------------------------------------------------------------------------------------- */

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

BACKEND_TEST(test_many_sessions, open_four)
{
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
			        copy(i % 4, at(i % 4 + 1, i * (4 * KIB), 4 * KIB), (i + 1) % 4,
			             at((i + 1) % 4 + 1, 512 * KIB + i * (4 * KIB), 4 * KIB));
			command.signal = (struct zd_signal){i + 1, 0, step};
			ops->submit(f->backend, &command);
			watches[i] = submit(f, watch((i + 2) % 4, i + 1, 1, &fence));
		}
		for (uint32_t i = 0; i < TRAINERS; i++)
			assert_int_equal(wait_op(f, watches[i]).completion.status, 0);
	}
	for (uint32_t i = 0; i < TRAINERS; i++) {
		pthread_join(trainers[i].thread, NULL);
		ops->session_close(f->backend, i + 1, true);
		forget_session(&trainers[i].c);
	}
}

#endif
