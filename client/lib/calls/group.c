/* SPDX-License-Identifier: Apache-2.0 */
/* group.c - joining a group as one rank, and leaving it. */
#include "client/lib/calls/group.h"

#include <errno.h>
#include <stdlib.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/errors.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/unit.h"
#include "client/lib/conn/repeat.h"
#include "client/lib/device/cuda.h"
#include "client/lib/device/device.h"
#include "client/lib/gradients/bucket.h"

void zc_group_free(struct zerod_group *group)
{
	struct zerod_unit *unit;
	struct zerod_bucket *bucket;

	while ((unit = LIST_FIRST(&group->units)))
		zc_unit_handle_free(unit);
	while ((bucket = LIST_FIRST(&group->buckets)))
		zc_bucket_free(bucket);
	LIST_REMOVE(group, link);
	free(group->joined);
	free(group);
}

/* The device that a UUID names is `device` from here on. */
static int choose_device(struct zerod_client *client, struct zerod_group_options *options, struct zd_err *err)
{
	uint32_t device = 0;
	int rc;

	if (!options->device_uuid)
		return 0;
	rc = zc_device_find(client, options->device_uuid, &device, err);
	if (!rc && options->device != 0 && options->device != device)
		rc = zd_err_set(err, ZEROD_E_INVALID,
		                "group '%s': device is %u, and device_uuid '%s' is device %u", options->group,
		                options->device, options->device_uuid, device);
	options->device = device;
	return rc;
}

static int fill_group(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct zerod_group *group = object;

	(void)err;
	group->id = reply->group_join->group;
	group->committed_step = reply->group_join->committed_step;
	group->torn = reply->group_join->torn;
	return 0;
}

static const struct zc_kept_request *kept_join(const void *object)
{
	return ((const struct zerod_group *)object)->joined;
}

int zc_group_rejoin(struct zerod_group *group, struct zd_err *err)
{
	static const struct zc_repeat repeat = {
	        .kept = kept_join, .body = ZD__REPLY__BODY_GROUP_JOIN, .take = fill_group};
	void *object = group;
	int rc = zc_device_join(group->client, group->device, err);

	return rc ? rc : zc_requests_repeat(group, &repeat, &object, 1, err);
}

/* A group that spans daemons needs another unique id, which only the launcher can distribute to all ranks. */
static bool rejoins(const struct zerod_group_options *options)
{
	return (options->flags & ZEROD_GROUP_DURABLE) && !options->unique_id;
}

int zerod_group_join(zerod_client *client, const struct zerod_group_options *given, zerod_group **group)
{
	Zd__GroupJoin join = ZD__GROUP_JOIN__INIT;
	Zd__Request request = ZD_REQUEST(GROUP_JOIN, group_join, &join);
	struct zerod_group_options options;
	struct zerod_group *joined;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter(client, &err);

	if (!rc && (!given || !group))
		rc = zd_err_set(err, ZEROD_E_INVALID, "options or group is NULL");
	if (!rc)
		rc = zc_group_options(given, &options, err);
	if (!rc)
		rc = zc_collectives_check(client, &options, err);
	if (!rc)
		rc = choose_device(client, &options, err);
	if (!rc)
		rc = zc_device_join(client, options.device, err);
	if (rc)
		return rc;
	joined = calloc(1, sizeof(*joined));
	if (!joined)
		return zd_err_errno(err, ENOMEM, "joining group '%s'", options.group);
	join.job = (char *)options.job;
	join.group = (char *)options.group;
	join.world_size = options.world_size;
	join.rank = options.rank;
	join.device = options.device;
	join.durable = options.flags & ZEROD_GROUP_DURABLE;
	join.shadow = (options.flags & ZEROD_GROUP_SHADOW) != 0;
	zc_collectives_pack(&options, &join);
	rc = zc_call_take(client, &request, options.deadline_ms, ZD__REPLY__BODY_GROUP_JOIN, fill_group,
	                  joined);
	if (rc) {
		free(joined);
		return rc;
	}
	joined->client = client;
	joined->device = options.device;
	if (rejoins(&options))
		joined->joined = zc_request_keep(client, &request);
	zc_collectives_place(&options, joined);
	joined->shadow = options.flags & ZEROD_GROUP_SHADOW;
	pthread_mutex_lock(&client->lock);
	LIST_INSERT_HEAD(&client->groups, joined, link);
	pthread_mutex_unlock(&client->lock);
	*group = joined;
	return 0;
}

int zerod_group_leave(zerod_group *group, const struct zerod_wait_options *options)
{
	struct zerod_client *client = zc_group_client(group);
	struct zd_err *err = zc_err(client);
	uint32_t deadline_ms;
	uint64_t deadline_ns;
	Zd__GroupLeave leave = ZD__GROUP_LEAVE__INIT;
	Zd__Request request = ZD_REQUEST(GROUP_LEAVE, group_leave, &leave);
	int rc;

	if (!group)
		return 0;
	ZC_INSIDE(client);
	rc = zc_wait_options(options, &deadline_ms, err);
	if (rc)
		return rc;
	deadline_ns = zc_until_ns(zc_deadline_ms(client, deadline_ms));
	rc = zc_cuda_copies_finish(client, err);
	if (rc) /* a lost GPU copies no more */
		err->text[0] = '\0';
	if (group->id == 0 && !zc_is_forked(client)) { /* it ended with the daemon before */
		pthread_mutex_lock(&client->lock);
		zc_group_free(group);
		pthread_mutex_unlock(&client->lock);
		return 0;
	}
	leave.group = group->id;
	rc = zc_call(client, &request, zc_left_ms(deadline_ns), NULL, NULL);
	/* In a child of fork() the locks are the parent's. After the other errors the call can be
	 * repeated. */
	if (rc == ZEROD_E_FORKED || rc == ZEROD_E_DEADLINE || rc == ZEROD_E_INTERRUPTED)
		return rc;
	ZC_LOCKED(&client->lock);
	zc_group_free(group);
	return rc;
}
