/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - the common parts of zerobench's measurements.
 *
 * A measurement is a team of processes: one for each rank, and some for the baseline. Ranks and baseline take
 * turns inside one run, iteration by iteration. Other work of the machine therefore affects both equally, and
 * their ratio is meaningful even on a busy machine. Times are medians. The spread is printed next to them.
 */
#ifndef ZD_BENCH_H
#define ZD_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include <jansson.h>
#include <zerod.h>

#include "base/err.h"

#define ZD_BENCH_SCHEMA    2
#define ZD_BENCH_MAX_RANKS 64
#define ZD_BENCH_MAX_NODES 8

enum zd_bench_op { ZD_BENCH_GATHER, ZD_BENCH_REDUCE, ZD_BENCH_RPC, ZD_BENCH_SCALE, ZD_BENCH_STEP };

/* A structure of zerod.h to be filled in, which is a member of another one. */
#define ZD_SIZED(out) ((out)->struct_size = sizeof(*(out)), (out))

struct zd_bench_options {
	enum zd_bench_op op;
	uint64_t min_bytes, max_bytes; /* of a unit */
	uint32_t factor;               /* from one size to the next */
	uint32_t iters, warmup;
	uint32_t ranks, units;
	enum zerod_dtype dtype;
	uint32_t check; /* 0: contents are not compared */
	bool start;
	bool json;               /* results are printed at the end, as an object; else as lines */
	bool strict;             /* a missed target is an error */
	unsigned given;          /* bit i: the option settings[i] of main.c */
	const char *socket_path; /* NULL: a private daemon */
	/* On GPUs: */
	bool cuda; /* the private daemon's backend */
	bool backend_given;
	bool all_reduce; /* reductions give all ranks the whole sum */
	bool on_host;    /* gathers are of units in host memory */
	bool alone;      /* rank 0 gathers, the others do not */
	uint32_t nodes;  /* private daemons, each with its part of the GPUs and of the ranks */
	enum zerod_collectives collectives;
	uint32_t load_side;      /* of the matrices that the trainers multiply meanwhile; 0: no products */
	uint64_t backward_bytes; /* gradients of a whole backward; 0: none is measured */
	const char *nccl_path;   /* NULL: searched for */
	bool copy_engines;       /* NCCL gathers with them */
};

struct zd_bench {
	struct zd_bench_options options;
	const char *op_name;
	const char *socket_path; /* of the daemon that is measured, or of the first */
	const char *socket_paths[ZD_BENCH_MAX_NODES];
	char daemon[96]; /* "zerod 0.1.0 on host devices" */
	uint32_t devices;
	int daemon_pid;   /* 0: it is of another pid namespace */
	bool on_gpus;     /* the daemon's devices are */
	bool one_cpu;     /* all processes are bound to one */
	uint64_t wrong;   /* elements, in all results */
	double busbw_sum; /* of the rows with a bandwidth, GB/s */
	unsigned nbusbw;
	json_t *results, *targets;
};

static inline uint64_t zd_bench_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- Statistics (stats.c) ------------------------------------------------------------------------------ */

struct zd_stats {
	uint64_t min, p50, p99, max;
};

/* Sorts the samples; there is at least one. */
void zd_stats_of(uint64_t *samples, size_t count, struct zd_stats *stats);

/* From a first start to a last end, by CLOCK_MONOTONIC, which all processes share. */
struct zd_interval {
	uint64_t start_ns, end_ns;
};

/* Statistics over rounds of what passed between the first start and the last end of a round's `width`
 * spans. */
void zd_stats_of_rounds(const struct zd_interval *spans, size_t width, size_t rounds, struct zd_stats *stats);

/* ---- Processes (team.c) -------------------------------------------------------------------------------- */

struct zd_team;

struct zd_member {
	struct zd_team *team;
	unsigned index;
	struct zd_err *err; /* in shared memory; reported by the parent when the member fails */
};

/* Allocates zeroed memory, which members that are forked later share with the parent. On failure returns
 * NULL, and SYSTEM in `err`. */
void *zd_shared_new(size_t bytes, struct zd_err *err);
void zd_shared_free(void *shared, size_t bytes);

/*
 * Forks `count` members, each of which runs fn(member, arg) and ends. Returns when all have ended. If a
 * member fails or dies, or the program is interrupted, the other members are killed at once, so that none
 * waits at a barrier for a dead one.
 */
int zd_team_run(unsigned count, void (*fn)(const struct zd_member *member, void *arg), void *arg,
                struct zd_err *err) __attribute__((warn_unused_result));

/* Waits for all members of the team. */
void zd_member_barrier(const struct zd_member *member);
/* A member's functions return no status, because its first failure ends the member. The end of the process
 * ends its session, and frees the rest. */
/* Ends the process unless `status` is 0. The text is in the member's error. */
void zd_member_need(int status);
/* The same for the result of a call of libzerod. Stores the call's name in the error. */
void zd_member_check(const struct zd_member *member, int status, const zerod_client *client,
                     const char *call);

/* SIGINT, SIGTERM, SIGHUP and SIGPIPE then end the measurement in order, with all resources freed. */
void zd_bench_catch_signals(void);
/* Called after fork(): the child process ends when its parent requests it. */
void zd_bench_child_signals(void);
bool zd_bench_interrupted(void);

/* A connection, a group in a job of this run, and one unit. Most measurements start with these. */
struct zd_rank {
	const struct zd_member *member;
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;
	struct zerod_shard shard;
	zerod_bucket *bucket; /* NULL unless the measurement makes one */
};

struct zd_rank_options {
	const char *socket_path;
	uint32_t rank, world_size, devices;
	enum zerod_dtype dtype;
	uint64_t numel;            /* 0: no unit */
	uint32_t local_world_size; /* 0: all ranks are in one daemon */
	enum zerod_collectives collectives;
	const struct zerod_unique_id *unique_id; /* NULL: the group needs none */
};

/* Calls a function of libzerod for the rank. A failure ends the process. */
#define ZD_CALL(rank, function, ...)                                                                         \
	zd_member_check((rank)->member, function(__VA_ARGS__), (rank)->client, #function)

/* zd_rank_connect() is the first part of zd_rank_init(), zd_rank_join() the rest. */
void zd_rank_connect(struct zd_rank *rank, const struct zd_member *member,
                     const struct zd_rank_options *options);
/* Makes the id of the group that the options describe, on a connected rank. */
void zd_rank_make_id(const struct zd_rank *rank, const struct zd_rank_options *options,
                     struct zerod_unique_id *id);
void zd_rank_join(struct zd_rank *rank, const struct zd_rank_options *options);
void zd_rank_init(struct zd_rank *rank, const struct zd_member *member,
                  const struct zd_rank_options *options);
/* Registers a unit of the group. `shard` NULL: its place is not needed. */
zerod_unit *zd_rank_register(const struct zd_rank *rank, const struct zerod_unit_options *options,
                             struct zerod_shard *shard);
/* Publishes the zeros that new shards hold, because a unit without a version cannot be gathered. */
void zd_rank_publish(const struct zd_rank *rank, zerod_unit *const *units, uint32_t count);
/* Makes a bucket of slots for gradients of this many bytes. */
zerod_bucket *zd_rank_bucket(const struct zd_rank *rank, enum zerod_dtype dtype, uint64_t slot_bytes,
                             uint32_t nslots);
/* Makes a backward whose sums the next step returns. */
void zd_rank_backward_begin(const struct zd_rank *rank);
/* Takes a step. step_begin() returns when the sums of the last backward are in their targets. */
void zd_rank_step_begin(const struct zd_rank *rank);
void zd_rank_step_end(const struct zd_rank *rank);
/* Leaves the group before closing, so that the memory is free when the next measurement starts. */
void zd_rank_deinit(struct zd_rank *rank);

/* Connects the parent. Its errors name the status. */
int zd_bench_connect(const char *socket_path, zerod_client **client, struct zd_err *err)
        __attribute__((warn_unused_result));

/* The daemon's own status. */
struct zd_bench_status {
	char daemon[48], backend[16];
	uint32_t devices, pid, client_pid; /* as the daemon sees them */
	uint64_t resident_bytes;           /* outside segments */
};

int zd_bench_status(zerod_client *client, struct zd_bench_status *status) __attribute__((warn_unused_result));

/* ---- Ranks and a baseline in rounds (rounds.c) --------------------------------------------------------- */

struct zd_bandwidth_row {
	uint64_t bytes, count;
	struct zd_stats time, baseline; /* ns */
	uint64_t wrong;
};

struct zd_round_ops {
	/* Makes a rank that has joined and registered its unit. Called once before the rounds. */
	void (*begin)(struct zd_rank *rank);
	/* Makes a timed round, on all ranks at once. */
	void (*round)(struct zd_rank *rank, struct zd_interval *span);
	/* Makes a round whose contents are compared, element by element. Returns how many are wrong. */
	uint64_t (*check)(struct zd_rank *rank, const struct zd_bench *bench, uint64_t numel);
	/* Returns the bytes of memory that all members share. It is zeroed. */
	uint64_t (*memory_bytes)(const struct zd_bench *bench, uint64_t numel);
	/* Does the work of the device's executor in this memory. */
	void (*baseline)(const struct zd_bench *bench, uint64_t numel, uint32_t device, char *memory);
};

/* Measures and reports each size of the options. */
int zd_rounds_run(struct zd_bench *bench, const struct zd_round_ops *ops, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Returns the number of devices that the ranks use, which is the number of a baseline's processes. */
uint32_t zd_bench_devices_used(const struct zd_bench *bench);
/* Returns the elements of a unit of so many bytes. Sizes of the options follow each other by their factor. */
uint64_t zd_bench_numel(const struct zd_bench *bench, uint64_t bytes);
/* Returns the elements of a shard with padding, like zerod_unit_register(). */
uint64_t zd_bench_shard_numel(const struct zd_bench *bench, uint64_t numel);

/* ---- Contents (pattern.c) ------------------------------------------------------------------------------ */

/* Fills elements with any bits: `first` is the index of the first element in the unit. */
void zd_pattern_fill_bits(void *data, enum zerod_dtype dtype, uint64_t first, uint64_t numel, uint64_t seed);
uint64_t zd_pattern_count_wrong_bits(const void *data, enum zerod_dtype dtype, uint64_t numel, uint64_t seed);

/* Fills a rank's gradient with numbers between -1 and 1. */
void zd_pattern_fill_gradient(void *data, enum zerod_dtype dtype, uint64_t numel, uint32_t rank);
/* Counts the elements of `sum` that are not, bit for bit, the float32 sum of the ranks' gradients in rank
 * order: first of the ranks of each daemon, then of these sums. */
uint64_t zd_pattern_count_wrong_sums(const float *sum, enum zerod_dtype dtype, uint64_t first, uint64_t numel,
                                     uint32_t ranks, uint32_t node_ranks);

/* Returns an element as float32. */
float zd_pattern_load(const void *data, enum zerod_dtype dtype, uint64_t index);

/* ---- Output (report.c) --------------------------------------------------------------------------------- */

struct zd_latency_row {
	const char *what; /* "gather of an available unit" */
	const char *baseline_what;
	uint64_t bytes; /* 0: does not apply */
	struct zd_stats time, baseline;
};

void zd_report_begin(const struct zd_bench *bench);
void zd_report_bandwidth(struct zd_bench *bench, const struct zd_bandwidth_row *row);
void zd_report_latency(const struct zd_bench *bench, const struct zd_latency_row *row);
/* Prints a single figure with its unit. */
void zd_report_figure(const struct zd_bench *bench, const char *what, double value, const char *unit);
/* Prints three figures: p50, min and max. `ns_each`: ns of the unit. */
void zd_report_stats(const struct zd_bench *bench, const struct zd_stats *stats, const char *what,
                     double ns_each, const char *unit);
/* Prints that a figure does not exist, and why. */
void zd_report_note(const struct zd_bench *bench, const char *what, const char *why);
/* Adds a row's bandwidth to the average. */
void zd_report_busbw(struct zd_bench *bench, double gb_s);
/* Prints a figure that zerod promises. */
void zd_report_target(const struct zd_bench *bench, const char *what, double measured, bool at_most,
                      double bound);
/* Returns whether a target was missed. */
bool zd_report_missed(const struct zd_bench *bench);
void zd_report_end(const struct zd_bench *bench);

/* ---- A private daemon (private.c)
 * ------------------------------------------------------------------------ */

struct zd_private {
	pid_t pid; /* 0: none */
	char dir[64];
	char socket_path[96];
};

struct zd_private_options {
	bool cuda;                 /* on GPUs, else on the host backend */
	uint32_t first_gpu, ngpus; /* 0: on all GPUs */
	const char *nccl_path;     /* NULL: the daemon's own choice */
	uint32_t devices;          /* emulated ones */
	uint64_t arena_bytes;      /* of each device */
	uint64_t host_arena_bytes; /* 0: no host memory */
};

/* Starts `zerod` from this program's own folder or otherwise from PATH, and waits until it serves. All
 * daemons of this process have one key, so that their ranks can form one group. */
int zd_private_start(const struct zd_private_options *options, struct zd_private *daemon, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Ends the daemon and removes its folder. A zeroed struct is allowed. */
void zd_private_stop(struct zd_private *daemon);

/* ---- Measurements (op_*.c) ----------------------------------------------------------------------------- */

int zd_bench_gather(struct zd_bench *bench, struct zd_err *err) __attribute__((warn_unused_result));
int zd_bench_reduce(struct zd_bench *bench, struct zd_err *err) __attribute__((warn_unused_result));
int zd_bench_rpc(struct zd_bench *bench, struct zd_err *err) __attribute__((warn_unused_result));
/* Measures on GPUs (cuda_run.c). */
int zd_bench_cuda(struct zd_bench *bench, struct zd_err *err) __attribute__((warn_unused_result));
/* Counts the GPUs. This process then still does not use CUDA. */
int zd_bench_count_gpus(uint32_t *count, struct zd_err *err) __attribute__((warn_unused_result));
/* Measures steps on emulated devices (op_step.c). */
int zd_bench_step(struct zd_bench *bench, struct zd_err *err) __attribute__((warn_unused_result));
/* Starts two daemons. */
int zd_bench_scale(struct zd_bench *bench, struct zd_err *err) __attribute__((warn_unused_result));

#endif
