/* SPDX-License-Identifier: Apache-2.0 */
/* gather.h - what gather.c asks of buffer.c. */
#ifndef ZD_CORE_GATHER_H
#define ZD_CORE_GATHER_H

#include "core/internal.h"

/* The part's new gathered copy, charged, INFLIGHT without transfers. `extent` moves to the buffer, or is the part of the
 * slot that the unit needs. */
struct zd_buffer *zd_buffer_new(struct zd_engine *e, struct zd_part *part, struct zd_slot *slot,
                                const struct zd_extent *extent);
/* Copies every shard into it. All shards are idle and at `version`; nothing reads or writes the buffer. */
void zd_buffer_transfer(struct zd_engine *e, struct zd_buffer *buffer, uint64_t version);

struct zd_lease *zd_lease_find(struct zd_buffer *buffer, const char *tag);
void zd_lease_add(struct zd_engine *e, struct zd_buffer *buffer, const char *tag, uint32_t uses);
/* One use less. Returns true if that ended the lease; the buffer may be gone then. */
bool zd_lease_release(struct zd_engine *e, struct zd_buffer *buffer, struct zd_lease *lease,
                      const struct zd_fence_list *fences);

#endif
