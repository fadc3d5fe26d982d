/* SPDX-License-Identifier: Apache-2.0 */
/* memory_queue.h - the order in which waiting gathers receive memory of a device. */
#ifndef ZD_CORE_ENGINE_MEMORY_QUEUE_H
#define ZD_CORE_ENGINE_MEMORY_QUEUE_H

#include "core/engine/objects.h"

/* Whether the gather can receive memory now: no earlier gather of its uid waits for memory, it is the uid's
 * turn, and no other uid's gather is favoured. */
bool zd_memory_has_turn(const struct zd_engine *e, const struct zd_request *req);
/* Makes later gathers of the uid wait as well, because this one waits for memory. */
void zd_memory_block(struct zd_request *req);
/* Records that the gather has received memory. While gathers of other uids wait, the uid has no further turn
 * in this walk. */
void zd_memory_note_grant(struct zd_engine *e, const struct zd_request *req);

/* ---- For request.c ------------------------------------------------------------------------------------- */

/* Updates whether the request is a waiter. Called after each attempt that waits, and when the request enters
 * or leaves the queue. */
void zd_memory_note_wait(struct zd_engine *e, struct zd_request *req);
void zd_memory_enqueue(struct zd_engine *e, struct zd_request *req);
void zd_memory_dequeue(struct zd_engine *e, struct zd_request *req);
/* Starts a pass over the device's queue. */
void zd_memory_begin_pass(struct zd_engine *e, struct zd_device *device);
/* Returns the uid whose requests are tried next in this pass: its waiters received memory the longest time
 * ago. NULL: the order of the remaining uids does not matter. */
struct zd_owner_queue *zd_memory_next_owner(const struct zd_device *device);
/* Marks the device dirty if the time of its favour has passed. Returns when it will pass, or UINT64_MAX. */
uint64_t zd_memory_tick(struct zd_engine *e, struct zd_device *device);

#endif
