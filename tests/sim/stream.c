/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - the trainers' streams: work that runs in order, some virtual time after it was queued.
 *
 * They read gathered buffers, write shards and gradients, and signal the client page when they got so far.
 * What they find is compared with the model when they read, not when the engine said that it would be there.
 * A wait that an abort has freed makes the rest of the stream's work garbage, as on a real device. A process
 * that lingers goes on with what it has queued, and writes where it did; what it reads is nobody's concern.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sim.h"

static void schedule(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t stream)
{
	if (session->streams[stream].scheduled)
		return;
	session->streams[stream].scheduled = true;
	zd_sim_schedule(
	        world,
	        (struct zd_sim_event){.kind = ZD_SIM_EVENT_STREAM, .index = session->index, .stream = stream},
	        zd_sim_delay(&world->rng, world->config.stream_ns));
}

struct zd_sim_item *zd_sim_stream_append(struct zd_sim_world *world, struct zd_sim_session *session,
                                         uint32_t stream, enum zd_sim_item_kind kind)
{
	struct zd_sim_stream *s = &session->streams[stream];

	if (s->count == 0)
		s->first = 0;
	s->items = zd_sim_grow(s->items, s->first + s->count, &s->room, sizeof(*s->items));
	struct zd_sim_item *item = &s->items[s->first + s->count++];
	memset(item, 0, sizeof(*item));
	item->kind = kind;
	item->inf_at = UINT64_MAX;
	schedule(world, session, stream);
	return item;
}

struct zd_fence zd_sim_stream_signal(struct zd_sim_world *world, struct zd_sim_session *session,
                                     uint32_t stream)
{
	struct zd_sim_item *item = zd_sim_stream_append(world, session, stream, ZD_SIM_ITEM_SIGNAL);

	item->value = ++session->streams[stream].submitted;
	return (struct zd_fence){.timeline = stream, .value = item->value};
}

/* Have the daemon page's fences passed; *aborted: one of them by an abort. */
static bool waited(const struct zd_sim_session *session, const struct zd_sim_item *item, bool *aborted)
{
	bool passed = true;

	for (uint32_t f = 0; f < item->nfences; f++) {
		uint64_t counter = session->daemon_page[item->fences[f].timeline];
		*aborted = *aborted || counter == (uint64_t)ZD_FENCE_ABORTED;
		passed = passed && zd_fence_reached(counter, item->fences[f].value);
	}
	return passed;
}

static void write_gradient(struct zd_sim_world *world, const struct zd_sim_item *item)
{
	uint8_t *bytes = zd_sim_memory(world, &item->at, "gradient");

	for (uint64_t i = item->begin; i < item->end; i++)
		zd_sim_float_store(item->dtype, bytes, i, zd_sim_gradient_value(item->key, item->inf_at, i));
}

static void check_bytes(struct zd_sim_world *world, const struct zd_sim_session *session,
                        const struct zd_sim_item *item)
{
	const uint8_t *bytes = zd_sim_memory(world, &item->at, "allocation");
	size_t same = zd_sim_pattern_check(item->key, bytes, item->at.bytes);

	if (same != item->at.bytes)
		zd_sim_fail(world, "allocation of session %llu at %u+%llu: byte %zu of %llu was overwritten",
		            (unsigned long long)session->id, item->at.segment,
		            (unsigned long long)item->at.offset, same, (unsigned long long)item->at.bytes);
}

static void run_item(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t stream,
                     const struct zd_sim_item *item)
{
	bool garbage = session->streams[stream].garbage;

	switch (item->kind) {
	case ZD_SIM_ITEM_SIGNAL:
		session->client_page[stream] = item->value;
		zd_sim_watches_run(world, session->id);
		break;
	case ZD_SIM_ITEM_WRITE:
		zd_sim_pattern_write(item->key, zd_sim_memory(world, &item->at, "write"), item->at.bytes);
		break;
	case ZD_SIM_ITEM_GRADIENT:
		write_gradient(world, item);
		break;
	case ZD_SIM_ITEM_READ:
		if (!garbage)
			zd_sim_gather_check(world, item);
		break;
	case ZD_SIM_ITEM_CHECK:
		if (session->open)
			check_bytes(world, session, item);
		break;
	case ZD_SIM_ITEM_TARGET:
		if (!garbage)
			zd_sim_target_check(world, session, item);
		break;
	case ZD_SIM_ITEM_LOAN:
		zd_sim_loan_run(world, session, item, garbage);
		break;
	case ZD_SIM_ITEM_RETURN:
		zd_sim_terms_return(world, session, item);
		break;
	case ZD_SIM_ITEM_TERMS:
		zd_sim_terms_run(world, session, item);
		break;
	case ZD_SIM_ITEM_WAIT:
		break;
	}
}

void zd_sim_stream_run(struct zd_sim_world *world, struct zd_sim_session *session, uint32_t stream)
{
	struct zd_sim_stream *s = &session->streams[stream];

	s->scheduled = false;
	if ((!session->open && !session->lingers) || s->count == 0)
		return;
	struct zd_sim_item item = s->items[s->first];
	bool aborted = !session->open; /* nobody keeps its daemon page any more */
	if (item.kind == ZD_SIM_ITEM_WAIT && !aborted && !waited(session, &item, &aborted))
		return; /* a signal on the daemon page comes back here */
	if (aborted)
		s->garbage = session->poisoned = true;
	else if (item.kind == ZD_SIM_ITEM_WAIT && item.value) /* for the grant of an update */
		zd_sim_unread_check(world, session, item.group, item.unit);
	s->first++;
	s->count--;
	run_item(world, session, stream, &item);
	if (s->count > 0)
		schedule(world, session, stream);
	else
		zd_sim_actor_wake(world, session->actor);
}

/* Something on the session's daemon page moved. */
void zd_sim_streams_kick(struct zd_sim_world *world, struct zd_sim_session *session)
{
	for (uint32_t s = 0; s < ZD_SIM_STREAMS; s++) {
		if (session->streams[s].count > 0)
			schedule(world, session, s);
	}
}

bool zd_sim_streams_idle(const struct zd_sim_session *session)
{
	for (uint32_t s = 0; s < ZD_SIM_STREAMS; s++) {
		if (session->streams[s].count > 0)
			return false;
	}
	return true;
}

/* The process is gone: nothing of what it had queued happens. */
void zd_sim_streams_drop(struct zd_sim_session *session)
{
	for (uint32_t s = 0; s < ZD_SIM_STREAMS; s++)
		session->streams[s].count = 0;
}
