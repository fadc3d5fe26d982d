/* SPDX-License-Identifier: Apache-2.0 */
/* deferred.c - see deferred.h. */
#include "core/gather/buffer.h"
#include "core/gather/collective.h"
#include "core/gather/deferred.h"
#include "core/gather/gather.h"
#include "core/gather/landing.h"
#include "core/gather/transfer.h"

bool zd_may_defer(const struct zd_request *req)
{
	const struct zd_session *session = req->session;
	return session->state == ZD_SESSION_OPEN && !session->strict &&
	       !zd_gathers_are_collective(req->member->group);
}

bool zd_part_is_publishing_version(const struct zd_part *part, uint64_t version)
{
	return part->state == ZD_PART_PUBLISHING && part->version + 1 == version;
}

#define MOST_FORMERS 1024u /* a gather examines at most so many; later ones are not better */

#define MOST_OTHERS 64u /* examined after the oldest that fits, to find one of the same unit */

/* Finds the oldest buffer that fits, because its operations probably end first. In place, a buffer of the
 * same unit is preferred, because the client has mapped its frames for the unit. The sizes must be equal,
 * because a buffer is charged for its blocks. */
struct zd_buffer *zd_deferred_find_former(const struct zd_request *req, bool in_place, uint64_t low_bytes,
                                          uint64_t high_bytes)
{
	struct zd_buffer *buffer, *oldest = NULL;
	uint32_t left = MOST_FORMERS;
	if (!zd_may_defer(req))
		return NULL;
	TAILQ_FOREACH (buffer, &req->session->owner->queues[req->device->index].formers, use_link) {
		if (left-- == 0)
			break;
		if (buffer->session != req->session->id || zd_buffer_is_in_place(buffer) != in_place ||
		    buffer->space.low.bytes != low_bytes || buffer->space.high.bytes != high_bytes ||
		    buffer->unit->group->job != req->member->group->job ||
		    zd_gathers_are_collective(buffer->unit->group))
			continue;
		if (!in_place || buffer->unit == req->u.gather.part->unit)
			return buffer;
		if (oldest)
			continue;
		oldest = buffer;
		left = MOST_OTHERS;
	}
	return oldest;
}

/* Counts the copies of the buffer's transfer that read the part's shard. */
static uint32_t count_steps(const struct zd_buffer *buffer, const struct zd_part *part)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < buffer->plan.nsteps; i++)
		n += &buffer->unit->parts[buffer->plan.steps[i].source] == part;
	return n;
}

/* ---- Promises ------------------------------------------------------------------------------------------ */

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

static struct zd_await *find_await(const struct zd_buffer *buffer, const struct zd_part *source)
{
	struct zd_await *await;
	LIST_FOREACH (await, &buffer->awaits, buffer_link) {
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): a freed object is in no list */
		if (await->part == source)
			break;
	}
	return await;
}

bool zd_deferred_awaits(const struct zd_buffer *buffer, const struct zd_part *source)
{
	return find_await(buffer, source) != NULL;
}

/* Whether the step's bytes can be copied now: the chunk has landed, or there is no landing. */
static bool is_ready(const struct zd_plan_step *step)
{
	const struct zd_landing *landing = step->memory;
	return !landing || landing->landed >> step->index & 1;
}

/* Starts the copies that are ready, in the order of each timeline. Returns whether all have started. */
static bool begin_ready(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_timelines held = {{0}};
	bool all = true;
	for (uint32_t i = 0; i < buffer->plan.nsteps; i++) {
		const struct zd_plan_step *step = &buffer->plan.steps[i];
		if (step->waits == 0)
			continue; /* begun */
		if (is_ready(step) && !zd_timelines_has(&held, step->signal.timeline)) {
			zd_plan_satisfy(e, &buffer->plan, i);
		} else {
			zd_timelines_add(&held, step->signal.timeline);
			all = false;
		}
	}
	return all;
}

static bool begin(struct zd_engine *e, struct zd_buffer *buffer)
{
	if (zd_transfer_lands(buffer))
		return begin_ready(e, buffer);
	zd_plan_start(e, &buffer->plan);
	return true;
}

void zd_deferred_go_on(struct zd_engine *e, struct zd_session *session)
{
	struct zd_buffer *buffer;
	while ((buffer = TAILQ_FIRST(&session->deferred)) && !buffer->former && LIST_EMPTY(&buffer->awaits) &&
	       begin(e, buffer))
		TAILQ_REMOVE(&session->deferred, buffer, deferred_link);
}

void zd_deferred_try(struct zd_engine *e, struct zd_session *session)
{
	struct zd_buffer *buffer;
	TAILQ_FOREACH (buffer, &session->deferred, deferred_link) {
		if (buffer->former || !LIST_EMPTY(&buffer->awaits))
			break;
		if (buffer->phase == ZD_PHASE_LANDING)
			zd_landings_join(e, buffer);
	}
	zd_deferred_go_on(e, session);
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
	zd_buffer_op_over(e, heir); /* an heir that was dropped has waited only for the former buffer */
}

void zd_deferred_published(struct zd_engine *e, struct zd_part *part)
{
	struct zd_await *await;
	while ((await = LIST_FIRST(&part->awaits))) {
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): a freed object is in no list */
		struct zd_session *session = await->session;
		struct zd_buffer *buffer = await->buffer;
		await_end(await);
		if (buffer->promise) {
			zd_frameless_published(e, buffer);
			continue;
		}
		part->readers += count_steps(buffer, part);
		zd_buffer_view(buffer);
		zd_buffer_view_done(e, buffer);
		zd_deferred_try(e, session);
	}
}

/* ---- Broken promises ----------------------------------------------------------------------------------- */

/* Drops the copies of a transfer that have not begun. Its buffer was removed from the session's queue. */
static void give_up(struct zd_engine *e, struct zd_buffer *buffer)
{
	struct zd_unit *unit = buffer->unit;
	struct zd_await *await;
	buffer->stale = true;
	for (uint32_t i = 0; i < buffer->plan.nsteps; i++) {
		struct zd_part *source = &unit->parts[buffer->plan.steps[i].source];
		if (buffer->plan.steps[i].state == ZD_PLAN_WAITING && !find_await(buffer, source))
			zd_part_reader_done(e, source);
	}
	while ((await = LIST_FIRST(&buffer->awaits)))
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): a freed object is in no list */
		await_end(await);
	zd_buffer_view(buffer); /* its streams can read a shard whose publish was expected */
	zd_buffer_view_done(e, buffer);
	zd_plan_skip_rest(&buffer->plan);
	if (buffer->plan.left > 0)
		return; /* the transfer ends with the copies that have begun */
	zd_transfer_event(e, buffer);
	if (buffer->phase == ZD_PHASE_JOINED)
		zd_landings_leave(e, buffer);
	zd_transfer_forget(buffer);
	if (buffer->state == ZD_BUFFER_INFLIGHT)
		zd_sm_move(&zd_sm_buffer, &buffer->state, ZD_BUFFER_AVAILABLE);
	zd_buffer_op_over(e, buffer);
}

/* Drops all transfers in the session's queue, because their fences share timelines. Returns the timelines. */
static struct zd_timelines give_all_up(struct zd_engine *e, struct zd_session *session)
{
	struct zd_buffer_list queue = TAILQ_HEAD_INITIALIZER(queue);
	struct zd_timelines promised = {{0}};
	struct zd_buffer *buffer;
	TAILQ_CONCAT(&queue, &session->deferred, deferred_link);
	while ((buffer = TAILQ_FIRST(&queue))) {
		TAILQ_REMOVE(&queue, buffer, deferred_link);
		for (uint32_t i = 0; i < buffer->plan.nsteps; i++)
			zd_timelines_add(&promised, buffer->plan.steps[i].signal.timeline);
		give_up(e, buffer);
	}
	return promised;
}

void zd_deferred_break(struct zd_engine *e, struct zd_session *session)
{
	struct zd_timelines promised = give_all_up(e, session);
	for (uint32_t i = 0; i < ZD_MAX_DEVICES; i++) {
		if (zd_timelines_has(&promised, ZD_TIMELINE_DEFERRED + i))
			zd_session_abort(e, session, ZD_TIMELINE_DEFERRED + i);
	}
}

void zd_deferred_drop(struct zd_engine *e, struct zd_session *session)
{
	(void)give_all_up(e, session);
}

void zd_deferred_unpublished(struct zd_engine *e, struct zd_part *part)
{
	struct zd_await *await;
	while ((await = LIST_FIRST(&part->awaits))) {
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): a freed object is in no list */
		struct zd_buffer *buffer = await->buffer;
		if (buffer->promise) {
			await_end(await);
			zd_frameless_unpublished(e, buffer);
		} else {
			zd_deferred_break(e, await->session);
		}
	}
}
