/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.c - the optimizer's step: what the ranks agree on, and this rank's reduced gradients.
 *
 * The flat target is bound to the group between step_begin and step_end; each unit has its slice of it.
 */
#include "client/internal.h"

struct stepping {
	struct zerod_group *group;
	struct zerod_step_info *info;
	struct zd_err *err;
};

/* With the lock. A group whose units are all frozen has no target: segment 0. */
static int bind_target(const struct stepping *stepping, const Zd__StepBeginReply *reply)
{
	struct zerod_group *group = stepping->group;
	size_t align = zerod_dtype_bytes((enum zerod_dtype)reply->target_dtype);
	struct zc_location target = {.segment = 0};
	int rc = 0;

	if (reply->target && reply->target->segment != 0) {
		if (align == 0)
			return zd_err_set(stepping->err, ZEROD_E_PROTOCOL, "the daemon's target has dtype %u",
			                  reply->target_dtype);
		rc = zc_location_take(group->client, reply->target, 0, align, &target, stepping->err);
	}
	if (rc)
		return rc;
	group->target = target;
	group->target_dtype = (enum zerod_dtype)reply->target_dtype;
	group->target_bound = true;
	group->target_in_doubt = false;
	return 0;
}

static int take_step(const Zd__Reply *reply, void *arg)
{
	struct stepping *stepping = arg;
	struct zerod_client *client = stepping->group->client;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_STEP_BEGIN, stepping->err);

	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	rc = bind_target(stepping, reply->step_begin);
	pthread_mutex_unlock(&client->lock);
	if (rc)
		return rc;
	*stepping->info = (struct zerod_step_info){
	        .step = reply->step_begin->step,
	        .overflow = reply->step_begin->overflow,
	        .norm_squared = reply->step_begin->norm_squared,
	};
	return 0;
}

int zerod_step_begin(zerod_group *group, struct zerod_step_info *info)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__StepBegin begin = ZD__STEP_BEGIN__INIT;
	struct stepping stepping = {.group = group, .info = info};
	int rc = zc_enter(client, &stepping.err);

	if (!rc && !info)
		rc = zd_err_set(stepping.err, ZEROD_E_INVALID, "info is NULL");
	if (!rc)
		rc = zc_check_poison(client, stepping.err);
	if (rc)
		return rc;
	begin.group = group->id;
	request.body_case = ZD__REQUEST__BODY_STEP_BEGIN;
	request.step_begin = &begin;
	return zc_call(client, &request, 0, take_step, &stepping);
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

int zerod_unit_target(zerod_unit *unit, struct zerod_target *target)
{
	struct zerod_client *client = zc_unit_client(unit);
	struct zc_location slice;
	struct zd_err *err;
	void *data;
	int rc = zc_enter(client, &err);

	if (rc)
		return rc;
	if (!target)
		return zd_err_set(err, ZEROD_E_INVALID, "target is NULL");
	pthread_mutex_lock(&client->lock);
	rc = find_slice(unit->group, unit->shared, &slice, err);
	if (!rc)
		rc = zc_location_map(client, &slice, &data, err);
	if (!rc)
		*target = (struct zerod_target){
		        .data = data,
		        .shard_numel = unit->shared->target_numel,
		        .true_numel = unit->shared->target_true_numel,
		        .dtype = unit->group->target_dtype,
		};
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
