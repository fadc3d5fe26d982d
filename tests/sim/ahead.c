/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ahead.c - sums that a session's process was asked for before their inputs are there.
 *
 * It waits for their fences, and sums what it finds then: an abort frees it as well. Some it refuses. Of a
 * process that is gone, none is made.
 */
#include "sim.h"

#define REFUSED_PERCENT 10

void zd_sim_sum_add(struct zd_sim_world *world, const struct zd_command *command)
{
	const struct zd_reduce_desc *reduce = &command->u.reduce;
	uint64_t session = reduce->session;

	if (!world->config.sums_ahead || reduce->nfences > ZD_SIM_WORLD)
		zd_sim_fail(world, "a sum behind %u fences", reduce->nfences);
	if (zd_sim_percent(&world->rng, REFUSED_PERCENT)) {
		zd_sim_command_end(world, command->op, 0, &(struct zd_op_result){.not_begun = true});
		return;
	}
	world->sums = zd_sim_grow(world->sums, world->nsums, &world->sums_room, sizeof(*world->sums));
	struct zd_sim_sum *sum = &world->sums[world->nsums++];
	*sum = (struct zd_sim_sum){.queued.command = *command};
	for (uint32_t i = 0; i < reduce->ninputs; i++)
		sum->queued.inputs[i] = reduce->inputs[i];
	for (uint32_t i = 0; i < reduce->nfences; i++)
		sum->fences[i] = reduce->fences[i];
	zd_sim_sums_kick(world, session);
}

/* A client's reset does not end before its aborts are taken back. */
static bool is_taken_back(const struct zd_sim_world *world, uint64_t session, uint32_t timeline)
{
	for (uint32_t d = 0; d < zd_sim_ndevices(&world->config); d++) {
		const struct zd_sim_executor *executor = &world->executors[d];
		for (uint32_t i = 0; i < executor->count; i++) {
			const struct zd_command *command = &executor->queue[i].command;
			if (command->kind == ZD_CMD_SIGNAL && command->signal.session == session &&
			    command->signal.timeline == timeline)
				return true;
		}
	}
	return false;
}

static bool have_passed(const struct zd_sim_world *world, const struct zd_sim_session *session,
                        const struct zd_sim_sum *sum, bool *aborted)
{
	for (uint32_t i = 0; i < sum->queued.command.u.reduce.nfences; i++) {
		uint32_t timeline = sum->fences[i].timeline;
		uint64_t counter = session->daemon_page[timeline];
		if (!zd_fence_reached(counter, sum->fences[i].value))
			return false;
		if (counter != (uint64_t)ZD_FENCE_ABORTED)
			continue;
		if (is_taken_back(world, session->id, timeline))
			return false;
		*aborted = true;
	}
	return true;
}

/* Nothing writes its inputs any more, unless an abort has freed it: what it makes counts for nothing then. */
static void begin(struct zd_sim_world *world, struct zd_sim_queued *queued, bool aborted)
{
	struct zd_reduce_desc *reduce = &queued->command.u.reduce;

	reduce->inputs = queued->inputs;
	reduce->nfences = 0;
	if (!aborted)
		zd_sim_command_check(world, &queued->command);
	zd_sim_executor_add(world, queued);
}

void zd_sim_sums_kick(struct zd_sim_world *world, uint64_t session)
{
	if (world->nsums > 0)
		zd_sim_schedule(world, (struct zd_sim_event){.kind = ZD_SIM_EVENT_SUMS, .session = session},
		                zd_sim_delay(&world->rng, world->config.stream_ns));
}

void zd_sim_sums_run(struct zd_sim_world *world, uint64_t id)
{
	const struct zd_sim_session *session = zd_sim_session_find(world, id);
	bool gone = !session || (!session->open && !session->lingers);

	for (uint32_t i = world->nsums; i-- > 0;) {
		struct zd_sim_sum sum = world->sums[i];
		uint64_t op = sum.queued.command.op;
		bool aborted = false;

		if (sum.queued.command.u.reduce.session != id)
			continue;
		if (!gone && (!session->open || !have_passed(world, session, &sum, &aborted)))
			continue;
		world->sums[i] = world->sums[--world->nsums];
		if (gone)
			zd_sim_command_end(world, op, ZEROD_E_ABORTED, &(struct zd_op_result){0});
		else
			begin(world, &sum.queued, aborted);
	}
}
