/* SPDX-License-Identifier: Apache-2.0 */
/*
 * internal.h - the engine's objects, for the files of daemon/core only.
 *
 * Everything is level-triggered. A request that cannot finish waits in its device's queue with a reason;
 * whatever could let it go on marks the device dirty (zd_dirty); zd_settle() tries the waiting requests of
 * dirty devices again, in order, until nothing moves. So no event needs to know who waits for it, and failing
 * a group or a unit is done by setting its state: the requests see it when they are tried.
 *
 * Lifetime: an operation that an executor runs (zd_op) holds a reference on the job it works for; jobs,
 * groups and units go when the last reference does.
 */
#ifndef ZD_CORE_INTERNAL_H
#define ZD_CORE_INTERNAL_H

#include "base/err.h"
#include "base/mem.h"
#include "base/sm.h"
#include "core/engine.h"
#include "core/memory.h"
#include "core/timelines.h"

#define ZD_WAIT 1 /* returned instead of a status: try again later, req->wait says why */

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
struct zd_onward;
struct zd_rail;
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

/* Fills in command->op and hands it out. `job`: NULL for what is nobody's. */
void zd_op_submit(struct zd_engine *e, struct zd_job *job, struct zd_command *command, zd_op_fn *done,
                  void *owner, uint64_t aux);
/* Zeroes the location. */
void zd_op_fill(struct zd_engine *e, struct zd_job *job, uint32_t device, struct zd_location where,
                zd_op_fn *done, void *owner, uint64_t aux);

/* Bad count, timeline or value: INVALID. */
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
	ZD_WAIT_RANKS,      /* a: ranks missing, rank: the first */
	ZD_WAIT_SEGMENT,    /* a segment is being created */
	ZD_WAIT_RETIRE,     /* a: the segment that is being given back */
	ZD_WAIT_FILL,       /* memory is being zeroed */
	ZD_WAIT_FENCES,     /* the caller's own streams */
	ZD_WAIT_READERS,    /* a: pushes that still read the shard */
	ZD_WAIT_FORMER,     /* the unit that had the name before, described differently */
	ZD_WAIT_REGISTER,   /* rank has not registered the unit */
	ZD_WAIT_VERSION,    /* rank has not published; a: has, b: wanted */
	ZD_WAIT_LEASES,     /* leases on the former version */
	ZD_WAIT_REFRESH,    /* operations on the former version */
	ZD_WAIT_GATHER,     /* the gather that is to be released waits itself */
	ZD_WAIT_SLOT,       /* a: the slot; its former unit's work is not over */
	ZD_WAIT_MEMORY,     /* a: bytes wanted, b: largest free block */
	ZD_WAIT_BUDGET,     /* a: bytes wanted, b: live bytes */
	ZD_WAIT_TURN,       /* gathers before it want room */
	ZD_WAIT_BUCKET,     /* the bucket's next slot is being reduced; rank, unit: what for */
	ZD_WAIT_REDUCTIONS, /* a: reductions that are not complete; rank, unit: the first */
	ZD_WAIT_STEP,       /* rank has not begun the step */
	ZD_WAIT_SUMS,       /* the sums of the rank's step are not known yet */
	ZD_WAIT_BACKWARD,   /* rank has not ended the backward */
	ZD_WAIT_AGREE,      /* rank has not said its values */
	ZD_WAIT_BARRIER,    /* rank has not reached the barrier */
	ZD_WAIT_COMMIT,     /* rank has not committed */
	ZD_WAIT_SAVE,       /* the last commit is being copied to the shadow of the rank's shard */
	ZD_WAIT_RESTORE,    /* the rank's shard is being set back to the last commit */
	ZD_WAIT_PROCESS,    /* that used the memory, to leave the device */
	ZD_WAIT_UNIQUE_IDS, /* they are being made */
	ZD_WAIT_TRANSFERS,  /* a: transfers of the rank, which may still free streams that wait for them */
	ZD_WAIT_NODES,      /* a: ranks of other daemons, which have not all joined */
	ZD_WAIT_OTHERS,     /* the ranks of other daemons, which have not all come */
	ZD_WAIT_FOLLOW,     /* a: rank, in the world, that has not gathered the unit as others have */
	ZD_WAIT_ORDER,      /* gathers before it; unit: the first, whose order all ranks keep */
	ZD_WAIT_LOADERS,    /* rank has not called unit_load of the unit */
	ZD_WAIT_SOURCE,     /* the streams that write what rank loads into the unit */
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
/* "rank 2 to publish version 4 of unit 'h1' (has 3)". Says so when every holder of the device's gathered
 * bytes itself waits for room. */
void zd_wait_text(const struct zd_engine *e, const struct zd_request *req, char out[ZD_WAIT_TEXT]);

struct zd_request {
	uint64_t id;     /* the client's */
	uint64_t serial; /* the engine's; buffers' rows of waiting gathers have it for id */
	enum zd_request_kind kind;
	bool queued;
	uint64_t told;     /* what its member knew when it began */
	bool wants_memory; /* counted in device->memory_waiters */
	bool cancelled;    /* its session or deadline ended it while ops were pending; freed with the last */
	bool answered;     /* before its turn */
	struct zd_args *args; /* begin() is to be called with these, again; owned. NULL: it is over */
	uint32_t pending_ops;
	int failed;            /* status of an op or segment that failed; with failed_text */
	char *failed_text;     /* owned; NULL: none */
	uint32_t segment_wait; /* id of the segment it waits for */
	uint64_t since_ns, deadline_ns;
	struct zd_session *session;
	struct zd_member *member; /* NULL where no group is involved */
	struct zd_device *device; /* whose queue; set by begin() of every kind that can wait */
	struct zd_wait wait;
	TAILQ_ENTRY(zd_request) session_link, device_link;
	UT_hash_handle hh;
	union {
		struct {
			struct zd_part **parts; /* owned */
			uint32_t nparts;
			bool ahead;                 /* UPDATE_BEGIN: a promise may be made */
			struct zd_promise *promise; /* that was: it is kept when no part has readers */
		} publish;                          /* UPDATE_BEGIN, PUBLISH */
		struct {
			uint64_t serial; /* group->commit_serial at arrival */
		} commit;
		struct {
			struct zd_part *part;
			bool persistent; /* the part is to be, when it has its shard */
		} reg;                   /* UNIT_REGISTER, SET_PERSISTENT */
		struct {
			struct zd_part *part;
			struct zd_allocation *source; /* what it loads; NULL: another rank's */
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
			struct zd_part **parts;         /* CONTEXT_BEGIN: owned; `part` is the one it is at */
			uint64_t *versions;             /* of these: likewise */
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
		} scope;                         /* FORWARD_BEGIN, and what ends a scope */
		struct {
			struct zd_allocation *allocation;
			uint64_t align;
		} alloc;
		struct {
			uint32_t op, count;
			bool decided; /* `values` are what all ranks agree on */
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
			uint64_t serial; /* it waits for segments that began to retire until then */
			uint64_t freed_bytes;
		} trim;
		struct {
			struct zd_bucket *bucket;
			struct zd_part *part;
			void *entry; /* reduce files' own */
			uint64_t serial;
			uint64_t window;            /* BACKWARD_END, STEP_BEGIN, REDUCE_WAIT: its number */
			bool zeroes;                /* what no sum has written */
			bool scalars;               /* STEP_BEGIN: the result is to be stored for kernels */
			bool ahead;                 /* the reply may come before the target may be read */
			struct zd_promise *promise; /* REDUCE_WAIT: of the unit's sum; NULL: none */
			uint32_t nunits;            /* STEP_GET: whose norms it wants */
			uint64_t *units;
			double *norms; /* likewise; both owned */
		} reduce;              /* requests of bucket.c, reduce.c, lent_target.c, step.c */
	} u;
};

/* Does it use u.gather. */
static inline bool zd_request_gathers(const struct zd_request *req)
{
	return req->kind == ZD_REQ_GATHER || req->kind == ZD_REQ_CONTEXT_BEGIN;
}

/*
 * One row per kind of request.
 *   begin   checks the arguments and takes what it needs of them; changes nothing if it returns an error, or
 *           ZD_WAIT, with which it is called again in place of attempt: of kinds whose arguments have no
 *           pointers, with `member` and `device` set
 *   attempt 0: done, e->reply.u holds the result; ZD_WAIT; or an error, with nothing left behind. Called
 *   again
 *           whenever the device is dirty and no op of the request is pending
 *   cancel  undoes begin and attempt while waiting: deadline, session's end, a failed op. Never after an
 *           error of attempt
 * Each may be NULL.
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

/* The request ends with this error at its next attempt; the first one counts. */
void zd_request_fail(struct zd_request *req, int status, const char *text);
/* By attempt(): replies with what e->reply says, with success. The request goes on, without a deadline; its
 * end is told to nobody. */
void zd_request_answer(struct zd_engine *e, struct zd_request *req);
/* Op callback for requests: counts pending_ops down, keeps a failure, frees a cancelled request. The owner is
 * the request; count pending_ops up when submitting. */
zd_op_fn zd_request_op_done;
/* Removes every waiting request that `member` made, without a reply (session end) or with one (status !=
 * 0). */
void zd_requests_drop(struct zd_engine *e, struct zd_session *session, struct zd_member *member, int status,
                      const char *text);

void zd_dirty(struct zd_engine *e, struct zd_device *device);
/* All that the session waits for, wherever. */
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
	bool orderly; /* has said goodbye */
	char name[ZD_MAX_NAME_BYTES + 1];
	uint64_t opened_ns, nrequests;
	uint32_t outstanding;
	struct zd_request *waiting;      /* hash by the client's id */
	struct zd_request_list requests; /* the same, in order */
	TAILQ_HEAD(, zd_member) members;
	TAILQ_HEAD(, zd_allocation) allocations;
	TAILQ_HEAD(, zd_mapping) mappings;       /* segments that its process may have mapped */
	uint64_t timeline[ZD_SESSION_TIMELINES]; /* last values given out on the daemon page */
	struct zd_timelines aborted;             /* those that hold ZD_FENCE_ABORTED */
	struct zd_timelines failed; /* of a piece, of a reduction: no sum waits for these any more */
	uint32_t nahead;            /* sums that its process was asked for before their inputs were there */
	uint32_t resets;            /* so often; fences given out before count as passed */
	TAILQ_HEAD(, zd_onward) onwards;   /* rail.h */
	TAILQ_HEAD(, zd_promise) promises; /* that have not passed, in order; promise.h */
	struct zd_buffer_list
	        deferred; /* whose transfers are promised and have not begun, in order; deferred.h */
	uint64_t deferred_begun
	        [ZD_MAX_DEVICES]; /* last values of ZD_TIMELINE_DEFERRED whose copies have begun */
	TAILQ_HEAD(, zd_departure) departures; /* CLOSING: what waits for its process to go; departure.c */
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

/* Life of a member's backward; see semantics in reduce.h. */
struct zd_member_reduce; /* reduce files' own */

/* A slot of one rank: its block, from the first gather on. */
struct zd_slot {
	uint32_t number;
	struct zd_extent extent;
	struct zd_buffer *occupant; /* until its last op is over; the last one that was promised the slot */
	bool orphan;                /* its rank is gone: freed with the occupant */
	TAILQ_ENTRY(zd_slot) link;
};

/* One rank of a group in this daemon; session NULL while nobody is it. */
struct zd_member {
	struct zd_group *group;
	uint32_t rank; /* among those of this daemon; as everywhere in the core, but for zd_world_rank() */
	struct zd_device *device;
	struct zd_session *session;
	bool joining;       /* its join waits: not a member yet for any other request */
	bool joined_before; /* someone was it: newly registered shards catch up with the group's versions */
	bool committing;
	bool set_back;          /* what it published was undone, and its session has not been reset since */
	bool leaves;            /* in order, by its own request */
	uint64_t told;          /* the group's generation that its session knows of */
	uint64_t frozen_digest; /* of the units that the rank has frozen or unfrozen; layout.c */
	uint64_t commit_step;
	uint64_t comm[ZD_NCOMM_ROLES]; /* its communicators; 0: none */
	uint32_t transfers;            /* under way of this connection's, over rails */
	TAILQ_HEAD(, zd_slot) slots;
	TAILQ_HEAD(, zd_scope) scopes; /* that have not ended, by id; scope.c, context.c */
	uint32_t nscopes;
	struct zd_member_reduce *reduce; /* NULL until the first use */
	struct zd_request *agreeing;     /* agree.c: waits for the other ranks' values; NULL: none */
	struct zd_request_list barriers; /* requests that wait at barriers, in order; barrier.c */
	TAILQ_ENTRY(zd_member) session_link;
};

/* A rank that went, of those that a member which has not been told hears of by name. */
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
	uint32_t nshards;          /* that a unit is cut into: one of each rank, or of each rank here */
	uint32_t local_world_size; /* in this one: `members` are these */
	uint32_t first_rank;       /* of these, in the world */
	uint32_t attached;         /* members with a session */
	uint32_t refs;             /* attached members, durable job, units' pending work (zd_group_ref) */
	uint64_t generation;       /* counts the ranks that went from a group that was complete */
	struct zd_lost lost[ZD_LOST_KEPT]; /* the last of these, each at its generation modulo this */
	bool torn;
	bool over;   /* all have left for good: is there until its memory's work is done, its name is free */
	bool shadow; /* durable: each shard has a block for the last commit behind it */
	uint64_t device_mask;
	struct zd_span *span;      /* NULL: all ranks are here; span.h */
	struct zd_member *members; /* local_world_size */
	struct zd_unit *units;     /* hash by name */
	struct zd_unit *former;    /* hash by name: left by all ranks and registered differently since */
	TAILQ_HEAD(, zd_group_slot) slots;
	uint64_t target_numel; /* of the flat target: sum of the trainable units' shard_numel */
	uint64_t committed_step;
	uint64_t voted_step;    /* 0, or the commit that this daemon has agreed to and knows no more of */
	uint64_t commit_serial; /* counts evaluated commits */
	int commit_status;      /* of the last one */
	char commit_text[192];
	TAILQ_HEAD(, zd_reduction) reductions; /* that are not over, in order; reduce files' own */
	struct zd_reduction *reduction_index;  /* hash by unit and backward; likewise */
	struct zd_slice_norm *step_norms;      /* hash by unit, of the last step; likewise */
	uint64_t reduce_serial;                /* counts failures; likewise */
	TAILQ_ENTRY(zd_group) job_link;
	UT_hash_handle hh; /* by id */
};

/* What the rank's user knows it by. */
static inline uint32_t zd_world_rank(const struct zd_member *member)
{
	return member->group->first_rank + member->rank;
}

/* Which of a unit's shards is its. */
static inline uint32_t zd_shard_index(const struct zd_member *member)
{
	const struct zd_group *group = member->group;
	return group->nshards == group->world_size ? zd_world_rank(member) : member->rank;
}

/* NULL for one that is CLOSING too. */
struct zd_session *zd_session_find(struct zd_engine *e, uint64_t id);
/* Stores the value into the session's daemon page, by the executor of the timeline's device. */
void zd_session_signal(struct zd_engine *e, const struct zd_session *session, uint32_t timeline,
                       uint64_t value);
/* The bytes of an operation that signals the timeline will never come: frees the streams that wait for them
 * and marks the session POISONED. */
void zd_session_abort(struct zd_engine *e, struct zd_session *session, uint32_t timeline);
int zd_session_check_poisoned(const struct zd_session *session, struct zd_err *err)
        __attribute__((warn_unused_result));

struct zd_job *zd_job_get(struct zd_engine *e, uint32_t uid, const char *name,
                          bool durable); /* finds or makes */
/* NULL: the uid has none of that name. */
struct zd_job *zd_job_find(struct zd_engine *e, uint32_t uid, const char *name);
void zd_job_ref(struct zd_job *job);
void zd_job_unref(struct zd_engine *e, struct zd_job *job);
/* A durable job that nobody is attached to gives everything back. */
void zd_job_end(struct zd_engine *e, struct zd_job *job);

/* The session's membership; NOT_FOUND. */
int zd_member_find(struct zd_engine *e, struct zd_session *session, uint64_t group, struct zd_member **member,
                   struct zd_err *err) __attribute__((warn_unused_result));
/* The last rank that went: why the group is FAILED. */
static inline const struct zd_lost *zd_group_lost(const struct zd_group *group)
{
	return &group->lost[group->generation % ZD_LOST_KEPT];
}

/* 0 when the group is READY; PEER_LOST, ABORTED or STATE with the text otherwise. */
int zd_group_check(const struct zd_group *group, struct zd_err *err) __attribute__((warn_unused_result));
/* PEER_LOST, which names the ranks that went since that generation of the group. */
int zd_group_tell(const struct zd_group *group, uint64_t since, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The same, once, when a rank went and this one's session has not been told. */
int zd_member_tell(struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
/* At the beginning of a request: zd_group_check() and zd_member_tell(). */
int zd_member_enter(struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
/* zd_group_check(), and PEER_LOST while the rank works on what was undone. */
int zd_member_check(const struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
void zd_group_ref(struct zd_group *group);
void zd_group_unref(struct zd_engine *e, struct zd_group *group);
/* The rank's session ends or leaves; its requests are gone already. Everything it holds in the group goes;
 * the group fails unless it was alone. */
void zd_member_detach(struct zd_engine *e, struct zd_member *member);

/* ---- Units (unit.c, update.c) -------------------------------------------------------------------------- */

enum zd_part_state {
	ZD_PART_ABSENT,
	ZD_PART_FILLING, /* the shard is being zeroed */
	ZD_PART_IDLE,
	ZD_PART_UPDATE_WAIT, /* update_begin waits for readers; new gathers wait already */
	ZD_PART_UPDATING,
	ZD_PART_LOADING,    /* the same, and a unit_load writes the shard, or is about to */
	ZD_PART_PUBLISHING, /* the writers' fences are awaited */
	ZD_PART_DETACHED,   /* durable: its session is gone, the shard stays */
	ZD_PART_DYING,      /* to be freed when the last reader ends */
};

/* One rank's part of a unit: its shard and its gathered buffer. There may be 10^5 of them: keep it small. */
struct zd_part {
	struct zd_unit *unit;
	struct zd_extent shard;   /* and its shadow behind it */
	struct zd_buffer *buffer; /* the gathered buffer, INFLIGHT or AVAILABLE; NULL: NOT_AVAILABLE */
	uint64_t version;         /* of the shard */
	uint64_t first;     /* version it was registered with: that one is nobody's, so nobody reads it */
	uint64_t committed; /* version at the last commit */
	uint32_t rank;
	uint32_t readers; /* pushes that read the shard, its fill, and aliased buffers that are read */
	uint32_t slot;    /* it is gathered into; only while it is registered */
	uint32_t users;   /* waiting requests and reductions that name it: no unregister */
	uint32_t target_accesses; /* by the rank's streams, of its place in the target; lent_target.c */
	uint8_t state;
	uint8_t shadow; /* enum zd_shadow_state */
	bool early; /* an update was granted ahead of its readers' end: it is neither published nor loaded */
	bool persistent;
	bool target_lent;         /* the rank's streams may access its place in the target; lent_target.c */
	bool frozen;              /* the unit's own, unless its rank has changed it */
	struct zd_scope *context; /* the user context of its rank that it is in */
	LIST_HEAD(, zd_await) awaits; /* PUBLISHING: transfers that wait for the new version; deferred.h */
	struct zd_rail *rail;         /* rail.h; NULL where the group does not span daemons */
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
	uint32_t slot; /* with which its parts begin, as without a gradient or with one */
	bool frozen;
	bool all_reduce; /* its part of a target is the whole unit, on every rank */
	uint32_t nviews;
	struct zd_view_args *views; /* names owned; within the unit's elements */
	uint32_t first_rank;        /* who described it */
	uint32_t refs;              /* parts not ABSENT, buffers, reductions, registrations */
	uint32_t registrations;     /* that have not ended */
	bool is_former;             /* in the group's table of those */
	char *mismatch; /* a rank described it differently: both descriptions, until that rank agrees */
	uint32_t mismatch_rank;
	uint64_t target_offset_numel;
	struct zd_load *load;   /* that is not over; NULL: none; load.c */
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

/* The rank has no shard, or one that nobody but transfers under way has a use for. */
static inline bool zd_part_is_gone(const struct zd_part *part)
{
	return part->state == ZD_PART_ABSENT || part->state == ZD_PART_DYING;
}

/* Its rank has registered it, or is doing so; a shard that is still read, or kept, is no registration. */
static inline bool zd_part_is_registered(const struct zd_part *part)
{
	return !zd_part_is_gone(part) && part->state != ZD_PART_DETACHED;
}

/* An update of the shard has been granted and is not over. */
static inline bool zd_part_is_written(const struct zd_part *part)
{
	return part->state == ZD_PART_UPDATING || part->state == ZD_PART_LOADING ||
	       part->state == ZD_PART_PUBLISHING;
}

/* The shard is as it was registered, zeroed. */
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
/* The session's registered part: NOT_FOUND. */
int zd_part_find(struct zd_engine *e, struct zd_session *session, uint64_t unit, struct zd_part **part,
                 struct zd_err *err) __attribute__((warn_unused_result));
void zd_unit_unref(struct zd_engine *e, struct zd_unit *unit);
/* No rank has it, nor is about to: who describes it anew may do so differently. */
bool zd_unit_is_left(const struct zd_unit *unit);
/* One reader less; lets a waiting update or a dying part go on. */
void zd_part_reader_done(struct zd_engine *e, struct zd_part *part);
/* The member's part of every unit goes (or is DETACHED in a durable job). */
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

/* A rank's gathered buffer. While QUARANTINED it belongs to no part any more and nobody is charged. */
struct zd_buffer {
	uint64_t id;
	uint8_t state;
	bool prefetched; /* no lease yet: a gather may take it over, demand may take its memory */
	bool charged;
	bool stale;      /* a transfer failed, or a shard that it is made of is gone: satisfies no gather */
	bool own_left;   /* the transfer leaves the rank's own slice to its client */
	bool own_copied; /* and a client was told to copy it */
	bool deferred;   /* its transfer begins, or has begun, later than it was promised; deferred.h */
	bool aliased;    /* it is the shard itself, without an extent: alias.c */
	bool reading;    /* aliased: it counts among the part's readers */
	bool fill_due;   /* of a poison session that has had a lease: filled before its memory is reused */
	bool filling;    /* that is under way */
	struct zd_unit *unit;
	struct zd_part *part;
	struct zd_device *device;
	struct zd_extent extent; /* the slot's or heir's, if there is one; empty if aliased */
	struct zd_slot *slot;
	struct zd_buffer *former; /* QUARANTINED in the same memory: the transfer begins when it is over */
	struct zd_buffer *heir;   /* to which the memory is promised */
	LIST_HEAD(, zd_await) awaits;
	uint64_t version, since_ns;
	uint64_t connection; /* of its group, that fills it, or has; see span.h */
	uint64_t ordinal;    /* over rails: its transfer is the Nth of the unit on its rank */
	uint64_t transfer;   /* the number of the one that fills it, or has */
	uint64_t session;    /* whose timelines that signals, and how often it had been reset */
	uint32_t resets;
	uint32_t transfers;   /* copies into it that have not ended, promised ones too */
	uint32_t watches;     /* fences of past leases under way, and the departure of its process */
	uint32_t leaving_pid; /* the process, then */
	uint32_t nfences;     /* daemon-page fences of its transfer */
	struct zd_fence *fences;
	struct zd_promise *promise; /* aliased: of the version, until the part is published; NULL: it is */
	TAILQ_HEAD(, zd_lease) leases;
	TAILQ_ENTRY(zd_buffer) device_link, deferred_link;
};

/* Operations are under way: its own, or those of the buffer whose memory it was promised. */
static inline bool zd_buffer_is_in_use(const struct zd_buffer *buffer)
{
	return buffer->transfers > 0 || buffer->watches > 0 || buffer->former || buffer->filling;
}

/* No lease is left and none may come: the bytes are uncharged at once, the block is free when the last op is
 * over. */
void zd_buffer_drop(struct zd_engine *e, struct zd_buffer *buffer);
/* Ends all leases and drops it. */
void zd_buffer_revoke(struct zd_engine *e, struct zd_buffer *buffer);
/* Nobody occupies it. */
void zd_slot_free(struct zd_engine *e, struct zd_slot *slot);
/* "plan, fallback": the tags that hold it. */
void zd_buffer_tags(const struct zd_buffer *buffer, char *out, size_t out_bytes);

/* ---- The engine ---------------------------------------------------------------------------------------- */

struct zd_engine {
	struct zd_engine_sink sink;
	struct zd_device *devices;
	uint32_t ndevices;
	uint64_t quota_bytes;
	uint64_t reduction_cut_bytes; /* 0: slice.c's own */
	bool sessions_linger;
	bool strict_by_segment;
	bool collectives;
	char host[ZD_MAX_NAME_BYTES + 1];
	struct zd_session *departing; /* the session that is ending just now, if it lingers */
	uint32_t nlingering;          /* sessions that are CLOSING */
	uint64_t now_ns, next_deadline_ns;
	uint64_t next_id; /* of every object; ascending, never reused */
	uint32_t next_segment;
	uint64_t retire_serial; /* counts segments that began to retire */
	uint64_t dirty_mask;
	bool settling;
	struct zd_account account;
	uint64_t nrequests, gathers, joined_gathers, fallback_gathers, gathered_bytes_total;
	struct zd_reply reply;       /* scratch for the request being tried */
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
	struct zd_request *spare_request; /* not in use; NULL: none */
};

static inline uint64_t zd_next_id(struct zd_engine *e)
{
	return ++e->next_id;
}

extern const struct zd_sm zd_sm_session, zd_sm_group, zd_sm_part, zd_sm_buffer, zd_sm_segment, zd_sm_scope;

#endif
