/* SPDX-License-Identifier: Apache-2.0 */
/*
 * detached.c - requests without a ticket, and their failures.
 *
 * The op of a detached request is in the table until the daemon has answered it, like any other op, but no
 * ticket names it. A rejection is kept until a public call reports it: zc_enter() returns the failure instead
 * of carrying out the call. Calls that end or free something do not: one wrong call would then keep what
 * another one releases. The first failure is kept with its text, later ones are counted. PEER_LOST replaces
 * another failure, since the daemon reports a loss only once. For the same reason, the PEER_LOST of a gather
 * that was released before its answer arrived is kept: no call can wait for that gather any more.
 */
#include "client/client.h"

#include <errno.h>
#include <stdlib.h>

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

static bool is_kept(const struct zc_detached *detached, int status)
{
	return detached->nfailures == 0 ||
	       (status == ZEROD_E_PEER_LOST && detached->first.status != ZEROD_E_PEER_LOST);
}

void zc_detached_fail(struct zerod_client *client, const struct zc_op *op, const char *error)
{
	struct zc_detached *detached = &client->detached;
	bool is_detached = op->kind == ZC_OP_DETACHED;

	if (is_detached && !op->what)
		return;
	if (!error[0])
		error = zerod_status_name(op->status);
	if (is_kept(detached, op->status) && !op->unit)
		(void)zd_err_set(&detached->first, op->status,
		                 "a detached %s failed: %s; the present call was not carried out", op->what,
		                 error);
	else if (is_kept(detached, op->status))
		(void)zd_err_set(&detached->first, op->status,
		                 "a %s %s of unit '%s' failed: %s; the present call was not carried out",
		                 is_detached ? "detached" : "released", is_detached ? op->what : "gather",
		                 op->unit->name, error);
	detached->nfailures++;
	client->detached_failed = true;
}

int zc_detached_report(struct zerod_client *client, struct zd_err *err)
{
	struct zc_detached *detached = &client->detached;

	if (!atomic_load_explicit(&client->detached_failed, memory_order_relaxed))
		return 0;
	pthread_mutex_lock(&client->lock);
	if (detached->nfailures > 1)
		(void)zd_err_set(err, detached->first.status, "%s, and %llu more requests failed",
		                 detached->first.text, (unsigned long long)detached->nfailures - 1);
	else if (detached->nfailures == 1)
		*err = detached->first;
	else /* another thread's call has reported it */
		err->status = 0;
	detached->nfailures = 0;
	client->detached_failed = false;
	pthread_mutex_unlock(&client->lock);
	return err->status;
}
