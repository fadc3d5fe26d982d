/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_session.h - a session whose daemon page is written by GPUs: its registration, and the state of its
 * timelines.
 *
 * The first executor that stores into the page registers it with the driver. When the last reference is
 * dropped, a worker unregisters it. The loop's thread therefore never calls the driver. The client can also
 * write the page: the library releases its own streams when the daemon dies.
 */
#ifndef ZD_EXECUTOR_CUDA_SESSION_H
#define ZD_EXECUTOR_CUDA_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "executor/cuda/cuda_device.h"
#include "executor/session.h"

struct zd_cuda_worker;

/* An executor's state of a timeline; see cuda_order.h. */
struct zd_cuda_timeline {
	uint32_t pending; /* commands in queue `queue`, or in flight from it */
	uint32_t held;    /* commands that wait for the pending ones before they enter another queue */
	uint32_t queue;
	uint32_t cpu_stores; /* pending commands in flight whose value the CPU will store */
};

struct zd_cuda_session {
	struct zd_backend_session base;
	pid_t pid;
	int pidfd;                             /* of `pid`; readable when the process has ended */
	LIST_ENTRY(zd_cuda_session) lingering; /* private to the monitor */
	struct zd_cuda_worker *worker;         /* unregisters the page */
	pthread_mutex_t lock;                  /* protects the registration */
	bool registered;
	STAILQ_ENTRY(zd_cuda_session) to_free;  /* private to the worker */
	_Atomic zd_cu_ptr page[ZD_MAX_DEVICES]; /* the page's address for each GPU; 0: not known yet */
	struct zd_cuda_timeline timelines[ZD_TIMELINES]; /* each private to the executor of its device */
};

/* See zd_backend_session_init(). `pid`, `pidfd`: the client's process; the pidfd is duplicated. A session
 * without one is an error: the monitor could not tell when its process ends. */
int zd_cuda_session_new(uint64_t id, pid_t pid, int pidfd, struct zd_cuda_worker *worker,
                        struct zd_cuda_session **session, int *client_fd, int *daemon_fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Unregisters the page and frees the session. Called by a worker, or for a page that was never registered. */
void zd_cuda_session_free(struct zd_cuda_session *session, const struct zd_cuda *cuda);

/* Returns in *at the counter's address for the GPU, whose context is current. Called by executors only. */
int zd_cuda_session_counter_at(struct zd_cuda_session *session, struct zd_cuda_device *device,
                               uint32_t timeline, zd_cu_ptr *at, struct zd_err *err)
        __attribute__((warn_unused_result));

static inline struct zd_cuda_session *zd_cuda_session_of(struct zd_backend_session *base)
{
	return (struct zd_cuda_session *)base; /* `base` is the first member */
}

#endif
