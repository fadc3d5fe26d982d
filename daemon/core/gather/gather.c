/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather.c - gathers: a buffer of the wanted version, and a lease on it.
 *
 * A gather joins the rank's buffer if the buffer has the wanted version, and refreshes a persistent buffer
 * that has another version. Otherwise the gather waits until every shard has one version, then for its slot
 * or for memory, and then starts one copy per shard. It holds no memory while it waits: a rank that never
 * publishes costs no memory. memory_queue.h describes the order in which gathers receive memory. Prefetches
 * are last, and prefetched buffers are evicted for other gathers.
 *
 * A gather does not wait for work that ends without another call of any process: a publish whose fences have
 * not passed, or streams of past leases in its slot or in a block of its size. The gather then inherits the
 * memory at once, and its copies are deferred (deferred.h).
 */
#include <string.h>

#include "base/text.h"
#include "core/engine/memory_queue.h"
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/deferred.h"
#include "core/gather/gather.h"
#include "core/gather/layout.h"
#include "core/gather/scope.h"
#include "core/gather/shadow.h"
#include "core/gather/transfer.h"
#include "core/memory/retire.h"

/* ---- Versions ------------------------------------------------------------------------------------------ */

/* Whether the part's next version is expected: the part is under update, or was never published. An update
 * that was undone will not publish. */
static bool part_open(const struct zd_part *part)
{
	if (zd_shadow_is_owed(part))
		return false;
	return part->state == ZD_PART_UPDATE_WAIT || zd_part_is_written(part) || zd_part_is_unpublished(part);
}

static bool part_registered(const struct zd_part *part)
{
	return part->state == ZD_PART_IDLE || part->state == ZD_PART_UPDATE_WAIT ||
	       part->state == ZD_PART_MOVING || zd_part_is_written(part);
}

/* Returns the newest version that any rank has or is about to have. It is at least 1, because version 0 is
 * never published. */
static uint64_t newest_version(const struct zd_unit *unit)
{
	uint64_t newest = 1;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		if (part_registered(part))
			newest = zd_max_u64(newest, part->version + (part_open(part) ? 1 : 0));
		else if (zd_part_is_kept(part))
			newest = zd_max_u64(newest, part->version);
	}
	return newest;
}

/* Returns the version that this rank last published. A publish counts from its call on, before its streams
 * have passed. */
static uint64_t own_version(const struct zd_part *part)
{
	return part->version + (part->state == ZD_PART_PUBLISHING ? 1 : 0);
}

/* Whether the rank has ended normally and its shard will not have the version. */
static bool has_ended_without(const struct zd_part *part, uint64_t want)
{
	bool has = zd_part_is_kept(part) && !zd_part_is_unpublished(part) && part->version >= want;
	return zd_part_member(part)->ended && !part_registered(part) && !has && !zd_shadow_is_owed(part);
}

bool zd_update_catches_up(const struct zd_part *part)
{
	const struct zd_group *group = part->unit->group;
	bool catches_up = zd_member_reads_on(zd_part_member(part));
	for (uint32_t rank = 0; rank < group->local_world_size && catches_up; rank++)
		catches_up = !has_ended_without(&part->unit->parts[rank], part->version + 1);
	return catches_up;
}

/* Returns PEER_LOST if a rank has ended normally and its shard will not have the version: the gather then
 * waits for no other rank. */
static int ended_check(const struct zd_unit *unit, uint64_t want, struct zd_err *err)
{
	const struct zd_group *group = unit->group;
	for (uint32_t rank = 0; rank < group->local_world_size && group->state == ZD_GROUP_FAILED; rank++) {
		if (!has_ended_without(&unit->parts[rank], want))
			continue;
		return zd_err_set(err, ZEROD_E_PEER_LOST,
		                  "rank %u of group '%s' ended normally, and does not publish version %llu "
		                  "of unit '%s'",
		                  group->first_rank + rank, group->name, (unsigned long long)want,
		                  unit->name);
	}
	return 0;
}

/* In a group that spans daemons all ranks must choose the same version: the last that the rank has published,
 * or is about to publish. */
uint64_t zd_gather_version(const struct zd_part *part)
{
	if (!zd_gathers_are_collective(part->unit->group))
		return 0;
	return zd_max_u64(part->version + (part_open(part) ? 1 : 0), 1);
}

/* Whether a lease can start on a buffer in place: its own part has the buffer's version or has promised it,
 * and is neither about to be written nor about to be freed. */
static bool own_readable(const struct zd_buffer *buffer)
{
	const struct zd_part *part = buffer->part;
	return zd_buffer_is_promised(buffer) || (part->version == buffer->version && !part_open(part) &&
	                                         !zd_shadow_is_owed(part) && part->state != ZD_PART_MOVING);
}

static bool buffer_has(const struct zd_buffer *buffer, const struct zd_request *req)
{
	uint64_t want = req->u.gather.version;
	if (buffer->stale)
		return false;
	if (zd_buffer_is_in_place(buffer) && !own_readable(buffer))
		return false;
	return want ? buffer->version == want : buffer->version >= own_version(buffer->part);
}

/* Whether the version can still be gathered although an update is about to start: the update waits for
 * collective gathers, which ranks of other daemons can have begun. */
static bool still_given(const struct zd_part *part, uint64_t want)
{
	return zd_gathers_are_collective(part->unit->group) && part->state == ZD_PART_UPDATE_WAIT &&
	       part->version == want && !zd_part_is_unpublished(part);
}

/* Returns MISMATCH if a rank has begun an update that the gather's rank has not, and waits for that rank to
 * agree: neither would continue. A prefetch blocks no rank, and a gather that names its version can be
 * awaited after the rank's own update. */
static int agreement_check(const struct zd_request *req, struct zd_err *err)
{
	const struct zd_part *own = req->u.gather.part;
	bool waits = own->state == ZD_PART_IDLE && !req->member->agreeing && !req->u.gather.prefetch &&
	             req->u.gather.version == 0;
	for (uint32_t rank = 0; waits && rank < own->unit->group->local_world_size; rank++) {
		const struct zd_part *part = &own->unit->parts[rank];
		if (part->version + zd_part_is_written(part) <= own->version ||
		    !zd_part_member(part)->agreeing)
			continue;
		return zd_err_set(err, ZEROD_E_MISMATCH,
		                  "rank %u has begun an update of unit '%s' and waits for rank %u to agree; "
		                  "rank %u gathers the unit before its own update",
		                  zd_world_rank(zd_part_member(part)), part->unit->name,
		                  zd_world_rank(req->member), zd_world_rank(req->member));
	}
	return 0;
}

/* Returns 0 if every shard is idle at `want`, or the copies can wait until it is published. */
static int shards_check(struct zd_request *req, const struct zd_unit *unit, uint64_t want, struct zd_err *err)
{
	int status = ended_check(unit, want, err);
	for (uint32_t rank = 0; rank < unit->group->local_world_size && status == 0; rank++) {
		const struct zd_part *part = &unit->parts[rank];
		int wait = 0;
		if (!part_registered(part) && !zd_part_is_kept(part)) {
			wait = zd_wait_for(req, ZD_WAIT_REGISTER, rank, 0, 0);
		} else if (zd_shadow_is_owed(part)) {
			wait = zd_wait_for(req, ZD_WAIT_RESTORE, rank, 0, 0);
		} else if (part->version > want ||
		           (part->version == want &&
		            (zd_part_is_written(part) || zd_part_is_unpublished(part)))) {
			return zd_err_set(
			        err, ZEROD_E_STALE_VERSION,
			        "version %llu of unit '%s' is no longer held: rank %u %s version %llu",
			        (unsigned long long)want, unit->name, unit->group->first_rank + rank,
			        zd_part_is_unpublished(part) ? "has published nothing since it came with"
			        : part_open(part)            ? "writes over"
			                                     : "has",
			        (unsigned long long)part->version);
		} else if (zd_part_is_publishing_version(part, want) && zd_may_defer(req)) {
			continue; /* its copies are deferred */
		} else if (part->version < want || (part_open(part) && !still_given(part, want))) {
			wait = zd_wait_for(req, ZD_WAIT_VERSION, rank, part->version,
			                   zd_max_u64(want, part->version));
		} else if (part->state == ZD_PART_MOVING) {
			wait = zd_wait_for(req, ZD_WAIT_MOVE, rank, 0, 0);
		}
		if (wait) {
			req->wait.unit = unit;
			status = agreement_check(req, err);
			return status != 0 ? status : wait;
		}
	}
	return status;
}

/* ---- Room ---------------------------------------------------------------------------------------------- */

/* Evicts the oldest prefetched buffer that no gather has joined. Returns false if there is none. */
static bool revoke_prefetch(struct zd_engine *e, struct zd_device *device)
{
	struct zd_buffer *buffer;
	TAILQ_FOREACH (buffer, &device->prefetched, use_link) {
		if (!zd_buffer_is_shared(buffer)) {
			zd_buffer_evict(e, buffer);
			return true;
		}
	}
	return false;
}

/* Makes a gather wait for memory. Later gathers of its uid then wait as well. */
static int wait_for_room(struct zd_request *req, enum zd_wait_kind kind, uint64_t a, uint64_t b)
{
	if (!req->u.gather.prefetch)
		zd_memory_block(req);
	return zd_wait_for(req, kind, 0, a, b);
}

static int budget_check(struct zd_engine *e, struct zd_request *req, uint64_t bytes, struct zd_err *err)
{
	struct zd_device *device = req->device;
	uint64_t budget = device->config.gather_budget_bytes;
	const uint64_t *live = &device->account.bytes[ZD_CHARGE_GATHERED];
	if (bytes > budget)
		return zd_err_set(err, ZEROD_E_NO_MEMORY,
		                  "unit '%s' needs %llu bytes; the gather budget of device %u is %llu",
		                  req->u.gather.part->unit->name, (unsigned long long)bytes, device->index,
		                  (unsigned long long)budget);
	while (*live + bytes > budget) {
		if (req->u.gather.prefetch || !revoke_prefetch(e, device))
			return wait_for_room(req, ZD_WAIT_BUDGET, bytes, *live);
	}
	return 0;
}

/* Whether a block was allocated, or a segment is being created or retired for it. */
static bool place_comes(const struct zd_request *req, int status)
{
	return status == 0 ||
	       (status == ZD_WAIT && (req->wait.kind == ZD_WAIT_SEGMENT || req->wait.kind == ZD_WAIT_RETIRE));
}

static enum zd_purpose block_purpose(const struct zd_engine *e, const struct zd_session *session)
{
	return session->strict && e->strict_by_segment ? ZD_PURPOSE_STRICT : ZD_PURPOSE_GATHERS;
}

/* If the pool has no block, makes room: retires empty segments of other purposes and jobs. It does not do so
 * for a prefetch, or while blocks that are large enough will be freed. Otherwise gathers and buckets would
 * retire each other's segments alternately. */
static int room_find(struct zd_engine *e, struct zd_request *req, bool in_place, struct zd_space_bytes wanted,
                     int status)
{
	const struct zd_job *job = req->member->group->job;
	struct zd_device *device = req->device;
	uint64_t bytes = wanted.low + wanted.high;
	enum zd_purpose purpose = in_place ? ZD_PURPOSE_FRAMES : block_purpose(e, req->session);
	bool could_fit = zd_pool_could_fit(e, device, job, purpose, bytes);
	if (!could_fit || (status != ZD_WAIT && !req->u.gather.prefetch)) {
		zd_pool_reclaim(e, job, device, bytes);
		uint32_t retiring = zd_retiring_await(e, job->owner, device, bytes);
		if (retiring)
			return zd_wait_for(req, ZD_WAIT_RETIRE, 0, retiring, 0);
	}
	if ((status == ZEROD_E_NO_MEMORY || status == ZEROD_E_QUOTA) && could_fit)
		return zd_wait_for(req, ZD_WAIT_MEMORY, 0, bytes,
		                   device->config.arena_bytes - device->segment_bytes);
	return status;
}

/* If no block is free, returns a quarantined buffer of the session: the copies start when the buffer's
 * operations have ended. Its block costs no memory, and is therefore preferred to a segment beyond the usual
 * size. */
static struct zd_buffer *find_former(const struct zd_engine *e, const struct zd_request *req, bool in_place,
                                     struct zd_space_bytes bytes)
{
	const struct zd_job *job = req->member->group->job;
	struct zd_buffer *former = zd_deferred_find_former(req, in_place, bytes.low, bytes.high);
	enum zd_purpose purpose = in_place ? ZD_PURPOSE_FRAMES : block_purpose(e, req->session);
	if (former && (bytes.low == 0 || zd_pool_has(e, req->device, job, purpose, bytes.low)) &&
	    (bytes.high == 0 || zd_pool_has(e, req->device, job, purpose, bytes.high)))
		return NULL;
	return former;
}

static uint32_t gather_slot(const struct zd_request *req)
{
	return req->u.gather.no_slot ? ZEROD_NO_SLOT : req->u.gather.part->slot;
}

static int space_alloc(struct zd_engine *e, struct zd_request *req, bool in_place,
                       struct zd_space_bytes bytes, struct zd_space *space, struct zd_err *err)
{
	struct zd_job *job = req->member->group->job;
	uint64_t align = req->session->strict ? ZD_STRICT_ALIGN_BYTES : ZD_BLOCK_MIN_ALIGN;
	if (in_place)
		return zd_pool_alloc_frames(e, req, job, req->device, bytes.low, bytes.high, space, err);
	*space = (struct zd_space){.low = {.block = NULL}};
	return zd_pool_alloc(e, req, job, req->device, block_purpose(e, req->session), bytes.low, align,
	                     &space->low, err);
}

/* Takes memory from the pool. For a unit without a slot, it can instead return that of a quarantined buffer,
 * *former. */
static int space_take(struct zd_engine *e, struct zd_request *req, bool in_place, struct zd_space_bytes bytes,
                      struct zd_space *space, struct zd_buffer **former, struct zd_err *err)
{
	struct zd_device *device = req->device;
	int status;
	do {
		*former = gather_slot(req) == ZEROD_NO_SLOT ? find_former(e, req, in_place, bytes) : NULL;
		if (*former) {
			*space = (*former)->space;
			return 0;
		}
		status = space_alloc(e, req, in_place, bytes, space, err);
	} while (!place_comes(req, status) && !req->u.gather.prefetch && revoke_prefetch(e, device));
	if (!place_comes(req, status))
		status = room_find(e, req, in_place, bytes, status);
	if (status == ZD_WAIT)
		return wait_for_room(req, req->wait.kind, req->wait.a, req->wait.b);
	return status;
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

static struct zd_space *slot_space(struct zd_slot *slot, bool in_place)
{
	return in_place ? &slot->frames : &slot->copy;
}

/* Whether the slot has enough memory for that kind of buffer, or no memory for it yet. */
static bool slot_fits(struct zd_slot *slot, bool in_place, struct zd_space_bytes bytes)
{
	const struct zd_space *space = slot_space(slot, in_place);
	return zd_space_bytes(space) == 0 ||
	       (space->low.bytes >= bytes.low && space->high.bytes >= bytes.high);
}

/* Finds the rank's slot. Retires a slot whose memory is too small for the unit, unless the slot's occupant is
 * leased or persistent. */
static struct zd_slot *slot_find(struct zd_engine *e, const struct zd_request *req, bool in_place,
                                 struct zd_space_bytes bytes)
{
	uint32_t number = req->u.gather.part->slot;
	struct zd_slot *slot;
	TAILQ_FOREACH (slot, &req->member->slots, link) {
		if (slot->number == number)
			break;
	}
	if (!slot || slot_fits(slot, in_place, bytes))
		return slot;
	if (slot->occupant && slot->occupant->state != ZD_BUFFER_QUARANTINED && slot->occupant->prefetched)
		zd_buffer_drop(e, slot->occupant);
	if (slot->occupant && slot->occupant->state != ZD_BUFFER_QUARANTINED)
		return slot;
	zd_slot_retire(e, req->member, slot);
	return NULL;
}

static struct zd_slot *slot_new(const struct zd_request *req)
{
	struct zd_slot *slot = zd_calloc(1, sizeof(*slot));
	slot->number = req->u.gather.part->slot;
	slot->member = req->member;
	slot->device = req->device;
	TAILQ_INSERT_TAIL(&req->member->slots, slot, link);
	return slot;
}

/* Each kind of buffer has separate memory in the slot, for the group's largest unit in the slot. */
static int slot_place(struct zd_engine *e, struct zd_request *req, bool in_place, struct zd_space_bytes bytes,
                      struct zd_slot **out, struct zd_err *err)
{
	struct zd_part *part = req->u.gather.part;
	struct zd_slot *slot = slot_find(e, req, in_place, bytes);
	if (slot && zd_space_bytes(slot_space(slot, in_place)) > 0) {
		*out = slot;
		return 0;
	}
	struct zd_group_slot *shape = zd_group_slot_find(req->member->group, part->slot);
	zd_assert(shape);
	uint64_t largest = zd_max_u64(shape->bytes[in_place], zd_unit_padded_bytes(part->unit));
	if (!req->session->maps_frames)
		largest = zd_max_u64(largest, shape->bytes[1]);
	struct zd_space space;
	struct zd_buffer *former;
	int status = space_take(e, req, in_place,
	                        zd_part_space_bytes(part, largest / req->member->group->nshards), &space,
	                        &former, err);
	if (status != 0)
		return status;
	if (!slot)
		slot = slot_new(req);
	*slot_space(slot, in_place) = space;
	zd_space_own(e, &space, ZD_BLOCK_SLOT, slot,
	             zd_member_use(slot->member, ZD_WORD_SLOT, slot->member->group->id));
	uint64_t *placed = &shape->placed[in_place];
	*placed = *placed ? zd_min_u64(*placed, largest) : largest;
	req->device->idle_slot_bytes += zd_space_bytes(&space);
	*out = slot;
	return 0;
}

/* Removes the slot's occupant, if it has no leases. If its operations continue, it is returned in *former, or
 * the gather waits. SLOT_CONFLICT names an occupant that is leased or persistent. */
static int slot_vacate(struct zd_engine *e, struct zd_request *req, struct zd_slot *slot,
                       struct zd_buffer **former, struct zd_err *err)
{
	struct zd_buffer *occupant = slot->occupant;
	if (!occupant)
		return 0;
	const struct zd_unit *unit = occupant->unit;
	if (occupant->state != ZD_BUFFER_QUARANTINED && occupant->prefetched)
		zd_buffer_drop(e, occupant);
	else if (occupant->state != ZD_BUFFER_QUARANTINED && !req->u.gather.prefetch)
		return zd_err_set(err, ZEROD_E_SLOT_CONFLICT, "slot %u holds unit '%s', which rank %u %s",
		                  slot->number, unit->name, zd_world_rank(req->member),
		                  TAILQ_EMPTY(&occupant->leases) ? "keeps persistent" : "has not released");
	if (!slot->occupant)
		return 0;
	if (slot->occupant->state == ZD_BUFFER_QUARANTINED && zd_may_defer(req)) {
		*former = slot->occupant;
		return 0;
	}
	return zd_wait_for_unit(req, unit, ZD_WAIT_SLOT, 0, slot->number, 0);
}

/* ---- gather -------------------------------------------------------------------------------------------- */

/* Scopes hold leases under their own tags. A client's tag must not equal one of these. */
int zd_tag_check(const char *tag, struct zd_err *err)
{
	int status = zd_name_check(tag, ZD_MAX_TAG_BYTES, "tag", err);
	if (status == 0 && tag[0] == ZD_RESERVED_TAG)
		status = zd_err_set(err, ZEROD_E_INVALID,
		                    "tag '%s': tags with '%c' in front are the daemon's", tag,
		                    ZD_RESERVED_TAG);
	return status;
}

/* A scope holds the unit once, until the scope ends: the gather has no tag, uses or prefetch. */
static int scope_check(const struct zd_scope *scope, const struct zd_part *part, const struct zd_args *args,
                       struct zd_err *err)
{
	const char *tag = args->u.gather.tag;
	unsigned long long id = ZD_ID_NUMBER(scope->id);
	if ((tag && tag[0]) || args->u.gather.uses > 1 || args->u.gather.prefetch)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "a gather in scope %llu has no tag, uses or prefetch of its own", id);
	if (scope->member != zd_part_member(part))
		return zd_err_set(err, ZEROD_E_INVALID, "scope %llu is of group '%s', unit '%s' of '%s'", id,
		                  scope->member->group->name, part->unit->name, part->unit->group->name);
	if (scope->context && part->context != scope)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s' is not in context %llu of rank %u",
		                  part->unit->name, id, zd_world_rank(zd_part_member(part)));
	return 0;
}

static int gather_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_part *part;
	struct zd_scope *scope = NULL;
	const char *tag = zd_tag_or_default(req->args->u.gather.tag);
	int status = zd_part_find(e, req->session, req->args->u.gather.unit, &part, err);
	if (status == 0 && req->args->u.gather.scope) {
		status = zd_scope_find(e, req->session, req->args->u.gather.scope, &scope, err);
		if (status == 0)
			status = scope_check(scope, part, req->args, err);
	} else if (status == 0) {
		status = zd_tag_check(tag, err);
	}
	if (status != 0)
		return status;
	zd_request_set_member(req, zd_part_member(part));
	req->u.gather.part = part;
	req->u.gather.version = req->args->u.gather.version;
	if (req->u.gather.version == 0)
		req->u.gather.version = zd_gather_version(part);
	req->u.gather.uses = req->args->u.gather.uses ? req->args->u.gather.uses : 1;
	req->u.gather.prefetch = req->unheard = req->args->u.gather.prefetch;
	req->u.gather.no_slot = req->args->u.gather.no_slot;
	req->u.gather.scope = scope;
	if (scope)
		scope->refs++;
	else
		memcpy(req->u.gather.tag, tag, strlen(tag) + 1); /* checked above */
	part->users++;
	return 0;
}

static void gather_end(struct zd_request *req)
{
	req->u.gather.part->users--;
	if (req->u.gather.scope)
		zd_scope_unref(req->u.gather.scope);
}

static void gather_cancel(struct zd_engine *e, struct zd_request *req)
{
	zd_collective_given_up(e, req);
	gather_end(req);
}

static int gather_check(struct zd_request *req, struct zd_err *err)
{
	const struct zd_unit *unit = req->u.gather.part->unit;
	int status = zd_member_check_read(req->member, err);
	if (status == 0 && req->told < unit->group->loss) /* sent before the session knew of the last loss */
		status = zd_group_tell(unit->group, req->told, err);
	if (status != 0)
		return status;
	if (zd_shadow_rolls_back(unit->group))
		return zd_wait_for_unit(req, unit, ZD_WAIT_RESTORE, req->member->rank, 0, 0);
	if (unit->group->torn)
		return zd_err_set(
		        err, ZEROD_E_TORN,
		        "group '%s' died inside an update after step %llu: restore all units and commit",
		        unit->group->name, (unsigned long long)unit->group->committed_step);
	return 0;
}

static int gather_hold(struct zd_engine *e, struct zd_request *req, struct zd_buffer *buffer,
                       struct zd_err *err)
{
	if (req->u.gather.scope) {
		if (zd_scope_hold(e, req->u.gather.scope, buffer)) {
			req->device->fallback_gathers++;
			zd_count(e, ZD_COUNT_FALLBACK_GATHERS, 1);
		}
		return 0;
	}
	const struct zd_lease *lease = zd_lease_find(buffer, req->u.gather.tag);
	if (lease && lease->uses > UINT32_MAX - req->u.gather.uses)
		return zd_err_set(err, ZEROD_E_LIMIT, "tag '%s' has %u uses of unit '%s' already", lease->tag,
		                  lease->uses, buffer->unit->name);
	(void)zd_lease_add(e, buffer, req->u.gather.tag, req->u.gather.uses);
	return 0;
}

static int gather_done(struct zd_engine *e, struct zd_request *req, struct zd_buffer *buffer,
                       struct zd_err *err)
{
	struct zd_part *part = req->u.gather.part;
	e->reply.u.gather.version = buffer->version;
	if (req->u.gather.prefetch)
		return 0;
	int status = gather_hold(e, req, buffer, err);
	if (status != 0)
		return status;
	if (!zd_buffer_is_in_place(buffer))
		e->reply.place = zd_buffer_low(buffer);
	else if (zd_buffer_bytes(buffer) == 0)
		e->reply.place = zd_part_location(part);
	else
		e->reply.frames = (struct zd_frames){zd_buffer_low(buffer), zd_part_location(part),
		                                     zd_extent_location(&buffer->space.high)};
	e->reply.u.gather.transfer = buffer->transfer;
	if (buffer->state == ZD_BUFFER_INFLIGHT) {
		e->reply.fences.count = buffer->nfences;
		e->reply.fences.fences = buffer->fences;
	}
	return 0;
}

static int gather_place(struct zd_engine *e, struct zd_request *req, uint64_t version, struct zd_buffer **out,
                        struct zd_err *err)
{
	struct zd_part *part = req->u.gather.part;
	struct zd_slot *slot = NULL;
	struct zd_buffer *former = NULL;
	struct zd_space space;
	bool in_place = zd_part_is_in_place(part);
	struct zd_space_bytes bytes = zd_part_space_bytes(part, zd_unit_shard_bytes(part->unit));

	int status = zd_collective_check_followers(req);
	if (status != 0)
		return status;
	/* An earlier gather can wait for a buffer that remains until this rank has copied from it. A rank
	 * that follows is therefore served first. */
	if (!zd_memory_has_turn(e, req) && !zd_collective_follows(part))
		return wait_for_room(req, ZD_WAIT_TURN, 0, 0);
	status = zd_quota_check(e, req->member->group->job, bytes.low + bytes.high, err);
	if (status == 0 && gather_slot(req) != ZEROD_NO_SLOT) {
		status = slot_place(e, req, in_place, bytes, &slot, err);
		if (status == 0)
			status = slot_vacate(e, req, slot, &former, err);
	}
	if (status == 0)
		status = budget_check(e, req, bytes.low + bytes.high, err);
	if (status == 0 && !slot)
		status = space_take(e, req, in_place, bytes, &space, &former, err);
	if (status != 0)
		return status;
	if (slot) {
		space = *slot_space(slot, in_place);
		space.low.bytes = bytes.low;
		space.high.bytes = bytes.high;
	}
	struct zd_buffer *buffer = zd_buffer_new(e, part, slot, &space, former);
	zd_buffer_set_prefetched(buffer, req->u.gather.prefetch);
	buffer->asked_ns = req->since_ns;
	zd_buffer_transfer(e, buffer, version);
	zd_memory_note_grant(e, req);
	*out = buffer;
	return 0;
}

/* Makes a buffer in the memory of one that is still in use. */
static struct zd_buffer *replace(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_part *part = buffer->part;
	struct zd_slot *slot = buffer->slot;
	struct zd_space space = buffer->space;
	bool due = buffer->poison == ZD_POISON_DUE;
	if (due) /* a persistent copy is not released: the unit keeps its memory */
		zd_sm_move(&zd_sm_poison, &buffer->poison, ZD_POISON_NONE);
	zd_buffer_drop(e, buffer);
	struct zd_buffer *copy = zd_buffer_new(e, part, slot, &space, buffer);
	if (due)
		zd_sm_move(&zd_sm_poison, &copy->poison, ZD_POISON_DUE);
	return copy;
}

/* Refreshes a buffer that has another version than the wanted one. */
static int gather_refresh(struct zd_engine *e, struct zd_request *req, struct zd_buffer *buffer,
                          uint64_t version, struct zd_buffer **out)
{
	bool in_use = zd_buffer_is_in_use(buffer);
	if (!TAILQ_EMPTY(&buffer->leases))
		return zd_wait_for_unit(req, buffer->unit, ZD_WAIT_LEASES, 0, buffer->version, 0);
	if (in_use && !zd_may_defer(req))
		return zd_wait_for_unit(req, buffer->unit, ZD_WAIT_REFRESH, 0, buffer->version, 0);
	if (in_use)
		buffer = replace(e, buffer);
	buffer->asked_ns = req->since_ns;
	zd_buffer_transfer(e, buffer, version);
	*out = buffer;
	return 0;
}

/* Starts a transfer into the part's buffer, or into a new one. */
static int gather_begin_transfer(struct zd_engine *e, struct zd_request *req, struct zd_buffer **out,
                                 struct zd_err *err)
{
	struct zd_part *part = req->u.gather.part;
	struct zd_buffer *buffer = part->buffer;
	uint64_t want = req->u.gather.version;
	if (want == 0)
		want = newest_version(part->unit);
	int status = shards_check(req, part->unit, want, err);
	if (status != 0)
		return status;
	if (zd_part_is_in_place(part) && part->unit->group->nshards == 1)
		return zd_gather_frameless(e, req, want, out);
	/* a prefetched buffer of another version, or a buffer of the unit's former place */
	if (buffer && (buffer->prefetched || (TAILQ_EMPTY(&buffer->leases) &&
	                                      zd_buffer_is_in_place(buffer) != zd_part_is_in_place(part)))) {
		zd_buffer_drop(e, buffer);
		buffer = NULL;
	}
	if (!buffer)
		return gather_place(e, req, want, out, err);
	return gather_refresh(e, req, buffer, want, out);
}

int zd_gather_buffer(struct zd_engine *e, struct zd_request *req, struct zd_buffer **out, struct zd_err *err)
{
	struct zd_part *part = req->u.gather.part;
	int status = gather_check(req, err);
	if (status != 0)
		return status;
	struct zd_buffer *buffer = part->buffer;
	if (part->unit->mismatch) /* ranks of other daemons do not know of it */
		status = zd_err_set(err, ZEROD_E_MISMATCH, "%s", part->unit->mismatch);
	if (status == 0 && !req->queued)
		status = zd_metadata_check_work(e, req->session, "a gather",
		                                sizeof(struct zd_buffer) + sizeof(struct zd_lease), err);
	if (status == 0 && buffer && buffer_has(buffer, req)) {
		req->device->joined_gathers++;
		zd_count(e, ZD_COUNT_GATHERS_JOINED, 1);
		*out = buffer;
		return 0;
	}
	if (status == 0)
		status = zd_collective_check_order(req);
	if (status == 0)
		status = gather_begin_transfer(e, req, out, err);
	/* The error depends on timing, even that of a slot's conflict: other daemons' ranks can miss it. */
	if (status < 0)
		zd_collective_missed(e, req, status, err->text);
	return status;
}

static int gather_try(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	const struct zd_scope *scope = req->u.gather.scope;
	struct zd_buffer *buffer = NULL;
	if (scope && scope->state == ZD_SCOPE_ENDED) { /* while the request waited */
		zd_collective_given_up(e, req);
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "scope %llu of rank %u ended before unit '%s' came",
		                  ZD_ID_NUMBER(scope->id), zd_world_rank(req->member),
		                  req->u.gather.part->unit->name);
	}
	int status = zd_gather_buffer(e, req, &buffer, err);
	if (status != 0)
		return status;
	zd_assert(buffer);
	return gather_done(e, req, buffer, err);
}

static int gather_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	int status = gather_try(e, req, err);
	if (status != ZD_WAIT)
		gather_end(req); /* releases what the request holds while it waits */
	return status;
}

bool zd_gather_lacks(const struct zd_request *req, const struct zd_part *part, uint64_t *version)
{
	if (req->kind == ZD_REQ_GATHER) {
		*version = req->u.gather.version;
		return req->u.gather.part == part;
	}
	if (req->kind != ZD_REQ_CONTEXT_BEGIN)
		return false;
	for (uint32_t i = req->u.gather.nheld; i < req->u.gather.nparts; i++) {
		*version = req->u.gather.versions[i];
		if (req->u.gather.parts[i] == part)
			return true;
	}
	return false;
}

const struct zd_request_type zd_req_gather = {
        .begin = gather_begin, .attempt = gather_attempt, .cancel = gather_cancel, .gathers = true};
