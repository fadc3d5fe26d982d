/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_reduce.h - gradient reduction with a driven engine: requests in words, gradients of known values, and
 * the sums that they must come to.
 *
 * Element i of rank r's gradient of a unit is core_gradient(r, i) times a factor of the test's choice: small
 * integers, so that sums are exact in every dtype and order.
 */
#ifndef ZD_TESTS_CORE_REDUCE_H
#define ZD_TESTS_CORE_REDUCE_H

#include "core_driver.h"

/* Carries out a REDUCE command. */
void core_reduce_execute(struct core_driver *core, const struct zd_reduce_desc *desc,
                         struct zd_op_result *result);

/* ---- Requests; each returns the request's id ----------------------------------------------------------- */

uint64_t core_backward(struct core_team *team, uint32_t rank, uint32_t stage, bool boundary);
uint64_t core_backward_into(struct core_team *team, uint32_t rank, uint32_t stage, bool boundary,
                            uint32_t target_dtype);
uint64_t core_backward_end(struct core_team *team, uint32_t rank);
uint64_t core_bucket(struct core_team *team, uint32_t rank, uint32_t dtype, uint64_t slot_bytes,
                     uint32_t nslots);
/* The same, which must get 0 at once. Returns the bucket. */
uint64_t core_bucket_ok(struct core_team *team, uint32_t rank, uint32_t dtype, uint64_t slot_bytes,
                        uint32_t nslots);
uint64_t core_bucket_destroy(struct core_team *team, uint32_t rank, uint64_t bucket);
uint64_t core_reserve(struct core_team *team, uint32_t rank, uint64_t bucket, uint64_t unit);
uint64_t core_skip(struct core_team *team, uint32_t rank, uint64_t unit);
uint64_t core_step(struct core_team *team, uint32_t rank);
uint64_t core_step_end(struct core_team *team, uint32_t rank, const struct zd_fence *fences,
                       uint32_t nfences);

struct core_commit {
	uint64_t bucket, entry;
	uint32_t op; /* enum zerod_reduce_op */
	float prescale;
	bool overwrite, terms;
	uint32_t nfences;
	const struct zd_fence *fences;
};
uint64_t core_bucket_submit(struct core_team *team, uint32_t rank, const struct core_commit *commit);
uint64_t core_wait_sum(struct core_team *team, uint32_t rank, uint64_t unit, bool ahead);
/* Of a sum that is not made, since the rank's commit had `terms`. */
uint64_t core_wait_terms(struct core_team *team, uint32_t rank, uint64_t unit);
/* The fence may be NULL, also below. */
uint64_t core_return_sum(struct core_team *team, uint32_t rank, uint64_t unit, const struct zd_fence *fence);

/* ---- Gradients ----------------------------------------------------------------------------------------- */

float core_gradient(uint32_t rank, uint64_t i);
float core_element(enum zerod_dtype dtype, const void *data, uint64_t i);
void core_element_set(enum zerod_dtype dtype, void *data, uint64_t i, float value);
/* Writes the gradient's `numel` real elements at a location that reserve replied with. */
void core_write(struct core_driver *core, struct zd_location where, enum zerod_dtype dtype, uint32_t rank,
                uint64_t numel, float factor);

/* ---- Whole passes -------------------------------------------------------------------------------------- */

/* A team with a unit and a bucket of float32 on every rank. */
struct core_reducers {
	struct core_team team;
	uint64_t bucket[CORE_TEAM];
	enum zerod_dtype dtype;      /* of the buckets */
	uint64_t numel, shard_numel; /* of the unit registered last by core_reducers_unit() */
};

struct core_reducers core_reducers_new(struct core_driver *core, uint32_t world_size, uint32_t dtype,
                                       uint64_t slot_bytes, uint32_t nslots);
/* A trainable float32 unit on every rank. */
uint64_t core_reducers_unit(struct core_reducers *g, const char *name, uint64_t numel);
/* The same, named a, b, c, ... */
void core_reducers_units(struct core_reducers *g, uint64_t *units, uint32_t count, uint64_t numel);
/* All ranks begin a backward, or end it, and must get 0. */
void core_reducers_begin(struct core_reducers *g, uint32_t stage, bool boundary);
void core_reducers_end(struct core_reducers *g);
/* Reserves, writes and returns the reply's entry. */
uint64_t core_put(struct core_reducers *g, uint32_t rank, uint64_t unit, float factor);
/* core_put() and a commit without fences, both with 0. */
void core_reduce(struct core_reducers *g, uint32_t rank, uint64_t unit, float factor);
void core_reduce_all(struct core_reducers *g, uint64_t unit, float factor);
/* Submits the entry of the rank's bucket. */
uint64_t core_submit(struct core_reducers *g, uint32_t rank, uint64_t entry, const struct zd_fence *fence);
/* core_submit() with `terms`. */
uint64_t core_submit_terms(struct core_reducers *g, uint32_t rank, uint64_t entry,
                           const struct zd_fence *fence);
void core_skip_all(struct core_reducers *g, uint64_t unit);
/* All ranks begin the step. The replies are of the ranks. */
void core_reducers_step(struct core_reducers *g, const struct zd_reply *replies[CORE_TEAM]);
void core_reducers_step_end(struct core_reducers *g);
/* Fails unless rank's target holds, at the unit that is `offset_numel` in it, `factor` times the sum of all
 * ranks' gradients, and zeros behind the unit's true elements. */
void core_check_target(struct core_reducers *g, uint32_t rank, const struct zd_reply *step,
                       uint64_t offset_numel, float factor);
/* A whole step of that number, or any if it is 0, with core_check_target() of the first units. They have one
 * size. */
void core_check_step(struct core_reducers *g, uint64_t number, uint32_t nunits, float factor);

/* ---- Scenes -------------------------------------------------------------------------------------------- */

#define CORE_SLOT_BYTES (16 * CORE_KIB)
#define CORE_NUMEL      250u /* slices of two and three ranks are padded */

/* Ranks with a device each, and one unit or two. */
struct core_scene {
	struct core_driver *core;
	struct core_reducers g;
	uint64_t unit, other; /* "w", "x" */
	uint64_t end[CORE_TEAM];
};

/* `options` may be NULL. */
void core_scene_open(struct core_scene *s, uint32_t nranks, uint32_t nunits,
                     const struct core_options *options);

#endif
