/* SPDX-License-Identifier: Apache-2.0 */
/* update.c - writing shards: update_begin, publish, commit. All calls are rejected while the session is
 * poisoned. */
#include "client/lib/calls/update.h"

#include <errno.h>
#include <stdlib.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/errors.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"
#include "client/lib/streams/stream.h"

/* With the lock. Marks the unit with the number of the list. */
static int list_unit(struct zc_unit_list *list, struct zc_unit *unit, uint32_t index, struct zd_err *err)
{
	if (unit->listed == list->client->nlists)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s' is given twice", unit->name);
	unit->listed = list->client->nlists;
	list->ids[index] = unit->id;
	return 0;
}

int zc_units_take(zerod_unit *const *units, uint32_t count, struct zc_unit_list *list, struct zd_err **err)
{
	struct zerod_client *client;
	int rc;

	if (!units || count == 0)
		return zd_err_set(*err = zc_err(NULL), ZEROD_E_INVALID, "units is %s, count is %u",
		                  units ? "given" : "NULL", count);
	client = zc_unit_client(units[0]);
	rc = zc_enter_group(zc_unit_group(units[0]), err);
	if (rc)
		return rc;
	if (count > ZD_MAX_UNITS_PER_REQUEST)
		return zd_err_set(*err, ZEROD_E_LIMIT, "%u units; at most %u", count,
		                  ZD_MAX_UNITS_PER_REQUEST);
	list->client = client;
	list->count = count;
	ZC_LOCKED(&client->lock);
	client->nlists++;
	for (uint32_t i = 0; i < count && !rc; i++) {
		if (zc_unit_client(units[i]) == client)
			rc = list_unit(list, units[i]->shared, i, *err);
		else
			rc = zd_err_set(*err, ZEROD_E_INVALID, "units[%u] is NULL or of another client", i);
	}
	return rc;
}

int zc_update_take(zerod_unit *const *units, uint32_t count, struct zc_unit_list *list, struct zd_err **err)
{
	int rc = zc_units_take(units, count, list, err);

	return rc ? rc : zc_streams_check_poison(list->client, *err);
}

/* With the lock. */
static void set_one(struct zc_unit *unit, bool updating)
{
	unit->updating = updating;
	unit->granted = false;
	unit->unawaited = false;
}

static void set_updating(struct zerod_client *client, zerod_unit *const *units, size_t count, bool updating)
{
	ZC_LOCKED(&client->lock);
	for (size_t i = 0; i < count; i++)
		set_one(units[i]->shared, updating);
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

/* Skips units whose update the daemon has granted already, to a call that failed afterwards. */
static void leave_granted_out(struct zc_unit_list *list, zerod_unit *const *units)
{
	uint32_t count = list->count;

	list->count = 0;
	ZC_LOCKED(&list->client->lock);
	for (uint32_t i = 0; i < count; i++)
		if (!units[i]->shared->granted)
			list->ids[list->count++] = list->ids[i];
}

/* ---- The units of a ticket ----------------------------------------------------------------------------- */

struct ticket_units {
	uint32_t count;
	bool shadow; /* their group has shadow shards */
	/* The fences of a publish's streams, on the client's page. Count 0: none, or too many to store. */
	struct zc_fences writers;
	struct zc_unit *each[];
};

static struct ticket_units *units_new(struct zerod_client *client, zerod_unit *const *units, uint32_t count,
                                      struct zd_err *err)
{
	struct ticket_units *list = malloc(sizeof(*list) + count * sizeof(struct zc_unit *));

	if (!list) {
		(void)zd_err_errno(err, ENOMEM, "making a ticket for %u units", count);
		return NULL;
	}
	list->count = count;
	list->writers = (struct zc_fences){.count = 0};
	list->shadow = units[0]->group->shadow;
	ZC_LOCKED(&client->lock);
	for (uint32_t i = 0; i < count; i++) {
		list->each[i] = units[i]->shared;
		list->each[i]->refs++;
	}
	return list;
}

/* With the lock. */
static void units_free(struct ticket_units *list)
{
	for (uint32_t i = 0; i < list->count; i++)
		zc_unit_unref(list->each[i]);
	free(list);
}

/* With the lock. */
static void ticket_deinit(struct zerod_client *client, struct zc_op *op)
{
	(void)client;
	units_free(op->data);
}

/* Waits until the unit's publish, if any, was answered. With the lock, which is released meanwhile. */
static int await_publish(struct zerod_client *client, struct zc_unit *unit, uint64_t deadline_ns,
                         struct zd_err *err)
{
	struct zc_op *op = unit->publishing;
	int rc = 0;

	if (!op)
		return 0;
	op->refs++;
	unit->refs++;
	rc = zc_wait_answer(client, op, deadline_ns);
	if (rc)
		rc = zd_err_set(err, rc, "waited for the publish of unit '%s'", unit->name);
	zc_unit_unref(unit);
	zc_ticket_unref(client, op);
	return rc;
}

int zc_publishes_await(struct zerod_client *client, zerod_unit *const *units, uint32_t count,
                       uint64_t deadline_ns, struct zd_err *err)
{
	int rc = 0;

	pthread_mutex_lock(&client->lock);
	for (uint32_t i = 0; i < count && !rc; i++) {
		if (!units[i]->shared->publishing)
			continue;
		pthread_mutex_unlock(&client->lock);
		zc_flush(client); /* it may be corked */
		pthread_mutex_lock(&client->lock);
		rc = await_publish(client, units[i]->shared, deadline_ns, err);
	}
	pthread_mutex_unlock(&client->lock);
	return rc;
}

/* As zc_publishes_await(), for all units of a group. */
static int await_group(zerod_group *group, uint64_t deadline_ns, struct zd_err *err)
{
	struct zerod_client *client = group->client;
	struct zerod_unit *unit;
	int rc = 0;

	zc_flush(client);
	ZC_LOCKED(&client->lock);
	do {
		LIST_FOREACH (unit, &group->units, link)
			if (unit->shared->publishing)
				break;
		if (unit)
			rc = await_publish(client, unit->shared, deadline_ns, err);
	} while (unit && !rc); /* the list may have changed meanwhile */
	return rc;
}

/* ---- update_begin -------------------------------------------------------------------------------------- */

static void list_units(const struct zc_unit_list *list, Zd__UpdateBegin *update_begin)
{
	update_begin->n_units = list->count;
	update_begin->units = (uint64_t *)list->ids;
}

static void update_posted(struct zerod_client *client, struct zc_op *op)
{
	const struct ticket_units *units = op->data;

	(void)client;
	for (uint32_t i = 0; i < units->count; i++)
		units->each[i]->unawaited = true;
}

static int update_answered(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                           struct zd_err *err)
{
	struct ticket_units *units = op->data;
	int rc = 0;

	if (reply->body_case == ZD__REPLY__BODY_UPDATE_BEGIN)
		rc = zc_fences_take(client, reply->update_begin->n_fences, reply->update_begin->fences,
		                    &op->fences, err);
	for (uint32_t i = 0; i < units->count && !rc; i++)
		units->each[i]->granted = true;
	return rc;
}

static void update_failed(struct zerod_client *client, struct zc_op *op)
{
	struct ticket_units *units = op->data;

	(void)client;
	for (uint32_t i = 0; i < units->count; i++)
		units->each[i]->unawaited = false;
}

/* A reset may have ended the update meanwhile. */
static int update_settle(struct zerod_client *client, struct zc_op *op, zerod_stream *stream,
                         struct zc_fence_merge *copied, struct zd_err *err)
{
	struct ticket_units *units = op->data;

	(void)stream;
	(void)copied;
	(void)err;
	ZC_LOCKED(&client->lock);
	for (uint32_t i = 0; i < units->count; i++)
		if (units->each[i]->unawaited)
			set_one(units->each[i], true);
	return 0;
}

static const struct zc_ticket_type update_ticket = {
        .what = "the update of",
        .takes_stream = true,
        .posted = update_posted,
        .answered = update_answered,
        .failed = update_failed,
        .settle = update_settle,
        .deinit = ticket_deinit,
};

static int ask_for_update(const struct zc_unit_list *list, bool await_leases, uint64_t deadline_ns)
{
	Zd__UpdateBegin update_begin = ZD__UPDATE_BEGIN__INIT;
	Zd__Request request = ZD_REQUEST(UPDATE_BEGIN, update_begin, &update_begin);

	if (list->count == 0)
		return 0;
	list_units(list, &update_begin);
	update_begin.await_leases = await_leases;
	return zc_call(list->client, &request, zc_left_ms(deadline_ns), NULL, NULL);
}

/* The daemon would reject units whose update it has granted already, to a call that failed afterwards. */
static int post_update(const struct zc_unit_list *list, zerod_unit *const *units, uint32_t count,
                       bool await_leases, uint64_t deadline_ns, zerod_ticket *ticket, struct zd_err *err)
{
	Zd__UpdateBegin update_begin = ZD__UPDATE_BEGIN__INIT;
	Zd__Request request = ZD_REQUEST(UPDATE_BEGIN, update_begin, &update_begin);
	struct ticket_units *mine;

	if (list->count < count)
		return zd_err_set(err, ZEROD_E_STATE,
		                  "a call that failed has started an update of some of these units: begin it "
		                  "again without a ticket");
	mine = units_new(list->client, units, count, err);
	if (!mine)
		return ZEROD_E_SYSTEM;
	list_units(list, &update_begin);
	update_begin.ahead = true;
	update_begin.await_leases = await_leases;
	return zc_post_other(list->client, &update_ticket, mine, mine->each[0], &request,
	                     zc_left_ms(deadline_ns), ticket, err);
}

static int begin_now(struct zc_unit_list *list, zerod_unit *const *units, uint32_t count, bool await_leases,
                     uint64_t deadline_ns)
{
	int rc = ask_for_update(list, await_leases, deadline_ns);

	if (!rc)
		set_updating(list->client, units, count, true);
	return rc;
}

int zerod_update_begin(zerod_unit *const *units, uint32_t count, const struct zerod_wait_options *options,
                       zerod_ticket *ticket)
{
	uint32_t deadline_ms, flags;
	uint64_t deadline_ns;
	struct zc_unit_list list; /* large: only the used part is written */
	struct zd_err *err;
	ZC_INSIDE(units && count > 0 ? zc_unit_client(units[0]) : NULL);
	int rc = zc_update_take(units, count, &list, &err);

	if (!rc)
		rc = zc_wait_flags(options, ZEROD_WAIT_LEASES, &flags, &deadline_ms, err);
	if (rc)
		return rc;
	deadline_ns = zc_until_ns(zc_deadline_ms(list.client, deadline_ms));
	rc = zc_publishes_await(list.client, units, count, deadline_ns, err);
	if (rc)
		return rc;
	leave_granted_out(&list, units);
	return ticket ? post_update(&list, units, count, flags & ZEROD_WAIT_LEASES, deadline_ns, ticket, err)
	              : begin_now(&list, units, count, flags & ZEROD_WAIT_LEASES, deadline_ns);
}

/* ---- publish ------------------------------------------------------------------------------------------- */

static void publish_posted(struct zerod_client *client, struct zc_op *op)
{
	const struct ticket_units *units = op->data;

	(void)client;
	for (uint32_t i = 0; i < units->count; i++) {
		set_one(units->each[i], false);
		units->each[i]->publishing = op;
	}
}

/* With the lock. */
static void publish_over(struct zc_op *op)
{
	struct ticket_units *units = op->data;

	for (uint32_t i = 0; i < units->count; i++)
		if (units->each[i]->publishing == op)
			units->each[i]->publishing = NULL;
}

static int publish_answered(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                            struct zd_err *err)
{
	struct ticket_units *units = op->data;

	(void)client;
	(void)reply;
	(void)err;
	publish_over(op);
	for (uint32_t i = 0; i < units->count; i++)
		units->each[i]->version++;
	return 0;
}

/* The update is open as before, unless it was undone. */
static void publish_failed(struct zerod_client *client, struct zc_op *op)
{
	struct ticket_units *units = op->data;
	bool undone = op->status == ZEROD_E_PEER_LOST && units->shadow;

	(void)client;
	publish_over(op);
	for (uint32_t i = 0; i < units->count; i++)
		set_one(units->each[i], !undone);
}

static const struct zc_ticket_type publish_ticket = {
        .what = "the publish of",
        .posted = publish_posted,
        .answered = publish_answered,
        .failed = publish_failed,
        .deinit = ticket_deinit,
};

static void pack_publish(struct zc_unit_list *list, struct zc_fence_args *fences,
                         const struct zerod_publish_options *options, Zd__Publish *publish)
{
	publish->n_units = list->count;
	publish->units = list->ids;
	publish->n_fences = fences->count;
	publish->fences = fences->pointers;
	publish->force = options->flags & ZEROD_PUBLISH_FORCE;
}

static void keep_writers(struct ticket_units *units, const struct zc_fence_args *fences)
{
	if (fences->count > ZC_FEW_FENCES)
		return;
	units->writers.count = (unsigned)fences->count;
	for (size_t i = 0; i < fences->count; i++)
		units->writers.few[i] = (struct zc_fence){fences->fences[i].timeline,
		                                          fences->fences[i].value};
}

bool zc_publish_writers(const struct zc_unit *unit, struct zc_fence_merge *writers)
{
	const struct ticket_units *units = unit->publishing ? unit->publishing->data : NULL;

	for (unsigned i = 0; units && i < units->writers.count; i++)
		zc_fence_merge_add(writers, units->writers.few[i]);
	return units && units->writers.count > 0;
}

static int publish_now(struct zc_unit_list *list, zerod_unit *const *units, Zd__Request *request,
                       uint32_t deadline_ms)
{
	int rc = zc_call(list->client, request, deadline_ms, NULL, NULL);

	if (rc == ZEROD_E_PEER_LOST && units[0]->group->shadow)
		set_updating(list->client, units, list->count, false); /* undone: no longer ours to write */
	if (rc)
		return rc;
	ZC_LOCKED(&list->client->lock);
	for (uint32_t i = 0; i < list->count; i++) {
		units[i]->shared->version++;
		set_one(units[i]->shared, false);
	}
	return 0;
}

/* Streams of this client can still copy from the shard. Only the wait shows when they have finished. */
static int check_awaited(struct zerod_client *client, zerod_unit *const *units, size_t count,
                         struct zd_err *err)
{
	int rc = 0;
	ZC_LOCKED(&client->lock);

	for (size_t i = 0; i < count && !rc; i++)
		if (units[i]->shared->unawaited)
			rc = zd_err_set(err, ZEROD_E_STATE,
			                "unit '%s': call zerod_wait() on the ticket of its update first",
			                units[i]->shared->name);
	return rc;
}

int zc_publish(struct zc_unit_list *list, zerod_unit *const *units, zerod_stream *const *streams,
               uint32_t nstreams, const struct zerod_publish_options *options, zerod_ticket *ticket,
               struct zd_err *err)
{
	Zd__Publish publish = ZD__PUBLISH__INIT;
	Zd__Request request = ZD_REQUEST(PUBLISH, publish, &publish);
	struct zc_fence_args fences;
	struct ticket_units *mine;
	int rc = check_awaited(list->client, units, list->count, err);

	if (!rc)
		rc = zc_streams_fence(list->client, streams, nstreams, &fences, err);
	if (rc)
		return rc;
	pack_publish(list, &fences, options, &publish);
	if (!ticket)
		return publish_now(list, units, &request, options->deadline_ms);
	mine = units_new(list->client, units, (uint32_t)list->count, err);
	if (!mine)
		return ZEROD_E_SYSTEM;
	keep_writers(mine, &fences);
	return zc_post_other(list->client, &publish_ticket, mine, mine->each[0], &request,
	                     options->deadline_ms, ticket, err);
}

int zc_publish_options(struct zerod_publish_options *options, const struct zerod_publish_options *given,
                       struct zd_err *err)
{
	int rc = zc_options(options, sizeof(*options), given, "zerod_publish_options", err);

	return rc ? rc : zc_flags(options->flags, ZEROD_PUBLISH_FORCE, "zerod_publish_options", err);
}

int zerod_publish(zerod_unit *const *units, uint32_t count, zerod_stream *const *streams, uint32_t nstreams,
                  const struct zerod_publish_options *given, zerod_ticket *ticket)
{
	struct zerod_publish_options options;
	struct zc_unit_list list; /* large: only the used part is written */
	struct zd_err *err;
	ZC_INSIDE(units && count > 0 ? zc_unit_client(units[0]) : NULL);
	int rc = zc_update_take(units, count, &list, &err);

	if (!rc)
		rc = zc_publish_options(&options, given, err);
	return rc ? rc : zc_publish(&list, units, streams, nstreams, &options, ticket, err);
}

int zerod_commit(zerod_group *group, uint64_t step, const struct zerod_wait_options *options)
{
	uint32_t deadline_ms = 0;
	uint64_t deadline_ns;
	struct zerod_client *client = zc_group_client(group);
	Zd__Commit commit = ZD__COMMIT__INIT;
	Zd__Request request = ZD_REQUEST(COMMIT, commit, &commit);
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group(group, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (!rc)
		rc = zc_streams_check_poison(client, err);
	if (rc)
		return rc;
	deadline_ns = zc_until_ns(zc_deadline_ms(client, deadline_ms));
	rc = await_group(group, deadline_ns, err);
	if (rc)
		return rc;
	commit.group = group->id;
	commit.step = step;
	rc = zc_call(client, &request, zc_left_ms(deadline_ns), NULL, NULL);
	if (rc)
		return rc;
	ZC_LOCKED(&client->lock);
	group->committed_step = step;
	group->torn = false;
	return 0;
}
