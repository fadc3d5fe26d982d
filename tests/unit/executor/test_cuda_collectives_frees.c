/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_collectives_frees.c - while an exchange waits for a rank, everything else of the daemon goes on:
 * what would free pinned memory, which waits for all kernels and keeps all other calls out, is left for
 * later. The driver's double does so, too.
 */
#include "tests/support/pause.h"
#include "tests/unit/executor/collective_scene.h"

#define FILLS 500
#define SPARE 9u /* a segment that nobody has */

/* Rank 0's exchange has begun on its GPU: one that is only launched keeps nobody waiting yet. */
static void await_exchange(const struct collective_scene *s)
{
	unsigned turns = 0;
	while (s->control->running() == 0)
		pause_for_others(&turns);
}

/* It is asked for something again and again. */
static void check_executor(struct collective_scene *s)
{
	unsigned turns = 0;
	for (int i = 0; i < FILLS; i++) {
		(void)wait_ok(s->nodes[0], give(s, 0, fill(0, at(1, 0, KIB))));
		pause_for_others(&turns);
	}
}

SCENE_TEST(test_sessions_end_beside_an_exchange, scene_open_both(s, 1, NULL), scene_close_both(s),
           "ZD_DOUBLE_FREES_WAIT=1")
{
	struct client client = open_session(s->nodes[0], SESSION);
	struct zd_command first = fill(0, at(1, 0, KIB));
	first.signal = (struct zd_signal){SESSION, 0, 1}; /* so that its page is the GPU's, too */
	(void)wait_ok(s->nodes[0], give(s, 0, first));
	uint64_t early = give_small(s, 0, GATHERS, 0);
	await_exchange(s);
	ops->session_close(s->nodes[0]->backend, SESSION, true);
	forget_session(&client);
	check_executor(s);
	/* The worker has come to the session by then. */
	assert_int_equal(create(s->nodes[0], 0, SPARE, MIB).completion.status, 0);
	assert_int_equal(times_completed(s->nodes[0], early), 0);
	uint64_t late = give_small(s, 1, GATHERS, 0);
	(void)wait_ok(s->nodes[0], early);
	(void)wait_ok(s->nodes[1], late);
}

SCENE_TEST(test_communicators_end_beside_an_exchange, scene_open_both(s, 1, NULL), scene_close(s),
           "ZD_DOUBLE_FREES_WAIT=1")
{
	uint64_t closing[NODES];
	uint64_t early = give_small(s, 0, GATHERS, 0);
	await_exchange(s);
	for (uint32_t rank = 0; rank < NODES; rank++)
		closing[rank] = close_comm(s, rank, REDUCTIONS, false);
	check_executor(s);
	assert_int_equal(times_completed(s->nodes[0], closing[0]), 0);
	uint64_t late = give_small(s, 1, GATHERS, 0);
	(void)wait_ok(s->nodes[0], early);
	(void)wait_ok(s->nodes[1], late);
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], closing[rank]);
	scene_disconnect(s, GATHERS);
}

/* It runs no kernels any more, whenever the others' let it go. */
SCENE_TEST(test_room_of_one_that_waits_to_end, scene_open_both(s, 1, NULL), scene_close_both(s),
           "ZD_DOUBLE_FREES_WAIT=1")
{
	enum { FIRST = 3, LAST = 5, NEXT };
	uint64_t closing[NODES], opening[NODES];
	unsigned turns = 0;
	for (uint64_t number = FIRST; number <= LAST; number++)
		scene_connect(s, number);
	uint64_t early = give_small(s, 0, GATHERS, 0);
	await_exchange(s);
	for (uint32_t rank = 0; rank < NODES; rank++) {
		closing[rank] = close_comm(s, rank, FIRST, false);
		opening[rank] = open_comm(s, rank, NEXT);
	}
	while (s->control->comms() != NODES * NEXT - 1) /* without the one whose node runs no kernel */
		pause_for_others(&turns);
	assert_int_equal(times_completed(s->nodes[0], closing[0]), 0);
	uint64_t late = give_small(s, 1, GATHERS, 0);
	(void)wait_ok(s->nodes[0], early);
	(void)wait_ok(s->nodes[1], late);
	for (uint32_t rank = 0; rank < NODES; rank++) {
		(void)wait_ok(s->nodes[rank], closing[rank]);
		(void)wait_ok(s->nodes[rank], opening[rank]);
	}
	for (uint64_t number = FIRST + 1; number <= NEXT; number++)
		scene_disconnect(s, number);
}

int main(int argc, char **argv)
{
	ID_PROGRAM(argc, argv);
	return case_run_all(argc, argv);
}
