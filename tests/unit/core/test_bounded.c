/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of one request does not grow with the number of objects that its user holds, for each kind.
 *
 * The core is compiled once more for this program, with a call at each basic block (the Makefile's COUNTED).
 * So loops of every sort are counted, and none has to be marked. A scene holds many objects of one sort; then
 * each kind of request is made once, and the basic blocks of the longest event since are compared with those
 * in a scene with half as many objects. So it is known how many there would be with as many objects as the
 * default limits allow.
 */
#include <stdio.h>

#include "base/mem.h"
#include "core/engine.h"
#include "tests/support/core_every.h"
#include "tests/support/core_reduce.h"

#define NRANKS   3u
#define ARENA    (64 * CORE_MIB)  /* of a device */
#define IN_PLACE (NRANKS * 2048u) /* elements */
#define MOST     240u             /* objects that are held, or half of them: no hash table is about to grow */
/* About 0.3 ms of a processor. */
#define MOST_BLOCKS 80000u

/* ---- Counting ------------------------------------------------------------------------------------------ */

static uint64_t blocks, longest;
static uint32_t held; /* objects of a scene */

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
	blocks++;
}

static void note(uint64_t before)
{
	if (blocks - before > longest)
		longest = blocks - before;
}

#define COUNT(call)                                                                                          \
	do {                                                                                                 \
		uint64_t before = blocks;                                                                    \
		call;                                                                                        \
		note(before);                                                                                \
	} while (0)

/* Each step is an event of its own. */
static void make_steps(struct zd_engine *e)
{
	bool more;
	do
		COUNT(more = zd_engine_end_step(e, CORE_ALICE));
	while (more);
}

void __real_zd_engine_request(struct zd_engine *e, const struct zd_call *call, const struct zd_args *args);
void __wrap_zd_engine_request(struct zd_engine *e, const struct zd_call *call, const struct zd_args *args);
void __wrap_zd_engine_request(struct zd_engine *e, const struct zd_call *call, const struct zd_args *args)
{
	longest = 0;
	COUNT(__real_zd_engine_request(e, call, args));
	make_steps(e);
}

void __real_zd_engine_op_done(struct zd_engine *e, uint64_t op, int status, const char *error,
                              const struct zd_op_result *result);
void __wrap_zd_engine_op_done(struct zd_engine *e, uint64_t op, int status, const char *error,
                              const struct zd_op_result *result);
void __wrap_zd_engine_op_done(struct zd_engine *e, uint64_t op, int status, const char *error,
                              const struct zd_op_result *result)
{
	COUNT(__real_zd_engine_op_done(e, op, status, error, result));
	make_steps(e);
}

void __real_zd_engine_tick(struct zd_engine *e, uint64_t now_ns);
void __wrap_zd_engine_tick(struct zd_engine *e, uint64_t now_ns);
void __wrap_zd_engine_tick(struct zd_engine *e, uint64_t now_ns)
{
	COUNT(__real_zd_engine_tick(e, now_ns));
	make_steps(e);
}

/* The invariants are checked elsewhere, in time that grows with all objects. */
void __wrap_zd_engine_check(const struct zd_engine *e);
void __wrap_zd_engine_check(const struct zd_engine *e)
{
	(void)e;
}

/* ---- The scene ----------------------------------------------------------------------------------------- */

struct scene {
	struct core_driver *core;
	struct core_reducers g;
	uint64_t session, group, unit;
	uint64_t numel;           /* of units; they are gathered in place from IN_PLACE on */
	uint64_t units[4 * MOST]; /* that a scene of many units has; the first ones */
	uint32_t nunits;
	bool runs;                   /* a backward */
	bool keeps;                  /* it is in a durable job */
	uint64_t ids[CORE_NOBJECTS]; /* of the request to come */
};

static uint64_t send(const struct scene *s, const struct zd_args *args)
{
	return core_send(s->core, s->session, args);
}

static const struct zd_reply *need(const struct scene *s, uint64_t request)
{
	return core_expect(s->core, request, 0);
}

static uint64_t add_unit(struct scene *s, const char *name)
{
	uint64_t unit = core_reducers_unit(&s->g, name, s->numel);
	core_team_publish(&s->g.team, unit);
	return unit;
}

static void open_scene(struct scene *s, uint64_t quota_bytes)
{
	const struct core_options options = {.ndevices = NRANKS,
	                                     .arena_bytes = ARENA,
	                                     .uid_quota_bytes = quota_bytes,
	                                     .no_events = true,
	                                     .end_step_objects = 8};
	*s = (struct scene){.core = core_new(&options), .numel = 300};
	s->g = core_reducers_new(s->core, NRANKS, ZEROD_FLOAT32, 16 * CORE_KIB, 2);
	s->session = s->g.team.session[0];
	s->group = s->g.team.group;
	s->unit = add_unit(s, "w");
	s->ids[CORE_GROUP] = s->group;
	s->ids[CORE_BUCKET] = s->g.bucket[0];
}

static void begin_backward(struct scene *s)
{
	if (!s->runs)
		core_reducers_begin(&s->g, 3, true);
	s->runs = true;
}

/* ---- What is held -------------------------------------------------------------------------------------- */

static void hold_groups(struct scene *s)
{
	char name[32];
	for (uint32_t i = 0; i < held; i++) {
		(void)snprintf(name, sizeof(name), "g%u", i);
		need(s, core_join(s->core, s->session, &(struct core_join){.group = name, .world_size = 1}));
	}
}

static void hold_jobs(struct scene *s)
{
	char name[32];
	for (uint32_t i = 0; i < held; i++) {
		(void)snprintf(name, sizeof(name), "j%u", i);
		need(s, core_join(s->core, s->session, &(struct core_join){.job = name, .world_size = 1}));
	}
}

static void hold_sessions(struct scene *s)
{
	for (uint32_t i = 0; i < held; i++)
		(void)core_open(s->core, CORE_ALICE);
}

/* Other uids, with a session and a job each. */
static void hold_users(struct scene *s)
{
	for (uint32_t i = 0; i < held; i++) {
		uint64_t session = core_open(s->core, CORE_BOB + i);
		need(s, core_join(s->core, session, &(struct core_join){.world_size = 1}));
	}
}

static void hold_allocations(struct scene *s)
{
	for (uint32_t i = 0; i < held; i++)
		need(s, core_alloc(s->core, s->session, "job", 0, CORE_KIB));
}

static uint64_t alloc_durable(const struct scene *s, const char *name)
{
	return send(s, &(struct zd_args){.kind = ZD_REQ_ALLOC,
	                                 .u.alloc = {.job = (char *)"kept",
	                                             .name = (char *)name,
	                                             .bytes = 512,
	                                             .durable = true}});
}

static void join_durable(struct scene *s)
{
	if (s->keeps)
		return;
	s->keeps = true;
	const struct core_join join = {.job = "kept", .world_size = 1, .durable = true};
	need(s, core_join(s->core, s->session, &join));
}

static void hold_durable(struct scene *s)
{
	char name[32];
	join_durable(s);
	for (uint32_t i = 0; i < held; i++) {
		(void)snprintf(name, sizeof(name), "a%u", i);
		need(s, alloc_durable(s, name));
	}
}

static void hold_units(struct scene *s)
{
	char name[32];
	for (uint32_t i = 0; i < held; i++) {
		(void)snprintf(name, sizeof(name), "u%u", i);
		s->units[s->nunits++] = add_unit(s, name);
	}
}

/* Shards and frames in segments of their own. */
static void hold_units_in_place(struct scene *s)
{
	s->numel = IN_PLACE;
	s->unit = add_unit(s, "in place");
	hold_units(s);
}

static void hold_buffers(struct scene *s)
{
	if (s->nunits == 0)
		hold_units(s);
	for (uint32_t i = 0; i < held; i++)
		need(s, core_gather(s->core, s->session, s->units[i]));
}

static void hold_buffers_in_place(struct scene *s)
{
	hold_units_in_place(s);
	hold_buffers(s);
}

/* Buffers whose memory waits for streams. */
static void hold_quarantine(struct scene *s)
{
	const struct zd_fence fence = {.timeline = 0, .value = 7};
	hold_buffers(s);
	for (uint32_t i = 0; i < held; i++)
		need(s, core_release_tag(s->core, s->session, s->units[i], CORE_TAG, &fence, 1));
}

static void hold_quarantine_in_place(struct scene *s)
{
	hold_units_in_place(s);
	hold_quarantine(s);
}

/* Frames that are free. */
static void hold_frames(struct scene *s)
{
	hold_buffers_in_place(s);
	for (uint32_t i = 0; i < held; i++)
		need(s, core_release(s->core, s->session, s->units[i]));
}

/* Rank 0's device has no memory for another segment. The unit is not gathered in place. */
static void fill_device(struct scene *s, uint64_t unit)
{
	struct core_row row;
	s->unit = unit;
	s->numel = 300;
	(void)core_rows(s->core, ZD__TABLE__DEVICES, &row, 1);
	need(s, core_alloc(s->core, s->session, "job", 0, ARENA - row.row->device->segment_bytes));
}

/* Requests for memory retire some of them. */
static void hold_frames_of_full_device(struct scene *s)
{
	uint64_t small = s->unit;
	hold_frames(s);
	fill_device(s, small);
}

/* Requests for memory drop some of them. */
static void hold_prefetched_of_full_device(struct scene *s)
{
	uint64_t small = s->unit;
	hold_units_in_place(s);
	for (uint32_t i = 0; i < held; i++)
		(void)core_prefetch(s->core, s->session, s->units[i]);
	fill_device(s, small);
}

static void hold_tags(struct scene *s)
{
	char tag[32];
	for (uint32_t i = 0; i < held; i++) {
		(void)snprintf(tag, sizeof(tag), "t%u", i);
		need(s, core_gather_tag(s->core, s->session, s->unit, tag, 1));
	}
}

static void hold_scopes(struct scene *s)
{
	uint64_t request = core_forward_begin(s->core, s->session, s->group, 0, NULL, 0);
	uint64_t outer = need(s, request)->u.scope.scope;
	for (uint32_t i = 1; i < held; i++)
		need(s, core_forward_begin(s->core, s->session, s->group, outer, NULL, 0));
}

/* Gathers of a version that no rank publishes, in the queues of all ranks' devices. */
static void hold_waiters(struct scene *s)
{
	for (uint32_t i = 0; i < held; i++)
		(void)core_gather_version(s->core, s->g.team.session[i % NRANKS], s->unit, 99);
}

static void hold_entries(struct scene *s)
{
	hold_units(s);
	begin_backward(s);
	for (uint32_t i = 0; i < held; i++)
		(void)core_reserve(&s->g.team, 0, s->g.bucket[0], s->units[i]);
}

static void hold_sums(struct scene *s)
{
	hold_units(s);
	begin_backward(s);
	for (uint32_t i = 0; i < held; i++)
		core_reduce_all(&s->g, s->units[i], 1.0f);
}

#define PREFETCHED "prefetched buffers of a full device"

static const struct hold {
	const char *name;
	void (*fill)(struct scene *s);
	uint64_t limit;       /* of one user, by default */
	uint64_t quota_bytes; /* of a user; 0: none */
} holds[] = {
        {"groups", hold_groups, 40000, 0},
        {"jobs", hold_jobs, 128, 0},
        {"sessions", hold_sessions, 256, 0},
        {"users", hold_users, 256, 0},
        {"allocations", hold_allocations, 200000, 0},
        {"durable allocations", hold_durable, 200000, 0},
        {"units", hold_units, ZD_MAX_UNITS, 0},
        {"buffers", hold_buffers, ZD_MAX_UNITS, 0},
        {"buffers in quarantine", hold_quarantine, ZD_MAX_UNITS, 0},
        {"units in place", hold_units_in_place, ZD_MAX_UNITS, 0},
        {"buffers in place", hold_buffers_in_place, ZD_MAX_UNITS, 0},
        {"buffers in place in quarantine", hold_quarantine_in_place, ZD_MAX_UNITS, 0},
        {"buffers in place in quarantine, with a quota", hold_quarantine_in_place, ZD_MAX_UNITS, ARENA},
        {"free frames", hold_frames, ZD_MAX_UNITS, 0},
        {"free frames of a full device", hold_frames_of_full_device, ZD_MAX_UNITS, 0},
        {PREFETCHED, hold_prefetched_of_full_device, ZD_MAX_UNITS, 0},
        {"tags", hold_tags, 300000, 0},
        {"scopes", hold_scopes, ZD_MAX_SCOPES, 0},
        {"gathers of a session that wait", hold_waiters, ZD_MAX_OUTSTANDING + ZD_RELEASE_ROOM, 0},
        {"entries", hold_entries, ZD_MAX_UNITS, 0},
        {"sums", hold_sums, ZD_MAX_UNITS, 0},
};

/* Requests that still visit all that is held. Trims, and a backward_begin beside free frames, retire as many
 * segments as they need memory. */
static const char *const known[][2] = {
        {"session_reset", "groups"},
        {"trim", "free frames"},
        {"trim", "free frames of a full device"},
        {"backward_begin", "free frames of a full device"},
        {"gather", PREFETCHED},
        {"context_begin", PREFETCHED},
        {"trim", PREFETCHED},
        {"backward_begin", PREFETCHED},
        {"bucket_reserve", PREFETCHED},
        {"alloc", PREFETCHED},
        {"a durable alloc", PREFETCHED},
        {"an alloc without room", PREFETCHED},
        {"an alloc of all the quota", PREFETCHED},
};

/* ---- Every request, with what has to come before it ---------------------------------------------------- */

static void begin_update(struct scene *s)
{
	need(s, core_update(s->core, s->session, s->unit));
}

static void commit(struct scene *s)
{
	for (uint32_t rank = NRANKS; rank-- > 0;)
		(void)core_commit(s->core, s->g.team.session[rank], s->group, 1);
}

static void allocate(struct scene *s)
{
	s->ids[CORE_ALLOCATION] =
	        need(s, core_alloc(s->core, s->session, "job", 0, CORE_KIB))->u.alloc.allocation;
}

static void allocate_and_commit(struct scene *s)
{
	allocate(s);
	commit(s);
}

static void gather(struct scene *s)
{
	need(s, core_gather(s->core, s->session, s->unit));
}

static void new_forward(struct scene *s)
{
	uint64_t request = core_forward_begin(s->core, s->session, s->group, 0, NULL, 0);
	s->ids[CORE_SCOPE] = need(s, request)->u.scope.scope;
}

static void new_claim(struct scene *s)
{
	new_forward(s);
	(void)core_forward_end(s->core, s->session, s->ids[CORE_SCOPE], true);
}

static void new_context(struct scene *s)
{
	uint64_t request = core_context_begin(s->core, s->session, &s->unit, 1);
	s->ids[CORE_SCOPE] = need(s, request)->u.scope.scope;
}

/* Of all ranks but rank 0, whose entry is in ids. */
static bool reserve(struct scene *s)
{
	begin_backward(s);
	for (uint32_t rank = NRANKS; rank-- > 0;) {
		uint64_t request = core_reserve(&s->g.team, rank, s->g.bucket[rank], s->unit);
		const struct zd_reply *reply = core_reply(s->core, request);
		if (!reply)
			return false; /* behind all other entries of the rank */
		s->ids[CORE_ENTRY] = reply->u.bucket_reserve.entry;
		if (rank > 0)
			(void)core_submit(&s->g, rank, s->ids[CORE_ENTRY], NULL);
	}
	return true;
}

static void reserve_all(struct scene *s)
{
	(void)reserve(s);
}

static void submit(struct scene *s)
{
	if (reserve(s))
		(void)core_submit(&s->g, 0, s->ids[CORE_ENTRY], NULL);
}

static void wait_for_sum(struct scene *s)
{
	submit(s);
	(void)core_wait_sum(&s->g.team, 0, s->unit, false);
}

static void end_backward(struct scene *s)
{
	submit(s);
	for (uint32_t rank = NRANKS; rank-- > 0;)
		(void)core_backward_end(&s->g.team, rank);
}

static void begin_step(struct scene *s)
{
	end_backward(s);
	for (uint32_t rank = NRANKS; rank-- > 0;)
		(void)core_step(&s->g.team, rank);
}

static void find_job(struct scene *s, const char *name)
{
	struct core_row row[8];
	(void)core_rows_for(s->core, s->session, ZD__TABLE__JOBS, name, row, 1);
	s->ids[CORE_JOB] = row[0].id;
}

static void keep_job(struct scene *s)
{
	join_durable(s);
	find_job(s, "kept");
}

static void own_job(struct scene *s)
{
	find_job(s, "job");
}

static void ask_cancel(struct scene *s)
{
	uint64_t waits = core_gather_version(s->core, s->session, s->unit, 99);
	(void)send(s, &(struct zd_args){.kind = ZD_REQ_CANCEL, .u.cancel.request = waits});
}

static void ask_kill_session(struct scene *s)
{
	(void)core_simple(s->core, core_open_admin(s->core), ZD_REQ_KILL_SESSION, s->session);
}

static void ask_durable(struct scene *s)
{
	join_durable(s);
	(void)alloc_durable(s, "new");
}

static void ask_too_much(struct scene *s)
{
	(void)core_alloc(s->core, s->session, "job", 0, ARENA);
}

/* The bytes that the quota has left, although segments of the user occupy more. */
static void ask_all_of_quota(struct scene *s)
{
	struct core_row row[8];
	(void)core_rows_for(s->core, s->session, ZD__TABLE__JOBS, "job", row, 1);
	const Zd__Usage *usage = row[0].row->job->usage;
	(void)core_alloc(s->core, s->session, "job", 0,
	                 ARENA - usage->shard_bytes - usage->gathered_bytes - 2 * CORE_KIB);
}

/* All deadlines pass at once. */
static void ask_deadlines(struct scene *s)
{
	const struct zd_args args = {.kind = ZD_REQ_GATHER,
	                             .u.gather = {.unit = s->unit, .tag = (char *)CORE_TAG, .version = 99}};
	for (uint32_t i = 0; i < held; i++)
		(void)core_send_until(s->core, s->session, 1, &args);
	longest = 0;
	core_tick(s->core, 1);
}

/* Rank 0 or all ranks make the request of core_args(), or `ask` makes it. */
static const struct ask {
	void (*before)(struct scene *s);
	bool by_all;
	void (*ask)(struct scene *s);
	const char *name; /* NULL: the request's */
} asks[ZD_NREQUESTS + 4] = {
        [ZD_REQ_CANCEL] = {.ask = ask_cancel},
        [ZD_REQ_PUBLISH] = {begin_update},
        [ZD_REQ_COMMIT] = {.by_all = true},
        [ZD_REQ_COMMIT_SAVE] = {commit},
        [ZD_REQ_COMMIT_WAIT] = {commit},
        [ZD_REQ_UNIT_READ] = {allocate_and_commit},
        [ZD_REQ_UNIT_LOAD] = {begin_update},
        [ZD_REQ_RELEASE] = {gather},
        [ZD_REQ_FORWARD_END] = {new_forward},
        [ZD_REQ_CLAIM_END] = {new_claim},
        [ZD_REQ_SCOPE_ABANDON] = {new_forward},
        [ZD_REQ_CONTEXT_END] = {new_context},
        [ZD_REQ_GROUP_AGREE] = {.by_all = true},
        [ZD_REQ_BUCKET_RESERVE] = {begin_backward},
        [ZD_REQ_BUCKET_SUBMIT] = {reserve_all},
        [ZD_REQ_REDUCE_SKIP] = {begin_backward, .by_all = true},
        [ZD_REQ_REDUCE_WAIT] = {submit},
        [ZD_REQ_TARGET_RETURN] = {wait_for_sum},
        [ZD_REQ_BACKWARD_END] = {submit, .by_all = true},
        [ZD_REQ_BACKWARD_ABANDON] = {submit},
        [ZD_REQ_STEP_BEGIN] = {end_backward, .by_all = true},
        [ZD_REQ_STEP_GET] = {begin_step},
        [ZD_REQ_STEP_END] = {begin_step, .by_all = true},
        [ZD_REQ_FREE] = {allocate},
        [ZD_REQ_KILL_SESSION] = {.ask = ask_kill_session},
        [ZD_REQ_END_JOB] = {keep_job},
        [ZD_REQ_KILL_JOB] = {own_job},
        [ZD_NREQUESTS] = {.ask = ask_durable, .name = "a durable alloc"},
        {.ask = ask_too_much, .name = "an alloc without room"},
        {.ask = ask_all_of_quota, .name = "an alloc of all the quota"},
        {.ask = ask_deadlines, .name = "deadlines"},
};

static const char *name_of(const struct ask *ask)
{
	return ask->name ? ask->name : core_kinds[ask - asks].name;
}

static void make(struct scene *s, const struct ask *ask)
{
	if (ask->ask) {
		ask->ask(s);
		return;
	}
	s->ids[CORE_UNIT] = s->unit;
	if (ask->before)
		ask->before(s);
	struct zd_args args = core_args((enum zd_request_kind)(ask - asks), s->ids);
	if (args.kind == ZD_REQ_UNIT_REGISTER)
		args.u.unit_register.numel = s->numel;
	for (uint32_t rank = ask->by_all ? NRANKS : 1; rank-- > 0;)
		(void)core_send(s->core, s->g.team.session[rank], &args);
}

/* ---- The table ----------------------------------------------------------------------------------------- */

/* Basic blocks of the longest event. */
static uint64_t measure(const struct ask *ask, const struct hold *hold, uint32_t n)
{
	struct scene s;
	held = n;
	open_scene(&s, hold->quota_bytes);
	hold->fill(&s);
	longest = 0;
	make(&s, ask);
	uint64_t count = longest;
	core_abandon(s.core);
	return count;
}

static bool is_known(const struct ask *ask, const struct hold *hold)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(known); i++) {
		if (strcmp(name_of(ask), known[i][0]) == 0 && strcmp(hold->name, known[i][1]) == 0)
			return true;
	}
	return false;
}

/* Basic blocks beside as many objects as the limit allows. */
static uint64_t foresee(const struct ask *ask, const struct hold *hold, uint32_t n)
{
	uint64_t half = measure(ask, hold, n / 2), all = measure(ask, hold, n);
	return half + (all > half ? (all - half) * hold->limit / (n / 2) : 0);
}

TEST(test_no_request_visits_all)
{
	uint32_t failures = 0;
	for (size_t i = 0; i < ZD_ARRAY_LEN(asks); i++) {
		for (size_t j = 0; j < ZD_ARRAY_LEN(holds); j++) {
			uint64_t count = foresee(&asks[i], &holds[j], MOST);
			if (count > MOST_BLOCKS) /* it may only grow up to what one step may do */
				count = foresee(&asks[i], &holds[j], 4 * MOST);
			if ((count > MOST_BLOCKS) == is_known(&asks[i], &holds[j]))
				continue;
			print_error("%s beside %llu %s: %llu basic blocks\n", name_of(&asks[i]),
			            (unsigned long long)holds[j].limit, holds[j].name,
			            (unsigned long long)count);
			failures++;
		}
	}
	assert_int_equal(failures, 0);
}

/* Basic blocks of a rank's request, with all steps, beside readers that wait for a commit. */
static uint64_t measure_beside_readers(uint32_t n)
{
	struct scene s;
	open_scene(&s, 0);
	for (uint32_t i = 0; i < n; i++) {
		const struct zd_args args = {
		        .kind = ZD_REQ_COMMIT_WAIT,
		        .u.commit_wait = {.job = (char *)"job", .group = (char *)"world", .after = 99}};
		(void)core_send(s.core, core_open(s.core, CORE_ALICE), &args);
	}
	uint64_t before = blocks;
	make(&s, &asks[ZD_REQ_PUBLISH]);
	uint64_t count = blocks - before;
	core_abandon(s.core);
	return count;
}

TEST(test_waiting_readers_cost_ranks_nothing)
{
	assert_in_range(measure_beside_readers(500), 1, measure_beside_readers(1) + 50);
}
