/* SPDX-License-Identifier: Apache-2.0 */
/*
 * in_place.c - gathered buffers that contain the rank's shard itself.
 *
 * A gathered copy would hold the same bytes as the rank's shard. A buffer in place therefore has memory only
 * for the other ranks' slices: the frames below and above the rank's own part, which is the shard. The client
 * maps the three side by side. If a unit has one shard in this daemon, it has no frames: a gather returns the
 * shard's location, at once. Own parts are neither copied nor charged a second time.
 *
 * Segments are mapped whole. A shard that is mapped between frames therefore has a segment of its own. Units
 * whose slices are smaller than two granules of the devices' memory are copied whole, as are units on the
 * host. Gathers of strict and poison sessions are also copies, because their released views must not be the
 * shard. So are gathers of clients that map no frames, and of groups with shadows, because a shard can be
 * restored while leases are outstanding.
 *
 * Invariant: a shard is not written while the rank's own consumers, its viewers, can read it. An update is
 * rejected while a lease is outstanding, because the caller can be the lease's holder and would wait for
 * itself. An update waits for the fences of past leases: from its first lease until the last of these fences
 * has passed, the buffer counts among the part's viewers, which are also readers. No lease starts while the
 * part is under update.
 *
 * A gather during the publish of a new version receives its reply at once. It becomes a viewer of the shard
 * when the part has that version, because the publish itself can wait for readers of the former version. The
 * copies into frames also start then (deferred.h). Without frames there is no copy: the buffer's one step is
 * the publish, and its fence is a promise that is kept when the part has the version. If the publish fails,
 * the promise is broken and the buffer is stale. The consumer's streams then read a shard that is under
 * update, but the session discards their results.
 *
 * A unit that was moved from the host to the device has a gathered copy until its next version.
 */
#include "core/engine/promise.h"
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/deferred.h"
#include "core/gather/gather.h"
#include "core/gather/transfer.h"

bool zd_part_is_in_place(const struct zd_part *part)
{
	const struct zd_unit *unit = part->unit;
	const struct zd_group *group = unit->group;
	const struct zd_session *session = zd_part_member(part)->session;
	if (unit->on_host || group->shadow || !session || session->strict || session->poison)
		return false;
	if (group->nshards == 1)
		return !zd_gathers_are_collective(group);
	return unit->in_place && session->maps_frames;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

struct zd_space_bytes zd_part_space_bytes(const struct zd_part *part, uint64_t shard_bytes)
{
	const struct zd_member *member = zd_part_member(part);
	uint64_t below = zd_shard_index(member), nshards = member->group->nshards;
	if (zd_part_is_in_place(part))
		return (struct zd_space_bytes){below * shard_bytes, (nshards - 1 - below) * shard_bytes};
	return (struct zd_space_bytes){
	        zd_gathered_bytes(member->session, member->device, nshards * shard_bytes), 0};
}

uint64_t zd_part_gathered_bytes(const struct zd_part *part)
{
	struct zd_space_bytes bytes = zd_part_space_bytes(part, zd_unit_shard_bytes(part->unit));
	return bytes.low + bytes.high;
}

/* A frame of a slot can be larger than the unit needs. The bytes that border on the own part are used. */
struct zd_location zd_buffer_low(const struct zd_buffer *buffer)
{
	struct zd_location low = zd_extent_location(&buffer->space.low);
	if (zd_buffer_is_in_place(buffer) && low.segment)
		low.offset = buffer->space.low.segment->bytes - low.bytes;
	return low;
}

struct zd_location zd_buffer_slice(const struct zd_buffer *buffer, uint32_t index)
{
	uint64_t bytes = zd_unit_shard_bytes(buffer->unit);
	uint32_t own = zd_shard_index(zd_part_member(buffer->part));
	struct zd_location slice;
	if (zd_buffer_is_in_place(buffer) && index == own)
		return zd_part_location(buffer->part);
	if (zd_buffer_is_in_place(buffer) && index > own) {
		slice = zd_extent_location(&buffer->space.high);
		index -= own + 1;
	} else {
		slice = zd_buffer_low(buffer);
	}
	zd_assert((index + 1) * bytes <= slice.bytes);
	slice.offset += index * bytes;
	slice.bytes = bytes;
	return slice;
}

/* ---- Without frames ------------------------------------------------------------------------------------ */

/* Returns the part's buffer, or makes one. A gather of a version that is not yet published needs a new
 * buffer: a buffer of the former version is quarantined until its readers end. The first gather after a move
 * from the host also needs one, because the buffer is a copy. */
static struct zd_buffer *find_or_make(struct zd_engine *e, struct zd_part *part, bool early)
{
	const struct zd_space none = {.low = {.block = NULL}};
	if (part->buffer && (early || !zd_buffer_is_in_place(part->buffer)))
		zd_buffer_drop(e, part->buffer);
	return part->buffer ? part->buffer : zd_buffer_new(e, part, NULL, &none, NULL);
}

static void promise_version(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_session *session = zd_part_member(buffer->part)->session;
	buffer->promise = zd_promise_new(e, session, buffer->device, ZD_PROMISE_GATHERS);
	buffer->fences = zd_calloc(1, sizeof(*buffer->fences));
	buffer->fences[0] = buffer->promise->fence;
	buffer->nfences = 1;
	zd_buffer_plan_publish(buffer);
	zd_deferred_await(session, buffer, buffer->part);
}

int zd_gather_frameless(struct zd_engine *e, struct zd_request *req, uint64_t version, struct zd_buffer **out)
{
	struct zd_part *part = req->u.gather.part;
	bool early = zd_part_is_publishing_version(part, version);
	/* The buffer's promise was broken, or it was kept and has another version. */
	if (part->buffer && !TAILQ_EMPTY(&part->buffer->leases))
		return zd_wait_for_unit(req, part->unit, ZD_WAIT_LEASES, 0, part->buffer->version, 0);
	struct zd_buffer *buffer = find_or_make(e, part, early);
	zd_assert(zd_buffer_is_in_place(buffer) && (early || part->version == version));
	if (early)
		promise_version(e, buffer);
	else if (buffer->state == ZD_BUFFER_INFLIGHT)
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_AVAILABLE);
	buffer->version = version;
	buffer->stale = false;
	zd_buffer_set_prefetched(buffer, req->u.gather.prefetch);
	buffer->device->gathers++;
	zd_count(e, ZD_COUNT_GATHERS_TRANSFERRED, 1);
	buffer->transfer = ++e->transfers;
	buffer->session = req->session->id;
	buffer->asked_ns = req->since_ns;
	if (!early)
		zd_transfer_event(e, buffer);
	*out = buffer;
	return 0;
}

/* Ends the buffer's transfer, and returns the buffer's promise. */
static struct zd_promise *end_transfer(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_promise *promise = buffer->promise;
	buffer->promise = NULL;
	zd_plan_satisfy(e, &buffer->plan, 0);
	zd_transfer_forget(buffer);
	return promise;
}

void zd_frameless_published(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_promise *promise = end_transfer(e, buffer);
	zd_buffer_view(buffer);
	zd_promise_keep(e, promise);
	zd_buffer_op_over(e, buffer);
}

void zd_frameless_unpublished(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_promise *promise = end_transfer(e, buffer);
	buffer->stale = true;
	zd_buffer_view(buffer);
	zd_promise_break(e, promise);
	zd_buffer_op_over(e, buffer);
}

/* ---- Viewers ------------------------------------------------------------------------------------------- */

/* A void promise does not count: another promise of its kind was broken, and a reset released the streams. */
bool zd_buffer_is_promised(const struct zd_buffer *buffer)
{
	if (buffer->promise)
		return buffer->promise->session != NULL;
	return zd_deferred_awaits(buffer, buffer->part);
}

/* The rank of a transfer that is given up can have ended before: its shard is freed. */
void zd_buffer_view(struct zd_buffer *buffer)
{
	if (buffer->own != ZD_OWN_IN_PLACE || buffer->promise || zd_deferred_awaits(buffer, buffer->part))
		return;
	if (buffer->part->state == ZD_PART_ABSENT)
		return;
	buffer->own = ZD_OWN_VIEWED;
	buffer->part->viewers++;
	buffer->part->readers++;
}

void zd_buffer_view_done(struct zd_engine *e, struct zd_buffer *buffer)
{
	if (buffer->own != ZD_OWN_VIEWED || !TAILQ_EMPTY(&buffer->leases) || buffer->watches > 0)
		return;
	buffer->own = ZD_OWN_IN_PLACE;
	buffer->part->viewers--;
	zd_part_reader_done(e, buffer->part);
}
