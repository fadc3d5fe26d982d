/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_link_scheduler.c - which GPU may push when, from which GPU to which, in times that the tests
 * name. */
#include "executor/cuda/cuda_copy_stream.h"
#include "executor/cuda/cuda_link_scheduler.h"
#include "tests/support/test.h"

#define GPUS   4
#define MIB    (1ull << 20)
#define LARGE  (39 * MIB)
#define PIECE  ZD_CUDA_PIECE_BYTES
#define US     1000u
#define BEGIN  (1000 * US)
#define LASTS  zd_cuda_link_slot_ns(LARGE)
#define GRACE  (61 * US) /* or more, so that a place is anybody's */
#define BEFORE (11 * US) /* or more, so that it is too early for the next slot */
#define AHEAD  (9 * US)  /* or less, so that it is not */

struct fixture {
	struct zd_cuda_device all[GPUS];
	struct zd_cuda_devices devices;
	struct zd_cuda_link_scheduler scheduler[GPUS];
	struct zd_cuda_tasks queue;
};

static struct fixture *open_fixture(void)
{
	struct fixture *f = calloc(1, sizeof(*f));
	assert_non_null(f);
	f->devices.count = GPUS;
	f->devices.all = f->all;
	STAILQ_INIT(&f->queue);
	for (uint32_t i = 0; i < GPUS; i++)
		zd_cuda_link_scheduler_init(&f->scheduler[i], &f->devices, i);
	return f;
}

static struct zd_cuda_task copy(uint32_t target, zd_cu_ptr dst, zd_cu_ptr src, uint64_t bytes)
{
	struct zd_cuda_task task = {.target = target};
	task.base.kind = ZD_CMD_COPY;
	task.u.copy.dst = dst;
	task.u.copy.src = src;
	task.u.copy.bytes = bytes;
	return task;
}

/* As an executor with this task alone asks. */
static bool asks(struct fixture *f, uint32_t source, struct zd_cuda_task *task, uint64_t now_ns)
{
	zd_cuda_link_scheduler_offer(&f->scheduler[source], task);
	(void)zd_cuda_link_scheduler_begin(&f->scheduler[source], now_ns);
	return zd_cuda_link_scheduler_reserve(&f->scheduler[source], task, now_ns);
}

/* Issues a piece, as the executor does when it has a slot. */
static void issue_piece(struct zd_cuda_task *task)
{
	task->u.copy.issued_bytes += PIECE;
	task->u.copy.has_link_slot = false;
}

static bool asks_for(struct fixture *f, uint32_t source, uint32_t target, uint64_t now_ns)
{
	/* Nothing that goes on where another one ended. */
	struct zd_cuda_task task = copy(target, now_ns * MIB, now_ns * MIB, LARGE);
	return asks(f, source, &task, now_ns);
}

TEST(test_small_pushes_go_at_once)
{
	struct fixture *f = open_fixture();
	struct zd_cuda_task small = copy(1, MIB, MIB, ZD_CUDA_LINK_SLOT_LEAST_BYTES);
	assert_true(asks_for(f, 0, 1, BEGIN));
	assert_true(asks(f, 0, &small, BEGIN));
	assert_true(asks(f, 2, &small, BEGIN));
	free(f);
}

/* Two sources, one target: the second goes when the first one's bytes have almost completed. */
TEST(test_one_push_into_a_gpu_at_a_time)
{
	struct fixture *f = open_fixture();
	assert_true(asks_for(f, 0, 1, BEGIN));
	assert_false(asks_for(f, 3, 1, BEGIN + GRACE));
	assert_false(asks_for(f, 3, 1, BEGIN + LASTS - BEFORE));
	assert_in_range(f->scheduler[3].again_ns, BEGIN + LASTS - BEFORE, BEGIN + LASTS);
	assert_true(asks_for(f, 3, 1, BEGIN + LASTS));
	free(f);
}

/* Pieces of short rows have fewer bytes than other pieces. */
TEST(test_slot_of_short_rows)
{
	struct fixture *f = open_fixture();
	struct zd_cuda_task task = copy(1, MIB, MIB, LARGE);
	task.u.copy.rows = (struct zd_rows){64, 128};
	uint64_t lasts = zd_cuda_link_slot_ns(64 * ZD_CUDA_PIECE_ROWS);
	assert_true(asks(f, 0, &task, BEGIN));
	assert_false(asks_for(f, 3, 1, BEGIN + lasts - 2 * BEFORE));
	assert_true(asks_for(f, 3, 1, BEGIN + lasts));
	free(f);
}

TEST(test_one_push_out_of_a_gpu_at_a_time)
{
	struct fixture *f = open_fixture();
	assert_true(asks_for(f, 0, 1, BEGIN));
	assert_false(asks_for(f, 0, 2, BEGIN + LASTS - BEFORE));
	assert_true(asks_for(f, 0, 2, BEGIN + LASTS - AHEAD));
	free(f);
}

/* The times behind the last slot are remembered: slots are taken ahead of their time. */
TEST(test_turns_follow_each_other)
{
	struct fixture *f = open_fixture();
	assert_true(asks_for(f, 0, 1, BEGIN));
	assert_true(asks_for(f, 0, 2, BEGIN + LASTS - AHEAD));
	assert_false(asks_for(f, 0, 3, BEGIN + 2 * LASTS - BEFORE));
	assert_true(asks_for(f, 0, 3, BEGIN + 2 * LASTS - AHEAD));
	free(f);
}

/* All have pushes for all: in three rounds each has had each. */
TEST(test_all_to_all_without_a_pause)
{
	struct fixture *f = open_fixture();
	bool had[GPUS][GPUS] = {{false}};
	for (uint32_t round = 0; round < GPUS - 1; round++) {
		uint64_t now_ns = BEGIN + round * LASTS;
		for (uint32_t source = 0; source < GPUS; source++) {
			uint32_t distance = zd_cuda_link_scheduler_begin(&f->scheduler[source], now_ns);
			uint32_t target = (source + distance) % GPUS;
			assert_in_range(distance, 1, GPUS - 1);
			assert_false(had[source][target]);
			assert_true(asks_for(f, source, target, now_ns));
			had[source][target] = true;
		}
	}
	free(f);
}

/* A GPU that has nothing to do goes with the others. */
TEST(test_who_joins_goes_with_the_others)
{
	struct fixture *f = open_fixture();
	assert_true(asks_for(f, 0, 2, BEGIN + GRACE));
	assert_int_equal(zd_cuda_link_scheduler_begin(&f->scheduler[1], BEGIN + GRACE), 2);
	assert_int_equal(zd_cuda_link_scheduler_begin(&f->scheduler[0], BEGIN + GRACE), 3);
	assert_int_equal(zd_cuda_link_scheduler_begin(&f->scheduler[0], BEGIN + 100 * LASTS), 2);
	free(f);
}

/* A place that is another one's is left to it for a moment. */
TEST(test_other_places_wait_for_a_moment)
{
	struct fixture *f = open_fixture();
	struct zd_cuda_task task = copy(2, MIB, MIB, LARGE);
	task.u.copy.seen_ns = BEGIN;
	assert_false(asks(f, 0, &task, BEGIN));
	assert_in_range(f->scheduler[0].again_ns, BEGIN + 1, BEGIN + GRACE);
	assert_true(asks(f, 0, &task, BEGIN + GRACE));
	free(f);
}

/* Into 0, where all are at distance 1, it is 3's place. 2 waits for longer if 3 will come before 2 would be
 * done. */
TEST(test_places_wait_for_those_who_come)
{
	static const struct {
		uint64_t busy_until_ns, offered_targets, waits_ns;
	} cases[] = {
	        {BEGIN + 50 * US, 1u << 0, 80 * US},   /* when it opens, and a third of a slot */
	        {BEGIN + 50 * US, 1u << 1, 21 * US},   /* it wants to go elsewhere */
	        {BEGIN + 1000 * US, 1u << 0, 21 * US}, /* it comes too late */
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fixture *f = open_fixture();
		struct zd_cuda_task task = copy(0, MIB, MIB, LARGE);
		f->devices.distance = 1;
		f->all[3].out_ns = cases[i].busy_until_ns;
		f->all[3].offered_targets = cases[i].offered_targets;
		task.u.copy.seen_ns = BEGIN;
		assert_false(asks(f, 2, &task, BEGIN + cases[i].waits_ns - 5 * US));
		assert_true(asks(f, 2, &task, BEGIN + cases[i].waits_ns));
		free(f);
	}
}

/* It is about to come, and pushes elsewhere again: a slot's time, and no longer. */
TEST(test_places_do_not_wait_for_ever)
{
	struct fixture *f = open_fixture();
	struct zd_cuda_task task = copy(0, MIB, MIB, LARGE);
	f->devices.distance = 1;
	f->all[3].offered_targets = 1u << 0;
	task.u.copy.seen_ns = BEGIN;
	for (uint64_t waited_ns = 0; waited_ns < LASTS; waited_ns += 10 * US) {
		f->all[3].out_ns = BEGIN + waited_ns + 50 * US;
		assert_false(asks(f, 2, &task, BEGIN + waited_ns));
	}
	assert_true(asks(f, 2, &task, BEGIN + LASTS));
	free(f);
}

/* All push into one: the next one's slot comes without a pause, whose it is not waits for the moment. */
TEST(test_one_behind_the_other_into_one)
{
	struct fixture *f = open_fixture();
	assert_true(asks_for(f, 0, 1, BEGIN));
	assert_false(asks_for(f, 2, 1, BEGIN + LASTS - AHEAD));
	assert_true(asks_for(f, 3, 1, BEGIN + LASTS - AHEAD));
	assert_true(asks_for(f, 2, 1, BEGIN + 2 * LASTS - AHEAD));
	free(f);
}

/* A slice in chunks, some of which are small and one of which comes later: one slot for all of a piece. */
TEST(test_what_goes_on_keeps_its_turn)
{
	struct fixture *f = open_fixture();
	struct zd_cuda_task chunks[] = {copy(1, 100 * LARGE, 200 * LARGE, LARGE),
	                                copy(1, 101 * LARGE, 201 * LARGE, MIB),
	                                copy(1, 101 * LARGE + MIB, 201 * LARGE + MIB, 20 * MIB),
	                                copy(1, 101 * LARGE + 21 * MIB, 201 * LARGE + 21 * MIB, 20 * MIB)};
	struct zd_cuda_task elsewhere = copy(1, 103 * LARGE, 201 * LARGE + 21 * MIB, LARGE);
	uint64_t lasts_ns = LASTS + zd_cuda_link_slot_ns(MIB) + zd_cuda_link_slot_ns(20 * MIB);
	STAILQ_INSERT_TAIL(&f->queue, &chunks[0], next);
	STAILQ_INSERT_TAIL(&f->queue, &chunks[1], next);
	assert_true(asks(f, 0, &chunks[0], BEGIN));
	assert_true(chunks[1].u.copy.has_link_slot);
	assert_true(asks(f, 0, &chunks[1], BEGIN));
	assert_true(asks(f, 0, &chunks[2], BEGIN));
	assert_false(asks(f, 0, &chunks[3], BEGIN)); /* 80 MiB */
	assert_false(asks(f, 0, &elsewhere, BEGIN));
	assert_false(asks_for(f, 0, 2, BEGIN + lasts_ns - BEFORE));
	assert_false(asks_for(f, 2, 1, BEGIN + lasts_ns - BEFORE));
	assert_true(asks(f, 0, &chunks[3], BEGIN + lasts_ns - AHEAD));
	free(f);
}

/* The same addresses, for another GPU: its link is not the one that was taken. */
TEST(test_what_goes_on_goes_to_the_same_gpu)
{
	struct fixture *f = open_fixture();
	struct zd_cuda_task first = copy(1, LARGE, LARGE, MIB * 8), second = copy(2, LARGE, LARGE, MIB * 8);
	second.u.copy.dst = second.u.copy.src = LARGE + 8 * MIB;
	assert_true(asks_for(f, 1, 2, BEGIN));
	assert_true(asks(f, 0, &first, BEGIN));
	assert_false(asks(f, 0, &second, BEGIN));
	free(f);
}

/* Pieces of one push follow each other without a pause, before another distance's slot. */
TEST(test_each_piece_takes_a_turn)
{
	struct fixture *f = open_fixture();
	struct zd_cuda_task large = copy(1, LARGE, LARGE, 3 * PIECE);
	uint64_t now_ns = BEGIN;
	for (uint32_t i = 0; i < 3; i++) {
		uint64_t passed_ns = i * (zd_cuda_link_slot_ns(PIECE) - 5 * US); /* no store between them */
		now_ns = BEGIN + passed_ns;
		if (i > 0)
			assert_false(asks(f, 0, &large, now_ns - GRACE));
		zd_cuda_link_scheduler_offer(&f->scheduler[0], &large);
		assert_int_equal(zd_cuda_link_scheduler_begin(&f->scheduler[0], now_ns), 1);
		assert_true(zd_cuda_link_scheduler_reserve(&f->scheduler[0], &large, now_ns));
		issue_piece(&large);
	}
	assert_int_equal(zd_cuda_link_scheduler_begin(&f->scheduler[0], now_ns), 2);
	free(f);
}

/* 0, 1 and 2 push in a ring, and every link is open when a piece of theirs ends: 3, which found none, has
 * more to push. */
TEST(test_a_ring_lets_the_fourth_in)
{
	struct fixture *f = open_fixture();
	struct zd_cuda_task ring = copy(1, LARGE, LARGE, 4 * PIECE),
	                    into_3 = copy(3, 9 * LARGE, 9 * LARGE, PIECE);
	struct zd_cuda_task fourth = copy(1, 2 * LARGE, 2 * LARGE, 6 * PIECE);
	uint64_t next_ns = BEGIN + zd_cuda_link_slot_ns(PIECE) - AHEAD;
	assert_true(asks(f, 0, &ring, BEGIN));
	issue_piece(&ring);
	assert_false(asks(f, 3, &fourth, BEGIN + GRACE));
	zd_cuda_link_scheduler_offer(&f->scheduler[0], &ring);
	zd_cuda_link_scheduler_offer(&f->scheduler[0], &into_3);
	assert_int_equal(zd_cuda_link_scheduler_begin(&f->scheduler[0], next_ns), 1);
	assert_false(zd_cuda_link_scheduler_reserve(&f->scheduler[0], &ring, next_ns));
	assert_true(asks(f, 3, &fourth, next_ns));
	assert_true(asks(f, 0, &into_3, next_ns + GRACE));
	free(f);
}

/* For a moment only, and not to one that has less to push, or has failed. */
TEST(test_the_way_is_not_left_for_long)
{
	uint64_t next_ns = BEGIN + zd_cuda_link_slot_ns(PIECE) - AHEAD;
	for (uint32_t i = 0; i < 3; i++) {
		struct fixture *f = open_fixture();
		struct zd_cuda_task ring = copy(1, LARGE, LARGE, 4 * PIECE);
		struct zd_cuda_task fourth = copy(1, 2 * LARGE, 2 * LARGE, (i == 1 ? 3 : 6) * PIECE);
		assert_true(asks(f, 0, &ring, BEGIN));
		issue_piece(&ring);
		assert_false(asks(f, 3, &fourth, BEGIN + GRACE));
		f->all[3].failed = i == 2;
		assert_int_equal(asks(f, 0, &ring, next_ns), i > 0);
		if (i == 0)
			assert_true(asks(f, 0, &ring, next_ns + GRACE));
		free(f);
	}
}

/* Together they are large. */
TEST(test_many_small_ones_that_go_on)
{
	struct fixture *f = open_fixture();
	struct zd_cuda_task halves[] = {copy(1, MIB, MIB, ZD_CUDA_LINK_SLOT_LEAST_BYTES),
	                                copy(1, MIB + ZD_CUDA_LINK_SLOT_LEAST_BYTES,
	                                     MIB + ZD_CUDA_LINK_SLOT_LEAST_BYTES,
	                                     ZD_CUDA_LINK_SLOT_LEAST_BYTES)};
	STAILQ_INSERT_TAIL(&f->queue, &halves[0], next);
	STAILQ_INSERT_TAIL(&f->queue, &halves[1], next);
	assert_true(asks_for(f, 3, 1, BEGIN + GRACE));
	assert_false(asks(f, 0, &halves[0], BEGIN + GRACE));
	assert_true(asks(f, 0, &halves[0], BEGIN + LASTS + 2 * GRACE));
	assert_true(halves[1].u.copy.has_link_slot);
	free(f);
}
