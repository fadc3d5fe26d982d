/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that share a range. */
#include <stdatomic.h>
#include <unistd.h>

#include "executor/thread.h"
#include "tests/support/test.h"

#define MOST_BYTES 1000u

static atomic_uint calls[MOST_BYTES + 1]; /* for each byte; for one behind the range at the end */

static void count(void *arg, uint64_t from, uint64_t bytes)
{
	assert_ptr_equal(arg, calls);
	for (uint64_t i = 0; i < bytes; i++)
		atomic_fetch_add(&calls[from + i], 1);
}

TEST(test_every_byte_once)
{
	static const uint64_t ranges[][2] = {{0, 7},    {1, 7},      {7, 7},  {8, 7},
	                                     {1000, 7}, {1000, 999}, {999, 1}};

	for (size_t i = 0; i < sizeof(ranges) / sizeof(*ranges); i++) {
		memset(calls, 0, sizeof(calls));
		zd_run_in_parts(ranges[i][0], ranges[i][1], count, calls);
		for (uint64_t j = 0; j <= MOST_BYTES; j++)
			assert_int_equal(atomic_load(&calls[j]), j < ranges[i][0]);
	}
}

/* A part waits until another one runs: so there are two threads, where there are two processors. */
static void await_another(void *arg, uint64_t from, uint64_t bytes)
{
	atomic_uint *running = arg;

	(void)from;
	(void)bytes;
	atomic_fetch_add(running, 1);
	while (atomic_load(running) < 2)
		zd_spin_pause();
}

TEST(test_parts_run_at_once)
{
	atomic_uint running = 0;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		skip();
	zd_run_in_parts(2, 1, await_another, &running);
	assert_int_equal(atomic_load(&running), 2);
}
