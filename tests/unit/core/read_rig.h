/* SPDX-License-Identifier: Apache-2.0 */
/* read_rig.h - two ranks whose group has a commit, and a session that reads it. */
#ifndef ZD_TESTS_READ_RIG_H
#define ZD_TESTS_READ_RIG_H

#include "core/engine/objects.h"
#include "tests/support/core_net.h"

#define RANKS      2u
#define UNIT_BYTES 1024u

struct rig {
	struct core_driver *core;
	struct core_team team;
	uint64_t unit, reader, into;
	struct zd_location place; /* of the reader's allocation */
};

static inline void commit(struct rig *rig, uint64_t step)
{
	uint64_t request[RANKS];
	for (uint32_t rank = 0; rank < RANKS; rank++)
		request[rank] = core_commit(rig->core, rig->team.session[rank], rig->team.group, step);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_expect(rig->core, request[rank], 0);
}

static inline void start(struct rig *rig, bool shadow)
{
	const struct core_join join = {.world_size = RANKS, .durable = shadow, .shadow = shadow};
	rig->core = core_new(NULL);
	core_team_join(&rig->team, rig->core, &join);
	rig->unit = core_team_unit(&rig->team, "w", UNIT_BYTES);
	commit(rig, 1);
	rig->reader = core_open(rig->core, CORE_ALICE);
	const struct zd_reply *reply =
	        core_expect(rig->core, core_alloc(rig->core, rig->reader, "reader", 0, UNIT_BYTES), 0);
	rig->into = reply->u.alloc.allocation;
	rig->place = reply->place;
}

#define READ_TEST(name)   CORE_RIG_TEST(name, struct rig, rig, start(rig, false), core_rig_end)
#define SHADOW_TEST(name) CORE_RIG_TEST(name, struct rig, rig, start(rig, true), core_rig_end)

static inline uint64_t send_read_of(struct rig *rig, const char *unit, uint64_t step)
{
	return core_send(rig->core, rig->reader,
	                 &(struct zd_args){.kind = ZD_REQ_UNIT_READ,
	                                   .u.unit_read = {.group = rig->team.group,
	                                                   .unit = (char *)unit,
	                                                   .step = step,
	                                                   .bytes = UNIT_BYTES,
	                                                   .allocation = rig->into}});
}

static inline uint64_t send_read(struct rig *rig, uint64_t step)
{
	return send_read_of(rig, "w", step);
}

static inline uint64_t send_wait(struct rig *rig, uint64_t session, uint32_t uid, uint64_t after)
{
	return core_send(rig->core, session,
	                 &(struct zd_args){.kind = ZD_REQ_COMMIT_WAIT,
	                                   .u.commit_wait = {.job = (char *)"job",
	                                                     .group = (char *)"world",
	                                                     .uid = uid,
	                                                     .after = after}});
}

static inline void expect_bytes(struct rig *rig, uint64_t version)
{
	const uint8_t *bytes = core_bytes(rig->core, rig->place);
	for (uint32_t i = 0; i < UNIT_BYTES; i++)
		assert_int_equal(bytes[i], core_pattern(i / (UNIT_BYTES / RANKS), version));
}

/* Another session joins as rank 1. */
static inline void replace(struct rig *rig)
{
	const struct core_join again = {.world_size = RANKS, .rank = 1, .device = 1};
	rig->team.session[1] = core_open(rig->core, CORE_ALICE);
	core_join_ok(rig->core, rig->team.session[1], &again);
	core_register_ok(rig->core, rig->team.session[1], rig->team.group,
	                 &(struct core_unit){.name = "w", .numel = UNIT_BYTES / 4});
}

#endif
