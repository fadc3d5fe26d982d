/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.c - the optimizer's step: the result on which the ranks agree, and the time in which this rank may
 * access its target (target.c).
 *
 * A call that ends a step whose sums are not known yet does not wait for them. The calls that the daemon
 * would reject before then wait instead (zc_step_await()): changes of units, and a backward if the sums of
 * the step before are not known yet either.
 */
#include "client/lib/gradients/step.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/fence_wait.h"
#include "client/lib/conn/request.h"
#include "client/lib/gradients/target.h"
#include "client/lib/segments/segment.h"
#include "client/lib/streams/stream.h"

struct stepping {
	struct zerod_group *group;
	struct zerod_step_info *info;
	struct zc_fences fences; /* when the scalars can be read */
};

/* With the lock. A group whose units are all frozen has no target: segment 0. */
static int bind_target(struct zerod_group *group, const Zd__StepBeginReply *reply, struct zd_err *err)
{
	size_t align = zerod_dtype_bytes((enum zerod_dtype)reply->target_dtype);
	const Zd__Location *from[] = {reply->target, reply->host_target};
	struct zc_location targets[ZD_ARRAY_LEN(from)] = {{0}}, scalars = {.segment = 0};
	int rc = 0;

	for (unsigned i = 0; i < ZD_ARRAY_LEN(from) && !rc; i++) {
		if (!from[i] || from[i]->segment == 0)
			continue;
		if (align == 0)
			return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon's target has dtype %u",
			                  reply->target_dtype);
		rc = zc_location_take(group->client, from[i], 0, align, &targets[i], err);
	}
	if (!rc && reply->scalars && reply->scalars->segment != 0)
		rc = zc_location_take(group->client, reply->scalars, 2 * sizeof(float), sizeof(float),
		                      &scalars, err);
	if (rc)
		return rc;
	memcpy(group->targets, targets, sizeof(targets));
	group->target_dtype = (enum zerod_dtype)reply->target_dtype;
	group->scalars = scalars;
	group->target_bound = !reply->abandoned;
	group->target_in_doubt = false;
	return 0;
}

static int take_step(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct stepping *stepping = object;
	struct zerod_client *client = stepping->group->client;
	const Zd__StepBeginReply *step = reply->step_begin; /* step_get has the same in the same place */
	int rc = 0;

	if (reply->body_case == ZD__REPLY__BODY_STEP_BEGIN) {
		pthread_mutex_lock(&client->lock);
		rc = bind_target(stepping->group, step, err);
		stepping->group->stepped_ahead = false;
		if (!rc)
			rc = zc_fences_take(client, step->n_fences, step->fences, &stepping->fences, err);
		pthread_mutex_unlock(&client->lock);
	}
	if (rc)
		return rc;
	zc_result_fill(stepping->info,
	               &(struct zerod_step_info){
	                       .step = step->step,
	                       .overflow = step->overflow,
	                       .norm_squared = step->norm_squared,
	                       .abandoned = step->abandoned,
	                       .abandoned_rank = step->abandoned_rank,
	               },
	               sizeof(struct zerod_step_info));
	return 0;
}

/* ---- The ticket of a step ------------------------------------------------------------------------------ */

/* With the lock. If the rank has left the group since the request, the answer is ignored. */
static int take_promised(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                         struct zd_err *err)
{
	struct zerod_group *group = zc_group_find(client, op->group);
	int rc = 0;

	if (group) {
		rc = bind_target(group, reply->step_begin, err);
		group->stepped_ahead = true;
	}
	if (!rc)
		rc = zc_fences_take(client, reply->step_begin->n_fences, reply->step_begin->fences,
		                    &op->fences, err);
	return rc;
}

static const struct zc_ticket_type step_ticket = {
        .what = "the step's target",
        .takes_stream = true,
        .body = ZD__REPLY__BODY_STEP_BEGIN,
        .answered = take_promised,
};

int zerod_step_begin(zerod_group *group, const struct zerod_step_options *given, struct zerod_step_info *info,
                     zerod_ticket *ticket)
{
	struct zerod_step_options options;
	struct zerod_client *client = zc_group_client(group);
	Zd__StepBegin begin = ZD__STEP_BEGIN__INIT;
	Zd__Request request = ZD_REQUEST(STEP_BEGIN, step_begin, &begin);
	struct stepping stepping = {.group = group, .info = info};
	struct zd_err *err;
	uint64_t deadline_ns;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &err);

	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_step_options", err);
	if (!rc)
		rc = zc_flags(options.flags, ZEROD_STEP_SCALARS, "zerod_step_options", err);
	if (!rc && ticket && info)
		rc = zd_err_set(err, ZEROD_E_INVALID,
		                "info and ticket are both set: with a ticket info must be NULL, and "
		                "zerod_step_get() returns it");
	else if (!rc && !ticket)
		rc = zc_result_check(info, "info", err);
	if (!rc)
		rc = zc_streams_check_poison(client, err);
	if (!rc)
		rc = zc_targets_return(group, false, err);
	if (!rc)
		rc = zc_backward_report(group, err);
	if (rc)
		return rc;
	begin.group = group->id;
	begin.ahead = ticket != NULL;
	begin.scalars = options.flags & ZEROD_STEP_SCALARS;
	if (ticket) {
		request.deadline_ms = zc_deadline_ms(client, options.deadline_ms);
		return zc_post_for_group(group, &step_ticket, NULL, &request, ticket, err);
	}
	deadline_ns = zc_until_ns(zc_deadline_ms(client, options.deadline_ms));
	rc = zc_call_take(client, &request, options.deadline_ms, ZD__REPLY__BODY_STEP_BEGIN, take_step,
	                  &stepping);
	if (!rc)
		rc = zc_fences_wait(client, &stepping.fences, zc_answer_ns(deadline_ns),
		                    "the result of the step to be stored", err);
	zc_fences_deinit(&stepping.fences);
	return rc;
}

int zc_backward_report(struct zerod_group *group, struct zd_err *err)
{
	struct zerod_client *client = group->client;
	const struct zc_op *op;
	int rc = 0;
	ZC_LOCKED(&client->lock);

	if (group->backward_ending)
		zc_drain(client); /* the answer can have arrived */
	op = group->backward_ending ? zc_op_find(client, group->backward_ending) : NULL;
	if (op && op->answered && op->status == ZEROD_E_PEER_LOST) {
		rc = zd_err_set(err, op->status, "%s", op->error ? op->error : "a rank is gone");
		group->backward_ending = 0;
	}
	return rc;
}

int zerod_step_get(zerod_group *group, const struct zerod_wait_options *options, struct zerod_step_info *info)
{
	uint32_t deadline_ms = 0;
	struct zerod_client *client = zc_group_client(group);
	Zd__StepGet get = ZD__STEP_GET__INIT;
	Zd__Request request = ZD_REQUEST(STEP_GET, step_get, &get);
	struct stepping stepping = {.group = group, .info = info};
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (!rc)
		rc = zc_result_check(info, "info", err);
	if (rc)
		return rc;
	get.group = group->id;
	return zc_call_take(client, &request, deadline_ms, ZD__REPLY__BODY_STEP_GET, take_step, &stepping);
}

int zerod_step_scalars_get(zerod_group *group, struct zerod_step_scalars *scalars)
{
	struct zerod_client *client = zc_group_client(group);
	struct zd_err *err;
	void *data = NULL;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &err);

	if (!rc)
		rc = zc_result_check(scalars, "scalars", err);
	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	if (!group->target_bound || group->target_in_doubt || group->scalars.segment == 0)
		rc = zd_err_set(err, ZEROD_E_STATE,
		                "there are no scalars outside a step that was begun with ZEROD_STEP_SCALARS "
		                "and has a target");
	else
		rc = zc_location_map(client, &group->scalars, &data, err);
	pthread_mutex_unlock(&client->lock);
	if (rc)
		return rc;
	zc_result_fill(scalars,
	               &(struct zerod_step_scalars){.overflow = data, .norm_squared = (float *)data + 1},
	               sizeof(*scalars));
	return 0;
}

struct norms {
	size_t count;
	double *norms_squared;
};

static int take_norms(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	const struct norms *norms = object;

	if (reply->step_get->n_norms_squared != norms->count)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon's reply has %zu norms, expected %zu",
		                  reply->step_get->n_norms_squared, norms->count);
	memcpy(norms->norms_squared, reply->step_get->norms_squared, norms->count * sizeof(double));
	return 0;
}

int zerod_step_norms_get(zerod_group *group, zerod_unit *const *units, uint32_t count,
                         const struct zerod_wait_options *options, double *norms_squared)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__StepGet get = ZD__STEP_GET__INIT;
	Zd__Request request = ZD_REQUEST(STEP_GET, step_get, &get);
	uint64_t ids[ZD_MAX_UNITS_PER_REQUEST];
	struct norms norms = {.count = count, .norms_squared = norms_squared};
	struct zd_err *err;
	uint32_t deadline_ms = 0;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (!rc && (count == 0 || !units || !norms_squared))
		rc = zd_err_set(err, ZEROD_E_INVALID, "units or norms_squared is NULL, or count is 0");
	if (!rc && count > ZD_MAX_UNITS_PER_REQUEST)
		rc = zd_err_set(err, ZEROD_E_LIMIT, "%u units; at most %u", count, ZD_MAX_UNITS_PER_REQUEST);
	for (uint32_t i = 0; i < count && !rc; i++) {
		if (!units[i] || units[i]->group->client != client)
			rc = zd_err_set(err, ZEROD_E_INVALID, "units[%u] is %s", i,
			                units[i] ? "another client's" : "NULL");
		else
			ids[i] = units[i]->shared->id;
	}
	if (rc)
		return rc;
	get.group = group->id;
	get.n_units = count;
	get.units = ids;
	return zc_call_take(client, &request, deadline_ms, ZD__REPLY__BODY_STEP_GET, take_norms, &norms);
}

/* ---- The end ------------------------------------------------------------------------------------------- */

static void end_posted(struct zerod_client *client, struct zc_op *op)
{
	zc_group_find(client, op->group)->step_ending = op;
}

/* With the lock. */
static void end_over(struct zerod_client *client, const struct zc_op *op)
{
	struct zerod_group *group = zc_group_find(client, op->group);

	if (group && group->step_ending == op)
		group->step_ending = NULL;
	if (group && group->step_ending_before == op)
		group->step_ending_before = NULL;
}

static int end_answered(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                        struct zd_err *err)
{
	(void)reply;
	(void)err;
	end_over(client, op);
	return 0;
}

/* A step that is begun can be ended even if its group fails: its rank has left meanwhile. */
static void end_failed(struct zerod_client *client, struct zc_op *op)
{
	end_over(client, op);
}

static const struct zc_ticket_type end_type = {
        .what = "the end of a step",
        .posted = end_posted,
        .answered = end_answered,
        .failed = end_failed,
};

/* With the lock. They end in order. */
static void note_before(struct zerod_group *group)
{
	if (group->step_ending)
		group->step_ending_before = group->step_ending;
	group->step_ending = NULL;
}

int zc_step_await(zerod_group *group, uint32_t left, uint64_t deadline_ns, struct zd_err *err)
{
	struct zerod_client *client = group->client;
	struct zc_op *op;
	int rc = 0;

	pthread_mutex_lock(&client->lock);
	op = group->step_ending_before;
	if (group->step_ending && left == 0)
		op = group->step_ending;
	else if (!group->step_ending && left > 0) /* that one is the only one */
		op = NULL;
	if (op) {
		op->refs++;
		pthread_mutex_unlock(&client->lock);
		zc_flush(client); /* it may be corked */
		pthread_mutex_lock(&client->lock);
		rc = zc_wait_answer(client, op, deadline_ns); /* the daemon does not keep this deadline */
		zc_ticket_unref(client, op);
	}
	pthread_mutex_unlock(&client->lock);
	return rc ? zd_err_set(err, rc, "waited for the sums of the step that was ended") : 0;
}

int zerod_step_end(zerod_group *group, zerod_stream *const *streams, uint32_t nstreams,
                   const struct zerod_wait_options *options)
{
	uint32_t deadline_ms;
	struct zerod_client *client = zc_group_client(group);
	Zd__StepEnd end = ZD__STEP_END__INIT;
	Zd__Request request = ZD_REQUEST(STEP_END, step_end, &end);
	struct zc_fence_args fences;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group_quietly(group, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (!rc)
		rc = zc_streams_fence(client, streams, nstreams, &fences, err);
	if (rc)
		return rc;
	end.group = group->id;
	end.n_fences = fences.count;
	end.fences = fences.pointers;
	pthread_mutex_lock(&client->lock);
	note_before(group);
	pthread_mutex_unlock(&client->lock);
	if (group->target_bound && group->stepped_ahead) /* without a deadline: no call would retry */
		rc = zc_post_for_group(group, &end_type, NULL, &request, NULL, err);
	else
		rc = zc_call(client, &request, deadline_ms, NULL, NULL);
	if (rc)
		return rc;
	ZC_LOCKED(&client->lock);
	group->target_bound = false;
	zc_targets_forget(group);
	return 0;
}
