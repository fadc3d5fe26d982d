/* SPDX-License-Identifier: Apache-2.0 */
/* gather.c - gather, wait and release. */
#include "client/cuda.h"
#include "client/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define DEFAULT_TAG "default"

static int choose_tag(const char *given, const char **tag, struct zd_err *err)
{
	int rc = given ? zd_name_check(given, ZD_MAX_TAG_BYTES, "tag", err) : 0;

	if (!rc && given && given[0] == ZD_RESERVED_TAG)
		rc = zd_err_set(err, ZEROD_E_INVALID, "tag '%s': tags with '%c' in front are the daemon's",
		                given, ZD_RESERVED_TAG);
	if (!rc)
		*tag = given ? given : DEFAULT_TAG;
	return rc;
}

/* The default is left out of messages. */
static char *wire_tag(const char *tag)
{
	return strcmp(tag, DEFAULT_TAG) == 0 ? (char *)"" : (char *)tag;
}

static void free_ticket(struct zerod_client *client, struct zc_op *op)
{
	pthread_mutex_lock(&client->lock);
	zc_ticket_unref(client, op);
	pthread_mutex_unlock(&client->lock);
}

/* ---- Gather ---------------------------------------------------------------------------------------------- */

static int take_gather_options(const struct zerod_gather_options *given, struct zerod_gather_options *options,
                               struct zd_err *err)
{
	int rc = zc_options(options, sizeof(*options), given, "zerod_gather_options", err);

	if (!rc && options->scope.id && (options->tag || options->uses > 1 || options->flags))
		rc = zd_err_set(err, ZEROD_E_INVALID,
		                "a gather in scope %llu has no tag, uses or prefetch of its own",
		                (unsigned long long)options->scope.id);
	if (!rc)
		rc = zc_flags(options->flags, ZEROD_GATHER_PREFETCH, "zerod_gather_options", err);
	if (!rc)
		rc = choose_tag(options->tag, &options->tag, err);
	if (!rc && options->uses == 0)
		options->uses = 1;
	return rc;
}

static int post_gather(struct zerod_client *client, struct zc_op *op,
                       const struct zerod_gather_options *options, zerod_ticket *ticket, struct zd_err *err)
{
	Zd__Gather gather = ZD__GATHER__INIT;
	Zd__Request request = ZD__REQUEST__INIT;
	int rc;

	gather.unit = op->unit->id;
	gather.tag = wire_tag(options->tag);
	gather.scope = options->scope.id;
	gather.uses = options->uses > 1 ? options->uses : 0;
	gather.version = options->version;
	gather.prefetch = op->kind == ZC_OP_PREFETCH;
	request.deadline_ms = op->deadline_ms;
	request.body_case = ZD__REQUEST__BODY_GATHER;
	request.gather = &gather;
	rc = zc_post(client, op, &request, err);
	if (!rc)
		ticket->id = request.id;
	return rc;
}

int zerod_gather_begin(zerod_unit *unit, const struct zerod_gather_options *given, zerod_ticket *ticket)
{
	struct zerod_client *client = zc_unit_client(unit);
	struct zerod_gather_options options;
	struct zd_err *err;
	struct zc_op *op;
	int rc = zc_enter(client, &err);

	if (rc)
		return rc;
	if (!ticket)
		return zd_err_set(err, ZEROD_E_INVALID, "ticket is NULL");
	rc = take_gather_options(given, &options, err);
	if (rc)
		return rc;
	op = zc_ticket_new(client, options.flags & ZEROD_GATHER_PREFETCH ? ZC_OP_PREFETCH : ZC_OP_GATHER,
	                   unit->shared, zc_deadline_ms(client, options.deadline_ms), err);
	if (!op)
		return ZEROD_E_SYSTEM;
	if (op->kind == ZC_OP_GATHER) {
		op->uses = options.scope.id ? 0 : options.uses;
		pthread_mutex_lock(&client->lock);
		rc = options.scope.id ? zc_lease_join(client, op->unit, options.scope.id, op, err)
		                      : zc_lease_add(client, op->unit, options.tag, op, err);
		pthread_mutex_unlock(&client->lock);
	}
	if (!rc)
		return post_gather(client, op, &options, ticket, err);
	free_ticket(client, op);
	return rc;
}

/* ---- Wait --------------------------------------------------------------------------------------------------- */

/* With the lock: the ticket's op, with a reference. */
static int find_ticket(struct zerod_client *client, zerod_ticket ticket, bool wants_data,
                       struct zc_op **found, struct zd_err *err)
{
	struct zc_op *op = zc_op_find(client, ticket.id);

	if (ticket.id == 0 || ticket.id > client->next_id)
		return zd_err_set(err, ZEROD_E_INVALID, "there is no ticket %llu",
		                  (unsigned long long)ticket.id);
	if (!op || op->kind == ZC_OP_CALL || op->stale)
		return zd_err_set(err, ZEROD_E_STALE, "ticket %llu was released or waited for already",
		                  (unsigned long long)ticket.id);
	if (op->kind == ZC_OP_RELEASE && wants_data)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "stream and data must be NULL for a release's ticket");
	op->refs++;
	*found = op;
	return 0;
}

/* With the lock: waits for the daemon's answer. 0: the bytes are placed, or there is nothing more to wait for. */
static int await_answer(struct zerod_client *client, struct zc_op *op, struct zd_err *err)
{
	int rc = op->answered ? 0 : zc_wait_answer(client, op, zc_deadline_ns(op->deadline_ms));

	if (rc)
		return zd_err_set(err, rc, "waited for the daemon's answer about unit '%s'", op->unit->name);
	if (op->kind != ZC_OP_GATHER && op->finished)
		zc_ticket_drop(client, op); /* consumed */
	if (op->status)
		return zd_err_set(err, op->status, "%s",
		                  op->error && op->error[0] ? op->error : zerod_status_name(op->status));
	if (op->kind == ZC_OP_GATHER && !op->lease)
		return zd_err_set(err, ZEROD_E_STALE, "unit '%s' was released meanwhile", op->unit->name);
	return 0;
}

/* With the lock: where the bytes will be; the stream (NULL: the calling thread) and this process may touch them. */
static int open_buffer(struct zerod_client *client, struct zc_op *op, const zerod_stream *stream,
                       void **buffer, struct zd_err *err)
{
	int rc = zc_location_map(client, &op->buffer, buffer, err);

	if (!rc && stream && stream->ops->reach)
		rc = stream->ops->reach(stream, zc_segment_find(client, op->buffer.segment), err);
	return rc ? rc : zc_strict_open(client, op, err);
}

static int block_for_bytes(struct zerod_client *client, const struct zc_op *op, const struct zc_fence *own,
                           struct zd_err *err)
{
	char what[ZD_MAX_UNIT_NAME_BYTES + 32];
	int rc = zc_cuda_copy_wait(client, own, err);

	if (rc || zc_fences_poll(client, &op->fences) == 1)
		return rc;
	(void)snprintf(what, sizeof(what), "the bytes of unit '%s'", op->unit->name);
	return zc_fences_wait(client, &op->fences, zc_deadline_ns(op->deadline_ms), what, err);
}

/* Without the lock: the gather was answered with 0. */
static int await_bytes(struct zerod_client *client, struct zc_op *op, zerod_stream *stream, void **data,
                       struct zd_err *err)
{
	struct zc_fence own;
	void *buffer;
	int rc;

	pthread_mutex_lock(&client->lock);
	rc = open_buffer(client, op, stream, &buffer, err);
	pthread_mutex_unlock(&client->lock);
	if (!rc)
		rc = zc_own_slice_copy(client, op, &own, err);
	if (!rc)
		rc = stream ? stream->ops->wait(stream, &op->fences, &own, err)
		            : block_for_bytes(client, op, &own, err);
	if (!rc && data)
		*data = buffer;
	return rc;
}

int zerod_wait(zerod_client *client, zerod_ticket ticket, zerod_stream *stream, void **data)
{
	struct zc_op *op;
	struct zd_err *err;
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_stream_check(client, stream, err);
	if (rc)
		return rc;
	zc_flush(client);
	pthread_mutex_lock(&client->lock);
	rc = find_ticket(client, ticket, stream || data, &op, err);
	if (rc) {
		pthread_mutex_unlock(&client->lock);
		return rc;
	}
	rc = await_answer(client, op, err);
	pthread_mutex_unlock(&client->lock);
	if (!rc && op->kind == ZC_OP_GATHER)
		rc = await_bytes(client, op, stream, data, err);
	else if (!rc && data)
		*data = NULL; /* a prefetch has no bytes of its own */
	free_ticket(client, op);
	return rc;
}

int zerod_gather(zerod_unit *unit, const struct zerod_gather_options *options, zerod_stream *stream,
                 void **data)
{
	zerod_ticket ticket;
	int rc = zerod_gather_begin(unit, options, &ticket);

	return rc ? rc : zerod_wait(unit->group->client, ticket, stream, data);
}

/* ---- Release --------------------------------------------------------------------------------------------------- */

static int post_release(struct zerod_client *client, struct zc_unit *unit, Zd__Request *request,
                        zerod_ticket *ticket, struct zd_err *err)
{
	struct zc_op *op = zc_ticket_new(client, ZC_OP_RELEASE, unit, zc_deadline_ms(client, 0), err);
	int rc;

	if (!op)
		return ZEROD_E_SYSTEM;
	request->deadline_ms = op->deadline_ms;
	rc = zc_post(client, op, request, err);
	if (!rc)
		ticket->id = request->id;
	return rc;
}

int zerod_release(zerod_unit *unit, const char *tag, zerod_stream *const *streams, uint32_t nstreams,
                  zerod_ticket *ticket)
{
	struct zerod_client *client = zc_unit_client(unit);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Release release = ZD__RELEASE__INIT;
	struct zc_fence_args fences;
	struct zd_err *err;
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = choose_tag(tag, &tag, err);
	if (rc)
		return rc;
	/* In one step: no stream can have let go of pages that the lease does not hold any more. */
	pthread_mutex_lock(&client->lock);
	rc = zc_streams_fence_holding(client, streams, nstreams, zc_lease_holds(unit->shared, tag), &fences,
	                              err);
	if (!rc)
		zc_lease_release(client, unit->shared, tag);
	pthread_mutex_unlock(&client->lock);
	if (rc)
		return rc;
	release.unit = unit->shared->id;
	release.tag = wire_tag(tag);
	release.n_fences = fences.count;
	release.fences = fences.pointers;
	request.body_case = ZD__REQUEST__BODY_RELEASE;
	request.release = &release;
	if (ticket)
		return post_release(client, unit->shared, &request, ticket, err);
	return zc_call(client, &request, 0, NULL, NULL);
}
