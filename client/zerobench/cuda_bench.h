/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_bench.h - gathers and reductions on GPUs: the data that the processes of a measurement share.
 *
 * A team has one process per rank, the trainers, and one that pushes the same bytes without zerod. In an
 * iteration all ranks gather through the daemon, then by NCCL in place in the same buffers, and then the
 * pusher pushes. Other work of the machine therefore affects all three equally. A time lasts from the host's
 * call until the CPU sees a mark that the rank's stream has written after the gather. Between the gathers the
 * first and last element of every slice are compared, and these elements of other ranks' slices are
 * overwritten: a gather that moved nothing is detected.
 *
 * Processes do not sleep at the barriers: a process that wakes up 50 us late would measure that.
 */
#ifndef ZD_BENCH_CUDA_BENCH_H
#define ZD_BENCH_CUDA_BENCH_H

#include "client/zerobench/bench.h"
#include "client/zerobench/cuda_gpu.h"

#define ZD_CUDA_MAX_RANKS   16
#define ZD_CUDA_MAX_ROWS    32
#define ZD_CUDA_BATCH       32         /* units of the batch */
#define ZD_CUDA_BATCH_BYTES (1u << 20) /* each */
#define ZD_CUDA_CORKED      16 /* units whose requests are sent together to measure the trainer's CPU time */
/* The pace of gathers of ZD_CUDA_BATCH MiB: 64 GB per second, which is that of a step of half a second for a
 * model of 16 GB. */
#define ZD_CUDA_PACE_NS 500000u
#define ZD_CUDA_PAUSELESS_BYTES                                                                              \
	(64u << 20) /* the unit that is gathered without pause, if sizes go that far */

#define ZD_CUDA_SKEW_BYTES                                                                                   \
	(64u << 20) /* the unit that is gathered while a rank is late, or the largest size */
#define ZD_CUDA_LATE_US 5000u

#define ZD_CUDA_BUCKETS        4u           /* of a backward, in turn */
#define ZD_CUDA_BUCKET_BYTES   (64u << 20)  /* each, unless the backward or the largest size is less */
#define ZD_CUDA_BESIDE_BYTES   (512u << 20) /* of a backward during timed products */
#define ZD_CUDA_MOST_BACKWARDS 10u          /* that are timed */

/* ---- Shared data
 * ----------------------------------------------------------------------------------------- */

struct zd_spin_barrier {
	_Atomic uint32_t arrived, passed;
};

enum zd_cuda_way { ZD_CUDA_ZEROD, ZD_CUDA_NCCL, ZD_CUDA_PUSHES, ZD_CUDA_WAYS };
/* The time of the host's calls in a gather by zerod: samples in addition to those of the ways. */
#define ZD_CUDA_CALLS ZD_CUDA_WAYS

/* ns, over ranks and iterations; `slowest_p50`: of the slowest rank of each iteration. */
struct zd_cuda_time {
	struct zd_stats each;
	uint64_t slowest_p50;
};

enum zd_cuda_backward_part {
	ZD_CUDA_BACKWARD_ZEROD, /* from the first reserve to the backward's end */
	ZD_CUDA_BACKWARD_NCCL,
	ZD_CUDA_BACKWARD_BEGIN, /* of zerod's: the target is bound */
	ZD_CUDA_BACKWARD_PARTS,
};

/* Rank 0's gathers with all ranks on time, and with the last one late. */
enum zd_cuda_skew_way { ZD_CUDA_ON_TIME, ZD_CUDA_LATE, ZD_CUDA_LATE_NCCL, ZD_CUDA_SKEWS };

struct zd_cuda_row {
	uint64_t bytes, count, wrong;
	struct zd_cuda_time ways[ZD_CUDA_WAYS], calls;
};

struct zd_cuda_costs {
	/* The trainer's CPU time in ns for a gather and release, over all ranks. */
	double cpu_single_ns, cpu_corked_ns;
	struct zd_stats batch,
	        whole; /* ns: ZD_CUDA_BATCH units of ZD_CUDA_BATCH_BYTES, and one unit of the same total */
	struct zd_stats skew[ZD_CUDA_SKEWS]; /* ns */
	_Atomic uint64_t skew_wrong;
	/* While all ranks gather without pause. */
	double pauseless_gathers_s, pauseless_busbw;
	/* CPU time / time: without pause, with a gather every ZD_CUDA_PACE_NS, and idle. */
	double daemon_busy_cores, daemon_paced_cores, daemon_idle_cores;
	bool has_daemon_cpu;
	uint64_t product_ns[ZD_CUDA_WAYS];    /* median; the last is alone */
	uint64_t products;                    /* that were timed in each way, on a rank */
	uint64_t reduced_bytes[ZD_CUDA_WAYS]; /* during the products, on a rank */
	/* A whole backward, in ns of the slowest rank. */
	uint64_t backward_bytes, backward_wrong; /* bytes 0: not measured */
	uint32_t backward_buckets;
	struct zd_stats backward[ZD_CUDA_BACKWARD_PARTS];
};

struct zd_cuda_shared {
	struct zd_spin_barrier all, trainers; /* `all` includes the pusher's threads */
	struct zd_nccl_id nccl_id;
	struct zerod_unique_id unique_id;       /* of the group, if it spans daemons */
	char nccl_text[ZD_ERR_TEXT_BYTES + 16]; /* its version, or why it is missing */
	bool has_nccl;
	_Atomic uint32_t running; /* trainers that have products left, in this round */
	_Atomic uint64_t total;   /* added up by trainers */
	uint32_t nrows;
	struct zd_cuda_row rows[ZD_CUDA_MAX_ROWS];
	struct zd_cuda_costs costs;
	_Atomic uint64_t wrong;
	_Atomic uint64_t backward_ns[ZD_CUDA_BACKWARD_PARTS][ZD_CUDA_MOST_BACKWARDS];
	uint64_t samples[]; /* ns: [ways, calls][iters][ranks] */
};

struct zd_cuda_run {
	const struct zd_bench *bench;
	uint32_t ranks, devices; /* devices: those of the ranks */
	uint32_t node_ranks;     /* of one daemon */
	char names[ZD_CUDA_MAX_RANKS][64];
	uint64_t nsamples;
	struct zd_cuda_shared *shared;
	struct zd_step_samples *steps; /* of steps; NULL in other measurements */
};

/* Waits for all trainers and the pusher's threads. */
void zd_cuda_meet_all(const struct zd_cuda_run *run);
void zd_cuda_meet_trainers(const struct zd_cuda_run *run);
uint64_t *zd_cuda_samples(const struct zd_cuda_run *run, enum zd_cuda_way way, uint32_t iteration);
/* Computes the times of a way from all samples. Called by one process, when all samples are complete. */
void zd_cuda_time_of(const struct zd_cuda_run *run, enum zd_cuda_way way, struct zd_cuda_time *time);

/* ---- A trainer (cuda_trainer.c) ------------------------------------------------------------------------ */

struct zd_cuda_trainer {
	const struct zd_member *member;
	const struct zd_cuda_run *run;
	struct zd_rank rank; /* has no unit */
	struct zd_gpu gpu;
	zerod_stream *stream;      /* the GPU's, wrapped */
	struct zd_nccl_rank *nccl; /* NULL: none */
	struct zd_gemm *gemm;      /* NULL: idle */
	uint64_t mark;             /* last value */
	uint64_t called_ns;        /* when the host's calls for the last gather had returned */
	uint64_t *words;           /* pinned host memory, see cuda_words.c */
};

struct zd_cuda_unit {
	zerod_unit *unit;
	struct zerod_shard shard;
	uint64_t numel;
};

void zd_cuda_trainer_main(const struct zd_member *member, const struct zd_cuda_run *run);
/* Ends the process if a call of the driver has failed. `what` describes the call. */
void zd_cuda_check(const struct zd_cuda_trainer *trainer, int result, const char *what);
/* Registers a unit; its contents are not published. */
void zd_cuda_unit_register(const struct zd_cuda_trainer *trainer, const char *name, uint64_t numel,
                           struct zd_cuda_unit *unit);
/* Registers and publishes; contents by the pattern of seed 1. */
void zd_cuda_unit_new(const struct zd_cuda_trainer *trainer, const char *name, uint64_t numel,
                      struct zd_cuda_unit *unit);
void zd_cuda_unit_publish(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                          uint64_t seed);
void zd_cuda_unit_free(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit);
/* Waits until all work that is in the trainer's stream now has run. */
void zd_cuda_reach(struct zd_cuda_trainer *trainer);
/* Gathers the unit, makes the stream wait, and waits for the stream. Returns the buffer. */
zd_cu_ptr zd_cuda_gather(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit);
/* Releases the unit behind the trainer's stream; waits for the answer if `ticket` is NULL. */
void zd_cuda_release(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                     zerod_ticket *ticket);
/* NCCL gathers the unit in memory that zd_nccl_rank_place() returns. Waits for the stream. */
void zd_cuda_gather_by_nccl(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit, zd_cu_ptr data);

/* GPU memory of the trainer. */
void zd_cuda_memory_new(const struct zd_cuda_trainer *trainer, uint64_t bytes, struct zd_gpu_memory *memory);
/* Makes the rank's gradient of a unit with this shard, and writes it at `at`. */
void zd_cuda_fill_gradient(const struct zd_cuda_trainer *trainer, const struct zerod_shard *shard,
                           zd_cu_ptr at);
/* Reserves an entry of the bucket; if `gradient` is not 0, appends its copy into the entry. */
void zd_cuda_reserve(const struct zd_cuda_trainer *trainer, zerod_bucket *bucket,
                     const struct zd_cuda_unit *unit, zd_cu_ptr gradient, struct zerod_entry *entry);
/* Compares `numel` sums in the unit's target, from the `first` on, and returns how many are wrong. */
uint64_t zd_cuda_wrong_sums(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                            const struct zerod_target *target, uint64_t first, uint64_t numel);
/* The same of the first and the last sum. */
uint64_t zd_cuda_wrong_ends(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit);

/* ---- Parts of the measurement -------------------------------------------------------------------------- */

/* Measure a size, from its registration to its end (cuda_gather.c, cuda_reduce.c). */
void zd_cuda_measure_gathers(struct zd_cuda_trainer *trainer, uint64_t numel);
void zd_cuda_reduce_turns(struct zd_cuda_trainer *trainer, uint64_t numel);
/* Launches all products that were queued, so that their launches are not measured, then waits for the other
 * trainers and the pusher. */
void zd_cuda_meet(struct zd_cuda_trainer *trainer);
/* Records the times of an iteration, without the pusher's part. */
void zd_cuda_note(const struct zd_cuda_trainer *trainer, uint32_t iteration,
                  const uint64_t took_ns[ZD_CUDA_CALLS + 1]);
/* Makes a row of the size, when all its times are recorded. */
void zd_cuda_row_end(const struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit, uint64_t wrong);
/* Measures gathers while one rank is late (cuda_gather.c). */
void zd_cuda_skew(struct zd_cuda_trainer *trainer);
/* Measures CPU times, batches, and gathers without pause (cuda_costs.c). */
void zd_cuda_costs(struct zd_cuda_trainer *trainer);
/* Measures how much gathers, or reductions, slow the trainers' products (cuda_slowdown.c). */
void zd_cuda_slowdown(struct zd_cuda_trainer *trainer);
void zd_cuda_reduce_slowdown(struct zd_cuda_trainer *trainer);

/* Makes a backward's units, bucket and gradients, of `bytes` in all. Meanwhile products of `gemm` are queued.
 * NULL: no products. */
struct zd_cuda_backward;
struct zd_cuda_backward *zd_cuda_backward_new(struct zd_cuda_trainer *trainer, uint64_t bytes,
                                              struct zd_gemm *gemm);
void zd_cuda_backward_free(struct zd_cuda_backward *backward);
uint64_t zd_cuda_backward_bytes(const struct zd_cuda_backward *backward);
/* Makes the backward, from its start to the step that returns the target. */
void zd_cuda_backward_by_zerod(const struct zd_cuda_backward *backward);
void zd_cuda_backward_by_nccl(const struct zd_cuda_backward *backward);
/* Measures the options' backward, by zerod and by NCCL (cuda_backward.c). */
void zd_cuda_backwards(struct zd_cuda_trainer *trainer);

/* Synthetic steps (cuda_step.c): the trainer's part, and the whole measurement. */
void zd_cuda_step(struct zd_cuda_trainer *trainer);
int zd_cuda_steps(struct zd_cuda_run *run, struct zd_bench *bench, struct zd_err *err)
        __attribute__((warn_unused_result));

/* The pusher (cuda_pusher.c). */
void zd_cuda_pusher_main(const struct zd_member *member, const struct zd_cuda_run *run);

/* First and last elements of slices (cuda_words.c). */
void zd_cuda_words_new(struct zd_cuda_trainer *trainer);
void zd_cuda_words_free(struct zd_cuda_trainer *trainer);
/* Compares with the pattern of seed 1, and returns the number of wrong elements. */
uint64_t zd_cuda_words_check(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit,
                             zd_cu_ptr data);
/* Overwrites these elements of the other ranks' slices. */
void zd_cuda_words_spoil(struct zd_cuda_trainer *trainer, const struct zd_cuda_unit *unit, zd_cu_ptr data);

/* Output (cuda_report.c). */
void zd_cuda_report(struct zd_bench *bench, const struct zd_cuda_run *run);

#endif
