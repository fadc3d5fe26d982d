/* SPDX-License-Identifier: Apache-2.0 */
/* gather.c - requests for gathered buffers. Waits are in wait.c, releases in release.c. */
#include "client/lib/calls/gather.h"

#include <string.h>

#include "base/text.h"
#include "client/lib/base/enter.h"
#include "client/lib/base/ids.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/lease.h"
#include "client/lib/segments/segment.h"

#define DEFAULT_TAG "default"

int zc_tag_choose(const char *given, const char **tag, struct zd_err *err)
{
	int rc = given ? zd_name_check(given, ZD_MAX_TAG_BYTES, "tag", err) : 0;

	if (!rc && given && given[0] == ZD_RESERVED_TAG)
		rc = zd_err_set(err, ZEROD_E_INVALID, "tag '%s': tags with '%c' in front are the daemon's",
		                given, ZD_RESERVED_TAG);
	if (!rc)
		*tag = given ? given : DEFAULT_TAG;
	return rc;
}

char *zc_tag_wire(const char *tag)
{
	return strcmp(tag, DEFAULT_TAG) == 0 ? (char *)"" : (char *)tag;
}

static int take_gather_options(const struct zerod_client *client, const struct zerod_gather_options *given,
                               struct zerod_gather_options *options, struct zd_err *err)
{
	int rc = zc_options(options, sizeof(*options), given, "zerod_gather_options", err);

	if (!rc && options->scope.id &&
	    (options->tag || options->uses > 1 || options->flags & ZEROD_GATHER_PREFETCH))
		rc = zd_err_set(err, ZEROD_E_INVALID,
		                "a gather in scope %llu must not set tag, uses or prefetch",
		                ZD_ID_NUMBER(options->scope.id));
	if (!rc)
		rc = zc_flags(options->flags, ZEROD_GATHER_PREFETCH | ZEROD_GATHER_NO_SLOT,
		              "zerod_gather_options", err);
	if (!rc)
		rc = zc_reserved(options->reserved, "zerod_gather_options", err);
	if (!rc)
		rc = zc_id_take(client, options->scope.id, "scope", &options->scope.id, err);
	if (!rc)
		rc = zc_tag_choose(options->tag, &options->tag, err);
	if (!rc && options->uses == 0)
		options->uses = 1;
	return rc;
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

/* Checks that the shard fills its segment, that the slices below it end at their segment's end, and that the
 * slices above start at their segment's start. */
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

static int gather_answered(struct zerod_client *client, struct zc_op *op, const Zd__Reply *from,
                           struct zd_err *err)
{
	const Zd__GatherReply *reply = from->gather;
	size_t align = zerod_dtype_bytes(op->unit->dtype);
	size_t place_align = client->strict ? ZD_STRICT_ALIGN_BYTES : align;
	int rc;

	rc = reply->frames ? take_frames(client, op, reply->frames, err)
	                   : zc_location_take(client, reply->buffer, zc_unit_padded_bytes(op->unit),
	                                      place_align, &op->buffer, err);
	if (!rc && client->strict)
		rc = check_strict_place(client, op, err);
	if (!rc)
		rc = zc_fences_take(client, reply->n_fences, reply->fences, &op->fences, err);
	return rc;
}

/* Its failure withdraws the uses from the lease. */
static const struct zc_ticket_type gather_type = {
        .body = ZD__REPLY__BODY_GATHER, .answered = gather_answered, .failed = zc_lease_withdraw};

static int post_gather(struct zerod_client *client, struct zc_op *op,
                       const struct zerod_gather_options *options, zerod_ticket *ticket, struct zd_err *err)
{
	Zd__Gather gather = ZD__GATHER__INIT;
	Zd__Request request = ZD_REQUEST(GATHER, gather, &gather);
	int rc;

	gather.unit = op->unit->id;
	gather.tag = zc_tag_wire(options->tag);
	gather.scope = options->scope.id;
	gather.uses = options->uses > 1 ? options->uses : 0;
	gather.version = options->version;
	gather.prefetch = op->kind == ZC_OP_PREFETCH;
	gather.no_slot = (options->flags & ZEROD_GATHER_NO_SLOT) != 0;
	request.deadline_ms = op->deadline_ms;
	rc = zc_post(client, op, &request, err);
	if (!rc)
		ticket->id = request.id;
	return rc;
}

/* Returns the room and the op. */
static void abandon_gather(struct zerod_client *client, struct zc_op *op)
{
	ZC_LOCKED(&client->lock);
	zc_outstanding_return(client, 1);
	if (op)
		zc_ticket_unref(client, op);
}

/* With room for one request. */
static int begin_gather(zerod_unit *unit, const struct zerod_gather_options *options, zerod_ticket *ticket,
                        struct zd_err *err)
{
	bool prefetch = options->flags & ZEROD_GATHER_PREFETCH;
	struct zerod_client *client = unit->group->client;
	struct zc_op *op = zc_op_new(client, prefetch ? ZC_OP_PREFETCH : ZC_OP_GATHER, unit->shared,
	                             zc_deadline_ms(client, options->deadline_ms), err);
	int rc = op ? 0 : ZEROD_E_SYSTEM;

	if (op && !prefetch) {
		op->type = &gather_type;
		op->uses = options->scope.id ? 0 : options->uses;
		pthread_mutex_lock(&client->lock);
		rc = options->scope.id ? zc_lease_join(client, op->unit, options->scope.id, op, err)
		                       : zc_lease_add(client, op->unit, options->tag, op, err);
		pthread_mutex_unlock(&client->lock);
	}
	if (!rc)
		return post_gather(client, op, options, ticket, err);
	abandon_gather(client, op);
	return rc;
}

int zerod_gather_begin(zerod_unit *unit, const struct zerod_gather_options *given, zerod_ticket *ticket)
{
	struct zerod_client *client = zc_unit_client(unit);
	struct zerod_gather_options options;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group(zc_unit_group(unit), &err);

	if (rc)
		return rc;
	if (!ticket)
		return zd_err_set(err, ZEROD_E_INVALID, "ticket is NULL");
	rc = take_gather_options(client, given, &options, err);
	if (!rc)
		rc = zc_outstanding_reserve(client, ZD__REQUEST__BODY_GATHER, 1, 0, err);
	return rc ? rc : begin_gather(unit, &options, ticket, err);
}

int zerod_gather(zerod_unit *unit, const struct zerod_gather_options *given, zerod_stream *stream,
                 void **data)
{
	struct zerod_client *client = zc_unit_client(unit);
	struct zerod_gather_options options;
	zerod_ticket ticket;
	struct zd_err *err;
	uint64_t deadline_ns;
	ZC_INSIDE(client);
	int rc = zc_enter_group(zc_unit_group(unit), &err);

	if (!rc)
		rc = take_gather_options(client, given, &options, err);
	if (rc)
		return rc;
	deadline_ns = zc_until_ns(zc_deadline_ms(client, options.deadline_ms));
	zc_flush(client);
	rc = zc_outstanding_reserve(client, ZD__REQUEST__BODY_GATHER, 1, deadline_ns, err);
	options.deadline_ms = zc_left_ms(deadline_ns);
	if (!rc)
		rc = begin_gather(unit, &options, &ticket, err);
	return rc ? rc : zc_wait_many(client, &ticket, 1, stream, data, err);
}
