/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor.c - the executors: one queue a device, and watches beside them.
 *
 * A command begins when the former has ended, or in some worlds in any order and beside others; but those of
 * one timeline end in order. Copies and fills move their first half when they begin and the rest when they
 * end, some virtual time later, so whoever writes too early or reads too early meets wrong bytes. A command's
 * completion reaches the engine later still.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "sim.h"

struct zd_sim_segment *zd_sim_segment_find(struct zd_sim_world *world, uint32_t id)
{
	for (uint32_t i = 0; i < world->nsegments; i++) {
		if (world->segments[i].id == id)
			return &world->segments[i];
	}
	return NULL;
}

uint8_t *zd_sim_memory(struct zd_sim_world *world, const struct zd_location *at, const char *what)
{
	struct zd_sim_segment *segment = zd_sim_segment_find(world, at->segment);

	if (!segment || !segment->data)
		zd_sim_fail(world, "%s: segment %u is not there", what, at->segment);
	if (at->offset > segment->bytes || at->bytes > segment->bytes - at->offset)
		zd_sim_fail(world, "%s: %llu bytes at %llu of segment %u, which has %llu", what,
		            (unsigned long long)at->bytes, (unsigned long long)at->offset, at->segment,
		            (unsigned long long)segment->bytes);
	return segment->data + at->offset;
}

/* Of the segments that are there. */
static uint64_t segment_sum(const struct zd_sim_world *world, uint32_t device)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < world->nsegments; i++) {
		if (world->segments[i].device == device && world->segments[i].data)
			sum += world->segments[i].bytes;
	}
	return sum;
}

/* ---- Commands come in ---------------------------------------------------------------------------------- */

static void watch_add(struct zd_sim_world *world, const struct zd_command *command)
{
	if (command->u.watch.nfences > ZD_MAX_FENCES || command->op == 0)
		zd_sim_fail(world, "watch of %u fences", command->u.watch.nfences);
	world->watches = zd_sim_grow(world->watches, world->nwatches, &world->watches_room,
	                             sizeof(*world->watches));
	struct zd_sim_watch *watch = &world->watches[world->nwatches++];
	watch->op = command->op;
	watch->session = command->u.watch.session;
	watch->until_gone = command->u.watch.until_gone;
	const struct zd_sim_session *session = zd_sim_session_find(world, watch->session);
	if (watch->until_gone && (!world->config.linger || session->clean_exit))
		zd_sim_fail(world, "a process is waited for where none lingers");
	watch->nfences = command->u.watch.nfences;
	for (uint32_t i = 0; i < watch->nfences; i++)
		watch->fences[i] = command->u.watch.fences[i];
	zd_sim_watches_run(world, watch->session);
}

static bool draw_fault(struct zd_sim_world *world, enum zd_command_kind kind)
{
	if (kind == ZD_CMD_SEGMENT_CREATE)
		return zd_sim_percent(&world->rng, world->config.create_fault_percent);
	if (kind == ZD_CMD_COPY || kind == ZD_CMD_REDUCE || kind == ZD_CMD_FILL)
		return zd_sim_below(&world->rng, 1000) < world->config.device_fault_permille;
	return false;
}

static void trace_command(struct zd_sim_world *world, const struct zd_command *command)
{
	static const char *const names[] = {"segment_create", "segment_destroy", "copy",  "fill",
	                                    "watch",          "reduce",          "signal"};
	const struct zd_location *at = command->kind == ZD_CMD_COPY     ? &command->u.copy.dst
	                               : command->kind == ZD_CMD_FILL   ? &command->u.fill.dst
	                               : command->kind == ZD_CMD_REDUCE ? &command->u.reduce.target
	                                                                : &(struct zd_location){0};

	zd_sim_trace(world, "    command %llu on device %u: %s to %u+%llu", (unsigned long long)command->op,
	             command->device, names[command->kind], at->segment, (unsigned long long)at->offset);
}

/* Until the executor's next command begins or ends. */
static uint64_t draw_delay(struct zd_sim_world *world, uint32_t device)
{
	uint64_t scale = world->config.executor_ns;

	return zd_sim_delay(&world->rng, device == world->config.slow_device ? 20 * scale : scale);
}

void zd_sim_executor_add(struct zd_sim_world *world, const struct zd_sim_queued *added)
{
	uint32_t device = added->command.device;
	struct zd_sim_executor *executor = &world->executors[device];

	executor->queue = zd_sim_grow(executor->queue, executor->count, &executor->room,
	                              sizeof(*executor->queue));
	executor->queue[executor->count++] = *added;
	if (executor->count == 1)
		zd_sim_schedule(world, (struct zd_sim_event){.kind = ZD_SIM_EVENT_EXECUTOR, .index = device},
		                draw_delay(world, device));
}

/* A promise to the session has failed, as when a publish fails: the session is poisoned from here on. */
static void promise_broken(struct zd_sim_world *world, uint64_t id)
{
	struct zd_sim_session *session = zd_sim_session_find(world, id);

	if (session)
		session->aborted = session->broken = true;
	if (world->config.clean)
		zd_sim_fail(world, "session %llu is aborted in a program without mistakes",
		            (unsigned long long)id);
}

void zd_sim_command(void *arg, const struct zd_command *command)
{
	struct zd_sim_world *world = arg;

	if (world->verbose)
		trace_command(world, command);
	zd_sim_command_check(world, command);
	if (command->kind == ZD_CMD_SIGNAL && command->signal.value == (uint64_t)ZD_FENCE_ABORTED)
		promise_broken(world, command->signal.session);
	if (command->op)
		world->pending_ops++;
	if (command->kind == ZD_CMD_WATCH) {
		watch_add(world, command);
		return;
	}
	if (command->kind == ZD_CMD_REDUCE && command->u.reduce.nfences > 0) {
		zd_sim_sum_add(world, command);
		return;
	}
	struct zd_sim_queued queued = {.command = *command};
	queued.fails = draw_fault(world, command->kind);
	for (uint32_t i = 0; command->kind == ZD_CMD_REDUCE && i < command->u.reduce.ninputs; i++)
		queued.inputs[i] = command->u.reduce.inputs[i];
	if (command->kind == ZD_CMD_SEGMENT_CREATE) {
		world->segments = zd_sim_grow(world->segments, world->nsegments, &world->segments_room,
		                              sizeof(*world->segments));
		world->segments[world->nsegments++] =
		        (struct zd_sim_segment){.id = command->u.segment.segment,
		                                .device = command->device,
		                                .bytes = command->u.segment.bytes,
		                                .job = command->u.segment.job};
	}
	zd_sim_executor_add(world, &queued);
}

/* ---- Commands run -------------------------------------------------------------------------------------- */

float zd_sim_float_load(enum zerod_dtype dtype, const uint8_t *bytes, uint64_t index)
{
	uint16_t bits;
	float value;

	if (dtype == ZEROD_FLOAT32) {
		memcpy(&value, bytes + index * sizeof(value), sizeof(value));
		return value;
	}
	memcpy(&bits, bytes + index * sizeof(bits), sizeof(bits));
	return dtype == ZEROD_FLOAT16 ? zd_f16_to_f32(bits) : zd_bf16_to_f32(bits);
}

void zd_sim_float_store(enum zerod_dtype dtype, uint8_t *bytes, uint64_t index, float value)
{
	uint16_t bits;

	if (dtype == ZEROD_FLOAT32) {
		memcpy(bytes + index * sizeof(value), &value, sizeof(value));
		return;
	}
	bits = dtype == ZEROD_FLOAT16 ? zd_f32_to_f16(value) : zd_f32_to_bf16(value);
	memcpy(bytes + index * sizeof(bits), &bits, sizeof(bits));
}

static struct zd_op_result run_reduce(struct zd_sim_world *world, const struct zd_sim_queued *queued)
{
	const struct zd_reduce_desc *reduce = &queued->command.u.reduce;
	uint8_t *target = zd_sim_memory(world, &reduce->target, "target of a reduction");
	const uint8_t *inputs[ZD_SIM_WORLD];
	struct zd_op_result result = {0};

	for (uint32_t n = 0; n < reduce->ninputs; n++)
		inputs[n] = zd_sim_memory(world, &queued->inputs[n], "input of a reduction");
	for (uint64_t i = 0; i < reduce->numel; i++) {
		float sum = 0;
		for (uint32_t n = 0; n < reduce->ninputs; n++)
			sum += zd_sim_float_load(reduce->input_dtype, inputs[n], i) * reduce->prescale;
		sum *= reduce->postscale;
		if (!reduce->overwrite)
			sum += zd_sim_float_load(reduce->target_dtype, target, i);
		zd_sim_float_store(reduce->target_dtype, target, i, sum);
		sum = zd_sim_float_load(reduce->target_dtype, target, i);
		result.sum_squares += (double)sum * (double)sum;
		result.overflow = result.overflow || !isfinite(sum);
	}
	return result;
}

/* One half of a copy or fill: bytes [low, high). */
static void run_part(struct zd_sim_world *world, const struct zd_command *command, bool second)
{
	const struct zd_location *dst = command->kind == ZD_CMD_COPY ? &command->u.copy.dst
	                                                             : &command->u.fill.dst;
	uint64_t low = second ? dst->bytes / 2 : 0, high = second ? dst->bytes : dst->bytes / 2;
	uint8_t *to = zd_sim_memory(world, dst, "destination");

	if (command->kind == ZD_CMD_COPY)
		zd_copy(to, zd_sim_memory(world, &command->u.copy.src, "source"), command->u.copy.rows, low,
		        high - low);
	else
		zd_fill(to, low, high - low, command->u.fill.pattern);
}

static void run_segment(struct zd_sim_world *world, const struct zd_sim_queued *queued)
{
	uint32_t id = queued->command.u.segment.segment;
	struct zd_sim_segment *segment = zd_sim_segment_find(world, id);

	if (!segment)
		zd_sim_fail(world, "segment %u is not there", id);
	if (queued->command.kind == ZD_CMD_SEGMENT_CREATE && !queued->fails) {
		segment->data = zd_calloc(1, segment->bytes);
		uint64_t arena = world->config.devices[segment->device].arena_bytes;
		if (segment_sum(world, segment->device) > arena)
			zd_sim_fail(world, "segments of device %u take %llu bytes, its arena has %llu",
			            segment->device, (unsigned long long)segment_sum(world, segment->device),
			            (unsigned long long)arena);
		return;
	}
	free(segment->data);
	*segment = world->segments[--world->nsegments];
}

/*
 * A command that failed aborts its timeline, before a later one can move it on: a waiter must not take a
 * failure for bytes. Only a SIGNAL command takes an aborted timeline back into use.
 */
static void store_signal(struct zd_sim_world *world, const struct zd_command *command, bool failed)
{
	const struct zd_signal *signal = &command->signal;
	uint64_t value = failed ? (uint64_t)ZD_FENCE_ABORTED : signal->value;
	struct zd_sim_session *session = zd_sim_session_find(world, signal->session);

	if (!session || !session->open)
		return;
	if (signal->timeline >= ZD_TIMELINES)
		zd_sim_fail(world, "signal of timeline %u", signal->timeline);
	session->broken = session->broken || failed;
	uint64_t *counter = &session->daemon_page[signal->timeline];
	bool aborted = *counter == (uint64_t)ZD_FENCE_ABORTED;
	if (aborted && command->kind != ZD_CMD_SIGNAL)
		return;
	if (value <= *counter && !aborted)
		zd_sim_fail(world, "timeline %u of session %llu goes from %llu to %llu", signal->timeline,
		            (unsigned long long)session->id, (unsigned long long)*counter,
		            (unsigned long long)value);
	*counter = value;
	zd_sim_streams_kick(world, session);
	zd_sim_sums_kick(world, session->id);
}

/* `told_ns`: of those before it, which it is not told of before; NULL: none. `session`: whose streams wait
 * for it; 0: nobody's. */
static void complete(struct zd_sim_world *world, uint64_t *told_ns, uint64_t op, uint64_t session, int status,
                     struct zd_op_result result)
{
	uint64_t at = world->now_ns + zd_sim_delay(&world->rng, world->config.executor_ns);

	if (told_ns)
		at = *told_ns = zd_max_u64(at, *told_ns);
	zd_sim_schedule(world,
	                (struct zd_sim_event){.kind = ZD_SIM_EVENT_DONE,
	                                      .op = op,
	                                      .session = session,
	                                      .status = status,
	                                      .result = result},
	                at - world->now_ns);
}

void zd_sim_command_end(struct zd_sim_world *world, uint64_t op, int status,
                        const struct zd_op_result *result)
{
	complete(world, NULL, op, 0, status, *result);
}

static bool of_segment(const struct zd_command *command)
{
	return command->kind == ZD_CMD_SEGMENT_CREATE || command->kind == ZD_CMD_SEGMENT_DESTROY;
}

/* Must they end in the order in which they were given. */
static bool ordered(const struct zd_command *a, const struct zd_command *b)
{
	return (of_segment(a) && of_segment(b)) ||
	       (a->signal.session && a->signal.session == b->signal.session &&
	        a->signal.timeline == b->signal.timeline);
}

/* The command that goes on: the first, or on an unordered executor any that may. */
static uint32_t pick(struct zd_sim_world *world, const struct zd_sim_executor *executor)
{
	uint32_t picked = world->config.unordered ? (uint32_t)zd_sim_below(&world->rng, executor->count) : 0;

	for (uint32_t i = 0; i < picked && executor->queue[picked].halfway; i++) {
		if (ordered(&executor->queue[i].command, &executor->queue[picked].command))
			picked = i; /* first */
	}
	return picked;
}

/* Executors without an order keep that of timelines. */
static uint64_t *told_before(struct zd_sim_world *world, struct zd_sim_executor *executor,
                             const struct zd_command *command)
{
	struct zd_sim_session *session = zd_sim_session_find(world, command->signal.session);

	if (!world->config.unordered)
		return &executor->last_done_ns;
	return session ? &session->told_ns[command->signal.timeline] : NULL;
}

static void end_command(struct zd_sim_world *world, struct zd_sim_executor *executor,
                        const struct zd_sim_queued *queued)
{
	const struct zd_command *command = &queued->command;
	struct zd_op_result result = {0};
	int status = 0;

	if (queued->fails)
		status = command->kind == ZD_CMD_SEGMENT_CREATE ? ZEROD_E_NO_MEMORY : ZEROD_E_DEVICE;
	else if (command->kind == ZD_CMD_COPY || command->kind == ZD_CMD_FILL)
		run_part(world, command, true);
	else if (command->kind == ZD_CMD_REDUCE)
		result = run_reduce(world, queued);
	if (command->kind == ZD_CMD_SEGMENT_CREATE || command->kind == ZD_CMD_SEGMENT_DESTROY)
		run_segment(world, queued);
	if (queued->fails && command->kind == ZD_CMD_COPY)
		zd_sim_restore_failed(world, &command->u.copy.dst);
	if (command->signal.session)
		store_signal(world, command, queued->fails);
	if (command->op)
		complete(world, told_before(world, executor, command), command->op, command->signal.session,
		         status, result);
}

/* A command of the executor begins, or ends. */
void zd_sim_executor_run(struct zd_sim_world *world, uint32_t device)
{
	struct zd_sim_executor *executor = &world->executors[device];
	uint32_t picked = pick(world, executor);
	struct zd_sim_queued *queued = &executor->queue[picked];

	if (!queued->halfway) {
		if (queued->command.kind == ZD_CMD_COPY || queued->command.kind == ZD_CMD_FILL)
			run_part(world, &queued->command, false);
		queued->halfway = true;
	} else {
		end_command(world, executor, queued);
		executor->count--;
		memmove(queued, queued + 1, (executor->count - picked) * sizeof(*queued));
	}
	if (executor->count > 0)
		zd_sim_schedule(world, (struct zd_sim_event){.kind = ZD_SIM_EVENT_EXECUTOR, .index = device},
		                draw_delay(world, device));
}

/* ---- Watches ------------------------------------------------------------------------------------------- */

/* Completes what may complete: all fences passed, or the session and its process are gone. */
void zd_sim_watches_run(struct zd_sim_world *world, uint64_t id)
{
	struct zd_sim_session *session = zd_sim_session_find(world, id);
	bool gone = !session || (!session->open && !session->lingers);

	for (uint32_t i = world->nwatches; i-- > 0;) {
		struct zd_sim_watch *watch = &world->watches[i];
		bool passed = gone || !watch->until_gone;

		if (watch->session != id)
			continue;
		for (uint32_t f = 0; !gone && f < watch->nfences; f++) {
			const struct zd_fence *fence = &watch->fences[f];
			passed = passed && fence->timeline < ZD_SIM_STREAMS &&
			         zd_fence_reached(session->client_page[fence->timeline], fence->value);
		}
		if (!passed)
			continue;
		complete(world, NULL, watch->op, 0, gone ? ZEROD_E_ABORTED : 0, (struct zd_op_result){0});
		*watch = world->watches[--world->nwatches];
	}
}
