/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - the host backend: devices emulated in this machine's memory.
 *
 * A device is an executor thread with a queue of commands and an arena of memfd segments that clients map. It
 * is asynchronous and has fences like a GPU. This file connects the parts:
 *
 *   host_executor  the thread of a device    host_segment  the memory
 *   host_run       the thread's main loop    host_kernels  the reduction
 *   host_task      one command
 *
 * Only the loop's thread looks up sessions; commands carry references to the executors.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "executor/backend.h"
#include "executor/host/host_executor.h"

#define DEFAULT_ARENA_BYTES (1ull << 30)
#define ARENA_ALIGN_BYTES   4096u

struct zd_backend {
	uint32_t ndevices;    /* the last one is host memory, if `host_arena_bytes` is not 0 */
	uint64_t arena_bytes; /* of each device */
	uint64_t host_arena_bytes;
	struct zd_host_executor *executors;
	struct zd_host_segments segments;
	struct zd_backend_sessions sessions;
};

static int check_config(const struct zd_backend_config *config, struct zd_err *err)
{
	char wanted[ZD_BYTES_TEXT];
	char found[ZD_BYTES_TEXT];
	uint64_t arena = config->arena_bytes;
	uint32_t most = ZD_MAX_DEVICES - (config->host_arena_bytes > 0);
	if (config->ndevices < 1 || config->ndevices > most)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "host backend: expected 1 to %u devices, found %" PRIu32, most,
		                  config->ndevices);
	if (arena < ARENA_ALIGN_BYTES || arena > ZD_MAX_BYTES)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "host backend: expected an arena of 4 KiB to 1 PiB, found %s",
		                  zd_bytes_text(arena, found));
	uint64_t memory = zd_host_memory_bytes();
	if (memory && config->host_arena_bytes > memory)
		return zd_err_set(err, ZEROD_E_NO_MEMORY,
		                  "host backend: requested a host arena of %s, found %s of memory",
		                  zd_bytes_text(config->host_arena_bytes, wanted),
		                  zd_bytes_text(memory, found));
	if (memory && arena > (memory - config->host_arena_bytes) / config->ndevices)
		return zd_err_set(err, ZEROD_E_NO_MEMORY,
		                  "host backend: arenas larger than memory: %" PRIu32
		                  " of %s asked for, %s present",
		                  config->ndevices, zd_bytes_text(arena, wanted),
		                  zd_bytes_text(memory - config->host_arena_bytes, found));
	return 0;
}

static void host_close(struct zd_backend *backend)
{
	if (!backend)
		return;
	for (uint32_t i = 0; i < backend->ndevices; i++)
		zd_host_executor_stop(&backend->executors[i]);
	for (uint32_t i = 0; i < backend->ndevices; i++)
		zd_host_executor_deinit(&backend->executors[i]);
	zd_backend_sessions_deinit(&backend->sessions);
	zd_host_segments_deinit(&backend->segments);
	free(backend->executors);
	free(backend);
}

static int host_open(const struct zd_backend_config *config, struct zd_backend **backend, struct zd_err *err)
{
	struct zd_backend_config checked = *config;
	if (checked.arena_bytes == 0)
		checked.arena_bytes = DEFAULT_ARENA_BYTES;
	int rc = check_config(&checked, err);
	if (rc)
		return rc;
	struct zd_backend *made = zd_calloc(1, sizeof(*made));
	made->arena_bytes = checked.arena_bytes / ARENA_ALIGN_BYTES * ARENA_ALIGN_BYTES;
	made->host_arena_bytes = checked.host_arena_bytes / ARENA_ALIGN_BYTES * ARENA_ALIGN_BYTES;
	made->ndevices = checked.ndevices + (made->host_arena_bytes > 0);
	zd_backend_sessions_init(&made->sessions);
	made->executors = zd_calloc(made->ndevices, sizeof(*made->executors));
	zd_host_segments_init(&made->segments);
	for (uint32_t i = 0; i < made->ndevices && !rc; i++)
		rc = zd_host_executor_init(&made->executors[i], i, &made->segments, &checked, err);
	if (rc) {
		host_close(made);
		return rc;
	}
	*backend = made;
	return 0;
}

static uint32_t host_device_count(const struct zd_backend *backend)
{
	return backend->ndevices;
}

static void host_device_info(const struct zd_backend *backend, uint32_t device, struct zd_device_config *info)
{
	zd_assert(device < backend->ndevices);
	bool has_host = backend->host_arena_bytes > 0;
	uint32_t host = backend->ndevices - 1;
	if (has_host && device == host) {
		*info = (struct zd_device_config){
		        .name = "memory0", .arena_bytes = backend->host_arena_bytes, .host_memory = true};
		return;
	}
	*info = (struct zd_device_config){
	        .arena_bytes = backend->arena_bytes, .has_host = has_host, .host = has_host ? host : 0};
	snprintf(info->name, sizeof(info->name), "host%" PRIu32, device);
}

static void host_submit(struct zd_backend *backend, const struct zd_command *command)
{
	zd_assert(command->device < backend->ndevices);
	zd_host_executor_submit(&backend->executors[command->device], &backend->sessions, command);
}

static int host_segment_import(struct zd_backend *backend, uint32_t device, uint32_t id, uint64_t bytes,
                               int fd, struct zd_err *err)
{
	struct zd_host_segment *segment;
	int rc = zd_host_segment_import(id, bytes, fd, &segment, err);

	(void)device;
	if (rc == 0)
		zd_host_segments_add(&backend->segments, segment);
	return rc;
}

static int host_segment_fd(const struct zd_backend *backend, uint32_t segment)
{
	/* The cast drops const for the table's lock; the table does not change. */
	return zd_host_segments_fd((struct zd_host_segments *)&backend->segments, segment);
}

static void free_session(struct zd_backend_session *session)
{
	zd_backend_session_deinit(session);
	free(session);
}

static int host_session_open(struct zd_backend *backend, uint64_t session, pid_t pid, int pidfd,
                             int *client_fd, int *daemon_fd, struct zd_err *err)
{
	(void)pid;
	(void)pidfd;
	struct zd_backend_session *made = zd_calloc(1, sizeof(*made));
	int rc = zd_backend_session_init(made, session, false, free_session, client_fd, daemon_fd, err);
	if (rc) {
		free(made);
		return rc;
	}
	zd_backend_sessions_add(&backend->sessions, made);
	return 0;
}

static void host_session_close(struct zd_backend *backend, uint64_t session, bool clean_exit)
{
	zd_backend_session_end(zd_backend_sessions_take(&backend->sessions, session), clean_exit);
}

static uint64_t host_timeline_read(const struct zd_backend *backend, uint64_t session, uint32_t timeline)
{
	return zd_backend_sessions_read(&backend->sessions, session, timeline);
}

const struct zd_backend_ops zd_backend_host = {
        .name = "host",
        .open = host_open,
        .close = host_close,
        .device_count = host_device_count,
        .device_info = host_device_info,
        .submit = host_submit,
        .segment_fd = host_segment_fd,
        .segment_import = host_segment_import,
        .session_open = host_session_open,
        .session_close = host_session_close,
        .timeline_read = host_timeline_read,
};
