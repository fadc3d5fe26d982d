/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_comm.c - the life of a communicator. */
#include "executor/nccl/cuda_comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/sm.h"
#include "base/text.h"
#include "executor/thread.h"
#include "proto/limits.h"

#define PAGE_BYTES     4096u /* the granularity of pinned memory */
#define COUNTER_BYTES  64u   /* places the counter in its own cache line */
#define POLL_NS        1000000u
#define PARTING_NS     1000000000u
#define IN_ENVIRONMENT "the daemon's environment or NCCL's configuration file"
#define LEAST_QUEUES   8 /* the driver's default; see zd_cuda_devices_prepare() */

/* ---- States -------------------------------------------------------------------------------------------- */

static const char *const state_names[] = {"CONNECTING", "READY", "ENDING", "ENDED", "FAILED", "ABORTED"};

#define UNDONE (ZD_SM_TO(ZD_CUDA_COMM_FAILED) | ZD_SM_TO(ZD_CUDA_COMM_ABORTED))

static const uint32_t allowed[] = {
        [ZD_CUDA_COMM_CONNECTING] = ZD_SM_TO(ZD_CUDA_COMM_READY) | UNDONE,
        [ZD_CUDA_COMM_READY] = ZD_SM_TO(ZD_CUDA_COMM_ENDING) | UNDONE,
        [ZD_CUDA_COMM_ENDING] = ZD_SM_TO(ZD_CUDA_COMM_ENDED) | UNDONE,
        [ZD_CUDA_COMM_ENDED] = 0,
        [ZD_CUDA_COMM_FAILED] = 0,
        [ZD_CUDA_COMM_ABORTED] = 0,
};

static const struct zd_sm life = {
        .name = "communicator",
        .nstates = ZD_ARRAY_LEN(state_names),
        .state_names = state_names,
        .allowed = allowed,
};

const char *zd_cuda_comm_state_name(const struct zd_cuda_comm *comm)
{
	return zd_sm_name(&life, comm->state);
}

/* ---- The GPU's room ------------------------------------------------------------------------------------ */

static uint32_t blocks_of_queue(const struct zd_cuda_device *device)
{
	return (uint32_t)zd_max_u64(device->multiprocessors / ZD_CUDA_COMM_QUEUES, 1);
}

uint32_t zd_cuda_comm_blocks(const struct zd_cuda_device *device)
{
	return (uint32_t)zd_min_u64(blocks_of_queue(device), ZD_CUDA_COMM_BLOCKS);
}

uint32_t zd_cuda_comm_room(const struct zd_cuda_device *device)
{
	return blocks_of_queue(device) / zd_cuda_comm_blocks(device);
}

/* ---- The communicator's thread: calls that block ------------------------------------------------------- */

static int make_page(struct zd_cuda_comm *comm, struct zd_err *err)
{
	struct zd_cuda_device *device = comm->home.device;
	uint64_t described_bytes = comm->self.nranks * sizeof(*comm->described);
	uint64_t bytes = COUNTER_BYTES + described_bytes +
	                 comm->self.nranks * (uint64_t)ZD_CUDA_COMM_VALUE_BYTES;
	void *at = NULL;
	int rc = zd_cuda_device_err(
	        device,
	        device->cuda->memHostAlloc(&at, zd_align_up(bytes, PAGE_BYTES),
	                                   ZD_CU_HOST_ALLOC_PORTABLE | ZD_CU_HOST_ALLOC_DEVICEMAP),
	        err, "pinned memory for a communicator's progress");
	if (rc)
		return rc;
	memset(at, 0, bytes);
	comm->counter = at;
	comm->described = (void *)((char *)at + COUNTER_BYTES);
	comm->values = (unsigned char *)at + COUNTER_BYTES + described_bytes;
	rc = zd_cuda_device_err(device, device->cuda->memHostGetDevicePointer(&comm->counter_at, at, 0), err,
	                        "a communicator's progress on the GPU");
	comm->described_at = comm->counter_at + COUNTER_BYTES;
	comm->values_at = comm->described_at + described_bytes;
	return rc;
}

/*
 * NCCL prefers the environment to the configuration, and the administrator can have tuned it. The daemon
 * rejects only settings with which its communicators cannot work:
 * - Blocking calls would delay the device's other communicators.
 * - Launches that wait for each other would deadlock with ranks that launch in another order:
 *   NCCL_LAUNCH_MODE=GROUP makes them wait for the process's other GPUs, NCCL_LAUNCH_ORDER_IMPLICIT for the
 *   GPU's other communicators.
 * - NCCL_COMM_ID names one communicator, and the daemon has several.
 * NCCL copies its configuration file into the environment at the latest when the first communicator is
 * created. The check is therefore repeated after that.
 */
static int check_environment(struct zd_err *err)
{
	static const struct {
		const char *name, *expected, *why;
	} settings[] = {
	        {"NCCL_COMM_BLOCKING", "0", "its communicators must not block"},
	        {"NCCL_LAUNCH_MODE", "PARALLEL", "its GPUs must not wait for each other"},
	        {"NCCL_LAUNCH_ORDER_IMPLICIT", "0", "its communicators must not wait for each other"},
	        {"NCCL_COMM_ID", "", "its communicators have ids of their own"},
	};
	const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
	if (queues && strtol(queues, NULL, 10) < LEAST_QUEUES)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "CUDA_DEVICE_MAX_CONNECTIONS=%s in " IN_ENVIRONMENT
		                  ": with fewer than %d its communicators wait for each other",
		                  queues, LEAST_QUEUES);
	for (size_t i = 0; i < ZD_ARRAY_LEN(settings); i++) {
		const char *value = getenv(settings[i].name);
		if (value && strcmp(value, settings[i].expected) != 0)
			return zd_err_set(err, ZEROD_E_INVALID, "%s=%s in " IN_ENVIRONMENT ": %s",
			                  settings[i].name, value, settings[i].why);
	}
	return 0;
}

static int init_nccl_comm(struct zd_cuda_comm *comm, struct zd_err *err)
{
	struct zd_nccl_config config = ZD_NCCL_CONFIG;
	struct zd_cuda_device *device = comm->home.device;
	const struct zd_nccl *nccl = comm->home.nccl;
	int rc = zd_cuda_device_err(
	        device, device->cuda->streamCreateWithPriority(&comm->stream, ZD_CU_STREAM_NON_BLOCKING, 0),
	        err, "a communicator's stream");
	if (!rc)
		rc = make_page(comm, err);
	if (rc)
		return rc;
	config.blocking = 0;
	config.max_ctas = (int)zd_cuda_comm_blocks(device);
	int result = nccl->commInitRankConfig(&comm->handle, (int)comm->self.nranks, comm->self.id,
	                                      (int)comm->self.rank, &config);
	if (result != ZD_NCCL_IN_PROGRESS)
		rc = zd_nccl_err(nccl, result, err, "group '%s': a communicator for rank %" PRIu32,
		                 comm->self.group, zd_cuda_comm_world_rank(&comm->self, comm->self.rank));
	return rc ? rc : check_environment(err);
}

static enum zd_cuda_comm_leaving leaving(struct zd_cuda_comm *comm)
{
	pthread_mutex_lock(&comm->lock);
	enum zd_cuda_comm_leaving now = comm->leaving;
	pthread_mutex_unlock(&comm->lock);
	return now;
}

/* Sleeps for POLL_NS, or until the communicator is to be aborted. */
static void pause_ending(struct zd_cuda_comm *comm)
{
	pthread_mutex_lock(&comm->lock);
	if (comm->leaving != ZD_CUDA_COMM_IS_ABORTED)
		zd_cond_sleep(&comm->changed, &comm->lock, POLL_NS);
	pthread_mutex_unlock(&comm->lock);
}

static bool may_go_on(struct zd_cuda_comm *comm, uint64_t began_ns)
{
	enum zd_cuda_comm_leaving how = leaving(comm);
	return how == ZD_CUDA_COMM_LEAVES ||
	       (how == ZD_CUDA_COMM_PARTS && zd_thread_now_ns() - began_ns < PARTING_NS);
}

/* Returns false when the caller has to abort the communicator: on request, at the deadline, or since NCCL
 * cannot finalize it. */
static bool finalize(struct zd_cuda_comm *comm, struct zd_err *err)
{
	const struct zd_nccl *nccl = comm->home.nccl;
	uint64_t began_ns = zd_thread_now_ns();
	int result = nccl->commFinalize(comm->handle);
	while (result == ZD_NCCL_IN_PROGRESS && may_go_on(comm, began_ns)) {
		pause_ending(comm);
		result = zd_cuda_comm_query(comm);
	}
	if (result == ZD_NCCL_IN_PROGRESS)
		return false;
	return zd_nccl_err(nccl, result, err, "group '%s': ending the communicator of rank %" PRIu32,
	                   comm->self.group, zd_cuda_comm_world_rank(&comm->self, comm->self.rank)) == 0;
}

/* Waits for the gate, and closes it. Returns false if the communicator shall be aborted in between. The wait
 * has no deadline: commDestroy frees pinned memory, which would wait for the kernels of other communicators
 * and block the calls that end those kernels. */
static bool await_quiet(struct zd_cuda_comm *comm)
{
	bool quiet = false;
	while (leaving(comm) != ZD_CUDA_COMM_IS_ABORTED &&
	       !(quiet = zd_cuda_gate_close(&comm->home.local_ranks->gate)))
		pause_ending(comm);
	return quiet;
}

static void set_parted(struct zd_cuda_comm *comm)
{
	pthread_mutex_lock(&comm->lock);
	comm->parted = true;
	pthread_mutex_unlock(&comm->lock);
}

bool zd_cuda_comm_has_parted(struct zd_cuda_comm *comm)
{
	pthread_mutex_lock(&comm->lock);
	bool parted = comm->parted;
	pthread_mutex_unlock(&comm->lock);
	return parted;
}

/* Frees the communicator in any case; NCCL's error is only logged. Returns whether the gate is closed. */
static bool end_handle(struct zd_cuda_comm *comm, struct zd_err *err)
{
	const struct zd_nccl *nccl = comm->home.nccl;
	struct zd_err last = ZD_ERR_NONE;
	bool in_order = leaving(comm) != ZD_CUDA_COMM_IS_ABORTED && finalize(comm, err);
	if (in_order)
		set_parted(comm);
	bool quiet = in_order && await_quiet(comm);
	int result = in_order ? nccl->commDestroy(comm->handle) : nccl->commAbort(comm->handle);
	if (zd_nccl_err(nccl, result, &last, "group '%s': %s the communicator of rank %" PRIu32,
	                comm->self.group, in_order ? "destroying" : "aborting",
	                zd_cuda_comm_world_rank(&comm->self, comm->self.rank)))
		zd_log(ZD_LOG_WARNING, "%s", last.text);
	return quiet;
}

/* Aborted kernels can run for a moment longer. The stream is therefore synchronized first. `err` is set when
 * NCCL could not finalize the communicator with the other ranks. */
static void close_comm(struct zd_cuda_comm *comm, struct zd_err *err)
{
	const struct zd_cuda *cuda = comm->home.device->cuda;
	bool quiet = comm->handle && end_handle(comm, err);
	bool pushed = zd_cuda_device_push(comm->home.device);
	if (comm->stream) {
		(void)cuda->streamSynchronize(comm->stream);
		(void)cuda->streamDestroy(comm->stream);
	}
	if (comm->counter)
		(void)cuda->memFreeHost((void *)comm->counter);
	zd_cuda_leave(cuda, pushed);
	if (quiet)
		zd_cuda_gate_open(&comm->home.local_ranks->gate);
}

static void *comm_main(void *arg)
{
	struct zd_cuda_comm *comm = arg;
	struct zd_err opening = ZD_ERR_NONE, ending = ZD_ERR_NONE;
	zd_cuda_device_enter(comm->home.device);
	(void)init_nccl_comm(comm, &opening); /* the caller reads the error from `opening` */
	pthread_mutex_lock(&comm->lock);
	comm->opening = opening;
	comm->opened = true;
	while (comm->leaving == ZD_CUDA_COMM_STAYS)
		pthread_cond_wait(&comm->changed, &comm->lock);
	pthread_mutex_unlock(&comm->lock);
	close_comm(comm, &ending);
	pthread_mutex_lock(&comm->lock);
	comm->ending = ending;
	comm->over = true;
	pthread_mutex_unlock(&comm->lock);
	return NULL;
}

/* ---- Beginning ----------------------------------------------------------------------------------------- */

static int check_config(const struct zd_cuda_comm_config *config, struct zd_err *err)
{
	static const struct zd_nccl_id none;
	int rc = zd_name_check(config->group, ZD_MAX_NAME_BYTES, "group name", err);
	if (rc)
		return rc;
	if (config->nranks == 0 || config->nranks > ZD_MAX_WORLD || config->rank >= config->nranks)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "group '%s': rank %" PRIu32 " of %" PRIu32 ", there may be %u",
		                  config->group, config->rank, config->nranks, ZD_MAX_WORLD);
	if (memcmp(&config->id, &none, sizeof(none)) == 0)
		return zd_err_set(err, ZEROD_E_INVALID, "group '%s': the unique id is empty", config->group);
	return check_environment(err);
}

static struct zd_cuda_comm *make(const struct zd_cuda_comm_home *home,
                                 const struct zd_cuda_comm_config *config)
{
	struct zd_cuda_comm *comm = zd_calloc(1, sizeof(*comm));
	comm->home = *home;
	comm->self = (struct zd_cuda_comm_rank){
	        .group = zd_strdup(config->group),
	        .id = config->id,
	        .nranks = config->nranks,
	        .rank = config->rank,
	        .device = home->device->index,
	        .world = config->world,
	};
	comm->checking = config->checking;
	comm->deadline_ns = config->deadline_ns;
	STAILQ_INIT(&comm->inflight);
	pthread_mutex_init(&comm->lock, NULL);
	zd_cond_init(&comm->changed);
	return comm;
}

static void unmake(struct zd_cuda_comm *comm)
{
	pthread_cond_destroy(&comm->changed);
	pthread_mutex_destroy(&comm->lock);
	free((char *)comm->self.group);
	free(comm);
}

int zd_cuda_comm_new(const struct zd_cuda_comm_home *home, const struct zd_cuda_comm_config *config,
                     struct zd_cuda_comm **comm, struct zd_err *err)
{
	char name[24];
	int rc = check_config(config, err);
	if (rc)
		return rc;
	struct zd_cuda_comm *made = make(home, config);
	rc = zd_cuda_comm_local_ranks_add(home->local_ranks, &made->self, err);
	if (rc) {
		unmake(made);
		return rc;
	}
	(void)snprintf(name, sizeof(name), "zd-gpu%u-comm", home->device->index);
	rc = zd_thread_start(&made->thread, name, comm_main, made, err);
	if (rc) {
		zd_cuda_comm_local_ranks_remove(home->local_ranks, &made->self);
		unmake(made);
		return rc;
	}
	*comm = made;
	return 0;
}

/* ---- Ending -------------------------------------------------------------------------------------------- */

static void leave(struct zd_cuda_comm *comm, enum zd_cuda_comm_state state, enum zd_cuda_comm_leaving how)
{
	zd_sm_move(&life, &comm->state, state);
	pthread_mutex_lock(&comm->lock);
	comm->leaving = how;
	pthread_cond_broadcast(&comm->changed);
	pthread_mutex_unlock(&comm->lock);
}

static bool can_be_undone(const struct zd_cuda_comm *comm)
{
	return zd_cuda_comm_lives(comm) || comm->state == ZD_CUDA_COMM_ENDING;
}

/* If another daemon can have caused the failure, the text names the ranks of other daemons. */
static void set_failure(struct zd_cuda_comm *comm, const struct zd_err *why)
{
	char absent[ZD_CUDA_COMM_RANKS_TEXT];
	comm->failure = *why;
	if (why->status != ZEROD_E_PEER_LOST && why->status != ZEROD_E_DEADLINE &&
	    why->status != ZEROD_E_SYSTEM)
		return;
	(void)zd_cuda_comm_local_ranks_absent(comm->home.local_ranks, &comm->self, absent);
	if (*absent)
		zd_err_format(&comm->failure, why->status, "%s; not in this daemon: %s", why->text, absent);
}

void zd_cuda_comm_fail(struct zd_cuda_comm *comm, const struct zd_err *why)
{
	if (!can_be_undone(comm))
		return;
	set_failure(comm, why);
	leave(comm, ZD_CUDA_COMM_FAILED, ZD_CUDA_COMM_IS_ABORTED);
}

void zd_cuda_comm_abort(struct zd_cuda_comm *comm, const char *why)
{
	if (!can_be_undone(comm))
		return;
	zd_err_format(&comm->failure, ZEROD_E_ABORTED, "group '%s' was aborted: %s", comm->self.group, why);
	leave(comm, ZD_CUDA_COMM_ABORTED, ZD_CUDA_COMM_IS_ABORTED);
}

void zd_cuda_comm_part(struct zd_cuda_comm *comm, const struct zd_err *why)
{
	zd_assert(comm->state == ZD_CUDA_COMM_READY);
	comm->failure = *why;
	leave(comm, ZD_CUDA_COMM_FAILED, ZD_CUDA_COMM_PARTS);
}

void zd_cuda_comm_end(struct zd_cuda_comm *comm)
{
	zd_assert(comm->nops == 0 || !zd_cuda_comm_lives(comm));
	if (comm->state == ZD_CUDA_COMM_READY)
		leave(comm, ZD_CUDA_COMM_ENDING, ZD_CUDA_COMM_LEAVES);
	else if (comm->state == ZD_CUDA_COMM_CONNECTING)
		zd_cuda_comm_abort(comm, "it ended before all ranks had connected");
}

bool zd_cuda_comm_is_over(struct zd_cuda_comm *comm)
{
	bool over;
	pthread_mutex_lock(&comm->lock);
	over = comm->over;
	pthread_mutex_unlock(&comm->lock);
	return over && comm->state != ZD_CUDA_COMM_ENDING;
}

void zd_cuda_comm_free(struct zd_cuda_comm *comm)
{
	if (!comm)
		return;
	zd_assert(comm->nops == 0 && zd_cuda_comm_is_over(comm));
	pthread_join(comm->thread, NULL);
	zd_cuda_comm_local_ranks_remove(comm->home.local_ranks, &comm->self);
	unmake(comm);
}

/* ---- Progress ------------------------------------------------------------------------------------------ */

static void miss_deadline(struct zd_cuda_comm *comm)
{
	char here[ZD_CUDA_COMM_RANKS_TEXT];
	struct zd_err err;
	zd_err_format(&err, ZEROD_E_DEADLINE,
	              "group '%s': its %" PRIu32 " ranks have not connected by the deadline of rank %" PRIu32
	              ": of this daemon came %s; another one has not come, or has another unique id "
	              "or number of ranks",
	              comm->self.group, comm->self.nranks,
	              zd_cuda_comm_world_rank(&comm->self, comm->self.rank),
	              zd_cuda_comm_local_ranks_text(comm->home.local_ranks, &comm->self, here));
	zd_cuda_comm_fail(comm, &err);
}

static void meet(struct zd_cuda_comm *comm)
{
	zd_sm_move(&life, &comm->state, ZD_CUDA_COMM_READY);
	zd_cuda_comm_local_ranks_met(comm->home.local_ranks, &comm->self);
}

static void connect_further(struct zd_cuda_comm *comm)
{
	bool opened;
	pthread_mutex_lock(&comm->lock);
	opened = comm->opened;
	struct zd_err err = comm->opening;
	pthread_mutex_unlock(&comm->lock);
	if (!opened)
		return;
	if (err.status) {
		zd_cuda_comm_fail(comm, &err);
		return;
	}
	int result = zd_cuda_comm_query(comm);
	if (result == ZD_NCCL_IN_PROGRESS)
		return;
	if (zd_nccl_err(comm->home.nccl, result, &err,
	                "group '%s': connecting rank %" PRIu32 " to the others", comm->self.group,
	                zd_cuda_comm_world_rank(&comm->self, comm->self.rank)))
		zd_cuda_comm_fail(comm, &err);
	else
		meet(comm);
}

static void end_further(struct zd_cuda_comm *comm)
{
	bool over;
	pthread_mutex_lock(&comm->lock);
	over = comm->over;
	struct zd_err err = comm->ending;
	pthread_mutex_unlock(&comm->lock);
	if (!over)
		return;
	if (err.status)
		zd_cuda_comm_fail(comm, &err);
	else
		zd_sm_move(&life, &comm->state, ZD_CUDA_COMM_ENDED);
}

void zd_cuda_comm_poll(struct zd_cuda_comm *comm, uint64_t now_ns)
{
	if (comm->state == ZD_CUDA_COMM_CONNECTING)
		connect_further(comm);
	else if (comm->state == ZD_CUDA_COMM_ENDING)
		end_further(comm);
	if (comm->state == ZD_CUDA_COMM_CONNECTING && comm->deadline_ns && now_ns >= comm->deadline_ns)
		miss_deadline(comm);
}

/* ---- For READY communicators --------------------------------------------------------------------------- */

int zd_cuda_comm_query(const struct zd_cuda_comm *comm)
{
	int state = ZD_NCCL_SUCCESS;
	int result = comm->home.nccl->commGetAsyncError(comm->handle, &state);
	return result ? result : state;
}

int zd_cuda_comm_mark(struct zd_cuda_comm *comm, uint64_t *progress, struct zd_err *err)
{
	struct zd_cuda_device *device = comm->home.device;
	int rc = zd_cuda_device_err(device,
	                            device->cuda->streamWriteValue64(comm->stream, comm->counter_at,
	                                                             comm->issued + 1, ZD_CU_WRITE_DEFAULT),
	                            err, "storing a communicator's progress");
	if (!rc)
		*progress = ++comm->issued;
	return rc;
}

uint64_t zd_cuda_comm_progress(const struct zd_cuda_comm *comm)
{
	return atomic_load_explicit(comm->counter, memory_order_acquire);
}
