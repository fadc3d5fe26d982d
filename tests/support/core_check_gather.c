/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_check_gather.c - invariants of barriers, plans, shadows, deferred transfers, collective gathers,
 * commits, loads and moves.
 */
#include "base/text.h"
#include "core/cluster/cluster.h"
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/deferred.h"
#include "core/gather/commit.h"
#include "core/gather/landing.h"
#include "core/gather/load.h"
#include "core/gather/place.h"
#include "core/gather/shadow.h"
#include "core/memory/allocation.h"
#include "tests/support/core_check_parts.h"

/* ---- Groups, plans, shadows ---------------------------------------------------------------------------- */

void zd_barrier_check(const struct zd_group *group)
{
	uint32_t reached = 0;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member *member = &group->members[rank];
		const struct zd_request *req;
		reached += !TAILQ_EMPTY(&member->barriers);
		TAILQ_FOREACH (req, &member->barriers, u.barrier.link) {
			zd_assert(req->kind == ZD_REQ_GROUP_BARRIER && req->queued && !req->u.barrier.passed);
			zd_assert(req->member == member && req->session == member->session);
			zd_assert(group->state == ZD_GROUP_READY);
		}
	}
	/* A barrier that every local rank has reached has passed, or its agreement is pending. */
	zd_assert(reached < group->local_world_size || (group->cluster && group->cluster->barrier.pending));
}

void zd_plan_check(const struct zd_plan *plan)
{
	uint32_t left = 0;
	for (uint32_t i = 0; i < plan->nsteps && !plan->stopped; i++) {
		const struct zd_plan_step *step = &plan->steps[i];
		left += step->state != ZD_PLAN_DONE;
		zd_assert(step->waits > 0 || step->state != ZD_PLAN_ENDED);
		zd_assert(step->waits == 0 || step->early || step->state == ZD_PLAN_WAITING ||
		          step->state == ZD_PLAN_DONE);
	}
	zd_assert(plan->stopped || (left == plan->left && plan->over == (left == 0 && plan->nsteps > 0)));
}

void zd_shadow_check(const struct zd_part *part)
{
	bool copies = part->shadow == ZD_SHADOW_SAVING || part->shadow == ZD_SHADOW_RESTORING;
	uint64_t committed = zd_part_committed(part);
	zd_assert((part->shadow != ZD_SHADOW_NONE) ==
	          (part->unit->group->shadow && part->state != ZD_PART_ABSENT));
	zd_assert(!copies || part->readers > 0);
	zd_assert(part->shadow != ZD_SHADOW_SAVING || part->shadow_readers == 0);
	if (part->shadow == ZD_SHADOW_NONE || part->state == ZD_PART_DYING)
		return;
	/* The shard or the shadow is the last commit, or both hold the same bytes. */
	if (zd_part_is_written(part) || part->version != committed)
		zd_assert(part->shadow == ZD_SHADOW_SAVED || part->shadow == ZD_SHADOW_DUE);
	if (zd_shadow_is_owed(part))
		zd_assert(part->version == committed);
	if (part->shadow == ZD_SHADOW_RESTORING)
		zd_assert(!zd_part_is_written(part));
	if (part->unit->group->voted_step) /* other daemons can have committed the shards */
		zd_assert(!zd_shadow_is_owed(part));
	if (part->shadow == ZD_SHADOW_DUE) /* a later event will call zd_shadow_try() */
		zd_assert(zd_part_is_written(part) || part->readers > 0);
}

/* ---- Deferred transfers -------------------------------------------------------------------------------- */

/* The queued transfers have the last values of their timelines, without a gap and in order. */
static void check_signals(const struct zd_session *session)
{
	uint64_t last[ZD_MAX_DEVICES] = {0};
	const struct zd_buffer *buffer;
	TAILQ_FOREACH (buffer, &session->deferred, deferred_link) {
		for (uint32_t i = 0; i < buffer->plan.nsteps; i++) {
			const struct zd_signal *signal = &buffer->plan.steps[i].signal;
			uint32_t device = signal->timeline - ZD_TIMELINE_DEFERRED;
			zd_assert(device < ZD_MAX_DEVICES && signal->session == session->id);
			zd_assert(last[device] == 0 || signal->value == last[device] + 1);
			last[device] = signal->value;
		}
	}
	for (uint32_t i = 0; i < ZD_MAX_DEVICES; i++)
		zd_assert(last[i] == 0 || last[i] == session->timeline[ZD_TIMELINE_DEFERRED + i]);
}

/* Counts the copies that have not begun, and checks each: it waits for a chunk, or follows a copy of its
 * timeline that does. */
static uint32_t check_waiting(const struct zd_buffer *buffer)
{
	struct zd_timelines held = {{0}};
	uint32_t n = 0;
	for (uint32_t i = 0; i < buffer->plan.nsteps; i++) {
		const struct zd_plan_step *step = &buffer->plan.steps[i];
		const struct zd_landing *landing = step->memory;
		if (step->waits == 0)
			continue;
		if (landing && !(landing->landed >> step->index & 1))
			zd_timelines_add(&held, step->signal.timeline);
		zd_assert(zd_timelines_has(&held, step->signal.timeline));
		n++;
	}
	return n;
}

void zd_deferred_check(const struct zd_session *session)
{
	const struct zd_buffer *first = TAILQ_FIRST(&session->deferred), *buffer;
	bool may_begin = first && !first->former && LIST_EMPTY(&first->awaits);
	if (may_begin) /* otherwise the whole transfer would have begun */
		zd_assert(first->phase == ZD_PHASE_JOINED && check_waiting(first) > 0);
	TAILQ_FOREACH (buffer, &session->deferred, deferred_link) {
		const struct zd_await *await;
		zd_assert(buffer->session == session->id && zd_transfer_is_deferred(buffer));
		if (buffer != first || !may_begin)
			zd_assert(buffer->plan.left == buffer->plan.nsteps);
		LIST_FOREACH (await, &buffer->awaits, buffer_link) {
			zd_assert(await->session == session && await->buffer == buffer);
			zd_assert(zd_part_is_publishing_version(await->part, buffer->version));
		}
	}
	check_signals(session);
}

/* ---- Collective gathers -------------------------------------------------------------------------------- */

/* Counts the relays that the rank will still run from the source. */
static uint32_t count_expected(const struct zd_buffer *source, uint32_t rank)
{
	const struct zd_group *group = source->unit->group;
	const struct zd_session *session = group->members[rank].session;
	const struct zd_buffer *buffer;
	uint32_t n = 0;
	if (rank == source->part->rank || !session)
		return 0;
	if (group->state == ZD_GROUP_READY &&
	    source->unit->parts[rank].collective->begun < source->relay.ordinal)
		return group->cluster->nranks - 1;
	TAILQ_FOREACH (buffer, &session->relaying, relay.taker_link) {
		if (buffer->unit == source->unit && buffer->relay.ordinal == source->relay.ordinal)
			n += zd_relays_waiting(buffer, source->part->rank);
	}
	return n;
}

/* A source counts exactly the relays that will be run from it, and is watched until they have ended. */
static void check_source(const struct zd_part *part, const struct zd_buffer *source)
{
	uint32_t expected = 0;
	for (uint32_t rank = 0; rank < part->unit->group->local_world_size; rank++)
		expected += count_expected(source, rank);
	zd_assert(source->relay.expected == expected && expected + source->relay.running > 0);
	zd_assert(source->part == part && source->watches > 0);
	zd_assert(source->relay.ordinal <= part->collective->begun);
	zd_assert(source->phase == ZD_PHASE_EXCHANGED || source->relay.running == 0);
}

void zd_collective_check(const struct zd_part *part)
{
	const struct zd_buffer *source, *before;
	TAILQ_FOREACH (source, &part->collective->sources, relay.source_link) {
		before = TAILQ_PREV(source, zd_relay_sources, relay.source_link);
		zd_assert(!before || before->relay.ordinal < source->relay.ordinal);
		check_source(part, source);
	}
}

/* The relays that were not run belong to an open session and an existing group. */
void zd_relays_check(const struct zd_session *session)
{
	const struct zd_buffer *buffer;
	TAILQ_FOREACH (buffer, &session->relaying, relay.taker_link) {
		const struct zd_group *group = buffer->unit->group;
		uint32_t waiting = 0;
		for (uint32_t rank = 0; rank < group->local_world_size; rank++)
			waiting += zd_relays_waiting(buffer, rank);
		zd_assert(session == zd_part_member(buffer->part)->session);
		zd_assert(group->state == ZD_GROUP_READY || group->state == ZD_GROUP_ABORTED);
		zd_assert(waiting > 0 && waiting == buffer->relay.waiting && waiting <= buffer->plan.left);
	}
}

void zd_cluster_check_members(const struct zd_group *group)
{
	bool up = group->state == ZD_GROUP_READY, ended = group->state == ZD_GROUP_ABORTED;
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		const struct zd_member *member = &group->members[rank];
		for (uint32_t role = 0; role < ZD_NCOMM_ROLES; role++) {
			bool open = member->comm[role] != 0;
			/* A communicator that other ranks have left in order ends with its rank. */
			zd_assert(!open || (member->session && group->state != ZD_GROUP_FORMING &&
			                    group->state != ZD_GROUP_FAILED));
			zd_assert(open || !up);
		}
	}
	zd_assert(!ended || group->attached > 0 || group->over);
	if (up)
		zd_assert(group->cluster->pending == 0);
	zd_assert(group->cluster->step.pending <= group->local_world_size);
	zd_assert(group->cluster->commit.pending <= group->local_world_size);
	zd_assert(group->voted_step == 0 || group->voted_step > group->committed_step);
	if (up && group->voted_step)
		zd_assert(group->cluster->commit.pending > 0);
}

/* ---- Commits ------------------------------------------------------------------------------------------- */

static enum zd_part_listed list_of(const struct zd_part *part)
{
	if (zd_part_is_gone(part))
		return ZD_PART_UNLISTED;
	if (zd_shadow_is_owed(part))
		return ZD_PART_OWED;
	return zd_part_is_written(part) || part->version != zd_part_committed(part) ? ZD_PART_UNCOMMITTED
	                                                                            : ZD_PART_UNLISTED;
}

/* Whether a part is not idle, or has another version than the unit's first part. */
static bool is_unready(const struct zd_unit *unit, const struct zd_part **first)
{
	bool unready = false;
	*first = NULL;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		if (zd_part_is_gone(part))
			continue;
		*first = *first ? *first : part;
		unready |= part->state != ZD_PART_IDLE || part->version != (*first)->version;
	}
	return unready;
}

void zd_commit_check(const struct zd_group *group)
{
	const struct zd_unit *unit;
	const struct zd_part *part, *first;
	uint64_t hash = 0, nlisted = 0;
	TAILQ_FOREACH (unit, &group->unready, unready_link) {
		zd_assert(unit->unready && !unit->is_former);
		nlisted++;
	}
	TAILQ_FOREACH (unit, &group->units, group_link) {
		bool unready = is_unready(unit, &first);
		zd_assert(unready == unit->unready);
		nlisted -= unready;
		hash += unready || !first ? 0 : first->version * (zd_text_hash(unit->name) | 1);
	}
	zd_assert(nlisted == 0 && hash == group->versions_hash);
	for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
		LIST_FOREACH (part, &group->members[rank].uncommitted, commit_link) {
			zd_assert(!zd_part_missed_commit(part) && list_of(part) == ZD_PART_UNCOMMITTED);
			nlisted++;
		}
		LIST_FOREACH (part, &group->members[rank].owed, commit_link) {
			zd_assert(list_of(part) == ZD_PART_OWED);
			nlisted++;
		}
		TAILQ_FOREACH (unit, &group->units, group_link)
			nlisted -= list_of(&unit->parts[rank]) != ZD_PART_UNLISTED;
	}
	zd_assert(nlisted == 0);
}

/* ---- Loads and moves ----------------------------------------------------------------------------------- */

void zd_load_check(const struct zd_unit *unit)
{
	const struct zd_load *load = unit->load;
	uint32_t nrequests = 0;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		const struct zd_request *req = load ? load->requests[rank] : NULL;
		zd_assert(part->state != ZD_PART_LOADING || (load && (req || load->source)));
		if (!req)
			continue;
		zd_assert(req->u.load.load == load && req->u.load.part == part && part->users > 0);
		zd_assert(part->state == ZD_PART_LOADING);
		nrequests++;
	}
	if (!load)
		return;
	zd_assert(load->unit == unit && load->nrequests == nrequests);
	zd_assert(load->source ? load->ops > 0 && load->source->pending >= load->ops
	                       : load->ops == 0 && nrequests > 0);
}

static void check_shard(const struct zd_move *move, uint32_t rank, uint64_t (*charged)[ZD_NCHARGES],
                        uint64_t *quarantine)
{
	const struct zd_extent *shard = &move->shards[rank];
	const struct zd_part *part = &move->unit->parts[rank];
	if (!shard->block) {
		zd_assert(move->state != ZD_MOVE_COPYING);
		return;
	}
	const struct zd_device *device = shard->segment->device;
	zd_assert(move->state != ZD_MOVE_CALLED && device->config.host_memory == !move->unit->on_host);
	zd_assert(shard->block->owner_type == ZD_BLOCK_PART && shard->block->owner == part);
	zd_assert(shard->segment->job == move->unit->group->job &&
	          shard->bytes == zd_unit_part_bytes(part->unit));
	if (move->doomed)
		quarantine[device->index] += shard->bytes;
	else
		charged[device->index][ZD_CHARGE_SHARD] += shard->bytes;
}

void zd_move_check(const struct zd_unit *unit, uint64_t (*charged)[ZD_NCHARGES], uint64_t *quarantine)
{
	const struct zd_move *move = unit->move;
	uint32_t nrequests = 0, world = unit->group->local_world_size;
	for (uint32_t rank = 0; rank < world; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		const struct zd_request *req = move ? move->requests[rank] : NULL;
		bool moves = move && move->state != ZD_MOVE_CALLED && req;
		zd_assert(part->state != ZD_PART_MOVING || (move && move->state != ZD_MOVE_CALLED));
		zd_assert(!moves || part->state == ZD_PART_MOVING);
		if (move)
			check_shard(move, rank, charged, quarantine);
		if (!req)
			continue;
		zd_assert(req->u.place.move == move && req->u.place.part == part && part->users > 0);
		nrequests++;
	}
	if (!move)
		return;
	zd_assert(move->unit == unit && move->nrequests == nrequests);
	zd_assert(move->state == ZD_MOVE_CALLED || move->doomed || nrequests == world);
	zd_assert(move->state == ZD_MOVE_COPYING ? move->ops > 0 : move->ops == 0 && nrequests > 0);
}
