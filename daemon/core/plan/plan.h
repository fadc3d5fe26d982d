/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h - transfer plans: the commands of one gather, or of one slice of a reduction, as a graph of steps.
 *
 * A planner adds the steps and their dependencies. The runner (plan.c) runs a step when all its dependencies
 * are done. It completes steps in any order, and tells the owner once when the last step is done. A step can
 * also depend on an event outside the plan, such as the end of an entry's writers. The owner reports each
 * event with zd_plan_satisfy(). A stopped plan runs no further step. Its owner retains its memory until the
 * submitted commands have ended.
 */
#ifndef ZD_CORE_PLAN_PLAN_H
#define ZD_CORE_PLAN_PLAN_H

#include "base/err.h"
#include "core/engine.h"

struct zd_job;
struct zd_op;

enum zd_plan_state {
	ZD_PLAN_WAITING,
	ZD_PLAN_SUBMITTED,
	ZD_PLAN_ENDED, /* the command has ended; the step depends on others that are not done */
	ZD_PLAN_DONE,
};

#define ZD_PLAN_NOBODY UINT32_MAX /* a step's source: the step reads no rank's memory */

struct zd_plan_step {
	uint8_t kind;            /* the planner's */
	uint8_t state;           /* enum zd_plan_state */
	bool early;              /* submitted before all that it depends on was done */
	uint32_t index, rank;    /* the planner's: which chunk or node, which destination */
	uint32_t source;         /* the rank whose shard, buffer or entry it reads */
	uint32_t waits;          /* counts the steps and events that the step still waits for */
	uint32_t then, nthen;    /* the steps that depend on it: `nthen` of them, from number `then` on */
	void *memory;            /* the planner's: reserved memory that the command reads or writes */
	struct zd_signal signal; /* the planner's: the signal of the command */
	struct zd_op_result result;
};

struct zd_plan {
	const struct zd_plan_type *type;
	struct zd_job *job;
	void *owner;
	bool stopped, over;
	uint32_t nsteps, capacity;
	uint32_t left; /* steps that are not DONE */
	struct zd_plan_step *steps;
};

/* The owner's callbacks. A callback may stop the plan. Only `after` may free it. */
struct zd_plan_type {
	/* Runs a step when all that the step depends on is done, or early: calls zd_plan_submit(), or
	 * zd_plan_complete() for a step without a command. */
	void (*run)(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step);
	/* Called when the command has ended, with any status: releases the memory that run() has reserved. */
	void (*ended)(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step,
	              const struct zd_op *op);
	/* Called when the step is done, before the steps that depend on it are run. An error fails the
	 * step. */
	int (*done)(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step, struct zd_err *err);
	/* Called when the step has failed. The step counts as done afterwards, but no step that depends on it
	 * is run. */
	void (*failed)(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step, int status,
	               const char *error);
	/* Called when all steps are done. */
	void (*over)(struct zd_engine *e, struct zd_plan *plan);
	/* Called last at a command's end, also of a stopped plan, and after zd_plan_fail(). */
	void (*after)(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step);
};

/* Initialises an empty plan with room for `capacity` steps. */
void zd_plan_init(struct zd_plan *plan, const struct zd_plan_type *type, struct zd_job *job, void *owner,
                  uint32_t capacity);
/* Afterwards the plan has no steps. */
void zd_plan_deinit(struct zd_plan *plan);

/* Adds a step that depends on `waits` events, and returns its number. */
uint32_t zd_plan_add(struct zd_plan *plan, struct zd_plan_step step);
/* Makes the `n` steps from `first` on depend on `step`. */
void zd_plan_then(struct zd_plan *plan, uint32_t step, uint32_t first, uint32_t n);
/* Runs the steps without dependencies. */
void zd_plan_start(struct zd_engine *e, struct zd_plan *plan);

/* Reports an event that the step depends on. Runs the step if that was the last one. */
void zd_plan_satisfy(struct zd_engine *e, struct zd_plan *plan, uint32_t step);
/* Runs the step before all that it depends on is done: its command waits for fences of the others. */
void zd_plan_run_early(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step);
void zd_plan_submit(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step,
                    struct zd_command *command);
void zd_plan_complete(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step);
/* Fails a step that was not run and never will be. */
void zd_plan_fail(struct zd_engine *e, struct zd_plan *plan, struct zd_plan_step *step, int status,
                  const char *error);
/* Removes the steps that have not run from the plan, which ends without them. Outside of a callback, over()
 * is not called if no step remains. */
void zd_plan_skip_rest(struct zd_plan *plan);

#endif
