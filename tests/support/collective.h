/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collective.h - what ranks send in each collective operation, and what they must have received: bytes that
 * tell rank, part and place; and for sums small whole numbers, which are exact in every dtype and order.
 */
#ifndef ZD_TESTS_COLLECTIVE_H
#define ZD_TESTS_COLLECTIVE_H

#include "executor/nccl/cuda_comm_call.h"

#define COLLECTIVE_KINDS 6 /* enum zd_cuda_comm_kind, from 1; an agreement's data are not the GPU's */

/* Of that kind, in bfloat16 or int16; the last rank is the root where there is one, and an exchange's parts
 * lie apart. */
struct zd_cuda_comm_call collective_call(int kind, uint64_t numel, uint32_t nranks);
bool collective_sums(enum zd_cuda_comm_kind kind);
uint64_t collective_send_bytes(const struct zd_cuda_comm_call *call, uint32_t nranks);
uint64_t collective_receive_bytes(const struct zd_cuda_comm_call *call, uint32_t nranks);

/* Fills `to` with what `rank` sends. */
void collective_fill(const struct zd_cuda_comm_call *call, uint32_t nranks, uint32_t rank, void *to);
/* Of what `rank` has received, how many numbers or bytes are wrong. */
uint64_t collective_count_wrong(const struct zd_cuda_comm_call *call, uint32_t nranks, uint32_t rank,
                                const void *received);

#endif
