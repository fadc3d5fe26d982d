/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_session.h - a session whose daemon page GPUs write: its registration, and what is under way on its
 * timelines.
 *
 * The page is registered with the driver by the first executor that signals there, and given back by a worker
 * when the last reference has gone, so that the loop's thread never calls the driver. Its client may write
 * the page too: the library frees its own streams when the daemon dies.
 */
#ifndef ZD_BACKEND_CUDA_SESSION_H
#define ZD_BACKEND_CUDA_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "backend/cuda_device.h"
#include "backend/session.h"

struct zd_cuda_worker;

/* What an executor has of a timeline; see cuda_order.h. */
struct zd_cuda_timeline {
	uint32_t pending; /* commands in queue `queue`, or in flight from it */
	uint32_t held;    /* commands that wait for those, to go to another queue */
	uint32_t queue;
	uint32_t cpu_stores; /* of the pending ones in flight: those that the CPU will store */
};

struct zd_cuda_session {
	struct zd_backend_session base;
	pid_t pid;
	int pidfd;                             /* -1: the process had ended already */
	LIST_ENTRY(zd_cuda_session) lingering; /* the monitor's */
	struct zd_cuda_worker *worker;         /* who gives the page back */
	pthread_mutex_t lock;                  /* of the registration */
	bool registered;
	STAILQ_ENTRY(zd_cuda_session) to_free;           /* the worker's */
	_Atomic zd_cu_ptr page[ZD_MAX_DEVICES];          /* as that GPU sees it; 0: not asked yet */
	struct zd_cuda_timeline timelines[ZD_TIMELINES]; /* each its own executor's */
};

/* As zd_backend_session_init(). `pid`: the client's process. */
int zd_cuda_session_new(uint64_t id, pid_t pid, struct zd_cuda_worker *worker,
                        struct zd_cuda_session **session, int *client_fd, int *daemon_fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Unregisters the page and frees the session: on a worker, or when the page was never registered. */
void zd_cuda_session_free(struct zd_cuda_session *session, const struct zd_cuda *cuda);

/* The counter's address for the GPU, whose context is current. On the GPU's executor. */
int zd_cuda_session_counter_at(struct zd_cuda_session *session, struct zd_cuda_device *device,
                               uint32_t timeline, zd_cu_ptr *at, struct zd_err *err)
        __attribute__((warn_unused_result));

static inline struct zd_cuda_session *zd_cuda_session_of(struct zd_backend_session *base)
{
	return (struct zd_cuda_session *)base; /* its first member */
}

#endif
