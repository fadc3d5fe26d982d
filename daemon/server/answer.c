/* SPDX-License-Identifier: Apache-2.0 */
/* answer.c - texts of replies, and pages of listings and events. */
#include "server/answer.h"

#include <inttypes.h>
#include <string.h>

#include "server/session.h"

#define ENVELOPE_BYTES   128u /* for all of a packet but its items */
#define MAX_LENGTH_BYTES 3u   /* of an item's length */

char *zd_answer_text(struct zd_arena *arena, const char *text)
{
	size_t bytes = strlen(text) + 1;

	return memcpy(zd_arena_alloc(arena, bytes), text, bytes);
}

struct zd_page zd_page_new(struct zd_arena *arena, unsigned max_items)
{
	return (struct zd_page){
	        .arena = arena,
	        .items = zd_arena_alloc(arena, max_items * sizeof(ProtobufCMessageUnknownField)),
	        .max_items = max_items,
	        .left_bytes = ZD_MAX_PACKET_BYTES - ENVELOPE_BYTES};
}

bool zd_page_add(struct zd_page *page, const ProtobufCMessage *item)
{
	size_t rest = protobuf_c_message_get_packed_size(item), nbytes = 0;
	uint8_t *bytes;

	if (page->nitems == page->max_items || rest + MAX_LENGTH_BYTES + 1 > page->left_bytes)
		return false;
	bytes = zd_arena_alloc(page->arena, rest + MAX_LENGTH_BYTES);
	for (; rest >= 0x80; rest >>= 7) /* the length as a varint */
		bytes[nbytes++] = (uint8_t)(rest | 0x80);
	bytes[nbytes++] = (uint8_t)rest;
	nbytes += protobuf_c_message_pack(item, bytes + nbytes);
	page->items[page->nitems++] = (ProtobufCMessageUnknownField){
	        .tag = 1, .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, .len = nbytes, .data = bytes};
	page->left_bytes -= nbytes + 1;
	return true;
}

void zd_page_send(struct zd_page *page, struct zd_api_session *session, Zd__Reply *reply)
{
	ProtobufCMessage *list = (ProtobufCMessage *)reply->list; /* whichever body it is */

	list->unknown_fields = page->items;
	list->n_unknown_fields = page->nitems;
	zd_conn_send(session->conn, reply, NULL, 0);
	zd_arena_reset(page->arena);
}
