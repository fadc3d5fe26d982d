/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outstanding.c - the requests that the daemon has not answered, and room for further ones.
 *
 * Invariants: client->outstanding counts the requests that the daemon has not answered and those that will be
 * sent, also in batches. A request reserves its room before any other step. No lock is held while it waits
 * for room: up to ZD_MAX_OUTSTANDING, and ZD_RELEASE_ROOM more for releases and goodbyes. Messages about
 * unmapped segments need no room, because the daemon answers them at once.
 */
#include "client/lib/base/interrupt.h"
#include "client/lib/conn/request.h"

/* Other requests wait for releases and goodbyes, which must therefore always be sent. */
static unsigned outstanding_limit(Zd__Request__BodyCase body)
{
	bool ends = body == ZD__REQUEST__BODY_RELEASE || body == ZD__REQUEST__BODY_TARGET_RETURN ||
	            body == ZD__REQUEST__BODY_GOODBYE;

	return ends ? ZD_MAX_OUTSTANDING + ZD_RELEASE_ROOM : ZD_MAX_OUTSTANDING;
}

int zc_outstanding_reserve(struct zerod_client *client, Zd__Request__BodyCase body, unsigned count,
                           uint64_t deadline_ns, struct zd_err *err)
{
	unsigned limit = outstanding_limit(body);
	uint64_t ask_ns = deadline_ns ? zc_ask_from(client) : UINT64_MAX;
	bool in_time = true, given_up = false;
	ZC_LOCKED(&client->lock);

	if (client->outstanding + count > limit)
		zc_drain(client);
	while (!client->broken_status && in_time && !given_up && client->outstanding + count > limit) {
		in_time = zc_wait_progress(client, NULL, deadline_ns);
		given_up = zc_ask_locked(client, &ask_ns);
	}
	zc_hand_over(client);
	if (client->broken_status)
		(void)zd_err_set(err, client->broken_status, "%s", client->broken_text);
	else if (!in_time || given_up)
		(void)zd_err_set(err,
		                 given_up      ? ZEROD_E_INTERRUPTED
		                 : deadline_ns ? ZEROD_E_DEADLINE
		                               : ZEROD_E_LIMIT,
		                 "%u requests are outstanding; at most %u", client->outstanding, limit);
	else
		err->status = 0;
	if (!err->status)
		client->outstanding += count;
	return err->status;
}

void zc_outstanding_drain(struct zerod_client *client, unsigned unsent)
{
	if (client->outstanding > ZC_DRAIN_ABOVE + unsent && !client->broken_status)
		zc_drain(client);
}
