/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_comm_tasks.c - the commands of a device's communicators. */
#include "executor/nccl/cuda_comm_tasks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "executor/thread.h"

#define IDS_NS 3600000000000ull /* for the ranks to connect, without a configured limit */

_Static_assert((unsigned)ZD_NCOMM_ROLES == ZD_CUDA_COMM_QUEUES, "a queue for each role");
_Static_assert(ZD_UNIQUE_ID_BYTES == sizeof(struct zd_nccl_id), "ids are NCCL's");

/* A communicator from its opening until it is freed. */
struct zd_cuda_open_comm {
	LIST_ENTRY(zd_cuda_open_comm) link;
	uint64_t id; /* the core's number */
	struct zd_cuda_comm_queue *queue;
	struct zd_cuda_comm *comm;
	struct zd_cuda_task *opening; /* NULL: the opening has completed */
	struct zd_cuda_tasks closing; /* COMM_CLOSE tasks that complete when it is freed */
	bool ends;                    /* to be closed when its operations have ended */
	uint64_t deadline_ns;         /* for closing in order; 0: none */
	bool told;                    /* the waiters of its exchanges have been aborted */
	bool unneeded;                /* its opening has failed: it is freed without a COMM_CLOSE */
};

/* An opening that waits until communicators that are ending have made room. */
struct zd_cuda_waiting_comm {
	STAILQ_ENTRY(zd_cuda_waiting_comm) next;
	struct zd_cuda_task *opening;
	uint64_t deadline_ns; /* for room and for all ranks to connect; 0: none */
};

void zd_cuda_comms_init(struct zd_cuda_comms *comms, struct zd_cuda_device *device,
                        const struct zd_cuda_comm_settings *settings)
{
	*comms = (struct zd_cuda_comms){.settings = settings, .device = device};
	LIST_INIT(&comms->open);
	STAILQ_INIT(&comms->waiting);
	zd_cuda_ids_init(&comms->makers, settings->local_ranks);
	TAILQ_INIT(&comms->under_way);
}

void zd_cuda_comms_deinit(struct zd_cuda_comms *comms)
{
	zd_assert(LIST_EMPTY(&comms->open) && TAILQ_EMPTY(&comms->under_way) &&
	          STAILQ_EMPTY(&comms->waiting));
	for (int i = 0; i < ZD_NCOMM_ROLES && comms->nccl; i++)
		zd_cuda_comm_queue_deinit(&comms->queues[i]);
	comms->nccl = NULL;
	zd_cuda_ids_deinit(&comms->makers);
}

/* ---- Ends of tasks ------------------------------------------------------------------------------------- */

static bool has_place(const struct zd_cuda_task *task)
{
	return zd_cuda_task_is_collective(task) && task->session;
}

static void tell_waiters(const struct zd_cuda_task *task)
{
	struct zd_backend_session *session = &task->session->base;
	if (task->completion.status != 0)
		zd_backend_session_set(session, task->base.timeline, ZD_FENCE_ABORTED);
	else if (task->base.kind == ZD_CMD_SIGNAL)
		zd_backend_session_set(session, task->base.timeline, task->base.value);
	else
		zd_backend_session_signal(session, task->base.timeline, task->base.value);
}

static void complete_task(struct zd_cuda_comms *comms, struct zd_cuda_task *task)
{
	struct zd_completion completion = task->completion;
	if (has_place(task))
		TAILQ_REMOVE(&comms->under_way, task->u.collective, under_way);
	if (task->session)
		tell_waiters(task);
	zd_cuda_task_free(task);
	comms->ended++;
	if (completion.op)
		comms->settings->done(comms->settings->done_arg, &completion);
	else
		zd_completion_deinit(&completion);
}

/* Completes the timeline's ended exchanges, up to the first that has not ended. */
static void complete_in_order(struct zd_cuda_comms *comms, const struct zd_cuda_session *session,
                              uint32_t timeline)
{
	struct zd_cuda_collective *collective, *next;
	for (collective = TAILQ_FIRST(&comms->under_way); collective; collective = next) {
		struct zd_cuda_task *task = collective->task;
		next = TAILQ_NEXT(collective, under_way);
		if (task->session != session || task->base.timeline != timeline)
			continue;
		if (!collective->ended)
			return;
		complete_task(comms, task);
	}
}

/* Removes the task from its timeline. It will not store into the timeline any more, and the tasks after it
 * need not wait for it. */
static void leave_timeline(struct zd_cuda_comms *comms, struct zd_cuda_task *task)
{
	struct zd_cuda_session *session = task->session;
	TAILQ_REMOVE(&comms->under_way, task->u.collective, under_way);
	task->session = NULL;
	complete_in_order(comms, session, task->base.timeline);
	zd_backend_session_unref(&session->base);
}

static void abort_waiters(struct zd_cuda_comms *comms, struct zd_cuda_task *task)
{
	if (!has_place(task))
		return;
	zd_backend_session_set(&task->session->base, task->base.timeline, ZD_FENCE_ABORTED);
	leave_timeline(comms, task);
}

/* An internal deadline expired, not one of the caller: another rank did not respond. */
static int status_of(const struct zd_err *why)
{
	return why->status == ZEROD_E_DEADLINE ? ZEROD_E_PEER_LOST : why->status;
}

static void fail_task(struct zd_cuda_comms *comms, struct zd_cuda_task *task, const struct zd_err *why)
{
	struct zd_op_result *result = &task->completion.result;
	zd_completion_fail(&task->completion, status_of(why), why->text);
	free(result->values);
	result->values = NULL;
	result->values_bytes = 0;
	abort_waiters(comms, task);
	complete_task(comms, task);
}

static void end_collective(struct zd_cuda_comms *comms, struct zd_cuda_task *task)
{
	task->u.collective->ended = true;
	if (has_place(task))
		complete_in_order(comms, task->session, task->base.timeline);
	else
		complete_task(comms, task);
}

void zd_cuda_comms_refuse(struct zd_cuda_comms *comms, struct zd_cuda_task *task, const struct zd_err *why)
{
	if (has_place(task))
		TAILQ_INSERT_TAIL(&comms->under_way, task->u.collective, under_way);
	fail_task(comms, task, why);
}

/* ---- NCCL, and ids for it ------------------------------------------------------------------------------ */

static int need_nccl(struct zd_cuda_comms *comms, struct zd_err *err)
{
	const char *path = comms->settings->nccl_path;
	struct zd_cuda_comm_home home = {.device = comms->device,
	                                 .local_ranks = comms->settings->local_ranks};
	if (comms->nccl)
		return 0;
	int rc = zd_nccl_load(path && *path ? path : NULL, &home.nccl, err);
	if (rc)
		return rc;
	for (int i = 0; i < ZD_NCOMM_ROLES; i++)
		zd_cuda_comm_queue_init(&comms->queues[i], &home);
	comms->nccl = home.nccl;
	return 0;
}

static uint64_t deadline(const struct zd_cuda_comms *comms)
{
	uint64_t timeout_ns = comms->settings->timeout_ns;
	return timeout_ns ? zd_thread_now_ns() + timeout_ns : 0;
}

/* On success the task completes when the ids are made. */
static int make_ids(struct zd_cuda_comms *comms, struct zd_cuda_task *task, struct zd_err *err)
{
	const char *path = comms->settings->nccl_path;
	uint64_t until_ns = deadline(comms);
	if (!until_ns)
		until_ns = zd_thread_now_ns() + IDS_NS;
	return zd_cuda_ids_start(&comms->makers, path && *path ? path : NULL, task->u.ids.uid,
	                         task->u.ids.count, until_ns, task, err);
}

static void tell_made(struct zd_cuda_comms *comms, struct zd_cuda_ids *made)
{
	struct zd_cuda_task *task = made->arg;
	made->arg = NULL;
	if (made->err.status) {
		fail_task(comms, task, &made->err);
		return;
	}
	unsigned char *bytes = zd_calloc(made->count, ZD_UNIQUE_ID_BYTES);
	for (uint32_t i = 0; i < made->count; i++)
		memcpy(bytes + (size_t)i * ZD_UNIQUE_ID_BYTES, &made->ids[i].id, ZD_UNIQUE_ID_BYTES);
	task->completion.result.values = bytes;
	task->completion.result.values_bytes = made->count * ZD_UNIQUE_ID_BYTES;
	complete_task(comms, task);
}

/* Returns whether ids are being made. */
static bool poll_ids(struct zd_cuda_comms *comms, uint64_t now_ns)
{
	bool under_way = zd_cuda_ids_poll(&comms->makers, now_ns);
	struct zd_cuda_ids *made;
	while ((made = zd_cuda_ids_take(&comms->makers)))
		tell_made(comms, made);
	return under_way;
}

/* ---- Opening and closing ------------------------------------------------------------------------------- */

static struct zd_cuda_open_comm *find_open_comm(const struct zd_cuda_comms *comms, uint64_t id)
{
	struct zd_cuda_open_comm *open;
	LIST_FOREACH (open, &comms->open, link) {
		if (open->id == id)
			break;
	}
	return open;
}

/* Returns whether a communicator of the queue is ending, and so will make room. */
static bool room_comes(const struct zd_cuda_comms *comms, const struct zd_cuda_comm_queue *queue)
{
	const struct zd_cuda_open_comm *open;
	LIST_FOREACH (open, &comms->open, link) {
		if (open->queue == queue && (open->ends || !zd_cuda_comm_lives(open->comm)))
			return true;
	}
	return false;
}

/* On success the task completes when all ranks have connected. */
static int open_task_comm(struct zd_cuda_comms *comms, struct zd_cuda_task *task, uint64_t deadline_ns,
                          struct zd_err *err)
{
	const struct zd_comm_desc *desc = task->u.comm_open;
	struct zd_cuda_comm_config config = {
	        .group = desc->group,
	        .nranks = desc->nranks,
	        .rank = desc->rank,
	        .world = desc->world,
	        .checking = comms->settings->checking,
	        .deadline_ns = deadline_ns,
	};
	struct zd_cuda_comm *comm;
	zd_assert(!find_open_comm(comms, desc->comm));
	memcpy(&config.id, desc->id, sizeof(config.id));
	if (zd_cuda_device_failed(comms->device))
		return zd_cuda_device_failure(comms->device, err);
	int rc = zd_cuda_comm_queue_add(&comms->queues[desc->role], &config, &comm, err);
	if (rc)
		return rc;
	struct zd_cuda_open_comm *open = zd_calloc(1, sizeof(*open));
	open->id = desc->comm;
	open->queue = &comms->queues[desc->role];
	open->comm = comm;
	open->opening = task;
	STAILQ_INIT(&open->closing);
	LIST_INSERT_HEAD(&comms->open, open, link);
	return 0;
}

static void wait_for_room(struct zd_cuda_comms *comms, struct zd_cuda_task *task, uint64_t deadline_ns)
{
	struct zd_cuda_waiting_comm *waiting = zd_calloc(1, sizeof(*waiting));
	waiting->opening = task;
	zd_cuda_comm_local_ranks_wait(comms->settings->local_ranks, task->u.comm_open->id);
	waiting->deadline_ns = deadline_ns;
	STAILQ_INSERT_TAIL(&comms->waiting, waiting, next);
}

static void stop_waiting(struct zd_cuda_comms *comms, struct zd_cuda_waiting_comm *waiting)
{
	STAILQ_REMOVE(&comms->waiting, waiting, zd_cuda_waiting_comm, next);
	free(waiting);
}

static bool must_wait(const struct zd_cuda_comms *comms, const struct zd_cuda_task *task)
{
	const struct zd_cuda_comm_queue *queue = &comms->queues[task->u.comm_open->role];
	return zd_cuda_comm_queue_is_full(queue) && room_comes(comms, queue);
}

/* Returns whether an opening of the same role waits already: openings are served in order. */
static bool others_wait(const struct zd_cuda_comms *comms, const struct zd_cuda_task *task)
{
	const struct zd_cuda_waiting_comm *waiting;
	STAILQ_FOREACH(waiting, &comms->waiting, next)
	{
		if (waiting->opening->u.comm_open->role == task->u.comm_open->role)
			return true;
	}
	return false;
}

/* Opens the communicator now, or queues the opening until the queue has room. */
static int begin_opening(struct zd_cuda_comms *comms, struct zd_cuda_task *task, struct zd_err *err)
{
	int rc = need_nccl(comms, err);
	zd_assert(task->u.comm_open->role < ZD_NCOMM_ROLES);
	if (rc)
		return rc;
	if (!must_wait(comms, task) && !others_wait(comms, task))
		return open_task_comm(comms, task, deadline(comms), err);
	wait_for_room(comms, task, deadline(comms));
	return 0;
}

/* Fails an opening that waits for room. */
static void give_up_opening(struct zd_cuda_comms *comms, struct zd_cuda_waiting_comm *waiting, int status,
                            const char *why)
{
	struct zd_cuda_task *task = waiting->opening;
	struct zd_err err;
	zd_err_format(&err, status, "group '%s': %s", task->u.comm_open->group, why);
	stop_waiting(comms, waiting);
	fail_task(comms, task, &err);
}

static void retry_openings(struct zd_cuda_comms *comms, uint64_t now_ns)
{
	struct zd_cuda_waiting_comm *waiting, *next;
	for (waiting = STAILQ_FIRST(&comms->waiting); waiting; waiting = next) {
		struct zd_cuda_task *task = waiting->opening;
		uint64_t deadline_ns = waiting->deadline_ns;
		struct zd_err err = ZD_ERR_NONE;
		next = STAILQ_NEXT(waiting, next);
		if (deadline_ns && now_ns >= deadline_ns) {
			give_up_opening(comms, waiting, ZEROD_E_DEADLINE,
			                "earlier communicators have not ended in time");
			continue;
		}
		if (must_wait(comms, task))
			continue;
		stop_waiting(comms, waiting);
		if (open_task_comm(comms, task, deadline_ns, &err))
			fail_task(comms, task, &err);
	}
}

static struct zd_cuda_waiting_comm *find_waiting(const struct zd_cuda_comms *comms, uint64_t id)
{
	struct zd_cuda_waiting_comm *waiting;
	STAILQ_FOREACH(waiting, &comms->waiting, next)
	{
		if (waiting->opening->u.comm_open->comm == id)
			break;
	}
	return waiting;
}

/* The task completes when the communicator has been freed, which may be now. */
static void close_comm(struct zd_cuda_comms *comms, struct zd_cuda_task *task)
{
	struct zd_cuda_open_comm *open = find_open_comm(comms, task->u.comm_close.comm);
	struct zd_cuda_waiting_comm *waiting = find_waiting(comms, task->u.comm_close.comm);
	if (waiting)
		give_up_opening(comms, waiting, ZEROD_E_ABORTED,
		                "its communicator was closed before it was created");
	if (!open) {
		complete_task(comms, task);
		return;
	}
	STAILQ_INSERT_TAIL(&open->closing, task, next);
	if (task->u.comm_close.abort)
		zd_cuda_comm_abort(open->comm, "its communicator was closed");
	else if (open->comm->state == ZD_CUDA_COMM_CONNECTING)
		zd_cuda_comm_abort(open->comm, "its communicator was closed before all ranks had connected");
	open->ends = true;
}

static void remove_comm(struct zd_cuda_comms *comms, struct zd_cuda_open_comm *open)
{
	struct zd_cuda_task *task;
	zd_cuda_comm_queue_remove(open->queue, open->comm);
	LIST_REMOVE(open, link);
	while ((task = STAILQ_FIRST(&open->closing))) {
		STAILQ_REMOVE_HEAD(&open->closing, next);
		complete_task(comms, task);
	}
	free(open);
}

/* ---- Exchanges ----------------------------------------------------------------------------------------- */

/* Asserts that the core's locations have room for all blocks. */
static void check_blocks(const struct zd_cuda_collective *collective, const struct zd_cuda_comm_rank *self)
{
	const struct zd_exchange_desc *desc = &collective->desc;
	bool moves_own = collective->op.call.kind != ZD_CUDA_COMM_EXCHANGE;
	uint64_t blocks = self->rank == self->nranks - 1 && !moves_own ? self->nranks - 1 : self->nranks;
	if (blocks == 0 || desc->bytes == 0)
		return;
	zd_assert((blocks - 1) * desc->send_stride + desc->bytes <= desc->send.bytes);
	zd_assert((blocks - 1) * desc->receive_stride + desc->bytes <= desc->receive.bytes);
}

static void make_room(struct zd_cuda_task *task, uint32_t nranks)
{
	struct zd_cuda_comm_op *op = &task->u.collective->op;
	struct zd_op_result *result = &task->completion.result;
	result->values_bytes = (uint32_t)(nranks * op->call.numel);
	result->values = zd_calloc(result->values_bytes + 1u, 1);
	op->values = result->values;
}

/* On success the task completes when its operation has ended. */
static int submit_collective(struct zd_cuda_comms *comms, struct zd_cuda_task *task, struct zd_err *err)
{
	struct zd_cuda_collective *collective = task->u.collective;
	struct zd_cuda_open_comm *open = find_open_comm(comms, collective->comm);
	if (!open)
		return zd_err_set(err, ZEROD_E_STATE, "communicator %" PRIu64 " is not open",
		                  collective->comm);
	if (open->ends && zd_cuda_comm_lives(open->comm))
		return zd_err_set(err, ZEROD_E_STATE, "group '%s': its communicator is being closed",
		                  open->comm->self.group);
	collective->op.patience_ns = comms->settings->timeout_ns;
	if (task->base.kind == ZD_CMD_EXCHANGE)
		check_blocks(collective, &open->comm->self);
	else
		make_room(task, open->comm->self.nranks);
	return zd_cuda_comm_queue_give(open->queue, open->comm, &collective->op, err);
}

/* A SIGNAL stands for all earlier exchanges of the timeline: they complete without a store of their own. */
static void signal_timeline(struct zd_cuda_comms *comms, struct zd_cuda_task *task)
{
	struct zd_cuda_collective *collective = TAILQ_FIRST(&comms->under_way);
	while (task->session && collective) {
		const struct zd_cuda_task *before = collective->task;
		if (before->session == task->session && before->base.timeline == task->base.timeline) {
			leave_timeline(comms, collective->task);
			collective = TAILQ_FIRST(&comms->under_way);
		} else {
			collective = TAILQ_NEXT(collective, under_way);
		}
	}
	complete_task(comms, task);
}

/* ---- Tasks --------------------------------------------------------------------------------------------- */

static void begin_collective(struct zd_cuda_comms *comms, struct zd_cuda_task *task)
{
	struct zd_err err = ZD_ERR_NONE;
	if (has_place(task))
		TAILQ_INSERT_TAIL(&comms->under_way, task->u.collective, under_way);
	if (submit_collective(comms, task, &err))
		fail_task(comms, task, &err);
}

void zd_cuda_comms_run(struct zd_cuda_comms *comms, struct zd_cuda_task *task)
{
	struct zd_err err = ZD_ERR_NONE;
	switch (task->base.kind) {
	case ZD_CMD_UNIQUE_IDS:
		if (make_ids(comms, task, &err))
			fail_task(comms, task, &err);
		break;
	case ZD_CMD_COMM_OPEN:
		if (begin_opening(comms, task, &err))
			fail_task(comms, task, &err);
		break;
	case ZD_CMD_COMM_CLOSE:
		close_comm(comms, task);
		break;
	case ZD_CMD_EXCHANGE:
	case ZD_CMD_AGREE:
		begin_collective(comms, task);
		break;
	case ZD_CMD_SIGNAL:
		signal_timeline(comms, task);
		break;
	default:
		zd_assert(!"a command of communicators");
	}
}

/* ---- Progress ------------------------------------------------------------------------------------------ */

static struct zd_cuda_collective *collective_of(struct zd_cuda_comm_op *op)
{
	return ZD_CONTAINER_OF(op, struct zd_cuda_collective, op);
}

static void take_ended(struct zd_cuda_comms *comms, struct zd_cuda_comm_queue *queue)
{
	struct zd_cuda_comm_op *op;
	while ((op = zd_cuda_comm_queue_take(queue))) {
		if (op->err.status)
			fail_task(comms, collective_of(op)->task, &op->err);
		else
			end_collective(comms, collective_of(op)->task);
	}
}

static void tell_opening(struct zd_cuda_comms *comms, struct zd_cuda_open_comm *open)
{
	struct zd_cuda_task *task = open->opening;
	if (!task || open->comm->state == ZD_CUDA_COMM_CONNECTING)
		return;
	open->opening = NULL;
	open->unneeded = open->comm->state != ZD_CUDA_COMM_READY;
	if (open->unneeded)
		fail_task(comms, task, &open->comm->failure);
	else
		complete_task(comms, task);
}

/* Aborts the waiters of the exchanges in flight at once. The exchanges themselves end later, with the
 * communicator. */
static void tell_failure(struct zd_cuda_comms *comms, struct zd_cuda_open_comm *open)
{
	struct zd_cuda_comm_op *op;
	if (open->told || zd_cuda_comm_lives(open->comm))
		return;
	open->told = true;
	STAILQ_FOREACH(op, &open->comm->inflight, next)
	abort_waiters(comms, collective_of(op)->task);
}

/* Starts to close the communicator, or aborts a closing that takes too long. Returns whether it has done
 * either. */
static bool end_further(struct zd_cuda_comms *comms, struct zd_cuda_open_comm *open, uint64_t now_ns)
{
	struct zd_cuda_comm *comm = open->comm;
	if (comm->state == ZD_CUDA_COMM_ENDING && open->deadline_ns && now_ns >= open->deadline_ns &&
	    !zd_cuda_comm_has_parted(comm)) {
		zd_log(ZD_LOG_WARNING,
		       "group '%s': the other ranks did not finalize in time; aborting rank %" PRIu32,
		       comm->self.group, zd_cuda_comm_world_rank(&comm->self, comm->self.rank));
		zd_cuda_comm_abort(comm, "the other ranks did not finalize in time");
		return true;
	}
	if (!open->ends || comm->state != ZD_CUDA_COMM_READY || comm->nops > 0)
		return false;
	open->deadline_ns = deadline(comms);
	zd_cuda_comm_end(comm);
	return true;
}

static bool may_go(const struct zd_cuda_comms *comms, const struct zd_cuda_open_comm *open)
{
	bool unneeded = !STAILQ_EMPTY(&open->closing) || open->unneeded || comms->stopping;
	return unneeded && open->comm->nops == 0 && zd_cuda_comm_is_over(open->comm);
}

bool zd_cuda_comms_poll(struct zd_cuda_comms *comms, uint64_t now_ns)
{
	struct zd_cuda_open_comm *open, *next;
	bool under_way = poll_ids(comms, now_ns);
	if (!comms->nccl)
		return under_way;
	retry_openings(comms, now_ns);
	for (int i = 0; i < ZD_NCOMM_ROLES; i++) {
		under_way |= zd_cuda_comm_queue_poll(&comms->queues[i], now_ns);
		take_ended(comms, &comms->queues[i]);
	}
	for (open = LIST_FIRST(&comms->open); open; open = next) {
		next = LIST_NEXT(open, link);
		tell_opening(comms, open);
		tell_failure(comms, open);
		under_way |= end_further(comms, open, now_ns);
		if (may_go(comms, open))
			remove_comm(comms, open);
	}
	return under_way || !STAILQ_EMPTY(&comms->waiting);
}

bool zd_cuda_comms_listen(const struct zd_cuda_comms *comms)
{
	return zd_cuda_ids_any(&comms->makers);
}

void zd_cuda_comms_check(struct zd_cuda_comms *comms)
{
	for (int i = 0; i < ZD_NCOMM_ROLES && comms->nccl; i++)
		zd_cuda_comm_queue_check(&comms->queues[i]);
}

void zd_cuda_comms_stop(struct zd_cuda_comms *comms, const struct zd_err *why)
{
	struct zd_cuda_waiting_comm *waiting;
	struct zd_cuda_open_comm *open;
	comms->stopping = true;
	zd_cuda_ids_stop(&comms->makers, why);
	while ((waiting = STAILQ_FIRST(&comms->waiting)))
		give_up_opening(comms, waiting, why->status, why->text);
	LIST_FOREACH (open, &comms->open, link)
		zd_cuda_comm_fail(open->comm, why);
}
