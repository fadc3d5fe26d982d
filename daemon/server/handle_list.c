/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle_list.c - tables of the daemon's state, a page at a time.
 *
 * A page is what the loop may spend on one request: its rows, and the objects that they are chosen and made
 * from. A user alone has larger pages, and fewer round trips, than one beside others. The client requests the
 * next page with the cursor, also where a page has no row. Rows that appear or disappear between two pages
 * may be missing; every other row is listed once.
 */
#include "base/err.h"
#include "server/answer.h"
#include "server/api.h"
#include "server/handlers.h"
#include "server/session.h"

#define MAX_ROWS       64u
#define MAX_SHORT_ROWS 16u /* beside other users: about 5 us */
#define MOST_VISITS    512u
#define ENVELOPE_BYTES 128u /* for all of a packet but its rows */
#define ROWS           1u   /* the field number of ListReply.rows */

struct page {
	const struct zd_bridge *bridge;
	struct zd_arena *arena;
	ProtobufCMessageUnknownField *rows; /* packed: their texts are the engine's */
	size_t nrows, max_rows, left_bytes;
};

/* Adds the backend's state of the device: the engine knows only its own commands' failures. */
static void add_state(const struct page *page, Zd__DeviceRow *device, char why[ZD_FAILURE_TEXT])
{
	if (!zd_bridge_device_failure(page->bridge, device->index, why))
		return;
	device->state = (char *)"failed";
	device->failure = why;
}

static bool take_row(uint64_t id, const Zd__Row *row, void *arg)
{
	struct page *page = arg;
	Zd__Row *rows[] = {(Zd__Row *)row};
	Zd__ListReply list = ZD__LIST_REPLY__INIT;
	char why[ZD_FAILURE_TEXT];
	uint8_t *packed;
	size_t bytes;

	(void)id;
	if (page->nrows == page->max_rows)
		return false;
	if (row->row_case == ZD__ROW__ROW_DEVICE)
		add_state(page, row->device, why);
	list.rows = rows;
	list.n_rows = 1;
	bytes = zd__list_reply__get_packed_size(&list);
	if (bytes > page->left_bytes)
		return false;
	packed = zd_arena_alloc(page->arena, bytes);
	(void)zd__list_reply__pack(&list, packed);
	page->rows[page->nrows++] =
	        (ProtobufCMessageUnknownField){.tag = ROWS,
	                                       .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
	                                       .len = bytes - 1, /* without the tag */
	                                       .data = packed + 1};
	page->left_bytes -= bytes;
	return true;
}

int zd_answer_list(struct zd_api_session *session, const Zd__Request *request, struct zd_err *err)
{
	const Zd__List *list = request->list;
	struct zd_api *api = session->api;
	struct page page = {.bridge = &api->bridge,
	                    .arena = &api->replies,
	                    .max_rows = zd_conn_shares(session->conn) ? MAX_SHORT_ROWS : MAX_ROWS,
	                    .left_bytes = ZD_MAX_PACKET_BYTES - ENVELOPE_BYTES};
	Zd__ListReply rows = ZD__LIST_REPLY__INIT;
	Zd__Reply reply = ZD__REPLY__INIT;

	if (list->table < ZD__TABLE__DEVICES || list->table > ZD__TABLE__BLOCKS)
		return zd_err_set(err, ZEROD_E_INVALID, "there is no table %d", (int)list->table);
	page.rows = zd_arena_alloc(page.arena, page.max_rows * sizeof(*page.rows));
	rows.next = zd_engine_list(api->bridge.engine, session->id, list, MOST_VISITS, take_row, &page);
	rows.base.unknown_fields = page.rows;
	rows.base.n_unknown_fields = (unsigned)page.nrows;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_LIST;
	reply.list = &rows;
	zd_conn_send(session->conn, &reply, NULL, 0);
	zd_arena_reset(page.arena);
	return 0;
}
