/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.h - one training run: its plan, what comes of it, and the processes that do it.
 *
 * A run is a crew of workers, each a forked process: the ranks of a sharded run, or the references. Workers
 * tell the launcher how far they are over a socket each, and put losses and parameters into memory that is
 * shared with it.
 */
#ifndef CHARLM_RUN_H
#define CHARLM_RUN_H

#include <stdint.h>

#include "model.h"
#include "text.h"

struct charlm_plan {
	const struct charlm_model *model;
	const struct charlm_text *text;
	uint32_t ranks, batch, accum, steps;
	uint64_t seed;
	float rate;
	const char *socket;  /* of the daemon */
	char job[32];        /* zerod's name for this run */
	uint32_t pause_step; /* in its middle all ranks wait for the launcher; 0: never */
};

/* Returns the learning rate of step 1, 2, ...: a short warm-up, then a linear decay. */
float charlm_plan_rate(const struct charlm_plan *plan, uint64_t step);
/* Returns the first sample of a rank's micro-step among the samples of the step. */
uint64_t charlm_plan_first_sample(const struct charlm_plan *plan, uint32_t micro, uint32_t rank);
/* Returns the samples of the whole run; each predicts one token. */
uint64_t charlm_plan_tokens(const struct charlm_plan *plan);

/* The results of a run, in memory shared between the launcher and its workers. */
struct charlm_outcome {
	uint32_t steps, losses_per_step; /* one loss per micro-step and rank */
	double *losses;                  /* steps x losses_per_step */
	uint64_t *live_bytes;            /* steps; on rank 0's device, in the middle of the step */
	float *params;                   /* all units, one after the other */
	size_t numel;
	void *mapping;
	size_t mapping_bytes;
};

__attribute__((warn_unused_result)) int charlm_outcome_init(const struct charlm_plan *plan,
                                                            struct charlm_outcome *outcome);
void charlm_outcome_deinit(struct charlm_outcome *outcome);
/* Of step 1, 2, ... */
double charlm_outcome_loss(const struct charlm_outcome *outcome, uint32_t step);

enum charlm_message_kind {
	CHARLM_READY,  /* training begins */
	CHARLM_STEP,   /* a step is finished */
	CHARLM_PAUSED, /* waits for an answer of one byte */
	CHARLM_DONE,
	CHARLM_FAILED,
};

struct charlm_message {
	enum charlm_message_kind kind;
	uint32_t step;
	uint32_t skipped;    /* steps without an update, for the gradients overflowed */
	uint64_t gathers;    /* all these count from the run's start */
	uint64_t live_bytes; /* on the worker's device, in the middle of the step */
	uint64_t peak_bytes;
	uint64_t shard_bytes; /* of the worker's parameters */
	uint32_t device;
	int status;     /* FAILED: a positive exit status */
	char text[320]; /* FAILED: why */
};

/* Sends a message to the launcher. Returns -1 if the launcher has ended. */
__attribute__((warn_unused_result)) int charlm_tell(int channel, const struct charlm_message *message);
/* Sends PAUSED and waits for the answer. Returns -1 if the launcher has ended. */
__attribute__((warn_unused_result)) int charlm_pause(int channel);

/* Runs a worker, which sends DONE or FAILED. The process exits with the result. */
typedef int (*charlm_work_fn)(const struct charlm_plan *plan, uint32_t index, struct charlm_outcome *outcome,
                              int channel);

struct charlm_worker {
	charlm_work_fn work;
	const struct charlm_plan *plan;
	struct charlm_outcome *outcome;
	const char *title; /* for messages */
	uint32_t index;
	struct charlm_message last;
	int pid; /* 0: not running */
	int channel;
};

struct charlm_crew {
	struct charlm_worker *workers;
	uint32_t count;
	/* Called after each message of a worker; NULL: not needed. */
	void (*heard)(void *arg, const struct charlm_crew *crew, const struct charlm_worker *worker);
	/* Called when all workers are paused. A positive return value ends the run with that status. */
	int (*paused)(void *arg);
	void *arg;
};

/*
 * Runs the crew to its end. If a worker fails, prints the reason and ends the others. Returns 0 or the exit
 * status of the first worker that failed.
 */
__attribute__((warn_unused_result)) int charlm_crew_run(struct charlm_crew *crew);

/* ---- The two kinds of workers -------------------------------------------------------------------------- */
int charlm_rank(const struct charlm_plan *plan, uint32_t index, struct charlm_outcome *outcome, int channel);
int charlm_reference(const struct charlm_plan *plan, uint32_t index, struct charlm_outcome *outcome,
                     int channel);

/* Returns the plan of the plain full batch: one rank with all the samples. */
struct charlm_plan charlm_plan_full_batch(const struct charlm_plan *plan);

/* Compares backpropagation with numerical derivatives and prints a table; 0 when they agree, else 1. */
int charlm_check_gradients(uint64_t seed);

#endif
