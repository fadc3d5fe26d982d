/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resume.c - registers again many units of which the rank has detached parts.
 *
 * A client that continues after a restart has the ids of its units, which the journal preserves, and a digest
 * of each unit's description. It therefore sends neither names nor layouts, and one request has hundreds of
 * units. A unit is resumed if its registration would succeed at once. The other units are left to
 * UNIT_REGISTER, which waits or reports the error.
 */
#include <string.h>

#include "core/gather/layout.h"
#include "core/gather/shadow.h"
#include "core/gather/unit.h"

/* ---- Digests ------------------------------------------------------------------------------------------- */

#define FNV_BASIS UINT64_C(0xCBF29CE484222325)
#define FNV_PRIME UINT64_C(0x100000001B3)

static uint64_t add_number(uint64_t hash, uint64_t number)
{
	hash = (hash ^ number) * FNV_PRIME;
	return hash ^ hash >> 32;
}

/* Includes the text's end: different lists of texts then have different bytes. */
static uint64_t add_text(uint64_t hash, const char *text)
{
	do
		hash = (hash ^ (unsigned char)*text) * FNV_PRIME;
	while (*text++);
	return hash;
}

uint64_t zd_unit_digest(const Zd__UnitRegister *wanted)
{
	uint64_t hash = add_text(FNV_BASIS, wanted->name);
	hash = add_number(hash, wanted->dtype);
	hash = add_number(hash, wanted->numel);
	hash = add_number(hash, wanted->slot);
	hash = add_number(hash, wanted->frozen);
	hash = add_number(hash, wanted->all_reduce);
	hash = add_number(hash, wanted->on_host | wanted->copied << 1 | wanted->unsaved << 2);
	hash = add_number(hash, wanted->n_views);
	for (uint32_t i = 0; i < wanted->n_views; i++) {
		const Zd__View *view = wanted->views[i];
		hash = add_text(hash, view->name);
		hash = add_number(hash, view->offset_numel);
		hash = add_number(hash, view->n_shape);
		for (uint32_t d = 0; d < view->n_shape; d++)
			hash = add_number(hash, view->shape[d]);
	}
	return hash ? hash : 1;
}

/* ---- The request --------------------------------------------------------------------------------------- */

/* The parts of one rank are far apart, each in its unit. The first access to a part therefore misses the
 * processor's caches. Here these misses overlap. */
static void find_parts(struct zd_engine *e, const struct zd_member *member, const struct zd_args *args,
                       struct zd_part *parts[ZD_MAX_RESUMED])
{
	for (uint32_t i = 0; i < args->u.units_resume.n_units; i++) {
		struct zd_unit *unit = zd_unit_find(e, args->u.units_resume.units[i]);
		parts[i] = NULL;
		if (!unit || unit->group != member->group || unit->mismatch || !unit->laid_out ||
		    unit->description != args->u.units_resume.descriptions[i])
			continue;
		parts[i] = &unit->parts[member->rank];
		for (size_t at = 0; at < sizeof(*parts[i]); at += 64)
			__builtin_prefetch((const char *)parts[i] + at, 1);
	}
	for (uint32_t i = 0; i < args->u.units_resume.n_units; i++) {
		if (parts[i])
			__builtin_prefetch(parts[i]->shard.block);
	}
}

static void resume(struct zd_engine *e, struct zd_request *req, uint32_t i, struct zd_part *part,
                   bool persistent)
{
	struct zd_location shard = zd_part_location(part);
	zd_part_move(part, ZD_PART_IDLE);
	zd_layout_enter(part);
	part->persistent = persistent;
	e->resumed.segments[i] = shard.segment;
	e->resumed.offsets[i] = shard.offset;
	e->resumed.versions[i] = part->version;
	e->resumed.target_offsets_numel[i] = part->unit->target_offset_numel;
	e->resumed.placed[i] = zd_unit_placed(part->unit);
	if (e->resumed.placed[i] != ZD__PLACED__AS_REGISTERED)
		req->u.resume.nplaced = req->u.resume.nunits;
}

static int check_lists(const Zd__UnitsResume *resume, struct zd_err *err)
{
	if (resume->n_descriptions == resume->n_units &&
	    (resume->n_persistent == 0 || resume->n_persistent == resume->n_units))
		return 0;
	return zd_err_set(err, ZEROD_E_INVALID, "%zu descriptions and %zu persistent flags for %zu units",
	                  resume->n_descriptions, resume->n_persistent, resume->n_units);
}

static int resume_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *parts[ZD_MAX_RESUMED];
	struct zd_member *member;
	int status = check_lists(&req->args->u.units_resume, err);
	if (status == 0)
		status = zd_member_find(e, req->session, req->args->u.units_resume.group, &member, err);
	if (status == 0 && member->group->state == ZD_GROUP_ABORTED)
		status = zd_group_check(member->group, err);
	if (status != 0)
		return status;
	zd_request_set_member(req, member);
	req->u.resume.nunits = req->args->u.units_resume.n_units;
	memset(&e->resumed, 0, sizeof(e->resumed));
	find_parts(e, member, req->args, parts);
	for (uint32_t i = 0; i < req->args->u.units_resume.n_units; i++) {
		struct zd_part *part = parts[i];
		if (!part || part->state != ZD_PART_DETACHED || zd_shadow_is_owed(part))
			continue;
		resume(e, req, i, part,
		       req->args->u.units_resume.n_persistent > 0 && req->args->u.units_resume.persistent[i]);
	}
	zd_dirty_group(e, member->group);
	return 0;
}

static int resume_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	Zd__UnitsResumeReply *reply = &e->reply.u.units_resume;
	(void)err;
	reply->n_segments = reply->n_offsets = reply->n_versions = req->u.resume.nunits;
	reply->n_target_offsets_numel = req->u.resume.nunits;
	reply->n_placed = req->u.resume.nplaced;
	reply->segments = e->resumed.segments;
	reply->offsets = e->resumed.offsets;
	reply->versions = e->resumed.versions;
	reply->target_offsets_numel = e->resumed.target_offsets_numel;
	reply->placed = e->resumed.placed;
	return 0;
}

const struct zd_request_type zd_req_units_resume = {.begin = resume_begin, .attempt = resume_attempt};
