/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_collectives_room.c - as many communicators as a GPU has room for, and those that wait for it;
 * over the doubles of the driver, whose GPUs have room for four of a role, and of NCCL. */
#include "tests/unit/executor/collective_scene.h"

#define FULL 4u

static const uint64_t numbers[FULL] = {1, 3, 4, 5}; /* not that of reductions */
#define NEXT 6u

static void expect_failed(struct collective_scene *s, uint32_t rank, uint64_t op, int status,
                          const char *text)
{
	struct record record = wait_op(node_of(s, rank), op);
	assert_int_equal(record.completion.status, status);
	expect_text(record.completion.error, text);
}

static void open_full(struct collective_scene *s, const struct zd_backend_config *settings)
{
	scene_open(s, 1, settings);
	scene_make_ids(s);
	for (uint32_t i = 0; i < FULL; i++)
		scene_connect(s, numbers[i]);
}

static void close_full(struct collective_scene *s, uint32_t first)
{
	for (uint32_t i = first; i < FULL; i++)
		scene_disconnect(s, numbers[i]);
	scene_close(s);
}

/* One more would wait for the others' kernels, and other ranks' for it: it is refused at once. Reductions
 * have room of their own. */
SCENE_TEST(test_one_more_is_refused, open_full(s, NULL), close_full(s, 1))
{
	expect_failed(s, 0, open_comm(s, 0, NEXT), ZEROD_E_LIMIT,
	              "has room for the kernels of 4 communicators at once, and all are in use");
	scene_connect(s, REDUCTIONS);
	scene_disconnect(s, REDUCTIONS);
	scene_disconnect(s, numbers[0]);
	scene_connect(s, NEXT);
	scene_disconnect(s, NEXT);
}

/* A job that begins again at once: what is left of its former communicators takes their room until it is
 * gone. */
SCENE_TEST(test_room_comes_with_an_end, open_full(s, NULL), close_full(s, 1))
{
	uint64_t closing[NODES], opening[NODES], after;
	s->control->hold_aborts(true);
	for (uint32_t rank = 0; rank < NODES; rank++) {
		closing[rank] = close_comm(s, rank, numbers[0], true);
		opening[rank] = open_comm(s, rank, NEXT);
	}
	wait_for_thread(s, 0);
	assert_int_equal(times_completed(s->nodes[0], opening[0]), 0);
	after = open_comm(s, 0, NEXT + 1);
	wait_for_thread(s, 0);
	assert_int_equal(times_completed(s->nodes[0], after), 0);
	s->control->hold_aborts(false);
	for (uint32_t rank = 0; rank < NODES; rank++) {
		(void)wait_ok(s->nodes[rank], closing[rank]);
		(void)wait_ok(s->nodes[rank], opening[rank]);
	}
	expect_failed(s, 0, after, ZEROD_E_LIMIT, "room for the kernels of 4 communicators");
	scene_disconnect(s, NEXT);
}

/* Its group has ended meanwhile, or the daemon does. */
SCENE_TEST(test_close_while_waiting_for_room, open_full(s, NULL), scene_close(s))
{
	uint64_t closing, opening[2];
	s->control->hold_aborts(true);
	closing = close_comm(s, 0, numbers[0], true);
	for (uint32_t i = 0; i < 2; i++)
		opening[i] = open_comm(s, 0, NEXT + i);
	(void)wait_ok(s->nodes[0], close_comm(s, 0, NEXT, true));
	expect_failed(s, 0, opening[0], ZEROD_E_ABORTED,
	              "group 'world': its communicator was closed before it was created");
	wait_for_thread(s, 0);
	s->control->hold_aborts(false);
	close_backend(s->nodes[0]);
	(void)wait_ok(s->nodes[0], closing);
	(void)wait_op(s->nodes[0], opening[1]); /* it may have got its room */
	close_backend(s->nodes[1]);
}

SCENE_TEST(test_room_that_does_not_come, open_full(s, &impatient), close_full(s, 1))
{
	uint64_t closing[NODES];
	s->control->hold_aborts(true);
	for (uint32_t rank = 0; rank < NODES; rank++)
		closing[rank] = close_comm(s, rank, numbers[0], true);
	expect_failed(s, 0, open_comm(s, 0, NEXT), ZEROD_E_PEER_LOST,
	              "group 'world': earlier communicators have not ended in time");
	s->control->hold_aborts(false);
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], closing[rank]);
}

int main(int argc, char **argv)
{
	ID_PROGRAM(argc, argv);
	return case_run_all(argc, argv);
}
