/* SPDX-License-Identifier: Apache-2.0 */
/*
 * delegate.h - an executor of sums beside the backend: the process of the target's rank, on its own GPU.
 *
 * A session whose client takes work has a delegate: a channel, and a page into which its GPUs write results
 * of sums. The bridge offers each REDUCE of the engine to the delegates first. A delegate sends a sum that it
 * takes to the client; the sum has ended when the fence of the client's answer has passed. The delegate gives
 * a sum that the client cannot begin to the backend. The backend begins no sum with fences: the engine gives
 * that one again without.
 */
#ifndef ZD_IO_DELEGATE_H
#define ZD_IO_DELEGATE_H

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
struct zd_delegate;
struct zd_delegate_sum;
struct zd_ring;

/* Of a bridge. */
struct zd_delegates {
	struct zd_bridge *bridge;
	struct zd_delegate *all;      /* uthash by session */
	struct zd_delegate_sum *sums; /* uthash by op: of all delegates, and of sessions that have ended */
	TAILQ_HEAD(, zd_delegate) to_send; /* those with something for their channel */
	/* Of a packet that is read, or of one that is made: the loop flushes connections between packets. */
	struct zd_arena messages;
};

/* The session of a delegate. */
struct zd_delegate_session {
	struct zd_conns *conns;
	struct zd_conn *conn;
	bool sums;  /* its client is asked for sums; else it is told of segments alone */
	bool ahead; /* it knows ZD_FEATURE_WORK_AHEAD */
	/* Announces the segment on the connection, unless the client has it. SYSTEM without a descriptor. */
	int (*announce)(void *arg, uint32_t segment);
	void *arg;
};

void zd_delegates_init(struct zd_delegates *delegates, struct zd_bridge *bridge);
/* When the engine is gone. */
void zd_delegates_deinit(struct zd_delegates *delegates);

/* Gives an admitted session its channel. Both descriptors are the client's ends, and the caller's.
 * Errors: SYSTEM, NO_MEMORY. */
int zd_delegate_open(struct zd_delegates *delegates, uint64_t session,
                     const struct zd_delegate_session *above, struct zd_delegate **delegate, int *channel_fd,
                     int *page_fd, struct zd_err *err) __attribute__((warn_unused_result));
void zd_delegate_use_rings(struct zd_delegate *delegate, struct zd_ring *to_client, struct zd_ring *answers);
/* A segment has been named on the session's connection to be unmapped: the client is told to look there. */
void zd_delegate_note_retired(struct zd_delegate *delegate);
/* The engine has let the session go, the backend not yet. The sums end with ABORTED: now, or, where the
 * process may still use its devices, when it cannot any more. NULL is allowed. */
void zd_delegate_close(struct zd_delegate *delegate);

/* Whether a delegate has taken the command. A completion with its op comes to the engine. */
bool zd_delegates_submit(struct zd_delegates *delegates, const struct zd_command *command);
/* A command of the backend's has ended. What a sum has come to is filled in. */
void zd_delegates_completed(struct zd_delegates *delegates, struct zd_completion *completion);
/* All connections have been flushed: sends what is to follow. */
void zd_delegates_flush(struct zd_delegates *delegates);

/* Does the session's client wait for fences? Has it sums under way? */
bool zd_delegates_sum_ahead(const struct zd_delegates *delegates, uint64_t session);
bool zd_delegates_are_summing(const struct zd_delegates *delegates, uint64_t session);

#endif
