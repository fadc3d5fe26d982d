/* SPDX-License-Identifier: Apache-2.0 */
/* collective.c - what ranks send in each collective operation, and what they must have received. */
#include "tests/support/collective.h"

#include <string.h>

#include "base/dtype.h"

#define SEND_GAP    48u
#define RECEIVE_GAP 112u

struct zd_cuda_comm_call collective_call(int kind, uint64_t numel, uint32_t nranks)
{
	bool apart = kind == ZD_CUDA_COMM_EXCHANGE;

	return (struct zd_cuda_comm_call){
	        .kind = (enum zd_cuda_comm_kind)kind,
	        .dtype = collective_sums((enum zd_cuda_comm_kind)kind) ? ZEROD_BFLOAT16 : ZEROD_INT16,
	        .numel = numel,
	        .root = kind == ZD_CUDA_COMM_BROADCAST ? nranks - 1 : 0,
	        .send_stride = apart ? numel * sizeof(int16_t) + SEND_GAP : 0,
	        .receive_stride = apart ? numel * sizeof(int16_t) + RECEIVE_GAP : 0,
	};
}

bool collective_sums(enum zd_cuda_comm_kind kind)
{
	return kind == ZD_CUDA_COMM_REDUCE_SCATTER || kind == ZD_CUDA_COMM_ALL_REDUCE;
}

static uint64_t part_bytes(const struct zd_cuda_comm_call *call)
{
	return call->numel * zerod_dtype_bytes(call->dtype);
}

/* From one rank's part to the next one's. */
static uint64_t send_stride(const struct zd_cuda_comm_call *call)
{
	return call->kind == ZD_CUDA_COMM_EXCHANGE ? call->send_stride : part_bytes(call);
}

static uint64_t receive_stride(const struct zd_cuda_comm_call *call)
{
	return call->kind == ZD_CUDA_COMM_EXCHANGE ? call->receive_stride : part_bytes(call);
}

uint64_t collective_send_bytes(const struct zd_cuda_comm_call *call, uint32_t nranks)
{
	bool to_each = call->kind == ZD_CUDA_COMM_REDUCE_SCATTER || call->kind == ZD_CUDA_COMM_ALL_TO_ALL ||
	               call->kind == ZD_CUDA_COMM_EXCHANGE;

	return send_stride(call) * (to_each ? nranks : 1);
}

uint64_t collective_receive_bytes(const struct zd_cuda_comm_call *call, uint32_t nranks)
{
	bool of_each = call->kind == ZD_CUDA_COMM_ALL_GATHER || call->kind == ZD_CUDA_COMM_ALL_TO_ALL ||
	               call->kind == ZD_CUDA_COMM_EXCHANGE;

	return receive_stride(call) * (of_each ? nranks : 1);
}

/* ---- Bytes --------------------------------------------------------------------------------------------- */

/* The byte of the pattern that rank `from` sends to rank `to`. */
static uint8_t byte_at(uint32_t from, uint32_t to, uint64_t index)
{
	return (uint8_t)(from * 7 + to * 31 + index * 3 + (index >> 8) + 1);
}

static void fill_bytes(const struct zd_cuda_comm_call *call, uint32_t nranks, uint32_t rank, uint8_t *to)
{
	uint64_t each = send_stride(call), bytes = collective_send_bytes(call, nranks);

	for (uint64_t first = 0; first < bytes; first += each)
		for (uint64_t i = 0; i < each; i++)
			to[first + i] = byte_at(rank, (uint32_t)(first / each), i);
}

static uint8_t expected_byte(const struct zd_cuda_comm_call *call, uint32_t rank, uint64_t part,
                             uint64_t index)
{
	if (call->kind == ZD_CUDA_COMM_ALL_GATHER)
		return byte_at((uint32_t)part, 0, index);
	if (call->kind == ZD_CUDA_COMM_BROADCAST)
		return byte_at(call->root, 0, index);
	return byte_at((uint32_t)part, rank, index);
}

static uint64_t count_wrong_bytes(const struct zd_cuda_comm_call *call, uint32_t nranks, uint32_t rank,
                                  const uint8_t *received)
{
	uint64_t each = receive_stride(call), bytes = collective_receive_bytes(call, nranks), wrong = 0;
	uint64_t part = part_bytes(call);
	bool skips_own = call->kind == ZD_CUDA_COMM_EXCHANGE;

	for (uint64_t from = 0; from * each < bytes; from++)
		for (uint64_t i = 0; i < part && !(skips_own && from == rank); i++)
			wrong += received[from * each + i] != expected_byte(call, rank, from, i);
	return wrong;
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

static float number_at(uint32_t rank, uint64_t index)
{
	return (float)(rank + 1 + index % 13);
}

static void set_number(void *to, enum zerod_dtype dtype, uint64_t index, float value)
{
	uint16_t half = dtype == ZEROD_FLOAT16 ? zd_f32_to_f16(value) : zd_f32_to_bf16(value);

	if (dtype == ZEROD_FLOAT32)
		memcpy((char *)to + index * sizeof(value), &value, sizeof(value));
	else
		memcpy((char *)to + index * sizeof(half), &half, sizeof(half));
}

static float get_number(const void *from, enum zerod_dtype dtype, uint64_t index)
{
	uint16_t half;
	float value;

	if (dtype == ZEROD_FLOAT32) {
		memcpy(&value, (const char *)from + index * sizeof(value), sizeof(value));
		return value;
	}
	memcpy(&half, (const char *)from + index * sizeof(half), sizeof(half));
	return dtype == ZEROD_FLOAT16 ? zd_f16_to_f32(half) : zd_bf16_to_f32(half);
}

static uint64_t count_wrong_sums(const struct zd_cuda_comm_call *call, uint32_t nranks, uint32_t rank,
                                 const void *received)
{
	uint64_t before = call->kind == ZD_CUDA_COMM_REDUCE_SCATTER ? rank * call->numel : 0, wrong = 0;

	for (uint64_t i = 0; i < call->numel; i++) {
		float sum = 0;

		for (uint32_t from = 0; from < nranks; from++)
			sum += number_at(from, before + i);
		wrong += get_number(received, call->dtype, i) != sum;
	}
	return wrong;
}

/* ---- Both ---------------------------------------------------------------------------------------------- */

void collective_fill(const struct zd_cuda_comm_call *call, uint32_t nranks, uint32_t rank, void *to)
{
	uint64_t count = collective_send_bytes(call, nranks) / zerod_dtype_bytes(call->dtype);

	if (!collective_sums(call->kind)) {
		fill_bytes(call, nranks, rank, to);
		return;
	}
	for (uint64_t i = 0; i < count; i++)
		set_number(to, call->dtype, i, number_at(rank, i));
}

uint64_t collective_count_wrong(const struct zd_cuda_comm_call *call, uint32_t nranks, uint32_t rank,
                                const void *received)
{
	return collective_sums(call->kind) ? count_wrong_sums(call, nranks, rank, received)
	                                   : count_wrong_bytes(call, nranks, rank, received);
}
