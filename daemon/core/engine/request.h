/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - requests: the objects, and how they wait.
 *
 * Everything is level-triggered. A request that cannot complete waits in its device's queue with a reason. An
 * event that can end a wait marks the device dirty (zd_dirty). zd_settle() tries the waiting requests of
 * dirty devices again, in order, until no device is dirty. Events therefore do not need to know which
 * requests wait for them. To fail a group or a unit, code sets its state, and its requests see the state at
 * their next attempt.
 *
 * If a uid has many waiting requests, one event tries a bounded number of them, and further steps try the
 * others (zd_engine_end_step()). These steps precede the uid's next request, as the steps of its ends do
 * (ending.h).
 */
#ifndef ZD_CORE_ENGINE_REQUEST_H
#define ZD_CORE_ENGINE_REQUEST_H

#include "core/engine/hash_table.h"
#include "core/engine/op.h"

#define ZD_WAIT 1 /* returned instead of a status: the request waits, for req->wait, and is tried again */

struct zd_allocation;
struct zd_bucket;
struct zd_group;
struct zd_host_copy;
struct zd_load;
struct zd_member;
struct zd_move;
struct zd_part;
struct zd_promise;
struct zd_request;
struct zd_scope;
struct zd_unit;

enum zd_wait_kind {
	ZD_WAIT_NONE,
	ZD_WAIT_RANKS,   /* not all have joined */
	ZD_WAIT_SEGMENT, /* a segment is being created */
	ZD_WAIT_RETIRE,  /* a: the segment that is retiring */
	ZD_WAIT_FILL,    /* memory is being zeroed */
	ZD_WAIT_FENCES,  /* the caller's own streams */
	/* a: copies that still read the shard, or, with b, consumers of aliased buffers */
	ZD_WAIT_READERS,
	ZD_WAIT_FORMER,     /* the former unit of the same name */
	ZD_WAIT_REGISTER,   /* rank has not registered the unit */
	ZD_WAIT_VERSION,    /* rank has not published; a: its version, b: the requested one */
	ZD_WAIT_LEASES,     /* a: the version that is leased */
	ZD_WAIT_REFRESH,    /* a: the version that operations still use */
	ZD_WAIT_GATHER,     /* an earlier gather of the same unit, which waits */
	ZD_WAIT_SLOT,       /* a: the slot; unit: its occupant, which still has operations */
	ZD_WAIT_MEMORY,     /* a: requested bytes, b: largest free block */
	ZD_WAIT_BUDGET,     /* a: requested bytes, b: live bytes */
	ZD_WAIT_TURN,       /* earlier gathers wait for memory */
	ZD_WAIT_BUCKET,     /* the bucket's next slot is not drained; rank, unit: the reason */
	ZD_WAIT_REDUCTIONS, /* a: reductions that are not complete; rank, unit: the first */
	ZD_WAIT_STEP,       /* rank has not started the step */
	ZD_WAIT_SUMS,       /* the sums of the rank's step are not known yet */
	ZD_WAIT_BACKWARD,   /* rank has not ended the backward */
	ZD_WAIT_AGREE,      /* rank has not called group_agree */
	ZD_WAIT_BARRIER,    /* rank has not reached the barrier */
	ZD_WAIT_COMMIT,     /* rank has not committed */
	ZD_WAIT_SAVE,       /* a commit is being copied from the rank's shard to its shadow or save */
	ZD_WAIT_RESTORE,    /* the rank's shard is being restored to the last commit */
	ZD_WAIT_PROCESS,    /* the process that used the memory is still on the device */
	ZD_WAIT_UNIQUE_IDS, /* the ids are being created */
	ZD_WAIT_TRANSFERS,  /* a: transfers in progress of the rank, which can have failed */
	ZD_WAIT_NODES,      /* a: ranks of other daemons, not all of which have joined; 0: communicators */
	ZD_WAIT_OTHERS,     /* ranks of other daemons have not all reached this call */
	ZD_WAIT_FOLLOW,     /* a: rank in the world that has not gathered the unit, as others have */
	ZD_WAIT_ORDER,      /* earlier gathers, in the common order of all ranks; unit: the first */
	ZD_WAIT_LOADERS,    /* rank has not called unit_load of the unit */
	ZD_WAIT_SOURCE,     /* the streams that write the allocation that rank loads into the unit */
	ZD_WAIT_LOAD,       /* copies of a load into the unit's shards */
	ZD_WAIT_PLACERS,    /* rank has not called unit_place of the unit */
	ZD_WAIT_READ,       /* copies of a unit's last commit to a reader */
	ZD_WAIT_MOVE,       /* the unit is being moved; a: 1 until rank has memory for its shard in the new
	                       place */
	/* a reader, for a commit after the step a of the group b; rank 1: for its host copy */
	ZD_WAIT_NEXT,
	ZD_WAIT_HOST_COPY, /* the commit a is being copied to host memory; b: bytes */
	ZD_NWAITS
};

struct zd_wait {
	enum zd_wait_kind kind;
	uint32_t rank;
	uint64_t a, b;
	const struct zd_unit *unit; /* named in the text; NULL: none */
};

/* The values that the ranks of a group agree on; agree.c. */
struct zd_agreement {
	uint32_t refs;   /* requests that wait for this result */
	uint32_t nranks; /* combined ranks */
	double values[];
};

/* Sets req->wait and returns ZD_WAIT. */
int zd_wait_for(struct zd_request *req, enum zd_wait_kind kind, uint32_t rank, uint64_t a, uint64_t b);
/* The same, for a wait whose text names the unit. */
int zd_wait_for_unit(struct zd_request *req, const struct zd_unit *unit, enum zd_wait_kind kind,
                     uint32_t rank, uint64_t a, uint64_t b);
struct zd_request {
	uint64_t id;     /* the client's */
	uint64_t serial; /* the engine's; the row id of a waiting gather in the table of buffers */
	const struct zd_request_type *type; /* of its kind */
	enum zd_request_kind kind;
	bool queued;
	uint64_t told;            /* the member's `told` at the request's start */
	bool wants_memory;        /* a waiter of its uid's queue of the device */
	uint8_t favours;          /* how often others have waited for it without success; memory_queue.c */
	uint64_t wants_memory_ns; /* since that time, or since others last had to wait */
	/* ended by its session or deadline while ops were pending; the last op frees it */
	bool cancelled;
	bool answered; /* replied to before its end */
	bool must_end; /* it cannot expire any more */
	bool unheard;  /* its client does not wait for the reply, which therefore cannot report a loss to the
	                  session */
	/* set by attempt() with ZD_WAIT: it has completed a part of long work, and is called for the next
	 * part in another event */
	bool goes_on;
	/* of begin(): the caller's, or, after its ZD_WAIT, an owned copy with which it will be called again.
	 * Otherwise NULL */
	const struct zd_args *args;
	struct zd_fence_list fences; /* of the client's streams, by zd_request_keep_fences() */
	void *owned[3];              /* freed with the request */
	uint32_t pending_ops;
	int failed;            /* status of an op or segment that failed; with failed_text */
	char *failed_text;     /* owned; NULL: none */
	uint32_t segment_wait; /* id of the segment that the request waits for; 0: none */
	uint32_t owned_bytes;  /* of `owned`, charged while it waits */
	struct zd_hash_node
	        awaits;          /* of the engine's `segment_waits`, while it is queued and waits for one */
	uint32_t metadata_bytes; /* charged while it waits */
	uint64_t since_ns, deadline_ns;
	uint32_t deadline_at; /* its place among the engine's deadlines, from 1; 0: none */
	struct zd_session *session;
	struct zd_member *member; /* NULL if the request concerns no group */
	/* its queue's device; begin() of every kind that can wait sets it */
	struct zd_device *device;
	struct zd_wait wait;
	enum zd_wait_kind measured; /* the reason of its wait since measured_ns; NONE: it is not queued */
	uint64_t measured_ns;
	struct zd_event wait_event; /* of this wait */
	TAILQ_ENTRY(zd_request) session_link, device_link;
	TAILQ_ENTRY(zd_request) owner_link, memory_link; /* of struct zd_owner_queue */
	struct zd_id_node listed;                        /* in the device's queue */
	UT_hash_handle hh;
	union {
		struct {
			struct zd_part **parts;
			uint32_t nparts;
			bool ahead; /* UPDATE_BEGIN: the reply can have a promise */
			/* kept when no part has readers; NULL: none */
			struct zd_promise *promise;
			uint32_t grown; /* from 1: the last part for whose save a segment was created */
		} publish;              /* UPDATE_BEGIN, PUBLISH */
		struct {
			uint64_t serial; /* group->commit_serial at arrival */
		} commit;
		struct {
			uint64_t group, after;
			bool pin, saved;
			uint32_t pin_ms;
		} commit_wait;
		struct {
			struct zd_host_copy *copy; /* that it waits for; NULL: none */
		} save;                            /* COMMIT_SAVE */
		struct {
			struct zd_unit *unit;                      /* with a reference */
			struct zd_allocation *into;                /* NULL: no copy */
			uint64_t step, offset, bytes, into_offset; /* bytes: in all */
			struct zd_rows rows;
			uint64_t map_bytes, mapped; /* as in the message */
			bool copied;                /* the copies have started */
			struct zd_host_copy *from;  /* NULL: the parts hold the commit */
		} unit_read;
		struct {
			struct zd_part *part;
			bool persistent; /* for the part, when it has its shard */
		} reg;                   /* UNIT_REGISTER, SET_PERSISTENT */
		struct {
			uint32_t nunits, nplaced; /* nplaced: 0 if all are as they were registered */
		} resume;                         /* UNITS_RESUME */
		struct {
			struct zd_part *part;
			struct zd_allocation *source; /* the source of the load; NULL: another rank has it */
			struct zd_load *load;         /* NULL: not started, or complete */
			bool complete;
		} load; /* UNIT_LOAD */
		struct {
			struct zd_part *part;
			struct zd_move *move; /* NULL: not started, or ended */
			bool on_host, complete;
		} place; /* UNIT_PLACE */
		struct {
			struct zd_part *part;
			uint64_t version; /* 0: newest */
			uint32_t uses;
			bool prefetch;
			bool no_slot;
			char tag[ZD_MAX_TAG_BYTES + 1]; /* "": the scope's */
			struct zd_scope *scope;         /* NULL: the tag's own */
			/* CONTEXT_BEGIN; `part` is being gathered */
			struct zd_part **parts;
			uint64_t *versions; /* of these parts */
			uint32_t nparts, nheld;
		} gather; /* GATHER, CONTEXT_BEGIN */
		struct {
			struct zd_part *part;
			char tag[ZD_MAX_TAG_BYTES + 1];
		} release; /* RELEASE */
		struct {
			struct zd_scope *scope; /* FORWARD_BEGIN: the parent, or NULL */
			bool grad;
		} scope; /* FORWARD_BEGIN, and the requests that end a scope */
		struct {
			struct zd_allocation *allocation;
			uint64_t align;
		} alloc;
		struct {
			uint32_t op, count;
			double *values;
			struct zd_agreement *result; /* with a reference; NULL: not known yet */
		} agree;
		struct {
			bool passed;
			TAILQ_ENTRY(zd_request) link; /* of its member's `barriers`, unless it has passed */
		} barrier;
		struct {
			uint32_t count;
			unsigned char *bytes;
			char *job, *group;
		} unique_ids;
		struct {
			uint64_t serial; /* the request waits for segments with a retire_serial up to this */
			uint64_t freed_bytes;
		} trim;
		struct {
			struct zd_bucket *bucket;
			struct zd_part *part;
			void *entry; /* struct zd_entry */
			uint64_t serial;
			uint64_t window; /* BACKWARD_END, STEP_BEGIN, REDUCE_WAIT: its number */
			/* STEP_BEGIN: the zeroed part of the targets; target.c */
			uint32_t zeroed_targets;
			uint64_t zeroed_numel, zeroes_unit;
			bool scalars;               /* STEP_BEGIN: the result is stored for kernels */
			bool ahead;                 /* the reply can precede the time at which the target may
			                               be read */
			struct zd_promise *promise; /* REDUCE_WAIT: of the unit's sum; NULL: none */
			bool terms;                 /* REDUCE_WAIT: the terms of the sum are lent */
			uint32_t nunits;            /* STEP_GET: the units whose norms it returns */
			uint64_t *units;
		} reduce; /* requests of bucket.c, reduce.c, lent_target.c, step.c */
	} u;
};

/*
 * The functions of a kind of request. Each can be NULL.
 *
 *   begin   checks req->args and copies those that the request needs later. Changes nothing if it returns
 *           an error or ZD_WAIT. After ZD_WAIT it is called again at the next attempt. It can return ZD_WAIT
 *           only for kinds whose arguments have no pointers, with `member` and `device` set
 *   attempt returns 0 (complete, e->reply.u has the result), ZD_WAIT, or an error, without side effects.
 *   Called
 *           again whenever the device is dirty and no op of the request is pending
 *   cancel  undoes begin and attempt of a waiting request: at its deadline, at the session's end, or after a
 *           failed op. Never called after an error of attempt
 *   free    called after every outcome, before the memory that the request owns is freed
 */
struct zd_request_type {
	int (*begin)(struct zd_engine *e, struct zd_request *req, struct zd_err *err);
	int (*attempt)(struct zd_engine *e, struct zd_request *req, struct zd_err *err);
	void (*cancel)(struct zd_engine *e, struct zd_request *req);
	void (*free)(struct zd_request *req);
	uint32_t room;    /* requests that can wait beyond ZD_MAX_OUTSTANDING, because others wait for them */
	bool gathers;     /* it uses u.gather */
	bool forms_group; /* it cannot complete once the daemon drains */
	/* answered when it starts to wait: it waits for earlier requests, and cannot fail */
	bool answered_first;
};

/* Requests of the engine itself have no type. */
static inline bool zd_request_gathers(const struct zd_request *req)
{
	return req->type && req->type->gathers;
}

/* Returns the name of the kind, as in requests.def. */
const char *zd_request_name(enum zd_request_kind kind);
#define REQUEST(KIND, name) extern const struct zd_request_type zd_req_##name;
#include "core/requests.def"

/* Makes the request end with this error at its next attempt. The first error wins. */
void zd_request_fail(struct zd_request *req, int status, const char *text);
/* Gives the request allocated memory, which is freed with it: at most three times. `bytes` are charged while
 * the request waits. Returns the memory. */
void *zd_request_own(struct zd_request *req, void *memory, size_t bytes);
/* Copies the fences of the arguments, for the request's attempts. */
void zd_request_keep_fences(struct zd_request *req, const struct zd_fence_list *fences);
/* Replies with success and e->reply, from attempt(). The request then remains, without a deadline. Its end
 * sends no reply. */
void zd_request_answer(struct zd_engine *e, struct zd_request *req);
/* Ends a waiting request with DEADLINE, unless the request cannot expire any more. */
void zd_request_expire(struct zd_engine *e, struct zd_request *req);
/* Removes the request's deadline. */
void zd_request_drop_deadline(struct zd_engine *e, struct zd_request *req);
/* Op callback for requests: decrements pending_ops, records a failure, frees a cancelled request. The owner
 * is the request. Increment pending_ops when you submit an op. */
zd_op_fn zd_request_op_done;
/* Removes every waiting request of `member`, or of the session if it is NULL, without a reply (session end),
 * or with one (status != 0). */
void zd_requests_drop(struct zd_engine *e, struct zd_session *session, struct zd_member *member, int status,
                      const char *text);

void zd_dirty(struct zd_engine *e, struct zd_device *device);
/* Marks all devices dirty whose queues have waiting requests of the session. */
void zd_dirty_session(struct zd_engine *e, const struct zd_session *session);
void zd_dirty_group(struct zd_engine *e, struct zd_group *group);
/* Marks zd_commit_waits() dirty: requests of sessions that are not ranks and wait for a commit or the end of
 * a group. */
void zd_dirty_commit_waits(struct zd_engine *e);
void zd_settle(struct zd_engine *e);
/* Continues the owner's incomplete walks, with at most `budget` requests. */
void zd_walks_step(struct zd_engine *e, struct zd_owner *owner, uint32_t budget);

#endif
