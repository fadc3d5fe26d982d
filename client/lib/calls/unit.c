/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit.c - units: registration, this rank's shard, versions.
 *
 * Handles of one unit share a struct zc_unit, found by the daemon's id. The request to unregister is sent
 * only for the last handle: two parts of a program can each register a unit that they share, and each
 * unregister it. A thread that registers or unregisters a name excludes others from that name until the
 * daemon has answered. Otherwise a thread could find a unit that another thread is about to unregister.
 */
#include "client/lib/calls/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <zerod_optimizer.h>

#include "base/text.h"
#include "client/lib/base/enter.h"
#include "client/lib/base/interrupt.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/lease.h"
#include "client/lib/conn/repeat.h"
#include "client/lib/device/cuda.h"
#include "client/lib/gradients/step.h"
#include "client/lib/segments/strict.h"

void zc_unit_handle_free(struct zerod_unit *unit)
{
	struct zerod_client *client = unit->group->client;
	struct zc_unit *shared = unit->shared;

	LIST_REMOVE(unit, link);
	free(unit);
	if (--shared->handles == 0) {
		client->nlent -= shared->target_lent;
		shared->target_lent = false;
		if (shared->id) /* otherwise it is not in the table */
			HASH_DEL(client->units, shared);
		zc_leases_end(client, shared);
		zc_holds_drop(client, &shared->kept);
	}
	zc_unit_unref(shared);
}

/* ---- Names --------------------------------------------------------------------------------------------- */

/* The name of a unit that a thread is registering or unregistering. */
struct zc_naming {
	const struct zerod_group *group;
	char name[ZD_MAX_UNIT_NAME_BYTES + 1];
	LIST_ENTRY(zc_naming) link;
};

static bool is_name_taken(const struct zerod_client *client, const struct zc_naming *wanted)
{
	const struct zc_naming *naming;

	LIST_FOREACH (naming, &client->namings, link)
		if (naming->group == wanted->group && strcmp(naming->name, wanted->name) == 0)
			return true;
	return false;
}

/* Waits until no other thread has the name. */
static int naming_begin(struct zc_naming *naming, const struct zerod_group *group, const char *name,
                        uint64_t deadline_ns, struct zd_err *err)
{
	struct zerod_client *client = group->client;
	uint64_t ask_ns = zc_ask_from(client);
	int rc = 0;

	naming->group = group;
	memcpy(naming->name, name, strlen(name) + 1); /* its length was checked */
	zc_flush(client);
	pthread_mutex_lock(&client->lock);
	while (!rc && is_name_taken(client, naming))
		rc = zc_cond_await(client, &client->named, deadline_ns, &ask_ns);
	if (rc)
		(void)zd_err_set(err, rc, "waited for another thread that registers or unregisters unit '%s'",
		                 name);
	else
		LIST_INSERT_HEAD(&client->namings, naming, link);
	pthread_mutex_unlock(&client->lock);
	return rc;
}

static void naming_end(struct zc_naming *naming)
{
	struct zerod_client *client = naming->group->client;
	ZC_LOCKED(&client->lock);

	LIST_REMOVE(naming, link);
	(void)pthread_cond_broadcast(&client->named);
}

/* ---- Registration -------------------------------------------------------------------------------------- */

static int check_options(const struct zerod_unit_options *options, struct zd_err *err)
{
	int rc = zd_name_check(options->name, ZD_MAX_UNIT_NAME_BYTES, "unit name", err);

	if (!rc)
		rc = zc_reserved(options->reserved, "zerod_unit_options", err);
	if (!rc)
		rc = zc_flags(options->flags,
		              ZEROD_UNIT_PERSISTENT | ZEROD_UNIT_FROZEN | ZEROD_UNIT_ALL_REDUCE |
		                      ZEROD_UNIT_ON_HOST | ZEROD_UNIT_COPIED | ZEROD_UNIT_UNSAVED,
		              "zerod_unit_options", err);
	if (rc)
		return rc;
	if (zerod_dtype_bytes(options->dtype) == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': there is no dtype %d", options->name,
		                  (int)options->dtype);
	if (options->nviews > ZD_MAX_VIEWS)
		return zd_err_set(err, ZEROD_E_LIMIT, "unit '%s': %u views; at most %u", options->name,
		                  options->nviews, ZD_MAX_VIEWS);
	if (options->nviews > 0 && !options->views)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': views is NULL, nviews is %u",
		                  options->name, options->nviews);
	return 0;
}

static int take_view(const struct zerod_unit_options *options, uint32_t i, struct zerod_view *view,
                     struct zd_err *err)
{
	int rc = zc_element(view, sizeof(*view), options->views, i, "views", err);

	if (!rc)
		rc = zc_reserved(view->reserved, "zerod_view", err);
	if (rc)
		return rc;
	if (!view->name)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': view %u has no name", options->name, i);
	if (view->ndim > ZD_MAX_DIMS)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': view '%s' has %u dimensions; at most %u",
		                  options->name, view->name, view->ndim, ZD_MAX_DIMS);
	return 0;
}

/* Copies the views, in this library's version of the structure; owned. */
static int take_views(const struct zerod_unit_options *options, struct zerod_view **views, struct zd_err *err)
{
	struct zerod_view *copies = NULL;
	int rc = 0;

	if (options->nviews > 0) {
		copies = calloc(options->nviews, sizeof(*copies));
		if (!copies)
			return zd_err_errno(err, ENOMEM, "registering unit '%s'", options->name);
	}
	for (uint32_t i = 0; i < options->nviews && !rc; i++)
		rc = take_view(options, i, &copies[i], err);
	if (rc)
		free(copies);
	else
		*views = copies;
	return rc;
}

/* Returns the views for a message, in one allocation: the pointers, then the views. NULL: no memory. */
static Zd__View **pack_views(const struct zerod_view *given, uint32_t count)
{
	Zd__View **pointers = calloc(count, sizeof(Zd__View *) + sizeof(Zd__View));
	Zd__View *views = (Zd__View *)(pointers + count);

	if (!pointers)
		return NULL;
	for (uint32_t i = 0; i < count; i++) {
		const struct zerod_view *from = &given[i];

		zd__view__init(&views[i]);
		views[i].name = (char *)from->name;
		views[i].offset_numel = from->offset_numel;
		views[i].n_shape = from->ndim;
		views[i].shape = (uint64_t *)from->shape;
		pointers[i] = &views[i];
	}
	return pointers;
}

struct registration {
	struct zerod_group *group;
	const struct zerod_unit_options *options;
	uint64_t deadline_ns;
	struct zd_err *err;
	struct zc_unit *shared; /* made before the request: after it, no allocation may fail */
	struct zerod_unit *unit;
};

/* Checks the reply's numbers against the request, because they are used in products and as lengths. */
static int check_reply(const struct zerod_group *group, const struct zc_unit *unit,
                       const Zd__UnitRegisterReply *reply, struct zd_err *err)
{
	uint64_t nshards = group->nshards;
	uint64_t limit = ZD_MAX_BYTES / zerod_dtype_bytes(unit->dtype);

	if (reply->shard_numel == 0 || reply->shard_numel > limit / nshards ||
	    reply->padded_numel != nshards * reply->shard_numel || reply->true_numel > reply->shard_numel ||
	    reply->target_offset_numel > limit)
		return zd_err_set(
		        err, ZEROD_E_PROTOCOL,
		        "unit '%s': the daemon's shard of %llu elements, %llu with padding, does not fit "
		        "shard %llu of %llu",
		        unit->name, (unsigned long long)reply->shard_numel,
		        (unsigned long long)reply->padded_numel, (unsigned long long)group->shard,
		        (unsigned long long)nshards);
	return 0;
}

/* A moved unit can be in another place than its registration has. */
static bool is_on_host(const struct zc_unit *unit, Zd__Placed placed)
{
	if (placed == ZD__PLACED__ON_DEVICE || placed == ZD__PLACED__ON_HOST)
		return placed == ZD__PLACED__ON_HOST;
	return unit->first_on_host;
}

int zc_unit_place(struct zerod_group *group, struct zc_unit *unit, const Zd__UnitRegisterReply *reply,
                  struct zd_err *err)
{
	struct zerod_client *client = group->client;
	int rc = check_reply(group, unit, reply, err);

	if (rc)
		return rc;
	unit->shard_numel = reply->shard_numel;
	unit->true_numel = reply->true_numel;
	unit->padded_numel = reply->padded_numel;
	unit->offset_numel = group->shard * reply->shard_numel;
	unit->target_offset_numel = reply->target_offset_numel;
	unit->target_numel = unit->all_reduce ? unit->padded_numel : unit->shard_numel;
	unit->target_true_numel = unit->all_reduce ? unit->numel : unit->true_numel;
	unit->version = reply->version;
	unit->on_host = is_on_host(unit, reply->placed);
	rc = zc_location_take(client, reply->shard, zc_unit_shard_bytes(unit), zerod_dtype_bytes(unit->dtype),
	                      &unit->shard, err);
	if (rc)
		return rc;
	unit->description = reply->description;
	unit->id = reply->unit;
	HASH_ADD(hh, client->units, id, sizeof(unit->id), unit);
	if (unit->hh.tbl)
		return 0;
	unit->id = 0;
	return zd_err_errno(err, ENOMEM, "registering unit '%s'", unit->name);
}

/* Fills a unit that is new to the client. With the lock. */
static void fill_unit(struct zc_unit *unit, const struct zerod_unit_options *options)
{
	unit->dtype = options->dtype;
	unit->numel = options->numel;
	unit->all_reduce = options->flags & ZEROD_UNIT_ALL_REDUCE;
	unit->first_on_host = options->flags & ZEROD_UNIT_ON_HOST;
	unit->frozen = options->flags & ZEROD_UNIT_FROZEN;
	unit->persistent = options->flags & ZEROD_UNIT_PERSISTENT;
	unit->slot = options->slot;
	unit->first_frozen = unit->frozen;
	unit->first_persistent = unit->persistent;
	unit->first_slot = unit->slot;
	memcpy(unit->name, options->name, strlen(options->name) + 1); /* its length was checked */
}

/* Finds the shared unit of the daemon's id, or adds it. With the lock. */
static int adopt_unit(struct registration *registration, const Zd__UnitRegisterReply *reply,
                      struct zd_err *err)
{
	struct zerod_client *client = registration->group->client;
	struct zc_unit *unit;
	int rc;

	HASH_FIND(hh, client->units, &reply->unit, sizeof(reply->unit), unit);
	if (!unit) {
		unit = registration->shared;
		fill_unit(unit, registration->options);
		rc = zc_unit_place(registration->group, unit, reply, err);
		if (rc)
			return rc;
		registration->shared = NULL;
	} else if (registration->group->shadow) {
		unit->version = reply->version; /* it may have been set back */
	}
	unit->refs++;
	unit->handles++;
	registration->unit->group = registration->group;
	registration->unit->shared = unit;
	LIST_INSERT_HEAD(&registration->group->units, registration->unit, link);
	return 0;
}

static int take_registration(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct registration *registration = object;
	struct zerod_client *client = registration->group->client;
	ZC_LOCKED(&client->lock);

	return adopt_unit(registration, reply->unit_register, err);
}

static int send_registration(struct registration *registration)
{
	const struct zerod_unit_options *options = registration->options;
	Zd__UnitRegister unit_register = ZD__UNIT_REGISTER__INIT;
	Zd__Request request = ZD_REQUEST(UNIT_REGISTER, unit_register, &unit_register);
	Zd__View **views = NULL;
	int rc;

	if (options->views) {
		views = pack_views(options->views, options->nviews);
		if (!views)
			return zd_err_errno(registration->err, ENOMEM, "registering unit '%s'",
			                    options->name);
	}
	unit_register.group = registration->group->id;
	unit_register.name = (char *)options->name;
	unit_register.dtype = options->dtype;
	unit_register.numel = options->numel;
	unit_register.n_views = options->nviews;
	unit_register.views = views;
	unit_register.slot = options->slot;
	unit_register.persistent = options->flags & ZEROD_UNIT_PERSISTENT;
	unit_register.frozen = (options->flags & ZEROD_UNIT_FROZEN) != 0;
	unit_register.all_reduce = (options->flags & ZEROD_UNIT_ALL_REDUCE) != 0;
	unit_register.on_host = (options->flags & ZEROD_UNIT_ON_HOST) != 0;
	unit_register.copied = (options->flags & ZEROD_UNIT_COPIED) != 0;
	unit_register.unsaved = (options->flags & ZEROD_UNIT_UNSAVED) != 0;
	rc = zc_call_take(registration->group->client, &request, zc_left_ms(registration->deadline_ns),
	                  ZD__REPLY__BODY_UNIT_REGISTER, take_registration, registration);
	request.deadline_ms = zc_deadline_ms(registration->group->client, options->deadline_ms);
	if (!rc && registration->group->joined && !registration->unit->shared->registered)
		registration->unit->shared->registered = zc_request_keep(registration->group->client,
		                                                         &request);
	free(views);
	return rc;
}

static int register_named(struct registration *registration)
{
	const struct zerod_unit_options *options = registration->options;
	struct zerod_client *client = registration->group->client;
	struct zc_naming naming;
	int rc;

	registration->deadline_ns = zc_until_ns(zc_deadline_ms(client, options->deadline_ms));
	rc = naming_begin(&naming, registration->group, options->name, registration->deadline_ns,
	                  registration->err);
	if (rc)
		return rc;
	rc = send_registration(registration);
	naming_end(&naming);
	return rc;
}

int zerod_unit_register(zerod_group *group, const struct zerod_unit_options *given, zerod_unit **unit)
{
	struct registration registration = {.group = group};
	struct zerod_unit_options options;
	struct zerod_view *views = NULL;
	ZC_INSIDE(zc_group_client(group));
	int rc = zc_enter_group(group, &registration.err);

	if (!rc && (!given || !unit))
		rc = zd_err_set(registration.err, ZEROD_E_INVALID, "options or unit is NULL");
	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_unit_options", registration.err);
	if (!rc)
		rc = check_options(&options, registration.err);
	if (!rc)
		rc = take_views(&options, &views, registration.err);
	if (rc)
		return rc;
	options.views = views;
	registration.options = &options;
	registration.shared = calloc(1, sizeof(*registration.shared));
	registration.unit = calloc(1, sizeof(*registration.unit));
	if (registration.shared && registration.unit)
		rc = register_named(&registration);
	else
		rc = zd_err_errno(registration.err, ENOMEM, "registering unit '%s'", options.name);
	if (rc)
		free(registration.unit);
	else
		*unit = registration.unit;
	free(registration.shared);
	free(views);
	return rc;
}

/* With its name: the last handle. */
static int give_up_unit(zerod_unit *unit, uint64_t deadline_ns, struct zd_err *err)
{
	struct zerod_client *client = unit->group->client;
	Zd__UnitUnregister unit_unregister = ZD__UNIT_UNREGISTER__INIT;
	Zd__Request request = ZD_REQUEST(UNIT_UNREGISTER, unit_unregister, &unit_unregister);
	int rc = zc_cuda_copies_finish(client, err);

	if (!rc)
		rc = zc_step_await(unit->group, 0, deadline_ns, err);
	if (rc)
		return rc;
	unit_unregister.unit = unit->shared->id;
	return zc_call(client, &request, zc_left_ms(deadline_ns), NULL, NULL);
}

int zerod_unit_unregister(zerod_unit *unit, const struct zerod_wait_options *options)
{
	uint32_t deadline_ms;
	uint64_t deadline_ns;
	struct zerod_client *client = zc_unit_client(unit);
	struct zc_naming naming;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_group_quietly(zc_unit_group(unit), &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (rc)
		return rc;
	deadline_ns = zc_until_ns(zc_deadline_ms(client, deadline_ms));
	rc = naming_begin(&naming, unit->group, unit->shared->name, deadline_ns, err);
	if (rc)
		return rc;
	if (unit->shared->handles == 1) /* no other thread changes it meanwhile */
		rc = give_up_unit(unit, deadline_ns, err);
	if (!rc) {
		pthread_mutex_lock(&client->lock);
		zc_unit_handle_free(unit);
		pthread_mutex_unlock(&client->lock);
	}
	naming_end(&naming);
	return rc;
}

int zerod_shard_get(zerod_unit *unit, struct zerod_shard *shard)
{
	struct zerod_client *client = zc_unit_client(unit);
	struct zd_err *err;
	void *data;
	ZC_INSIDE(client);
	int rc = zc_enter_group_quietly(zc_unit_group(unit), &err);

	if (!rc)
		rc = zc_result_check(shard, "shard", err);
	if (rc)
		return rc;
	ZC_LOCKED(&client->lock);
	rc = zc_location_map(client, &unit->shared->shard, &data, err);
	if (!rc)
		zc_result_fill(shard,
		               &(struct zerod_shard){
		                       .data = data,
		                       .shard_numel = unit->shared->shard_numel,
		                       .true_numel = unit->shared->true_numel,
		                       .offset_numel = unit->shared->offset_numel,
		                       .version = unit->shared->version,
		                       .padded_numel = unit->shared->padded_numel,
		                       .dtype = unit->shared->dtype,
		                       .flags = unit->shared->on_host ? ZEROD_UNIT_ON_HOST : 0,
		               },
		               sizeof(*shard));
	return rc;
}

/* The library treats the unit as persistent for at least as long as the daemon does: from before the request
 * until the daemon has answered that the unit no longer is. */
static int set_persistent(zerod_unit *unit, bool persistent, struct zd_err *err)
{
	struct zerod_client *client = unit->group->client;
	Zd__SetPersistent set_persistent = ZD__SET_PERSISTENT__INIT;
	Zd__Request request = ZD_REQUEST(SET_PERSISTENT, set_persistent, &set_persistent);
	bool was_persistent;
	int rc = 0;

	pthread_mutex_lock(&client->lock);
	was_persistent = unit->shared->persistent;
	if (persistent)
		rc = zc_leases_keep(client, unit->shared, err);
	if (!rc)
		unit->shared->persistent = was_persistent || persistent;
	pthread_mutex_unlock(&client->lock);
	if (rc)
		return rc;
	set_persistent.unit = unit->shared->id;
	set_persistent.persistent = persistent;
	rc = zc_call(client, &request, 0, NULL, NULL);
	if (rc == ZEROD_E_FORKED || (rc ? was_persistent || !persistent : persistent))
		return rc;
	ZC_LOCKED(&client->lock);
	unit->shared->persistent = false;
	zc_holds_drop(client, &unit->shared->kept);
	return rc;
}

int zerod_unit_set_persistent(zerod_unit *unit, int persistent)
{
	struct zd_err *err;
	ZC_INSIDE(zc_unit_client(unit));
	int rc = persistent ? zc_enter_group(zc_unit_group(unit), &err)
	                    : zc_enter_group_quietly(zc_unit_group(unit), &err); /* it frees */

	return rc ? rc : set_persistent(unit, persistent != 0, err);
}

static int set_slot(zerod_unit *unit, uint32_t slot)
{
	struct zerod_client *client = unit->group->client;
	Zd__SetSlot set_slot = ZD__SET_SLOT__INIT;
	Zd__Request request = ZD_REQUEST(SET_SLOT, set_slot, &set_slot);
	int rc;

	set_slot.unit = unit->shared->id;
	set_slot.slot = slot;
	rc = zc_call(client, &request, 0, NULL, NULL);
	if (rc)
		return rc;
	ZC_LOCKED(&client->lock); /* a persistent copy is no longer in its former place */
	zc_holds_drop(client, &unit->shared->kept);
	unit->shared->slot = slot;
	return 0;
}

int zerod_unit_set_slot(zerod_unit *unit, uint32_t slot)
{
	struct zd_err *err;
	ZC_INSIDE(zc_unit_client(unit));
	int rc = zc_enter_group(zc_unit_group(unit), &err);

	return rc ? rc : set_slot(unit, slot);
}

struct freezing {
	struct zc_unit *unit;
	struct zerod_client *client;
	bool frozen;
	bool untargeted; /* is asked for */
};

static int take_frozen(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	struct freezing *freezing = object;
	uint64_t limit = ZD_MAX_BYTES / zerod_dtype_bytes(freezing->unit->dtype);

	if (reply->set_frozen->target_offset_numel > limit)
		return zd_err_set(
		        err, ZEROD_E_PROTOCOL, "unit '%s': the daemon has its target at element %llu",
		        freezing->unit->name, (unsigned long long)reply->set_frozen->target_offset_numel);
	if (freezing->untargeted && !reply->set_frozen->no_target)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "the daemon is older than sums without a place in the target");
	ZC_LOCKED(&freezing->client->lock);
	freezing->unit->frozen = freezing->frozen;
	freezing->unit->untargeted = reply->set_frozen->no_target;
	freezing->unit->target_offset_numel = reply->set_frozen->target_offset_numel;
	return 0;
}

static int set_frozen(zerod_unit *unit, bool frozen, enum zd_target_change target, struct zd_err *err)
{
	struct freezing freezing = {.client = unit->group->client,
	                            .unit = unit->shared,
	                            .frozen = frozen,
	                            .untargeted = target == ZD_TARGET_NONE};
	Zd__SetFrozen set_frozen = ZD__SET_FROZEN__INIT;
	Zd__Request request = ZD_REQUEST(SET_FROZEN, set_frozen, &set_frozen);
	uint64_t deadline_ns = zc_default_ns(freezing.client);
	int rc = zc_step_await(unit->group, 0, deadline_ns, err);

	if (rc)
		return rc;
	set_frozen.unit = unit->shared->id;
	set_frozen.frozen = frozen;
	set_frozen.target = target;
	return zc_call_take(freezing.client, &request, zc_left_ms(deadline_ns), ZD__REPLY__BODY_SET_FROZEN,
	                    take_frozen, &freezing);
}

int zerod_unit_set_frozen(zerod_unit *unit, int frozen)
{
	struct zd_err *err;
	ZC_INSIDE(zc_unit_client(unit));
	int rc = zc_enter_group(zc_unit_group(unit), &err);

	return rc ? rc : set_frozen(unit, frozen != 0, ZD_TARGET_KEEP, err);
}

int zerod_unit_set_target(zerod_unit *unit, int target)
{
	struct zd_err *err;
	ZC_INSIDE(zc_unit_client(unit));
	int rc = zc_enter_group(zc_unit_group(unit), &err);

	return rc ? rc
	          : set_frozen(unit, unit->shared->frozen, target ? ZD_TARGET_TAKE : ZD_TARGET_NONE, err);
}

/* ---- After a restart ----------------------------------------------------------------------------------- */

/* Restores the unit's last settings. */
int zc_unit_set_again(struct zerod_unit *unit, struct zd_err *err)
{
	const struct zc_unit *shared = unit->shared;
	int rc = 0;

	if (shared->persistent != shared->first_persistent)
		rc = set_persistent(unit, shared->persistent, err);
	if (!rc && shared->slot != shared->first_slot)
		rc = set_slot(unit, shared->slot);
	if (!rc && shared->frozen != shared->first_frozen)
		rc = set_frozen(unit, shared->frozen, ZD_TARGET_KEEP, err);
	return rc;
}
