/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_driver.c - the sink of a driven engine: commands, sessions' fence pages, replies, rows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"
#include "core_driver.h"
#include "core_reduce.h"

#define KINDS (ZD_CMD_SIGNAL + 1)

struct pending { /* a command that is not over */
	struct zd_command command;
	struct zd_fence fences[ZD_MAX_FENCES];
	struct zd_location inputs[CORE_TEAM];
	TAILQ_ENTRY(pending) link;
};

struct segment {
	uint32_t id;
	uint64_t bytes;
	uint8_t *data; /* NULL without bytes */
	TAILQ_ENTRY(segment) link;
};

struct session {
	uint64_t id;
	bool open;
	bool gone;                    /* its process too: at once, unless sessions linger */
	uint32_t told[CORE_SEGMENTS]; /* segments that it is to unmap, and has not */
	uint32_t ntold;
	char killed_why[128];
	uint64_t client_page[ZD_TIMELINES], daemon_page[ZD_TIMELINES];
	TAILQ_ENTRY(session) link;
};

struct call {
	uint64_t session, request;
	uint32_t sent, replied;
	struct zd_reply reply;
	char error[ZD_ERR_TEXT_BYTES];
	struct zd_fence fences[ZD_MAX_DEVICES];
	uint64_t ended[CORE_ENDED];
	TAILQ_ENTRY(call) link;
};

struct failure {
	int status;
	const char *error;
};

struct core_driver {
	struct zd_engine *engine;
	bool no_bytes, abandoned, sessions_linger, sessions_map, devices_copy_own;
	uint64_t next_request;
	bool held[KINDS];
	uint32_t count[KINDS];
	struct failure failures[KINDS];
	struct zd_signal last_signal;
	TAILQ_HEAD(, pending) commands; /* in the order in which they were given */
	TAILQ_HEAD(, segment) segments;
	TAILQ_HEAD(, session) sessions;
	TAILQ_HEAD(, call) calls; /* the newest first */
};

/* ---- Finding --------------------------------------------------------------------------------------------- */

static struct session *session_find(const struct core_driver *core, uint64_t id)
{
	struct session *session;
	TAILQ_FOREACH (session, &core->sessions, link) {
		if (session->id == id)
			break;
	}
	return session;
}

static struct segment *segment_find(const struct core_driver *core, uint32_t id)
{
	struct segment *segment;
	TAILQ_FOREACH (segment, &core->segments, link) {
		if (segment->id == id)
			break;
	}
	return segment;
}

static struct call *call_find(const struct core_driver *core, uint64_t request)
{
	struct call *call;
	TAILQ_FOREACH (call, &core->calls, link) {
		if (call->request == request)
			break;
	}
	return call;
}

uint8_t *core_bytes(struct core_driver *core, struct zd_location where)
{
	const struct segment *segment = segment_find(core, where.segment);
	assert_non_null(segment);
	assert_true(where.offset <= segment->bytes && where.bytes <= segment->bytes - where.offset);
	assert_non_null(segment->data);
	return segment->data + where.offset;
}

bool core_segment_exists(const struct core_driver *core, uint32_t segment)
{
	return segment_find(core, segment) != NULL;
}

/* ---- The sink --------------------------------------------------------------------------------------------- */

static bool uses_segment(const struct zd_command *command, uint32_t segment)
{
	switch (command->kind) {
	case ZD_CMD_COPY:
		return command->u.copy.src.segment == segment || command->u.copy.dst.segment == segment;
	case ZD_CMD_FILL:
		return command->u.fill.segment == segment;
	case ZD_CMD_REDUCE: /* its inputs and its target are gradients of one job, which end together */
		return command->u.reduce.target.segment == segment;
	default:
		return false;
	}
}

static void destroy_segment(struct core_driver *core, uint32_t id)
{
	struct segment *segment = segment_find(core, id);
	const struct pending *p;
	assert_non_null(segment);
	TAILQ_FOREACH (p, &core->commands, link)
		assert_false(uses_segment(&p->command, id));
	TAILQ_REMOVE(&core->segments, segment, link);
	free(segment->data);
	free(segment);
}

static void store_signal(struct core_driver *core, struct zd_signal signal)
{
	struct session *session = session_find(core, signal.session);
	if (signal.session == 0)
		return;
	assert_non_null(session);
	assert_true(signal.timeline < ZD_TIMELINES);
	session->daemon_page[signal.timeline] = signal.value;
}

static void sink_command(void *arg, const struct zd_command *command)
{
	struct core_driver *core = arg;
	assert_false(core->abandoned);
	core->count[command->kind]++;
	if (command->kind == ZD_CMD_SEGMENT_DESTROY && command->op == 0) {
		destroy_segment(core, command->u.segment.segment);
		return;
	}
	if (command->kind == ZD_CMD_SIGNAL) {
		assert_int_equal(command->op, 0);
		core->last_signal = command->signal;
		store_signal(core, command->signal);
		return;
	}
	assert_int_not_equal(command->op, 0);
	struct pending *p = zd_calloc(1, sizeof(*p));
	p->command = *command;
	if (command->kind == ZD_CMD_WATCH) {
		assert_true(command->u.watch.nfences <= ZD_MAX_FENCES);
		for (uint32_t i = 0; i < command->u.watch.nfences; i++)
			p->fences[i] = command->u.watch.fences[i];
		p->command.u.watch.fences = p->fences;
	}
	if (command->kind == ZD_CMD_REDUCE) {
		assert_true(command->u.reduce.ninputs <= CORE_TEAM);
		memcpy(p->inputs, command->u.reduce.inputs,
		       command->u.reduce.ninputs * sizeof(struct zd_location));
		p->command.u.reduce.inputs = p->inputs;
	}
	TAILQ_INSERT_TAIL(&core->commands, p, link);
}

static uint32_t segment_of(const struct zd_reply *reply)
{
	switch (reply->kind) {
	case ZD_REQ_UNIT_REGISTER:
		return reply->u.unit_register.shard.segment;
	case ZD_REQ_GATHER:
		return reply->u.gather.buffer.segment;
	case ZD_REQ_BUCKET_RESERVE:
		return reply->u.bucket_reserve.location.segment;
	case ZD_REQ_STEP_BEGIN:
		return reply->u.step_begin.target.segment;
	case ZD_REQ_ALLOC:
		return reply->u.alloc.location.segment;
	default:
		return 0;
	}
}

static void sink_segment_retire(void *arg, uint64_t id, uint32_t segment)
{
	struct session *session = session_find(arg, id);
	assert_true(session && session->open && session->ntold < CORE_SEGMENTS);
	assert_non_null(segment_find(arg, segment));
	for (uint32_t i = 0; i < session->ntold; i++)
		assert_int_not_equal(session->told[i], segment);
	session->told[session->ntold++] = segment;
}

static void sink_reply(void *arg, const struct zd_reply *reply)
{
	struct core_driver *core = arg;
	struct call *call = call_find(core, reply->request);
	const struct session *session = session_find(core, reply->session);
	assert_false(core->abandoned);
	assert_non_null(call);
	assert_true(call->session == reply->session);
	assert_true(session && session->open);
	assert_true(++call->replied <= call->sent);
	assert_true((reply->status == 0) == (reply->error[0] == '\0'));
	call->reply = *reply;
	(void)snprintf(call->error, sizeof(call->error), "%s", reply->error);
	call->reply.error = call->error;
	if (core->sessions_map && reply->status == 0 && segment_of(reply))
		zd_engine_segment_given(core->engine, reply->session, segment_of(reply));
	if (reply->kind == ZD_REQ_GATHER && reply->status == 0 && reply->u.gather.nfences > 0) {
		assert_true(reply->u.gather.nfences <= ZD_MAX_DEVICES);
		memcpy(call->fences, reply->u.gather.fences,
		       reply->u.gather.nfences * sizeof(struct zd_fence));
		call->reply.u.gather.fences = call->fences;
	}
	if (reply->kind >= ZD_REQ_FORWARD_BEGIN && reply->kind <= ZD_REQ_CONTEXT_END && reply->status == 0 &&
	    reply->u.scope.nended > 0) {
		memcpy(call->ended, reply->u.scope.ended,
		       (reply->u.scope.nended < CORE_ENDED ? reply->u.scope.nended : CORE_ENDED) *
		               sizeof(call->ended[0]));
		call->reply.u.scope.ended = call->ended;
	}
}

static bool sink_fence_passed(void *arg, uint64_t id, struct zd_fence fence)
{
	const struct session *session = session_find(arg, id);
	assert_non_null(session);
	return zd_fence_reached(session->client_page[fence.timeline], fence.value);
}

static void sink_session_killed(void *arg, uint64_t id, const char *why)
{
	struct session *session = session_find(arg, id);
	assert_true(session && session->open);
	session->open = false;
	session->gone = !((struct core_driver *)arg)->sessions_linger;
	(void)snprintf(session->killed_why, sizeof(session->killed_why), "%s", why);
}

/* ---- Running commands --------------------------------------------------------------------------------------- */

static bool on_lane(const struct zd_command *command)
{
	return command->kind == ZD_CMD_COPY || command->kind == ZD_CMD_FILL || command->kind == ZD_CMD_REDUCE;
}

static bool first_on_lane(const struct core_driver *core, const struct pending *p)
{
	const struct pending *other;
	TAILQ_FOREACH (other, &core->commands, link) {
		if (other == p)
			break;
		if (on_lane(&other->command) && other->command.device == p->command.device)
			return false;
	}
	return true;
}

static bool runnable(const struct core_driver *core, const struct pending *p)
{
	const struct session *session;
	if (p->command.kind != ZD_CMD_WATCH)
		return !on_lane(&p->command) || first_on_lane(core, p);
	session = session_find(core, p->command.u.watch.session);
	if (p->command.u.watch.until_gone)
		return session->gone;
	for (uint32_t i = 0; i < p->command.u.watch.nfences && !session->gone; i++) {
		if (!zd_fence_reached(session->client_page[p->fences[i].timeline], p->fences[i].value))
			return false;
	}
	return true;
}

static void create_segment(struct core_driver *core, const struct zd_command *command)
{
	struct segment *segment = zd_calloc(1, sizeof(*segment));
	segment->id = command->u.segment.segment;
	segment->bytes = command->u.segment.bytes;
	if (!core->no_bytes) /* not zeroed, so that a fill that is left out shows */
		segment->data = memset(malloc(segment->bytes), 0xa5, segment->bytes);
	TAILQ_INSERT_TAIL(&core->segments, segment, link);
}

static void execute(struct core_driver *core, const struct zd_command *command, struct zd_op_result *result)
{
	switch (command->kind) {
	case ZD_CMD_SEGMENT_CREATE:
		create_segment(core, command);
		break;
	case ZD_CMD_SEGMENT_DESTROY:
		destroy_segment(core, command->u.segment.segment);
		break;
	case ZD_CMD_COPY:
		assert_true(command->u.copy.src.bytes == command->u.copy.dst.bytes);
		if (!core->no_bytes)
			memcpy(core_bytes(core, command->u.copy.dst), core_bytes(core, command->u.copy.src),
			       command->u.copy.src.bytes);
		break;
	case ZD_CMD_FILL:
		if (!core->no_bytes)
			memset(core_bytes(core, command->u.fill), 0, command->u.fill.bytes);
		break;
	case ZD_CMD_REDUCE:
		if (!core->no_bytes)
			core_reduce_execute(core, &command->u.reduce, result);
		break;
	default:
		break;
	}
	store_signal(core, command->signal);
}

static void complete(struct core_driver *core, struct pending *p)
{
	struct failure *failure = &core->failures[p->command.kind];
	int status = failure->status;
	const char *error = status ? failure->error : "";
	struct zd_op_result result = {0};
	failure->status = 0;
	if (p->command.kind == ZD_CMD_WATCH && session_find(core, p->command.u.watch.session)->gone)
		status = ZEROD_E_ABORTED;
	if (status == 0)
		execute(core, &p->command, &result);
	uint64_t op = p->command.op;
	TAILQ_REMOVE(&core->commands, p, link);
	free(p);
	zd_engine_op_done(core->engine, op, status, error, &result);
	zd_engine_check(core->engine);
}

static struct pending *next_runnable(const struct core_driver *core)
{
	struct pending *p;
	TAILQ_FOREACH (p, &core->commands, link) {
		if (!core->held[p->command.kind] && runnable(core, p))
			break;
	}
	return p;
}

/* After every call into the engine: whatever may run does. */
static void settle(struct core_driver *core)
{
	struct pending *p;
	zd_engine_check(core->engine);
	while ((p = next_runnable(core)))
		complete(core, p);
}

void core_devices_copy_own(struct core_driver *core, bool own)
{
	core->devices_copy_own = own;
}

void core_hold(struct core_driver *core, enum zd_command_kind kind)
{
	core->held[kind] = true;
}

void core_unhold(struct core_driver *core, enum zd_command_kind kind)
{
	core->held[kind] = false;
	settle(core);
}

static void run_one(struct core_driver *core, enum zd_command_kind kind, uint64_t devices)
{
	struct pending *p;
	TAILQ_FOREACH (p, &core->commands, link) {
		if (p->command.kind == kind && (devices & 1ull << p->command.device) && runnable(core, p))
			break;
	}
	assert_non_null(p);
	complete(core, p);
	settle(core);
}

void core_run_one(struct core_driver *core, enum zd_command_kind kind)
{
	run_one(core, kind, UINT64_MAX);
}

void core_run_on(struct core_driver *core, enum zd_command_kind kind, uint32_t device)
{
	run_one(core, kind, 1ull << device);
}

void core_fail_next(struct core_driver *core, enum zd_command_kind kind, int status, const char *error)
{
	core->failures[kind] = (struct failure){status, error};
}

uint32_t core_pending(const struct core_driver *core, enum zd_command_kind kind)
{
	const struct pending *p;
	uint32_t n = 0;
	TAILQ_FOREACH (p, &core->commands, link)
		n += p->command.kind == kind;
	return n;
}

uint32_t core_count(const struct core_driver *core, enum zd_command_kind kind)
{
	return core->count[kind];
}

struct zd_signal core_last_signal(const struct core_driver *core)
{
	return core->last_signal;
}

void core_pass(struct core_driver *core, uint64_t session, uint32_t timeline, uint64_t value)
{
	session_find(core, session)->client_page[timeline] = value;
	settle(core);
}

uint64_t core_timeline(const struct core_driver *core, uint64_t session, uint32_t timeline)
{
	return session_find(core, session)->daemon_page[timeline];
}

uint32_t core_told(const struct core_driver *core, uint64_t session)
{
	const struct session *of = session_find(core, session);
	return of->ntold ? of->told[0] : 0;
}

void core_unmap(struct core_driver *core, uint64_t id)
{
	struct session *session = session_find(core, id);
	struct zd_args args = {.kind = ZD_REQ_SEGMENTS_UNMAPPED,
	                       .u.segments_unmapped = {.count = session->ntold, .segments = session->told}};
	session->ntold = 0;
	core_call(core, id, &args, 0);
}

void core_tick(struct core_driver *core, uint64_t now_ns)
{
	zd_engine_tick(core->engine, now_ns);
	settle(core);
}

static bool sink_client_copies_own(void *arg, uint32_t device, uint64_t bytes)
{
	struct core_driver *core = arg;
	(void)device;
	(void)bytes;
	return !core->devices_copy_own;
}

/* ---- Beginning and end ---------------------------------------------------------------------------------------- */

struct core_driver *core_new(const struct core_options *options)
{
	static const struct core_options defaults;
	struct core_driver *core = zd_calloc(1, sizeof(*core));
	struct zd_device_config devices[ZD_MAX_DEVICES] = {0};
	if (!options)
		options = &defaults;
	struct zd_engine_config config = {
	        .ndevices = options->ndevices ? options->ndevices : 2,
	        .devices = devices,
	        .segment_bytes = options->segment_bytes,
	        .uid_quota_bytes = options->uid_quota_bytes,
	        .reduction_chunk_bytes = options->reduction_chunk_bytes,
	        .sessions_linger = options->sessions_linger,
	        .strict_by_segment = options->strict_by_segment,
	};
	for (uint32_t i = 0; i < config.ndevices; i++) {
		(void)snprintf(devices[i].name, sizeof(devices[i].name), "device%u", i);
		devices[i].arena_bytes = options->arena_bytes ? options->arena_bytes : 4 * CORE_MIB;
		devices[i].segment_align_bytes = options->segment_align_bytes;
		devices[i].gather_budget_bytes = options->gather_budget_bytes;
		devices[i].staging_bytes = options->staging_bytes;
	}
	struct zd_engine_sink sink = {
	        .arg = core,
	        .command = sink_command,
	        .reply = sink_reply,
	        .fence_passed = sink_fence_passed,
	        .session_killed = sink_session_killed,
	        .segment_retire = sink_segment_retire,
	        .client_copies_own = options->client_copies_own_slice ? sink_client_copies_own : NULL};
	core->sessions_map = options->sessions_map;
	core->no_bytes = options->no_bytes;
	core->sessions_linger = options->sessions_linger;
	TAILQ_INIT(&core->commands);
	TAILQ_INIT(&core->segments);
	TAILQ_INIT(&core->sessions);
	TAILQ_INIT(&core->calls);
	core->engine = zd_engine_new(&config, &sink);
	return core;
}

struct zd_engine *core_engine(struct core_driver *core)
{
	return core->engine;
}

/* By an administrator, through the engine's own requests. */
static void end_durable_jobs(struct core_driver *core)
{
	struct core_row rows[CORE_ROW_ITEMS];
	uint64_t admin = core_open_admin(core);
	uint32_t n = core_rows(core, ZD_TABLE_JOBS, rows, CORE_ROW_ITEMS);
	assert_true(n <= CORE_ROW_ITEMS);
	for (uint32_t i = 0; i < n; i++) {
		assert_true(rows[i].row.u.job.durable);
		core_expect(core, core_simple(core, admin, ZD_REQ_END_JOB, rows[i].row.id), 0);
	}
	core_close(core, admin);
}

static void expect_nothing_left(struct core_driver *core)
{
	struct zd_engine_totals totals;
	struct zd_usage nothing = {0};
	zd_engine_totals(core->engine, &totals);
	assert_int_equal(totals.sessions, 0);
	assert_int_equal(totals.jobs, 0);
	assert_int_equal(totals.groups, 0);
	nothing.peak_bytes = totals.usage.peak_bytes;
	nothing.peak_gathered_bytes = totals.usage.peak_gathered_bytes;
	assert_memory_equal(&totals.usage, &nothing, sizeof(nothing));
	assert_true(TAILQ_EMPTY(&core->commands));
	assert_true(TAILQ_EMPTY(&core->segments));
}

static void driver_free(struct core_driver *core)
{
	struct session *session;
	struct segment *segment;
	struct pending *p;
	struct call *call;
	zd_engine_free(core->engine);
	while ((p = TAILQ_FIRST(&core->commands))) {
		TAILQ_REMOVE(&core->commands, p, link);
		free(p);
	}
	while ((segment = TAILQ_FIRST(&core->segments))) {
		TAILQ_REMOVE(&core->segments, segment, link);
		free(segment->data);
		free(segment);
	}
	while ((session = TAILQ_FIRST(&core->sessions))) {
		TAILQ_REMOVE(&core->sessions, session, link);
		free(session);
	}
	while ((call = TAILQ_FIRST(&core->calls))) {
		TAILQ_REMOVE(&core->calls, call, link);
		free(call);
	}
	free(core);
}

void core_abandon(struct core_driver *core)
{
	core->abandoned = true;
	driver_free(core);
}

void core_end(struct core_driver *core)
{
	struct session *session;
	TAILQ_FOREACH (session, &core->sessions, link) {
		if (session->open)
			core_close(core, session->id);
		core_gone(core, session->id);
	}
	for (unsigned kind = 0; kind < KINDS; kind++)
		core_unhold(core, kind);
	end_durable_jobs(core);
	settle(core);
	expect_nothing_left(core);
	driver_free(core);
}

/* ---- Sessions --------------------------------------------------------------------------------------------------- */

static uint64_t open_session(struct core_driver *core, const struct zd_peer *peer)
{
	struct zd_err err = ZD_ERR_NONE;
	struct session *session = zd_calloc(1, sizeof(*session));
	session->id = zd_engine_session_open(core->engine, peer, &err);
	assert_int_not_equal(session->id, 0);
	session->open = true;
	TAILQ_INSERT_TAIL(&core->sessions, session, link);
	zd_engine_check(core->engine);
	return session->id;
}

uint64_t core_open(struct core_driver *core, uint32_t uid)
{
	return open_session(core, &(struct zd_peer){.uid = uid, .pid = uid + 1, .name = "trainer"});
}

uint64_t core_open_strict(struct core_driver *core, uint32_t uid)
{
	return open_session(core,
	                    &(struct zd_peer){.uid = uid, .pid = uid + 1, .strict = true, .name = "trainer"});
}

uint64_t core_open_admin(struct core_driver *core)
{
	return open_session(core, &(struct zd_peer){.uid = 0, .pid = 1, .admin = true, .name = "zeroctl"});
}

void core_close(struct core_driver *core, uint64_t id)
{
	struct session *session = session_find(core, id);
	assert_true(session && session->open);
	session->open = false;
	session->gone = !core->sessions_linger;
	zd_engine_session_close(core->engine, id);
	settle(core);
}

void core_gone(struct core_driver *core, uint64_t id)
{
	struct session *session = session_find(core, id);
	assert_true(session && !session->open);
	session->gone = true;
	settle(core);
}

bool core_is_open(const struct core_driver *core, uint64_t session)
{
	return session_find(core, session)->open;
}

const char *core_killed_why(const struct core_driver *core, uint64_t session)
{
	return session_find(core, session)->killed_why;
}

/* ---- Requests ----------------------------------------------------------------------------------------------------- */

void core_send_as(struct core_driver *core, const struct zd_call *to, const struct zd_args *args)
{
	struct call *call = call_find(core, to->request);
	if (!call) {
		call = zd_calloc(1, sizeof(*call));
		call->session = to->session;
		call->request = to->request;
		TAILQ_INSERT_HEAD(&core->calls, call, link);
	}
	call->sent++;
	zd_engine_request(core->engine, to, args);
	settle(core);
}

uint64_t core_send_until(struct core_driver *core, uint64_t session, uint64_t deadline_ns,
                         const struct zd_args *args)
{
	struct zd_call call = {session, ++core->next_request, deadline_ns};
	core_send_as(core, &call, args);
	return call.request;
}

uint64_t core_send(struct core_driver *core, uint64_t session, const struct zd_args *args)
{
	return core_send_until(core, session, 0, args);
}

const struct zd_reply *core_reply(struct core_driver *core, uint64_t request)
{
	const struct call *call = call_find(core, request);
	assert_non_null(call);
	return call->replied ? &call->reply : NULL;
}

const struct zd_reply *core_expect(struct core_driver *core, uint64_t request, int status)
{
	const struct zd_reply *reply = core_reply(core, request);
	if (!reply)
		fail_msg("request %llu has no reply", (unsigned long long)request);
	if (reply->status != status)
		fail_msg("%s instead of %s: %s", zerod_status_name(reply->status), zerod_status_name(status),
		         reply->error);
	return reply;
}

void core_expect_error(struct core_driver *core, uint64_t request, int status, const char *text)
{
	const struct zd_reply *reply = core_expect(core, request, status);
	if (!strstr(reply->error, text))
		fail_msg("\"%s\" does not say \"%s\"", reply->error, text);
}

void core_expect_waits(struct core_driver *core, uint64_t request, const char *text)
{
	const struct call *call = call_find(core, request);
	struct core_row row;
	assert_non_null(call);
	if (call->replied)
		fail_msg("replied with %s: %s", zerod_status_name(call->reply.status), call->error);
	core_row(core, ZD_TABLE_SESSIONS, call->session, &row);
	assert_true(row.row.u.session.nwaits > 0);
	for (uint32_t i = 0; i < row.row.u.session.nwaits; i++) {
		if (strstr(row.waits[i], text))
			return;
	}
	fail_msg("no wait says \"%s\"; the first is \"%s\"", text, row.waits[0]);
}

const struct zd_reply *core_call(struct core_driver *core, uint64_t session, const struct zd_args *args,
                                 int status)
{
	return core_expect(core, core_send(core, session, args), status);
}
