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

#include <sys/queue.h>

/* Aborts on an exhausted heap like all of base/mem.h. */
#define uthash_fatal(msg) zd_assert(!(msg))
#include <uthash.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/sm.h"
#include "core/block.h"
#include "core/engine.h"
#include "core/timelines.h"

#define ZD_WAIT 1 /* returned instead of a status: try again later, req->wait says why */

#ifndef TAILQ_FOREACH_SAFE /* glibc's sys/queue.h lacks it */
#define TAILQ_FOREACH_SAFE(var, head, field, next)                                                           \
	for ((var) = TAILQ_FIRST(head); (var) && ((next) = TAILQ_NEXT(var, field), 1); (var) = (next))
#endif

struct zd_buffer;
struct zd_bucket;
struct zd_job;
struct zd_group;
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

/* ---- Memory (pool.c, account.c) ------------------------------------------------------------------------ */

enum zd_segment_state {
	ZD_SEGMENT_CREATING,
	ZD_SEGMENT_READY,
	ZD_SEGMENT_RETIRING,   /* empty for good: sessions are to unmap it */
	ZD_SEGMENT_DESTROYING, /* nobody has it mapped; its executor gives the memory back */
};

/* A session that has been given the segment. */
struct zd_mapping {
	struct zd_segment *segment;
	struct zd_session *session;
	TAILQ_ENTRY(zd_mapping) segment_link, session_link;
};

/* One physical allocation of one job for one purpose. */
struct zd_segment {
	uint32_t id;
	uint8_t state;
	enum zd_purpose purpose;
	struct zd_device *device;
	struct zd_job *job;
	uint64_t bytes;
	uint64_t prefetched_bytes; /* scratch of retire.c: in copies that nobody has asked for */
	uint64_t retire_serial;    /* when it began to retire */
	struct zd_block_range *range;
	TAILQ_HEAD(, zd_mapping) mappings;
	TAILQ_ENTRY(zd_segment) device_link;
	UT_hash_handle hh;
};

/* A block of a segment. block NULL: nothing. `bytes` is what is charged for it. */
struct zd_extent {
	struct zd_segment *segment;
	struct zd_block *block;
	uint64_t bytes;
};

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

/* What one uid may hold and holds. */
struct zd_owner {
	uint32_t uid;
	uint32_t jobs;
	struct zd_account account;
	UT_hash_handle hh;
};

TAILQ_HEAD(zd_request_list, zd_request);
TAILQ_HEAD(zd_buffer_list, zd_buffer);
TAILQ_HEAD(zd_segment_list, zd_segment);

struct zd_device {
	uint32_t index;
	struct zd_device_config config; /* budget and staging resolved, never 0 */
	uint64_t segment_default_bytes;
	uint64_t strict_align_bytes; /* strict sessions' gathered buffers are multiples of it */
	uint64_t segment_bytes;      /* in segments */
	uint64_t retiring_bytes;     /* of these, in segments that are on their way back */
	uint64_t quarantine_bytes;   /* in blocks that nobody is charged for and that are not free yet */
	uint64_t idle_slot_bytes;    /* in slots without a charged buffer */
	uint64_t staging_bytes;      /* charged for reductions under way */
	struct zd_slice
	        *staging_queue; /* utlist: slices that wait for staging, in order; reduce files' own */
	struct zd_account account;
	struct zd_segment_list segments;
	struct zd_request_list queue;  /* waiting requests, in order of arrival */
	struct zd_buffer_list buffers; /* by id, quarantined ones too */
	uint32_t memory_waiters;       /* demand gathers in the queue that wait for room */
	bool pass_blocked;             /* during a pass over the queue: one before wants room */
	uint64_t gathers, joined_gathers;
	uint64_t fallback_gathers; /* leases that forward scopes took */
};

/*
 * Takes a block for `job`. 0 with *extent; ZD_WAIT when a segment is being created or given back, or
 * quarantined blocks may come free; NO_MEMORY when nothing will change by itself; or the error of a segment
 * that could not be created. `req` (may be NULL) learns what it waits for. Charges nothing. Has empty
 * segments given back to make room, but not for a gather, which does so itself.
 */
int zd_pool_alloc(struct zd_engine *e, struct zd_request *req, struct zd_job *job, struct zd_device *device,
                  enum zd_purpose purpose, uint64_t bytes, uint64_t align, struct zd_extent *extent,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* Is there a segment, or room for one, that could ever hold so much for this job and purpose. */
bool zd_pool_could_fit(const struct zd_device *device, const struct zd_job *job, enum zd_purpose purpose,
                       uint64_t bytes);
/* Forgets the segment: its memory is the executor's to give back, or was never there. */
void zd_segment_free(struct zd_engine *e, struct zd_segment *segment);
/* Gives the block back at once: no use of it may be left. Marks the device dirty. Clears *extent. */
void zd_pool_free(struct zd_engine *e, struct zd_extent *extent);
struct zd_location zd_extent_location(const struct zd_extent *extent);
/* Destroys the job's segments; every block must be free. */
void zd_pool_job_end(struct zd_engine *e, struct zd_job *job);

/* Would `bytes` more break the uid's quota: QUOTA with the sizes. */
int zd_quota_check(struct zd_engine *e, const struct zd_job *job, uint64_t bytes, struct zd_err *err)
        __attribute__((warn_unused_result));
void zd_charge(struct zd_engine *e, struct zd_job *job, struct zd_device *device, enum zd_charge kind,
               uint64_t bytes);
void zd_uncharge(struct zd_engine *e, struct zd_job *job, struct zd_device *device, enum zd_charge kind,
                 uint64_t bytes);
void zd_account_usage(const struct zd_account *account, struct zd_usage *usage);

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
	ZD_WAIT_COMMIT,     /* rank has not committed */
	ZD_WAIT_SAVE,       /* the last commit is being copied to the shadow of the rank's shard */
	ZD_WAIT_RESTORE,    /* the rank's shard is being set back to the last commit */
	ZD_WAIT_UNIQUE_IDS, /* they are being made */
	ZD_WAIT_TRANSFERS,  /* a: transfers of the rank, which may still free streams that wait for them */
	ZD_WAIT_NODES,      /* a: ranks of other daemons, which have not all joined */
	ZD_WAIT_OTHERS,     /* the ranks of other daemons, which have not all come */
	ZD_WAIT_FOLLOW,     /* a: rank, in the world, that has not gathered the unit as others have */
	ZD_WAIT_ORDER,      /* gathers before it; unit: the first, whose order all ranks keep */
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
	bool wants_memory; /* counted in device->memory_waiters */
	bool cancelled;    /* its session or deadline ended it while ops were pending; freed with the last */
	bool answered;     /* before its turn */
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
		} publish; /* UPDATE_BEGIN, PUBLISH */
		struct {
			uint64_t serial; /* group->commit_serial at arrival */
		} commit;
		struct {
			struct zd_part *part;
			bool persistent; /* the part is to be, when it has its shard */
		} reg;                   /* UNIT_REGISTER, SET_PERSISTENT */
		struct {
			struct zd_part *part;
			uint64_t version; /* 0: newest */
			uint32_t uses;
			bool prefetch;
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
		} release;
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
			bool zeroes; /* what no sum has written */
		} reduce;            /* requests of bucket.c, reduce.c, step.c */
	} u;
};

/* Does it use u.gather. */
static inline bool zd_request_gathers(const struct zd_request *req)
{
	return req->kind == ZD_REQ_GATHER || req->kind == ZD_REQ_CONTEXT_BEGIN;
}

/*
 * One row per kind of request.
 *   begin   checks the arguments and takes what it needs of them; changes nothing if it returns an error
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
extern const struct zd_request_type *const zd_request_types[ZD_NREQUESTS]; /* types.c; none is NULL */

/* The request ends with this error at its next attempt; the first one counts. */
void zd_request_fail(struct zd_request *req, int status, const char *text);
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
	bool strict;
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
	TAILQ_HEAD(, zd_onward) onwards;       /* rail.h */
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
	UT_hash_handle hh; /* by id */
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
	struct zd_buffer *occupant; /* until its last op is over */
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
	bool set_back; /* what it published was undone, and its session has not been reset since */
	bool leaves;   /* in order, by its own request */
	uint64_t commit_step;
	uint64_t comm[ZD_NCOMM_ROLES]; /* its communicators; 0: none */
	uint32_t transfers;            /* under way of this connection's, over rails */
	TAILQ_HEAD(, zd_slot) slots;
	TAILQ_HEAD(, zd_scope) scopes; /* that have not ended, by id; scope.c, context.c */
	uint32_t nscopes;
	struct zd_member_reduce *reduce; /* NULL until the first use */
	TAILQ_ENTRY(zd_member) session_link;
};

struct zd_group_slot {
	uint32_t number;
	uint64_t bytes; /* largest padded unit */
	bool placed;    /* a rank has its block: cannot grow any more */
	TAILQ_ENTRY(zd_group_slot) link;
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
	uint32_t lost_rank;        /* why it is FAILED */
	uint32_t lost_pid;
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
	uint64_t reduce_serial;                /* counts failures; likewise */
	TAILQ_ENTRY(zd_group) job_link;
	UT_hash_handle hh; /* by id */
};

/* Its last commit may have been made, for all that this daemon knows; its shards and their shadows are
 * kept. */
static inline bool zd_group_in_doubt(const struct zd_group *group)
{
	return group->voted_step != 0 && group->state != ZD_GROUP_READY;
}

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
/* The bytes of an operation that signals the timeline will never come: frees the streams that wait for them
 * and marks the session POISONED. */
void zd_session_abort(struct zd_engine *e, struct zd_session *session, uint32_t timeline);
int zd_session_check_poisoned(const struct zd_session *session, struct zd_err *err)
        __attribute__((warn_unused_result));

struct zd_job *zd_job_get(struct zd_engine *e, uint32_t uid, const char *name,
                          bool durable); /* finds or makes */
void zd_job_ref(struct zd_job *job);
void zd_job_unref(struct zd_engine *e, struct zd_job *job);
/* A durable job that nobody is attached to gives everything back. */
void zd_job_end(struct zd_engine *e, struct zd_job *job);

/* The session's membership; NOT_FOUND. */
int zd_member_find(struct zd_engine *e, struct zd_session *session, uint64_t group, struct zd_member **member,
                   struct zd_err *err) __attribute__((warn_unused_result));
/* 0 when the group is READY; PEER_LOST, ABORTED or STATE with the text otherwise. */
int zd_group_check(const struct zd_group *group, struct zd_err *err) __attribute__((warn_unused_result));
/* The same, and PEER_LOST while the rank works on what was undone. */
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
	ZD_PART_PUBLISHING, /* the writers' fences are awaited */
	ZD_PART_DETACHED,   /* durable: its session is gone, the shard stays */
	ZD_PART_DYING,      /* to be freed when the last reader ends */
};

/* One rank's part of a unit: its shard and its gathered copy. There may be 10^5 of them: keep it small. */
struct zd_part {
	struct zd_unit *unit;
	struct zd_extent shard;   /* and its shadow behind it */
	struct zd_buffer *buffer; /* the gathered copy, INFLIGHT or AVAILABLE; NULL: NOT_AVAILABLE */
	uint64_t version;         /* of the shard */
	uint64_t first;     /* version it was registered with: that one is nobody's, so nobody reads it */
	uint64_t committed; /* version at the last commit */
	uint32_t rank;
	uint32_t readers; /* pushes that read the shard, and its fill */
	uint32_t users;   /* waiting requests and reductions that name it: no unregister */
	uint8_t state;
	uint8_t shadow; /* enum zd_shadow_state */
	bool persistent;
	struct zd_scope *context; /* the user context of its rank that it is in */
	struct zd_rail *rail;     /* rail.h; NULL where the group does not span daemons */
};

struct zd_unit {
	uint64_t id;
	char *name;
	struct zd_group *group;
	enum zerod_dtype dtype;
	uint64_t numel, shard_numel;
	uint32_t slot;
	bool frozen;
	bool all_reduce; /* its part of a target is the whole unit, on every rank */
	uint32_t nviews;
	struct zd_view_args *views; /* names owned */
	uint32_t first_rank;        /* who described it */
	uint32_t refs;              /* parts not ABSENT, buffers, reductions, registrations */
	uint32_t registrations;     /* that have not ended */
	bool is_former;             /* in the group's table of those */
	char *mismatch; /* a rank described it differently: both descriptions, until that rank agrees */
	uint32_t mismatch_rank;
	uint64_t target_offset_numel;
	bool laid_out;          /* it has its place in the group's slot and target */
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

/* Its elements in a rank's target. */
static inline uint64_t zd_unit_target_numel(const struct zd_unit *unit)
{
	return unit->shard_numel * (unit->all_reduce ? unit->group->nshards : 1);
}

/* The rank's shard alone. */
static inline struct zd_location zd_part_location(const struct zd_part *part)
{
	struct zd_location location = zd_extent_location(&part->shard);
	location.bytes = zd_unit_shard_bytes(part->unit);
	return location;
}

/* What a rank's shard takes, with its shadow. */
static inline uint64_t zd_unit_part_bytes(const struct zd_unit *unit)
{
	return zd_unit_shard_bytes(unit) * (unit->group->shadow ? 2 : 1);
}

/* What a gathered buffer (or slot) of so many padded bytes takes: a strict session's fills whole pages or
 * segments. */
static inline uint64_t zd_gathered_bytes(const struct zd_session *session, const struct zd_device *device,
                                         uint64_t padded_bytes)
{
	return session->strict ? zd_align_up(padded_bytes, device->strict_align_bytes) : padded_bytes;
}

/* The rank has no shard, or one that nobody but transfers under way has a use for. */
static inline bool zd_part_is_gone(const struct zd_part *part)
{
	return part->state == ZD_PART_ABSENT || part->state == ZD_PART_DYING;
}

/* The shard is as it was registered, zeroed. */
static inline bool zd_part_is_unpublished(const struct zd_part *part)
{
	return part->version == part->first;
}

/* NULL: no unit of the group has that slot. */
struct zd_group_slot *zd_group_slot_find(struct zd_group *group, uint32_t number);
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

/* The daemons meet, and all are at `step` or in doubt about it: so is the group now, if it was in doubt. */
void zd_commit_resolve(struct zd_engine *e, struct zd_group *group, uint64_t step, bool torn);

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

/* A rank's gathered copy. While QUARANTINED it belongs to no part any more and nobody is charged. */
struct zd_buffer {
	uint64_t id;
	uint8_t state;
	bool prefetched; /* no lease yet: a gather may take it over, demand may take its memory */
	bool charged;
	bool stale;      /* a transfer failed, or a shard that it is made of is gone: satisfies no gather */
	bool own_left;   /* the transfer leaves the rank's own slice to its client */
	bool own_copied; /* and a client was told to copy it */
	struct zd_unit *unit;
	struct zd_part *part;
	struct zd_device *device;
	struct zd_extent extent; /* the slot's, if slot is set */
	struct zd_slot *slot;
	uint64_t version, since_ns;
	uint64_t connection; /* of its group, that fills it, or has; see span.h */
	uint64_t ordinal;    /* over rails: its transfer is the Nth of the unit on its rank */
	uint64_t transfer;   /* the number of the one that fills it, or has */
	uint64_t session;    /* whose timelines that signals, and how often it had been reset */
	uint32_t resets;
	uint32_t transfers;   /* copies under way into it */
	uint32_t watches;     /* fences of past leases under way, and the departure of its process */
	uint32_t leaving_pid; /* the process, then */
	uint32_t nfences;     /* daemon-page fences of its transfer */
	struct zd_fence *fences;
	TAILQ_HEAD(, zd_lease) leases;
	TAILQ_ENTRY(zd_buffer) device_link;
};

/* No lease is left and none may come: the bytes are uncharged at once, the block is free when the last op is
 * over. */
void zd_buffer_drop(struct zd_engine *e, struct zd_buffer *buffer);
/* Ends all leases and drops it. */
void zd_buffer_revoke(struct zd_engine *e, struct zd_buffer *buffer);
/* Nobody occupies it. */
void zd_slot_free(struct zd_engine *e, struct zd_slot *slot);
/* "plan, fallback": the tags that hold it. */
void zd_buffer_tags(const struct zd_buffer *buffer, char *out, size_t out_bytes);

/* ---- Allocations (alloc.c) ----------------------------------------------------------------------------- */

struct zd_allocation {
	uint64_t id;
	char name[ZD_MAX_NAME_BYTES + 1];
	struct zd_session *session; /* NULL: freed, waits for fences or its fill */
	struct zd_job *job;
	struct zd_device *device;
	struct zd_extent extent;
	uint64_t since_ns;
	uint32_t pending;
	bool filling;
	TAILQ_ENTRY(zd_allocation) session_link;
	UT_hash_handle hh;
};
/* Drops it: uncharged at once, freed when pending ops are over. */
void zd_allocation_drop(struct zd_engine *e, struct zd_allocation *allocation);

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
