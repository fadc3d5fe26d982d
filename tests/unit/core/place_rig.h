/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place_rig.h - a team with a unit that is moved between devices 0 and 1, on which the ranks are, and their
 * host memory, which is device 2.
 */
#ifndef ZD_TESTS_PLACE_RIG_H
#define ZD_TESTS_PLACE_RIG_H

#include "tests/support/core_driver.h"

#define HOST  2u
#define NUMEL 1000u
#define BYTES 2048u /* of a shard of two ranks */

static const struct core_unit unit_w = {.name = "w", .numel = NUMEL};

struct rig {
	struct core_driver *core;
	struct core_team team;
	uint64_t unit;
};

static inline void start_with(struct rig *rig, uint32_t world_size, struct core_options options)
{
	options.ndevices = 2;
	if (options.host_arena_bytes == 0)
		options.host_arena_bytes = CORE_MIB;
	rig->core = core_new(&options);
	rig->team = core_team_new(rig->core, "job", world_size, false);
	rig->unit = core_team_register(&rig->team, &unit_w);
	core_team_publish(&rig->team, rig->unit);
}

static inline void start(struct rig *rig, uint32_t world_size)
{
	start_with(rig, world_size, (struct core_options){.ndevices = 2});
}

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, start(rig, 2), core_rig_end)

static inline uint64_t place_until(struct rig *rig, uint32_t rank, bool on_host, uint64_t deadline_ns)
{
	struct zd_args args = {.kind = ZD_REQ_UNIT_PLACE,
	                       .u.unit_place = {.unit = rig->unit, .on_host = on_host}};
	return core_send_until(rig->core, rig->team.session[rank], deadline_ns, &args);
}

static inline uint64_t place(struct rig *rig, uint32_t rank, bool on_host)
{
	return place_until(rig, rank, on_host, 0);
}

/* The requests of all ranks. */
static inline void place_all(struct rig *rig, bool on_host, uint64_t requests[CORE_TEAM])
{
	for (uint32_t rank = 0; rank < rig->team.nranks; rank++)
		requests[rank] = place(rig, rank, on_host);
}

static inline void expect_all(struct rig *rig, const uint64_t requests[CORE_TEAM], int status,
                              const char *text)
{
	for (uint32_t rank = 0; rank < rig->team.nranks; rank++) {
		if (status == 0)
			core_expect(rig->core, requests[rank], 0);
		else
			core_expect_error(rig->core, requests[rank], status, text);
	}
}

static inline void move(struct rig *rig, bool on_host)
{
	uint64_t requests[CORE_TEAM];
	place_all(rig, on_host, requests);
	expect_all(rig, requests, 0, NULL);
}

static inline void refuse(struct rig *rig, bool on_host, int status, const char *text)
{
	uint64_t requests[CORE_TEAM];
	place_all(rig, on_host, requests);
	expect_all(rig, requests, status, text);
}

static inline uint64_t shard_bytes(struct rig *rig, uint32_t device)
{
	struct core_row rows[HOST + 1];
	assert_int_equal(core_rows(rig->core, ZD__TABLE__DEVICES, rows, HOST + 1), HOST + 1);
	return rows[device].row->device->usage->shard_bytes;
}

/* Every shard is there, and is charged nowhere else; nothing is in quarantine. */
static inline void expect_place(struct rig *rig, bool on_host)
{
	struct core_row row;
	uint64_t bytes = core_usage(rig->core).shard_bytes;
	core_row(rig->core, ZD__TABLE__UNITS, rig->unit, &row);
	assert_int_equal(row.row->unit->on_host, on_host);
	assert_int_equal(shard_bytes(rig, HOST), on_host ? bytes : 0);
	assert_int_equal(shard_bytes(rig, 0) + shard_bytes(rig, 1), on_host ? 0 : bytes);
	for (uint32_t device = 0; device <= HOST; device++)
		assert_int_equal(core_quarantine(rig->core, device), 0);
}

/* Each rank gathers the version, and releases it. */
static inline void expect_version(struct rig *rig, uint64_t version)
{
	for (uint32_t rank = 0; rank < rig->team.nranks; rank++) {
		uint64_t session = rig->team.session[rank];
		uint64_t gather = core_gather(rig->core, session, rig->unit);
		core_team_check(&rig->team, core_expect(rig->core, gather, 0), version);
		core_expect(rig->core, core_release(rig->core, session, rig->unit), 0);
	}
}

#endif
