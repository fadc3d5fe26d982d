/* SPDX-License-Identifier: Apache-2.0 */
/* agree.c - scalars that all ranks of a group agree on. */
#include <string.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/handles.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

struct agreeing {
	double *values;
	uint32_t count;
};

static int take_values(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	const struct agreeing *agreeing = object;

	if (reply->group_agree->n_values != agreeing->count)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon agrees on %zu values, not %u",
		                  reply->group_agree->n_values, agreeing->count);
	memcpy(agreeing->values, reply->group_agree->values, agreeing->count * sizeof(double));
	return 0;
}

int zerod_group_agree(zerod_group *group, enum zerod_agree_op op, double *values, uint32_t count,
                      const struct zerod_wait_options *options)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__GroupAgree agree = ZD__GROUP_AGREE__INIT;
	Zd__Request request = ZD_REQUEST(GROUP_AGREE, group_agree, &agree);
	struct agreeing agreeing = {.values = values, .count = count};
	struct zd_err *err;
	uint32_t deadline_ms = 0;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (!rc && !values)
		rc = zd_err_set(err, ZEROD_E_INVALID, "values is NULL");
	if (!rc && count > ZEROD_MAX_AGREED)
		rc = zd_err_set(err, ZEROD_E_LIMIT, "%u values to agree on; at most %u", count,
		                ZEROD_MAX_AGREED);
	if (rc)
		return rc;
	agree.group = group->id;
	agree.op = op;
	agree.n_values = count;
	agree.values = values;
	return zc_call_take(client, &request, deadline_ms, ZD__REPLY__BODY_GROUP_AGREE, take_values,
	                    &agreeing);
}
