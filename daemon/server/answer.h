/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.h - helpers of the handlers: a reply under construction, its texts, and pages of lists.
 */
#ifndef ZD_SERVER_ANSWER_H
#define ZD_SERVER_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/engine.h"
#include "proto/frame.h"
#include "proto/zerod.pb-c.h"

struct zd_api_session;

#define ZD_ANSWER_SEGMENTS 3u /* locations that one reply can name */

/* A reply under construction. Its parts are in the arena, which is reset after the reply was sent. */
struct zd_answer {
	Zd__Reply reply;
	struct zd_api_session *session; /* the receiver */
	struct zd_arena *arena;
	unsigned nsegments;
	uint32_t segments[ZD_ANSWER_SEGMENTS]; /* the segments that the reply names */
};

/* Returns a copy of the text in the arena; messages have no const strings. */
char *zd_answer_text(struct zd_arena *arena, const char *text);

/*
 * A page: the items of a list, which is field 1 of its reply. An item is packed when it is added, because its
 * texts are the engine's. The reply has the items as unknown fields, which protobuf-c packs as they are.
 */
struct zd_page {
	struct zd_arena *arena;
	ProtobufCMessageUnknownField *items;
	unsigned nitems, max_items;
	size_t left_bytes; /* of a packet */
};
struct zd_page zd_page_new(struct zd_arena *arena, unsigned max_items);
/* Returns false if the page is full. */
bool zd_page_add(struct zd_page *page, const ProtobufCMessage *item);
/* Sends the reply, whose body is the list without its items, and frees the page. */
void zd_page_send(struct zd_page *page, struct zd_api_session *session, Zd__Reply *reply);

#endif
