/* SPDX-License-Identifier: Apache-2.0 */
/* Gathered buffers in place whose other slices are in frames: in_place.c. Those without are in
 * test_in_place.c. */
#include "base/mem.h"
#include "core/engine/journal.h"
#include "tests/unit/core/team_rig.h"

#define SLICE (8 * CORE_KIB) /* the least that is gathered in place */
#define RANKS 3u

static void start(struct rig *rig, const struct core_options *some)
{
	struct core_options options = some ? *some : (struct core_options){.ndevices = RANKS};
	options.ndevices = RANKS;
	rig_open(rig, RANKS, RANKS * SLICE, &options);
}

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, start(rig, NULL), core_rig_end)

static struct zd_location shard_of(struct rig *rig, uint32_t rank, const struct core_unit *unit)
{
	uint64_t request = core_register(rig->core, rig->team.session[rank], rig->team.group, unit);
	return core_expect(rig->core, request, 0)->place;
}

static const struct zd_reply *gather_of(struct rig *rig, uint32_t rank, uint64_t unit)
{
	return core_expect(rig->core, core_gather(rig->core, rig->team.session[rank], unit), 0);
}

static const struct zd_reply *gather(struct rig *rig, uint32_t rank)
{
	return gather_of(rig, rank, rig->unit);
}

/* `value` 0: without a fence. */
static void release_of(struct rig *rig, uint32_t rank, uint64_t unit, uint64_t value)
{
	const struct zd_fence fence = {STREAM, value};
	uint64_t session = rig->team.session[rank];
	core_expect(rig->core, core_release_tag(rig->core, session, unit, CORE_TAG, &fence, value > 0), 0);
}

static void release(struct rig *rig, uint32_t rank, uint64_t value)
{
	release_of(rig, rank, rig->unit, value);
}

static uint64_t update(struct rig *rig, uint32_t rank, bool ahead)
{
	struct zd_args args = {.kind = ZD_REQ_UPDATE_BEGIN,
	                       .u.update_begin = {.n_units = 1, .units = &rig->unit, .ahead = ahead}};
	return core_send(rig->core, rig->team.session[rank], &args);
}

/* Published when the rank's PUBLISHER has come to the value; 0: at once. */
static uint64_t publish_behind(struct rig *rig, uint32_t rank, uint64_t value, uint64_t deadline_ns)
{
	const struct zd_fence fence = {PUBLISHER, value};
	struct zd_args args = {.kind = ZD_REQ_PUBLISH,
	                       .u.publish = {.n_units = 1, .units = &rig->unit},
	                       .fences = {value > 0, &fence}};
	core_team_write(&rig->team, rig->unit, rank);
	return core_send_until(rig->core, rig->team.session[rank], deadline_ns, &args);
}

static bool same_frames(const struct zd_reply *a, const struct zd_reply *b)
{
	return same_place(a->frames.low, b->frames.low) && same_place(a->frames.high, b->frames.high);
}

static uint64_t segment_bytes(struct rig *rig, uint32_t segment)
{
	struct core_row row;
	core_row(rig->core, ZD__TABLE__SEGMENTS, segment, &row);
	return row.row->segment->bytes;
}

/* ---- Places -------------------------------------------------------------------------------------------- */

/* Each of the three is a whole segment, and the own slice is not copied. */
RIG_TEST(test_frames_of_each_rank)
{
	const struct core_unit unit = {.name = "w", .numel = RANKS * SLICE / 4};
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		uint32_t copies = core_count(rig->core, ZD_CMD_COPY);
		core_hold(rig->core, ZD_CMD_COPY);
		const struct zd_reply *reply = gather(rig, rank);
		assert_int_equal(core_count(rig->core, ZD_CMD_COPY), copies + RANKS - 1);
		assert_int_equal(reply->fences.count, RANKS - 1);
		assert_false(is_there(rig, reply));
		core_unhold(rig->core, ZD_CMD_COPY);
		assert_true(is_there(rig, reply));
		core_team_check(&rig->team, reply, 1);
		struct zd_location own = reply->frames.own;
		assert_true(same_place(own, shard_of(rig, rank, &unit)));
		struct zd_location parts[] = {reply->frames.low, own, reply->frames.high};
		uint64_t bytes[] = {rank * SLICE, SLICE, (RANKS - 1 - rank) * SLICE};
		for (int i = 0; i < 3; i++) {
			assert_int_equal(parts[i].bytes, bytes[i]);
			assert_int_equal(parts[i].segment != 0, bytes[i] > 0);
			assert_int_equal(parts[i].offset, 0);
			if (bytes[i] > 0)
				assert_int_equal(segment_bytes(rig, parts[i].segment), bytes[i]);
		}
		assert_int_equal(core_usage(rig->core).gathered_bytes, (rank + 1) * (RANKS - 1) * SLICE);
	}
}

/* Slices below two granules are copied whole, and so are units that ask for it. Others are padded to
 * granules. */
RIG_TEST(test_units_in_place)
{
	const struct core_unit small = {.name = "s", .numel = RANKS * (SLICE - ZD_SHARD_ALIGN_BYTES) / 4};
	const struct core_unit copied = {.name = "c", .numel = RANKS * SLICE + 1, .copied = true};
	const struct core_unit odd = {.name = "o", .numel = RANKS * SLICE / 4 + 1};
	const struct core_unit *units[] = {&small, &copied, &odd};
	for (int i = 0; i < 3; i++) {
		uint64_t id = core_team_register(&rig->team, units[i]);
		core_team_publish(&rig->team, id);
		const struct zd_reply *reply = gather_of(rig, 1, id);
		core_team_check(&rig->team, reply, 1);
		assert_int_equal(reply->frames.own.segment != 0, units[i] == &odd);
	}
	assert_int_equal(shard_of(rig, 0, &odd).bytes, SLICE + 4096);
	assert_int_equal(shard_of(rig, 0, &copied).bytes, 4 * SLICE + ZD_SHARD_ALIGN_BYTES);
}

/* One of the four maps frames. The others get whole copies of the same padded unit. */
ENGINE_TEST(test_sessions_that_map_no_frames, .ndevices = 1)
{
	struct core_team team = {.core = core, .world_size = 4, .nranks = 4};
	struct rig rig = {.core = core};
	uint64_t join[4];
	for (uint32_t rank = 0; rank < 4; rank++) {
		const struct zd_peer peer = {.uid = CORE_ALICE, .maps_frames = rank > 0, .name = "trainer"};
		team.session[rank] = rank < 2    ? core_open_peer(core, &peer)
		                     : rank == 2 ? core_open_strict(core, CORE_ALICE)
		                                 : core_open_poison(core, CORE_ALICE, false);
		join[rank] = core_join(core, team.session[rank],
		                       &(struct core_join){.world_size = 4, .rank = rank});
	}
	for (uint32_t rank = 0; rank < 4; rank++)
		team.group = core_expect(core, join[rank], 0)->u.group_join.group;
	rig.unit = core_team_register(&team, &(struct core_unit){.name = "w", .numel = SLICE + 1});
	core_team_publish(&team, rig.unit);
	rig.team = team;
	for (uint32_t rank = 0; rank < 4; rank++) {
		const struct zd_reply *reply = gather(&rig, rank);
		core_team_check(&team, reply, 1);
		assert_int_equal(reply->frames.own.segment != 0, rank == 1);
		if (rank != 1)
			assert_int_equal(reply->place.bytes, 4 * (SLICE + 4096));
	}
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(core, update(&rig, rank, false), rank == 1 ? ZEROD_E_BUSY : 0);
}

/* ---- Viewers ------------------------------------------------------------------------------------------- */

/* The lease was given ahead of a publish that failed. */
RIG_TEST(test_publish_under_a_lease)
{
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_expect(rig->core, update(rig, rank, false), 0);
	for (uint32_t rank = 1; rank < RANKS; rank++)
		core_expect(rig->core, publish_behind(rig, rank, 0, 0), 0);
	uint64_t failed = publish_behind(rig, 0, 1, 100);
	gather(rig, 0);
	core_tick(rig->core, 100);
	core_expect(rig->core, failed, ZEROD_E_DEADLINE);
	core_do(rig->core, rig->team.session[0], ZD_REQ_SESSION_RESET, 0);
	struct zd_args args = {.kind = ZD_REQ_PUBLISH,
	                       .u.publish = {.n_units = 1, .units = &rig->unit, .force = true}};
	core_expect_error(rig->core, core_send(rig->core, rig->team.session[0], &args), ZEROD_E_BUSY,
	                  "'w' is held on rank 0 by '" CORE_TAG "'");
	release(rig, 0, 0);
	core_call(rig->core, rig->team.session[0], &args, 0);
	core_team_check(&rig->team, gather(rig, 0), 2);
}

/* Transfers to other ranks are awaited. Behind viewers the update is granted ahead, and its publish waits. */
RIG_TEST(test_update_ahead_of_viewers)
{
	gather(rig, 0);
	release(rig, 0, 1);
	core_hold(rig->core, ZD_CMD_COPY);
	gather(rig, 1);
	uint64_t begun = update(rig, 0, true);
	core_expect_waits(rig->core, begun, "2 readers that read the shard of rank 0 of unit 'w'");
	core_unhold(rig->core, ZD_CMD_COPY);
	struct zd_fence granted = core_expect(rig->core, begun, 0)->fence;
	assert_int_not_equal(granted.value, 0);
	uint64_t published = publish_behind(rig, 0, 0, 0);
	core_expect_waits(rig->core, published, "1 consumer that reads the shard of rank 0 of unit 'w'");
	assert_true(core_timeline(rig->core, rig->team.session[0], granted.timeline) < granted.value);
	core_pass(rig->core, rig->team.session[0], STREAM, 1);
	assert_true(core_timeline(rig->core, rig->team.session[0], granted.timeline) == granted.value);
	core_expect(rig->core, published, 0);
}

/* Other ranks may write theirs: frames are copies. */
RIG_TEST(test_prefetch_of_a_former_version)
{
	uint64_t session = rig->team.session[0];
	core_expect(rig->core, core_prefetch(rig->core, session, rig->unit), 0);
	core_team_publish_rank(&rig->team, rig->unit, 1);
	core_team_check(&rig->team,
	                core_expect(rig->core, core_gather_version(rig->core, session, rig->unit, 1), 0), 1);
	release(rig, 0, 0);
	core_team_publish_rank(&rig->team, rig->unit, 2);
	core_team_publish_rank(&rig->team, rig->unit, 0);
	uint32_t copies = core_count(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, core_prefetch(rig->core, session, rig->unit), 0);
	core_expect(rig->core, update(rig, 0, false), 0);
	core_expect(rig->core, core_gather_version(rig->core, session, rig->unit, 2), ZEROD_E_STALE_VERSION);
	core_expect(rig->core, publish_behind(rig, 0, 0, 0), 0);
	uint64_t next = core_gather(rig->core, session, rig->unit);
	core_expect_waits(rig->core, next, "to publish version 3");
	core_team_publish_rank(&rig->team, rig->unit, 1);
	core_team_publish_rank(&rig->team, rig->unit, 2);
	core_team_check(&rig->team, core_expect(rig->core, next, 0), 3);
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), copies + 2 * (RANKS - 1));
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* The frames are for the largest unit of the slot: a smaller one's slices border on the own part. A
 * copied unit has memory of its own in the slot, which still has one occupant. */
RIG_TEST(test_slot)
{
	uint64_t small, large, copied;
	small = core_team_slot_unit(&rig->team, "small", RANKS * SLICE, 1);
	large = core_team_slot_unit(&rig->team, "large", 2 * RANKS * SLICE, 1);
	copied = core_team_slot_unit(&rig->team, "copied", RANKS * ZD_SHARD_ALIGN_BYTES, 1);
	const uint64_t units[] = {small, large, copied, small, copied, large};
	struct zd_frames first[3] = {{.low = {0}}};
	for (unsigned i = 0; i < ZD_ARRAY_LEN(units); i++) {
		core_hold(rig->core, ZD_CMD_COPY);
		const struct zd_reply *reply = gather_of(rig, 1, units[i]);
		core_expect_error(
		        rig->core,
		        core_gather(rig->core, rig->team.session[1], units[i] == small ? copied : small),
		        ZEROD_E_SLOT_CONFLICT, "slot 1 holds unit");
		core_unhold(rig->core, ZD_CMD_COPY);
		if (i > 0) { /* behind the stream of the former occupant */
			assert_false(is_there(rig, reply));
			core_pass(rig->core, rig->team.session[1], STREAM, i);
		}
		assert_true(is_there(rig, reply));
		core_team_check(&rig->team, reply, 1);
		struct zd_frames *place = &first[units[i] == small ? 0 : units[i] == large ? 1 : 2];
		if (units[i] == copied)
			place->own = place->own.segment ? place->own : reply->place;
		else if (!place->own.segment)
			*place = reply->frames;
		assert_true(units[i] == copied ? same_place(place->own, reply->place)
		                               : same_place(place->low, reply->frames.low) &&
		                                         same_place(place->high, reply->frames.high));
		release_of(rig, 1, units[i], i + 1);
	}
	assert_true(first[0].low.segment == first[1].low.segment &&
	            first[0].high.segment == first[1].high.segment);
	assert_int_equal(first[0].low.offset, SLICE);
	assert_int_equal(first[0].high.offset, 0);
}

/* A refresh fills the frames, behind the streams that read the former version there. */
RIG_TEST(test_persistent)
{
	uint64_t session = rig->team.session[0];
	core_expect(rig->core, core_set_persistent(rig->core, session, rig->unit, true), 0);
	const struct zd_reply *first = gather(rig, 0);
	release(rig, 0, 1);
	struct zd_fence granted = core_expect(rig->core, update(rig, 0, true), 0)->fence;
	assert_int_not_equal(granted.value, 0);
	uint64_t published = publish_behind(rig, 0, 0, 0);
	core_team_publish_rank(&rig->team, rig->unit, 1);
	core_team_publish_rank(&rig->team, rig->unit, 2);
	uint32_t copies = core_count(rig->core, ZD_CMD_COPY);
	const struct zd_reply *next = gather(rig, 0);
	assert_true(same_frames(first, next));
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), copies);
	core_pass(rig->core, session, STREAM, 1);
	core_expect(rig->core, published, 0);
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), copies + RANKS - 1);
	assert_true(is_there(rig, next));
	core_team_check(&rig->team, next, 2);
}

/* Frames in quarantine: first those of the same unit, which the client has mapped for it, then the oldest. */
TEST(test_heirs)
{
	struct rig rig;
	const struct zd_reply *reply[3], *again;
	start(&rig, &(struct core_options){.segment_bytes = 32 * CORE_KIB});
	const uint64_t units[] = {rig.unit, core_team_unit(&rig.team, "x", RANKS * SLICE),
	                          core_team_unit(&rig.team, "y", RANKS * SLICE)};
	for (uint32_t i = 0; i < 2; i++) {
		reply[i] = gather_of(&rig, 1, units[i]);
		release_of(&rig, 1, units[i], i + 1);
	}
	assert_int_equal(core_quarantine(rig.core, 1), 2 * (RANKS - 1) * SLICE);
	again = gather_of(&rig, 1, units[1]);
	assert_true(same_frames(again, reply[1]));
	reply[2] = gather_of(&rig, 1, units[2]);
	assert_true(same_frames(reply[2], reply[0]));
	assert_false(is_there(&rig, again) || is_there(&rig, reply[2]));
	core_pass(rig.core, rig.team.session[1], STREAM, 2);
	assert_true(is_there(&rig, again) && is_there(&rig, reply[2]));
	core_team_check(&rig.team, again, 1);
	core_team_check(&rig.team, reply[2], 1);
	uint32_t segments = core_count(rig.core, ZD_CMD_SEGMENT_CREATE);
	release_of(&rig, 1, units[1], 0); /* and frames that are free */
	gather(&rig, 1);
	assert_int_equal(core_count(rig.core, ZD_CMD_SEGMENT_CREATE), segments);
	core_end(rig.core);
}

/* A gather that waits for frames is released, its unit's shard is freed, and then its session ends. */
TEST(test_heir_of_a_unit_that_is_unregistered)
{
	struct rig rig;
	start(&rig, &(struct core_options){.segment_bytes = 32 * CORE_KIB});
	const uint64_t units[] = {rig.unit, core_team_unit(&rig.team, "x", RANKS * SLICE),
	                          core_team_unit(&rig.team, "y", RANKS * SLICE)};
	uint64_t session = rig.team.session[1];
	for (uint32_t i = 0; i < 2; i++) {
		(void)gather_of(&rig, 1, units[i]);
		release_of(&rig, 1, units[i], i + 1);
	}
	assert_false(is_there(&rig, gather_of(&rig, 1, units[2])));
	release_of(&rig, 1, units[2], 0);
	core_expect(rig.core, core_simple(rig.core, session, ZD_REQ_UNIT_UNREGISTER, units[2]), 0);
	core_close(rig.core, session);
	core_end(rig.core);
}

/* Idle frames are unmapped and freed when an allocation needs the room; shards stay. */
TEST(test_frames_retire)
{
	struct rig rig;
	start(&rig, &(struct core_options){.arena_bytes = 4 * SLICE, .sessions_map = true});
	const struct zd_reply *reply = gather(&rig, 1);
	uint64_t session = rig.team.session[1], alloc = core_alloc(rig.core, session, "job", 1, 2 * SLICE);
	core_expect(rig.core, alloc, ZEROD_E_NO_MEMORY);
	release(&rig, 1, 0);
	alloc = core_alloc(rig.core, session, "job", 1, 2 * SLICE);
	uint32_t told = core_told(rig.core, session);
	assert_true(told == reply->frames.low.segment || told == reply->frames.high.segment);
	core_unmap(rig.core, session);
	uint64_t allocation = core_expect(rig.core, alloc, 0)->u.alloc.allocation;
	core_expect(rig.core, core_free(rig.core, session, allocation, NULL), 0);
	uint64_t again = core_gather(rig.core, session, rig.unit);
	while (core_told(rig.core, session))
		core_unmap(rig.core, session);
	core_team_check(&rig.team, core_expect(rig.core, again, 0), 1);
	core_end(rig.core);
}

/* Both frames of a prefetched buffer, which ends with the first of them. */
RIG_TEST(test_trim)
{
	struct zd_args args = {.kind = ZD_REQ_TRIM, .u.trim = {.device = 1}};
	core_expect(rig->core, core_prefetch(rig->core, rig->team.session[1], rig->unit), 0);
	const struct zd_reply *reply = core_call(rig->core, rig->team.session[1], &args, 0);
	assert_int_equal(reply->u.trim.freed_bytes, (RANKS - 1) * SLICE);
	core_team_check(&rig->team, gather(rig, 1), 1);
}

static void place(struct rig *rig, bool on_host, int status)
{
	uint64_t requests[RANKS];
	struct zd_args args = {.kind = ZD_REQ_UNIT_PLACE,
	                       .u.unit_place = {.unit = rig->unit, .on_host = on_host}};
	for (uint32_t rank = 0; rank < RANKS; rank++)
		requests[rank] = core_send(rig->core, rig->team.session[rank], &args);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		core_expect(rig->core, requests[rank], status);
}

/* A copy made on the host serves its version on the device, too. */
TEST(test_moves)
{
	struct rig rig;
	start(&rig, &(struct core_options){.host_arena_bytes = CORE_MIB});
	gather(&rig, 1);
	place(&rig, true, ZEROD_E_BUSY);
	release(&rig, 1, 0);
	core_expect(rig.core, core_prefetch(rig.core, rig.team.session[2], rig.unit), 0);
	place(&rig, true, 0);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		const struct zd_reply *reply = gather(&rig, rank);
		assert_int_equal(reply->place.bytes, RANKS * SLICE);
		core_team_check(&rig.team, reply, 1);
		if (rank != 1)
			release(&rig, rank, 0);
	}
	place(&rig, false, 0);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		const struct zd_reply *reply = gather(&rig, rank);
		assert_int_equal(reply->frames.own.segment == 0, rank == 1);
		core_team_check(&rig.team, reply, 1);
		release(&rig, rank, 0);
	}
	release(&rig, 1, 0);
	core_team_publish(&rig.team, rig.unit);
	const struct zd_reply *reply = gather(&rig, 1);
	assert_int_equal(segment_bytes(&rig, reply->frames.own.segment), SLICE);
	core_team_check(&rig.team, reply, 2);
	core_end(rig.core);
}

/* ---- Restarts ------------------------------------------------------------------------------------------ */

/* Clears `copied` of the units' records: so version 5 of the journal recorded units. */
static void make_former(struct core_driver *core)
{
	size_t nbytes;
	const uint8_t *bytes = core_journal_bytes(core, &nbytes);
	unsigned units = 0;
	for (size_t at = 0; at < nbytes;
	     at += ((const struct zd_record *)(const void *)(bytes + at))->bytes) {
		struct zd_record_unit *unit = (struct zd_record_unit *)(uintptr_t)(bytes + at);
		if (unit->record.type != ZD_RECORD_UNIT)
			continue;
		assert_true(unit->copied && !unit->in_place);
		unit->copied = 0;
		units++;
	}
	assert_true(units > 0);
}

TEST(test_restored_units)
{
	for (int former = 0; former < 2; former++) {
		struct rig rig = {.core = core_new(&(struct core_options){.ndevices = RANKS})};
		struct core_unit unit = {.name = "w", .numel = RANKS * SLICE / 4 + 1, .copied = former};
		const struct core_join join = {.world_size = RANKS, .durable = true};
		struct zd_location shard[RANKS];
		core_journal(rig.core);
		core_team_join(&rig.team, rig.core, &join);
		rig.unit = core_team_register(&rig.team, &unit);
		core_team_publish(&rig.team, rig.unit);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			shard[rank] = shard_of(&rig, rank, &unit);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			core_commit(rig.core, rig.team.session[rank], rig.team.group, 1);
		if (former)
			make_former(rig.core);
		core_restart(rig.core);
		core_team_join(&rig.team, rig.core, &join);
		unit.copied = false;
		assert_true(core_team_register(&rig.team, &unit) == rig.unit);
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			assert_true(same_place(shard_of(&rig, rank, &unit), shard[rank]));
			const struct zd_reply *reply = gather(&rig, rank);
			core_team_check(&rig.team, reply, 1);
			assert_int_equal(reply->frames.own.segment == 0, former);
			release(&rig, rank, 0);
			if (!former)
				assert_int_equal(segment_bytes(&rig, shard[rank].segment), shard[rank].bytes);
		}
		core_team_publish(&rig.team, rig.unit);
		core_team_check(&rig.team, gather(&rig, 1), 2);
		core_end(rig.core);
	}
}
