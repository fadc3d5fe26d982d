/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h - the library's interface to GPUs, without types of the driver.
 *
 * The driver is loaded when a client first joins a GPU, allocates on one, or wraps a stream. For each GPU
 * that it uses, the client then holds the primary context, which PyTorch and the runtime API also use. Both
 * fence pages are registered with the driver. One thread watches the connection (cuda_watch.c), and another
 * computes the sums that the daemon requests (offloaded_sum.c). A strict client has a third thread
 * (cuda_strict.c). For a client on emulated devices, or without an open GPU, these functions do nothing.
 */
#ifndef ZD_CLIENT_CUDA_H
#define ZD_CLIENT_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "client/lib/base/client.h"
#include "client/lib/base/fence.h"
#include "client/lib/segments/segment.h"

struct zc_conversion;
struct zc_fence_args;

/* ---- cuda_device.c ------------------------------------------------------------------------------------- */

/* Retains the primary contexts of the open GPUs, and with them the caller's streams, across zc_cuda_close()
 * and until zc_cuda_contexts_free(). Without a lock. */
int zc_cuda_contexts_keep(struct zerod_client *client, struct zd_err *err)
        __attribute__((warn_unused_result));
void zc_cuda_contexts_free(struct zerod_client *client);
/* Ends the use of GPUs: waits for the library's work, unmaps the segments and releases the contexts. Without
 * a lock. No stream has a handle any more. False: a GPU can still use the daemon's memory. */
bool zc_cuda_close(struct zerod_client *client) __attribute__((warn_unused_result));
/* Frees the memory in a forked child, without a call of the driver. */
void zc_cuda_forget(struct zerod_client *client);

/* ---- cuda_copy.c --------------------------------------------------------------------------------------- */

/* A copy within one GPU, or to host memory. */
struct zc_copy {
	struct zc_segment *segment; /* of `to`; host memory is registered */
	uint32_t device;            /* that copies to host memory */
	void *to;
	const void *from;
	uint64_t bytes;                         /* at `to` */
	const struct zc_conversion *conversion; /* converts the elements; NULL: copies the bytes */
	struct zc_fence copied;                 /* on the client's page; set once the copy is enqueued */
};

/* Whether the address is one of a GPU's memory. Without a lock. */
bool zc_cuda_is_gpu_address(const struct zerod_client *client, const void *at);
/* Whether the address is one of memory of the CPU that kernels cannot read: it is not registered with the
 * driver, and not all GPUs reach such memory. The client has a GPU. Without a lock. */
bool zc_cuda_is_unreachable(const struct zerod_client *client, const void *at);
/* Returns 0, or UNSUPPORTED with the reason why the GPU of a mapped segment cannot convert. With the lock. */
int zc_cuda_converts(const struct zc_segment *segment, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Enqueues copies on the library's streams, and a fence after the copies of each GPU. After an error all
 * copies count as not made. With the lock. */
int zc_cuda_copy(struct zerod_client *client, struct zc_copy *copies, unsigned count, struct zd_err *err)
        __attribute__((warn_unused_result));
/* These functions block the calling thread until these copies, or all copies, have ended, without a lock. The
 * copies wait only for the memory. */
int zc_cuda_copies_wait(struct zerod_client *client, const struct zc_fences *copied, struct zd_err *err)
        __attribute__((warn_unused_result));
int zc_cuda_copies_finish(struct zerod_client *client, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Adds a fence for each GPU on which copies have not ended. With or without the lock. */
int zc_cuda_copies_fence(struct zerod_client *client, struct zc_fence_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- cuda_offloaded_sum.c ------------------------------------------------------------------------------ */

/* A sum that the daemon requests, with inputs and target on one GPU: see message Sum in proto/zerod.proto. */
struct zc_offloaded_sum {
	enum zerod_dtype input_dtype, target_dtype;
	uint64_t numel;
	float prescale, postscale;
	bool overwrite;
	uint32_t slot;    /* of the result page */
	uint32_t nfences; /* on the daemon's page: the inputs are complete when all have passed */
	struct zc_fence fences[ZD_MAX_WORLD];
	struct zc_location target;
	uint32_t ninputs;
	struct zc_location inputs[ZD_MAX_WORLD];
};

/*
 * Starts the sum, on the worker's thread, without a lock. *fence, on the client's page, passes when the sum
 * and its result are complete. After a failure no part of the sum runs. With *launched a part has run, and
 * the target may have been written.
 */
int zc_cuda_offloaded_sum(struct zerod_client *client, const struct zc_offloaded_sum *sum,
                          struct zc_fence *fence, bool *launched, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Whether any sums have not ended. On the worker's thread. */
bool zc_cuda_offloaded_sums_are_open(const struct zerod_client *client);
/* Returns DEVICE if a sum will never end because its GPU's context is lost. On the worker's thread, without a
 * lock. */
int zc_cuda_offloaded_sums_check(struct zerod_client *client, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- cuda_waits.c -------------------------------------------------------------------------------------- */

/* Whether an abort has ended a wait of a stream whose handle was freed. With the lock. */
bool zc_cuda_left_aborted(struct zerod_client *client);
/* Forgets such waits. With the lock. */
void zc_cuda_left_reset(struct zerod_client *client);

#endif
