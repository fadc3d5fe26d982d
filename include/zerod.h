/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zerod.h - the public C interface of libzerod; zerod_cuda.h, zerod_host.h and zerod_optimizer.h add to it.
 *
 * zerod is a daemon, one on each node, that owns the memory of sharded training. A training process connects
 * and joins a group as one rank on one device. The rank registers its units, gathers each unit before use,
 * releases it after use, reduces the unit's gradient, and updates its own shard.
 *
 * This header describes each call: its effect, its waits and its results. The pages of docs/, which `make
 * install` puts into share/doc/zerod, describe how the parts work together: gathers.md, updates.md,
 * gradients.md, durable.md, failures.md, strict.md, streams.md and several-nodes.md.
 *
 * Conventions
 *   - A function that can fail returns ZEROD_OK (0) or a negative ZEROD_E_* status; zerod_last_error() has
 *     the text. Out-parameters come last and are untouched on failure.
 *   - Any call may return INVALID (a wrong handle, option or flag), FORKED, DISCONNECTED (or RESTARTED),
 *     PROTOCOL and SYSTEM; one that sends a request LIMIT, DEADLINE and INTERRUPTED; one about a failed group
 *     PEER_LOST and ABORTED; and a call that begins or publishes an update, loads, commits, or begins a
 *     backward or a step POISONED after an abort. Declarations list these only to say more.
 *   - `numel` counts elements, `bytes` counts bytes. Shapes are in elements, row-major.
 *   - Every structure begins with `struct_size`. Set it with ZEROD_INIT, which zeroes the rest: zero is
 *     every option's default, NULL options are all defaults, and `reserved` must be zero. In an array the
 *     first element's struct_size is the stride. In a structure that is longer than the library's, further
 *     options must be zero and further results are set to zero; in a shorter one missing options are zero.
 *   - All functions are thread-safe, but no handle may be used while or after another thread frees it.
 *   - `streams`: at most 64 streams that may still use the memory that the call releases or hands over, which
 *     is not reused or read before the work now in these streams has run. None: all use has ended.
 *   - With a `ticket` that is not NULL a call returns at once; zerod_wait() on the ticket has its outcome.
 *   - A client has room for 1024 requests without an answer, and for 1024 more releases. Beyond that, calls
 *     that return at once fail with LIMIT, and calls that block wait.
 *   - A process need not call the library regularly: answers are kept for it, and a thread of the library
 *     serves the daemon's requests.
 *   - Addresses of the daemon's memory are the device's: a GPU's are for kernels and copies, not for the CPU.
 *   - Nothing here prints, exits or raises a signal.
 *
 * Calls that block
 *   A call that needs an answer waits for one round trip, until the client's deadline. Of this header only
 *   these may wait longer: all but the last three until the deadline in their options (0: the client's
 *   default; ZEROD_NO_DEADLINE: none); the text of DEADLINE says why. [t]: not with a ticket or if detached.
 *   - All ranks must make the call: zerod_group_join, zerod_group_get (joining again), zerod_group_agree,
 *     zerod_group_barrier [t], zerod_unit_load [t], zerod_unit_place, zerod_commit, zerod_step_begin [t].
 *   - The call returns an address, so there must be memory: zerod_unit_register and zerod_alloc (zeroed; a
 *     former unit of the name ends first), zerod_unit_load by the rank with the data, zerod_wait and
 *     zerod_gather (see zerod_gather_begin(); without a stream, for the bytes as well), zerod_context_begin,
 *     zerod_backward_begin, zerod_bucket_reserve and zerod_reduce (room; with a stream: others').
 *   - The objects of the call are in use: zerod_update_begin [t] (by gathers that read the shards; with a
 *     ticket too, by earlier publishes without an answer), zerod_release [t] (by its gather, without an
 *     answer), zerod_forward_end, zerod_claim_end and zerod_context_end (by gathers in the scope),
 *     zerod_backward_abandon (by streams that write entries), zerod_backward_begin (by the sums of a step
 *     with a ticket, if the one after it has ended too), zerod_unit_unregister and zerod_group_leave (on
 *     GPUs, by streams that copy from the shard), zerod_trim (by processes that map the memory),
 *     zerod_session_reset (by copies into the rank's shards).
 *   - The result depends on other work: zerod_connect, zerod_group_unique_id and zerod_unique_id (by NCCL),
 *     zerod_publish [t] (`streams`), zerod_publish_from [t] (so, without a stream the conversion),
 *     zerod_backward_end [t] (reductions), zerod_step_get and zerod_step_norms_get (sums), zerod_reduce_wait
 *     (the other ranks' gradients; without a stream the sum).
 *   - zerod_stream_synchronize(), zerod_stream_destroy(), zerod_close(): for own streams, with no deadline.
 *   While a call waits, its thread calls `interrupted` of zerod_connect(): after 50 ms, then at least every
 *   100 ms. That function may make calls, which are not given up, but not zerod_close(). When it has returned
 *   non-zero, the call ends as if its deadline had passed, with INTERRUPTED. The call succeeds if the daemon
 *   has done it already. If the daemon hangs, this takes two seconds more. Not given up are: the last three
 *   calls, uncork, zerod_group_get() while it connects again, and calls by functions of host streams.
 */
#ifndef ZEROD_H
#define ZEROD_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default) /* the library is built with hidden visibility: only this is exported */
#define ZEROD_MUST_USE __attribute__((warn_unused_result))
#else
#define ZEROD_MUST_USE
#endif
#define ZEROD_VERSION_MAJOR 0
#define ZEROD_VERSION_MINOR 2
#define ZEROD_VERSION_PATCH 0
/* The version of the library that runs, as major * 1 000 000 + minor * 1000 + patch. */
uint32_t zerod_version(void);
/* ---- Status codes ------------------------------------------------------------------------------
 * The protocol has the same numbers; zeroctl and zerobench exit with the positive value. */
enum zerod_status {
	ZEROD_OK = 0,
	ZEROD_E_INVALID = -1, /* an argument is wrong; the text names it */
	/* -2 is reserved: the programs exit with 2 when their command line is wrong */
	ZEROD_E_NOT_FOUND = -3,      /* no such job, group, unit, bucket, entry, session or device */
	ZEROD_E_EXISTS = -4,         /* in use already: a rank, a name */
	ZEROD_E_MISMATCH = -5,       /* two ranks (or two calls) describe one thing differently */
	ZEROD_E_STATE = -6,          /* not allowed now, e.g. publish without update_begin */
	ZEROD_E_NOT_HELD = -7,       /* the unit is not held under this tag */
	ZEROD_E_STALE = -8,          /* the ticket was consumed, or its lease has ended */
	ZEROD_E_STALE_VERSION = -9,  /* the requested version is no longer held */
	ZEROD_E_BUSY = -10,          /* leases are outstanding */
	ZEROD_E_SLOT_CONFLICT = -11, /* the slot holds another unit that the caller itself still holds */
	ZEROD_E_POISONED = -12,      /* an abort has freed a wait of the session; reset it first */
	ZEROD_E_DUPLICATE = -13,     /* the same unit reduced twice in one backward */
	ZEROD_E_CAPACITY = -14,      /* ranks reduce in orders that cross beyond their buckets' capacity */
	ZEROD_E_PEER_LOST = -15,     /* a rank of the group ended; the text names it */
	ZEROD_E_ABORTED = -16,       /* an administrator aborted the group, or an abort has freed a wait */
	ZEROD_E_DEADLINE = -17,      /* the deadline passed; the text says what was waited for */
	ZEROD_E_NO_MEMORY = -18,     /* can never fit; the text has the sizes */
	ZEROD_E_QUOTA = -19,         /* beyond the uid's quota */
	ZEROD_E_LIMIT = -20,         /* beyond a limit of the protocol, see proto/limits.h */
	ZEROD_E_PERMISSION = -21,    /* not the owner, nor an administrator; not served; no grant */
	ZEROD_E_UNSUPPORTED = -22,   /* the daemon, backend or dtype cannot do this */
	ZEROD_E_VERSION = -23,       /* protocol versions do not overlap */
	ZEROD_E_PROTOCOL = -24,      /* an invalid message */
	ZEROD_E_CONNECT = -25,       /* no daemon listens on the socket */
	ZEROD_E_DISCONNECTED = -26,  /* the daemon closed the connection, or has ended */
	ZEROD_E_TORN = -27,          /* a durable group ended inside an update; restore, then commit */
	ZEROD_E_DEVICE = -28,        /* the device or its driver failed; the text quotes it */
	ZEROD_E_SHUTDOWN = -29,      /* the daemon is draining, or has ended in order */
	ZEROD_E_SYSTEM = -30,        /* a system call failed; the text describes errno */
	ZEROD_E_FORKED = -31,        /* the client was made before fork() */
	ZEROD_E_RESTARTED = -32,     /* the daemon has ended; zerod_group_get() goes on with the next one */
	ZEROD_E_INTERRUPTED = -33,   /* `interrupted` of zerod_connect() has given up the wait */
};
/* The status's name without prefix, e.g. "NOT_HELD"; "UNKNOWN" for any other number. Never NULL. */
const char *zerod_status_name(int status);

/* ---- Data types ---------------------------------------------------------------------------------------- */
/* clang-format off */
enum zerod_dtype {
	ZEROD_FLOAT32 = 1, ZEROD_FLOAT16 = 2, ZEROD_BFLOAT16 = 3, ZEROD_FLOAT8_E4M3 = 4,
	ZEROD_FLOAT8_E5M2 = 5, ZEROD_INT8 = 6, ZEROD_INT16 = 7, ZEROD_INT32 = 8, ZEROD_INT64 = 9,
	ZEROD_UINT8 = 10, ZEROD_BOOL = 11
};
/* clang-format on */
/* Bytes of one element, and "float32", "bfloat16", ...; 0 and "unknown" for any other number. */
size_t zerod_dtype_bytes(enum zerod_dtype dtype);
const char *zerod_dtype_name(enum zerod_dtype dtype);

/* ---- Client -------------------------------------------------------------------------------------------- */
typedef struct zerod_client zerod_client;         /* one connection to the daemon: a session */
typedef struct zerod_group zerod_group;           /* this client's membership in a group: one rank */
typedef struct zerod_unit zerod_unit;             /* this rank's handle of a unit */
typedef struct zerod_bucket zerod_bucket;         /* this rank's gradient bucket */
typedef struct zerod_stream zerod_stream;         /* an in-order stream of work, see below */
typedef struct zerod_allocation zerod_allocation; /* a plain allocation */

/* Opaque ids, whose size never changes. Compare and copy them freely; {0} is "none". A ticket is an
 * asynchronous request. A scope is a holder without a tag: a forward scope, a claim, or a context. */
/* clang-format off */
typedef struct zerod_ticket { uint64_t id; } zerod_ticket;
typedef struct zerod_scope { uint64_t id; } zerod_scope;
#define ZEROD_NO_DEADLINE UINT32_MAX
/* Zeroed options with struct_size set:  struct zerod_options o = ZEROD_INIT(o); */
#ifdef __cplusplus
extern "C++" template <typename T> inline T zerod_init() { T t = T(); t.struct_size = sizeof(T); return t; }
#define ZEROD_INIT(var) zerod_init<decltype(var)>()
#else
#define ZEROD_INIT(var) {.struct_size = sizeof(var)}
#endif
/* clang-format on */
#define ZEROD_WAIT_LEASES 1u
/* How long a call waits. NULL in its place: the client's deadline. */
struct zerod_wait_options {
	size_t struct_size;
	uint32_t deadline_ms;
	uint32_t flags; /* ZEROD_WAIT_LEASES: zerod_update_begin() waits for leases, too, instead of BUSY */
};
struct zerod_options {
	size_t struct_size;
	const char *socket_path; /* NULL: $ZEROD_SOCKET, else /run/zerod/zerod.sock */
	const char *name;        /* shown by zeroctl; NULL: the program's name; at most 63 bytes of UTF-8 */
	uint32_t deadline_ms;    /* default for every wait; 0: 60 000 */
	int strict;              /* 1: views of released buffers fault, see docs/strict.md */
	int poison;              /* 1, or $ZEROD_POISON=1: released buffers are filled with NaN, see there */
	uint32_t reconnect_ms;   /* 0: $ZEROD_RECONNECT_MS, else no next daemon; see zerod_group_get() */
	int (*interrupted)(void *context); /* NULL: none; see "Calls that block" */
	void *interrupted_context;
};

/* Connects and exchanges hellos. `options` may be NULL; zerod_last_error(NULL) has the text of a failure.
 * Errors: INVALID (path, name, a variable of the environment), CONNECT, VERSION, LIMIT (daemon full),
 * PERMISSION, UNSUPPORTED (strict, and pages of more than 4096 bytes; a daemon without poison mode). */
ZEROD_MUST_USE int zerod_connect(const struct zerod_options *options, zerod_client **client);
/* The client's deadline of calls that begin from now on; 0: that of zerod_connect(). */
ZEROD_MUST_USE int zerod_set_deadline(zerod_client *client, uint32_t deadline_ms);
/* Ends the session and frees its memory (its shards as zerod_group_leave() does); all handles become invalid.
 * The caller's own work on GPUs that uses the daemon's memory must have ended. A rank whose session ends
 * otherwise has died. The call waits at most a second for an answer of the daemon. NULL is allowed. */
void zerod_close(zerod_client *client);
/* The text of this thread's last failure on `client` (NULL: on none), until its next call; "" if there is
 * none. A later failure on none, as of zerod_update_begin(NULL, 0), counts for every client. */
const char *zerod_last_error(const zerod_client *client);

/* Ends the POISONED state, after the caller has synchronized its streams and discarded what it has computed
 * since the abort (docs/failures.md). Frees abandoned entries and targets of a failed group, and restores the
 * rank's shards where its group was set back to the last commit. */
ZEROD_MUST_USE int zerod_session_reset(zerod_client *client, const struct zerod_wait_options *options);
#define ZEROD_NO_HOST UINT32_MAX
struct zerod_device_info {
	size_t struct_size;
	uint32_t index;
	uint32_t host;            /* its host memory: a device, itself if it is one, or ZEROD_NO_HOST */
	char name[64];            /* "host0", "memory0", or "GPU-12345678-1234-..." */
	uint64_t arena_bytes;     /* the limit of the daemon's memory on this device */
	uint64_t allocated_bytes; /* charged memory, padded */
	uint64_t gathered_bytes;  /* live gathered buffers, padded */
	uint64_t peak_bytes;      /* highest allocated_bytes since the daemon's start */
};
/* `device` counts from 0. Errors: NOT_FOUND past the last. */
ZEROD_MUST_USE int zerod_device_get(zerod_client *client, uint32_t device, struct zerod_device_info *info);
/* Returns unused memory of this user's jobs (administrators': of all) to the device, until the daemon holds
 * `keep_bytes` or less there; also prefetched buffers without a lease. Addresses of released buffers become
 * invalid. `freed_bytes` (may be NULL): bytes that were returned to the device. Errors: NOT_FOUND, DEADLINE
 * (names a stopped process that has the memory mapped; freed when it continues). */
ZEROD_MUST_USE int zerod_trim(zerod_client *client, uint32_t device, uint64_t keep_bytes,
                              const struct zerod_wait_options *options, uint64_t *freed_bytes);
/* Requests of the *calling thread* that return at once are collected until zerod_uncork() sends them in few
 * packets. Calls that wait send them first. Corks nest. Errors of uncork: STATE (no cork by this thread). */
void zerod_cork(zerod_client *client);
ZEROD_MUST_USE int zerod_uncork(zerod_client *client);

/* ---- Streams -----------------------------------------------------------------------------------
 * A stream is a first-in first-out sequence of work that runs asynchronously to its caller. zerod_host.h
 * makes streams of the CPU, zerod_cuda.h wraps a GPU's. NULL in place of a stream: the calling thread. */
#define ZEROD_MAX_STREAMS 256 /* streams of one client that have a handle, of both kinds */
/* Waits until the work that is in the stream has run. Errors: DEVICE, ABORTED (an abort has freed a wait). */
ZEROD_MUST_USE int zerod_stream_synchronize(zerod_stream *stream);
/* Frees the handle, of a host stream when its work has run. A GPU's stream runs on. NULL is allowed. */
void zerod_stream_destroy(zerod_stream *stream);

/* ---- Jobs and groups ----------------------------------------------------------------------------------- */
enum zerod_group_flags {
	ZEROD_GROUP_DURABLE = 1u << 0, /* shards outlive the sessions: docs/durable.md */
	ZEROD_GROUP_SHADOW = 1u << 1,  /* with DURABLE: the last commit is kept, too */
	ZEROD_GROUP_HYBRID = 1u << 2,  /* spans daemons: the ranks of each daemon have all shards */
};
/* How bytes travel between the ranks of one daemon. NCCL carries them between daemons in either case. */
enum zerod_collectives {
	ZEROD_COLLECTIVES_COPIES = 0, /* copies by the daemon: no kernels, and gathers are one-sided */
	ZEROD_COLLECTIVES_NCCL = 1,   /* collectives of NCCL, under the contract of docs/several-nodes.md */
};
/* Opaque bytes by which ranks in several daemons find each other. The launcher gives them to all ranks. */
#define ZEROD_UNIQUE_ID_BYTES 4288
struct zerod_unique_id {
	unsigned char bytes[ZEROD_UNIQUE_ID_BYTES];
};
#define ZEROD_MAX_LOCAL_RANKS 16 /* in each daemon, of a group that spans daemons */
struct zerod_group_options {
	size_t struct_size;
	const char *job;           /* a namespace of the caller's uid; 1..63 bytes of UTF-8 */
	const char *group;         /* name inside the job; 1..63 bytes; NULL: "world" */
	uint32_t world_size;       /* 1..1024, of all daemons */
	uint32_t local_world_size; /* ranks in each daemon; divides world_size; 0: all are in this daemon */
	uint32_t rank;   /* 0..world_size-1; the first local_world_size ones are in the first daemon */
	uint32_t device; /* index on this node; several ranks may share a device */
	const char *device_uuid; /* the device's name in zerod_device_info, or a prefix that no other has;
	                            `device` is 0 or agrees. NULL: `device` counts */
	const struct zerod_unique_id *unique_id; /* the same on all ranks; only if the group spans daemons */
	enum zerod_collectives collectives;
	uint32_t flags;       /* enum zerod_group_flags */
	uint32_t deadline_ms; /* for the other ranks to join */
	uint32_t reserved;
};

/* Makes the id of this group over daemons. One rank calls it; all join with it, once, as this user, within
 * id_ttl, while this daemon runs. Errors: UNSUPPORTED (host), NOT_FOUND (no NCCL), LIMIT, DEVICE. */
ZEROD_MUST_USE int zerod_group_unique_id(zerod_client *client, const struct zerod_group_options *group,
                                         const struct zerod_wait_options *wait, struct zerod_unique_id *id);
/* The same for any group of the user; local_world_size 1..ZEROD_MAX_LOCAL_RANKS. */
ZEROD_MUST_USE int zerod_unique_id(zerod_client *client, uint32_t local_world_size,
                                   const struct zerod_wait_options *options, struct zerod_unique_id *id);

/* Joins as one rank; returns when every rank has joined. When a rank dies, each other rank's next call about
 * the group returns PEER_LOST with its name, once. Calls that need a rank that ended normally return it, too.
 * A process can join in its place (docs/failures.md). The group spans daemons if local_world_size is not
 * world_size. Then, and with ZEROD_COLLECTIVES_NCCL, *gathers are collectives*: all ranks make them in the
 * same order, and a failure ends the group (docs/several-nodes.md). With ZEROD_GROUP_HYBRID each daemon's
 * ranks have all shards: gathers are one-sided within the daemon, gradients are summed over all ranks.
 * Errors: INVALID (options that contradict each other), NOT_FOUND (the device, or this process does not see
 * it; the text lists the visible ones), EXISTS (the rank; names the pid), MISMATCH (ranks differ in options;
 * names both), DEADLINE (names the missing ranks), LIMIT, PERMISSION (device not granted; no durable jobs;
 * unique_id), ABORTED, PEER_LOST (other daemons' ranks), UNSUPPORTED (MIG, old driver), DEVICE. */
ZEROD_MUST_USE int zerod_group_join(zerod_client *client, const struct zerod_group_options *options,
                                    zerod_group **group);

struct zerod_group_info {
	size_t struct_size;
	uint64_t committed_step; /* the last one; 0: none */
	int torn;                /* 1: an update after it was never committed; restore all units and commit */
	uint32_t reserved;
};
/* The state at this rank's join, updated by its own commits since. With reconnect_ms, after the daemon's end:
 * connects again, joins a durable group of one daemon again as of its last commit, and registers its units
 * (docs/restarts.md). No other thread or stream may use the daemon's memory. Errors: CONNECT (no daemon in
 * reconnect_ms), RESTARTED (again; of other groups, for ever), those of connect, join and register. */
ZEROD_MUST_USE int zerod_group_get(zerod_group *group, struct zerod_group_info *info);

/* Waits until every rank has called it as often as this rank has, so that a rank may then leave without
 * PEER_LOST for ranks that train. Orders calls, not streams. A rank may have several barriers open, with
 * tickets; a call that fails does not count. In a group that spans daemons or has NCCL's collectives: one at
 * a time, and none while a backward's end, a step's begin or a commit is open. Errors: STATE (one is open),
 * DEADLINE (names the first rank that is missing). */
ZEROD_MUST_USE int zerod_group_barrier(zerod_group *group, const struct zerod_wait_options *options,
                                       zerod_ticket *ticket);

#define ZEROD_MAX_AGREED 1024u
enum zerod_agree_op { ZEROD_AGREE_SUM = 0, ZEROD_AGREE_MAX = 1, ZEROD_AGREE_MIN = 2 };
/* Replaces each of `count` values (1..ZEROD_MAX_AGREED) by the sum, maximum or minimum of all ranks' values
 * at its index, when every rank has called it. Sums are in rank order. A NaN makes a maximum or minimum NaN.
 * Errors: MISMATCH on all ranks (`op` or `count` differ), or on this one (another rank has begun the next
 * backward instead), STATE (another thread waits in it), UNSUPPORTED (a group over daemons), DEADLINE. */
ZEROD_MUST_USE int zerod_group_agree(zerod_group *group, enum zerod_agree_op op, double *values,
                                     uint32_t count, const struct zerod_wait_options *options);

/* Leaves the group, and frees this rank's memory in it; its shards with the last rank that can gather them.
 * The handle, its units and buckets become invalid, except after DEADLINE and INVALID. NULL is allowed. */
int zerod_group_leave(zerod_group *group, const struct zerod_wait_options *options);

/* ---- Units ---------------------------------------------------------------------------------------------
 * A unit is a flat buffer of one dtype, sharded evenly over a group's ranks and gathered as a whole. */

#define ZEROD_MAX_DIMS 8
#define ZEROD_NO_SLOT  0
/* A tensor inside a unit: `offset_numel` elements from the unit's start, of this shape. A zero in the shape
 * makes an empty view; ndim 0 is a scalar. Views may overlap. */
struct zerod_view {
	size_t struct_size;
	const char *name; /* unique in the unit; 1..127 bytes of UTF-8 */
	uint64_t offset_numel;
	uint32_t ndim;
	uint32_t reserved;
	uint64_t shape[ZEROD_MAX_DIMS];
};

enum zerod_unit_flags {
	ZEROD_UNIT_PERSISTENT = 1u << 0, /* the gathered buffer survives its last release */
	ZEROD_UNIT_FROZEN = 1u << 1,     /* has no gradient, and no part in targets */
	ZEROD_UNIT_ALL_REDUCE = 1u << 2, /* every rank's target has the whole reduced gradient */
	ZEROD_UNIT_ON_HOST = 1u << 3,    /* shards and targets are in host memory: docs/offload.md */
	ZEROD_UNIT_COPIED = 1u << 4,     /* gathers make whole copies, never in place: docs/gathers.md */
	ZEROD_UNIT_UNSAVED = 1u << 5,    /* updates do not save it for readers' pins: docs/readers.md */
};
struct zerod_unit_options {
	size_t struct_size;
	const char *name; /* unique in the group; 1..127 bytes of UTF-8 */
	uint64_t numel;   /* elements of the whole unit, at least 1 */
	enum zerod_dtype dtype;
	uint32_t nviews; /* at most 256; 0: one view of shape {numel} with the unit's name */
	const struct zerod_view *views;
	uint32_t slot;  /* ZEROD_NO_SLOT, or 1..4096: gathered at the slot's fixed address */
	uint32_t flags; /* enum zerod_unit_flags */
	uint32_t deadline_ms;
	uint32_t reserved;
};

/* Registers this rank's part of a unit and allocates its zeroed shard. All ranks register the same units, in
 * any order. A shard has shard_numel elements: numel / world_size rounded up, then up to a multiple of 256
 * bytes (hybrid: local_world_size, here and below). Registering twice identically returns a second handle; a
 * unit that all ranks have unregistered may be registered anew.
 * Errors: MISMATCH (names both ranks and both descriptions), NO_MEMORY, QUOTA, LIMIT. */
ZEROD_MUST_USE int zerod_unit_register(zerod_group *group, const struct zerod_unit_options *options,
                                       zerod_unit **unit);
/* Unregisters this rank's part with the last of its handles. Errors: BUSY (it is leased, updated or reduced,
 * or the bound target has a place for it). After an error the handle stays valid. */
ZEROD_MUST_USE int zerod_unit_unregister(zerod_unit *unit, const struct zerod_wait_options *options);

struct zerod_shard {
	size_t struct_size;
	void *data;            /* shard_numel elements, mapped in this process */
	uint64_t shard_numel;  /* equal for all ranks, padding included */
	uint64_t true_numel;   /* of which are the unit's, may be 0; the rest is zero and stays so */
	uint64_t offset_numel; /* of the shard's first element in the unit */
	uint64_t version;      /* last published, 0: never; a group set back: after registering again */
	uint64_t padded_numel; /* world_size * shard_numel */
	enum zerod_dtype dtype;
	uint32_t flags; /* ZEROD_UNIT_ON_HOST: data is in host memory */
};
ZEROD_MUST_USE int zerod_shard_get(zerod_unit *unit, struct zerod_shard *shard);
/* Moves the unit's shards to host memory (`flags` ZEROD_UNIT_ON_HOST), or to the ranks' devices (0). Every
 * rank calls it with the same flags, behind its publishes, and all get the same answer. Content, version,
 * gathered copies and their leases stay. Addresses from before, of zerod_shard_get() too, must not be used
 * behind the call, nor by any stream. During the call both places are charged, and gathers of the unit by
 * other threads wait. If the unit is there already, nothing moves. See docs/offload.md, "Moving a unit".
 * Errors, and all shards are where they were: MISMATCH (names both ranks), BUSY (a rank holds a gathered
 * buffer that is the shard; names the tags), STATE (a rank is updating, publishing or loading the unit, or is
 * between a backward and the end of its step), NO_MEMORY, QUOTA, LIMIT, UNSUPPORTED (no host memory; the
 * group spans daemons, or has NCCL's collectives), DEVICE, DEADLINE (names the missing rank). */
ZEROD_MUST_USE int zerod_unit_place(zerod_unit *unit, uint32_t flags,
                                    const struct zerod_wait_options *options);
/* Makes the gathered buffer survive its last release, or not. Where gathers are collectives, on all ranks at
 * the same place of their programs. */
ZEROD_MUST_USE int zerod_unit_set_persistent(zerod_unit *unit, int persistent);
/* Changes the slot into which this rank gathers the unit (docs/gathers.md, "Slots"). A persistent or
 * prefetched buffer is freed. Errors: BUSY (the rank holds or gathers it; names the tags), LIMIT. */
ZEROD_MUST_USE int zerod_unit_set_slot(zerod_unit *unit, uint32_t slot);

/* Freezes the unit on this rank, so that it has no gradient, or unfreezes it; between a step's end and the
 * next zerod_backward_begin(). A rank that has changed other units than the first one to begin gets MISMATCH
 * there. Errors: STATE (a window is open), LIMIT. */
ZEROD_MUST_USE int zerod_unit_set_frozen(zerod_unit *unit, int frozen);

/* ---- Updates: docs/updates.md -------------------------------------------------------------------------- */
/* Begins an update of this rank's shards of `count` units (1..1024, each once). When it returns no gather
 * reads the shards, and they may be written; gathers that are requested later wait for the new version. With
 * a `ticket`, zerod_wait() waits until no gather of another rank reads them; a publish before it returns
 * STATE. Where the shard is a part of the gathered buffer (docs/gathers.md, "Buffers in place"), the update
 * follows the streams of past releases: the call waits for them, or zerod_wait() makes its stream wait.
 * Errors, and no shard may be written: STATE (an update is open), BUSY (a unit in place that this rank holds;
 * names the tags), DEADLINE (the call may be repeated). */
ZEROD_MUST_USE int zerod_update_begin(zerod_unit *const *units, uint32_t count,
                                      const struct zerod_wait_options *options, zerod_ticket *ticket);

/* FORCE: even with leases outstanding on this rank's gathered copies. */
enum zerod_publish_flags { ZEROD_PUBLISH_FORCE = 1u << 0 };
struct zerod_publish_options {
	size_t struct_size;
	uint32_t flags; /* enum zerod_publish_flags */
	uint32_t deadline_ms;
};

/* Ends the update: the shards have their new content when the work now in `streams` has run. Their version
 * rises by one, and this rank's gathered buffers become stale. Every rank publishes every version of every
 * unit, empty and unchanged shards too. With a `ticket` gathers of the new version may be requested at once;
 * it need not be waited for. Errors, and the update stays open: STATE (none is), BUSY (names the tags). */
ZEROD_MUST_USE int zerod_publish(zerod_unit *const *units, uint32_t count, zerod_stream *const *streams,
                                 uint32_t nstreams, const struct zerod_publish_options *options,
                                 zerod_ticket *ticket);

struct zerod_source {
	size_t struct_size;
	zerod_unit *unit;
	const void *data; /* the shard's true_numel elements of the source dtype; NULL where that is 0 */
};

/* Fills the shards of `count` units under update from sources of another dtype, such as float32 masters, and
 * publishes them as zerod_publish() does. `stream` reads the data (NULL: the calling thread); they must not
 * change before. float32, float16 and bfloat16 are converted to every floating dtype, rounded to nearest
 * even; equal dtypes are copied. On GPUs the data are in memory that the shard's GPU reaches.
 * Errors, and no shard is written: INVALID (data NULL, misaligned, or overlapping the shard; a GPU would have
 * to convert memory of the CPU that is not registered with the driver; a stream of another GPU), UNSUPPORTED
 * (names both dtypes, or why no kernel runs), STATE (no update is open; the stream takes no work). DEVICE,
 * DEADLINE and those of zerod_publish(): shards may have been written. */
ZEROD_MUST_USE int zerod_publish_from(const struct zerod_source *sources, uint32_t count,
                                      enum zerod_dtype source_dtype, zerod_stream *stream,
                                      const struct zerod_publish_options *options, zerod_ticket *ticket);

/* Copies a unit from one rank's memory into the shards of all ranks, byte by byte. Every rank calls it with
 * the unit under update; exactly one passes `data`, the unit's numel elements, and is charged as much memory
 * again meanwhile. `stream` reads them (NULL: the calling thread); they must not change before. This rank's
 * shard is complete when the call, or zerod_wait() on the `ticket`, returns, and visible when published.
 * Errors, and no shard is written: INVALID (misaligned data, a stream of another GPU), STATE (no update is
 * open, or the rank loads the unit already), MISMATCH on all ranks (two ranks pass data, or none), NO_MEMORY,
 * QUOTA, UNSUPPORTED (the group spans daemons, or has NCCL's collectives), DEADLINE (names the missing rank).
 * DEVICE, on all ranks: shards may have been written. The update stays open. */
ZEROD_MUST_USE int zerod_unit_load(zerod_unit *unit, const void *data, zerod_stream *stream,
                                   const struct zerod_wait_options *options, zerod_ticket *ticket);

/* Marks the published versions as step `step`, atomically over all ranks, units and durable allocations, when
 * every rank has called it (docs/durable.md). Errors: MISMATCH (another rank commits another step), STATE (an
 * update is open, versions differ, or the step is committed), SYSTEM (the daemon could not keep the step). */
ZEROD_MUST_USE int zerod_commit(zerod_group *group, uint64_t step, const struct zerod_wait_options *options);

/* ---- Gather and release: docs/gathers.md --------------------------------------------------------------- */
enum zerod_gather_flags {
	ZEROD_GATHER_PREFETCH = 1u << 0, /* no lease; evicted for gathers that need its memory, except where
	                                    gathers are collectives */
	ZEROD_GATHER_NO_SLOT = 1u << 1,  /* a new buffer for it is not placed in the slot */
};
struct zerod_gather_options {
	size_t struct_size;
	const char *tag;   /* the holder's name, 1..31 bytes that do not begin with '@'; NULL: "default" */
	zerod_scope scope; /* the holder instead of a tag: no tag, one use, no prefetch */
	uint64_t version;  /* exact version; 0: the newest, at least what this rank last published */
	uint32_t uses;     /* releases that end the lease; 0: 1 */
	uint32_t flags;    /* enum zerod_gather_flags */
	uint32_t deadline_ms;
	uint32_t reserved;
};

/* Requests this rank's gathered buffer of the unit: world_size * shard_numel elements, of which the first
 * numel are the unit's. `options` may be NULL. A gather joins a buffer that exists or is being filled: one
 * transfer, any number of leases. It adds `uses` to the lease of (session, tag). Other ranks take no part,
 * except where gathers are collectives. The buffer is for reading: the rank's shard may be a part of it.
 * The daemon places the buffer when every rank has registered the unit and called zerod_publish() for the
 * version, and when memory for it has been released. It waits for these calls, and not for their streams: the
 * copies run behind them. Strict clients, groups that span daemons, and memory that another process had or
 * that has another size wait for the streams of the release as well. Errors at the wait: STALE_VERSION,
 * SLOT_CONFLICT, NO_MEMORY (can never fit), QUOTA, MISMATCH (docs/gathers.md), TORN, NOT_FOUND (no scope). */
ZEROD_MUST_USE int zerod_gather_begin(zerod_unit *unit, const struct zerod_gather_options *options,
                                      zerod_ticket *ticket);

/* Completes a ticket, within the deadline of the call that made it. Of a gather: makes `stream` (NULL: the
 * calling thread) wait for the bytes, and stores the buffer's address in *data (may be NULL), valid until the
 * lease is released. Work appended to the stream afterwards sees the bytes. Waiting again is harmless. Of
 * other calls: the first wait consumes the ticket, `data` is NULL, and so is `stream` except for
 * zerod_update_begin() and zerod_step_begin(). Errors: those of the call, INVALID (a stream of another GPU),
 * STALE (released, or consumed), ABORTED (an abort has freed the wait; the lease is still held). */
ZEROD_MUST_USE int zerod_wait(zerod_client *client, zerod_ticket ticket, zerod_stream *stream, void **data);
#define ZEROD_MAX_TICKETS 1024
/* zerod_wait() for `count` tickets (at most ZEROD_MAX_TICKETS), at little more than the cost of one. `data`
 * has room for as many addresses, or is NULL. If a ticket fails, the text names the first ("tickets[3]:
 * ..."), the stream waits for nothing, and no address is stored; that ticket is consumed unless it is a
 * gather's, the others are not. After STALE or INVALID none is. */
ZEROD_MUST_USE int zerod_wait_many(zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                                   zerod_stream *stream, void **data);
/* zerod_gather_begin() and zerod_wait() in one. */
ZEROD_MUST_USE int zerod_gather(zerod_unit *unit, const struct zerod_gather_options *options,
                                zerod_stream *stream, void **data);

/* A detached call does not wait for its answer. If the daemon rejects it, the client's next call returns that
 * failure, with the unit's name, and is not carried out. Calls that end or free something, calls on streams,
 * and zerod_uncork() are carried out: the next call of another kind returns the failure. */
enum zerod_release_flags { ZEROD_RELEASE_DETACHED = 1u << 0 };
struct zerod_release_options {
	size_t struct_size;
	const char *tag; /* of the gather; NULL: "default" */
	uint32_t flags;  /* enum zerod_release_flags */
	uint32_t deadline_ms;
};

/* Releases one use of the lease of (session, tag), also before its gather is answered. The buffer is
 * uncharged at once, and its memory not reused before the work now in `streams` has run. Errors: NOT_HELD. */
ZEROD_MUST_USE int zerod_release(zerod_unit *unit, zerod_stream *const *streams, uint32_t nstreams,
                                 const struct zerod_release_options *options, zerod_ticket *ticket);

/* Releases one use of each of `count` units (at most ZEROD_MAX_TICKETS; a unit as often as it is held) under
 * one tag, with one fence per stream for all. tickets[i] is of units[i]; NULL: waits for all answers. Errors:
 * NOT_HELD (names the first unit that was not held; all others are released). */
ZEROD_MUST_USE int zerod_release_many(zerod_unit *const *units, uint32_t count, zerod_stream *const *streams,
                                      uint32_t nstreams, const struct zerod_release_options *options,
                                      zerod_ticket *tickets);

/* ---- Gathering outside the plan ------------------------------------------------------------------------
 * Code that cannot know the last use of a unit gathers in a scope, which holds each unit once until it ends
 * (docs/gathers.md, "Scopes"). Releases do not affect the leases of a scope. At most 1024 scopes a rank. */

/* Begins a forward pass, nested in the open scope `parent` or, with {0}, outermost. Scopes that are still
 * open from an earlier outermost forward end here, with `streams`, unless the rank has a claim. Errors:
 * INVALID and STATE (parent: a context, of another group, not open), NOT_FOUND. */
ZEROD_MUST_USE int zerod_forward_begin(zerod_group *group, zerod_scope parent, zerod_stream *const *streams,
                                       uint32_t nstreams, zerod_scope *scope);

/* Ends the forward pass. With `grad` the scope becomes a claim, which keeps all buffers and accepts gathers
 * until zerod_claim_end(); else it ends. Errors: STATE (the forward has ended, or a nested scope is open),
 * INVALID (a context), NOT_FOUND. */
ZEROD_MUST_USE int zerod_forward_end(zerod_client *client, zerod_scope scope, int grad,
                                     zerod_stream *const *streams, uint32_t nstreams,
                                     const struct zerod_wait_options *options);
/* Ends the claim. Errors: STATE (the forward has not ended), INVALID (a context), NOT_FOUND. */
ZEROD_MUST_USE int zerod_claim_end(zerod_client *client, zerod_scope claim, zerod_stream *const *streams,
                                   uint32_t nstreams, const struct zerod_wait_options *options);
/* Ends an open scope with all open ones nested in it, or a claim, whose forward has failed or whose backward
 * will not run. Waiting gathers in it fail with NOT_FOUND. Errors: INVALID (a context), NOT_FOUND. */
ZEROD_MUST_USE int zerod_scope_abandon(zerod_client *client, zerod_scope scope, zerod_stream *const *streams,
                                       uint32_t nstreams);

/* Gathers `count` units (1..1024, of one group) as a whole and holds them until zerod_context_end(); after an
 * error it holds none. Gathers that name the context return the addresses. Errors: EXISTS (a unit is in
 * another context of the rank; names both), INVALID (a unit given twice, or of another group), NO_MEMORY
 * (more than the gather budget), and those of zerod_gather(). */
ZEROD_MUST_USE int zerod_context_begin(zerod_unit *const *units, uint32_t count,
                                       const struct zerod_wait_options *options, zerod_scope *context);
/* Errors: INVALID (a forward scope), NOT_FOUND. */
ZEROD_MUST_USE int zerod_context_end(zerod_client *client, zerod_scope context, zerod_stream *const *streams,
                                     uint32_t nstreams, const struct zerod_wait_options *options);

/* ---- Gradients: docs/gradients.md ---------------------------------------------------------------------- */
enum zerod_backward_flags { ZEROD_BACKWARD_DETACHED = 1u << 0 }; /* see enum zerod_release_flags */
struct zerod_backward_options {
	size_t struct_size;
	uint32_t stage;                /* ZeRO stage 1, 2 or 3; 0: 3 */
	int boundary;                  /* stage 1: the last micro-step before the optimizer's step */
	enum zerod_dtype target_dtype; /* of the reduced gradients: float32 (0), float16 or bfloat16 */
	uint32_t deadline_ms;
	uint32_t flags; /* enum zerod_backward_flags */
	uint32_t reserved;
};

/* Begins a backward pass of this rank. The backwards between two steps are a window, in which all ranks run
 * as many backwards, with the same options. Stages 2 and 3: every backward reduces, the first one binds the
 * step-local target, and zerod_step_begin() closes the window. Stage 1: only the boundary binds and reduces.
 * Waits while two steps that this rank has ended are not over, and for memory; DETACHED not for memory, and
 * calls of the backward may follow in the same packet. When the group has failed: docs/gradients.md.
 * Errors: STATE (a backward or a step is open; stage 1: the step is next), MISMATCH (ranks differ in options;
 * another rank has begun the step after fewer backwards), NO_MEMORY, QUOTA, and those of a failed window. */
ZEROD_MUST_USE int zerod_backward_begin(zerod_group *group, const struct zerod_backward_options *options);

struct zerod_bucket_options {
	size_t struct_size;
	enum zerod_dtype dtype; /* of the gradients: any floating one */
	uint32_t nslots;        /* 0: 2; at most 16 */
	uint64_t slot_bytes;    /* 0: 32 MiB; rounded up to a multiple of 256 */
};

/* Creates a bucket for this rank, which has memory from a backward's first reservation to the backward's end.
 * Errors: UNSUPPORTED (dtype), LIMIT (64 buckets). */
ZEROD_MUST_USE int zerod_bucket_create(zerod_group *group, const struct zerod_bucket_options *options,
                                       zerod_bucket **bucket);
/* Errors: BUSY (entries are not reduced yet; those of a failed group are freed). */
ZEROD_MUST_USE int zerod_bucket_destroy(zerod_bucket *bucket);

enum zerod_reserve_flags {
	ZEROD_RESERVE_ZERO_HOLES = 1u << 0, /* elements that no view of the unit covers are zeroed */
	ZEROD_RESERVE_ACCUMULATE = 1u << 1, /* the unit may get more gradients from this rank */
};
struct zerod_reserve_options {
	size_t struct_size;
	zerod_stream *stream; /* waits, instead of the caller, until the entry may be written; or NULL */
	uint32_t flags;       /* enum zerod_reserve_flags */
	uint32_t deadline_ms;
};

struct zerod_entry {
	size_t struct_size;
	uint64_t id;
	void *data;            /* padded_numel elements of the bucket's dtype; the padding is zero */
	uint64_t padded_numel; /* of which the caller writes the unit's numel, all of them */
	int accumulates;       /* 1: it holds earlier gradients of the unit; add to them */
	uint32_t reserved;
};

/* Reserves an entry for the unit's gradient, in the bucket's open slot or, if it is larger, in memory of its
 * own. With a stream, work appended to it afterwards runs when the entry may be written, and the call waits
 * only while a rank has neither submitted nor skipped the unit of a former entry, for staging memory of a
 * former entry, and in groups that span daemons. ACCUMULATE is given with every reservation of a unit that
 * may get several gradients in one backward (docs/gradients.md, "Accumulation"). After an error the call may
 * be repeated, and returns the entry that was reserved.
 * Errors: STATE (no backward is open; stage 1 off a boundary; an accumulated gradient is not submitted),
 * DUPLICATE (the unit is reserved or submitted), CAPACITY (names ranks and units), NO_MEMORY, DEVICE. */
ZEROD_MUST_USE int zerod_bucket_reserve(zerod_bucket *bucket, zerod_unit *unit,
                                        const struct zerod_reserve_options *options,
                                        struct zerod_entry *entry);

enum zerod_reduce_op { ZEROD_SUM = 0, ZEROD_MEAN = 1 };
enum zerod_reduce_flags {
	ZEROD_REDUCE_OVERWRITE = 1u << 0, /* replace the target's content; default: add to it */
	ZEROD_REDUCE_DETACHED = 1u << 1,  /* see enum zerod_release_flags */
};
struct zerod_reduce_options {
	size_t struct_size;
	enum zerod_reduce_op op;
	float prescale; /* every input is multiplied by it in float32 before the sum; 0: 1.0 */
	uint32_t flags; /* enum zerod_reduce_flags */
	uint32_t deadline_ms;
	uint32_t nabsent; /* views of the unit that have no gradient: this rank contributes zeros */
	uint32_t reserved;
	const uint32_t *absent; /* their indices; such a view need not be written */
};

/* Submits the entry: the gradient is complete when the work now in `streams`, all that wrote it, has run.
 * When all ranks have submitted or skipped the unit, each slice is summed in float32, in rank order, into
 * its owner's target. Ranks pass equal op, prescale and OVERWRITE. zerod_backward_end() submits what
 * accumulates.
 * Errors: INVALID (an absent view out of range or given twice; any while accumulating), NOT_FOUND, STATE
 * (submitted already), MISMATCH, PEER_LOST and ABORTED (the group has failed; the entry is freed). */
ZEROD_MUST_USE int zerod_bucket_submit(zerod_bucket *bucket, uint64_t entry_id, zerod_stream *const *streams,
                                       uint32_t nstreams, const struct zerod_reduce_options *options,
                                       zerod_ticket *ticket);

/* Reserves, copies the unit's numel elements of the bucket's dtype from `data` on `stream`, and submits.
 * `data` must not change before the copy has run; on GPUs the stream's GPU must be able to access it.
 * Errors: INVALID (data NULL or misaligned; stream NULL, of another kind or GPU), reserve's and submit's. */
ZEROD_MUST_USE int zerod_reduce(zerod_bucket *bucket, zerod_unit *unit, const void *data,
                                zerod_stream *stream, const struct zerod_reduce_options *options,
                                zerod_ticket *ticket);

enum zerod_skip_flags { ZEROD_SKIP_DETACHED = 1u << 0 }; /* see enum zerod_release_flags */
struct zerod_skip_options {
	size_t struct_size;
	uint32_t flags; /* enum zerod_skip_flags */
	uint32_t deadline_ms;
};

/* This rank contributes zeros for the unit. Errors: STATE (no backward, stage 1 off a boundary), DUPLICATE */
ZEROD_MUST_USE int zerod_reduce_skip(zerod_unit *unit, const struct zerod_skip_options *options,
                                     zerod_ticket *ticket);

/* SKIP_REST: units that only other ranks reduce, before or after this call, are skipped. */
enum zerod_backward_end_flags { ZEROD_BACKWARD_SKIP_REST = 1u << 0 };
struct zerod_backward_end_options {
	size_t struct_size;
	uint32_t flags; /* enum zerod_backward_end_flags */
	uint32_t deadline_ms;
};

/* Ends the backward when this rank's slices are summed and its gradients have been read (units with
 * ALL_REDUCE, and groups that span daemons: when the reduction is complete; SKIP_REST: and every other rank
 * has ended it), and frees the buckets' memory. zerod_step_begin() reports failures of other owners' sums.
 * After DEADLINE the backward is open. Errors: STATE (no backward is open, or an entry is reserved and not
 * submitted), MISMATCH (a rank has neither submitted nor skipped a unit that others reduced), UNSUPPORTED
 * (SKIP_REST, and the group spans daemons). */
ZEROD_MUST_USE int zerod_backward_end(zerod_group *group, const struct zerod_backward_end_options *options,
                                      zerod_ticket *ticket);

/* Abandons the window for all ranks, in a backward or between two. This rank's entries are freed, those that
 * are not submitted behind the work now in `streams`. The rank then begins a new window, or calls
 * zerod_step_begin() first. Other ranks continue, nothing is reduced, and their zerod_step_begin() sets
 * `abandoned`. A group that spans daemons ends, and all calls return ABORTED. Errors: STATE (no backward has
 * begun since the last step, or zerod_backward_begin() waits), DEADLINE (it is abandoned all the same). */
ZEROD_MUST_USE int zerod_backward_abandon(zerod_group *group, zerod_stream *const *streams, uint32_t nstreams,
                                          const struct zerod_wait_options *options);

struct zerod_step_info {
	size_t struct_size;
	uint64_t step;       /* counts from 1 */
	double norm_squared; /* of the reduced gradients, over all ranks */
	int overflow;        /* 1: some rank has seen an inf or nan */
	int abandoned;       /* 1: abandoned_rank has abandoned the window; there are no targets */
	uint32_t abandoned_rank;
	uint32_t reserved;
};

enum zerod_step_flags { ZEROD_STEP_SCALARS = 1u << 0 }; /* for zerod_step_scalars_get() */
struct zerod_step_options {
	size_t struct_size;
	uint32_t flags; /* enum zerod_step_flags */
	uint32_t deadline_ms;
};

/* Begins the optimizer's step when every rank has called it, and stores the ranks' common result. The target
 * may be read until zerod_step_end(); it is zero where nothing was reduced. With a `ticket`, `info` is NULL,
 * and zerod_backward_end()'s ticket need not be waited for. zerod_wait() returns when every rank has called
 * it, and its stream, or the caller, waits until the target may be read; zerod_step_get() has the info, and
 * failures from then on (docs/gradients.md, "Steps with a ticket"). Errors: STATE (no backward, in stage 1 no
 * boundary, has ended since the last step), MISMATCH (the backwards' number), DEVICE, a failed window's. */
ZEROD_MUST_USE int zerod_step_begin(zerod_group *group, const struct zerod_step_options *options,
                                    struct zerod_step_info *info, zerod_ticket *ticket);

/* The result of the last step that this rank has begun. May be called repeatedly until the next
 * zerod_step_begin(). Errors: STATE (no step was begun), and the step's: DEVICE, ABORTED (another rank
 * abandoned it), those of a failed window. */
ZEROD_MUST_USE int zerod_step_get(zerod_group *group, const struct zerod_wait_options *options,
                                  struct zerod_step_info *info);
/* The squared norm of each of `count` units' gradients (1..1024) in that step, over all ranks; 0: no rank has
 * reduced the unit. Errors: zerod_step_get()'s, UNSUPPORTED (the group spans daemons and is not hybrid). */
ZEROD_MUST_USE int zerod_step_norms_get(zerod_group *group, zerod_unit *const *units, uint32_t count,
                                        const struct zerod_wait_options *options, double *norms_squared);

/* A step's result in memory of the rank's device: a fused optimizer uses `overflow` as its found_inf. */
struct zerod_step_scalars {
	size_t struct_size;
	const float *overflow; /* 1 after an overflow, or when the step has failed after its answer; else 0 */
	const float *norm_squared; /* rounded to float32; infinity when the step has failed */
};
/* Readable as long as the target is. Errors: STATE (no step with ZEROD_STEP_SCALARS, or it has no target). */
ZEROD_MUST_USE int zerod_step_scalars_get(zerod_group *group, struct zerod_step_scalars *scalars);

struct zerod_target {
	size_t struct_size;
	void *data;           /* this rank's reduced slice, padding zero; in host memory if ON_HOST */
	uint64_t shard_numel; /* its elements: the unit's shard_numel, with ALL_REDUCE padded_numel */
	uint64_t true_numel;  /* of which are the unit's; with ALL_REDUCE numel */
	enum zerod_dtype dtype;
	uint32_t reserved;
};
/* Lends this rank the unit's place in the target before the step, when all ranks have submitted or skipped
 * the unit: work appended to `stream` (NULL: the caller) afterwards sees the sum, and may read and write it.
 * The loan ends with this rank's next submit or skip of the unit, or the step; the next sum is stored behind
 * the work that these streams have then (docs/gradients.md). While a ticket of the step's begin is open, all
 * ranks must have begun it. Errors: NOT_FOUND (all ranks have skipped the unit), STATE (this rank has neither
 * submitted nor skipped it; abandoned), INVALID (frozen unit; another GPU's stream), a failed window's. */
ZEROD_MUST_USE int zerod_reduce_wait(zerod_unit *unit, const struct zerod_wait_options *options,
                                     zerod_stream *stream, struct zerod_target *target);
/* Errors: STATE (not between a step's begin and end, and not lent; or abandoned), INVALID (frozen unit). */
ZEROD_MUST_USE int zerod_target_get(zerod_unit *unit, struct zerod_target *target);

/* Frees this rank's target behind the work now in `streams`, also after an overflow, and after the group has
 * failed. Does not wait for the sums of a step that was begun with a ticket. Errors: STATE (no step was
 * begun), PEER_LOST and ABORTED (nor was one when the group failed). */
ZEROD_MUST_USE int zerod_step_end(zerod_group *group, zerod_stream *const *streams, uint32_t nstreams,
                                  const struct zerod_wait_options *options);

/* ---- Plain allocations --------------------------------------------------------------------------------- */
enum zerod_alloc_flags { ZEROD_ALLOC_DURABLE = 1u << 0 }; /* the durable job's: docs/durable.md */
struct zerod_alloc_options {
	size_t struct_size;
	const char *job;    /* as in zerod_group_options */
	const char *name;   /* shown by zeroctl; NULL: ""; with DURABLE the name in the job */
	uint64_t bytes;     /* at least 1; rounded up to a multiple of 256 */
	uint64_t alignment; /* power of two up to 2 MiB; 0: 256 */
	uint32_t device;
	uint32_t flags; /* enum zerod_alloc_flags */
	uint32_t deadline_ms;
	uint32_t reserved;
};

/* Allocates zeroed memory, until the session ends. With DURABLE until zerod_free() or `zeroctl end-job`: a
 * later session that requests the same job, name and device gets it with its content (docs/durable.md).
 * Errors: NOT_FOUND (device), PERMISSION (it is not granted to the session), NO_MEMORY, QUOTA; DURABLE:
 * INVALID (no name), STATE (no such durable job), EXISTS (a session uses it; names the pid), MISMATCH
 * (another size or alignment; names both). */
ZEROD_MUST_USE int zerod_alloc(zerod_client *client, const struct zerod_alloc_options *options,
                               zerod_allocation **allocation, void **data);
/* Frees behind the work now in `streams`. The handle becomes invalid unless an error is returned. */
ZEROD_MUST_USE int zerod_free(zerod_allocation *allocation, zerod_stream *const *streams, uint32_t nstreams);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
