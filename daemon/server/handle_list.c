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
#include "server/rows.h"
#include "server/session.h"

#define MAX_ROWS       64u
#define MAX_SHORT_ROWS 16u /* beside other users: about 5 us */
#define MOST_VISITS    512u
#define ENVELOPE_BYTES 128u /* for all of a packet but its rows */
#define ROW_TAG_BYTES  4u   /* the field number and length of a row */

struct page {
	const struct zd_bridge *bridge;
	struct zd_arena *arena;
	Zd__Row **rows;
	size_t nrows, max_rows, left_bytes;
};

/* Adds the backend's state of the device: the engine knows only its own commands' failures. */
static void add_state(const struct page *page, bool denied, Zd__DeviceRow *device)
{
	char why[ZD_FAILURE_TEXT];
	bool failed = zd_bridge_device_failure(page->bridge, device->index, why);

	device->state = zd_answer_text(page->arena, failed ? "failed" : denied ? "denied" : "ok");
	if (failed)
		device->failure = zd_answer_text(page->arena, why);
}

static bool take_row(const struct zd_row *row, void *arg)
{
	struct page *page = arg;
	Zd__Row *message;
	size_t bytes;

	if (page->nrows == page->max_rows)
		return false;
	message = zd_rows_message(row, page->arena);
	if (message->row_case == ZD__ROW__ROW_DEVICE)
		add_state(page, row->u.device.denied, message->device);
	bytes = zd__row__get_packed_size(message) + ROW_TAG_BYTES;
	if (bytes > page->left_bytes)
		return false;
	page->rows[page->nrows++] = message;
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
	struct zd_list_query query = {.session = session->id,
	                              .cursor = list->cursor,
	                              .job = list->job,
	                              .job_owner = list->job_owner,
	                              .segment = list->segment,
	                              .most_visits = MOST_VISITS};
	Zd__ListReply rows = ZD__LIST_REPLY__INIT;
	Zd__Reply reply = ZD__REPLY__INIT;

	/* The engine and the protocol number the tables in the same order, the protocol from 1. */
	if (list->table < ZD__TABLE__DEVICES || list->table > ZD__TABLE__BLOCKS)
		return zd_err_set(err, ZEROD_E_INVALID, "there is no table %d", (int)list->table);
	query.table = (enum zd_table)(list->table - ZD__TABLE__DEVICES);
	page.rows = zd_arena_alloc(page.arena, page.max_rows * sizeof(Zd__Row *));
	rows.next = zd_engine_list(api->bridge.engine, &query, take_row, &page);
	rows.rows = page.rows;
	rows.n_rows = page.nrows;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_LIST;
	reply.list = &rows;
	zd_conn_send(session->conn, &reply, NULL, 0);
	zd_arena_reset(page.arena);
	return 0;
}
