/* SPDX-License-Identifier: Apache-2.0 */
/* comm_data.h - operations of a scene's ranks, with what they must have received. */
#ifndef ZD_TEST_COMM_DATA_H
#define ZD_TEST_COMM_DATA_H

#include "tests/support/collective.h"
#include "tests/unit/executor/comm_scene.h"

/* Every rank's memory is as before the operation; `nranks` is the group's size, which may be more than are in
 * the scene. */
static inline void comm_prepare(struct comm_scene *s, const struct zd_cuda_comm_call *call, uint32_t nranks)
{
	uint8_t *bytes = zd_calloc(1, COMM_BYTES);

	for (uint32_t i = 0; i < s->nranks; i++) {
		memset(bytes, 0xee, COMM_BYTES);
		comm_write(s, i, s->ranks[i].receive, bytes, COMM_BYTES);
		collective_fill(call, nranks, s->first + i, bytes);
		comm_write(s, i, s->ranks[i].send, bytes, COMM_BYTES);
	}
	free(bytes);
}

/* The received bytes are right, and the bytes behind them untouched. */
static inline void comm_expect_data(struct comm_scene *s, const struct zd_cuda_comm_call *call,
                                    uint32_t nranks)
{
	uint64_t used = collective_receive_bytes(call, nranks);
	uint8_t *bytes = zd_calloc(1, COMM_BYTES);

	for (uint32_t i = 0; i < s->nranks; i++) {
		comm_read(s, i, bytes, s->ranks[i].receive, COMM_BYTES);
		assert_int_equal(collective_count_wrong(call, nranks, s->first + i, bytes), 0);
		assert_int_equal(bytes[used], 0xee);
	}
	free(bytes);
}

/* All ranks of the scene run it; they have taken it when this returns. */
static inline void comm_run(struct comm_scene *s, const struct zd_cuda_comm_call *call,
                            struct comm_op ops[COMM_RANKS])
{
	for (uint32_t i = 0; i < s->nranks; i++) {
		ops[i] = comm_op(s, i, *call);
		comm_give(s, i, &ops[i]);
	}
	for (uint32_t i = 0; i < s->nranks; i++)
		COMM_AWAIT(s, ops[i].taken);
}

static inline void comm_expect_right(struct comm_scene *s, const struct zd_cuda_comm_call *call,
                                     uint32_t nranks)
{
	struct comm_op ops[COMM_RANKS];

	comm_prepare(s, call, nranks);
	comm_run(s, call, ops);
	for (uint32_t i = 0; i < s->nranks; i++)
		comm_must(ops[i].op.err.status, &ops[i].op.err);
	comm_expect_data(s, call, nranks);
}

#endif
