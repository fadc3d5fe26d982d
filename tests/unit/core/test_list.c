/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listings: what a row says, who sees it, pages.
 */
#include <stdio.h>

#include "base/mem.h"
#include "tests/support/core_driver.h"

#define UNIT_BYTES 1024u
#define SECOND     1000000000ull

struct rig {
	struct core_driver *core;
	struct core_team team, bobs; /* the first of two ranks */
	uint64_t session;
	uint64_t unit; /* at version 1 */
};

/* A job of Bob's under the same name, with one of everything. */
static void bob_starts(struct rig *rig)
{
	struct zd_args bucket = {.kind = ZD_REQ_BUCKET_CREATE, .u.bucket_create = {.dtype = ZEROD_FLOAT32}};
	struct core_team *bobs = &rig->bobs;
	*bobs = (struct core_team){.core = rig->core, .world_size = 1, .nranks = 1};
	bobs->session[0] = core_open(rig->core, CORE_BOB);
	uint64_t join = core_join(rig->core, bobs->session[0], &(struct core_join){.world_size = 1});
	bobs->group = core_expect(rig->core, join, 0)->u.group_join.group;
	uint64_t unit = core_team_unit(bobs, "w", UNIT_BYTES);
	core_expect(rig->core, core_gather(rig->core, bobs->session[0], unit), 0);
	core_expect(rig->core, core_alloc(rig->core, bobs->session[0], "job", 0, 256), 0);
	bucket.u.bucket_create.group = bobs->group;
	core_call(rig->core, bobs->session[0], &bucket, 0);
}

static void start(struct rig *rig)
{
	*rig = (struct rig){.core = core_new(NULL)};
	core_tick(rig->core, SECOND);
	rig->team = core_team_new(rig->core, "job", 2, false);
	rig->session = rig->team.session[0];
	rig->unit = core_team_unit(&rig->team, "w", UNIT_BYTES);
}

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, start(rig), core_rig_end)

/* ---- What rows say ------------------------------------------------------------------------------------- */

RIG_TEST(test_device_rows)
{
	static const struct zd_fence slow = {1, 1};
	struct core_row row[2];
	core_expect(rig->core, core_gather(rig->core, rig->session, rig->unit), 0);
	core_expect(rig->core, core_gather_tag(rig->core, rig->session, rig->unit, "eager", 1), 0);
	uint64_t id = core_alloc_ok(rig->core, rig->session, "job", 0, 768);
	core_expect(rig->core, core_free(rig->core, rig->session, id, &slow), 0);
	(void)core_gather_version(rig->core, rig->session, rig->unit, 9);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__DEVICES, row, 2), 2);
	assert_string_equal(row[0].name, "device0");
	assert_int_equal(row[0].id, 1);
	assert_int_equal(row[1].row->device->index, 1);
	assert_int_equal(row[0].row->device->arena_bytes, 4 * CORE_MIB);
	assert_int_equal(row[0].row->device->gather_budget_bytes, 4 * CORE_MIB);
	assert_true(row[0].row->device->segment_bytes >= UNIT_BYTES / 2 + UNIT_BYTES + 768);
	assert_int_equal(row[0].row->device->usage->shard_bytes, UNIT_BYTES / 2);
	assert_int_equal(row[0].row->device->usage->gathered_bytes, UNIT_BYTES);
	assert_int_equal(row[0].row->device->quarantine_bytes, 768);
	assert_int_equal(row[0].row->device->block_bytes, UNIT_BYTES / 2 + UNIT_BYTES + 768);
	assert_int_equal(row[0].row->device->usage->peak_bytes, UNIT_BYTES / 2 + UNIT_BYTES + 768);
	assert_int_equal(row[0].row->device->usage->peak_gathered_bytes, UNIT_BYTES);
	assert_int_equal(row[0].row->device->gathers, 1);
	assert_int_equal(row[0].row->device->joined_gathers, 1);
	assert_int_equal(row[0].row->device->waiting, 1);
	assert_int_equal(row[1].row->device->gathers, 0);
}

RIG_TEST(test_job_and_session_rows)
{
	struct core_row row[3];
	core_tick(rig->core, 5 * SECOND);
	uint64_t idle = core_open(rig->core, CORE_BOB);
	core_join_ok(rig->core, idle, &(struct core_join){.job = "own", .world_size = 1});
	assert_int_equal(core_rows(rig->core, ZD__TABLE__JOBS, row, 3), 2);
	assert_string_equal(row[0].job, "job");
	assert_int_equal(row[0].row->job->uid, CORE_ALICE);
	assert_int_equal(row[0].row->job->sessions, 2);
	assert_int_equal(row[0].row->job->groups, 1);
	assert_false(row[0].row->job->durable);
	assert_int_equal(row[0].row->job->usage->shard_bytes, UNIT_BYTES);
	assert_int_equal(row[1].row->job->sessions, 1);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__SESSIONS, row, 3), 3);
	assert_string_equal(row[0].name, "trainer");
	assert_string_equal(row[0].job, "job");
	assert_int_equal(row[0].row->session->uid, CORE_ALICE);
	assert_int_equal(row[0].row->session->pid, CORE_ALICE + 1);
	assert_true(row[0].row->session->age_ns == 4 * SECOND && row[0].row->session->idle_ns == 4 * SECOND);
	assert_true(row[2].row->session->age_ns == 0);
	assert_int_equal(row[0].row->session->n_waits, 0);
}

RIG_TEST(test_session_row_has_the_first_waits)
{
	struct core_row row;
	(void)core_commit(rig->core, rig->session, rig->team.group, 1);
	for (int i = 0; i < 12; i++)
		(void)core_gather_version(rig->core, rig->session, rig->unit, 9);
	core_row(rig->core, ZD__TABLE__SESSIONS, rig->session, &row);
	assert_int_equal(row.row->session->outstanding, 13);
	assert_int_equal(row.row->session->n_waits, 8);
	assert_string_equal(row.row->session->waits[0], "commit: rank 1 to commit");
	assert_string_equal(row.row->session->waits[7],
	                    "gather: rank 0 to publish version 9 of unit 'w' (has 1)");
}

RIG_TEST(test_group_and_unit_rows)
{
	static const struct core_view views[] = {{"a", 0, 1, {3}}, {"b", 3, 1, {2}}};
	struct core_row row[2];
	struct core_unit half = {.name = "half",
	                         .dtype = ZEROD_BFLOAT16,
	                         .numel = 5,
	                         .nviews = 2,
	                         .views = views,
	                         .slot = 4,
	                         .frozen = true};
	core_register_ok(rig->core, rig->team.session[1], rig->team.group, &half);
	core_expect(rig->core, core_gather(rig->core, rig->session, rig->unit), 0);
	core_team_publish_rank(&rig->team, rig->unit, 1);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__GROUPS, row, 1), 1);
	assert_string_equal(row[0].name, "world");
	assert_string_equal(row[0].state, "READY");
	assert_int_equal(row[0].row->group->units, 2);
	assert_int_equal(row[0].row->group->n_members, 2);
	assert_int_equal(row[0].row->group->members[1]->rank, 1);
	assert_int_equal(row[0].row->group->members[1]->device, 1);
	assert_int_equal(row[0].row->group->members[1]->pid, CORE_ALICE + 1);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__UNITS, row, 2), 2);
	assert_string_equal(row[0].name, "w");
	assert_string_equal(row[0].group, "world");
	assert_int_equal(row[0].row->unit->registered, 2);
	assert_int_equal(row[0].row->unit->gathered, 1);
	assert_int_equal(row[0].row->unit->views, 1);
	assert_int_equal(row[0].row->unit->version_min, 1);
	assert_int_equal(row[0].row->unit->version_max, 2);
	assert_int_equal(row[1].row->unit->dtype, ZEROD_BFLOAT16);
	assert_int_equal(row[1].row->unit->slot, 4);
	assert_int_equal(row[1].row->unit->views, 2);
	assert_int_equal(row[1].row->unit->registered, 1);
	assert_int_equal(row[1].row->unit->padded_bytes, 512);
	assert_true(row[1].row->unit->frozen);
}

RIG_TEST(test_unit_row_when_no_rank_has_it_any_more)
{
	struct core_row row;
	core_hold(rig->core, ZD_CMD_COPY);
	core_expect(rig->core, core_gather(rig->core, rig->session, rig->unit), 0);
	core_expect(rig->core, core_release(rig->core, rig->session, rig->unit), 0);
	for (uint32_t rank = 0; rank < 2; rank++)
		core_do(rig->core, rig->team.session[rank], ZD_REQ_UNIT_UNREGISTER, rig->unit);
	core_row(rig->core, ZD__TABLE__UNITS, rig->unit, &row); /* pushes still read it */
	assert_int_equal(row.row->unit->registered, 0);
	assert_int_equal(row.row->unit->version_min, 0);
	core_unhold(rig->core, ZD_CMD_COPY);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__UNITS, &row, 1), 0);
}

RIG_TEST(test_buffer_rows)
{
	struct core_row row[2];
	uint64_t odd = core_team_register(&rig->team, &(struct core_unit){.name = "odd", .numel = 3});
	core_team_publish(&rig->team, odd);
	core_expect(rig->core, core_gather_tag(rig->core, rig->session, odd, "plan", 2), 0);
	core_tick(rig->core, 3 * SECOND);
	core_expect(rig->core, core_gather_tag(rig->core, rig->session, odd, "eager", 1), 0);
	struct zd_args args = {
	        .kind = ZD_REQ_GATHER,
	        .u.gather = {.unit = rig->unit, .tag = (char *)"late", .uses = 4, .version = 2}};
	(void)core_send(rig->core, rig->session, &args);
	core_tick(rig->core, 4 * SECOND);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__BUFFERS, row, 2), 2);
	assert_string_equal(row[0].name, "odd");
	assert_string_equal(row[0].state, "AVAILABLE");
	assert_int_equal(row[0].row->buffer->true_bytes, 12);
	assert_int_equal(row[0].row->buffer->padded_bytes, 512);
	assert_true(row[0].row->buffer->age_ns == 3 * SECOND);
	assert_int_equal(row[0].row->buffer->n_holders, 2);
	assert_string_equal(row[0].row->buffer->holders[0]->tag, "plan");
	assert_int_equal(row[0].row->buffer->holders[0]->uses, 2);
	assert_true(row[0].row->buffer->holders[0]->age_ns == 3 * SECOND);
	assert_true(row[0].row->buffer->holders[1]->age_ns == SECOND);
	assert_string_equal(row[0].row->buffer->waits_for, "");
	/* one that has no storage yet says what for */
	assert_string_equal(row[1].name, "w");
	assert_string_equal(row[1].state, "WAITING");
	assert_int_equal(row[1].row->buffer->rank, 0);
	assert_int_equal(row[1].row->buffer->version, 2);
	assert_string_equal(row[1].row->buffer->holders[0]->tag, "late");
	assert_int_equal(row[1].row->buffer->holders[0]->uses, 4);
	assert_true(row[1].row->buffer->age_ns == SECOND);
	assert_string_equal(row[1].row->buffer->waits_for, "rank 0 to publish version 2 of unit 'w' (has 1)");
}

RIG_TEST(test_a_prefetch_that_waits_is_no_holder)
{
	struct core_row row;
	core_expect(rig->core, core_update(rig->core, rig->session, rig->unit), 0);
	(void)core_prefetch(rig->core, rig->session, rig->unit);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__BUFFERS, &row, 1), 1);
	assert_string_equal(row.state, "WAITING");
	assert_true(row.row->buffer->prefetched);
	assert_int_equal(row.row->buffer->n_holders, 0);
}

RIG_TEST(test_rows_have_room_for_some_holders_only)
{
	struct core_row row;
	char tag[32];
	for (int i = 0; i < 70; i++) {
		(void)snprintf(tag, sizeof(tag), "holder %d", i);
		core_expect(rig->core, core_gather_tag(rig->core, rig->session, rig->unit, tag, 1), 0);
	}
	core_rows(rig->core, ZD__TABLE__BUFFERS, &row, 1);
	assert_int_equal(row.row->buffer->n_holders, 64);
	/* and a text for as many tags as fit */
	core_expect_error(rig->core, core_simple(rig->core, rig->session, ZD_REQ_UNIT_UNREGISTER, rig->unit),
	                  ZEROD_E_BUSY, "'holder 0', 'holder 1', 'holder 2'");
}

RIG_TEST(test_allocation_and_bucket_rows)
{
	struct core_row row;
	struct zd_args bucket = {
	        .kind = ZD_REQ_BUCKET_CREATE,
	        .u.bucket_create = {
	                .group = rig->team.group, .dtype = ZEROD_FLOAT16, .slot_bytes = 1000, .nslots = 3}};
	core_expect(rig->core, core_alloc(rig->core, rig->session, "job", 1, 1000), 0);
	core_tick(rig->core, 2 * SECOND);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__ALLOCATIONS, &row, 1), 1);
	assert_string_equal(row.job, "job");
	assert_string_equal(row.name, "scratch");
	assert_true(row.row->allocation->session == rig->session);
	assert_int_equal(row.row->allocation->bytes, 1024);
	assert_int_equal(row.row->allocation->device, 1);
	assert_true(row.row->allocation->age_ns == SECOND);
	uint64_t id = core_call(rig->core, rig->session, &bucket, 0)->u.bucket_create.bucket;
	assert_int_equal(core_rows(rig->core, ZD__TABLE__BUCKETS, &row, 1), 1);
	assert_true(row.id == id);
	assert_int_equal(row.row->bucket->nslots, 3);
	assert_int_equal(row.row->bucket->slot_bytes, 1024);
	assert_int_equal(row.row->bucket->held_bytes, 0);
}

/* ---- Who sees what ------------------------------------------------------------------------------------- */

RIG_TEST(test_rows_are_seen_by_their_uid)
{
	static const Zd__Table tables[] = {ZD__TABLE__JOBS,       ZD__TABLE__SESSIONS, ZD__TABLE__GROUPS,
	                                   ZD__TABLE__UNITS,      ZD__TABLE__BUFFERS,  ZD__TABLE__BUCKETS,
	                                   ZD__TABLE__ALLOCATIONS};
	struct core_driver *core = rig->core;
	uint64_t admin = core_open_admin(core), gone = core_open(core, CORE_ALICE);
	struct core_row row[2];
	bob_starts(rig);
	core_close(core, gone);
	for (size_t i = 0; i < ZD_ARRAY_LEN(tables); i++) {
		uint32_t alice = core_rows_for(core, rig->session, tables[i], NULL, NULL, 0);
		uint32_t bob = core_rows_for(core, rig->bobs.session[0], tables[i], NULL, row, 2);
		uint32_t all = core_rows_for(core, 0, tables[i], NULL, NULL, 0);
		uint32_t own = tables[i] == ZD__TABLE__SESSIONS; /* the administrator's */
		assert_int_equal(bob, 1);
		assert_int_equal(alice + bob + own, all);
		assert_int_equal(core_rows_for(core, admin, tables[i], NULL, NULL, 0), all);
		assert_int_equal(core_rows_for(core, gone, tables[i], NULL, NULL, 0), 0);
		assert_string_equal(row[0].job, "job");
		assert_int_equal(row[0].row->owner, CORE_BOB + 1);
	}
	assert_int_equal(core_rows_for(core, rig->session, ZD__TABLE__BUFFERS, NULL, NULL, 0), 0);
	assert_int_equal(core_rows_for(core, rig->session, ZD__TABLE__DEVICES, NULL, NULL, 0), 2);
	assert_int_equal(core_rows_for(core, gone, ZD__TABLE__DEVICES, NULL, NULL, 0), 0);
}

RIG_TEST(test_rows_of_one_job)
{
	static const Zd__Table tables[] = {ZD__TABLE__JOBS,  ZD__TABLE__SESSIONS, ZD__TABLE__GROUPS,
	                                   ZD__TABLE__UNITS, ZD__TABLE__BUFFERS,  ZD__TABLE__ALLOCATIONS};
	struct core_team other = core_team_new(rig->core, "other", 1, false);
	uint64_t unit = core_team_unit(&other, "w", UNIT_BYTES), lone = core_open(rig->core, CORE_ALICE);
	core_expect(rig->core, core_gather(rig->core, other.session[0], unit), 0);
	core_expect(rig->core, core_alloc(rig->core, lone, "other", 0, 256), 0);
	for (size_t i = 0; i < ZD_ARRAY_LEN(tables); i++) {
		/* the one with an allocation alone is a session of the job, too */
		uint32_t n = tables[i] == ZD__TABLE__SESSIONS ? 2 : 1;
		assert_int_equal(core_rows_for(rig->core, 0, tables[i], "other", NULL, 0), n);
		assert_int_equal(core_rows_for(rig->core, 0, tables[i], "none", NULL, 0), 0);
		assert_int_equal(core_rows_for(rig->core, 0, tables[i], "", NULL, 0),
		                 core_rows_for(rig->core, 0, tables[i], NULL, NULL, 0));
	}
}

/* ---- Segments and blocks ------------------------------------------------------------------------------- */

struct map {
	uint32_t nsegments, ids[16];
	uint64_t bytes, used_bytes, end; /* sums; the end of the last block */
	uint64_t stop_at;                /* rows of a page; 0: no limit */
	uint64_t nrows;
	char texts[512]; /* purpose, name, state and pins of the blocks that are not free */
};

static bool take_segment(uint64_t id, const Zd__Row *row, void *arg)
{
	struct map *map = arg;
	assert_true(map->nsegments < ZD_ARRAY_LEN(map->ids));
	assert_true(row->segment->job[0] && row->segment->purpose[0]);
	map->ids[map->nsegments++] = (uint32_t)id;
	map->bytes += row->segment->device == 0 ? row->segment->bytes : 0;
	return true;
}

static bool take_block(uint64_t id, const Zd__Row *row, void *arg)
{
	struct map *map = arg;
	if (map->stop_at && map->nrows == map->stop_at)
		return false;
	map->nrows++;
	assert_true(id == row->block->offset + 1 && row->block->offset == map->end);
	map->end += row->block->bytes;
	if (row->block->free)
		return true;
	map->used_bytes += row->block->bytes;
	size_t length = strlen(map->texts);
	(void)snprintf(map->texts + length, sizeof(map->texts) - length, "%s %s/%s/%s@%u %s %s; ",
	               row->block->purpose, row->block->job, row->block->group, row->block->name,
	               row->block->rank, row->block->state, row->block->pins);
	return true;
}

/* Each segment's blocks tile it, and all of them are what the device says. */
static struct map map_for(struct rig *rig, uint64_t session, uint64_t rows_a_page)
{
	Zd__List query = {.table = ZD__TABLE__SEGMENTS};
	struct core_row device[2];
	struct map map = {.stop_at = 0};
	assert_int_equal(zd_engine_list(core_engine(rig->core), session, &query, 0, take_segment, &map), 0);
	query.table = ZD__TABLE__BLOCKS;
	for (uint32_t i = 0; i < map.nsegments; i++) {
		uint32_t segment_device;
		uint64_t bytes;
		assert_true(zd_engine_segment(core_engine(rig->core), map.ids[i], &segment_device, &bytes));
		query.segment = map.ids[i];
		query.cursor = map.end = 0;
		do {
			map.stop_at = rows_a_page ? map.nrows + rows_a_page : 0;
			query.cursor = zd_engine_list(core_engine(rig->core), session, &query, 0, take_block,
			                              &map);
		} while (query.cursor);
		assert_true(map.end == bytes);
	}
	assert_int_equal(core_rows(rig->core, ZD__TABLE__DEVICES, device, 2), 2);
	assert_true(session || map.bytes == device[0].row->device->segment_bytes);
	assert_true(session || map.used_bytes == device[0].row->device->block_bytes +
	                                                 device[1].row->device->block_bytes);
	return map;
}

RIG_TEST(test_blocks_tile_segments_and_name_owners)
{
	static const struct zd_fence slow = {1, 1};
	bob_starts(rig);
	core_expect(rig->core, core_gather(rig->core, rig->session, rig->unit), 0);
	uint64_t id = core_alloc_ok(rig->core, rig->session, "job", 0, 768);
	core_expect(rig->core, core_alloc(rig->core, rig->session, "job", 0, 512), 0);
	core_expect(rig->core, core_free(rig->core, rig->session, id, &slow), 0);
	struct map all = map_for(rig, 0, 0), own = map_for(rig, rig->session, 0);
	struct map paged = map_for(rig, rig->session, 1);
	assert_true(own.nsegments < all.nsegments && own.nrows < all.nrows);
	assert_string_equal(paged.texts, own.texts);
	assert_int_equal(paged.nrows, own.nrows);
	assert_non_null(strstr(own.texts, "shard job/world/w@0 IDLE ; "));
	assert_non_null(strstr(own.texts, "shard job/world/w@1 IDLE ; "));
	assert_non_null(strstr(own.texts, "gathered job/world/w@0 AVAILABLE 1 lease; "));
	assert_non_null(strstr(own.texts, " FREED fences and fills: 1; "));
	assert_non_null(strstr(own.texts, " USED session "));
	assert_null(strstr(own.texts, "/own/")); /* Bob's */
	/* Nor are the blocks of Bob's segments told to who guesses their ids. */
	struct map foreign = {.stop_at = 0};
	Zd__List query = {.table = ZD__TABLE__BLOCKS};
	for (uint32_t i = 0; i < all.nsegments; i++) {
		query.segment = all.ids[i];
		foreign.end = 0;
		assert_int_equal(
		        zd_engine_list(core_engine(rig->core), rig->session, &query, 0, take_block, &foreign),
		        0);
	}
	assert_int_equal(foreign.nrows, own.nrows);
}

/* A lease that was released, and whose stream has not passed. */
RIG_TEST(test_quarantine_is_what_pins_a_block)
{
	static const struct zd_fence slow = {1, 1};
	core_expect(rig->core, core_gather_tag(rig->core, rig->session, rig->unit, "read", 1), 0);
	struct zd_args args = {.kind = ZD_REQ_RELEASE,
	                       .u.release = {.unit = rig->unit, .tag = (char *)"read"},
	                       .fences = {1, &slow}};
	core_call(rig->core, rig->session, &args, 0);
	struct map map = map_for(rig, rig->session, 0);
	assert_non_null(strstr(map.texts, "gathered job/world/w@0 QUARANTINED streams of 1 release; "));
}

static bool take_retiring(uint64_t id, const Zd__Row *row, void *arg)
{
	char *text = arg;
	(void)id;
	if (strcmp(row->segment->state, "RETIRING") == 0)
		(void)snprintf(text, ZD_WAIT_TEXT, "%s mapped by %u: %s", row->segment->purpose,
		               row->segment->mappings, row->segment->pins);
	return true;
}

/* The trim waits for the session that has the segment mapped. */
RIG_TEST(test_mapping_is_what_pins_a_segment)
{
	Zd__List query = {.table = ZD__TABLE__SEGMENTS};
	struct zd_args args = {.kind = ZD_REQ_FREE};
	char text[ZD_WAIT_TEXT] = "", expected[ZD_WAIT_TEXT];
	struct core_row row;
	const struct zd_reply *reply = core_expect(rig->core,
	                                           core_alloc(rig->core, rig->session, "job", 0, 256), 0);
	args.u.free.allocation = reply->u.alloc.allocation;
	zd_engine_segment_given(core_engine(rig->core), rig->session, reply->place.segment);
	core_call(rig->core, rig->session, &args, 0);
	args = (struct zd_args){.kind = ZD_REQ_TRIM};
	(void)core_send(rig->core, rig->session, &args);
	core_row(rig->core, ZD__TABLE__SESSIONS, rig->session, &row);
	(void)snprintf(expected, sizeof(expected),
	               "allocations mapped by 1: 1 session to unmap it, first session %llu (pid %u)",
	               ZD_ID_NUMBER(rig->session), row.row->session->pid);
	assert_int_equal(zd_engine_list(core_engine(rig->core), 0, &query, 0, take_retiring, text), 0);
	assert_string_equal(text, expected);
}

RIG_TEST(test_page_of_blocks_visits_its_rows_only)
{
	enum { ROWS = 1000 };
	Zd__List query = {.table = ZD__TABLE__BLOCKS};
	struct map segments = {.stop_at = 0};
	struct zd_engine_totals totals;
	uint64_t room = core_alloc(rig->core, rig->session, "job", 0, ROWS * 256ull);
	core_expect(rig->core, core_alloc(rig->core, rig->session, "job", 0, 256), 0); /* the job stays */
	core_expect(
	        rig->core,
	        core_free(rig->core, rig->session, core_expect(rig->core, room, 0)->u.alloc.allocation, NULL),
	        0);
	for (int i = 0; i < ROWS; i++)
		query.segment = core_expect(rig->core, core_alloc(rig->core, rig->session, "job", 0, 256), 0)
		                        ->place.segment;
	for (uint64_t offset = 0; offset < ROWS * 256ull; offset += 50 * 256ull) {
		zd_engine_totals(core_engine(rig->core), &totals);
		uint64_t before = totals.list_visits;
		segments = (struct map){.stop_at = 3, .end = offset};
		query.cursor = offset;
		assert_true(zd_engine_list(core_engine(rig->core), 0, &query, 0, take_block, &segments) ==
		            offset + 2 * 256ull + 1);
		zd_engine_totals(core_engine(rig->core), &totals);
		assert_in_range(totals.list_visits - before, 3, 4);
	}
	query.segment = 4711;
	assert_int_equal(zd_engine_list(core_engine(rig->core), 0, &query, 0, take_block, &segments), 0);
}

/* ---- Pages --------------------------------------------------------------------------------------------- */

struct page {
	uint64_t ids[3];
	uint32_t n;
};

static bool take(uint64_t id, const Zd__Row *row, void *arg)
{
	struct page *page = arg;
	if (page->n == ZD_ARRAY_LEN(page->ids))
		return false;
	(void)row;
	page->ids[page->n++] = id;
	return true;
}

static uint64_t visits(struct rig *rig)
{
	struct zd_engine_totals totals;
	zd_engine_totals(core_engine(rig->core), &totals);
	return totals.list_visits;
}

/* A page visits its own rows and one more, also when the row of its cursor has been freed. */
RIG_TEST(test_page_visits_its_rows_only)
{
	enum { ROWS = 1000 };
	static uint64_t ids[ROWS];
	Zd__List query = {.table = ZD__TABLE__ALLOCATIONS};
	for (int i = 0; i < ROWS; i++)
		ids[i] = core_alloc_ok(rig->core, rig->session, "job", 0, 256);
	core_expect(rig->core, core_free(rig->core, rig->session, ids[ROWS / 2], NULL), 0);
	for (int i = 0; i < ROWS; i += 50) {
		struct page page = {.n = 0};
		uint64_t before = visits(rig);
		query.cursor = ids[i];
		assert_true(zd_engine_list(core_engine(rig->core), 0, &query, 0, take, &page) == page.ids[2]);
		assert_int_equal(page.n, 3);
		assert_int_equal(page.ids[0], ids[i + 1 == ROWS / 2 ? i + 2 : i + 1]);
		assert_in_range(visits(rig) - before, 3, 4);
	}
}

/* Rows of other jobs cost visits, too: such a page may have no rows. A session visits no other user's. */
RIG_TEST(test_page_of_others_rows_ends)
{
	enum { ROWS = 100, MOST = 16 };
	Zd__List query = {.table = ZD__TABLE__ALLOCATIONS};
	uint32_t pages = 0, rows = 0;
	for (int i = 0; i < ROWS; i++)
		core_expect(rig->core, core_alloc(rig->core, rig->session, "job", 0, 256), 0);
	bob_starts(rig);
	query.job = (char *)"job";
	query.job_owner = CORE_BOB + 1;
	do {
		struct page page = {.n = 0};
		uint64_t before = visits(rig);
		query.cursor = zd_engine_list(core_engine(rig->core), 0, &query, MOST, take, &page);
		assert_in_range(visits(rig) - before, 1, MOST);
		rows += page.n;
		pages++;
	} while (query.cursor);
	assert_int_equal(rows, 1);
	assert_int_equal(pages, (ROWS + 1 + MOST - 1) / MOST);
	assert_int_equal(zd_engine_list(core_engine(rig->core), rig->bobs.session[0], &query, MOST, take,
	                                &(struct page){.n = 0}),
	                 0);
}

/* A row of a unit is made from all of its parts, a row of a job from all sessions. */
RIG_TEST(test_large_rows_end_a_page)
{
	static const Zd__Table tables[] = {ZD__TABLE__UNITS, ZD__TABLE__JOBS, ZD__TABLE__GROUPS};
	(void)core_team_unit(&rig->team, "v", UNIT_BYTES);
	bob_starts(rig);
	for (size_t i = 0; i < ZD_ARRAY_LEN(tables); i++) {
		Zd__List query = {.table = tables[i]};
		struct page page = {.n = 0};
		uint64_t before = visits(rig);
		query.cursor = zd_engine_list(core_engine(rig->core), 0, &query, 2, take, &page);
		assert_true(query.cursor == page.ids[0]);
		assert_int_equal(page.n, 1);
		assert_in_range(visits(rig) - before, 3, 5);
	}
}

/* The text of a wait for memory is made from all gathered buffers of the device. */
RIG_TEST(test_waits_for_memory_end_a_page)
{
	Zd__List query = {.table = ZD__TABLE__BUFFERS};
	struct page page = {.n = 0};
	uint64_t units[5];
	for (int i = 0; i < 5; i++) {
		char name[] = {(char)('0' + i), '\0'};
		units[i] = core_team_unit(&rig->team, name, UNIT_BYTES);
	}
	zd_engine_set_gather_budget(core_engine(rig->core), 0, 3ull * UNIT_BYTES);
	for (int i = 0; i < 3; i++)
		core_expect(rig->core, core_gather(rig->core, rig->session, units[i]), 0);
	for (int i = 3; i < 5; i++)
		(void)core_gather(rig->core, rig->session, units[i]);
	query.cursor = zd_engine_list(core_engine(rig->core), 0, &query, 4, take, &page);
	assert_int_equal(page.n, 3);
	page.n = 0;
	query.cursor = zd_engine_list(core_engine(rig->core), 0, &query, 4, take, &page);
	assert_int_equal(page.n, 1);
	page.n = 0;
	assert_int_equal(zd_engine_list(core_engine(rig->core), 0, &query, 4, take, &page), 0);
	assert_int_equal(page.n, 1);
}
