/* SPDX-License-Identifier: Apache-2.0 */
/* terms_rig.h - ranks that take the terms of their slices in place of sums. */
#ifndef ZD_TESTS_TERMS_RIG_H
#define ZD_TESTS_TERMS_RIG_H

#include "tests/support/core_reduce.h"

#define NUMEL 3000u /* slices of two and three ranks are padded, and cut into chunks */

static const struct zd_fence reader = {1, 7};

/* Ranks in a backward, and a unit or two without a place. A slot has room for one entry. */
static inline void terms_open(struct core_scene *s, uint32_t nranks, uint32_t nunits, uint32_t nslots,
                              struct core_options options)
{
	options.ndevices = nranks;
	options.reduction_cut_bytes = 256;
	s->core = core_new(&options);
	s->g = core_reducers_new(s->core, nranks, ZEROD_BFLOAT16, 2 * NUMEL, nslots);
	for (uint32_t i = 0; i < nunits; i++) {
		uint64_t unit = core_reducers_unit(&s->g, i ? "x" : "w", NUMEL);
		*(i ? &s->other : &s->unit) = unit;
		for (uint32_t rank = 0; rank < nranks; rank++) {
			struct zd_args args = {.kind = ZD_REQ_SET_FROZEN,
			                       .u.set_frozen = {.unit = unit, .target = ZD_TARGET_NONE}};
			core_call(s->core, s->g.team.session[rank], &args, 0);
		}
	}
	core_reducers_begin(&s->g, 3, true);
}

#define SCENE_TEST(name, nranks)                                                                             \
	CORE_RIG_TEST(name, struct core_scene, s, terms_open(s, nranks, 2, 1, (struct core_options){0}),     \
	              core_rig_end)

static inline void submit(struct core_scene *s, uint32_t rank, uint64_t unit)
{
	core_expect(s->core, core_submit_terms(&s->g, rank, core_put(&s->g, rank, unit, 1), NULL), 0);
}

static inline void submit_all(struct core_scene *s, uint64_t unit)
{
	for (uint32_t rank = 0; rank < s->g.team.world_size; rank++)
		submit(s, rank, unit);
}

/* The last copy for rank 1 is missing. */
static inline void submit_nearly(struct core_scene *s)
{
	core_hold(s->core, ZD_CMD_COPY);
	submit_all(s, s->unit);
	for (uint32_t n = core_pending(s->core, ZD_CMD_COPY), i = 1; i < n; i++)
		core_run_on(s->core, ZD_CMD_COPY, i <= n / 2);
}

static inline const struct zd_reply *take(struct core_scene *s, uint32_t rank, uint64_t unit)
{
	return core_expect(s->core, core_wait_terms(&s->g.team, rank, unit), 0);
}

static inline void give(struct core_scene *s, uint32_t rank, uint64_t unit, const struct zd_fence *fence)
{
	core_expect(s->core, core_return_sum(&s->g.team, rank, unit, fence), 0);
}

static inline void pass(struct core_scene *s, uint32_t rank)
{
	core_pass(s->core, s->g.team.session[rank], reader.timeline, reader.value);
}

/* Of rank 0. */
static inline uint64_t reserve_ahead(struct core_scene *s, uint64_t unit)
{
	struct zd_args args = {.kind = ZD_REQ_BUCKET_RESERVE};
	args.u.bucket_reserve.bucket = s->g.bucket[0];
	args.u.bucket_reserve.unit = unit;
	args.u.bucket_reserve.ahead = true;
	return core_send(s->core, s->g.team.session[0], &args);
}

/* All ranks but `skips` have submitted: their pieces are there, in rank order. */
static inline void check_terms(struct core_scene *s, const struct zd_reply *reply, uint32_t rank,
                               uint32_t skips)
{
	const Zd__ReduceWaitReply *terms = &reply->u.reduce_wait;
	uint64_t bytes = s->g.shard_numel * 2;
	uint32_t term = 0, other = 0;
	assert_int_equal(terms->target_dtype, ZEROD_BFLOAT16);
	assert_int_equal(terms->nterms, s->g.team.world_size - (skips < s->g.team.world_size));
	assert_int_equal(reply->places[0].bytes, bytes);
	assert_int_equal(reply->places[1].bytes, (terms->nterms - 1) * bytes);
	for (uint32_t source = 0; source < s->g.team.world_size; source++) {
		if (source == skips)
			continue;
		const uint8_t *data = source == rank
		                              ? core_bytes(s->core, reply->places[0])
		                              : core_bytes(s->core, reply->places[1]) + bytes * other++;
		if (source == rank)
			assert_int_equal(terms->own, term);
		term++;
		for (uint64_t i = 0; i < s->g.shard_numel; i++) {
			uint64_t at = rank * s->g.shard_numel + i;
			float expected = at < NUMEL ? core_gradient(source, at) : 0;
			assert_true(core_element(ZEROD_BFLOAT16, data, i) == expected);
		}
	}
}

#endif
