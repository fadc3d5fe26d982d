/* SPDX-License-Identifier: Apache-2.0 */
/*
 * delegate.h - sums by client processes: the process of the target's rank computes the sum on its own GPU, in
 * place of the backend.
 *
 * A session whose client accepts work has a delegate: a channel, and a page into which the client's GPUs
 * write results. The bridge offers each REDUCE of the engine to the delegates first. A delegate sends an
 * accepted sum to the client. The sum ends when the fence in the client's answer has passed. If the client
 * cannot start a sum, the sum is submitted to the backend. The backend cannot start sums with fences: it ends
 * them with `not_begun`, and the engine submits them again without fences.
 */
#ifndef ZD_SERVER_DELEGATE_H
#define ZD_SERVER_DELEGATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "core/engine.h"
#include "proto/frame.h"

struct zd_bridge;
struct zd_command;
struct zd_completion;
struct zd_conn;
struct zd_conns;
struct zd_delegate;
struct zd_delegate_sum;
struct zd_ring;

/* The delegates of a bridge. */
struct zd_delegates {
	struct zd_bridge *bridge;
	struct zd_delegate *all;      /* uthash by session */
	struct zd_delegate_sum *sums; /* uthash by op: of all delegates, and of sessions that have ended */
	TAILQ_HEAD(, zd_delegate) to_send; /* delegates that have a packet to send */
	/* For the packet under construction, or being unpacked. Connections are flushed between packets: one
	 * arena suffices. */
	struct zd_arena messages;
};

/* The session of a delegate, and the functions that it needs. */
struct zd_delegate_session {
	struct zd_conns *conns;
	struct zd_conn *conn;
	bool sums;  /* the client accepts sums; false: only notices about segments */
	bool ahead; /* the client has ZD_FEATURE_WORK_AHEAD */
	/* Announces the segment on the connection, unless the client has it. SYSTEM if it has no
	 * descriptor. */
	int (*announce)(void *arg, uint32_t segment);
	void *arg;
};

void zd_delegates_init(struct zd_delegates *delegates, struct zd_bridge *bridge);
/* Frees the object. Called after the engine was freed. */
void zd_delegates_deinit(struct zd_delegates *delegates);

/* Creates a session's channel and result page. Both descriptors are for the client, and the caller owns them.
 * Errors: SYSTEM, NO_MEMORY. */
int zd_delegate_open(struct zd_delegates *delegates, uint64_t session,
                     const struct zd_delegate_session *owner_session, struct zd_delegate **delegate,
                     int *channel_fd, int *page_fd, struct zd_err *err) __attribute__((warn_unused_result));
void zd_delegate_use_rings(struct zd_delegate *delegate, struct zd_ring *to_client, struct zd_ring *answers);
/* Notifies the client by the channel that the session's connection has a message about a segment to unmap. */
void zd_delegate_note_retired(struct zd_delegate *delegate);
/* Called after the engine has closed the session, and before the backend does. The sums end with ABORTED: at
 * once, or, when sessions linger, when the process can no longer use its devices. NULL is allowed. */
void zd_delegate_close(struct zd_delegate *delegate);

/* Returns whether a delegate has accepted the command. The engine then receives a completion with the
 * command's op. */
bool zd_delegates_submit(struct zd_delegates *delegates, const struct zd_command *command);
/* Reports the end of a command of the backend. Fills in the result if the command belongs to a sum. */
void zd_delegates_completed(struct zd_delegates *delegates, struct zd_completion *completion);
/* Sends packets to clients. Must be called after all connections were flushed (struct zd_conns' `flushed`;
 * `arg` is the delegates). */
void zd_delegates_flush(void *arg);

/* Whether the session's client waits for the fences of sums. */
bool zd_delegates_sum_ahead(const struct zd_delegates *delegates, uint64_t session);
/* As struct zd_engine_sink's `sums`. */
enum zd_sums_state zd_delegates_sums(const struct zd_delegates *delegates, uint64_t session);

#endif
