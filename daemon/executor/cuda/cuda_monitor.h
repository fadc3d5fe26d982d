/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_monitor.h - the state of the GPUs that NVML reports: processes, Xids.
 *
 * A process that was killed can still have running kernels. Its pidfd reports its end, but a forked child can
 * keep its context alive. Until the driver has freed that context, which NVML shows, the process's memory
 * must not be reused. The pidfd decides alone without NVML, if NVML counts processes in another way (in some
 * containers), and for a process outside the daemon's pid namespace. Xids are logged. Xids after which a GPU
 * is unusable mark it failed.
 */
#ifndef ZD_EXECUTOR_CUDA_MONITOR_H
#define ZD_EXECUTOR_CUDA_MONITOR_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "executor/cuda/cuda_device.h"
#include "executor/cuda/cuda_session.h"

struct zd_nvml;

LIST_HEAD(zd_cuda_session_list, zd_cuda_session);

struct zd_cuda_monitor {
	struct zd_cuda_devices *devices;
	struct zd_nvml *nvml; /* NULL: none */
	bool lists_processes; /* NVML lists processes, the daemon's own included */
	pthread_t thread;
	bool started;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct zd_cuda_session_list arrived; /* sessions that the thread has not seen yet */
	bool stopping;

	struct zd_cuda_session_list lingering; /* private to the thread */
};

/* Starts the thread; the daemon's contexts must exist. On failure there is nothing to deinit. Errors:
 * SYSTEM. */
int zd_cuda_monitor_init(struct zd_cuda_monitor *monitor, struct zd_cuda_devices *devices, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Stops the thread, and ends the remaining sessions. Does nothing for a monitor that was not started. */
void zd_cuda_monitor_deinit(struct zd_cuda_monitor *monitor);

/* Ends the session when its process has left the GPUs. Takes ownership of the caller's reference. Never
 * blocks. */
void zd_cuda_monitor_take(struct zd_cuda_monitor *monitor, struct zd_cuda_session *session);

#endif
