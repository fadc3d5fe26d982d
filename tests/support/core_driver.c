/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_driver.c - the sink of a driven engine: commands, sessions' fence pages, replies.
 */
#include <stdio.h>
#include <sys/queue.h>

#include "base/err.h"
#include "base/mem.h"
#include "core_driver_internal.h"
#include "core_net.h"
#include "core_reduce.h"

/* ---- Finding ------------------------------------------------------------------------------------------- */

struct session *core_session(const struct core_driver *core, uint64_t id)
{
	struct session *session;
	TAILQ_FOREACH (session, &core->sessions, link) {
		if (session->id == id)
			break;
	}
	return session;
}

struct segment *core_segment(const struct core_driver *core, uint32_t id)
{
	struct segment *segment;
	TAILQ_FOREACH (segment, &core->segments, link) {
		if (segment->id == id)
			break;
	}
	return segment;
}

struct call *core_find_call(const struct core_driver *core, uint64_t request)
{
	struct call *call;
	HASH_FIND(hh, core->calls, &request, sizeof(request), call);
	return call;
}

uint8_t *core_bytes(struct core_driver *core, struct zd_location where)
{
	const struct segment *segment = core_segment(core, where.segment);
	assert_non_null(segment);
	assert_true(where.offset <= segment->bytes && where.bytes <= segment->bytes - where.offset);
	assert_non_null(segment->data);
	return segment->data + where.offset;
}

bool core_segment_exists(const struct core_driver *core, uint32_t segment)
{
	return core_segment(core, segment) != NULL;
}

/* ---- The sink ------------------------------------------------------------------------------------------ */

static bool uses_segment(const struct zd_command *command, uint32_t segment)
{
	switch (command->kind) {
	case ZD_CMD_COPY:
		return command->u.copy.src.segment == segment || command->u.copy.dst.segment == segment;
	case ZD_CMD_FILL:
		return command->u.fill.dst.segment == segment;
	case ZD_CMD_EXCHANGE:
		return command->u.exchange.send.segment == segment ||
		       command->u.exchange.receive.segment == segment;
	case ZD_CMD_REDUCE: /* its inputs and its target are gradients of one job, which end together */
		return command->u.reduce.target.segment == segment;
	default:
		return false;
	}
}

static void destroy_segment(struct core_driver *core, uint32_t id)
{
	struct segment *segment = core_segment(core, id);
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
	struct session *session = core_session(core, signal.session);
	if (signal.session == 0)
		return;
	assert_non_null(session);
	assert_true(signal.timeline < ZD_TIMELINES);
	session->daemon_page[signal.timeline] = signal.value;
}

/* Exchanges that are under way leave the timeline. */
static void leave_timeline(struct core_driver *core, struct zd_signal signal)
{
	struct pending *p;
	TAILQ_FOREACH (p, &core->commands, link) {
		struct zd_signal *given = &p->command.signal;
		if (p->command.kind == ZD_CMD_EXCHANGE && given->session == signal.session &&
		    given->timeline == signal.timeline)
			given->session = 0;
	}
}

/* Of a command that ended with the status. */
static void store_done(struct core_driver *core, struct zd_signal signal, int status)
{
	if (signal.session == 0 || core_timeline(core, signal.session, signal.timeline) == ZD_FENCE_ABORTED)
		return;
	if (status != 0)
		signal.value = ZD_FENCE_ABORTED;
	store_signal(core, signal);
}

static void sink_command(void *arg, const struct zd_command *command)
{
	struct core_driver *core = arg;
	assert_false(core->abandoned);
	core->count[command->kind]++;
	if (command->kind == ZD_CMD_SIGNAL) {
		core->last_signal = command->signal;
		leave_timeline(core, command->signal);
		store_signal(core, command->signal);
		if (command->op == 0)
			return;
	}
	if (command->kind == ZD_CMD_COMM_CLOSE) {
		assert_int_equal(command->op, 0);
		core_net_close(core->net, core, command);
		return;
	}
	assert_int_not_equal(command->op, 0);
	struct pending *p = zd_calloc(1, sizeof(*p));
	p->command = *command;
	p->landed = command->kind == ZD_CMD_SIGNAL; /* it is stored */
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
		assert_true(command->u.reduce.nfences <= ZD_MAX_FENCES);
		for (uint32_t i = 0; i < command->u.reduce.nfences; i++)
			p->fences[i] = command->u.reduce.fences[i];
		p->command.u.reduce.fences = p->fences;
	}
	if (core_net_has(command->kind)) {
		assert_non_null(core->net); /* which keeps what else the command points to */
		core_net_give(core->net, core, command);
	}
	TAILQ_INSERT_TAIL(&core->commands, p, link);
}

static void give_segments(struct core_driver *core, const struct zd_reply *reply)
{
	for (size_t i = 0; i < ZD_ARRAY_LEN(reply->places); i++) {
		if (reply->places[i].segment)
			zd_engine_segment_given(core->engine, reply->session, reply->places[i].segment);
	}
}

static void sink_segment_retire(void *arg, uint64_t id, uint32_t segment)
{
	struct session *session = core_session(arg, id);
	assert_true(session && session->open && session->ntold < CORE_SEGMENTS);
	assert_non_null(core_segment(arg, segment));
	for (uint32_t i = 0; i < session->ntold; i++)
		assert_int_not_equal(session->told[i], segment);
	session->told[session->ntold++] = segment;
}

/* The lists of the reply's message. */
static void keep_lists(struct call *call)
{
	static const char *const bodies[ZD_NREQUESTS] = {
#define REQUEST(KIND, name)
#define REQUEST_FILLED(KIND, name, fill) [ZD_REQ_##KIND] = #fill,
#include "core/requests.def"
	};
	const char *body = bodies[call->reply.kind];
	const ProtobufCMessageDescriptor *type;
	if (!body)
		return;
	type = protobuf_c_message_descriptor_get_field_by_name(&zd__reply__descriptor, body)->descriptor;
	((ProtobufCMessage *)&call->reply.u)->descriptor = type;
	size_t nbytes = protobuf_c_message_get_packed_size((ProtobufCMessage *)&call->reply.u);
	uint8_t *packed = zd_calloc(1, nbytes + 1);
	protobuf_c_message_pack((ProtobufCMessage *)&call->reply.u, packed);
	if (call->message)
		protobuf_c_message_free_unpacked(call->message, NULL);
	call->message = protobuf_c_message_unpack(type, NULL, nbytes, packed);
	assert_non_null(call->message);
	memcpy(&call->reply.u, call->message, type->sizeof_message);
	free(packed);
}

static void sink_reply(void *arg, const struct zd_reply *reply)
{
	struct core_driver *core = arg;
	struct call *call = core_find_call(core, reply->request);
	const struct session *session = core_session(core, reply->session);
	assert_false(core->abandoned);
	assert_non_null(call);
	assert_true(call->session == reply->session);
	assert_true(session && session->open);
	assert_true(++call->replied <= call->sent);
	assert_true((reply->status == 0) == (reply->error[0] == '\0'));
	call->reply = *reply;
	(void)snprintf(call->error, sizeof(call->error), "%s", reply->error);
	call->reply.error = call->error;
	if (core->sessions_map && reply->status == 0)
		give_segments(core, reply);
	assert_true(reply->fences.count <= ZD_MAX_DEVICES);
	for (uint32_t i = 0; i < reply->fences.count; i++)
		call->fences[i] = reply->fences.fences[i];
	call->reply.fences.fences = call->fences;
	if (reply->status == 0)
		keep_lists(call);
}

static bool sink_fence_passed(void *arg, uint64_t id, struct zd_fence fence)
{
	const struct session *session = core_session(arg, id);
	assert_non_null(session);
	return zd_fence_reached(session->client_page[fence.timeline], fence.value);
}

static void sink_session_killed(void *arg, uint64_t id, const char *why)
{
	struct session *session = core_session(arg, id);
	assert_true(session && session->open);
	session->open = false;
	session->gone = !((struct core_driver *)arg)->sessions_linger;
	(void)snprintf(session->killed_why, sizeof(session->killed_why), "%s", why);
}

/* core_end_step() does not wait for this. */
static void sink_ends(void *arg, uint32_t uid)
{
	(void)arg;
	(void)uid;
}

static void sink_notice(void *arg, const struct zd_notice *notice)
{
	struct core_driver *core = arg;
	if (core->nnotices == CORE_NOTICES || core->abandoned)
		return;
	char *text = core->notices[core->nnotices++];
	switch (notice->kind) {
	case ZD_NOTICE_JOB_BEGAN:
		(void)snprintf(text, CORE_NOTICE_TEXT, "job %u/%s began", notice->uid, notice->job);
		break;
	case ZD_NOTICE_JOB_ENDED:
		(void)snprintf(text, CORE_NOTICE_TEXT, "job %u/%s ended, since %llu, peak %llu", notice->uid,
		               notice->job, (unsigned long long)notice->began_ns,
		               (unsigned long long)notice->peak_bytes);
		break;
	case ZD_NOTICE_JOB_LOST:
		(void)snprintf(text, CORE_NOTICE_TEXT, "job %u/%s is lost: segment %u", notice->uid,
		               notice->job, notice->segment);
		break;
	case ZD_NOTICE_UNMAP_LATE:
		(void)snprintf(text, CORE_NOTICE_TEXT, "pid %u uid %u device %u late", notice->pid,
		               notice->uid, notice->device);
		break;
	case ZD_NOTICE_PIN_LATE:
		(void)snprintf(text, CORE_NOTICE_TEXT, "pid %u: step %llu of %s/%s is not pinned any more",
		               notice->pid, (unsigned long long)notice->step, notice->job, notice->group);
		break;
	case ZD_NOTICE_RANK_LOST:
		(void)snprintf(text, CORE_NOTICE_TEXT, "job %u/%s group %s rank %u device %u pid %u lost",
		               notice->uid, notice->job, notice->group, notice->rank, notice->device,
		               notice->pid);
		assert_non_null(core_session(core, notice->session));
		break;
	}
}

/* ---- Running commands ---------------------------------------------------------------------------------- */

/* Sums with fences wait elsewhere. */
static bool is_queued(const struct zd_command *command)
{
	return command->kind == ZD_CMD_COPY || command->kind == ZD_CMD_FILL ||
	       (command->kind == ZD_CMD_REDUCE && command->u.reduce.nfences == 0);
}

/* Does a command before end before. */
static bool is_behind(const struct core_driver *core, const struct zd_command *command,
                      const struct zd_command *before)
{
	if (!is_queued(before) || before->device != command->device)
		return false;
	return !core->unordered ||
	       (before->signal.session && before->signal.session == command->signal.session &&
	        before->signal.timeline == command->signal.timeline);
}

static bool is_first_queued(const struct core_driver *core, const struct pending *p)
{
	const struct pending *other;
	TAILQ_FOREACH (other, &core->commands, link) {
		if (other == p)
			break;
		if (is_behind(core, &p->command, &other->command))
			return false;
	}
	return true;
}

static bool may_sum(const struct core_driver *core, const struct pending *p)
{
	const struct session *session = core_session(core, p->command.u.reduce.session);
	for (uint32_t i = 0; i < p->command.u.reduce.nfences && !core->refuses_sums; i++) {
		if (!zd_fence_reached(session->daemon_page[p->fences[i].timeline], p->fences[i].value))
			return false;
	}
	return true;
}

static bool runnable(const struct core_driver *core, const struct pending *p)
{
	const struct session *session;
	if (p->command.kind == ZD_CMD_REDUCE && !may_sum(core, p))
		return false;
	if (core_net_has(p->command.kind))
		return core_net_may_end(core->net, core, &p->command);
	if (p->command.kind != ZD_CMD_WATCH)
		return !is_queued(&p->command) || is_first_queued(core, p);
	session = core_session(core, p->command.u.watch.session);
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
		segment->data = memset(malloc(segment->bytes), 0x7f, segment->bytes);
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
		assert_true(command->u.copy.src.bytes ==
		            zd_rows_span(command->u.copy.rows, command->u.copy.dst.bytes));
		if (!core->no_bytes)
			zd_copy(core_bytes(core, command->u.copy.dst), core_bytes(core, command->u.copy.src),
			        command->u.copy.rows, 0, command->u.copy.dst.bytes);
		break;
	case ZD_CMD_FILL:
		if (!core->no_bytes)
			zd_fill(core_bytes(core, command->u.fill.dst), 0, command->u.fill.dst.bytes,
			        command->u.fill.pattern);
		break;
	case ZD_CMD_REDUCE:
		result->not_begun = core->refuses_sums && command->u.reduce.nfences > 0;
		if (!core->no_bytes && !result->not_begun)
			core_reduce_execute(core, &command->u.reduce, result);
		break;
	default:
		break;
	}
}

static void land(struct core_driver *core, struct pending *p, struct zd_op_result *result)
{
	struct failure *failure = &core->failures[p->command.kind];
	p->landed = true;
	p->status = failure->status;
	p->error = p->status ? failure->error : "";
	failure->status = 0;
	if (p->command.kind == ZD_CMD_WATCH && core_session(core, p->command.u.watch.session)->gone)
		p->status = ZEROD_E_ABORTED;
	if (core_net_has(p->command.kind))
		p->status = core_net_complete(core->net, core, &p->command, p->status, result, &p->error);
	else if (p->status == 0)
		execute(core, &p->command, result);
	store_done(core, p->command.signal, p->status);
}

static void complete(struct core_driver *core, struct pending *p)
{
	struct zd_op_result result = {0};
	if (!p->landed)
		land(core, p, &result);
	uint64_t op = p->command.op;
	int status = p->status;
	const char *error = p->error;
	TAILQ_REMOVE(&core->commands, p, link);
	free(p);
	zd_engine_op_done(core->engine, op, status, error, &result);
	core_journal_store(core);
	free(result.values);
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

bool core_run_all(struct core_driver *core)
{
	struct pending *p;
	bool any = false;
	for (; (p = next_runnable(core)); any = true)
		complete(core, p);
	return any;
}

void core_settle(struct core_driver *core)
{
	core_journal_store(core);
	zd_engine_check(core->engine);
	(void)core_run_all(core);
	if (core->net)
		core_net_settle(core->net);
}

void core_hold(struct core_driver *core, enum zd_command_kind kind)
{
	core->held[kind] = true;
}

void core_unhold(struct core_driver *core, enum zd_command_kind kind)
{
	core->held[kind] = false;
	core_settle(core);
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
	core_settle(core);
}

void core_run_one(struct core_driver *core, enum zd_command_kind kind)
{
	run_one(core, kind, UINT64_MAX);
}

void core_run_on(struct core_driver *core, enum zd_command_kind kind, uint32_t device)
{
	run_one(core, kind, 1ull << device);
}

void core_land(struct core_driver *core, enum zd_command_kind kind, uint32_t device)
{
	struct zd_op_result none = {0};
	struct pending *p;
	TAILQ_FOREACH (p, &core->commands, link) {
		if (p->command.kind == kind && p->command.device == device && !p->landed)
			break;
	}
	assert_true(p && kind == ZD_CMD_COPY); /* which has no result */
	land(core, p, &none);
	core_settle(core);
}

bool core_run_nth(struct core_driver *core, uint32_t n)
{
	struct pending *p;
	TAILQ_FOREACH (p, &core->commands, link) {
		if (runnable(core, p) && n-- == 0)
			break;
	}
	if (!p)
		return false;
	complete(core, p);
	core_settle(core);
	return true;
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
	core_session(core, session)->client_page[timeline] = value;
	core_settle(core);
}

uint64_t core_timeline(const struct core_driver *core, uint64_t session, uint32_t timeline)
{
	return core_session(core, session)->daemon_page[timeline];
}

uint32_t core_told(const struct core_driver *core, uint64_t session)
{
	const struct session *of = core_session(core, session);
	return of->ntold ? of->told[0] : 0;
}

void core_unmap(struct core_driver *core, uint64_t id)
{
	struct session *session = core_session(core, id);
	struct zd_args args = {
	        .kind = ZD_REQ_SEGMENTS_UNMAPPED,
	        .u.segments_unmapped = {.n_segments = session->ntold, .segments = session->told}};
	session->ntold = 0;
	core_call(core, id, &args, 0);
}

void core_tick(struct core_driver *core, uint64_t now_ns)
{
	core->now_ns = now_ns;
	zd_engine_tick(core->engine, now_ns);
	core_settle(core);
}

static bool sink_sums_ahead(void *arg, uint64_t session)
{
	const struct core_driver *core = arg;
	assert_non_null(core_session(core, session));
	return true;
}

static enum zd_sums_state sink_sums(void *arg, uint64_t session)
{
	const struct core_driver *core = arg;
	assert_non_null(core_session(core, session));
	return core->sums;
}

static void sink_expect(void *arg, uint32_t device)
{
	struct core_driver *core = arg;
	core->expected[device]++;
}

unsigned core_expected(const struct core_driver *core, uint32_t device)
{
	return core->expected[device];
}

/* ---- Beginning and end --------------------------------------------------------------------------------- */

struct core_driver *core_new(const struct core_options *options)
{
	static const struct core_options defaults;
	struct core_driver *core = zd_calloc(1, sizeof(*core));
	zd_arena_init(&core->rows, 1u << 16);
	if (!options)
		options = &defaults;
	core->config = (struct zd_engine_config){
	        .ndevices = options->ndevices ? options->ndevices : 2,
	        .devices = core->devices,
	        .segment_bytes = options->segment_bytes,
	        .uid_quota_bytes = options->uid_quota_bytes,
	        .reduction_cut_bytes = options->reduction_cut_bytes,
	        .landing_chunk_bytes = options->landing_chunk_bytes,
	        .sessions_linger = options->sessions_linger,
	        .strict_by_segment = options->strict_by_segment,
	        .collectives = options->net != NULL,
	        .host = options->host,
	        .events = options->no_events ? 0
	                  : options->events  ? options->events
	                                     : 256,
	        .end_step_objects = options->end_step_objects,
	};
	uint32_t ndevices = core->config.ndevices;
	core->config.ndevices += options->host_each ? ndevices : options->host_arena_bytes > 0;
	for (uint32_t i = 0; i < core->config.ndevices; i++) {
		struct zd_device_config *device = &core->devices[i];
		(void)snprintf(device->name, sizeof(device->name), "device%u", i);
		device->arena_bytes = options->arena_bytes ? options->arena_bytes : 4 * CORE_MIB;
		device->segment_align_bytes = options->segment_align_bytes;
		device->gather_budget_bytes = options->gather_budget_bytes;
		device->staging_bytes = options->staging_bytes;
		device->host_memory = i >= ndevices;
		device->has_host = options->host_arena_bytes > 0 && !device->host_memory;
		device->host = options->host_each ? ndevices + i : ndevices;
		device->unreached = options->unreached & ~(1ull << i);
		if (device->host_memory)
			device->arena_bytes = options->host_arena_bytes;
	}
	core->sink = (struct zd_engine_sink){.arg = core,
	                                     .command = sink_command,
	                                     .reply = sink_reply,
	                                     .fence_passed = sink_fence_passed,
	                                     .session_killed = sink_session_killed,
	                                     .notice = sink_notice,
	                                     .segment_retire = sink_segment_retire,
	                                     .expect = sink_expect,
	                                     .sums_ahead = options->sums_ahead ? sink_sums_ahead : NULL,
	                                     .sums = sink_sums,
	                                     .ends = options->end_step_objects ? sink_ends : NULL};
	core->net = options->net;
	core->unordered = options->unordered;
	core->sessions_map = options->sessions_map;
	core->no_bytes = options->no_bytes;
	core->sessions_linger = options->sessions_linger;
	core->copies = options->copies;
	core->no_frames = options->no_frames;
	TAILQ_INIT(&core->commands);
	TAILQ_INIT(&core->segments);
	TAILQ_INIT(&core->sessions);
	if (core->net)
		core_net_join(core->net, core);
	core_restart_sink(&core->sink);
	core->engine = zd_engine_new(&core->config, &core->sink);
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
	uint32_t n = core_rows(core, ZD__TABLE__JOBS, rows, CORE_ROW_ITEMS);
	assert_true(n <= CORE_ROW_ITEMS);
	for (uint32_t i = 0; i < n; i++) {
		assert_true(rows[i].row->job->durable);
		core_expect(core, core_simple(core, admin, ZD_REQ_END_JOB, rows[i].id), 0);
	}
	core_close(core, admin);
}

static void expect_nothing_left(struct core_driver *core)
{
	struct zd_engine_totals totals;
	const Zd__Usage *usage = &totals.usage;
	zd_engine_totals(core->engine, &totals);
	assert_int_equal(totals.sessions, 0);
	assert_int_equal(totals.jobs, 0);
	assert_int_equal(totals.groups, 0);
	assert_int_equal(usage->shard_bytes + usage->gathered_bytes + usage->bucket_bytes +
	                         usage->staging_bytes + usage->target_bytes + usage->allocation_bytes,
	                 0);
	assert_true(TAILQ_EMPTY(&core->commands));
	assert_true(TAILQ_EMPTY(&core->segments));
}

static void driver_free(struct core_driver *core)
{
	struct session *session;
	struct segment *segment;
	struct pending *p;
	struct call *call, *next;
	if (core->net)
		core_net_leave(core->net, core);
	zd_engine_free(core->engine);
	zd_arena_deinit(&core->rows);
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
	HASH_ITER (hh, core->calls, call, next) {
		HASH_DEL(core->calls, call);
		if (call->message)
			protobuf_c_message_free_unpacked(call->message, NULL);
		free(call);
	}
	free(core->journal);
	free(core);
}

void core_abandon(struct core_driver *core)
{
	core->abandoned = true;
	driver_free(core);
}

static void complete_ends(struct core_driver *core)
{
	while (core_end_step(core, CORE_ALICE) || core_end_step(core, CORE_BOB))
		continue;
}

void core_close_all(struct core_driver *core)
{
	struct session *session;
	TAILQ_FOREACH (session, &core->sessions, link) {
		if (session->open)
			core_close(core, session->id);
		core_gone(core, session->id);
		complete_ends(core);
	}
}

void core_end(struct core_driver *core)
{
	core_close_all(core);
	for (unsigned kind = 0; kind < KINDS; kind++)
		core_unhold(core, kind);
	end_durable_jobs(core);
	complete_ends(core);
	core_settle(core);
	expect_nothing_left(core);
	driver_free(core);
}
