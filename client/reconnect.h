/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reconnect.h - a client that outlives its daemon: threads inside the client, requests that are repeated
 * to the next daemon, and ids that are valid for one connection.
 */
#ifndef ZC_RECONNECT_H
#define ZC_RECONNECT_H

#include <stddef.h>
#include <stdint.h>

#include <zerod.h>

#include "base/err.h"
#include "proto/zerod.pb-c.h"

/* ---- Threads inside ------------------------------------------------------------------------------------ */

struct zc_inside {
	struct zerod_client *client; /* NULL: the thread was inside already, or the client never reconnects */
	const struct zerod_client *before;
};

/* Declares that the thread is inside of the client (NULL: of none) until the end of the block. Every public
 * function that accesses the connection does so before it enters; it waits while another thread connects
 * again. The thread of a host stream is inside of its client for ever. */
#define ZC_INSIDE(client)                                                                                    \
	struct zc_inside inside __attribute__((cleanup(zc_inside_end), unused)) = zc_inside_begin(client)
struct zc_inside zc_inside_begin(struct zerod_client *client);
void zc_inside_end(struct zc_inside *inside);
void zc_inside_stay(const struct zerod_client *client);

/* zc_enter() and zc_enter_quietly() for the group's client. RESTARTED while the group is not joined again. */
int zc_enter_group(const struct zerod_group *group, struct zd_err **err) __attribute__((warn_unused_result));
int zc_enter_group_quietly(const struct zerod_group *group, struct zd_err **err)
        __attribute__((warn_unused_result));

/* ---- repeat.c ------------------------------------------------------------------------------------------ */

struct zc_kept_request {
	size_t nbytes;
	uint8_t bytes[];
};

/* Copies a request that was granted; NULL: no memory, or the client never reconnects. Owned: free(). */
struct zc_kept_request *zc_request_keep(const struct zerod_client *client, const Zd__Request *request);
/* Objects of one kind, each of which was made by a request of this client. */
struct zc_repeat {
	const struct zc_kept_request *(*kept)(const void *object);
	/* Takes the reply to a request that was granted, as zc_call()'s `fn` does. */
	int (*take)(const Zd__Reply *reply, void *object, struct zd_err *err);
	/* Names the object in the text of its failure. NULL: the text says enough. */
	void (*explain)(const void *object, struct zd_err *err);
};

/* Sends the requests of all objects again, with the group's present id, in this order and in full packets.
 * After a failure, which is the first one, some of the objects have been made again. */
int zc_requests_repeat(struct zerod_group *group, const struct zc_repeat *repeat, void *const *objects,
                       size_t count, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- Ids that callers have ----------------------------------------------------------------------------- */

/* Returns the caller's id of an object of the daemon. If the client reconnects, the number of the connection
 * replaces the bits above the kind. 0 is 0. */
uint64_t zc_id_give(const struct zerod_client *client, uint64_t id);
/* Returns in *id the daemon's id. RESTARTED if it was given during a former connection. */
int zc_id_take(const struct zerod_client *client, uint64_t given, const char *what, uint64_t *id,
               struct zd_err *err) __attribute__((warn_unused_result));

/* ---- The connection ------------------------------------------------------------------------------------ */

/* Connects the client again if its daemon has ended, and joins the group again if that is due. Without a
 * lock, by a thread that is not inside. */
int zc_group_restore(struct zerod_group *group, struct zd_err *err) __attribute__((warn_unused_result));
/* Makes the loss of the connection, as `err` has it, RESTARTED in a client that reconnects. */
void zc_loss_explain(const struct zerod_client *client, struct zd_err *err);

#endif
