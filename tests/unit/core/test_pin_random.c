/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers that pin commits or read host copies of them, at random, beside ranks that update, publish, commit
 * and save. Some groups have shadows, and lose a rank that joins again. Commands end in any order, copies
 * fail, and other requests need the memory. Each byte that is read, or counts as mapped, is of its step, and
 * no update waits for a reader. All follows from the seed, which a failure prints.
 */
#include "core/engine/objects.h"
#include "tests/support/core_driver.h"
#include "tests/support/sweep.h"

#define SEEDS   400
#define MOVES   400
#define RANKS   2u
#define UNITS   2u
#define READERS 3u
#define BYTES   (64 * CORE_KIB)

struct reader {
	uint64_t session, into, read, step, unit;
	bool saved; /* the step is of a host copy */
	struct zd_location place;
	struct zd_args map; /* a request, whose `mapped` is 0 if there is no mapping */
	struct zd_location mapped;
};

static const char *const names[UNITS] = {"a", "b"};

struct rig {
	struct core_driver *core;
	struct core_join join;
	struct core_team team;
	uint64_t random, step, now_ns;
	uint64_t unit[UNITS], update[RANKS][UNITS], publish[RANKS][UNITS], version[RANKS][UNITS];
	bool updates[UNITS];                 /* between the last commit and the next one */
	uint8_t committed[MOVES + 2][UNITS]; /* versions, by step */
	struct reader readers[READERS];
	uint64_t alloc; /* that fills a device */
	uint64_t save[RANKS];
};

/* Reads and mappings, of all seeds. Old: of a step before the last one, with shadows. Copied: of one that was
 * in a host copy. */
static uint32_t wholes, stales, olds, counted, copied;

static uint32_t below(struct rig *rig, uint32_t n)
{
	rig->random = rig->random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(rig->random >> 33) % n;
}

static const struct zd_reply *finish(struct rig *rig, uint64_t request)
{
	while (!core_reply(rig->core, request))
		assert_true(core_run_nth(rig->core, 0));
	return core_reply(rig->core, request);
}

/* ---- Readers ------------------------------------------------------------------------------------------- */

static void open_reader(struct rig *rig, struct reader *reader)
{
	*reader = (struct reader){.session = core_open(rig->core, CORE_ALICE)};
	uint64_t alloc = core_alloc(rig->core, reader->session, "reader", below(rig, RANKS), BYTES);
	const struct zd_reply *reply = finish(rig, alloc);
	reader->into = reply->status == 0 ? reply->u.alloc.allocation : 0;
	reader->place = reply->place;
}

static void wait_commit(struct rig *rig, struct reader *reader)
{
	const struct zd_group *group = core_engine(rig->core)->groups;
	reader->saved = group->saved && below(rig, 3) == 0;
	const struct zd_args args = {.kind = ZD_REQ_COMMIT_WAIT,
	                             .u.commit_wait = {.job = (char *)"job",
	                                               .group = (char *)"world",
	                                               .pin = !reader->saved && below(rig, 4) > 0,
	                                               .saved = reader->saved}};
	reader->step = core_call(rig->core, reader->session, &args, 0)->u.commit_wait.step;
}

/* Maps a shard, or ends that, and checks the bytes unless they are stale. */
static void go_on_mapping(struct rig *rig, struct reader *reader)
{
	Zd__UnitRead *map = &reader->map.u.unit_read;
	bool ends = map->mapped != 0;
	if (!reader->step)
		return;
	if (!ends) {
		uint32_t rank = below(rig, RANKS);
		reader->map = (struct zd_args){.kind = ZD_REQ_UNIT_READ,
		                               .u.unit_read = {.group = rig->team.group,
		                                               .unit = (char *)names[below(rig, UNITS)],
		                                               .step = reader->step,
		                                               .offset = rank * (BYTES / RANKS),
		                                               .map_bytes = BYTES / RANKS,
		                                               .device = rank}};
	}
	const struct zd_reply *reply = core_reply(rig->core,
	                                          core_send(rig->core, reader->session, &reader->map));
	assert_true(reply->status == 0 || reply->status == ZEROD_E_STALE_VERSION ||
	            reply->status == ZEROD_E_TORN || (!ends && reply->status == ZEROD_E_BUSY));
	if (!ends)
		reader->mapped = reply->place;
	for (uint32_t i = 0; i < BYTES / RANKS && reply->status == 0 && reader->mapped.segment; i += 64)
		assert_int_equal(core_bytes(rig->core, reader->mapped)[i],
		                 core_pattern(map->device, rig->committed[map->step][map->unit[0] - 'a']));
	counted += ends && reply->status == 0;
	map->mapped = ends || reply->status ? 0 : reply->u.unit_read.mapped;
}

/* Checks what it has read, and reads again. */
static void go_on_reading(struct rig *rig, struct reader *reader)
{
	const struct zd_reply *reply = reader->read ? core_reply(rig->core, reader->read) : NULL;
	if (reader->read && !reply)
		return;
	if (reply && reply->status == 0) {
		const uint8_t *bytes = core_bytes(rig->core, reader->place);
		for (uint32_t i = 0; i < BYTES; i += 64)
			assert_int_equal(bytes[i], core_pattern(i / (BYTES / RANKS),
			                                        rig->committed[reader->step][reader->unit]));
		wholes++;
		olds += rig->join.shadow && !reader->saved && reader->step < rig->step;
		copied += reader->saved && reader->step < rig->step;
	} else if (reply) {
		stales += reply->status == ZEROD_E_STALE_VERSION;
		assert_true(reply->status == ZEROD_E_STALE_VERSION || reply->status == ZEROD_E_BUSY ||
		            reply->status == ZEROD_E_DEVICE || reply->status == ZEROD_E_TORN);
	}
	reader->read = 0;
	if (!reader->step || below(rig, 8) == 0)
		wait_commit(rig, reader);
	reader->unit = below(rig, UNITS);
	if (reader->into)
		reader->read =
		        core_send(rig->core, reader->session,
		                  &(struct zd_args){.kind = ZD_REQ_UNIT_READ,
		                                    .u.unit_read = {.group = rig->team.group,
		                                                    .unit = (char *)names[reader->unit],
		                                                    .step = reader->step,
		                                                    .bytes = BYTES,
		                                                    .allocation = reader->into}});
}

/* ---- Ranks --------------------------------------------------------------------------------------------- */

static void update(struct rig *rig, uint32_t rank, uint32_t unit)
{
	uint64_t session = rig->team.session[rank];
	uint64_t *updates = &rig->update[rank][unit], *publish = &rig->publish[rank][unit];
	const struct zd_reply *reply = *updates ? core_reply(rig->core, *updates) : NULL;
	if (*publish && core_reply(rig->core, *publish)) {
		core_expect(rig->core, *publish, 0);
		rig->version[rank][unit]++;
		*updates = *publish = 0;
	} else if (reply && reply->status == ZEROD_E_DEVICE && rig->join.shadow) {
		*updates = 0; /* the shard was not saved */
	} else if (reply && !*publish) {
		const struct zd_fence fence = core_expect(rig->core, *updates, 0)->fence;
		if (fence.value && core_timeline(rig->core, session, fence.timeline) < fence.value)
			return; /* its stream waits */
		core_team_write(&rig->team, rig->unit[unit], rank);
		*publish = core_publish(rig->core, session, rig->unit[unit]);
	} else if (!*updates && rig->updates[unit] &&
	           rig->version[rank][unit] == rig->committed[rig->step][unit]) {
		const struct zd_args args = {
		        .kind = ZD_REQ_UPDATE_BEGIN,
		        .u.update_begin = {.n_units = 1, .units = &rig->unit[unit], .ahead = below(rig, 2)}};
		*updates = core_send(rig->core, session, &args);
	}
}

static void commit(struct rig *rig)
{
	uint64_t request[RANKS];
	for (uint32_t unit = 0; unit < UNITS; unit++) {
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			if (rig->update[rank][unit] ||
			    rig->version[rank][unit] !=
			            rig->committed[rig->step][unit] + (uint64_t)rig->updates[unit])
				return;
		}
	}
	rig->step++;
	for (uint32_t rank = 0; rank < RANKS; rank++)
		request[rank] = core_commit(rig->core, rig->team.session[rank], rig->team.group, rig->step);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_expect(rig->core, request[rank], 0);
	for (uint32_t unit = 0; unit < UNITS; unit++) {
		rig->committed[rig->step][unit] = (uint8_t)rig->version[0][unit];
		rig->updates[unit] = below(rig, 3) > 0;
	}
}

static void save(struct rig *rig, uint32_t rank)
{
	const struct zd_reply *reply = rig->save[rank] ? core_reply(rig->core, rig->save[rank]) : NULL;
	const struct zd_args args = {
	        .kind = ZD_REQ_COMMIT_SAVE,
	        .u.commit_save = {.group = rig->team.group, .step = below(rig, 20) ? rig->step : 0}};
	if (rig->save[rank] && !reply)
		return;
	if (reply)
		assert_true(reply->status == 0 || reply->status == ZEROD_E_STALE_VERSION ||
		            reply->status == ZEROD_E_BUSY || reply->status == ZEROD_E_DEVICE ||
		            reply->status == ZEROD_E_NO_MEMORY || reply->status == ZEROD_E_PEER_LOST);
	rig->save[rank] = core_send(rig->core, rig->team.session[rank], &args);
}

/* One rank is lost and joins again. The group is set back to its last commit. */
static void lose_rank(struct rig *rig)
{
	uint64_t *session = rig->team.session, request[RANKS];
	core_fail_next(rig->core, ZD_CMD_COPY, 0, NULL); /* a failed restore would tear the group */
	core_close(rig->core, session[1]);
	rig->save[1] = 0;
	session[1] = core_open(rig->core, CORE_ALICE);
	request[0] = core_simple(rig->core, session[0], ZD_REQ_SESSION_RESET, 0);
	request[1] = core_join(rig->core, session[1], &rig->join);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		assert_int_equal(finish(rig, request[rank])->status, 0);
	for (uint32_t i = 0; i < RANKS * UNITS; i++) {
		uint32_t unit = i / RANKS, rank = i % RANKS;
		const struct core_unit again = {.name = names[unit], .numel = BYTES / 4};
		uint64_t registers = core_register(rig->core, session[rank], rig->team.group, &again);
		assert_int_equal(finish(rig, registers)->status, 0);
		rig->update[rank][unit] = rig->publish[rank][unit] = 0;
		rig->version[rank][unit] = rig->committed[rig->step][unit];
	}
}

/* ---- Moves --------------------------------------------------------------------------------------------- */

static void fill_device(struct rig *rig)
{
	struct zd_args args = {.kind = ZD_REQ_FREE, .u.free.allocation = 0};
	const struct zd_reply *reply = rig->alloc ? core_reply(rig->core, rig->alloc) : NULL;
	if (rig->alloc && !reply)
		return;
	if (reply && reply->status == 0) {
		args.u.free.allocation = reply->u.alloc.allocation;
		core_call(rig->core, rig->team.session[0], &args, 0);
	}
	rig->alloc = reply ? 0
	                   : core_alloc(rig->core, rig->team.session[0], "job", below(rig, RANKS),
	                                128 * CORE_KIB);
}

static void move(struct rig *rig)
{
	struct reader *reader = &rig->readers[below(rig, READERS)];
	if (rig->join.shadow && below(rig, 100) == 0)
		lose_rank(rig);
	switch (below(rig, 24)) {
	case 0:
		rig->now_ns += 1000000000u; /* pins have deadlines */
		core_tick(rig->core, rig->now_ns);
		core_close(rig->core, reader->session);
		open_reader(rig, reader);
		break;
	case 1:
		fill_device(rig);
		break;
	case 2:
		if (below(rig, 4) == 0)
			core_fail_next(rig->core, below(rig, 2) ? ZD_CMD_COPY : ZD_CMD_SEGMENT_CREATE,
			               ZEROD_E_DEVICE, "broken");
		break;
	case 3:
	case 4:
	case 5:
	case 6:
		go_on_reading(rig, reader);
		go_on_mapping(rig, reader);
		break;
	case 7:
	case 8:
		commit(rig);
		break;
	case 9:
	case 10:
	case 11:
	case 12:
		update(rig, below(rig, RANKS), below(rig, UNITS));
		break;
	case 13:
		save(rig, below(rig, RANKS));
		break;
	default:
		(void)core_run_nth(rig->core, below(rig, 8));
	}
}

static void run(uint64_t seed)
{
	struct core_options options = {
	        .arena_bytes = 512 * CORE_KIB, .host_arena_bytes = 512 * CORE_KIB, .unordered = true};
	struct rig rig = {.random = seed, .step = 1, .updates = {true, true}};
	rig.join = (struct core_join){.world_size = RANKS,
	                              .rank = 1,
	                              .device = 1,
	                              .durable = seed % 3 < 2,
	                              .shadow = seed % 3 == 0};
	rig.core = core_new(&options);
	core_team_join(&rig.team, rig.core, &rig.join);
	for (uint32_t unit = 0; unit < UNITS; unit++) {
		rig.unit[unit] = core_team_unit(&rig.team, names[unit], BYTES);
		rig.committed[1][unit] = 1;
		rig.version[0][unit] = rig.version[1][unit] = 1;
	}
	uint64_t first = core_commit(rig.core, rig.team.session[0], rig.team.group, 1);
	core_expect(rig.core, core_commit(rig.core, rig.team.session[1], rig.team.group, 1), 0);
	core_expect(rig.core, first, 0);
	for (uint32_t i = 0; i < READERS; i++)
		open_reader(&rig, &rig.readers[i]);
	core_hold(rig.core, ZD_CMD_COPY);
	core_hold(rig.core, ZD_CMD_SEGMENT_CREATE);
	for (uint32_t i = 0; i < MOVES; i++)
		move(&rig);
	core_unhold(rig.core, ZD_CMD_COPY);
	core_unhold(rig.core, ZD_CMD_SEGMENT_CREATE);
	for (uint32_t i = 0; i < 8 * RANKS * UNITS; i++) /* no rank waits any more */
		update(&rig, i % RANKS, i / RANKS % UNITS);
	uint64_t before = rig.step;
	commit(&rig);
	assert_int_equal(rig.step, before + 1);
	core_end(rig.core);
}

TEST(test_random)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed += sweep_step()) {
		print_message("seed %llu\r", (unsigned long long)seed);
		run(seed);
	}
	print_message(
	        "%u reads were whole, %u stale, %u of pinned steps in shadow groups, %u of host copies, %u "
	        "mappings counted\n",
	        wholes, stales, olds, copied, counted);
	assert_true(wholes > 0 && stales > 0 && olds > 0 && copied > 0 && counted > 0);
}
