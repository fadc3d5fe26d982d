/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - devices with their queues, and the accounts of bytes.
 */
#ifndef ZD_CORE_ENGINE_DEVICE_H
#define ZD_CORE_ENGINE_DEVICE_H

#include <sys/queue.h>

/* Aborts on an exhausted heap like all of base/mem.h. */
#define uthash_fatal(msg) zd_assert(!(msg))
#include <uthash.h>

#include "base/err.h"
#include "base/mem.h"

#ifndef TAILQ_FOREACH_SAFE /* glibc's sys/queue.h lacks it */
#define TAILQ_FOREACH_SAFE(var, head, field, next)                                                           \
	for ((var) = TAILQ_FIRST(head); (var) && ((next) = TAILQ_NEXT(var, field), 1); (var) = (next))
#endif
#include "core/engine.h"
#include "core/engine/ending.h"
#include "core/engine/id_tree.h"
#include "core/engine/ids.h"

struct zd_device;
struct zd_job;
struct zd_session;
struct zd_slice;

/* ---- Accounts (account.c) ------------------------------------------------------------------------------ */

enum zd_charge {
	ZD_CHARGE_SHARD,
	ZD_CHARGE_GATHERED,
	ZD_CHARGE_BUCKET,
	ZD_CHARGE_STAGING,
	ZD_CHARGE_TARGET,
	ZD_CHARGE_ALLOCATION,
	ZD_NCHARGES
};

struct zd_account {
	uint64_t bytes[ZD_NCHARGES];
	uint64_t total, peak, peak_gathered;
};

TAILQ_HEAD(zd_request_list, zd_request);
TAILQ_HEAD(zd_buffer_list, zd_buffer);

/*
 * A uid's requests that wait in the queue of one device, in order of arrival.
 *
 * A walk tries each of them once. It takes steps if they are many: `next` is the request at which it goes on.
 * If the device is dirty again meanwhile, another walk follows.
 */
struct zd_owner_queue {
	uint64_t segment_bytes; /* of its jobs' segments on the device, until they are destroyed */
	struct zd_request_list requests;
	bool walks, again;
	struct zd_request *next;
	bool blocked; /* in this walk none of its gathers gets memory any more */
	/* in this walk a prefetch has waited for memory: if another walk follows, later ones wait for that
	 * one, which tries the earlier one first */
	bool prefetch_waits;
	TAILQ_HEAD(, zd_request) waiters; /* demand gathers that wait for memory, by wants_memory_ns */
	uint32_t nwaiters;
	uint64_t walked_pass;  /* the device's pass in which the last walk began */
	uint64_t last_grant;   /* the device's `grants` when a gather last got memory */
	uint64_t staging_pass; /* scratch of slice.c */
	struct zd_buffer_list
	        formers; /* quarantined buffers whose memory can be promised, the oldest first */
	struct zd_owner *owner;
	TAILQ_ENTRY(zd_owner_queue) link; /* of the device, while there are requests */
};

/* The account of one uid, against its limits. */
struct zd_owner {
	uint32_t uid;
	struct zd_ids *ids;            /* of its objects; they outlive it */
	uint32_t refs;                 /* jobs and sessions */
	struct zd_job *jobs;           /* hash by name */
	struct zd_owner_queue *queues; /* by device, and one for zd_commit_waits() */
	struct zd_account account;
	uint64_t segment_bytes;  /* of all its jobs' segments on all devices, until they are destroyed */
	uint64_t retiring_bytes; /* of these, in segments that are RETIRING or DESTROYING */
	uint64_t metadata_bytes; /* of the daemon's own memory */
	uint32_t nkept;          /* segments of durable jobs that the driver keeps, or will */
	uint64_t found_bytes;    /* scratch of zd_engine_check() */
	TAILQ_HEAD(, zd_ending) endings; /* incomplete ends of its sessions, in order */
	uint32_t nwalks;                 /* queues whose walk is incomplete */
	UT_hash_handle hh;
};

/* Returns the uid's account with one more reference; makes it if there is none. */
struct zd_owner *zd_owner_get(struct zd_engine *e, uint32_t uid);
/* Drops a reference. Frees the account with the last one: nothing is charged to it then. */
void zd_owner_put(struct zd_engine *e, struct zd_owner *owner);

/* Returns QUOTA, with the sizes, if `bytes` more charged bytes would exceed the uid's quota. zd_pool_alloc()
 * limits the segments that the bytes are in. */
int zd_quota_check(struct zd_engine *e, const struct zd_job *job, uint64_t bytes, struct zd_err *err)
        __attribute__((warn_unused_result));
void zd_charge(struct zd_engine *e, struct zd_job *job, struct zd_device *device, enum zd_charge kind,
               uint64_t bytes);
void zd_uncharge(struct zd_engine *e, struct zd_job *job, struct zd_device *device, enum zd_charge kind,
                 uint64_t bytes);
Zd__Usage zd_account_usage(const struct zd_account *account);

/*
 * The daemon's own memory that a uid's objects take: sizes of structures and texts, without the C library's
 * overhead. Each object is charged where it is made, and uncharged where it is freed. Objects that last have
 * seven eighths of the limit, so that a job that runs has room for its requests, leases and watches.
 */
void zd_metadata_charge(struct zd_owner *owner, uint64_t bytes);
void zd_metadata_uncharge(struct zd_owner *owner, uint64_t bytes);
/* Returns LIMIT, with the sizes, if the session's uid may not hold `bytes` more for an object that lasts. The
 * text names the object: "unit" and "layers.0". */
int zd_metadata_check(const struct zd_engine *e, const struct zd_session *session, const char *kind,
                      const char *name, uint64_t bytes, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The same for requests that wait, and for what they leave behind until they are undone. */
int zd_metadata_check_work(const struct zd_engine *e, const struct zd_session *session, const char *kind,
                           uint64_t bytes, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- Devices ------------------------------------------------------------------------------------------- */

TAILQ_HEAD(zd_segment_list, zd_segment);

struct zd_device {
	uint32_t index;
	struct zd_device *host;     /* the host memory for its ranks' units; NULL: none */
	LIST_HEAD(, zd_save) saves; /* in its memory, of pins that are in force; save.h */
	uint64_t queues; /* bits of the devices in whose queues requests wait for this one's memory */
	struct zd_device_config config; /* budget and staging resolved, never 0 */
	uint64_t segment_default_bytes;
	uint64_t strict_align_bytes;    /* strict sessions' gathered buffers are multiples of it */
	uint64_t segment_bytes;         /* in segments */
	uint64_t retiring_bytes;        /* of these, in segments that are RETIRING or DESTROYING */
	uint64_t quarantine_bytes;      /* in uncharged blocks that are not free yet */
	uint64_t idle_slot_bytes;       /* in slots without a charged buffer */
	uint64_t staging_bytes;         /* charged for reductions under way */
	struct zd_slice *staging_queue; /* utlist: slices that wait for staging, in order; slice.c */
	struct zd_account account;
	struct zd_segment_list segments;
	/* of these: those that retire, or may: not one whose single block is in use. `candidate_link` */
	struct zd_segment_list candidates;
	struct zd_segment_list shared;       /* of these: those with many blocks, by `shared_link` */
	struct zd_request_list queue;        /* waiting requests, in order of arrival */
	uint32_t nqueued;                    /* in the queue */
	TAILQ_HEAD(, zd_owner_queue) owners; /* the same by uid */
	struct zd_buffer_list buffers;       /* by id, quarantined ones too */
	uint32_t nbuffers;
	struct zd_buffer_list prefetched; /* that no gather has joined */
	uint32_t memory_waiters;          /* demand gathers in the queue that wait for memory */
	uint64_t pass;                    /* counts passes over the queue */
	bool pass_blocked; /* in this pass an earlier request waits for memory: no prefetch gets any */
	uint64_t grants;   /* counts gathers that got memory */
	/* the request that got memory in this pass, and may get more; NULL: none */
	const struct zd_request *granted;
	struct zd_request *favoured; /* until then no gather of another uid gets memory; NULL: none */
	uint64_t favoured_until_ns;
	uint64_t staging_pass; /* counts walks over the staging queue */
	uint64_t gathers, joined_gathers;
	uint64_t gathered_bytes;   /* of transfers that gathers began */
	uint64_t fallback_gathers; /* leases of forward scopes */
	uint64_t copied_bytes;     /* of COPY commands that the device runs */
	uint32_t ncopying;         /* COPY and FILL commands under way there */
	/* how long there was one, up to the last moment when there was none; the others since copying_ns */
	uint64_t copied_ns, copying_ns;
};

#endif
