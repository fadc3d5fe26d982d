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
	bool clean_exit;         /* the client has said goodbye */
	bool former;             /* of a daemon before this one: its end waits for its process */
	bool ends;               /* its end is incomplete */
	struct zd_ending ending; /* CLOSING */
	char name[ZD_MAX_NAME_BYTES + 1];
	uint64_t opened_ns, requested_ns, nrequests; /* requested: the last request, or opened */
	uint32_t outstanding;
	/* what it reads: the group's id, the last step that it has copied from, its copied bytes in all; the
	 * last segment that it may map for that */
	struct {
		uint64_t group, step, bytes;
		uint32_t segment;
	} reads;
	/* what it has pinned: the group's id, and the pin; serial 0: nothing, or `expired`; save.h */
	struct {
		uint64_t group, serial, step, until_ns;
		bool expired;
	} pinned;
	struct zd_request *waiting;      /* hash by the client's id */
	struct zd_request_list requests; /* the same, in order */
	TAILQ_HEAD(zd_member_list, zd_member) members;
	uint32_t nuntold; /* of these: members that have not been told of a loss */
	TAILQ_HEAD(, zd_allocation) allocations;
	TAILQ_HEAD(, zd_mapping) mappings;       /* segments that its process may have mapped */
	uint64_t timeline[ZD_SESSION_TIMELINES]; /* last values handed out on the daemon page */
	struct zd_timelines aborted;             /* timelines that hold ZD_FENCE_ABORTED */
	uint32_t naborts;                        /* of these, that a reset is taking back */
	/* timelines of failed pieces of reductions, for which no sum is submitted early any more */
	struct zd_timelines failed;
	/* sums that its process was asked for before their inputs were complete */
	uint32_t nahead;
	uint32_t resets;                /* counts resets; fences handed out before a reset count as passed */
	struct zd_buffer_list relaying; /* buffers with relays that were not run, in order; collective.h */
	TAILQ_HEAD(, zd_promise) promises; /* that have not passed, in order; promise.h */
	struct zd_buffer_list
	        deferred; /* buffers whose transfers are promised and have not begun, in order; deferred.h */
	TAILQ_HEAD(, zd_deferred_teardown) deferred_teardowns; /* CLOSING: watches of its process */
	uint32_t nhold_records;                                /* in journals */
	struct zd_id_node listed;
	UT_hash_handle hh;
};

struct zd_job {
	uint64_t id;
	char *name;
	struct zd_owner *owner;
	bool durable;
	bool ends; /* it was durable, and its `ending` frees its shards and allocations */
	struct zd_ending ending;
	struct zd_journal *journal; /* where its changes are recorded; NULL: nowhere */
	uint64_t left_ns;           /* durable: when a session last left one of its groups or allocations */
	uint32_t refs;              /* groups, allocations, ops */
	bool had_group;
	uint64_t made_ns;
	uint64_t began_ns; /* when it had its first group */
	struct zd_account account;
	/* in segments that do not retire, by device and purpose; NULL: none yet */
	uint64_t (*held_bytes)[ZD_NPURPOSES];
	uint32_t metadata_bytes;
	TAILQ_HEAD(, zd_group) groups;
	struct zd_hash_table group_names;        /* groups that are not over */
	TAILQ_HEAD(, zd_allocation) allocations; /* durable ones */
	struct zd_hash_table allocation_names;   /* the same, by name */
	struct zd_id_node listed;
	UT_hash_handle hh;      /* by id */
	UT_hash_handle hh_name; /* of its owner */
	TAILQ_ENTRY(zd_job) link;
};

/* CONNECTING: the ranks of other daemons are awaited; see cluster.h. */
enum zd_group_state {
	ZD_GROUP_FORMING,
	ZD_GROUP_CONNECTING,
	ZD_GROUP_READY,
	ZD_GROUP_FAILED,
	ZD_GROUP_ABORTED
};

/* A member's part in reductions: core/reduce/member.h. */
struct zd_member_reduce;

/* A rank of a group in this daemon; session NULL: no session is this rank. */
struct zd_member {
	struct zd_group *group;
	uint32_t rank; /* local, as everywhere in the core except in zd_world_rank() */
	struct zd_device *device;
	struct zd_session *session;
	bool joining; /* its join waits: other requests do not find it */
	/* a session has been this rank before: new shards begin at the group's versions */
	bool joined_before;
	bool committing;
	bool set_back;  /* its publishes were undone, and its session has not been reset since */
	bool leaves;    /* it is leaving by its own request */
	bool ended;     /* its last session said goodbye or left the group, and none has its place */
	bool detaching; /* its session has ended or leaves, its group has failed, and parts are left */
	struct zd_ending ending; /* of a rank that leaves */
	uint64_t told;           /* the group's generation that its session has been told of */
	bool untold;             /* it is another one, and counted by the session */
	uint64_t frozen_digest;  /* over the units that the rank has frozen or unfrozen; layout.c */
	uint64_t commit_step;
	uint32_t since_commits;        /* the group's number of commits when its session joined */
	uint64_t comm[ZD_NCOMM_ROLES]; /* its communicators; 0: none */
	uint32_t transfers; /* steps of collective transfers of the current connection that are left */
	LIST_HEAD(zd_part_list, zd_part) parts; /* that are not gone, while a session is this rank */
	struct zd_part_list detached;           /* DETACHED parts, while none is */
	struct zd_part_list uncommitted, owed;  /* by enum zd_part_listed */
	TAILQ_HEAD(, zd_slot) slots;
	TAILQ_HEAD(, zd_scope) scopes; /* that have not ended, by id; scope.c, context.c */
	uint32_t nscopes;
	struct zd_member_reduce *reduce; /* NULL until the first use */
	struct zd_request *agreeing;     /* its waiting group_agree; NULL: none */
	struct zd_request_list barriers; /* requests that wait at barriers, in order; barrier.c */
	TAILQ_ENTRY(zd_member) session_link;
	struct zd_hash_node by_session; /* of the engine's `members` */
};

/* The lost ranks that a group remembers, for the errors of members that have not been told. */
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

/* Norms by unit: those of the present epoch, and older ones whose memory is used again; norms.c. */
struct zd_norms {
	struct zd_hash_table by_unit;
	struct zd_slice_norm *all, *hand; /* hand: the next one that is looked at to be freed */
	uint64_t epoch;
	uint32_t count; /* of the present epoch */
};

/* The sum of a window's norms, as far as it has come: `found` norms of a rank, up to the unit `next`. */
struct zd_summing {
	bool runs;
	uint64_t window;
	uint32_t rank, found;
	struct zd_unit *next; /* NULL: all units of the rank are added */
	double sum;
};

/* A commit that readers have pinned; save.h. */
struct zd_pin {
	uint64_t serial; /* another one for each pin; 0: none is in force */
	uint64_t step;
	uint32_t ncommits; /* the group's number of commits at that step */
	uint32_t sessions;
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
	uint32_t refs;             /* attached members, durable job, units' pending work (zd_group_ref) */
	uint64_t generation;       /* counts the ranks lost since the group was first complete */
	/* The last generation that ranks which only gather are told of: a rank died, or one that ended
	 * normally was replaced. */
	uint64_t loss;
	struct zd_lost lost[ZD_LOST_KEPT]; /* the last lost ranks, each at its generation % ZD_LOST_KEPT */
	uint32_t nmismatches;              /* units with a `mismatch` */
	bool torn;
	/* all ranks have left: the group's name is free, and the object is kept for its last operation */
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
	struct zd_unit_list former;      /* units left by all ranks, and described differently since */
	struct zd_hash_table unit_names; /* units and former units */
	TAILQ_HEAD(, zd_group_slot) slots;
	struct zd_unit_list unready; /* units that forbid a commit; commit.h */
	uint64_t versions_hash;      /* over the other units' versions */
	/* of each target: sum of the places of the trainable units on devices, and of those on the host */
	uint64_t target_numel[ZD_NTARGETS];
	struct zd_unit_list places[ZD_NTARGETS]; /* units with a place in the target, in its order */
	uint64_t committed_step;
	/* the commit that this daemon has voted for, with its outcome unknown; 0: none */
	uint64_t voted_step;
	struct zd_pin pin;      /* save.h */
	uint32_t ncommits;      /* counts commits that were made; commit.h */
	uint64_t commit_serial; /* counts evaluated commits */
	int commit_status;      /* of the last one */
	char commit_text[192];
	TAILQ_HEAD(, zd_reduction) reductions; /* in progress, in order; reduce.c */
	struct zd_reductions reduction_index;
	struct zd_agreement *agreement; /* while it is computed; NULL: none */
	struct zd_norms step_norms;     /* of the last step; norms.c */
	struct zd_summing summing;      /* of the step that is being taken */
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

/* Returns the index of the rank's shards in their units. */
static inline uint32_t zd_shard_index(const struct zd_member *member)
{
	const struct zd_group *group = member->group;
	return group->nshards == group->world_size ? zd_world_rank(member) : member->rank;
}

/* Finds the session; NULL if there is none, or it is CLOSING. */
struct zd_session *zd_session_find(struct zd_engine *e, uint64_t id);
/* Stores the value into the session's daemon page, by the executor of the timeline's device. */
void zd_session_signal(struct zd_engine *e, const struct zd_session *session, uint32_t timeline,
                       uint64_t value);
/* Aborts a timeline after the failure of an operation that signals it. This frees the streams that wait for
 * the timeline, and marks the session POISONED. */
void zd_session_abort(struct zd_engine *e, struct zd_session *session, uint32_t timeline);
int zd_session_check_poisoned(const struct zd_session *session, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Whether the reader may know of the uid's sessions and objects; NULL: it sees all. */
static inline bool zd_session_sees_uid(const struct zd_session *reader, uint32_t uid)
{
	return !reader || reader->admin || reader->uid == uid;
}

static inline bool zd_session_sees(const struct zd_session *reader, const struct zd_session *session)
{
	return zd_session_sees_uid(reader, session->uid);
}

bool zd_session_may_use(const struct zd_session *session, uint32_t device);
/* NOT_FOUND: there is no such device. PERMISSION: the session may not use it. */
int zd_session_check_device(const struct zd_engine *e, const struct zd_session *session, uint32_t device,
                            struct zd_err *err) __attribute__((warn_unused_result));

/* Finds the job of the session's uid, or makes one. Errors: LIMIT, if the uid has too many and the session is
 * no administrator's. */
int zd_job_get(struct zd_engine *e, const struct zd_session *session, const char *name, bool durable,
               struct zd_job **job, struct zd_err *err) __attribute__((warn_unused_result));
/* Notes the time: a session leaves a group or an allocation of the job. */
void zd_job_note_left(struct zd_engine *e, struct zd_job *job);
/* A durable job is recorded in the engine's journal, if that is on. */
void zd_job_set_durable(struct zd_engine *e, struct zd_job *job, bool durable);
/* Makes a job of a uid that has none of that name. */
struct zd_job *zd_job_new(struct zd_engine *e, uint32_t uid, const char *name, bool durable);
/* Finds the uid's job of that name; NULL: none. */
struct zd_job *zd_job_find(struct zd_engine *e, uint32_t uid, const char *name);
/* The job has a group: notes and reports its begin, if this is the first one. */
void zd_job_note_group(struct zd_engine *e, struct zd_job *job);
void zd_job_ref(struct zd_job *job);
void zd_job_unref(struct zd_engine *e, struct zd_job *job);
/* The member enters its session's list and index, or leaves them. */
void zd_member_link(struct zd_engine *e, struct zd_member *member, struct zd_session *session);
void zd_member_unlink(struct zd_engine *e, struct zd_member *member);
/* Called when the member's `told` or the group's generation has changed. */
void zd_member_note_told(struct zd_member *member);
/* Looks the session's member of the group up in the index; NULL: none. */
struct zd_member *zd_member_find_indexed(const struct zd_engine *e, const struct zd_session *session,
                                         const struct zd_group *group);
/* The session's member of the group; NULL: none. Most sessions have one member. */
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
/* Returns PEER_LOST, with the ranks that were lost since generation `since` of the group. */
int zd_group_tell(const struct zd_group *group, uint64_t since, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns PEER_LOST once after each loss that the member's session has not been told of. */
int zd_member_tell(struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
/* Combines zd_group_check() and zd_member_tell(), for a request that first ends something (acting.c). */
int zd_member_enter(struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
/* Like zd_group_check(), but also returns PEER_LOST while the rank has not been reset since its publishes
 * were undone. */
int zd_member_check(const struct zd_member *member, struct zd_err *err) __attribute__((warn_unused_result));
/* Whether the group has lost only ranks that ended normally. Their shards can be gathered. */
bool zd_group_is_left(const struct zd_group *group);
/* Whether requests of the rank that only read go on although ranks have left the group: the session has been
 * told of all other losses. */
bool zd_member_reads_on(const struct zd_member *member);
/* zd_member_check() for such requests. */
int zd_member_check_read(const struct zd_member *member, struct zd_err *err)
        __attribute__((warn_unused_result));
void zd_group_ref(struct zd_group *group);
void zd_group_unref(struct zd_engine *e, struct zd_group *group);
/* The group's name is free from here on. */
void zd_group_set_over(struct zd_group *group);

/* ---- The engine ---------------------------------------------------------------------------------------- */

struct zd_engine {
	const struct zd_events *events;             /* calls from lower rooms to higher ones */
	const struct zd_request_type *const *types; /* by kind; none is NULL */
	struct zd_engine_sink sink;
	struct zd_device *devices; /* and one more, which is none: zd_commit_waits() */
	uint32_t ndevices;
	uint64_t granule_bytes; /* the largest of the devices' `segment_align_bytes` */
	uint64_t quota_bytes;
	struct zd_uid_limits uid_limits;
	uint64_t reduction_cut_bytes; /* 0: the default of plan_sums.c */
	uint64_t landing_chunk_bytes; /* 0: the default of landing.c */
	bool sessions_linger;
	bool strict_by_segment;
	bool collectives;
	bool draining; /* no rank joins, and no job begins */
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
	uint64_t retire_serial; /* counts segments that began to retire */
	uint64_t pin_serial;    /* counts pins */
	uint64_t dirty_mask;
	bool commits_dirty; /* the same of zd_commit_waits() */
	bool settling;      /* or paused: requests that wait are tried later */
	struct zd_account account;
	uint64_t transfers; /* of gathers; the number of the last one */
	struct zd_metrics metrics;
	struct zd_history history;
	struct zd_histogram waits[ZD_NWAITS]; /* by reason */
	uint64_t list_visits;                 /* see struct zd_engine_totals */
	struct zd_reply reply;                /* scratch for the request that is being attempted */
	struct zd_session *sessions;          /* hashes by id */
	struct zd_job *jobs;
	uint32_t ndurable;    /* durable ones */
	uint32_t kept_room;   /* see zd_engine_set_kept_room() */
	uint32_t nkept;       /* segments that the driver keeps, or will */
	uint32_t nforgotten;  /* of these, to be dropped with the next records */
	char keep_ended[160]; /* why the driver keeps nothing any more; "": it does, or nobody expects it */
	struct zd_group *groups;
	struct zd_hash_table members;       /* with a session, by group and session */
	struct zd_hash_table units;         /* by id */
	struct zd_hash_table singles;       /* classes of segments of one block that is free; pool.c */
	struct zd_hash_table segment_waits; /* waiting requests, by `segment_wait` */
	uint64_t parts_serial;              /* counts freed units, and ranks that their sessions have left */
	struct zd_bucket *buckets;
	struct zd_segment *segments;
	struct zd_allocation *allocations;
	struct zd_scope *scopes;
	/* For listings: all objects of a table by id, by their `listed`; DEVICES is empty. Requests in the
	 * devices' queues by serial number. */
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

/* In its queue are requests of readers, which wait for a group's commit. So events of devices do not try
 * them, and zd_dirty() does not either: see zd_dirty_commit_waits(). */
static inline struct zd_device *zd_commit_waits(const struct zd_engine *e)
{
	return &e->devices[e->ndevices];
}

static inline void zd_count(struct zd_engine *e, enum zd_counter counter, uint64_t n)
{
	e->metrics.counters[counter] += n;
}

/* Adds an event of the job, or of none (NULL), which everybody may read. The caller fills in the rest before
 * another event is added. Gathers and copies come here: nothing is built elsewhere and copied. */
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

/* The same of a rank. */
static inline struct zd_event *zd_event_of(struct zd_engine *e, enum zd_event_kind kind,
                                           const struct zd_member *member)
{
	struct zd_event *event = zd_event_new(e, kind, member->group->job);
	event->session = member->session ? member->session->id : 0;
	event->rank = zd_world_rank(member);
	event->device = (uint8_t)(member->device ? member->device->index + 1 : 0);
	return event;
}

/* The same of a session, which may be a rank. */
struct zd_event *zd_event_of_session(struct zd_engine *e, enum zd_event_kind kind,
                                     const struct zd_session *session);
void zd_group_ready(struct zd_engine *e, struct zd_group *group);
/* Adds an event of the group, which a member has caused; NULL: no member. */
void zd_group_event(struct zd_engine *e, const struct zd_group *group, const struct zd_member *member,
                    enum zd_event_kind kind, enum zd_event_word reason);

extern const struct zd_sm zd_sm_session, zd_sm_group;

#endif
