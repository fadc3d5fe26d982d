/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.c - the optimizer's step: what the ranks agree on, and this rank's reduced gradients.
 *
 * The flat target is bound to the group between step_begin and step_end; each unit has its slice of it.
 */
#include "client/internal.h"

#include <errno.h>
#include <stdlib.h>

struct stepping {
	struct zerod_group *group;
	struct zerod_step_info *info;
	Zd__Reply__BodyCase body;
	struct zd_err *err;
};

/* With the lock. A group whose units are all frozen has no target: segment 0. */
static int bind_target(struct zerod_group *group, const Zd__StepBeginReply *reply, struct zd_err *err)
{
	size_t align = zerod_dtype_bytes((enum zerod_dtype)reply->target_dtype);
	struct zc_location target = {.segment = 0};
	int rc = 0;

	if (reply->target && reply->target->segment != 0) {
		if (align == 0)
			return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon's target has dtype %u",
			                  reply->target_dtype);
		rc = zc_location_take(group->client, reply->target, 0, align, &target, err);
	}
	if (rc)
		return rc;
	group->target = target;
	group->target_dtype = (enum zerod_dtype)reply->target_dtype;
	group->target_bound = !reply->abandoned;
	group->target_in_doubt = false;
	return 0;
}

static int take_step(const Zd__Reply *reply, void *arg)
{
	struct stepping *stepping = arg;
	struct zerod_client *client = stepping->group->client;
	const Zd__StepBeginReply *step = reply->step_begin; /* step_get has the same in the same place */
	int rc = zc_check_body(reply, stepping->body, stepping->err);

	if (!rc && stepping->body == ZD__REPLY__BODY_STEP_BEGIN) {
		pthread_mutex_lock(&client->lock);
		rc = bind_target(stepping->group, step, stepping->err);
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

/* With the lock. The group may have been left since the request: the answer is of no use then. */
static int take_promised(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                         struct zd_err *err)
{
	const uint64_t *id = op->data;
	struct zerod_group *group;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_STEP_BEGIN, err);

	LIST_FOREACH (group, &client->groups, link)
		if (group->id == *id)
			break;
	if (!rc && group)
		rc = bind_target(group, reply->step_begin, err);
	if (!rc)
		rc = zc_fences_take(client, reply->step_begin->n_fences, reply->step_begin->fences,
		                    &op->fences, err);
	return rc;
}

static void free_group_id(struct zerod_client *client, struct zc_op *op)
{
	(void)client;
	free(op->data);
}

static const struct zc_ticket_type step_ticket = {
        .what = "the step's target",
        .takes_stream = true,
        .answered = take_promised,
        .deinit = free_group_id,
};

static int post_step(const struct zerod_group *group, Zd__Request *request, uint32_t deadline_ms,
                     zerod_ticket *ticket, struct zd_err *err)
{
	uint64_t *id = malloc(sizeof(*id));

	if (!id)
		return zd_err_errno(err, ENOMEM, "making a ticket for a step");
	*id = group->id;
	return zc_post_other(group->client, &step_ticket, id, request, deadline_ms, ticket, err);
}

int zerod_step_begin(zerod_group *group, const struct zerod_wait_options *options,
                     struct zerod_step_info *info, zerod_ticket *ticket)
{
	uint32_t deadline_ms = 0;
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__StepBegin begin = ZD__STEP_BEGIN__INIT;
	struct stepping stepping = {.group = group, .info = info, .body = ZD__REPLY__BODY_STEP_BEGIN};
	int rc = zc_enter(client, &stepping.err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, stepping.err);
	if (!rc && ticket && info)
		rc = zd_err_set(stepping.err, ZEROD_E_INVALID,
		                "info and ticket are given: with a ticket info must be NULL, and "
		                "zerod_step_get() has it");
	else if (!rc && !ticket)
		rc = zc_result_check(info, "info", stepping.err);
	if (!rc)
		rc = zc_check_poison(client, stepping.err);
	if (rc)
		return rc;
	begin.group = group->id;
	begin.ahead = ticket != NULL;
	request.body_case = ZD__REQUEST__BODY_STEP_BEGIN;
	request.step_begin = &begin;
	if (ticket)
		return post_step(group, &request, deadline_ms, ticket, stepping.err);
	return zc_call(client, &request, deadline_ms, take_step, &stepping);
}

int zerod_step_get(zerod_group *group, const struct zerod_wait_options *options, struct zerod_step_info *info)
{
	uint32_t deadline_ms = 0;
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__StepGet get = ZD__STEP_GET__INIT;
	struct stepping stepping = {.group = group, .info = info, .body = ZD__REPLY__BODY_STEP_GET};
	int rc = zc_enter(client, &stepping.err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, stepping.err);
	if (!rc)
		rc = zc_result_check(info, "info", stepping.err);
	if (rc)
		return rc;
	get.group = group->id;
	request.body_case = ZD__REQUEST__BODY_STEP_GET;
	request.step_get = &get;
	return zc_call(client, &request, deadline_ms, take_step, &stepping);
}

/* With the lock: the unit's slice of its group's target. */
static int find_slice(const struct zerod_group *group, const struct zc_unit *unit, struct zc_location *slice,
                      struct zd_err *err)
{
	size_t element = zerod_dtype_bytes(group->target_dtype);
	uint64_t offset_bytes, bytes;

	if (unit->frozen)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s' is frozen and has no target", unit->name);
	if (!group->target_bound)
		return zd_err_set(err, ZEROD_E_STATE, "there is no target outside step_begin and step_end");
	if (group->target_in_doubt)
		return zd_err_set(err, ZEROD_E_STATE,
		                  "there is no target until zerod_session_reset() has succeeded");
	offset_bytes = unit->target_offset_numel * element; /* both were bounded when they came */
	bytes = unit->target_numel * element;
	if (offset_bytes > group->target.bytes || bytes > group->target.bytes - offset_bytes)
		return zd_err_set(
		        err, ZEROD_E_STATE,
		        "unit '%s' was registered after the target was bound, which it has no part in",
		        unit->name);
	*slice = (struct zc_location){group->target.segment, group->target.offset + offset_bytes, bytes};
	return 0;
}

int zerod_target_get(zerod_unit *unit, struct zerod_target *target)
{
	struct zerod_client *client = zc_unit_client(unit);
	struct zc_location slice;
	struct zd_err *err;
	void *data;
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_result_check(target, "target", err);
	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	rc = find_slice(unit->group, unit->shared, &slice, err);
	if (!rc)
		rc = zc_location_map(client, &slice, &data, err);
	if (!rc)
		zc_result_fill(target,
		               &(struct zerod_target){
		                       .data = data,
		                       .shard_numel = unit->shared->target_numel,
		                       .true_numel = unit->shared->target_true_numel,
		                       .dtype = unit->group->target_dtype,
		               },
		               sizeof(*target));
	pthread_mutex_unlock(&client->lock);
	return rc;
}

int zerod_step_end(zerod_group *group, zerod_stream *const *streams, uint32_t nstreams)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__StepEnd end = ZD__STEP_END__INIT;
	struct zc_fence_args fences;
	struct zd_err *err;
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_streams_fence(client, streams, nstreams, &fences, err);
	if (rc)
		return rc;
	end.group = group->id;
	end.n_fences = fences.count;
	end.fences = fences.pointers;
	request.body_case = ZD__REQUEST__BODY_STEP_END;
	request.step_end = &end;
	rc = zc_call(client, &request, 0, NULL, NULL);
	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	group->target_bound = false;
	pthread_mutex_unlock(&client->lock);
	return 0;
}

void zc_targets_doubt(struct zerod_client *client)
{
	struct zerod_group *group;

	LIST_FOREACH (group, &client->groups, link)
		group->target_in_doubt = group->target_bound;
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
			group->target_bound = false;
		group->target_in_doubt = false;
	}
}
