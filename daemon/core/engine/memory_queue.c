/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_queue.c - the order in which gathers that wait for memory of a device receive it.
 *
 * Within a uid, the order is that of arrival: while a gather waits for memory, later gathers of its uid wait
 * as well. Gathers of other uids do not wait for it. If gathers of several uids wait, a walk over the
 * requests serves one gather of each uid, starting with the uid that was served the longest ago.
 *
 * A large gather could wait for ever while other uids' small gathers run. A gather that has waited for
 * PATIENCE_NS is therefore favoured for FAVOUR_NS: gathers of other uids receive no memory meanwhile, and the
 * memory that they release is left for it. If that was not enough, the gather waits twice as long until it is
 * favoured again. Gathers of other uids that wait as long can be favoured before.
 */
#include "core/engine/memory_queue.h"

#define PATIENCE_NS    1000000000ull
#define FAVOUR_NS      100000000ull
#define MOST_DOUBLINGS 6u

static struct zd_owner_queue *queue_of(const struct zd_request *req)
{
	return &req->session->owner->queues[req->device->index];
}

bool zd_memory_has_turn(const struct zd_engine *e, const struct zd_request *req)
{
	const struct zd_device *device = req->device;
	const struct zd_owner_queue *queue = queue_of(req);
	if (device->granted == req)
		return true;
	if (device->favoured && device->favoured->session->owner != req->session->owner &&
	    e->now_ns < device->favoured_until_ns)
		return false;
	if (req->u.gather.prefetch)
		return !device->pass_blocked &&
		       (req->queued ? !(queue->prefetch_waits && queue->again) : device->memory_waiters == 0);
	return req->queued ? !queue->blocked : queue->nwaiters == 0;
}

void zd_memory_block(struct zd_request *req)
{
	queue_of(req)->blocked = true;
	req->device->pass_blocked = true;
	if (req->device->granted == req)
		req->device->granted = NULL;
}

void zd_memory_note_grant(struct zd_engine *e, const struct zd_request *req)
{
	struct zd_owner_queue *queue = queue_of(req);
	queue->last_grant = ++req->device->grants;
	if (!req->queued || req->device->memory_waiters == queue_of(req)->nwaiters)
		return;
	queue->blocked = true;
	req->device->granted = req;
	zd_dirty(e, req->device); /* the next pass serves the uid's other gathers */
}

/* ---- Waiters ------------------------------------------------------------------------------------------- */

void zd_memory_enqueue(struct zd_engine *e, struct zd_request *req)
{
	(void)e;
	if (!req->wants_memory)
		return;
	req->device->memory_waiters++;
	queue_of(req)->nwaiters++;
	TAILQ_INSERT_TAIL(&queue_of(req)->waiters, req, memory_link);
}

void zd_memory_dequeue(struct zd_engine *e, struct zd_request *req)
{
	if (req->device->granted == req)
		req->device->granted = NULL;
	if (!req->wants_memory)
		return;
	req->device->memory_waiters--;
	queue_of(req)->nwaiters--;
	TAILQ_REMOVE(&queue_of(req)->waiters, req, memory_link);
	if (req->device->favoured == req)
		req->device->favoured = NULL;
	zd_dirty(e, req->device); /* the next request that waits for memory can proceed */
}

void zd_memory_note_wait(struct zd_engine *e, struct zd_request *req)
{
	bool wants = req->wait.kind == ZD_WAIT_MEMORY || req->wait.kind == ZD_WAIT_BUDGET ||
	             req->wait.kind == ZD_WAIT_TURN || req->wait.kind == ZD_WAIT_SEGMENT ||
	             req->wait.kind == ZD_WAIT_RETIRE;
	wants = wants && zd_request_gathers(req);
	if (wants && req->queued && req->u.gather.prefetch)
		queue_of(req)->prefetch_waits = true;
	wants = wants && !req->u.gather.prefetch;
	if (wants == req->wants_memory)
		return;
	if (req->queued && !wants)
		zd_memory_dequeue(e, req);
	req->wants_memory = wants;
	req->wants_memory_ns = e->now_ns;
	if (req->queued && wants)
		zd_memory_enqueue(e, req);
}

/* ---- Passes -------------------------------------------------------------------------------------------- */

/* The favoured request has not received its memory in time. */
static void end_favour(struct zd_engine *e, struct zd_device *device)
{
	struct zd_request *req = device->favoured;
	req->wants_memory_ns = e->now_ns;
	TAILQ_REMOVE(&queue_of(req)->waiters, req, memory_link); /* to the end of the list */
	TAILQ_INSERT_TAIL(&queue_of(req)->waiters, req, memory_link);
	if (req->favours < MOST_DOUBLINGS)
		req->favours++;
	device->favoured = NULL;
}

/* Returns the uid's request that has waited the longest, of those that have waited long enough. Only a
 * request that was favoured before has to wait longer than the list's first request. */
static struct zd_request *find_impatient(const struct zd_engine *e, const struct zd_owner_queue *queue)
{
	struct zd_request *req;
	TAILQ_FOREACH (req, &queue->waiters, memory_link) {
		uint64_t waited_ns = e->now_ns - req->wants_memory_ns;
		if (waited_ns >= PATIENCE_NS << zd_min_u64(req->favours, MOST_DOUBLINGS))
			return req;
		if (waited_ns < PATIENCE_NS)
			break;
	}
	return NULL;
}

/* Favours the request that has waited the longest, if it has waited long enough. */
static void begin_favour(struct zd_engine *e, struct zd_device *device)
{
	const struct zd_owner_queue *queue;
	struct zd_request *longest = NULL;
	TAILQ_FOREACH (queue, &device->owners, link) {
		struct zd_request *req = find_impatient(e, queue);
		if (req && (!longest || req->wants_memory_ns < longest->wants_memory_ns))
			longest = req;
	}
	if (!longest)
		return;
	device->favoured = longest;
	device->favoured_until_ns = e->now_ns + FAVOUR_NS;
	e->next_deadline_ns = zd_min_u64(e->next_deadline_ns, device->favoured_until_ns);
}

void zd_memory_begin_pass(struct zd_engine *e, struct zd_device *device)
{
	device->pass++;
	device->pass_blocked = false;
	device->granted = NULL;
	if (device->favoured && e->now_ns >= device->favoured_until_ns)
		end_favour(e, device);
	if (!device->favoured && device->memory_waiters > 0 && HASH_COUNT(e->owners) > 1)
		begin_favour(e, device);
}

struct zd_owner_queue *zd_memory_next_owner(const struct zd_device *device)
{
	struct zd_owner_queue *queue, *next = NULL;
	if (device->memory_waiters == 0)
		return NULL;
	TAILQ_FOREACH (queue, &device->owners, link) {
		if (queue->nwaiters == device->memory_waiters)
			return NULL; /* no other uid waits */
		if (queue->nwaiters > 0 && queue->walked_pass != device->pass &&
		    (!next || queue->last_grant < next->last_grant))
			next = queue;
	}
	return next;
}

uint64_t zd_memory_tick(struct zd_engine *e, struct zd_device *device)
{
	if (!device->favoured)
		return UINT64_MAX;
	if (e->now_ns < device->favoured_until_ns)
		return device->favoured_until_ns;
	zd_dirty(e, device);
	return UINT64_MAX;
}
