/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retire.h - empty segments go back to their device.
 *
 * A segment without a block in use or in quarantine may retire: no block is taken from it any more, and every
 * session that was given it is told to unmap it. When all have answered or ended, the device's executor gives
 * the memory back. It happens when a trim asks for it, and when memory is wanted for another purpose, job or
 * size and there is none.
 *
 * What must hold: a segment's memory is given back while its job lives only when no session has it mapped.
 */
#ifndef ZD_CORE_RETIRE_H
#define ZD_CORE_RETIRE_H

#include "core/internal.h"

/* Lets empty segments of any job retire until `bytes` more fit on the device; none if all of them are not
 * enough. `job` asks: segments that nobody has to unmap come first, then its own. Copies that were prefetched
 * and that nobody has asked for make no segment less empty: they are dropped. */
void zd_pool_reclaim(struct zd_engine *e, const struct zd_job *job, struct zd_device *device, uint64_t bytes);
/* A segment on its way back, if `bytes` will fit on the device when all of these are; else 0. */
uint32_t zd_retiring_find(const struct zd_device *device, uint64_t bytes);
/* Its job ends: gives the memory back at once. Sessions that have it mapped are told, and not waited for. */
void zd_segment_end(struct zd_engine *e, struct zd_segment *segment);
/* The session ends: it has nothing mapped any more, or, where sessions linger, not when its process has
 * left. */
void zd_mappings_leave(struct zd_engine *e, struct zd_session *session);
/* "session 5 (pid 77) to unmap segment 3". */
int zd_retire_text(const struct zd_device *device, uint32_t segment, char *out, size_t out_bytes);

#endif
