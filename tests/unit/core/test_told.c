/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that went are told: to a member that was silent meanwhile by its next request about the group, once,
 * with their names.
 */
#include "tests/support/core_reduce.h"

#define NRANKS 3u
#define SILENT 0u
#define DEAD   2u

struct scene {
	bool shadow;
	struct core_driver *core;
	struct core_reducers g;
	uint64_t unit, entry;
};

/* ---- Ranks that go, and others in their place ---------------------------------------------------------- */

static uint64_t session_of(const struct scene *s, uint32_t rank)
{
	return s->g.team.session[rank];
}

static void go(struct scene *s, uint32_t rank)
{
	core_close(s->core, session_of(s, rank));
}

static struct core_join join_of(const struct scene *s, uint32_t rank)
{
	return (struct core_join){.world_size = NRANKS,
	                          .rank = rank,
	                          .device = rank,
	                          .durable = s->shadow,
	                          .shadow = s->shadow};
}

static void come(struct scene *s, uint32_t rank)
{
	struct core_join join = join_of(s, rank);
	s->g.team.session[rank] = core_open(s->core, CORE_ALICE);
	(void)core_join(s->core, session_of(s, rank), &join);
}

static void open_scene(struct scene *s, bool shadow)
{
	*s = (struct scene){.shadow = shadow, .core = core_new(&(struct core_options){.ndevices = NRANKS})};
	struct core_join join = join_of(s, 0);
	s->g.dtype = ZEROD_FLOAT32;
	core_team_join(&s->g.team, s->core, &join);
	for (uint32_t rank = 0; rank < NRANKS; rank++) {
		uint64_t request = core_bucket(&s->g.team, rank, ZEROD_FLOAT32, 16 * CORE_KIB, 2);
		s->g.bucket[rank] = core_expect(s->core, request, 0)->u.bucket_create.bucket;
	}
	s->unit = core_reducers_unit(&s->g, "w", 300);
}

static uint64_t send(struct scene *s, const struct zd_args *args)
{
	return core_send(s->core, session_of(s, SILENT), args);
}

/* ---- Every request that counts ------------------------------------------------------------------------- */

static uint64_t gather(struct scene *s)
{
	return core_gather(s->core, session_of(s, SILENT), s->unit);
}

static uint64_t update(struct scene *s)
{
	return core_update(s->core, session_of(s, SILENT), s->unit);
}

static uint64_t publish(struct scene *s)
{
	return core_publish(s->core, session_of(s, SILENT), s->unit);
}

static uint64_t load(struct scene *s)
{
	return send(s, &(struct zd_args){.kind = ZD_REQ_UNIT_LOAD, .u.unit_load.unit = s->unit});
}

static uint64_t place(struct scene *s)
{
	return send(s, &(struct zd_args){.kind = ZD_REQ_UNIT_PLACE, .u.unit_place.unit = s->unit});
}

static uint64_t commit(struct scene *s)
{
	return core_commit(s->core, session_of(s, SILENT), s->g.team.group, 1);
}

static uint64_t enroll(struct scene *s)
{
	const struct core_unit unit = {.name = "new", .numel = 300};
	return core_register(s->core, session_of(s, SILENT), s->g.team.group, &unit);
}

static uint64_t persist(struct scene *s)
{
	return core_set_persistent(s->core, session_of(s, SILENT), s->unit, true);
}

static uint64_t slot(struct scene *s)
{
	return send(s,
	            &(struct zd_args){.kind = ZD_REQ_SET_SLOT, .u.set_slot = {.unit = s->unit, .slot = 1}});
}

static uint64_t freeze(struct scene *s)
{
	return send(s, &(struct zd_args){.kind = ZD_REQ_SET_FROZEN,
	                                 .u.set_frozen = {.unit = s->unit, .frozen = true}});
}

static uint64_t forward(struct scene *s)
{
	return core_forward_begin(s->core, session_of(s, SILENT), s->g.team.group, 0, NULL, 0);
}

static uint64_t context(struct scene *s)
{
	return core_context_begin(s->core, session_of(s, SILENT), &s->unit, 1);
}

static uint64_t bucket(struct scene *s)
{
	return core_bucket(&s->g.team, SILENT, ZEROD_FLOAT32, CORE_KIB, 2);
}

static uint64_t backward(struct scene *s)
{
	return core_backward(&s->g.team, SILENT, 3, true);
}

static uint64_t reserve(struct scene *s)
{
	return core_reserve(&s->g.team, SILENT, s->g.bucket[SILENT], s->unit);
}

static uint64_t submit(struct scene *s)
{
	const struct core_commit entry = {.bucket = s->g.bucket[SILENT], .entry = s->entry};
	return core_bucket_submit(&s->g.team, SILENT, &entry);
}

static uint64_t leave_out(struct scene *s)
{
	return core_skip(&s->g.team, SILENT, s->unit);
}

static uint64_t end(struct scene *s)
{
	return core_backward_end(&s->g.team, SILENT);
}

static uint64_t abandon(struct scene *s)
{
	return send(s, &(struct zd_args){.kind = ZD_REQ_BACKWARD_ABANDON,
	                                 .u.backward_abandon.group = s->g.team.group});
}

static uint64_t step(struct scene *s)
{
	return core_step(&s->g.team, SILENT);
}

static uint64_t wait_for_sum(struct scene *s)
{
	return send(s, &(struct zd_args){.kind = ZD_REQ_REDUCE_WAIT, .u.reduce_wait.unit = s->unit});
}

static uint64_t get_step(struct scene *s)
{
	return send(s, &(struct zd_args){.kind = ZD_REQ_STEP_GET, .u.step_get.group = s->g.team.group});
}

static uint64_t barrier(struct scene *s)
{
	return send(
	        s, &(struct zd_args){.kind = ZD_REQ_GROUP_BARRIER, .u.group_barrier.group = s->g.team.group});
}

static uint64_t agree(struct scene *s)
{
	static const double value = 1.0;
	return send(s, &(struct zd_args){.kind = ZD_REQ_GROUP_AGREE,
	                                 .u.group_agree = {.group = s->g.team.group,
	                                                   .op = ZEROD_AGREE_SUM,
	                                                   .n_values = 1,
	                                                   .values = (double *)&value}});
}

static void nothing(struct scene *s)
{
	(void)s;
}

static void begin_update(struct scene *s)
{
	core_expect(s->core, update(s), 0);
}

static void begin_backward(struct scene *s)
{
	core_reducers_begin(&s->g, 3, true);
}

static void reserve_in_backward(struct scene *s)
{
	begin_backward(s);
	s->entry = core_put(&s->g, SILENT, s->unit, 1.0f);
}

static void submit_all(struct scene *s)
{
	begin_backward(s);
	core_reduce_all(&s->g, s->unit, 1.0f);
}

static void end_all(struct scene *s)
{
	submit_all(s);
	core_reducers_end(&s->g);
}

/* `before` is what the ranks did before the others went. */
static const struct silence {
	const char *name;
	void (*before)(struct scene *s);
	uint64_t (*call)(struct scene *s);
} silences[] = {
        {"unit_register", nothing, enroll},
        {"set_persistent", nothing, persist},
        {"set_slot", nothing, slot},
        {"set_frozen", nothing, freeze},
        {"gather", nothing, gather},
        {"update_begin", nothing, update},
        {"publish", begin_update, publish},
        {"unit_load", begin_update, load},
        {"unit_place", nothing, place},
        {"commit", nothing, commit},
        {"forward_begin", nothing, forward},
        {"context_begin", nothing, context},
        {"bucket_create", nothing, bucket},
        {"backward_begin", nothing, backward},
        {"backward_begin in a window", end_all, backward},
        {"bucket_reserve", begin_backward, reserve},
        {"bucket_submit", reserve_in_backward, submit},
        {"reduce_skip", begin_backward, leave_out},
        {"backward_end", submit_all, end},
        {"backward_abandon", submit_all, abandon},
        {"step_begin", end_all, step},
        {"reduce_wait", submit_all, wait_for_sum},
        {"step_get", end_all, get_step},
        {"group_barrier", nothing, barrier},
        {"group_agree", nothing, agree},
};

/* The request counts for nothing the first time; the second time it has another answer, or waits. A rank
 * whose update was undone is told until it resets its session. */
static void expect_told_once(struct scene *s, const struct silence *silence, const char *text)
{
	uint64_t first = silence->call(s);
	const struct zd_reply *reply = core_reply(s->core, first);
	if (!reply || reply->status != ZEROD_E_PEER_LOST || !strstr(reply->error, text))
		fail_msg("%s: %s, \"%s\"", silence->name, reply ? zerod_status_name(reply->status) : "waits",
		         reply ? reply->error : "");
	if (s->shadow && silence->before == begin_update)
		return;
	uint64_t second = silence->call(s);
	reply = core_reply(s->core, second);
	if (reply && reply->status == ZEROD_E_PEER_LOST)
		fail_msg("%s tells again: %s", silence->name, reply->error);
}

static void expect_every_request_tells(bool shadow, const char *text)
{
	for (size_t i = 0; i < sizeof(silences) / sizeof(silences[0]); i++) {
		struct scene s;
		open_scene(&s, shadow);
		silences[i].before(&s);
		go(&s, DEAD);
		come(&s, DEAD);
		expect_told_once(&s, &silences[i], text);
		core_end(s.core);
	}
}

TEST(test_every_request_tells)
{
	expect_every_request_tells(false, "rank 2 (pid 1001) of group 'world' is gone; another session");
	expect_every_request_tells(true, "rank 2 (pid 1001) of group 'world' ");
}

/* ---- Several ranks ------------------------------------------------------------------------------------- */

/* Both are named, whether others have come in their places or not. */
TEST(test_two_in_a_row)
{
	static const char text[] = "rank 2 (pid 1001) of group 'world' is gone, as is rank 1 (pid 1001)";
	struct scene s;
	open_scene(&s, false);
	go(&s, 1);
	go(&s, 2);
	core_expect_error(s.core, commit(&s), ZEROD_E_PEER_LOST, text);
	core_end(s.core);

	open_scene(&s, false);
	go(&s, 1);
	come(&s, 1);
	go(&s, 2);
	come(&s, 2);
	core_expect_error(s.core, gather(&s), ZEROD_E_PEER_LOST, text);
	core_expect(s.core, backward(&s), 0);
	core_end(s.core);
}

/* The last four by name. */
TEST(test_many_in_a_row)
{
	static const uint32_t ranks[] = {1, 2, 1, 1, 2, 1};
	struct scene s;
	open_scene(&s, false);
	for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
		go(&s, ranks[i]);
		come(&s, ranks[i]);
	}
	core_expect_error(s.core, backward(&s), ZEROD_E_PEER_LOST,
	                  "rank 1 (pid 1001) of group 'world' is gone, as are rank 2 (pid 1001), rank 1 (pid "
	                  "1001), rank 1 (pid 1001) and 2 before; another session may have its place");
	core_expect(s.core, backward(&s), 0);
	core_end(s.core);
}
