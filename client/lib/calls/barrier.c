/* SPDX-License-Identifier: Apache-2.0 */
/* barrier.c - barriers of groups. */
#include "client/lib/base/enter.h"
#include "client/lib/base/handles.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

static const struct zc_ticket_type barrier_ticket = {.what = "a barrier"};

int zerod_group_barrier(zerod_group *group, const struct zerod_wait_options *options, zerod_ticket *ticket)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__GroupBarrier barrier = ZD__GROUP_BARRIER__INIT;
	Zd__Request request = ZD_REQUEST(GROUP_BARRIER, group_barrier, &barrier);
	uint32_t deadline_ms;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (rc)
		return rc;
	barrier.group = group->id;
	if (!ticket)
		return zc_call(client, &request, deadline_ms, NULL, NULL);
	return zc_post_other(client, &barrier_ticket, NULL, NULL, &request, deadline_ms, ticket, err);
}
