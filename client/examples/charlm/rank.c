/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank.c - one rank of the sharded training: the optimizer's step, and the loop over steps.
 *
 * The rank owns a shard of every unit, of the reduced gradients and of Adam's moments, and nothing whole.
 */
#include "rank.h"

#include <zerod_host.h>

#include <string.h>

/* ---- Optimizer ----------------------------------------------------------------------------------------- */

static void run_adam(void *arg)
{
	struct update *u = arg;
	charlm_adam(u->params, u->target, u->moments, u->numel, u->step, u->rate);
}

/* Queues Adam on all shards. Nobody waits for it here: step_end and publish are told the stream. */
static int launch_updates(struct rank *r, uint64_t step)
{
	for (unsigned i = 0; i < CHARLM_UNITS; i++) {
		struct zerod_target target = ZEROD_INIT(target);
		int rc = zerod_target_get(r->units[i], &target);
		if (rc != ZEROD_OK)
			return charlm_rank_fail(r, rc, "asking for the target of",
			                        charlm_rank_unit_name(r, i));
		r->updates[i] = (struct update){
		        .params = r->shards[i].data,
		        .target = target.data,
		        .moments = r->moments[i],
		        .numel = target.true_numel,
		        .step = step,
		        .rate = charlm_plan_rate(r->plan, step),
		};
		rc = zerod_host_stream_launch(r->compute, run_adam, &r->updates[i]);
		if (rc != ZEROD_OK)
			return charlm_rank_fail(r, rc, "updating", charlm_rank_unit_name(r, i));
	}
	return ZEROD_OK;
}

/* An overflow leaves the shards as they are, but they are published all the same: every rank publishes every
 * version. */
static int update(struct rank *r)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	int rc = zerod_step_begin(r->group, NULL, &info, NULL);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "beginning the step", "");
	rc = zerod_update_begin(r->units, CHARLM_UNITS, NULL, NULL);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "beginning the update", "");
	if (info.overflow) {
		r->progress.skipped++;
	} else {
		rc = launch_updates(r, info.step);
		if (rc != ZEROD_OK)
			return rc;
	}
	rc = zerod_step_end(r->group, &r->compute, 1, NULL);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "ending the step", "");
	rc = zerod_publish(r->units, CHARLM_UNITS, &r->compute, 1, NULL, NULL);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "publishing", "");
	rc = zerod_commit(r->group, info.step, NULL);
	return rc == ZEROD_OK ? rc : charlm_rank_fail(r, rc, "committing", "");
}

/* ---- The run ------------------------------------------------------------------------------------------- */

static int train_step(struct rank *r, uint32_t step)
{
	const struct charlm_plan *plan = r->plan;
	double *losses = r->outcome->losses + (size_t)(step - 1) * r->outcome->losses_per_step;
	for (uint32_t micro = 0; micro < plan->accum; micro++) {
		/* Each rank holds another layer then: gathers need no two ranks to be at the same place. */
		bool pause = step == plan->pause_step && micro == 0;
		r->pause_at = pause ? CHARLM_HIDDEN1 + r->index % (CHARLM_UNITS - CHARLM_HIDDEN1) : NO_UNIT;
		charlm_pass_sample(&r->pass, plan->text, plan->seed, step,
		                   charlm_plan_first_sample(plan, micro, r->index));
		int rc = charlm_rank_micro_step(r, micro + 1 == plan->accum,
		                                &losses[(size_t)micro * plan->ranks + r->index]);
		if (rc != ZEROD_OK)
			return rc;
	}
	if (r->index == 0)
		r->outcome->live_bytes[step - 1] = r->progress.live_bytes;
	return update(r);
}

static int train(struct rank *r)
{
	r->progress.kind = CHARLM_READY;
	for (uint32_t step = 1; step <= r->plan->steps; step++) {
		if (charlm_tell(r->channel, &r->progress) != 0)
			return ZEROD_E_DISCONNECTED;
		int rc = train_step(r, step);
		if (rc != ZEROD_OK)
			return rc;
		r->progress.kind = CHARLM_STEP;
		r->progress.step = step;
	}
	int rc = charlm_rank_synchronize(r);
	return rc == ZEROD_OK ? charlm_rank_read_memory(r)
	                      : rc; /* the last backward may have been the peak */
}

/* For the comparison: the launcher, which is no rank, puts the shards together. */
static int leave_params(struct rank *r)
{
	for (unsigned i = 0; i < CHARLM_UNITS; i++)
		memcpy(r->outcome->params + r->plan->model->layers[i].offset_numel +
		               r->shards[i].offset_numel,
		       r->shards[i].data, r->shards[i].true_numel * sizeof(float));
	r->progress.kind = CHARLM_DONE;
	return charlm_tell(r->channel, &r->progress) == 0 ? ZEROD_OK : ZEROD_E_DISCONNECTED;
}

int charlm_rank(const struct charlm_plan *plan, uint32_t index, struct charlm_outcome *outcome, int channel)
{
	struct rank r = {
	        .plan = plan, .index = index, .outcome = outcome, .channel = channel, .pause_at = NO_UNIT};
	int rc = charlm_rank_init(&r);
	if (rc == ZEROD_OK)
		rc = train(&r);
	if (rc == ZEROD_OK)
		rc = leave_params(&r);
	charlm_rank_deinit(&r);
	return -rc;
}
