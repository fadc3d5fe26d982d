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
 * Wraps a GPU's stream. `cu_stream` is a CUstream or cudaStream_t of this process. NULL or CU_STREAM_LEGACY
 * is the legacy default stream of the calling thread's current context. The caller launches kernels and
 * copies as usual, after zerod_wait() and before zerod_release(). The stream can be of any context of its
 * GPU: the primary one (PyTorch, the runtime API) or another. Calls can come from any thread, with any
 * current context. Wrap each stream once, because each handle counts against ZEROD_MAX_STREAMS. The stream
 * must outlive its handle.
 *
 * A CUDA graph cannot wait for the daemon when it is replayed. Calls with a stream under capture return
 * UNSUPPORTED. Capture only the work between the wait and the release of units with a slot, and gather before
 * each replay.
 *
 * A GPU does not report that an abort, or the daemon's end, has ended a wait. The stream continues with
 * garbage. zerod_stream_synchronize() and zerod_wait() then return ABORTED or DISCONNECTED, and calls that
 * publish return POISONED. Before results leave the GPU, synchronize with zerod_stream_synchronize(), not
 * with CUDA.
 *
 * The first call that needs the driver loads it (this call, zerod_group_join(), zerod_alloc()). The client
 * retains each GPU's primary context until zerod_close(). docs/streams.md says how many hardware queues the
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
