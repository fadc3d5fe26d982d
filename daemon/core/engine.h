/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - the pure core: events in, commands and replies out.
 *
 * The engine is a deterministic state machine. It opens no file, starts no thread, reads no clock and logs
 * nothing. Its driver (daemon/io, or the simulator) calls the functions below from one thread, one at a time,
 * and executes the commands that it hands to the sink. The sink must not call back into the engine, except
 * for zd_engine_may_map(), zd_engine_segment() and zd_engine_segment_given().
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

/* A range of a segment. segment 0: nowhere. */
struct zd_location {
	uint32_t segment;
	uint64_t offset;
	uint64_t bytes;
};

/* A value on a timeline: of a session's client page (releases, submits: written by the client) or of its
 * daemon page (gathers: written by executors). Each use says which. */
struct zd_fence {
	uint32_t timeline; /* < ZD_TIMELINES */
	uint64_t value;    /* 1 .. INT64_MAX-1 */
};

/* Whether the counter has reached the value; signed and cyclic. */
static inline bool zd_fence_reached(uint64_t counter, uint64_t value)
{
	return (int64_t)(counter - value) >= 0;
}

/* ---- Commands ------------------------------------------------------------------------------------------ */

enum zd_command_kind {
	ZD_CMD_SEGMENT_CREATE,  /* allocate, zeroed. Result: ok or an error status */
	ZD_CMD_SEGMENT_DESTROY, /* the engine uses it no more. op 0: no completion */
	ZD_CMD_COPY,            /* src -> dst, possibly into another device's segment; then signal */
	ZD_CMD_FILL,            /* fills dst with one pattern; then signal */
	ZD_CMD_WATCH,           /* completes when all fences (client page of `session`) have passed */
	ZD_CMD_REDUCE,          /* sum of ninputs slices in float32 in input order, into the target */
	ZD_CMD_SIGNAL,          /* store `signal`. op 0: no completion */
	/* For communicators whose ranks are in other daemons, or on devices without another path between
	 * them: */
	ZD_CMD_UNIQUE_IDS, /* makes `ids` ids. Result: their bytes, one after the other */
	ZD_CMD_COMM_OPEN,  /* completes when all ranks have connected */
	ZD_CMD_COMM_CLOSE, /* its operations have ended, or are aborted. op 0: no completion */
	ZD_CMD_EXCHANGE,   /* blocks between all ranks; then signal */
	ZD_CMD_AGREE,      /* exchanges a value of each rank. Result: all values, in the order of the ranks */
};

/*
 * A store into the daemon page of a session at the end of a command, after its bytes are visible. session 0:
 * none. A command that fails stores ZD_FENCE_ABORTED instead, and other commands leave an aborted timeline as
 * it is until a ZD_CMD_SIGNAL stores another value. Exchanges that are under way at that time store nothing
 * any more. An exchange that is about to fail may store ZD_FENCE_ABORTED before it ends, since its end may
 * take long. All stores into one timeline are made by one device's commands.
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
	uint64_t session; /* of the target's rank, whose process may be asked for the sum */
	/* on its daemon page: the inputs are complete when all have passed. 0: they are complete */
	uint32_t nfences;
	const struct zd_fence *fences;
	uint64_t numel; /* of every input and of the output */
	enum zerod_dtype input_dtype;
	enum zerod_dtype target_dtype;
	uint32_t ninputs; /* 0: fills with zeros, only with overwrite */
	const struct zd_location *inputs;
	struct zd_location target;
	float prescale;  /* the factor of each input, in float32 */
	float postscale; /* the factor of the sum */
	bool overwrite;  /* otherwise the sum is added to the target */
};

#define ZD_AGREE_BYTES 128u /* at most, of one rank */
#define ZD_WHAT_TEXT   64u  /* of a `what`; the rest is not compared */

/* The purpose of a communicator. Communicators of one purpose launch their operations on each device in the
 * order of the commands. Those of different purposes do not wait for each other, since a gather that is
 * requested behind a reduction must not wait for its gradients. */
enum zd_comm_role { ZD_COMM_GATHERS, ZD_COMM_REDUCTIONS, ZD_NCOMM_ROLES };

/* The ranks of a communicator, in the world, for texts: rank i is `first` + i * (1 + `between`). Zeros: the
 * same numbers. */
struct zd_comm_world {
	uint32_t first, between;
};

/* One rank of a communicator, on the command's device. */
struct zd_comm_desc {
	uint64_t comm;     /* its id in commands; never used again */
	const char *group; /* for texts */
	enum zd_comm_role role;
	uint32_t nranks, rank;
	struct zd_comm_world world;
	unsigned char id[ZD_UNIQUE_ID_BYTES]; /* the same on all ranks */
};

/*
 * Every rank sends a block to every other one. Block i goes to rank i, from `send` + i * `send_stride`; the
 * block from rank i is received at `receive` + i * `receive_stride`. A rank's block for itself is not copied,
 * except where all ranks get the same block (send_stride 0) and blocks are received without gaps: this is an
 * all-gather, which writes the own block too. All ranks give the exchanges and agreements of a communicator
 * in one order, with equal bytes.
 */
struct zd_exchange_desc {
	uint64_t comm;
	uint64_t bytes; /* of a block */
	struct zd_location send, receive;
	uint64_t send_stride, receive_stride;
	const char *what; /* "gather of 'h.3', version 7": the same on all ranks */
};

/*
 * A copy, fill, exchange or reduction depends on nothing that is pending when it is given; only a WATCH
 * waits, and a REDUCE with fences. So a device may run commands in any order or at once, except for commands
 * that signal the same timeline: these end, and are completed, in the order in which they were given. A
 * backend need not wait for a REDUCE's fences: it may complete the command at once, with `not_begun`.
 */
struct zd_command {
	enum zd_command_kind kind;
	uint64_t op; /* 0: no completion */
	/* of the executor that runs it: the source's for COPY, the target's for FILL and REDUCE */
	uint32_t device;
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
			/* 0, ZD_FILL_NAN, or any value for an aligned dst of 8 bytes. */
			uint64_t pattern;
		} fill;
		struct {
			uint64_t session;
			uint32_t nfences;
			const struct zd_fence *fences;
			/* completes when the process has left, not by fences: see sessions_linger */
			bool until_gone;
		} watch;
		struct zd_reduce_desc reduce;
		struct {
			uint32_t count, uid; /* the uid that asks */
		} ids;
		struct zd_comm_desc comm_open;
		struct {
			uint64_t comm;
			bool abort; /* at once: its operations end with ABORTED */
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
	/* of a REDUCE, over the target's content afterwards: */
	double sum_squares;
	bool overflow;  /* it has an inf or nan */
	bool not_begun; /* a REDUCE with fences: nothing was done */
	/* of UNIQUE_IDS and AGREE; the engine reads them during the call only, and does not free them */
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
			/* The number of ranks in this daemon, which are consecutive from a multiple of it; 0:
			 * all. */
			uint32_t local_world_size;
			/* Every daemon has all shards: gathers are local, and only reductions span
			 * daemons. */
			bool hybrid;
			bool exchange; /* gathers and reductions use communicators inside the daemon too */
			/* For groups that use communicators: the bytes of zd_unique_ids(), the same on all
			 * ranks. NULL: none */
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
			/* UPDATE_BEGIN: the reply may carry a fence in place of waiting for readers */
			bool ahead;
		} publish; /* UPDATE_BEGIN, PUBLISH */
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
			uint64_t allocation;         /* with the unit's elements; 0: another rank has them */
			struct zd_fence_list fences; /* of the streams that write it */
		} unit_load;
		struct {
			uint64_t unit;
			const char *tag;  /* with a scope: NULL or "" */
			uint32_t uses;    /* 0: 1 */
			uint64_t version; /* 0: newest */
			bool prefetch;
			bool no_slot; /* a new buffer is placed outside the unit's slot */
			/* the forward scope, claim or context that gets the lease; 0: the tag */
			uint64_t scope;
		} gather;
		struct {
			uint64_t unit;
			const char *tag;
			struct zd_fence_list fences;
		} release;
		struct {
			uint64_t group, parent; /* parent 0: outermost */
			/* of streams that may use buffers of an abandoned forward */
			struct zd_fence_list fences;
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
			bool skip_rest; /* skips the units that other ranks reduce and this rank does not */
		} backward_end;
		struct {
			uint64_t group;
			struct zd_fence_list fences; /* of streams that may still write entries of the rank */
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
			bool ahead;      /* the reply may carry a fence in place of waiting for the memory */
			bool zero_holes; /* also zeroes elements that no view covers */
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
			struct zd_fence_list fences; /* of streams that may still access their targets */
		} target_return;
		struct {
			uint64_t group;
			bool ahead;   /* the reply may come before the target may be read */
			bool scalars; /* stores the result in memory for kernels */
		} step_begin;
		struct {
			uint64_t group;
			uint32_t nunits; /* whose norms are requested */
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
			/* allocates for its elements, and ignores all other arguments; 0: none */
			uint64_t unit;
		} alloc;
		struct {
			uint64_t allocation;
			struct zd_fence_list fences;
		} free;
		uint64_t session; /* KILL_SESSION */
		uint64_t job;     /* END_JOB */
		struct {
			uint32_t device;
			uint64_t keep_bytes; /* that the device's segments may keep */
		} trim;
		struct {
			uint32_t count;
			const uint32_t *segments;
		} segments_unmapped; /* that segment_retire() named for the session */
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
		struct zd_fence update_begin; /* the shards may be written when it has passed; value 0: now */
		struct {
			uint64_t target_offset_numel;
		} set_frozen;
		struct {
			struct zd_location buffer; /* segment 0 for a prefetch */
			uint64_t version;
			/* the number of the transfer that fills the buffer: joined gathers have the same; not
			 * 0 */
			uint64_t transfer;
			uint32_t nfences;
			const struct zd_fence *fences; /* daemon page */
			struct zd_location own_shard;  /* to be copied by the client; segment 0: nothing */
		} gather;
		struct {
			bool lease_ended;
		} release;
		struct {
			uint64_t scope; /* that was begun, or that the request names */
			uint32_t nended;
			const uint64_t *ended; /* all scopes that the request has ended */
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
			struct zd_fence fence; /* passes when the entry may be written; value 0: now */
		} bucket_reserve;
		struct {
			uint64_t step;
			bool overflow;
			double norm_squared;
			struct zd_location target;
			uint32_t target_dtype;
			bool abandoned; /* the window was abandoned, by `abandoned_rank` */
			uint32_t abandoned_rank;
			struct zd_location scalars; /* where the result is stored; segment 0: nowhere */
			/* passes when target and scalars may be read; value 0: now */
			struct zd_fence fence;
			uint32_t nnorms; /* STEP_GET: the number of units named */
			const double *norms_squared;
		} step_begin; /* also of STEP_GET, without target and fence */
		struct {
			struct zd_location target; /* the unit's place in it */
			uint32_t target_dtype;
			struct zd_fence fence; /* passes when it may be accessed; value 0: now */
		} reduce_wait;
		struct {
			uint64_t allocation;
			struct zd_location location;
		} alloc;
		struct {
			uint64_t freed_bytes; /* that retired segments have freed meanwhile */
		} trim;
	} u;
};

/* ---- The engine ---------------------------------------------------------------------------------------- */

struct zd_engine_sink {
	void *arg;
	void (*command)(void *arg, const struct zd_command *command);
	void (*reply)(void *arg, const struct zd_reply *reply);
	/* Whether the fence on the session's client page has passed. Saves a WATCH; may always return
	 * false. */
	bool (*fence_passed)(void *arg, uint64_t session, struct zd_fence fence);
	/* The engine has ended the session by itself (KILL_SESSION): the driver closes the connection. The
	 * engine knows the session no more, and its requests get no reply. */
	void (*session_killed)(void *arg, uint64_t session, const char *why);
	/* Asks the session to unmap a segment that it was given; later replies do not name the segment. The
	 * session answers by SEGMENTS_UNMAPPED. */
	void (*segment_retire)(void *arg, uint64_t session, uint32_t segment);
	/* Called when a transfer into a gathered buffer begins: whether the client copies the rank's own
	 * slice, of `bytes`, itself. NULL: never. */
	bool (*client_copies_own)(void *arg, uint32_t device, uint64_t bytes);
	/* Commands for the device will follow, within microseconds if other ranks are as far: its executor
	 * may wake up meanwhile. NULL: not needed. */
	void (*expect)(void *arg, uint32_t device);
	/* Whether the session's process waits for the fences of REDUCEs itself. NULL: no process does. */
	bool (*sums_ahead)(void *arg, uint64_t session);
	/* Whether the session's process has been asked for sums that have not ended. For texts only. NULL:
	 * never. */
	bool (*is_summing)(void *arg, uint64_t session);
	/* A group that spans daemons has ended by itself, or a session has ended a group; for the log. NULL:
	 * not needed. */
	void (*group_ended)(void *arg, const char *job, const char *group, const char *why);
};

struct zd_device_config {
	char name[64];
	uint64_t arena_bytes;         /* all segments together */
	uint64_t segment_align_bytes; /* segments are multiples of it, a power of two; 0: 4 KiB */
	uint64_t gather_budget_bytes; /* limit of charged gathered bytes; 0: the arena */
	/* limit of reductions under way; 0: an eighth of the arena. One reduction may always run */
	uint64_t staging_bytes;
};

struct zd_engine_config {
	uint32_t ndevices; /* 1 .. ZD_MAX_DEVICES */
	const struct zd_device_config *devices;
	uint64_t segment_bytes;   /* usual size of a segment; 0: 1 GiB. Limited by the rest of the arena */
	uint64_t uid_quota_bytes; /* limit of one uid's charged bytes over all devices; 0: none */
	/* slices of at least this size are copied and summed in several chunks; 0: 32 MiB */
	uint64_t reduction_cut_bytes;
	/* A process may use device memory after its session has ended: the session's memory is kept until a
	 * WATCH with `until_gone` completes, with any status, when the process cannot use it any more. */
	bool sessions_linger;
	bool collectives; /* the backend has communicators */
	const char *host; /* the name of this machine for other daemons; NULL: "" */
	/* Clients can revoke their access to whole segments only: each gathered buffer and slot of a strict
	 * session has a segment of its own. */
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
	bool strict; /* its gathered buffers share no page, or no segment, with other memory */
	bool poison; /* its gathered buffers are copies, filled with NaN patterns when leases end */
	const char *name;
};

/* Returns the session's id (never 0, never reused), or 0 and LIMIT. */
uint64_t zd_engine_session_open(struct zd_engine *engine, const struct zd_peer *peer, struct zd_err *err);
/* The client has said goodbye: its process uses no memory of the session any more, and will close it. The
 * session does not linger. */
void zd_engine_session_goodbye(struct zd_engine *engine, uint64_t session);
/* The connection has closed or the process has ended. Requests of the session get no reply any more. Unknown
 * ids are ignored. */
void zd_engine_session_close(struct zd_engine *engine, uint64_t session);

/* A request with an outstanding id gets an error reply. So does a request that would have to wait beside
 * ZD_MAX_OUTSTANDING others; a release may wait beside ZD_RELEASE_ROOM more. */
void zd_engine_request(struct zd_engine *engine, const struct zd_call *call, const struct zd_args *args);

/* `result` may be NULL except for a REDUCE and for a successful UNIQUE_IDS or AGREE. An unknown op fails an
 * assertion. */
void zd_engine_op_done(struct zd_engine *engine, uint64_t op, int status, const char *error,
                       const struct zd_op_result *result);

/* The driver accepts no new session or request any more: joins that wait for other ranks end with
 * SHUTDOWN. */
void zd_engine_drain(struct zd_engine *engine);
/* Sets the time, which never decreases, and expires deadlines. */
void zd_engine_tick(struct zd_engine *engine, uint64_t now_ns);
/* The earliest deadline, UINT64_MAX if none. */
uint64_t zd_engine_next_deadline(const struct zd_engine *engine);

/* Whether the session may be given the segment's descriptor: the segment belongs to a job and device that the
 * session uses. */
bool zd_engine_may_map(const struct zd_engine *engine, uint64_t session, uint32_t segment);
/* The segment's device and size; false when there is none. */
bool zd_engine_segment(const struct zd_engine *engine, uint32_t segment, uint32_t *device, uint64_t *bytes);
/* The driver sends the session the descriptor of a segment that it may map: the session is asked to unmap it
 * before the memory is freed. */
void zd_engine_segment_given(struct zd_engine *engine, uint64_t session, uint32_t segment);

/* ---- Inspection ---------------------------------------------------------------------------------------- */

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

/* Charged bytes. Quotas limit the sum of all but the peaks. */
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
	uint64_t session; /* 0: none */
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
			uint64_t doubt_step; /* that other daemons may have committed; 0: none */
			bool torn, shadow;
			bool spans, exchange, hybrid; /* see group_join; spans: ranks are in other daemons */
			/* of an ABORTED group that failed by itself; "" otherwise */
			const char *why;
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
			bool durable; /* session 0: no session has it */
		} allocation;
		struct {
			bool context;
			uint32_t rank, device, units;
			uint64_t session, parent, bytes, age_ns; /* bytes: padded, of its leased buffers */
		} scope;                                         /* name is its tag */
	} u;
};

struct zd_list_query {
	enum zd_table table;
	uint64_t
	        /* the asking session, which sees its own uid's rows, an admin all rows; 0: the daemon, all
	         * rows */
	        session;
	uint64_t cursor; /* rows with a greater id */
	const char *job; /* NULL or "": all */
};

/* Calls fn for each row by ascending id until it returns false: that row does not count. Returns the id of
 * the last row that counts, or 0 when the end was reached. */
uint64_t zd_engine_list(struct zd_engine *engine, const struct zd_list_query *query,
                        bool (*fn)(const struct zd_row *row, void *arg), void *arg);

struct zd_engine_totals {
	uint32_t sessions, jobs, durable_jobs, groups;
	uint64_t requests, gathers, joined_gathers, fallback_gathers, gathered_bytes_total;
	struct zd_usage usage;
};
void zd_engine_totals(const struct zd_engine *engine, struct zd_engine_totals *totals);

/*
 * Aborts (zd_assert) when an invariant does not hold: no block is owned twice; blocks + free + quarantine =
 * arena; accounted bytes = bytes of the objects; every waiting request has a reason; a job without sessions
 * that is not durable holds nothing; states agree with their data. Linear in the number of objects; for tests
 * and the simulator.
 */
void zd_engine_check(struct zd_engine *engine);

#endif
