/* SPDX-License-Identifier: Apache-2.0 */
/*
 * internal.h - what the library's files share, and the one door for the programs that ship with it.
 *
 * zeroctl and zerobench send requests that the public interface does not have (listing, administration) with zc_call().
 */
#ifndef ZD_CLIENT_INTERNAL_H
#define ZD_CLIENT_INTERNAL_H

#include <stdint.h>

#include <zerod.h>

#include "proto/zerod.pb-c.h"

/*
 * Fills request->id and request->deadline_ms, sends the request and waits for its reply. `deadline_ms` as in zerod.h: 0
 * is the client's default, ZEROD_NO_DEADLINE none. Returns the reply's status when that is not 0 (its text is then in
 * zerod_last_error()), else what `fn` returns. `fn` runs on the calling thread; the reply is valid during the call only.
 * It may be NULL.
 */
ZEROD_MUST_USE int zc_call(zerod_client *client, Zd__Request *request, uint32_t deadline_ms,
                           int (*fn)(const Zd__Reply *reply, void *arg), void *arg);

#endif
