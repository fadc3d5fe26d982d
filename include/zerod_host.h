/* SPDX-License-Identifier: Apache-2.0 */
/* zerod_host.h - streams of the CPU, for emulated devices and without a GPU; views of host memory. */
#ifndef ZEROD_HOST_H
#define ZEROD_HOST_H

#include <zerod.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* A host stream: a thread that runs functions in order. Its timeline is one of at most
 * ZEROD_MAX_STREAMS of the session. Errors: LIMIT, SYSTEM. */
ZEROD_MUST_USE int zerod_host_stream_create(zerod_client *client, zerod_stream **stream);
/* Appends fn(arg). Errors: INVALID (a GPU's stream), STATE (a wait was aborted, and no reset since). */
ZEROD_MUST_USE int zerod_host_stream_launch(zerod_stream *stream, void (*fn)(void *), void *arg);

/* A mapping of host memory: of an emulated device's segment, or of one for offloaded data. */
typedef struct zerod_mapping zerod_mapping;
/* Keeps the mapping that contains `data` until zerod_mapping_release(): also after the memory is freed and
 * after zerod_close(). A later read returns undefined bytes, and a write can be lost, but neither faults (a
 * strict client's views still do). It keeps the addresses, not the lease. NULL: no mapped host memory of a
 * daemon contains `data`. */
ZEROD_MUST_USE zerod_mapping *zerod_mapping_retain(const void *data);
/* Any thread. NULL is allowed. */
void zerod_mapping_release(zerod_mapping *mapping);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
