/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.h - the objects of which a program has handles, and the calls between their files: groups, units,
 * leases, buckets and their entries, allocations.
 */
#ifndef ZD_CLIENT_OBJECTS_H
#define ZD_CLIENT_OBJECTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include <zerod.h>

#include "base/err.h"
#include "client/fence.h"
#include "client/options.h"
#include "client/reconnect.h"
#include "client/request.h"
#include "client/segment.h"
#include "proto/limits.h"
#include "proto/zerod.pb-c.h"

/* The uses under one tag that this session may still release. The lease ends when uses_left is 0. */
struct zc_lease {
	char tag[ZD_MAX_TAG_BYTES + 1];
	struct zc_unit *unit;
	uint64_t uses_left;
	struct zc_op_queue tickets; /* oldest first */
	uint64_t ntickets;
	struct zc_hold_list holds; /* strict: pages that the lease's waits have opened, newest first */
	uint64_t scope;            /* of the scope that holds it, until the scope's end; 0: the tag's */
	LIST_ENTRY(zc_lease) link, scope_link;
};

/* A unit of the daemon, shared by all handles of the unit and by its ops. */
struct zc_unit {
	uint64_t id;                     /* 0: not registered with the present daemon */
	uint64_t former_id, description; /* for units_resume (resume.c); description 0: not to be resumed */
	unsigned refs;                   /* handles and ops */
	unsigned handles;                /* unregistering the last one sends the request */
	enum zerod_dtype dtype, target_dtype;
	bool all_reduce;
	bool on_host;
	bool frozen;
	bool untargeted; /* its sums have no place in the target */
	bool persistent;
	uint32_t slot;
	bool first_frozen, first_persistent, first_on_host; /* as registered */
	uint32_t first_slot;
	struct zc_kept_request *registered; /* as the group's `joined` */
	bool target_lent; /* this client may access the unit's place in the target (target.c) */
	uint64_t lent_in; /* the group's `nbackwards` then */
	bool updating;    /* between update_begin and publish, as far as this client knows */
	bool granted;     /* the daemon has granted an update_begin that then failed, or is unawaited */
	bool unawaited;   /* an update_begin with a ticket, whose shard may not be written yet */
	struct zc_location shard, target_place;
	uint64_t shard_numel, true_numel, offset_numel, padded_numel, numel;
	uint64_t target_offset_numel;
	uint64_t target_numel, target_true_numel; /* in this rank's target */
	uint64_t version;
	uint64_t listed;          /* the last list that contains the unit (zc_units_take()) */
	struct zc_op *publishing; /* a publish with a ticket that has not been answered; NULL: none */
	LIST_HEAD(, zc_lease) leases;
	struct zc_hold_list kept; /* strict: of a persistent copy; one or none */
	UT_hash_handle hh;
	char name[ZD_MAX_UNIT_NAME_BYTES + 1];
};

struct zerod_unit {
	struct zerod_group *group;
	struct zc_unit *shared;
	LIST_ENTRY(zerod_unit) link;
};

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
	uint32_t ngradients; /* submitted so far */
	bool open;           /* a gradient is being added: reserved, and not submitted */
	struct zerod_reduce_options options;
	uint32_t nfences; /* behind all its writers: the last one of each timeline */
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

struct zerod_group {
	struct zerod_client *client;
	uint64_t id;
	uint32_t nshards, shard; /* of each unit, and the index of this rank's */
	bool shadow;
	uint32_t device;
	struct zc_kept_request
	        *joined;         /* for zerod_group_get() after a restart; NULL: it cannot be joined again */
	atomic_bool restarted;   /* it is to be joined again */
	bool rejoining;          /* by a thread */
	uint64_t committed_step; /* at the join, and by zerod_commit() since */
	bool torn;
	/* The flat targets between step_begin and step_end, the second one of units on the host. While a
	 * reset is under way they are in doubt: the daemon may be freeing them, as the group has failed. */
	bool target_bound, target_in_doubt;
	struct zc_location targets[2];
	enum zerod_dtype target_dtype;
	struct zc_location scalars; /* of the bound target; segment 0: none */
	bool stepped_ahead;         /* the step was begun with a ticket: its end need not be awaited */
	/* The last zerod_step_end() that has not been answered, and one before it; NULL: none. */
	struct zc_op *step_ending, *step_ending_before;
	uint64_t nbackwards;      /* begun by this handle */
	uint64_t backward_ending; /* the last ticket of a backward's end; 0: none, or reported */
	LIST_HEAD(, zerod_unit) units;
	LIST_HEAD(, zerod_bucket) buckets;
	LIST_ENTRY(zerod_group) link;
};

struct zerod_allocation {
	struct zerod_client *client;
	uint64_t id; /* 0: of a daemon that has ended */
	LIST_ENTRY(zerod_allocation) link;
};

/* ---- group.c, unit.c ----------------------------------------------------------------------------------- */

/* Free the object, or drop a reference. With the lock. */
void zc_group_free(struct zerod_group *group);
void zc_unit_handle_free(struct zerod_unit *unit);
void zc_unit_unref(struct zc_unit *unit);
/* Return the bytes of the unit's shard and of its whole gathered buffer. */
uint64_t zc_unit_shard_bytes(const struct zc_unit *unit);
uint64_t zc_unit_bytes(const struct zc_unit *unit); /* without padding */
uint64_t zc_unit_padded_bytes(const struct zc_unit *unit);
/* Return the handle's client; NULL for NULL. */
struct zerod_client *zc_unit_client(const struct zerod_unit *unit);
struct zerod_client *zc_group_client(const struct zerod_group *group);
/* Returns the handle's group; NULL for NULL. */
const struct zerod_group *zc_unit_group(const struct zerod_unit *unit);
/* Join, register all units, and create all buckets again, as at first, but for those that a failed attempt
 * has made again (reconnect.c). Without a lock. */
int zc_group_rejoin(struct zerod_group *group, struct zd_err *err) __attribute__((warn_unused_result));
int zc_units_rejoin(struct zerod_group *group, struct zd_err *err) __attribute__((warn_unused_result));
int zc_buckets_rejoin(struct zerod_group *group, struct zd_err *err) __attribute__((warn_unused_result));
/* Registers the units again that the present daemon has kept, with few requests (resume.c); the others have
 * id 0 afterwards. Without a lock. */
int zc_units_resume(struct zerod_group *group, struct zerod_unit *const *units, size_t count,
                    struct zd_err *err) __attribute__((warn_unused_result));
/* Fills in what the daemon has said of the unit, and adds it to the table. With the lock. */
int zc_unit_place(struct zerod_group *group, struct zc_unit *unit, const Zd__UnitRegisterReply *reply,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* Finds the group; NULL if the rank has left. With the lock. */
struct zerod_group *zc_group_find(const struct zerod_client *client, uint64_t id);

/* Copies the options, with defaults, and checks all but those that collectives.c checks. */
int zc_group_options(const struct zerod_group_options *given, struct zerod_group_options *options,
                     struct zd_err *err) __attribute__((warn_unused_result));

/* ---- collectives.c ------------------------------------------------------------------------------------- */

/* Checks the options about daemons and collectives, after all others; a local_world_size of 0 becomes the
 * group's. */
int zc_collectives_check(const struct zerod_client *client, struct zerod_group_options *options,
                         struct zd_err *err) __attribute__((warn_unused_result));
/* Packs the same options; the caller still owns the ids. */
void zc_collectives_pack(const struct zerod_group_options *options, Zd__GroupJoin *join);
/* Sets the index of the rank's shard in each unit. */
void zc_collectives_place(const struct zerod_group_options *options, struct zerod_group *group);

/* ---- gather.c, wait.c ---------------------------------------------------------------------------------- */

/* Returns in *tag the holder's name, or the default name if `given` is NULL. Errors: INVALID. */
int zc_tag_choose(const char *given, const char **tag, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the tag for messages, which leave out the default tag. */
char *zc_tag_wire(const char *tag);
/* Implements zerod_wait_many() for a client that has been entered. */
int zc_wait_many(struct zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                 zerod_stream *stream, void **data, struct zd_err *err) __attribute__((warn_unused_result));
/* Waits for all tickets, which are of releases, and consumes them. Returns the first failure. */
int zc_releases_await(struct zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                      uint64_t deadline_ns, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- lease.c ------------------------------------------------------------------------------------------- */

/* All functions below: with the lock. */

/* Adds a gather's uses and its ticket to the lease of its tag. */
int zc_lease_add(struct zerod_client *client, struct zc_unit *unit, const char *tag, struct zc_op *op,
                 struct zd_err *err) __attribute__((warn_unused_result));
/* Adds a gather's ticket to the lease of a scope (not 0), which has one lease of the unit until
 * zc_scope_leases_end(), for any number of gathers. */
int zc_lease_join(struct zerod_client *client, struct zc_unit *unit, uint64_t scope, struct zc_op *op,
                  struct zd_err *err) __attribute__((warn_unused_result));
void zc_scope_leases_end(struct zerod_client *client, uint64_t scope);
/* Adds the holds of the scope's leases to `holds`; 0: of all scopes. An error leaves the list empty. */
int zc_scope_holds(struct zerod_client *client, uint64_t scope, struct zc_hold_list *holds,
                   struct zd_err *err) __attribute__((warn_unused_result));
/* Returns the pages that the tag's lease holds; NULL: there is no such lease. */
const struct zc_hold_list *zc_lease_holds(const struct zc_unit *unit, const char *tag);
/* Releases one use of the tag; the last release makes the lease's tickets stale. Does nothing without a
 * lease. */
void zc_lease_release(struct zerod_client *client, struct zc_unit *unit, const char *tag);
/* Removes the uses of a gather that has failed from the lease. */
void zc_lease_withdraw(struct zerod_client *client, struct zc_op *op);
void zc_leases_end(struct zerod_client *client, struct zc_unit *unit);

/* ---- update.c ------------------------------------------------------------------------------------------ */

/* Units of one client, by the daemon's ids. */
struct zc_unit_list {
	struct zerod_client *client;
	size_t count;
	uint64_t ids[ZD_MAX_UNITS_PER_REQUEST];
};

/* Enters the client of the first unit, and fails if another unit is not this client's. */
int zc_units_take(zerod_unit *const *units, uint32_t count, struct zc_unit_list *list, struct zd_err **err)
        __attribute__((warn_unused_result));
/* The same, for calls that fail while the session is POISONED. */
int zc_update_take(zerod_unit *const *units, uint32_t count, struct zc_unit_list *list, struct zd_err **err)
        __attribute__((warn_unused_result));
/* Reads and checks the caller's options. */
int zc_publish_options(struct zerod_publish_options *options, const struct zerod_publish_options *given,
                       struct zd_err *err) __attribute__((warn_unused_result));
/* Adds the fences, on the client's page, behind which the unit is being published. Returns false if the unit
 * is not being published, or the fences are unknown. With the lock. */
bool zc_publish_writers(const struct zc_unit *unit, struct zc_fence_merge *writers);
/* Publishes the units of the list, behind the streams. With a ticket, does not wait for the answer. */
int zc_publish(struct zc_unit_list *list, zerod_unit *const *units, zerod_stream *const *streams,
               uint32_t nstreams, const struct zerod_publish_options *options, zerod_ticket *ticket,
               struct zd_err *err) __attribute__((warn_unused_result));
/* Waits until the units' publishes were answered, or DEADLINE: until then the daemon takes no update, move or
 * commit of them. Without the lock. */
int zc_publishes_await(struct zerod_client *client, zerod_unit *const *units, uint32_t count,
                       uint64_t deadline_ns, struct zd_err *err) __attribute__((warn_unused_result));
/* Called with the lock when the session was reset: units under update in a group with shadows may have been
 * restored to the last commit. */
void zc_updates_reset(struct zerod_client *client);

/* ---- step.c -------------------------------------------------------------------------------------------- */

/* Waits until at most `left` (0, 1) of the steps that were ended without waiting are still open, or the
 * deadline has passed. Without the lock. */
int zc_step_await(zerod_group *group, uint32_t left, uint64_t deadline_ns, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- target.c ------------------------------------------------------------------------------------------ */

/* Returns the unit's place in the target, if it is lent, behind the streams that waited for it. Called before
 * the unit's next contribution. */
int zc_target_return(struct zerod_client *client, struct zc_unit *unit, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the lent places of all units of the group. in_backward: but sums without a place in the target that
 * were lent in this backward. */
int zc_targets_return(struct zerod_group *group, bool in_backward, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Records that the daemon has ended the lending of all the group's places. With the lock. */
void zc_targets_forget(struct zerod_group *group);
/* Returns all lent places if the stream, whose handle is about to be freed, waited for one. */
void zc_reader_end(const zerod_stream *stream);
/* Marks all targets as in doubt, when a reset begins, whose reply will name the steps that survive. With the
 * lock. */
void zc_targets_doubt(struct zerod_client *client);
/* Ends the doubt when the reset has ended. Targets of steps that the reply (NULL: none) does not name belong
 * to the daemon again. With the lock. */
void zc_targets_settle(struct zerod_client *client, const Zd__SessionResetReply *reply);

/* ---- reduce.c, entry.c --------------------------------------------------------------------------------- */

/* Returns PEER_LOST if the last backward's end was answered with that status and no thread has waited for its
 * ticket: the daemon reports the loss only once. */
int zc_backward_report(struct zerod_group *group, struct zd_err *err) __attribute__((warn_unused_result));
/* Frees the handle. With the lock. */
void zc_bucket_free(struct zerod_bucket *bucket);
/* Frees the reservations that were made before the request with that id, returned to a caller or not. With
 * the lock. */
void zc_reserved_forget(struct zerod_bucket *bucket, uint64_t request);
/* The same for all the group's buckets. */
void zc_buckets_forget(struct zerod_group *group, uint64_t request);

/* How to send a request whose reply is only a status. */
struct zc_sending {
	const struct zc_ticket_type *type;
	const char *word; /* for a detached request's failure */
	struct zc_unit *unit;
	bool detached;
	zerod_ticket *ticket; /* NULL: blocks, unless it is detached */
};
int zc_entry_submit(struct zerod_client *client, const struct zerod_bucket *bucket, uint64_t entry_id,
                    const struct zc_fence_args *fences, const struct zerod_reduce_options *options,
                    const struct zc_sending *sending, struct zd_err *err) __attribute__((warn_unused_result));
/* Frees the object, whose entry belongs to the daemon now. With the lock. */
void zc_reserved_free(struct zc_reserved *reserved);

/* ---- accumulate.c -------------------------------------------------------------------------------------- */

/* Finds the entry that sums up the unit's gradients in this backward; NULL: none. STATE while an earlier
 * gradient is not submitted. With the lock. */
int zc_accumulation_find(const struct zerod_bucket *bucket, const struct zc_unit *unit,
                         struct zc_reserved **found, struct zd_err *err) __attribute__((warn_unused_result));
/* Adds a gradient that is complete once the fences have passed; the ticket (NULL: none) is answered at
 * once. */
int zc_accumulation_add(struct zerod_client *client, struct zc_reserved *given,
                        const struct zc_fence_args *fences, const struct zerod_reduce_options *options,
                        const struct zc_sending *sending, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Checks that no view is absent, since the entry may have an earlier gradient of the view. Errors:
 * INVALID. */
int zc_accumulation_check(const struct zerod_reduce_options *options, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Adds the fences of all accumulations of the group's buckets, whose entries are abandoned. */
int zc_accumulations_fence(struct zerod_group *group, struct zc_fence_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Submits all accumulations of the group's buckets, detached. */
int zc_accumulations_submit(struct zerod_group *group, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- alloc.c ------------------------------------------------------------------------------------------- */

/* Allocates and maps the memory that `alloc` describes, and adds the buffer to the client's list. */
int zc_buffer_new(struct zerod_client *client, Zd__Alloc *alloc, uint64_t bytes, uint32_t deadline_ms,
                  struct zerod_allocation **buffer, struct zc_location *location, void **data,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* Frees the handle; the memory belongs to the daemon. */
void zc_buffer_forget(struct zerod_allocation *buffer);

#endif
