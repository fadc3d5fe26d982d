/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - requests: each is begun, tried, tried again while it waits, and receives exactly one reply.
 *
 * A request that completes at once never enters a list. A waiting request is in its session's hash (for the
 * limit and for duplicate ids) and in its device's queue. The queue's order is the order of service within a
 * uid.
 */
#include <string.h>

#include "core/engine/events.h"
#include "core/engine/memory_queue.h"
#include "core/engine/objects.h"
#include "core/engine/request.h"

const char *zd_request_name(enum zd_request_kind kind)
{
	static const char *const names[ZD_NREQUESTS] = {
#define REQUEST(KIND, name) [ZD_REQ_##KIND] = #name,
#include "core/requests.def"
	};
	return names[kind];
}

struct zd_event *zd_event_of_session(struct zd_engine *e, enum zd_event_kind kind,
                                     const struct zd_session *session)
{
	const struct zd_member *member = TAILQ_FIRST(&session->members);
	struct zd_event *event = zd_event_new(e, kind, member ? member->group->job : NULL);
	event->session = session->id;
	event->uid = session->uid;
	return event;
}

/* Records that a quota, a limit or the memory has no room for the request. */
static void refuse_event(struct zd_engine *e, uint64_t session_id, enum zd_request_kind kind, int status)
{
	const struct zd_session *session = zd_session_find(e, session_id);
	if (!session)
		return;
	struct zd_event *event = zd_event_of_session(e, ZD_EVENT_REFUSE, session);
	event->reason = (uint8_t)-status;
	event->number = kind;
}

static void reply_error(struct zd_engine *e, uint64_t session, uint64_t request, enum zd_request_kind kind,
                        int status, const char *text)
{
	struct zd_reply reply = {
	        .session = session, .request = request, .kind = kind, .status = status, .error = text};
	zd_assert(status < 0 && (unsigned)-status < ZD_NERRORS);
	e->metrics.errors[-status]++;
	if (e->types[kind]->gathers)
		zd_count(e, ZD_COUNT_GATHERS_FAILED, 1);
	if (status == ZEROD_E_QUOTA || status == ZEROD_E_LIMIT || status == ZEROD_E_NO_MEMORY)
		refuse_event(e, session, kind, status);
	e->sink.reply(e->sink.arg, &reply);
}

/* Most requests complete at once. The memory of the last one is therefore kept for the next. */
static struct zd_request *request_new(struct zd_engine *e)
{
	struct zd_request *req = e->spare_request;
	if (!req)
		return zd_calloc(1, sizeof(*req));
	e->spare_request = NULL;
	memset(req, 0, sizeof(*req));
	return req;
}

static void request_free(struct zd_engine *e, struct zd_request *req)
{
	if (req->type->free)
		req->type->free(req);
	for (size_t i = 0; i < ZD_ARRAY_LEN(req->owned); i++)
		free(req->owned[i]);
	free(req->failed_text);
	free((void *)req->args);
	if (e->spare_request)
		free(req);
	else
		e->spare_request = req;
}

/* Whether the request counts against the limit of outstanding requests. A request that receives its reply
 * before it ends does not count, because a unit or group has at most one of these. But a request of a kind
 * that always replies first does count, because a unit can have any number of these. */
static bool counts(const struct zd_request *req)
{
	return !req->answered || req->type->answered_first;
}

/* The bytes that request_free() frees, except for the text of a failure. */
static uint32_t request_metadata_bytes(const struct zd_request *req)
{
	return (uint32_t)(sizeof(*req) + (req->args ? sizeof(*req->args) : 0) + req->owned_bytes);
}

static void begin_wait(struct zd_engine *e, struct zd_request *req)
{
	const struct zd_member *member = req->member ? req->member : TAILQ_FIRST(&req->session->members);
	struct zd_event *event = member ? zd_event_of(e, ZD_EVENT_WAIT_BEGIN, member)
	                                : zd_event_of_session(e, ZD_EVENT_WAIT_BEGIN, req->session);
	event->session = req->session->id;
	event->uid = req->session->uid;
	event->object = member ? member->group->id : 0;
	event->reason = (uint8_t)req->measured;
	event->number = req->kind;
	req->wait_event = *event;
}

/* The member can be gone, because a join ends with its group. */
static void end_wait(struct zd_engine *e, const struct zd_request *req)
{
	struct zd_event *event = zd_event_new(e, ZD_EVENT_WAIT_END, NULL);
	*event = req->wait_event;
	event->time_ns = e->now_ns;
	event->kind = ZD_EVENT_WAIT_END;
	event->value = req->measured_ns;
}

/* If the reason of the wait has changed, adds the time that the request has waited for the former reason. */
static void measure_wait(struct zd_engine *e, struct zd_request *req, enum zd_wait_kind kind)
{
	if (req->measured == kind)
		return;
	if (req->measured != ZD_WAIT_NONE) {
		zd_histogram_observe(&e->waits[req->measured], e->now_ns - req->measured_ns);
		end_wait(e, req);
	}
	req->measured = kind;
	req->measured_ns = e->now_ns;
	if (kind != ZD_WAIT_NONE)
		begin_wait(e, req);
}

static void await_segment(struct zd_engine *e, struct zd_request *req)
{
	if (!req->segment_wait)
		return;
	zd_hash_insert(&e->segment_waits, &req->awaits, zd_hash_id(req->segment_wait));
	e->events->segment_awaited(e, req->segment_wait, 1);
}

static void forget_segment(struct zd_engine *e, struct zd_request *req)
{
	if (req->queued && req->segment_wait) {
		zd_hash_remove(&e->segment_waits, &req->awaits);
		e->events->segment_awaited(e, req->segment_wait, -1);
	}
	req->segment_wait = 0;
}

static void enqueue_request(struct zd_engine *e, struct zd_request *req)
{
	struct zd_session *session = req->session;
	zd_assert(req->device && req->wait.kind != ZD_WAIT_NONE);
	req->queued = true;
	req->metadata_bytes = request_metadata_bytes(req);
	zd_metadata_charge(session->owner, req->metadata_bytes);
	HASH_ADD(hh, session->waiting, id, sizeof(req->id), req);
	TAILQ_INSERT_TAIL(&session->requests, req, session_link);
	session->outstanding += counts(req);
	struct zd_owner_queue *queue = &session->owner->queues[req->device->index];
	if (TAILQ_EMPTY(&queue->requests))
		TAILQ_INSERT_TAIL(&req->device->owners, queue, link);
	TAILQ_INSERT_TAIL(&queue->requests, req, owner_link);
	TAILQ_INSERT_TAIL(&req->device->queue, req, device_link);
	req->device->nqueued++;
	zd_id_tree_insert(&e->waiting, &req->listed, req->serial);
	zd_memory_enqueue(e, req);
	await_segment(e, req);
	measure_wait(e, req, req->wait.kind);
	if (req->deadline_ns)
		zd_deadlines_add(&e->deadlines, req);
}

static void walk_end(struct zd_engine *e, struct zd_owner_queue *queue)
{
	e->nwalks -= queue->walks;
	queue->owner->nwalks -= queue->walks;
	queue->walks = queue->again = false;
}

static void dequeue(struct zd_engine *e, struct zd_request *req)
{
	struct zd_session *session = req->session;
	measure_wait(e, req, ZD_WAIT_NONE);
	zd_metadata_uncharge(session->owner, req->metadata_bytes);
	HASH_DEL(session->waiting, req);
	TAILQ_REMOVE(&session->requests, req, session_link);
	session->outstanding -= counts(req);
	TAILQ_REMOVE(&req->device->queue, req, device_link);
	req->device->nqueued--;
	struct zd_owner_queue *queue = &session->owner->queues[req->device->index];
	if (queue->next == req)
		queue->next = TAILQ_NEXT(req, owner_link);
	TAILQ_REMOVE(&queue->requests, req, owner_link);
	if (TAILQ_EMPTY(&queue->requests)) {
		TAILQ_REMOVE(&req->device->owners, queue, link);
		walk_end(e, queue);
	}
	zd_deadlines_remove(&e->deadlines, req);
	forget_segment(e, req);
	zd_id_tree_remove(&e->waiting, &req->listed);
	zd_memory_dequeue(e, req);
	/* A session's collective gathers have one order across all devices. */
	if (zd_request_gathers(req) && req->member->group->cluster)
		zd_dirty_session(e, session);
	req->queued = false;
}

/* Replies with success and the body in e->reply. */
static void reply_well(struct zd_engine *e, const struct zd_request *req)
{
	e->reply.session = req->session->id;
	e->reply.request = req->id;
	e->reply.kind = req->kind;
	e->reply.status = 0;
	e->reply.error = "";
	e->sink.reply(e->sink.arg, &e->reply);
}

void zd_request_drop_deadline(struct zd_engine *e, struct zd_request *req)
{
	zd_deadlines_remove(&e->deadlines, req);
	req->deadline_ns = 0;
	req->must_end = true;
}

void zd_request_answer(struct zd_engine *e, struct zd_request *req)
{
	uint32_t counted = req->queued && counts(req);
	req->answered = true;
	req->session->outstanding -= counted && !counts(req);
	zd_request_drop_deadline(e, req); /* the client has its reply */
	reply_well(e, req);
}

/* Replies to the request, which is in no list, and frees it. */
static void finish_request(struct zd_engine *e, struct zd_request *req, int status, const char *text)
{
	if (status == ZEROD_E_PEER_LOST && !req->answered && req->member && !req->unheard) {
		req->member->told = req->member->group->generation;
		zd_member_note_told(req->member);
	}
	if (status == 0 && !req->answered)
		reply_well(e, req);
	else if (!req->answered)
		reply_error(e, req->session->id, req->id, req->kind, status, text);
	request_free(e, req);
}

static void undo(struct zd_engine *e, struct zd_request *req)
{
	if (req->type->cancel && !req->args)
		req->type->cancel(e, req);
}

/* A lost rank is reported before the request changes anything. For a session that knows of all losses of its
 * groups, this needs no lookup. */
static int tell_loss(struct zd_engine *e, const struct zd_request *req, const struct zd_args *args,
                     struct zd_err *err)
{
	struct zd_member *acting = req->session->nuntold > 0 ? e->events->acting_member(e, req->session, args)
	                                                     : NULL;
	return acting && acting->group->state != ZD_GROUP_ABORTED ? zd_member_tell(acting, err) : 0;
}

/* Calls the type's begin(). `given`: the caller's arguments, which are stored on ZD_WAIT for the next
 * attempt. NULL: they are stored. */
static int begin_request(struct zd_engine *e, struct zd_request *req, const struct zd_args *given,
                         struct zd_err *err)
{
	if (given)
		req->args = given;
	int status = tell_loss(e, req, req->args, err);
	if (status == 0 && req->type->begin)
		status = req->type->begin(e, req, err);
	if (status == ZD_WAIT && given) {
		struct zd_args *copy = zd_calloc(1, sizeof(*copy));
		*copy = *given;
		req->args = copy;
	} else if (status != ZD_WAIT) {
		if (!given)
			free((void *)req->args);
		req->args = NULL;
	}
	return status;
}

static int attempt(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	memset(&e->reply, 0, sizeof(e->reply));
	if (req->failed) {
		undo(e, req);
		return zd_err_set(err, req->failed, "%s", req->failed_text ? req->failed_text : "");
	}
	req->wait = (struct zd_wait){0};
	req->goes_on = false;
	forget_segment(e, req);
	int status = req->args ? begin_request(e, req, NULL, err) : 0;
	if (status == 0 && req->type->attempt)
		status = req->type->attempt(e, req, err);
	if (status == ZD_WAIT)
		zd_memory_note_wait(e, req);
	if (status == ZD_WAIT && req->queued)
		await_segment(e, req);
	return status;
}

/* Checks that one more request of the session may wait. */
static int check_may_wait(const struct zd_engine *e, const struct zd_request *req, struct zd_err *err)
{
	const struct zd_session *session = req->session;
	if (session->outstanding >= ZD_MAX_OUTSTANDING + req->type->room)
		return zd_err_set(err, ZEROD_E_LIMIT, "%u requests are outstanding already",
		                  session->outstanding);
	return zd_metadata_check_work(e, session, "a request that waits", request_metadata_bytes(req), err);
}

static int check_fences(const struct zd_fence_list *list, struct zd_err *err)
{
	if (list->count > ZD_MAX_FENCES)
		return zd_err_set(err, ZEROD_E_LIMIT, "%u fences in one request; at most %u", list->count,
		                  ZD_MAX_FENCES);
	for (uint32_t i = 0; i < list->count; i++) {
		const struct zd_fence *fence = &list->fences[i];
		if (fence->timeline >= ZD_TIMELINES)
			return zd_err_set(err, ZEROD_E_INVALID, "fence %u: timeline %u; a page has %u", i,
			                  fence->timeline, ZD_TIMELINES);
		if (fence->value == 0 || fence->value >= (uint64_t)ZD_FENCE_ABORTED)
			return zd_err_set(err, ZEROD_E_INVALID, "fence %u: value %llu is not in 1 .. 2^63-2",
			                  i, (unsigned long long)fence->value);
	}
	return 0;
}

void zd_engine_request(struct zd_engine *e, const struct zd_call *call, const struct zd_args *args)
{
	struct zd_session *session = zd_session_find(e, call->session);
	zd_assert(session && session->state != ZD_SESSION_CLOSING && args->kind < ZD_NREQUESTS);
	session->nrequests++;
	session->requested_ns = e->now_ns;
	e->metrics.requests[args->kind]++;
	if (e->nendings > 0 || e->nwalks > 0)
		zd_endings_finish_of(e, session->uid);

	struct zd_request *req;
	HASH_FIND(hh, session->waiting, &call->request, sizeof(call->request), req);
	if (req) {
		reply_error(e, call->session, call->request, args->kind, ZEROD_E_PROTOCOL,
		            "a request with this id is outstanding");
		return;
	}
	struct zd_err err = ZD_ERR_NONE;
	req = request_new(e);
	req->id = call->request;
	req->kind = args->kind;
	req->type = e->types[args->kind];
	req->since_ns = e->now_ns;
	req->deadline_ns = call->deadline_ns;
	req->session = session;

	int status = check_fences(&args->fences, &err);
	if (status == 0)
		status = begin_request(e, req, args, &err);
	if (status >= 0) {
		req->told = req->member ? req->member->told : 0;
		if (status == 0)
			status = attempt(e, req, &err);
		int refused = status == ZD_WAIT && !req->answered ? check_may_wait(e, req, &err) : 0;
		if (refused != 0) {
			undo(e, req);
			status = refused;
			if (req->pending_ops > 0) { /* freed with its last op */
				reply_error(e, call->session, call->request, args->kind, status, err.text);
				req->cancelled = true;
				zd_settle(e);
				return;
			}
		}
	}
	if (status == ZD_WAIT) {
		req->serial = zd_next_id(e, req->session->owner->ids, ZD_ID_BUFFER);
		enqueue_request(e, req);
		if (req->goes_on)
			zd_dirty(e, req->device);
		if (req->type->answered_first)
			zd_request_answer(e, req);
	} else {
		finish_request(e, req, status, err.text);
	}
	zd_settle(e);
}

int zd_wait_for(struct zd_request *req, enum zd_wait_kind kind, uint32_t rank, uint64_t a, uint64_t b)
{
	return zd_wait_for_unit(req, NULL, kind, rank, a, b);
}

int zd_wait_for_unit(struct zd_request *req, const struct zd_unit *unit, enum zd_wait_kind kind,
                     uint32_t rank, uint64_t a, uint64_t b)
{
	req->wait = (struct zd_wait){.kind = kind, .rank = rank, .a = a, .b = b, .unit = unit};
	return ZD_WAIT;
}

void *zd_request_own(struct zd_request *req, void *memory, size_t bytes)
{
	size_t place = 0;
	while (place < ZD_ARRAY_LEN(req->owned) && req->owned[place])
		place++;
	zd_assert(place < ZD_ARRAY_LEN(req->owned));
	req->owned[place] = memory;
	req->owned_bytes += (uint32_t)bytes;
	return memory;
}

void zd_request_keep_fences(struct zd_request *req, const struct zd_fence_list *fences)
{
	size_t bytes = fences->count * sizeof(struct zd_fence);
	if (fences->count == 0)
		return;
	struct zd_fence *copy = zd_request_own(req, zd_calloc(1, bytes), bytes);
	memcpy(copy, fences->fences, bytes);
	req->fences = (struct zd_fence_list){fences->count, copy};
}

void zd_request_fail(struct zd_request *req, int status, const char *text)
{
	if (req->failed)
		return;
	req->failed = status;
	req->failed_text = zd_strdup(text);
}

void zd_request_op_done(struct zd_engine *e, struct zd_op *op)
{
	struct zd_request *req = op->owner;
	zd_assert(req->pending_ops > 0);
	req->pending_ops--;
	if (req->cancelled) {
		if (req->pending_ops == 0)
			request_free(e, req);
		return;
	}
	if (op->status != 0)
		zd_request_fail(req, op->status, op->error);
	zd_dirty(e, req->device);
}

/* Removes a waiting request; replies unless status is 0. */
static void drop(struct zd_engine *e, struct zd_request *req, int status, const char *text)
{
	undo(e, req);
	zd_dirty(e, req->device); /* other requests can have waited for this one */
	dequeue(e, req);
	if (status != 0 && !req->answered)
		reply_error(e, req->session->id, req->id, req->kind, status, text);
	else if (zd_request_gathers(req))
		zd_count(e, ZD_COUNT_GATHERS_DROPPED, 1);
	if (req->pending_ops > 0)
		req->cancelled = true;
	else
		request_free(e, req);
}

void zd_requests_drop(struct zd_engine *e, struct zd_session *session, struct zd_member *member, int status,
                      const char *text)
{
	struct zd_request *req, *next;
	TAILQ_FOREACH_SAFE (req, &session->requests, session_link, next) {
		if (!member || req->member == member)
			drop(e, req, status, text);
	}
}

static uint64_t next_deadline(const struct zd_engine *e)
{
	const struct zd_request *first = zd_deadlines_first(&e->deadlines);
	uint64_t next_ns = zd_min_u64(e->next_deadline_ns, zd_min_u64(e->next_unmap_ns, e->next_unpin_ns));
	return first ? zd_min_u64(next_ns, first->deadline_ns) : next_ns;
}

void zd_request_expire(struct zd_engine *e, struct zd_request *req)
{
	char reason[ZD_WAIT_TEXT];
	struct zd_err err = ZD_ERR_NONE;
	if (req->must_end)
		return;
	e->events->wait_text(e, req, req->session, reason);
	zd_err_set(&err, ZEROD_E_DEADLINE, "%s: waited %llu ms for %s", zd_request_name(req->kind),
	           (unsigned long long)((e->now_ns - req->since_ns) / 1000000u), reason);
	drop(e, req, ZEROD_E_DEADLINE, err.text);
}

/* The number of waiting requests that one event tries or ends. */
static uint32_t step_budget(const struct zd_engine *e)
{
	return e->sink.ends ? e->end_step_objects : UINT32_MAX;
}

void zd_engine_tick(struct zd_engine *e, uint64_t now_ns)
{
	zd_assert(now_ns >= e->now_ns);
	e->now_ns = now_ns;
	if (now_ns >= e->next_expiry_ns)
		e->events->jobs_expire(e);
	if (now_ns < next_deadline(e))
		return;
	if (now_ns >= e->next_unmap_ns)
		e->next_unmap_ns = e->events->unmaps_expire(e);
	if (now_ns >= e->next_unpin_ns)
		e->next_unpin_ns = e->events->pins_expire(e);
	e->next_deadline_ns = UINT64_MAX;
	for (uint32_t i = 0; i < e->ndevices; i++)
		e->next_deadline_ns = zd_min_u64(e->next_deadline_ns, zd_memory_tick(e, &e->devices[i]));
	for (uint32_t budget = step_budget(e); budget > 0; budget--) {
		struct zd_request *req = zd_deadlines_first(&e->deadlines);
		if (!req || req->deadline_ns > now_ns)
			break;
		zd_request_expire(e, req);
	}
	zd_settle(e);
}

void zd_engine_drain(struct zd_engine *e)
{
	e->draining = true;
	(void)zd_event_new(e, ZD_EVENT_DRAIN_BEGIN, NULL);
	for (uint32_t i = 0; i < e->ndevices; i++) {
		struct zd_request *req, *next;
		TAILQ_FOREACH_SAFE (req, &e->devices[i].queue, device_link, next) {
			if (req->type->forms_group)
				drop(e, req, ZEROD_E_SHUTDOWN,
				     "the daemon is draining: ranks that are missing cannot join any more");
		}
	}
	zd_settle(e);
}

void zd_engine_undrain(struct zd_engine *e)
{
	e->draining = false;
	(void)zd_event_new(e, ZD_EVENT_DRAIN_END, NULL);
}

uint64_t zd_engine_next_deadline(const struct zd_engine *e)
{
	return zd_min_u64(next_deadline(e), e->next_expiry_ns);
}

void zd_dirty(struct zd_engine *e, struct zd_device *device)
{
	e->dirty_mask |= device->queues;
}

void zd_dirty_session(struct zd_engine *e, const struct zd_session *session)
{
	const struct zd_request *req;
	TAILQ_FOREACH (req, &session->requests, session_link)
		zd_dirty(e, req->device);
}

void zd_dirty_group(struct zd_engine *e, struct zd_group *group)
{
	e->dirty_mask |= group->device_mask;
	/* A request that waits for this group can be in the queue of another group's device: a session reset,
	 * or a gather that follows one of this group. */
	for (uint32_t rank = 0; rank < group->local_world_size && group->cluster; rank++) {
		if (group->members[rank].session)
			zd_dirty_session(e, group->members[rank].session);
	}
}

void zd_dirty_commit_waits(struct zd_engine *e)
{
	e->commits_dirty = zd_commit_waits(e)->nqueued > 0;
}

/* Continues the walk until it is complete, or the budget is 0. */
static void walk(struct zd_engine *e, struct zd_owner_queue *queue, uint32_t *budget)
{
	struct zd_request *req;
	while ((req = queue->next) && *budget > 0) {
		struct zd_err err = ZD_ERR_NONE;
		--*budget;
		queue->next = TAILQ_NEXT(req, owner_link);
		if (req->pending_ops > 0)
			continue;
		int status = attempt(e, req, &err);
		if (status == ZD_WAIT) {
			measure_wait(e, req, req->wait.kind);
			if (req->goes_on) {
				queue->next = req;
				return;
			}
			continue;
		}
		dequeue(e, req);
		finish_request(e, req, status, err.text);
	}
}

static void walk_restart(struct zd_owner_queue *queue, const struct zd_device *device)
{
	queue->walked_pass = device->pass;
	queue->next = TAILQ_FIRST(&queue->requests);
	queue->blocked = queue->prefetch_waits = queue->again = false;
}

/* Starts a walk. If a walk is incomplete, another one follows it instead. */
static void walk_begin(struct zd_engine *e, struct zd_device *device, struct zd_owner_queue *queue)
{
	uint32_t budget = step_budget(e);
	if (queue->walks) {
		queue->walked_pass = device->pass;
		queue->again = true;
		return;
	}
	walk_restart(queue, device);
	walk(e, queue, &budget);
	if (!queue->next)
		return;
	queue->walks = true;
	e->nwalks++;
	if (queue->owner->nwalks++ == 0)
		e->sink.ends(e->sink.arg, queue->owner->uid);
}

void zd_walks_step(struct zd_engine *e, struct zd_owner *owner, uint32_t budget)
{
	bool paused = e->settling;
	e->settling = true;
	for (uint32_t i = 0; i <= e->ndevices && budget > 0; i++) {
		struct zd_owner_queue *queue = &owner->queues[i];
		while (queue->walks && budget > 0) {
			walk(e, queue, &budget);
			if (queue->next)
				budget = 0;
			else if (queue->again)
				walk_restart(queue, &e->devices[i]);
			else
				walk_end(e, queue);
		}
	}
	e->settling = paused;
}

static void settle_device(struct zd_engine *e, struct zd_device *device)
{
	struct zd_owner_queue *queue, *next;
	e->events->device_settles(e, device);
	zd_memory_begin_pass(e, device);
	while ((queue = zd_memory_next_owner(device)))
		walk_begin(e, device, queue);
	TAILQ_FOREACH_SAFE (queue, &device->owners, link, next) {
		if (queue->walked_pass != device->pass)
			walk_begin(e, device, queue);
	}
}

void zd_settle(struct zd_engine *e)
{
	if (e->settling)
		return;
	e->settling = true;
	while (e->dirty_mask || e->commits_dirty) {
		struct zd_device *device = zd_commit_waits(e);
		if (e->dirty_mask)
			device = &e->devices[__builtin_ctzll(e->dirty_mask)];
		else
			e->commits_dirty = false;
		e->dirty_mask &= e->dirty_mask - 1; /* the lowest bit */
		settle_device(e, device);
	}
	e->settling = false;
}

void zd_engine_pause(struct zd_engine *e)
{
	zd_assert(!e->settling);
	e->settling = true;
}

void zd_engine_resume(struct zd_engine *e)
{
	e->settling = false;
	zd_settle(e);
}
