/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves of units that have places in targets. Three units of one size; rank r is on device r, the host memory
 * is device 2.
 */
#include "tests/support/core_reduce.h"

#define NRANKS      2u
#define HOST        2u
#define NUNITS      3u
#define NUMEL       640u
#define SLICE_NUMEL (NUMEL / NRANKS)

struct scene {
	struct core_driver *core;
	struct core_reducers g;
	uint64_t units[NUNITS];
	bool on_host[NUNITS];
	uint64_t offsets[NUNITS]; /* in their targets */
};

static void open_scene(struct scene *s)
{
	*s = (struct scene){.core = core_new(&(struct core_options){.host_arena_bytes = CORE_MIB})};
	s->g = core_reducers_new(s->core, NRANKS, ZEROD_FLOAT32, 16 * CORE_KIB, 2);
	core_reducers_units(&s->g, s->units, NUNITS, NUMEL);
	for (uint32_t u = 0; u < NUNITS; u++)
		s->offsets[u] = u * SLICE_NUMEL;
}

#define SCENE_TEST(name) CORE_RIG_TEST(name, struct scene, s, open_scene(s), core_rig_end)

static uint64_t place(struct scene *s, uint32_t rank, uint64_t unit, bool on_host)
{
	struct zd_args args = {.kind = ZD_REQ_UNIT_PLACE, .u.unit_place = {.unit = unit, .on_host = on_host}};
	return core_send(s->core, s->g.team.session[rank], &args);
}

static void refuse(struct scene *s, uint64_t unit, const char *text)
{
	uint64_t first = place(s, 0, unit, true);
	core_expect_error(s->core, place(s, 1, unit, true), ZEROD_E_STATE, text);
	core_expect_error(s->core, first, ZEROD_E_STATE, text);
}

static void move(struct scene *s, uint32_t u, bool on_host, uint64_t offset_numel)
{
	uint64_t first = place(s, 0, s->units[u], on_host);
	core_expect(s->core, place(s, 1, s->units[u], on_host), 0);
	assert_true(core_expect(s->core, first, 0)->u.unit_place.target_offset_numel == offset_numel);
	s->on_host[u] = on_host;
	s->offsets[u] = offset_numel;
}

static uint64_t target_numel(struct scene *s, uint32_t device)
{
	struct core_row rows[HOST + 1];
	assert_int_equal(core_rows(s->core, ZD__TABLE__DEVICES, rows, HOST + 1), HOST + 1);
	return rows[device].row->device->usage->target_bytes / sizeof(float);
}

/* A window in which each unit gets its own factor. */
static void check_window(struct scene *s, uint64_t device_numel, uint64_t host_numel)
{
	const struct zd_reply *replies[CORE_TEAM];
	core_reducers_begin(&s->g, 3, true);
	for (uint32_t u = 0; u < NUNITS; u++)
		core_reduce_all(&s->g, s->units[u], (float)(1 << u));
	core_reducers_end(&s->g);
	core_reducers_step(&s->g, replies);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		for (uint32_t u = 0; u < NUNITS; u++) {
			struct zd_reply reply = *replies[rank];
			if (s->on_host[u])
				reply.target = reply.host_target;
			core_check_target(&s->g, rank, &reply, s->offsets[u], (float)(1 << u));
		}
		assert_int_equal(target_numel(s, rank), device_numel);
	}
	assert_int_equal(target_numel(s, HOST), NRANKS * host_numel);
	core_reducers_step_end(&s->g);
}

SCENE_TEST(test_sums_follow_their_units)
{
	check_window(s, 3 * SLICE_NUMEL, 0);
	move(s, 0, true, 0);
	check_window(s, 3 * SLICE_NUMEL, SLICE_NUMEL); /* with a gap where the unit was */
	move(s, 1, true, SLICE_NUMEL);
	check_window(s, 3 * SLICE_NUMEL, 2 * SLICE_NUMEL);
	move(s, 1, false, 0); /* the first gap */
	move(s, 0, false, SLICE_NUMEL);
	check_window(s, 3 * SLICE_NUMEL, 0);
}

SCENE_TEST(test_not_inside_a_window)
{
	const struct zd_reply *replies[CORE_TEAM];
	core_expect(s->core, core_backward(&s->g.team, 1, 3, true), 0);
	refuse(s, s->units[0],
	       "rank 1 is between backward 1 and the end of its step: unit 'a' stays as it is");
	core_expect(s->core, core_backward(&s->g.team, 0, 3, true), 0);
	core_reducers_end(&s->g);
	refuse(s, s->units[0], "rank 0 is between backward 1 and the end of its step");
	core_reducers_step(&s->g, replies);
	refuse(s, s->units[0], "rank 0 is between backward 1 and the end of its step");
	core_reducers_step_end(&s->g);
	move(s, 0, true, 0);
	check_window(s, 3 * SLICE_NUMEL, SLICE_NUMEL);
}

/* It has no gradient. */
SCENE_TEST(test_frozen_units_inside_a_window)
{
	uint64_t unit, first;
	unit = core_team_register(&s->g.team,
	                          &(struct core_unit){.name = "f", .numel = NUMEL, .frozen = true});
	core_reducers_begin(&s->g, 3, true);
	first = place(s, 0, unit, true);
	core_expect(s->core, place(s, 1, unit, true), 0);
	core_expect(s->core, first, 0);
}
