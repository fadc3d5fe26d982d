/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - the pure core: events in, commands and replies out.
 *
 * The engine is a deterministic state machine. It opens no file, starts no thread, reads no clock and logs
 * nothing. Its driver (daemon/server, or the simulator) calls the functions below from one thread, one at a
 * time, and executes the commands that the engine passes to the sink. The sink may call only these functions
 * of the engine: zd_engine_may_map(), zd_engine_segment(), zd_engine_segment_given() and zd_engine_former(),
 * and in a command AGREE also zd_engine_journal_take(), zd_engine_journal_begin() and
 * zd_engine_journal_step().
 *
 *   requests  zd_engine_request()      each gets exactly one reply, at once or later
 *   commands  sink->command()          each with an op id is completed exactly once by zd_engine_op_done()
 *   time      zd_engine_tick()         the only source of time; deadlines expire here
 *
 * Strings and arrays in arguments, replies, rows and commands are valid for the duration of the call only.
 */
#ifndef ZD_CORE_ENGINE_H
#define ZD_CORE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/args.h"
#include "core/command.h"
#include "core/history.h"
#include "core/metrics.h"

struct zd_engine;
struct zd_err;

/* ---- The engine ---------------------------------------------------------------------------------------- */

/* For the log. A rank is lost when its session ends without a goodbye and without a kill. Each of its groups,
 * up to 16, has one notice. A job starts with its first group, and ends with its last object. Jobs without
 * groups are not reported. */
enum zd_notice_kind {
	ZD_NOTICE_JOB_BEGAN,
	ZD_NOTICE_JOB_ENDED,
	ZD_NOTICE_RANK_LOST,
	ZD_NOTICE_JOB_LOST,   /* a durable job is not restored, because its segment was not preserved */
	ZD_NOTICE_UNMAP_LATE, /* the engine is about to end the session, which has not unmapped a segment */
	ZD_NOTICE_PIN_LATE,   /* the session's pin of a commit has ended at its deadline */
};

struct zd_notice {
	enum zd_notice_kind kind;
	const char *job;
	uint32_t uid; /* the job's */
	/* JOB_LOST */
	uint32_t segment;
	/* JOB_ENDED */
	uint64_t began_ns, peak_bytes;
	/* RANK_LOST, PIN_LATE */
	const char *group;
	uint32_t rank; /* in the world */
	uint32_t more; /* further groups of the session, which are not reported one by one */
	/* RANK_LOST, UNMAP_LATE, PIN_LATE but for the device */
	uint32_t device, pid;
	uint64_t session;
	uint64_t step; /* PIN_LATE */
};

/* REDUCEs of a session. */
enum zd_sums_state {
	ZD_SUMS_BY_EXECUTOR, /* its process computes no sums */
	ZD_SUMS_NONE,        /* its process computes them, and has no sum to compute */
	ZD_SUMS_ASKED,       /* its process has not yet launched a requested sum */
	ZD_SUMS_LAUNCHED,    /* its GPU computes the requested sums */
};

struct zd_engine_sink {
	void *arg;
	void (*command)(void *arg, const struct zd_command *command);
	void (*reply)(void *arg, const struct zd_reply *reply);
	/* Whether the fence on the session's client page has passed. This saves a WATCH. The function can
	 * always return false. */
	bool (*fence_passed)(void *arg, uint64_t session, struct zd_fence fence);
	/* Called when the engine has ended the session by itself (KILL_SESSION, or zd_engine_tick() if it
	 * does not unmap a segment). The driver closes the connection. The session's id is no longer valid,
	 * and its requests have no reply. */
	void (*session_killed)(void *arg, uint64_t session, const char *why);
	/* Asks the session to unmap a segment. Later replies do not name the segment. The session answers
	 * with SEGMENTS_UNMAPPED. */
	void (*segment_retire)(void *arg, uint64_t session, uint32_t segment);
	/* Called when commands for the device will follow, possibly within microseconds. Its executor can
	 * wake up in this time. NULL: not needed. */
	void (*expect)(void *arg, uint32_t device);
	/* Whether the session's process waits for the fences of REDUCEs itself. NULL: no process does. */
	bool (*sums_ahead)(void *arg, uint64_t session);
	/* Returns whether the executor or the session's process computes the session's sums, and their
	 * progress. NULL: the executors compute all. */
	enum zd_sums_state (*sums)(void *arg, uint64_t session);
	/* Called, for the log, when a group that spans daemons has ended by itself, a session has ended a
	 * group, or its durable job has expired. NULL: not needed. */
	void (*group_ended)(void *arg, uint32_t uid, const char *job, const char *group, const char *why);
	/* Whether the segment was preserved. The restore omits jobs with other segments. NULL: all were. */
	bool (*segment_is_kept)(void *arg, uint32_t segment);
	/* The restore needs a segment of the former daemon: the executor adopts its memory unchanged. An
	 * error ends the restore. NULL only if no job is restored. */
	int (*segment_restore)(void *arg, uint32_t device, uint32_t segment, uint64_t bytes,
	                       struct zd_err *err);
	/* With `kept`, the segment must outlive the daemon from now on: the driver preserves its memory
	 * before it stores the records of this call. Otherwise the driver releases the memory after it has
	 * stored them, and before the next call. In any other order the journal could name segments that do
	 * not exist. NULL: not needed. */
	void (*segment_kept)(void *arg, uint32_t segment, bool kept);
	/* NULL: not needed. */
	void (*notice)(void *arg, const struct zd_notice *notice);
	/* The uid has an end with more objects than one event may free. The driver calls zd_engine_end_step()
	 * between other events until it returns false. It handles requests of the uid after that, because the
	 * first of them would complete the end. NULL: each end is one event. */
	void (*ends)(void *arg, uint32_t uid);
};

struct zd_engine_config {
	uint32_t ndevices; /* 1 .. ZD_MAX_DEVICES */
	const struct zd_device_config *devices;
	uint64_t segment_bytes;   /* usual size of a segment; 0: 1 GiB. The rest of the arena limits it */
	uint64_t uid_quota_bytes; /* limit of one uid's charged bytes on all devices; 0: no limit */
	/* slices of at least this size are copied and summed in several chunks; 0: 32 MiB */
	uint64_t reduction_cut_bytes;
	/* the least chunk of a shard that a device pulls from host memory for other devices; 0: 4 MiB */
	uint64_t landing_chunk_bytes;
	/* A process can use device memory after its session has ended. The session's memory is retained until
	 * a WATCH with `until_gone` completes, with any status. The process can then no longer use it. */
	bool sessions_linger;
	bool collectives; /* the backend has communicators */
	const char *host; /* the name of this machine for other daemons; NULL: "" */
	/* Clients can revoke their access to whole segments only: each gathered buffer and slot of a strict
	 * session has a segment of its own. */
	bool strict_by_segment;
	/* Number of stored lifecycle events, rounded up to a power of two; 0: none. At most ZD_MAX_EVENTS. */
	uint32_t events;
	uint32_t end_step_objects; /* objects that one step of a session's end frees; 0: 64 */
};

/* Creates an engine, with a copy of the configuration. Never returns NULL. */
struct zd_engine *zd_engine_new(const struct zd_engine_config *config, const struct zd_engine_sink *sink);
/* Frees everything without further commands or replies. NULL is allowed. */
void zd_engine_free(struct zd_engine *engine);

/* ---- The journal --------------------------------------------------------------------------------------- */

/* The version of the records' format. Records of version 5 are valid in version 6, with units that are copied
 * as a whole. */
#define ZD_JOURNAL_VERSION       6u
#define ZD_FIRST_JOURNAL_VERSION 5u /* the oldest version that this daemon restores */

/* From now on the engine records durable jobs (engine/journal.h). It records all of these jobs in steps of
 * `nobjects` objects with their parts. The first record, and the records until the last step, replace the
 * former journal. Records of later events follow the records of the step. Returns whether everything is
 * recorded. The driver fetches the records before and after each step. */
void zd_engine_journal_begin(struct zd_engine *engine);
bool zd_engine_journal_step(struct zd_engine *engine, uint32_t nobjects);
/* Returns the records since the last call. *bytes is valid until the next call of the engine. 0: no
 * records. */
size_t zd_engine_journal_take(struct zd_engine *engine, const uint8_t **bytes);
/*
 * Restores the durable jobs of a journal into a new engine whose time is set. Sessions of the former daemon
 * have ended. Their groups are as after the loss of these ranks. Memory that a process can still use is
 * retained until the WATCH of its session completes. After INVALID, with the reason, the engine can only be
 * freed.
 */
int zd_engine_restore(struct zd_engine *engine, const uint8_t *bytes, size_t nbytes, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The driver can no longer store records. From now on no durable group commits. The sink can call this
 * function. */
void zd_engine_keep_ended(struct zd_engine *engine, const char *why);
/* The number of segments that the driver can preserve at a time; 0 (initially): no limit. */
void zd_engine_set_kept_room(struct zd_engine *engine, uint32_t nsegments);
/* Returns the process of a session that waits for its process to end; false: no such session. */
bool zd_engine_former(const struct zd_engine *engine, uint64_t session, uint32_t *uid, uint32_t *pid,
                      uint64_t *started);

/* Limits that a reload can change. */
void zd_engine_set_quota(struct zd_engine *engine, uint64_t uid_quota_bytes);
void zd_engine_set_gather_budget(struct zd_engine *engine, uint32_t device, uint64_t bytes);

/* Limits of one uid, from which administrators' sessions are exempt; 0: no limit. A new engine has no
 * limits. */
struct zd_uid_limits {
	uint32_t max_sessions; /* open sessions */
	uint32_t max_jobs;
	/* A durable job ends when for this long no session has been a rank of its groups or held its
	 * allocations. Also applies to administrators' jobs. */
	uint64_t durable_ttl_ns;
	uint64_t metadata_bytes; /* of the daemon's own memory, for sessions, units, requests and so on */
	uint32_t max_kept;       /* segments of durable jobs. Also applies to administrators' jobs. */
};
/* Ends durable jobs that have already expired. Objects beyond the other limits remain. */
void zd_engine_set_uid_limits(struct zd_engine *engine, const struct zd_uid_limits *limits);

struct zd_peer {
	uint32_t uid, pid;
	uint64_t started;  /* distinguishes the process from a later one with the same pid; chosen by the
	                      driver */
	bool admin;        /* sees all jobs, may kill and abort, and has no limits */
	bool strict;       /* its gathered buffers do not share a page, or a segment, with other memory */
	bool poison;       /* its gathered buffers are copies, filled with NaN patterns when leases end */
	bool no_durable;   /* it may not join groups of durable jobs, unless it is an administrator */
	bool reads_others; /* it may read commits of other users' jobs, as an administrator may */
	bool maps_frames;  /* its client maps frames and shards side by side: gathers are in place */
	bool runs_ahead;   /* its process launches sums regardless of the waits of its streams */
	/* bits of the devices that it may neither join on nor allocate on, unless it is an administrator */
	uint64_t denied_devices;
	const char *name;
};

/* Returns the session's id (never 0, never reused), or 0 and LIMIT. */
uint64_t zd_engine_session_open(struct zd_engine *engine, const struct zd_peer *peer, struct zd_err *err);
/* Reports the client's goodbye. Its process no longer uses memory of the session, and will close the session.
 * The session does not linger. */
void zd_engine_session_goodbye(struct zd_engine *engine, uint64_t session);
/* Ends a session whose connection has closed or whose process has ended. The session's requests receive no
 * reply any more. Unknown ids are ignored. */
void zd_engine_session_close(struct zd_engine *engine, uint64_t session);
/* Continues the ends of the uid's sessions, or its waiting requests that can have become ready, with at most
 * `end_step_objects`. Returns whether work remains.
 * Until its end is complete, such a session is CLOSING, and commands can name it. */
bool zd_engine_end_step(struct zd_engine *engine, uint32_t uid);
/* Whether the session's end is incomplete. */
bool zd_engine_session_ends(const struct zd_engine *engine, uint64_t session);

/* Handles a request. A request with an id that is outstanding receives an error reply. The same applies to a
 * request that would have to wait in addition to ZD_MAX_OUTSTANDING others. A release can wait in addition to
 * ZD_RELEASE_ROOM more. */
void zd_engine_request(struct zd_engine *engine, const struct zd_call *call, const struct zd_args *args);
/* Finds up to `most` further shards for an UPDATE_BEGIN or PUBLISH that the session will send, and adds them
 * to `found` of its arguments. Returns true, without further shards, when the request can be sent: `found`
 * has all shards, or is out of date and the request finds them. Only `found` changes. Any other event can
 * therefore occur between these calls. They only shorten the request. */
bool zd_engine_find_ahead(struct zd_engine *engine, uint64_t session, const struct zd_args *args,
                          uint32_t most);

/* Reports the end of a command. `result` can be NULL except for a REDUCE and for a successful UNIQUE_IDS or
 * AGREE. An unknown op fails an assertion. */
void zd_engine_op_done(struct zd_engine *engine, uint64_t op, int status, const char *error,
                       const struct zd_op_result *result);
/* Reports that the session's sums are no longer ZD_SUMS_ASKED. */
void zd_engine_sums_launched(struct zd_engine *engine, uint64_t session);
/* Between these two calls the driver calls only zd_engine_op_done(). Waiting requests are tried once for all
 * of these completions, not after each, because a queue can be long. */
void zd_engine_pause(struct zd_engine *engine);
void zd_engine_resume(struct zd_engine *engine);

/* While the engine drains, joins fail with SHUTDOWN, as do allocations of jobs that do not exist. Joins that
 * wait for other ranks fail at once, because these ranks cannot join. All other requests are served. */
void zd_engine_drain(struct zd_engine *engine);
/* Ends the drain. */
void zd_engine_undrain(struct zd_engine *engine);
/* Sets the time, which never decreases, and expires deadlines, durable jobs, and sessions that do not unmap
 * segments. */
void zd_engine_tick(struct zd_engine *engine, uint64_t now_ns);
/* Returns the earliest deadline of a request or end of a durable job, or UINT64_MAX. */
uint64_t zd_engine_next_deadline(const struct zd_engine *engine);

/* Whether the session may receive the segment's descriptor: the segment belongs to a job and device that the
 * session uses, or a reply has just named it to a reader. */
bool zd_engine_may_map(const struct zd_engine *engine, uint64_t session, uint32_t segment);
/* Returns the segment's device and size. Returns false for an unknown segment. */
bool zd_engine_segment(const struct zd_engine *engine, uint32_t segment, uint32_t *device, uint64_t *bytes);
/* Returns the devices that are host memory, as bits. */
uint64_t zd_engine_host_memory(const struct zd_engine *engine);
/* Records that the driver sends the session the descriptor of a segment that the session may map. Before the
 * memory is freed, the engine asks the session to unmap the segment. */
void zd_engine_segment_given(struct zd_engine *engine, uint64_t session, uint32_t segment);

/* ---- Inspection ---------------------------------------------------------------------------------------- */

#define ZD_NTABLES   (ZD__TABLE__BLOCKS + 1)
#define ZD_WAIT_TEXT 192 /* bytes of a text with the reason of an object's wait */

/* The id ascends within a table, and is the cursor. It is the object's id, for devices the index + 1, for
 * blocks the offset + 1. The names of other users' objects are "". */
typedef bool zd_row_fn(uint64_t id, const Zd__Row *row, void *arg);

/* Calls fn for each row of the query's table after its cursor until fn returns false; that row does not
 * count. Returns the id after which the next page starts, or 0 at the end. A session sees the rows of its own
 * uid. An administrator sees all rows, and session 0, the daemon, also does. A page ends after about
 * `most_visits` objects. Objects that are not shown and objects from which rows are made also count. 0: no
 * limit. A page can therefore have no row although the next page has some. */
uint64_t zd_engine_list(struct zd_engine *engine, uint64_t session, const Zd__List *query,
                        uint32_t most_visits, zd_row_fn *fn, void *arg);

/* Returns the bytes of the copies that the device's executor has started, and the time in which it had a copy
 * or fill in progress. */
void zd_engine_copies(const struct zd_engine *engine, uint32_t device, uint64_t *bytes, uint64_t *busy_ns);

struct zd_engine_totals {
	uint32_t sessions, jobs, durable_jobs, groups;
	uint64_t requests, gathers, joined_gathers, fallback_gathers, gathered_bytes_total;
	uint64_t list_visits;    /* of all listings so far; for tests */
	uint64_t metadata_bytes; /* of all uids */
	Zd__Usage usage;
};
void zd_engine_totals(const struct zd_engine *engine, struct zd_engine_totals *totals);
uint32_t zd_engine_durable_jobs(const struct zd_engine *engine);
/* The view is valid while the engine exists. The data that it refers to change with each event. */
void zd_engine_metrics(const struct zd_engine *engine, struct zd_metrics_view *view);

/* Calls fn for each event that the session may read, by ascending number, until fn returns false; that event
 * does not count. Session 0, the daemon, reads all. Sets next, last, lost and overwritten of the page. The
 * page ends after `most_visits` events, whether readable or not; 0: no limit. */
typedef bool zd_event_fn(const Zd__Event *event, void *arg);
void zd_engine_events(struct zd_engine *engine, uint64_t session, const Zd__Events *query,
                      uint32_t most_visits, Zd__EventsReply *page, zd_event_fn *fn, void *arg);

#endif
