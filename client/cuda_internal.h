/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_internal.h - what the files that speak to the driver share.
 *
 * Calls are made in a context that is entered for them and left again, with the thread's stream-capture mode
 * relaxed, so that they neither depend on what the caller has made current nor end a capture that runs
 * elsewhere. Fence pages are host memory that is registered once, for all contexts of this process.
 */
#ifndef ZD_CLIENT_CUDA_INTERNAL_H
#define ZD_CLIENT_CUDA_INTERNAL_H

#include "client/cuda.h"
#include "client/cuda_kernels.h"
#include "client/stream.h"
#include "driver/driver.h"

#define MASK_BITS 64u

/* The daemon's counters that GPU streams were told to wait for, until they were seen to have passed. */
struct zc_open_waits {
	uint64_t mask[ZD_TIMELINES / MASK_BITS]; /* of timelines */
	uint64_t value[ZD_TIMELINES];            /* the highest; of those in the mask */
};

struct zc_carry;

/* Strict clients: values that GPUs will write, in the order in which they were enqueued, and the thread that
 * carries them over to the daemon's sight (cuda_strict.c). */
struct zc_carrier {
	pthread_mutex_t lock; /* all that follows */
	pthread_cond_t changed;
	TAILQ_HEAD(, zc_carry) queue;
	bool stop;
	bool running; /* with cuda_lock */
	pthread_t thread;
};

#define ZC_SUM_STREAMS 4u /* of a GPU */
_Static_assert(ZC_SUM_STREAMS <= ZC_REDUCE_LANES, "each has a lane of its own");

/* Sums that follow each other on a stream. */
struct zc_sums {
	struct CUstream_st *stream;
	uint32_t timeline;
	uint64_t value; /* the last taken */
};

struct zc_gpu {
	int device; /* the driver's number */
	char name[ZD_CUDA_UUID_TEXT];
	struct CUctx_st *context; /* the primary one, retained */
	zd_cu_ptr gpu_page;       /* as its streams name it */
	uint32_t timeline;        /* of `copies` */
	atomic_uint_fast64_t copied;
	struct zc_kernels kernels; /* in `context` */
	/* Sums; where the daemon asks for none, 0. The worker's thread's: */
	zd_cu_ptr results, daemon_page; /* that page and the daemon's, as this GPU names them */
	struct zc_sums sums[ZC_SUM_STREAMS];
	uint32_t next_sums;
	/* With the client's lock: */
	bool joined;
	uint32_t index;             /* the daemon's number, once joined */
	struct CUstream_st *copies; /* of own slices; NULL before the first */
};

struct zc_cuda {
	const struct zd_cuda *driver;
	atomic_uint ngpus; /* those below it are fixed, but for what is said above */
	struct zc_gpu gpus[ZD_MAX_DEVICES];
	bool registered; /* the fence pages; with cuda_lock */
	/* Values behind copies, the last of each timeline that has one. Set with the client's lock. */
	atomic_uint_fast64_t has_copied[ZD_TIMELINES / MASK_BITS];
	atomic_uint_fast64_t copied[ZD_TIMELINES];
	struct zc_open_waits left; /* by streams whose handles have gone; with the client's lock */
	struct zc_carrier carrier;
	bool watching; /* with cuda_lock */
	pthread_t watcher;
	int stop; /* an eventfd that ends the watcher */
};

/* ---- cuda_device.c ------------------------------------------------------------------------------------- */

/* Undone by zc_cuda_leave(), whatever zc_cuda_enter() returned. */
struct zc_cuda_scope {
	bool pushed;
	int mode;
};
int zc_cuda_enter(const struct zd_cuda *driver, struct CUctx_st *context, struct zc_cuda_scope *scope)
        __attribute__((warn_unused_result));
/* To give something back: also if the context is lost. */
void zc_cuda_enter_last(const struct zd_cuda *driver, struct CUctx_st *context, struct zc_cuda_scope *scope);
void zc_cuda_leave(const struct zd_cuda *driver, const struct zc_cuda_scope *scope);

/* Loads the driver, once. */
int zc_cuda_load(struct zerod_client *client, struct zc_cuda **cuda, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Without a lock: the driver's device is ours from here to the client's end. */
int zc_gpu_open(struct zerod_client *client, struct zc_cuda *cuda, int device, struct zc_gpu **gpu,
                struct zd_err *err) __attribute__((warn_unused_result));
/* With the client's lock: the GPU that the daemon calls so; NULL when it was not joined. */
struct zc_gpu *zc_gpu_find(struct zc_cuda *cuda, uint32_t index);

/* Does every GPU's context work? One that is lost writes no counter any more. */
bool zc_cuda_alive(const struct zc_cuda *cuda);

/* ---- cuda_copy.c --------------------------------------------------------------------------------------- */

/* With the client's lock: the fence is behind a copy. */
void zc_copied_note(struct zc_cuda *cuda, struct zc_fence fence);

/* ---- cuda_segment.c ------------------------------------------------------------------------------------ */

/* At the client's end. */
void zc_cuda_segments_unmap(struct zerod_client *client, struct zc_cuda *cuda);

/* ---- cuda_strict.c ------------------------------------------------------------------------------------- */

/*
 * A value that a GPU's stream is to write comes in two steps, the first of which may fail: *made holds (NULL:
 * nothing) until then. Nothing, and *made as it was, in a client that is not strict.
 */
int zc_carry_new(struct zerod_client *client, const struct zc_hold_list *holds, struct zc_carry **made,
                 struct zd_err *err) __attribute__((warn_unused_result));
/* With the client's lock: holds what the copies write. */
int zc_carry_copies(struct zerod_client *client, const struct zc_copy *copies, unsigned count,
                    struct zc_carry **made, struct zd_err *err) __attribute__((warn_unused_result));
/* The write of `fence` is enqueued, or, with rc != 0, never will be. In the order in which a timeline's
 * values were taken. NULL is allowed. */
void zc_carry_put(struct zerod_client *client, struct zc_carry *carry, struct zc_fence fence, int rc);
/* With or without the client's lock: blocks until nothing is held for what GPUs have written by now. */
void zc_carry_settle(struct zerod_client *client);
void zc_carrier_init(struct zc_carrier *carrier);
/* With cuda_lock. */
int zc_carrier_start(struct zerod_client *client, struct zc_carrier *carrier, struct zd_err *err)
        __attribute__((warn_unused_result));
/* At the client's end, and in a forked child, where its thread does not exist. */
void zc_carrier_stop(struct zerod_client *client, struct zc_carrier *carrier);
void zc_carrier_forget(struct zerod_client *client, struct zc_carrier *carrier);

/* ---- cuda_work.c --------------------------------------------------------------------------------------- */

/* In the GPU's context, when it is opened, so that nothing is made later that may wait for the GPU. */
int zc_sums_open(struct zerod_client *client, const struct zd_cuda *driver, struct zc_gpu *gpu,
                 struct zd_err *err) __attribute__((warn_unused_result));
/* Has any of the GPU's sums not ended, as far as the page shows? */
bool zc_sums_are_open(const uint64_t *page, const struct zc_gpu *gpu);
/* In the GPU's context: nothing of it runs any more. Also for one that was half opened. */
void zc_sums_close(const struct zd_cuda *driver, struct zc_gpu *gpu);

/* ---- cuda_waits.c -------------------------------------------------------------------------------------- */

static inline uint64_t zc_counter_load(const uint64_t *page, uint32_t timeline)
{
	return __atomic_load_n(&page[timeline], __ATOMIC_ACQUIRE);
}

void zc_open_waits_add(struct zc_open_waits *waits, uint32_t timeline, uint64_t value);
/* Does one of them stand at an abort? Forgets those that have passed. */
bool zc_open_waits_aborted(struct zc_open_waits *waits, const struct zerod_client *client);
void zc_open_waits_reset(struct zc_open_waits *waits);
/* Without the client's lock: the stream's handle goes, its waits stay the client's. */
void zc_open_waits_leave(struct zerod_client *client, const struct zc_open_waits *waits);

/* ---- cuda_watch.c -------------------------------------------------------------------------------------- */

/* With cuda_lock. */
int zc_watch_start(struct zerod_client *client, struct zc_cuda *cuda, struct zd_err *err)
        __attribute__((warn_unused_result));
void zc_watch_stop(struct zc_cuda *cuda);
/* In a forked child, where its thread does not exist. */
void zc_watch_forget(struct zc_cuda *cuda);
/* Frees every wait of ours; for when there is no daemon to do it. */
void zc_waits_abort(struct zerod_client *client);

#endif
