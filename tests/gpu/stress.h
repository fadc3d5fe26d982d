/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress.h - random gathers, releases, updates and persistence over many units and ranks, every gathered byte
 * compared on the GPU.
 *
 * The parent starts a daemon and a trainer process for each rank, and never calls CUDA. A trainer works in
 * rounds. In each it writes and publishes some of the units, the same ones on all ranks, then gathers units
 * at random, at exactly the version that it has published itself, and compares each copy on one or two
 * streams before it releases it; some streams are held up in between. Nobody waits for anybody, so ranks are
 * rounds apart, and a version that another rank has overwritten already is STALE_VERSION: that, and no other
 * bytes than those of that version.
 *
 * With --kill trainers are killed at any time and started again. The group is durable and has shadows: all
 * ranks go back to the last commit, and on from there.
 */
#ifndef ZD_TESTS_GPU_STRESS_H
#define ZD_TESTS_GPU_STRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <zerod.h>

#include "base/err.h"
#include "client/zerobench/cuda_gpu.h"

#define STRESS_RANKS 16
#define STRESS_UNITS 64

#define STRESS_SEGMENT_BYTES (2ull << 20) /* strict clients' copies are multiples of it */

struct stress_options {
	uint32_t seconds, ranks, devices, units, load_side;
	uint64_t max_bytes;   /* of a unit */
	uint64_t arena_bytes; /* of a device */
	uint64_t seed;
	bool kill, strict;
	const char *cublas_path;
};

/* A unit's properties, the same in all processes. */
struct stress_unit {
	char name[32];
	enum zerod_dtype dtype;
	uint64_t numel, padded_bytes;
	uint64_t gathered_bytes; /* what a copy takes: a strict client's fills a segment */
	uint32_t slot;
};

/* Figures of all ranks; also of those that were killed. */
struct stress_counts {
	_Atomic uint64_t rounds, gathers, compared_bytes, stale, publishes, set_backs, kills, starts;
	_Atomic uint64_t wrong_words,
	        dropped_bytes; /* dropped: compared, but perhaps behind an aborted wait */
};

struct stress_shared {
	struct stress_counts counts;
	/* The highest round that any rank has begun, and whether no higher one may be begun any more: decided
	 * in one step, so that all ranks end with the same round. */
	_Atomic uint64_t round;
	_Atomic bool failed;
	char failure[600];  /* of the first that failed */
	char mismatch[300]; /* the first one */
};

struct stress {
	struct stress_options options;
	const char *socket_path;
	struct stress_unit units[STRESS_UNITS];
	char device_names[STRESS_RANKS][64];
	struct stress_shared *shared;
};

/* ---- The plan (stress_plan.c) -------------------------------------------------------------------------- */

uint64_t stress_random(uint64_t *state);
/* Contents of a unit at a version. */
uint64_t stress_seed(const struct stress *stress, uint32_t unit, uint64_t version);
/* Does the round update the unit. */
bool stress_updates(const struct stress *stress, uint64_t round, uint32_t unit);
/* Whether the round ends with a commit. */
bool stress_commits(const struct stress *stress, uint64_t round);
void stress_plan_units(struct stress *stress);
/* Whether a rank may begin the round. */
bool stress_enter_round(const struct stress *stress, uint64_t round);
void stress_end_rounds(const struct stress *stress);
/* Keeps the first failure's words, for the parent. Returns `status`. */
int stress_fail(const struct stress *stress, uint32_t rank, int status, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

/* ---- Kernels (stress_kernels.c) ------------------------------------------------------------------------ */

#define STRESS_FOUND_WORDS 3

struct stress_kernels {
	const struct zd_gpu *gpu;
	struct CUmod_st *module;
	struct CUfunc_st *fill, *compare, *delay;
	struct zd_gpu_memory found; /* STRESS_FOUND_WORDS, of all comparisons since the last look */
};

int stress_kernels_load(struct stress_kernels *kernels, const struct zd_gpu *gpu, struct zd_err *err);
void stress_kernels_unload(struct stress_kernels *kernels);
/* `first_word` of the unit is at `at`. */
int stress_fill(const struct stress_kernels *kernels, struct CUstream_st *stream, zd_cu_ptr at,
                uint64_t first_word, uint64_t words, uint64_t true_bytes, uint64_t seed, struct zd_err *err);
int stress_compare(const struct stress_kernels *kernels, struct CUstream_st *stream, zd_cu_ptr at,
                   uint64_t words, uint64_t true_bytes, uint64_t seed, struct zd_err *err);
int stress_delay(const struct stress_kernels *kernels, struct CUstream_st *stream, uint64_t ns,
                 struct zd_err *err);
/* How many words were wrong since the last look: to be called when all streams have run. */
int stress_look(const struct stress_kernels *kernels, uint64_t found[STRESS_FOUND_WORDS], struct zd_err *err);

/* ---- A trainer (stress_trainer.c, stress_gathers.c) ---------------------------------------------------- */

#define STRESS_STREAMS 3
#define STRESS_HELD    24

/* A copy that this rank holds. */
struct stress_lease {
	uint32_t unit;
	char tag[8];
	uint32_t streams; /* a bit for each that uses it */
};

struct trainer {
	const struct stress *stress;
	uint32_t rank;
	uint64_t random;
	struct zd_err err;
	struct zd_gpu gpu;
	struct stress_kernels kernels;
	struct zd_gemm *gemm;
	zerod_client *client;
	zerod_group *group;
	struct CUstream_st *cu_streams[STRESS_STREAMS];
	zerod_stream *streams[STRESS_STREAMS];
	struct {
		zerod_unit *unit;
		struct zerod_shard shard;
		uint64_t version;
		void *address; /* of a slot's unit, once it was gathered */
		bool persistent;
	} units[STRESS_UNITS];
	struct stress_lease held[STRESS_HELD];
	uint32_t nheld;
	uint64_t held_bytes, held_limit;
	uint64_t unlooked_bytes; /* compared since the last look */
	bool lost;               /* a peer, since the last whole round */
};

/* To its end: an exit code. */
int stress_trainer_main(const struct stress *stress, uint32_t rank);

/* Writes and publishes what the round updates. */
int stress_update(struct trainer *trainer, uint64_t round) __attribute__((warn_unused_result));
/* Some gathers and releases. */
int stress_gathers(struct trainer *trainer) __attribute__((warn_unused_result));
/* Releases what is held: all of it, or of the units that the round updates. */
int stress_release_all(struct trainer *trainer) __attribute__((warn_unused_result));
int stress_release_updated(struct trainer *trainer, uint64_t round) __attribute__((warn_unused_result));
/* Waits for all streams and counts what the comparisons found. */
int stress_harvest(struct trainer *trainer) __attribute__((warn_unused_result));
/* A call of libzerod failed: keeps its words. */
int stress_check(struct trainer *trainer, int status, const char *call) __attribute__((warn_unused_result));

#endif
