/* SPDX-License-Identifier: Apache-2.0 */
/* barrier.c - barriers of groups. */
#include "client/lib/base/enter.h"
#include "client/lib/base/handles.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

static const struct zc_ticket_type barrier_ticket = {.what = "a barrier"};

static int post(struct zerod_client *client, Zd__Request *request, zerod_ticket *ticket, struct zd_err *err)
{
	struct zc_op *op;
	int rc = zc_outstanding_reserve(client, request->body_case, 1, 0, err);

	if (rc)
		return rc;
	op = zc_op_new_other(client, &barrier_ticket, NULL, NULL, request->deadline_ms, err);
	if (!op) {
		pthread_mutex_lock(&client->lock);
		zc_outstanding_return(client, 1);
		pthread_mutex_unlock(&client->lock);
		return ZEROD_E_SYSTEM;
	}
	rc = zc_post(client, op, request, err);
	if (!rc)
		ticket->id = request->id;
	return rc;
}

int zerod_group_barrier(zerod_group *group, const struct zerod_wait_options *options, zerod_ticket *ticket)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__GroupBarrier barrier = ZD__GROUP_BARRIER__INIT;
	uint32_t deadline_ms;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (rc)
		return rc;
	barrier.group = group->id;
	request.body_case = ZD__REQUEST__BODY_GROUP_BARRIER;
	request.group_barrier = &barrier;
	if (!ticket)
		return zc_call(client, &request, deadline_ms, NULL, NULL);
	request.deadline_ms = zc_deadline_ms(client, deadline_ms);
	return post(client, &request, ticket, err);
}
