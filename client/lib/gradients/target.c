/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target.c - this rank's reduced gradients: the target of a step, and its places that are lent before the
 * step.
 *
 * The flat targets are bound to the group between step_begin and step_end. Each unit has its place in one.
 * zerod_reduce_wait() lends the unit's place until the unit's next contribution or the step. A stream that
 * waited for a lent place is marked. When the place is returned, the fences follow all work that marked
 * streams have then, and the daemon waits for them before it stores another sum in it. A program therefore
 * need not name its readers. The terms of a sum are lent and returned in the same way.
 */
#include "client/lib/gradients/target.h"

#include <zerod_optimizer.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"
#include "client/lib/segments/segment.h"
#include "client/lib/streams/stream.h"

/* ---- Loans --------------------------------------------------------------------------------------------- */

void zc_targets_forget(struct zerod_group *group)
{
	const struct zerod_unit *unit;

	LIST_FOREACH (unit, &group->units, link) {
		group->client->nlent -= unit->shared->target_lent;
		unit->shared->target_lent = false;
	}
}

/* Makes fences after all work of the streams that can access lent places. */
static int fence_readers(struct zerod_client *client, struct zc_fence_args *fences, struct zd_err *err)
{
	zerod_stream *readers[ZD_MAX_FENCES], *stream;
	uint32_t count = 0;
	bool too_many = false;

	pthread_mutex_lock(&client->lock);
	LIST_FOREACH (stream, &client->streams, link) {
		if (!stream->end_reader)
			continue;
		too_many = count == ZD_MAX_FENCES;
		if (too_many)
			break;
		readers[count++] = stream;
	}
	pthread_mutex_unlock(&client->lock);
	if (too_many)
		return zd_err_set(err, ZEROD_E_LIMIT,
		                  "more than %u streams have waited for reduced gradients", ZD_MAX_FENCES);
	return zc_streams_fence(client, readers, count, fences, err);
}

/* With the lock. */
static void unmark_readers(struct zerod_client *client)
{
	zerod_stream *stream;

	if (client->nlent > 0)
		return;
	LIST_FOREACH (stream, &client->streams, link)
		stream->end_reader = NULL;
}

/* Their loans end. */
static int return_places(struct zerod_client *client, struct zc_unit *const *units, uint32_t count,
                         struct zd_err *err)
{
	Zd__TargetReturn back = ZD__TARGET_RETURN__INIT;
	Zd__Request request = ZD_REQUEST(TARGET_RETURN, target_return, &back);
	uint64_t ids[ZD_MAX_UNITS_PER_REQUEST];
	struct zc_fence_args fences;
	int rc = fence_readers(client, &fences, err);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < count; i++)
		ids[i] = units[i]->id;
	back.n_units = count;
	back.units = ids;
	back.n_fences = fences.count;
	back.fences = fences.pointers;
	rc = zc_post_detached(client, units[0], "return of the target", &request, err);
	if (rc)
		return rc;
	ZC_LOCKED(&client->lock);
	for (uint32_t i = 0; i < count; i++) {
		client->nlent -= units[i]->target_lent;
		units[i]->target_lent = false;
	}
	unmark_readers(client);
	return 0;
}

int zc_target_return(struct zerod_client *client, struct zc_unit *unit, struct zd_err *err)
{
	bool lent;

	pthread_mutex_lock(&client->lock);
	lent = unit->target_lent;
	pthread_mutex_unlock(&client->lock);
	return lent ? return_places(client, &unit, 1, err) : 0;
}

/* Whether the loan outlives the end of a backward that skips the rest: no further sum is stored in the
 * place. */
static bool outlives_backward(const struct zerod_unit *unit)
{
	return unit->shared->untargeted && unit->shared->lent_in == unit->group->nbackwards;
}

/* Up to `most` units whose places are lent; of the group, or of all (NULL). */
static uint32_t find_lent(struct zerod_client *client, const struct zerod_group *only, bool in_backward,
                          struct zc_unit **units, uint32_t most)
{
	const struct zerod_group *group;
	const struct zerod_unit *unit;
	uint32_t count = 0;
	ZC_LOCKED(&client->lock);

	LIST_FOREACH (group, &client->groups, link) {
		if (client->nlent == 0 || (only && group != only))
			continue;
		LIST_FOREACH (unit, &group->units, link) {
			if (unit->shared->target_lent && !(in_backward && outlives_backward(unit)) &&
			    count < most)
				units[count++] = unit->shared;
		}
	}
	return count;
}

static int return_all(struct zerod_client *client, const struct zerod_group *only, bool in_backward,
                      struct zd_err *err)
{
	struct zc_unit *units[ZD_MAX_UNITS_PER_REQUEST];
	uint32_t count;
	int rc = 0;

	while (!rc && (count = find_lent(client, only, in_backward, units, ZD_MAX_UNITS_PER_REQUEST)) > 0)
		rc = return_places(client, units, count, err);
	return rc;
}

int zc_targets_return(struct zerod_group *group, bool in_backward, struct zd_err *err)
{
	return return_all(group->client, group, in_backward, err);
}

int zerod_target_return(zerod_unit *unit)
{
	struct zd_err *err;
	ZC_INSIDE(zc_unit_client(unit));
	int rc = zc_enter_group_quietly(zc_unit_group(unit), &err); /* it frees */

	return rc ? rc : zc_target_return(unit->group->client, unit->shared, err);
}

/* After an error the places remain lent, so that no sum is stored in them. */
static void end_reader(const zerod_stream *stream)
{
	struct zd_err ignored;

	if (return_all(stream->client, NULL, false, &ignored))
		return;
}

/* ---- Waiting for a sum --------------------------------------------------------------------------------- */

struct lending {
	struct zerod_client *client;
	struct zerod_unit *unit;
	zerod_stream *stream;
	/* The place in the reply: another thread's step can return the unit's place before the call ends. */
	struct zc_location place, others; /* others: of the other ranks' terms */
	struct zerod_target target;
	struct zerod_terms terms;
	uint32_t own; /* the term in `place` */
	bool wants_terms;
	struct zc_fences fences;
	struct zd_err *err;
};

/* With the lock. */
static void note_loan(const struct lending *lending)
{
	struct zc_unit *unit = lending->unit->shared;

	lending->client->nlent += !unit->target_lent;
	unit->target_lent = true;
	unit->terms_lent = lending->wants_terms;
	unit->lent_in = lending->unit->group->nbackwards;
	if (lending->stream)
		lending->stream->end_reader = end_reader;
}

/* With the lock. */
static int take_sum(struct lending *lending, const Zd__ReduceWaitReply *from, size_t each)
{
	struct zc_unit *unit = lending->unit->shared;
	int rc = zc_location_take(lending->client, from->target, unit->target_numel * each, each,
	                          &lending->place, lending->err);

	if (!rc)
		rc = zc_fences_take(lending->client, from->n_fences, from->fences, &lending->fences,
		                    lending->err);
	if (rc)
		return rc;
	unit->target_place = lending->place;
	unit->target_dtype = (enum zerod_dtype)from->target_dtype;
	lending->target = (struct zerod_target){.shard_numel = unit->target_numel,
	                                        .true_numel = unit->target_true_numel,
	                                        .dtype = unit->target_dtype};
	return 0;
}

/* With the lock. */
static int take_terms(struct lending *lending, const Zd__ReduceWaitReply *from, size_t each)
{
	const struct zc_unit *unit = lending->unit->shared;
	uint64_t bytes = unit->target_numel * each;
	int rc;

	if (from->nterms == 0)
		return zd_err_set(lending->err, ZEROD_E_UNSUPPORTED,
		                  "the daemon is older and lends no terms");
	if (from->nterms > ZEROD_MOST_TERMS)
		return zd_err_set(lending->err, ZEROD_E_LIMIT,
		                  "the sum of unit '%s' has %u terms, at most %u", unit->name, from->nterms,
		                  ZEROD_MOST_TERMS);
	if (from->own >= from->nterms)
		return zd_err_set(lending->err, ZEROD_E_PROTOCOL, "term %u of %u", from->own, from->nterms);
	rc = zc_location_take(lending->client, from->target, bytes, each, &lending->place, lending->err);
	if (!rc && from->nterms > 1)
		rc = zc_location_take(lending->client, from->others, (from->nterms - 1) * bytes, each,
		                      &lending->others, lending->err);
	lending->own = from->own;
	lending->terms = (struct zerod_terms){.shard_numel = unit->target_numel,
	                                      .true_numel = unit->target_true_numel,
	                                      .dtype = (enum zerod_dtype)from->target_dtype,
	                                      .count = from->nterms,
	                                      .prescale = from->prescale,
	                                      .postscale = from->postscale};
	return rc;
}

static int take_loan(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct lending *lending = object;
	const Zd__ReduceWaitReply *from = reply->reduce_wait;
	size_t each = zerod_dtype_bytes((enum zerod_dtype)from->target_dtype);
	int rc;

	if (each == 0)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon's target has dtype %u",
		                  from->target_dtype);
	ZC_LOCKED(&lending->client->lock);
	rc = lending->wants_terms ? take_terms(lending, from, each) : take_sum(lending, from, each);
	if (!rc || lending->wants_terms) /* after an error terms can still be returned */
		note_loan(lending);
	return rc;
}

static int in_doubt(struct zd_err *err)
{
	return zd_err_set(err, ZEROD_E_STATE, "there is no target until zerod_session_reset() has succeeded");
}

/* With the lock. */
static int map_terms(struct lending *lending)
{
	struct zerod_terms *terms = &lending->terms;
	size_t bytes = terms->shard_numel * zerod_dtype_bytes(terms->dtype);
	void *own, *others = NULL;
	int rc = zc_stream_map(lending->client, lending->stream, &lending->place, &own, lending->err);

	if (!rc && terms->count > 1)
		rc = zc_stream_map(lending->client, lending->stream, &lending->others, &others, lending->err);
	for (uint32_t i = 0; i < terms->count && !rc; i++)
		terms->each[i] = i == lending->own ? own
		                                   : (const char *)others + (i - (i > lending->own)) * bytes;
	return rc;
}

static int map_loan(struct lending *lending)
{
	int rc;
	ZC_LOCKED(&lending->client->lock);

	if (lending->unit->group->target_in_doubt)
		rc = in_doubt(lending->err);
	else if (lending->wants_terms)
		rc = map_terms(lending);
	else
		rc = zc_stream_map(lending->client, lending->stream, &lending->place, &lending->target.data,
		                   lending->err);
	return rc;
}

/* The stream's work can access the place, after the sum. */
static int let_stream_wait(const struct lending *lending)
{
	struct zc_fences none = {.count = 0};
	const struct zc_stream_wait wait = {.fences = &lending->fences, .copied = &none};

	if (zc_fences_poll(lending->client, &lending->fences) == 1)
		return 0;
	return lending->stream->ops->wait(lending->stream, &wait, lending->err);
}

static int borrow(struct lending *lending, const struct zerod_wait_options *options)
{
	Zd__ReduceWait wait = ZD__REDUCE_WAIT__INIT;
	Zd__Request request = ZD_REQUEST(REDUCE_WAIT, reduce_wait, &wait);
	uint32_t deadline_ms = 0;
	int rc = zc_wait_options(options, &deadline_ms, lending->err);

	if (!rc)
		rc = zc_stream_check(lending->client, lending->stream, lending->err);
	if (rc)
		return rc;
	wait.unit = lending->unit->shared->id;
	wait.terms = lending->wants_terms;
	wait.ahead = lending->stream && !wait.terms;
	rc = zc_call_take(lending->client, &request, deadline_ms, ZD__REPLY__BODY_REDUCE_WAIT, take_loan,
	                  lending);
	if (rc)
		return rc;
	rc = map_loan(lending);
	if (!rc && lending->stream)
		rc = let_stream_wait(lending);
	zc_fences_deinit(&lending->fences);
	return rc;
}

int zerod_reduce_wait(zerod_unit *unit, const struct zerod_wait_options *options, zerod_stream *stream,
                      struct zerod_target *target)
{
	struct lending lending = {.client = zc_unit_client(unit), .unit = unit, .stream = stream};
	ZC_INSIDE(lending.client);
	int rc = zc_enter_group(zc_unit_group(unit), &lending.err);

	if (!rc)
		rc = zc_result_check(target, "target", lending.err);
	if (!rc)
		rc = borrow(&lending, options);
	if (!rc)
		zc_result_fill(target, &lending.target, sizeof(*target));
	return rc;
}

int zerod_reduce_terms(zerod_unit *unit, const struct zerod_wait_options *options, zerod_stream *stream,
                       struct zerod_terms *terms)
{
	struct lending lending = {
	        .client = zc_unit_client(unit), .unit = unit, .stream = stream, .wants_terms = true};
	ZC_INSIDE(lending.client);
	int rc = zc_enter_group(zc_unit_group(unit), &lending.err);

	if (!rc)
		rc = zc_result_check(terms, "terms", lending.err);
	if (!rc)
		rc = borrow(&lending, options);
	if (!rc)
		zc_result_fill(terms, &lending.terms, sizeof(*terms));
	return rc;
}

/* ---- Where it is --------------------------------------------------------------------------------------- */

/* Returns the unit's place in its group's target. With the lock. */
static int find_slice(const struct zerod_group *group, const struct zc_unit *unit, struct zc_location *slice,
                      struct zd_err *err)
{
	const struct zc_location *target = &group->targets[unit->on_host];
	size_t element = zerod_dtype_bytes(group->target_dtype);
	uint64_t offset_bytes, bytes;

	if (unit->frozen)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s' is frozen and has no target", unit->name);
	if (unit->target_lent && unit->terms_lent)
		return zd_err_set(err, ZEROD_E_STATE, "unit '%s' has terms of a sum, and no sum", unit->name);
	if (unit->target_lent && !group->target_in_doubt) {
		*slice = unit->target_place;
		return 0;
	}
	if (unit->untargeted && !group->target_in_doubt)
		return zd_err_set(err, ZEROD_E_STATE,
		                  "unit '%s' has no place in the target: zerod_reduce_wait() lends its sum",
		                  unit->name);
	if (!group->target_bound && !group->target_in_doubt)
		return zd_err_set(err, ZEROD_E_STATE,
		                  "unit '%s' has no target outside step_begin and step_end, unless "
		                  "zerod_reduce_wait() has waited for its gradient",
		                  unit->name);
	if (group->target_in_doubt)
		return in_doubt(err);
	offset_bytes = unit->target_offset_numel * element; /* both were checked when they were received */
	bytes = unit->target_numel * element;
	if (offset_bytes > target->bytes || bytes > target->bytes - offset_bytes)
		return zd_err_set(
		        err, ZEROD_E_STATE,
		        "unit '%s' was registered after the target was bound, which it has no part in",
		        unit->name);
	*slice = (struct zc_location){target->segment, target->offset + offset_bytes, bytes};
	return 0;
}

int zerod_target_get(zerod_unit *unit, struct zerod_target *target)
{
	struct zerod_client *client = zc_unit_client(unit);
	struct zc_location slice;
	struct zd_err *err;
	void *data;
	ZC_INSIDE(client);
	int rc = zc_enter_group(zc_unit_group(unit), &err);

	if (!rc)
		rc = zc_result_check(target, "target", err);
	if (rc)
		return rc;
	ZC_LOCKED(&client->lock);
	rc = find_slice(unit->group, unit->shared, &slice, err);
	if (!rc)
		rc = zc_location_map(client, &slice, &data, err);
	if (!rc)
		zc_result_fill(target,
		               &(struct zerod_target){
		                       .data = data,
		                       .shard_numel = unit->shared->target_numel,
		                       .true_numel = unit->shared->target_true_numel,
		                       .dtype = unit->shared->target_lent ? unit->shared->target_dtype
		                                                          : unit->group->target_dtype,
		               },
		               sizeof(*target));
	return rc;
}

/* ---- Resets -------------------------------------------------------------------------------------------- */

void zc_targets_doubt(struct zerod_client *client)
{
	struct zerod_group *group;

	LIST_FOREACH (group, &client->groups, link)
		group->target_in_doubt = group->target_bound || client->nlent > 0;
}

static void group_lost(struct zerod_group *group)
{
	group->target_bound = false;
	zc_targets_forget(group);
}

static bool is_named(const Zd__SessionResetReply *reply, uint64_t group)
{
	for (size_t i = 0; i < reply->n_steps; i++)
		if (reply->steps[i] == group)
			return true;
	return false;
}

void zc_targets_settle(struct zerod_client *client, const Zd__SessionResetReply *reply)
{
	struct zerod_group *group;

	LIST_FOREACH (group, &client->groups, link) {
		if (group->target_in_doubt && reply && !is_named(reply, group->id))
			group_lost(group);
		group->target_in_doubt = false;
	}
}
