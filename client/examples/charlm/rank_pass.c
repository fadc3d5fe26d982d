/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_pass.c - one micro-step of a rank: gather, compute, release, reduce.
 *
 * A layer's parameters are gathered before they are used and released after, in forward and again in
 * backward; the next layer is prefetched meanwhile, so at most two layers are there at once. All arithmetic
 * runs on two host streams, and it is their fences that order it against the daemon: a gather is waited for
 * by the stream, a release goes out while the stream still reads, and a gradient is handed over while it is
 * still written.
 *
 *   compute     lookup, forward, the gradients of activations, Adam
 *   gradients   the gradients of parameters, straight into the buckets' entries
 *
 * After each layer the rank synchronises both streams. That is what bounds its memory: without it, it would
 * run ahead and gather layers that it does not need yet.
 */
#include "rank.h"

#include <zerod_host.h>

/* ---- Work on the streams ------------------------------------------------------------------------------- */

static void run_lookup(void *arg)
{
	struct work *w = arg;
	charlm_lookup_forward(w->pass, w->params);
}

static void run_forward(void *arg)
{
	struct work *w = arg;
	charlm_layer_forward(w->pass, w->unit, w->params);
}

static void run_logits(void *arg)
{
	struct work *w = arg;
	charlm_logits_forward(w->pass, w->params);
	w->loss = charlm_loss(w->pass);
}

static void run_backward_inputs(void *arg)
{
	struct work *w = arg;
	if (w->unit == CHARLM_EMBEDDING)
		charlm_logits_backward_inputs(w->pass, w->params);
	else
		charlm_layer_backward_inputs(w->pass, w->unit, w->params);
}

static void run_backward_params(void *arg)
{
	struct work *w = arg;
	if (w->unit == CHARLM_EMBEDDING)
		charlm_logits_backward_params(w->pass, w->gradient);
	else
		charlm_layer_backward_params(w->pass, w->unit, w->gradient);
}

static void run_lookup_backward(void *arg)
{
	struct work *w = arg;
	charlm_lookup_backward_params(w->pass, w->gradient);
}

int charlm_rank_synchronize(struct rank *r)
{
	int rc = zerod_stream_synchronize(r->compute);
	int also = zerod_stream_synchronize(r->gradients);
	rc = rc != ZEROD_OK ? rc : also;
	return rc == ZEROD_OK ? rc : charlm_rank_fail(r, rc, "computing", "");
}

static int launch(struct rank *r, zerod_stream *stream, void (*fn)(void *), struct work *work)
{
	work->pass = &r->pass;
	int rc = zerod_host_stream_launch(stream, fn, work);
	return rc == ZEROD_OK ? rc
	                      : charlm_rank_fail(r, rc, "computing", charlm_rank_unit_name(r, work->unit));
}

/* ---- Gather and release -------------------------------------------------------------------------------- */

/* Gathers the unit for `uses` releases under the tag, and prefetches the one that comes next, in one packet.
 * The compute stream waits for the bytes, the rank does not; nobody waits for the prefetch. */
static int gather(struct rank *r, enum charlm_unit unit, const char *tag, uint32_t uses,
                  enum charlm_unit next, const float **params)
{
	struct zerod_gather_options now = ZEROD_INIT(now), later = ZEROD_INIT(later);
	now.tag = tag;
	now.uses = uses;
	later.flags = ZEROD_GATHER_PREFETCH;
	zerod_ticket ticket, prefetch;
	zerod_cork(r->client);
	int rc = zerod_gather_begin(r->units[unit], &now, &ticket);
	if (rc == ZEROD_OK && next != NO_UNIT)
		rc = zerod_gather_begin(r->units[next], &later, &prefetch);
	int sent = zerod_uncork(r->client);
	rc = rc != ZEROD_OK ? rc : sent;
	void *data;
	if (rc == ZEROD_OK)
		rc = zerod_wait(r->client, ticket, r->compute, &data);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "gathering", charlm_rank_unit_name(r, unit));
	r->progress.gathers++;
	*params = data;
	return rc;
}

/* The bytes stay until the compute stream has done what it was given so far. The answer is waited for
 * later. */
static int release(struct rank *r, enum charlm_unit unit, const char *tag)
{
	struct zerod_release_options options = ZEROD_INIT(options);
	options.tag = tag;
	int rc = zerod_release(r->units[unit], &r->compute, 1, &options, &r->releases[r->nreleases]);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "releasing", charlm_rank_unit_name(r, unit));
	r->nreleases++;
	return rc;
}

static int wait_for_releases(struct rank *r)
{
	int rc = ZEROD_OK;
	for (uint32_t i = 0; i < r->nreleases && rc == ZEROD_OK; i++)
		rc = zerod_wait(r->client, r->releases[i], NULL, NULL);
	r->nreleases = 0;
	return rc == ZEROD_OK ? rc : charlm_rank_fail(r, rc, "releasing", "");
}

/* Called while a unit is held: the launcher may look at what is live now. */
static int look_around(struct rank *r, enum charlm_unit unit)
{
	if (unit == CHARLM_HIDDEN2) {
		int rc = charlm_rank_read_memory(r);
		if (rc != ZEROD_OK)
			return rc;
	}
	if (unit == r->pause_at && charlm_pause(r->channel) != 0)
		return ZEROD_E_DISCONNECTED; /* nobody is left to be told */
	return ZEROD_OK;
}

/* ---- Forward ------------------------------------------------------------------------------------------- */

static int forward_unit(struct rank *r, enum charlm_unit unit, const char *tag, void (*fn)(void *),
                        enum charlm_unit next)
{
	const float *params = NULL;
	int rc = gather(r, unit, tag, 1, next, &params);
	if (rc == ZEROD_OK)
		rc = look_around(r, unit);
	if (rc != ZEROD_OK)
		return rc;
	r->compute_work = (struct work){.unit = unit, .params = params};
	rc = launch(r, r->compute, fn, &r->compute_work);
	if (rc == ZEROD_OK)
		rc = release(r, unit, tag);
	return rc == ZEROD_OK ? charlm_rank_synchronize(r) : rc;
}

/* Ends with the tied embedding held once more under "logits": the backward begins with it. */
static int forward(struct rank *r, double *loss, const float **embedding)
{
	int rc = forward_unit(r, CHARLM_EMBEDDING, "lookup", run_lookup, CHARLM_HIDDEN1);
	for (unsigned i = CHARLM_HIDDEN1; i < CHARLM_OUTPUT && rc == ZEROD_OK; i++)
		rc = forward_unit(r, i, "forward", run_forward, i + 1);
	if (rc == ZEROD_OK)
		rc = forward_unit(r, CHARLM_OUTPUT, "forward", run_forward, CHARLM_EMBEDDING);
	if (rc == ZEROD_OK)
		rc = gather(r, CHARLM_EMBEDDING, "logits", 2, CHARLM_OUTPUT, embedding);
	if (rc != ZEROD_OK)
		return rc;
	r->compute_work = (struct work){.unit = CHARLM_EMBEDDING, .params = *embedding};
	rc = launch(r, r->compute, run_logits, &r->compute_work);
	if (rc == ZEROD_OK)
		rc = release(r, CHARLM_EMBEDDING, "logits");
	if (rc == ZEROD_OK)
		rc = charlm_rank_synchronize(r);
	if (rc == ZEROD_OK)
		*loss = r->compute_work.loss;
	return rc;
}

/* ---- Backward ------------------------------------------------------------------------------------------ */

static int reserve(struct rank *r, zerod_bucket *bucket, enum charlm_unit unit, struct zerod_entry *entry)
{
	int rc = zerod_bucket_reserve(bucket, r->units[unit], NULL, entry);
	return rc == ZEROD_OK
	               ? rc
	               : charlm_rank_fail(r, rc, "reserving the gradient of", charlm_rank_unit_name(r, unit));
}

/* Hands the gradient over. It may still be in the writing: the daemon waits for the streams. */
static int hand_over(struct rank *r, zerod_bucket *bucket, enum charlm_unit unit,
                     const struct zerod_entry *entry, zerod_stream *const *streams, uint32_t nstreams)
{
	struct zerod_reduce_options options = ZEROD_INIT(options);
	options.op = ZEROD_MEAN;
	options.prescale = 1.0f / (float)r->plan->accum;
	int rc = zerod_bucket_submit(bucket, entry->id, streams, nstreams, &options, NULL);
	return rc == ZEROD_OK ? rc
	                      : charlm_rank_fail(r, rc, "handing over the gradient of",
	                                         charlm_rank_unit_name(r, unit));
}

/* The two halves of a unit's backward, on a stream each. */
static int launch_backward(struct rank *r, enum charlm_unit unit, const float *params, float *gradient)
{
	r->compute_work = (struct work){.unit = unit, .params = params};
	r->gradients_work = (struct work){.unit = unit, .gradient = gradient};
	int rc = launch(r, r->compute, run_backward_inputs, &r->compute_work);
	return rc == ZEROD_OK ? launch(r, r->gradients, run_backward_params, &r->gradients_work) : rc;
}

static int backward_layer(struct rank *r, enum charlm_unit unit)
{
	struct zerod_entry entry = ZEROD_INIT(entry);
	const float *params = NULL;
	int rc = reserve(r, r->layers, unit, &entry);
	if (rc == ZEROD_OK)
		rc = gather(r, unit, "backward", 1, unit > CHARLM_HIDDEN1 ? unit - 1 : NO_UNIT, &params);
	if (rc == ZEROD_OK)
		rc = launch_backward(r, unit, params, entry.data);
	if (rc == ZEROD_OK)
		rc = release(r, unit, "backward");
	if (rc == ZEROD_OK)
		rc = hand_over(r, r->layers, unit, &entry, &r->gradients, 1);
	return rc == ZEROD_OK ? charlm_rank_synchronize(r) : rc;
}

/* From the logits down to the lookup. The embedding's entry has two producers: the gradients stream writes
 * the logits' part at the beginning, the compute stream adds the lookup's at the end. */
static int backward_units(struct rank *r, const float *embedding)
{
	struct zerod_entry tied = ZEROD_INIT(tied);
	int rc = reserve(r, r->tied, CHARLM_EMBEDDING, &tied);
	if (rc == ZEROD_OK)
		rc = launch_backward(r, CHARLM_EMBEDDING, embedding, tied.data);
	if (rc == ZEROD_OK)
		rc = release(r, CHARLM_EMBEDDING, "logits");
	if (rc == ZEROD_OK)
		rc = charlm_rank_synchronize(r);
	for (unsigned i = CHARLM_OUTPUT; i >= CHARLM_HIDDEN1 && rc == ZEROD_OK; i--)
		rc = backward_layer(r, i);
	if (rc != ZEROD_OK)
		return rc;
	r->compute_work = (struct work){.unit = CHARLM_EMBEDDING, .gradient = tied.data};
	rc = launch(r, r->compute, run_lookup_backward, &r->compute_work);
	zerod_stream *producers[] = {r->gradients, r->compute};
	return rc == ZEROD_OK ? hand_over(r, r->tied, CHARLM_EMBEDDING, &tied, producers, 2) : rc;
}

static int backward(struct rank *r, const float *embedding, bool boundary)
{
	struct zerod_backward_options options = ZEROD_INIT(options);
	options.stage = 3;
	options.boundary = boundary;
	int rc = zerod_backward_begin(r->group, &options);
	if (rc != ZEROD_OK)
		return charlm_rank_fail(r, rc, "beginning the backward", "");
	rc = backward_units(r, embedding);
	if (rc != ZEROD_OK)
		return rc;
	rc = zerod_backward_end(r->group, NULL, NULL);
	return rc == ZEROD_OK ? rc : charlm_rank_fail(r, rc, "ending the backward", "");
}

int charlm_rank_micro_step(struct rank *r, bool boundary, double *loss)
{
	const float *embedding = NULL;
	int rc = forward(r, loss, &embedding);
	if (rc == ZEROD_OK)
		rc = backward(r, embedding, boundary);
	if (rc == ZEROD_OK)
		rc = charlm_rank_synchronize(r); /* the caller may change the samples */
	return rc == ZEROD_OK ? wait_for_releases(r) : rc;
}
