/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_internal.h - objects of gradient reduction, for storage.c, bucket.c, entry.c, capacity.c, reduce.c,
 * slice.c, backward.c, step.c, target.c and reduce_check.c only.
 *
 * A rank's gradient of a unit lies in an entry of a bucket. Entries of all ranks for one unit and one
 * backward make a reduction, which is cut into one slice per owner. An owner's slice gathers the ranks'
 * pieces in staging memory and is then summed into the owner's target. Where the group spans daemons, what a
 * slice comes to in each is summed once more: see slice.h.
 *
 *   member -> zd_member_reduce -> buckets -> slots -> entries --+
 *   group  -> reductions -> contributions (one a rank) <--------+
 *                        -> slices (one an owner) -> staging
 */
#ifndef ZD_CORE_REDUCE_INTERNAL_H
#define ZD_CORE_REDUCE_INTERNAL_H

#include "core/gather/unit.h"

struct zd_entry;
struct zd_slice;

/* ---- Memory that operations use (storage.c) ------------------------------------------------------------ */

/*
 * A block of gradients, charged to its job until it is dropped. Its bytes fall from the accounts then,
 * whatever still uses them; the block is free when the last use has ended. A dropped one keeps its group, so
 * that the member's list, which the invariants are checked with, stays.
 */
struct zd_storage {
	struct zd_member *member;
	struct zd_device *device;
	struct zd_extent extent;
	enum zd_charge charge;
	bool dropped;
	uint32_t uses;  /* operations under way that read or write it */
	uint32_t fills; /* of these, that zero a part of a target: no sum is stored there meanwhile */
	TAILQ_ENTRY(zd_storage) link;
};

/* As zd_pool_alloc(), on the member's device, charged. QUOTA too. */
int zd_storage_new(struct zd_engine *e, struct zd_request *req, struct zd_member *member,
                   enum zd_charge charge, uint64_t bytes, struct zd_storage **storage, struct zd_err *err)
        __attribute__((warn_unused_result));
/* NULL is allowed. The caller's pointer is worth nothing afterwards. */
void zd_storage_drop(struct zd_engine *e, struct zd_storage *storage);
void zd_storage_use(struct zd_storage *storage);
void zd_storage_unuse(struct zd_engine *e, struct zd_storage *storage);
/* `bytes` of it at `offset`. */
struct zd_location zd_storage_location(const struct zd_storage *storage, uint64_t offset, uint64_t bytes);

/* ---- One rank's side (backward.c, step.c, target.c) ---------------------------------------------------- */

enum zd_backward_state { ZD_BACKWARD_IDLE, ZD_BACKWARD_STARTING, ZD_BACKWARD_RUNNING, ZD_BACKWARD_ENDING };
enum zd_step_state {
	ZD_STEP_NONE,
	ZD_STEP_READY,
	ZD_STEP_CALLED,    /* before its backward has ended */
	ZD_STEP_ZEROING,   /* what no sum has written */
	ZD_STEP_WAITING,   /* for the other ranks */
	ZD_STEP_TAKEN,     /* the rank reads its target */
	ZD_STEP_ABANDONED, /* the group failed meanwhile; the rank may read it still */
};

/* Why the gradients of a window or of a reduction cannot be used; all zero: they can. */
struct zd_failure {
	int status;
	char *text;
	bool abandoned; /* a window, without a status: by this rank, in the world */
	uint32_t rank;
};

/* The result of the last step that the rank has begun. */
struct zd_step_result {
	bool known;
	uint64_t step;
	bool overflow;
	double norm_squared;
	struct zd_failure failure;
};

/* Of a unit that was reduced since the last step: the squared norm of this owner's slice, as of the last
 * time. */
struct zd_slice_norm {
	uint64_t unit; /* id */
	bool skipped;  /* by all ranks, each time */
	double sum_squares;
	UT_hash_handle hh;
};

/*
 * A window of one rank: its backwards from one step to the next, that step, and the target (window.c).
 * Another one takes its place when the step is taken, or earlier: when the step was promised and its end
 * asked for. The former one is closing then, until its step has ended.
 */
struct zd_window {
	struct zd_member_reduce *mr;
	uint64_t number; /* how many the rank has closed before; equal on all ranks, but for those that lag */
	uint8_t backward;   /* enum zd_backward_state */
	uint8_t step;       /* enum zd_step_state */
	bool boundary;      /* of the last backward begun; stage 1 only */
	bool told;          /* a reply has told the rank of `failure` */
	bool end_requested; /* ENDING: by a request that waits; else by one that was given up */
	bool skips_rest;    /* ENDING: what others reduce and this rank does not, it skips */
	bool overflow;

	uint64_t count;          /* of its backwards, the last one may be running */
	uint64_t boundary_count; /* stage 1: which of them is the boundary; 0: not begun yet */
	uint32_t stage; /* 0: the window has no backward yet; or, closing, its step is taken or lost */
	enum zerod_dtype target_dtype;

	struct zd_storage *target;
	uint64_t target_numel;
	uint64_t target_number;      /* the backward that bound it */
	uint64_t unwritten_numel;    /* of it, that no sum has written: worth nothing until it is zeroed */
	struct zd_slice_norm *norms; /* hash by unit id */
	struct zd_failure failure;

	struct zd_storage *scalars; /* of the step under way, beside the target; NULL: not asked for */
	struct zd_promise *promise; /* of the step's target, until the step is taken or fails; NULL: none */
	uint32_t open;              /* reductions that this rank takes part in and that are not over */
	uint32_t nentries;          /* of its backwards, that are not drained */
};

/* One rank's windows, of which it has one, and one that is closing, and its buckets. */
struct zd_member_reduce {
	struct zd_member *member;
	bool attached;             /* else only dropped storage keeps it */
	bool stuck;                /* scratch of capacity.c */
	uint64_t number;           /* of the last backward begun, from 1; for texts */
	struct zd_window *w;       /* in which it begins backwards */
	struct zd_window *closing; /* NULL: none */
	struct zd_failure past;    /* of the last window that was closed by one */

	uint32_t nlent;    /* units whose places in the window's target are lent */
	uint32_t nlenders; /* requests that wait for a unit's sum, to lend its place */

	uint64_t steps;   /* agreed on so far */
	uint32_t nenders; /* step_ends that wait: for the step of the window that is closing first */
	struct zd_step_result result;
	struct zd_failure untold; /* of a promised step, of which no reply has told the rank */

	uint32_t nbuckets;
	uint32_t nentries;                      /* of all buckets */
	uint32_t nplaced;                       /* of them, that have memory */
	uint32_t nunsubmitted;                  /* of them, not submitted yet */
	uint64_t last_rail_seq, begun_rail_seq; /* contributions over its rail: made, begun */
	bool asking;                            /* it has it still */
	TAILQ_HEAD(, zd_bucket) buckets;
	TAILQ_HEAD(, zd_entry) waiting; /* entries without a place, in order */
	TAILQ_HEAD(, zd_storage) storages;
};

/* The member's, made when it has none. */
struct zd_member_reduce *zd_member_reduce_get(struct zd_member *member);
/* The member's, or NULL when it has none or is gone. */
static inline struct zd_member_reduce *zd_member_reduce(const struct zd_member *member)
{
	return member->reduce && member->reduce->attached ? member->reduce : NULL;
}
/* Frees it when the member is gone and no storage is left. */
void zd_member_reduce_release(struct zd_member_reduce *mr);

/* Notes for the request that the group may fail while it waits. */
void zd_reduce_request_init(struct zd_request *req, struct zd_member *member);
/* Why what a rank had before the group's last failure comes to nothing: PEER_LOST or ABORTED. */
int zd_reduce_lost(const struct zd_group *group, struct zd_err *err) __attribute__((warn_unused_result));
/* 0 when the group is READY and has been since the request began. Otherwise all that the request had is
 * gone. */
int zd_reduce_request_check(const struct zd_request *req, struct zd_err *err)
        __attribute__((warn_unused_result));
bool zd_reduce_request_lost(const struct zd_request *req);

/* By the begin() of requests that belong to a backward: ZD_WAIT while the rank's is being begun, else 0. */
int zd_backward_await(struct zd_request *req, const struct zd_member_reduce *mr)
        __attribute__((warn_unused_result));
/* Has the member ended the backward that the window of another rank runs, or asked to: it contributes nothing
 * to it any more. */
bool zd_backward_ended(const struct zd_member *member, const struct zd_window *w);

/* The group failed: a target that the rank reads is kept until the rank gives it up, any other is dropped. */
void zd_step_abandon(struct zd_engine *e, struct zd_window *w);
/* The rank reads its abandoned targets no more. */
void zd_step_give_up(struct zd_engine *e, struct zd_member_reduce *mr);
/* Has the rank asked for the step that closes the window: it begins no backward there any more. */
static inline bool zd_step_is_called(const struct zd_window *w)
{
	return w->step == ZD_STEP_CALLED || w->step == ZD_STEP_ZEROING || w->step == ZD_STEP_WAITING;
}
/* Has any rank been promised the step that closes the window. */
bool zd_step_is_promised(const struct zd_window *w);
/* The failure of a promised step, if no reply has told the rank of it. */
int zd_step_tell(struct zd_member_reduce *mr, struct zd_err *err) __attribute__((warn_unused_result));
void zd_step_forget_result(struct zd_member_reduce *mr);
/* backward.c, for a step that is CALLED. Ends the backward, unless the request that asked for its end will.
 * 0: it has ended, ZD_WAIT. */
int zd_backward_end_for_step(struct zd_engine *e, struct zd_request *req, struct zd_window *w)
        __attribute__((warn_unused_result));
/* Nothing ends the backward any more, but for its own request. */
void zd_backward_step_given_up(struct zd_window *w);

/* ---- Norms (norms.c) ----------------------------------------------------------------------------------- */

/* The sums noted since the last step are forgotten. */
void zd_norms_forget(struct zd_window *w);
/* A slice of this owner was reduced. */
void zd_norms_note(struct zd_window *w, const struct zd_unit *unit, const struct zd_op_result *result);
/* Was one of the unit since the last step: else its place in the target is worth nothing. */
bool zd_norms_has(const struct zd_window *w, const struct zd_unit *unit);
/* All ranks have skipped the unit in one of the window's backwards. */
void zd_norms_note_skipped(struct zd_window *w, const struct zd_unit *unit);
/* Have they, and was it never reduced. */
bool zd_norms_skipped(const struct zd_window *w, const struct zd_unit *unit);
/* Adds those of all units of this owner, one by one. */
void zd_norms_add(struct zd_window *w, double *sum);
/* The window's step is taken: keeps each unit's norm over the daemon's ranks until the next one is. */
void zd_norms_keep(struct zd_group *group, uint64_t window);
/* May the norms of STEP_GET's units be asked for. INVALID, NOT_FOUND, UNSUPPORTED. */
int zd_norms_check(struct zd_engine *e, struct zd_session *session, const struct zd_group *group,
                   const struct zd_args *args, struct zd_err *err) __attribute__((warn_unused_result));
/* Adds them to the reply. */
void zd_norms_reply(struct zd_engine *e, struct zd_request *req);

/* ---- Windows (window.c) -------------------------------------------------------------------------------- */

void zd_failure_set(struct zd_failure *failure, int status, const char *text);
void zd_failure_clear(struct zd_failure *failure);
/* Nothing where there is one already. */
void zd_failure_copy(struct zd_failure *failure, const struct zd_failure *from);
/* The rank's window of that number; NULL: it has closed that, or has not come to it yet. */
struct zd_window *zd_window_find(const struct zd_member_reduce *mr, uint64_t number);
/* The request's; NULL: it is closed. */
struct zd_window *zd_window_of(const struct zd_request *req);
struct zd_window *zd_window_new(struct zd_member_reduce *mr, uint64_t number);
/* If the step of the rank's window was promised and its end asked for, and no other window is closing: this
 * one is, and the next one begins. */
void zd_window_try_pass(struct zd_engine *e, struct zd_member_reduce *mr);
/* The window's step has ended, or none was left to end, and its target is gone. */
void zd_window_end(struct zd_engine *e, struct zd_window *w);
/* Its sums and its failure are forgotten, and the rank's next window begins, if it has not already. */
void zd_window_close(struct zd_window *w);
/* The same for a window that has failed or is abandoned: its target is dropped as well. */
void zd_window_leave(struct zd_engine *e, struct zd_window *w, enum zd_step_state step);
/* Every rank that is in the window, or comes to it, gets this failure instead of the step. What waits in the
 * window for further contributions fails too. A group over several daemons ends. */
void zd_window_fail(struct zd_engine *e, struct zd_group *group, uint64_t window, int status,
                    const char *text);
/* MISMATCH if the rank may not begin another backward, since a rank has asked for the step after fewer. */
int zd_window_check_begin(const struct zd_window *w, struct zd_err *err) __attribute__((warn_unused_result));
/* MISMATCH if another rank runs more backwards than this one, which asks for the step, or has asked for it
 * after fewer. */
int zd_window_check_step(const struct zd_window *w, struct zd_err *err) __attribute__((warn_unused_result));

/* Does the rank's target of a window that is closing come free without a call of any process. */
static inline bool zd_window_gives_room(const struct zd_member_reduce *mr)
{
	return mr->closing && mr->closing->target && mr->nenders > 0;
}

/* A rank has abandoned its window, on all ranks. */
static inline bool zd_window_is_abandoned(const struct zd_window *w)
{
	return w->failure.abandoned;
}

/* ---- Targets (target.c) -------------------------------------------------------------------------------- */

/* Of all units that the group has now. Errors, and ZD_WAIT: those of zd_storage_new();
 * ZD_WAIT also while the target of a window that is closing has the room. */
int zd_target_bind(struct zd_engine *e, struct zd_request *req, struct zd_window *w, struct zd_err *err)
        __attribute__((warn_unused_result));
void zd_target_drop(struct zd_engine *e, struct zd_window *w);
/* Begins to zero what no sum has written, as operations of the request. ZD_WAIT, or 0: all was written. */
int zd_target_zero_rest(struct zd_engine *e, struct zd_request *req, const struct zd_window *w)
        __attribute__((warn_unused_result));

/* Takes memory for the result of a step, beside its target: two float32 for kernels, 1 after an overflow,
 * else 0, and the squared norm. Errors, and ZD_WAIT: those of zd_storage_new(). */
int zd_target_bind_scalars(struct zd_engine *e, struct zd_request *req, struct zd_window *w,
                           struct zd_err *err) __attribute__((warn_unused_result));
struct zd_location zd_target_scalars(const struct zd_window *w);
/* Stores them, and keeps the promise that they can be read. */
void zd_target_store_scalars(struct zd_engine *e, struct zd_window *w, struct zd_promise *promise);

/* ---- Lent targets (lent_target.c) ---------------------------------------------------------------------- */

/* May streams of a rank access what the slice is to be added to. */
bool zd_slice_target_is_accessed(const struct zd_slice *slice);
/* The window's target goes, or its step is to end: nothing of it is lent any more. */
void zd_target_forget_lent(struct zd_window *w);

/* ---- Buckets (bucket.c, entry.c, capacity.c) ----------------------------------------------------------- */

enum zd_bucket_slot_state { ZD_BUCKET_SLOT_FREE, ZD_BUCKET_SLOT_OPEN, ZD_BUCKET_SLOT_CLOSED };

struct zd_bucket_slot {
	uint8_t state;
	struct zd_storage *storage; /* from the first entry of a backward to the backward's end */
	uint64_t used_bytes;        /* of the last generation: entries lie one behind the other */
	uint32_t live;              /* entries that are not drained */
	uint64_t opened;            /* how often: the last generation */
	uint64_t generation;        /* that has the memory */
	uint32_t current;           /* its entries that are not drained */
	bool advancing;
	TAILQ_HEAD(, zd_entry) queue; /* entries of later generations, in order */
};

struct zd_bucket {
	uint64_t id;
	struct zd_member_reduce *mr;
	enum zerod_dtype dtype;
	uint64_t slot_bytes;
	uint32_t nslots, next;       /* slots are opened in ring order */
	struct zd_bucket_slot *open; /* NULL: none */
	struct zd_bucket_slot slots[ZD_MAX_BUCKET_SLOTS];
	struct zd_entry *entries; /* hash by id, in order of reservation */
	TAILQ_ENTRY(zd_bucket) link;
	struct zd_id_node listed;
	UT_hash_handle hh;
};

enum zd_entry_state {
	ZD_ENTRY_WAITING,   /* has no place yet */
	ZD_ENTRY_FILLING,   /* its reservation waits for the room */
	ZD_ENTRY_RESERVED,  /* the trainer writes */
	ZD_ENTRY_ABANDONED, /* the group failed; the trainer may write it still */
	ZD_ENTRY_SUBMITTED, /* the producers' fences are awaited */
	ZD_ENTRY_READY,     /* its pieces may travel */
	ZD_ENTRY_DRAINED,   /* nothing reads it any more */
};

/* May an entry's place be written. */
enum zd_room {
	ZD_ROOM_NONE,   /* it has no place yet */
	ZD_ROOM_QUEUED, /* entries of an earlier generation of its slot are read still */
	ZD_ROOM_ZEROED, /* what its trainer does not write is being zeroed */
	ZD_ROOM_THERE,
};

/* The event that a WAITING entry needs for its place. */
enum zd_entry_wait {
	ZD_ENTRY_WAIT_NONE, /* the executors: a segment, quarantined memory */
	ZD_ENTRY_WAIT_SLOT, /* a slot of its bucket must be reduced */
	ZD_ENTRY_WAIT_ROOM, /* memory: anything that this rank has in buckets must be reduced */
};

struct zd_entry {
	uint64_t id;
	uint8_t state;
	uint8_t wait;              /* enum zd_entry_wait */
	uint8_t room;              /* enum zd_room */
	bool ahead;                /* a stream waits for its room, and not the request */
	bool zero_holes;           /* elements that no view of the unit covers are zeroed too */
	bool watched;              /* COMMITTED: its fences have not passed */
	uint32_t nabsent, *absent; /* views that are zeroed then, by index */
	uint32_t ops;              /* fills of its place and the fences' watch, under way */
	uint32_t fills;            /* of these */
	struct zd_bucket *bucket;  /* NULL: gone, and kept for these operations only */
	struct zd_window *w;       /* of its backward; NULL: the group failed, or it is gone */
	struct zd_part *part;
	struct zd_reduction *reduction; /* NULL: it will not be reduced */
	struct zd_bucket_slot *slot;    /* NULL: storage of its own */
	uint64_t generation;            /* of the slot */
	struct zd_storage *storage;
	uint64_t offset, bytes;     /* in the storage; padded to 256 */
	struct zd_promise *promise; /* of its room, until that is THERE; NULL: none was made */
	struct zd_failure failure;  /* of zeroing its place */
	char *refused;              /* CAPACITY's text, for the waiting request */
	struct zd_fence *producers; /* COMMITTED: what its session said has written it; NULL: nobody */
	uint32_t nproducers;
	TAILQ_ENTRY(zd_entry) waiting_link, slot_link;
	UT_hash_handle hh;
};

/* The session's bucket; NOT_FOUND. */
int zd_bucket_find(struct zd_engine *e, const struct zd_session *session, uint64_t id,
                   struct zd_bucket **bucket, struct zd_err *err) __attribute__((warn_unused_result));
/* Finds a place for a WAITING entry. 0, ZD_WAIT, or an error that leaves it as it was. */
int zd_bucket_place(struct zd_engine *e, struct zd_request *req, struct zd_entry *entry, struct zd_err *err)
        __attribute__((warn_unused_result));
/* One of the slot's entries is drained. */
void zd_bucket_slot_leave(struct zd_engine *e, struct zd_entry *entry);
/* Gives the storage of slots without entries back. True when there was some. */
bool zd_bucket_trim(struct zd_engine *e, struct zd_member_reduce *mr);
/* Entries go as they are. */
void zd_bucket_drop_entries(struct zd_engine *e, struct zd_bucket *bucket);
/* The group failed: entries that the rank was given and has not submitted are kept until it gives them up,
 * the others go. */
void zd_bucket_abandon_entries(struct zd_engine *e, struct zd_bucket *bucket);
void zd_bucket_free(struct zd_engine *e, struct zd_bucket *bucket);

/* The rank's part of the unit's gradient is drained, refused or given up. */
void zd_entry_end(struct zd_engine *e, struct zd_entry *entry);
/* A RESERVED one is in no reduction any more, and keeps its place. */
void zd_entry_abandon(struct zd_engine *e, struct zd_entry *entry);
/* An entry that is not READY is in no reduction any more. */
void zd_entry_detach(struct zd_engine *e, struct zd_entry *entry);
/* A RESERVED one goes when the fences of its rank's streams have passed, without a reduction. */
void zd_entry_return(struct zd_engine *e, struct zd_entry *entry, const struct zd_fence_list *fences);
/* Will it be drained by executors and by streams whose fences the engine has, without a call of any
 * process. */
bool zd_entry_drains(const struct zd_entry *entry);
/* Something that a COMMITTED entry waits for has happened: READY if that was the last. */
void zd_entry_try_ready(struct zd_engine *e, struct zd_entry *entry);
void zd_entry_free(struct zd_entry *entry);

/* room.c. The memory of the entry's place is its own: zeroes what the trainer does not write. */
void zd_entry_prepare(struct zd_engine *e, struct zd_entry *entry);
/* Its fences have passed: zeroes the views that have no gradient. */
void zd_entry_zero_absent(struct zd_engine *e, struct zd_entry *entry);
/* The entry ends, or is abandoned: no stream waits for its room any more. */
void zd_entry_release_promise(struct zd_engine *e, struct zd_entry *entry);

/* Writes down why the entry is not drained (reduce_text.c). */
void zd_entry_text(const struct zd_engine *e, const struct zd_entry *entry, char *out, size_t out_bytes);

/*
 * Is the group caught in a circle of reserves, `entry`'s among them: CAPACITY naming ranks and units. The
 * other reserves of the circle are refused at their next attempt.
 */
int zd_capacity_check(struct zd_engine *e, struct zd_entry *entry, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- Reductions (reduce.c, slice.c) -------------------------------------------------------------------- */

enum zd_reduction_state {
	ZD_REDUCTION_COLLECTING, /* ranks are missing */
	ZD_REDUCTION_RUNNING,
	ZD_REDUCTION_COMPLETE,
	ZD_REDUCTION_FAILED,  /* will not be completed; all ranks know */
	ZD_REDUCTION_DROPPED, /* the group failed: kept for its operations only */
};

enum zd_contribution_state {
	ZD_CONTRIBUTION_NONE,
	ZD_CONTRIBUTION_RESERVED,
	ZD_CONTRIBUTION_SUBMITTED,
	ZD_CONTRIBUTION_READY,
	ZD_CONTRIBUTION_SKIPPED,
};

struct zd_contribution {
	uint8_t state;
	struct zd_entry *entry; /* until drained */
	/* From the start of the reduction on: */
	struct zd_storage *storage;
	uint64_t offset;
	uint64_t rail_seq; /* among this rank's, where the group spans daemons */
	uint32_t order;    /* among the ranks that submitted */
	uint32_t left;     /* chunks of pieces that have not been taken yet, the rank's own by its sum */
	uint32_t ops;      /* under way that read it */
	bool settled;      /* its rank has its slice, and its entry back: others may still sum theirs */
};

/* The key of a reduction: the unit's id, the window, and the backward's place in the window. */
enum { ZD_REDUCTION_UNIT, ZD_REDUCTION_WINDOW, ZD_REDUCTION_BACKWARD, ZD_REDUCTION_NKEYS };

struct zd_reduction_options {
	uint32_t op; /* enum zerod_reduce_op */
	float prescale;
	bool overwrite;
	enum zerod_dtype dtype; /* of the gradients */
};

#define ZD_REDUCTION_CHUNKS 5u /* at most */

struct zd_reduction {
	uint64_t key[ZD_REDUCTION_NKEYS];
	struct zd_group *group;
	struct zd_unit *unit; /* until it is over */
	uint8_t state;
	bool over;           /* COMPLETE or FAILED, and no operation is left */
	uint32_t first_rank; /* that submitted: its options count */
	struct zd_reduction_options options;
	uint32_t nreserved, nsubmitted, nskipped, ndone; /* ranks, ranks, ranks, slices */
	uint32_t ops;
	uint32_t nslices; /* the world's size, once it runs: the group may go before its operations */
	/* From its start on, of each slice; the next one's begin is a chunk's end: */
	uint32_t nchunks;
	uint64_t chunk_begin[ZD_REDUCTION_CHUNKS + 1];
	uint32_t block_stride; /* not 0: chunks are other daemons' blocks, so many slices apart in an entry */
	struct zd_failure failure;
	struct zd_contribution *ranks;  /* local_world_size; NULL once COMPLETE and over */
	struct zd_slice *slices;        /* likewise; NULL before it runs */
	TAILQ_ENTRY(zd_reduction) link; /* until it is over */
	UT_hash_handle hh;
};

/* Is it of the last backward that the rank has begun in its window. */
static inline bool zd_reduction_is_of(const struct zd_reduction *r, const struct zd_window *w)
{
	return r->key[ZD_REDUCTION_WINDOW] == w->number && r->key[ZD_REDUCTION_BACKWARD] == w->count;
}

/* The rank's window that it belongs to: while the rank has not ended its backward, or takes part in it
 * still. */
static inline struct zd_window *zd_reduction_window(const struct zd_reduction *r, uint32_t rank)
{
	const struct zd_member_reduce *mr = zd_member_reduce(&r->group->members[rank]);
	return mr ? zd_window_find(mr, r->key[ZD_REDUCTION_WINDOW]) : NULL;
}

/* Submitted or skipped. */
static inline bool zd_contribution_made(const struct zd_contribution *c)
{
	return c->state >= ZD_CONTRIBUTION_SUBMITTED;
}

static inline uint64_t zd_reduction_slice_bytes(const struct zd_reduction *r)
{
	return r->unit->shard_numel * zerod_dtype_bytes(r->options.dtype);
}

/* A rank has ended its backward without what this one wants to reduce: in a group over daemons other ones'
 * ranks would wait for it, and the group ends. Nothing for any other status. */
void zd_reduction_refused(struct zd_engine *e, struct zd_group *group, int status, const struct zd_err *err);
/* May this rank still reserve or skip the unit in its running backward: MISMATCH, DUPLICATE, or a failure's
 * status. */
int zd_reduction_admit(struct zd_engine *e, const struct zd_member_reduce *mr, const struct zd_unit *unit,
                       struct zd_err *err) __attribute__((warn_unused_result));
/* Of the unit in the window's last backward; NULL: no rank has reserved, submitted or skipped it there. */
struct zd_reduction *zd_reduction_find(const struct zd_window *w, uint64_t unit);
void zd_reduction_reserve(struct zd_engine *e, struct zd_entry *entry);
/* The entry is not to be reduced after all. */
void zd_reduction_unreserve(struct zd_engine *e, struct zd_entry *entry);
/* Does the reduction take this: MISMATCH when ranks' options differ, or when a rank has ended its backward
 * without it. */
int zd_reduction_check_options(const struct zd_entry *entry, const struct zd_reduction_options *options,
                               struct zd_err *err) __attribute__((warn_unused_result));
int zd_reduction_check_ranks(const struct zd_entry *entry, struct zd_err *err)
        __attribute__((warn_unused_result));
void zd_reduction_submit(struct zd_engine *e, struct zd_entry *entry,
                         const struct zd_reduction_options *options);
/* The entry's fences have passed. */
void zd_reduction_ready(struct zd_engine *e, struct zd_entry *entry);
/* Not to be completed: every rank's window has failed. */
void zd_reduction_fail(struct zd_engine *e, struct zd_reduction *r, int status, const char *text);
/* This rank ends the backward: fails the reductions to which other ranks contribute and this one does not. */
void zd_reduction_fail_without(struct zd_engine *e, struct zd_window *w);
/* The same: this rank skips them. */
void zd_reduction_skip_rest(struct zd_engine *e, struct zd_window *w);
/* The first that this rank takes part in and that is not over; NULL when there is none. */
const struct zd_reduction *zd_reduction_first_open(const struct zd_window *w);
/* Will its entries be drained by executors and by streams whose fences the engine has: all ranks have
 * contributed, and no memory is awaited. */
bool zd_reduction_drains(const struct zd_reduction *r);
/* The same for all reductions of the window. */
bool zd_reductions_drain(const struct zd_group *group, uint64_t window);
/* The first rank that the reduction waits for. */
uint32_t zd_reduction_waits_for(const struct zd_reduction *r);
/* A rank has ended the window's backward of that number, or the window: if it is the last to do so, their
 * records go. */
void zd_reduction_forget(struct zd_group *group, uint64_t window, uint64_t backward);
void zd_reduction_drop_all(struct zd_engine *e, struct zd_group *group);

/* slice.c, for reduce.c: */
void zd_slices_start(struct zd_engine *e, struct zd_reduction *r);
/* No further step is run. */
void zd_slices_stop(struct zd_engine *e, struct zd_reduction *r);
void zd_slices_free(struct zd_reduction *r);
/* The rank's entry is READY: slices that have staging memory read it. */
void zd_slices_entry_ready(struct zd_engine *e, struct zd_reduction *r, uint32_t rank);
/* All inputs of its sums are there: the slice waits for nothing else. */
bool zd_slice_awaits_sum(const struct zd_slice *slice);
/* reduce.c, for slice.c. An operation that read the rank's entry ended. */
void zd_reduction_drain(struct zd_engine *e, struct zd_reduction *r, uint32_t rank);
/* The rank's entry or its slice has ended: does its backward wait for the other. */
void zd_reduction_try_settle(struct zd_engine *e, struct zd_reduction *r, uint32_t rank);
/* An operation ended. */
void zd_reduction_op_end(struct zd_engine *e, struct zd_reduction *r);

extern const struct zd_sm zd_sm_backward, zd_sm_step, zd_sm_bucket_slot, zd_sm_entry, zd_sm_reduction,
        zd_sm_contribution, zd_sm_slice;

#endif
