/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that went are told: to a member that was silent meanwhile by its next request about the group, once,
 * with their names.
 */
#include "tests/support/core_every.h"
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
		s->g.bucket[rank] = core_bucket_ok(&s->g.team, rank, ZEROD_FLOAT32, 16 * CORE_KIB, 2);
	}
	s->unit = core_reducers_unit(&s->g, "w", 300);
}

/* ---- Every request that counts ------------------------------------------------------------------------- */

static uint64_t call(struct scene *s, enum zd_request_kind kind)
{
	const uint64_t ids[CORE_NOBJECTS] = {[CORE_GROUP] = s->g.team.group,
	                                     [CORE_UNIT] = s->unit,
	                                     [CORE_BUCKET] = s->g.bucket[SILENT],
	                                     [CORE_ENTRY] = s->entry};
	const struct zd_args args = core_args(kind, ids);
	return core_send(s->core, session_of(s, SILENT), &args);
}

static void nothing(struct scene *s)
{
	(void)s;
}

static void begin_update(struct scene *s)
{
	core_expect(s->core, call(s, ZD_REQ_UPDATE_BEGIN), 0);
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
	enum zd_request_kind kind;
} silences[] = {
        {"unit_register", nothing, ZD_REQ_UNIT_REGISTER},
        {"set_persistent", nothing, ZD_REQ_SET_PERSISTENT},
        {"set_slot", nothing, ZD_REQ_SET_SLOT},
        {"set_frozen", nothing, ZD_REQ_SET_FROZEN},
        {"gather", nothing, ZD_REQ_GATHER},
        {"update_begin", nothing, ZD_REQ_UPDATE_BEGIN},
        {"publish", begin_update, ZD_REQ_PUBLISH},
        {"unit_load", begin_update, ZD_REQ_UNIT_LOAD},
        {"unit_place", nothing, ZD_REQ_UNIT_PLACE},
        {"commit", nothing, ZD_REQ_COMMIT},
        {"commit_save", nothing, ZD_REQ_COMMIT_SAVE},
        {"forward_begin", nothing, ZD_REQ_FORWARD_BEGIN},
        {"context_begin", nothing, ZD_REQ_CONTEXT_BEGIN},
        {"bucket_create", nothing, ZD_REQ_BUCKET_CREATE},
        {"backward_begin", nothing, ZD_REQ_BACKWARD_BEGIN},
        {"backward_begin in a window", end_all, ZD_REQ_BACKWARD_BEGIN},
        {"bucket_reserve", begin_backward, ZD_REQ_BUCKET_RESERVE},
        {"bucket_submit", reserve_in_backward, ZD_REQ_BUCKET_SUBMIT},
        {"reduce_skip", begin_backward, ZD_REQ_REDUCE_SKIP},
        {"backward_end", submit_all, ZD_REQ_BACKWARD_END},
        {"backward_abandon", submit_all, ZD_REQ_BACKWARD_ABANDON},
        {"step_begin", end_all, ZD_REQ_STEP_BEGIN},
        {"reduce_wait", submit_all, ZD_REQ_REDUCE_WAIT},
        {"step_get", end_all, ZD_REQ_STEP_GET},
        {"group_barrier", nothing, ZD_REQ_GROUP_BARRIER},
        {"group_agree", nothing, ZD_REQ_GROUP_AGREE},
};

/* The request counts for nothing the first time; the second time it has another answer, or waits. A rank
 * whose update was undone is told until it resets its session. */
static void expect_told_once(struct scene *s, const struct silence *silence, const char *text)
{
	uint64_t first = call(s, silence->kind);
	const struct zd_reply *reply = core_reply(s->core, first);
	if (!reply || reply->status != ZEROD_E_PEER_LOST || !strstr(reply->error, text))
		fail_msg("%s: %s, \"%s\"", silence->name, reply ? zerod_status_name(reply->status) : "waits",
		         reply ? reply->error : "");
	if (s->shadow && silence->before == begin_update)
		return;
	uint64_t second = call(s, silence->kind);
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
	core_expect_error(s.core, call(&s, ZD_REQ_COMMIT), ZEROD_E_PEER_LOST, text);
	core_end(s.core);

	open_scene(&s, false);
	go(&s, 1);
	come(&s, 1);
	go(&s, 2);
	come(&s, 2);
	core_expect_error(s.core, call(&s, ZD_REQ_GATHER), ZEROD_E_PEER_LOST, text);
	core_expect(s.core, call(&s, ZD_REQ_BACKWARD_BEGIN), 0);
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
	core_expect_error(s.core, call(&s, ZD_REQ_BACKWARD_BEGIN), ZEROD_E_PEER_LOST,
	                  "rank 1 (pid 1001) of group 'world' is gone, as are rank 2 (pid 1001), rank 1 (pid "
	                  "1001), rank 1 (pid 1001) and 2 before; another session may have its place");
	core_expect(s.core, call(&s, ZD_REQ_BACKWARD_BEGIN), 0);
	core_end(s.core);
}
