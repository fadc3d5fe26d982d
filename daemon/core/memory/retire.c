/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retire.c - empty segments: they are chosen, unmapped by the sessions that have mapped them, and destroyed.
 */
#include "core/engine/deferred_teardown.h"
#include "core/engine/events.h"
#include "core/engine/objects.h"
#include "core/memory/empty.h"
#include "core/memory/pool.h"
#include "core/memory/retire.h"

#include <stdio.h>

static struct zd_segment *segment_find(struct zd_engine *e, uint32_t id)
{
	struct zd_segment *segment;
	HASH_FIND(hh, e->segments, &id, sizeof(id), segment);
	return segment;
}

/* ---- Destruction --------------------------------------------------------------------------------------- */

static bool trim_waits_for(const struct zd_request *req, const struct zd_segment *segment)
{
	return req->kind == ZD_REQ_TRIM && segment->retire_serial <= req->u.trim.serial &&
	       (req->session->admin || segment->job->owner->uid == req->session->uid);
}

static void destroyed(struct zd_engine *e, struct zd_op *op)
{
	struct zd_segment *segment = op->owner;
	struct zd_device *device = segment->device;
	struct zd_request *req;
	/* The status does not matter: the executor has freed all that can be freed. */
	TAILQ_FOREACH (req, &device->queue, device_link) {
		if (trim_waits_for(req, segment))
			req->u.trim.freed_bytes += segment->bytes;
	}
	device->retiring_bytes -= segment->bytes;
	device->retiring_is_awaited &= device->retiring_bytes > 0;
	segment->job->owner->retiring_bytes -= segment->bytes;
	zd_dirty(e, device);
	zd_segment_free(e, segment);
}

static void destroy_if_unmapped(struct zd_engine *e, struct zd_segment *segment)
{
	if (segment->state != ZD_SEGMENT_RETIRING || !TAILQ_EMPTY(&segment->mappings))
		return;
	struct zd_command command = {.kind = ZD_CMD_SEGMENT_DESTROY, .device = segment->device->index};
	command.u.segment.segment = segment->id;
	command.u.segment.bytes = segment->bytes;
	command.u.segment.job = segment->job->id;
	command.u.segment.purpose = segment->purpose;
	zd_sm_move(&zd_sm_segment, &segment->state, ZD_SEGMENT_DESTROYING);
	zd_segment_forget(e, segment);
	zd_op_submit(e, segment->job, &command, destroyed, segment, 0);
}

/* ---- Mappings ------------------------------------------------------------------------------------------ */

static struct zd_mapping *mapping_find(struct zd_segment *segment, const struct zd_session *session)
{
	struct zd_mapping *mapping;
	TAILQ_FOREACH (mapping, &segment->mappings, segment_link) {
		if (mapping->session == session)
			break;
	}
	return mapping;
}

void zd_engine_segment_given(struct zd_engine *e, uint64_t session_id, uint32_t id)
{
	struct zd_session *session = zd_session_find(e, session_id);
	struct zd_segment *segment = segment_find(e, id);
	zd_assert(session && segment && segment->state == ZD_SEGMENT_READY);
	if (mapping_find(segment, session))
		return;
	struct zd_mapping *mapping = zd_calloc(1, sizeof(*mapping));
	zd_metadata_charge(session->owner, sizeof(*mapping));
	mapping->segment = segment;
	mapping->session = session;
	TAILQ_INSERT_TAIL(&segment->mappings, mapping, segment_link);
	TAILQ_INSERT_TAIL(&session->mappings, mapping, session_link);
	zd_empty_note(segment);
	zd_segment_event(e, segment, ZD_EVENT_SEGMENT_MAP, session->id);
}

static void mapping_free(struct zd_mapping *mapping)
{
	TAILQ_REMOVE(&mapping->segment->mappings, mapping, segment_link);
	TAILQ_REMOVE(&mapping->session->mappings, mapping, session_link);
	zd_empty_note(mapping->segment);
	zd_metadata_uncharge(mapping->session->owner, sizeof(*mapping));
	free(mapping);
}

static void end_mapping_hold(struct zd_engine *e, struct zd_op *op)
{
	struct zd_mapping *mapping = op->owner;
	struct zd_segment *segment = mapping->segment;
	struct zd_job *job = segment->job;
	mapping_free(mapping);
	destroy_if_unmapped(e, segment);
	zd_job_unref(e, job);
}

void zd_mappings_leave(struct zd_engine *e, struct zd_session *session)
{
	struct zd_mapping *mapping, *next;
	TAILQ_FOREACH_SAFE (mapping, &session->mappings, session_link, next) {
		struct zd_segment *segment = mapping->segment;
		if (zd_deferred_teardown_hold(e, session, segment->job, segment->device, end_mapping_hold,
		                              mapping)) {
			segment->job->refs++;
			continue;
		}
		mapping_free(mapping);
		destroy_if_unmapped(e, segment);
	}
}

static void tell_sessions(struct zd_engine *e, const struct zd_segment *segment)
{
	const struct zd_mapping *mapping;
	TAILQ_FOREACH (mapping, &segment->mappings, segment_link) {
		if (mapping->session->state != ZD_SESSION_CLOSING)
			e->sink.segment_retire(e->sink.arg, mapping->session->id, segment->id);
	}
}

int zd_retire_text(const struct zd_engine *e, uint32_t id, const struct zd_session *reader, char *out,
                   size_t out_bytes)
{
	const struct zd_segment *segment;
	HASH_FIND(hh, e->segments, &id, sizeof(id), segment);
	const struct zd_mapping *mapping = segment ? TAILQ_FIRST(&segment->mappings) : NULL;
	if (!segment)
		return snprintf(out, out_bytes, "segment %u to be given back", id);
	if (!mapping)
		return snprintf(out, out_bytes, "segment %u to be given back to device %u", id,
		                segment->device->index);
	if (!zd_session_sees(reader, mapping->session))
		return snprintf(out, out_bytes, "another user's process to unmap memory of device %u",
		                segment->device->index);
	return snprintf(out, out_bytes, "session %llu (pid %u) to unmap segment %u",
	                ZD_ID_NUMBER(mapping->session->id), mapping->session->pid, id);
}

/* ---- Choice -------------------------------------------------------------------------------------------- */

/* Whether the segment's blocks are all of idle prefetched buffers, which are dropped when it retires. Valid
 * after the event list_prefetched. A prefetched buffer with two frames ends with the first of them. */
static bool has_only_prefetched(const struct zd_segment *segment, const struct zd_owner *owner)
{
	uint64_t used = zd_block_used_bytes(segment->range);
	return segment->state == ZD_SEGMENT_READY && used > 0 && used == segment->prefetched_bytes &&
	       segment->nwaiting == 0 && (!owner || segment->job->owner == owner);
}

/* Whether `a` retires before `b`. First retire segments that no session has mapped, then segments without
 * prefetched buffers, then segments of the job that needs memory, then the larger ones. empty.c orders empty
 * segments in the same way. */
static bool goes_before(const struct zd_segment *a, const struct zd_segment *b, const struct zd_job *job)
{
	bool a_mapped = !TAILQ_EMPTY(&a->mappings), b_mapped = !TAILQ_EMPTY(&b->mappings);
	bool a_prefetched = a->prefetched_bytes > 0, b_prefetched = b->prefetched_bytes > 0;
	if (a_mapped != b_mapped)
		return b_mapped;
	if (a_prefetched != b_prefetched)
		return b_prefetched;
	if ((a->job == job) != (b->job == job))
		return a->job == job;
	return a->bytes > b->bytes;
}

/* Returns the next segment to retire. With `owner`, considers only segments of its jobs. NULL: none. */
static struct zd_segment *choose(const struct zd_device *device, const struct zd_owner *owner,
                                 const struct zd_job *job)
{
	struct zd_segment *segment, *best = zd_empty_choose(device, owner, job);
	if (best && TAILQ_EMPTY(&best->mappings))
		return best;
	TAILQ_FOREACH (segment, &device->with_prefetched, prefetched_link) {
		if (has_only_prefetched(segment, owner) && (!best || goes_before(segment, best, job)))
			best = segment;
	}
	return best;
}

static void retire(struct zd_engine *e, struct zd_segment *segment)
{
	if (zd_block_used_bytes(segment->range) > 0)
		e->events->drop_prefetched(e, segment);
	zd_assert(zd_block_used_bytes(segment->range) == 0);
	zd_segment_withdraw(e, segment);
	zd_sm_move(&zd_sm_segment, &segment->state, ZD_SEGMENT_RETIRING);
	zd_empty_note(segment);
	TAILQ_INSERT_TAIL(&segment->device->retiring, segment, retiring_link);
	TAILQ_INSERT_TAIL(&segment->job->owner->queues[segment->device->index].retiring, segment, owner_link);
	segment->retire_serial = ++e->retire_serial;
	zd_segment_event(e, segment, ZD_EVENT_SEGMENT_RETIRE, 0);
	segment->device->retiring_bytes += segment->bytes;
	segment->job->owner->retiring_bytes += segment->bytes;
	segment->unmap_until_ns = e->now_ns + ZD_UNMAP_NS;
	if (!TAILQ_EMPTY(&segment->mappings))
		e->next_unmap_ns = zd_min_u64(e->next_unmap_ns, segment->unmap_until_ns);
	tell_sessions(e, segment);
	destroy_if_unmapped(e, segment);
}

void zd_segment_end(struct zd_engine *e, struct zd_segment *segment)
{
	segment->job->refs++;
	segment->prefetched_bytes = 0;
	if (segment->state == ZD_SEGMENT_READY)
		retire(e, segment);
	zd_assert(segment->state == ZD_SEGMENT_RETIRING || segment->state == ZD_SEGMENT_DESTROYING);
}

/* Returns a session that has the segment mapped and is not CLOSING, or NULL. */
static struct zd_session *find_mapping_session(const struct zd_segment *segment)
{
	const struct zd_mapping *mapping;
	TAILQ_FOREACH (mapping, &segment->mappings, segment_link) {
		if (mapping->session->state != ZD_SESSION_CLOSING)
			return mapping->session;
	}
	return NULL;
}

/* Whether a request still waits for retiring memory. If not, no device's is awaited. */
static bool is_awaited(const struct zd_engine *e)
{
	const struct zd_request *req;
	for (uint32_t i = 0; i < e->ndevices; i++) {
		TAILQ_FOREACH (req, &e->devices[i].queue, device_link) {
			if (req->wait.kind == ZD_WAIT_RETIRE)
				return true;
		}
	}
	for (uint32_t i = 0; i < e->ndevices; i++)
		e->devices[i].retiring_is_awaited = false;
	return false;
}

struct zd_session *zd_retire_find_late(const struct zd_engine *e, uint32_t *device, uint64_t *next_ns)
{
	for (const struct zd_segment *segment = e->segments; segment; segment = segment->hh.next) {
		struct zd_session *session;
		if (segment->state != ZD_SEGMENT_RETIRING || !segment->device->retiring_is_awaited ||
		    !(session = find_mapping_session(segment)))
			continue;
		if (segment->unmap_until_ns <= e->now_ns) {
			if (!is_awaited(e))
				return NULL;
			*device = segment->device->index;
			return session;
		}
		*next_ns = zd_min_u64(*next_ns, segment->unmap_until_ns);
	}
	return NULL;
}

/* ---- Reclaim ------------------------------------------------------------------------------------------- */

/* The bytes that are free for new segments when all retiring segments are destroyed. */
static uint64_t room_bytes(const struct zd_device *device)
{
	return device->config.arena_bytes - device->segment_bytes + device->retiring_bytes;
}

/* The same for the uid's quota. */
static uint64_t quota_room_bytes(const struct zd_engine *e, const struct zd_owner *owner)
{
	uint64_t left = zd_pool_quota_left(e, owner);
	return left == UINT64_MAX ? left : left + owner->retiring_bytes;
}

/* The bytes of the device's segments that can retire. With `owner`, only those of its jobs. */
static uint64_t unused_bytes(const struct zd_engine *e, struct zd_device *device,
                             const struct zd_owner *owner)
{
	const struct zd_segment *segment;
	uint64_t bytes = zd_empty_bytes(device, owner);
	e->events->list_prefetched(device);
	TAILQ_FOREACH (segment, &device->with_prefetched, prefetched_link)
		bytes += has_only_prefetched(segment, owner) ? segment->bytes : 0;
	return bytes;
}

/* Retires empty segments of the job's uid until a segment fits in its quota. It starts with segments of the
 * device, because the device needs the room as well. Returns false if all of them are not enough. */
static bool reclaim_quota(struct zd_engine *e, const struct zd_job *job, struct zd_device *device,
                          uint64_t need)
{
	uint64_t room = quota_room_bytes(e, job->owner);
	struct zd_segment *segment;
	if (need <= room)
		return true;
	for (uint32_t i = 0; i < e->ndevices; i++)
		room += unused_bytes(e, &e->devices[i], job->owner);
	if (need > room)
		return false;
	for (uint32_t i = 0; i < e->ndevices; i++) {
		struct zd_device *from = &e->devices[(device->index + i) % e->ndevices];
		while (need > quota_room_bytes(e, job->owner) && (segment = choose(from, job->owner, job)))
			retire(e, segment);
	}
	return true;
}

void zd_pool_reclaim(struct zd_engine *e, const struct zd_job *job, struct zd_device *device, uint64_t bytes)
{
	uint64_t need = zd_align_up(bytes, device->config.segment_align_bytes);
	struct zd_segment *segment;
	if (need > device->config.arena_bytes || !reclaim_quota(e, job, device, need))
		return;
	if (need <= room_bytes(device) || need > room_bytes(device) + unused_bytes(e, device, NULL))
		return;
	while (need > room_bytes(device) && (segment = choose(device, NULL, job)))
		retire(e, segment);
}

/* A request waits for a retiring segment of the device. */
static void await_retiring(struct zd_engine *e, struct zd_device *device)
{
	if (device->retiring_is_awaited)
		return;
	device->retiring_is_awaited = true;
	e->next_unmap_ns = zd_min_u64(e->next_unmap_ns, e->now_ns + 1); /* sessions can be late already */
}

static uint32_t await_first(struct zd_engine *e, struct zd_device *device,
                            const struct zd_segment_list *retiring)
{
	const struct zd_segment *segment = TAILQ_FIRST(retiring);
	if (!segment)
		return 0;
	await_retiring(e, device);
	return segment->id;
}

uint32_t zd_retiring_await(struct zd_engine *e, const struct zd_owner *owner, struct zd_device *device,
                           uint64_t bytes)
{
	uint64_t need = zd_align_up(bytes, device->config.segment_align_bytes);
	uint32_t found = 0;
	if (need > room_bytes(device) || need > quota_room_bytes(e, owner))
		return 0;
	if (need <= zd_pool_quota_left(e, owner))
		found = await_first(e, device, &device->retiring);
	for (uint32_t i = 0; i < e->ndevices && !found; i++) {
		uint32_t at = (device->index + i) % e->ndevices;
		found = await_first(e, &e->devices[at], &owner->queues[at].retiring);
	}
	return found;
}

/* ---- trim ---------------------------------------------------------------------------------------------- */

static int compare(const void *left, const void *right)
{
	const struct zd_segment *a = *(const struct zd_segment *const *)left;
	const struct zd_segment *b = *(const struct zd_segment *const *)right;
	if (goes_before(a, b, NULL) != goes_before(b, a, NULL))
		return goes_before(a, b, NULL) ? -1 : 1;
	return a->id < b->id ? -1 : 1;
}

/* Returns the segments that can be retired, the larger ones first, owned by the caller. A trim can retire
 * 10^5 segments: choose() would search the ones with prefetched buffers for each. */
static struct zd_segment **list_unused(const struct zd_engine *e, struct zd_device *device,
                                       const struct zd_owner *owner, uint32_t *count)
{
	struct zd_segment *segment, **list;
	uint32_t room = 1;
	e->events->list_prefetched(device);
	for (segment = zd_empty_first(device); segment; segment = zd_empty_next(segment))
		room++;
	TAILQ_FOREACH (segment, &device->with_prefetched, prefetched_link)
		room++;
	list = zd_calloc(room, sizeof(struct zd_segment *));
	*count = 0;
	for (segment = zd_empty_first(device); segment; segment = zd_empty_next(segment)) {
		if (!owner || segment->job->owner == owner)
			list[(*count)++] = segment;
	}
	TAILQ_FOREACH (segment, &device->with_prefetched, prefetched_link) {
		if (has_only_prefetched(segment, owner))
			list[(*count)++] = segment;
	}
	qsort(list, *count, sizeof(struct zd_segment *), compare);
	return list;
}

static int trim_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	uint32_t index = req->args->u.trim.device;
	if (index >= e->ndevices)
		return zd_err_set(err, ZEROD_E_NOT_FOUND, "no device %u; there are %u", index, e->ndevices);
	struct zd_device *device = req->device = &e->devices[index];
	const struct zd_owner *owner = req->session->admin ? NULL : req->session->owner;
	(void)e->events->saves_make_room(e, owner, device);
	uint32_t count;
	struct zd_segment **list = list_unused(e, device, owner, &count);
	for (uint32_t i = 0;
	     i < count && device->segment_bytes - device->retiring_bytes > req->args->u.trim.keep_bytes; i++)
		retire(e, list[i]);
	free(list);
	req->u.trim.serial = e->retire_serial;
	return 0;
}

static int trim_attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_device *device = req->device;
	const struct zd_segment *first =
	        TAILQ_FIRST(req->session->admin ? &device->retiring
	                                        : &req->session->owner->queues[device->index].retiring);
	(void)err;
	if (first && trim_waits_for(req, first)) {
		await_retiring(e, device);
		return zd_wait_for(req, ZD_WAIT_RETIRE, 0, first->id, 0);
	}
	e->reply.u.trim.freed_bytes = req->u.trim.freed_bytes;
	return 0;
}

/* ---- segments_unmapped --------------------------------------------------------------------------------- */

/* Skips segments that do not exist: the session has been given none of them. */
static int unmapped_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	uint32_t count = req->args->u.segments_unmapped.n_segments;
	const uint32_t *ids = req->args->u.segments_unmapped.segments;
	for (uint32_t i = 0; i < count; i++) {
		struct zd_segment *segment = segment_find(e, ids[i]);
		if (segment && segment->state == ZD_SEGMENT_READY && mapping_find(segment, req->session))
			return zd_err_set(err, ZEROD_E_INVALID, "nobody has asked for segment %u", ids[i]);
	}
	for (uint32_t i = 0; i < count; i++) {
		struct zd_segment *segment = segment_find(e, ids[i]);
		struct zd_mapping *mapping = segment ? mapping_find(segment, req->session) : NULL;
		if (!mapping)
			continue;
		mapping_free(mapping);
		destroy_if_unmapped(e, segment);
	}
	return 0;
}

const struct zd_request_type zd_req_trim = {.begin = trim_begin, .attempt = trim_attempt};
const struct zd_request_type zd_req_segments_unmapped = {.begin = unmapped_begin};
