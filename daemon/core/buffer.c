/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffer.c - gathered buffers: made by a transfer, shared by leases, quarantined when nobody holds them.
 *
 * Storage follows leases and nothing else. When the last lease ends, the bytes are uncharged at once and the
 * buffer leaves its unit; its block goes back when every transfer into it and every fence of every past lease
 * has passed. Before that, the block or slot may be promised to another buffer, its heir: the block is the
 * heir's from then on, in the accounts too, and the heir's transfer begins when this buffer is over. Heirs
 * may have heirs; none is freed before its former buffer.
 *
 * A poison session's buffer that was leased is filled with NaN patterns after its last transfer and fence.
 * The fill is the buffer's last operation, so the block is quarantined until then, and an heir's transfer
 * comes behind the fill. A session that has ended is owed no fill.
 */
#include <stdio.h>
#include <string.h>

#include "core/deferred.h"
#include "core/departure.h"
#include "core/gather.h"
#include "core/rail.h"
#include "core/shadow.h"
#include "core/scope.h"

/* ---- Slots --------------------------------------------------------------------------------------------- */

void zd_slot_free(struct zd_engine *e, struct zd_slot *slot)
{
	zd_assert(!slot->occupant);
	slot->extent.segment->device->idle_slot_bytes -= slot->extent.bytes;
	zd_pool_free(e, &slot->extent);
	free(slot);
}

/* ---- Charges ------------------------------------------------------------------------------------------- */

static void buffer_charge(struct zd_engine *e, struct zd_buffer *buffer)
{
	zd_charge(e, buffer->unit->group->job, buffer->device, ZD_CHARGE_GATHERED, buffer->extent.bytes);
	if (buffer->slot)
		buffer->device->idle_slot_bytes -= buffer->extent.bytes;
	buffer->charged = true;
}

static void buffer_uncharge(struct zd_engine *e, struct zd_buffer *buffer)
{
	zd_uncharge(e, buffer->unit->group->job, buffer->device, ZD_CHARGE_GATHERED, buffer->extent.bytes);
	if (buffer->slot)
		buffer->device->idle_slot_bytes += buffer->extent.bytes;
	else
		buffer->device->quarantine_bytes += buffer->extent.bytes;
	buffer->charged = false;
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

/* The memory of `former` is the buffer's from here on. */
static void take_over(struct zd_buffer *buffer, struct zd_buffer *former)
{
	zd_assert(former->state == ZD_BUFFER_QUARANTINED && !former->heir && former->slot == buffer->slot);
	buffer->former = former;
	former->heir = buffer;
	if (!former->slot)
		former->device->quarantine_bytes -= former->extent.bytes;
}

struct zd_buffer *zd_buffer_new(struct zd_engine *e, struct zd_part *part, struct zd_slot *slot,
                                const struct zd_extent *extent, struct zd_buffer *former)
{
	struct zd_buffer *buffer = zd_calloc(1, sizeof(*buffer));
	zd_assert(!part->buffer);
	buffer->id = zd_next_id(e);
	buffer->state = ZD_BUFFER_INFLIGHT;
	buffer->unit = part->unit;
	buffer->part = part;
	buffer->device = zd_part_member(part)->device;
	buffer->aliased = !extent;
	if (extent)
		buffer->extent = *extent;
	buffer->slot = slot;
	if (slot)
		slot->occupant = buffer;
	buffer->since_ns = e->now_ns;
	TAILQ_INIT(&buffer->leases);
	LIST_INIT(&buffer->awaits);
	if (former)
		take_over(buffer, former);
	TAILQ_INSERT_TAIL(&buffer->device->buffers, buffer, device_link);
	part->buffer = buffer;
	part->unit->refs++;
	buffer_charge(e, buffer);
	return buffer;
}

/* The last operation of a quarantined buffer is over. */
static void buffer_free(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_slot *slot = buffer->slot;
	zd_assert(buffer->state == ZD_BUFFER_QUARANTINED && !buffer->charged && TAILQ_EMPTY(&buffer->leases));
	zd_dirty(e, buffer->device);
	zd_alias_read_done(e, buffer);
	TAILQ_REMOVE(&buffer->device->buffers, buffer, device_link);
	if (buffer->heir) {
		zd_deferred_inherit(e, buffer);
	} else if (slot) {
		slot->occupant = NULL;
		if (slot->orphan)
			zd_slot_free(e, slot);
	} else if (!buffer->aliased) {
		buffer->device->quarantine_bytes -= buffer->extent.bytes;
		zd_pool_free(e, &buffer->extent);
	}
	zd_unit_unref(e, buffer->unit);
	free(buffer->fences);
	free(buffer);
}

static void fill_done(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                      const struct zd_op_result *result)
{
	struct zd_buffer *buffer = op->owner;
	(void)status; /* a device that cannot fill shows old bytes to a stale reader, and harms nobody else */
	(void)error;
	(void)result;
	buffer->filling = false;
	zd_buffer_op_over(e, buffer);
}

static void fill(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_command command = {.kind = ZD_CMD_FILL, .device = buffer->device->index};
	command.u.fill.dst = zd_extent_location(&buffer->extent);
	command.u.fill.pattern = ZD_FILL_NAN;
	buffer->fill_due = false;
	buffer->filling = true;
	zd_op_submit(e, buffer->unit->group->job, &command, fill_done, buffer, 0);
}

/* A quarantined buffer is in use no more. */
static void buffer_end(struct zd_engine *e, struct zd_buffer *buffer)
{
	if (buffer->fill_due && zd_session_find(e, buffer->session))
		fill(e, buffer);
	else
		buffer_free(e, buffer);
}

void zd_buffer_op_over(struct zd_engine *e, struct zd_buffer *buffer)
{
	zd_shadow_try(e, buffer->part);
	if (zd_buffer_is_in_use(buffer))
		return;
	zd_dirty(e, buffer->device);
	if (buffer->state == ZD_BUFFER_QUARANTINED)
		buffer_end(e, buffer);
	else
		zd_alias_read_done(e, buffer);
}

static void watch_done(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                       const struct zd_op_result *result)
{
	(void)status; /* an aborted watch: the session is gone, and its streams with it */
	(void)error;
	(void)result;
	zd_buffer_unwatch(e, op->owner);
}

static void hold_for_process(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_session *session = zd_part_member(buffer->part)->session;
	if (!zd_departure_hold(e, session, buffer->unit->group->job, buffer->device, watch_done, buffer))
		return;
	zd_buffer_watch(buffer);
	buffer->leaving_pid = session->pid;
}

void zd_buffer_drop(struct zd_engine *e, struct zd_buffer *buffer)
{
	zd_assert(TAILQ_EMPTY(&buffer->leases) && buffer->part->buffer == buffer);
	zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_QUARANTINED);
	buffer->part->buffer = NULL;
	buffer_uncharge(e, buffer);
	zd_dirty(e, buffer->device);
	hold_for_process(e, buffer);
	if (!zd_buffer_is_in_use(buffer))
		buffer_end(e, buffer);
}

static void lease_free(struct zd_buffer *buffer, struct zd_lease *lease)
{
	struct zd_scope *scope = lease->scope;
	TAILQ_REMOVE(&buffer->leases, lease, link);
	if (scope) {
		TAILQ_REMOVE(&scope->leases, lease, scope_link);
		scope->nleases--;
		if (scope->context)
			buffer->part->context = NULL;
	}
	free(lease);
}

void zd_buffer_revoke(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_lease *lease, *next;
	TAILQ_FOREACH_SAFE (lease, &buffer->leases, link, next)
		lease_free(buffer, lease);
	zd_buffer_drop(e, buffer);
}

/* ---- Transfers ----------------------------------------------------------------------------------------- */

/* Where a group spans daemons its ranks' transfers belong together: when one fails, so does the group. */
static void transfer_failed(struct zd_engine *e, struct zd_buffer *buffer, uint32_t timeline, int status,
                            const char *error)
{
	/* Not whoever has taken its rank's place since. */
	struct zd_session *session = zd_session_find(e, buffer->session);
	struct zd_group *group = buffer->unit->group;
	struct zd_err err = ZD_ERR_NONE;
	buffer->stale = true;
	/* Its streams wait, though the copy may be released already; but a reset since has freed them. */
	if (session && session->resets == buffer->resets) {
		if (buffer->deferred)
			zd_deferred_break(e, session); /* the fences behind this one's, on its timeline */
		zd_session_abort(e, session, timeline);
	}
	if (!zd_gathers_over_rails(group) || buffer->connection != group->span->serial)
		return;
	status = zd_err_set(&err, status, "group '%.64s': a gather of unit '%.64s' by rank %u: %s",
	                    group->name, buffer->unit->name, zd_world_rank(zd_part_member(buffer->part)),
	                    error);
	zd_span_fail(e, group, status, err.text);
}

/* A reset may wait for the last one, in the queue of another group's device. */
static void member_transfer_over(struct zd_engine *e, const struct zd_buffer *buffer)
{
	struct zd_member *member = zd_part_member(buffer->part);
	const struct zd_group *group = member->group;
	if (!zd_gathers_over_rails(group) || buffer->connection != group->span->serial ||
	    --member->transfers > 0 || !member->session)
		return;
	zd_dirty_session(e, member->session);
}

void zd_buffer_arrived(struct zd_engine *e, struct zd_buffer *buffer, uint32_t timeline, int status,
                       const char *error)
{
	if (status != 0)
		transfer_failed(e, buffer, timeline, status, error);
	buffer->transfers--;
	member_transfer_over(e, buffer);
	if (buffer->transfers == 0 && buffer->state == ZD_BUFFER_INFLIGHT)
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_AVAILABLE);
	zd_buffer_op_over(e, buffer);
}

static void transfer_done(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                          const struct zd_op_result *result)
{
	struct zd_buffer *buffer = op->owner;
	struct zd_part *source = &buffer->unit->parts[op->aux];
	(void)result;
	uint32_t timeline = buffer->deferred ? ZD_TIMELINE_DEFERRED : ZD_TIMELINE_COPIES;
	zd_buffer_arrived(e, buffer, timeline + source->shard.segment->device->index, status, error);
	zd_part_reader_done(e, source);
}

void zd_buffer_copy(struct zd_engine *e, struct zd_buffer *buffer, struct zd_part *source,
                    struct zd_signal signal)
{
	uint64_t bytes = zd_unit_shard_bytes(buffer->unit);
	struct zd_location dst = zd_extent_location(&buffer->extent);
	struct zd_command command = {.kind = ZD_CMD_COPY, .device = source->shard.segment->device->index};
	dst.offset += zd_shard_index(zd_part_member(source)) * bytes;
	dst.bytes = bytes;
	command.u.copy.src = zd_extent_location(&source->shard);
	command.u.copy.src.bytes = bytes;
	command.u.copy.dst_device = buffer->device->index;
	command.u.copy.dst = dst;
	command.signal = signal;
	zd_op_submit(e, buffer->unit->group->job, &command, transfer_done, buffer, source->rank);
}

static void copy_shard(struct zd_engine *e, struct zd_buffer *buffer, struct zd_part *source)
{
	struct zd_session *session = zd_part_member(buffer->part)->session;
	uint32_t timeline = ZD_TIMELINE_COPIES + source->shard.segment->device->index;
	source->readers++;
	buffer->transfers++;
	zd_buffer_copy(e, buffer, source,
	               (struct zd_signal){session->id, timeline, ++session->timeline[timeline]});
}

/* Every shard but one that is left to the client. */
static void copy_shards(struct zd_engine *e, struct zd_buffer *buffer, struct zd_timelines *timelines)
{
	struct zd_unit *unit = buffer->unit;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		struct zd_part *source = &unit->parts[rank];
		if (source == buffer->part && buffer->own_left)
			continue;
		copy_shard(e, buffer, source);
		zd_timelines_add(timelines, ZD_TIMELINE_COPIES + source->shard.segment->device->index);
	}
}

/* Is there something that the copies have to wait for. */
static bool is_early(const struct zd_buffer *buffer)
{
	const struct zd_unit *unit = buffer->unit;
	bool early = buffer->former;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++)
		early |= zd_deferred_comes(&unit->parts[rank], buffer->version);
	return early;
}

/* One fence a timeline is enough: what signals it ends in order. */
static void set_fences(struct zd_buffer *buffer, const struct zd_timelines *timelines)
{
	const struct zd_session *session = zd_part_member(buffer->part)->session;
	free(buffer->fences);
	buffer->nfences = 0;
	for (uint32_t i = 0; i < ZD_ARRAY_LEN(timelines->mask); i++)
		buffer->nfences += (uint32_t)__builtin_popcountll(timelines->mask[i]);
	buffer->fences = zd_calloc(buffer->nfences ? buffer->nfences : 1, sizeof(*buffer->fences));
	uint32_t n = 0;
	for (uint32_t i = 0; n < buffer->nfences; i++) {
		if (zd_timelines_has(timelines, i))
			buffer->fences[n++] = (struct zd_fence){i, session->timeline[i]};
	}
}

static bool is_left_to_client(const struct zd_engine *e, const struct zd_buffer *buffer)
{
	/* Ranks of several daemons begin the same transfers: none may depend on when a client had copied. */
	return !zd_gathers_over_rails(buffer->unit->group) && e->sink.client_copies_own &&
	       e->sink.client_copies_own(e->sink.arg, buffer->device->index,
	                                 zd_unit_shard_bytes(buffer->unit));
}

void zd_buffer_transfer(struct zd_engine *e, struct zd_buffer *buffer, uint64_t version)
{
	struct zd_unit *unit = buffer->unit;
	bool rails = zd_gathers_over_rails(unit->group);
	/* One exchange brings it all, the own shard too. */
	bool all = rails && (unit->group->span->exchange || unit->group->local_world_size == 1);
	const struct zd_session *session = zd_part_member(buffer->part)->session;
	struct zd_timelines timelines = {{0}};
	zd_assert(buffer->transfers == 0 && buffer->watches == 0);
	if (buffer->state == ZD_BUFFER_AVAILABLE)
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_INFLIGHT);
	buffer->version = version;
	buffer->stale = false;
	buffer->deferred = is_early(buffer);
	/* A client would have to learn when it may begin to copy. */
	buffer->own_left = !buffer->deferred && is_left_to_client(e, buffer);
	buffer->own_copied = false;
	buffer->device->gathers++;
	e->gathers++;
	buffer->transfer = e->gathers;
	buffer->session = session->id;
	buffer->resets = session->resets;
	e->gathered_bytes_total += buffer->extent.bytes;
	if (buffer->deferred)
		zd_deferred_promise(e, buffer, &timelines);
	else if (!all)
		copy_shards(e, buffer, &timelines);
	if (rails) {
		buffer->connection = unit->group->span->serial;
		zd_rail_transfer(e, buffer, &timelines);
		zd_part_member(buffer->part)->transfers += buffer->transfers;
	}
	set_fences(buffer, &timelines);
	if (buffer->transfers == 0)
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_AVAILABLE);
}

/* ---- Leases -------------------------------------------------------------------------------------------- */

struct zd_lease *zd_lease_find(struct zd_buffer *buffer, const char *tag)
{
	struct zd_lease *lease;
	TAILQ_FOREACH (lease, &buffer->leases, link) {
		if (strcmp(lease->tag, tag) == 0)
			return lease;
	}
	return NULL;
}

struct zd_lease *zd_lease_add(struct zd_engine *e, struct zd_buffer *buffer, const char *tag, uint32_t uses)
{
	struct zd_lease *lease = zd_lease_find(buffer, tag);
	if (!lease) {
		lease = zd_calloc(1, sizeof(*lease));
		memcpy(lease->tag, tag, strlen(tag) + 1); /* a request's: checked there */
		lease->since_ns = e->now_ns;
		lease->buffer = buffer;
		TAILQ_INSERT_TAIL(&buffer->leases, lease, link);
	}
	lease->uses += uses;
	buffer->prefetched = false;
	buffer->fill_due = zd_part_member(buffer->part)->session->poison;
	zd_alias_read(buffer);
	return lease;
}

void zd_buffer_watch(struct zd_buffer *buffer)
{
	buffer->watches++;
}

void zd_buffer_unwatch(struct zd_engine *e, struct zd_buffer *buffer)
{
	zd_assert(buffer->watches > 0);
	buffer->watches--;
	zd_buffer_op_over(e, buffer);
}

void zd_lease_end(struct zd_engine *e, struct zd_lease *lease)
{
	struct zd_buffer *buffer = lease->buffer;
	lease_free(buffer, lease);
	zd_dirty(e, buffer->device);
	zd_shadow_try(e, buffer->part);
	if (TAILQ_EMPTY(&buffer->leases) && !buffer->part->persistent)
		zd_buffer_drop(e, buffer);
	else
		zd_alias_read_done(e, buffer);
}

bool zd_lease_release(struct zd_engine *e, struct zd_buffer *buffer, struct zd_lease *lease,
                      const struct zd_fence_list *fences)
{
	struct zd_session *session = zd_part_member(buffer->part)->session;
	if (zd_fences_watch(e, session, buffer->unit->group->job, buffer->device->index, fences, watch_done,
	                    buffer, 0))
		zd_buffer_watch(buffer);
	if (--lease->uses > 0)
		return false;
	zd_lease_end(e, lease);
	return true;
}

void zd_buffer_tags(const struct zd_buffer *buffer, char *out, size_t out_bytes)
{
	const struct zd_lease *lease;
	size_t used = 0;
	out[0] = '\0';
	TAILQ_FOREACH (lease, &buffer->leases, link) {
		int n = snprintf(out + used, out_bytes - used, "%s'%s'", used ? ", " : "", lease->tag);
		if (n < 0 || (size_t)n >= out_bytes - used)
			break;
		used += (size_t)n;
	}
}
