/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.c - the same training without ranks, shards or a daemon.
 *
 * It calls the same functions of model.c on whole parameters, and adds up the ranks' gradients as zerod
 * promises to: in float32, in rank order, each scaled before the sum and the sum scaled after it. So its
 * losses and parameters equal the sharded run's bit for bit.
 *
 * With the plan of the full batch it has one "rank" that sees all samples at once. The mathematics is the
 * same, but a gradient is then one sum over all samples instead of a sum of the ranks' sums, and float32
 * rounds those differently: about 1e-8 of the loss after one step, and no more than 1e-6 after a few hundred.
 */
#include "run.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct reference {
	const struct charlm_plan *plan;
	struct charlm_pass pass;
	float *params, *gradient, *sum, *target; /* all units, one after the other */
	float *moments;                          /* twice as many */
	void *storage;
};

static int reference_init(struct reference *r, const struct charlm_plan *plan)
{
	const struct charlm_model *model = plan->model;
	*r = (struct reference){.plan = plan};
	r->storage = calloc(6 * model->numel, sizeof(float));
	if (r->storage == NULL || charlm_pass_init(model, plan->batch, &r->pass) != 0)
		return -1;
	r->params = r->storage;
	r->gradient = r->params + model->numel;
	r->sum = r->gradient + model->numel;
	r->target = r->sum + model->numel;
	r->moments = r->target + model->numel;
	for (unsigned i = 0; i < CHARLM_UNITS; i++)
		charlm_model_initial(model, i, plan->seed, 0, model->layers[i].numel,
		                     r->params + model->layers[i].offset_numel);
	return 0;
}

static void reference_deinit(struct reference *r)
{
	charlm_pass_deinit(&r->pass);
	free(r->storage);
}

/* All ranks' samples of one micro-step; their mean gradient is added to the target. */
static void micro_step(struct reference *r, uint32_t step, uint32_t micro, double *losses)
{
	const struct charlm_plan *plan = r->plan;
	size_t numel = plan->model->numel;
	float prescale = 1.0f / (float)plan->accum;
	float postscale = 1.0f / (float)plan->ranks;
	memset(r->sum, 0, numel * sizeof(float));
	for (uint32_t rank = 0; rank < plan->ranks; rank++) {
		charlm_pass_sample(&r->pass, plan->text, plan->seed, step,
		                   charlm_plan_first_sample(plan, micro, rank));
		losses[(size_t)micro * plan->ranks + rank] = charlm_whole_backward(&r->pass, r->params,
		                                                                   r->gradient);
		for (size_t i = 0; i < numel; i++)
			r->sum[i] += r->gradient[i] * prescale;
	}
	for (size_t i = 0; i < numel; i++)
		r->target[i] += r->sum[i] * postscale;
}

static bool all_finite(const float *values, size_t numel)
{
	for (size_t i = 0; i < numel; i++)
		if (!isfinite(values[i]))
			return false;
	return true;
}

/* Adam, unit by unit as the ranks do it; a step whose gradients overflowed is skipped. */
static bool update(struct reference *r, uint64_t step)
{
	const struct charlm_model *model = r->plan->model;
	if (!all_finite(r->target, model->numel))
		return false;
	float rate = charlm_plan_rate(r->plan, step);
	for (unsigned i = 0; i < CHARLM_UNITS; i++) {
		size_t offset = model->layers[i].offset_numel;
		charlm_adam(r->params + offset, r->target + offset, r->moments + 2 * offset,
		            model->layers[i].numel, step, rate);
	}
	return true;
}

static int train(struct reference *r, struct charlm_outcome *outcome, int channel)
{
	const struct charlm_plan *plan = r->plan;
	size_t numel = plan->model->numel;
	struct charlm_message message = {.kind = CHARLM_READY};
	for (uint32_t step = 1; step <= plan->steps; step++) {
		if (charlm_tell(channel, &message) != 0)
			return 1;
		memset(r->target, 0, numel * sizeof(float));
		for (uint32_t micro = 0; micro < plan->accum; micro++)
			micro_step(r, step, micro,
			           outcome->losses + (size_t)(step - 1) * outcome->losses_per_step);
		if (!update(r, step))
			message.skipped++;
		message.kind = CHARLM_STEP;
		message.step = step;
	}
	memcpy(outcome->params, r->params, numel * sizeof(float));
	message.kind = CHARLM_DONE;
	return charlm_tell(channel, &message) != 0;
}

int charlm_reference(const struct charlm_plan *plan, uint32_t index, struct charlm_outcome *outcome,
                     int channel)
{
	(void)index;
	struct reference r;
	int rc = 0;
	if (reference_init(&r, plan) == 0) {
		rc = train(&r, outcome, channel);
	} else {
		struct charlm_message message = {.kind = CHARLM_FAILED, .status = 1, .text = "no memory"};
		(void)!charlm_tell(channel, &message);
		rc = 1;
	}
	reference_deinit(&r);
	return rc;
}
