/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - requests from their ids to their answers: alone or in batches, with a blocked caller, with a
 * ticket, or detached.
 *
 * The library assigns an id and an op to a request, packs it, and sends it at once or puts it into its
 * thread's batch (cork.c). The library has no reader thread. One of the threads that wait for answers, the
 * leader, reads the socket and completes the ops of all answers. When the leader has its own answer, another
 * waiting thread becomes the leader (receive.c). A round trip therefore wakes only the calling thread.
 */
#ifndef ZD_CLIENT_REQUEST_H
#define ZD_CLIENT_REQUEST_H

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include <zerod.h>

#include "base/err.h"
#include "client/lib/base/client.h"
#include "client/lib/base/fence.h"
#include "client/lib/base/location.h"
#include "proto/endpoint.h"
#include "proto/envelope.h"
#include "proto/limits.h"
#include "proto/zerod.pb-c.h"

struct zc_lease;
struct zc_unit;

/* An unpacked packet of the daemon, shared by the callers whose replies it carries. */
struct zc_packet {
	unsigned refs;
	struct zd_arena arena;
};

enum zc_op_kind {
	ZC_OP_CALL,     /* a caller waits for the reply; the op is on its stack */
	ZC_OP_GATHER,   /* a ticket, valid while its lease lasts */
	ZC_OP_PREFETCH, /* a ticket without a lease, consumed by the first wait */
	ZC_OP_RELEASE,  /* as PREFETCH */
	ZC_OP_DETACHED, /* no ticket: the next call reports a failure (detached.c) */
	ZC_OP_OTHER,    /* a ticket of another call, whose functions are in `type` */
};

struct zc_op;

/* Takes the reply to a request that was granted. PROTOCOL: the reply is invalid. */
typedef int zc_take_fn(const Zd__Reply *reply, void *object, struct zd_err *err);

/* The functions of one call's tickets. NULL functions do nothing. */
struct zc_ticket_type {
	const char *what; /* DETACHED: "release", for error texts; a literal. NULL: reports nothing */
	/* True: zerod_wait() accepts a stream, which then waits for op->fences and for the fences that
	 * settle() adds. False: a wait returns when the daemon has answered, and accepts no stream. */
	bool takes_stream;
	/* Called with the lock by post.c before the request is sent. */
	void (*posted)(struct zerod_client *client, struct zc_op *op);
	Zd__Reply__BodyCase body; /* of the replies that answered() receives; NOT_SET: any */
	/* Called with the lock when the daemon has granted the request. An error means an invalid reply: the
	 * connection ends. */
	int (*answered)(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
	                struct zd_err *err);
	/* Called with the lock when the daemon has rejected the request, or will not answer any more.
	 * op->status has the reason. */
	void (*failed)(struct zerod_client *client, struct zc_op *op);
	/* Called without the lock when the request is granted: does this process's part before the stream
	 * (NULL: the calling thread) continues. Adds the fences to be awaited, on the client's page, to
	 * `copied`. */
	int (*settle)(struct zerod_client *client, struct zc_op *op, zerod_stream *stream,
	              struct zc_fence_merge *copied, struct zd_err *err);
	/* Frees op->data. Called with the lock. */
	void (*deinit)(struct zerod_client *client, struct zc_op *op);
};

/*
 * A request. The op is in the client's table from its submission until it has been answered (CALL), consumed,
 * or released (tickets). A ticket is valid while its op is in the table.
 */
struct zc_op {
	uint64_t id;
	enum zc_op_kind kind;
	bool sent;     /* false: the request is in a batch */
	bool answered; /* status is set */
	bool stale;    /* the lease ended before the answer arrived */
	int status;
	LIST_ENTRY(zc_op) in_table;

	/* CALL: the packet is referenced until zc_packet_unref(); both NULL when the connection broke. */
	const Zd__Reply *reply;
	struct zc_packet *packet;

	/* tickets */
	const struct zc_ticket_type *type; /* OTHER, GATHER; DETACHED: or NULL */
	void *data;                        /* the type's */
	uint64_t group;                    /* the id, of zc_post_for_group() */
	unsigned refs;                     /* the table's, and one for each thread that waits */
	bool finished;                     /* in the client's list of finished tickets */
	bool waited;                       /* GATHER: a wait has returned its buffer's address */
	uint32_t deadline_ms;
	char *error;            /* the daemon's text; NULL: none, or no memory for a copy */
	uint32_t uses;          /* GATHER: the uses that the op has added to its lease; 0 in a scope */
	const char *what;       /* DETACHED: "release", for error texts; NULL: failures are not reported */
	struct zc_unit *unit;   /* NULL: of no unit */
	struct zc_lease *lease; /* GATHER: until the lease ends or the gather fails */
	TAILQ_ENTRY(zc_op) in_queue; /* of its lease, or of finished tickets */

	/* Once answered with 0 */
	struct zc_location buffer; /* GATHER; empty if it is in place: */
	struct zc_frames frames;
	struct zc_fences fences; /* GATHER, and OTHER if streams can wait: on the daemon's page */
};

/* A thread that sleeps until its op is answered (op NULL: until any op is), or until it must read. */
struct zc_waiter {
	pthread_cond_t wake;
	const struct zc_op *op;
	TAILQ_ENTRY(zc_waiter) link;
};

/* The requests that one thread has collected in its cork. Only that thread accesses it, except for `link`. */
struct zc_batch {
	uint64_t thread; /* zc_thread_serial() */
	unsigned depth;
	struct zd_err failure; /* of the first packet that could not be sent */
	unsigned count;
	uint64_t ids[ZD_MAX_BATCH];
	size_t nbytes;
	uint8_t bytes[ZD_MAX_PACKET_BYTES];
	LIST_ENTRY(zc_batch) link;
};

/* ---- ticket.c ------------------------------------------------------------------------------------------ */

/* Gives the op an id, which becomes the request's, and adds the op to the table. Without the lock. */
void zc_op_add(struct zerod_client *client, struct zc_op *op, Zd__Request *request);
/* Adds a ticket that needs no request to the table, answered with success. Returns its id. Without the
 * lock. */
uint64_t zc_op_done(struct zerod_client *client, struct zc_op *op);
/* Creates the op of a ticket or detached request, with one reference, which the table then owns. Returns NULL
 * without memory. `unit` can be NULL. Without the lock. */
struct zc_op *zc_op_new(struct zerod_client *client, enum zc_op_kind kind, struct zc_unit *unit,
                        uint32_t deadline_ms, struct zd_err *err);
/* Creates an op of kind OTHER, which owns `data`. After an error the caller still owns `data`. */
struct zc_op *zc_op_new_other(struct zerod_client *client, const struct zc_ticket_type *type, void *data,
                              struct zc_unit *unit, uint32_t deadline_ms, struct zd_err *err);
/* Implements a type's deinit() for `data` from malloc(). */
void zc_ticket_free_data(struct zerod_client *client, struct zc_op *op);
/* Frees an op that was not posted. Without the lock. */
void zc_ticket_withdraw(struct zerod_client *client, struct zc_op *op);
/* All functions below: with the lock. */

struct zc_op *zc_op_find(struct zerod_client *client, uint64_t id);
void zc_op_remove(struct zc_op *op);
/* Handles the daemon's answer to a ticket. PROTOCOL: the answer is invalid. */
int zc_ticket_answer(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                     struct zd_err *err) __attribute__((warn_unused_result));
/* Removes a ticket that is not needed any more from the table, at once or when it is answered. */
void zc_ticket_drop(struct zerod_client *client, struct zc_op *op);
void zc_ticket_unref(struct zerod_client *client, struct zc_op *op);
void zc_tickets_free(struct zerod_client *client);
/* Answers the op with a failure of this process: the request could not be sent, or the connection broke. */
void zc_op_fail(struct zerod_client *client, struct zc_op *op, const struct zd_err *err);

/* ---- waiters.c ----------------------------------------------------------------------------------------- */

/* All with the lock held, which they release while they block. */

/* Wakes the threads that wait for the op, which is answered. */
void zc_wake(struct zerod_client *client, const struct zc_op *op);
/* Wakes another waiting thread, which can then become the leader. Called by a thread that stops waiting. */
void zc_hand_over(struct zerod_client *client);
/* Initializes a condition with deadlines of zc_now_ns()'s clock. */
void zc_cond_init(pthread_cond_t *wake);
/* As zc_ask(), with the lock, which is released in between. */
bool zc_ask_locked(struct zerod_client *client, uint64_t *due_ns);
/* Waits on the condition, with the lock, and asks the program. Returns 0, DEADLINE or INTERRUPTED, without a
 * text. */
int zc_cond_await(struct zerod_client *client, pthread_cond_t *wake, uint64_t deadline_ns, uint64_t *due_ns);
/* Sleeps until another thread has read, or the deadline has passed. */
void zc_waiter_sleep(struct zerod_client *client, const struct zc_op *op, uint64_t deadline_ns);
/* Returns the room of `count` requests that will not be sent. With the lock. */
void zc_outstanding_return(struct zerod_client *client, unsigned count);

/* ---- receive.c ----------------------------------------------------------------------------------------- */

bool zc_hello_has_feature(const Zd__HelloReply *hello, const char *feature);
/* All with the lock held, which they release while they block. */

/* Reads one packet, and returns whether one arrived within the timeout. With `or_writable` also returns when
 * the socket has room. No other thread may be reading. */
bool zc_read(struct zerod_client *client, int timeout_ms, bool or_writable);
/* Reads all packets that have arrived, unless another thread is reading. */
void zc_drain(struct zerod_client *client);
/* Reads, or sleeps until another thread has read. False when the deadline has passed. */
bool zc_wait_progress(struct zerod_client *client, const struct zc_op *op, uint64_t deadline_ns);
/* Waits until the op is answered. Returns DEADLINE or INTERRUPTED, without a text, if the wait ends
 * earlier. */
int zc_wait_answer(struct zerod_client *client, const struct zc_op *op, uint64_t deadline_ns)
        __attribute__((warn_unused_result));
/* Waits in naps until a descriptor is ready or the time has come, and returns whether one is ready. It naps
 * because a processor that has been idle for long takes hundreds of microseconds to wake up. Needs no
 * lock. */
bool zc_nap(struct pollfd *fds, nfds_t nfds, uint64_t until_ns);
/* Ends the connection: all outstanding ops are answered with err->status and its text. Only the first call
 * has an effect. */
void zc_break(struct zerod_client *client, const struct zd_err *err);
void zc_packet_unref(struct zerod_client *client, struct zc_packet *packet);
void zc_packet_free(struct zc_packet *packet);

/* ---- pack.c -------------------------------------------------------------------------------------------- */

#define ZC_SMALL_REQUEST_BYTES 1024u /* packed on the stack */

/* A packet of one request. A packet of several requests is their concatenation, because protobuf concatenates
 * repeated fields. */
struct zc_packed {
	uint8_t small[ZC_SMALL_REQUEST_BYTES];
	uint8_t *large; /* NULL: in `small` */
	uint8_t *bytes;
	size_t nbytes;
};

/* Packs the request. The caller frees packed->large. LIMIT: the request is too large. */
int zc_pack(const Zd__Request *request, struct zc_packed *packed, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- transmit.c ---------------------------------------------------------------------------------------- */

/* Returns the number of packets that the client has sent. */
uint64_t zc_packets_sent(const struct zerod_client *client);
/* Whether the daemon has closed the connection, also if no call has noticed it yet. A daemon that ends closes
 * all connections before it aborts a fence: the end explains the abort. With or without the lock. */
bool zc_is_hung_up(const struct zerod_client *client);
/* Reads the last packets of a connection that the daemon has closed, which can contain the reason. Otherwise
 * `err` is the reason. Returns the status with which the connection broke. Without the lock. */
int zc_read_last_words(struct zerod_client *client, struct zd_err *err);
/* Sends a packet with the requests `ids`, which have room, and waits for the daemon to read its socket until
 * the deadline. On failure fails their ops, and returns their room. */
int zc_transmit(struct zerod_client *client, const uint8_t *bytes, size_t nbytes, const uint64_t *ids,
                unsigned nids, uint64_t deadline_ns, struct zd_err *err) __attribute__((warn_unused_result));
/* Ends a request in the daemon as its deadline would. Without the lock. */
void zc_transmit_cancel(struct zerod_client *client, uint64_t id);
/* Reports unmapped segments to the daemon, unless another thread is sending: that thread then reports the
 * segments afterwards. Without the lock. */
void zc_transmit_unmapped(struct zerod_client *client);

/* ---- outstanding.c ------------------------------------------------------------------------------------- */

/* Reserves room for `count` requests of this kind. With `deadline_ns` 0 the call does not wait for room, and
 * the error is LIMIT. Otherwise the error is DEADLINE. Without the lock. */
int zc_outstanding_reserve(struct zerod_client *client, Zd__Request__BodyCase body, unsigned count,
                           uint64_t deadline_ns, struct zd_err *err) __attribute__((warn_unused_result));
/* With the lock. Drains if more than ZC_DRAIN_ABOVE requests are outstanding, besides `unsent` ones: replies
 * that no thread waits for must not pile up in the daemon. */
void zc_outstanding_drain(struct zerod_client *client, unsigned unsent);

/* ---- cork.c -------------------------------------------------------------------------------------------- */

/* Returns the calling thread's batch, or NULL if the thread has no cork. */
struct zc_batch *zc_batch_find(struct zerod_client *client);
/* Adds a packed request. If it does not fit, first sends the batch. If the batch cannot be sent, the op is
 * answered with the failure. */
void zc_batch_add(struct zerod_client *client, struct zc_batch *batch, const uint8_t *bytes, size_t nbytes,
                  uint64_t id);
/* Adds a request with an awaited answer, and sends the batch. */
int zc_batch_add_last(struct zerod_client *client, struct zc_batch *batch, const uint8_t *bytes,
                      size_t nbytes, uint64_t id, uint64_t deadline_ns, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Sends the calling thread's batch. Every blocking call does this first. On failure the ops and
 * zerod_uncork() receive the failure. */
void zc_flush(struct zerod_client *client);
void zc_batches_free(struct zerod_client *client);

/* ---- request.c ----------------------------------------------------------------------------------------- */

/* Reserves room for one request with an awaited answer, and waits for room until the deadline. The request
 * then has the remaining time. */
int zc_outstanding_await(struct zerod_client *client, Zd__Request *request, uint64_t deadline_ns,
                         struct zd_err *err) __attribute__((warn_unused_result));
/* The halves of zc_call(), for concurrent requests. The first one sends the request of a CALL, whose
 * deadline_ms is set, or puts the request into the thread's batch, which the caller flushes before the other
 * half. After an error there is no request. Without the lock. */
int zc_call_begin(struct zerod_client *client, struct zc_op *op, Zd__Request *request, uint64_t deadline_ns,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* Waits for the reply, and hands it to `take`, as zc_call_take() does. */
int zc_call_end(struct zerod_client *client, struct zc_op *op, uint64_t deadline_ns, Zd__Reply__BodyCase body,
                zc_take_fn *take, void *object, struct zd_err *err) __attribute__((warn_unused_result));
/* Sends the request of an op other than a CALL, or puts the request into the thread's batch. The op has
 * reserved room. The table owns the op from then on. On failure the op is freed, and its room returned. */
int zc_post(struct zerod_client *client, struct zc_op *op, Zd__Request *request, struct zd_err *err)
        __attribute__((warn_unused_result));
/* As zc_wait_answer(), for the op of the call itself. If the program interrupts the wait, the daemon ends the
 * request, whose answer then has the status INTERRUPTED. */
int zc_wait_own_answer(struct zerod_client *client, struct zc_op *op, uint64_t deadline_ns)
        __attribute__((warn_unused_result));
/* Checks that the reply has the body that the request expects. NOT_SET: any. Errors: PROTOCOL. */
int zc_check_body(const Zd__Reply *reply, Zd__Reply__BodyCase body, struct zd_err *err)
        __attribute__((warn_unused_result));

/*
 * Fills request->id and request->deadline_ms, sends the request and waits for its reply. `deadline_ms` is as
 * in zerod.h: 0 is the client's default, ZEROD_NO_DEADLINE no deadline. It is the deadline of all waits of
 * the call: for room, for the socket, and for the reply, which can arrive a grace period later. Returns the
 * reply's status if it is not 0 (its text is then in zerod_last_error()), otherwise the result of `take`.
 * `take` receives a reply with this body, runs on the calling thread, can be NULL, and can use the reply only
 * during the call. If it returns PROTOCOL, the connection is ended.
 */
ZEROD_MUST_USE int zc_call_take(zerod_client *client, Zd__Request *request, uint32_t deadline_ms,
                                Zd__Reply__BodyCase body, zc_take_fn *take, void *object);
/* As zc_call_take(), for programs that check the body themselves. */
ZEROD_MUST_USE int zc_call(zerod_client *client, Zd__Request *request, uint32_t deadline_ms,
                           int (*fn)(const Zd__Reply *reply, void *arg), void *arg);

/* ---- post.c -------------------------------------------------------------------------------------------- */

/* Sends a request, or puts it into the thread's batch, and creates its ticket. `unit` can be NULL.
 * `deadline_ms` is the caller's option. Owns `data`, for the type's deinit(), also after an error. Without
 * the lock. */
int zc_post_other(struct zerod_client *client, const struct zc_ticket_type *type, void *data,
                  struct zc_unit *unit, Zd__Request *request, uint32_t deadline_ms, zerod_ticket *ticket,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* Sends a request about the unit without a ticket, or puts the request into the thread's batch. After an
 * error the request was not sent. `what`, a string literal, names the request in the text of a later
 * failure. */
int zc_post_detached(struct zerod_client *client, struct zc_unit *unit, const char *what,
                     Zd__Request *request, struct zd_err *err) __attribute__((warn_unused_result));
/* Sends a request about the group, with a ticket or without (NULL). The type's functions find the group by
 * op->group, unless the rank has left. `what` is a call of zerod.h, or NULL. */
int zc_post_for_group(zerod_group *group, const struct zc_ticket_type *type, const char *what,
                      Zd__Request *request, zerod_ticket *ticket, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
