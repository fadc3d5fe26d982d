/* SPDX-License-Identifier: Apache-2.0 */
/* handle_unit.c - units: registering them, updating and publishing shards, persistence of gathered copies. */
#include <string.h>

#include "base/err.h"
#include "server/handlers.h"
#include "server/session.h"

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

void zd_fill_set_frozen(const struct zd_reply *reply, struct zd_answer *answer)
{
	Zd__SetFrozenReply *message = zd_arena_alloc(answer->arena, sizeof(*message));

	zd__set_frozen_reply__init(message);
	message->target_offset_numel = reply->u.set_frozen.target_offset_numel;
	message->no_target = reply->u.set_frozen.untargeted;
	answer->reply.body_case = ZD__REPLY__BODY_SET_FROZEN;
	answer->reply.set_frozen = message;
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
