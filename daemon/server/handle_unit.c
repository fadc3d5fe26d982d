/* SPDX-License-Identifier: Apache-2.0 */
/* handle_unit.c - units: registering them, updating and publishing shards, persistence of gathered copies. */
#include <string.h>

#include "base/err.h"
#include "server/handlers.h"
#include "server/session.h"

static int take_view(const Zd__View *message, struct zd_view_args *view, struct zd_err *err)
{
	if (message->n_shape > ZD_MAX_DIMS)
		return zd_err_set(err, ZEROD_E_LIMIT, "a view with %zu dimensions; at most %u",
		                  message->n_shape, ZD_MAX_DIMS);
	view->name = message->name;
	view->offset_numel = message->offset_numel;
	view->ndim = (uint32_t)message->n_shape;
	if (message->n_shape > 0)
		memcpy(view->shape, message->shape, message->n_shape * sizeof(view->shape[0]));
	return 0;
}

int zd_args_unit_register(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                          struct zd_err *err)
{
	const Zd__UnitRegister *unit = request->unit_register;
	struct zd_view_args *views = NULL;
	int rc = zd_take_count(unit->n_views, ZD_MAX_VIEWS, "views", err);

	if (rc == 0 && unit->n_views > 0)
		views = zd_arena_alloc(arena, unit->n_views * sizeof(*views));
	for (size_t i = 0; rc == 0 && i < unit->n_views; i++)
		rc = take_view(unit->views[i], &views[i], err);
	if (rc)
		return rc;
	args->kind = ZD_REQ_UNIT_REGISTER;
	args->u.unit_register.group = unit->group;
	args->u.unit_register.name = unit->name;
	args->u.unit_register.dtype = unit->dtype;
	args->u.unit_register.numel = unit->numel;
	args->u.unit_register.nviews = (uint32_t)unit->n_views;
	args->u.unit_register.views = views;
	args->u.unit_register.slot = unit->slot;
	args->u.unit_register.persistent = unit->persistent;
	args->u.unit_register.frozen = unit->frozen;
	args->u.unit_register.all_reduce = unit->all_reduce;
	args->u.unit_register.on_host = unit->on_host;
	args->u.unit_register.copied = unit->copied;
	return 0;
}

static Zd__Placed placed_of(enum zd_placed placed)
{
	switch (placed) {
	case ZD_PLACED_ON_DEVICE:
		return ZD__PLACED__ON_DEVICE;
	case ZD_PLACED_ON_HOST:
		return ZD__PLACED__ON_HOST;
	default:
		return ZD__PLACED__AS_REGISTERED;
	}
}

void zd_fill_unit_register(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__UnitRegisterReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__unit_register_reply__init(message);
	message->unit = reply->u.unit_register.unit;
	message->shard = zd_answer_location(answer, &reply->u.unit_register.shard);
	message->shard_numel = reply->u.unit_register.shard_numel;
	message->true_numel = reply->u.unit_register.true_numel;
	message->padded_numel = reply->u.unit_register.padded_numel;
	message->version = reply->u.unit_register.version;
	message->target_offset_numel = reply->u.unit_register.target_offset_numel;
	message->description = reply->u.unit_register.description;
	message->placed = placed_of(reply->u.unit_register.placed);
	answer->reply.body_case = ZD__REPLY__BODY_UNIT_REGISTER;
	answer->reply.unit_register = message;
}

int zd_args_units_resume(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                         struct zd_err *err)
{
	const Zd__UnitsResume *resume = request->units_resume;
	int rc = zd_take_count(resume->n_units, ZD_MAX_RESUMED, "units", err);
	bool *persistent = NULL;

	if (rc)
		return rc;
	if (resume->n_descriptions != resume->n_units ||
	    (resume->n_persistent != 0 && resume->n_persistent != resume->n_units))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "%zu descriptions and %zu persistent flags for %zu units",
		                  resume->n_descriptions, resume->n_persistent, resume->n_units);
	if (resume->n_persistent > 0)
		persistent = zd_arena_alloc(arena, resume->n_persistent * sizeof(*persistent));
	for (size_t i = 0; i < resume->n_persistent; i++)
		persistent[i] = resume->persistent[i];
	args->kind = ZD_REQ_UNITS_RESUME;
	args->u.units_resume.group = resume->group;
	args->u.units_resume.nunits = (uint32_t)resume->n_units;
	args->u.units_resume.units = resume->units;
	args->u.units_resume.descriptions = resume->descriptions;
	args->u.units_resume.persistent = persistent;
	return 0;
}

/* Sends the segments before the reply, in as many packets as their descriptors need. */
static void announce(struct zd_answer *answer, const struct zd_resumed_unit *units, uint32_t count)
{
	uint32_t last = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t segment = units[i].shard.segment;

		if (segment == 0 || segment == last)
			continue;
		last = segment;
		if (zd_api_session_announce(answer->session, segment) == 0)
			continue;
		answer->segments[answer->nsegments++] = segment; /* which fails again, with its text */
		return;
	}
}

void zd_fill_units_resume(const struct zd_reply *reply, struct zd_answer *answer)
{
	const struct zd_resumed_unit *units = reply->u.units_resume.units;
	uint32_t count = reply->u.units_resume.nunits;
	Zd__UnitsResumeReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__units_resume_reply__init(message);
	message->n_segments = message->n_offsets = message->n_versions = count;
	message->n_target_offsets_numel = count;
	message->segments = zd_arena_alloc(answer->arena, count * sizeof(*message->segments));
	message->offsets = zd_arena_alloc(answer->arena, count * sizeof(*message->offsets));
	message->versions = zd_arena_alloc(answer->arena, count * sizeof(*message->versions));
	message->target_offsets_numel = zd_arena_alloc(answer->arena,
	                                               count * sizeof(*message->target_offsets_numel));
	message->placed = zd_arena_alloc(answer->arena, count * sizeof(*message->placed));
	for (uint32_t i = 0; i < count; i++) {
		message->placed[i] = placed_of(units[i].placed);
		if (units[i].placed != ZD_PLACED_AS_REGISTERED)
			message->n_placed = count;
		message->segments[i] = units[i].shard.segment;
		message->offsets[i] = units[i].shard.offset;
		message->versions[i] = units[i].version;
		message->target_offsets_numel[i] = units[i].target_offset_numel;
	}
	announce(answer, units, count);
	answer->reply.body_case = ZD__REPLY__BODY_UNITS_RESUME;
	answer->reply.units_resume = message;
}

int zd_args_unit_unregister(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                            struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_UNIT_UNREGISTER;
	args->u.unit = request->unit_unregister->unit;
	return 0;
}

int zd_args_update_begin(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                         struct zd_err *err)
{
	const Zd__UpdateBegin *update = request->update_begin;
	int rc = zd_take_count(update->n_units, ZD_MAX_UNITS_PER_REQUEST, "units", err);

	(void)arena;
	if (rc)
		return rc;
	args->kind = ZD_REQ_UPDATE_BEGIN;
	args->u.publish.nunits = (uint32_t)update->n_units;
	args->u.publish.units = update->units;
	args->u.publish.ahead = update->ahead;
	args->u.publish.await_leases = update->await_leases;
	return 0;
}

void zd_fill_update_begin(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__UpdateBeginReply *message;

	if (reply->u.update_begin.value == 0)
		return;
	message = zd_arena_alloc(answer->arena, sizeof(*message));
	zd__update_begin_reply__init(message);
	message->n_fences = 1;
	message->fences = zd_answer_fences(answer, &reply->u.update_begin, 1);
	answer->reply.body_case = ZD__REPLY__BODY_UPDATE_BEGIN;
	answer->reply.update_begin = message;
}

int zd_args_publish(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                    struct zd_err *err)
{
	const Zd__Publish *publish = request->publish;
	int rc = zd_take_count(publish->n_units, ZD_MAX_UNITS_PER_REQUEST, "units", err);

	if (rc == 0)
		rc = zd_take_fences(publish->fences, publish->n_fences, arena, &args->u.publish.fences, err);
	if (rc)
		return rc;
	args->kind = ZD_REQ_PUBLISH;
	args->u.publish.nunits = (uint32_t)publish->n_units;
	args->u.publish.units = publish->units;
	args->u.publish.force = publish->force;
	return 0;
}

int zd_args_set_persistent(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                           struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_SET_PERSISTENT;
	args->u.set_persistent.unit = request->set_persistent->unit;
	args->u.set_persistent.persistent = request->set_persistent->persistent;
	return 0;
}

int zd_args_set_slot(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                     struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_SET_SLOT;
	args->u.set_slot.unit = request->set_slot->unit;
	args->u.set_slot.slot = request->set_slot->slot;
	return 0;
}

int zd_args_set_frozen(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                       struct zd_err *err)
{
	uint32_t target = request->set_frozen->target;

	(void)arena;
	if (target > ZD_TARGET_NONE)
		return zd_err_set(err, ZEROD_E_INVALID, "set_frozen: target is %u", target);
	args->kind = ZD_REQ_SET_FROZEN;
	args->u.set_frozen.target = target;
	args->u.set_frozen.unit = request->set_frozen->unit;
	args->u.set_frozen.frozen = request->set_frozen->frozen;
	return 0;
}

void zd_fill_set_frozen(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__SetFrozenReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__set_frozen_reply__init(message);
	message->target_offset_numel = reply->u.set_frozen.target_offset_numel;
	message->no_target = reply->u.set_frozen.untargeted;
	answer->reply.body_case = ZD__REPLY__BODY_SET_FROZEN;
	answer->reply.set_frozen = message;
}

int zd_args_unit_place(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                       struct zd_err *err)
{
	(void)arena;
	(void)err;
	args->kind = ZD_REQ_UNIT_PLACE;
	args->u.unit_place.unit = request->unit_place->unit;
	args->u.unit_place.on_host = request->unit_place->on_host;
	return 0;
}

void zd_fill_unit_place(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__UnitPlaceReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__unit_place_reply__init(message);
	message->shard = zd_answer_location(answer, &reply->u.unit_place.shard);
	message->target_offset_numel = reply->u.unit_place.target_offset_numel;
	answer->reply.body_case = ZD__REPLY__BODY_UNIT_PLACE;
	answer->reply.unit_place = message;
}

int zd_args_unit_load(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                      struct zd_err *err)
{
	const Zd__UnitLoad *load = request->unit_load;

	args->kind = ZD_REQ_UNIT_LOAD;
	args->u.unit_load.unit = load->unit;
	args->u.unit_load.allocation = load->allocation;
	return zd_take_fences(load->fences, load->n_fences, arena, &args->u.unit_load.fences, err);
}
