/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update.c - updates of shards, and their publishes.
 *
 * update_begin closes the shards for new gathers at once. It is granted when the transfers that read them,
 * and their viewers (in_place.c), have ended. publish opens the shards again, one version higher, when the
 * writers' fences have passed. No transfer therefore reads a shard that is being written, and no gathered
 * buffer mixes versions. Both requests apply to all of their units or to none. In a group with shadows an
 * update also waits until the last commit is saved (shadow.c), and starts only while all ranks are attached.
 *
 * Viewers end without another call, because all their leases have been released. An update can therefore be
 * granted before they end, with a promise. A part is `early` until the promise is kept: its publish or load
 * waits for that. An update always waits for transfers to other ranks: streams of a process that loses its
 * connection can continue to write, and must not write a shard that a transfer reads.
 *
 * While readers have pinned a commit, an update also copies the shards that hold it into saves (save.c). It
 * can be granted before these copies end as well. With shadows it copies the shadows that hold the commit.
 */
#include <stdio.h>

#include "base/text.h"
#include "core/cluster/cluster.h"
#include "core/engine/events.h"
#include "core/engine/promise.h"
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/commit.h"
#include "core/gather/deferred.h"
#include "core/gather/gather.h"
#include "core/gather/save.h"
#include "core/gather/scope.h"
#include "core/gather/shadow.h"

#define MOST_SAVES 128u

/* ---- update_begin -------------------------------------------------------------------------------------- */

static void parts_move(struct zd_request *req, enum zd_part_state state)
{
	for (uint32_t i = 0; i < req->u.publish.nparts; i++)
		zd_part_move(req->u.publish.parts[i], state);
}

static bool is_update_taken(const struct zd_request *req, const struct zd_part *part)
{
	for (uint32_t i = 0; i < req->u.publish.nparts; i++) {
		if (req->u.publish.parts[i] == part)
			return true;
	}
	return false;
}

/* Moves the part of that unit from state `from` to `to`. `part` was found before; NULL: not found. */
static int part_take(struct zd_engine *e, struct zd_request *req, uint64_t unit, struct zd_part *part,
                     enum zd_part_state from, enum zd_part_state to, struct zd_err *err)
{
	int status = part && zd_part_is_complete(part) ? 0 : zd_part_find(e, req->session, unit, &part, err);
	if (status != 0)
		return status;
	struct zd_member *member = zd_part_member(part);
	if (!req->member)
		req->member = member;
	if (member != req->member)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s' is of another group than the first",
		                  part->unit->name);
	if (part->state == to && is_update_taken(req, part))
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s' is given twice", part->unit->name);
	if (part->state != from)
		return zd_err_set(err, ZEROD_E_STATE, "unit '%s' is %s; %s needs it %s", part->unit->name,
		                  zd_sm_name(&zd_sm_part, part->state), zd_request_name(req->kind),
		                  zd_sm_name(&zd_sm_part, (uint8_t)from));
	zd_part_move(part, to);
	req->u.publish.parts[req->u.publish.nparts++] = part;
	return 0;
}

/* Takes the parts that were found before the request began. NULL: some were not found, or one can be gone. */
static struct zd_part **take_found(const struct zd_engine *e, const struct zd_args *args)
{
	struct zd_found *found = args->found;
	if (!found || found->nparts != args->u.publish.n_units || found->serial != e->parts_serial)
		return NULL;
	struct zd_part **parts = found->parts;
	found->parts = NULL;
	return parts;
}

/* Finds all parts and moves each from state `from` to `to`. After an error all parts are unchanged. */
static int parts_take(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
                      enum zd_part_state from, enum zd_part_state to, struct zd_err *err)
{
	const uint64_t *units = args->u.publish.units;
	uint32_t nunits = args->u.publish.n_units;
	if (nunits == 0 || nunits > ZD_MAX_UNITS_PER_REQUEST)
		return zd_err_set(err, ZEROD_E_LIMIT, "%u units in one request; 1 to %u", nunits,
		                  ZD_MAX_UNITS_PER_REQUEST);
	int status = zd_session_check_poisoned(req->session, err);
	if (status != 0)
		return status;
	struct zd_part **parts = take_found(e, args);
	bool found = parts != NULL;
	if (!found)
		parts = zd_calloc(nunits, sizeof(struct zd_part *));
	req->u.publish.parts = zd_request_own(req, parts, nunits * sizeof(struct zd_part *));
	for (uint32_t i = 0; i < nunits && status == 0; i++) {
		if (!found && i % ZD_HASH_MOST == 0)
			zd_parts_find(e, req->session, &units[i],
			              (uint32_t)zd_min_u64(nunits - i, ZD_HASH_MOST), &parts[i]);
		status = part_take(e, req, units[i], parts[i], from, to, err);
	}
	if (status != 0) {
		parts_move(req, from);
		return status;
	}
	req->device = req->member->device;
	return 0;
}

/* Returns BUSY if a part has a gathered buffer with leases. With `in_place`, only if the shard is in that
 * buffer. */
static int check_leases(const struct zd_request *req, bool in_place, struct zd_err *err)
{
	for (uint32_t i = 0; i < req->u.publish.nparts; i++) {
		const struct zd_part *part = req->u.publish.parts[i];
		if (!part->buffer || TAILQ_EMPTY(&part->buffer->leases) ||
		    (in_place && !zd_buffer_is_in_place(part->buffer)))
			continue;
		char tags[128];
		zd_buffer_tags(part->buffer, tags, sizeof(tags));
		return zd_err_set(err, ZEROD_E_BUSY, "unit '%s' is held on rank %u by %s%s", part->unit->name,
		                  zd_world_rank(zd_part_member(part)), tags,
		                  zd_buffer_is_in_place(part->buffer)
		                          ? "; the shard is a part of its gathered buffer"
		                          : "");
	}
	return 0;
}

static int update_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = parts_take(e, req, req->args, ZD_PART_IDLE, ZD_PART_UPDATE_WAIT, err);
	if (status != 0)
		return status;
	status = req->args->u.update_begin.await_leases ? 0 : check_leases(req, true, err);
	if (status != 0)
		parts_move(req, ZD_PART_IDLE);
	req->u.publish.ahead = req->args->u.update_begin.ahead;
	return status;
}

/* ---- Granted ahead ------------------------------------------------------------------------------------- */

/* Whether the request waits only for viewers and copies into saves. */
static bool may_promise(const struct zd_request *req)
{
	bool may = req->u.publish.ahead && req->session->state == ZD_SESSION_OPEN &&
	           !req->member->group->shadow;
	for (uint32_t i = 0; i < req->u.publish.nparts && may; i++) {
		const struct zd_part *part = req->u.publish.parts[i];
		may = part->readers == part->viewers + zd_part_is_being_saved(part);
	}
	return may;
}

static void parts_event(struct zd_engine *e, const struct zd_request *req, enum zd_event_kind kind)
{
	struct zd_event *event = zd_event_of(e, kind, req->member);
	const struct zd_part *first = req->u.publish.parts[0];
	event->object = req->u.publish.nparts == 1 ? first->unit->id : first->unit->group->id;
	event->value = req->u.publish.nparts;
}

static const struct zd_part *find_read(const struct zd_request *req)
{
	for (uint32_t i = 0; i < req->u.publish.nparts; i++) {
		if (req->u.publish.parts[i]->readers > 0)
			return req->u.publish.parts[i];
	}
	return NULL;
}

/* No lease begins on a buffer in place while its part is UPDATE_WAIT. */
static int check_unleased(struct zd_request *req)
{
	for (uint32_t i = 0; i < req->u.publish.nparts; i++) {
		const struct zd_buffer *buffer = req->u.publish.parts[i]->buffer;
		if (!buffer || !zd_buffer_is_in_place(buffer) || TAILQ_EMPTY(&buffer->leases))
			continue;
		return zd_wait_for_unit(req, buffer->unit, ZD_WAIT_LEASES, 0, buffer->version, 0);
	}
	return 0;
}

static int wait_for_readers(struct zd_request *req, const struct zd_part *part)
{
	return zd_wait_for_unit(req, part->unit, ZD_WAIT_READERS, part->rank, part->readers, part->viewers);
}

static void set_early(struct zd_request *req, bool early)
{
	for (uint32_t i = 0; i < req->u.publish.nparts; i++)
		req->u.publish.parts[i]->early = early;
}

static void grant_ahead(struct zd_engine *e, struct zd_request *req)
{
	req->u.publish.promise = zd_promise_new(e, req->session, req->device, ZD_PROMISE_STEPS);
	e->reply.fence = req->u.publish.promise->fence;
	parts_move(req, ZD_PART_UPDATING);
	set_early(req, true);
	parts_event(e, req, ZD_EVENT_UPDATE);
	zd_request_answer(e, req);
}

static int wait_for_save(struct zd_request *req, uint32_t index)
{
	const struct zd_part *part = req->u.publish.parts[index];
	return zd_wait_for_unit(req, part->unit, ZD_WAIT_SAVE, part->rank, 0, 0);
}

/* Whether the save of the part has started, or is not needed. False: it has no memory yet. If a segment was
 * created for it and the save still has no memory, the save is missed. */
static bool save(struct zd_engine *e, struct zd_request *req, uint32_t index)
{
	uint32_t segment = e->next_segment;
	if (zd_part_save(e, req->u.publish.parts[index]))
		return true;
	bool again = segment != e->next_segment && req->u.publish.grown == index + 1;
	if (segment != e->next_segment)
		req->u.publish.grown = index + 1;
	if (again)
		zd_part_miss_save(e, req->u.publish.parts[index]);
	return again;
}

/* Starts the saves of the group's pin. Returns how many parts, from the first, have no save left to start.
 * After a broken promise, revokes the pin, because the rank's streams can write. */
static uint32_t save_pinned(struct zd_engine *e, struct zd_request *req)
{
	struct zd_group *group = req->member->group;
	uint32_t saving = 0;
	if (req->answered && !req->u.publish.promise->session)
		zd_pin_revoke(e, group);
	for (uint32_t i = 0; i < req->u.publish.nparts && group->pin.serial; i++) {
		if (saving == MOST_SAVES || !save(e, req, i))
			return i;
		saving += zd_part_is_being_saved(req->u.publish.parts[i]);
	}
	return req->u.publish.nparts;
}

/* Keeps the promise when no part has readers, whatever has happened to the parts since the reply. */
static int keep_promise(struct zd_engine *e, struct zd_request *req)
{
	uint32_t saved = save_pinned(e, req);
	const struct zd_part *part = find_read(req);
	if (saved < req->u.publish.nparts)
		return wait_for_save(req, saved);
	if (part)
		return wait_for_readers(req, part);
	set_early(req, false);
	zd_promise_keep(e, req->u.publish.promise);
	zd_dirty_group(e, req->member->group);
	return 0;
}

/* Cancels the update: gathers that waited for it receive the current version. An update that was granted
 * early is cancelled only with its rank's membership. */
static void update_cancel(struct zd_engine *e, struct zd_request *req)
{
	if (req->answered) {
		zd_pin_revoke(e, req->member->group); /* its streams write from now on */
		set_early(req, false);
		zd_promise_break(e, req->u.publish.promise);
		return;
	}
	parts_move(req, ZD_PART_IDLE);
	zd_dirty_group(e, req->member->group);
}

static bool gathers_version(const struct zd_request *req, const struct zd_unit *unit, uint64_t version)
{
	if (req->kind == ZD_REQ_GATHER)
		return req->u.gather.part->unit == unit && req->u.gather.version == version;
	if (req->kind != ZD_REQ_CONTEXT_BEGIN)
		return false;
	for (uint32_t i = req->u.gather.nheld; i < req->u.gather.nparts; i++) {
		if (req->u.gather.parts[i]->unit == unit && req->u.gather.versions[i] == version)
			return true;
	}
	return false;
}

/* Returns a local rank with a waiting gather of the shard's current version, because ranks of other daemons
 * gather that version as well. Otherwise returns local_world_size. */
static uint32_t first_to_gather(const struct zd_part *part)
{
	const struct zd_group *group = part->unit->group;
	uint32_t rank;
	for (rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_session *session = group->members[rank].session;
		const struct zd_request *req;
		if (!session)
			continue;
		TAILQ_FOREACH (req, &session->requests, session_link) {
			if (gathers_version(req, part->unit, part->version))
				return rank;
		}
	}
	return group->local_world_size;
}

/* If gathers are collective: waits for ranks that have yet to gather the current version. */
static int check_gathered(struct zd_request *req, const struct zd_part *part)
{
	const struct zd_group *group = part->unit->group;
	uint32_t none = group->local_world_size, gathers = first_to_gather(part);
	uint32_t follows = gathers == none ? zd_collective_first_to_follow(part) : none;
	if (gathers < none)
		return zd_wait_for_unit(req, part->unit, ZD_WAIT_GATHER, gathers, 0, 0);
	if (follows < none)
		return zd_wait_for_unit(req, part->unit, ZD_WAIT_FOLLOW, 0,
		                        zd_world_rank(&group->members[follows]), 0);
	return 0;
}

static int check_unread(struct zd_request *req, const struct zd_part *part)
{
	enum zd_wait_kind kind = zd_shadow_is_owed(part) ? ZD_WAIT_RESTORE
	                         : part->shadow == ZD_SHADOW_SAVING || zd_part_is_being_saved(part)
	                                 ? ZD_WAIT_SAVE
	                                 : ZD_WAIT_READERS;
	/* While the shadow is read, also by a copy into a save, the shard's copy into it does not start. */
	bool unsaved = zd_part_shadow(part) == ZD_SHADOW_FREE && part->shadow_readers > 0;
	if (part->readers == 0 && kind != ZD_WAIT_RESTORE && !unsaved)
		return 0;
	return zd_wait_for_unit(req, part->unit, kind, part->rank,
	                        part->readers + (unsaved ? part->shadow_readers : 0), part->viewers);
}

/* Submits the missing copies of shards into shadows. At most MOST_SAVES of an update are under way, because
 * each costs the loop some microseconds. When some complete, the next ones are submitted. */
static void save_shadows(struct zd_engine *e, const struct zd_request *req)
{
	uint32_t saving = 0;
	for (uint32_t i = 0; i < req->u.publish.nparts && saving < MOST_SAVES; i++) {
		zd_shadow_save(e, req->u.publish.parts[i]);
		saving += req->u.publish.parts[i]->shadow == ZD_SHADOW_SAVING;
	}
}

static int update_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const struct zd_group *group = req->member->group;
	if (req->answered)
		return keep_promise(e, req);
	int status = group->shadow || group->state == ZD_GROUP_ABORTED ? zd_member_check(req->member, err)
	                                                               : 0;
	if (status != 0) {
		update_cancel(e, req);
		return status;
	}
	if (group->voted_step) /* other daemons can commit the shards as they are */
		return zd_wait_for(req, ZD_WAIT_OTHERS, 0, 0, 0);
	/* also while gathered buffers are leased, so that reads continue */
	uint32_t saved = save_pinned(e, req);
	status = check_unleased(req);
	if (status != 0)
		return status;
	bool unsaved = saved < req->u.publish.nparts;
	if (may_promise(req) && (unsaved || find_read(req))) {
		grant_ahead(e, req);
		return unsaved ? wait_for_save(req, saved) : wait_for_readers(req, find_read(req));
	}
	if (unsaved)
		return wait_for_save(req, saved);
	if (group->shadow)
		save_shadows(e, req);
	for (uint32_t i = 0; i < req->u.publish.nparts; i++) {
		const struct zd_part *part = req->u.publish.parts[i];
		status = check_unread(req, part);
		if (status == 0 && zd_gathers_are_collective(group))
			status = check_gathered(req, part);
		if (status != 0)
			return status;
	}
	parts_move(req, ZD_PART_UPDATING);
	parts_event(e, req, ZD_EVENT_UPDATE);
	return 0;
}

/* ---- publish ------------------------------------------------------------------------------------------- */

static int publish_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = parts_take(e, req, req->args, ZD_PART_UPDATING, ZD_PART_PUBLISHING, err);
	if (status != 0)
		return status;
	status = check_leases(req, req->args->u.publish.force, err);
	if (status != 0) {
		parts_move(req, ZD_PART_UPDATING);
		return status;
	}
	if (zd_fences_watch(e, req->session, req->member->group->job, req->device->index, &req->args->fences,
	                    zd_request_op_done, req, 0))
		req->pending_ops++;
	zd_dirty_group(e, req->member->group); /* gathers of the new version receive replies from now on */
	return 0;
}

/* Breaks the promises of gathers that received their replies before these versions were published. */
static void publish_fails(struct zd_engine *e, struct zd_request *req)
{
	for (uint32_t i = 0; i < req->u.publish.nparts; i++)
		zd_deferred_unpublished(e, req->u.publish.parts[i]);
}

static void publish_cancel(struct zd_engine *e, struct zd_request *req)
{
	publish_fails(e, req);
	parts_move(req, ZD_PART_UPDATING);
}

/* For an update that was undone while the rank wrote: the rank has stopped writing now, and its shards can be
 * restored. The other parts remain under update. */
static int publish_check_undone(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = 0;
	if (!req->member->group->shadow)
		return 0;
	/* The fences can pass between two steps of the lost rank's end. */
	bool rolls_back = zd_shadow_rolls_back(req->member->group);
	for (uint32_t i = 0; i < req->u.publish.nparts && rolls_back; i++)
		zd_shadow_roll_back_unit(e, req->u.publish.parts[i]->unit);
	for (uint32_t i = 0; i < req->u.publish.nparts && status == 0; i++) {
		if (zd_shadow_is_owed(req->u.publish.parts[i]))
			status = zd_shadow_undone(req->u.publish.parts[i], err);
	}
	if (status != 0)
		publish_fails(e, req);
	for (uint32_t i = 0; i < req->u.publish.nparts && status != 0; i++) {
		struct zd_part *part = req->u.publish.parts[i];
		zd_part_move(part, zd_shadow_is_owed(part) ? ZD_PART_IDLE : ZD_PART_UPDATING);
		zd_shadow_try(e, part);
	}
	return status;
}

/* Returns the first part that was granted early and still has readers. NULL: none. */
static const struct zd_part *find_early(const struct zd_request *req)
{
	for (uint32_t i = 0; i < req->u.publish.nparts; i++) {
		if (req->u.publish.parts[i]->early)
			return req->u.publish.parts[i];
	}
	return NULL;
}

static int publish_complete(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = zd_session_check_poisoned(req->session, err); /* poisoned since the request was begun */
	if (status != 0) {
		publish_cancel(e, req);
		return status;
	}
	status = publish_check_undone(e, req, err);
	if (status != 0)
		return status;
	for (uint32_t i = 0; i < req->u.publish.nparts; i++) {
		struct zd_part *part = req->u.publish.parts[i];
		part->version++;
		zd_part_move(part, ZD_PART_IDLE);
		/* A persistent buffer is out of date now, and its next gather refreshes it. Any other buffer
		 * is no longer needed. */
		if (part->buffer && TAILQ_EMPTY(&part->buffer->leases) && !part->persistent &&
		    part->buffer->version != part->version)
			zd_buffer_drop(e, part->buffer);
		zd_deferred_published(e, part);
	}
	parts_event(e, req, ZD_EVENT_PUBLISH);
	zd_dirty_group(e, req->member->group);
	return 0;
}

static int publish_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const struct zd_part *early = find_early(req);
	if (req->pending_ops > 0)
		return zd_wait_for(req, ZD_WAIT_FENCES, 0, 0, 0);
	return early ? wait_for_readers(req, early) : publish_complete(e, req, err);
}

void zd_publishes_complete(struct zd_engine *e, struct zd_session *session)
{
	struct zd_request *req;
	TAILQ_FOREACH (req, &session->requests, session_link) {
		if (req->kind != ZD_REQ_PUBLISH || req->failed || find_early(req))
			continue;
		(void)publish_complete(e, req, NULL);
		req->u.publish.nparts = 0; /* it is dropped, and has no part to undo */
	}
}

/* ---- set_persistent ------------------------------------------------------------------------------------ */

static int persistent_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part;
	int status = zd_part_find(e, req->session, req->args->u.set_persistent.unit, &part, err);
	if (status != 0)
		return status;
	zd_request_set_member(req, zd_part_member(part));
	req->u.reg.part = part;
	req->u.reg.persistent = req->args->u.set_persistent.persistent;
	part->users++;
	return 0;
}

/* If gathers are collective, ranks must make the same exchanges. Earlier requests of this session are
 * therefore served with the buffer's persistence of their time, however long they wait. The client does not
 * wait for this request, because an earlier gather can wait for a later call of the same client. */
static bool unit_is_busy(const struct zd_request *req)
{
	const struct zd_part *part = req->u.reg.part;
	const struct zd_request *before;
	uint64_t version;
	if (!zd_gathers_are_collective(req->member->group))
		return false;
	TAILQ_FOREACH (before, &req->session->requests, session_link) {
		if (before == req)
			return false;
		if (zd_gather_lacks(before, part, &version) || zd_scope_end_drops(before, part) ||
		    (before->kind == ZD_REQ_RELEASE && before->u.release.part == part))
			return true;
	}
	return false;
}

static int persistent_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part = req->u.reg.part;
	(void)err;
	if (unit_is_busy(req))
		return zd_wait_for_unit(req, part->unit, ZD_WAIT_GATHER, part->rank, 0, 0);
	part->users--;
	part->persistent = req->u.reg.persistent;
	/* The buffer has no lease: no release will free it. */
	if (!part->persistent && part->buffer && TAILQ_EMPTY(&part->buffer->leases) &&
	    !part->buffer->prefetched)
		zd_buffer_drop(e, part->buffer);
	return 0;
}

/* The request has waited, and other ranks have changed the persistence. This rank would make other exchanges.
 * The group therefore ends. */
static void persistent_cancel(struct zd_engine *e, struct zd_request *req)
{
	struct zd_part *part = req->u.reg.part;
	char what[128];
	(void)snprintf(what, sizeof(what), "set_persistent of unit '%.64s'", part->unit->name);
	part->users--;
	zd_cluster_give_up(e, req->member, what);
}

const struct zd_request_type zd_req_update_begin = {
        .begin = update_begin, .attempt = update_attempt, .cancel = update_cancel};
const struct zd_request_type zd_req_publish = {
        .begin = publish_begin, .attempt = publish_attempt, .cancel = publish_cancel};
const struct zd_request_type zd_req_set_persistent = {.begin = persistent_begin,
                                                      .attempt = persistent_attempt,
                                                      .cancel = persistent_cancel,
                                                      .answered_first = true};
