/* SPDX-License-Identifier: Apache-2.0 */
/* team_rig.h - the ranks of a group. Rank 0 gathers and releases, behind its stream or not. */
#ifndef ZD_TESTS_TEAM_RIG_H
#define ZD_TESTS_TEAM_RIG_H

#include "tests/support/core_driver.h"

#define STREAM    3u /* timelines of a client's page */
#define PUBLISHER 5u

struct rig {
	struct core_driver *core;
	struct core_team team;
	uint64_t session;     /* rank 0's */
	uint64_t unit, other; /* the first is "w", at version 1 */
};

/* `unit_bytes` 0: without a unit. `options` may be NULL. */
static inline void rig_open(struct rig *rig, uint32_t nranks, uint64_t unit_bytes,
                            const struct core_options *options)
{
	*rig = (struct rig){.core = core_new(options)};
	rig->team = core_team_new(rig->core, "job", nranks, false);
	rig->session = rig->team.session[0];
	if (unit_bytes > 0)
		rig->unit = core_team_unit(&rig->team, "w", unit_bytes);
}

static inline const struct zd_reply *gather_ok(struct rig *rig, uint64_t unit)
{
	return core_expect(rig->core, core_gather(rig->core, rig->session, unit), 0);
}

static inline void release_ok(struct rig *rig, uint64_t unit)
{
	core_expect(rig->core, core_release(rig->core, rig->session, unit), 0);
}

static inline void release_after(struct rig *rig, uint64_t unit, uint64_t value)
{
	const struct zd_fence fence = {STREAM, value};
	core_expect(rig->core, core_release_tag(rig->core, rig->session, unit, CORE_TAG, &fence, 1), 0);
}

static inline void pass(struct rig *rig, uint64_t value)
{
	core_pass(rig->core, rig->session, STREAM, value);
}

static inline uint64_t gathered_bytes(const struct rig *rig)
{
	return core_usage(rig->core).gathered_bytes;
}

static inline bool same_place(struct zd_location a, struct zd_location b)
{
	return a.segment == b.segment && a.offset == b.offset && a.bytes == b.bytes;
}

static inline void expect_same(struct zd_location a, struct zd_location b)
{
	assert_true(same_place(a, b));
}

/* All fences of the reply to a gather have passed. */
static inline bool is_there(struct rig *rig, const struct zd_reply *reply)
{
	assert_true(reply->fences.count > 0);
	for (uint32_t i = 0; i < reply->fences.count; i++) {
		const struct zd_fence *fence = &reply->fences.fences[i];
		uint64_t counter = core_timeline(rig->core, reply->session, fence->timeline);
		assert_true(counter != (uint64_t)ZD_FENCE_ABORTED);
		if (!zd_fence_reached(counter, fence->value))
			return false;
	}
	return true;
}

#endif
