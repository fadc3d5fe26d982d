/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_call.h - what a collective operation is, and whether all ranks mean the same one.
 *
 * In checking mode ranks exchange a description of what they are about to launch. It has the same size
 * whatever it describes, so that the exchange itself always matches; it is made to be compared byte by byte,
 * and every rank that compares comes to the same words. Nodes of one group have one byte order.
 */
#ifndef ZD_BACKEND_CUDA_COMM_CALL_H
#define ZD_BACKEND_CUDA_COMM_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <zerod.h>

#include "backend/cuda_comm_roster.h"

struct zd_err;

enum zd_cuda_comm_kind {
	ZD_CUDA_COMM_ALL_GATHER = 1,
	ZD_CUDA_COMM_REDUCE_SCATTER,
	ZD_CUDA_COMM_ALL_REDUCE,
	ZD_CUDA_COMM_BROADCAST,
	ZD_CUDA_COMM_ALL_TO_ALL,
	ZD_CUDA_COMM_EXCHANGE, /* all_to_all of parts that lie apart; a rank's own part is left alone */
	ZD_CUDA_COMM_AGREE,    /* all_gather of values that the CPU has and gets */
};

#define ZD_CUDA_COMM_WHAT        64u /* with the zero */
#define ZD_CUDA_COMM_VALUE_BYTES 128u

/* Sums are of float32, float16 or bfloat16; all else takes any dtype. */
struct zd_cuda_comm_call {
	enum zd_cuda_comm_kind kind;
	enum zerod_dtype dtype;
	/* Of what a rank gives to each (all_gather, all_to_all, exchange), gets (reduce_scatter), or has; of
	 * an agreement at most ZD_CUDA_COMM_VALUE_BYTES. */
	uint64_t numel;
	uint32_t root;                        /* of a broadcast; else 0 */
	uint64_t send_stride, receive_stride; /* of an exchange, in bytes; else 0 */
	const char *what; /* in words, the same on all ranks, or NULL: ZD_CUDA_COMM_WHAT - 1 bytes count */
};

/* Errors: INVALID, which names what is wrong. */
int zd_cuda_comm_call_check(const struct zd_cuda_comm_call *call, uint32_t nranks, struct zd_err *err)
        __attribute__((warn_unused_result));

#define ZD_CUDA_COMM_TEXT 192
/* "17th operation all_gather of 1048576 bfloat16 (gather of 'h.3')": the Nth of its rank, and what it is for.
 * Returns `text`. */
const char *zd_cuda_comm_call_text(const struct zd_cuda_comm_call *call, uint64_t number,
                                   char text[ZD_CUDA_COMM_TEXT]);

struct zd_cuda_comm_description {
	uint32_t magic, kind;
	uint64_t number, numel, group; /* a hash of the group's name */
	uint32_t dtype, root;
	uint64_t zero[3];
	char what[ZD_CUDA_COMM_WHAT]; /* zeros behind it */
};

void zd_cuda_comm_describe(const struct zd_cuda_comm_call *call, uint64_t number, const char *group,
                           struct zd_cuda_comm_description *description);
/* Has this rank described its operation of that number. */
bool zd_cuda_comm_is_described(const struct zd_cuda_comm_description *description, uint64_t number);
/* 0 if those of all ranks of the communicator are the same. Errors: MISMATCH, with the first rank that
 * differs from its first, and both descriptions. */
int zd_cuda_comm_compare(const struct zd_cuda_comm_description *all, const struct zd_cuda_comm_rank *self,
                         struct zd_err *err) __attribute__((warn_unused_result));

#endif
