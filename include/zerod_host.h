/* SPDX-License-Identifier: Apache-2.0 */
/* zerod_host.h - streams of the CPU, for emulated devices and for programs without a GPU. */
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

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
