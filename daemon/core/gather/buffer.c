/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buffer.c - gathered buffers. Transfers fill them (transfer.c), leases share them, and buffers without a
 * lease are quarantined.
 *
 * A buffer is charged while it is leased, prefetched or persistent. When it is dropped, its bytes are
 * uncharged at once and the buffer leaves its part. Its block is freed when every transfer into it and every
 * fence of every past lease has passed. Before that, the block or slot can be promised to another buffer, its
 * heir. From then on the block is the heir's, also in the accounts, and the heir's transfer starts when the
 * last operation of this buffer has ended. An heir can have an heir. No heir is freed before its former
 * buffer.
 *
 * A leased buffer of a poison session is filled with NaN patterns after its last transfer and fence. The fill
 * is the buffer's last operation: the block is quarantined until it has ended, and an heir's transfer starts
 * after it. Buffers of ended sessions are not filled.
 */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/engine/deferred_teardown.h"
#include "core/gather/buffer.h"
#include "core/gather/deferred.h"
#include "core/gather/gather.h"
#include "core/gather/scope.h"
#include "core/gather/shadow.h"

#define MOST_UNINDEXED 8u /* leases of a buffer */

/* ---- Slots --------------------------------------------------------------------------------------------- */

uint64_t zd_slot_bytes(const struct zd_slot *slot)
{
	return zd_space_bytes(&slot->copy) + zd_space_bytes(&slot->frames);
}

void zd_slot_free(struct zd_engine *e, struct zd_slot *slot)
{
	zd_assert(!slot->occupant);
	slot->device->idle_slot_bytes -= zd_slot_bytes(slot);
	zd_pool_free_space(e, &slot->copy);
	zd_pool_free_space(e, &slot->frames);
	free(slot);
}

/* ---- Charges ------------------------------------------------------------------------------------------- */

static void buffer_charge(struct zd_engine *e, struct zd_buffer *buffer)
{
	zd_charge(e, buffer->unit->group->job, buffer->device, ZD_CHARGE_GATHERED, zd_buffer_bytes(buffer));
	if (buffer->slot)
		buffer->device->idle_slot_bytes -= zd_buffer_bytes(buffer);
}

static void buffer_uncharge(struct zd_engine *e, struct zd_buffer *buffer)
{
	zd_uncharge(e, buffer->unit->group->job, buffer->device, ZD_CHARGE_GATHERED, zd_buffer_bytes(buffer));
	if (buffer->slot)
		buffer->device->idle_slot_bytes += zd_buffer_bytes(buffer);
	else
		buffer->device->quarantine_bytes += zd_buffer_bytes(buffer);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

void zd_buffer_set_prefetched(struct zd_buffer *buffer, bool prefetched)
{
	if (buffer->prefetched == prefetched)
		return;
	buffer->prefetched = prefetched;
	if (prefetched)
		TAILQ_INSERT_TAIL(&buffer->device->prefetched, buffer, use_link);
	else
		TAILQ_REMOVE(&buffer->device->prefetched, buffer, use_link);
}

static struct zd_buffer_list *formers_of(const struct zd_buffer *buffer)
{
	return &buffer->unit->group->job->owner->queues[buffer->device->index].formers;
}

/* Whether the memory of the quarantined buffer can be promised to another one. Then `formers` has it. */
static bool is_reusable(const struct zd_buffer *buffer)
{
	return !buffer->slot && !buffer->heir && zd_buffer_bytes(buffer) > 0;
}

static void take_over(struct zd_buffer *buffer, struct zd_buffer *former)
{
	zd_assert(former->state == ZD_BUFFER_QUARANTINED && !former->heir && former->slot == buffer->slot);
	if (is_reusable(former))
		TAILQ_REMOVE(formers_of(former), former, use_link);
	buffer->former = former;
	former->heir = buffer;
	if (!former->slot)
		former->device->quarantine_bytes -= zd_buffer_bytes(former);
}

struct zd_buffer *zd_buffer_new(struct zd_engine *e, struct zd_part *part, struct zd_slot *slot,
                                const struct zd_space *space, struct zd_buffer *former)
{
	struct zd_buffer *buffer = zd_calloc(1, sizeof(*buffer));
	zd_assert(!part->buffer);
	zd_metadata_charge(part->unit->group->job->owner, sizeof(*buffer));
	buffer->id = zd_next_id(e, part->unit->group->job->owner->ids, ZD_ID_BUFFER);
	buffer->state = ZD_BUFFER_INFLIGHT;
	buffer->unit = part->unit;
	buffer->part = part;
	buffer->device = zd_part_member(part)->device;
	buffer->own = zd_part_is_in_place(part) ? ZD_OWN_IN_PLACE : ZD_OWN_COPIED;
	buffer->space = *space;
	buffer->slot = slot;
	if (slot)
		slot->occupant = buffer;
	else
		zd_space_own(e, space, ZD_BLOCK_BUFFER, buffer,
		             zd_member_use(zd_part_member(part),
		                           zd_buffer_is_in_place(buffer) ? ZD_WORD_FRAME : ZD_WORD_GATHERED,
		                           part->unit->id));
	buffer->since_ns = e->now_ns;
	TAILQ_INIT(&buffer->leases);
	LIST_INIT(&buffer->awaits);
	if (former)
		take_over(buffer, former);
	TAILQ_INSERT_TAIL(&buffer->device->buffers, buffer, device_link);
	buffer->device->nbuffers++;
	zd_id_tree_insert(&e->listed[ZD__TABLE__BUFFERS], &buffer->listed, buffer->id);
	part->buffer = buffer;
	part->unit->refs++;
	buffer_charge(e, buffer);
	return buffer;
}

/* Frees a quarantined buffer after its last operation. `formers` does not have it. */
static void buffer_free(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_slot *slot = buffer->slot;
	zd_assert(buffer->state == ZD_BUFFER_QUARANTINED && TAILQ_EMPTY(&buffer->leases));
	zd_dirty(e, buffer->device);
	zd_assert(buffer->own != ZD_OWN_VIEWED);
	TAILQ_REMOVE(&buffer->device->buffers, buffer, device_link);
	buffer->device->nbuffers--;
	zd_id_tree_remove(&e->listed[ZD__TABLE__BUFFERS], &buffer->listed);
	if (buffer->heir) {
		zd_deferred_inherit(e, buffer);
	} else if (slot) {
		slot->occupant = NULL;
		if (slot->orphan)
			zd_slot_free(e, slot);
	} else {
		buffer->device->quarantine_bytes -= zd_buffer_bytes(buffer);
		zd_pool_free_space(e, &buffer->space);
	}
	zd_metadata_uncharge(buffer->unit->group->job->owner, sizeof(*buffer));
	zd_unit_unref(e, buffer->unit);
	free(buffer);
}

static void fill_done(struct zd_engine *e, struct zd_op *op)
{
	struct zd_buffer *buffer = op->owner;
	/* The status does not matter: after a failed fill a stale reader sees old bytes. */
	zd_sm_move(&zd_sm_poison, &buffer->poison, ZD_POISON_NONE);
	zd_buffer_op_over(e, buffer);
}

static bool fill_is_due(struct zd_engine *e, const struct zd_buffer *buffer)
{
	return buffer->poison == ZD_POISON_DUE && zd_session_find(e, buffer->session);
}

static void fill(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_command command = {.kind = ZD_CMD_FILL, .device = buffer->device->index};
	command.u.fill.dst = zd_extent_location(&buffer->space.low);
	command.u.fill.pattern = ZD_FILL_NAN;
	zd_sm_move(&zd_sm_poison, &buffer->poison, ZD_POISON_FILLING);
	zd_op_submit(e, buffer->unit->group->job, &command, fill_done, buffer, 0);
}

void zd_buffer_op_over(struct zd_engine *e, struct zd_buffer *buffer)
{
	zd_shadow_try(e, buffer->part);
	zd_buffer_view_done(e, buffer);
	if (zd_buffer_is_in_use(buffer))
		return;
	zd_dirty(e, buffer->device);
	if (buffer->state != ZD_BUFFER_QUARANTINED)
		return;
	if (fill_is_due(e, buffer)) {
		fill(e, buffer);
		return;
	}
	if (is_reusable(buffer))
		TAILQ_REMOVE(formers_of(buffer), buffer, use_link);
	buffer_free(e, buffer);
}

static void watch_done(struct zd_engine *e, struct zd_op *op)
{
	/* The status does not matter: a failed watch means that the session and its streams have ended. */
	zd_buffer_unwatch(e, op->owner);
}

static void hold_for_process(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_session *session = zd_part_member(buffer->part)->session;
	if (!zd_deferred_teardown_hold(e, session, buffer->unit->group->job, buffer->device, watch_done,
	                               buffer))
		return;
	buffer->watches++;
	buffer->leaving_pid = session->pid;
}

void zd_buffer_drop(struct zd_engine *e, struct zd_buffer *buffer)
{
	zd_assert(TAILQ_EMPTY(&buffer->leases) && buffer->part->buffer == buffer);
	zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_QUARANTINED);
	buffer->part->buffer = NULL;
	zd_buffer_set_prefetched(buffer, false);
	buffer_uncharge(e, buffer);
	zd_dirty(e, buffer->device);
	hold_for_process(e, buffer);
	zd_buffer_view_done(e, buffer);
	bool in_use = zd_buffer_is_in_use(buffer);
	if (!in_use && !fill_is_due(e, buffer)) {
		buffer_free(e, buffer);
		return;
	}
	if (is_reusable(buffer))
		TAILQ_INSERT_TAIL(formers_of(buffer), buffer, use_link);
	if (!in_use)
		fill(e, buffer);
}

/* Most buffers have one or two leases: the list is their index. */
static void index_lease(struct zd_buffer *buffer, struct zd_lease *added)
{
	struct zd_lease *lease;
	buffer->nleases++;
	if (buffer->tags)
		zd_hash_insert(buffer->tags, &added->by_tag, zd_text_hash(added->tag));
	if (buffer->tags || buffer->nleases <= MOST_UNINDEXED)
		return;
	buffer->tags = zd_calloc(1, sizeof(*buffer->tags));
	TAILQ_FOREACH (lease, &buffer->leases, link)
		zd_hash_insert(buffer->tags, &lease->by_tag, zd_text_hash(lease->tag));
}

static void unindex(struct zd_buffer *buffer, struct zd_lease *lease)
{
	buffer->nleases--;
	if (!buffer->tags)
		return;
	zd_hash_remove(buffer->tags, &lease->by_tag);
	if (buffer->nleases > 0)
		return;
	free(buffer->tags);
	buffer->tags = NULL;
}

void zd_lease_rename(struct zd_lease *lease, const char *tag)
{
	struct zd_hash_table *tags = lease->buffer->tags;
	if (tags)
		zd_hash_remove(tags, &lease->by_tag);
	memcpy(lease->tag, tag, strlen(tag) + 1);
	if (tags)
		zd_hash_insert(tags, &lease->by_tag, zd_text_hash(tag));
}

static void lease_event(struct zd_engine *e, const struct zd_lease *lease)
{
	const struct zd_buffer *buffer = lease->buffer;
	struct zd_event *event = zd_event_of(e, ZD_EVENT_LEASE, zd_part_member(buffer->part));
	event->object = buffer->unit->id;
	event->bytes = zd_buffer_bytes(buffer);
	event->value = lease->since_ns;
	event->number = (uint32_t)buffer->transfer;
}

static void lease_free(struct zd_engine *e, struct zd_buffer *buffer, struct zd_lease *lease)
{
	struct zd_scope *scope = lease->scope;
	lease_event(e, lease);
	TAILQ_REMOVE(&buffer->leases, lease, link);
	unindex(buffer, lease);
	if (scope) {
		TAILQ_REMOVE(&scope->leases, lease, scope_link);
		scope->nleases--;
		if (scope->context)
			buffer->part->context = NULL;
	}
	zd_metadata_uncharge(buffer->unit->group->job->owner, sizeof(*lease));
	free(lease);
}

static void free_first_lease(struct zd_engine *e, struct zd_buffer *buffer)
{
	/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): a freed object is in no list */
	lease_free(e, buffer, TAILQ_FIRST(&buffer->leases));
}

bool zd_buffer_thin_out(struct zd_engine *e, struct zd_buffer *buffer, uint32_t *budget)
{
	while (buffer->nleases > 1 && zd_ending_may_free(budget))
		free_first_lease(e, buffer);
	return buffer->nleases <= 1;
}

void zd_buffer_revoke(struct zd_engine *e, struct zd_buffer *buffer)
{
	while (buffer->nleases > 0)
		free_first_lease(e, buffer);
	zd_buffer_drop(e, buffer);
}

/* ---- Leases -------------------------------------------------------------------------------------------- */

static struct zd_lease *find_indexed(const struct zd_buffer *buffer, const char *tag)
{
	struct zd_hash_node *node = zd_hash_first(buffer->tags, zd_text_hash(tag));
	for (; node; node = zd_hash_next(node)) {
		struct zd_lease *lease = ZD_CONTAINER_OF(node, struct zd_lease, by_tag);
		if (strcmp(lease->tag, tag) == 0)
			return lease;
	}
	return NULL;
}

struct zd_lease *zd_lease_find(struct zd_buffer *buffer, const char *tag)
{
	struct zd_lease *lease;
	if (buffer->tags)
		return find_indexed(buffer, tag);
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
		zd_metadata_charge(buffer->unit->group->job->owner, sizeof(*lease));
		memcpy(lease->tag, tag, strlen(tag) + 1); /* its length was checked with the request */
		lease->since_ns = e->now_ns;
		lease->buffer = buffer;
		TAILQ_INSERT_TAIL(&buffer->leases, lease, link);
		index_lease(buffer, lease);
	}
	lease->uses += uses;
	zd_buffer_set_prefetched(buffer, false);
	if (zd_part_member(buffer->part)->session->poison && buffer->poison == ZD_POISON_NONE)
		zd_sm_move(&zd_sm_poison, &buffer->poison, ZD_POISON_DUE);
	zd_buffer_view(buffer);
	return lease;
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
	lease_free(e, buffer, lease);
	zd_dirty(e, buffer->device);
	zd_shadow_try(e, buffer->part);
	if (TAILQ_EMPTY(&buffer->leases) && !buffer->part->persistent)
		zd_buffer_drop(e, buffer);
	else
		zd_buffer_view_done(e, buffer);
}

bool zd_lease_release(struct zd_engine *e, struct zd_buffer *buffer, struct zd_lease *lease,
                      const struct zd_fence_list *fences)
{
	struct zd_session *session = zd_part_member(buffer->part)->session;
	if (zd_fences_watch(e, session, buffer->unit->group->job, buffer->device->index, fences, watch_done,
	                    buffer, 0))
		buffer->watches++;
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
