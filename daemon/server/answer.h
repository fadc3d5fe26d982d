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

/* Returns a copy of the text in the arena; messages have no const strings. */
char *zd_answer_text(struct zd_arena *arena, const char *text);

#endif
