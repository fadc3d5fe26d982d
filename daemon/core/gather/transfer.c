/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - transfers: has a planner build the plan of each, starts it, and reports its end.
 *
 * The table `steps` names the function that runs each kind of step. A transfer that cannot start yet is
 * queued (deferred.h). After a failed step the buffer is stale, and the streams that wait for it are
 * released.
 */
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/deferred.h"
#include "core/gather/gather.h"
#include "core/gather/landing.h"
#include "core/gather/transfer.h"

#include <stdlib.h>

static void complete_publish(struct zd_engine *e, struct zd_buffer *buffer, struct zd_plan_step *step)
{
	zd_plan_complete(e, &buffer->plan, step);
}

static const struct {
	void (*run)(struct zd_engine *e, struct zd_buffer *buffer, struct zd_plan_step *step);
	bool reads_shard; /* the source's `readers` count the step */
} steps[ZD_TRANSFER_NSTEPS] = {
        [ZD_TRANSFER_COPY] = {zd_transfer_run_copy, true},
        [ZD_TRANSFER_EXCHANGE] = {zd_transfer_run_exchange, true},
        [ZD_TRANSFER_RELAY] = {zd_transfer_run_relay, false},
        [ZD_TRANSFER_PUBLISH] = {complete_publish, false},
};

const struct zd_gather_planner *zd_gather_planner_of(const struct zd_buffer *buffer)
{
	if (zd_gathers_are_collective(buffer->unit->group))
		return &zd_plan_rail_gathers;
	return zd_transfer_lands(buffer) ? &zd_plan_landings : &zd_plan_copies;
}

/* ---- The plan's owner ---------------------------------------------------------------------------------- */

void zd_transfer_submit(struct zd_engine *e, struct zd_buffer *buffer, struct zd_plan_step *step,
                        struct zd_command *command)
{
	command->signal = step->signal;
	zd_plan_submit(e, &buffer->plan, step, command);
}

static void step_run(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step)
{
	steps[step->kind].run(e, plan->owner, step);
}

static void step_ended(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step,
                       const struct zd_op *op)
{
	(void)plan;
	(void)op;
	if (step->kind == ZD_TRANSFER_RELAY)
		zd_transfer_relay_ended(e, step);
}

static int step_done(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step, struct zd_err *err)
{
	(void)err;
	if (step->kind == ZD_TRANSFER_EXCHANGE)
		zd_transfer_exchanged(e, plan->owner);
	return 0;
}

static void step_failed(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step, int status,
                        const char *error)
{
	struct zd_buffer *buffer = plan->owner;
	const struct zd_gather_planner *planner = zd_gather_planner_of(buffer);
	/* Not a session that has replaced the rank since. */
	struct zd_session *session = zd_session_find(e, buffer->session);
	buffer->stale = true;
	/* Its streams wait, even if the buffer is released already. A reset since then has released them, and
	 * has taken the exchange off its timeline. The executor aborts a copy's timeline at any time, and
	 * thereby also releases the streams of later transfers. */
	if (session && (step->kind != ZD_TRANSFER_EXCHANGE || session->resets == buffer->resets)) {
		if (zd_transfer_is_deferred(buffer))
			zd_deferred_break(e, session); /* fails the later fences of its timeline */
		zd_session_abort(e, session, step->signal.timeline);
	}
	if (planner->failed)
		planner->failed(e, buffer, step, status, error);
}

void zd_transfer_event(struct zd_engine *e, const struct zd_buffer *buffer)
{
	struct zd_event *event = zd_event_of(e, ZD_EVENT_GATHER, zd_part_member(buffer->part));
	event->session = buffer->session;
	event->reason = buffer->stale ? ZD_WORD_FAILED : ZD_WORD_READY;
	event->object = buffer->unit->id;
	event->bytes = zd_buffer_bytes(buffer);
	event->value = buffer->asked_ns;
	event->number = (uint32_t)buffer->transfer;
}

static void plan_over(struct zd_engine *e, struct zd_plan *plan)
{
	struct zd_buffer *buffer = plan->owner;
	if (!buffer->stale && plan->steps->kind != ZD_TRANSFER_PUBLISH)
		zd_histogram_observe(&e->metrics.gathers, e->now_ns - buffer->asked_ns);
	zd_transfer_event(e, buffer);
	if (buffer->state == ZD_BUFFER_INFLIGHT)
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_AVAILABLE);
}

/* zd_buffer_op_over() can free the buffer. A shard that is still read preserves its unit. */
static void step_over(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step)
{
	struct zd_buffer *buffer = plan->owner;
	const struct zd_gather_planner *planner = zd_gather_planner_of(buffer);
	struct zd_part *source = steps[step->kind].reads_shard ? &buffer->unit->parts[step->source] : NULL;
	if (planner->step_over)
		planner->step_over(e, buffer);
	if (buffer->plan.left == 0) {
		if (buffer->phase == ZD_PHASE_JOINED)
			zd_landings_leave(e, buffer);
		zd_transfer_forget(buffer);
	}
	zd_buffer_op_over(e, buffer);
	if (source)
		zd_part_reader_done(e, source);
}

static const struct zd_plan_type plan_type = {step_run,    step_ended, step_done,
                                              step_failed, plan_over,  step_over};

void zd_transfer_forget(struct zd_buffer *buffer)
{
	zd_plan_deinit(&buffer->plan);
	free(buffer->fences);
	buffer->fences = NULL;
	buffer->nfences = 0;
}

/* ---- Transfers ----------------------------------------------------------------------------------------- */

void zd_transfer_add(struct zd_buffer *buffer, struct zd_plan_step step, uint32_t timeline)
{
	struct zd_session *session = zd_part_member(buffer->part)->session;
	step.signal = (struct zd_signal){session->id, timeline, ++session->timeline[timeline]};
	(void)zd_plan_add(&buffer->plan, step);
}

/* Whether the copies cannot start yet: a shard is still being published, or the buffer's memory is in use. */
static bool is_early(const struct zd_buffer *buffer)
{
	const struct zd_unit *unit = buffer->unit;
	bool early = buffer->former;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++)
		early |= zd_part_is_publishing_version(&unit->parts[rank], buffer->version);
	return early;
}

static enum zd_transfer_phase first_phase(const struct zd_buffer *buffer, const struct zd_session *session)
{
	if (zd_landings_help(buffer->unit, session))
		return ZD_PHASE_LANDING;
	return is_early(buffer) ? ZD_PHASE_DEFERRED : ZD_PHASE_PROMPT;
}

/* Adds one fence for each timeline that the steps signal, because a timeline's commands end in order. */
static void set_fences(struct zd_buffer *buffer)
{
	const struct zd_session *session = zd_part_member(buffer->part)->session;
	struct zd_timelines signalled = {{0}};
	buffer->fences = zd_calloc(buffer->plan.nsteps ? buffer->plan.nsteps : 1, sizeof(*buffer->fences));
	for (uint32_t i = 0; i < buffer->plan.nsteps; i++) {
		uint32_t timeline = buffer->plan.steps[i].signal.timeline;
		if (zd_timelines_has(&signalled, timeline))
			continue;
		zd_timelines_add(&signalled, timeline);
		buffer->fences[buffer->nfences++] = (struct zd_fence){timeline, session->timeline[timeline]};
	}
}

void zd_buffer_transfer(struct zd_engine *e, struct zd_buffer *buffer, uint64_t version)
{
	const struct zd_group *group = buffer->unit->group;
	struct zd_session *session = zd_part_member(buffer->part)->session;
	zd_assert(buffer->plan.left == 0 && buffer->watches == 0);
	if (buffer->state == ZD_BUFFER_AVAILABLE)
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_INFLIGHT);
	buffer->version = version;
	buffer->stale = false;
	buffer->era = buffer->unit->era;
	zd_sm_move(&zd_sm_transfer, &buffer->phase, first_phase(buffer, session));
	const struct zd_gather_planner *planner = zd_gather_planner_of(buffer);
	buffer->device->gathers++;
	buffer->device->gathered_bytes += zd_buffer_bytes(buffer);
	zd_count(e, ZD_COUNT_GATHERS_TRANSFERRED, 1);
	buffer->transfer = ++e->transfers;
	buffer->session = session->id;
	buffer->resets = session->resets;
	zd_count(e, ZD_COUNT_GATHERED_BYTES, zd_buffer_bytes(buffer));

	zd_plan_init(&buffer->plan, &plan_type, group->job, buffer, planner->max_steps(e, buffer));
	planner->build(e, buffer);
	set_fences(buffer);
	if (zd_transfer_is_deferred(buffer)) {
		TAILQ_INSERT_TAIL(&session->deferred, buffer, deferred_link);
		zd_deferred_try(e, session);
	} else {
		zd_plan_start(e, &buffer->plan);
	}
	if (planner->started)
		planner->started(e, buffer);
	if (buffer->plan.nsteps == 0) {
		zd_histogram_observe(&e->metrics.gathers, e->now_ns - buffer->asked_ns);
		zd_transfer_event(e, buffer);
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_AVAILABLE);
		zd_transfer_forget(buffer);
	}
}

void zd_buffer_plan_publish(struct zd_buffer *buffer)
{
	zd_plan_init(&buffer->plan, &plan_type, buffer->unit->group->job, buffer, 1);
	(void)zd_plan_add(&buffer->plan, (struct zd_plan_step){.kind = ZD_TRANSFER_PUBLISH, .waits = 1});
}
