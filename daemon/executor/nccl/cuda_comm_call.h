/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_call.h - the description of a collective operation, and the comparison between ranks.
 *
 * In checking mode ranks exchange a description of each operation before they launch it. All descriptions
 * have the same size, so that their own exchange always matches. They are compared byte by byte, and every
 * rank that finds a mismatch produces the same error text. All nodes of a group have the same byte order.
 */
#ifndef ZD_EXECUTOR_CUDA_COMM_CALL_H
#define ZD_EXECUTOR_CUDA_COMM_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <zerod.h>

#include "executor/nccl/cuda_comm_local_ranks.h"

enum zd_cuda_comm_kind {
	ZD_CUDA_COMM_ALL_GATHER = 1,
	ZD_CUDA_COMM_REDUCE_SCATTER,
	ZD_CUDA_COMM_ALL_REDUCE,
	ZD_CUDA_COMM_BROADCAST,
	ZD_CUDA_COMM_ALL_TO_ALL,
	ZD_CUDA_COMM_EXCHANGE, /* all_to_all of blocks with strides; a rank's own block is not copied */
	ZD_CUDA_COMM_AGREE,    /* all_gather of values in CPU memory */
};

#define ZD_CUDA_COMM_WHAT        64u /* including the terminating zero */
#define ZD_CUDA_COMM_VALUE_BYTES 128u

/* Sums need float32, float16 or bfloat16; the other operations accept any dtype. */
struct zd_cuda_comm_call {
	enum zd_cuda_comm_kind kind;
	enum zerod_dtype dtype;
	/* The elements that a rank sends to each other one (all_gather, all_to_all, exchange), receives
	 * (reduce_scatter), or has (the others). An agreement has at most ZD_CUDA_COMM_VALUE_BYTES. */
	uint64_t numel;
	uint32_t root;                        /* of a broadcast; 0 otherwise */
	uint64_t send_stride, receive_stride; /* of an exchange, in bytes; 0 otherwise */
	const char *what; /* for texts, the same on all ranks, or NULL; cut to ZD_CUDA_COMM_WHAT - 1 bytes */
};

/* Checks the call's arguments. Errors: INVALID, with the invalid argument in the text. */
int zd_cuda_comm_call_check(const struct zd_cuda_comm_call *call, uint32_t nranks, struct zd_err *err)
        __attribute__((warn_unused_result));

#define ZD_CUDA_COMM_TEXT 192
/* Writes "17th operation all_gather of 1048576 bfloat16 (gather of 'h.3')": `number` counts the operations of
 * the rank. Returns `text`. */
const char *zd_cuda_comm_call_text(const struct zd_cuda_comm_call *call, uint64_t number,
                                   char text[ZD_CUDA_COMM_TEXT]);

struct zd_cuda_comm_description {
	uint32_t magic, kind;
	uint64_t number, numel, group; /* a hash of the group's name */
	uint32_t dtype, root;
	uint64_t zero[3];
	char what[ZD_CUDA_COMM_WHAT]; /* padded with zeros */
};

void zd_cuda_comm_describe(const struct zd_cuda_comm_call *call, uint64_t number, const char *group,
                           struct zd_cuda_comm_description *description);
/* Returns whether the rank has written the description of its operation with that number. */
bool zd_cuda_comm_is_described(const struct zd_cuda_comm_description *description, uint64_t number);
/* Returns 0 if the descriptions of all ranks are equal. Errors: MISMATCH; the text names rank 0, the first
 * rank that differs from it, and both descriptions. */
int zd_cuda_comm_compare(const struct zd_cuda_comm_description *all, const struct zd_cuda_comm_rank *self,
                         struct zd_err *err) __attribute__((warn_unused_result));

#endif
