/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work.c - works: sent, answered, watched, over.
 *
 * A work has the id of the engine's operation that it stands for, and that ends once. It is QUEUED until its
 * session has a free slot of the result page and its channel room; SENT until it is answered; then LAUNCHED
 * until a WATCH for its fence completes. What must hold:
 *   - segments that a work names are announced on the session's connection, and that is flushed, before the
 *     work is sent;
 *   - a slot belongs to one work from when that is sent until its result has been read;
 *   - a work that a client may have begun ends only when its fence has passed, when the client says that
 *     nothing of it runs any more, or when the client's process can use no device any more.
 */
#include "api/work.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <unistd.h>

#include "api/api.h"
#include "api/session.h"
#include "backend/memfd.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/sm.h"
#include "io/channel.h"
#include "proto/envelope.h"
#include "proto/work.h"

enum work_state { QUEUED, SENT, LAUNCHED };
static const char *const state_names[] = {"QUEUED", "SENT", "LAUNCHED"};
static const uint32_t state_moves[] = {
        [QUEUED] = ZD_SM_TO(SENT),
        [SENT] = ZD_SM_TO(LAUNCHED),
        [LAUNCHED] = 0,
};
static const struct zd_sm work_sm = {
        .name = "work", .nstates = 3, .state_names = state_names, .allowed = state_moves};

struct zd_work {
	uint64_t op;            /* the engine's */
	struct zd_works *works; /* NULL: the session has ended */
	uint8_t state;
	uint32_t slot;             /* from SENT on */
	struct zd_command command; /* the REDUCE; its inputs and fences are owned */
	TAILQ_ENTRY(zd_work) link; /* of works->all */
	UT_hash_handle hh;         /* of api->works */
};

struct zd_works {
	struct zd_api_session *session;
	struct zd_channel *channel;
	const struct zd_work_page *page;
	bool sums;                 /* its client makes them */
	bool ahead;                /* and waits for fences */
	uint64_t free_slots;       /* a bit each */
	TAILQ_HEAD(, zd_work) all; /* in the order of the engine's commands */
	uint64_t nretired, ntold;  /* segments named, and how many of them the client was told to look for */
	bool to_send;              /* in api->to_send */
	TAILQ_ENTRY(zd_works) dirty; /* of that */
};
_Static_assert(ZD_WORK_SLOTS == 64, "free_slots has a bit for each");

/* ---- Works --------------------------------------------------------------------------------------------- */

static void mark_to_send(struct zd_works *works)
{
	if (works->to_send)
		return;
	works->to_send = true;
	TAILQ_INSERT_TAIL(&works->session->api->to_send, works, dirty);
}

static struct zd_fence *copy_fences(const struct zd_reduce_desc *sum)
{
	struct zd_fence *fences = NULL;

	if (sum->nfences > 0) {
		fences = zd_calloc(sum->nfences, sizeof(*fences));
		memcpy(fences, sum->fences, sum->nfences * sizeof(*fences));
	}
	return fences;
}

static struct zd_work *work_new(struct zd_works *works, const struct zd_command *command)
{
	const struct zd_reduce_desc *sum = &command->u.reduce;
	struct zd_work *work = zd_calloc(1, sizeof(*work));
	struct zd_location *inputs = zd_calloc(sum->ninputs ? sum->ninputs : 1, sizeof(*inputs));

	work->op = command->op;
	work->works = works;
	work->state = QUEUED;
	work->command = *command;
	memcpy(inputs, sum->inputs, sum->ninputs * sizeof(*inputs));
	work->command.u.reduce.inputs = inputs;
	work->command.u.reduce.fences = copy_fences(sum);
	TAILQ_INSERT_TAIL(&works->all, work, link);
	HASH_ADD(hh, works->session->api->works, op, sizeof(work->op), work);
	return work;
}

/* Its slot may be the next one's. */
static void leave_session(struct zd_work *work)
{
	struct zd_works *works = work->works;

	if (!works)
		return;
	TAILQ_REMOVE(&works->all, work, link);
	if (work->state != QUEUED)
		works->free_slots |= 1ull << work->slot;
	work->works = NULL;
	mark_to_send(works);
}

static void work_free(struct zd_work *work)
{
	free((void *)work->command.u.reduce.inputs);
	free((void *)work->command.u.reduce.fences);
	free(work);
}

static void work_end(struct zd_api *api, struct zd_work *work)
{
	leave_session(work);
	HASH_DEL(api->works, work);
	work_free(work);
}

/* From outside the engine. */
static void fail(struct zd_api *api, struct zd_work *work, const struct zd_err *why)
{
	uint64_t op = work->op;

	work_end(api, work);
	zd_engine_op_done(api->bridge.engine, op, why->status, why->text, NULL);
}

/* ---- From the engine ----------------------------------------------------------------------------------- */

/* The client is sent what it has not been sent yet of these segments. */
static int announce(struct zd_api_session *session, const struct zd_reduce_desc *sum)
{
	for (uint32_t i = 0; i <= sum->ninputs; i++) {
		const struct zd_location *place = i < sum->ninputs ? &sum->inputs[i] : &sum->target;
		struct zd_attachment attachment;
		Zd__Segment announced;
		unsigned nattachments = 0;
		struct zd_err err;
		int rc = zd_api_session_attach(session, &place->segment, 1, &announced, &attachment,
		                               &nattachments, &err);

		if (rc)
			return rc;
		if (nattachments > 0)
			zd_conn_announce(session->conn, &attachment);
	}
	return 0;
}

bool zd_works_reduce(struct zd_api *api, const struct zd_command *command)
{
	struct zd_api_session *session = zd_api_session_find(api, command->u.reduce.session);

	if (!session || !session->works || !session->works->sums || !zd_conn_is_open(session->conn))
		return false;
	if (announce(session, &command->u.reduce))
		return false; /* the backend needs no descriptors */
	(void)work_new(session->works, command);
	mark_to_send(session->works);
	return true;
}

bool zd_works_are_ahead(struct zd_api *api, uint64_t id)
{
	const struct zd_api_session *session = zd_api_session_find(api, id);

	return session && session->works && session->works->ahead;
}

bool zd_works_is_summing(struct zd_api *api, uint64_t id)
{
	const struct zd_api_session *session = zd_api_session_find(api, id);

	return session && session->works && !TAILQ_EMPTY(&session->works->all);
}

void zd_works_note_retired(struct zd_api_session *session)
{
	if (!session->works)
		return;
	session->works->nretired++;
	mark_to_send(session->works);
}

/* ---- To the client ------------------------------------------------------------------------------------- */

static void put_inputs(Zd__Sum *sum, const struct zd_reduce_desc *from, struct zd_arena *arena)
{
	sum->n_input_segments = sum->n_input_offsets = from->ninputs;
	sum->input_segments = zd_arena_alloc(arena, from->ninputs * sizeof(*sum->input_segments));
	sum->input_offsets = zd_arena_alloc(arena, from->ninputs * sizeof(*sum->input_offsets));
	for (uint32_t i = 0; i < from->ninputs; i++) {
		sum->input_segments[i] = from->inputs[i].segment;
		sum->input_offsets[i] = from->inputs[i].offset;
	}
}

static void put_fences(Zd__Sum *sum, const struct zd_reduce_desc *from, struct zd_arena *arena)
{
	sum->n_fence_timelines = sum->n_fence_values = from->nfences;
	sum->fence_timelines = zd_arena_alloc(arena, from->nfences * sizeof(*sum->fence_timelines));
	sum->fence_values = zd_arena_alloc(arena, from->nfences * sizeof(*sum->fence_values));
	for (uint32_t i = 0; i < from->nfences; i++) {
		sum->fence_timelines[i] = from->fences[i].timeline;
		sum->fence_values[i] = from->fences[i].value;
	}
}

/* Its lists are in the arena. */
static Zd__Sum sum_message(const struct zd_reduce_desc *from, uint32_t slot, struct zd_arena *arena)
{
	Zd__Sum sum = ZD__SUM__INIT;

	sum.input_dtype = from->input_dtype;
	sum.target_dtype = from->target_dtype;
	sum.numel = from->numel;
	sum.target_segment = from->target.segment;
	sum.target_offset = from->target.offset;
	sum.prescale = from->prescale;
	sum.postscale = from->postscale;
	sum.overwrite = from->overwrite;
	sum.slot = slot;
	put_inputs(&sum, from, arena);
	put_fences(&sum, from, arena);
	return sum;
}

/* How many bytes it takes of the room, of which there is enough for ZD_MAX_WORLD inputs of at most 15 bytes,
 * and as many fences. */
static size_t pack_work(const struct zd_work *work, uint32_t slot, struct zd_arena *arena, uint8_t *room,
                        size_t room_bytes)
{
	Zd__Sum sum = sum_message(&work->command.u.reduce, slot, arena);
	Zd__Work message = ZD__WORK__INIT;
	struct zd_envelope envelope;

	message.id = work->op;
	message.body_case = ZD__WORK__BODY_SUM;
	message.sum = &sum;
	envelope = zd_envelope_work(&message);
	zd_assert(envelope.bytes <= room_bytes);
	zd_envelope_pack(&envelope, room);
	return envelope.bytes;
}

/* A packet with a work (NULL: none) and with how many segments have been named. 0, ZD_FRAME_AGAIN, or why
 * not. */
static int send_packet(struct zd_works *works, const struct zd_work *work, uint32_t slot, struct zd_err *err)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];
	struct zd_arena *arena = &works->session->api->replies;
	Zd__WorkPacket packet = ZD__WORK_PACKET__INIT; /* but for the work */
	size_t nbytes;
	int rc;

	packet.retired = works->nretired > works->ntold ? works->nretired : 0;
	nbytes = zd__work_packet__pack(&packet, bytes);
	if (work)
		nbytes += pack_work(work, slot, arena, bytes + nbytes, sizeof(bytes) - nbytes);
	rc = zd_channel_send(works->channel, bytes, nbytes, err);
	if (rc == 0)
		works->ntold = works->nretired;
	zd_arena_reset(arena);
	return rc;
}

static struct zd_work *first_queued(const struct zd_works *works)
{
	struct zd_work *work;

	TAILQ_FOREACH (work, &works->all, link)
		if (work->state == QUEUED)
			break;
	return work;
}

/* As much as the slots and the socket allow. */
static void send_all(struct zd_works *works)
{
	struct zd_work *work;
	struct zd_err err;
	int rc = 0;

	while (rc == 0 && works->free_slots && (work = first_queued(works))) {
		uint32_t slot = (uint32_t)__builtin_ctzll(works->free_slots);

		rc = send_packet(works, work, slot, &err);
		if (rc != 0)
			break;
		works->free_slots &= ~(1ull << slot);
		work->slot = slot;
		zd_sm_move(&work_sm, &work->state, SENT);
	}
	if (rc == 0 && works->nretired > works->ntold)
		rc = send_packet(works, NULL, 0, &err);
	if (rc < 0)
		zd_conn_end(works->session->conn, &err);
}

void zd_works_flush(struct zd_api *api)
{
	struct zd_works *works;

	while ((works = TAILQ_FIRST(&api->to_send))) {
		TAILQ_REMOVE(&api->to_send, works, dirty);
		works->to_send = false;
		if (zd_conn_is_open(works->session->conn))
			send_all(works);
	}
}

/* ---- Answers ------------------------------------------------------------------------------------------- */

/* Whatever stands there is the client's word about its own gradient. */
static void read_result(const struct zd_work *work, struct zd_op_result *result)
{
	const volatile struct zd_work_result *slot = &work->works->page->slots[work->slot];

	result->sum_squares = slot->sum_squares;
	result->overflow = slot->overflow != 0 || !isfinite(result->sum_squares);
}

static void sum_ended(struct zd_api *api, struct zd_work *work)
{
	struct zd_op_result result = {.overflow = false};
	uint64_t op = work->op;

	read_result(work, &result);
	work_end(api, work);
	zd_engine_op_done(api->bridge.engine, op, 0, NULL, &result);
}

static int take_fence(const Zd__WorkDone *done, struct zd_fence *fence, struct zd_err *err)
{
	if (!done->fence)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "work %" PRIu64 " was begun without a fence",
		                  done->id);
	if (done->fence->timeline >= ZD_TIMELINES)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the fence of work %" PRIu64 ": timeline %u, the highest is %u", done->id,
		                  done->fence->timeline, ZD_TIMELINES - 1);
	if (done->fence->value == 0 || done->fence->value >= (uint64_t)ZD_FENCE_ABORTED)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the fence of work %" PRIu64 ": value %" PRIu64 " is not of 1 .. 2^63-2",
		                  done->id, done->fence->value);
	*fence = (struct zd_fence){done->fence->timeline, done->fence->value};
	return 0;
}

/* A small sum has often ended by now, which spares a WATCH. */
static void watch(struct zd_works *works, struct zd_work *work, struct zd_fence fence)
{
	struct zd_api *api = works->session->api;
	struct zd_command command = {.kind = ZD_CMD_WATCH, .op = work->op, .device = work->command.device};

	zd_sm_move(&work_sm, &work->state, LAUNCHED);
	if (zd_bridge_fence_passed(&api->bridge, works->session->id, fence)) {
		sum_ended(api, work);
		return;
	}
	command.u.watch.session = works->session->id;
	command.u.watch.nfences = 1;
	command.u.watch.fences = &fence;
	zd_bridge_submit(&api->bridge, &command);
}

/* The client could not: the backend can, unless the target has been touched. */
static void take_refusal(struct zd_works *works, struct zd_work *work, const Zd__WorkDone *done)
{
	struct zd_api *api = works->session->api;
	struct zd_err err;

	if (done->launched) {
		(void)zd_err_set(&err, done->status, "%s",
		                 done->error[0] ? done->error : zerod_status_name(done->status));
		fail(api, work, &err);
	} else {
		zd_bridge_submit(&api->bridge, &work->command);
		work_end(api, work);
	}
}

static int take_answer(struct zd_works *works, const Zd__WorkDone *done, struct zd_err *err)
{
	struct zd_work *work;
	struct zd_fence fence;
	int rc = 0;

	HASH_FIND(hh, works->session->api->works, &done->id, sizeof(done->id), work);
	if (!work || work->works != works || work->state == QUEUED)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "an answer to work %" PRIu64 ", which this session has not been asked for",
		                  done->id);
	if (work->state == LAUNCHED)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "a second answer to work %" PRIu64, done->id);
	if (done->status > 0)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "work %" PRIu64 " has the status %d", done->id,
		                  done->status);
	if (done->status == 0)
		rc = take_fence(done, &fence, err);
	if (rc)
		return rc;
	if (done->status == 0)
		watch(works, work, fence);
	else
		take_refusal(works, work, done);
	return 0;
}

static void on_packet(void *arg, const uint8_t *bytes, size_t nbytes)
{
	struct zd_works *works = arg;
	struct zd_api_session *session = works->session;
	struct zd_api *api = session->api;
	Zd__WorkAnswers *answers = zd__work_answers__unpack(&api->requests.allocator, nbytes, bytes);
	struct zd_err err = ZD_ERR_NONE;
	int rc = 0;

	(void)zd_bridge_tick(&api->bridge);
	if (!answers)
		rc = zd_err_set(&err, ZEROD_E_PROTOCOL,
		                "a packet of %zu bytes on the work channel that is no WorkAnswers", nbytes);
	for (size_t i = 0; !rc && i < answers->n_done && zd_conn_is_open(session->conn); i++)
		rc = take_answer(works, answers->done[i], &err);
	if (rc)
		zd_conn_refuse(session->conn, &err);
	zd_bridge_settle(&api->bridge);
	zd_arena_reset(&api->requests);
}

static void on_writable(void *arg)
{
	mark_to_send(arg);
}

static void on_broken(void *arg, const struct zd_err *why)
{
	struct zd_works *works = arg;

	if (why->status == ZEROD_E_PROTOCOL || why->status == ZEROD_E_LIMIT)
		zd_conn_refuse(works->session->conn, why);
	else
		zd_conn_end(works->session->conn, why);
}

static const struct zd_channel_ops channel_ops = {
        .packet = on_packet, .writable = on_writable, .broken = on_broken};

/* ---- The end ------------------------------------------------------------------------------------------- */

void zd_works_completed(struct zd_api *api, struct zd_completion *completion)
{
	struct zd_work *work;

	HASH_FIND(hh, api->works, &completion->op, sizeof(completion->op), work);
	if (!work)
		return;
	if (completion->status == 0 && work->works)
		read_result(work, &completion->result);
	else if (completion->status == 0)
		zd_completion_fail(completion, ZEROD_E_ABORTED, "the session has ended");
	work_end(api, work);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

int zd_works_open(struct zd_api_session *session, bool sums, bool ahead, int *channel_fd, int *page_fd,
                  struct zd_err *err)
{
	struct zd_works *works = zd_calloc(1, sizeof(*works));
	void *page;
	int fd, rc;

	*works =
	        (struct zd_works){.session = session, .sums = sums, .ahead = ahead, .free_slots = UINT64_MAX};
	TAILQ_INIT(&works->all);
	rc = zd_memfd_map("zerod-results", ZD_WORK_PAGE_BYTES, PROT_READ, 0, &page, &fd, err);
	if (rc)
		goto free_works;
	rc = zd_channel_new(&session->api->conns, &channel_ops, works, &works->channel, channel_fd, err);
	if (rc)
		goto unmap;
	works->page = page;
	*page_fd = fd;
	session->works = works;
	return 0;
unmap:
	(void)munmap(page, ZD_WORK_PAGE_BYTES);
	(void)close(fd);
free_works:
	free(works);
	return rc;
}

void zd_works_use_rings(struct zd_works *works, struct zd_ring *to_client, struct zd_ring *answers)
{
	zd_channel_use_rings(works->channel, to_client, answers);
}

/* One that was answered is being watched already. */
static void await_end(struct zd_works *works, struct zd_work *work)
{
	struct zd_command command = {.kind = ZD_CMD_WATCH, .op = work->op, .device = work->command.device};

	if (work->state != LAUNCHED) {
		command.u.watch.session = works->session->id;
		command.u.watch.until_gone = true;
		zd_bridge_submit(&works->session->api->bridge, &command);
	}
	leave_session(work);
}

void zd_works_close(struct zd_api_session *session)
{
	struct zd_works *works = session->works;
	struct zd_work *work;

	if (!works)
		return;
	while ((work = TAILQ_FIRST(&works->all)))
		await_end(works, work);
	if (works->to_send)
		TAILQ_REMOVE(&session->api->to_send, works, dirty);
	zd_channel_close(works->channel);
	(void)munmap((void *)works->page, ZD_WORK_PAGE_BYTES);
	free(works);
	session->works = NULL;
}

void zd_works_free(struct zd_api *api)
{
	struct zd_work *work = api->works, *next;

	HASH_CLEAR(hh, api->works); /* the elements stay chained */
	for (; work; work = next) {
		next = work->hh.next;
		work_free(work);
	}
}
