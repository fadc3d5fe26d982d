/* SPDX-License-Identifier: Apache-2.0 */
/*
 * release.c - releases of gathered buffers, one or many.
 *
 * Many releases share one fence per stream, and their requests share one packet. Invariants: steps that can
 * fail for lack of memory or an invalid argument come first: an error leaves every lease unchanged. Ending a
 * lease here and making the fences after its last use are one step under the client's lock.
 */
#include "client/lib/base/enter.h"
#include "client/lib/base/errors.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/gather.h"
#include "client/lib/calls/lease.h"
#include "client/lib/segments/strict.h"
#include "client/lib/streams/stream.h"

struct releasing {
	struct zerod_client *client;
	zerod_unit *const *units;
	uint32_t count;
	const char *tag;
	uint32_t deadline_ms;
	uint64_t deadline_ns; /* of the whole call */
	bool detached;        /* no tickets */
	bool waits;           /* for the answers */
	struct zc_fence_args fences;
	struct zc_op *ops[ZEROD_MAX_TICKETS];
	zerod_ticket tickets[ZEROD_MAX_TICKETS];
};

static int check_arguments(const struct releasing *releasing, struct zd_err *err)
{
	if (releasing->count > ZEROD_MAX_TICKETS)
		return zd_err_set(err, ZEROD_E_LIMIT, "%u units; at most %u", releasing->count,
		                  ZEROD_MAX_TICKETS);
	for (uint32_t i = 0; i < releasing->count; i++)
		if (zc_unit_client(releasing->units[i]) != releasing->client)
			return zd_err_set(err, ZEROD_E_INVALID, "units[%u] is NULL or of another client", i);
	return 0;
}

static void drop_ops(struct releasing *releasing, uint32_t count)
{
	ZC_LOCKED(&releasing->client->lock);
	zc_outstanding_return(releasing->client, releasing->count);
	for (uint32_t i = 0; i < count; i++)
		zc_ticket_unref(releasing->client, releasing->ops[i]);
}

static int make_ops(struct releasing *releasing, struct zd_err *err)
{
	int rc;

	releasing->deadline_ns = zc_until_ns(releasing->deadline_ms);
	if (releasing->waits)
		zc_flush(releasing->client);
	rc = zc_outstanding_reserve(releasing->client, ZD__REQUEST__BODY_RELEASE, releasing->count,
	                            releasing->waits ? releasing->deadline_ns : 0, err);
	if (rc)
		return rc;
	if (releasing->waits)
		releasing->deadline_ms = zc_deadline_ms(releasing->client,
		                                        zc_left_ms(releasing->deadline_ns));
	for (uint32_t i = 0; i < releasing->count; i++) {
		releasing->ops[i] = zc_op_new(releasing->client,
		                              releasing->detached ? ZC_OP_DETACHED : ZC_OP_RELEASE,
		                              releasing->units[i]->shared, releasing->deadline_ms, err);
		if (!releasing->ops[i]) {
			drop_ops(releasing, i);
			return ZEROD_E_SYSTEM;
		}
		releasing->ops[i]->what = "release";
	}
	return 0;
}

/* Copies the holds of all released buffers, for streams. With the lock. */
static int collect_holds(const struct releasing *releasing, struct zc_hold_list *holds, struct zd_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < releasing->count && !rc && releasing->client->strict; i++) {
		const struct zc_hold_list *each = zc_lease_holds(releasing->units[i]->shared, releasing->tag);

		rc = each ? zc_holds_copy(releasing->client, each, holds, err) : 0;
	}
	return rc;
}

/* In one step: no stream can have let go of pages that the leases do not hold any more. */
static int end_leases(struct releasing *releasing, zerod_stream *const *streams, uint32_t nstreams,
                      struct zd_err *err)
{
	struct zc_hold_list holds = LIST_HEAD_INITIALIZER(holds);
	struct zerod_client *client = releasing->client;
	int rc;
	ZC_LOCKED(&client->lock);

	rc = collect_holds(releasing, &holds, err);
	if (!rc)
		rc = zc_streams_fence_holding(client, streams, nstreams, &holds, &releasing->fences, err);
	for (uint32_t i = 0; i < releasing->count && !rc; i++)
		zc_lease_release(client, releasing->units[i]->shared, releasing->tag);
	zc_holds_drop(client, &holds);
	return rc;
}

/* A release that cannot be sent is answered with the failure, as when the connection breaks. */
static int post_one(struct releasing *releasing, uint32_t i, struct zd_err *err)
{
	Zd__Release release = ZD__RELEASE__INIT;
	Zd__Request request = ZD_REQUEST(RELEASE, release, &release);
	int rc;

	release.unit = releasing->units[i]->shared->id;
	release.tag = zc_tag_wire(releasing->tag);
	release.n_fences = releasing->fences.count;
	release.fences = releasing->fences.pointers;
	request.deadline_ms = releasing->ops[i]->deadline_ms;
	rc = zc_post(releasing->client, releasing->ops[i], &request, err);
	releasing->tickets[i].id = request.id;
	return rc;
}

/* Returns the first failure. Every ticket is posted, or freed. */
static int post_all(struct releasing *releasing, struct zd_err *err)
{
	bool many = releasing->count > 1;
	struct zd_err each;
	int failed = 0;

	if (many)
		zerod_cork(releasing->client);
	for (uint32_t i = 0; i < releasing->count; i++) {
		int rc = post_one(releasing, i, &each);

		if (rc && !failed) {
			*err = each;
			failed = rc;
		}
	}
	if (many && zc_batch_find(releasing->client)) { /* without memory there is no batch */
		int rc = zerod_uncork(releasing->client);

		failed = failed ? failed : rc;
	}
	return failed;
}

static int release_leases(struct releasing *releasing, zerod_stream *const *streams, uint32_t nstreams,
                          zerod_ticket *tickets, struct zd_err *err)
{
	int rc = check_arguments(releasing, err);

	if (!rc)
		rc = make_ops(releasing, err);
	if (rc)
		return rc;
	rc = end_leases(releasing, streams, nstreams, err);
	if (rc) {
		drop_ops(releasing, releasing->count);
		return rc;
	}
	rc = post_all(releasing, err);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < releasing->count && tickets; i++)
		tickets[i] = releasing->tickets[i];
	if (!releasing->waits)
		return 0;
	zc_flush(releasing->client);
	return zc_releases_await(releasing->client, releasing->tickets, releasing->count,
	                         zc_answer_ns(releasing->deadline_ns), err);
}

int zerod_release_many(zerod_unit *const *units, uint32_t count, zerod_stream *const *streams,
                       uint32_t nstreams, const struct zerod_release_options *given, zerod_ticket *tickets)
{
	struct releasing releasing; /* large: only the used part is written */
	struct zerod_release_options options;
	struct zd_err *err;
	int rc;

	if (count == 0)
		return 0;
	if (!units)
		return zd_err_set(zc_err(NULL), ZEROD_E_INVALID, "units is NULL, count is %u", count);
	releasing.client = zc_unit_client(units[0]);
	releasing.units = units;
	releasing.count = count;
	ZC_INSIDE(releasing.client);
	rc = zc_enter_group_quietly(zc_unit_group(units[0]), &err);
	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_release_options", err);
	if (!rc)
		rc = zc_flags(options.flags, ZEROD_RELEASE_DETACHED, "zerod_release_options", err);
	if (!rc && tickets && options.flags & ZEROD_RELEASE_DETACHED)
		rc = zd_err_set(err, ZEROD_E_INVALID, "a detached release has no ticket");
	if (!rc)
		rc = zc_tag_choose(options.tag, &releasing.tag, err);
	if (rc)
		return rc;
	releasing.deadline_ms = zc_deadline_ms(releasing.client, options.deadline_ms);
	releasing.detached = options.flags & ZEROD_RELEASE_DETACHED;
	releasing.waits = !tickets && !releasing.detached;
	return release_leases(&releasing, streams, nstreams, tickets, err);
}

int zerod_release(zerod_unit *unit, zerod_stream *const *streams, uint32_t nstreams,
                  const struct zerod_release_options *options, zerod_ticket *ticket)
{
	return zerod_release_many(&unit, 1, streams, nstreams, options, ticket);
}
