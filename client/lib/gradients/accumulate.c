/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accumulate.c - several gradients of one unit that a rank adds up in one entry.
 *
 * The daemon sees one reservation and one submit of the entry. Between the two the client stores the fences
 * of all streams that have written the entry. The end of the backward sends the submit with these fences
 * before its own request. Until then the entry occupies its slot like any entry that is reserved and not
 * submitted.
 */
#include <math.h>

#include "client/lib/base/options.h"
#include "client/lib/gradients/bucket.h"

int zc_accumulation_find(const struct zerod_bucket *bucket, const struct zc_unit *unit,
                         struct zc_reserved **found, struct zd_err *err)
{
	struct zc_reserved *given;

	LIST_FOREACH (given, &bucket->given, link)
		if (given->unit == unit && given->sum)
			break;
	if (given && given->sum->open)
		return zd_err_set(err, ZEROD_E_STATE,
		                  "unit '%s': submit the gradient that is reserved before another one",
		                  unit->name);
	*found = given;
	return 0;
}

/* No view is absent, because the entry can have an earlier gradient of the view. */
static int check_options(const struct zerod_reduce_options *options, struct zd_err *err)
{
	if (options->nabsent > 0)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "%u absent views of a gradient that accumulates: add zeros to them",
		                  options->nabsent);
	if (options->flags & ZEROD_REDUCE_TERMS)
		return zd_err_set(err, ZEROD_E_INVALID, "ZEROD_REDUCE_TERMS of a gradient that accumulates");
	if (options->op != ZEROD_SUM && options->op != ZEROD_MEAN)
		return zd_err_set(err, ZEROD_E_INVALID, "unknown reduction %d", (int)options->op);
	if (!isfinite(options->prescale))
		return zd_err_set(err, ZEROD_E_INVALID, "prescale %g is not finite",
		                  (double)options->prescale);
	return 0;
}

static float factor(const struct zerod_reduce_options *options)
{
	return options->prescale == 0.0f ? 1.0f : options->prescale;
}

static bool is_same(const struct zerod_reduce_options *a, const struct zerod_reduce_options *b)
{
	return a->op == b->op && factor(a) == factor(b) &&
	       !((a->flags ^ b->flags) & (uint32_t)ZEROD_REDUCE_OVERWRITE);
}

/* LIMIT leaves it as it was. */
static int note_fences(struct zc_accumulation *sum, const struct zc_fence_args *fences, struct zd_err *err)
{
	struct zc_accumulation with = *sum;

	for (size_t i = 0; i < fences->count; i++) {
		struct zc_fence fence = {fences->fences[i].timeline, fences->fences[i].value};
		uint32_t at = 0;

		while (at < with.nfences && with.fences[at].timeline != fence.timeline)
			at++;
		if (at == ZD_MAX_FENCES)
			return zd_err_set(err, ZEROD_E_LIMIT,
			                  "more than %u streams have written one unit's gradient",
			                  ZD_MAX_FENCES);
		with.fences[at] = fence;
		with.nfences += at == with.nfences;
	}
	*sum = with;
	return 0;
}

/* With the lock. */
static int add_gradient(struct zc_reserved *given, const struct zc_fence_args *fences,
                        const struct zerod_reduce_options *options, struct zd_err *err)
{
	struct zc_accumulation *sum = given->sum;
	int rc;

	if (!sum->open)
		return zd_err_set(err, ZEROD_E_STATE, "entry %llu of unit '%s' is submitted already",
		                  ZD_ID_NUMBER(given->entry), given->unit->name);
	if (sum->ngradients > 0 && !is_same(&sum->options, options))
		return zd_err_set(err, ZEROD_E_MISMATCH,
		                  "unit '%s': op, prescale and OVERWRITE of a gradient that accumulates "
		                  "differ from those of the first one",
		                  given->unit->name);
	rc = note_fences(sum, fences, err);
	if (rc)
		return rc;
	sum->options = *options;
	sum->ngradients++;
	sum->open = false;
	return 0;
}

int zc_accumulation_add(struct zerod_client *client, struct zc_reserved *given,
                        const struct zc_fence_args *fences, const struct zerod_reduce_options *options,
                        const struct zc_sending *sending, struct zd_err *err)
{
	struct zc_op *op = NULL;
	int rc = check_options(options, err);

	if (rc)
		return rc;
	if (sending->ticket) {
		op = zc_op_new_other(client, sending->type, NULL, sending->unit, 0, err);
		if (!op)
			return ZEROD_E_SYSTEM;
	}
	pthread_mutex_lock(&client->lock);
	rc = add_gradient(given, fences, options, err);
	pthread_mutex_unlock(&client->lock);
	if (op && rc)
		zc_ticket_withdraw(client, op);
	else if (op)
		sending->ticket->id = zc_op_done(client, op);
	return rc;
}

/* ---- The end of the backward --------------------------------------------------------------------------- */

/* Returns an entry to which no gradient is being added. For other entries, the daemon rejects the end of the
 * backward. */
static struct zc_reserved *find_closed(const struct zerod_group *group, struct zerod_bucket **bucket)
{
	struct zc_reserved *given;

	LIST_FOREACH (*bucket, &group->buckets, link)
		LIST_FOREACH (given, &(*bucket)->given, link)
			if (given->sum && !given->sum->open)
				return given;
	return NULL;
}

static int submit_sum(struct zerod_client *client, const struct zerod_bucket *bucket,
                      const struct zc_reserved *given, struct zd_err *err)
{
	const struct zc_accumulation *sum = given->sum;
	struct zerod_reduce_options options = sum->options;
	struct zc_sending sending = {.word = "gradient", .unit = given->unit, .detached = true};
	struct zc_fence_args fences = {.count = sum->nfences};

	for (uint32_t i = 0; i < sum->nfences; i++) {
		zd__fence__init(&fences.fences[i]);
		fences.fences[i].timeline = sum->fences[i].timeline;
		fences.fences[i].value = sum->fences[i].value;
		fences.pointers[i] = &fences.fences[i];
	}
	options.deadline_ms = 0;
	return zc_entry_submit(client, bucket, given->entry, &fences, &options, &sending, err);
}

static int add_fence(struct zc_fence_args *args, struct zc_fence fence, struct zd_err *err)
{
	Zd__Fence *to;

	for (size_t i = 0; i < args->count; i++)
		if (args->fences[i].timeline == fence.timeline) /* reserved later */
			return 0;
	if (args->count == ZD_MAX_FENCES)
		return zd_err_set(err, ZEROD_E_LIMIT, "more than %u streams write the gradients",
		                  ZD_MAX_FENCES);
	to = &args->fences[args->count];
	zd__fence__init(to);
	to->timeline = fence.timeline;
	to->value = fence.value;
	args->pointers[args->count++] = to;
	return 0;
}

/* A timeline that several sums have: its last value stands for all. */
int zc_accumulations_fence(struct zerod_group *group, struct zc_fence_args *args, struct zd_err *err)
{
	const struct zerod_bucket *bucket;
	const struct zc_reserved *given;
	struct zc_fence_merge merge;
	int rc = 0;

	zc_fence_merge_init(&merge);
	pthread_mutex_lock(&group->client->lock);
	LIST_FOREACH (bucket, &group->buckets, link)
		LIST_FOREACH (given, &bucket->given, link)
			for (uint32_t i = 0; given->sum && i < given->sum->nfences; i++)
				zc_fence_merge_add(&merge, given->sum->fences[i]);
	pthread_mutex_unlock(&group->client->lock);
	for (unsigned i = 0; i < merge.fences.count && !rc; i++)
		rc = add_fence(args, merge.list[i], err);
	return rc;
}

int zc_accumulations_submit(struct zerod_group *group, struct zd_err *err)
{
	struct zerod_client *client = group->client;
	struct zerod_bucket *bucket;
	struct zc_reserved *given;
	int rc = 0;

	pthread_mutex_lock(&client->lock);
	while (!rc && (given = find_closed(group, &bucket))) {
		given->sum->open = true; /* no other call sends it */
		pthread_mutex_unlock(&client->lock);
		rc = submit_sum(client, bucket, given, err);
		pthread_mutex_lock(&client->lock);
		given->sum->open = false;
		if (!rc)
			zc_reserved_free(given);
	}
	pthread_mutex_unlock(&client->lock);
	return rc;
}
