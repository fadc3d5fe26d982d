/* SPDX-License-Identifier: Apache-2.0 */
/* update.c - writing shards: update_begin, publish, commit. All refused while the session is poisoned. */
#include "client/internal.h"

int zc_units_take(zerod_unit *const *units, uint32_t count, struct zc_unit_list *list, struct zd_err **err)
{
	struct zerod_client *client;
	int rc;

	if (!units || count == 0)
		return zd_err_set(*err = zc_err(NULL), ZEROD_E_INVALID, "no units are given");
	client = zc_unit_client(units[0]);
	rc = zc_enter(client, err);
	if (rc)
		return rc;
	if (count > ZD_MAX_UNITS_PER_REQUEST)
		return zd_err_set(*err, ZEROD_E_LIMIT, "%u units, the limit is %u", count,
		                  ZD_MAX_UNITS_PER_REQUEST);
	list->client = client;
	list->count = count;
	for (uint32_t i = 0; i < count; i++) {
		if (zc_unit_client(units[i]) != client)
			return zd_err_set(*err, ZEROD_E_INVALID, "units[%u] is NULL or of another client", i);
		list->ids[i] = units[i]->shared->id;
	}
	return 0;
}

int zc_update_take(zerod_unit *const *units, uint32_t count, struct zc_unit_list *list, struct zd_err **err)
{
	int rc = zc_units_take(units, count, list, err);

	return rc ? rc : zc_check_poison(list->client, *err);
}

/* With the lock. */
static void set_one(struct zc_unit *unit, bool updating)
{
	unit->updating = updating;
	unit->granted = false;
}

static void set_updating(struct zerod_client *client, zerod_unit *const *units, size_t count, bool updating)
{
	pthread_mutex_lock(&client->lock);
	for (size_t i = 0; i < count; i++)
		set_one(units[i]->shared, updating);
	pthread_mutex_unlock(&client->lock);
}

void zc_updates_reset(struct zerod_client *client)
{
	struct zerod_group *group;
	struct zerod_unit *unit;

	LIST_FOREACH (group, &client->groups, link)
		LIST_FOREACH (unit, &group->units, link)
			if (group->shadow)
				set_one(unit->shared, false);
}

/* Of what the daemon has granted to a call that failed then, it is not asked again. */
static void leave_granted_out(struct zc_unit_list *list, zerod_unit *const *units)
{
	uint32_t count = list->count;

	list->count = 0;
	pthread_mutex_lock(&list->client->lock);
	for (uint32_t i = 0; i < count; i++)
		if (!units[i]->shared->granted)
			list->ids[list->count++] = list->ids[i];
	pthread_mutex_unlock(&list->client->lock);
}

static void set_granted(struct zerod_client *client, zerod_unit *const *units, size_t count)
{
	pthread_mutex_lock(&client->lock);
	for (size_t i = 0; i < count; i++)
		units[i]->shared->granted = true;
	pthread_mutex_unlock(&client->lock);
}

static int ask_for_update(const struct zc_unit_list *list)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__UpdateBegin update_begin = ZD__UPDATE_BEGIN__INIT;

	if (list->count == 0)
		return 0;
	update_begin.n_units = list->count;
	update_begin.units = (uint64_t *)list->ids;
	request.body_case = ZD__REQUEST__BODY_UPDATE_BEGIN;
	request.update_begin = &update_begin;
	return zc_call(list->client, &request, 0, NULL, NULL);
}

int zerod_update_begin(zerod_unit *const *units, uint32_t count)
{
	struct zc_unit_list list = {.count = 0};
	struct zd_err *err;
	int rc = zc_update_take(units, count, &list, &err);

	if (rc)
		return rc;
	leave_granted_out(&list, units);
	rc = ask_for_update(&list);
	if (rc)
		return rc;
	set_granted(list.client, units, count);
	rc = zc_own_slices_settle(list.client, units, count, err);
	if (!rc)
		set_updating(list.client, units, count, true);
	return rc;
}

static int send_publish(struct zc_unit_list *list, struct zc_fence_args *fences, uint32_t flags)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Publish publish = ZD__PUBLISH__INIT;

	publish.n_units = list->count;
	publish.units = list->ids;
	publish.n_fences = fences->count;
	publish.fences = fences->pointers;
	publish.force = flags & ZEROD_PUBLISH_FORCE;
	request.body_case = ZD__REQUEST__BODY_PUBLISH;
	request.publish = &publish;
	return zc_call(list->client, &request, 0, NULL, NULL);
}

int zc_publish(struct zc_unit_list *list, zerod_unit *const *units, zerod_stream *const *streams,
               uint32_t nstreams, uint32_t flags, struct zd_err *err)
{
	struct zc_fence_args fences;
	int rc = zc_streams_fence(list->client, streams, nstreams, &fences, err);

	if (rc)
		return rc;
	rc = send_publish(list, &fences, flags);
	if (rc == ZEROD_E_PEER_LOST && units[0]->group->shadow)
		set_updating(list->client, units, list->count, false); /* undone: no longer ours to write */
	if (rc)
		return rc;
	pthread_mutex_lock(&list->client->lock);
	for (uint32_t i = 0; i < list->count; i++) {
		units[i]->shared->version++;
		set_one(units[i]->shared, false);
	}
	pthread_mutex_unlock(&list->client->lock);
	return 0;
}

int zerod_publish(zerod_unit *const *units, uint32_t count, zerod_stream *const *streams, uint32_t nstreams,
                  uint32_t flags)
{
	struct zc_unit_list list = {.count = 0};
	struct zd_err *err;
	int rc = zc_update_take(units, count, &list, &err);

	if (!rc)
		rc = zc_flags(flags, ZEROD_PUBLISH_FORCE, "zerod_publish", err);
	return rc ? rc : zc_publish(&list, units, streams, nstreams, flags, err);
}

int zerod_commit(zerod_group *group, uint64_t step)
{
	struct zerod_client *client = zc_group_client(group);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Commit commit = ZD__COMMIT__INIT;
	struct zd_err *err;
	int rc = zc_enter(client, &err);

	if (!rc)
		rc = zc_check_poison(client, err);
	if (rc)
		return rc;
	commit.group = group->id;
	commit.step = step;
	request.body_case = ZD__REQUEST__BODY_COMMIT;
	request.commit = &commit;
	rc = zc_call(client, &request, 0, NULL, NULL);
	if (rc)
		return rc;
	pthread_mutex_lock(&client->lock);
	group->committed_step = step;
	group->torn = false;
	pthread_mutex_unlock(&client->lock);
	return 0;
}
