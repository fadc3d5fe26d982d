/* SPDX-License-Identifier: Apache-2.0 */
/*
 * landing.h - shards of host memory that a device has pulled, for the gathers of ranks on other devices.
 *
 * A unit on the host, whose ranks are on several devices, is gathered in two hops. The device of each
 * shard's rank pulls the shard over its own link to the host, in chunks, into a block of its gather pool. It
 * copies each chunk, as soon as it is there, to the buffers of all ranks that gather the unit at the time;
 * the links between the devices are faster. So the links to the host carry each shard once, and all of them
 * at the same time.
 *
 * All devices of the group have access to each other's memory: if not, the device of each buffer pulls all
 * shards.
 *
 * Nothing waits for such a block, and requests that wait for room come first. Where there is none, the device
 * copies from host memory to the buffer, and the pool grows for the next time, if it may. A landing is never
 * in a rank's buffer: a process that spoils its own buffer spoils no other. A landing ends with the last
 * transfer that uses it.
 *
 * Transfers that use landings are deferred (deferred.h): they join their landings when nothing that depends
 * on a process is left to wait for, and begin their copies chunk by chunk. So no landing waits for a process.
 */
#ifndef ZD_CORE_GATHER_LANDING_H
#define ZD_CORE_GATHER_LANDING_H

#include "core/gather/buffer.h"

struct zd_landing {
	struct zd_part *part; /* whose shard it is; the unit has a reference */
	uint64_t version;
	uint32_t era;             /* of the unit's shards, when a gather asked for it */
	struct zd_device *device; /* that has pulled the shard */
	struct zd_extent extent;
	uint32_t users;  /* the copies of transfers that are not over, and its pulls that have not ended */
	uint64_t landed; /* bit i: chunk i is there */
	bool failed;
	LIST_ENTRY(zd_landing) unit_link;
};

/* Whether transfers of the session for this unit use landings. */
bool zd_landings_help(const struct zd_unit *unit, const struct zd_session *session);
/* Makes the buffer's transfer, which is LANDING, join its landings, and begins the pulls that are missing. */
void zd_landings_join(struct zd_engine *e, struct zd_buffer *buffer);
/* Returns the number of chunks in which a shard of the unit is pulled, 1 to 8. */
uint32_t zd_landing_chunks(const struct zd_engine *e, const struct zd_unit *unit);
/* Returns chunk `index` of the shard that lies at `shard`. */
struct zd_location zd_landing_chunk(const struct zd_engine *e, const struct zd_unit *unit,
                                    struct zd_location shard, uint32_t index);
/* Returns where the shard lies. */
struct zd_location zd_landing_location(const struct zd_landing *landing);
/* The buffer's transfer is over, or will not begin. */
void zd_landings_leave(struct zd_engine *e, struct zd_buffer *buffer);

#endif
