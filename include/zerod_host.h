/* SPDX-License-Identifier: Apache-2.0 */
/* zerod_host.h - streams of the CPU, for emulated devices and for programs without a GPU, and mappings of
 * host memory. */
#ifndef ZEROD_HOST_H
#define ZEROD_HOST_H

#include <zerod.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* Creates a host stream: a thread that runs functions in order. It counts against the ZEROD_MAX_STREAMS of
 * the client. Errors: LIMIT, SYSTEM. */
ZEROD_MUST_USE int zerod_host_stream_create(zerod_client *client, zerod_stream **stream);
/* Appends fn(arg). Errors: INVALID (a GPU's stream), STATE (an abort has ended a wait, and the session was
 * not reset since). */
ZEROD_MUST_USE int zerod_host_stream_launch(zerod_stream *stream, void (*fn)(void *), void *arg);

/* A mapping of host memory: of an emulated device's segment, or of a segment for offloaded data. */
typedef struct zerod_mapping zerod_mapping;
/* Retains the mapping that contains `data` until zerod_mapping_release(), also after the memory is freed and
 * after zerod_close(). After that, reads return undefined bytes and writes can be lost, but neither faults (a
 * strict client's views still fault). The mapping retains the addresses, not the lease. Returns NULL if no
 * mapped host memory of a daemon contains `data`. */
ZEROD_MUST_USE zerod_mapping *zerod_mapping_retain(const void *data);
/* Any thread can call it. NULL is allowed. */
void zerod_mapping_release(zerod_mapping *mapping);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
