/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The history: which events there are, in which order, who reads them, pages, and what is lost when the ring
 * is full.
 */
#include <stdio.h>

#include "tests/support/core_driver.h"

#define UNIT_BYTES 1024u
#define MS         1000000ull
#define MOST_READ  512u
#define NAME_TEXT  32u

struct event {
	Zd__Event event; /* without texts and lists */
	uint32_t devices[2];
	char kind[NAME_TEXT], reason[NAME_TEXT], request[NAME_TEXT], job[NAME_TEXT], group[NAME_TEXT],
	        name[NAME_TEXT];
};

struct events {
	uint32_t count, most; /* most 0: MOST_READ */
	struct event all[MOST_READ];
};

static bool take(const Zd__Event *from, void *arg)
{
	struct events *events = arg;
	struct event *event = &events->all[events->count];
	if (events->count == (events->most ? events->most : MOST_READ))
		return false;
	*event = (struct event){.event = *from};
	for (size_t i = 0; i < from->n_devices; i++)
		event->devices[i] = from->devices[i];
	(void)snprintf(event->kind, NAME_TEXT, "%s", from->kind);
	(void)snprintf(event->reason, NAME_TEXT, "%s", from->reason);
	(void)snprintf(event->request, NAME_TEXT, "%s", from->request);
	(void)snprintf(event->job, NAME_TEXT, "%s", from->job);
	(void)snprintf(event->group, NAME_TEXT, "%s", from->group);
	(void)snprintf(event->name, NAME_TEXT, "%s", from->name);
	events->count++;
	return true;
}

static Zd__EventsReply read_events(struct core_driver *core, uint64_t session, const Zd__Events *query,
                                   uint32_t most_visits, struct events *events)
{
	Zd__EventsReply page = ZD__EVENTS_REPLY__INIT;
	events->count = 0;
	zd_engine_events(core_engine(core), session, query, most_visits, &page, take, events);
	return page;
}

static uint64_t newest(struct core_driver *core)
{
	struct events none = {.count = 0};
	Zd__Events query = {.after = UINT64_MAX};
	Zd__EventsReply page = read_events(core, 0, &query, 0, &none);
	assert_int_equal(none.count, 0);
	assert_int_equal(page.next, page.last);
	return page.last;
}

/* Reads what the daemon sees behind `after`. */
static void read_after(struct core_driver *core, uint64_t after, struct events *events)
{
	Zd__Events query = {.after = after};
	Zd__EventsReply page = read_events(core, 0, &query, 0, events);
	assert_int_equal(page.next, page.last);
	assert_int_equal(page.lost, 0);
}

/* The kinds and reasons of the events, in this order: "gather/ready lease ". */
static void expect_kinds(const struct events *events, const char *kinds)
{
	char text[2048] = "";
	size_t used = 0;
	for (uint32_t i = 0; i < events->count; i++) {
		const struct event *event = &events->all[i];
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s%s ", event->kind,
		                         *event->reason ? "/" : "", event->reason);
		assert_true(used < sizeof(text));
	}
	assert_string_equal(text, kinds);
}

static const struct event *find(const struct events *events, const char *kind)
{
	for (uint32_t i = 0; i < events->count; i++) {
		if (strcmp(events->all[i].kind, kind) == 0)
			return &events->all[i];
	}
	fail_msg("no event %s", kind);
	return NULL;
}

/* ---- Kinds --------------------------------------------------------------------------------------------- */

ENGINE_TEST(test_a_gather_from_request_to_release)
{
	struct events events = {.count = 0};
	struct core_team team = core_team_new(core, "lm", 2, false);
	uint64_t unit = core_team_unit(&team, "w", UNIT_BYTES);
	core_expect(core, core_gather(core, team.session[0], unit), 0); /* makes the segment */
	core_expect(core, core_release(core, team.session[0], unit), 0);
	uint64_t before = newest(core);
	core_tick(core, 5 * MS);
	core_hold(core, ZD_CMD_COPY);
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_tick(core, 7 * MS);
	core_unhold(core, ZD_CMD_COPY);
	core_tick(core, 9 * MS);
	core_expect(core, core_release(core, team.session[0], unit), 0);
	read_after(core, before, &events);
	expect_kinds(&events, "block_give/gathered gather/ready lease block_free/gathered ");
	const struct event *give = find(&events, "block_give"), *gather = find(&events, "gather"),
	                   *lease = find(&events, "lease"), *freed = find(&events, "block_free");
	assert_int_equal(gather->event.begin_ns, 5 * MS);
	assert_int_equal(gather->event.time_ns, 7 * MS);
	assert_int_equal(gather->event.bytes, UNIT_BYTES);
	assert_int_equal(gather->event.session, team.session[0]);
	assert_int_equal(lease->event.begin_ns, 5 * MS);
	assert_int_equal(lease->event.time_ns, 9 * MS);
	assert_int_equal(lease->event.number, gather->event.number); /* the transfer */
	assert_int_equal(give->event.segment, freed->event.segment);
	assert_int_equal(give->event.offset, freed->event.offset);
	assert_int_equal(give->event.bytes, UNIT_BYTES);
	assert_true(give->event.n_devices == 1 && give->devices[0] == 0);
	assert_int_equal(freed->event.object, unit);
	for (uint32_t i = 0; i < events.count; i++) {
		assert_string_equal(events.all[i].job, "lm");
		assert_string_equal(events.all[i].name, "w");
	}
}

ENGINE_TEST(test_a_failed_gather_is_said)
{
	struct events events = {.count = 0};
	struct core_team team = core_team_new(core, "lm", 2, false);
	uint64_t unit = core_team_unit(&team, "w", UNIT_BYTES);
	uint64_t before = newest(core);
	core_fail_next(core, ZD_CMD_COPY, ZEROD_E_DEVICE, "it broke");
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	read_after(core, before, &events);
	assert_string_equal(find(&events, "gather")->reason, "failed");
}

/* None of the gather's copies has begun when a pull from host memory fails. */
ENGINE_TEST(test_a_gather_that_never_began_is_said, .host_arena_bytes = 4 * CORE_MIB)
{
	const struct core_unit on_host = {.name = "w", .numel = UNIT_BYTES / 4, .on_host = true};
	struct events events = {.count = 0};
	struct core_team team = core_team_new(core, "lm", 2, false);
	uint64_t unit = core_team_register(&team, &on_host), before = 0;
	core_team_publish(&team, unit);
	for (uint32_t i = 0; i < 3; i++) { /* before the last one the pools have grown for landings */
		before = newest(core);
		if (i == 2)
			core_fail_next(core, ZD_CMD_COPY, ZEROD_E_DEVICE, "it broke");
		core_expect(core, core_gather(core, team.session[0], unit), 0);
		core_expect(core, core_release(core, team.session[0], unit), 0);
	}
	read_after(core, before, &events);
	assert_string_equal(find(&events, "gather")->reason, "failed");
}

/* Copies are events for so long after a reader has asked for them. */
ENGINE_TEST(test_copies_on_demand)
{
	struct events events = {.count = 0};
	Zd__Events query = {.after = UINT64_MAX, .copies = true};
	struct core_team team = core_team_new(core, "lm", 2, false);
	uint64_t unit = core_team_unit(&team, "w", UNIT_BYTES),
	         other = core_team_unit(&team, "v", UNIT_BYTES);
	uint64_t before = read_events(core, 0, &query, 0, &events).last;
	core_expect(core, core_gather(core, team.session[0], unit), 0);
	core_tick(core, ZD_EVENT_COPIES_NS);
	core_expect(core, core_gather(core, team.session[0], other), 0);
	read_after(core, before, &events);
	uint32_t copies = 0;
	for (uint32_t i = 0; i < events.count; i++) {
		if (strcmp(events.all[i].kind, "copy") != 0)
			continue;
		copies++;
		assert_int_equal(events.all[i].event.bytes, UNIT_BYTES / 2);
		assert_true(events.all[i].event.n_devices == 2 && events.all[i].devices[1] == 0);
		assert_int_equal(events.all[i].event.session, team.session[0]);
	}
	assert_int_equal(copies, 2);
}

ENGINE_TEST(test_a_wait_has_a_begin_an_end_and_its_reason)
{
	struct core_join join = {.job = "lm", .world_size = 2};
	struct events events = {.count = 0};
	uint64_t first = core_open(core, CORE_ALICE), second = core_open(core, CORE_ALICE);
	core_tick(core, 5 * MS);
	uint64_t before = newest(core), request = core_join(core, first, &join);
	core_tick(core, 8 * MS);
	join.rank = 1;
	core_join_ok(core, second, &join);
	core_expect(core, request, 0);
	read_after(core, before, &events);
	expect_kinds(&events, "job_begin wait_begin/ranks group_begin wait_end/ranks ");
	const struct event *end = find(&events, "wait_end");
	assert_int_equal(end->event.begin_ns, 5 * MS);
	assert_int_equal(end->event.time_ns, 8 * MS);
	assert_int_equal(end->event.session, first);
	assert_string_equal(end->request, "group_join");
}

ENGINE_TEST(test_sessions_and_groups_end_for_a_reason)
{
	struct core_team team;
	struct events events = {.count = 0};
	team = core_team_new(core, "lost", 2, false);
	uint64_t before = newest(core);
	core_close(core, team.session[1]);
	read_after(core, before, &events);
	expect_kinds(&events, "session_end/died group_fail/rank_lost ");
	assert_int_equal(events.all[1].event.rank, 1);
	before = newest(core);
	zd_engine_session_goodbye(core_engine(core), team.session[0]);
	core_close(core, team.session[0]);
	read_after(core, before, &events);
	expect_kinds(&events, "session_end/goodbye group_end job_end ");
	assert_string_equal(events.all[1].group, "world");
	team = core_team_new(core, "aborted", 2, false);
	before = newest(core);
	core_do(core, team.session[0], ZD_REQ_ABORT_GROUP, team.group);
	core_close(core, core_open(core, CORE_ALICE));
	read_after(core, before, &events);
	expect_kinds(&events, "group_fail/aborted session_begin session_end/closed ");
}

ENGINE_TEST(test_refusals_and_drains, .uid_quota_bytes = 4096)
{
	struct events events = {.count = 0};
	uint64_t session = core_open(core, CORE_ALICE), before = newest(core);
	core_expect(core, core_alloc(core, session, "job", 0, 8192), ZEROD_E_QUOTA);
	zd_engine_drain(core_engine(core));
	zd_engine_undrain(core_engine(core));
	read_after(core, before, &events);
	expect_kinds(&events, "job_begin job_end refuse/QUOTA drain_begin drain_end ");
	assert_string_equal(find(&events, "refuse")->request, "alloc");
}

/* ---- Readers ------------------------------------------------------------------------------------------- */

/* How many events of that job's the session reads. */
static uint32_t count_of(struct core_driver *core, uint64_t session, const char *job)
{
	const Zd__Events query = {.after = 0};
	struct events events = {.count = 0};
	uint32_t count = 0;
	(void)read_events(core, session, &query, 0, &events);
	for (uint32_t i = 0; i < events.count; i++)
		count += strcmp(events.all[i].job, job) == 0;
	return count;
}

ENGINE_TEST(test_a_session_reads_its_own_users_events)
{
	struct events events = {.count = 0};
	struct core_team team = core_team_new(core, "alices", 1, false);
	uint64_t bob = core_open(core, CORE_BOB), admin = core_open_admin(core);
	core_expect(core, core_alloc(core, bob, "bobs", 0, 256), 0);
	zd_engine_drain(core_engine(core));
	zd_engine_undrain(core_engine(core));
	assert_true(count_of(core, team.session[0], "alices") > 0);
	assert_int_equal(count_of(core, team.session[0], "bobs"), 0);
	assert_true(count_of(core, bob, "bobs") > 0);
	assert_int_equal(count_of(core, bob, "alices"), 0);
	assert_true(count_of(core, admin, "alices") > 0 && count_of(core, admin, "bobs") > 0);
	(void)read_events(core, bob, &(Zd__Events){.after = 0}, 0, &events);
	(void)find(&events, "drain_begin"); /* of the daemon */
	for (uint32_t i = 0; i < events.count; i++)
		assert_true(events.all[i].event.session != team.session[0]);
	core_close(core, bob);
	Zd__EventsReply page = read_events(core, bob, &(Zd__Events){.after = 0}, 0, &events);
	assert_int_equal(events.count, 0); /* it has ended */
	assert_int_equal(page.next, 0);
}

ENGINE_TEST(test_a_job_is_chosen_also_when_it_has_ended)
{
	struct events events = {.count = 0};
	struct core_team team = core_team_new(core, "lm", 2, false);
	(void)core_team_new(core, "another", 1, false);
	(void)core_team_unit(&team, "w", UNIT_BYTES);
	core_close(core, team.session[0]);
	core_close(core, team.session[1]);
	Zd__EventsReply page = read_events(core, 0, &(Zd__Events){.job = (char *)"lm"}, 0, &events);
	assert_int_equal(page.next, page.last);
	assert_string_equal(find(&events, "block_give")->name, "w");
	assert_string_equal(find(&events, "block_give")->group, "world");
	assert_string_equal(find(&events, "group_end")->group, "world");
	for (uint32_t i = 0; i < events.count; i++)
		assert_string_equal(events.all[i].job, "lm");
}

/* Each event is in one page, also where a page ends by the number of events that were looked at. */
ENGINE_TEST(test_pages)
{
	struct events whole = {.count = 0}, page_events = {.most = 3};
	Zd__Events query = {.after = 0};
	Zd__EventsReply page;
	uint32_t at = 0, most_visits = 2;
	struct core_team team = core_team_new(core, "lm", 2, false);
	(void)core_team_unit(&team, "w", UNIT_BYTES);
	read_after(core, 0, &whole);
	assert_true(whole.count > 10);
	do {
		most_visits = most_visits == 2 ? 9 : 2;
		page = read_events(core, 0, &query, most_visits, &page_events);
		assert_true(page_events.count > 0 && page.next == query.after + page_events.count);
		for (uint32_t i = 0; i < page_events.count; i++)
			assert_int_equal(page_events.all[i].event.seq, whole.all[at++].event.seq);
		query.after = page.next;
	} while (page.next < page.last);
	assert_int_equal(at, whole.count);
	page = read_events(core, 0, &query, most_visits, &page_events); /* nothing is new */
	assert_int_equal(page_events.count, 0);
	assert_int_equal(page.next, page.last);
}

/* ---- The ring ------------------------------------------------------------------------------------------ */

TEST(test_a_full_ring_loses_its_oldest)
{
	struct core_driver *core = core_new(&(struct core_options){.events = 6}); /* 8 */
	struct events events = {.count = 0};
	uint64_t first = newest(core);
	for (uint32_t i = 0; i < 8; i++)
		core_close(core, core_open(core, CORE_ALICE));
	Zd__EventsReply page = read_events(core, 0, &(Zd__Events){.after = first}, 0, &events);
	assert_int_equal(page.last, first + 17); /* with the daemon's start */
	assert_int_equal(page.lost, 9);
	assert_int_equal(page.next, page.last);
	assert_int_equal(events.count, 8);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(events.all[i].event.seq, page.last - 7 + i);
	assert_string_equal(events.all[0].kind, "session_begin");
	page = read_events(core, 0, &(Zd__Events){.after = page.last - 8}, 0, &events);
	assert_int_equal(page.lost, 0); /* all that it lacks are kept */
	page = read_events(core, 0, &(Zd__Events){.after = page.last - 9}, 0, &events);
	assert_int_equal(page.lost, 1);
	core_end(core);
}

static void fill_ring(struct core_driver *core)
{
	for (uint32_t i = 0; i < 16; i++)
		core_close(core, core_open(core, CORE_BOB));
}

/* Reads the kept ones of the events that the ring has overwritten, by pages of 2. */
static void read_old(struct core_driver *core, struct events *events)
{
	Zd__Events query = {.after = 0};
	Zd__EventsReply page;
	struct events some = {.count = 0};
	events->count = 0;
	do {
		page = read_events(core, 0, &query, 2, &some);
		for (uint32_t i = 0; i < some.count && some.all[i].event.seq <= page.overwritten; i++)
			events->all[events->count++] = some.all[i];
		query.after = page.next;
	} while (page.next < page.overwritten);
}

static uint64_t alloc(struct core_driver *core, uint64_t session)
{
	return core_alloc_ok(core, session, "job", 0, 512);
}

static void free_allocation(struct core_driver *core, uint64_t session, uint64_t allocation)
{
	core_expect(core, core_free(core, session, allocation, NULL), 0);
}

ENGINE_TEST(test_long_lived_memory_is_kept_longer, .events = 32)
{
	struct events events = {.count = 0};
	uint64_t session = core_open(core, CORE_ALICE);
	uint64_t stays = alloc(core, session);
	free_allocation(core, session, alloc(core, session));
	fill_ring(core);
	read_old(core, &events);
	expect_kinds(&events, "segment_begin/allocations block_give/allocation ");
	assert_int_equal(events.all[1].event.object, stays);
	free_allocation(core, session, stays);
	fill_ring(core);
	read_old(core, &events);
	expect_kinds(&events, "segment_begin/allocations block_give/allocation block_free/allocation "
	                      "segment_retire/allocations segment_end/allocations ");
	assert_int_equal(events.all[2].event.object, stays);
}

ENGINE_TEST(test_without_events, .no_events = true)
{
	struct events events = {.count = 0};
	struct core_team team = core_team_new(core, "lm", 2, false);
	(void)core_team_unit(&team, "w", UNIT_BYTES);
	Zd__EventsReply page = read_events(core, 0, &(Zd__Events){.after = 0}, 0, &events);
	assert_int_equal(events.count, 0);
	assert_int_equal(page.next, 0);
	assert_int_equal(page.last, 0);
}

/* Names of ended objects are a ring of their own, of fewer places. */
TEST(test_old_names_are_forgotten)
{
	struct core_driver *core = core_new(&(struct core_options){.events = 512}); /* 9 names */
	struct events events = {.count = 0};
	char job[16];
	for (uint32_t i = 0; i < 20; i++) {
		(void)snprintf(job, sizeof(job), "job%u", i);
		struct core_team team = core_team_new(core, job, 1, false);
		core_close(core, team.session[0]);
	}
	(void)read_events(core, 0, &(Zd__Events){.after = 0}, 0, &events);
	assert_string_equal(find(&events, "job_begin")->job, "");
	assert_string_equal(events.all[events.count - 1].kind, "job_end");
	assert_string_equal(events.all[events.count - 1].job, "job19");
	core_end(core);
}
