/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_fences.c - the cuda backend's watches, signals and fence pages, over the driver's double. */
#define TEST_BACKEND zd_backend_cuda

#include "tests/unit/executor/backend_fixture.h"
#include "tests/unit/executor/cuda_double.h"
#include "tests/unit/executor/fence_cases.h"

/* A trainer's library frees its own streams when the daemon has died. */
BACKEND_TEST(test_client_may_write_the_daemon_page, open_two)
{
	struct client c = open_session(f, SESSION);
	void *mapped = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, c.daemon_fd, 0);
	assert_ptr_not_equal(mapped, MAP_FAILED);
	munmap(mapped, PAGE_BYTES);
	forget_session(&c);
}

/* The GPU's store comes behind the bytes, and the one of a command that the CPU ends behind that. */
BACKEND_TEST(test_stores_of_gpu_and_cpu_are_in_order, open_two)
{
	enum { ROUNDS = 200 };
	struct client c = open_session(f, SESSION);
	assert_int_equal(create(f, 0, 1, MIB).completion.status, 0);
	assert_int_equal(create(f, 1, 2, MIB).completion.status, 0);
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		struct zd_command push = copy(0, at(1, 0, MIB), 1, at(2, 0, MIB));
		struct zd_command set = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, 0, 3 * round}};
		push.signal = (struct zd_signal){SESSION, 0, 3 * round - 1};
		submit(f, push);
		uint64_t op = submit(f, set);
		push.signal.value = 3 * round + 1;
		uint64_t last = submit(f, push);
		wait_op(f, op);
		uint64_t seen = atomic_load(&c.daemon_page[0]);
		assert_true(seen == 3 * round || seen == 3 * round + 1);
		wait_op(f, last);
		assert_int_equal(atomic_load(&c.daemon_page[0]), 3 * round + 1);
	}
	forget_session(&c);
}

/* A session with commands for several devices on one timeline: they end in the order in which they were
 * given. */
BACKEND_TEST(test_one_timeline_in_several_queues, open_four)
{
	enum { ROUNDS = 50 };
	struct client c = open_session(f, SESSION);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(create(f, i, i + 1, 2 * MIB).completion.status, 0);
	uint64_t given[ROUNDS], value = 0;
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t target = round * 7 % 4;
		struct zd_command push = copy(0, at(1, 0, MIB), target, at(target + 1, MIB, MIB));
		push.signal = (struct zd_signal){SESSION, 0, ++value};
		given[round] = submit(f, push);
	}
	struct zd_command set = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, 0, ++value}};
	wait_op(f, submit(f, set));
	assert_int_equal(atomic_load(&c.daemon_page[0]), value);
	for (uint32_t round = 1; round < ROUNDS; round++)
		assert_true(wait_op(f, given[round - 1]).order < wait_op(f, given[round]).order);
	forget_session(&c);
}

int main(int argc, char **argv)
{
	(void)argc;
	use_double(argv);
	return test_run(NULL, NULL);
}
