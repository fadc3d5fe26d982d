/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail.h - gathers of groups that span daemons: what comes over the rails, and what is pushed on from there.
 *
 * A rank's transfer has its shard exchanged on its rail, straight into the gathered buffer. What the rails of
 * the other local ranks bring lands in their buffers, and is copied on from there: the Nth transfer of a unit
 * on one rank takes from the Nth on the others, as all ranks gather in one order. So a buffer's memory stays
 * until the others have taken from it.
 */
#ifndef ZD_CORE_RAIL_H
#define ZD_CORE_RAIL_H

#include "core/span.h"

/* The shards that one rank's exchange has received, from which the daemon's other ranks copy. */
struct zd_landing {
	struct zd_buffer *buffer;
	uint64_t ordinal; /* the Nth transfer of the unit on its rank */
	uint64_t version;
	bool landed;     /* all that comes over the rail is in the buffer */
	uint32_t left;   /* local ranks that have not begun to take */
	uint32_t copies; /* under way out of it */
	TAILQ_ENTRY(zd_landing) link;
};

/* Of a part, where the group spans daemons. */
struct zd_rail {
	uint64_t begun; /* transfers */
	TAILQ_HEAD(zd_landings, zd_landing) landings;
};

/* The copies that a transfer makes from another local rank's buffer. The daemon submits those of one session
 * and source in the order of their fences: see ZD_TIMELINE_ONWARD. */
struct zd_onward {
	struct zd_buffer *buffer;
	struct zd_part *source;
	struct zd_landing *landing; /* once it is given */
	uint64_t ordinal;
	uint64_t value;              /* of the fence of its first copy */
	uint32_t copies;             /* that have not ended */
	TAILQ_ENTRY(zd_onward) link; /* session->onwards, until it is given */
};

/* Exchanges the rank's shard into the buffer, and has taken what the other local ranks' exchanges bring. Adds
 * the timelines that signal it. */
void zd_rail_transfer(struct zd_engine *e, struct zd_buffer *buffer, struct zd_timelines *timelines);
/* A local rank that has not begun to gather the version that the part has, which this one has gathered: it is
 * to follow, as all ranks gather the same. Else local_world_size. */
uint32_t zd_rail_first_to_follow(const struct zd_part *part);
/* The rank is to gather what another one on its device has gathered. */
bool zd_rail_follows(const struct zd_part *part);
/* A rank on the device that is to gather what the session has released there, and the unit; NULL: none. */
const struct zd_member *zd_rail_find_follower(const struct zd_session *session,
                                              const struct zd_device *device, const struct zd_unit **unit);
/* The group begins, or begins again: whatever ranks had come to, their next transfers belong together. */
void zd_rails_start(struct zd_group *group);
/* The group has ended: what has not been given any more is not, and streams that wait for it are freed.
 * `member`: only what has to do with it, and what can come no more. NULL: all. */
void zd_rails_stop(struct zd_engine *e, struct zd_group *group, struct zd_member *member);
/* Asserts that all is as it must be: of a part, a session, a group. rail_check.c */
void zd_rail_check(const struct zd_part *part);
void zd_onwards_check(const struct zd_session *session);
void zd_span_check_members(const struct zd_group *group);
/* Of a unit's part, whose group spans daemons. */
struct zd_rail *zd_rail_new(void);
void zd_rail_free(struct zd_rail *rail);

#endif
