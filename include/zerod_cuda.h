/* SPDX-License-Identifier: Apache-2.0 */
/* zerod_cuda.h - streams of GPUs. */
#ifndef ZEROD_CUDA_H
#define ZEROD_CUDA_H

#include <zerod.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/*
 * A GPU's stream: `cu_stream` is a CUstream or cudaStream_t of this process; NULL or CU_STREAM_LEGACY is the
 * legacy default stream of the calling thread's current context. The caller launches kernels and copies as
 * always, behind zerod_wait() and before zerod_release(). The stream may be of any context of its GPU, the
 * primary one (PyTorch, the runtime API) or another; calls may come from any thread, whatever context is
 * current there. Wrap each stream once: a handle takes one of ZEROD_MAX_STREAMS. The stream must outlive its
 * handle.
 *
 * A CUDA graph cannot wait for the daemon when it is replayed: calls with a stream under capture return
 * UNSUPPORTED. Capture what lies between wait and release of units with a slot; gather before each replay.
 *
 * A GPU does not report that an abort, or the daemon's end, has freed a wait: the stream continues with
 * garbage. zerod_stream_synchronize() and zerod_wait() return ABORTED or DISCONNECTED then, and calls that
 * publish POISONED: synchronize with the former, not by CUDA, before results leave the GPU.
 *
 * The driver is loaded by the first call that needs it (this one, zerod_group_join(), zerod_alloc()), and
 * each GPU's primary context is held until zerod_close(). docs/streams.md says how many hardware queues the
 * library's own streams need.
 *
 * Errors: UNSUPPORTED (devices are emulated, or the driver is too old), INVALID (CU_STREAM_PER_THREAD, which
 * is another stream in each thread; no context is current), NOT_FOUND (no driver), LIMIT, DEVICE.
 */
ZEROD_MUST_USE int zerod_cuda_stream_wrap(zerod_client *client, void *cu_stream, zerod_stream **stream);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
