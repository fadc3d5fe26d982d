/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ticket.c - tickets: the ops of requests that returned one.
 *
 * A gather's ticket is valid as long as its lease (lease.c). No lease keeps any other ticket: of releases,
 * prefetches, gathers that failed, and other calls (struct zc_ticket_type). Once answered, a ticket without a
 * lease is "finished" and stays until a wait. The first wait consumes the ticket, unless it is of a failed
 * gather. Beyond ZC_MAX_FINISHED the oldest finished tickets are dropped. A wait for a ticket that is no
 * longer in the table returns STALE.
 */
#include "client/client.h"
#include "client/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct zc_op *zc_op_new(struct zerod_client *client, enum zc_op_kind kind, struct zc_unit *unit,
                        uint32_t deadline_ms, struct zd_err *err)
{
	struct zc_op *op;

	pthread_mutex_lock(&client->lock);
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
	pthread_mutex_unlock(&client->lock);
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

int zc_post_other(struct zerod_client *client, const struct zc_ticket_type *type, void *data,
                  Zd__Request *request, uint32_t deadline_ms, zerod_ticket *ticket, struct zd_err *err)
{
	struct zc_op *op;
	int rc = zc_outstanding_reserve(client, request->body_case, 1, 0, err);

	if (rc) {
		free(data);
		return rc;
	}
	request->deadline_ms = zc_deadline_ms(client, deadline_ms);
	op = zc_op_new_other(client, type, data, NULL, request->deadline_ms, err);
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

void zc_ticket_free_data(struct zerod_client *client, struct zc_op *op)
{
	(void)client;
	free(op->data);
}

void zc_ticket_withdraw(struct zerod_client *client, struct zc_op *op)
{
	pthread_mutex_lock(&client->lock);
	zc_ticket_unref(client, op);
	pthread_mutex_unlock(&client->lock);
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

void zc_ticket_settle(struct zerod_client *client, struct zc_op *op)
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

void zc_ticket_fail(struct zerod_client *client, struct zc_op *op, const char *error)
{
	op->error = strdup(error);
	zc_lease_withdraw(client, op);
	if (op->type && op->type->failed)
		op->type->failed(client, op);
	zc_ticket_settle(client, op);
}

/* Checks that the buffer shares no page, or on GPUs no segment, with other memory: access is granted by
 * these. */
static int check_strict_place(const struct zerod_client *client, const struct zc_op *op, struct zd_err *err)
{
	if (op->buffer.bytes % ZD_STRICT_ALIGN_BYTES != 0)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the daemon's buffer of unit '%s' has %llu bytes, which are no whole pages",
		                  op->unit->name, (unsigned long long)op->buffer.bytes);
	if (client->on_gpus && op->buffer.offset != 0)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the daemon's buffer of unit '%s' has no segment of its own",
		                  op->unit->name);
	return 0;
}

static int bad_frames(const struct zc_op *op, struct zd_err *err)
{
	return zd_err_set(err, ZEROD_E_PROTOCOL,
	                  "the daemon's frames of unit '%s' do not border on its shard", op->unit->name);
}

/* Checks that the shard fills its segment, that the slices below it end where their segment does, and that
 * those above begin there. */
static int take_frames(struct zerod_client *client, struct zc_op *op, const Zd__Frames *from,
                       struct zd_err *err)
{
	const struct zc_unit *unit = op->unit;
	size_t align = zerod_dtype_bytes(unit->dtype);
	uint64_t below = unit->offset_numel * align, shard = zc_unit_shard_bytes(unit);
	uint64_t above = zc_unit_padded_bytes(unit) - below - shard;
	struct zc_frames *frames = &op->frames;
	int rc = zc_location_take(client, from->own, shard, align, &frames->own, err);

	if (!rc && below > 0)
		rc = zc_location_take(client, from->low, below, align, &frames->low, err);
	if (!rc && above > 0)
		rc = zc_location_take(client, from->high, above, align, &frames->high, err);
	if (rc)
		return rc;
	if (frames->own.offset != 0 || zc_segment_find(client, frames->own.segment)->bytes != shard)
		return bad_frames(op, err);
	if (below > 0 && (frames->low.bytes != below ||
	                  frames->low.offset + below != zc_segment_find(client, frames->low.segment)->bytes))
		return bad_frames(op, err);
	return above > 0 && frames->high.offset != 0 ? bad_frames(op, err) : 0;
}

static int take_gather(struct zerod_client *client, struct zc_op *op, const Zd__GatherReply *reply,
                       struct zd_err *err)
{
	size_t align = zerod_dtype_bytes(op->unit->dtype);
	size_t place_align = client->strict ? ZD_STRICT_ALIGN_BYTES : align;
	int rc = reply->frames ? take_frames(client, op, reply->frames, err)
	                       : zc_location_take(client, reply->buffer, zc_unit_padded_bytes(op->unit),
	                                          place_align, &op->buffer, err);

	if (!rc && client->strict)
		rc = check_strict_place(client, op, err);
	if (!rc)
		rc = zc_fences_take(client, reply->n_fences, reply->fences, &op->fences, err);
	return rc;
}

int zc_ticket_answer(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                     struct zd_err *err)
{
	int rc = 0;

	if (op->status) {
		if (op->kind == ZC_OP_DETACHED ||
		    (op->kind == ZC_OP_GATHER && op->stale && op->status == ZEROD_E_PEER_LOST))
			zc_detached_fail(client, op, reply->error);
		zc_ticket_fail(client, op, reply->error);
		return 0;
	}
	if (op->kind == ZC_OP_GATHER) {
		rc = zc_check_body(reply, ZD__REPLY__BODY_GATHER, err);
		if (!rc)
			rc = take_gather(client, op, reply->gather, err);
	} else if (op->type && op->type->answered) {
		rc = op->type->answered(client, op, reply, err);
	}
	if (rc) { /* the connection ends, the ticket tells why */
		op->status = rc;
		zc_ticket_fail(client, op, err->text);
	} else {
		zc_ticket_settle(client, op);
	}
	return rc;
}
