/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_context.h - the GPUs of a client, for the files that call the driver.
 *
 * The library enters a context for its calls of the driver and leaves it afterwards, with the thread's
 * stream-capture mode relaxed. Its calls therefore neither depend on the caller's current context nor end a
 * capture in another stream. Fence pages are host memory that is registered once, for all contexts of this
 * process.
 */
#ifndef ZD_CLIENT_CUDA_CONTEXT_H
#define ZD_CLIENT_CUDA_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/lib/base/client.h"
#include "client/lib/compute/cuda_kernels.h"
#include "driver/driver.h"

#define MASK_BITS 64u

/* The daemon's counters for which GPU streams wait, until the library has seen them pass. */
struct zc_open_waits {
	uint64_t mask[ZD_TIMELINES / MASK_BITS]; /* of timelines */
	uint64_t value[ZD_TIMELINES];            /* the highest awaited value, of timelines in the mask */
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
	/* For sums; 0 if the daemon requests none. Of the worker's thread: */
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
	/* The last value after a copy, of each timeline that has one. Set with the client's lock. */
	atomic_uint_fast64_t has_copied[ZD_TIMELINES / MASK_BITS];
	atomic_uint_fast64_t copied[ZD_TIMELINES];
	struct zc_open_waits left; /* of streams whose handles were freed; with the client's lock */
	struct zc_fence_forwarder forwarder;
	bool watching; /* with cuda_lock */
	pthread_t watcher;
	int stop; /* an eventfd that ends the watcher */
};

/* ---- cuda_context.c ------------------------------------------------------------------------------------ */

/* The caller's state, which zc_cuda_leave() restores. Call it also after a failed zc_cuda_enter(). */
struct zc_cuda_scope {
	bool pushed;
	int mode;
};
int zc_cuda_enter(const struct zd_cuda *driver, struct CUctx_st *context, struct zc_cuda_scope *scope)
        __attribute__((warn_unused_result));
/* Enters a context, also a lost one, for calls that release resources. */
void zc_cuda_enter_last(const struct zd_cuda *driver, struct CUctx_st *context, struct zc_cuda_scope *scope);
void zc_cuda_leave(const struct zd_cuda *driver, const struct zc_cuda_scope *scope);
/* Returns the GPU with the daemon's index, or NULL if it was not joined. With the client's lock. */
struct zc_gpu *zc_gpu_find(struct zc_cuda *cuda, uint32_t index);

static inline uint64_t zc_counter_load(const uint64_t *page, uint32_t timeline)
{
	return __atomic_load_n(&page[timeline], __ATOMIC_ACQUIRE);
}

#endif
