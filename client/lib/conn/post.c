/* SPDX-License-Identifier: Apache-2.0 */
/* post.c - requests whose callers do not wait for the answer: with a ticket, or detached. */
#include "client/lib/base/handles.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

/* Makes an op like `like`, and posts it. Owns the data of `like`. */
static int post(struct zerod_client *client, struct zc_op *like, Zd__Request *request, struct zd_err *err)
{
	int rc = zc_outstanding_reserve(client, request->body_case, 1, 0, err);
	struct zc_op *op = rc ? NULL : zc_op_new(client, like->kind, like->unit, request->deadline_ms, err);

	pthread_mutex_lock(&client->lock);
	if (op) {
		op->type = like->type;
		op->data = like->data;
		op->group = like->group;
		op->what = like->what;
		if (op->type && op->type->posted)
			op->type->posted(client, op);
	} else if (like->type && like->type->deinit) {
		like->type->deinit(client, like);
	}
	if (!op && !rc)
		zc_outstanding_return(client, 1);
	pthread_mutex_unlock(&client->lock);
	if (!op)
		return rc ? rc : ZEROD_E_SYSTEM;
	return zc_post(client, op, request, err);
}

int zc_post_other(struct zerod_client *client, const struct zc_ticket_type *type, void *data,
                  struct zc_unit *unit, Zd__Request *request, uint32_t deadline_ms, zerod_ticket *ticket,
                  struct zd_err *err)
{
	struct zc_op like = {.kind = ZC_OP_OTHER, .type = type, .data = data, .unit = unit};
	int rc;

	request->deadline_ms = zc_deadline_ms(client, deadline_ms);
	rc = post(client, &like, request, err);
	if (!rc)
		ticket->id = request->id;
	return rc;
}

int zc_post_detached(struct zerod_client *client, struct zc_unit *unit, const char *what,
                     Zd__Request *request, struct zd_err *err)
{
	struct zc_op like = {.kind = ZC_OP_DETACHED, .what = what, .unit = unit};

	return post(client, &like, request, err);
}

int zc_post_for_group(zerod_group *group, const struct zc_ticket_type *type, const char *what,
                      Zd__Request *request, zerod_ticket *ticket, struct zd_err *err)
{
	struct zc_op like = {.kind = ticket ? ZC_OP_OTHER : ZC_OP_DETACHED,
	                     .type = type,
	                     .what = what,
	                     .group = group->id};
	int rc = post(group->client, &like, request, err);

	if (!rc && ticket)
		ticket->id = request->id;
	return rc;
}
