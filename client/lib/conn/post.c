/* SPDX-License-Identifier: Apache-2.0 */
/* post.c - requests whose callers do not wait for the answer: with a ticket, or detached. */
#include <errno.h>
#include <stdlib.h>

#include "client/lib/base/handles.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

int zc_post_other(struct zerod_client *client, const struct zc_ticket_type *type, void *data,
                  struct zc_unit *unit, Zd__Request *request, uint32_t deadline_ms, zerod_ticket *ticket,
                  struct zd_err *err)
{
	struct zc_op *op;
	int rc = zc_outstanding_reserve(client, request->body_case, 1, 0, err);

	if (rc) {
		free(data);
		return rc;
	}
	request->deadline_ms = zc_deadline_ms(client, deadline_ms);
	op = zc_op_new_other(client, type, data, unit, request->deadline_ms, err);
	if (!op) {
		free(data);
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

/* With room for the request, which is returned when that fails. */
static struct zc_op *make_op(struct zerod_client *client, struct zc_unit *unit, const char *what,
                             uint32_t deadline_ms, struct zd_err *err)
{
	struct zc_op *op = zc_op_new(client, ZC_OP_DETACHED, unit, deadline_ms, err);

	if (op) {
		op->what = what;
		return op;
	}
	pthread_mutex_lock(&client->lock);
	zc_outstanding_return(client, 1);
	pthread_mutex_unlock(&client->lock);
	return NULL;
}

int zc_post_detached(struct zerod_client *client, struct zc_unit *unit, const char *what,
                     Zd__Request *request, struct zd_err *err)
{
	int rc = zc_outstanding_reserve(client, request->body_case, 1, 0, err);
	struct zc_op *op;

	if (rc)
		return rc;
	op = make_op(client, unit, what, request->deadline_ms, err);
	return op ? zc_post(client, op, request, err) : ZEROD_E_SYSTEM;
}

int zc_post_for_group(zerod_group *group, const struct zc_ticket_type *type, const char *what,
                      Zd__Request *request, struct zc_op **noted, struct zd_err *err)
{
	struct zerod_client *client = group->client;
	uint64_t *id = malloc(sizeof(*id));
	struct zc_op *op;
	int rc;

	if (!id)
		return zd_err_errno(err, ENOMEM, "sending a request about a group");
	*id = group->id;
	rc = zc_outstanding_reserve(client, request->body_case, 1, 0, err);
	op = rc ? NULL : make_op(client, NULL, what, request->deadline_ms, err);
	if (!op) {
		free(id);
		return rc ? rc : ZEROD_E_SYSTEM;
	}
	op->type = type;
	op->data = id;
	if (noted) {
		pthread_mutex_lock(&client->lock);
		*noted = op;
		pthread_mutex_unlock(&client->lock);
	}
	return zc_post(client, op, request, err);
}
