/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - segments of a device and blocks in them.
 *
 * A segment belongs to one job and one purpose: no job ever maps another job's memory. The device's executor
 * creates segments, and an allocation can have to wait for one. Segments are destroyed when their job ends,
 * or retired earlier, when they are empty and their memory is needed elsewhere (retire.c).
 */
#include <stdlib.h>

#include "core/engine/events.h"
#include "core/engine/objects.h"
#include "core/memory/empty.h"
#include "core/memory/pool.h"
#include "core/memory/retire.h"

#define SEGMENTS_PER_QUOTA 16ull /* on each device */
#define FIRST_PER_USUAL    64ull /* a job's first segment has 1 / FIRST_PER_USUAL of the usual size */

/* Whether such a block may be allocated from the segment. */
static bool is_for(const struct zd_segment *segment, const struct zd_job *job, enum zd_purpose purpose,
                   uint64_t bytes)
{
	return segment->job == job && segment->purpose == purpose &&
	       (zd_purpose_is_single(purpose) ? segment->bytes == bytes : segment->bytes >= bytes);
}

/* Whether the segment was created for a request of more than `need` bytes, which has yet to use it. */
static bool is_for_larger(const struct zd_segment *segment, uint64_t need)
{
	return segment->one_block && segment->bytes > need &&
	       (segment->state == ZD_SEGMENT_CREATING || segment->nwaiting > 0);
}

/* ---- Segments of one block ----------------------------------------------------------------------------- */

/* Segments of one device, job, purpose and size whose block is free. A job can have 10^5 of them. */
struct zd_single_class {
	struct zd_hash_node node; /* of the engine's `singles` */
	TAILQ_HEAD(, zd_segment) segments;
};

static uint64_t single_hash(const struct zd_device *device, const struct zd_job *job, enum zd_purpose purpose,
                            uint64_t bytes)
{
	uint64_t hash = zd_hash_id(job->id ^ zd_hash_id((uint64_t)device->index << 8 | (uint64_t)purpose));
	return zd_hash_id(hash ^ bytes);
}

static struct zd_single_class *find_class(const struct zd_engine *e, const struct zd_device *device,
                                          const struct zd_job *job, enum zd_purpose purpose, uint64_t bytes)
{
	struct zd_hash_node *node = zd_hash_first(&e->singles, single_hash(device, job, purpose, bytes));
	for (; node; node = zd_hash_next(node)) {
		struct zd_single_class *class = ZD_CONTAINER_OF(node, struct zd_single_class, node);
		const struct zd_segment *first = TAILQ_FIRST(&class->segments);
		if (first->device == device && is_for(first, job, purpose, bytes))
			return class;
	}
	return NULL;
}

static void offer(struct zd_engine *e, struct zd_segment *segment)
{
	if (!zd_purpose_is_single(segment->purpose) || segment->offered)
		return;
	struct zd_single_class *class = find_class(e, segment->device, segment->job, segment->purpose,
	                                           segment->bytes);
	if (!class) {
		class = zd_calloc(1, sizeof(*class));
		TAILQ_INIT(&class->segments);
		zd_hash_insert(&e->singles, &class->node,
		               single_hash(segment->device, segment->job, segment->purpose, segment->bytes));
	}
	TAILQ_INSERT_HEAD(&class->segments, segment, offered_link);
	segment->offered = class;
}

static void withdraw(struct zd_engine *e, struct zd_segment *segment)
{
	struct zd_single_class *class = segment->offered;
	if (!class)
		return;
	TAILQ_REMOVE(&class->segments, segment, offered_link);
	segment->offered = NULL;
	if (!TAILQ_EMPTY(&class->segments))
		return;
	zd_hash_remove(&e->singles, &class->node);
	free(class);
}

void zd_segment_take(struct zd_engine *e, struct zd_segment *segment)
{
	withdraw(e, segment);
	zd_empty_note(segment);
}

static void free_block(struct zd_engine *e, const struct zd_extent *extent)
{
	zd_block_free(extent->segment->range, extent->block);
	offer(e, extent->segment);
	zd_empty_note(extent->segment);
}

static struct zd_segment *find_single(const struct zd_engine *e, const struct zd_device *device,
                                      const struct zd_job *job, enum zd_purpose purpose, uint64_t bytes,
                                      enum zd_segment_state state)
{
	const struct zd_single_class *class = find_class(e, device, job, purpose, bytes);
	struct zd_segment *segment = class ? TAILQ_FIRST(&class->segments) : NULL;
	while (segment && segment->state != state)
		segment = TAILQ_NEXT(segment, offered_link);
	return segment;
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static struct zd_segment *take_single(struct zd_engine *e, struct zd_segment *segment, uint64_t bytes,
                                      uint64_t align, struct zd_block **block)
{
	*block = zd_block_alloc(segment->range, bytes, align);
	zd_assert(*block);
	zd_segment_take(e, segment);
	segment->one_block = false;
	return segment;
}

static struct zd_segment *find_block(struct zd_engine *e, struct zd_device *device, const struct zd_job *job,
                                     enum zd_purpose purpose, uint64_t bytes, uint64_t align,
                                     struct zd_block **block)
{
	uint64_t need = zd_align_up(bytes, device->config.segment_align_bytes);
	struct zd_segment *segment;
	if (zd_purpose_is_single(purpose)) {
		segment = find_single(e, device, job, purpose, bytes, ZD_SEGMENT_READY);
		return segment ? take_single(e, segment, bytes, align, block) : NULL;
	}
	TAILQ_FOREACH (segment, &device->shared, shared_link) {
		if (segment->state != ZD_SEGMENT_READY || !is_for(segment, job, purpose, bytes) ||
		    is_for_larger(segment, need))
			continue;
		*block = zd_block_alloc(segment->range, bytes, align);
		if (!*block)
			continue;
		segment->one_block = false;
		zd_empty_note(segment);
		return segment;
	}
	return NULL;
}

void zd_segment_event(struct zd_engine *e, const struct zd_segment *segment, enum zd_event_kind kind,
                      uint64_t session)
{
	struct zd_event *event = zd_event_new(e, kind, segment->job);
	event->reason = (uint8_t)(ZD_WORD_SHARDS + segment->purpose);
	event->session = session;
	event->device = (uint8_t)(segment->device->index + 1);
	event->number = segment->id;
	event->bytes = segment->bytes;
	zd_history_set_moves(&e->history, e->history.last, true);
}

static struct zd_segment *find_creating(const struct zd_engine *e, struct zd_device *device,
                                        const struct zd_job *job, enum zd_purpose purpose, uint64_t need)
{
	struct zd_segment *segment;
	if (zd_purpose_is_single(purpose))
		return find_single(e, device, job, purpose, need, ZD_SEGMENT_CREATING);
	TAILQ_FOREACH (segment, &device->shared, shared_link) {
		if (segment->state == ZD_SEGMENT_CREATING && is_for(segment, job, purpose, need) &&
		    !is_for_larger(segment, need))
			return segment;
	}
	return NULL;
}

/* ---- Segments that outlive the daemon ------------------------------------------------------------------ */

/* Only memory that commits cover outlives the daemon. Gathered buffers and gradients are made again. */
static bool is_kept(enum zd_purpose purpose)
{
	return purpose == ZD_PURPOSE_SHARDS || purpose == ZD_PURPOSE_OWN_PARTS ||
	       purpose == ZD_PURPOSE_ALLOCATIONS;
}

static void count_kept(struct zd_engine *e, struct zd_segment *segment)
{
	if (!segment->job->durable || !is_kept(segment->purpose) || segment->counted)
		return;
	segment->counted = true;
	segment->job->owner->nkept++;
	e->nkept++;
}

/* The driver releases the segment after the next records. */
static void uncount_kept(struct zd_engine *e, struct zd_segment *segment)
{
	if (!segment->counted)
		return;
	segment->counted = false;
	segment->job->owner->nkept--;
	e->nforgotten++;
}

static int check_kept(const struct zd_engine *e, const struct zd_owner *owner, uint32_t more,
                      struct zd_err *err)
{
	uint32_t most = e->uid_limits.max_kept;
	if (e->kept_room == 0 || more == 0)
		return 0;
	if (most && owner->nkept + more > most)
		return zd_err_set(err, ZEROD_E_LIMIT,
		                  "uid %u has %u segments of durable jobs and needs %u more: "
		                  "max_durable_segments_per_uid is %u",
		                  owner->uid, owner->nkept, more, most);
	if (e->nkept + more > e->kept_room)
		return zd_err_set(err, ZEROD_E_LIMIT,
		                  "the store of durable jobs has room for %u segments, and keeps %u already",
		                  e->kept_room, e->nkept);
	return 0;
}

int zd_pool_check_kept(const struct zd_engine *e, const struct zd_job *job, struct zd_err *err)
{
	const struct zd_segment *segment;
	uint32_t more = 0;
	for (segment = e->segments; segment; segment = segment->hh.next)
		more += segment->job == job && is_kept(segment->purpose) && !segment->counted;
	return check_kept(e, job->owner, more, err);
}

void zd_segment_forget(struct zd_engine *e, struct zd_segment *segment)
{
	uncount_kept(e, segment);
	if (!segment->recorded)
		return;
	segment->recorded = false;
	if (segment->job->journal)
		zd_journal_gone(segment->job->journal, ZD_RECORD_SEGMENT, segment->id, 0);
	if (e->sink.segment_kept)
		e->sink.segment_kept(e->sink.arg, segment->id, false);
}

uint64_t zd_segment_metadata_bytes(const struct zd_segment *segment)
{
	return sizeof(*segment) + zd_block_range_metadata_bytes(segment->range);
}

void zd_segment_free(struct zd_engine *e, struct zd_segment *segment)
{
	zd_assert(TAILQ_EMPTY(&segment->mappings));
	if (segment->state != ZD_SEGMENT_CREATING)
		zd_segment_event(e, segment, ZD_EVENT_SEGMENT_END, 0);
	zd_segment_forget(e, segment);
	HASH_DEL(e->segments, segment);
	zd_id_tree_remove(&e->listed[ZD__TABLE__SEGMENTS], &segment->listed);
	zd_segment_withdraw(e, segment);
	zd_assert(segment->by_device.id == 0);
	if (segment->state == ZD_SEGMENT_DESTROYING) {
		TAILQ_REMOVE(&segment->device->retiring, segment, retiring_link);
		TAILQ_REMOVE(&segment->job->owner->queues[segment->device->index].retiring, segment,
		             owner_link);
	}
	TAILQ_REMOVE(&segment->device->segments, segment, device_link);
	if (!zd_purpose_is_single(segment->purpose))
		TAILQ_REMOVE(&segment->device->shared, segment, shared_link);
	segment->device->segment_bytes -= segment->bytes;
	segment->job->owner->segment_bytes -= segment->bytes;
	segment->job->owner->queues[segment->device->index].segment_bytes -= segment->bytes;
	for (uint32_t i = 0; i < e->ndevices && e->quota_bytes; i++)
		zd_dirty(e, &e->devices[i]); /* the uid can have a segment on any of them now */
	zd_metadata_uncharge(segment->job->owner, zd_segment_metadata_bytes(segment));
	zd_block_range_free(segment->range);
	if (segment->job->over)
		zd_job_unref(e, segment->job);
	free(segment);
}

void zd_journal_segment(struct zd_engine *e, struct zd_segment *segment)
{
	if (!segment->job->journal || segment->state != ZD_SEGMENT_READY || !is_kept(segment->purpose))
		return;
	if (!segment->recorded && e->sink.segment_kept)
		e->sink.segment_kept(e->sink.arg, segment->id, true);
	segment->recorded = true;
	struct zd_record_segment *record = zd_journal_add(segment->job->journal, ZD_RECORD_SEGMENT,
	                                                  segment->id, 0, sizeof(*record));
	record->job = segment->job->id;
	record->bytes = segment->bytes;
	record->device = segment->device->index;
	record->purpose = segment->purpose;
}

void zd_pool_journal_job(struct zd_engine *e, const struct zd_job *job)
{
	struct zd_segment *segment;
	for (segment = e->segments; segment; segment = segment->hh.next) {
		if (segment->job != job)
			continue;
		count_kept(e, segment);
		zd_journal_segment(e, segment);
	}
}

struct zd_record_extent zd_journal_extent(const struct zd_extent *extent)
{
	struct zd_location location = zd_extent_location(extent);
	return (struct zd_record_extent){
	        .segment = location.segment, .offset = location.offset, .bytes = location.bytes};
}

static void segment_created(struct zd_engine *e, struct zd_op *op)
{
	struct zd_segment *segment = op->owner;
	zd_dirty(e, segment->device);
	if (op->status == 0) {
		zd_sm_move(&zd_sm_segment, &segment->state, ZD_SEGMENT_READY);
		zd_empty_note(segment);
		zd_segment_event(e, segment, ZD_EVENT_SEGMENT_BEGIN, 0);
		zd_journal_segment(e, segment);
		return;
	}
	/* The requests that wait for it get the device's error, so that they do not ask for it again. */
	struct zd_hash_node *node = zd_hash_first(&e->segment_waits, zd_hash_id(segment->id));
	for (; node; node = zd_hash_next(node))
		zd_request_fail(ZD_CONTAINER_OF(node, struct zd_request, awaits), op->status, op->error);
	zd_segment_free(e, segment);
}

static struct zd_segment *segment_add(struct zd_engine *e, struct zd_job *job, uint32_t id,
                                      struct zd_device *device, enum zd_purpose purpose, uint64_t bytes)
{
	struct zd_segment *segment = zd_calloc(1, sizeof(*segment));
	segment->id = id;
	segment->state = ZD_SEGMENT_CREATING;
	segment->purpose = purpose;
	segment->device = device;
	segment->job = job;
	segment->bytes = bytes;
	segment->range = zd_block_range_new(bytes);
	TAILQ_INIT(&segment->mappings);
	HASH_ADD(hh, e->segments, id, sizeof(segment->id), segment);
	TAILQ_INSERT_TAIL(&device->segments, segment, device_link);
	if (!zd_purpose_is_single(purpose))
		TAILQ_INSERT_TAIL(&device->shared, segment, shared_link);
	offer(e, segment);
	if (!job->pools)
		job->pools = zd_calloc(e->ndevices, sizeof(*job->pools));
	job->pools[device->index].held_bytes[purpose] += bytes;
	segment->is_held = true;
	zd_id_tree_insert(&e->listed[ZD__TABLE__SEGMENTS], &segment->listed, id);
	device->segment_bytes += bytes;
	job->owner->segment_bytes += bytes;
	job->owner->queues[device->index].segment_bytes += bytes;
	zd_metadata_charge(job->owner, zd_segment_metadata_bytes(segment));
	count_kept(e, segment);
	return segment;
}

struct zd_segment *zd_segment_restore(struct zd_engine *e, struct zd_job *job, uint32_t id,
                                      struct zd_device *device, enum zd_purpose purpose, uint64_t bytes)
{
	struct zd_segment *segment = segment_add(e, job, id, device, purpose, bytes);
	zd_sm_move(&zd_sm_segment, &segment->state, ZD_SEGMENT_READY);
	zd_empty_note(segment);
	zd_segment_event(e, segment, ZD_EVENT_SEGMENT_BEGIN, 0);
	segment->recorded = true; /* the journal and the sink have it from the previous daemon */
	return segment;
}

static struct zd_segment *segment_new(struct zd_engine *e, struct zd_job *job, struct zd_device *device,
                                      enum zd_purpose purpose, uint64_t bytes)
{
	struct zd_segment *segment = segment_add(e, job, ++e->next_segment, device, purpose, bytes);
	struct zd_command command = {.kind = ZD_CMD_SEGMENT_CREATE, .device = device->index};
	command.u.segment.segment = segment->id;
	command.u.segment.bytes = bytes;
	command.u.segment.job = job->id;
	command.u.segment.purpose = purpose;
	zd_op_submit(e, job, &command, segment_created, segment, 0);
	return segment;
}

/* ---- Quotas -------------------------------------------------------------------------------------------- */

/* All bytes of the uid's segments count against its quota: also bytes without a block, quarantined memory,
 * and segments that sessions have yet to unmap. */
uint64_t zd_pool_quota_left(const struct zd_engine *e, const struct zd_owner *owner)
{
	uint64_t most = e->quota_bytes;
	if (e->quota_bytes == 0)
		return UINT64_MAX;
	for (uint32_t i = 0; i < e->ndevices; i++)
		most += ZD_QUOTA_SLACK * e->devices[i].config.segment_align_bytes;
	return owner->segment_bytes < most ? most - owner->segment_bytes : 0;
}

/* Whether blocks of the uid's segments are in use but not charged: they will be freed, except idle slots. */
static bool has_quarantine(const struct zd_owner *owner)
{
	return owner->block_bytes > owner->account.total;
}

/* The usual size of a segment of the uid. Its quota has room for 16 of them on each device, so that one
 * purpose of one job cannot occupy all of it. */
static uint64_t usual_size(const struct zd_engine *e, const struct zd_device *device)
{
	uint64_t share = e->quota_bytes / (SEGMENTS_PER_QUOTA * e->ndevices);
	if (e->quota_bytes == 0)
		return device->segment_default_bytes;
	share = zd_align_up(zd_max_u64(share, 1), device->config.segment_align_bytes);
	return zd_min_u64(device->segment_default_bytes, share);
}

/* ---- Allocation ---------------------------------------------------------------------------------------- */

/* The bytes of the job's segments of the purpose that do not retire. */
static uint64_t held_by(const struct zd_device *device, const struct zd_job *job, enum zd_purpose purpose)
{
	return job->pools ? job->pools[device->index].held_bytes[purpose] : 0;
}

void zd_segment_unlist_prefetched(struct zd_segment *segment)
{
	if (segment->has_prefetched)
		TAILQ_REMOVE(&segment->device->with_prefetched, segment, prefetched_link);
	segment->has_prefetched = false;
	segment->prefetched_bytes = 0;
}

void zd_segment_withdraw(struct zd_engine *e, struct zd_segment *segment)
{
	withdraw(e, segment);
	zd_segment_unlist_prefetched(segment);
	if (segment->is_held)
		segment->job->pools[segment->device->index].held_bytes[segment->purpose] -= segment->bytes;
	segment->is_held = false;
}

/*
 * The size of a new segment: as much as the job holds already, but at least a 64th of the usual size and at
 * most all of it. A job of one byte therefore does not take as much as a large job. The size is rounded down
 * to a multiple of the first block, because blocks of a model often have one size, and a rest after the last
 * one would remain unused. A larger block has a segment of its own size.
 */
static uint64_t segment_size(const struct zd_engine *e, const struct zd_device *device,
                             const struct zd_job *job, enum zd_purpose purpose, uint64_t need, uint64_t left)
{
	uint64_t usual = usual_size(e, device);
	uint64_t size = zd_max_u64(usual / FIRST_PER_USUAL, held_by(device, job, purpose));

	size = zd_min_u64(zd_align_up(size, device->config.segment_align_bytes), zd_min_u64(usual, left));
	return zd_purpose_is_single(purpose) || need >= size ? need : size / need * need;
}

/* The room for a request. */
struct room {
	uint64_t bytes, need; /* asked for, and the size of a segment for them */
	uint64_t left;        /* of the device's arena */
	uint64_t quota_left;  /* of the uid */
};

/* A segment's start has every alignment. */
static struct room room_for(const struct zd_engine *e, const struct zd_owner *owner,
                            const struct zd_device *device, uint64_t bytes)
{
	return (struct room){.bytes = bytes,
	                     .need = zd_align_up(bytes, device->config.segment_align_bytes),
	                     .left = device->config.arena_bytes - device->segment_bytes,
	                     .quota_left = zd_pool_quota_left(e, owner)};
}

/* Returns ZD_WAIT if memory will be freed without another call: by retiring segments, or quarantined
 * blocks. */
static int wait_for_memory(struct zd_engine *e, struct zd_request *req, const struct zd_owner *owner,
                           struct zd_device *device, const struct room *room)
{
	uint32_t retiring = zd_retiring_await(e, owner, device, room->bytes);
	if (retiring)
		return req ? zd_wait_for(req, ZD_WAIT_RETIRE, 0, retiring, 0) : ZD_WAIT;
	if (device->quarantine_bytes == 0 || room->bytes > device->config.arena_bytes ||
	    (room->need > room->quota_left && !has_quarantine(owner)))
		return 0;
	return req ? zd_wait_for(req, ZD_WAIT_MEMORY, 0, room->bytes, room->left) : ZD_WAIT;
}

static int no_room(const struct zd_engine *e, const struct zd_owner *owner, const struct zd_device *device,
                   const struct room *room, struct zd_err *err)
{
	if (room->need <= room->left && room->need > room->quota_left)
		return zd_err_set(err, ZEROD_E_QUOTA,
		                  "uid %u has segments of %llu bytes, %llu of them charged, and needs one of "
		                  "%llu bytes more on device %u; its quota is %llu",
		                  owner->uid, (unsigned long long)owner->segment_bytes,
		                  (unsigned long long)owner->account.total, (unsigned long long)room->need,
		                  device->index, (unsigned long long)e->quota_bytes);
	return zd_err_set(
	        err, ZEROD_E_NO_MEMORY,
	        "%llu bytes do not fit on device %u: arena %llu bytes, %llu of them in segments, %llu "
	        "charged; jobs of other users hold %llu bytes",
	        (unsigned long long)room->bytes, device->index,
	        (unsigned long long)device->config.arena_bytes, (unsigned long long)device->segment_bytes,
	        (unsigned long long)device->account.total,
	        (unsigned long long)(device->segment_bytes - owner->queues[device->index].segment_bytes));
}

int zd_pool_take(struct zd_engine *e, struct zd_request *req, struct zd_job *job, struct zd_device *device,
                 enum zd_purpose purpose, uint64_t bytes, uint64_t align, struct zd_extent *extent,
                 struct zd_err *err)
{
	zd_assert(bytes > 0 && bytes <= ZD_MAX_BYTES && job->refs > 0);
	if (req)
		req->segment_wait = 0;
	struct zd_block *block;
	struct zd_segment *segment = find_block(e, device, job, purpose, bytes, align, &block);
	if (segment) {
		*extent = (struct zd_extent){segment, block, block->bytes};
		return 0;
	}
	struct room room = room_for(e, job->owner, device, bytes);
	uint64_t most = zd_min_u64(room.left, room.quota_left);
	zd_assert(!zd_purpose_is_single(purpose) || room.need == bytes);
	segment = find_creating(e, device, job, purpose, room.need);
	int status = !segment && job->durable && is_kept(purpose) ? check_kept(e, job->owner, 1, err) : 0;
	if (status != 0)
		return status;
	if (!segment && room.need <= most) {
		segment = segment_new(e, job, device, purpose,
		                      segment_size(e, device, job, purpose, room.need, most));
		segment->one_block = segment->bytes == room.need;
	}
	if (!segment)
		return ZEROD_E_NO_MEMORY;
	if (req)
		req->segment_wait = segment->id;
	return req ? zd_wait_for(req, ZD_WAIT_SEGMENT, 0, 0, 0) : ZD_WAIT;
}

int zd_pool_alloc(struct zd_engine *e, struct zd_request *req, struct zd_job *job, struct zd_device *device,
                  enum zd_purpose purpose, uint64_t bytes, uint64_t align, struct zd_extent *extent,
                  struct zd_err *err)
{
	int status = zd_pool_take(e, req, job, device, purpose, bytes, align, extent, err);
	if (status == ZEROD_E_NO_MEMORY && e->events->saves_make_room(e, NULL, device))
		status = zd_pool_take(e, req, job, device, purpose, bytes, align, extent, err);
	if (status != ZEROD_E_NO_MEMORY)
		return status;
	if (!req || !zd_request_gathers(req))
		zd_pool_reclaim(e, job, device, bytes);
	struct room room = room_for(e, job->owner, device, bytes);
	int wait = wait_for_memory(e, req, job->owner, device, &room);
	return wait ? wait : no_room(e, job->owner, device, &room, err);
}

/* Frees blocks that had no owner yet: no request is tried again. */
static void take_back(struct zd_engine *e, struct zd_space *space)
{
	struct zd_extent *extents[2] = {&space->low, &space->high};
	for (unsigned i = 0; i < 2; i++) {
		if (extents[i]->block)
			free_block(e, extents[i]);
	}
	*space = (struct zd_space){.low = {.block = NULL}};
}

int zd_pool_alloc_frames(struct zd_engine *e, struct zd_request *req, struct zd_job *job,
                         struct zd_device *device, uint64_t low_bytes, uint64_t high_bytes,
                         struct zd_space *space, struct zd_err *err)
{
	uint64_t bytes[2] = {low_bytes, high_bytes};
	struct zd_extent *extents[2] = {&space->low, &space->high};
	int status = 0;
	*space = (struct zd_space){.low = {.block = NULL}};
	for (unsigned i = 0; i < 2 && status == 0; i++) {
		if (bytes[i] > 0)
			status = zd_pool_alloc(e, req, job, device, ZD_PURPOSE_FRAMES, bytes[i],
			                       ZD_BLOCK_MIN_ALIGN, extents[i], err);
	}
	if (status != 0)
		take_back(e, space);
	return status;
}

/* Whether a new segment for the bytes fits in the arena and the quota, and the pool with it in the usual size
 * of a segment. */
static bool may_grow(const struct zd_engine *e, const struct zd_device *device, const struct zd_job *job,
                     enum zd_purpose purpose, uint64_t bytes)
{
	uint64_t need = zd_align_up(bytes, device->config.segment_align_bytes);
	return held_by(device, job, purpose) + need <= usual_size(e, device) &&
	       need <= device->config.arena_bytes - device->segment_bytes &&
	       need <= zd_pool_quota_left(e, job->owner);
}

bool zd_pool_has(const struct zd_engine *e, const struct zd_device *device, const struct zd_job *job,
                 enum zd_purpose purpose, uint64_t bytes)
{
	const struct zd_segment *segment;
	if (zd_purpose_is_single(purpose) && find_single(e, device, job, purpose, bytes, ZD_SEGMENT_READY))
		return true;
	TAILQ_FOREACH (segment, &device->shared, shared_link) {
		if (segment->state == ZD_SEGMENT_READY && is_for(segment, job, purpose, bytes) &&
		    zd_block_largest_free(segment->range) >= bytes)
			return true;
	}
	return purpose != ZD_PURPOSE_STRICT && may_grow(e, device, job, purpose, bytes);
}

/* The job's segments of gathered buffers count as room, because each can retire after its buffers. */
bool zd_pool_could_fit(const struct zd_engine *e, const struct zd_device *device, const struct zd_job *job,
                       enum zd_purpose purpose, uint64_t bytes)
{
	uint64_t room = zd_min_u64(device->config.arena_bytes - device->segment_bytes,
	                           zd_pool_quota_left(e, job->owner));
	zd_assert(purpose == ZD_PURPOSE_GATHERS || purpose == ZD_PURPOSE_STRICT ||
	          purpose == ZD_PURPOSE_FRAMES);
	room += held_by(device, job, ZD_PURPOSE_GATHERS) + held_by(device, job, ZD_PURPOSE_STRICT) +
	        held_by(device, job, ZD_PURPOSE_FRAMES);
	return zd_align_up(bytes, device->config.segment_align_bytes) <= room;
}

static struct zd_event *block_event(struct zd_engine *e, const struct zd_extent *extent,
                                    enum zd_event_kind kind)
{
	const struct zd_segment *segment = extent->segment;
	const struct zd_block *block = extent->block;
	struct zd_event *event = zd_event_new(e, kind, segment->job);
	event->reason = block->purpose;
	event->object = block->object;
	event->device = (uint8_t)(segment->device->index + 1);
	event->number = segment->id;
	event->value = block->offset;
	event->bytes = block->bytes;
	return event;
}

/* If both the give and the free of a block are in the ring, neither moves to the longer history. */
static void free_event(struct zd_engine *e, const struct zd_extent *extent)
{
	struct zd_history *history = &e->history;
	const struct zd_block *block = extent->block;
	(void)block_event(e, extent, ZD_EVENT_BLOCK_FREE);
	uint64_t given = history->last - (uint32_t)((uint32_t)history->last - block->given);
	const struct zd_event *give = &history->events[given & history->mask];
	bool brief = given > zd_history_overwritten(history) && give->kind == ZD_EVENT_BLOCK_GIVE &&
	             give->number == extent->segment->id && give->value == block->offset;
	zd_history_set_moves(history, history->last, !brief);
	if (brief)
		zd_history_set_moves(history, given, false);
}

void zd_extent_own(struct zd_engine *e, const struct zd_extent *extent, enum zd_block_owner type,
                   const void *owner, struct zd_extent_use use)
{
	struct zd_block *block = extent->block;
	if (block->owner_type != ZD_BLOCK_NOBODY) /* a gather takes over the block of a former buffer */
		free_event(e, extent);
	block->owner_type = (uint8_t)type;
	block->owner = owner;
	block->purpose = (uint8_t)use.purpose;
	block->object = use.object;
	struct zd_event *event = block_event(e, extent, ZD_EVENT_BLOCK_GIVE);
	event->session = use.session;
	event->rank = use.rank;
	block->given = (uint32_t)e->history.last;
	zd_history_set_moves(&e->history, e->history.last, true);
}

void zd_space_own(struct zd_engine *e, const struct zd_space *space, enum zd_block_owner type,
                  const void *owner, struct zd_extent_use use)
{
	if (space->low.block)
		zd_extent_own(e, &space->low, type, owner, use);
	if (space->high.block)
		zd_extent_own(e, &space->high, type, owner, use);
}

void zd_pool_free(struct zd_engine *e, struct zd_extent *extent)
{
	if (!extent->block)
		return;
	if (extent->block->owner_type != ZD_BLOCK_NOBODY)
		free_event(e, extent);
	free_block(e, extent);
	zd_dirty(e, extent->segment->device);
	*extent = (struct zd_extent){0};
}

void zd_pool_free_space(struct zd_engine *e, struct zd_space *space)
{
	zd_pool_free(e, &space->low);
	zd_pool_free(e, &space->high);
}

struct zd_location zd_extent_location(const struct zd_extent *extent)
{
	if (!extent->block)
		return (struct zd_location){0};
	return (struct zd_location){extent->segment->id, extent->block->offset, extent->bytes};
}

void zd_pool_job_end(struct zd_engine *e, struct zd_job *job)
{
	for (uint32_t i = 0; i < e->ndevices; i++) {
		struct zd_segment *segment, *next;
		TAILQ_FOREACH_SAFE (segment, &e->devices[i].segments, device_link, next) {
			if (segment->job == job)
				zd_segment_end(e, segment);
		}
	}
}
