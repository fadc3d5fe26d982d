/* SPDX-License-Identifier: Apache-2.0 */
/* deferred.c - see deferred.h. */
#include "core/deferred.h"

#include "core/gather.h"
#include "core/span.h"

bool zd_may_defer(const struct zd_request *req)
{
	const struct zd_session *session = req->session;
	return session->state == ZD_SESSION_OPEN && !session->strict &&
	       !zd_gathers_over_rails(req->member->group);
}

bool zd_deferred_comes(const struct zd_part *part, uint64_t version)
{
	return part->state == ZD_PART_PUBLISHING && part->version + 1 == version;
}

/* The oldest, which is likely to be over first. The size is exact: a buffer is charged for its block. */
struct zd_buffer *zd_deferred_find_former(const struct zd_request *req, uint64_t bytes)
{
	struct zd_buffer *buffer;
	if (!zd_may_defer(req))
		return NULL;
	TAILQ_FOREACH (buffer, &req->device->buffers, device_link) {
		if (buffer->state == ZD_BUFFER_QUARANTINED && !buffer->slot && !buffer->heir &&
		    buffer->session == req->session->id && buffer->extent.bytes == bytes &&
		    buffer->unit->group->job == req->member->group->job &&
		    !zd_gathers_over_rails(buffer->unit->group))
			return buffer;
	}
	return NULL;
}

/* ---- Promises ------------------------------------------------------------------------------------------ */

static uint32_t source_device(const struct zd_part *source)
{
	return source->shard.segment->device->index;
}

void zd_deferred_await(struct zd_session *session, struct zd_buffer *buffer, struct zd_part *source)
{
	struct zd_await *await = zd_calloc(1, sizeof(*await));
	await->session = session;
	await->buffer = buffer;
	await->part = source;
	LIST_INSERT_HEAD(&buffer->awaits, await, buffer_link);
	LIST_INSERT_HEAD(&source->awaits, await, part_link);
}

static void await_end(struct zd_await *await)
{
	LIST_REMOVE(await, buffer_link);
	LIST_REMOVE(await, part_link);
	free(await);
}

static struct zd_await *find_await(struct zd_buffer *buffer, const struct zd_part *source)
{
	struct zd_await *await;
	LIST_FOREACH (await, &buffer->awaits, buffer_link) {
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what is freed is in no list */
		if (await->part == source)
			break;
	}
	return await;
}

void zd_deferred_promise(struct zd_engine *e, struct zd_buffer *buffer, struct zd_timelines *timelines)
{
	struct zd_session *session = zd_part_member(buffer->part)->session;
	struct zd_unit *unit = buffer->unit;
	(void)e;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		struct zd_part *source = &unit->parts[rank];
		uint32_t timeline = ZD_TIMELINE_DEFERRED + source_device(source);
		if (source->version == buffer->version)
			source->readers++;
		else
			zd_deferred_await(session, buffer, source);
		session->timeline[timeline]++;
		zd_timelines_add(timelines, timeline);
		buffer->transfers++;
	}
	buffer->deferred = true;
	TAILQ_INSERT_TAIL(&session->deferred, buffer, deferred_link);
}

static void begin(struct zd_engine *e, struct zd_session *session, struct zd_buffer *buffer)
{
	struct zd_unit *unit = buffer->unit;
	buffer->resets = session->resets;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		struct zd_part *source = &unit->parts[rank];
		uint32_t device = source_device(source);
		zd_buffer_copy(e, buffer, source,
		               (struct zd_signal){session->id, ZD_TIMELINE_DEFERRED + device,
		                                  ++session->deferred_begun[device]});
	}
}

void zd_deferred_try(struct zd_engine *e, struct zd_session *session)
{
	struct zd_buffer *buffer;
	while ((buffer = TAILQ_FIRST(&session->deferred)) && !buffer->former && LIST_EMPTY(&buffer->awaits)) {
		TAILQ_REMOVE(&session->deferred, buffer, deferred_link);
		begin(e, session, buffer);
	}
}

void zd_deferred_inherit(struct zd_engine *e, struct zd_buffer *former)
{
	struct zd_buffer *heir = former->heir;
	struct zd_session *session = zd_session_find(e, heir->session);
	zd_assert(heir->former == former);
	heir->former = NULL;
	former->heir = NULL;
	if (session)
		zd_deferred_try(e, session);
	zd_buffer_op_over(e, heir); /* if it was given up meanwhile, it waited for the former one alone */
}

void zd_deferred_published(struct zd_engine *e, struct zd_part *part)
{
	struct zd_await *await;
	while ((await = LIST_FIRST(&part->awaits))) {
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what is freed is in no list */
		struct zd_session *session = await->session;
		struct zd_buffer *buffer = await->buffer;
		await_end(await);
		if (buffer->aliased) {
			zd_alias_published(e, buffer);
			continue;
		}
		part->readers++;
		zd_deferred_try(e, session);
	}
}

/* ---- What does not come -------------------------------------------------------------------------------- */

/* The buffer is out of the session's queue: no copy into it begins. */
static void give_up(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_unit *unit = buffer->unit;
	buffer->stale = true;
	for (uint32_t rank = 0; rank < unit->group->local_world_size; rank++) {
		struct zd_part *source = &unit->parts[rank];
		struct zd_await *await = find_await(buffer, source);
		buffer->transfers--;
		if (await)
			await_end(await);
		else
			zd_part_reader_done(e, source);
	}
	zd_assert(buffer->transfers == 0 && LIST_EMPTY(&buffer->awaits));
	if (buffer->state == ZD_BUFFER_INFLIGHT)
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_AVAILABLE);
	zd_buffer_op_over(e, buffer);
}

/* All of it, since its fences share timelines with what comes behind. */
static void give_all_up(struct zd_engine *e, struct zd_session *session)
{
	struct zd_buffer_list queue = TAILQ_HEAD_INITIALIZER(queue);
	struct zd_buffer *buffer;
	TAILQ_CONCAT(&queue, &session->deferred, deferred_link);
	for (uint32_t i = 0; i < ZD_MAX_DEVICES; i++)
		session->deferred_begun[i] = session->timeline[ZD_TIMELINE_DEFERRED + i];
	while ((buffer = TAILQ_FIRST(&queue))) {
		TAILQ_REMOVE(&queue, buffer, deferred_link);
		give_up(e, buffer);
	}
}

void zd_deferred_break(struct zd_engine *e, struct zd_session *session)
{
	struct zd_timelines promised = {{0}};
	for (uint32_t i = 0; i < ZD_MAX_DEVICES; i++) {
		if (session->deferred_begun[i] != session->timeline[ZD_TIMELINE_DEFERRED + i])
			zd_timelines_add(&promised, ZD_TIMELINE_DEFERRED + i);
	}
	give_all_up(e, session);
	for (uint32_t i = 0; i < ZD_MAX_DEVICES; i++) {
		if (zd_timelines_has(&promised, ZD_TIMELINE_DEFERRED + i))
			zd_session_abort(e, session, ZD_TIMELINE_DEFERRED + i);
	}
}

void zd_deferred_drop(struct zd_engine *e, struct zd_session *session)
{
	give_all_up(e, session);
}

void zd_deferred_unpublished(struct zd_engine *e, struct zd_part *part)
{
	struct zd_await *await;
	while ((await = LIST_FIRST(&part->awaits))) {
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what is freed is in no list */
		struct zd_buffer *buffer = await->buffer;
		if (buffer->aliased) {
			await_end(await);
			zd_alias_unpublished(e, buffer);
		} else {
			zd_deferred_break(e, await->session);
		}
	}
}

/* ---- Invariants ---------------------------------------------------------------------------------------- */

void zd_deferred_check(const struct zd_session *session)
{
	const struct zd_buffer *buffer = TAILQ_FIRST(&session->deferred);
	uint64_t promised[ZD_MAX_DEVICES];
	if (buffer) /* else it would have begun */
		zd_assert(buffer->former || !LIST_EMPTY(&buffer->awaits));
	for (uint32_t i = 0; i < ZD_MAX_DEVICES; i++)
		promised[i] = session->deferred_begun[i];
	TAILQ_FOREACH (buffer, &session->deferred, deferred_link) {
		const struct zd_await *await;
		zd_assert(buffer->session == session->id && buffer->deferred);
		zd_assert(buffer->transfers == buffer->unit->group->local_world_size);
		for (uint32_t rank = 0; rank < buffer->unit->group->local_world_size; rank++)
			promised[source_device(&buffer->unit->parts[rank])]++;
		LIST_FOREACH (await, &buffer->awaits, buffer_link) {
			zd_assert(await->session == session && await->buffer == buffer);
			zd_assert(zd_deferred_comes(await->part, buffer->version));
		}
	}
	for (uint32_t i = 0; i < ZD_MAX_DEVICES; i++)
		zd_assert(promised[i] == session->timeline[ZD_TIMELINE_DEFERRED + i]);
}
