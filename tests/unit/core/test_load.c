/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads: one rank's bytes on the shards of all, whatever ends a rank, its request or its copy meanwhile.
 */
#include "tests/support/core_driver.h"

#define RANKS      3u
#define READER     1u
#define NUMEL      150u /* int16; shards of 128 elements: 128, 22, none */
#define UNIT_BYTES (NUMEL * 2)

struct rig {
	struct core_driver *core;
	struct core_team team;
	uint64_t unit;
	uint64_t source; /* an allocation of the reader's with byte i at i */
};

static uint64_t make_room(struct rig *rig, uint32_t rank)
{
	struct zd_args args = {.kind = ZD_REQ_ALLOC, .u.alloc.unit = rig->unit};
	const struct zd_reply *reply = core_call(rig->core, rig->team.session[rank], &args, 0);
	uint8_t *bytes = core_bytes(rig->core, reply->place);
	for (uint32_t i = 0; i < UNIT_BYTES; i++)
		bytes[i] = (uint8_t)(i + rank);
	return reply->u.alloc.allocation;
}

static void update_all(struct rig *rig)
{
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_expect(rig->core, core_update(rig->core, rig->team.session[rank], rig->unit), 0);
}

static void start(struct rig *rig, bool durable)
{
	rig->core = core_new(NULL);
	rig->team = core_team_new(rig->core, "job", RANKS, durable);
	rig->unit = core_team_register(
	        &rig->team, &(struct core_unit){.name = "w", .dtype = ZEROD_INT16, .numel = NUMEL});
	update_all(rig);
	rig->source = make_room(rig, READER);
}

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, start(rig, false), core_rig_end)

static uint64_t load_until(struct rig *rig, uint32_t rank, uint64_t allocation, uint64_t deadline_ns,
                           const struct zd_fence *fence)
{
	struct zd_args args = {.kind = ZD_REQ_UNIT_LOAD,
	                       .u.unit_load = {.unit = rig->unit, .allocation = allocation},
	                       .fences = {fence ? 1 : 0, fence}};
	return core_send_until(rig->core, rig->team.session[rank], deadline_ns, &args);
}

static uint64_t load(struct rig *rig, uint32_t rank, uint64_t allocation)
{
	return load_until(rig, rank, allocation, 0, NULL);
}

static void load_all(struct rig *rig, uint64_t requests[RANKS])
{
	for (uint32_t rank = 0; rank < RANKS; rank++)
		requests[rank] = load(rig, rank, rank == READER ? rig->source : 0);
}

static void expect_all(struct rig *rig, const uint64_t requests[RANKS], int status, const char *text)
{
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		if (status == 0)
			core_expect(rig->core, requests[rank], 0);
		else
			core_expect_error(rig->core, requests[rank], status, text);
	}
}

static uint64_t allocated(struct rig *rig)
{
	return core_usage(rig->core).allocation_bytes;
}

/* Publishes, and finds the bytes with zeros behind them in a gathered copy. */
static void expect_bytes(struct rig *rig)
{
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_expect(rig->core, core_publish(rig->core, rig->team.session[rank], rig->unit), 0);
	const struct zd_reply *reply =
	        core_expect(rig->core, core_gather(rig->core, rig->team.session[0], rig->unit), 0);
	const uint8_t *bytes = core_bytes(rig->core, reply->place);
	for (uint64_t i = 0; i < reply->place.bytes; i++)
		assert_int_equal(bytes[i], i < UNIT_BYTES ? (uint8_t)(i + READER) : 0);
	core_expect(rig->core, core_release(rig->core, rig->team.session[0], rig->unit), 0);
}

RIG_TEST(test_copies_wait_for_the_writers)
{
	uint64_t requests[RANKS];
	struct zd_fence fence = {0, 1};
	uint32_t copies = core_count(rig->core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		requests[rank] = rank == READER ? load_until(rig, rank, rig->source, 0, &fence)
		                                : load(rig, rank, 0);
	core_expect_waits(rig->core, requests[0], "the streams of rank 1, which loads unit 'w'");
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), copies);
	core_pass(rig->core, rig->team.session[READER], 0, 1);
	expect_all(rig, requests, 0, NULL);
	expect_bytes(rig);
}

/* Between the request and the answer the part is neither published nor unregistered nor loaded again. */
RIG_TEST(test_nothing_else_while_it_loads)
{
	uint64_t session = rig->team.session[0], requests[RANKS];
	requests[0] = load(rig, 0, 0);
	core_expect_error(rig->core, core_publish(rig->core, session, rig->unit), ZEROD_E_STATE,
	                  "unit 'w' is LOADING; publish needs it UPDATING");
	core_expect_error(rig->core, load(rig, 0, 0), ZEROD_E_STATE,
	                  "unit 'w' is LOADING; unit_load needs it UPDATING");
	core_expect(rig->core, core_simple(rig->core, session, ZD_REQ_UNIT_UNREGISTER, rig->unit),
	            ZEROD_E_BUSY);
	requests[READER] = load(rig, READER, rig->source);
	core_expect_error(rig->core, core_free(rig->core, rig->team.session[READER], rig->source, NULL),
	                  ZEROD_E_STATE, "is being loaded into a unit");
	requests[2] = load(rig, 2, 0);
	expect_all(rig, requests, 0, NULL);
	expect_bytes(rig);
}

RIG_TEST(test_one_source_exactly)
{
	uint64_t requests[RANKS];
	for (uint32_t rank = 0; rank < RANKS; rank++)
		requests[rank] = load(rig, rank, 0);
	expect_all(rig, requests, ZEROD_E_MISMATCH, "unit 'w': none of the ranks 0 .. 2 gives data");
	requests[0] = load(rig, 0, make_room(rig, 0));
	requests[1] = load(rig, 1, rig->source);
	requests[2] = load(rig, 2, 0);
	expect_all(rig, requests, ZEROD_E_MISMATCH, "unit 'w': ranks 0 and 1 both give data to load");
	assert_int_equal(allocated(rig), 0);
	rig->source = make_room(rig, READER);
	load_all(rig, requests);
	expect_all(rig, requests, 0, NULL);
	expect_bytes(rig);
}

RIG_TEST(test_refusals_free_the_allocation)
{
	uint64_t session = rig->team.session[READER];
	struct zd_args small = {.kind = ZD_REQ_ALLOC,
	                        .u.alloc = {.job = (char *)"job", .device = 1, .bytes = 256}};
	uint64_t id = core_call(rig->core, session, &small, 0)->u.alloc.allocation;
	core_expect_error(rig->core, load(rig, READER, id), ZEROD_E_INVALID,
	                  "unit 'w' has 300 bytes; allocation '' to load has 256");
	core_expect(rig->core, core_publish(rig->core, session, rig->unit), 0);
	core_expect_error(rig->core, load(rig, READER, rig->source), ZEROD_E_STATE,
	                  "unit 'w' is IDLE; unit_load needs it UPDATING");
	assert_int_equal(allocated(rig), 0);
	core_expect_error(rig->core, load(rig, READER, rig->source), ZEROD_E_NOT_FOUND,
	                  "this session has no allocation");
}

/* Freed at once for the account, and for others when the writer's stream has passed. */
RIG_TEST(test_refused_memory_waits_for_its_writers)
{
	struct zd_fence fence = {0, 1};
	uint64_t session = rig->team.session[READER];
	core_expect(rig->core, core_publish(rig->core, session, rig->unit), 0);
	uint64_t before = core_quarantine(rig->core, 1);
	core_expect(rig->core, load_until(rig, READER, rig->source, 0, &fence), ZEROD_E_STATE);
	assert_int_equal(allocated(rig), 0);
	assert_true(core_quarantine(rig->core, 1) > before);
	core_pass(rig->core, session, 0, 1);
	assert_int_equal(core_quarantine(rig->core, 1), before);
}

RIG_TEST(test_deadline_names_who_never_called)
{
	uint64_t requests[RANKS];
	uint64_t first = load_until(rig, 0, 0, 1000, NULL);
	uint64_t second = load_until(rig, READER, rig->source, 2000, NULL);
	core_tick(rig->core, 1500);
	core_expect_error(rig->core, first, ZEROD_E_DEADLINE, "rank 2 to call unit_load of unit 'w'");
	core_tick(rig->core, 2500);
	core_expect_error(rig->core, second, ZEROD_E_DEADLINE, "rank 2 to call unit_load of unit 'w'");
	assert_int_equal(allocated(rig), 0);
	rig->source = make_room(rig, READER);
	load_all(rig, requests);
	expect_all(rig, requests, 0, NULL);
	expect_bytes(rig);
}

/* No caller goes on while copies write its shard. */
RIG_TEST(test_no_deadline_while_copying)
{
	uint64_t requests[RANKS];
	core_hold(rig->core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		requests[rank] = load_until(rig, rank, rank == READER ? rig->source : 0, 1000, NULL);
	core_tick(rig->core, 5000);
	core_expect_waits(rig->core, requests[0], "copies into the shards of unit 'w'");
	core_unhold(rig->core, ZD_CMD_COPY);
	expect_all(rig, requests, 0, NULL);
	expect_bytes(rig);
}

RIG_TEST(test_failed_copy)
{
	uint64_t requests[RANKS];
	core_fail_next(rig->core, ZD_CMD_COPY, ZEROD_E_DEVICE, "no such device");
	load_all(rig, requests);
	expect_all(rig, requests, ZEROD_E_DEVICE, "unit 'w': copying rank 0's slice: no such device");
	assert_int_equal(allocated(rig), 0);
	rig->source = make_room(rig, READER);
	load_all(rig, requests);
	expect_all(rig, requests, 0, NULL);
	expect_bytes(rig);
}

/* Shards and the allocation outlive their sessions until the copies have ended. */
static void dies_while_copying(struct rig *rig, uint32_t dead)
{
	uint64_t requests[RANKS];
	core_hold(rig->core, ZD_CMD_COPY);
	load_all(rig, requests);
	core_close(rig->core, rig->team.session[dead]);
	assert_int_equal(core_quarantine(rig->core, dead % 2), 256 + (dead == READER ? 512 : 0));
	core_unhold(rig->core, ZD_CMD_COPY);
	assert_int_equal(core_quarantine(rig->core, dead % 2), 0);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		if (rank != dead)
			core_expect(rig->core, requests[rank], 0);
	}
	assert_int_equal(allocated(rig), 0);
}

RIG_TEST(test_reader_dies_while_copying)
{
	dies_while_copying(rig, 0);
}

/* A shard whose update is undone during a load is set back once its rank has reset its session, before or
 * after the end of the copies. */
static void resets_while_loading(bool copying)
{
	struct rig rig = {.core = core_new(NULL)};
	uint64_t requests[RANKS] = {0}, id = 0;
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		rig.team.session[rank] = core_open(rig.core, CORE_ALICE);
		id = core_join(rig.core, rig.team.session[rank],
		               &(struct core_join){.world_size = RANKS,
		                                   .rank = rank,
		                                   .device = rank % 2,
		                                   .durable = true,
		                                   .shadow = true});
	}
	rig.team.group = core_expect(rig.core, id, 0)->u.group_join.group;
	rig.team.core = rig.core;
	rig.team.world_size = rig.team.nranks = RANKS;
	rig.unit = core_team_register(&rig.team,
	                              &(struct core_unit){.name = "w", .dtype = ZEROD_INT16, .numel = NUMEL});
	update_all(&rig);
	rig.source = make_room(&rig, READER);
	if (copying)
		core_hold(rig.core, ZD_CMD_COPY);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		if (copying || rank != 2)
			requests[rank] = load(&rig, rank, rank == READER ? rig.source : 0);
	}
	core_close(rig.core, rig.team.session[2]);
	uint64_t reset = core_simple(rig.core, rig.team.session[0], ZD_REQ_SESSION_RESET, 0);
	if (copying)
		core_unhold(rig.core, ZD_CMD_COPY);
	core_expect(rig.core, requests[0], copying ? 0 : ZEROD_E_PEER_LOST);
	core_expect(rig.core, reset, 0);
	core_end(rig.core);
}

TEST(test_reset_while_waiting)
{
	resets_while_loading(false);
}

TEST(test_reset_while_copying)
{
	resets_while_loading(true);
}
