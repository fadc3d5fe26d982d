/* SPDX-License-Identifier: Apache-2.0 */
/*
 * delegate.c - sums of client processes, from the request to the result.
 *
 * A sum has the id of the engine's operation. It is QUEUED until its delegate has a free slot of the result
 * page and its channel has room; SENT until the client answers; then LAUNCHED until a WATCH for the client's
 * fence completes. What must hold:
 *   - segments that a sum names are announced on the session's connection, and the connection is flushed,
 *     before the sum is sent;
 *   - a slot belongs to one sum from when the sum is sent until its result has been read;
 *   - a sum that a client may have begun ends only when its fence has passed, when the client reports that
 *     nothing of it runs any more, or when the client's process can use no device any more.
 *
 * The bridge offers commands to the delegates. The delegates submit commands to the bridge: WATCHes, and sums
 * that a client could not begin.
 */
#include "server/delegate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <unistd.h>
#include <uthash.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/sm.h"
#include "executor/memfd.h"
#include "proto/envelope.h"
#include "proto/work.h"
#include "server/bridge.h"
#include "server/channel.h"
#include "server/conn.h"

#define MESSAGE_BYTES 8192u /* unpacked answers, and lists of a sum; larger ones spill */

enum sum_state { QUEUED, SENT, LAUNCHED };
static const char *const state_names[] = {"QUEUED", "SENT", "LAUNCHED"};
static const uint32_t state_moves[] = {
        [QUEUED] = ZD_SM_TO(SENT),
        [SENT] = ZD_SM_TO(LAUNCHED),
        [LAUNCHED] = 0,
};
static const struct zd_sm sum_sm = {
        .name = "sum", .nstates = 3, .state_names = state_names, .allowed = state_moves};

struct zd_delegate_sum {
	uint64_t op; /* the engine's op */
	struct zd_delegates *delegates;
	struct zd_delegate *delegate; /* NULL: the session has ended */
	uint8_t state;
	uint32_t slot;                     /* from SENT on */
	struct zd_command command;         /* the REDUCE; its inputs and fences are owned */
	TAILQ_ENTRY(zd_delegate_sum) link; /* of delegate->sums */
	UT_hash_handle hh;                 /* of delegates->sums */
};

struct zd_delegate {
	struct zd_delegates *delegates;
	uint64_t session;
	struct zd_delegate_session owner_session;
	struct zd_channel *channel;
	const struct zd_work_page *page;
	uint64_t free_slots;                /* as bits */
	TAILQ_HEAD(, zd_delegate_sum) sums; /* in the order of the engine's commands */
	uint32_t nasked;                    /* sums that are not LAUNCHED */
	uint64_t nretired, ntold;           /* segments to unmap: all, and those reported */
	bool to_send;                       /* in delegates->to_send */
	TAILQ_ENTRY(zd_delegate) dirty;     /* in delegates->to_send */
	UT_hash_handle hh;                  /* of delegates->all */
};
_Static_assert(ZD_WORK_SLOTS == 64, "free_slots has a bit for each");

/* ---- Sums ---------------------------------------------------------------------------------------------- */

static void mark_to_send(struct zd_delegate *delegate)
{
	if (delegate->to_send)
		return;
	delegate->to_send = true;
	TAILQ_INSERT_TAIL(&delegate->delegates->to_send, delegate, dirty);
}

static struct zd_fence *copy_fences(const struct zd_reduce_desc *desc)
{
	struct zd_fence *fences = NULL;

	if (desc->nfences > 0) {
		fences = zd_calloc(desc->nfences, sizeof(*fences));
		memcpy(fences, desc->fences, desc->nfences * sizeof(*fences));
	}
	return fences;
}

static struct zd_delegate_sum *sum_new(struct zd_delegate *delegate, const struct zd_command *command)
{
	const struct zd_reduce_desc *desc = &command->u.reduce;
	struct zd_delegate_sum *sum = zd_calloc(1, sizeof(*sum));
	struct zd_location *inputs = zd_calloc(desc->ninputs ? desc->ninputs : 1, sizeof(*inputs));

	sum->op = command->op;
	sum->delegates = delegate->delegates;
	sum->delegate = delegate;
	sum->state = QUEUED;
	sum->command = *command;
	memcpy(inputs, desc->inputs, desc->ninputs * sizeof(*inputs));
	sum->command.u.reduce.inputs = inputs;
	sum->command.u.reduce.fences = copy_fences(desc);
	TAILQ_INSERT_TAIL(&delegate->sums, sum, link);
	delegate->nasked++;
	HASH_ADD(hh, delegate->delegates->sums, op, sizeof(sum->op), sum);
	return sum;
}

/* Frees the sum's slot. */
static void leave_session(struct zd_delegate_sum *sum)
{
	struct zd_delegate *delegate = sum->delegate;

	if (!delegate)
		return;
	TAILQ_REMOVE(&delegate->sums, sum, link);
	delegate->nasked -= sum->state != LAUNCHED;
	if (sum->state != QUEUED)
		delegate->free_slots |= 1ull << sum->slot;
	sum->delegate = NULL;
	mark_to_send(delegate);
}

static void sum_free(struct zd_delegate_sum *sum)
{
	free((void *)sum->command.u.reduce.inputs);
	free((void *)sum->command.u.reduce.fences);
	free(sum);
}

static void sum_end(struct zd_delegate_sum *sum)
{
	leave_session(sum);
	HASH_DEL(sum->delegates->sums, sum);
	sum_free(sum);
}

/* Must not be called by the engine's sink. */
static void fail_sum(struct zd_delegate_sum *sum, const struct zd_err *why)
{
	struct zd_engine *engine = sum->delegates->bridge->engine;
	uint64_t op = sum->op;

	sum_end(sum);
	zd_engine_op_done(engine, op, why->status, why->text, NULL);
}

/* ---- From the engine ----------------------------------------------------------------------------------- */

static struct zd_delegate *find_delegate(const struct zd_delegates *delegates, uint64_t session)
{
	struct zd_delegate *delegate;

	HASH_FIND(hh, delegates->all, &session, sizeof(session), delegate);
	return delegate;
}

/* Announces the segments that the client does not have yet. */
static int announce(const struct zd_delegate *delegate, const struct zd_reduce_desc *desc)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i <= desc->ninputs; i++) {
		const struct zd_location *place = i < desc->ninputs ? &desc->inputs[i] : &desc->target;

		rc = delegate->owner_session.announce(delegate->owner_session.arg, place->segment);
	}
	return rc;
}

bool zd_delegates_submit(struct zd_delegates *delegates, const struct zd_command *command)
{
	if (command->kind != ZD_CMD_REDUCE)
		return false;
	struct zd_delegate *delegate = find_delegate(delegates, command->u.reduce.session);
	if (!delegate || !delegate->owner_session.sums || !zd_conn_is_open(delegate->owner_session.conn))
		return false;
	if (announce(delegate, &command->u.reduce))
		return false; /* the backend needs no descriptors */
	(void)sum_new(delegate, command);
	mark_to_send(delegate);
	return true;
}

bool zd_delegates_sum_ahead(const struct zd_delegates *delegates, uint64_t session)
{
	const struct zd_delegate *delegate = find_delegate(delegates, session);

	return delegate && delegate->owner_session.ahead;
}

enum zd_sums_state zd_delegates_sums(const struct zd_delegates *delegates, uint64_t session)
{
	const struct zd_delegate *delegate = find_delegate(delegates, session);

	if (!delegate || !delegate->owner_session.sums)
		return ZD_SUMS_BY_EXECUTOR;
	if (delegate->nasked > 0)
		return ZD_SUMS_ASKED;
	return TAILQ_EMPTY(&delegate->sums) ? ZD_SUMS_NONE : ZD_SUMS_LAUNCHED;
}

void zd_delegate_note_retired(struct zd_delegate *delegate)
{
	delegate->nretired++;
	mark_to_send(delegate);
}

/* ---- To the client ------------------------------------------------------------------------------------- */

static void put_inputs(Zd__Sum *message, const struct zd_reduce_desc *from, struct zd_arena *arena)
{
	message->n_input_segments = message->n_input_offsets = from->ninputs;
	message->input_segments = zd_arena_alloc(arena, from->ninputs * sizeof(*message->input_segments));
	message->input_offsets = zd_arena_alloc(arena, from->ninputs * sizeof(*message->input_offsets));
	for (uint32_t i = 0; i < from->ninputs; i++) {
		message->input_segments[i] = from->inputs[i].segment;
		message->input_offsets[i] = from->inputs[i].offset;
	}
}

static void put_fences(Zd__Sum *message, const struct zd_reduce_desc *from, struct zd_arena *arena)
{
	message->n_fence_timelines = message->n_fence_values = from->nfences;
	message->fence_timelines = zd_arena_alloc(arena, from->nfences * sizeof(*message->fence_timelines));
	message->fence_values = zd_arena_alloc(arena, from->nfences * sizeof(*message->fence_values));
	for (uint32_t i = 0; i < from->nfences; i++) {
		message->fence_timelines[i] = from->fences[i].timeline;
		message->fence_values[i] = from->fences[i].value;
	}
}

/* The lists of the message are allocated from the arena. */
static Zd__Sum sum_message(const struct zd_reduce_desc *from, uint32_t slot, struct zd_arena *arena)
{
	Zd__Sum message = ZD__SUM__INIT;

	message.input_dtype = from->input_dtype;
	message.target_dtype = from->target_dtype;
	message.numel = from->numel;
	message.target_segment = from->target.segment;
	message.target_offset = from->target.offset;
	message.prescale = from->prescale;
	message.postscale = from->postscale;
	message.overwrite = from->overwrite;
	message.slot = slot;
	put_inputs(&message, from, arena);
	put_fences(&message, from, arena);
	return message;
}

/* Returns the packed size. The room suffices for ZD_MAX_WORLD inputs of at most 15 bytes, and as many
 * fences. */
static size_t pack_sum(const struct zd_delegate_sum *sum, uint32_t slot, struct zd_arena *arena,
                       uint8_t *room, size_t room_bytes)
{
	Zd__Sum body = sum_message(&sum->command.u.reduce, slot, arena);
	Zd__Work message = ZD__WORK__INIT;

	message.id = sum->op;
	message.body_case = ZD__WORK__BODY_SUM;
	message.sum = &body;
	struct zd_envelope envelope = zd_envelope_work(&message);
	zd_assert(envelope.bytes <= room_bytes);
	zd_envelope_pack(&envelope, room);
	return envelope.bytes;
}

/* Sends a packet with a sum (NULL: none) and the number of announced segments. Returns 0, ZD_FRAME_AGAIN, or
 * an error. */
static int send_packet(struct zd_delegate *delegate, const struct zd_delegate_sum *sum, uint32_t slot,
                       struct zd_err *err)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];
	struct zd_arena *arena = &delegate->delegates->messages;
	Zd__WorkPacket packet = ZD__WORK_PACKET__INIT; /* everything but the sum */

	packet.retired = delegate->nretired > delegate->ntold ? delegate->nretired : 0;
	size_t nbytes = zd__work_packet__pack(&packet, bytes);
	if (sum)
		nbytes += pack_sum(sum, slot, arena, bytes + nbytes, sizeof(bytes) - nbytes);
	int rc = zd_channel_send(delegate->channel, bytes, nbytes, err);
	if (rc == 0)
		delegate->ntold = delegate->nretired;
	zd_arena_reset(arena);
	return rc;
}

static struct zd_delegate_sum *first_queued(const struct zd_delegate *delegate)
{
	struct zd_delegate_sum *sum;

	TAILQ_FOREACH (sum, &delegate->sums, link)
		if (sum->state == QUEUED)
			break;
	return sum;
}

/* Sends as many sums as the slots and the socket allow. */
static void send_all(struct zd_delegate *delegate)
{
	struct zd_delegate_sum *sum;
	struct zd_err err;
	int rc = 0;

	while (rc == 0 && delegate->free_slots && (sum = first_queued(delegate))) {
		uint32_t slot = (uint32_t)__builtin_ctzll(delegate->free_slots);

		rc = send_packet(delegate, sum, slot, &err);
		if (rc != 0)
			break;
		delegate->free_slots &= ~(1ull << slot);
		sum->slot = slot;
		zd_sm_move(&sum_sm, &sum->state, SENT);
	}
	if (rc == 0 && delegate->nretired > delegate->ntold)
		rc = send_packet(delegate, NULL, 0, &err);
	if (rc < 0)
		zd_conn_end(delegate->owner_session.conn, &err);
}

void zd_delegates_flush(void *arg)
{
	struct zd_delegates *delegates = arg;
	struct zd_delegate *delegate;

	while ((delegate = TAILQ_FIRST(&delegates->to_send))) {
		TAILQ_REMOVE(&delegates->to_send, delegate, dirty);
		delegate->to_send = false;
		if (zd_conn_is_open(delegate->owner_session.conn))
			send_all(delegate);
	}
}

/* ---- Answers ------------------------------------------------------------------------------------------- */

/* The values need no check beyond this: they affect only the client's own gradient. */
static void read_result(const struct zd_delegate_sum *sum, struct zd_op_result *result)
{
	const volatile struct zd_work_result *slot = &sum->delegate->page->slots[sum->slot];

	result->sum_squares = slot->sum_squares;
	result->overflow = slot->overflow != 0 || !isfinite(result->sum_squares);
}

static void sum_ended(struct zd_delegate_sum *sum)
{
	struct zd_op_result result = {.overflow = false};
	struct zd_engine *engine = sum->delegates->bridge->engine;
	uint64_t op = sum->op;

	read_result(sum, &result);
	sum_end(sum);
	zd_engine_op_done(engine, op, 0, NULL, &result);
}

static int take_fence(const Zd__WorkDone *done, struct zd_fence *fence, struct zd_err *err)
{
	if (!done->fence)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "work %" PRIu64 " was started without a fence",
		                  done->id);
	if (done->fence->timeline >= ZD_TIMELINES)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the fence of work %" PRIu64 ": timeline %u, the highest is %u", done->id,
		                  done->fence->timeline, ZD_TIMELINES - 1);
	if (done->fence->value == 0 || done->fence->value >= (uint64_t)ZD_FENCE_ABORTED)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "the fence of work %" PRIu64 ": value %" PRIu64 " is not in 1 .. 2^63-2",
		                  done->id, done->fence->value);
	*fence = (struct zd_fence){done->fence->timeline, done->fence->value};
	return 0;
}

/* A small sum has often ended already, and needs no WATCH. */
static void watch(struct zd_delegate *delegate, struct zd_delegate_sum *sum, struct zd_fence fence)
{
	struct zd_bridge *bridge = delegate->delegates->bridge;
	struct zd_command command = {.kind = ZD_CMD_WATCH, .op = sum->op, .device = sum->command.device};

	zd_sm_move(&sum_sm, &sum->state, LAUNCHED);
	delegate->nasked--;
	if (zd_bridge_fence_passed(bridge, delegate->session, fence)) {
		sum_ended(sum);
		return;
	}
	command.u.watch.session = delegate->session;
	command.u.watch.nfences = 1;
	command.u.watch.fences = &fence;
	zd_bridge_submit(bridge, &command);
}

/* The client has failed the sum. The backend can make it instead, unless the client has launched it and may
 * have changed the target. */
static void take_refusal(struct zd_delegate_sum *sum, const Zd__WorkDone *done)
{
	struct zd_err err;

	if (done->launched) {
		(void)zd_err_set(&err, done->status, "%s",
		                 done->error[0] ? done->error : zerod_status_name(done->status));
		fail_sum(sum, &err);
	} else {
		zd_bridge_submit(sum->delegates->bridge, &sum->command);
		sum_end(sum);
	}
}

static int take_answer(struct zd_delegate *delegate, const Zd__WorkDone *done, struct zd_err *err)
{
	struct zd_delegate_sum *sum;
	struct zd_fence fence;
	int rc = 0;

	HASH_FIND(hh, delegate->delegates->sums, &done->id, sizeof(done->id), sum);
	if (!sum || sum->delegate != delegate || sum->state == QUEUED)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "an answer to work %" PRIu64
		                  ", which the daemon has not sent to this session",
		                  done->id);
	if (sum->state == LAUNCHED)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "a second answer to work %" PRIu64, done->id);
	if (done->status > 0)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "work %" PRIu64 " has the status %d", done->id,
		                  done->status);
	if (done->status == 0)
		rc = take_fence(done, &fence, err);
	if (rc)
		return rc;
	if (done->status == 0)
		watch(delegate, sum, fence);
	else
		take_refusal(sum, done);
	if (delegate->nasked == 0)
		zd_engine_sums_launched(delegate->delegates->bridge->engine, delegate->session);
	return 0;
}

static void on_packet(void *arg, const uint8_t *bytes, size_t nbytes)
{
	struct zd_delegate *delegate = arg;
	struct zd_delegates *delegates = delegate->delegates;
	struct zd_conn *conn = delegate->owner_session.conn;
	Zd__WorkAnswers *answers = zd__work_answers__unpack(&delegates->messages.allocator, nbytes, bytes);
	struct zd_err err = ZD_ERR_NONE;
	int rc = 0;

	(void)zd_bridge_tick(delegates->bridge);
	if (!answers)
		rc = zd_err_set(&err, ZEROD_E_PROTOCOL,
		                "a packet of %zu bytes on the work channel that is not a valid WorkAnswers",
		                nbytes);
	for (size_t i = 0; !rc && i < answers->n_done && zd_conn_is_open(conn); i++)
		rc = take_answer(delegate, answers->done[i], &err);
	if (rc)
		zd_conn_refuse(conn, &err);
	zd_bridge_settle(delegates->bridge);
	zd_arena_reset(&delegates->messages);
}

static void on_writable(void *arg)
{
	mark_to_send(arg);
}

static void on_broken(void *arg, const struct zd_err *why)
{
	struct zd_delegate *delegate = arg;

	if (why->status == ZEROD_E_PROTOCOL || why->status == ZEROD_E_LIMIT)
		zd_conn_refuse(delegate->owner_session.conn, why);
	else
		zd_conn_end(delegate->owner_session.conn, why);
}

static const struct zd_channel_ops channel_ops = {
        .packet = on_packet, .writable = on_writable, .broken = on_broken};

/* ---- The end ------------------------------------------------------------------------------------------- */

void zd_delegates_completed(struct zd_delegates *delegates, struct zd_completion *completion)
{
	struct zd_delegate_sum *sum;

	HASH_FIND(hh, delegates->sums, &completion->op, sizeof(completion->op), sum);
	if (!sum)
		return;
	if (completion->status == 0 && sum->delegate)
		read_result(sum, &completion->result);
	else if (completion->status == 0)
		zd_completion_fail(completion, ZEROD_E_ABORTED, "the session has ended");
	sum_end(sum);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

int zd_delegate_open(struct zd_delegates *delegates, uint64_t session,
                     const struct zd_delegate_session *owner_session, struct zd_delegate **opened,
                     int *channel_fd, int *page_fd, struct zd_err *err)
{
	struct zd_delegate *delegate = zd_calloc(1, sizeof(*delegate));
	void *page;
	int fd, rc;

	*delegate = (struct zd_delegate){.delegates = delegates,
	                                 .session = session,
	                                 .owner_session = *owner_session,
	                                 .free_slots = UINT64_MAX};
	TAILQ_INIT(&delegate->sums);
	rc = zd_memfd_map("zerod-results", ZD_WORK_PAGE_BYTES, PROT_READ, 0, &page, &fd, err);
	if (rc)
		goto free_delegate;
	rc = zd_channel_new(owner_session->conns, zd_conn_creds(owner_session->conn)->uid, &channel_ops,
	                    delegate, &delegate->channel, channel_fd, err);
	if (rc)
		goto unmap;
	delegate->page = page;
	*page_fd = fd;
	HASH_ADD(hh, delegates->all, session, sizeof(delegate->session), delegate);
	*opened = delegate;
	return 0;
unmap:
	(void)munmap(page, ZD_WORK_PAGE_BYTES);
	(void)close(fd);
free_delegate:
	free(delegate);
	return rc;
}

void zd_delegate_use_rings(struct zd_delegate *delegate, struct zd_ring *to_client, struct zd_ring *answers)
{
	zd_channel_use_rings(delegate->channel, to_client, answers);
}

/* A LAUNCHED sum has a WATCH already. */
static void await_end(struct zd_delegate *delegate, struct zd_delegate_sum *sum)
{
	struct zd_command command = {.kind = ZD_CMD_WATCH, .op = sum->op, .device = sum->command.device};

	if (sum->state != LAUNCHED) {
		command.u.watch.session = delegate->session;
		command.u.watch.until_gone = true;
		zd_bridge_submit(delegate->delegates->bridge, &command);
	}
	leave_session(sum);
}

void zd_delegate_close(struct zd_delegate *delegate)
{
	struct zd_delegate_sum *sum;

	if (!delegate)
		return;
	while ((sum = TAILQ_FIRST(&delegate->sums)))
		await_end(delegate, sum);
	if (delegate->to_send)
		TAILQ_REMOVE(&delegate->delegates->to_send, delegate, dirty);
	HASH_DEL(delegate->delegates->all, delegate);
	zd_channel_close(delegate->channel);
	zd_memfd_drop((void *)delegate->page, ZD_WORK_PAGE_BYTES);
	free(delegate);
}

void zd_delegates_init(struct zd_delegates *delegates, struct zd_bridge *bridge)
{
	*delegates = (struct zd_delegates){.bridge = bridge};
	TAILQ_INIT(&delegates->to_send);
	zd_arena_init(&delegates->messages, MESSAGE_BYTES);
}

void zd_delegates_deinit(struct zd_delegates *delegates)
{
	struct zd_delegate_sum *sum = delegates->sums, *next;

	HASH_CLEAR(hh, delegates->sums); /* the elements remain linked */
	for (; sum; sum = next) {
		next = sum->hh.next;
		sum_free(sum);
	}
	zd_arena_deinit(&delegates->messages);
}
