/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_internal.h - declarations that the files that call the driver share.
 *
 * The library enters a context for its calls of the driver and leaves it afterwards, with the thread's
 * stream-capture mode relaxed. So its calls neither depend on the caller's current context nor end a capture
 * in another stream. Fence pages are host memory that is registered once, for all contexts of this process.
 */
#ifndef ZD_CLIENT_CUDA_INTERNAL_H
#define ZD_CLIENT_CUDA_INTERNAL_H

#include "client/cuda.h"
#include "client/cuda_kernels.h"
#include "client/stream.h"
#include "driver/driver.h"

#define MASK_BITS 64u

/* The daemon's counters for which GPU streams wait, until the library has seen them pass. */
struct zc_open_waits {
	uint64_t mask[ZD_TIMELINES / MASK_BITS]; /* of timelines */
	uint64_t value[ZD_TIMELINES];            /* the highest value awaited; of timelines in the mask */
};

struct zc_forwarded_fence;

/* Strict clients: values that GPUs will write, in the order in which they were enqueued, and the thread that
 * copies them to the page that the daemon reads (cuda_strict.c). */
struct zc_fence_forwarder {
	pthread_mutex_t lock; /* all members below */
	pthread_cond_t changed;
	TAILQ_HEAD(, zc_forwarded_fence) queue;
	bool stop;
	bool running; /* with cuda_lock */
	pthread_t thread;
};

#define ZC_SUM_STREAMS 4u /* of a GPU */
_Static_assert(ZC_SUM_STREAMS <= ZC_REDUCE_LANES, "each has a place of its own in the kernel's state");

/* A stream on which sums run in order. */
struct zc_sum_stream {
	struct CUstream_st *stream;
	uint32_t timeline;
	uint64_t value; /* the last used */
};

struct zc_gpu {
	int device; /* the driver's number */
	char name[ZD_CUDA_UUID_TEXT];
	struct CUctx_st *context; /* the primary one, retained */
	zd_cu_ptr gpu_page;       /* the page's address for its streams */
	uint32_t timeline;        /* of `copies` */
	atomic_uint_fast64_t copied;
	struct zc_kernels kernels; /* in `context` */
	/* For sums; 0 where the daemon requests none. Of the worker's thread: */
	zd_cu_ptr results, daemon_page; /* addresses of the result page and the daemon's page on this GPU */
	struct zc_sum_stream sum_streams[ZC_SUM_STREAMS];
	uint32_t next_sum_stream;
	/* With the client's lock: */
	bool joined;
	uint32_t index;             /* the daemon's number, once joined */
	struct CUstream_st *copies; /* NULL before the first */
};

struct zc_cuda {
	const struct zd_cuda *driver;
	atomic_uint ngpus; /* gpus[] below it are fixed, except as noted above */
	struct zc_gpu gpus[ZD_MAX_DEVICES];
	bool registered; /* the fence pages; with cuda_lock */
	/* The last value behind a copy, of each timeline that has one. Set with the client's lock. */
	atomic_uint_fast64_t has_copied[ZD_TIMELINES / MASK_BITS];
	atomic_uint_fast64_t copied[ZD_TIMELINES];
	struct zc_open_waits left; /* of streams whose handles were freed; with the client's lock */
	struct zc_fence_forwarder forwarder;
	bool watching; /* with cuda_lock */
	pthread_t watcher;
	int stop; /* an eventfd that ends the watcher */
};

/* ---- cuda_device.c ------------------------------------------------------------------------------------- */

/* The caller's state, which zc_cuda_leave() restores; call it also after a failed zc_cuda_enter(). */
struct zc_cuda_scope {
	bool pushed;
	int mode;
};
int zc_cuda_enter(const struct zd_cuda *driver, struct CUctx_st *context, struct zc_cuda_scope *scope)
        __attribute__((warn_unused_result));
/* Enters a context, also a lost one, for calls that release resources. */
void zc_cuda_enter_last(const struct zd_cuda *driver, struct CUctx_st *context, struct zc_cuda_scope *scope);
void zc_cuda_leave(const struct zd_cuda *driver, const struct zc_cuda_scope *scope);

/* Loads the driver, once. */
int zc_cuda_load(struct zerod_client *client, struct zc_cuda **cuda, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Retains the device's primary context until the client's end. Without a lock. */
int zc_gpu_open(struct zerod_client *client, struct zc_cuda *cuda, int device, struct zc_gpu **gpu,
                struct zd_err *err) __attribute__((warn_unused_result));
/* Finds the GPU with the daemon's index; NULL: it was not joined. With the client's lock. */
struct zc_gpu *zc_gpu_find(struct zc_cuda *cuda, uint32_t index);

/* Whether every GPU's context works. A lost context writes no counter any more. */
bool zc_cuda_alive(const struct zc_cuda *cuda);

/* ---- cuda_copy.c --------------------------------------------------------------------------------------- */

/* Records that the fence is behind a copy. With the client's lock. */
void zc_copied_note(struct zc_cuda *cuda, struct zc_fence fence);

/* ---- cuda_segment.c ------------------------------------------------------------------------------------ */

/* Unmaps all segments at the client's end. */
void zc_cuda_segments_unmap(struct zerod_client *client, struct zc_cuda *cuda);

/* ---- cuda_strict.c ------------------------------------------------------------------------------------- */

/*
 * Announces a value that a GPU's stream will write: the first of two steps, which may fail. *made keeps
 * `holds` (unless NULL) until the value is written. Does nothing, and leaves *made, in a client that is not
 * strict.
 */
int zc_forwarded_fence_new(struct zerod_client *client, const struct zc_hold_list *holds,
                           struct zc_forwarded_fence **made, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The same for copies, with holds on the segments that they write. With the client's lock. */
int zc_forwarded_fence_new_for_copies(struct zerod_client *client, const struct zc_copy *copies,
                                      unsigned count, struct zc_forwarded_fence **made, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Makes the second step: the write of `fence` is enqueued, or, with rc != 0, never will be. Calls are in the
 * order of a timeline's values. NULL is allowed. */
void zc_forwarded_fence_enqueue(struct zerod_client *client, struct zc_forwarded_fence *forwarded,
                                struct zc_fence fence, int rc);
/* Blocks until the holds of all values that GPUs have written by now are dropped. With or without the
 * client's lock. */
void zc_fence_forwarder_settle(struct zerod_client *client);
void zc_fence_forwarder_init(struct zc_fence_forwarder *forwarder);
/* Starts the thread. With cuda_lock. */
int zc_fence_forwarder_start(struct zerod_client *client, struct zc_fence_forwarder *forwarder,
                             struct zd_err *err) __attribute__((warn_unused_result));
/* Stop the thread at the client's end; free the state in a forked child, where the thread does not exist. */
void zc_fence_forwarder_stop(struct zerod_client *client, struct zc_fence_forwarder *forwarder);
void zc_fence_forwarder_forget(struct zerod_client *client, struct zc_fence_forwarder *forwarder);

/* ---- cuda_offloaded_sum.c ------------------------------------------------------------------------------ */

/* Creates the streams for sums, in the GPU's context, when the GPU is opened: later, creating streams might
 * wait for the GPU. */
int zc_sum_streams_open(struct zerod_client *client, const struct zd_cuda *driver, struct zc_gpu *gpu,
                        struct zd_err *err) __attribute__((warn_unused_result));
/* Whether a sum of the GPU has not ended, as far as the page shows. */
bool zc_sum_streams_are_busy(const uint64_t *page, const struct zc_gpu *gpu);
/* Destroys these streams, in the GPU's context, when no sum runs any more. Also after a failed
 * zc_sum_streams_open(). */
void zc_sum_streams_close(const struct zd_cuda *driver, struct zc_gpu *gpu);

/* ---- cuda_waits.c -------------------------------------------------------------------------------------- */

static inline uint64_t zc_counter_load(const uint64_t *page, uint32_t timeline)
{
	return __atomic_load_n(&page[timeline], __ATOMIC_ACQUIRE);
}

void zc_open_waits_add(struct zc_open_waits *waits, uint32_t timeline, uint64_t value);
/* Whether one of the waits was aborted. Forgets the waits that have passed. */
bool zc_open_waits_aborted(struct zc_open_waits *waits, const struct zerod_client *client);
void zc_open_waits_reset(struct zc_open_waits *waits);
/* Adds the waits of a stream, whose handle is freed, to the client's. Without the client's lock. */
void zc_open_waits_leave(struct zerod_client *client, const struct zc_open_waits *waits);

/* ---- cuda_watch.c -------------------------------------------------------------------------------------- */

/* Starts the watcher. With cuda_lock. */
int zc_watch_start(struct zerod_client *client, struct zc_cuda *cuda, struct zd_err *err)
        __attribute__((warn_unused_result));
void zc_watch_stop(struct zc_cuda *cuda);
/* Forgets the watcher in a forked child, where its thread does not exist. */
void zc_watch_forget(struct zc_cuda *cuda);
/* Frees every wait of the client after the end of the daemon, which cannot free them any more. */
void zc_waits_abort(struct zerod_client *client);

#endif
