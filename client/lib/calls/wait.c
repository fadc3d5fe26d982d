/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait.c - completes tickets, one or many.
 *
 * Waiting for many tickets costs little more than waiting for one: the fences of all are merged to one per
 * timeline, one poll finds the fences that have passed, and one call makes a stream wait for the others.
 * Invariant: before every ticket has been answered with success, no wait is appended to the stream, and no
 * address is returned.
 */
#include <stdio.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/gather.h"
#include "client/lib/calls/lease.h"
#include "client/lib/calls/update.h"
#include "client/lib/conn/fence_wait.h"
#include "client/lib/device/cuda.h"
#include "client/lib/segments/strict.h"
#include "client/lib/streams/stream.h"

struct waiting {
	struct zerod_client *client;
	zerod_stream *stream; /* NULL: the calling thread */
	uint64_t deadline_ns; /* the latest of the tickets */
	uint32_t count, ngathers, nfenced;
	struct zc_op *first_fenced;               /* of `nfenced`, whose tickets carry fences */
	struct zc_op *ops[ZEROD_MAX_TICKETS];     /* each with a reference */
	struct zc_op *gathers[ZEROD_MAX_TICKETS]; /* of these */
	void *data[ZEROD_MAX_TICKETS];            /* NULL without a buffer */
};

/* ---- Finding them -------------------------------------------------------------------------------------- */

#define DESCRIPTION_BYTES (ZD_MAX_UNIT_NAME_BYTES + 64)

/* The ticket's kind of request. */
static const char *describe_op(const struct zc_op *op, char text[DESCRIPTION_BYTES])
{
	const char *what = op->kind == ZC_OP_OTHER ? op->type->what : "unit";

	if (op->unit && op->kind == ZC_OP_OTHER)
		(void)snprintf(text, DESCRIPTION_BYTES, "%s unit '%s'", what, op->unit->name);
	else if (op->unit)
		(void)snprintf(text, DESCRIPTION_BYTES, "unit '%s'", op->unit->name);
	else
		(void)snprintf(text, DESCRIPTION_BYTES, "%s", what);
	return text;
}

/* With the lock. */
static int find_ticket(struct zerod_client *client, zerod_ticket ticket, bool wants_data,
                       struct zc_op **found, struct zd_err *err)
{
	char text[DESCRIPTION_BYTES];
	struct zc_op *op = zc_op_find(client, ticket.id);

	if (ticket.id == 0 || ticket.id > client->next_id)
		return zd_err_set(err, ZEROD_E_INVALID, "there is no ticket %llu",
		                  (unsigned long long)ticket.id);
	if (!op && ticket.id <= client->former_tickets)
		return zd_err_set(err, ZEROD_E_RESTARTED, "ticket %llu ended with the daemon before",
		                  (unsigned long long)ticket.id);
	if (!op || op->kind == ZC_OP_CALL || op->stale)
		return zd_err_set(err, ZEROD_E_STALE, "ticket %llu was released or waited for already",
		                  (unsigned long long)ticket.id);
	if (op->kind == ZC_OP_RELEASE && wants_data)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "stream and data must be NULL for a release's ticket");
	if (op->kind == ZC_OP_OTHER && !op->type->takes_stream && wants_data)
		return zd_err_set(err, ZEROD_E_INVALID, "stream and data must be NULL for the ticket of %s",
		                  describe_op(op, text));
	*found = op;
	return 0;
}

/* As they travel: 0 is none. */
static uint32_t longer_ms(uint32_t a_ms, uint32_t b_ms)
{
	if (a_ms == 0 || b_ms == 0)
		return 0;
	return a_ms > b_ms ? a_ms : b_ms;
}

/* Says which of many has failed. */
static int name_ticket(int rc, uint32_t i, uint32_t count, struct zd_err *err)
{
	return count == 1 ? rc : zd_err_set(err, rc, "tickets[%u]: %s", i, err->text);
}

/* Finds all ops, or none. With the lock. */
static int find_all(struct waiting *waiting, const zerod_ticket *tickets, uint32_t count, bool wants_data,
                    struct zd_err *err)
{
	uint32_t longest_ms = 1;

	for (uint32_t i = 0; i < count; i++) {
		int rc = find_ticket(waiting->client, tickets[i], wants_data, &waiting->ops[i], err);

		if (rc)
			return name_ticket(rc, i, count, err);
		longest_ms = longer_ms(longest_ms, waiting->ops[i]->deadline_ms);
	}
	for (uint32_t i = 0; i < count; i++)
		waiting->ops[i]->refs++;
	waiting->count = count;
	waiting->deadline_ns = zc_answer_ns(zc_until_ns(longest_ms));
	return 0;
}

/* ---- Their answers ------------------------------------------------------------------------------------- */

/* With the lock. 0: the bytes have a place, or the ticket needs no further wait. */
static int await_answer(struct zerod_client *client, struct zc_op *op, uint64_t deadline_ns,
                        struct zd_err *err)
{
	int rc = op->answered ? 0 : zc_wait_own_answer(client, op, deadline_ns);
	char text[DESCRIPTION_BYTES];

	if (rc)
		return zd_err_set(err, rc, "waited for the daemon's answer about %s", describe_op(op, text));
	if (op->status)
		return zd_err_set(err, op->status, "%s",
		                  op->error && op->error[0] ? op->error : zerod_status_name(op->status));
	if (op->kind == ZC_OP_GATHER && !op->lease)
		return zd_err_set(err, ZEROD_E_STALE, "unit '%s' was released meanwhile", op->unit->name);
	return 0;
}

static bool carries_fences(const struct zc_op *op)
{
	return op->kind == ZC_OP_GATHER || (op->kind == ZC_OP_OTHER && op->type->takes_stream);
}

/* Consumes a ticket, except for a gather's, which remains for its lease or for later reports of its failure.
 * With the lock. */
static void consume(struct zerod_client *client, struct zc_op *op)
{
	if (op->kind != ZC_OP_GATHER && op->finished)
		zc_ticket_drop(client, op);
}

/* Returns the buffer's address, which the stream and this process may access. With the lock. */
static int open_buffer(const struct waiting *waiting, struct zc_op *op, void **buffer, struct zd_err *err)
{
	bool in_place = op->frames.own.segment != 0;
	int rc = in_place ? zc_range_map(waiting->client, &op->frames, buffer, err)
	                  : zc_location_map(waiting->client, &op->buffer, buffer, err);

	if (!rc)
		rc = zc_stream_reach(waiting->client, waiting->stream,
		                     in_place ? op->frames.own.segment : op->buffer.segment, err);
	return rc ? rc
	          : zc_strict_open(waiting->client, op->unit, &op->buffer,
	                           op->lease ? &op->lease->holds : NULL, err);
}

/* With the lock, which is released in between. Consumes a ticket that fails, and the others only if none
 * fails. */
static int await_answers(struct waiting *waiting, struct zd_err *err)
{
	for (uint32_t i = 0; i < waiting->count; i++) {
		int rc = await_answer(waiting->client, waiting->ops[i], waiting->deadline_ns, err);

		if (!rc)
			continue;
		consume(waiting->client, waiting->ops[i]);
		return name_ticket(rc, i, waiting->count, err);
	}
	for (uint32_t i = 0; i < waiting->count; i++) {
		struct zc_op *op = waiting->ops[i];
		int rc;

		waiting->data[i] = NULL;
		if (carries_fences(op) && waiting->nfenced++ == 0)
			waiting->first_fenced = op;
		if (op->kind != ZC_OP_GATHER)
			continue;
		waiting->gathers[waiting->ngathers++] = op;
		rc = open_buffer(waiting, op, &waiting->data[i], err);
		if (rc)
			return name_ticket(rc, i, waiting->count, err);
	}
	for (uint32_t i = 0; i < waiting->count; i++) {
		waiting->ops[i]->waited = true;
		consume(waiting->client, waiting->ops[i]);
	}
	return 0;
}

/* ---- The bytes ----------------------------------------------------------------------------------------- */

static int block(const struct waiting *waiting, const struct zc_fences *fences,
                 const struct zc_fences *copied, struct zd_err *err)
{
	char what[DESCRIPTION_BYTES + 64], text[DESCRIPTION_BYTES];
	int rc = zc_cuda_copies_wait(waiting->client, copied, err);

	if (rc || zc_fences_poll(waiting->client, fences) == 1)
		return rc;
	if (waiting->ngathers == 0)
		(void)snprintf(what, sizeof(what), "%s", describe_op(waiting->first_fenced, text));
	else if (waiting->ngathers == 1)
		(void)snprintf(what, sizeof(what), "the bytes of unit '%s'", waiting->gathers[0]->unit->name);
	else
		(void)snprintf(what, sizeof(what), "the bytes of %u units, '%s' among them",
		               waiting->ngathers, waiting->gathers[0]->unit->name);
	return zc_fences_wait(waiting->client, fences, waiting->deadline_ns, what, err);
}

/* Without the lock: the client's own work for tickets of other calls than gathers. */
static int settle_others(const struct waiting *waiting, struct zc_fence_merge *copied, struct zd_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < waiting->count && !rc; i++) {
		struct zc_op *op = waiting->ops[i];

		if (op->kind == ZC_OP_OTHER && op->type->settle)
			rc = op->type->settle(waiting->client, op, waiting->stream, copied, err);
	}
	return rc;
}

/*
 * A shard that is gathered in place depends only on this client's own publish. A GPU's stream then waits for
 * the publish's streams, and not for the daemon to see their progress. If it is their only stream, it waits
 * for nothing.
 */
static bool waits_for_writers(const struct waiting *waiting, const struct zc_op *op,
                              struct zc_fence_merge *copied)
{
	const struct zc_location *shard;

	if (!waiting->stream || !waiting->stream->ops->convert || op->kind != ZC_OP_GATHER ||
	    op->fences.count == 0)
		return false;
	shard = &op->unit->shard;
	if (op->buffer.segment != shard->segment || op->buffer.offset != shard->offset)
		return false;
	ZC_LOCKED(&waiting->client->lock);
	return zc_publish_writers(op->unit, copied);
}

/* Without the lock. */
static int await_bytes(const struct waiting *waiting, struct zd_err *err)
{
	struct zc_fence_merge fences, vouched, copied;
	struct zc_stream_wait wait = {
	        .fences = &fences.fences, .vouched = &vouched.fences, .copied = &copied.fences};
	int rc;

	zc_fence_merge_init(&fences);
	zc_fence_merge_init(&vouched);
	zc_fence_merge_init(&copied);
	for (uint32_t i = 0; i < waiting->count; i++) {
		const struct zc_op *op = waiting->ops[i];
		const struct zc_fence *list = zc_fences_list(&op->fences);
		struct zc_fence_merge *to = waits_for_writers(waiting, op, &copied) ? &vouched : &fences;

		for (unsigned j = 0; j < op->fences.count; j++)
			zc_fence_merge_add(to, list[j]);
	}
	rc = settle_others(waiting, &copied, err);
	if (rc)
		return rc;
	if (!waiting->stream)
		return block(waiting, &fences.fences, &copied.fences, err);
	return waiting->stream->ops->wait(waiting->stream, &wait, err);
}

static int complete_tickets(struct waiting *waiting, const zerod_ticket *tickets, uint32_t count, void **data,
                            struct zd_err *err)
{
	struct zerod_client *client = waiting->client;
	int rc;

	pthread_mutex_lock(&client->lock);
	rc = find_all(waiting, tickets, count, waiting->stream || data, err);
	if (!rc)
		rc = await_answers(waiting, err);
	pthread_mutex_unlock(&client->lock);
	if (!rc && waiting->nfenced > 0)
		rc = await_bytes(waiting, err);
	for (uint32_t i = 0; i < waiting->count && data && !rc; i++)
		data[i] = waiting->data[i];
	ZC_LOCKED(&client->lock);
	for (uint32_t i = 0; i < waiting->count; i++)
		zc_ticket_unref(client, waiting->ops[i]);
	return rc;
}

/* ---- The public calls ---------------------------------------------------------------------------------- */

static int check_arguments(zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                           const zerod_stream *stream, struct zd_err *err)
{
	if (count > 0 && !tickets)
		return zd_err_set(err, ZEROD_E_INVALID, "tickets is NULL, count is %u", count);
	if (count > ZEROD_MAX_TICKETS)
		return zd_err_set(err, ZEROD_E_LIMIT, "%u tickets; at most %u", count, ZEROD_MAX_TICKETS);
	return zc_stream_check(client, stream, err);
}

int zc_wait_many(struct zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                 zerod_stream *stream, void **data, struct zd_err *err)
{
	struct waiting waiting; /* large: only the used part is written */
	int rc = check_arguments(client, tickets, count, stream, err);

	if (rc)
		return rc;
	zc_flush(client);
	waiting.client = client;
	waiting.stream = stream;
	waiting.count = waiting.ngathers = waiting.nfenced = 0;
	return complete_tickets(&waiting, tickets, count, data, err);
}

int zerod_wait_many(zerod_client *client, const zerod_ticket *tickets, uint32_t count, zerod_stream *stream,
                    void **data)
{
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter(client, &err);

	return rc ? rc : zc_wait_many(client, tickets, count, stream, data, err);
}

int zerod_wait(zerod_client *client, zerod_ticket ticket, zerod_stream *stream, void **data)
{
	return zerod_wait_many(client, &ticket, 1, stream, data);
}

int zc_releases_await(struct zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                      uint64_t deadline_ns, struct zd_err *err)
{
	struct zd_err each;
	int failed = 0;
	ZC_LOCKED(&client->lock);

	for (uint32_t i = 0; i < count; i++) {
		struct zc_op *op;
		int rc = find_ticket(client, tickets[i], false, &op, &each);

		if (!rc) {
			op->refs++;
			rc = await_answer(client, op, deadline_ns, &each);
			consume(client, op);
			zc_ticket_unref(client, op);
		}
		if (rc && !failed) {
			*err = each;
			failed = rc;
		}
	}
	return failed;
}
