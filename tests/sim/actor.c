/* SPDX-License-Identifier: Apache-2.0 */
/*
 * actor.c - trainers work through their programs: what goes out at once, and what has to wait for what.
 *
 * As in libzerod, gathers, releases, registrations and bucket calls are pipelined; the rest waits for its
 * reply. An operation of the training waits for the replies that it needs; noise does not. Impatient actors
 * go on without a reply.
 */
#include "base/mem.h"
#include "sim.h"

void zd_sim_actor_wake(struct zd_sim_world *world, uint32_t index)
{
	struct zd_sim_actor *actor = &world->actors[index];
	uint64_t scale = world->config.actor_ns;

	if (actor->scheduled || actor->done)
		return;
	actor->scheduled = true;
	/* strangers meddle all along the run */
	zd_sim_schedule(world, (struct zd_sim_event){.kind = ZD_SIM_EVENT_ACTOR, .index = index},
	                zd_sim_delay(&world->rng, world->config.actors[index].job < 0 ? 50 * scale : scale));
}

/* The end of a window's last backward, or of its step: the actor goes on. */
static bool is_passed_over(const struct zd_sim_world *world, const struct zd_sim_request *request)
{
	bool ends = request->kind == ZD_REQ_BACKWARD_END || request->kind == ZD_REQ_STEP_END;
	return ends && world->config.steps_ahead && world->program.ops[request->op].ahead;
}

/* Requests without a reply that somebody waits for. */
static bool answered(const struct zd_sim_world *world, const struct zd_sim_session *session)
{
	for (uint32_t i = 0; i < session->nrequests; i++) {
		if (!session->requests[i].prefetch && !is_passed_over(world, &session->requests[i]))
			return false;
	}
	return true;
}

static bool answered_all(const struct zd_sim_session *session)
{
	for (uint32_t i = 0; i < session->nrequests; i++) {
		if (!session->requests[i].prefetch)
			return false;
	}
	return true;
}

static bool waits_for_reply(const struct zd_sim_op *op)
{
	if (op->ahead)
		return false;
	switch (op->kind) {
	case ZD_SIM_REGISTER:
	case ZD_SIM_SET_PERSISTENT:
	case ZD_SIM_GATHER:
	case ZD_SIM_PREFETCH:
	case ZD_SIM_USE:
	case ZD_SIM_RELEASE:
	case ZD_SIM_RESERVE:
	case ZD_SIM_BUCKET_SUBMIT:
	case ZD_SIM_SKIP:
	case ZD_SIM_TARGET_RETURN:
	case ZD_SIM_ALLOC:
	case ZD_SIM_FREE:
		return false;
	case ZD_SIM_REDUCE_WAIT:
		return op->arg & ZD_SIM_LOAN_BLOCKS;
	case ZD_SIM_FORWARD_END:
		return !(op->arg & ZD_SIM_END_AHEAD);
	case ZD_SIM_PLACE:
		return !(op->arg & ZD_SIM_PLACE_AHEAD);
	default:
		return true;
	}
}

/* Behind all that belongs to what it ends. */
static bool ends_ahead(const struct zd_sim_world *world, const struct zd_sim_op *op)
{
	return op->ahead &&
	       (op->kind == ZD_SIM_PUBLISH ? world->config.publishes_ahead : world->config.steps_ahead);
}

/* Is everything there that a pipelined operation refers to. */
static bool ready_pipelined(const struct zd_sim_session *session, const struct zd_sim_op *op)
{
	const struct zd_sim_handle *handle = &session->members[op->group].handles[op->unit % ZD_SIM_UNITS];

	switch (op->kind) {
	case ZD_SIM_USE:
	case ZD_SIM_RELEASE:
		return handle->leases[op->tag].pending == 0;
	case ZD_SIM_FORWARD_END:
		return true;
	case ZD_SIM_RESERVE:
		return !handle->registering && !handle->entry.pending;
	case ZD_SIM_BUCKET_SUBMIT:
		return !handle->registering && !handle->entry.pending && handle->lending == 0;
	case ZD_SIM_SKIP:
	case ZD_SIM_TARGET_RETURN:
		return !handle->registering && handle->lending == 0;
	case ZD_SIM_ALLOC:
	case ZD_SIM_FREE:
		return !session->allocs[op->arg % ZD_SIM_ALLOCS].pending;
	default:
		return !handle->registering;
	}
}

/* Memory that it gives back without fences must not be in use, not even by noise. */
static bool needs_idle_streams(const struct zd_sim_world *world, const struct zd_sim_session *session,
                               const struct zd_sim_op *op)
{
	switch (op->kind) {
	case ZD_SIM_LEAVE:
	case ZD_SIM_UNREGISTER:
	case ZD_SIM_RESET:
		return true;
	case ZD_SIM_BACKWARD_BEGIN:
		if (zd_sim_loans_end_with(world, session, op->group))
			return true;
		/* fall through */
	case ZD_SIM_BUCKET_DESTROY:
		return zd_sim_abandoned(&session->members[op->group]);
	default:
		return false;
	}
}

static bool ready(const struct zd_sim_world *world, const struct zd_sim_session *session,
                  const struct zd_sim_op *op)
{
	if (needs_idle_streams(world, session, op) && !zd_sim_streams_idle(session))
		return false;
	if (op->kind == ZD_SIM_BUCKET_DESTROY && !op->noise && !answered_all(session))
		return false;
	if (op->kind == ZD_SIM_LEAVE || op->kind == ZD_SIM_UNREGISTER)
		return op->noise || answered_all(session);
	if (op->kind == ZD_SIM_RESET)
		return true;
	if (op->kind == ZD_SIM_PLACE && !op->noise)
		return answered_all(session); /* the end of its step, too */
	if (op->noise)
		return true;
	if (op->kind == ZD_SIM_CLOSE)
		return session->nrequests == 0 && zd_sim_streams_idle(session);
	return waits_for_reply(op) || ends_ahead(world, op) ? answered(world, session)
	                                                    : ready_pipelined(session, op);
}

/* Whether the actor has waited long enough to go on without. */
static bool impatient(struct zd_sim_world *world, uint32_t index)
{
	struct zd_sim_actor *actor = &world->actors[index];
	uint64_t patience = world->config.patience_ns;

	if (actor->waiting_since_ns == 0) {
		actor->waiting_since_ns = world->now_ns;
		if (patience)
			zd_sim_schedule(world,
			                (struct zd_sim_event){.kind = ZD_SIM_EVENT_ACTOR, .index = index},
			                patience);
		return false;
	}
	return patience && world->now_ns - actor->waiting_since_ns >= patience;
}

/* The client's own reaction to POISONED, and to being set back to the last commit, in half of the cases.
 * True: a reset was sent. */
static bool reset_if_poisoned(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t op)
{
	if (world->config.clean || !(session->poisoned || session->told) || !zd_sim_streams_idle(session) ||
	    zd_sim_mix(world->config.seed, op) % 2)
		return false;
	zd_sim_reset(world, session, op);
	return true;
}

static void perform(struct zd_sim_world *world, uint32_t index, uint32_t op_index)
{
	struct zd_sim_actor *actor = &world->actors[index];
	const struct zd_sim_op *op = &world->program.ops[op_index];

	if (op->kind == ZD_SIM_OPEN) {
		if (!actor->session)
			zd_sim_session_open(world, index);
		return;
	}
	if (op->kind == ZD_SIM_CLOSE && zd_sim_streams_idle(actor->session)) {
		zd_sim_session_goodbye(world, actor->session);
		return;
	}
	if (op->kind == ZD_SIM_CLOSE || op->kind == ZD_SIM_DIE) {
		zd_sim_session_close(world, actor->session);
		return;
	}
	(void)reset_if_poisoned(world, actor->session, op_index);
	uint64_t before = actor->session->next_request;
	struct zd_sim_session *session = actor->session;
	if (zd_sim_issue(world, session, op_index) && session->open && session->next_request > before &&
	    waits_for_reply(op) && zd_sim_request_find(session, session->next_request))
		actor->blocked_on = session->next_request;
}

void zd_sim_actor_run(struct zd_sim_world *world, uint32_t index)
{
	struct zd_sim_actor *actor = &world->actors[index];
	const struct zd_sim_program *program = &world->program;

	actor->scheduled = false;
	while (actor->next < program->first[index + 1]) {
		const struct zd_sim_op *op = &program->ops[actor->next];
		bool skipped = (world->removed && world->removed[actor->next]) ||
		               (!actor->session && op->kind != ZD_SIM_OPEN) || zd_sim_is_given_up(actor, op);

		if (skipped) {
			actor->next++;
			continue;
		}
		bool stays = actor->session && (actor->blocked_on || !ready(world, actor->session, op) ||
		                                zd_sim_regroups(world, actor, op));
		if (stays) {
			bool memory = op->kind == ZD_SIM_PUBLISH ||
			              needs_idle_streams(world, actor->session, op);
			if (!impatient(world, index))
				return;
			actor->blocked_on = 0;
			if (memory && !zd_sim_streams_idle(actor->session)) {
				actor->next++;
				continue;
			}
		}
		actor->waiting_since_ns = 0;
		perform(world, index, actor->next++);
		zd_sim_actor_wake(world, index);
		return;
	}
	if (actor->session)
		zd_sim_session_close(world, actor->session);
	actor->done = true;
	zd_sim_regroup_wake(world);
}

/* In a clean world everybody must come to an end by himself; in a noisy one the first who is stuck dies. */
bool zd_sim_actors_unblock(struct zd_sim_world *world)
{
	for (uint32_t a = 0; a < world->config.nactors; a++) {
		struct zd_sim_actor *actor = &world->actors[a];
		if (actor->done)
			continue;
		char text[128];
		zd_sim_op_text(&world->config, &world->program.ops[actor->next], text, sizeof(text));
		if (world->config.clean)
			zd_sim_fail(world, "actor %u waits for ever (request %llu), next: %s", a,
			            (unsigned long long)actor->blocked_on, text);
		if (!actor->session)
			zd_sim_fail(world, "actor %u waits without a session", a);
		zd_sim_session_close(world, actor->session);
		return true;
	}
	return false;
}
