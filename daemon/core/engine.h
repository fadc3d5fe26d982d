/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - the pure core: events in, commands and replies out.
 *
 * The engine is a deterministic state machine. It opens no file, starts no thread, asks for no time and logs
 * nothing. Whoever drives it (daemon/io, or the simulator) calls the functions below from one thread, one at
 * a time, and executes the commands that it hands to the sink. The sink must not call back into the engine,
 * but for zd_engine_may_map(), zd_engine_segment() and zd_engine_segment_given().
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
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <zerod.h>

#include "proto/limits.h"

struct zd_engine;
struct zd_err;

/* ---- Places and fences --------------------------------------------------------------------------------- */

/* Bytes in a segment. segment 0 is "nowhere". */
struct zd_location {
	uint32_t segment;
	uint64_t offset;
	uint64_t bytes;
};

/* On a session's client page (releases, commits: written by the client) or daemon page (gathers: written by
 * executors); the context says which. */
struct zd_fence {
	uint32_t timeline; /* < ZD_TIMELINES */
	uint64_t value;    /* 1 .. INT64_MAX-1 */
};

/* Has the counter reached the value; signed and cyclic. */
static inline bool zd_fence_reached(uint64_t counter, uint64_t value)
{
	return (int64_t)(counter - value) >= 0;
}

/* ---- Commands ------------------------------------------------------------------------------------------ */

enum zd_command_kind {
	ZD_CMD_SEGMENT_CREATE,  /* allocate, zeroed. Result: ok or an error status */
	ZD_CMD_SEGMENT_DESTROY, /* no use of it is left anywhere in the engine. op 0: no completion */
	ZD_CMD_COPY,            /* src -> dst, possibly into another device's segment; then signal */
	ZD_CMD_FILL,            /* one pattern all over dst; then signal */
	ZD_CMD_WATCH,           /* completes when all fences (client page of `session`) have passed */
	ZD_CMD_REDUCE,          /* sum of ninputs slices in float32 in input order, into the target */
	ZD_CMD_SIGNAL,          /* store `signal`. op 0: no completion */
	/* Of communicators with ranks in other daemons, or on devices that have no other way to each
	 * other: */
	ZD_CMD_UNIQUE_IDS, /* `ids` of them. Result: their bytes, one behind the other */
	ZD_CMD_COMM_OPEN,  /* completes when all ranks have met */
	ZD_CMD_COMM_CLOSE, /* what it was given is over, or is aborted. op 0: no completion */
	ZD_CMD_EXCHANGE,   /* blocks between all ranks; then signal */
	ZD_CMD_AGREE,      /* values of all ranks. Result: these, in the order of the ranks */
};

/*
 * A store into the daemon page of a session when the command is done: after the bytes are visible. session 0:
 * none. A command that fails stores ZD_FENCE_ABORTED instead, and other commands leave an aborted timeline as
 * it is until a ZD_CMD_SIGNAL stores something else. Exchanges that are under way then store nothing any
 * more; one that is about to fail may store ZD_FENCE_ABORTED before it ends, since its end may take long. All
 * stores into one timeline come from one device's commands.
 */
struct zd_signal {
	uint64_t session;
	uint32_t timeline;
	uint64_t value;
};

enum zd_purpose {
	ZD_PURPOSE_SHARDS,
	ZD_PURPOSE_GATHERS,
	ZD_PURPOSE_STRICT, /* one gathered buffer or slot, which fills the segment: see strict_by_segment */
	ZD_PURPOSE_GRADIENTS,
	ZD_PURPOSE_ALLOCATIONS,
	ZD_NPURPOSES
};

struct zd_reduce_desc {
	uint64_t session; /* the target's rank's: its process may be asked for the sum */
	uint32_t nfences; /* of its daemon page: the inputs are there when all have passed. 0: they are */
	const struct zd_fence *fences;
	uint64_t numel; /* of every input and of the output */
	enum zerod_dtype input_dtype;
	enum zerod_dtype target_dtype;
	uint32_t ninputs; /* 0: only with overwrite: fills with zeros */
	const struct zd_location *inputs;
	struct zd_location target;
	float prescale;  /* each input is multiplied by it in float32 */
	float postscale; /* and the sum by this */
	bool overwrite;  /* else added to what the target holds */
};

#define ZD_AGREE_BYTES 128u /* at most, of one rank */
#define ZD_WHAT_TEXT   64u  /* more of a `what` is not compared */

/* What a communicator is for. Those of one purpose launch what they are given in that order, on each device;
 * those of the two do not wait for each other, since a gather that is asked for behind a reduction must not
 * wait for its gradients. */
enum zd_comm_role { ZD_COMM_GATHERS, ZD_COMM_REDUCTIONS, ZD_NCOMM_ROLES };

/* One rank of a communicator, on the command's device. */
/* Which ranks of the world those of a communicator are, for words: rank i is `first` + i * (1 + `between`).
 * Zeros: the same. */
struct zd_comm_world {
	uint32_t first, between;
};

struct zd_comm_desc {
	uint64_t comm;     /* by which commands name it; never used again */
	const char *group; /* for words */
	enum zd_comm_role role;
	uint32_t nranks, rank;
	struct zd_comm_world world;
	unsigned char id[ZD_UNIQUE_ID_BYTES]; /* the same on all ranks */
};

/*
 * Every rank sends a block to every other one. Block i goes to rank i, from `send` + i * `send_stride`; what
 * rank i sent is received at `receive` + i * `receive_stride`. A rank's block for itself is left alone, but
 * where all get the same block (send_stride 0) and blocks are received without gaps: an all-gather, which
 * writes the own one too. All ranks give the exchanges and agreements of a communicator in one order, of the
 * same bytes.
 */
struct zd_exchange_desc {
	uint64_t comm;
	uint64_t bytes; /* of a block */
	struct zd_location send, receive;
	uint64_t send_stride, receive_stride;
	const char *what; /* "gather of 'h.3', version 7": the same on all ranks */
};

/*
 * All that a copy, fill, exchange or reduction depends on has happened when it is given; only WATCH waits,
 * and a REDUCE with fences. So a device may run them in any order or at once, but for those that signal the
 * same timeline: these end, and are told of, in the order in which they were given. Nobody has to wait for a
 * REDUCE's fences: it may end at once, with `not_begun`.
 */
struct zd_command {
	enum zd_command_kind kind;
	uint64_t op;     /* 0: nothing to report */
	uint32_t device; /* whose executor runs it: the source's for COPY, the target's for FILL and REDUCE */
	struct zd_signal signal;
	union {
		struct {
			uint32_t segment;
			uint64_t bytes;
			uint64_t job;
			enum zd_purpose purpose;
		} segment;
		struct {
			struct zd_location src;
			uint32_t dst_device;
			struct zd_location dst;
		} copy;
		struct {
			struct zd_location dst;
			/* 0, ZD_FILL_NAN, or of a dst of 8 bytes, which is aligned so, any value. */
			uint64_t pattern;
		} fill;
		struct {
			uint64_t session;
			uint32_t nfences;
			const struct zd_fence *fences;
			bool until_gone; /* never by its fences: see sessions_linger */
		} watch;
		struct zd_reduce_desc reduce;
		struct {
			uint32_t count, uid; /* for whom */
		} ids;
		struct zd_comm_desc comm_open;
		struct {
			uint64_t comm;
			bool abort; /* at once: what it was given ends with ABORTED */
		} comm_close;
		struct zd_exchange_desc exchange;
		struct {
			uint64_t comm;
			uint32_t bytes; /* the same on all ranks */
			unsigned char value[ZD_AGREE_BYTES];
			const char *what; /* as for an exchange */
		} agree;
	} u;
};

#define ZD_FILL_NAN UINT64_MAX /* makes a NaN in every floating-point dtype */

/* A FILL of the CPU's memory: writes the pattern to `bytes` of dst, from `offset` on. */
static inline void zd_fill(uint8_t *dst, uint64_t offset, uint64_t bytes, uint64_t pattern)
{
	if (pattern == 0 || pattern == ZD_FILL_NAN)
		memset(dst + offset, (int)(pattern & 0xff), bytes);
	else
		memcpy(dst + offset, (const uint8_t *)&pattern + offset, bytes);
}

struct zd_op_result {
	/* of a REDUCE, over what the target holds afterwards: */
	double sum_squares;
	bool overflow;  /* an inf or nan */
	bool not_begun; /* of one with fences: nothing was done */
	/* of UNIQUE_IDS and AGREE; the engine reads them during the call only, and frees nothing */
	unsigned char *values;
	uint32_t values_bytes;
};

/* ---- Requests ------------------------------------------------------------------------------------------ */

enum zd_request_kind {
#define REQUEST(KIND, name) ZD_REQ_##KIND,
#include "core/requests.def"
	ZD_NREQUESTS
};

struct zd_view_args {
	const char *name;
	uint64_t offset_numel;
	uint32_t ndim;
	uint64_t shape[ZD_MAX_DIMS];
};

struct zd_fence_list {
	uint32_t count; /* at most ZD_MAX_FENCES; the engine checks */
	const struct zd_fence *fences;
};

struct zd_args {
	enum zd_request_kind kind;
	union {
		struct {
			const char *job, *group;
			uint32_t world_size, rank, device;
			bool durable;
			bool shadow; /* durable groups only */
			/* How many of the ranks are in this daemon, from a multiple of it on; 0: all. */
			uint32_t local_world_size;
			/* Every daemon has all shards: gathers stay inside, only reductions go across. */
			bool hybrid;
			bool exchange; /* gathers and reductions go by communicators inside the daemon too */
			/* Where either says so: of zd_unique_ids() communicators, the same on all ranks.
			 * NULL: none */
			const unsigned char *ids;
			uint32_t ids_bytes;
		} group_join;
		uint32_t unique_ids; /* UNIQUE_IDS: how many */
		uint64_t group;      /* GROUP_LEAVE, GROUP_BARRIER, ABORT_GROUP */
		struct {
			uint64_t group;
			const char *name;
			uint32_t dtype;
			uint64_t numel;
			uint32_t nviews;
			const struct zd_view_args *views;
			uint32_t slot;
			bool persistent, frozen;
			bool all_reduce; /* every rank gets the whole reduced gradient */
		} unit_register;
		uint64_t unit; /* UNIT_UNREGISTER, REDUCE_SKIP */
		struct {
			uint32_t nunits;
			const uint64_t *units;
			struct zd_fence_list fences; /* PUBLISH only */
			bool force;                  /* PUBLISH only */
			bool ahead; /* UPDATE_BEGIN: a fence may stand for the readers' end */
		} publish;          /* UPDATE_BEGIN, PUBLISH */
		struct {
			uint64_t group, step;
		} commit;
		struct {
			uint64_t unit;
			bool persistent;
		} set_persistent;
		struct {
			uint64_t unit;
			uint32_t slot;
		} set_slot;
		struct {
			uint64_t unit;
			bool frozen;
		} set_frozen;
		struct {
			uint64_t unit;
			uint64_t allocation;         /* that has the unit's elements; 0: another rank has */
			struct zd_fence_list fences; /* of its writers */
		} unit_load;
		struct {
			uint64_t unit;
			const char *tag;  /* with a scope: NULL or "" */
			uint32_t uses;    /* 0: 1 */
			uint64_t version; /* 0: newest */
			bool prefetch;
			bool no_slot;   /* a copy that it makes is placed outside the unit's slot */
			uint64_t scope; /* a forward scope, claim or context that holds it; 0: the tag does */
		} gather;
		struct {
			uint64_t unit;
			const char *tag;
			struct zd_fence_list fences;
		} release;
		struct {
			uint64_t group, parent;      /* parent 0: outermost */
			struct zd_fence_list fences; /* of what an abandoned forward has left */
		} forward_begin;
		struct {
			uint64_t scope;
			bool grad; /* FORWARD_END only */
			struct zd_fence_list fences;
		} scope_end; /* FORWARD_END, CLAIM_END, SCOPE_ABANDON, CONTEXT_END */
		struct {
			uint32_t nunits;
			const uint64_t *units;
		} context_begin;
		struct {
			uint64_t group;
			uint32_t stage;
			bool boundary;
			uint32_t target_dtype;
		} backward_begin;
		struct {
			uint64_t group;
			uint32_t op; /* enum zerod_agree_op */
			uint32_t count;
			const double *values;
		} group_agree;
		struct {
			uint64_t group;
			bool skip_rest; /* units that others reduce, and this rank does not */
		} backward_end;
		struct {
			uint64_t group;
			struct zd_fence_list fences; /* of what may still write entries of the rank */
		} backward_abandon;
		struct {
			uint64_t group;
			uint32_t dtype;
			uint64_t slot_bytes;
			uint32_t nslots;
		} bucket_create;
		uint64_t bucket; /* BUCKET_DESTROY */
		struct {
			uint64_t bucket, unit;
			bool ahead;      /* a fence may stand for the room */
			bool zero_holes; /* also what the unit's views do not cover */
		} bucket_reserve;
		struct {
			uint64_t bucket, entry;
			struct zd_fence_list fences;
			uint32_t op; /* enum zerod_reduce_op */
			float prescale;
			bool overwrite;
			uint32_t nabsent; /* views of the unit that contribute zeros, by index */
			const uint32_t *absent;
		} bucket_submit;
		struct {
			uint64_t unit;
			bool ahead; /* the reply may come before the target may be read */
		} reduce_wait;
		struct {
			uint32_t nunits; /* of one group */
			const uint64_t *units;
			struct zd_fence_list fences; /* of what may still access their targets */
		} target_return;
		struct {
			uint64_t group;
			bool ahead;   /* the reply may come before the target may be read */
			bool scalars; /* the result is to be stored for kernels */
		} step_begin;
		struct {
			uint64_t group;
			uint32_t nunits; /* whose norms are wanted */
			const uint64_t *units;
		} step_get;
		struct {
			uint64_t group;
			struct zd_fence_list fences;
		} step_end;
		struct {
			const char *job, *name;
			uint32_t device;
			uint64_t bytes, alignment;
			bool durable;
			uint64_t unit; /* room for its elements: all else is not looked at; 0: none */
		} alloc;
		struct {
			uint64_t allocation;
			struct zd_fence_list fences;
		} free;
		uint64_t session; /* KILL_SESSION */
		uint64_t job;     /* END_JOB */
		struct {
			uint32_t device;
			uint64_t keep_bytes; /* that the device's segments may go on taking */
		} trim;
		struct {
			uint32_t count;
			const uint32_t *segments;
		} segments_unmapped; /* of those that segment_retire() named for the session */
	} u;
};

struct zd_call {
	uint64_t session;
	uint64_t request;     /* the client's id, not 0 */
	uint64_t deadline_ns; /* on zd_engine_tick()'s clock; 0: none */
};

struct zd_reply {
	uint64_t session, request;
	enum zd_request_kind kind;
	int status;        /* 0 or ZEROD_E_* */
	const char *error; /* "" when status is 0 */
	union {
		struct {
			uint32_t nsteps;
			const uint64_t *steps; /* groups whose target the session may read */
		} session_reset;
		struct {
			uint64_t group;
			bool torn;
			uint64_t committed_step;
		} group_join;
		struct {
			const unsigned char *bytes;
			uint32_t nbytes;
		} unique_ids;
		struct {
			uint64_t unit;
			struct zd_location shard;
			uint64_t shard_numel, true_numel, padded_numel, version, target_offset_numel;
		} unit_register;
		struct zd_fence update_begin; /* the shards may be written when it has passed; 0: they may */
		struct {
			uint64_t target_offset_numel;
		} set_frozen;
		struct {
			struct zd_location buffer; /* segment 0 for a prefetch */
			uint64_t version;
			uint64_t transfer; /* that fills the buffer: who joins has the same number; not 0 */
			uint32_t nfences;
			const struct zd_fence *fences; /* daemon page */
			struct zd_location own_shard;  /* segment 0: nothing for the client to copy */
		} gather;
		struct {
			bool lease_ended;
		} release;
		struct {
			uint64_t scope; /* that was begun, or that the request was about */
			uint32_t nended;
			const uint64_t *ended; /* all that ended with the request */
		} scope;                       /* FORWARD_BEGIN .. CONTEXT_END */
		struct {
			uint32_t count;
			const double *values;
		} group_agree;
		struct {
			uint64_t backward;
			bool first; /* of its window */
		} backward_begin;
		struct {
			uint64_t bucket;
		} bucket_create;
		struct {
			uint64_t entry;
			struct zd_location location;
			struct zd_fence fence; /* when it may be written; value 0: now */
		} bucket_reserve;
		struct {
			uint64_t step;
			bool overflow;
			double norm_squared;
			struct zd_location target;
			uint32_t target_dtype;
			bool abandoned; /* the window was, by this rank */
			uint32_t abandoned_rank;
			struct zd_location scalars; /* where the result is stored; segment 0: nowhere */
			struct zd_fence fence;      /* when target and scalars may be read; value 0: now */
			uint32_t nnorms;            /* STEP_GET: of the units that it names */
			const double *norms_squared;
		} step_begin; /* STEP_GET too, without target and fence */
		struct {
			struct zd_location target; /* the unit's part of it */
			uint32_t target_dtype;
			struct zd_fence fence; /* when it may be accessed; value 0: now */
		} reduce_wait;
		struct {
			uint64_t allocation;
			struct zd_location location;
		} alloc;
		struct {
			uint64_t freed_bytes; /* that the device got back meanwhile */
		} trim;
	} u;
};

/* ---- The engine ---------------------------------------------------------------------------------------- */

struct zd_engine_sink {
	void *arg;
	void (*command)(void *arg, const struct zd_command *command);
	void (*reply)(void *arg, const struct zd_reply *reply);
	/* Has the fence on the session's client page passed already? Saves a WATCH; may always say no. */
	bool (*fence_passed)(void *arg, uint64_t session, struct zd_fence fence);
	/* The engine ends the session by itself (KILL_SESSION): the driver closes the connection. The session
	 * is gone from the engine already, its requests are not replied to any more. */
	void (*session_killed)(void *arg, uint64_t session, const char *why);
	/* The session is to unmap a segment that it was given; no reply names that again. It answers by
	 * SEGMENTS_UNMAPPED. */
	void (*segment_retire)(void *arg, uint64_t session, uint32_t segment);
	/* Asked when a transfer into a gathered buffer begins: does it leave the rank's own slice, of so many
	 * bytes, to the client? NULL: never. */
	bool (*client_copies_own)(void *arg, uint32_t device, uint64_t bytes);
	/* Commands for the device will follow, within microseconds if other ranks are as far: whoever does
	 * them may wake up meanwhile. NULL: nobody has to. */
	void (*expect)(void *arg, uint32_t device);
	/* Does the session's process wait for the fences of REDUCEs by itself? NULL: nobody does. */
	bool (*sums_ahead)(void *arg, uint64_t session);
	/* Has the session's process been asked for sums that have not ended? For texts only. NULL: nobody
	 * ever is. */
	bool (*is_summing)(void *arg, uint64_t session);
	/* A group that spans daemons has ended by itself, or somebody has ended a group; for the log. NULL:
	 * there is none. */
	void (*group_ended)(void *arg, const char *job, const char *group, const char *why);
};

struct zd_device_config {
	char name[64];
	uint64_t arena_bytes;         /* all segments together */
	uint64_t segment_align_bytes; /* segments are multiples of it, a power of two; 0: 4 KiB */
	uint64_t gather_budget_bytes; /* live gathered bytes; 0: the arena */
	uint64_t staging_bytes; /* reductions under way; 0: an eighth of the arena. One always may run */
};

struct zd_engine_config {
	uint32_t ndevices; /* 1 .. ZD_MAX_DEVICES */
	const struct zd_device_config *devices;
	uint64_t segment_bytes;   /* usual size of a segment; 0: 1 GiB. Shrunk to what the arena has left */
	uint64_t uid_quota_bytes; /* charged bytes of one uid over all devices; 0: none */
	uint64_t reduction_cut_bytes; /* slices of so many are moved and summed in chunks; 0: 32 MiB */
	/* A process may use device memory after its session has ended: what it held is kept until a WATCH
	 * with `until_gone` completes, which it does, with whatever status, when the process cannot any
	 * more. */
	bool sessions_linger;
	bool collectives; /* the backend has communicators */
	const char *host; /* what other daemons know this one's machine by; NULL: "" */
	/* Clients can take their access away from whole segments only: gathered buffers and slots of strict
	 * sessions have one each. */
	bool strict_by_segment;
};

/* Never NULL. The configuration is copied. */
struct zd_engine *zd_engine_new(const struct zd_engine_config *config, const struct zd_engine_sink *sink);
/* Frees everything without further commands or replies. NULL is allowed. */
void zd_engine_free(struct zd_engine *engine);

/* Limits that a reload may change. */
void zd_engine_set_quota(struct zd_engine *engine, uint64_t uid_quota_bytes);
void zd_engine_set_gather_budget(struct zd_engine *engine, uint32_t device, uint64_t bytes);

struct zd_peer {
	uint32_t uid, pid;
	bool admin;  /* root or the configured group: sees all jobs, may kill and abort */
	bool strict; /* its gathered buffers share no page, or no segment, with anything else */
	bool poison; /* its gathered buffers are copies, which are filled with NaN patterns when leases end */
	const char *name;
};

/* Returns the session's id (never 0, never reused), or 0 and LIMIT. */
uint64_t zd_engine_session_open(struct zd_engine *engine, const struct zd_peer *peer, struct zd_err *err);
/* The process uses no device memory of the session's any more, and will end it: it does not linger. */
void zd_engine_session_goodbye(struct zd_engine *engine, uint64_t session);
/* The connection is gone or the process died. Requests of the session get no reply any more. Unknown ids are
 * ignored. */
void zd_engine_session_close(struct zd_engine *engine, uint64_t session);

/* A request id that is outstanding already gets an error reply; so does a request that would have to wait
 * beside ZD_MAX_OUTSTANDING others, a release beside ZD_RELEASE_ROOM more. */
void zd_engine_request(struct zd_engine *engine, const struct zd_call *call, const struct zd_args *args);

/* `result` may be NULL except for REDUCE. An unknown op is our own mistake. */
void zd_engine_op_done(struct zd_engine *engine, uint64_t op, int status, const char *error,
                       const struct zd_op_result *result);

/* No new session or request comes any more: joins that wait for other ranks end with SHUTDOWN. */
void zd_engine_drain(struct zd_engine *engine);
/* Time never goes back. Expires deadlines. */
void zd_engine_tick(struct zd_engine *engine, uint64_t now_ns);
/* The earliest deadline, UINT64_MAX if none. */
uint64_t zd_engine_next_deadline(const struct zd_engine *engine);

/* May the session be given this segment's descriptor: it belongs to a job and device that the session
 * uses. */
bool zd_engine_may_map(const struct zd_engine *engine, uint64_t session, uint32_t segment);
/* The segment's device and size; false when there is none. */
bool zd_engine_segment(const struct zd_engine *engine, uint32_t segment, uint32_t *device, uint64_t *bytes);
/* The session is sent the descriptor of a segment that it may map: it is asked to unmap it before the memory
 * goes. */
void zd_engine_segment_given(struct zd_engine *engine, uint64_t session, uint32_t segment);

/* ---- Looking ------------------------------------------------------------------------------------------- */

enum zd_table {
	ZD_TABLE_DEVICES,
	ZD_TABLE_JOBS,
	ZD_TABLE_SESSIONS,
	ZD_TABLE_GROUPS,
	ZD_TABLE_UNITS,
	ZD_TABLE_BUFFERS,
	ZD_TABLE_BUCKETS,
	ZD_TABLE_ALLOCATIONS,
	ZD_TABLE_SCOPES,
	ZD_NTABLES
};

/* Charged bytes. The sum of all but the peaks is what quotas count. */
struct zd_usage {
	uint64_t shard_bytes, gathered_bytes, bucket_bytes, staging_bytes, target_bytes, allocation_bytes;
	uint64_t peak_bytes, peak_gathered_bytes;
};

#define ZD_WAIT_TEXT 192

struct zd_holder_row {
	uint64_t session;
	const char *tag;
	uint32_t uses;
	uint64_t age_ns;
};

struct zd_member_row {
	uint32_t rank, device;
	uint64_t session; /* 0: nobody */
	uint32_t pid;
};

struct zd_row {
	enum zd_table table;
	uint64_t id;                            /* ascending within a table; the cursor */
	const char *job, *group, *name, *state; /* "" where they do not apply */
	union {
		struct {
			uint64_t arena_bytes, segment_bytes, block_bytes, quarantine_bytes,
			        gather_budget_bytes;
			struct zd_usage usage;
			uint64_t gathers, joined_gathers, fallback_gathers;
			uint32_t index, waiting;
		} device;
		struct {
			uint32_t uid, sessions, groups;
			bool durable;
			struct zd_usage usage;
		} job;
		struct {
			uint32_t uid, pid, outstanding, nwaits;
			uint64_t age_ns, requests;
			const char *const *waits;
		} session;
		struct {
			uint32_t world_size, units, nmembers; /* nmembers: in this daemon */
			uint64_t committed_step;
			uint64_t doubt_step; /* that others may have committed; 0: none */
			bool torn, shadow;
			bool spans, exchange, hybrid; /* ranks are in other daemons, or not; see group_join */
			const char *why;              /* it is ABORTED by itself; "" otherwise */
			const struct zd_member_row *members;
		} group;
		struct {
			uint32_t dtype, slot, views, registered, gathered;
			uint64_t numel, padded_bytes, version_min, version_max;
			bool frozen, all_reduce;
		} unit;
		struct {
			uint32_t rank, device, nholders;
			uint64_t true_bytes, padded_bytes, version, age_ns;
			bool persistent, prefetched;
			const struct zd_holder_row *holders;
			const char *waits_for;
		} buffer;
		struct {
			uint32_t rank, device, dtype, nslots, reserved, submitted, nwaits;
			uint64_t slot_bytes, held_bytes;
			const char *const *slots; /* nslots state names */
			const char *const *waits;
		} bucket;
		struct {
			uint64_t session, bytes, age_ns;
			uint32_t device;
			bool durable; /* session 0: nobody has it just now */
		} allocation;
		struct {
			bool context;
			uint32_t rank, device, units;
			uint64_t session, parent, bytes, age_ns; /* bytes: padded, of the buffers it holds */
		} scope;                                         /* name is its tag */
	} u;
};

struct zd_list_query {
	enum zd_table table;
	uint64_t
	        session; /* who asks: sees its own uid's rows, an admin all; 0: the daemon itself, sees all */
	uint64_t cursor; /* rows with a greater id */
	const char *job; /* NULL or "": all */
};

/* Calls fn for each row by ascending id until it returns false: that row is not taken. Returns the last id
 * taken, or 0 when the end was reached. */
uint64_t zd_engine_list(struct zd_engine *engine, const struct zd_list_query *query,
                        bool (*fn)(const struct zd_row *row, void *arg), void *arg);

struct zd_engine_totals {
	uint32_t sessions, jobs, durable_jobs, groups;
	uint64_t requests, gathers, joined_gathers, fallback_gathers, gathered_bytes_total;
	struct zd_usage usage;
};
void zd_engine_totals(const struct zd_engine *engine, struct zd_engine_totals *totals);

/*
 * Aborts (zd_assert) when an invariant does not hold: no block owned twice; blocks + free + quarantine =
 * arena; accounted bytes = bytes of what is there; every waiting request has a reason; a job without sessions
 * that is not durable holds nothing; states agree with their data. Linear in everything; for tests and the
 * simulator.
 */
void zd_engine_check(struct zd_engine *engine);

#endif
