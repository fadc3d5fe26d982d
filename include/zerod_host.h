/* SPDX-License-Identifier: Apache-2.0 */
/* zerod_host.h - streams of the CPU, for emulated devices and for programs without a GPU, mappings of host
 * memory, and tensors for DLPack. */
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

/* Makes a DLManagedTensor, DLPack's structure without a version: `ndim` extents `shape`, row-major, of
 * elements with DLPack's type code and bits, at `data` on DLPack's device (type, id). On device type 1, the
 * CPU, the tensor retains the mapping of `data`, unless an extent is 0. It owns no other memory. Its deleter
 * calls no function of the caller: any thread can call it, also while it unwinds from an exception. Returns
 * NULL if no mapped host memory of a daemon contains `data`, or without memory for the structure. */
ZEROD_MUST_USE void *zerod_dlpack_new(void *data, int32_t device_type, int32_t device_id, int32_t ndim,
                                      const int64_t *shape, uint8_t code, uint8_t bits);
/* Frees a tensor of zerod_dlpack_new() that no consumer has taken. NULL is allowed. */
void zerod_dlpack_free(void *tensor);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
