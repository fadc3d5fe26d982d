/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.h - helpers of the handlers: conversions between the protocol's messages and the engine's structs.
 */
#ifndef ZD_SERVER_ANSWER_H
#define ZD_SERVER_ANSWER_H

#include <stddef.h>
#include <stdint.h>

#include "core/engine.h"
#include "proto/frame.h"
#include "proto/zerod.pb-c.h"

struct zd_api_session;
struct zd_err;

#define ZD_ANSWER_SEGMENTS 3u /* locations that one reply can name */

/* A reply under construction. Its parts are in the arena, which is reset after the reply was sent. */
struct zd_answer {
	Zd__Reply reply;
	struct zd_api_session *session; /* that gets it */
	struct zd_arena *arena;
	unsigned nsegments;
	uint32_t segments[ZD_ANSWER_SEGMENTS]; /* the segments that the reply names */
};

/* Returns the location as a message, and adds its segment to the answer; NULL for segment 0. */
Zd__Location *zd_answer_location(struct zd_answer *answer, const struct zd_location *location);
/* Returns a copy of the ids in the arena; NULL if there are none. */
uint64_t *zd_answer_ids(struct zd_answer *answer, const uint64_t *ids, uint32_t count);
/* Returns `count` fences as messages; NULL for none. */
Zd__Fence **zd_answer_fences(struct zd_answer *answer, const struct zd_fence *fences, uint32_t count);
/* Returns a copy of the text in the arena; messages have no const strings. */
char *zd_answer_text(struct zd_arena *arena, const char *text);

#endif
