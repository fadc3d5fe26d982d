/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - what a seed gives: random numbers, a configuration, and a program for every actor. */
#ifndef ZD_SIM_CONFIG_H
#define ZD_SIM_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/engine.h"

enum {
	ZD_SIM_JOBS = 3,
	ZD_SIM_GROUPS = 6, /* of all jobs */
	ZD_SIM_UNITS = 6,  /* of one group */
	ZD_SIM_WORLD = 16, /* largest group */
	ZD_SIM_ACTORS = 20,
	ZD_SIM_STREAMS = 3,
	ZD_SIM_TAGS = 3,
	ZD_SIM_SCOPES = 4, /* scopes, claims and contexts that a rank has at once in one group */
	ZD_SIM_HOLDERS = ZD_SIM_TAGS + ZD_SIM_SCOPES,
	ZD_SIM_ALLOCS = 4,
	ZD_SIM_BUCKETS = 3, /* that a rank has in a group: one for each dtype of gradients */
	ZD_SIM_VERSIONS = 64,
	ZD_SIM_BACKWARDS = 32,
	ZD_SIM_OPS = 8192,
	ZD_SIM_FENCES = 4, /* in one gather's reply: one a device */
};

/* ---- Randomness and bytes (rng.c) ---------------------------------------------------------------------- */

struct zd_sim_rng {
	uint64_t state;
};

uint64_t zd_sim_mix(uint64_t a, uint64_t b); /* a hash of both, never 0 */
void zd_sim_rng_init(struct zd_sim_rng *rng, uint64_t seed, uint64_t stream);
uint64_t zd_sim_next(struct zd_sim_rng *rng);
uint64_t zd_sim_below(struct zd_sim_rng *rng, uint64_t bound);                /* bound >= 1 */
uint64_t zd_sim_between(struct zd_sim_rng *rng, uint64_t low, uint64_t high); /* both included */
bool zd_sim_percent(struct zd_sim_rng *rng, uint32_t percent);
uint64_t zd_sim_delay(struct zd_sim_rng *rng, uint64_t scale_ns); /* mostly short, sometimes very long */

/* Content number `key` of a piece of memory; key 0 is all zeros. */
#define ZD_SIM_UNKNOWN UINT64_MAX /* half-written by somebody who died */
void zd_sim_pattern_write(uint64_t key, uint8_t *bytes, size_t nbytes);
/* The first byte that differs, or `nbytes`. */
size_t zd_sim_pattern_check(uint64_t key, const uint8_t *bytes, size_t nbytes);

/* ---- Configuration (world.c) --------------------------------------------------------------------------- */

#define ZD_SIM_DEVICES 5u

struct zd_sim_unit_config {
	char name[16];
	enum zerod_dtype dtype;
	uint64_t numel;
	uint32_t slot, nviews;
	bool persistent, frozen;
	bool on_host, copied;
	bool untargeted; /* its sums have no place in targets */
	bool terms;      /* and ranks take the terms of some */
};

/* The steps of the training, equal for all ranks of a group. */
struct zd_sim_plan {
	uint32_t steps, micro_steps, stage;
	enum zerod_dtype target_dtype, gradient_dtype;
	enum zerod_reduce_op op;
	float prescale;
	bool overwrite;
	bool same_order;    /* all ranks reduce in one order */
	bool one_at_a_time; /* a rank holds at most one unit */
	bool batched_publish, prefetches;
	uint32_t commits;     /* after so many steps each; 0: never */
	bool mixed;           /* gradients of units that follow each other have different dtypes */
	uint32_t inf_percent; /* of gradients that hold an inf */
};

struct zd_sim_group_config {
	char name[16];
	uint32_t job, world;
	bool reversed;          /* ranks run against the actors' */
	uint64_t granule_bytes; /* units with slices of two are gathered in place; 0: none is */
	uint32_t nunits;
	struct zd_sim_unit_config units[ZD_SIM_UNITS];
	struct zd_sim_plan plan;
};

struct zd_sim_job_config {
	char name[16];
	uint32_t uid, world, first_group, ngroups;
	bool durable, shadow;
};

struct zd_sim_actor_config {
	int job; /* -1: a stranger */
	uint32_t rank, device, uid;
	bool admin, strict, poison, maps_frames;
};

struct zd_sim_config {
	uint64_t seed;
	bool clean;           /* no faults, no noise: every request must succeed and every program must end */
	bool mortal;          /* nothing goes wrong but that ranks die, and others take their places */
	bool sums_ahead;      /* processes are asked for sums whose inputs are on their way */
	bool publishes_ahead; /* actors go on behind a publish, to gathers of its version */
	bool steps_ahead; /* actors go on behind the end of a window's last backward, and that of its step */
	bool unordered;   /* executors run commands in any order, several at once; a timeline's end in it */
	bool linger;      /* processes run on after their sessions have ended */
	uint32_t end_step_objects; /* 0: each end is one event */
	bool strict_by_segment;    /* buffers of strict sessions have segments of their own */
	bool regroups;             /* a group that has lost a rank waits for the next one to take its place */
	bool lends;                /* ranks wait for sums before the step, and abandon windows */
	uint32_t noise_percent, death_percent;
	uint32_t create_fault_percent, device_fault_permille;
	uint32_t slow_device;                      /* its executor is behind the others; ndevices: none is */
	uint64_t patience_ns;                      /* 0: actors wait as long as it takes */
	uint64_t executor_ns, stream_ns, actor_ns; /* scales of delays */
	uint64_t quota_bytes, segment_bytes, cut_bytes, granule_bytes;
	uint32_t ndevices, njobs, ngroups, nactors; /* devices that ranks join on */
	bool has_host;                              /* device `ndevices` is their host memory */
	struct zd_device_config devices[ZD_SIM_DEVICES];
	struct zd_sim_job_config jobs[ZD_SIM_JOBS];
	struct zd_sim_group_config groups[ZD_SIM_GROUPS];
	struct zd_sim_actor_config actors[ZD_SIM_ACTORS];
};

/* The number of all devices. */
static inline uint32_t zd_sim_ndevices(const struct zd_sim_config *config)
{
	return config->ndevices + config->has_host;
}

void zd_sim_config_derive(uint64_t seed, struct zd_sim_config *config);
void zd_sim_config_print(const struct zd_sim_config *config);
uint32_t zd_sim_rank(const struct zd_sim_config *config, uint32_t actor, uint32_t group);
uint64_t zd_sim_shard_numel(const struct zd_sim_group_config *group, uint32_t unit);
uint64_t zd_sim_padded_bytes(const struct zd_sim_group_config *group, uint32_t unit);
/* Whether the unit is laid out to be gathered in place. */
bool zd_sim_is_in_place(const struct zd_sim_group_config *group, uint32_t unit);
/* Whether the actor gathers in place where units are on devices. */
bool zd_sim_maps_frames(const struct zd_sim_actor_config *actor);
/* The bytes of the actor's gathered copy of the unit; of frames where it is gathered in place. */
uint64_t zd_sim_copied_bytes(const struct zd_sim_config *config, uint32_t actor, uint32_t group,
                             uint32_t unit);
uint64_t zd_sim_gathered_bytes(const struct zd_sim_config *config, uint32_t actor, uint32_t group,
                               uint32_t unit);
enum zerod_dtype zd_sim_gradient_dtype(const struct zd_sim_group_config *group, uint32_t unit);
/* Which of a rank's buckets the unit's gradients go through, and how many there are. */
uint32_t zd_sim_bucket_of(const struct zd_sim_group_config *group, uint32_t unit);
uint32_t zd_sim_nbuckets(const struct zd_sim_group_config *group);
uint64_t zd_sim_true_numel(const struct zd_sim_group_config *group, uint32_t unit, uint32_t rank);

/* ---- Programs (program.c, print.c) --------------------------------------------------------------------- */

enum zd_sim_op_kind {
	ZD_SIM_OPEN,
	ZD_SIM_CLOSE,
	ZD_SIM_DIE, /* a close that waits for nothing */
	ZD_SIM_RESET,
	ZD_SIM_JOIN,
	ZD_SIM_LEAVE,
	ZD_SIM_REGISTER,
	ZD_SIM_UNREGISTER,
	ZD_SIM_UPDATE_BEGIN,
	ZD_SIM_PUBLISH,
	ZD_SIM_COMMIT,
	ZD_SIM_SET_PERSISTENT,
	ZD_SIM_PLACE, /* arg: bits of enum zd_sim_placing */
	ZD_SIM_GATHER,
	ZD_SIM_PREFETCH,
	ZD_SIM_USE, /* a stream reads the gathered buffer */
	ZD_SIM_RELEASE,
	ZD_SIM_FORWARD_BEGIN, /* tag: the scope's place; arg: its parent's place + 1, or 0 */
	ZD_SIM_FORWARD_END,   /* arg: bits of enum zd_sim_end */
	ZD_SIM_CLAIM_END,
	ZD_SIM_SCOPE_ABANDON,
	ZD_SIM_CONTEXT_BEGIN, /* arg: the units, as bits */
	ZD_SIM_CONTEXT_END,
	ZD_SIM_BACKWARD_BEGIN,
	ZD_SIM_BUCKET_CREATE, /* for the unit, and all that share its bucket */
	ZD_SIM_BUCKET_DESTROY,
	ZD_SIM_RESERVE,
	ZD_SIM_BUCKET_SUBMIT,
	ZD_SIM_SKIP,
	ZD_SIM_REDUCE_WAIT,   /* arg: bits of enum zd_sim_loan */
	ZD_SIM_TARGET_RETURN, /* of the unit's place */
	ZD_SIM_BACKWARD_END,
	ZD_SIM_BACKWARD_ABANDON,
	ZD_SIM_STEP_BEGIN,
	ZD_SIM_STEP_END,
	ZD_SIM_ALLOC, /* tag: 1 for what a gathered copy of the unit takes, on the rank's own device */
	ZD_SIM_FREE,
	ZD_SIM_KILL,
	ZD_SIM_ABORT,
	ZD_SIM_END_JOB,
	ZD_SIM_RELOAD,  /* quota and budget change */
	ZD_SIM_GARBAGE, /* a request that must fail */
	ZD_SIM_NOPS
};

#define ZD_SIM_ALL_UNITS 255u

enum zd_sim_end {
	ZD_SIM_END_GRAD = 1,
	ZD_SIM_END_AHEAD = 2, /* sent right behind the gathers in the scope, without their replies */
};

enum zd_sim_placing {
	ZD_SIM_PLACE_ON_HOST = 1,
	ZD_SIM_PLACE_AHEAD = 2, /* the actor does not wait for the reply */
};

enum zd_sim_loan {
	ZD_SIM_LOAN_AHEAD = 1, /* a stream waits for the sum */
	ZD_SIM_LOAN_WRITES =
	        2, /* the rank writes its place, if the unit's loans are on the stream of its steps */
	ZD_SIM_LOAN_BLOCKS = 4, /* the actor waits for the reply */
	ZD_SIM_KEEPS_LOANS = 8, /* STEP_BEGIN: they end with the step */
};

struct zd_sim_op {
	uint8_t kind, actor;
	uint8_t group, unit, tag; /* tag: of a gather or use, ZD_SIM_TAGS + place for a scope's */
	bool noise;               /* not part of the training: does not wait until it makes sense */
	uint32_t arg;             /* by kind: uses, boundary, step, ... */
	bool ahead;               /* the next one does not wait for its reply */
};

struct zd_sim_program {
	uint32_t nops;
	struct zd_sim_op ops[ZD_SIM_OPS];
	uint32_t first[ZD_SIM_ACTORS + 1]; /* an actor's operations: first[a] .. first[a + 1] - 1 */
};

void zd_sim_program_generate(const struct zd_sim_config *config, struct zd_sim_program *program);
/* `removed[i]`: operation i is left out; NULL: none. */
void zd_sim_program_print(const struct zd_sim_config *config, const struct zd_sim_program *program,
                          const bool *removed);
void zd_sim_op_text(const struct zd_sim_config *config, const struct zd_sim_op *op, char *text,
                    size_t nbytes);

#endif
