/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.h - sessions, jobs, groups with their members, and the engine.
 *
 * Jobs, groups and units are freed with their last reference.
 */
#ifndef ZD_CORE_ENGINE_OBJECTS_H
#define ZD_CORE_ENGINE_OBJECTS_H

#include "base/sm.h"
#include "core/engine/deadlines.h"
#include "core/engine/hash_table.h"
#include "core/engine/history.h"
#include "core/engine/journal.h"
#include "core/engine/request.h"
#include "core/engine/timelines.h"
#include "core/metrics.h"

struct zd_events;
struct zd_reduction;
struct zd_cluster;

/* The commit that a session or a host copy has pinned: the group's id, and the pin; save.h. */
struct zd_pinned {
	uint64_t group, serial, step; /* serial 0: none, or `expired` */
	uint64_t until_ns;            /* of a session's */
	bool expired;
};

enum zd_session_state { ZD_SESSION_OPEN, ZD_SESSION_POISONED, ZD_SESSION_CLOSING };

/* The metadata of a session: the object, and the pages that the server shares with its client. */
#define ZD_SESSION_METADATA_BYTES                                                                            \
	(sizeof(struct zd_session) + 2 * ZD_FENCE_PAGE_BYTES + ZD_WORK_PAGE_BYTES + ZD_RINGS_BYTES)

struct zd_session {
	uint64_t id;
	uint8_t state;
	uint32_t uid, pid;
	uint64_t started; /* see struct zd_peer */
	struct zd_owner *owner;
	bool admin;
	bool strict, poison, no_durable, reads_others, maps_frames, runs_ahead;
	uint64_t denied_devices; /* bits of devices that it may not use; an administrator has none */
	bool clean_exit;         /* the client has sent its goodbye */
	bool former;             /* of a daemon before this one: its end waits for its process */
	bool ends;               /* its end is incomplete */
	struct zd_ending ending; /* CLOSING */
	char name[ZD_MAX_NAME_BYTES + 1];
	uint64_t opened_ns, requested_ns, nrequests; /* requested: the last request, or opened */
	uint32_t outstanding;
	/* the group that it reads: its id, the last step copied from it, the copied bytes, and the last
	 * segment that it can map for the reads */
	struct {
		uint64_t group, step, bytes;
		uint32_t segment;
	} reads;
	struct zd_pinned pinned; /* the commit that it has pinned */
	/* its last commit_wait was for a host copy: the group's id, and the step, which it reads there */
	struct {
		uint64_t group, step;
	} saved;
	struct zd_request *waiting;      /* hash by the client's id */
	struct zd_request_list requests; /* the same, in order */
	TAILQ_HEAD(zd_member_list, zd_member) members;
	uint32_t nuntold; /* members that have not been told of a loss */
	TAILQ_HEAD(, zd_allocation) allocations;
	TAILQ_HEAD(, zd_mapping) mappings;       /* segments that its process can have mapped */
	uint64_t timeline[ZD_SESSION_TIMELINES]; /* last values handed out on the daemon page */
	struct zd_timelines aborted;             /* timelines that hold ZD_FENCE_ABORTED */
	uint32_t naborts;                        /* of these, that a reset is taking back */
	/* timelines of failed pieces of reductions, for which no sum is submitted early any more */
	struct zd_timelines failed;
	/* sums that its process was asked for before their inputs were complete */
	uint32_t nahead;
	uint32_t resets;                   /* counts resets; fences issued before a reset count as passed */
	struct zd_buffer_list relaying;    /* buffers with relays that have not run, in order; collective.h */
	TAILQ_HEAD(, zd_promise) promises; /* that have not passed, in order; promise.h */
	struct zd_buffer_list
	        deferred; /* buffers with promised transfers that have not started, in order; deferred.h */
	TAILQ_HEAD(, zd_deferred_teardown) deferred_teardowns; /* CLOSING: watches of its process */
	uint32_t nhold_records;                                /* in journals */
	struct zd_id_node listed;
	UT_hash_handle hh;
};

/* A job's segments on one device that do not retire. */
struct zd_job_pool {
	uint64_t held_bytes[ZD_NPURPOSES];
	struct zd_id_tree empty; /* empty segments; memory/empty.h */
};

struct zd_job {
	uint64_t id;
	char *name;
	struct zd_owner *owner;
	bool durable;
	bool ends; /* it was durable, and its `ending` frees its shards and allocations */
	struct zd_ending ending;
	struct zd_journal *journal; /* journal of its changes, or NULL */
	uint64_t left_ns;           /* durable: when a session last left one of its groups or allocations */
	uint32_t refs;              /* groups, allocations, ops; when it is over, also segments */
	bool had_group;
	bool over; /* it has segments that have yet to be destroyed, and nothing else */
	uint64_t made_ns;
	uint64_t began_ns; /* when it had its first group */
	struct zd_account account;
	struct zd_job_pool *pools; /* by device, or NULL: it had no segment */
	uint32_t metadata_bytes;
	TAILQ_HEAD(, zd_group) groups;
	struct zd_hash_table group_names;        /* groups that have not ended */
	TAILQ_HEAD(, zd_allocation) allocations; /* durable ones */
	struct zd_hash_table allocation_names;   /* the same, by name */
	struct zd_id_node listed;
	UT_hash_handle hh;      /* by id */
	UT_hash_handle hh_name; /* of its owner */
	TAILQ_ENTRY(zd_job) link;
};

/* CONNECTING: the group waits for the ranks of other daemons; see cluster.h. */
enum zd_group_state {
	ZD_GROUP_FORMING,
	ZD_GROUP_CONNECTING,
	ZD_GROUP_READY,
	ZD_GROUP_FAILED,
	ZD_GROUP_ABORTED
};

/* A member's part in reductions: core/reduce/member.h. */
struct zd_member_reduce;

/* A rank of a group in this daemon. If session is NULL, no session is this rank. */
struct zd_member {
	struct zd_group *group;
	uint32_t rank; /* local, as everywhere in the core except in zd_world_rank() */
	struct zd_device *device;
	struct zd_session *session;
	bool joining; /* its join waits: other requests do not find it */
	/* a session has been this rank before: new shards start at the group's versions */
	bool joined_before;
	bool committing;
	bool set_back; /* its publishes were undone, and its session was not reset after that */
	bool leaves;   /* it is leaving by its own request */
	bool ended; /* its last session sent its goodbye or left the group, and no session has replaced it */
	bool detaching;          /* its session has ended or leaves, its group has failed, and parts remain */
	struct zd_ending ending; /* the end of a rank that leaves */
	uint64_t told;           /* the last generation of the group of which its session has been told */
	bool untold;             /* it is another one, and counted by the session */
	uint64_t frozen_digest;  /* of the units that the rank has frozen or unfrozen; layout.c */
	uint64_t commit_step;
	uint32_t since_commits;        /* the group's number of commits when its session joined */
	uint64_t comm[ZD_NCOMM_ROLES]; /* its communicators; 0: none */
	uint32_t transfers;            /* remaining steps of collective transfers of the current connection */
	LIST_HEAD(zd_part_list, zd_part) parts; /* parts that exist, while a session is this rank */
	struct zd_part_list detached;           /* DETACHED parts, while no session is this rank */
	struct zd_part_list uncommitted, owed;  /* by enum zd_part_listed */
	TAILQ_HEAD(, zd_slot) slots;
	TAILQ_HEAD(, zd_scope) scopes; /* scopes that have not ended, by id; scope.c, context.c */
	uint32_t nscopes;
	struct zd_member_reduce *reduce; /* NULL until the first use */
	struct zd_request *agreeing;     /* its waiting group_agree; NULL: none */
	struct zd_request_list barriers; /* requests that wait at barriers, in order; barrier.c */
	TAILQ_ENTRY(zd_member) session_link;
	struct zd_hash_node by_session; /* of the engine's `members` */
};

/* The number of lost ranks that a group stores, for the errors of members that have not been told of them. */
#define ZD_LOST_KEPT 4u
struct zd_lost {
	uint32_t rank; /* in the world */
	uint32_t pid;
	bool ended; /* normally */
};

/* Records of reductions, by unit and backward; reduce.c. */
struct zd_reductions {
	struct zd_hash_table by_key;
	struct zd_reduction *first; /* utlist: the oldest one */
};

/* Norms by unit: of the present epoch, and older ones whose memory is reused; norms.c. */
struct zd_norms {
	struct zd_hash_table by_unit;
	struct zd_slice_norm *all, *hand; /* hand: the next one that is looked at to be freed */
	uint64_t epoch;
	uint32_t count; /* of the present epoch */
};

/* The partial sum of a window's norms: `found` norms of a rank, up to the unit `next`. */
struct zd_summing {
	bool runs;
	uint64_t window;
	uint32_t rank, found;
	struct zd_unit *next; /* NULL: all units of the rank are added */
	double sum;
};

/* A commit that readers, or a host copy in progress, have pinned; save.h. */
struct zd_pin {
	uint64_t serial; /* unique per pin; 0: no pin is in force */
	uint64_t step;
	uint32_t ncommits; /* the group's number of commits at that step */
	uint32_t owners;   /* sessions, and the host copy */
	LIST_HEAD(, zd_save) saves;
};

struct zd_group {
	uint64_t id;
	char *name;
	struct zd_job *job;
	uint8_t state;
	uint32_t metadata_bytes;
	uint32_t world_size;       /* in all daemons */
	uint32_t nshards;          /* number of shards of a unit: one for each rank, or for each local rank */
	uint32_t local_world_size; /* ranks in this daemon, `members` */
	uint32_t first_rank;       /* the first of these, in the world */
	uint32_t attached;         /* members with a session */
	uint32_t refs;             /* attached members, durable job, units' pending work */
	uint64_t generation;       /* counts the ranks lost after the group was first complete */
	/* The last generation of which ranks that only gather are told: a rank died, or a rank that ended
	 * normally was replaced. */
	uint64_t loss;
	struct zd_lost lost[ZD_LOST_KEPT]; /* the last lost ranks, each at its generation % ZD_LOST_KEPT */
	uint32_t nmismatches;              /* units with a `mismatch` */
	bool torn;
	/* all ranks have left: the group's name is free, and the object remains until its last operation
	 * ends */
	bool over;
	bool ends;   /* its job's end has its shards to free */
	bool shadow; /* durable: each shard has a shadow */
	uint64_t device_mask;
	int aborted_status;         /* why the group is ABORTED, and in words */
	char *aborted_why;          /* NULL: by an administrator */
	struct zd_cluster *cluster; /* NULL: all ranks are local and gather by copies; cluster.h */
	struct zd_member *members;  /* local_world_size */
	TAILQ_HEAD(zd_unit_list, zd_unit) units;
	uint32_t nunits;
	struct zd_unit_list former;      /* units that all ranks have left, and that were described
	                                    differently afterwards */
	struct zd_hash_table unit_names; /* units and former units */
	TAILQ_HEAD(, zd_group_slot) slots;
	struct zd_unit_list unready; /* units that prevent a commit; commit.h */
	uint64_t versions_hash;      /* of the other units' versions */
	/* of each target: the sum of the places of the trainable units on devices, and of those on the
	 * host */
	uint64_t target_numel[ZD_NTARGETS];
	struct zd_unit_list places[ZD_NTARGETS]; /* units with a place in the target, in its order */
	uint64_t committed_step;
	/* the commit for which this daemon has voted without a known result; 0: none */
	uint64_t voted_step;
	struct zd_pin pin; /* save.h */
	/* its host copy that is complete, and the one in progress; NULL: none; host_copy.h */
	struct zd_host_copy *saved, *saving;
	LIST_HEAD(, zd_host_copy) host_copies; /* these, and others that operations still use */
	uint32_t ncommits;                     /* counts commits; commit.h */
	uint64_t commit_serial;                /* counts evaluated commits */
	int commit_status;                     /* of the last one */
	char commit_text[192];
	TAILQ_HEAD(, zd_reduction) reductions; /* in progress, in order; reduce.c */
	struct zd_reductions reduction_index;
	struct zd_agreement *agreement; /* while it is computed; NULL: none */
	struct zd_norms step_norms;     /* of the last step; norms.c */
	struct zd_summing summing;      /* of the current step */
	uint64_t reduce_serial;         /* counts failures of the group, for requests of reductions */
	TAILQ_ENTRY(zd_group) job_link;
	struct zd_hash_node by_name; /* unless it is over */
	struct zd_id_node listed;
	UT_hash_handle hh; /* by id */
};

/* Returns the rank's number in the world, which clients use. */
static inline uint32_t zd_world_rank(const struct zd_member *member)
{
	return member->group->first_rank + member->rank;
}

/* The request is the rank's, and waits in the queue of its device. */
static inline void zd_request_set_member(struct zd_request *req, struct zd_member *member)
{
	req->member = member;
	req->device = member->device;
}

/* Returns the index of the rank's shards in their units. */
static inline uint32_t zd_shard_index(const struct zd_member *member)
{
	const struct zd_group *group = member->group;
	return group->nshards == group->world_size ? zd_world_rank(member) : member->rank;
}

/* Returns the session, or NULL if it does not exist or is CLOSING. */
struct zd_session *zd_session_find(struct zd_engine *e, uint64_t id);
/* Stores the value into the session's daemon page, by the executor of the timeline's device. */
void zd_session_signal(struct zd_engine *e, const struct zd_session *session, uint32_t timeline,
                       uint64_t value);
/* Aborts a timeline after the failure of an operation that signals it. This frees the streams that wait for
 * the timeline, and marks the session POISONED. */
void zd_session_abort(struct zd_engine *e, struct zd_session *session, uint32_t timeline);
int zd_session_check_poisoned(const struct zd_session *session, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Whether the reader may see the uid's sessions and objects. A NULL reader sees all. */
static inline bool zd_session_sees_uid(const struct zd_session *reader, uint32_t uid)
{
	return !reader || reader->admin || reader->uid == uid;
}

static inline bool zd_session_sees(const struct zd_session *reader, const struct zd_session *session)
{
	return zd_session_sees_uid(reader, session->uid);
}

bool zd_session_may_use(const struct zd_session *session, uint32_t device);
/* Returns NOT_FOUND if the device does not exist, PERMISSION if the session may not use it. */
int zd_session_check_device(const struct zd_engine *e, const struct zd_session *session, uint32_t device,
                            struct zd_err *err) __attribute__((warn_unused_result));

/* Finds or creates the job of the session's uid. Errors: LIMIT, if the uid has too many and the session is
 * not an administrator's. */
int zd_job_get(struct zd_engine *e, const struct zd_session *session, const char *name, bool durable,
               struct zd_job **job, struct zd_err *err) __attribute__((warn_unused_result));
/* Records the time at which a session leaves a group or an allocation of the job. */
void zd_job_note_left(struct zd_engine *e, struct zd_job *job);
/* A durable job is recorded in the engine's journal, if that is on. */
void zd_job_set_durable(struct zd_engine *e, struct zd_job *job, bool durable);
/* Creates a job of a uid that has no job with this name. */
struct zd_job *zd_job_new(struct zd_engine *e, uint32_t uid, const char *name, bool durable);
/* Returns the uid's job with this name, or NULL. */
struct zd_job *zd_job_find(struct zd_engine *e, uint32_t uid, const char *name);
/* Records and reports the start of the job if this is its first group. */
void zd_job_note_group(struct zd_engine *e, struct zd_job *job);
void zd_job_unref(struct zd_engine *e, struct zd_job *job);
/* Adds the member to its session's list and index, or removes it. */
void zd_member_link(struct zd_engine *e, struct zd_member *member, struct zd_session *session);
void zd_member_unlink(struct zd_engine *e, struct zd_member *member);
/* Call this when the member's `told` or the group's generation has changed. */
void zd_member_note_told(struct zd_member *member);
/* Returns the session's member of the group from the index, or NULL. */
struct zd_member *zd_member_find_indexed(const struct zd_engine *e, const struct zd_session *session,
                                         const struct zd_group *group);
/* Returns the session's member of the group, or NULL. Most sessions have one member. */
static inline struct zd_member *zd_member_of(const struct zd_engine *e, const struct zd_session *session,
                                             const struct zd_group *group)
{
	struct zd_member *member = TAILQ_FIRST(&session->members);
	return !member || member->group == group ? member : zd_member_find_indexed(e, session, group);
}
/* Finds the session's membership in the group: NOT_FOUND. */
int zd_member_find(struct zd_engine *e, struct zd_session *session, uint64_t group, struct zd_member **member,
                   struct zd_err *err) __attribute__((warn_unused_result));
/* Returns the rank that was lost last, which is why the group is FAILED. */
static inline const struct zd_lost *zd_group_lost(const struct zd_group *group)
{
	return &group->lost[group->generation % ZD_LOST_KEPT];
}

/* Returns 0 if the group is READY; otherwise PEER_LOST, ABORTED or STATE, with the text. */
int zd_group_check(const struct zd_group *group, struct zd_err *err) __attribute__((warn_unused_result));
/* Returns PEER_LOST, with the ranks that were lost after generation `since` of the group. */
int zd_group_tell(const struct zd_group *group, uint64_t since, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns PEER_LOST once after each loss of which the member's session has not been told. */
int zd_member_tell(struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
/* Combines zd_group_check() and zd_member_tell(), for a request that first ends something (acting.c). */
int zd_member_enter(struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
/* As zd_group_check(), but also returns PEER_LOST while the rank's publishes are undone and the rank has not
 * been reset. */
int zd_member_check(const struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
/* Whether the group has lost only ranks that ended normally. Their shards can be gathered. */
bool zd_group_is_left(const struct zd_group *group);
/* Whether requests of the rank that only read continue although ranks have left the group: the session has
 * been told of all other losses. */
bool zd_member_reads_on(const struct zd_member *member);
/* zd_member_check() for such requests. */
int zd_member_check_read(const struct zd_member *member, struct zd_err *err)
        __attribute__((warn_unused_result));
void zd_group_unref(struct zd_engine *e, struct zd_group *group);
/* The group's name is free from here on. */
void zd_group_set_over(struct zd_group *group);

/* ---- The engine ---------------------------------------------------------------------------------------- */

struct zd_engine {
	const struct zd_events *events;             /* calls from lower rooms to higher ones */
	const struct zd_request_type *const *types; /* by kind, never NULL */
	struct zd_engine_sink sink;
	struct zd_device *devices; /* and one more entry that is not a device: zd_commit_waits() */
	uint32_t ndevices;
	uint64_t granule_bytes; /* the largest of the devices' `segment_align_bytes` */
	uint64_t quota_bytes;
	struct zd_uid_limits uid_limits;
	uint64_t reduction_cut_bytes; /* 0: the default of plan_sums.c */
	uint64_t landing_chunk_bytes; /* 0: the default of landing.c */
	bool sessions_linger;
	bool strict_by_segment;
	bool collectives;
	bool draining; /* no rank can join, and no job can start */
	char host[ZD_MAX_NAME_BYTES + 1];
	uint32_t nclosing;         /* sessions that are CLOSING */
	uint32_t nendings;         /* incomplete ends of all uids */
	uint32_t nwalks;           /* incomplete walks of all uids */
	uint32_t end_step_objects; /* see struct zd_engine_config */
	uint64_t now_ns, next_deadline_ns;
	uint64_t next_unmap_ns; /* no session is late to unmap a segment earlier */
	uint64_t next_unpin_ns; /* no pin has its deadline earlier */
	struct zd_deadlines deadlines;
	uint64_t next_expiry_ns; /* no durable job's time passes earlier */
	uint64_t next_op;        /* of ops and communicators, which no user sees */
	uint32_t next_segment;
	uint64_t retire_serial; /* counts segments that started to retire */
	uint64_t pin_serial;    /* counts pins */
	uint64_t dirty_mask;
	bool commits_dirty; /* zd_commit_waits() is dirty */
	bool settling;      /* or paused: requests that wait are tried later */
	struct zd_account account;
	uint64_t transfers; /* of gathers: the number of the last one */
	struct zd_metrics metrics;
	struct zd_history history;
	struct zd_histogram waits[ZD_NWAITS]; /* by reason */
	uint64_t list_visits;                 /* see struct zd_engine_totals */
	struct zd_reply reply;                /* scratch for the request that is being attempted */
	struct zd_session *sessions;          /* hashes by id */
	struct zd_job *jobs;
	uint32_t ndurable;    /* durable ones */
	uint32_t kept_room;   /* see zd_engine_set_kept_room() */
	uint32_t nkept;       /* segments that the driver preserves, or will preserve */
	uint32_t nforgotten;  /* of these, to be dropped with the next records */
	char keep_ended[160]; /* why the driver no longer preserves memory; "": it does, or no job needs it */
	struct zd_group *groups;
	struct zd_hash_table members;       /* with a session, by group and session */
	struct zd_hash_table units;         /* by id */
	struct zd_hash_table singles;       /* classes of free segments with a single block; pool.c */
	struct zd_hash_table segment_waits; /* waiting requests, by `segment_wait` */
	uint64_t parts_serial;              /* counts freed units, and ranks that sessions have left */
	struct zd_bucket *buckets;
	struct zd_segment *segments;
	struct zd_allocation *allocations;
	struct zd_scope *scopes;
	/* For listings: all objects of a table by id, in their `listed`. DEVICES is empty. `waiting` has the
	 * requests in the devices' queues by serial number. */
	struct zd_id_tree listed[ZD_NTABLES], waiting;
	uint64_t ended[ZD_MAX_SCOPES]; /* scratch: ids of the scopes that ended with a request */
	uint64_t steps[ZD_MAX_STEPS];  /* scratch: ids of groups in whose step a session is */
	struct {
		uint32_t segments[ZD_MAX_RESUMED];
		uint64_t offsets[ZD_MAX_RESUMED], versions[ZD_MAX_RESUMED];
		uint64_t target_offsets_numel[ZD_MAX_RESUMED];
		Zd__Placed placed[ZD_MAX_RESUMED];
	} resumed; /* scratch: the lists of the reply to a units_resume */
	struct zd_journal journal;
	struct zd_op *ops;
	struct zd_owner *owners;          /* hash by uid */
	struct zd_id_tree uids, prefixes; /* ids.c */
	uint32_t nuids;
	struct zd_used_id *used_ids;      /* hash by id, see unique_ids.c */
	struct zd_request *spare_request; /* memory of an ended request; NULL: none */
};

/* Returns the entry whose queue has readers' requests that wait for a group's commit. Events of devices and
 * zd_dirty() do not try them. zd_dirty_commit_waits() does. */
static inline struct zd_device *zd_commit_waits(const struct zd_engine *e)
{
	return &e->devices[e->ndevices];
}

static inline void zd_count(struct zd_engine *e, enum zd_counter counter, uint64_t n)
{
	e->metrics.counters[counter] += n;
}

/* Adds an event of the job. With NULL, everybody may read it. The caller fills in the rest before it adds
 * another event. Gathers and copies write their events in place, without a copy. */
static inline struct zd_event *zd_event_new(struct zd_engine *e, enum zd_event_kind kind,
                                            const struct zd_job *job)
{
	struct zd_event *event = zd_history_next(&e->history);
	*event = (struct zd_event){.time_ns = e->now_ns, .kind = (uint8_t)kind, .uid = ZD_EVENT_EVERYBODY};
	if (job) {
		event->job = job->id;
		event->uid = job->owner->uid;
	}
	return event;
}

/* Adds an event of a rank. */
static inline struct zd_event *zd_event_of(struct zd_engine *e, enum zd_event_kind kind,
                                           const struct zd_member *member)
{
	struct zd_event *event = zd_event_new(e, kind, member->group->job);
	event->session = member->session ? member->session->id : 0;
	event->rank = zd_world_rank(member);
	event->device = (uint8_t)(member->device ? member->device->index + 1 : 0);
	return event;
}

/* Adds an event of a session, which can be a rank. */
struct zd_event *zd_event_of_session(struct zd_engine *e, enum zd_event_kind kind,
                                     const struct zd_session *session);
void zd_group_ready(struct zd_engine *e, struct zd_group *group);
/* Adds an event of the group, caused by a member; NULL: no member. */
void zd_group_event(struct zd_engine *e, const struct zd_group *group, const struct zd_member *member,
                    enum zd_event_kind kind, enum zd_event_word reason);

extern const struct zd_sm zd_sm_session, zd_sm_group;

#endif
