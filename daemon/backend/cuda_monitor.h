/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_monitor.h - what the GPUs say beside the driver: whether a process is still on them, and what has gone
 * wrong.
 *
 * A process that was killed may have kernels running: its pidfd tells of its end, but a forked child can keep
 * its context alive, and until the driver has taken that down, which NVML shows, its memory must not be given
 * to others. Without NVML, or where NVML counts processes otherwise than we do (in some containers), a
 * process is gone when its pidfd says so.
 *
 * NVML's events of kind Xid are logged; those after which a GPU is of no use mark it failed.
 *
 * A GPU on which kernels run most of the time is busy: copies within it would wait for them. One of which
 * NVML does not tell counts as busy.
 */
#ifndef ZD_BACKEND_CUDA_MONITOR_H
#define ZD_BACKEND_CUDA_MONITOR_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "backend/cuda_device.h"
#include "backend/cuda_session.h"

struct zd_nvml;

LIST_HEAD(zd_cuda_session_list, zd_cuda_session);

struct zd_cuda_monitor {
	struct zd_cuda_devices *devices;
	struct zd_nvml *nvml; /* NULL: none */
	bool lists_processes; /* and our own is among them */
	pthread_t thread;
	bool started;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct zd_cuda_session_list arrived; /* to be looked after */
	bool stopping;

	struct zd_cuda_session_list lingering; /* the thread's own */
};

/* Starts the thread; the daemon's contexts have been made. On failure there is nothing to deinit. Errors:
 * SYSTEM. */
int zd_cuda_monitor_init(struct zd_cuda_monitor *monitor, struct zd_cuda_devices *devices, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Stops it, and ends the sessions that are left. One that was not started is allowed. */
void zd_cuda_monitor_deinit(struct zd_cuda_monitor *monitor);

/* Ends the session when its process has gone; takes the caller's reference over. Never blocks. */
void zd_cuda_monitor_take(struct zd_cuda_monitor *monitor, struct zd_cuda_session *session);

#endif
