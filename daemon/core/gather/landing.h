/* SPDX-License-Identifier: Apache-2.0 */
/*
 * landing.h - shards of host memory that a device has pulled, for the gathers of ranks on other devices.
 *
 * If a unit is on the host and its ranks are on several devices, it is gathered in two hops. The device of
 * each shard's rank pulls the shard through its own link to the host, in chunks, into a block of its gather
 * pool. When a chunk has arrived, the device copies it to the buffers of all ranks that gather the unit at
 * that time. The links between the devices are faster. The links to the host therefore carry each shard once,
 * all at the same time. All devices of the group must have access to each other's memory. Otherwise the
 * device of each buffer pulls all shards.
 *
 * Transfers never wait for such a block, and requests that wait for room take precedence. If no block is
 * free, the device copies from host memory to the buffer, and the pool grows for the next time, if it can. A
 * landing is never in a rank's buffer: a process that damages its own buffer cannot damage others. A landing
 * ends with the last transfer that uses it.
 *
 * Transfers that use landings are deferred (deferred.h). They join their landings when they no longer wait
 * for any process, and start their copies chunk by chunk. Landings therefore do not wait for processes.
 */
#ifndef ZD_CORE_GATHER_LANDING_H
#define ZD_CORE_GATHER_LANDING_H

#include "core/gather/buffer.h"

struct zd_landing {
	struct zd_part *part; /* owner of the shard; the unit has a reference */
	uint64_t version;
	uint32_t era;             /* of the unit's shards, at a gather's request */
	struct zd_device *device; /* that has pulled the shard */
	struct zd_extent extent;
	uint32_t users;  /* copies of transfers that have not ended, and its pulls that have not ended */
	uint64_t landed; /* bit i: chunk i has landed */
	bool failed;
	LIST_ENTRY(zd_landing) unit_link;
};

/* Whether transfers of the session for this unit use landings. */
bool zd_landings_help(const struct zd_unit *unit, const struct zd_session *session);
/* Makes the buffer's transfer, which is LANDING, join its landings, and starts the missing pulls. */
void zd_landings_join(struct zd_engine *e, struct zd_buffer *buffer);
/* Returns the number of chunks in which a shard of the unit is pulled, 1 to 8. */
uint32_t zd_landing_chunks(const struct zd_engine *e, const struct zd_unit *unit);
/* Returns chunk `index` of the shard that lies at `shard`. */
struct zd_location zd_landing_chunk(const struct zd_engine *e, const struct zd_unit *unit,
                                    struct zd_location shard, uint32_t index);
/* Returns the place of the shard. */
struct zd_location zd_landing_location(const struct zd_landing *landing);
/* Called when the buffer's transfer has ended, or will not start. */
void zd_landings_leave(struct zd_engine *e, struct zd_buffer *buffer);

#endif
