/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alias.c - gathered buffers that are the shard itself.
 *
 * Where a unit has one shard in this daemon, a gathered copy would hold the same bytes as the shard. So the
 * buffer has no extent of its own: a gather returns the shard's location at once. Nothing is copied, charged
 * or budgeted beyond the shard, and no slot is occupied; the shard's address is as stable as a slot's.
 * Leases, tags, uses, scopes and persistence work on the buffer as on any other.
 *
 * Invariant: the shard is not written while a consumer may read it. An update is rejected while a lease is
 * outstanding, since the caller may be the lease's holder and would wait for itself. An update waits for the
 * fences of past leases: the buffer counts among the part's readers from its first lease until the last of
 * these fences has passed. No lease begins while the part is under update.
 *
 * A gather during the publish of a new version is answered at once, with a promise that is kept when the part
 * has that version. Its buffer is INFLIGHT until then, with one transfer that copies nothing, and reads the
 * shard from then on: the publish may itself wait for readers of the version before. If the publish fails,
 * the promise is broken and the buffer is stale. The consumer's streams then read a shard that is under
 * update, but the session discards their results.
 *
 * A unit that was moved from the host to the device keeps a gathered copy until its next version.
 *
 * Units on the host are copied to the device. Strict and poison sessions get copies, because their released
 * views must not be the shard. So do groups with shadows, where a shard may be restored while leases are
 * outstanding, and groups whose gathers are exchanges.
 */
#include "core/engine/promise.h"
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/deferred.h"
#include "core/gather/gather.h"
#include "core/gather/transfer.h"

bool zd_part_is_aliased(const struct zd_part *part)
{
	const struct zd_group *group = part->unit->group;
	const struct zd_session *session = zd_part_member(part)->session;
	return group->nshards == 1 && !part->unit->on_host && !group->shadow &&
	       !zd_gathers_are_collective(group) && session && !session->strict && !session->poison;
}

/* Returns the part's buffer, or makes one. A gather ahead of its version gets a new buffer: a buffer of the
 * former version is quarantined until its readers end. So does the first gather behind a copy that was
 * kept. */
static struct zd_buffer *find_or_make(struct zd_engine *e, struct zd_part *part, bool early)
{
	if (part->buffer && (early || part->buffer->kept))
		zd_buffer_drop(e, part->buffer);
	return part->buffer ? part->buffer : zd_buffer_new(e, part, NULL, NULL, NULL);
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

int zd_alias_gather(struct zd_engine *e, struct zd_request *req, uint64_t version, struct zd_buffer **out)
{
	struct zd_part *part = req->u.gather.part;
	bool early = zd_part_is_publishing_version(part, version);
	/* The buffer's promise was broken, or it was kept and has another version. */
	if (part->buffer && !TAILQ_EMPTY(&part->buffer->leases)) {
		int wait = zd_wait_for(req, ZD_WAIT_LEASES, 0, part->buffer->version, 0);
		req->wait.unit = part->unit;
		return wait;
	}
	struct zd_buffer *buffer = find_or_make(e, part, early);
	zd_assert(buffer->aliased && (early || part->version == version));
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

/* A void promise does not count: another promise of its kind was broken, and a reset has freed the
 * streams. */
bool zd_alias_is_promised(const struct zd_buffer *buffer)
{
	return buffer->promise && buffer->promise->session;
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

void zd_alias_published(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_promise *promise = end_transfer(e, buffer);
	zd_alias_read(buffer);
	zd_promise_keep(e, promise);
	zd_buffer_op_over(e, buffer);
}

void zd_alias_unpublished(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_promise *promise = end_transfer(e, buffer);
	buffer->stale = true;
	zd_alias_read(buffer);
	zd_promise_break(e, promise);
	zd_buffer_op_over(e, buffer);
}

void zd_alias_read(struct zd_buffer *buffer)
{
	if (!buffer->aliased || buffer->reading || buffer->plan.left > 0)
		return;
	buffer->reading = true;
	buffer->part->readers++;
}

void zd_alias_read_done(struct zd_engine *e, struct zd_buffer *buffer)
{
	if (!buffer->reading || !TAILQ_EMPTY(&buffer->leases) || buffer->watches > 0)
		return;
	buffer->reading = false;
	zd_part_reader_done(e, buffer->part);
}

uint64_t zd_part_gathered_bytes(const struct zd_part *part)
{
	const struct zd_member *member = zd_part_member(part);
	if (zd_part_is_aliased(part))
		return 0;
	return zd_gathered_bytes(member->session, member->device, zd_unit_padded_bytes(part->unit));
}

struct zd_location zd_buffer_location(const struct zd_buffer *buffer)
{
	return buffer->aliased ? zd_part_location(buffer->part) : zd_extent_location(&buffer->extent);
}
