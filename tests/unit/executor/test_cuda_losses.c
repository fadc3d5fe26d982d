/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_losses.c - a GPU is lost while copies are under way on it or by it; over the driver's double.
 *
 * Errors that the driver gives once (1: a call that it refuses) mark a GPU as failed, and what its streams
 * have goes on.
 */
#define TEST_BACKEND zd_backend_cuda

#include <dlfcn.h>
#include <sched.h>

#include "executor/cuda/cuda_across.h"
#include "tests/double/control.h"
#include "tests/unit/driver/cases.h"
#include "tests/unit/executor/backend_fixture.h"
#include "tests/unit/executor/cuda_scene.h"

/* Waits for an empty copy that goes another way: when it has ended, the executor has issued all commands
 * before it. That is a push behind copies across, or one of these behind pushes. */
static void wait_issued(struct fixture *f, uint32_t to)
{
	struct zd_command nothing = copy(0, at(0, 0, 0), to, at(0, 0, 0));
	assert_int_equal(wait_op(f, submit(f, nothing)).completion.status, 0);
}

/* The double stays loaded. */
static const struct double_control *control(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	const struct double_control *found = dlsym(library, "double_control");
	assert_non_null(found);
	(void)dlclose(library);
	return found;
}

/* Copies by that device do not complete until it is released; -1: releases all. */
static void hold_copies(int device)
{
	control()->hold_copies(device);
}

static void wait_copies(unsigned long count)
{
	while (control()->calls("cuMemcpyAsync") < count)
		(void)sched_yield();
}

static void set_to(struct fixture *f, uint64_t value)
{
	struct zd_command set = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, 0, value}};
	assert_int_equal(wait_op(f, submit(f, set)).completion.status, 0);
}

/* The other GPU is given up under a copy that is on its way across, and then moves it all the same. Command
 * and timeline tell one story: it has failed, and both say so; or it has not, and the timeline goes on. */
SESSION_TEST(test_copy_that_lands_after_its_way_was_lost, 2, "ZD_DOUBLE_COPY_US=200000",
             "ZD_DOUBLE_FAIL=cuMemsetD8Async:5:1")
{
	make_segments(f, 2);
	uint8_t *bytes = map_segment(f, 1, SEGMENT);
	memset(bytes, 0x5a, MIB);
	uint64_t slow = submit(f, round_of(MIB, 1));
	wait_issued(f, 1);
	uint64_t refused = submit(f, fill(1, at(2, 0, MIB)));
	int status = wait_op(f, slow).completion.status;
	assert_memory_equal(bytes + SEGMENT / 2, bytes, MIB);
	if (status) {
		assert_int_equal(status, ZEROD_E_DEVICE);
		assert_int_equal(atomic_load(&c->daemon_page[0]), ZD_FENCE_ABORTED);
		set_to(f, 1);
	}
	assert_int_equal(wait_op(f, refused).completion.status, ZEROD_E_DEVICE);
	assert_int_equal(wait_op(f, submit(f, round_of(MIB, 2))).completion.status, 0);
	assert_int_equal(atomic_load(&c->daemon_page[0]), 2);
	munmap(bytes, SEGMENT);
}

/* A sum that moves nothing: the CPU signals its end, behind the pushes. */
static struct zd_command sum_of_nothing(uint64_t value)
{
	struct zd_command sum = {.kind = ZD_CMD_REDUCE, .signal = {SESSION, 0, value}};
	sum.u.reduce = (struct zd_reduce_desc){.input_dtype = ZEROD_FLOAT32,
	                                       .target_dtype = ZEROD_FLOAT32,
	                                       .overwrite = true,
	                                       .prescale = 1,
	                                       .postscale = 1};
	return sum;
}

/* Pushes that land after the GPU was given up do not take the abort back under what the CPU signals behind
 * them. */
SESSION_TEST(test_signal_behind_pushes_of_a_lost_gpu, 2, "ZD_DOUBLE_COPY_US=100000",
             "ZD_DOUBLE_FAIL=cuMemsetD8Async:6:1")
{
	enum { PUSHES = 4 };
	make_segments(f, 2);
	for (uint64_t i = 1; i <= PUSHES; i++)
		submit(f, push_of(0, 1, i));
	uint64_t sum = submit(f, sum_of_nothing(PUSHES + 1));
	/* The worker is through with the sum when it is with the segment. */
	assert_int_equal(create(f, 0, 9, SEGMENT).completion.status, 0);
	assert_int_equal(wait_op(f, submit(f, fill(0, at(1, 0, MIB)))).completion.status, ZEROD_E_DEVICE);
	wait_op(f, sum);
	assert_true(zd_fence_reached(atomic_load(&c->daemon_page[0]), PUSHES + 1));
}

/* The way is lost while as many fills are in flight as may be: the copy that finds it so has a place behind
 * them. */
SESSION_TEST(test_way_that_is_lost_behind_many_fills, 2, "ZD_DOUBLE_FAIL=cuMemcpyAsync:1:719")
{
	enum {
		FILLS = 128,
		BYTES = ZD_CUDA_ACROSS_ZEROS_BYTES + 256 /* smaller ones go across themselves */
	};
	uint64_t fills[FILLS];
	make_segments(f, 2);
	set_gate(f, f->last_op + 1, false);
	wait_issued(f, 1); /* now the executor is held, and takes all that follows at once */
	for (uint64_t i = 0; i < FILLS; i++)
		fills[i] = submit(f, fill(0, at(1, i * BYTES, BYTES)));
	uint64_t round = submit(f, round_of(MIB, 1));
	set_gate(f, 0, true);
	for (uint64_t i = 0; i < FILLS; i++)
		assert_int_equal(wait_op(f, fills[i]).completion.status, 0);
	assert_int_equal(wait_op(f, round).completion.status, ZEROD_E_DEVICE);
	assert_int_equal(atomic_load(&c->daemon_page[0]), ZD_FENCE_ABORTED);
	set_to(f, 1);
	assert_int_equal(wait_op(f, submit(f, round_of(MIB, 2))).completion.status, 0);
	assert_int_equal(atomic_load(&c->daemon_page[0]), 2);
}

/* A copy that goes wrong on the GPU, as here when its target's memory goes: no call is told, and the counters
 * stand still. Somebody looks. */
SESSION_TEST(test_gpu_that_fails_unasked, 2)
{
	struct zd_command destroy = {.kind = ZD_CMD_SEGMENT_DESTROY, .device = 1};
	destroy.u.segment.segment = 2;
	make_segments(f, 2);
	hold_copies(0);
	uint64_t lost = submit(f, push_of(0, 1, 1));
	wait_issued(f, 0);
	assert_int_equal(wait_op(f, submit(f, destroy)).completion.status, 0);
	hold_copies(-1);
	assert_int_equal(wait_op(f, lost).completion.status, ZEROD_E_DEVICE);
	assert_int_equal(atomic_load(&c->daemon_page[0]), ZD_FENCE_ABORTED);
	assert_int_equal(wait_op(f, submit(f, fill(1, at(0, 0, 0)))).completion.status, 0);
}

/* The same of the GPU by which a copy goes round: it is lost, and the copy's own one is not. */
SESSION_TEST(test_way_that_fails_unasked, 2)
{
	struct zd_command destroy = {.kind = ZD_CMD_SEGMENT_DESTROY};
	destroy.u.segment.segment = 1;
	make_segments(f, 2);
	hold_copies(1);
	uint64_t lost = submit(f, round_of(MIB, 1));
	wait_issued(f, 1);
	assert_int_equal(wait_op(f, submit(f, destroy)).completion.status, 0);
	hold_copies(-1);
	assert_int_equal(wait_op(f, lost).completion.status, ZEROD_E_DEVICE);
	assert_int_equal(atomic_load(&c->daemon_page[0]), ZD_FENCE_ABORTED);
	assert_int_equal(create(f, 0, 3, SEGMENT).completion.status, 0);
	assert_int_equal(wait_op(f, submit(f, fill(0, at(3, 0, MIB)))).completion.status, 0);
}

/* Where it goes round is not the fill's business: it is made at home then. */
static void check_small_fill(struct fixture *f, uint64_t fill_op)
{
	static const uint8_t zeros[KIB];
	uint8_t *bytes = map_segment(f, 1, SEGMENT);
	assert_int_equal(wait_op(f, fill_op).completion.status, 0);
	assert_memory_equal(bytes, zeros, sizeof(zeros));
	assert_int_equal(bytes[KIB], 0x5a);
	munmap(bytes, SEGMENT);
	close_all((void **)&f);
}

static struct fixture *open_filled(void **state)
{
	struct fixture *f = open_fixture(state, 2);
	make_segments(f, 2);
	uint8_t *bytes = map_segment(f, 1, SEGMENT);
	memset(bytes, 0x5a, 2 * KIB);
	munmap(bytes, SEGMENT);
	return f;
}

static void test_small_fill_under_way_is_made_again(void **state)
{
	struct fixture *f = open_filled(state);
	hold_copies(1);
	uint64_t small = submit(f, fill(0, at(1, 0, KIB)));
	wait_copies(1);
	uint64_t refused = submit(f, fill(1, at(2, 0, MIB)));
	assert_int_equal(wait_op(f, refused).completion.status, ZEROD_E_DEVICE);
	hold_copies(-1);
	check_small_fill(f, small);
}

static void test_small_fill_that_is_not_taken_is_made_again(void **state)
{
	struct fixture *f = open_filled(state);
	check_small_fill(f, submit(f, fill(0, at(1, 0, KIB))));
}

/* The link slot of a GPU that is lost passes like any other: others need not wait until its pushes have come
 * to rest. */
GPUS_TEST(test_link_of_a_lost_gpu_is_free, 4, "ZD_DOUBLE_FAIL=cuMemsetD8Async:8:1")
{
	enum { TAKEN = 72, SMALLER = 9 }; /* MiB */
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(create(f, i, i + 1, 2 * TAKEN * MIB).completion.status, 0);
	hold_copies(0);
	uint64_t lost = submit(f, copy(0, at(1, 0, TAKEN * MIB), 2, at(3, 0, TAKEN * MIB)));
	wait_issued(f, 0);
	uint64_t refused = submit(f, fill(0, at(1, 0, MIB)));
	struct zd_location to = at(3, TAKEN * MIB, SMALLER * MIB);
	uint64_t other = submit(f, copy(1, at(2, 0, SMALLER * MIB), 2, to));
	assert_int_equal(wait_op(f, other).completion.status, 0);
	assert_int_equal(times_completed(f, lost), 0);
	hold_copies(-1);
	assert_int_equal(wait_op(f, lost).completion.status, ZEROD_E_DEVICE);
	assert_int_equal(wait_op(f, refused).completion.status, ZEROD_E_DEVICE);
}

int main(int argc, char **argv)
{
	/* Segments are zeroed: those of the ways round, one of each GPU's, those of the test, and then its
	 * fills. */
	struct a_case cases[] = {
	        CASE(test_small_fill_under_way_is_made_again, "ZD_DOUBLE_FAIL=cuMemsetD8Async:5:1"),
	        CASE(test_small_fill_that_is_not_taken_is_made_again, "ZD_DOUBLE_FAIL=cuMemcpyAsync:1:719"),
	};
	return case_main(cases, ZD_ARRAY_LEN(cases), argc, argv);
}
