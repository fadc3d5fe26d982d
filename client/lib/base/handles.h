/* SPDX-License-Identifier: Apache-2.0 */
/* handles.h - units and groups, and the programs' handles of them. */
#ifndef ZD_CLIENT_HANDLES_H
#define ZD_CLIENT_HANDLES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define HASH_NONFATAL_OOM 1 /* an element that could not be added has hh.tbl NULL */
#include <uthash.h>

#include <zerod.h>

#include "client/lib/base/client.h"
#include "client/lib/base/location.h"
#include "proto/limits.h"

struct zc_kept_request;
struct zc_lease;

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
	bool target_lent; /* this client can access the unit's place in the target (target.c) */
	bool terms_lent;  /* its terms, and not the place */
	uint64_t lent_in; /* the group's `nbackwards` then */
	bool updating;    /* between update_begin and publish, as far as this client knows */
	bool granted;     /* the daemon has granted an update_begin that then failed, or is unawaited */
	bool unawaited;   /* an update_begin with a ticket, before its shard can be written */
	struct zc_location shard, target_place;
	uint64_t shard_numel, true_numel, offset_numel, padded_numel, numel;
	uint64_t target_offset_numel;
	uint64_t target_numel, target_true_numel; /* in this rank's target */
	uint64_t version;
	uint64_t listed;          /* the last list that contains the unit (zc_units_take()) */
	struct zc_op *publishing; /* a publish with a ticket that has not been answered; NULL: none */
	LIST_HEAD(, zc_lease) leases;
	struct zc_hold_list kept; /* strict: of a persistent copy; at most one */
	UT_hash_handle hh;
	char name[ZD_MAX_UNIT_NAME_BYTES + 1];
};

struct zerod_unit {
	struct zerod_group *group;
	struct zc_unit *shared;
	LIST_ENTRY(zerod_unit) link;
};

struct zerod_group {
	struct zerod_client *client;
	uint64_t id;
	uint32_t nshards, shard; /* of each unit, and the index of this rank's */
	bool shadow;
	uint32_t device;
	struct zc_kept_request
	        *joined;         /* for zerod_group_get() after a restart; NULL: it cannot join again */
	atomic_bool restarted;   /* it is to be joined again */
	bool rejoining;          /* by a thread */
	uint64_t committed_step; /* at the join, or at the last zerod_commit() */
	bool torn;
	/* The flat targets between step_begin and step_end, the second one of units on the host. While a
	 * reset is in progress they are in doubt: if the group has failed, the daemon can be freeing them. */
	bool target_bound, target_in_doubt;
	struct zc_location targets[2];
	enum zerod_dtype target_dtype;
	struct zc_location scalars; /* of the bound target; segment 0: none */
	bool stepped_ahead;         /* the step was started with a ticket: its end need not be awaited */
	/* The last unanswered zerod_step_end(), and the one before it, or NULL. */
	struct zc_op *step_ending, *step_ending_before;
	uint64_t nbackwards;      /* started by this handle */
	uint64_t backward_ending; /* the last ticket of a backward's end; 0: none, or reported */
	LIST_HEAD(, zerod_unit) units;
	LIST_HEAD(, zerod_bucket) buckets;
	LIST_ENTRY(zerod_group) link;
};

/* Drops a reference. With the lock. */
void zc_unit_unref(struct zc_unit *unit);
/* Return the bytes of the unit's shard and of its whole gathered buffer. */
uint64_t zc_unit_shard_bytes(const struct zc_unit *unit);
uint64_t zc_unit_bytes(const struct zc_unit *unit); /* without padding */
uint64_t zc_unit_padded_bytes(const struct zc_unit *unit);
/* These functions return the handle's client, and NULL for NULL. */
struct zerod_client *zc_unit_client(const struct zerod_unit *unit);
struct zerod_client *zc_group_client(const struct zerod_group *group);
/* Returns the handle's group, and NULL for NULL. */
const struct zerod_group *zc_unit_group(const struct zerod_unit *unit);
/* Returns the group, or NULL if the rank has left. With the lock. */
struct zerod_group *zc_group_find(const struct zerod_client *client, uint64_t id);

#endif
