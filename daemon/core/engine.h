/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - the pure core: events in, commands and replies out.
 *
 * The engine is a deterministic state machine. It opens no file, starts no thread, reads no clock and logs
 * nothing. Its driver (daemon/server, or the simulator) calls the functions below from one thread, one at a
 * time, and executes the commands that it hands to the sink. The sink must not call back into the engine,
 * except for zd_engine_may_map(), zd_engine_segment(), zd_engine_segment_given() and zd_engine_former(); in a
 * command AGREE also zd_engine_journal_take() and zd_engine_journal_all().
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

/* For the log. A rank is lost when its session ends without a goodbye and without a kill: one notice for each
 * of its groups, up to 16. A job begins with its first group, and ends when nothing of it is left; jobs
 * without groups are not reported. */
enum zd_notice_kind {
	ZD_NOTICE_JOB_BEGAN,
	ZD_NOTICE_JOB_ENDED,
	ZD_NOTICE_RANK_LOST,
	ZD_NOTICE_JOB_LOST,   /* a durable job is not restored, since its segment is not kept */
	ZD_NOTICE_UNMAP_LATE, /* the session is about to be ended, since it has not unmapped a segment */
	ZD_NOTICE_PIN_LATE,   /* the session's pin of a commit has ended by its deadline */
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
	ZD_SUMS_BY_EXECUTOR, /* its process makes none */
	ZD_SUMS_NONE,        /* its process makes them, and has been asked for none that has not ended */
	ZD_SUMS_ASKED,       /* it has been asked for one that it has not launched */
	ZD_SUMS_LAUNCHED,    /* its GPU makes what it has been asked for */
};

struct zd_engine_sink {
	void *arg;
	void (*command)(void *arg, const struct zd_command *command);
	void (*reply)(void *arg, const struct zd_reply *reply);
	/* Whether the fence on the session's client page has passed. Saves a WATCH; may always return
	 * false. */
	bool (*fence_passed)(void *arg, uint64_t session, struct zd_fence fence);
	/* Called when the engine has ended the session by itself (KILL_SESSION, or zd_engine_tick() for one
	 * that does not unmap a segment): the driver closes the connection. The session's id is not valid any
	 * more, and its requests get no reply. */
	void (*session_killed)(void *arg, uint64_t session, const char *why);
	/* Asks the session to unmap a segment that it was given; later replies do not name the segment. The
	 * session answers by SEGMENTS_UNMAPPED. */
	void (*segment_retire)(void *arg, uint64_t session, uint32_t segment);
	/* Called when commands for the device will follow, possibly within microseconds, so that its executor
	 * wakes up meanwhile. NULL: not needed. */
	void (*expect)(void *arg, uint32_t device);
	/* Whether the session's process waits for the fences of REDUCEs itself. NULL: no process does. */
	bool (*sums_ahead)(void *arg, uint64_t session);
	/* Returns by whom the session's sums are made, and how far they are. NULL: the executors make all. */
	enum zd_sums_state (*sums)(void *arg, uint64_t session);
	/* Called when a group of the uid's that spans daemons has ended by itself, a session has ended a
	 * group, or its durable job has expired; for the log. NULL: not needed. */
	void (*group_ended)(void *arg, uint32_t uid, const char *job, const char *group, const char *why);
	/* Whether the segment was kept. The restore leaves out the jobs of others. NULL: all were. */
	bool (*segment_is_kept)(void *arg, uint32_t segment);
	/* The restore needs a segment of the daemon before: the executor takes its memory, as it is. An error
	 * ends the restore. NULL only if nothing is restored. */
	int (*segment_restore)(void *arg, uint32_t device, uint32_t segment, uint64_t bytes,
	                       struct zd_err *err);
	/* The segment must outlive the daemon from now on: the driver keeps its memory before it stores the
	 * records of this call; or no longer: it lets go of the memory after it has stored them, and before
	 * the next call. Otherwise the journal names segments that are not there. NULL: not needed. */
	void (*segment_kept)(void *arg, uint32_t segment, bool kept);
	/* NULL: not needed. */
	void (*notice)(void *arg, const struct zd_notice *notice);
	/* An end of the uid's has more objects than one event may free. The driver calls zd_engine_end_step()
	 * until it returns false, between other events, and handles requests of the uid after that: the first
	 * of them would complete the end. NULL: each end is one event. */
	void (*ends)(void *arg, uint32_t uid);
};

struct zd_engine_config {
	uint32_t ndevices; /* 1 .. ZD_MAX_DEVICES */
	const struct zd_device_config *devices;
	uint64_t segment_bytes;   /* usual size of a segment; 0: 1 GiB. Limited by the rest of the arena */
	uint64_t uid_quota_bytes; /* limit of one uid's charged bytes over all devices; 0: none */
	/* slices of at least this size are copied and summed in several chunks; 0: 32 MiB */
	uint64_t reduction_cut_bytes;
	/* the least chunk of a shard that a device pulls from host memory for other devices; 0: 4 MiB */
	uint64_t landing_chunk_bytes;
	/* A process may use device memory after its session has ended: the session's memory is kept until a
	 * WATCH with `until_gone` completes, with any status, when the process cannot use it any more. */
	bool sessions_linger;
	bool collectives; /* the backend has communicators */
	const char *host; /* the name of this machine for other daemons; NULL: "" */
	/* Clients can revoke their access to whole segments only: each gathered buffer and slot of a strict
	 * session has a segment of its own. */
	bool strict_by_segment;
	/* Lifecycle events that are kept, rounded up to a power of two; 0: none. At most ZD_MAX_EVENTS. */
	uint32_t events;
	uint32_t end_step_objects; /* that one step of a session's end frees; 0: 64 */
};

/* Makes an engine, with a copy of the configuration; never NULL. */
struct zd_engine *zd_engine_new(const struct zd_engine_config *config, const struct zd_engine_sink *sink);
/* Frees everything without further commands or replies. NULL is allowed. */
void zd_engine_free(struct zd_engine *engine);

/* ---- The journal --------------------------------------------------------------------------------------- */

/* Of the records' format. Those of version 5 are a part of it: their units are copied whole. */
#define ZD_JOURNAL_VERSION       6u
#define ZD_FIRST_JOURNAL_VERSION 5u /* that this daemon restores */

/* From now on the engine records durable jobs (engine/journal.h). Clears the journal, and records all of
 * them. */
void zd_engine_journal_all(struct zd_engine *engine);
/* The same in steps of so many objects, each with its parts: the first record, and what follows it until the
 * last step, replace the journal before. Later events' records follow the step's. Returns whether all is
 * recorded. The driver takes the records before and after each step. */
void zd_engine_journal_begin(struct zd_engine *engine);
bool zd_engine_journal_step(struct zd_engine *engine, uint32_t nobjects);
/* Returns the records made since the last call, in *bytes until the next call of the engine; 0: none. */
size_t zd_engine_journal_take(struct zd_engine *engine, const uint8_t **bytes);
/*
 * Restores the durable jobs of a journal into an engine that was just made, and whose time is set. Sessions
 * of the former daemon have ended: their groups are as after the loss of these ranks, and memory that a
 * process may still use is kept until the WATCH of that session completes. INVALID, with what is wrong: the
 * engine can only be freed then.
 */
int zd_engine_restore(struct zd_engine *engine, const uint8_t *bytes, size_t nbytes, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The driver cannot store records any more: from now on no durable group commits. The sink may call it. */
void zd_engine_keep_ended(struct zd_engine *engine, const char *why);
/* The number of segments that the driver can keep at a time; 0, as at first: any. */
void zd_engine_set_kept_room(struct zd_engine *engine, uint32_t nsegments);
/* Returns the process of a session whose end is awaited; false: no such session. */
bool zd_engine_former(const struct zd_engine *engine, uint64_t session, uint32_t *uid, uint32_t *pid,
                      uint64_t *started);

/* Limits that a reload may change. */
void zd_engine_set_quota(struct zd_engine *engine, uint64_t uid_quota_bytes);
void zd_engine_set_gather_budget(struct zd_engine *engine, uint32_t device, uint64_t bytes);

/* Limits of one uid, of which administrators' sessions are exempt; 0: none. An engine begins without any. */
struct zd_uid_limits {
	uint32_t max_sessions; /* that are open */
	uint32_t max_jobs;
	/* A durable job ends when no session has been a rank of its groups, or has held its allocations, for
	 * this long. Of administrators' jobs, too. */
	uint64_t durable_ttl_ns;
	uint64_t metadata_bytes; /* of the daemon's own memory, for sessions, units, requests and so on */
	uint32_t max_kept;       /* segments of durable jobs. Of administrators' jobs, too. */
};
/* Ends durable jobs whose time has passed already; what is beyond the other limits stays. */
void zd_engine_set_uid_limits(struct zd_engine *engine, const struct zd_uid_limits *limits);

struct zd_peer {
	uint32_t uid, pid;
	uint64_t started;  /* tells the process from a later one of the same pid; the driver's choice */
	bool admin;        /* sees all jobs, may kill and abort; has no limits */
	bool strict;       /* its gathered buffers share no page, or no segment, with other memory */
	bool poison;       /* its gathered buffers are copies, filled with NaN patterns when leases end */
	bool no_durable;   /* it may not join groups of durable jobs, unless it is an administrator */
	bool reads_others; /* it may read commits of other users' jobs, as an administrator may */
	bool maps_frames;  /* its client maps frames and shards side by side: gathers are in place */
	bool runs_ahead;   /* its process launches sums whatever its streams wait for */
	/* bit for each device that it may neither join on nor allocate on, unless it is an administrator */
	uint64_t denied_devices;
	const char *name;
};

/* Returns the session's id (never 0, never reused), or 0 and LIMIT. */
uint64_t zd_engine_session_open(struct zd_engine *engine, const struct zd_peer *peer, struct zd_err *err);
/* Reports the client's goodbye: its process uses no memory of the session any more, and will close the
 * session. The session does not linger. */
void zd_engine_session_goodbye(struct zd_engine *engine, uint64_t session);
/* Ends a session whose connection has closed or whose process has ended. The session's requests get no reply
 * any more. Unknown ids are ignored. */
void zd_engine_session_close(struct zd_engine *engine, uint64_t session);
/* Goes on with the ends of the uid's sessions, or with its waiting requests that may have become ready, at
 * most by `end_step_objects`. Returns whether more is left.
 * Until then such a session is CLOSING, and commands may name it. */
bool zd_engine_end_step(struct zd_engine *engine, uint32_t uid);
/* Whether the session's end is incomplete. */
bool zd_engine_session_ends(const struct zd_engine *engine, uint64_t session);

/* Handles a request. A request whose id is outstanding gets an error reply; so does a request that would have
 * to wait beside ZD_MAX_OUTSTANDING others. A release may wait beside ZD_RELEASE_ROOM more. */
void zd_engine_request(struct zd_engine *engine, const struct zd_call *call, const struct zd_args *args);
/* Finds up to `most` further shards for an UPDATE_BEGIN or PUBLISH that the session is about to make, and
 * adds them to `found` of its arguments. Returns true, and finds none, when the request may be made: `found`
 * has all shards, or is out of date, and the request finds them. Nothing but `found` changes, so that any
 * other event may come between these calls. They only make the request shorter. */
bool zd_engine_find_ahead(struct zd_engine *engine, uint64_t session, const struct zd_args *args,
                          uint32_t most);

/* Reports the end of a command. `result` may be NULL except for a REDUCE and for a successful UNIQUE_IDS or
 * AGREE. An unknown op fails an assertion. */
void zd_engine_op_done(struct zd_engine *engine, uint64_t op, int status, const char *error,
                       const struct zd_op_result *result);
/* Reports that the session's sums are not ZD_SUMS_ASKED any more. */
void zd_engine_sums_launched(struct zd_engine *engine, uint64_t session);
/* Between these two, only zd_engine_op_done() is called. Requests that wait are tried once for all of these
 * completions, not after each: a queue may be long. */
void zd_engine_pause(struct zd_engine *engine);
void zd_engine_resume(struct zd_engine *engine);

/* While the engine drains, joins, and allocations of jobs that do not exist, end with SHUTDOWN. Joins that
 * wait for other ranks end so at once, since these ranks cannot join. All other requests are served. */
void zd_engine_drain(struct zd_engine *engine);
/* Ends the drain. */
void zd_engine_undrain(struct zd_engine *engine);
/* Sets the time, which never decreases, and expires deadlines, durable jobs, and sessions that do not unmap
 * segments. */
void zd_engine_tick(struct zd_engine *engine, uint64_t now_ns);
/* Returns the earliest deadline of a request or end of a durable job; UINT64_MAX if there is none. */
uint64_t zd_engine_next_deadline(const struct zd_engine *engine);

/* Whether the session may be given the segment's descriptor: the segment belongs to a job and device that the
 * session uses, or a reply has just named it to a reader. */
bool zd_engine_may_map(const struct zd_engine *engine, uint64_t session, uint32_t segment);
/* Returns the segment's device and size; false if there is no such segment. */
bool zd_engine_segment(const struct zd_engine *engine, uint32_t segment, uint32_t *device, uint64_t *bytes);
/* Returns the devices that are host memory, as bits. */
uint64_t zd_engine_host_memory(const struct zd_engine *engine);
/* Records that the driver sends the session the descriptor of a segment that the session may map: the session
 * is asked to unmap the segment before the memory is freed. */
void zd_engine_segment_given(struct zd_engine *engine, uint64_t session, uint32_t segment);

/* ---- Inspection ---------------------------------------------------------------------------------------- */

#define ZD_NTABLES   (ZD__TABLE__BLOCKS + 1)
#define ZD_WAIT_TEXT 192 /* bytes of a text that says what an object waits for */

/* The id ascends within a table, and is the cursor: the object's, of devices the index + 1, of blocks the
 * offset + 1. The names of other users' objects are "". */
typedef bool zd_row_fn(uint64_t id, const Zd__Row *row, void *arg);

/* Calls fn for each row of the query's table behind its cursor until fn returns false; that row does not
 * count. Returns the id that the next page begins behind, or 0 when the end was reached. The session sees the
 * rows of its own uid, an administrator all rows, and so does 0, the daemon. A page ends after about
 * `most_visits` objects, shown or not, and those that rows are made from count, too; 0: no limit. Such a page
 * may have no row, and the next one some. */
uint64_t zd_engine_list(struct zd_engine *engine, uint64_t session, const Zd__List *query,
                        uint32_t most_visits, zd_row_fn *fn, void *arg);

/* The bytes of the copies that the device's executor has begun, and the time in which it had a copy or fill
 * under way. */
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
/* The view is valid while the engine lives, and what it points to changes with each event. */
void zd_engine_metrics(const struct zd_engine *engine, struct zd_metrics_view *view);

/* Calls fn for each event that the session may read, by ascending number, until fn returns false; that event
 * does not count. Session 0, the daemon, reads all. Sets next, last, lost and overwritten of the page, which
 * ends after `most_visits` events, read or not; 0: no limit. */
typedef bool zd_event_fn(const Zd__Event *event, void *arg);
void zd_engine_events(struct zd_engine *engine, uint64_t session, const Zd__Events *query,
                      uint32_t most_visits, Zd__EventsReply *page, zd_event_fn *fn, void *arg);

#endif
