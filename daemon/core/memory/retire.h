/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retire.h - retires empty segments, which returns their memory to the device.
 *
 * A segment without a block in use or in quarantine may retire: no block is allocated from it any more, and
 * every session that was given it is asked to unmap it. When all have answered or ended, the device's
 * executor frees the memory. Segments retire for a trim request, when another purpose, job or size needs
 * memory and there is none, and at the end of their job. If a request waits for one of a device's, a session
 * that has not answered for ZD_UNMAP_NS is ended.
 *
 * Invariant: a segment's memory is freed only when no session has it mapped.
 */
#ifndef ZD_CORE_MEMORY_RETIRE_H
#define ZD_CORE_MEMORY_RETIRE_H

#include "core/engine/objects.h"
#include "core/memory/pool.h"

#define ZD_UNMAP_NS 30000000000ull

/* Retires empty segments until `bytes` more fit on the device, and in the quota of the job's uid; none if all
 * of them are not enough. For the device they are of any job, for the quota of the uid on any device. `job`
 * needs the memory: segments that no session has mapped are retired first, then its own. A segment with only
 * unused prefetched buffers counts as empty: these are dropped. */
void zd_pool_reclaim(struct zd_engine *e, const struct zd_job *job, struct zd_device *device, uint64_t bytes);
/* Returns a retiring segment, for which the caller waits, if `bytes` will fit on the device and in the
 * owner's quota when all retiring segments are destroyed; otherwise 0. */
uint32_t zd_retiring_await(struct zd_engine *e, const struct zd_owner *owner, struct zd_device *device,
                           uint64_t bytes);
/* Retires a segment at the end of its job. */
void zd_segment_end(struct zd_engine *e, struct zd_segment *segment);
/* Removes the mappings of a session that ends. Where sessions linger, mappings stay until the session's
 * process has left the device. */
void zd_mappings_leave(struct zd_engine *e, struct zd_session *session);
/* Returns a session that has not unmapped a retiring segment in time, and the segment's device; NULL: none.
 * Lowers *next_ns to the time at which the next one will be late. */
struct zd_session *zd_retire_find_late(const struct zd_engine *e, uint32_t *device, uint64_t *next_ns);
/* Writes "session 5 (pid 77) to unmap segment 3", without numbers if the reader may not know the session. */
int zd_retire_text(const struct zd_engine *e, uint32_t segment, const struct zd_session *reader, char *out,
                   size_t out_bytes);

#endif
