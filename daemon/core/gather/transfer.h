/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.h - transfers: the plans that fill gathered buffers, and their planners.
 *
  * A transfer fills one buffer with one version of its unit. transfer.c owns the transfer: it calls the
 * planner to build the plan, starts the plan, and updates the buffer when each step has ended. The planner of
 * the group decides which steps the plan has, and which timeline each step signals:
 *
 *   zd_plan_copies         plan_copies.c        a copy of each shard; all of them are in this daemon
  *   zd_plan_landings       plan_copies.c        the same from host memory, through the shards' devices
 *   zd_plan_rail_gathers   plan_rail_gathers.c  exchanges of shards of other daemons on rails
 *
 * The fences of a transfer are fixed before the plan starts. The reply therefore need not wait for the plan.
 */
#ifndef ZD_CORE_GATHER_TRANSFER_H
#define ZD_CORE_GATHER_TRANSFER_H

#include "core/gather/buffer.h"

enum zd_transfer_step {
	ZD_TRANSFER_COPY,     /* a shard of this daemon into the buffer */
	ZD_TRANSFER_EXCHANGE, /* of the rank's shard with the ranks of its rail */
	ZD_TRANSFER_RELAY, /* COPY of shards that another local rank has received, from that rank's buffer */
	ZD_TRANSFER_PUBLISH, /* no command: a buffer without frames, whose shard receives the version */
	ZD_TRANSFER_NSTEPS
};

/* The last three functions can be NULL. */
struct zd_gather_planner {
	uint32_t (*max_steps)(const struct zd_engine *e, const struct zd_buffer *buffer);
	/* Adds the steps to the buffer's plan, and reserves the memory that they read. In a plan that can be
	 * deferred, all steps read shards: by the step's `source`, deferred.c ends each step's reading of a
	 * shard, or the buffer's wait for that shard's publish. */
	void (*build)(struct zd_engine *e, struct zd_buffer *buffer);
	/* Called when the plan has been started. */
	void (*started)(struct zd_engine *e, struct zd_buffer *buffer);
	/* Called when a step has failed. */
	void (*failed)(struct zd_engine *e, struct zd_buffer *buffer, const struct zd_plan_step *step,
	               int status, const char *error);
	/* Called when a step has ended, with any status. */
	void (*step_over)(struct zd_engine *e, struct zd_buffer *buffer);
};

extern const struct zd_gather_planner zd_plan_copies, zd_plan_landings, zd_plan_rail_gathers;
/* Returns the planner of the buffer's transfer (transfer.c). */
const struct zd_gather_planner *zd_gather_planner_of(const struct zd_buffer *buffer);

/* Fills the buffer with `version`. If not all shards are idle with this version, or the buffer is being read
 * or written, the transfer is deferred until they are. */
void zd_buffer_transfer(struct zd_engine *e, struct zd_buffer *buffer, uint64_t version);
/* Plans the publish of a buffer without frames: one step, which zd_plan_satisfy() completes. */
void zd_buffer_plan_publish(struct zd_buffer *buffer);

/* Adds the event of a transfer that has ended. */
void zd_transfer_event(struct zd_engine *e, const struct zd_buffer *buffer);
/* Frees the steps and fences of a transfer that has ended, or that will not start. */
void zd_transfer_forget(struct zd_buffer *buffer);

/* Adds a step, for planners. The step depends on `step.waits` events, and signals the next value of the
 * timeline. */
void zd_transfer_add(struct zd_buffer *buffer, struct zd_plan_step step, uint32_t timeline);
/* Adds a copy of each local shard, in place without the rank's own (plan_copies.c). */
void zd_transfer_add_copies(struct zd_buffer *buffer);
/* Submits the step's command, with the step's signal. */
void zd_transfer_submit(struct zd_engine *e, struct zd_buffer *buffer, struct zd_plan_step *step,
                        struct zd_command *command);

/* The functions of steps: plan_copies.c, plan_rail_gathers.c. */
void zd_transfer_run_copy(struct zd_engine *e, struct zd_buffer *buffer, struct zd_plan_step *step);
void zd_transfer_run_exchange(struct zd_engine *e, struct zd_buffer *buffer, struct zd_plan_step *step);
void zd_transfer_exchanged(struct zd_engine *e, struct zd_buffer *buffer);
void zd_transfer_run_relay(struct zd_engine *e, struct zd_buffer *buffer, struct zd_plan_step *step);
void zd_transfer_relay_ended(struct zd_engine *e, struct zd_plan_step *step);

#endif
