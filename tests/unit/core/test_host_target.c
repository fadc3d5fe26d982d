/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of units on the host: each sum is made in staging memory, and copied down to a target in host
 * memory. Rank r is on device r, the host memory is device 2.
 */
#include "tests/support/core_reduce.h"

#define NRANKS      2u
#define HOST        2u
#define NUMEL       640u /* slices of 320 elements, in chunks of 256 and 64 */
#define SLICE_NUMEL (NUMEL / NRANKS)
#define SLOT_BYTES  (16 * CORE_KIB)

struct scene {
	struct core_driver *core;
	struct core_reducers g;
	uint64_t on_host, other, on_device; /* the first two are on the host, one behind the other */
};

static struct scene open_scene(uint64_t host_arena_bytes)
{
	const struct core_unit on_host = {.name = "host", .numel = NUMEL, .on_host = true};
	const struct core_unit other = {.name = "other", .numel = NUMEL, .on_host = true};
	struct scene s = {.core = core_new(&(struct core_options){.host_arena_bytes = host_arena_bytes,
	                                                          .reduction_cut_bytes = 1024,
	                                                          .unordered = true})};
	s.g = core_reducers_new(s.core, NRANKS, ZEROD_FLOAT32, SLOT_BYTES, 2);
	s.on_device = core_reducers_unit(&s.g, "device", NUMEL);
	s.on_host = core_team_register(&s.g.team, &on_host);
	s.other = core_team_register(&s.g.team, &other);
	return s;
}

/* All ranks have reduced the unit on the host, and no copy has run. */
static struct scene open_held_scene(void)
{
	struct scene s = open_scene(CORE_MIB);
	core_reducers_begin(&s.g, 3, true);
	core_hold(s.core, ZD_CMD_COPY);
	core_reduce_all(&s.g, s.on_host, 1.0f);
	return s;
}

static uint64_t target_bytes(struct scene *s, uint32_t device)
{
	struct core_row rows[HOST + 1];
	assert_int_equal(core_rows(s->core, ZD__TABLE__DEVICES, rows, HOST + 1), HOST + 1);
	return rows[device].row->device->usage->target_bytes;
}

/* Also the norm, which the sums in staging memory have. */
static void check_step(struct scene *s, float on_host, float other, float on_device)
{
	const struct zd_reply *replies[CORE_TEAM];
	double norm_squared = 0;
	core_reducers_step(&s->g, replies);
	for (uint64_t i = 0; i < NUMEL; i++) {
		float sum = core_gradient(0, i) + core_gradient(1, i);
		norm_squared += (double)(sum * sum) *
		                (double)(on_host * on_host + other * other + on_device * on_device);
	}
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		struct zd_reply host = *replies[rank];
		host.target = host.host_target;
		core_check_target(&s->g, rank, &host, 0, on_host);
		core_check_target(&s->g, rank, &host, SLICE_NUMEL, other);
		core_check_target(&s->g, rank, replies[rank], 0, on_device);
		assert_true(replies[rank]->u.step_begin.norm_squared == norm_squared);
		assert_int_equal(target_bytes(s, rank), SLICE_NUMEL * sizeof(float));
	}
	assert_int_equal(target_bytes(s, HOST), NRANKS * 2 * SLICE_NUMEL * sizeof(float));
	core_reducers_step_end(&s->g);
	assert_int_equal(core_usage(s->core).target_bytes, 0);
}

TEST(test_units_of_both_placements)
{
	struct scene s = open_scene(CORE_MIB);
	for (int window = 0; window < 2; window++) { /* the second one finds what the first one left */
		core_reducers_begin(&s.g, 3, false);
		core_reduce_all(&s.g, s.on_host, 1.0f);
		core_reduce_all(&s.g, s.other, 3.0f);
		core_reduce_all(&s.g, s.on_device, 1.0f);
		core_reducers_end(&s.g);
		core_reducers_begin(&s.g, 3, true);
		core_reduce_all(&s.g, s.on_host, 1.0f); /* added to what is copied up */
		core_reducers_end(&s.g);
		check_step(&s, 2.0f, 3.0f, 1.0f);
	}
	core_end(s.core);
}

/* The first chunk of rank 1's slice is copied down while the second one is still copied to its staging. */
TEST(test_chunks_go_down_one_by_one)
{
	struct scene s = open_held_scene();
	assert_int_equal(core_pending(s.core, ZD_CMD_COPY), 4); /* two chunks to each owner */
	core_run_on(s.core, ZD_CMD_COPY, 0);
	assert_int_equal(core_count(s.core, ZD_CMD_REDUCE), 1);
	assert_int_equal(core_pending(s.core, ZD_CMD_COPY), 4); /* one of them down */
	uint64_t end = core_backward_end(&s.g.team, 1);
	core_run_on(s.core, ZD_CMD_COPY, 0);
	assert_int_equal(core_count(s.core, ZD_CMD_REDUCE), 2);
	core_run_on(s.core, ZD_CMD_COPY, 1);
	core_run_on(s.core, ZD_CMD_COPY, 1);
	assert_null(core_reply(s.core, end)); /* its sums are made and not stored */
	core_unhold(s.core, ZD_CMD_COPY);
	core_expect(s.core, end, 0);
	core_expect(s.core, core_backward_end(&s.g.team, 0), 0);
	check_step(&s, 1.0f, 0.0f, 0.0f);
	core_end(s.core);
}

/* After a failed backward_begin neither target stays. */
TEST(test_host_memory_is_too_small)
{
	struct scene s = open_scene(8 * CORE_KIB); /* the shards' segment is half of it */
	Zd__Usage before = core_usage(s.core);
	core_expect(s.core, core_backward(&s.g.team, 0, 3, true), ZEROD_E_NO_MEMORY);
	assert_int_equal(core_usage(s.core).target_bytes, before.target_bytes);
	core_end(s.core);
}
