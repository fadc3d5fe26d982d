/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_durable.h - two ranks of a durable job, which lose ranks, or whose engine is killed and restored
 * (core_restart()).
 */
#ifndef ZD_TESTS_CORE_DURABLE_H
#define ZD_TESTS_CORE_DURABLE_H

#include "core_driver.h"

#define UNIT_BYTES  1024ull /* of two ranks' shards */
#define SHARD_BYTES (UNIT_BYTES / 2)
#define STATE_BYTES 1000u /* of an allocation; no multiple of a block */
#define UNDONE      0xEE  /* what is never committed */
#define NUNITS      2

static const char *const unit_names[NUNITS] = {"a", "b"};

struct durable {
	struct core_driver *core;
	bool shadow;
	struct core_team team;
	uint64_t unit[NUNITS];
	struct zd_location shard[NUNITS][CORE_TEAM]; /* these never change */
};

static inline void expect_location(struct zd_location is, struct zd_location was)
{
	assert_true(is.segment == was.segment && is.offset == was.offset && is.bytes == was.bytes);
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

static inline uint64_t send_join(struct durable *d, uint32_t rank)
{
	struct core_join join = {.world_size = d->team.world_size,
	                         .rank = rank,
	                         .device = rank % 2,
	                         .durable = true,
	                         .shadow = d->shadow};
	d->team.session[rank] = core_open(d->core, CORE_ALICE);
	return core_join(d->core, d->team.session[rank], &join);
}

static inline uint64_t send_register(struct durable *d, uint32_t unit, uint32_t rank)
{
	struct core_unit options = {.name = unit_names[unit], .numel = UNIT_BYTES / 4, .unsaved = unit == 1};
	return core_register(d->core, d->team.session[rank], d->team.group, &options);
}

static inline void commit(struct durable *d, uint64_t step)
{
	uint64_t request[CORE_TEAM];
	for (uint32_t rank = 0; rank < d->team.world_size; rank++)
		request[rank] = core_commit(d->core, d->team.session[rank], d->team.group, step);
	for (uint32_t rank = 0; rank < d->team.world_size; rank++)
		core_expect(d->core, request[rank], 0);
}

static inline void join_all(struct durable *d, uint64_t step, bool torn)
{
	uint64_t request[2];
	for (uint32_t rank = 0; rank < 2; rank++)
		request[rank] = send_join(d, rank);
	for (uint32_t rank = 0; rank < 2; rank++) {
		const struct zd_reply *reply = core_expect(d->core, request[rank], 0);
		assert_true(d->team.group == 0 || reply->u.group_join.group == d->team.group);
		assert_int_equal(reply->u.group_join.committed_step, step);
		assert_int_equal(reply->u.group_join.torn, torn);
		d->team.group = reply->u.group_join.group;
	}
}

/* Two ranks with two units, committed at step 1, version 1. */
static inline void start_with(struct durable *d, bool shadow, const struct core_options *options)
{
	*d = (struct durable){.core = core_new(options), .shadow = shadow};
	core_journal(d->core);
	d->team.core = d->core;
	d->team.world_size = d->team.nranks = 2;
	join_all(d, 0, false);
	for (uint32_t unit = 0; unit < NUNITS; unit++) {
		for (uint32_t rank = 0; rank < 2; rank++) {
			const struct zd_reply *reply = core_expect(d->core, send_register(d, unit, rank), 0);
			d->unit[unit] = reply->u.unit_register.unit;
			d->shard[unit][rank] = reply->place;
		}
		core_team_publish(&d->team, d->unit[unit]);
	}
	commit(d, 1);
}

static inline void start(struct durable *d, bool shadow)
{
	start_with(d, shadow, NULL);
}

/* The processes of sessions that have ended stay on the devices until leave(). */
static inline void start_lingering(struct durable *d, bool shadow)
{
	struct core_options options = {.sessions_linger = true};
	start_with(d, shadow, &options);
}

static inline uint64_t update(struct durable *d, uint32_t unit, uint32_t rank)
{
	return core_update(d->core, d->team.session[rank], d->unit[unit]);
}

static inline void write_undone(struct durable *d, uint32_t unit, uint32_t rank)
{
	memset(core_bytes(d->core, d->shard[unit][rank]), UNDONE, SHARD_BYTES);
}

static inline void publish_undone(struct durable *d, uint32_t unit, uint32_t rank)
{
	core_expect(d->core, update(d, unit, rank), 0);
	write_undone(d, unit, rank);
	core_expect(d->core, core_publish(d->core, d->team.session[rank], d->unit[unit]), 0);
}

static inline void both_publish(struct durable *d, uint32_t unit)
{
	publish_undone(d, unit, 0);
	publish_undone(d, unit, 1);
}

static inline void expect_group(struct durable *d, const char *state, uint64_t step, bool torn)
{
	struct core_row row;
	core_row(d->core, ZD__TABLE__GROUPS, d->team.group, &row);
	assert_string_equal(row.state, state);
	assert_int_equal(row.row->group->shadow, d->shadow);
	assert_int_equal(row.row->group->committed_step, step);
	assert_int_equal(row.row->group->torn, torn);
}

static inline void register_again(struct durable *d, uint32_t unit, uint32_t rank)
{
	const struct zd_reply *reply = core_expect(d->core, send_register(d, unit, rank), 0);
	assert_true(reply->u.unit_register.unit == d->unit[unit]);
	expect_location(reply->place, d->shard[unit][rank]);
}

/* All ranks join the restored group, and register their units. */
static inline void come_back(struct durable *d, uint64_t step, bool torn)
{
	join_all(d, step, torn);
	for (uint32_t unit = 0; unit < NUNITS; unit++) {
		for (uint32_t rank = 0; rank < 2; rank++)
			register_again(d, unit, rank);
	}
}

static inline void expect_shard(struct durable *d, uint32_t unit, uint32_t rank, uint8_t value)
{
	const uint8_t *data = core_bytes(d->core, d->shard[unit][rank]);
	for (uint32_t i = 0; i < SHARD_BYTES; i++)
		assert_int_equal(data[i], value);
}

static inline void expect_version(struct durable *d, uint64_t version)
{
	for (uint32_t unit = 0; unit < NUNITS; unit++) {
		for (uint32_t rank = 0; rank < 2; rank++) {
			uint64_t session = d->team.session[rank];
			uint64_t gather = core_gather(d->core, session, d->unit[unit]);
			expect_shard(d, unit, rank, core_pattern(rank, version));
			core_team_check(&d->team, core_expect(d->core, gather, 0), version);
			core_expect(d->core, core_release(d->core, session, d->unit[unit]), 0);
		}
	}
}

/* All that there is is the commit of this version; and the next step works. */
static inline void expect_commit(struct durable *d, uint64_t version)
{
	expect_group(d, "READY", version, false);
	expect_version(d, version);
	for (uint32_t unit = 0; unit < NUNITS; unit++)
		core_team_publish(&d->team, d->unit[unit]);
	expect_version(d, version + 1);
	commit(d, version + 1);
	expect_group(d, "READY", version + 1, false);
}

static inline uint64_t keep(struct durable *d, uint64_t session, const char *name)
{
	struct zd_args args = {.kind = ZD_REQ_ALLOC,
	                       .u.alloc = {.job = (char *)"job",
	                                   .name = (char *)name,
	                                   .device = 1,
	                                   .bytes = STATE_BYTES,
	                                   .durable = true}};
	return core_send(d->core, session, &args);
}

static inline void close_ranks(struct durable *d)
{
	for (uint32_t rank = 0; rank < 2; rank++)
		core_close(d->core, d->team.session[rank]);
}

#endif
