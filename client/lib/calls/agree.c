/* SPDX-License-Identifier: Apache-2.0 */
/* agree.c - scalars that all ranks of a group agree on. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/handles.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

/* Of a ticket. `values` is accessed by zerod_wait() alone. */
struct agreed {
	double *values;
	uint32_t count;
	double results[];
};

struct agreeing {
	double *values;
	uint32_t count;
	struct zd_err *err;
};

static int take_results(const Zd__Reply *reply, double *into, uint32_t count, struct zd_err *err)
{
	int rc = zc_check_body(reply, ZD__REPLY__BODY_GROUP_AGREE, err);

	if (rc)
		return rc;
	if (reply->group_agree->n_values != count)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon agrees on %zu values, not %u",
		                  reply->group_agree->n_values, count);
	memcpy(into, reply->group_agree->values, count * sizeof(double));
	return 0;
}

static int take_values(const Zd__Reply *reply, void *arg)
{
	const struct agreeing *agreeing = arg;

	return take_results(reply, agreeing->values, agreeing->count, agreeing->err);
}

static int keep_results(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                        struct zd_err *err)
{
	struct agreed *agreed = op->data;

	(void)client;
	return take_results(reply, agreed->results, agreed->count, err);
}

static int write_results(struct zerod_client *client, struct zc_op *op, zerod_stream *stream,
                         struct zc_fence_merge *copied, struct zd_err *err)
{
	const struct agreed *agreed = op->data;

	(void)client;
	(void)stream;
	(void)copied;
	(void)err;
	memcpy(agreed->values, agreed->results, agreed->count * sizeof(double));
	return 0;
}

static const struct zc_ticket_type agree_ticket = {
        .what = "an agreement",
        .answered = keep_results,
        .settle = write_results,
        .deinit = zc_ticket_free_data,
};

static int post(struct zerod_client *client, Zd__Request *request, uint32_t deadline_ms, double *values,
                zerod_ticket *ticket, struct zd_err *err)
{
	uint32_t count = (uint32_t)request->group_agree->n_values;
	struct agreed *agreed = malloc(sizeof(*agreed) + count * sizeof(double));

	if (!agreed)
		return zd_err_errno(err, ENOMEM, "making a ticket");
	agreed->values = values;
	agreed->count = count;
	return zc_post_other(client, &agree_ticket, agreed, request, deadline_ms, ticket, err);
}

int zerod_group_agree_begin(zerod_group *group, enum zerod_agree_op op, double *values, uint32_t count,
                            const struct zerod_wait_options *options, zerod_ticket *ticket)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__GroupAgree agree = ZD__GROUP_AGREE__INIT;
	struct agreeing agreeing = {.values = values, .count = count};
	uint32_t deadline_ms = 0;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &agreeing.err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, agreeing.err);
	if (!rc && !values)
		rc = zd_err_set(agreeing.err, ZEROD_E_INVALID, "values is NULL");
	if (!rc && count > ZEROD_MAX_AGREED)
		rc = zd_err_set(agreeing.err, ZEROD_E_LIMIT, "%u values to agree on; at most %u", count,
		                ZEROD_MAX_AGREED);
	if (rc)
		return rc;
	agree.group = group->id;
	agree.op = op;
	agree.n_values = count;
	agree.values = values;
	request.body_case = ZD__REQUEST__BODY_GROUP_AGREE;
	request.group_agree = &agree;
	if (ticket)
		return post(client, &request, deadline_ms, values, ticket, agreeing.err);
	return zc_call(client, &request, deadline_ms, take_values, &agreeing);
}

int zerod_group_agree(zerod_group *group, enum zerod_agree_op op, double *values, uint32_t count,
                      const struct zerod_wait_options *options)
{
	return zerod_group_agree_begin(group, op, values, count, options, NULL);
}
