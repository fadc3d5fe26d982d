/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_backend.c - the cuda backend: GPUs, driven through the CUDA driver, which is loaded at run time.
 *
 * Each GPU has an executor, the thread that issues its copies and polls for their completion; a worker, the
 * thread for driver calls that block; and, from the first command of a communicator on, a thread for its
 * communicators. This file connects the parts:
 *
 *   cuda_device    the GPUs                  cuda_segment   their memory
 *   cuda_executor  the thread of a GPU       cuda_worker    its thread for calls that block
 *   cuda_order     the order of its tasks    cuda_reduce    sums, on the CPU
 *   cuda_copy_stream      a stream and its copies  cuda_session   fence pages that GPUs write
 *   cuda_task      one command               cuda_monitor   processes on the GPUs, and Xids
 *   cuda_host_copy  copies with host memory  cuda_host_memory  the host memory itself
 *   cuda_gate      excludes calls that wait for the kernels of communicators
 *
 *   cuda_comm_thread  a GPU's thread for communicators  cuda_comm_queue   the order of their operations
 *   cuda_comm_tasks   the commands of communicators     cuda_comm         one communicator
 *   cuda_comm_command one of them, as a task            cuda_comm_local_ranks  the daemon's ranks of each
 *                                                                         communicator
 *
 * The loop's thread calls the driver only when the daemon starts and ends.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "executor/backend.h"
#include "executor/cuda/cuda_device.h"
#include "executor/cuda/cuda_executor.h"
#include "executor/cuda/cuda_host_memory.h"
#include "executor/cuda/cuda_monitor.h"
#include "executor/cuda/cuda_segment.h"
#include "executor/cuda/cuda_session.h"
#include "executor/cuda/cuda_worker.h"
#include "executor/nccl/cuda_comm_thread.h"

#define DEFAULT_ARENA_PERCENT 80u

struct gpu {
	uint64_t arena_bytes;
	struct zd_cuda_executor executor;
	struct zd_cuda_worker worker;
	struct zd_cuda_comm_thread comms;
};

struct zd_backend {
	struct zd_cuda_devices devices;
	struct gpu *gpus; /* devices.count */
	struct zd_cuda_segments segments;
	struct zd_cuda_host_memory host;
	struct zd_backend_sessions sessions;
	struct zd_cuda_monitor monitor;
	struct zd_cuda_comm_local_ranks local_ranks;
	struct zd_cuda_comm_settings comm_settings; /* its path is owned */
	uint32_t next_worker; /* the device whose worker frees the next session's page */
};

/* ---- Life ---------------------------------------------------------------------------------------------- */

static int set_arena(const struct zd_cuda_device *device, uint64_t asked_bytes, uint64_t *arena_bytes,
                     struct zd_err *err)
{
	char wanted[ZD_BYTES_TEXT], found[ZD_BYTES_TEXT];
	uint64_t bytes = asked_bytes ? asked_bytes : device->memory_bytes / 100 * DEFAULT_ARENA_PERCENT;
	if (bytes > device->memory_bytes)
		return zd_err_set(err, ZEROD_E_NO_MEMORY,
		                  "cuda backend: requested an arena of %s, device %" PRIu32 " (%s) has %s",
		                  zd_bytes_text(bytes, wanted), device->index, device->name,
		                  zd_bytes_text(device->memory_bytes, found));
	bytes -= bytes % device->granularity_bytes;
	if (bytes == 0)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "cuda backend: an arena of %s is less than the %s that %s maps at once",
		                  zd_bytes_text(asked_bytes, wanted),
		                  zd_bytes_text(device->granularity_bytes, found), device->name);
	*arena_bytes = bytes;
	return 0;
}

/* Only a warning: other processes may free their memory later. The device's context is current. */
static void compare_with_free(const struct zd_cuda_device *device, uint64_t arena_bytes)
{
	char wanted[ZD_BYTES_TEXT], found[ZD_BYTES_TEXT];
	size_t available = 0, total = 0;
	if (device->cuda->memGetInfo(&available, &total) != 0 || arena_bytes <= available)
		return;
	zd_log(ZD_LOG_WARNING, "device %" PRIu32 " (%s): an arena of %s, and %s are free now", device->index,
	       device->name, zd_bytes_text(arena_bytes, wanted), zd_bytes_text(available, found));
}

static int start_gpu(struct zd_backend *backend, uint32_t index, const struct zd_backend_config *config,
                     struct zd_err *err)
{
	struct zd_cuda_device *device = &backend->devices.all[index];
	struct gpu *gpu = &backend->gpus[index];
	bool pushed = false;
	int rc = set_arena(device, config->arena_bytes, &gpu->arena_bytes, err);
	if (!rc)
		rc = zd_cuda_err(device->cuda, zd_cuda_enter(device->cuda, device->context, &pushed), err,
		                 "entering the context of %s", device->name);
	if (!rc)
		compare_with_free(device, gpu->arena_bytes);
	if (!rc)
		rc = zd_cuda_executor_init(&gpu->executor, &backend->devices, index, config, err);
	if (!rc)
		rc = zd_cuda_worker_init(&gpu->worker, &gpu->executor, &backend->segments,
		                         &backend->local_ranks.gate, config, err);
	zd_cuda_leave(device->cuda, pushed);
	if (!rc)
		zd_cuda_comm_thread_init(&gpu->comms, device, &backend->comm_settings);
	return rc;
}

/* The order matters. Workers hand their last tasks to the executors before these stop, and the sessions'
 * pages are freed when no thread stores into them any more. */
static void stop_gpus(struct zd_backend *backend)
{
	uint32_t n = backend->devices.count;
	for (uint32_t i = 0; i < n; i++)
		zd_cuda_comm_thread_stop(&backend->gpus[i].comms);
	for (uint32_t i = 0; i < n; i++)
		zd_cuda_worker_drain(&backend->gpus[i].worker);
	for (uint32_t i = 0; i < n; i++)
		zd_cuda_comm_thread_deinit(&backend->gpus[i].comms);
	for (uint32_t i = 0; i < n; i++)
		zd_cuda_executor_stop(&backend->gpus[i].executor);
	for (uint32_t i = 0; i < n; i++)
		zd_cuda_executor_deinit(&backend->gpus[i].executor);
	zd_cuda_host_memory_stop(&backend->host);
	zd_cuda_monitor_deinit(&backend->monitor);
	zd_backend_sessions_deinit(&backend->sessions);
	for (uint32_t i = 0; i < n; i++)
		zd_cuda_worker_deinit(&backend->gpus[i].worker);
}

static void cuda_close(struct zd_backend *backend)
{
	if (!backend)
		return;
	stop_gpus(backend);
	zd_cuda_comm_local_ranks_deinit(&backend->local_ranks);
	zd_cuda_host_memory_deinit(&backend->host);
	zd_cuda_segments_deinit(&backend->segments);
	zd_cuda_devices_deinit(&backend->devices);
	free((char *)backend->comm_settings.nccl_path);
	free(backend->gpus);
	free(backend);
}

static void set_comms(struct zd_backend *backend, const struct zd_backend_config *config)
{
	zd_cuda_comm_local_ranks_init(&backend->local_ranks);
	backend->comm_settings = (struct zd_cuda_comm_settings){
	        .nccl_path = zd_strdup(config->nccl_path ? config->nccl_path : ""),
	        .checking = config->check_collectives,
	        .timeout_ns = config->collective_timeout_ns,
	        .local_ranks = &backend->local_ranks,
	        .done = config->done,
	        .done_arg = config->done_arg,
	};
}

static int cuda_open(const struct zd_backend_config *config, struct zd_backend **backend, struct zd_err *err)
{
	struct zd_backend *made = zd_calloc(1, sizeof(*made));
	int rc = zd_cuda_devices_init(&made->devices, config->devices, err);
	if (rc) {
		free(made);
		return rc;
	}
	made->gpus = zd_calloc(made->devices.count, sizeof(*made->gpus));
	zd_cuda_segments_init(&made->segments);
	zd_backend_sessions_init(&made->sessions);
	set_comms(made, config);
	made->devices.host_memory = config->host_arena_bytes > 0;
	rc = zd_cuda_host_memory_init(&made->host, &made->devices, config, err);
	made->segments.host = &made->host;
	for (uint32_t i = 0; i < made->devices.count && !rc; i++)
		rc = start_gpu(made, i, config, err);
	if (!rc)
		rc = zd_cuda_monitor_init(&made->monitor, &made->devices, err);
	if (rc) {
		cuda_close(made);
		return rc;
	}
	*backend = made;
	return 0;
}

static uint32_t cuda_device_count(const struct zd_backend *backend)
{
	return backend->devices.count + backend->host.count;
}

static void cuda_device_info(const struct zd_backend *backend, uint32_t device, struct zd_device_config *info)
{
	if (zd_cuda_host_memory_node(&backend->host, device)) {
		zd_cuda_host_memory_info(&backend->host, device, info);
		return;
	}
	zd_assert(device < backend->devices.count);
	const struct zd_cuda_device *found = &backend->devices.all[device];
	*info = (struct zd_device_config){
	        .arena_bytes = backend->gpus[device].arena_bytes,
	        .segment_align_bytes = found->granularity_bytes,
	        .has_host = backend->host.count > 0,
	};
	for (uint32_t other = 0; other < backend->devices.count; other++)
		info->unreached |= zd_cuda_device_reaches(found, other) ? 0 : 1ull << other;
	if (info->has_host)
		info->host = zd_cuda_host_memory_of(&backend->host, found);
	(void)snprintf(info->name, sizeof(info->name), "%s", found->name);
	(void)snprintf(info->model, sizeof(info->model), "%s", found->model);
	(void)snprintf(info->pci_address, sizeof(info->pci_address), "%s", found->pci_address);
}

static bool cuda_device_failure(const struct zd_backend *backend, uint32_t device, char why[ZD_FAILURE_TEXT])
{
	if (zd_cuda_host_memory_node(&backend->host, device))
		return false;
	zd_assert(device < backend->devices.count);
	return zd_cuda_device_why(&backend->devices.all[device], why);
}

static void cuda_expect(struct zd_backend *backend, uint32_t device)
{
	if (zd_cuda_host_memory_node(&backend->host, device))
		return;
	zd_assert(device < backend->devices.count);
	zd_cuda_executor_expect(&backend->gpus[device].executor);
}

/* ---- Commands ------------------------------------------------------------------------------------------ */

/* A device's thread for communicators stores into the timelines of exchanges, its executor into all
 * others. */
static bool is_of_exchanges(const struct zd_signal *signal)
{
	return signal->timeline >= ZD_MAX_DEVICES && signal->timeline < 2 * ZD_MAX_DEVICES;
}

static struct zd_cuda_task *task_of(struct zd_backend *backend, const struct zd_command *command)
{
	struct zd_backend_session *watched = NULL, *signalled;
	signalled = zd_backend_sessions_find(&backend->sessions, command->signal.session);
	switch (command->kind) {
	case ZD_CMD_UNIQUE_IDS:
	case ZD_CMD_COMM_OPEN:
	case ZD_CMD_COMM_CLOSE:
	case ZD_CMD_EXCHANGE:
	case ZD_CMD_AGREE:
		return zd_cuda_comm_task_new(command, &backend->segments, signalled);
	case ZD_CMD_WATCH:
		watched = zd_backend_sessions_find(&backend->sessions, command->u.watch.session);
		break;
	default:
		break;
	}
	return zd_cuda_task_new(command, &backend->segments, signalled, watched);
}

static void cuda_collect(struct zd_backend *backend, const struct zd_command *command)
{
	struct zd_cuda_host_node *node = zd_cuda_host_memory_node(&backend->host, command->device);
	if (node) {
		zd_host_executor_submit(&node->executor, &backend->sessions, command);
		return;
	}
	zd_assert(command->device < backend->devices.count);
	struct gpu *gpu = &backend->gpus[command->device];
	struct zd_cuda_task *task = task_of(backend, command);
	switch (command->kind) {
	case ZD_CMD_SEGMENT_CREATE:
	case ZD_CMD_SEGMENT_DESTROY:
	case ZD_CMD_REDUCE:
		zd_cuda_worker_submit(&gpu->worker, task);
		break;
	case ZD_CMD_COPY:
	case ZD_CMD_FILL:
	case ZD_CMD_WATCH:
		zd_cuda_executor_collect(&gpu->executor, task);
		break;
	case ZD_CMD_SIGNAL:
		if (is_of_exchanges(&command->signal))
			zd_cuda_comm_thread_submit(&gpu->comms, task);
		else
			zd_cuda_executor_collect(&gpu->executor, task);
		break;
	case ZD_CMD_UNIQUE_IDS:
	case ZD_CMD_COMM_OPEN:
	case ZD_CMD_COMM_CLOSE:
	case ZD_CMD_EXCHANGE:
	case ZD_CMD_AGREE:
		zd_assert(command->signal.session == 0 || is_of_exchanges(&command->signal));
		zd_cuda_comm_thread_submit(&gpu->comms, task);
		break;
	}
}

static void cuda_flush(struct zd_backend *backend)
{
	for (uint32_t device = 0; device < backend->devices.count; device++)
		zd_cuda_executor_flush(&backend->gpus[device].executor);
}

static void cuda_submit(struct zd_backend *backend, const struct zd_command *command)
{
	cuda_collect(backend, command);
	cuda_flush(backend);
}

static int cuda_segment_import(struct zd_backend *backend, uint32_t device, uint32_t id, uint64_t bytes,
                               int fd, struct zd_err *err)
{
	struct zd_cuda_host_node *node = zd_cuda_host_memory_node(&backend->host, device);
	struct zd_cuda_segment *segment;

	if (node)
		return zd_cuda_host_memory_import(node, id, bytes, fd, err);
	int rc = zd_cuda_segment_import(&backend->devices, device, id, bytes, fd, &segment, err);

	if (rc == 0)
		zd_cuda_segments_add(&backend->segments, segment);
	return rc;
}

static int cuda_segment_fd(const struct zd_backend *backend, uint32_t segment)
{
	/* The cast drops const for the table's lock; the table does not change. */
	return zd_cuda_segments_fd((struct zd_cuda_segments *)&backend->segments, segment);
}

/* ---- Sessions ------------------------------------------------------------------------------------------ */

static int cuda_session_open(struct zd_backend *backend, uint64_t session, pid_t pid, int pidfd,
                             int *client_fd, int *daemon_fd, struct zd_err *err)
{
	struct zd_cuda_worker *worker = &backend->gpus[backend->next_worker].worker;
	struct zd_cuda_session *made = NULL;
	int rc = zd_cuda_session_new(session, pid, pidfd, worker, &made, client_fd, daemon_fd, err);
	if (rc)
		return rc;
	backend->next_worker = (backend->next_worker + 1) % backend->devices.count;
	zd_backend_sessions_add(&backend->sessions, &made->base);
	return 0;
}

static void cuda_session_close(struct zd_backend *backend, uint64_t session, bool clean_exit)
{
	struct zd_backend_session *found = zd_backend_sessions_take(&backend->sessions, session);
	if (!found || clean_exit)
		zd_backend_session_end(found, clean_exit);
	else
		zd_cuda_monitor_take(&backend->monitor, zd_cuda_session_of(found));
}

static uint64_t cuda_timeline_read(const struct zd_backend *backend, uint64_t session, uint32_t timeline)
{
	return zd_backend_sessions_read(&backend->sessions, session, timeline);
}

const struct zd_backend_ops zd_backend_cuda = {
        .name = "cuda",
        .sessions_linger = true,
        .strict_by_segment = true,
        .collectives = true,
        .owners_sum = true,
        .is_prompt = true,
        .open = cuda_open,
        .close = cuda_close,
        .device_count = cuda_device_count,
        .device_info = cuda_device_info,
        .device_failure = cuda_device_failure,
        .expect = cuda_expect,
        .submit = cuda_submit,
        .collect = cuda_collect,
        .flush = cuda_flush,
        .segment_fd = cuda_segment_fd,
        .segment_import = cuda_segment_import,
        .session_open = cuda_session_open,
        .session_close = cuda_session_close,
        .timeline_read = cuda_timeline_read,
};

const struct zd_backend_ops *zd_backend_auto(struct zd_err *why)
{
	const struct zd_cuda *cuda;
	zd_cuda_devices_prepare();
	return zd_cuda_load(&cuda, why) == 0 ? &zd_backend_cuda : &zd_backend_host;
}
