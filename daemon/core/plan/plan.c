/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - the runner of transfer plans, see plan.h. */
#include "core/engine/objects.h"
#include "core/plan/plan.h"

#include <stdlib.h>

void zd_plan_init(struct zd_plan *plan, const struct zd_plan_type *type, struct zd_job *job, void *owner,
                  uint32_t capacity)
{
	*plan = (struct zd_plan){.type = type, .job = job, .owner = owner, .capacity = capacity};
	plan->steps = zd_calloc(capacity, sizeof(*plan->steps));
}

void zd_plan_deinit(struct zd_plan *plan)
{
	free(plan->steps);
	*plan = (struct zd_plan){0};
}

uint32_t zd_plan_add(struct zd_plan *plan, struct zd_plan_step step)
{
	zd_assert(plan->nsteps < plan->capacity);
	plan->steps[plan->nsteps] = step;
	plan->left++;
	return plan->nsteps++;
}

void zd_plan_then(struct zd_plan *plan, uint32_t step, uint32_t first, uint32_t n)
{
	zd_assert(first + n <= plan->nsteps);
	plan->steps[step].then = first;
	plan->steps[step].nthen = n;
	for (uint32_t i = first; i < first + n; i++)
		plan->steps[i].waits++;
}

void zd_plan_start(struct zd_engine *e, struct zd_plan *plan)
{
	for (uint32_t i = 0; i < plan->nsteps && !plan->stopped; i++) {
		if (plan->steps[i].waits == 0 && plan->steps[i].state == ZD_PLAN_WAITING)
			plan->type->run(e, plan, &plan->steps[i]);
	}
}

/* ---- A step -------------------------------------------------------------------------------------------- */

static void count_done(struct zd_engine *e, struct zd_plan *plan)
{
	if (--plan->left > 0 || plan->stopped)
		return;
	plan->over = true;
	plan->type->over(e, plan);
}

/* The step counts as left during failed(), which can fail other steps: the plan is not over before its
 * return. */
static void fail_step(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step, int status,
                      const char *error)
{
	step->state = ZD_PLAN_DONE;
	plan->type->failed(e, plan, step, status, error);
	count_done(e, plan);
}

void zd_plan_fail(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step, int status,
                  const char *error)
{
	zd_assert(step->state == ZD_PLAN_WAITING && !plan->stopped);
	fail_step(e, plan, step, status, error);
	plan->type->after(e, plan, step);
}

void zd_plan_complete(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step)
{
	struct zd_err err = ZD_ERR_NONE;
	step->state = ZD_PLAN_DONE;
	int status = plan->type->done(e, plan, step, &err);
	if (status != 0) {
		fail_step(e, plan, step, status, err.text);
		return;
	}
	for (uint32_t i = step->then; i < step->then + step->nthen && !plan->stopped; i++)
		zd_plan_satisfy(e, plan, i);
	count_done(e, plan);
}

static void command_ended(struct zd_engine *e, struct zd_op *op)
{
	struct zd_plan *plan = op->owner;
	struct zd_plan_step *step = &plan->steps[op->aux];
	plan->type->ended(e, plan, step, op);
	if (plan->stopped) {
		step->state = ZD_PLAN_DONE;
	} else if (op->status != 0) {
		fail_step(e, plan, step, op->status, op->error);
	} else if (op->result && op->result->not_begun) {
		zd_assert(step->early);
		step->state = ZD_PLAN_WAITING;
		step->early = false;
		if (step->waits == 0)
			plan->type->run(e, plan, step);
	} else {
		step->state = ZD_PLAN_ENDED;
		if (op->result)
			step->result = *op->result;
		if (step->waits == 0)
			zd_plan_complete(e, plan, step);
	}
	plan->type->after(e, plan, step);
}

void zd_plan_submit(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step,
                    struct zd_command *command)
{
	zd_assert(step->state == ZD_PLAN_WAITING && !plan->stopped);
	step->state = ZD_PLAN_SUBMITTED;
	zd_op_submit(e, plan->job, command, command_ended, plan, (uint64_t)(step - plan->steps));
}

void zd_plan_satisfy(struct zd_engine *e, struct zd_plan *plan, uint32_t index)
{
	struct zd_plan_step *step = &plan->steps[index];
	zd_assert(step->waits > 0);
	if (--step->waits > 0 || plan->stopped)
		return;
	if (step->state == ZD_PLAN_WAITING)
		plan->type->run(e, plan, step);
	else if (step->state == ZD_PLAN_ENDED)
		zd_plan_complete(e, plan, step);
}

void zd_plan_run_early(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step)
{
	zd_assert(step->state == ZD_PLAN_WAITING && step->waits > 0);
	step->early = true;
	plan->type->run(e, plan, step);
}

void zd_plan_skip_rest(struct zd_plan *plan)
{
	for (uint32_t i = 0; i < plan->nsteps; i++) {
		if (plan->steps[i].state != ZD_PLAN_WAITING)
			continue;
		plan->steps[i].state = ZD_PLAN_DONE;
		plan->left--;
	}
}
