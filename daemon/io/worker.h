/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.h - an executor of sums beside the backend: the process of the target's rank, on its own GPU.
 *
 * A session whose client takes work has a worker: a channel, and a page into which its GPUs write results of
 * sums. The bridge offers each REDUCE of the engine to the workers first. A worker sends a sum that it takes
 * to the client; the sum has ended when the fence of the client's answer has passed. The worker gives a sum
 * that the client cannot begin to the backend. The backend begins no sum with fences: the engine gives that
 * one again without.
 */
#ifndef ZD_IO_WORKER_H
#define ZD_IO_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/frame.h"

struct zd_bridge;
struct zd_command;
struct zd_completion;
struct zd_conn;
struct zd_conns;
struct zd_err;
struct zd_worker;
struct zd_worker_sum;
struct zd_ring;

/* Of a bridge. */
struct zd_workers {
	struct zd_bridge *bridge;
	struct zd_worker *all;           /* uthash by session */
	struct zd_worker_sum *sums;      /* uthash by op: of all workers, and of sessions that have ended */
	TAILQ_HEAD(, zd_worker) to_send; /* those with something for their channel */
	struct zd_arena messages;        /* of the packet that is being read or made */
};

/* The session of a worker. */
struct zd_worker_session {
	struct zd_conns *conns;
	struct zd_conn *conn;
	bool sums;  /* its client is asked for sums; else it is told of segments alone */
	bool ahead; /* it knows ZD_FEATURE_WORK_AHEAD */
	/* Announces the segment on the connection, unless the client has it. SYSTEM without a descriptor. */
	int (*announce)(void *arg, uint32_t segment);
	void *arg;
};

void zd_workers_init(struct zd_workers *workers, struct zd_bridge *bridge);
/* When the engine is gone. */
void zd_workers_deinit(struct zd_workers *workers);

/* Gives an admitted session its channel. Both descriptors are the client's ends, and the caller's.
 * Errors: SYSTEM, NO_MEMORY. */
int zd_worker_open(struct zd_workers *workers, uint64_t session, const struct zd_worker_session *above,
                   struct zd_worker **worker, int *channel_fd, int *page_fd, struct zd_err *err)
        __attribute__((warn_unused_result));
void zd_worker_use_rings(struct zd_worker *worker, struct zd_ring *to_client, struct zd_ring *answers);
/* A segment has been named on the session's connection to be unmapped: the client is told to look there. */
void zd_worker_note_retired(struct zd_worker *worker);
/* The engine has let the session go, the backend not yet. The sums end with ABORTED: now, or, where the
 * process may still use its devices, when it cannot any more. NULL is allowed. */
void zd_worker_close(struct zd_worker *worker);

/* Whether a worker has taken the command. A completion with its op comes to the engine. */
bool zd_workers_submit(struct zd_workers *workers, const struct zd_command *command);
/* A command of the backend's has ended. What a sum has come to is filled in. */
void zd_workers_completed(struct zd_workers *workers, struct zd_completion *completion);
/* All connections have been flushed: sends what is to follow. */
void zd_workers_flush(struct zd_workers *workers);

/* Does the session's client wait for fences? Has it sums under way? */
bool zd_workers_sum_ahead(const struct zd_workers *workers, uint64_t session);
bool zd_workers_are_summing(const struct zd_workers *workers, uint64_t session);

#endif
