/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_gate.c - what frees pinned memory and kernels of communicators that run are kept apart. The
 * driver's double waits as the driver does: whoever frees beside a kernel stops all other calls, and the test
 * hangs.
 */
#include "tests/support/pause.h"
#include "tests/unit/executor/comm_scene.h"

#define LOOKS 2000u /* at what must not happen */

/* A second communicator of the two ranks, whose rank 0 has launched, and rank 1 has not come. */
struct pair {
	struct comm_scene s;
	struct zd_cuda_comm *other[2];
	struct comm_op ops[2];
};

static void give_other(struct pair *p, uint32_t i)
{
	struct zd_err err;

	p->ops[i] = comm_op(&p->s, i, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 100));
	comm_must(zd_cuda_comm_queue_give(&p->s.ranks[i].queue, p->other[i], &p->ops[i].op, &err), &err);
}

static void open_pair(struct pair *p)
{
	struct zd_nccl_id id;

	*p = (struct pair){0};
	comm_open(&p->s, 2);
	comm_connect(&p->s, false);
	comm_make_id(&p->s, &id);
	for (uint32_t i = 0; i < 2; i++) {
		struct zd_cuda_comm_config config = comm_config(&p->s, i);

		config.id = id;
		p->other[i] = comm_add(&p->s, i, &config);
	}
	for (uint32_t i = 0; i < 2; i++)
		COMM_AWAIT(&p->s, p->other[i]->state == ZD_CUDA_COMM_READY);
}

static void close_pair(struct pair *p)
{
	for (uint32_t i = 0; i < 2; i++) {
		zd_cuda_comm_end(p->other[i]);
		comm_remove(&p->s, i, p->other[i]);
	}
	comm_close(&p->s);
}

/* One of the other pair's runs and waits for its peer: the first pair's ends, in order, wait for that. */
static void end_beside_a_kernel(struct pair *p)
{
	give_other(p, 0);
	COMM_AWAIT(&p->s, p->s.control->kernels() > 0);
	for (uint32_t i = 0; i < 2; i++)
		zd_cuda_comm_end(p->s.ranks[i].comm);
}

TEST(test_an_end_waits_for_kernels)
{
	unsigned turns = 0;
	struct pair p;

	open_pair(&p);
	end_beside_a_kernel(&p);
	while (turns < LOOKS) {
		comm_poll(&p.s);
		pause_for_others(&turns);
		for (uint32_t i = 0; i < 2; i++)
			assert_false(zd_cuda_comm_is_over(p.s.ranks[i].comm));
	}
	give_other(&p, 1);
	for (uint32_t i = 0; i < 2; i++) {
		COMM_AWAIT(&p.s, p.ops[i].taken);
		comm_remove(&p.s, i, p.s.ranks[i].comm);
		p.s.ranks[i].comm = NULL;
	}
	close_pair(&p);
}

TEST(test_launches_wait_for_who_frees)
{
	struct pair p;

	open_pair(&p);
	assert_true(zd_cuda_gate_close(&p.s.local_ranks.gate));
	for (uint32_t i = 0; i < 2; i++)
		give_other(&p, i);
	comm_poll(&p.s);
	comm_poll(&p.s);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(p.ops[i].op.phase, ZD_CUDA_COMM_WAITING);
	zd_cuda_gate_open(&p.s.local_ranks.gate);
	for (uint32_t i = 0; i < 2; i++)
		COMM_AWAIT(&p.s, p.ops[i].taken);
	close_pair(&p);
}

/* The other ranks are to learn of it, and kernels of its own would never end. */
TEST(test_an_abort_does_not_wait)
{
	struct pair p;

	open_pair(&p);
	end_beside_a_kernel(&p);
	zd_cuda_comm_abort(p.other[0], "the test says so");
	COMM_AWAIT(&p.s, p.ops[0].taken);
	zd_cuda_comm_abort(p.other[1], "its peer was");
	for (uint32_t i = 0; i < 2; i++) {
		comm_remove(&p.s, i, p.other[i]);
		comm_remove(&p.s, i, p.s.ranks[i].comm);
		p.s.ranks[i].comm = NULL;
		comm_enter(&p.s, i);
	}
	comm_close(&p.s);
}

TEST(test_both_sides)
{
	struct zd_cuda_gate gate;

	zd_cuda_gate_init(&gate);
	assert_true(zd_cuda_gate_enter(&gate) && zd_cuda_gate_enter(&gate));
	zd_cuda_gate_leave(&gate);
	assert_false(zd_cuda_gate_close(&gate));
	zd_cuda_gate_leave(&gate);
	assert_true(zd_cuda_gate_close(&gate) && zd_cuda_gate_close(&gate));
	zd_cuda_gate_open(&gate);
	assert_false(zd_cuda_gate_enter(&gate));
	zd_cuda_gate_open(&gate);
	assert_true(zd_cuda_gate_enter(&gate));
	zd_cuda_gate_leave(&gate);
	zd_cuda_gate_deinit(&gate);
}

int main(int argc, char **argv)
{
	(void)argc;
	(void)setenv("ZD_DOUBLE_FREES_WAIT", "1", 1);
	use_double(argv);
	return test_run(NULL, NULL);
}
