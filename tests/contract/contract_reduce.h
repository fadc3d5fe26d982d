/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contract_reduce.h - gradients of known values, and the sums that they must come to.
 *
 * Element i of rank r's gradient of a unit is a small integer times a factor, so that sums are exact in every
 * dtype and order; tests of rounding bring their own.
 */
#ifndef ZD_TESTS_CONTRACT_REDUCE_H
#define ZD_TESTS_CONTRACT_REDUCE_H

#include "contract.h"

/* Of the calling rank. */
void contract_backward(struct contract_rank *rank, uint32_t stage, bool boundary);
void contract_backward_end(struct contract_rank *rank);
/* A bucket of float32. */
zerod_bucket *contract_bucket(struct contract_rank *rank, uint64_t slot_bytes, uint32_t nslots);
zerod_bucket *contract_bucket_as(struct contract_rank *rank, enum zerod_dtype dtype, uint64_t slot_bytes,
                                 uint32_t nslots);

float contract_gradient(uint32_t rank, uint64_t i);
/* Elements [first, first + numel) of the rank's gradient into an entry of a float32 bucket, as the stream
 * comes to it. */
void contract_write_gradient(struct contract_rank *rank, zerod_stream *stream,
                             const struct zerod_entry *entry, uint64_t first, uint64_t numel, float factor);
/* Reserve, write all of it, submit: by the calling thread. `options` may be NULL. */
void contract_reduce(struct contract_rank *rank, zerod_bucket *bucket, const struct contract_unit *unit,
                     float factor, const struct zerod_reduce_options *options);

struct zerod_step_info contract_step(struct contract_rank *rank);
void contract_step_end(struct contract_rank *rank);
/* Between step and step_end: the rank's float32 target is `factor` times the sum of the gradients of
 * `contributors` (bit mask of ranks), and zero behind its real elements. */
void contract_expect_target(struct contract_rank *rank, const struct contract_unit *unit,
                            uint32_t contributors, float factor);
/* The target's elements as floats: shard_numel of them, to be freed. */
float *contract_target(struct contract_rank *rank, const struct contract_unit *unit,
                       struct zerod_target *target);
/* Squared norm of `factor` times the sum over the contributors, over the unit's real elements. */
double contract_norm_squared(const struct contract_unit *unit, uint32_t contributors, float factor);

struct contract_sum {
	const struct contract_unit *unit;
	uint32_t contributors;
	float factor;
};
/* Every rank takes the step and finds these sums in its targets, their norm, and no overflow. */
void contract_expect_step(struct contract *c, const struct contract_sum *sums, uint32_t count);
/* contract_backward() or contract_backward_end() of all ranks. */
void contract_backward_all(struct contract *c, uint32_t stage, bool boundary);
void contract_backward_end_all(struct contract *c);

#define CONTRACT_ALL(c) ((1u << (c)->world_size) - 1)

/* ---- A world of two ranks ------------------------------------------------------------------------------ */

#define WORLD_NUMEL 1000u
#define WORLD_RANKS 2u

struct contract_world {
	struct contract *c;
	struct contract_unit first, second; /* of WORLD_NUMEL elements, and of 3 */
	zerod_bucket *buckets[WORLD_RANKS];
	zerod_stream *streams[WORLD_RANKS];
};
void contract_open_world(struct contract_world *w);
void contract_reduce_all(struct contract_world *w, const struct contract_unit *unit, float factor);
void contract_skip_all(struct contract_world *w, const struct contract_unit *unit);
/* contract_expect_step() with the sums of all ranks' gradients times these factors. */
void contract_expect_sums(struct contract_world *w, float first, float second);

#endif
