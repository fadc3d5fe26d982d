/* SPDX-License-Identifier: Apache-2.0 */
/* comm_data.h - what ranks send in each operation, and what they must have received. */
#ifndef ZD_TEST_COMM_DATA_H
#define ZD_TEST_COMM_DATA_H

#include "base/dtype.h"
#include "tests/unit/backend/comm_scene.h"

#define COMM_KINDS 5

/* Sums are of small whole numbers, which every dtype has. */
static inline void comm_set_number(void *to, enum zerod_dtype dtype, uint64_t index, float value)
{
	uint16_t half = dtype == ZEROD_FLOAT16 ? zd_f32_to_f16(value) : zd_f32_to_bf16(value);

	if (dtype == ZEROD_FLOAT32)
		memcpy((char *)to + index * 4, &value, 4);
	else
		memcpy((char *)to + index * 2, &half, 2);
}

static inline float comm_get_number(const void *from, enum zerod_dtype dtype, uint64_t index)
{
	uint16_t half;
	float value;

	if (dtype == ZEROD_FLOAT32) {
		memcpy(&value, (const char *)from + index * 4, 4);
		return value;
	}
	memcpy(&half, (const char *)from + index * 2, 2);
	return dtype == ZEROD_FLOAT16 ? zd_f16_to_f32(half) : zd_bf16_to_f32(half);
}

static inline bool comm_sums(enum zd_cuda_comm_kind kind)
{
	return kind == ZD_CUDA_COMM_REDUCE_SCATTER || kind == ZD_CUDA_COMM_ALL_REDUCE;
}

/* Elements that a rank sends, or receives. */
static inline uint64_t comm_sends(const struct zd_cuda_comm_call *call, uint32_t nranks)
{
	bool to_each = call->kind == ZD_CUDA_COMM_REDUCE_SCATTER || call->kind == ZD_CUDA_COMM_ALL_TO_ALL;

	return call->numel * (to_each ? nranks : 1);
}

static inline uint64_t comm_receives(const struct zd_cuda_comm_call *call, uint32_t nranks)
{
	bool of_each = call->kind == ZD_CUDA_COMM_ALL_GATHER || call->kind == ZD_CUDA_COMM_ALL_TO_ALL;

	return call->numel * (of_each ? nranks : 1);
}

/* Fills `to` with what `rank` sends. */
static inline void comm_fill(const struct zd_cuda_comm_call *call, uint32_t nranks, uint32_t rank, void *to)
{
	uint64_t each = zerod_dtype_bytes(call->dtype) * call->numel;

	for (uint64_t i = 0; comm_sums(call->kind) && i < comm_sends(call, nranks); i++)
		comm_set_number(to, call->dtype, i, comm_number(rank, i));
	for (uint64_t i = 0;
	     !comm_sums(call->kind) && i < zerod_dtype_bytes(call->dtype) * comm_sends(call, nranks); i++)
		((uint8_t *)to)[i] = comm_byte(rank, each ? (uint32_t)(i / each) : 0, each ? i % each : 0);
}

static inline float comm_sum(uint32_t nranks, uint64_t index)
{
	float sum = 0;

	for (uint32_t rank = 0; rank < nranks; rank++)
		sum += comm_number(rank, index);
	return sum;
}

static inline bool comm_is_number(const struct zd_cuda_comm_call *call, uint32_t nranks, uint32_t rank,
                                  const void *got, uint64_t index)
{
	uint64_t before = call->kind == ZD_CUDA_COMM_REDUCE_SCATTER ? rank * call->numel : 0;

	return comm_get_number(got, call->dtype, index) == comm_sum(nranks, before + index);
}

static inline bool comm_is_byte(const struct zd_cuda_comm_call *call, uint32_t rank, const uint8_t *got,
                                uint64_t index)
{
	uint64_t each = zerod_dtype_bytes(call->dtype) * call->numel;
	uint32_t part = (uint32_t)(index / each);

	if (call->kind == ZD_CUDA_COMM_ALL_GATHER)
		return got[index] == comm_byte(part, 0, index % each);
	if (call->kind == ZD_CUDA_COMM_BROADCAST)
		return got[index] == comm_byte(call->root, 0, index);
	return got[index] == comm_byte(part, rank, index % each);
}

/* How many elements of what `rank` received, or bytes of what was only moved, are wrong. */
static inline uint64_t comm_count_wrong(const struct zd_cuda_comm_call *call, uint32_t nranks, uint32_t rank,
                                        const void *got)
{
	uint64_t count = comm_receives(call, nranks), wrong = 0;

	for (uint64_t i = 0; comm_sums(call->kind) && i < count; i++)
		wrong += !comm_is_number(call, nranks, rank, got, i);
	for (uint64_t i = 0; !comm_sums(call->kind) && i < count * zerod_dtype_bytes(call->dtype); i++)
		wrong += !comm_is_byte(call, rank, got, i);
	return wrong;
}

/* ---- Of a scene ---------------------------------------------------------------------------------------------------- */

/* Every rank's memory is as before the operation; `nranks` is the group's size, which may be more than are in the scene. */
static inline void comm_prepare(struct comm_scene *s, const struct zd_cuda_comm_call *call, uint32_t nranks)
{
	uint8_t *bytes = zd_calloc(1, COMM_BYTES);

	for (uint32_t i = 0; i < s->nranks; i++) {
		memset(bytes, 0xee, COMM_BYTES);
		comm_write(s, i, s->ranks[i].receive, bytes, COMM_BYTES);
		comm_fill(call, nranks, s->first + i, bytes);
		comm_write(s, i, s->ranks[i].send, bytes, COMM_BYTES);
	}
	free(bytes);
}

/* What came is right, and nothing lies behind it. */
static inline void comm_expect_data(struct comm_scene *s, const struct zd_cuda_comm_call *call,
                                    uint32_t nranks)
{
	uint64_t used = comm_receives(call, nranks) * zerod_dtype_bytes(call->dtype);
	uint8_t *bytes = zd_calloc(1, COMM_BYTES);

	for (uint32_t i = 0; i < s->nranks; i++) {
		comm_read(s, i, bytes, s->ranks[i].receive, COMM_BYTES);
		assert_int_equal(comm_count_wrong(call, nranks, s->first + i, bytes), 0);
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

/* Each kind once, with a root that is not rank 0 where there is one. */
static inline struct zd_cuda_comm_call comm_call(int kind, uint64_t numel, uint32_t nranks)
{
	return (struct zd_cuda_comm_call){
	        .kind = (enum zd_cuda_comm_kind)kind,
	        .dtype = comm_sums((enum zd_cuda_comm_kind)kind) ? ZEROD_BFLOAT16 : ZEROD_INT16,
	        .numel = numel,
	        .root = kind == ZD_CUDA_COMM_BROADCAST ? nranks - 1 : 0,
	};
}

#endif
