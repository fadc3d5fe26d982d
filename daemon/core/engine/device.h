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
TAILQ_HEAD(zd_segment_list, zd_segment);

/*
 * A uid's requests that wait in the queue of one device, in order of arrival.
 *
 * A walk tries each of them once, in several steps if they are many. `next` is the request at which it
 * continues. If the device becomes dirty again during the walk, another walk follows.
 */
struct zd_owner_queue {
	uint64_t segment_bytes;          /* of its jobs' segments on the device, until they are destroyed */
	uint64_t empty_bytes;            /* of these, in empty segments; memory/empty.h */
	struct zd_segment_list retiring; /* of these, that are RETIRING or DESTROYING, the oldest first */
	struct zd_request_list requests;
	bool walks, again;
	struct zd_request *next;
	bool blocked; /* in this walk none of its gathers receives memory any more */
	/* in this walk a prefetch has waited for memory. If another walk follows, later prefetches wait for
	 * that walk, which first tries the earlier prefetch */
	bool prefetch_waits;
	TAILQ_HEAD(, zd_request) waiters; /* demand gathers that wait for memory, by wants_memory_ns */
	uint32_t nwaiters;
	uint64_t walked_pass;          /* the device's pass in which the last walk started */
	uint64_t last_grant;           /* the device's `grants` when a gather last received memory */
	uint64_t staging_pass;         /* scratch of slice.c */
	struct zd_buffer_list formers; /* quarantined buffers whose memory can be promised, oldest first */
	struct zd_owner *owner;
	TAILQ_ENTRY(zd_owner_queue) link; /* of the device, while there are requests */
};

/* The account of one uid, against its limits. */
struct zd_owner {
	uint32_t uid;
	struct zd_ids *ids;            /* ids of its objects, which outlive this object */
	uint32_t refs;                 /* jobs and sessions */
	struct zd_job *jobs;           /* hash by name */
	struct zd_owner_queue *queues; /* by device, and one for zd_commit_waits() */
	struct zd_account account;
	uint64_t segment_bytes;  /* of all its jobs' segments on all devices, until they are destroyed */
	uint64_t retiring_bytes; /* of these, in segments that are RETIRING or DESTROYING */
	uint64_t block_bytes;    /* of these, in blocks */
	uint64_t metadata_bytes; /* of the daemon's own memory */
	uint32_t nkept;          /* segments of durable jobs that the driver preserves, or will preserve */
	uint64_t found_bytes;    /* scratch of zd_engine_check() */
	TAILQ_HEAD(, zd_ending) endings; /* incomplete ends of its sessions, in order */
	uint32_t nwalks;                 /* queues whose walk is incomplete */
	UT_hash_handle hh;
};

/* Returns the uid's account with one more reference, and creates it if necessary. */
struct zd_owner *zd_owner_get(struct zd_engine *e, uint32_t uid);
/* Drops a reference. The last one frees the account, to which nothing may be charged then. */
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
 * The daemon's own memory for a uid's objects: sizes of structures and texts, without the C library's
 * overhead. Each object is charged when it is created, and uncharged when it is freed. Long-lived objects can
 * use seven eighths of the limit. The rest is for requests, leases and watches of running jobs.
 */
void zd_metadata_charge(struct zd_owner *owner, uint64_t bytes);
void zd_metadata_uncharge(struct zd_owner *owner, uint64_t bytes);
/* Returns LIMIT, with the sizes, if the session's uid may not hold `bytes` more for a long-lived object. The
 * text names the object: "unit" and "layers.0". */
int zd_metadata_check(const struct zd_engine *e, const struct zd_session *session, const char *kind,
                      const char *name, uint64_t bytes, struct zd_err *err)
        __attribute__((warn_unused_result));
/* As zd_metadata_check(), for waiting requests and for the objects that they create until these are
 * undone. */
int zd_metadata_check_work(const struct zd_engine *e, const struct zd_session *session, const char *kind,
                           uint64_t bytes, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- Devices ------------------------------------------------------------------------------------------- */

struct zd_device {
	uint32_t index;
	struct zd_device *host;     /* the host memory for its ranks' units, or NULL */
	LIST_HEAD(, zd_save) saves; /* saves in its memory, of pins in force; save.h */
	uint64_t queues; /* bits of the devices with requests in their queues that wait for this device's
	                    memory */
	struct zd_device_config config; /* budget and staging resolved, never 0 */
	uint64_t segment_default_bytes;
	uint64_t strict_align_bytes;    /* strict sessions' gathered buffers are multiples of it */
	uint64_t segment_bytes;         /* in segments */
	uint64_t retiring_bytes;        /* of these, in segments that are RETIRING or DESTROYING */
	uint64_t empty_bytes;           /* of these, in empty segments; memory/empty.h */
	uint64_t quarantine_bytes;      /* in uncharged blocks that are not free yet */
	uint64_t idle_slot_bytes;       /* in slots without a charged buffer */
	uint64_t staging_bytes;         /* charged for reductions in progress */
	struct zd_slice *staging_queue; /* utlist: slices that wait for staging, in order; slice.c */
	struct zd_account account;
	struct zd_segment_list segments;
	struct zd_id_tree empty;         /* empty segments; memory/empty.h */
	struct zd_segment_list retiring; /* segments that are RETIRING or DESTROYING, the oldest first */
	/* scratch of retire.c: segments with idle prefetched buffers, by `prefetched_link` */
	struct zd_segment_list with_prefetched;
	struct zd_segment_list shared;       /* segments with many blocks, by `shared_link` */
	struct zd_request_list queue;        /* waiting requests, in order of arrival */
	uint32_t nqueued;                    /* in the queue */
	TAILQ_HEAD(, zd_owner_queue) owners; /* the queue by uid */
	struct zd_buffer_list buffers;       /* by id, including quarantined buffers */
	uint32_t nbuffers;
	struct zd_buffer_list prefetched; /* prefetched buffers that no gather has joined */
	uint32_t memory_waiters;          /* demand gathers in the queue that wait for memory */
	uint64_t pass;                    /* counts passes over the queue */
	bool retiring_is_awaited;         /* a request has waited for one of its retiring segments */
	bool pass_blocked; /* in this pass an earlier request waits for memory: prefetches receive none */
	uint64_t grants;   /* counts gathers that received memory */
	/* the request that received memory in this pass, and can receive more; NULL: none */
	const struct zd_request *granted;
	struct zd_request *favoured; /* gathers of other uids receive no memory until favoured_until_ns; NULL:
	                                none */
	uint64_t favoured_until_ns;
	uint64_t staging_pass; /* counts walks over the staging queue */
	uint64_t gathers, joined_gathers;
	uint64_t gathered_bytes;   /* of transfers that gathers started */
	uint64_t fallback_gathers; /* leases of forward scopes */
	uint64_t copied_bytes;     /* of COPY commands that the device runs */
	uint32_t ncopying;         /* COPY and FILL commands in progress on it */
	/* time with such commands in progress, up to the last time without one; the current period since
	 * copying_ns */
	uint64_t copied_ns, copying_ns;
};

#endif
