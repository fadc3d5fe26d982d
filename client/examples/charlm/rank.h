/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank.h - one rank of the sharded training, shared by the three files that make it up:
 *
 *   rank_init.c  connecting, joining, registering: what happens once
 *   rank_pass.c  a micro-step: gather, release, forward, backward
 *   rank.c       the optimizer's step, and the loop over steps
 */
#ifndef CHARLM_RANK_H
#define CHARLM_RANK_H

#include <stdbool.h>
#include <stdint.h>

#include <zerod.h>

#include "run.h"

#define NO_UNIT      CHARLM_UNITS
#define MAX_RELEASES 16 /* of one micro-step: 6 in forward, 5 in backward */

/* A call of a function of model.c on a stream. */
struct work {
	struct charlm_pass *pass;
	enum charlm_unit unit;
	const float *params; /* the gathered unit */
	float *gradient;     /* the bucket's entry */
	double loss;
};

/* A unit's Adam step on a stream. */
struct update {
	float *params;
	const float *target;
	float *moments;
	size_t numel;
	uint64_t step;
	float rate;
};

struct rank {
	const struct charlm_plan *plan;
	uint32_t index;
	struct charlm_outcome *outcome;
	int channel;
	uint32_t device;
	struct charlm_pass pass;

	zerod_client *client;
	zerod_group *group;
	zerod_unit *units[CHARLM_UNITS];
	struct zerod_shard shards[CHARLM_UNITS];
	float *moments[CHARLM_UNITS]; /* 2 x shard_numel, memory of the daemon's too */
	zerod_stream *compute, *gradients;
	zerod_bucket *layers, *tied;

	zerod_ticket releases[MAX_RELEASES];
	uint32_t nreleases;
	struct work compute_work, gradients_work; /* what the streams run now */
	struct update updates[CHARLM_UNITS];
	enum charlm_unit pause_at; /* NO_UNIT: nowhere */
	struct charlm_message progress;
};

/* All functions return ZEROD_OK, or a negative status after the launcher was told what went wrong. */

/* Reports to the launcher that `what`, with the unit (or ""), has failed. Returns `status`. */
int charlm_rank_fail(struct rank *r, int status, const char *what, const char *unit);
const char *charlm_rank_unit_name(const struct rank *r, enum charlm_unit unit);

/* Makes the rank ready to train: connects, and publishes its slices of the initial values. */
__attribute__((warn_unused_result)) int charlm_rank_init(struct rank *r);
/* Frees the rank, also a half-made one. */
void charlm_rank_deinit(struct rank *r);

/* Stores the live and peak bytes of the rank's device in the progress. */
__attribute__((warn_unused_result)) int charlm_rank_read_memory(struct rank *r);

/* Forward and backward over one batch. On a boundary the step may follow. */
__attribute__((warn_unused_result)) int charlm_rank_micro_step(struct rank *r, bool boundary, double *loss);

/* Waits until both streams have run all their work. */
__attribute__((warn_unused_result)) int charlm_rank_synchronize(struct rank *r);

#endif
