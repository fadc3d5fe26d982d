/* SPDX-License-Identifier: Apache-2.0 */
/*
 * internal.h - the engine's objects, for the files of daemon/core only.
 *
 * Everything is level-triggered. A request that cannot complete waits in its device's queue with a reason; an
 * event that may end a wait marks the device dirty (zd_dirty); zd_settle() tries the waiting requests of
 * dirty devices again, in order, until no device is dirty. So no event needs to know which requests wait for
 * it, and to fail a group or a unit is to set its state: its requests see the state at their next attempt.
 *
 * Lifetime: an operation that an executor runs (zd_op) holds a reference on its job; jobs, groups and units
 * are freed with their last reference.
 */
#ifndef ZD_CORE_INTERNAL_H
#define ZD_CORE_INTERNAL_H

#include "base/err.h"
#include "base/mem.h"
#include "base/sm.h"
#include "core/engine.h"
#include "core/memory.h"
#include "core/plan.h"
#include "core/timelines.h"

#define ZD_WAIT 1 /* returned instead of a status: the request waits, for req->wait, and is tried again */

#ifndef TAILQ_FOREACH_SAFE /* glibc's sys/queue.h lacks it */
#define TAILQ_FOREACH_SAFE(var, head, field, next)                                                           \
	for ((var) = TAILQ_FIRST(head); (var) && ((next) = TAILQ_NEXT(var, field), 1); (var) = (next))
#endif

struct zd_allocation;
struct zd_buffer;
struct zd_await;
struct zd_bucket;
struct zd_job;
struct zd_group;
struct zd_load;
struct zd_member;
struct zd_reduction;
struct zd_request;
struct zd_scope;
struct zd_session;
struct zd_collective;
struct zd_slice;
struct zd_span;
struct zd_unit;
struct zd_op;
struct zd_promise;

/* ---- Operations (op.c) --------------------------------------------------------------------------------- */

typedef void zd_op_fn(struct zd_engine *e, struct zd_op *op, int status, const char *error,
                      const struct zd_op_result *result);

/* A command under way. done() is called exactly once; afterwards the op is freed and its job reference
 * dropped. */
struct zd_op {
	uint64_t id;
	zd_op_fn *done;
	struct zd_job *job; /* NULL: none */
	void *owner;        /* done()'s own */
	uint64_t aux;
	UT_hash_handle hh;
};

/* Sets command->op and hands the command to the sink. `job`: NULL for a command of no job. */
void zd_op_submit(struct zd_engine *e, struct zd_job *job, struct zd_command *command, zd_op_fn *done,
                  void *owner, uint64_t aux);
/* Zeroes the location. */
void zd_op_fill(struct zd_engine *e, struct zd_job *job, uint32_t device, struct zd_location where,
                zd_op_fn *done, void *owner, uint64_t aux);

/* INVALID or LIMIT for a bad count, timeline or value. */
int zd_fences_check(const struct zd_fence_list *list, struct zd_err *err) __attribute__((warn_unused_result));
/*
 * Watches those fences of the session's client page that have not passed. Returns true if an op was started
 * (done will be called), false if all have passed.
 */
bool zd_fences_watch(struct zd_engine *e, struct zd_session *session, struct zd_job *job, uint32_t device,
                     const struct zd_fence_list *list, zd_op_fn *done, void *owner, uint64_t aux);

/* ---- Requests (request.c) ------------------------------------------------------------------------------ */

enum zd_wait_kind {
	ZD_WAIT_NONE,
	ZD_WAIT_RANKS,   /* a: ranks missing, rank: the first */
	ZD_WAIT_SEGMENT, /* a segment is being created */
	ZD_WAIT_RETIRE,  /* a: the segment that is retiring */
	ZD_WAIT_FILL,    /* memory is being zeroed */
	ZD_WAIT_FENCES,  /* the caller's own streams */
	/* a: copies that still read the shard, or, with b, consumers of aliased buffers */
	ZD_WAIT_READERS,
	ZD_WAIT_FORMER,     /* the former unit of the same name */
	ZD_WAIT_REGISTER,   /* rank has not registered the unit */
	ZD_WAIT_VERSION,    /* rank has not published; a: its version, b: the wanted one */
	ZD_WAIT_LEASES,     /* a: the version that is leased */
	ZD_WAIT_REFRESH,    /* a: the version that operations still use */
	ZD_WAIT_GATHER,     /* the gather of the same unit, which waits */
	ZD_WAIT_SLOT,       /* a: the slot; unit: its occupant, which still has operations */
	ZD_WAIT_MEMORY,     /* a: bytes wanted, b: largest free block */
	ZD_WAIT_BUDGET,     /* a: bytes wanted, b: live bytes */
	ZD_WAIT_TURN,       /* earlier gathers wait for memory */
	ZD_WAIT_BUCKET,     /* the bucket's next slot is not drained; rank, unit: what it waits for */
	ZD_WAIT_REDUCTIONS, /* a: reductions that are not complete; rank, unit: the first */
	ZD_WAIT_STEP,       /* rank has not begun the step */
	ZD_WAIT_SUMS,       /* the sums of the rank's step are not known yet */
	ZD_WAIT_BACKWARD,   /* rank has not ended the backward */
	ZD_WAIT_AGREE,      /* rank has not called group_agree */
	ZD_WAIT_BARRIER,    /* rank has not reached the barrier */
	ZD_WAIT_COMMIT,     /* rank has not committed */
	ZD_WAIT_SAVE,       /* the last commit is being copied to the shadow of the rank's shard */
	ZD_WAIT_RESTORE,    /* the rank's shard is being restored to the last commit */
	ZD_WAIT_PROCESS,    /* the process that used the memory is still on the device */
	ZD_WAIT_UNIQUE_IDS, /* the ids are being made */
	ZD_WAIT_TRANSFERS,  /* a: transfers under way of the rank, which may have failed */
	ZD_WAIT_NODES,      /* a: ranks of other daemons, not all of which have joined; 0: communicators */
	ZD_WAIT_OTHERS,     /* ranks of other daemons have not all reached this call */
	ZD_WAIT_FOLLOW,     /* a: rank in the world that has not gathered the unit, as others have */
	ZD_WAIT_ORDER,      /* earlier gathers, in the order that all ranks keep; unit: the first */
	ZD_WAIT_LOADERS,    /* rank has not called unit_load of the unit */
	ZD_WAIT_SOURCE,     /* the streams that write the allocation that rank loads into the unit */
	ZD_WAIT_LOAD,       /* copies of a load into the unit's shards */
};

struct zd_wait {
	enum zd_wait_kind kind;
	uint32_t rank;
	uint64_t a, b;
	const struct zd_unit *unit; /* named in the text; NULL: none */
};

/* Sets req->wait and returns ZD_WAIT. */
int zd_wait_for(struct zd_request *req, enum zd_wait_kind kind, uint32_t rank, uint64_t a, uint64_t b);
/* Writes what the request waits for: "rank 2 to publish version 4 of unit 'h1' (has 3)". Also says so when
 * every session with leases on the device's gathered buffers waits for memory itself. */
void zd_wait_text(const struct zd_engine *e, const struct zd_request *req, char out[ZD_WAIT_TEXT]);

struct zd_request {
	uint64_t id;     /* the client's */
	uint64_t serial; /* the engine's; the row id of a waiting gather in the table of buffers */
	enum zd_request_kind kind;
	bool queued;
	uint64_t told;     /* its member's `told` when it began */
	bool wants_memory; /* counted in device->memory_waiters */
	/* ended by its session or deadline while ops were pending; freed with the last one */
	bool cancelled;
	bool answered; /* replied to before its end */
	/* begin() is to be called again with these; owned. NULL: begin() has been done */
	struct zd_args *args;
	uint32_t pending_ops;
	int failed;            /* status of an op or segment that failed; with failed_text */
	char *failed_text;     /* owned; NULL: none */
	uint32_t segment_wait; /* id of the segment it waits for */
	uint64_t since_ns, deadline_ns;
	struct zd_session *session;
	struct zd_member *member; /* NULL where no group is involved */
	/* the device whose queue it is in; set by begin() of every kind that can wait */
	struct zd_device *device;
	struct zd_wait wait;
	TAILQ_ENTRY(zd_request) session_link, device_link;
	UT_hash_handle hh;
	union {
		struct {
			struct zd_part **parts; /* owned */
			uint32_t nparts;
			bool ahead; /* UPDATE_BEGIN: a promise may be made */
			/* made for it, and kept when no part has readers; NULL: none */
			struct zd_promise *promise;
		} publish; /* UPDATE_BEGIN, PUBLISH */
		struct {
			uint64_t serial; /* group->commit_serial at arrival */
		} commit;
		struct {
			struct zd_part *part;
			bool persistent; /* for the part, when it has its shard */
		} reg;                   /* UNIT_REGISTER, SET_PERSISTENT */
		struct {
			struct zd_part *part;
			struct zd_allocation *source; /* the source of the load; NULL: another rank has it */
			struct zd_load *load;         /* that it takes part in; NULL: not yet, or complete */
			bool complete;
		} load; /* UNIT_LOAD */
		struct {
			struct zd_part *part;
			uint64_t version; /* 0: newest */
			uint32_t uses;
			bool prefetch;
			bool no_slot;
			char tag[ZD_MAX_TAG_BYTES + 1]; /* "": the scope's */
			struct zd_scope *scope;         /* NULL: the tag's own */
			/* CONTEXT_BEGIN: owned; `part` is the one being gathered */
			struct zd_part **parts;
			uint64_t *versions; /* of these parts; owned */
			uint32_t nparts, nheld;
		} gather; /* GATHER, CONTEXT_BEGIN */
		struct {
			struct zd_part *part;
			uint32_t nfences;
			struct zd_fence *fences; /* owned */
			char tag[ZD_MAX_TAG_BYTES + 1];
		} release; /* RELEASE, STEP_END */
		struct {
			struct zd_scope *scope; /* FORWARD_BEGIN: the parent, or NULL */
			bool grad;
			uint32_t nfences;
			struct zd_fence *fences; /* owned */
		} scope;                         /* FORWARD_BEGIN, and the requests that end a scope */
		struct {
			struct zd_allocation *allocation;
			uint64_t align;
		} alloc;
		struct {
			uint32_t op, count;
			bool decided; /* `values` are the result */
			double values[ZEROD_MAX_AGREED];
		} agree;
		struct {
			bool passed;
			TAILQ_ENTRY(zd_request) link; /* of its member's `barriers`, unless it has passed */
		} barrier;
		struct {
			uint32_t count;
			unsigned char *bytes; /* owned */
		} unique_ids;
		struct {
			uint64_t serial; /* it waits for segments with a retire_serial up to this */
			uint64_t freed_bytes;
		} trim;
		struct {
			struct zd_bucket *bucket;
			struct zd_part *part;
			void *entry; /* struct zd_entry */
			uint64_t serial;
			uint64_t window; /* BACKWARD_END, STEP_BEGIN, REDUCE_WAIT: its number */
			/* fills of the places that no sum has written have begun */
			bool zeroes;
			bool scalars;               /* STEP_BEGIN: the result is stored for kernels */
			bool ahead;                 /* the reply may come before the target may be read */
			struct zd_promise *promise; /* REDUCE_WAIT: of the unit's sum; NULL: none */
			uint32_t nunits;            /* STEP_GET: the units whose norms it returns */
			uint64_t *units;
			double *norms; /* of these; both owned */
		} reduce;              /* requests of bucket.c, reduce.c, lent_target.c, step.c */
	} u;
};

/* Whether the request uses u.gather. */
static inline bool zd_request_gathers(const struct zd_request *req)
{
	return req->kind == ZD_REQ_GATHER || req->kind == ZD_REQ_CONTEXT_BEGIN;
}

/*
 * One row per kind of request. Each function may be NULL.
 *
 *   begin   checks the arguments and keeps what the request needs of them. Changes nothing if it returns an
 *           error, or ZD_WAIT: then it is called again at the next attempt. It may return ZD_WAIT for kinds
 *           whose arguments have no pointers, with `member` and `device` set
 *   attempt 0: complete, e->reply.u holds the result; ZD_WAIT; or an error, with nothing left behind. Called
 *           again whenever the device is dirty and no op of the request is pending
 *   cancel  undoes begin and attempt of a waiting request: at its deadline, at the session's end, or after a
 *           failed op. Never called after an error of attempt
 */
struct zd_request_type {
	const char *name;
	int (*begin)(struct zd_engine *e, struct zd_request *req, const struct zd_args *args,
	             struct zd_err *err);
	int (*attempt)(struct zd_engine *e, struct zd_request *req, struct zd_err *err);
	void (*cancel)(struct zd_engine *e, struct zd_request *req);
};
#define REQUEST(KIND, name) extern const struct zd_request_type zd_req_##name;
#include "core/requests.def"
extern const struct zd_request_type *const zd_request_types[ZD_NREQUESTS]; /* none is NULL */

/* The request ends with this error at its next attempt. The first error counts. */
void zd_request_fail(struct zd_request *req, int status, const char *text);
/* Called by attempt(): replies with success and e->reply. The request then runs on, without a deadline; its
 * end has no reply. */
void zd_request_answer(struct zd_engine *e, struct zd_request *req);
/* Op callback for requests: decrements pending_ops, records a failure, frees a cancelled request. The owner
 * is the request; increment pending_ops when submitting. */
zd_op_fn zd_request_op_done;
/* Removes every waiting request of `member`, or of the session if it is NULL, without a reply (session end),
 * or with one (status != 0). */
void zd_requests_drop(struct zd_engine *e, struct zd_session *session, struct zd_member *member, int status,
                      const char *text);

void zd_dirty(struct zd_engine *e, struct zd_device *device);
/* Marks all devices dirty in whose queues the session's requests wait. */
void zd_dirty_session(struct zd_engine *e, const struct zd_session *session);
void zd_dirty_group(struct zd_engine *e, struct zd_group *group);
void zd_settle(struct zd_engine *e);

/* ---- Sessions, jobs, groups (session.c, group.c) ------------------------------------------------------- */

enum zd_session_state { ZD_SESSION_OPEN, ZD_SESSION_POISONED, ZD_SESSION_CLOSING };

struct zd_session {
	uint64_t id;
	uint8_t state;
	uint32_t uid, pid;
	bool admin;
	bool strict, poison;
	bool orderly; /* the client has said goodbye */
	char name[ZD_MAX_NAME_BYTES + 1];
	uint64_t opened_ns, nrequests;
	uint32_t outstanding;
	struct zd_request *waiting;      /* hash by the client's id */
	struct zd_request_list requests; /* the same, in order */
	TAILQ_HEAD(, zd_member) members;
	TAILQ_HEAD(, zd_allocation) allocations;
	TAILQ_HEAD(, zd_mapping) mappings;       /* segments that its process may have mapped */
	uint64_t timeline[ZD_SESSION_TIMELINES]; /* last values handed out on the daemon page */
	struct zd_timelines aborted;             /* timelines that hold ZD_FENCE_ABORTED */
	/* timelines of failed pieces of reductions: no sum waits for these any more */
	struct zd_timelines failed;
	/* sums that its process was asked for before their inputs were complete */
	uint32_t nahead;
	uint32_t resets;                /* the number of resets; fences handed out before count as passed */
	struct zd_buffer_list relaying; /* buffers with relays that were not run, in order; collective.h */
	TAILQ_HEAD(, zd_promise) promises; /* that have not passed, in order; promise.h */
	struct zd_buffer_list
	        deferred; /* buffers whose transfers are promised and have not begun, in order; deferred.h */
	TAILQ_HEAD(, zd_departure) departures; /* CLOSING: pending watches of its process; departure.c */
	UT_hash_handle hh;
};

struct zd_job {
	uint64_t id;
	char *name;
	struct zd_owner *owner;
	bool durable;
	uint32_t refs; /* groups, allocations, ops */
	struct zd_account account;
	TAILQ_HEAD(, zd_group) groups;
	TAILQ_HEAD(, zd_allocation) allocations; /* durable ones */
	UT_hash_handle hh;                       /* by id */
	TAILQ_ENTRY(zd_job) link;
};

/* CONNECTING: the ranks of other daemons are awaited; see span.h. */
enum zd_group_state {
	ZD_GROUP_FORMING,
	ZD_GROUP_CONNECTING,
	ZD_GROUP_READY,
	ZD_GROUP_FAILED,
	ZD_GROUP_ABORTED
};

/* A member's part in reductions: reduce_internal.h. */
struct zd_member_reduce;

/* A slot of one rank: its block, from the first gather into it on. */
struct zd_slot {
	uint32_t number;
	struct zd_extent extent;
	/* the last buffer that got the slot, or was promised it; NULL: none has operations there */
	struct zd_buffer *occupant;
	bool orphan; /* its rank has left: freed with the occupant */
	TAILQ_ENTRY(zd_slot) link;
};

/* One rank of a group in this daemon; session NULL: no session is this rank. */
struct zd_member {
	struct zd_group *group;
	uint32_t rank; /* local, as everywhere in the core except in zd_world_rank() */
	struct zd_device *device;
	struct zd_session *session;
	bool joining; /* its join waits: other requests do not find it */
	/* a session has been this rank before: new shards begin at the group's versions */
	bool joined_before;
	bool committing;
	bool set_back;          /* its publishes were undone, and its session has not been reset since */
	bool leaves;            /* it is leaving by its own request */
	uint64_t told;          /* the group's generation that its session has been told of */
	uint64_t frozen_digest; /* over the units that the rank has frozen or unfrozen; layout.c */
	uint64_t commit_step;
	uint64_t comm[ZD_NCOMM_ROLES]; /* its communicators; 0: none */
	uint32_t transfers; /* steps of collective transfers of the current connection that are left */
	TAILQ_HEAD(, zd_slot) slots;
	TAILQ_HEAD(, zd_scope) scopes; /* that have not ended, by id; scope.c, context.c */
	uint32_t nscopes;
	struct zd_member_reduce *reduce; /* NULL until the first use */
	struct zd_request *agreeing;     /* its waiting group_agree; NULL: none */
	struct zd_request_list barriers; /* requests that wait at barriers, in order; barrier.c */
	TAILQ_ENTRY(zd_member) session_link;
};

/* The lost ranks that a group remembers, for the errors of members that have not been told. */
#define ZD_LOST_KEPT 4u
struct zd_lost {
	uint32_t rank; /* in the world */
	uint32_t pid;
};

struct zd_group {
	uint64_t id;
	char *name;
	struct zd_job *job;
	uint8_t state;
	uint32_t world_size;       /* in all daemons */
	uint32_t nshards;          /* number of shards of a unit: one for each rank, or for each local rank */
	uint32_t local_world_size; /* ranks in this daemon, `members` */
	uint32_t first_rank;       /* the first of these, in the world */
	uint32_t attached;         /* members with a session */
	uint32_t refs;             /* attached members, durable job, units' pending work (zd_group_ref) */
	uint64_t generation;       /* counts the ranks lost since the group was first complete */
	struct zd_lost lost[ZD_LOST_KEPT]; /* the last of these, each at its generation modulo ZD_LOST_KEPT */
	bool torn;
	/* all ranks have left for good: its name is free, it lives until its last operation ends */
	bool over;
	bool shadow; /* durable: each shard has a shadow */
	uint64_t device_mask;
	struct zd_span *span;      /* NULL: all ranks are local and gather by copies; span.h */
	struct zd_member *members; /* local_world_size */
	struct zd_unit *units;     /* hash by name */
	/* hash by name: units left by all ranks, and described differently since */
	struct zd_unit *former;
	TAILQ_HEAD(, zd_group_slot) slots;
	uint64_t target_numel; /* of the target: sum of the trainable units' places */
	uint64_t committed_step;
	/* the commit that this daemon has voted for, with its outcome unknown; 0: none */
	uint64_t voted_step;
	uint64_t commit_serial; /* counts evaluated commits */
	int commit_status;      /* of the last one */
	char commit_text[192];
	TAILQ_HEAD(, zd_reduction) reductions; /* in progress, in order; reduce.c */
	struct zd_reduction *reduction_index;  /* hash by unit and backward; reduce.c */
	struct zd_slice_norm *step_norms;      /* hash by unit, of the last step; norms.c */
	uint64_t reduce_serial;                /* counts failures of the group, for requests of reductions */
	TAILQ_ENTRY(zd_group) job_link;
	UT_hash_handle hh; /* by id */
};

/* The rank's number in the world, which clients use. */
static inline uint32_t zd_world_rank(const struct zd_member *member)
{
	return member->group->first_rank + member->rank;
}

/* The index of the rank's shards in their units. */
static inline uint32_t zd_shard_index(const struct zd_member *member)
{
	const struct zd_group *group = member->group;
	return group->nshards == group->world_size ? zd_world_rank(member) : member->rank;
}

/* NULL if there is none, or it is CLOSING. */
struct zd_session *zd_session_find(struct zd_engine *e, uint64_t id);
/* Stores the value into the session's daemon page, by the executor of the timeline's device. */
void zd_session_signal(struct zd_engine *e, const struct zd_session *session, uint32_t timeline,
                       uint64_t value);
/* An operation that signals the timeline has failed: aborts the timeline, which frees the streams that wait
 * for it, and marks the session POISONED. */
void zd_session_abort(struct zd_engine *e, struct zd_session *session, uint32_t timeline);
int zd_session_check_poisoned(const struct zd_session *session, struct zd_err *err)
        __attribute__((warn_unused_result));

struct zd_job *zd_job_get(struct zd_engine *e, uint32_t uid, const char *name,
                          bool durable); /* finds or makes */
/* NULL: the uid has none of that name. */
struct zd_job *zd_job_find(struct zd_engine *e, uint32_t uid, const char *name);
void zd_job_ref(struct zd_job *job);
void zd_job_unref(struct zd_engine *e, struct zd_job *job);
/* Ends a durable job that no session is attached to: frees all its memory. */
void zd_job_end(struct zd_engine *e, struct zd_job *job);

/* Finds the session's membership in the group: NOT_FOUND. */
int zd_member_find(struct zd_engine *e, struct zd_session *session, uint64_t group, struct zd_member **member,
                   struct zd_err *err) __attribute__((warn_unused_result));
/* The rank that was lost last: why the group is FAILED. */
static inline const struct zd_lost *zd_group_lost(const struct zd_group *group)
{
	return &group->lost[group->generation % ZD_LOST_KEPT];
}

/* 0 when the group is READY; otherwise PEER_LOST, ABORTED or STATE, with the text. */
int zd_group_check(const struct zd_group *group, struct zd_err *err) __attribute__((warn_unused_result));
/* PEER_LOST, which names the ranks lost since generation `since` of the group. */
int zd_group_tell(const struct zd_group *group, uint64_t since, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the same error once after each loss, unless the member's session has been told. */
int zd_member_tell(struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
/* zd_group_check() and zd_member_tell(), for the begin of a request. */
int zd_member_enter(struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
/* zd_group_check(), and PEER_LOST while the rank has not been reset since its publishes were undone. */
int zd_member_check(const struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
void zd_group_ref(struct zd_group *group);
void zd_group_unref(struct zd_engine *e, struct zd_group *group);
/* The rank's session ends or leaves, and its requests have been dropped: frees all that it holds in the
 * group; the group fails unless the rank was alone. */
void zd_member_detach(struct zd_engine *e, struct zd_member *member);

/* ---- Units (unit.c, update.c) -------------------------------------------------------------------------- */

enum zd_part_state {
	ZD_PART_ABSENT,
	ZD_PART_FILLING, /* the shard is being zeroed */
	ZD_PART_IDLE,
	ZD_PART_UPDATE_WAIT, /* update_begin waits for readers; new gathers wait */
	ZD_PART_UPDATING,
	ZD_PART_LOADING,    /* UPDATING, and a unit_load writes the shard or is about to */
	ZD_PART_PUBLISHING, /* waits for the writers' fences */
	ZD_PART_DETACHED,   /* durable: its session has ended, the shard stays */
	ZD_PART_DYING,      /* freed when the last reader ends */
};

/* One rank's part of a unit: its shard and its gathered buffer. There may be 10^5 of them: keep it small. */
struct zd_part {
	struct zd_unit *unit;
	struct zd_extent shard;   /* followed by its shadow */
	struct zd_buffer *buffer; /* the gathered buffer, INFLIGHT or AVAILABLE; NULL: NOT_AVAILABLE */
	uint64_t version;         /* of the shard */
	/* version at registration, which has not been published, so that no gather reads it */
	uint64_t first;
	uint64_t committed; /* version at the last commit */
	uint32_t rank;
	uint32_t readers; /* copies that read the shard, its fill, aliased buffers that are read, and holds */
	uint32_t slot;    /* that it is gathered into; only while it is registered */
	uint32_t users;   /* waiting requests and reductions that refer to it: prevent an unregister */
	uint32_t target_accesses; /* by the rank's streams, of its place in the target; lent_target.c */
	uint8_t state;
	uint8_t shadow; /* enum zd_shadow_state */
	bool early; /* an update was granted ahead of its readers' end: neither publish nor load proceeds */
	bool persistent;
	bool target_lent;         /* the rank's streams may access its place in the target; lent_target.c */
	bool frozen;              /* as its unit, unless its rank has changed it */
	struct zd_scope *context; /* the user context that it is in; NULL: none */
	LIST_HEAD(, zd_await) awaits; /* PUBLISHING: transfers that wait for the new version; deferred.h */
	struct zd_collective *collective; /* collective.h; NULL where gathers are not collective */
};

/* Elements of a view, which has been checked. */
static inline uint64_t zd_view_numel(const struct zd_view_args *view)
{
	uint64_t numel = 1;
	for (uint32_t i = 0; i < view->ndim; i++)
		numel *= view->shape[i];
	return numel;
}

struct zd_unit {
	uint64_t id;
	char *name;
	struct zd_group *group;
	enum zerod_dtype dtype;
	uint64_t numel, shard_numel;
	uint32_t slot; /* the initial slot of its parts; `frozen` likewise */
	bool frozen;
	bool all_reduce; /* its place in a target is the whole unit, on every rank */
	uint32_t nviews;
	struct zd_view_args *views; /* names owned; within the unit's elements */
	uint32_t first_rank;        /* the rank that described it */
	uint32_t refs;              /* parts not ABSENT, buffers, reductions, registrations */
	uint32_t registrations;     /* registrations that have not ended */
	bool is_former;             /* it is in the group's table `former` */
	char *mismatch; /* a rank described it differently: both descriptions, until that rank agrees */
	uint32_t mismatch_rank;
	uint64_t target_offset_numel;
	struct zd_load *load;   /* in progress; NULL: none; load.c */
	bool targeted;          /* it has its place in the flat target */
	bool laid_out;          /* a part of it has had a shard */
	struct zd_part *parts;  /* local_world_size */
	UT_hash_handle hh;      /* by id */
	UT_hash_handle hh_name; /* in the group */
};

static inline uint64_t zd_unit_shard_bytes(const struct zd_unit *unit)
{
	return unit->shard_numel * zerod_dtype_bytes(unit->dtype);
}

static inline uint64_t zd_unit_padded_bytes(const struct zd_unit *unit)
{
	return unit->group->nshards * zd_unit_shard_bytes(unit);
}

/* The rank's shard alone. */
static inline struct zd_location zd_part_location(const struct zd_part *part)
{
	struct zd_location location = zd_extent_location(&part->shard);
	location.bytes = zd_unit_shard_bytes(part->unit);
	return location;
}

/* The rank has no shard, or one that only transfers under way still use. */
static inline bool zd_part_is_gone(const struct zd_part *part)
{
	return part->state == ZD_PART_ABSENT || part->state == ZD_PART_DYING;
}

/* Its rank has registered the part, or is doing so. A shard that is still read, or kept, is not
 * registered. */
static inline bool zd_part_is_registered(const struct zd_part *part)
{
	return !zd_part_is_gone(part) && part->state != ZD_PART_DETACHED;
}

/* An update of the shard has been granted and not ended. */
static inline bool zd_part_is_written(const struct zd_part *part)
{
	return part->state == ZD_PART_UPDATING || part->state == ZD_PART_LOADING ||
	       part->state == ZD_PART_PUBLISHING;
}

/* The shard has not been published since its registration. */
static inline bool zd_part_is_unpublished(const struct zd_part *part)
{
	return part->version == part->first;
}

/* Real elements of its shard. */
uint64_t zd_part_true_numel(const struct zd_part *part);
static inline struct zd_member *zd_part_member(const struct zd_part *part)
{
	return &part->unit->group->members[part->rank];
}
/* Finds the session's registered part: NOT_FOUND. */
int zd_part_find(struct zd_engine *e, struct zd_session *session, uint64_t unit, struct zd_part **part,
                 struct zd_err *err) __attribute__((warn_unused_result));
void zd_unit_unref(struct zd_engine *e, struct zd_unit *unit);
/* No rank has registered the unit or is about to: it may be described differently. */
bool zd_unit_is_left(const struct zd_unit *unit);
/* One reader less. After the last one a waiting update proceeds, or a DYING part is freed. */
void zd_part_reader_done(struct zd_engine *e, struct zd_part *part);
/* Frees the member's part of every unit (or makes it DETACHED in a durable job). */
void zd_parts_detach(struct zd_engine *e, struct zd_member *member);

/* ---- Gathered buffers (buffer.c, gather.c) ------------------------------------------------------------- */

enum zd_buffer_state { ZD_BUFFER_INFLIGHT, ZD_BUFFER_AVAILABLE, ZD_BUFFER_QUARANTINED };

struct zd_lease {
	char tag[ZD_MAX_TAG_BYTES + 1];
	uint32_t uses; /* releases left */
	uint64_t since_ns;
	struct zd_buffer *buffer;
	struct zd_scope *scope; /* NULL: a client's own tag */
	TAILQ_ENTRY(zd_lease) link, scope_link;
};

/* A rank's gathered buffer. While QUARANTINED it belongs to no part any more and is not charged. */
struct zd_buffer {
	uint64_t id;
	uint8_t state;
	bool prefetched; /* no lease yet: a gather may join it, and other gathers may evict it */
	bool charged;
	bool stale;      /* its transfer failed, or a shard in it was dropped or undone: no gather joins it */
	bool own_left;   /* the transfer leaves the rank's own slice to its client */
	bool own_copied; /* a reply has told a client to copy it */
	bool deferred;   /* its transfer begins later than its reply, or has; deferred.h */
	bool aliased;    /* the buffer is the shard itself, without an extent; alias.c */
	bool reading;    /* aliased: it counts among the part's readers */
	bool fill_due;   /* of a poison session that has had a lease: filled before its memory is reused */
	bool filling;    /* the fill is under way */
	struct zd_unit *unit;
	struct zd_part *part;
	struct zd_device *device;
	struct zd_extent extent; /* also the slot's or heir's, if there is one; empty if aliased */
	struct zd_slot *slot;
	/* QUARANTINED in the same memory: the transfer begins when its last operation has ended */
	struct zd_buffer *former;
	struct zd_buffer *heir; /* the buffer that has been promised the memory */
	LIST_HEAD(, zd_await) awaits;
	uint64_t version, since_ns;
	uint64_t connection; /* the connection of its group that fills it, or has; see span.h */
	uint64_t transfer;   /* the number of the transfer that fills it, or has */
	uint64_t session;    /* whose timelines the transfer signals, and its number of resets then */
	uint32_t resets;
	struct zd_plan plan;  /* its transfer; steps that are left may write its memory, or are promised to */
	uint32_t watches;     /* watches under way of fences of past leases, and the hold for its process */
	uint32_t leaving_pid; /* the process of that hold; 0: none */
	uint32_t nfences;     /* daemon-page fences of its transfer */
	struct zd_fence *fences;
	struct zd_promise *promise; /* aliased: for the version, until the part is published; NULL: it is */
	struct {                    /* of collective gathers: plan_rail_gathers.c */
		uint64_t ordinal;   /* its transfer is the Nth of the unit on its rank */
		uint32_t waiting;   /* relays into it that were not run */
		uint32_t expected;  /* relays out of it that were not run, also of ranks that are behind */
		uint32_t running;   /* relays out of it */
		bool exchanged;     /* its exchange is done */
		TAILQ_ENTRY(zd_buffer) taker_link, source_link;
	} relay;
	TAILQ_HEAD(, zd_lease) leases;
	TAILQ_ENTRY(zd_buffer) device_link, deferred_link;
};

/* Operations are under way on its memory: its own, or those of its former buffer. */
static inline bool zd_buffer_is_in_use(const struct zd_buffer *buffer)
{
	return buffer->plan.left > 0 || buffer->watches > 0 || buffer->former || buffer->filling;
}

/* Drops a buffer without leases: its bytes are uncharged at once, its block is freed when the last op has
 * ended. */
void zd_buffer_drop(struct zd_engine *e, struct zd_buffer *buffer);
/* Ends all leases and drops it. */
void zd_buffer_revoke(struct zd_engine *e, struct zd_buffer *buffer);
/* Frees a slot without an occupant. */
void zd_slot_free(struct zd_engine *e, struct zd_slot *slot);
/* Writes the tags of its leases: "'plan', 'fallback'". */
void zd_buffer_tags(const struct zd_buffer *buffer, char *out, size_t out_bytes);

/* ---- The engine ---------------------------------------------------------------------------------------- */

struct zd_engine {
	struct zd_engine_sink sink;
	struct zd_device *devices;
	uint32_t ndevices;
	uint64_t quota_bytes;
	uint64_t reduction_cut_bytes; /* 0: the default of slice.c */
	bool sessions_linger;
	bool strict_by_segment;
	bool collectives;
	char host[ZD_MAX_NAME_BYTES + 1];
	struct zd_session *departing; /* the lingering session that is ending just now; NULL: none */
	uint32_t nlingering;          /* sessions that are CLOSING */
	uint64_t now_ns, next_deadline_ns;
	uint64_t next_id; /* of every object; ascending, never reused */
	uint32_t next_segment;
	uint64_t retire_serial; /* counts segments that began to retire */
	uint64_t dirty_mask;
	bool settling;
	struct zd_account account;
	uint64_t nrequests, gathers, joined_gathers, fallback_gathers, gathered_bytes_total;
	struct zd_reply reply;       /* scratch for the request that is being tried */
	struct zd_session *sessions; /* hashes by id */
	struct zd_job *jobs;
	struct zd_group *groups;
	struct zd_unit *units;
	struct zd_bucket *buckets;
	struct zd_segment *segments;
	struct zd_allocation *allocations;
	struct zd_scope *scopes;
	uint64_t ended[ZD_MAX_SCOPES]; /* scratch: ids of the scopes that ended with a request */
	uint64_t steps[ZD_MAX_STEPS];  /* scratch: ids of groups in whose step a session is */
	struct zd_op *ops;
	struct zd_owner *owners;          /* hash by uid */
	struct zd_request *spare_request; /* memory of an ended request; NULL: none */
};

static inline uint64_t zd_next_id(struct zd_engine *e)
{
	return ++e->next_id;
}

extern const struct zd_sm zd_sm_session, zd_sm_group, zd_sm_part, zd_sm_buffer, zd_sm_segment, zd_sm_scope;

#endif
