/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - what a run's workers agree on, and the memory in which they leave what came of it. */
#include "run.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define WARMUP_STEPS 20
#define LAST_RATE    0.1f /* of the highest */

float charlm_plan_rate(const struct charlm_plan *plan, uint64_t step)
{
	float done = (float)(step - 1) / (float)plan->steps;
	float rate = plan->rate * (1.0f - (1.0f - LAST_RATE) * done);
	return step < WARMUP_STEPS ? rate * (float)step / WARMUP_STEPS : rate;
}

uint64_t charlm_plan_first_sample(const struct charlm_plan *plan, uint32_t micro, uint32_t rank)
{
	return ((uint64_t)micro * plan->ranks + rank) * plan->batch;
}

uint64_t charlm_plan_tokens(const struct charlm_plan *plan)
{
	return (uint64_t)plan->steps * plan->accum * plan->ranks * plan->batch;
}

struct charlm_plan charlm_plan_full_batch(const struct charlm_plan *plan)
{
	struct charlm_plan full = *plan;
	full.batch = plan->ranks * plan->accum * plan->batch;
	full.ranks = 1;
	full.accum = 1;
	return full;
}

int charlm_outcome_init(const struct charlm_plan *plan, struct charlm_outcome *outcome)
{
	struct charlm_outcome made = {
	        .steps = plan->steps,
	        .losses_per_step = plan->ranks * plan->accum,
	        .numel = plan->model->numel,
	};
	size_t nlosses = (size_t)made.steps * made.losses_per_step;
	made.mapping_bytes = nlosses * sizeof(double) + made.steps * sizeof(uint64_t) +
	                     made.numel * sizeof(float);
	made.mapping = mmap(NULL, made.mapping_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
	                    0);
	if (made.mapping == MAP_FAILED) {
		fprintf(stderr, "charlm: no memory for the losses of %u steps: %s\n", plan->steps,
		        strerror(errno));
		return -1;
	}
	made.losses = made.mapping;
	made.live_bytes = (uint64_t *)(made.losses + nlosses);
	made.params = (float *)(made.live_bytes + made.steps);
	*outcome = made;
	return 0;
}

void charlm_outcome_deinit(struct charlm_outcome *outcome)
{
	if (outcome->mapping != NULL)
		(void)munmap(outcome->mapping, outcome->mapping_bytes);
	*outcome = (struct charlm_outcome){0};
}

double charlm_outcome_loss(const struct charlm_outcome *outcome, uint32_t step)
{
	const double *losses = outcome->losses + (size_t)(step - 1) * outcome->losses_per_step;
	double sum = 0;
	for (uint32_t i = 0; i < outcome->losses_per_step; i++)
		sum += losses[i];
	return sum / outcome->losses_per_step;
}
