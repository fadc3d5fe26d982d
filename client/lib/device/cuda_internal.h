/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_internal.h - declarations that the files of this room share that call the driver. */
#ifndef ZD_CLIENT_CUDA_INTERNAL_H
#define ZD_CLIENT_CUDA_INTERNAL_H

#include "client/lib/device/cuda.h"
#include "client/lib/segments/cuda_context.h"

/* ---- cuda_device.c ------------------------------------------------------------------------------------- */

/* Loads the driver, once. */
int zc_cuda_load(struct zerod_client *client, struct zc_cuda **cuda, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Retains the device's primary context until the client's end. Without a lock. */
int zc_gpu_open(struct zerod_client *client, struct zc_cuda *cuda, int device, struct zc_gpu **gpu,
                struct zd_err *err) __attribute__((warn_unused_result));

/* ---- cuda_copy.c --------------------------------------------------------------------------------------- */

/* ---- cuda_strict.c ------------------------------------------------------------------------------------- */

/*
 * Announces a value that a GPU's stream will write: the first of two steps, which can fail. *made retains
 * `holds` (unless NULL) until the value is written. In a client that is not strict, does nothing and does not
 * change *made.
 */
int zc_forwarded_fence_new(struct zerod_client *client, const struct zc_hold_list *holds,
                           struct zc_forwarded_fence **made, struct zd_err *err)
        __attribute__((warn_unused_result));
/* As zc_forwarded_fence_new(), for copies, with holds on the segments that they write. With the client's
 * lock. */
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
/* These functions stop the thread at the client's end, and free its state in a forked child, which does not
 * have the thread. */
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

void zc_open_waits_add(struct zc_open_waits *waits, uint32_t timeline, uint64_t value);
/* Whether one of the waits was aborted. Forgets the waits that have passed. */
bool zc_open_waits_aborted(struct zc_open_waits *waits, const struct zerod_client *client);
void zc_open_waits_reset(struct zc_open_waits *waits);
/* Adds the waits of a stream with a freed handle to the client's. Without the client's lock. */
void zc_open_waits_leave(struct zerod_client *client, const struct zc_open_waits *waits);

/* ---- cuda_watch.c -------------------------------------------------------------------------------------- */

/* Starts the watcher. With cuda_lock. */
int zc_watch_start(struct zerod_client *client, struct zc_cuda *cuda, struct zd_err *err)
        __attribute__((warn_unused_result));
void zc_watch_stop(struct zc_cuda *cuda);
/* Discards the watcher in a forked child, which does not have its thread. */
void zc_watch_forget(struct zc_cuda *cuda);
/* Frees every wait of the client after the end of the daemon, which cannot free them any more. */
void zc_waits_abort(struct zerod_client *client);

#endif
