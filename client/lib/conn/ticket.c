/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ticket.c - the table of ops, and tickets: the ops of requests that returned one.
 *
 * Invariant: an op is in the table before its request can be answered. A gather's ticket is valid as long as
 * its lease (lease.c). Any other ticket has no lease: of releases, prefetches, failed gathers, and other
 * calls (struct zc_ticket_type). After its answer, a ticket without a lease is "finished" and remains until a
 * wait. The first wait consumes the ticket, unless it is of a failed gather. Beyond ZC_MAX_FINISHED the
 * oldest finished tickets are dropped. A wait for a ticket that is no longer in the table returns STALE.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/base/detached.h"
#include "client/lib/base/handles.h"
#include "client/lib/conn/request.h"

/* ---- The table ----------------------------------------------------------------------------------------- */

static struct zc_op_list *chain(struct zerod_client *client, uint64_t id)
{
	return &client->ops[id % ZC_OP_CHAINS];
}

struct zc_op *zc_op_find(struct zerod_client *client, uint64_t id)
{
	struct zc_op *op;

	LIST_FOREACH (op, chain(client, id), in_table)
		if (op->id == id)
			return op;
	return NULL;
}

void zc_op_remove(struct zc_op *op)
{
	LIST_REMOVE(op, in_table);
}

void zc_op_add(struct zerod_client *client, struct zc_op *op, Zd__Request *request)
{
	pthread_mutex_lock(&client->lock);
	op->id = ++client->next_id;
	LIST_INSERT_HEAD(chain(client, op->id), op, in_table);
	pthread_mutex_unlock(&client->lock);
	request->id = op->id;
}

/* ---- Tickets ------------------------------------------------------------------------------------------- */

struct zc_op *zc_op_new(struct zerod_client *client, enum zc_op_kind kind, struct zc_unit *unit,
                        uint32_t deadline_ms, struct zd_err *err)
{
	struct zc_op *op;
	ZC_LOCKED(&client->lock);

	op = LIST_FIRST(&client->spare_tickets);
	if (op) {
		LIST_REMOVE(op, in_table);
		client->nspare_tickets--;
	} else {
		op = malloc(sizeof(*op));
	}
	if (op) {
		*op = (struct zc_op){.kind = kind,
		                     .refs = 1,
		                     .stale = kind == ZC_OP_DETACHED, /* no thread waits for it */
		                     .deadline_ms = deadline_ms,
		                     .unit = unit};
		if (unit)
			unit->refs++;
	} else {
		(void)zd_err_errno(err, ENOMEM, "making a ticket");
	}
	return op;
}

struct zc_op *zc_op_new_other(struct zerod_client *client, const struct zc_ticket_type *type, void *data,
                              struct zc_unit *unit, uint32_t deadline_ms, struct zd_err *err)
{
	struct zc_op *op = zc_op_new(client, ZC_OP_OTHER, unit, deadline_ms, err);

	if (op) {
		op->type = type;
		op->data = data;
	}
	return op;
}

void zc_ticket_free_data(struct zerod_client *client, struct zc_op *op)
{
	(void)client;
	free(op->data);
}

void zc_ticket_withdraw(struct zerod_client *client, struct zc_op *op)
{
	ZC_LOCKED(&client->lock);
	zc_ticket_unref(client, op);
}

void zc_ticket_unref(struct zerod_client *client, struct zc_op *op)
{
	if (--op->refs > 0)
		return;
	zc_fences_deinit(&op->fences);
	if (op->type && op->type->deinit)
		op->type->deinit(client, op);
	if (op->unit)
		zc_unit_unref(op->unit);
	free(op->error);
	if (client->nspare_tickets == ZC_MAX_SPARE_TICKETS) {
		free(op);
		return;
	}
	LIST_INSERT_HEAD(&client->spare_tickets, op, in_table);
	client->nspare_tickets++;
}

void zc_tickets_free(struct zerod_client *client)
{
	struct zc_op *op = LIST_FIRST(&client->spare_tickets);

	while (op) {
		struct zc_op *next = LIST_NEXT(op, in_table);

		free(op);
		op = next;
	}
}

void zc_ticket_drop(struct zerod_client *client, struct zc_op *op)
{
	if (!op->answered) {
		op->stale = true;
		return;
	}
	if (op->finished) {
		TAILQ_REMOVE(&client->finished, op, in_queue);
		client->nfinished--;
		op->finished = false;
	}
	zc_op_remove(op);
	zc_ticket_unref(client, op);
}

/* Decides whether an answered ticket remains in the table for its lease, moves to the list of finished
 * tickets, or is removed. */
static void settle(struct zerod_client *client, struct zc_op *op)
{
	if (op->stale) {
		zc_ticket_drop(client, op);
	} else if (!op->lease) {
		TAILQ_INSERT_TAIL(&client->finished, op, in_queue);
		client->nfinished++;
		op->finished = true;
		if (client->nfinished > ZC_MAX_FINISHED)
			zc_ticket_drop(client, TAILQ_FIRST(&client->finished));
	}
}

/* Fails a ticket that was rejected, or that the daemon will not answer. op->status has the reason. */
static void fail(struct zerod_client *client, struct zc_op *op, const char *error)
{
	op->error = strdup(error);
	if (op->type && op->type->failed)
		op->type->failed(client, op);
	settle(client, op);
}

int zc_ticket_answer(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                     struct zd_err *err)
{
	int rc = 0;

	if (op->status) {
		const char *what = op->kind == ZC_OP_DETACHED ? op->what : NULL;

		if (what || (op->kind == ZC_OP_GATHER && op->stale && op->status == ZEROD_E_PEER_LOST))
			zc_detached_fail(client, op->status, what, op->unit, reply->error);
		fail(client, op, reply->error);
		return 0;
	}
	if (op->type && op->type->answered) {
		rc = zc_check_body(reply, op->type->body, err);
		rc = rc ? rc : op->type->answered(client, op, reply, err);
	}
	if (rc) { /* the connection ends, and the ticket has the reason */
		op->status = rc;
		fail(client, op, err->text);
	} else {
		settle(client, op);
	}
	return rc;
}

uint64_t zc_op_done(struct zerod_client *client, struct zc_op *op)
{
	uint64_t id;
	ZC_LOCKED(&client->lock);

	id = op->id = ++client->next_id;
	op->answered = true;
	LIST_INSERT_HEAD(chain(client, id), op, in_table);
	settle(client, op);
	return id;
}

void zc_op_fail(struct zerod_client *client, struct zc_op *op, const struct zd_err *err)
{
	op->answered = true;
	op->status = err->status;
	zc_wake(client, op);
	if (op->kind == ZC_OP_CALL)
		zc_op_remove(op);
	else
		fail(client, op, err->text);
}
