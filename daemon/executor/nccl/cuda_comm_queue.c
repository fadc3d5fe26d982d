/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_comm_queue.c - the order in which a device launches the operations of its communicators. */
#include "executor/nccl/cuda_comm_queue.h"

#include <inttypes.h>
#include <string.h>

void zd_cuda_comm_queue_init(struct zd_cuda_comm_queue *queue, const struct zd_cuda_comm_home *home)
{
	*queue = (struct zd_cuda_comm_queue){.home = *home, .room = zd_cuda_comm_room(home->device)};
	LIST_INIT(&queue->comms);
	STAILQ_INIT(&queue->waiting);
	STAILQ_INIT(&queue->ended);
}

void zd_cuda_comm_queue_deinit(struct zd_cuda_comm_queue *queue)
{
	zd_assert(LIST_EMPTY(&queue->comms) && STAILQ_EMPTY(&queue->ended));
}

bool zd_cuda_comm_queue_is_full(const struct zd_cuda_comm_queue *queue)
{
	struct zd_cuda_comm *comm;
	uint32_t count = 0;
	LIST_FOREACH (comm, &queue->comms, link)
		count += !zd_cuda_comm_has_parted(comm);
	return count >= queue->room;
}

int zd_cuda_comm_queue_add(struct zd_cuda_comm_queue *queue, const struct zd_cuda_comm_config *config,
                           struct zd_cuda_comm **comm, struct zd_err *err)
{
	struct zd_cuda_comm *made;
	if (zd_cuda_comm_queue_is_full(queue))
		return zd_err_set(err, ZEROD_E_LIMIT,
		                  "group '%s': %s has room for the kernels of %" PRIu32
		                  " communicators at once, and all are in use",
		                  config->group, queue->home.device->name, queue->room);
	int rc = zd_cuda_comm_new(&queue->home, config, &made, err);
	if (rc)
		return rc;
	LIST_INSERT_HEAD(&queue->comms, made, link);
	*comm = made;
	return 0;
}

void zd_cuda_comm_queue_remove(struct zd_cuda_comm_queue *queue, struct zd_cuda_comm *comm)
{
	const struct zd_cuda_comm_op *op;
	STAILQ_FOREACH(op, &queue->ended, next)
	zd_assert(op->comm != comm);
	LIST_REMOVE(comm, link);
	zd_cuda_comm_free(comm);
}

/* ---- Queueing and results ------------------------------------------------------------------------------ */

int zd_cuda_comm_queue_give(struct zd_cuda_comm_queue *queue, struct zd_cuda_comm *comm,
                            struct zd_cuda_comm_op *op, struct zd_err *err)
{
	int rc = zd_cuda_comm_call_check(&op->call, comm->self.nranks, err);
	if (rc)
		return rc;
	if (op->call.numel > 0 && op->call.kind != ZD_CUDA_COMM_AGREE && (!op->send || !op->receive))
		return zd_err_set(err, ZEROD_E_INVALID, "group '%s': an operation without memory",
		                  comm->self.group);
	if (comm->state == ZD_CUDA_COMM_FAILED || comm->state == ZD_CUDA_COMM_ABORTED)
		return zd_err_set(err, comm->failure.status, "%s", comm->failure.text);
	if (!zd_cuda_comm_lives(comm))
		return zd_err_set(err, ZEROD_E_STATE, "group '%s': its communicator is %s", comm->self.group,
		                  zd_cuda_comm_state_name(comm));
	op->err = (struct zd_err)ZD_ERR_NONE;
	op->comm = comm;
	op->phase = ZD_CUDA_COMM_WAITING;
	op->entered = false;
	op->number = ++comm->given;
	comm->nops++;
	STAILQ_INSERT_TAIL(&queue->waiting, op, next);
	return 0;
}

static uint64_t part_bytes(const struct zd_cuda_comm_op *op)
{
	return op->call.numel * zerod_dtype_bytes(op->call.dtype);
}

static void end_op(struct zd_cuda_comm_queue *queue, struct zd_cuda_comm_op *op, const struct zd_err *err)
{
	struct zd_cuda_comm *comm = op->comm;
	if (comm->agrees == op) {
		if (err->status == 0)
			memcpy(op->values, comm->values, comm->self.nranks * part_bytes(op));
		comm->agrees = NULL;
	}
	if (op->entered)
		zd_cuda_gate_leave(&queue->home.local_ranks->gate);
	op->err = *err;
	op->comm->nops--;
	STAILQ_INSERT_TAIL(&queue->ended, op, next);
}

struct zd_cuda_comm_op *zd_cuda_comm_queue_take(struct zd_cuda_comm_queue *queue)
{
	struct zd_cuda_comm_op *op = STAILQ_FIRST(&queue->ended);
	if (op)
		STAILQ_REMOVE_HEAD(&queue->ended, next);
	return op;
}

/* ---- Failing ------------------------------------------------------------------------------------------- */

static void fail_call(const struct zd_cuda_comm_op *op, int result)
{
	struct zd_cuda_comm *comm = op->comm;
	char text[ZD_CUDA_COMM_TEXT];
	struct zd_err err;
	if (zd_nccl_err(comm->home.nccl, result, &err, "group '%s': rank %" PRIu32 "'s %s", comm->self.group,
	                zd_cuda_comm_world_rank(&comm->self, comm->self.rank),
	                zd_cuda_comm_call_text(&op->call, op->number, text)))
		zd_cuda_comm_fail(comm, &err);
}

/* Ends waiting operations of communicators that have failed. NCCL can have launched a part of an operation
 * that is LAUNCHING. That operation therefore counts as in flight and ends when its communicator has
 * ended. */
static void drop_waiting(struct zd_cuda_comm_queue *queue)
{
	struct zd_cuda_comm_ops stay = STAILQ_HEAD_INITIALIZER(stay);
	struct zd_cuda_comm_op *op;
	while ((op = STAILQ_FIRST(&queue->waiting))) {
		STAILQ_REMOVE_HEAD(&queue->waiting, next);
		if (zd_cuda_comm_lives(op->comm))
			STAILQ_INSERT_TAIL(&stay, op, next);
		else if (op->phase == ZD_CUDA_COMM_LAUNCHING)
			STAILQ_INSERT_TAIL(&op->comm->inflight, op, next);
		else
			end_op(queue, op, &op->comm->failure);
	}
	STAILQ_CONCAT(&queue->waiting, &stay);
}

/* The communicator's first operation that has not been launched. */
static struct zd_cuda_comm_op *first_of(const struct zd_cuda_comm_queue *queue,
                                        const struct zd_cuda_comm *comm)
{
	struct zd_cuda_comm_op *op;
	STAILQ_FOREACH(op, &queue->waiting, next)
	{
		if (op->comm == comm)
			break;
	}
	return op;
}

/* ---- Deadlines ----------------------------------------------------------------------------------------- */

struct missing {
	const struct zd_cuda_comm_description *described;
	uint64_t number;
};

static bool is_missing(const void *arg, uint32_t rank)
{
	const struct missing *missing = arg;
	return !zd_cuda_comm_is_described(&missing->described[rank], missing->number);
}

/* "ranks 1 and 3": the ranks whose descriptions have not arrived, for an operation that is COMPARING. "":
 * none. */
static const char *missing_ranks(const struct zd_cuda_comm_op *op, char text[ZD_CUDA_COMM_RANKS_TEXT])
{
	const struct missing missing = {op->comm->described, op->number};
	return zd_cuda_comm_ranks_text(&op->comm->self, is_missing, &missing, text);
}

/* Describes, as far as the daemon knows, why the operation has not ended. */
static void reason(const struct zd_cuda_comm_queue *queue, const struct zd_cuda_comm_op *op,
                   struct zd_err *why)
{
	const struct zd_cuda_comm_op *first = first_of(queue, op->comm);
	char text[ZD_CUDA_COMM_RANKS_TEXT];
	if (op->phase == ZD_CUDA_COMM_WAITING && op != first)
		zd_err_format(why, ZEROD_E_DEADLINE, "waits for the launch of its %s",
		              zd_cuda_comm_call_text(&first->call, first->number, text));
	else if (op->phase == ZD_CUDA_COMM_WAITING && op->comm->state == ZD_CUDA_COMM_CONNECTING)
		zd_err_format(why, ZEROD_E_DEADLINE, "waits for the ranks of its group to connect");
	else if (op->phase == ZD_CUDA_COMM_WAITING)
		zd_err_format(why, ZEROD_E_DEADLINE, "waits for operations that were launched before it");
	else if (op->phase == ZD_CUDA_COMM_COMPARING && *missing_ranks(op, text))
		zd_err_format(why, ZEROD_E_DEADLINE, "waits for word of %s", text);
	else
		zd_err_format(why, ZEROD_E_DEADLINE, "runs, and a rank has not launched it, or is late");
}

static void expire(const struct zd_cuda_comm_queue *queue, struct zd_cuda_comm_op *op, uint64_t now_ns)
{
	char text[ZD_CUDA_COMM_TEXT];
	struct zd_err why;
	if (op->deadline_ns == 0 && op->patience_ns && op->phase != ZD_CUDA_COMM_WAITING)
		op->deadline_ns = now_ns + op->patience_ns;
	if (op->deadline_ns == 0 || now_ns < op->deadline_ns || !zd_cuda_comm_lives(op->comm))
		return;
	reason(queue, op, &why);
	zd_err_format(&why, ZEROD_E_DEADLINE, "group '%s': at its deadline rank %" PRIu32 "'s %s %s",
	              op->comm->self.group, zd_cuda_comm_world_rank(&op->comm->self, op->comm->self.rank),
	              zd_cuda_comm_call_text(&op->call, op->number, text), why.text);
	zd_cuda_comm_fail(op->comm, &why);
}

static void expire_all(const struct zd_cuda_comm_queue *queue, uint64_t now_ns)
{
	const struct zd_cuda_comm *comm;
	struct zd_cuda_comm_op *op;
	LIST_FOREACH (comm, &queue->comms, link) {
		STAILQ_FOREACH(op, &comm->inflight, next)
		expire(queue, op, now_ns);
	}
	STAILQ_FOREACH(op, &queue->waiting, next)
	expire(queue, op, now_ns);
}

/* ---- Completion ---------------------------------------------------------------------------------------- */

/* Progress counts only while NCCL reports no error, and is read before NCCL's state. When NCCL aborts a
 * communicator, its kernels end early, and the store after them is executed nevertheless. */
static void land_ready(struct zd_cuda_comm_queue *queue, struct zd_cuda_comm *comm)
{
	const struct zd_err none = ZD_ERR_NONE;
	struct zd_cuda_comm_op *op = STAILQ_FIRST(&comm->inflight);
	uint64_t progress = zd_cuda_comm_progress(comm);
	int result = zd_cuda_comm_query(comm);
	if (result == ZD_NCCL_IN_PROGRESS)
		return;
	if (result) {
		fail_call(op, result);
		return;
	}
	for (; op && zd_fence_reached(progress, op->progress); op = STAILQ_FIRST(&comm->inflight)) {
		STAILQ_REMOVE_HEAD(&comm->inflight, next);
		end_op(queue, op, &none);
	}
}

static void reap_completed(struct zd_cuda_comm_queue *queue, struct zd_cuda_comm *comm)
{
	struct zd_cuda_comm_op *op;
	if (STAILQ_EMPTY(&comm->inflight))
		return;
	if (comm->state == ZD_CUDA_COMM_READY) {
		land_ready(queue, comm);
		return;
	}
	while (zd_cuda_comm_is_over(comm) && (op = STAILQ_FIRST(&comm->inflight))) {
		STAILQ_REMOVE_HEAD(&comm->inflight, next);
		end_op(queue, op, &comm->failure);
	}
}

/* ---- Launching ----------------------------------------------------------------------------------------- */

static int type_of(enum zerod_dtype dtype)
{
	if (dtype == ZEROD_FLOAT32)
		return ZD_NCCL_FLOAT32;
	return dtype == ZEROD_FLOAT16 ? ZD_NCCL_FLOAT16 : ZD_NCCL_BFLOAT16;
}

/* Sends each rank's block to that rank. The NCCL group has to be ended even after a failure. */
static int all_to_all(const struct zd_cuda_comm_op *op, uint64_t bytes)
{
	const struct zd_nccl *nccl = op->comm->home.nccl;
	struct ncclComm *handle = op->comm->handle;
	struct CUstream_st *stream = op->comm->stream;
	bool apart = op->call.kind == ZD_CUDA_COMM_EXCHANGE;
	uint64_t send_stride = apart ? op->call.send_stride : bytes;
	uint64_t receive_stride = apart ? op->call.receive_stride : bytes;
	int result = nccl->groupStart(), ended;
	if (result)
		return result;
	for (uint32_t peer = 0; peer < op->comm->self.nranks && !result; peer++) {
		if (apart && peer == op->comm->self.rank)
			continue;
		result = nccl->send(op->send + peer * send_stride, bytes, ZD_NCCL_INT8, (int)peer, handle,
		                    stream);
		if (!result)
			result = nccl->receive(op->receive + peer * receive_stride, bytes, ZD_NCCL_INT8,
			                       (int)peer, handle, stream);
	}
	ended = nccl->groupEnd();
	return result ? result : ended;
}

/* Runs in pinned memory, which has room for one agreement of the communicator at a time. */
static int launch_agree(struct zd_cuda_comm_op *op, uint64_t bytes)
{
	struct zd_cuda_comm *comm = op->comm;
	uint64_t own = comm->self.rank * bytes;
	zd_assert(!comm->agrees);
	comm->agrees = op;
	memcpy(comm->values + own, op->value, bytes);
	return comm->home.nccl->allGather(comm->values_at + own, comm->values_at, bytes, ZD_NCCL_INT8,
	                                  comm->handle, comm->stream);
}

/* Operations that only move data use bytes for every dtype: NCCL then copies the widest possible vectors. */
static int launch_call(struct zd_cuda_comm_op *op)
{
	const struct zd_nccl *nccl = op->comm->home.nccl;
	struct ncclComm *handle = op->comm->handle;
	struct CUstream_st *stream = op->comm->stream;
	uint64_t bytes = part_bytes(op);
	int type = type_of(op->call.dtype);
	switch (op->call.kind) {
	case ZD_CUDA_COMM_ALL_GATHER:
		return nccl->allGather(op->send, op->receive, bytes, ZD_NCCL_INT8, handle, stream);
	case ZD_CUDA_COMM_REDUCE_SCATTER:
		return nccl->reduceScatter(op->send, op->receive, op->call.numel, type, ZD_NCCL_SUM, handle,
		                           stream);
	case ZD_CUDA_COMM_ALL_REDUCE:
		return nccl->allReduce(op->send, op->receive, op->call.numel, type, ZD_NCCL_SUM, handle,
		                       stream);
	case ZD_CUDA_COMM_BROADCAST:
		return nccl->broadcast(op->send, op->receive, bytes, ZD_NCCL_INT8, (int)op->call.root, handle,
		                       stream);
	case ZD_CUDA_COMM_AGREE:
		return launch_agree(op, bytes);
	case ZD_CUDA_COMM_ALL_TO_ALL:
	case ZD_CUDA_COMM_EXCHANGE:
		break;
	}
	return all_to_all(op, bytes);
}

/* The previous descriptions must have been compared: the memory is reused. */
static int launch_description(const struct zd_cuda_comm_op *op)
{
	struct zd_cuda_comm *comm = op->comm;
	uint64_t bytes = sizeof(*comm->described);
	memset(comm->described, 0, comm->self.nranks * bytes);
	zd_cuda_comm_describe(&op->call, op->number, comm->self.group, &comm->described[comm->self.rank]);
	return comm->home.nccl->allGather(comm->described_at + comm->self.rank * bytes, comm->described_at,
	                                  bytes, ZD_NCCL_INT8, comm->handle, comm->stream);
}

/* Handles NCCL's result of a launch. When the operation is on the stream, a store of progress is enqueued
 * after it. */
static void launched(struct zd_cuda_comm_op *op, int result)
{
	struct zd_err err;
	if (result == ZD_NCCL_IN_PROGRESS)
		return;
	if (result)
		fail_call(op, result);
	else if (zd_cuda_comm_mark(op->comm, &op->progress, &err))
		zd_cuda_comm_fail(op->comm, &err);
	else
		op->phase = op->phase == ZD_CUDA_COMM_DESCRIBING ? ZD_CUDA_COMM_COMPARING
		                                                 : ZD_CUDA_COMM_FLYING;
}

static void launch_op(struct zd_cuda_comm_op *op)
{
	op->phase = ZD_CUDA_COMM_LAUNCHING;
	launched(op, launch_call(op));
}

static void compare_descriptions(struct zd_cuda_comm_queue *queue, struct zd_cuda_comm_op *op)
{
	struct zd_cuda_comm *comm = op->comm;
	struct zd_err err;
	bool reached = zd_fence_reached(zd_cuda_comm_progress(comm), op->progress);
	int result = zd_cuda_comm_query(comm);
	if (result && result != ZD_NCCL_IN_PROGRESS)
		fail_call(op, result);
	if (result || !reached)
		return;
	reap_completed(queue, comm); /* all operations in flight were launched before this one */
	if (!zd_cuda_comm_lives(comm))
		return;
	if (zd_cuda_comm_compare(comm->described, &comm->self, &err))
		zd_cuda_comm_part(comm, &err);
	else
		launch_op(op);
}

/* Advances the operation by one phase. Returns false if it cannot advance now. */
static bool step_op(struct zd_cuda_comm_queue *queue, struct zd_cuda_comm_op *op)
{
	enum zd_cuda_comm_phase before = op->phase;
	switch (op->phase) {
	case ZD_CUDA_COMM_WAITING:
		if (op->comm->state != ZD_CUDA_COMM_READY ||
		    (op->call.kind == ZD_CUDA_COMM_AGREE && op->comm->agrees) ||
		    !zd_cuda_gate_enter(&queue->home.local_ranks->gate))
			return false;
		op->entered = true;
		if (!op->comm->checking) {
			launch_op(op);
			break;
		}
		op->phase = ZD_CUDA_COMM_DESCRIBING;
		launched(op, launch_description(op));
		break;
	case ZD_CUDA_COMM_DESCRIBING:
	case ZD_CUDA_COMM_LAUNCHING:
		launched(op, zd_cuda_comm_query(op->comm));
		break;
	case ZD_CUDA_COMM_COMPARING:
		compare_descriptions(queue, op);
		break;
	case ZD_CUDA_COMM_FLYING:
		return false;
	}
	return op->phase != before && zd_cuda_comm_lives(op->comm);
}

/* Communicators do not wait for each other, because the GPU has room for the kernels of all of them. */
static void advance(struct zd_cuda_comm_queue *queue)
{
	struct zd_cuda_comm_op *next;
	for (struct zd_cuda_comm_op *op = STAILQ_FIRST(&queue->waiting); op; op = next) {
		next = STAILQ_NEXT(op, next);
		if (op != first_of(queue, op->comm))
			continue;
		while (op->phase != ZD_CUDA_COMM_FLYING && step_op(queue, op))
			;
		if (op->phase != ZD_CUDA_COMM_FLYING)
			continue;
		STAILQ_REMOVE(&queue->waiting, op, zd_cuda_comm_op, next);
		STAILQ_INSERT_TAIL(&op->comm->inflight, op, next);
	}
}

/* ---- Polling ------------------------------------------------------------------------------------------- */

static void fail_with_device(struct zd_cuda_comm_queue *queue)
{
	struct zd_cuda_comm *comm;
	struct zd_err err;
	if (!zd_cuda_device_failed(queue->home.device))
		return;
	(void)zd_cuda_device_failure(queue->home.device, &err);
	LIST_FOREACH (comm, &queue->comms, link)
		zd_cuda_comm_fail(comm, &err);
}

static bool is_under_way(struct zd_cuda_comm *comm)
{
	if (comm->state == ZD_CUDA_COMM_READY)
		return comm->nops > 0;
	return comm->nops > 0 || !zd_cuda_comm_is_over(comm);
}

bool zd_cuda_comm_queue_poll(struct zd_cuda_comm_queue *queue, uint64_t now_ns)
{
	struct zd_cuda_comm *comm;
	bool under_way = false;
	LIST_FOREACH (comm, &queue->comms, link) {
		zd_cuda_comm_poll(comm, now_ns);
		reap_completed(queue, comm);
	}
	fail_with_device(queue);
	expire_all(queue, now_ns);
	drop_waiting(queue);
	advance(queue);
	drop_waiting(queue);
	LIST_FOREACH (comm, &queue->comms, link)
		under_way |= is_under_way(comm);
	return under_way;
}

void zd_cuda_comm_queue_check(struct zd_cuda_comm_queue *queue)
{
	const struct zd_cuda_comm *comm;
	LIST_FOREACH (comm, &queue->comms, link) {
		if (comm->state == ZD_CUDA_COMM_READY && comm->nops > 0)
			zd_cuda_device_check(queue->home.device, comm->stream);
	}
}
