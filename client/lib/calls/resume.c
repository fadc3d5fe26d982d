/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resume.c - registers units again that the daemon has preserved across its restart, hundreds in one request.
 *
 * Each unit has the id and the sizes of its former registration, and the digest of its description shows that
 * it is the same unit. The daemon omits every unit that it cannot register at once, and all if it is older
 * than the request. The library registers these one by one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/calls/unit.h"
#include "client/lib/conn/repeat.h"
#include "client/lib/conn/request.h"

/* The units of one request. */
struct resumption {
	struct zerod_group *group;
	struct zerod_unit *units[ZD_MAX_RESUMED];
	size_t count;
	struct zc_kept_request *kept; /* owned */
};

static const struct zc_kept_request *kept_request(const void *object)
{
	return ((const struct resumption *)object)->kept;
}

/* With the lock. */
static int place(const struct resumption *resumption, const Zd__UnitsResumeReply *reply, size_t i,
                 struct zd_err *err)
{
	Zd__UnitRegisterReply registered = ZD__UNIT_REGISTER_REPLY__INIT;
	Zd__Location shard = ZD__LOCATION__INIT;
	struct zc_unit *unit = resumption->units[i]->shared;

	shard.segment = reply->segments[i];
	shard.offset = reply->offsets[i];
	shard.bytes = zc_unit_shard_bytes(unit);
	registered.unit = unit->former_id;
	registered.shard = &shard;
	registered.shard_numel = unit->shard_numel;
	registered.true_numel = unit->true_numel;
	registered.padded_numel = unit->padded_numel;
	registered.version = reply->versions[i];
	registered.target_offset_numel = reply->target_offsets_numel[i];
	registered.description = unit->description;
	registered.placed = reply->n_placed > 0 ? reply->placed[i] : ZD__PLACED__AS_REGISTERED;
	return zc_unit_place(resumption->group, unit, &registered, err);
}

static int take_resumed(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	const struct resumption *resumption = object;
	struct zerod_client *client = resumption->group->client;
	const Zd__UnitsResumeReply *resumed = reply->units_resume;
	int rc = 0;

	if (resumed->n_segments != resumption->count || resumed->n_offsets != resumption->count ||
	    resumed->n_versions != resumption->count ||
	    resumed->n_target_offsets_numel != resumption->count ||
	    (resumed->n_placed != 0 && resumed->n_placed != resumption->count))
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the daemon's reply does not have all of %zu units that were resumed",
		                  resumption->count);
	ZC_LOCKED(&client->lock);
	for (size_t i = 0; i < resumption->count && !rc; i++)
		if (resumed->segments[i] != 0)
			rc = place(resumption, resumed, i, err);
	return rc;
}

static int keep_request(struct resumption *resumption, struct zd_err *err)
{
	uint64_t ids[ZD_MAX_RESUMED], descriptions[ZD_MAX_RESUMED];
	protobuf_c_boolean persistent[ZD_MAX_RESUMED];
	Zd__UnitsResume resume = ZD__UNITS_RESUME__INIT;
	Zd__Request request = ZD_REQUEST(UNITS_RESUME, units_resume, &resume);

	for (size_t i = 0; i < resumption->count; i++) {
		const struct zc_unit *unit = resumption->units[i]->shared;

		ids[i] = unit->former_id;
		descriptions[i] = unit->description;
		persistent[i] = unit->first_persistent;
		if (unit->first_persistent)
			resume.n_persistent = resumption->count;
	}
	resume.group = resumption->group->id;
	resume.n_units = resume.n_descriptions = resumption->count;
	resume.units = ids;
	resume.descriptions = descriptions;
	resume.persistent = persistent;
	resumption->kept = zc_request_keep(resumption->group->client, &request);
	return resumption->kept ? 0 : zd_err_errno(err, ENOMEM, "registering units again");
}

static int resume_all(struct resumption *resumptions, size_t count, struct zerod_group *group,
                      struct zd_err *err)
{
	static const struct zc_repeat repeat = {
	        .kept = kept_request, .body = ZD__REPLY__BODY_UNITS_RESUME, .take = take_resumed};
	void **objects = calloc(count, sizeof(*objects));
	int rc = 0;

	if (!objects)
		return zd_err_errno(err, ENOMEM, "registering units again");
	for (size_t i = 0; i < count && !rc; i++) {
		objects[i] = &resumptions[i];
		rc = keep_request(&resumptions[i], err);
	}
	if (!rc)
		rc = zc_requests_repeat(group, &repeat, objects, count, err);
	for (size_t i = 0; i < count; i++)
		free(resumptions[i].kept);
	free(objects);
	return rc == ZEROD_E_UNSUPPORTED ? 0 : rc;
}

static int resume_units(struct zerod_group *group, struct zerod_unit *const *units, size_t count,
                        struct zd_err *err)
{
	struct resumption *resumptions, *last;
	size_t due = 0;
	int rc;

	resumptions = calloc(count / ZD_MAX_RESUMED + 1, sizeof(*resumptions));
	if (!resumptions)
		return zd_err_errno(err, ENOMEM, "registering %zu units again", count);
	for (size_t i = 0; i < count; i++) {
		const struct zc_unit *unit = units[i]->shared;

		if (unit->id != 0 || unit->former_id == 0 || unit->description == 0)
			continue;
		last = &resumptions[due++ / ZD_MAX_RESUMED];
		last->group = group;
		last->units[last->count++] = units[i];
	}
	rc = due > 0 ? resume_all(resumptions, (due - 1) / ZD_MAX_RESUMED + 1, group, err) : 0;
	free(resumptions);
	return rc;
}

/* ---- All units ----------------------------------------------------------------------------------------- */

static const struct zc_kept_request *kept_registration(const void *object)
{
	return ((const struct zerod_unit *)object)->shared->registered;
}

static int take_again(const Zd__Reply *reply, void *object, struct zd_err *err)
{
	const struct zerod_unit *unit = object;
	struct zerod_client *client = unit->group->client;
	ZC_LOCKED(&client->lock);

	return zc_unit_place(unit->group, unit->shared, reply->unit_register, err);
}

static void explain_registration(const void *object, struct zd_err *err)
{
	struct zd_err cause = *err;

	(void)zd_err_set(err, cause.status, "registering unit '%s' again: %s",
	                 ((const struct zerod_unit *)object)->shared->name, cause.text);
}

/* Lists one handle of each unit, the oldest one first. The group's list has the last handle first. */
static size_t list_once(struct zerod_group *group, struct zerod_unit **units, size_t room)
{
	struct zerod_client *client = group->client;
	struct zerod_unit *unit;
	size_t first = room;

	pthread_mutex_lock(&client->lock);
	client->nlists++;
	LIST_FOREACH (unit, &group->units, link) {
		if (unit->shared->listed == client->nlists)
			continue;
		unit->shared->listed = client->nlists;
		units[--first] = unit;
	}
	pthread_mutex_unlock(&client->lock);
	memmove(units, units + first, (room - first) * sizeof(struct zerod_unit *));
	return room - first;
}

/* Units are registered as at first, because the daemon compares that. */
static int rejoin_units(struct zerod_group *group, struct zerod_unit **units, size_t count, void **due,
                        struct zd_err *err)
{
	static const struct zc_repeat repeat = {
	        .kept = kept_registration,
	        .body = ZD__REPLY__BODY_UNIT_REGISTER,
	        .take = take_again,
	        .explain = explain_registration,
	};
	size_t ndue = 0;
	int rc = resume_units(group, units, count, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < count; i++)
		if (units[i]->shared->id == 0)
			due[ndue++] = units[i];
	rc = zc_requests_repeat(group, &repeat, due, ndue, err);
	for (size_t i = 0; i < count && !rc; i++)
		rc = zc_unit_set_again(units[i], err);
	return rc;
}

int zc_units_rejoin(struct zerod_group *group, struct zd_err *err)
{
	struct zerod_unit *unit, **units;
	size_t count = 0;
	void **due;
	int rc;

	LIST_FOREACH (unit, &group->units, link)
		count++;
	units = calloc(count + 1, sizeof(struct zerod_unit *));
	due = calloc(count + 1, sizeof(*due));
	if (units && due)
		rc = rejoin_units(group, units, list_once(group, units, count), due, err);
	else
		rc = zd_err_errno(err, ENOMEM, "registering %zu units again", count);
	free(due);
	free(units);
	return rc;
}
