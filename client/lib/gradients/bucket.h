/* SPDX-License-Identifier: Apache-2.0 */
/* bucket.h - buckets and their entries. Several gradients of a unit can share an entry. */
#ifndef ZD_CLIENT_BUCKET_H
#define ZD_CLIENT_BUCKET_H

#include "client/lib/base/fence.h"
#include "client/lib/base/handles.h"
#include "client/lib/conn/request.h"
#include "client/lib/streams/stream.h"

/* A reservation in a bucket, until the caller submits it (entry.c). */
struct zc_reserved {
	struct zc_unit *unit; /* with a reference */
	enum zerod_dtype dtype;
	bool claimed;     /* a call is using it */
	struct zc_op *op; /* NULL: the daemon has answered */
	uint64_t entry;
	struct zc_location location;
	struct zc_fences fences;
	struct zc_accumulation *sum; /* NULL: the gradient is one commit (accumulate.c) */
	uint64_t made;               /* the number of the client's earlier requests */
	LIST_ENTRY(zc_reserved) link;
};

/* An entry to which several gradients of one unit are added, until the backward's end submits it. */
struct zc_accumulation {
	uint32_t ngradients; /* number of submitted gradients */
	bool open;           /* a gradient is being added: reserved, and not submitted */
	struct zerod_reduce_options options;
	uint32_t nfences; /* after all its writers: the last one of each timeline */
	struct zc_fence fences[ZD_MAX_FENCES];
};

struct zerod_bucket {
	struct zerod_group *group;
	uint64_t id;
	enum zerod_dtype dtype;
	struct zc_kept_request *created;   /* as the group's `joined` */
	LIST_HEAD(, zc_reserved) reserved; /* not returned to a caller yet */
	LIST_HEAD(, zc_reserved) given;    /* not submitted yet */
	LIST_ENTRY(zerod_bucket) link;
};

/* ---- reduce.c ------------------------------------------------------------------------------------------ */

/* Frees the handle. With the lock. */
void zc_bucket_free(struct zerod_bucket *bucket);
/* Frees the reservations of all the group's buckets from before the request with that id. With the lock. */
void zc_buckets_forget(struct zerod_group *group, uint64_t request);
/* Creates all buckets again, except those that a failed attempt has already created (reconnect.c). Without a
 * lock. */
int zc_buckets_rejoin(struct zerod_group *group, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- submit.c ------------------------------------------------------------------------------------------ */

/* The way to send a request whose reply has only a status. */
struct zc_sending {
	const struct zc_ticket_type *type;
	const char *word; /* for a detached request's failure */
	struct zc_unit *unit;
	bool detached;
	zerod_ticket *ticket; /* NULL: blocks, unless it is detached */
};

/* Sends the request in that way. */
int zc_entry_send(struct zerod_client *client, const struct zc_sending *sending, Zd__Request *request,
                  uint32_t deadline_ms, struct zd_err *err) __attribute__((warn_unused_result));
int zc_entry_submit(struct zerod_client *client, const struct zerod_bucket *bucket, uint64_t entry_id,
                    const struct zc_fence_args *fences, const struct zerod_reduce_options *options,
                    const struct zc_sending *sending, struct zd_err *err) __attribute__((warn_unused_result));
/* Frees the object, whose entry now belongs to the daemon. With the lock. */
void zc_reserved_free(struct zc_reserved *reserved);
/* Frees the reservations from before the request with that id, whether a caller has received them or not.
 * With the lock. */
void zc_reserved_forget(struct zerod_bucket *bucket, uint64_t request);

/* ---- accumulate.c -------------------------------------------------------------------------------------- */

/* Returns the entry that accumulates the unit's gradients in this backward, or NULL. STATE while an earlier
 * gradient is not submitted. With the lock. */
int zc_accumulation_find(const struct zerod_bucket *bucket, const struct zc_unit *unit,
                         struct zc_reserved **found, struct zd_err *err) __attribute__((warn_unused_result));
/* Adds a gradient that is complete when the fences have passed. Answers the ticket (can be NULL) at once. */
int zc_accumulation_add(struct zerod_client *client, struct zc_reserved *given,
                        const struct zc_fence_args *fences, const struct zerod_reduce_options *options,
                        const struct zc_sending *sending, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Adds the fences of all accumulations of the group's buckets, whose entries are abandoned. */
int zc_accumulations_fence(struct zerod_group *group, struct zc_fence_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Submits all accumulations of the group's buckets, detached. */
int zc_accumulations_submit(struct zerod_group *group, struct zd_err *err)
        __attribute__((warn_unused_result));

static inline struct zerod_client *zc_bucket_client(const struct zerod_bucket *bucket)
{
	return bucket ? bucket->group->client : NULL;
}

#endif
