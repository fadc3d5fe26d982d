/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle_list.c - tables of the daemon's state, one page per request.
 *
 * The loop's time for one request limits a page: its rows, and the objects from which they are chosen and
 * made. A user alone has larger pages, and fewer round trips, than one among others. The client requests the
 * next page with the cursor, even if a page has no row. Rows that appear or disappear between two pages can
 * be missing. Every other row is listed once.
 */
#include "base/err.h"
#include "server/answer.h"
#include "server/api.h"
#include "server/handlers.h"
#include "server/session.h"

#define MAX_ROWS       64u
#define MAX_SHORT_ROWS 16u /* with other users: about 5 us */
#define MOST_VISITS    512u

struct listing {
	const struct zd_bridge *bridge;
	struct zd_page page;
};

static bool take_row(uint64_t id, const Zd__Row *row, void *arg)
{
	struct listing *listing = arg;
	char why[ZD_FAILURE_TEXT];

	(void)id;
	/* The engine knows only its own commands' failures. */
	if (row->row_case == ZD__ROW__ROW_DEVICE &&
	    zd_bridge_device_failure(listing->bridge, row->device->index, why)) {
		row->device->state = (char *)"failed";
		row->device->failure = why;
	}
	return zd_page_add(&listing->page, &row->base);
}

int zd_answer_list(struct zd_api_session *session, const Zd__Request *request, struct zd_err *err)
{
	const Zd__List *list = request->list;
	struct zd_api *api = session->api;
	struct listing listing = {.bridge = &api->bridge};
	Zd__ListReply rows = ZD__LIST_REPLY__INIT;
	Zd__Reply reply = ZD__REPLY__INIT;

	if (list->table < ZD__TABLE__DEVICES || list->table > ZD__TABLE__BLOCKS)
		return zd_err_set(err, ZEROD_E_INVALID, "there is no table %d", (int)list->table);
	listing.page = zd_page_new(&api->replies, zd_conn_shares(session->conn) ? MAX_SHORT_ROWS : MAX_ROWS);
	rows.next = zd_engine_list(api->bridge.engine, session->id, list, MOST_VISITS, take_row, &listing);
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_LIST;
	reply.list = &rows;
	zd_page_send(&listing.page, session, &reply);
	return 0;
}
