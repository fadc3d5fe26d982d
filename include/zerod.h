/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zerod.h - the public C interface of libzerod. zerod_{cuda,host,optimizer,read}.h add to it.
 *
 * zerod is a daemon that runs on each node and owns the memory of sharded training. A training process
 * connects and joins a group as one rank on one device. The rank registers its units, gathers each unit
 * before use, releases it after use, reduces the unit's gradient, and updates its own shard.
 *
 * This header describes each call: its effect, how long it waits, and its results. The pages of docs/, which
 * `make install` copies to share/doc/zerod, describe how the parts work together: gathers.md, updates.md,
 * gradients.md, durable.md, failures.md, strict.md, streams.md and several-nodes.md.
 *
 * Conventions
 *   - A function that can fail returns ZEROD_OK (0) or a negative ZEROD_E_* status. zerod_last_error()
 *     returns the text. Out-parameters come last and are unchanged on failure.
 *   - Declarations list only their own errors. Any call can return INVALID (a wrong handle, option or flag),
 *     FORKED, DISCONNECTED (or RESTARTED), PROTOCOL and SYSTEM. Calls that send a request can return LIMIT,
 *     DEADLINE and INTERRUPTED. Calls about a failed group can return PEER_LOST and ABORTED. After an abort,
 *     calls that begin or publish an update, load, commit, or begin a backward or step return POISONED.
 *   - `numel` counts elements, `bytes` counts bytes. Shapes are in elements, row-major.
 *   - Every structure starts with `struct_size`. ZEROD_INIT sets it and zeroes the rest. Zero is every
 *     option's default. NULL options are all defaults. `reserved` must be zero. In an array, the first
 *     element's struct_size is the stride. If a structure is longer than the library's, the options beyond
 *     must be zero, and the results beyond are set to zero. If it is shorter, the missing options are zero.
 *   - All functions are thread-safe. No thread may use a handle while or after another thread frees it.
 *   - `streams` names at most 64 streams that can still use the memory that the call releases or passes on.
 *     It is not reused or read before the work now in these streams has run. No streams: all use has ended.
 *   - With a `ticket` that is not NULL, a call returns at once. zerod_wait() on it returns the result.
 *   - A client can have 1024 requests without an answer, and 1024 more releases. Beyond that, calls that
 *     return at once fail with LIMIT, and blocking calls wait.
 *   - A process need not call the library regularly. The library stores answers until the process waits for
 *     them, and a thread of the library serves the daemon's requests.
 *   - Addresses of the daemon's memory are device addresses. The CPU cannot use a GPU's addresses.
 *   - The library never prints, exits or raises a signal.
 *
 * Calls that block
 *   A call that needs an answer waits for one round trip, at most until the client's deadline. In this header
 *   only the following calls can wait longer. All but the last three wait at most until the deadline in their
 *   options (0: the client's default; ZEROD_NO_DEADLINE: no deadline). The text of DEADLINE says why the call
 *   waited. [t]: the call does not wait with a ticket or if it is detached.
 *   - All ranks must make the call: zerod_group_join, zerod_group_get (if it joins again), zerod_group_agree,
 *     zerod_group_barrier [t], zerod_unit_load [t], zerod_unit_place, zerod_commit, zerod_step_begin [t].
 *   - The call needs memory: zerod_unit_register and zerod_alloc (also for zeroing, and for the end of an
 *     earlier unit of the name), zerod_unit_load in the rank with the data, zerod_wait and zerod_gather (see
 *     zerod_gather_begin(); without a stream also for the bytes), zerod_context_begin, zerod_backward_begin,
 *     zerod_bucket_reserve (for room; with a stream, see there) and zerod_reduce.
 *   - The objects of the call are in use: zerod_update_begin [t] (by gathers that read the shards; also with
 *     a ticket by earlier publishes without an answer), zerod_release [t] (by its gather without an answer),
 *     zerod_forward_end, zerod_claim_end and zerod_context_end (by gathers in the scope),
 *     zerod_backward_abandon (by streams that write entries), zerod_backward_begin (by the sums of a step
 *     with a ticket, if the step after it has also ended), zerod_unit_unregister and zerod_group_leave (on
 *     GPUs, by streams that copy from the shard), zerod_trim (by processes that map the memory),
 *     zerod_session_reset (by copies into the rank's shards).
 *   - The result depends on other work: zerod_connect, zerod_group_unique_id and zerod_unique_id (NCCL),
 *     zerod_publish [t] (`streams`), zerod_publish_from [t] (also, without a stream, the conversion),
 *     zerod_backward_end [t] (reductions), zerod_step_get and zerod_step_norms_get (sums), zerod_reduce_wait
 *     (the other ranks' gradients; without a stream also the sum).
 *   - zerod_stream_synchronize(), zerod_stream_destroy(), zerod_close(): for own streams, without a deadline.
 *   While a call waits, its thread calls `interrupted` of zerod_connect(), first after 50 ms, then at least
 *   every 100 ms. That function can make calls, which it cannot interrupt, but must not call zerod_close().
 *   If it returns non-zero, the waiting call ends as at its deadline, with INTERRUPTED, but succeeds if the
 *   daemon has completed the request. If the daemon hangs, this takes two seconds more. Never interrupted:
 *   the last three calls, uncork, zerod_group_get() while it reconnects, and calls from host streams.
 */
#ifndef ZEROD_H
#define ZEROD_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default) /* all other symbols of the library are hidden */
#define ZEROD_MUST_USE __attribute__((warn_unused_result))
#else
#define ZEROD_MUST_USE
#endif
#define ZEROD_VERSION_MAJOR 0
#define ZEROD_VERSION_MINOR 2
#define ZEROD_VERSION_PATCH 0
/* The version of the loaded library, as major * 1 000 000 + minor * 1000 + patch. */
uint32_t zerod_version(void);
/* ---- Status codes ------------------------------------------------------------------------------
 * The protocol uses the same numbers. zeroctl and zerobench exit with the positive value. */
enum zerod_status {
	ZEROD_OK = 0,
	ZEROD_E_INVALID = -1, /* an argument is wrong; the text names it */
	/* -2 is reserved: the programs exit with 2 if their command line is wrong */
	ZEROD_E_NOT_FOUND = -3,      /* no such job, group, unit, bucket, entry, session or device */
	ZEROD_E_EXISTS = -4,         /* already in use: a rank, a name */
	ZEROD_E_MISMATCH = -5,       /* two ranks (or two calls) describe the same object differently */
	ZEROD_E_STATE = -6,          /* not allowed in this state, e.g. publish without update_begin */
	ZEROD_E_NOT_HELD = -7,       /* the unit is not held under this tag */
	ZEROD_E_STALE = -8,          /* the ticket was consumed, or its lease has ended */
	ZEROD_E_STALE_VERSION = -9,  /* the daemon no longer holds the requested version */
	ZEROD_E_BUSY = -10,          /* leases are outstanding */
	ZEROD_E_SLOT_CONFLICT = -11, /* the slot holds another unit, and the caller has a lease of it */
	ZEROD_E_POISONED = -12,      /* an abort has ended a wait of the session; reset the session first */
	ZEROD_E_DUPLICATE = -13,     /* a unit was reduced twice in one backward */
	ZEROD_E_CAPACITY = -14,   /* ranks reduce in different orders, beyond the capacity of their buckets */
	ZEROD_E_PEER_LOST = -15,  /* a rank of the group ended; the text names it */
	ZEROD_E_ABORTED = -16,    /* an administrator aborted the group, or an abort has ended a wait */
	ZEROD_E_DEADLINE = -17,   /* the deadline passed; the text says why the call waited */
	ZEROD_E_NO_MEMORY = -18,  /* the request can never fit; the text has the sizes */
	ZEROD_E_QUOTA = -19,      /* beyond the quota of the user id */
	ZEROD_E_LIMIT = -20,      /* beyond a limit of the protocol, see proto/limits.h */
	ZEROD_E_PERMISSION = -21, /* neither owner nor administrator; not served; no grant */
	ZEROD_E_UNSUPPORTED = -22,  /* the daemon, backend or dtype cannot do this */
	ZEROD_E_VERSION = -23,      /* protocol versions do not overlap */
	ZEROD_E_PROTOCOL = -24,     /* an invalid message */
	ZEROD_E_CONNECT = -25,      /* no daemon listens on the socket */
	ZEROD_E_DISCONNECTED = -26, /* the daemon has closed the connection, or has ended */
	ZEROD_E_TORN = -27,         /* a durable group ended inside an update; restore, then commit */
	ZEROD_E_DEVICE = -28,       /* the device or its driver failed; the text quotes it */
	ZEROD_E_SHUTDOWN = -29,     /* the daemon is draining, or has shut down */
	ZEROD_E_SYSTEM = -30,       /* a system call failed; the text has the error of errno */
	ZEROD_E_FORKED = -31,       /* the client was created before fork() */
	ZEROD_E_RESTARTED = -32,    /* the daemon has ended; zerod_group_get() reconnects to the next one */
	ZEROD_E_INTERRUPTED = -33,  /* `interrupted` of zerod_connect() has ended the wait */
};
/* The status's name without prefix, e.g. "NOT_HELD", or "UNKNOWN" for any other number. Never NULL. */
const char *zerod_status_name(int status);

/* ---- Data types ---------------------------------------------------------------------------------------- */
/* clang-format off */
enum zerod_dtype {
	ZEROD_FLOAT32 = 1, ZEROD_FLOAT16 = 2, ZEROD_BFLOAT16 = 3, ZEROD_FLOAT8_E4M3 = 4,
	ZEROD_FLOAT8_E5M2 = 5, ZEROD_INT8 = 6, ZEROD_INT16 = 7, ZEROD_INT32 = 8, ZEROD_INT64 = 9,
	ZEROD_UINT8 = 10, ZEROD_BOOL = 11
};
/* clang-format on */
/* The bytes of one element, and "float32", "bfloat16", ... For any other number: 0 and "unknown". */
size_t zerod_dtype_bytes(enum zerod_dtype dtype);
const char *zerod_dtype_name(enum zerod_dtype dtype);

/* ---- Client -------------------------------------------------------------------------------------------- */
typedef struct zerod_client zerod_client;         /* one connection to the daemon: a session */
typedef struct zerod_group zerod_group;           /* this client's membership in a group, as one rank */
typedef struct zerod_unit zerod_unit;             /* this rank's handle of a unit */
typedef struct zerod_bucket zerod_bucket;         /* this rank's gradient bucket */
typedef struct zerod_stream zerod_stream;         /* an in-order stream of work, see below */
typedef struct zerod_allocation zerod_allocation; /* a plain allocation */

/* Opaque ids of fixed size. Callers can compare and copy them. {0} means none. A ticket is an asynchronous
 * request. A scope holds leases without a tag. It is a forward scope, a claim, or a context. */
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
/* How long a call waits. NULL options: until the client's deadline. */
struct zerod_wait_options {
	size_t struct_size;
	uint32_t deadline_ms;
	uint32_t flags; /* ZEROD_WAIT_LEASES: zerod_update_begin() also waits for leases, instead of BUSY */
};
struct zerod_options {
	size_t struct_size;
	const char *socket_path; /* NULL: $ZEROD_SOCKET, or else /run/zerod/zerod.sock */
	const char *name;        /* shown by zeroctl; NULL: the program's name; at most 63 bytes of UTF-8 */
	uint32_t deadline_ms;    /* default for every wait; 0: 60 000 */
	int strict;              /* 1: reads of released buffers fault, see docs/strict.md */
	int poison; /* 1, or $ZEROD_POISON=1: fills released buffers with NaN, see docs/strict.md */
	uint32_t reconnect_ms; /* 0: $ZEROD_RECONNECT_MS, or else no reconnect; see zerod_group_get() */
	int (*interrupted)(void *context); /* NULL: no calls are interrupted; see "Calls that block" */
	void *interrupted_context;
};
/* Connects and exchanges hellos. `options` can be NULL. zerod_last_error(NULL) returns the text of a failure.
 * Errors: INVALID (path, name, an environment variable), CONNECT, VERSION, LIMIT (the daemon is full),
 * PERMISSION, UNSUPPORTED (strict with pages of more than 4096 bytes; a daemon without poison mode). */
ZEROD_MUST_USE int zerod_connect(const struct zerod_options *options, zerod_client **client);
/* Sets the default deadline of the client's later calls. 0: the deadline of zerod_connect(). */
ZEROD_MUST_USE int zerod_set_deadline(zerod_client *client, uint32_t deadline_ms);
/* Ends the session and frees its memory, its shards as zerod_group_leave() does. All handles become invalid.
 * The caller's own work on GPUs that uses the daemon's memory must have ended. Without this call, a rank
 * whose session ends has died. The call waits at most a second for the daemon's answer. NULL is allowed. */
void zerod_close(zerod_client *client);
/* Returns the text of this thread's last failure on `client` (NULL: of a call without a client), or "". It is
 * valid until the next call. A later failure without a client, as of zerod_update_begin(NULL, 0), hides
 * it. */
const char *zerod_last_error(const zerod_client *client);

/* Ends the POISONED state. The caller has first synchronized its streams and discarded all results since the
 * abort (docs/failures.md). Frees abandoned entries and targets of a failed group. If the group was set back
 * to its last commit, the call restores the rank's shards. */
ZEROD_MUST_USE int zerod_session_reset(zerod_client *client, const struct zerod_wait_options *options);
#define ZEROD_NO_HOST UINT32_MAX
struct zerod_device_info {
	size_t struct_size;
	uint32_t index;
	uint32_t host;            /* device of its host memory, which can be itself; or ZEROD_NO_HOST */
	char name[64];            /* "host0", "memory0", or "GPU-12345678-1234-..." */
	uint64_t arena_bytes;     /* the limit of the daemon's memory on this device */
	uint64_t allocated_bytes; /* charged memory, padded */
	uint64_t gathered_bytes;  /* live gathered buffers, padded */
	uint64_t peak_bytes;      /* highest allocated_bytes since the daemon's start */
};
/* `device` counts from 0. Errors: NOT_FOUND (no such device). */
ZEROD_MUST_USE int zerod_device_get(zerod_client *client, uint32_t device, struct zerod_device_info *info);
/* Returns unused memory of this user's jobs (for an administrator: of all jobs) to the device, until the
 * daemon holds at most `keep_bytes` on it. Also frees prefetched buffers without a lease. Addresses of freed
 * buffers become invalid. `freed_bytes` (can be NULL) receives the returned bytes. Errors: NOT_FOUND,
 * DEADLINE (names a stopped process that maps the memory; the memory is freed when it continues). */
ZEROD_MUST_USE int zerod_trim(zerod_client *client, uint32_t device, uint64_t keep_bytes,
                              const struct zerod_wait_options *options, uint64_t *freed_bytes);
/* The library collects requests of the *calling thread* that return at once, until zerod_uncork() sends them
 * in few packets. Blocking calls send them first. Corks nest. Errors of uncork: STATE (no cork). */
void zerod_cork(zerod_client *client);
ZEROD_MUST_USE int zerod_uncork(zerod_client *client);

/* ---- Streams -----------------------------------------------------------------------------------
 * A stream is a first-in first-out sequence of work that runs asynchronously to its caller. zerod_host.h
 * creates streams of the CPU, zerod_cuda.h wraps a GPU's. A NULL stream is the calling thread. */
#define ZEROD_MAX_STREAMS 256 /* streams of both kinds that one client can have */
/* Waits until all work in the stream has run. Errors: DEVICE, ABORTED (an abort has ended a wait). */
ZEROD_MUST_USE int zerod_stream_synchronize(zerod_stream *stream);
/* Frees the handle. A host stream runs its work first. A GPU's stream itself remains. NULL is allowed. */
void zerod_stream_destroy(zerod_stream *stream);

/* ---- Jobs and groups ----------------------------------------------------------------------------------- */
enum zerod_group_flags {
	ZEROD_GROUP_DURABLE = 1u << 0, /* shards outlive the sessions: docs/durable.md */
	ZEROD_GROUP_SHADOW = 1u << 1,  /* with DURABLE: the daemon also preserves the last commit */
	ZEROD_GROUP_HYBRID = 1u << 2,  /* spans daemons: the ranks of each daemon together have all shards */
};
/* How bytes travel between the ranks of one daemon. Between daemons NCCL transfers them in either case. */
enum zerod_collectives {
	ZEROD_COLLECTIVES_COPIES = 0, /* the daemon copies: no kernels, and gathers are one-sided */
	ZEROD_COLLECTIVES_NCCL = 1,   /* collectives of NCCL, under the contract of docs/several-nodes.md */
};
/* Opaque bytes that connect the ranks of several daemons. The launcher distributes them to all ranks. */
#define ZEROD_UNIQUE_ID_BYTES 4288
struct zerod_unique_id {
	unsigned char bytes[ZEROD_UNIQUE_ID_BYTES];
};
#define ZEROD_MAX_LOCAL_RANKS 16 /* in each daemon, if the group spans daemons */
struct zerod_group_options {
	size_t struct_size;
	const char *job;           /* a namespace of the caller's uid; 1..63 bytes of UTF-8 */
	const char *group;         /* name inside the job; 1..63 bytes; NULL: "world" */
	uint32_t world_size;       /* 1..1024, across all daemons */
	uint32_t local_world_size; /* ranks in each daemon; divides world_size; 0: all are in this daemon */
	uint32_t rank;   /* 0..world_size-1; the first local_world_size ranks are in the first daemon */
	uint32_t device; /* index on this node; several ranks may share a device */
	const char *device_uuid; /* the device's name in zerod_device_info, or a unique prefix; `device` is
	                            then 0 or agrees. NULL: `device` counts */
	const struct zerod_unique_id *unique_id; /* the same on all ranks; only if the group spans daemons */
	enum zerod_collectives collectives;
	uint32_t flags;       /* enum zerod_group_flags */
	uint32_t deadline_ms; /* until the other ranks join */
	uint32_t reserved;
};
/* Creates the id of a group across daemons. One rank calls it. All ranks join with the id once, as this user,
 * within id_ttl, while this daemon runs. Errors: UNSUPPORTED (host), NOT_FOUND (no NCCL), LIMIT, DEVICE. */
ZEROD_MUST_USE int zerod_group_unique_id(zerod_client *client, const struct zerod_group_options *group,
                                         const struct zerod_wait_options *wait, struct zerod_unique_id *id);
/* As above, for any group of the user. local_world_size is 1..ZEROD_MAX_LOCAL_RANKS. */
ZEROD_MUST_USE int zerod_unique_id(zerod_client *client, uint32_t local_world_size,
                                   const struct zerod_wait_options *options, struct zerod_unique_id *id);

/* Joins as one rank. Returns when every rank has joined. When a rank dies, each other rank's next call about
 * the group returns PEER_LOST with the rank's name, once. A call that needs a rank that has ended normally
 * also returns PEER_LOST. A process can join in its place (docs/failures.md).
 * The group spans daemons if local_world_size is not world_size. In this case, and with
 * ZEROD_COLLECTIVES_NCCL, *gathers are collectives*: all ranks make them in the same order, and a failure
 * ends the group (docs/several-nodes.md). With ZEROD_GROUP_HYBRID each daemon's ranks have all shards:
 * gathers are one-sided within the daemon, and gradients are summed across all ranks.
 * Errors: INVALID (contradicting options), NOT_FOUND (no such device, or the process does not see it; lists
 * the visible ones), EXISTS (the rank is in use; names the pid), MISMATCH (ranks differ in options; names
 * both), DEADLINE (names the missing ranks), LIMIT, PERMISSION (device not granted; no durable jobs;
 * unique_id), ABORTED, PEER_LOST (other daemons' ranks), UNSUPPORTED (MIG, old driver), DEVICE. */
ZEROD_MUST_USE int zerod_group_join(zerod_client *client, const struct zerod_group_options *options,
                                    zerod_group **group);

struct zerod_group_info {
	size_t struct_size;
	uint64_t committed_step; /* 0: none was committed */
	int torn;                /* 1: a later update was never committed; restore all units and commit */
	uint32_t reserved;
};
/* Returns the group's state as of this rank's join or its own last commit. If the daemon has ended and
 * reconnect_ms is set, the call connects again, joins a durable group of one daemon again as of its last
 * commit, and registers its units (docs/restarts.md). No other thread or stream may use the daemon's memory
 * meanwhile. Errors: CONNECT (no daemon within reconnect_ms), RESTARTED (this daemon ended too; for other
 * groups always), and the errors of connect, join and register. */
ZEROD_MUST_USE int zerod_group_get(zerod_group *group, struct zerod_group_info *info);

/* Waits until every rank has called it as often as this rank. After that a rank can leave without PEER_LOST
 * for the others. Orders calls, not streams. With tickets, a rank can have several barriers open. A failed
 * call does not count. In groups that span daemons or use NCCL's collectives, a rank has one barrier open at
 * a time, and none while a backward's end, a step's begin or a commit is open.
 * Errors: STATE (one is open), DEADLINE (names the first missing rank). */
ZEROD_MUST_USE int zerod_group_barrier(zerod_group *group, const struct zerod_wait_options *options,
                                       zerod_ticket *ticket);

#define ZEROD_MAX_AGREED 1024u
enum zerod_agree_op { ZEROD_AGREE_SUM = 0, ZEROD_AGREE_MAX = 1, ZEROD_AGREE_MIN = 2 };
/* When every rank has called it, each of the `count` values (1..ZEROD_MAX_AGREED) becomes the sum, maximum or
 * minimum of all ranks' values at its index. Sums are in rank order. A NaN makes a maximum or minimum NaN.
 * Errors: MISMATCH on all ranks (`op` or `count` differ), or on this one (another rank has begun the next
 * backward instead), STATE (another thread is in it), UNSUPPORTED (a group across daemons), DEADLINE. */
ZEROD_MUST_USE int zerod_group_agree(zerod_group *group, enum zerod_agree_op op, double *values,
                                     uint32_t count, const struct zerod_wait_options *options);

/* Leaves the group and frees this rank's memory in it, its shards with the last rank that can gather them.
 * The handle, its units and buckets become invalid, except after DEADLINE and INVALID. NULL is allowed. */
int zerod_group_leave(zerod_group *group, const struct zerod_wait_options *options);

/* ---- Units ---------------------------------------------------------------------------------------------
 * A unit is a flat buffer of one dtype, sharded evenly across a group's ranks and gathered as a whole. */

#define ZEROD_MAX_DIMS 8
#define ZEROD_NO_SLOT  0
/* A tensor inside a unit: `offset_numel` elements from the unit's start, of this shape. If a dimension is
 * zero, the view is empty. ndim 0 is a scalar. Views can overlap. */
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
	ZEROD_UNIT_FROZEN = 1u << 1,     /* has no gradient and no place in targets */
	ZEROD_UNIT_ALL_REDUCE = 1u << 2, /* every rank's target has the whole reduced gradient */
	ZEROD_UNIT_ON_HOST = 1u << 3,    /* shards and targets are in host memory: docs/offload.md */
	ZEROD_UNIT_COPIED = 1u << 4,     /* gathers make whole copies, never in place: docs/gathers.md */
	ZEROD_UNIT_UNSAVED = 1u << 5,    /* updates do not save it for readers' pins: docs/readers.md */
};
struct zerod_unit_options {
	size_t struct_size;
	const char *name; /* unique in the group; 1..127 bytes of UTF-8 */
	uint64_t numel;   /* of the whole unit, at least 1 */
	enum zerod_dtype dtype;
	uint32_t nviews; /* at most 256; 0: one view of shape {numel} with the unit's name */
	const struct zerod_view *views;
	uint32_t slot;  /* ZEROD_NO_SLOT, or 1..4096: gathers use the slot's fixed address */
	uint32_t flags; /* enum zerod_unit_flags */
	uint32_t deadline_ms;
	uint32_t reserved;
};
/* Registers this rank's part of a unit and allocates its zeroed shard. All ranks register the same units, in
 * any order. A shard has shard_numel elements: numel / world_size rounded up, then up to a multiple of 256
 * bytes (in hybrid groups with local_world_size, here and below). An identical second call returns a second
 * handle. After all ranks have unregistered a unit, its name can be registered again.
 * Errors: MISMATCH (names both ranks and both descriptions), NO_MEMORY, QUOTA, LIMIT. */
ZEROD_MUST_USE int zerod_unit_register(zerod_group *group, const struct zerod_unit_options *options,
                                       zerod_unit **unit);
/* Frees a handle, and with the last one unregisters this rank's part. Errors: BUSY (it is leased, updated or
 * reduced, or the bound target has a place for it). After an error the handle remains valid. */
ZEROD_MUST_USE int zerod_unit_unregister(zerod_unit *unit, const struct zerod_wait_options *options);

struct zerod_shard {
	size_t struct_size;
	void *data;            /* shard_numel elements, mapped in this process */
	uint64_t shard_numel;  /* the same on all ranks, padding included */
	uint64_t true_numel;   /* the unit's elements in it, can be 0; the padding remains zero */
	uint64_t offset_numel; /* index of the shard's first element in the unit */
	uint64_t version;      /* last published, 0: never; stale after a set-back until registered again */
	uint64_t padded_numel; /* world_size * shard_numel */
	enum zerod_dtype dtype;
	uint32_t flags; /* ZEROD_UNIT_ON_HOST: data is in host memory */
};
ZEROD_MUST_USE int zerod_shard_get(zerod_unit *unit, struct zerod_shard *shard);
/* Moves the unit's shards to host memory (`flags` ZEROD_UNIT_ON_HOST) or to the ranks' devices (0). Every
 * rank calls it with the same flags, after its publishes, and all ranks receive the same result. Content,
 * version, gathered copies and their leases do not change. After the call neither caller nor streams may use
 * earlier addresses of the shard. During the call both places are charged, and other threads' gathers of the
 * unit wait. If the unit is already in the place, nothing moves. See docs/offload.md, "Moving a unit".
 * Errors, after which all shards are in their old place: MISMATCH (names both ranks), BUSY (a rank holds a
 * gathered buffer that contains the shard; names the tags), STATE (a rank is updating, publishing or loading
 * the unit, or is between a backward and the end of its step), NO_MEMORY, QUOTA, LIMIT, UNSUPPORTED (no host
 * memory; the group spans daemons, or uses NCCL's collectives), DEVICE, DEADLINE (names the missing rank). */
ZEROD_MUST_USE int zerod_unit_place(zerod_unit *unit, uint32_t flags,
                                    const struct zerod_wait_options *options);
/* Sets whether the gathered buffer survives its last release. If gathers are collectives, all ranks make this
 * call at the same point of their programs. */
ZEROD_MUST_USE int zerod_unit_set_persistent(zerod_unit *unit, int persistent);
/* Changes the slot into which this rank gathers the unit (docs/gathers.md, "Slots"). Frees a persistent or
 * prefetched buffer. Errors: BUSY (the rank holds or gathers the unit; names the tags), LIMIT. */
ZEROD_MUST_USE int zerod_unit_set_slot(zerod_unit *unit, uint32_t slot);

/* Freezes the unit on this rank, which then has no gradient for it, or unfreezes it. Called between a step's
 * end and the next zerod_backward_begin(). That call returns MISMATCH if the rank has changed other units
 * than the first rank to begin. Errors: STATE (a window is open), LIMIT. */
ZEROD_MUST_USE int zerod_unit_set_frozen(zerod_unit *unit, int frozen);

/* ---- Updates: docs/updates.md -------------------------------------------------------------------------- */
/* Begins an update of this rank's shards of `count` units (1..1024, each once). When it returns, no gather
 * reads the shards, and the caller can write them. Later gathers wait for the new version. With a `ticket`,
 * zerod_wait() waits until no other rank's gather reads the shards, and a publish before this wait returns
 * STATE. If the shard is part of the gathered buffer (docs/gathers.md, "Buffers in place"), the update
 * follows the streams of past releases: the call waits for them, or zerod_wait() makes its stream wait.
 * Errors, after which no shard may be written: STATE (an update is open), BUSY (this rank holds a unit in
 * place; names the tags), DEADLINE (the caller can repeat the call). */
ZEROD_MUST_USE int zerod_update_begin(zerod_unit *const *units, uint32_t count,
                                      const struct zerod_wait_options *options, zerod_ticket *ticket);

/* FORCE: publishes although this rank has leases of gathered copies. */
enum zerod_publish_flags { ZEROD_PUBLISH_FORCE = 1u << 0 };
struct zerod_publish_options {
	size_t struct_size;
	uint32_t flags; /* enum zerod_publish_flags */
	uint32_t deadline_ms;
};
/* Ends the update. The shards have their new content when the work now in `streams` has run. Their version
 * rises by one, and this rank's gathered buffers become stale. Every rank publishes every version of every
 * unit, including empty and unchanged shards. With a `ticket`, ranks can request gathers of the new version
 * at once, and the caller need not wait for the ticket.
 * Errors, after which the update remains open: STATE (no update is open), BUSY (names the tags). */
ZEROD_MUST_USE int zerod_publish(zerod_unit *const *units, uint32_t count, zerod_stream *const *streams,
                                 uint32_t nstreams, const struct zerod_publish_options *options,
                                 zerod_ticket *ticket);

struct zerod_source {
	size_t struct_size;
	zerod_unit *unit;
	const void *data; /* the shard's true_numel elements of the source dtype; NULL if that is 0 */
};
/* Fills the shards of `count` units under update from sources of another dtype, such as float32 masters, and
 * publishes them as zerod_publish() does. `stream` reads the data (NULL: the calling thread), which must not
 * change before that. float32, float16 and bfloat16 are converted to every floating dtype, rounded to nearest
 * even. Equal dtypes are copied. On GPUs the data must be in memory that the shard's GPU can access.
 * Errors, without a write to any shard: INVALID (data NULL, misaligned, or overlapping the shard; a GPU would
 * have to convert memory of the CPU that is not registered with the driver; a stream of another GPU),
 * UNSUPPORTED (names both dtypes, or why no kernel runs), STATE (no update is open; the stream accepts no
 * work). After DEVICE, DEADLINE and the errors of zerod_publish(), shards can have been written. */
ZEROD_MUST_USE int zerod_publish_from(const struct zerod_source *sources, uint32_t count,
                                      enum zerod_dtype source_dtype, zerod_stream *stream,
                                      const struct zerod_publish_options *options, zerod_ticket *ticket);

/* Copies a unit byte by byte from one rank's memory into the shards of all ranks. Every rank calls it with
 * the unit under update. Exactly one rank passes `data`, the unit's numel elements, and is charged the same
 * amount of memory during the call. `stream` reads the data (NULL: the calling thread), which must not change
 * before. When the call, or zerod_wait() on the `ticket`, returns, this rank's shard is complete. A publish
 * makes it visible.
 * Errors, without a write to any shard: INVALID (misaligned data, a stream of another GPU), STATE (no update
 * is open, or the rank is already loading the unit), MISMATCH on all ranks (two ranks pass data, or no rank
 * does), NO_MEMORY, QUOTA, UNSUPPORTED (the group spans daemons, or uses NCCL's collectives), DEADLINE (names
 * the missing rank). After DEVICE, on all ranks, shards can have been written. The update remains open. */
ZEROD_MUST_USE int zerod_unit_load(zerod_unit *unit, const void *data, zerod_stream *stream,
                                   const struct zerod_wait_options *options, zerod_ticket *ticket);

/* Marks the published versions as step `step`, atomically across all ranks, units and durable allocations,
 * when every rank has called it (docs/durable.md). Errors: MISMATCH (another rank commits another step),
 * STATE (an update is open, versions differ, or the step is committed), SYSTEM (not stored). */
ZEROD_MUST_USE int zerod_commit(zerod_group *group, uint64_t step, const struct zerod_wait_options *options);

/* ---- Gather and release: docs/gathers.md --------------------------------------------------------------- */
enum zerod_gather_flags {
	ZEROD_GATHER_PREFETCH = 1u << 0, /* no lease; evicted for gathers, unless gathers are collectives */
	ZEROD_GATHER_NO_SLOT = 1u << 1,  /* a new buffer is not placed in the slot */
};
struct zerod_gather_options {
	size_t struct_size;
	const char *tag;   /* the holder's name, 1..31 bytes, not starting with '@'; NULL: "default" */
	zerod_scope scope; /* the holder in place of a tag: one use, no prefetch */
	uint64_t version;  /* exact version; 0: the newest, at least the one this rank last published */
	uint32_t uses;     /* releases that end the lease; 0: 1 */
	uint32_t flags;    /* enum zerod_gather_flags */
	uint32_t deadline_ms;
	uint32_t reserved;
};
/* Requests this rank's gathered buffer of the unit. The buffer has world_size * shard_numel elements, and the
 * first numel of them are the unit's. `options` can be NULL. If the buffer exists or is being filled, the
 * gather joins it: one transfer serves any number of leases. The gather adds `uses` to the lease of (session,
 * tag). Other ranks take no part, unless gathers are collectives. It is read-only: it can contain the rank's
 * shard.
 * The daemon places the buffer when every rank has registered the unit and called zerod_publish() for the
 * version, and when memory for it has been released. The daemon waits for these calls and not for their
 * streams: the copies run after the streams. For strict clients, for groups that span daemons, and for memory
 * of another process or another size, the daemon also waits for the streams of the release.
 * Errors at the wait: STALE_VERSION, SLOT_CONFLICT, NO_MEMORY (can never fit), QUOTA, MISMATCH
 * (docs/gathers.md), TORN, NOT_FOUND (no scope). */
ZEROD_MUST_USE int zerod_gather_begin(zerod_unit *unit, const struct zerod_gather_options *options,
                                      zerod_ticket *ticket);

/* Completes a ticket, within the deadline of the call that created it. For a gather, makes `stream` (NULL:
 * the calling thread) wait for the bytes, and stores the buffer's address in *data (can be NULL), which is
 * valid until the lease is released. Work appended to the stream afterwards sees the bytes. A second wait is
 * harmless. For other calls, the first wait consumes the ticket. `data` is then NULL, and `stream` is NULL
 * except for zerod_update_begin() and zerod_step_begin(). Errors: those of the call, INVALID (a stream of
 * another GPU), STALE (released, or consumed), ABORTED (an abort has ended the wait; the lease remains). */
ZEROD_MUST_USE int zerod_wait(zerod_client *client, zerod_ticket ticket, zerod_stream *stream, void **data);
#define ZEROD_MAX_TICKETS 1024
/* zerod_wait() for `count` tickets (at most ZEROD_MAX_TICKETS), at little more than the cost of one. `data`
 * has room for `count` addresses, or is NULL. If a ticket fails, the text names the first failed one
 * ("tickets[3]: ..."), the stream waits for nothing, and no address is stored. Only the failed ticket is
 * consumed, unless it is a gather's. STALE and INVALID consume no ticket. */
ZEROD_MUST_USE int zerod_wait_many(zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                                   zerod_stream *stream, void **data);
/* zerod_gather_begin() and zerod_wait() in one call. */
ZEROD_MUST_USE int zerod_gather(zerod_unit *unit, const struct zerod_gather_options *options,
                                zerod_stream *stream, void **data);

/* A detached call does not wait for its answer. If the daemon rejects it, the client's next call fails with
 * that error and the unit's name, and has no effect. Calls that end or free something, calls on streams, and
 * zerod_uncork() still take effect, and the next call of another kind returns the failure. */
enum zerod_release_flags { ZEROD_RELEASE_DETACHED = 1u << 0 };
struct zerod_release_options {
	size_t struct_size;
	const char *tag; /* of the gather; NULL: "default" */
	uint32_t flags;  /* enum zerod_release_flags */
	uint32_t deadline_ms;
};
/* Releases one use of the lease of (session, tag). The gather need not be answered yet. The buffer is
 * uncharged at once. Its memory is not reused before the work now in `streams` has run. Errors: NOT_HELD. */
ZEROD_MUST_USE int zerod_release(zerod_unit *unit, zerod_stream *const *streams, uint32_t nstreams,
                                 const struct zerod_release_options *options, zerod_ticket *ticket);

/* Releases one use of each of `count` units under one tag, with one fence per stream for all. `count` is at
 * most ZEROD_MAX_TICKETS. A unit can occur as often as it is held. tickets[i] belongs to units[i]. NULL: the
 * call waits for all answers. Errors: NOT_HELD (names the first unit without lease; others are released). */
ZEROD_MUST_USE int zerod_release_many(zerod_unit *const *units, uint32_t count, zerod_stream *const *streams,
                                      uint32_t nstreams, const struct zerod_release_options *options,
                                      zerod_ticket *tickets);

/* ---- Gathering outside the plan ------------------------------------------------------------------------
 * Code that cannot know the last use of a unit gathers it in a scope. A scope holds each unit once until the
 * scope ends (docs/gathers.md, "Scopes"). Releases do not affect its leases. A rank can have 1024 scopes. */

/* Begins a forward pass, nested in the open scope `parent` or, with {0}, outermost. Scopes that are still
 * open from an earlier outermost forward end in this call, after `streams`, unless the rank has a claim.
 * Errors: INVALID and STATE (parent is a context, of another group, or not open), NOT_FOUND. */
ZEROD_MUST_USE int zerod_forward_begin(zerod_group *group, zerod_scope parent, zerod_stream *const *streams,
                                       uint32_t nstreams, zerod_scope *scope);

/* Ends the forward pass. With `grad` the scope becomes a claim, which holds all buffers and accepts gathers
 * until zerod_claim_end(). Otherwise it ends. Errors: STATE (the forward has ended; a nested scope is open),
 * INVALID (a context), NOT_FOUND. */
ZEROD_MUST_USE int zerod_forward_end(zerod_client *client, zerod_scope scope, int grad,
                                     zerod_stream *const *streams, uint32_t nstreams,
                                     const struct zerod_wait_options *options);
/* Ends the claim. Errors: STATE (the forward has not ended), INVALID (a context), NOT_FOUND. */
ZEROD_MUST_USE int zerod_claim_end(zerod_client *client, zerod_scope claim, zerod_stream *const *streams,
                                   uint32_t nstreams, const struct zerod_wait_options *options);
/* Ends an open scope and all open scopes in it, or a claim, after the forward has failed or if the backward
 * will not run. Gathers that wait in it fail with NOT_FOUND. Errors: INVALID (a context), NOT_FOUND. */
ZEROD_MUST_USE int zerod_scope_abandon(zerod_client *client, zerod_scope scope, zerod_stream *const *streams,
                                       uint32_t nstreams);

/* Gathers `count` units (1..1024, of one group) as a whole and holds them until zerod_context_end(). After an
 * error it holds no unit. Gathers that name the context return the addresses. Errors: EXISTS (a unit is in
 * another context of the rank; names both), INVALID (a unit occurs twice, or is of another group), NO_MEMORY
 * (more than the gather budget), and the errors of zerod_gather(). */
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
	int boundary;                  /* stage 1: this is the last micro-step before the optimizer's step */
	enum zerod_dtype target_dtype; /* of the reduced gradients: float32 (0), float16 or bfloat16 */
	uint32_t deadline_ms;
	uint32_t flags; /* enum zerod_backward_flags */
	uint32_t reserved;
};
/* Begins a backward pass of this rank. The backwards between two steps are a window, in which all ranks run
 * the same number of backwards, with the same options. In stages 2 and 3 every backward reduces, the first
 * one binds the step-local target, and zerod_step_begin() closes the window. In stage 1 only the boundary
 * binds and reduces. The call waits while two steps that this rank has ended are not complete, and for
 * memory. DETACHED does not wait for memory, and further calls of the backward can follow in the same packet.
 * docs/gradients.md describes backwards of a failed group.
 * Errors: STATE (a backward or a step is open; stage 1: the step is next), MISMATCH (ranks differ in options;
 * another rank has begun the step after fewer backwards), NO_MEMORY, QUOTA, errors of a failed window. */
ZEROD_MUST_USE int zerod_backward_begin(zerod_group *group, const struct zerod_backward_options *options);

struct zerod_bucket_options {
	size_t struct_size;
	enum zerod_dtype dtype; /* of the gradients, any floating dtype */
	uint32_t nslots;        /* 0: 2; at most 16 */
	uint64_t slot_bytes;    /* 0: 32 MiB; rounded up to a multiple of 256 */
};
/* Creates a bucket for this rank. The bucket has memory from a backward's first reservation to the backward's
 * end. Errors: UNSUPPORTED (dtype), LIMIT (64 buckets). */
ZEROD_MUST_USE int zerod_bucket_create(zerod_group *group, const struct zerod_bucket_options *options,
                                       zerod_bucket **bucket);
/* Errors: BUSY (entries are not reduced yet). Frees the entries of a failed group. */
ZEROD_MUST_USE int zerod_bucket_destroy(zerod_bucket *bucket);

enum zerod_reserve_flags {
	ZEROD_RESERVE_ZERO_HOLES = 1u << 0, /* zeroes the elements that no view of the unit covers */
	ZEROD_RESERVE_ACCUMULATE = 1u << 1, /* this rank can add more gradients of the unit */
};
struct zerod_reserve_options {
	size_t struct_size;
	zerod_stream *stream; /* waits until the entry can be written; NULL: the caller waits */
	uint32_t flags;       /* enum zerod_reserve_flags */
	uint32_t deadline_ms;
};

struct zerod_entry {
	size_t struct_size;
	uint64_t id;
	void *data;            /* padded_numel elements of the bucket's dtype; the padding is zero */
	uint64_t padded_numel; /* the caller writes all of the unit's numel */
	int accumulates;       /* 1: the entry has earlier gradients of the unit; add to them */
	uint32_t reserved;
};
/* Reserves an entry for the unit's gradient, in the bucket's open slot or, if the entry is larger, in its own
 * memory. With a stream, work appended to it afterwards runs when the entry can be written. The call then
 * waits only while a rank has neither submitted nor skipped the unit of an earlier entry, for staging memory
 * of an earlier entry, and in groups that span daemons. If a unit can have several gradients in one backward,
 * every reservation of it has ACCUMULATE (docs/gradients.md, "Accumulation"). After an error the caller can
 * repeat the call, and receives the entry that was reserved.
 * Errors: STATE (no backward is open; stage 1 outside a boundary; an accumulated gradient is not submitted),
 * DUPLICATE (the unit is reserved or submitted), CAPACITY (names ranks and units), NO_MEMORY, DEVICE. */
ZEROD_MUST_USE int zerod_bucket_reserve(zerod_bucket *bucket, zerod_unit *unit,
                                        const struct zerod_reserve_options *options,
                                        struct zerod_entry *entry);

enum zerod_reduce_op { ZEROD_SUM = 0, ZEROD_MEAN = 1 };
enum zerod_reduce_flags {
	ZEROD_REDUCE_OVERWRITE = 1u << 0, /* replaces the target's content; default: adds to it */
	ZEROD_REDUCE_DETACHED = 1u << 1,  /* see enum zerod_release_flags */
	ZEROD_REDUCE_TERMS = 1u << 2,     /* see zerod_reduce_terms() in zerod_optimizer.h */
};
struct zerod_reduce_options {
	size_t struct_size;
	enum zerod_reduce_op op;
	float prescale; /* factor of every input, in float32, before the sum; 0: 1.0 */
	uint32_t flags; /* enum zerod_reduce_flags */
	uint32_t deadline_ms;
	uint32_t nabsent; /* views of the unit without a gradient: this rank contributes zeros */
	uint32_t reserved;
	const uint32_t *absent; /* their indices; the caller need not write these views */
};
/* Submits the entry. The gradient is complete when the work now in `streams` has run, which must include all
 * writes. When all ranks have submitted or skipped the unit, each slice is summed in float32, in rank order,
 * into its owner's target. All ranks pass the same op, prescale and OVERWRITE. zerod_backward_end() submits
 * accumulated gradients.
 * Errors: INVALID (an absent view out of range or given twice; absent views while accumulating), NOT_FOUND,
 * STATE (already submitted), MISMATCH, PEER_LOST and ABORTED (the group has failed; the entry is freed). */
ZEROD_MUST_USE int zerod_bucket_submit(zerod_bucket *bucket, uint64_t entry_id, zerod_stream *const *streams,
                                       uint32_t nstreams, const struct zerod_reduce_options *options,
                                       zerod_ticket *ticket);

/* Reserves an entry, copies the unit's numel elements of the bucket's dtype from `data` on `stream`, and
 * submits. `data` must not change before the copy has run. The stream's GPU must be able to access it.
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
/* This rank contributes zeros for the unit. Errors: STATE (no backward, or off a boundary), DUPLICATE. */
ZEROD_MUST_USE int zerod_reduce_skip(zerod_unit *unit, const struct zerod_skip_options *options,
                                     zerod_ticket *ticket);

/* SKIP_REST: skips units that only other ranks reduce, before or after this call. */
enum zerod_backward_end_flags { ZEROD_BACKWARD_SKIP_REST = 1u << 0 };
struct zerod_backward_end_options {
	size_t struct_size;
	uint32_t flags; /* enum zerod_backward_end_flags */
	uint32_t deadline_ms;
};
/* Ends the backward when this rank's slices are summed and its gradients have been read, and frees the
 * buckets' memory. For units with ALL_REDUCE and in groups that span daemons, the call waits for the complete
 * reduction, and with SKIP_REST also until every other rank has ended the backward. zerod_step_begin()
 * reports failures of other owners' sums. After DEADLINE the backward is open.
 * Errors: STATE (no backward is open, or an entry is reserved and not submitted), MISMATCH (a rank has
 * neither submitted nor skipped a unit that others reduced), UNSUPPORTED (SKIP_REST, a group across
 * daemons). */
ZEROD_MUST_USE int zerod_backward_end(zerod_group *group, const struct zerod_backward_end_options *options,
                                      zerod_ticket *ticket);

/* Abandons the window for all ranks, in a backward or between two. Frees this rank's entries. Entries that
 * were not submitted are freed after the work now in `streams`. The rank then begins a new window, or calls
 * zerod_step_begin() first. Other ranks continue, nothing is reduced, and their zerod_step_begin() sets
 * `abandoned`. A group that spans daemons ends, and all calls return ABORTED.
 * Errors: STATE (no backward has begun since the last step, or zerod_backward_begin() waits), DEADLINE (but
 * it is abandoned). */
ZEROD_MUST_USE int zerod_backward_abandon(zerod_group *group, zerod_stream *const *streams, uint32_t nstreams,
                                          const struct zerod_wait_options *options);

struct zerod_step_info {
	size_t struct_size;
	uint64_t step;       /* counts from 1 */
	double norm_squared; /* of the reduced gradients, across all ranks */
	int overflow;        /* 1: a rank has found an inf or nan */
	int abandoned;       /* 1: abandoned_rank has abandoned the window, and no targets exist */
	uint32_t abandoned_rank;
	uint32_t reserved;
};

enum zerod_step_flags { ZEROD_STEP_SCALARS = 1u << 0 }; /* for zerod_step_scalars_get() */
struct zerod_step_options {
	size_t struct_size;
	uint32_t flags; /* enum zerod_step_flags */
	uint32_t deadline_ms;
};
/* Begins the optimizer's step when every rank has called it, and stores the ranks' common result. The caller
 * can read the target until zerod_step_end(). Elements that were not reduced are zero. With a `ticket`,
 * `info` is NULL, and the caller need not wait for the ticket of zerod_backward_end(). zerod_wait() then
 * returns when every rank has called this function, and makes its stream, or the caller, wait until the
 * target is complete. From then on zerod_step_get() returns the info and failures (docs/gradients.md, "Steps
 * with a ticket"). Errors: STATE (no backward, in stage 1 no boundary, has ended since the last step),
 * MISMATCH (the number of backwards), DEVICE, and the errors of a failed window. */
ZEROD_MUST_USE int zerod_step_begin(zerod_group *group, const struct zerod_step_options *options,
                                    struct zerod_step_info *info, zerod_ticket *ticket);

/* Returns the result of the last step that this rank has begun, until the next zerod_step_begin(). Errors:
 * STATE (no step was begun), and the step's: DEVICE, ABORTED (another rank abandoned it), those of a failed
 * window. */
ZEROD_MUST_USE int zerod_step_get(zerod_group *group, const struct zerod_wait_options *options,
                                  struct zerod_step_info *info);
/* Returns the squared norm of each of `count` units' gradients (1..1024) in that step, across all ranks. 0:
 * no rank has reduced the unit. Errors: zerod_step_get()'s, UNSUPPORTED (not hybrid, but across daemons). */
ZEROD_MUST_USE int zerod_step_norms_get(zerod_group *group, zerod_unit *const *units, uint32_t count,
                                        const struct zerod_wait_options *options, double *norms_squared);

/* A step's result in memory of the rank's device. A fused optimizer uses `overflow` as its found_inf. */
struct zerod_step_scalars {
	size_t struct_size;
	const float *overflow; /* 1 after an overflow, or if the step failed after its answer; otherwise 0 */
	const float *norm_squared; /* rounded to float32; infinity if the step has failed */
};
/* Readable as long as the target. Errors: STATE (no step with ZEROD_STEP_SCALARS, or it has no target). */
ZEROD_MUST_USE int zerod_step_scalars_get(zerod_group *group, struct zerod_step_scalars *scalars);

struct zerod_target {
	size_t struct_size;
	void *data;           /* this rank's reduced slice, padding zero; in host memory if ON_HOST */
	uint64_t shard_numel; /* the unit's shard_numel; with ALL_REDUCE its padded_numel */
	uint64_t true_numel;  /* the unit's elements in it; with ALL_REDUCE numel */
	enum zerod_dtype dtype;
	uint32_t reserved;
};
/* Lends this rank the unit's place in the target before the step, when all ranks have submitted or skipped
 * the unit. Work appended to `stream` (NULL: the caller) afterwards can read and write the sum. The loan ends
 * with this rank's next submit or skip of the unit, or with the step. The next sum is stored after the work
 * that these streams have at that time (docs/gradients.md). While a ticket of the step's begin is open, all
 * ranks must have begun the step. Errors: NOT_FOUND (all ranks have skipped the unit), STATE (this rank has
 * neither submitted nor skipped it; abandoned), INVALID (frozen unit; another GPU's stream), a failed
 * window's. */
ZEROD_MUST_USE int zerod_reduce_wait(zerod_unit *unit, const struct zerod_wait_options *options,
                                     zerod_stream *stream, struct zerod_target *target);
/* Errors: STATE (not between a step's begin and end, and not lent; abandoned), INVALID (frozen unit). */
ZEROD_MUST_USE int zerod_target_get(zerod_unit *unit, struct zerod_target *target);

/* Frees this rank's target after the work now in `streams`, also after an overflow, and after the group has
 * failed. Does not wait for the sums of a step with a ticket. Errors: STATE (no step was begun), PEER_LOST
 * and ABORTED (the group has failed, and no step was begun before). */
ZEROD_MUST_USE int zerod_step_end(zerod_group *group, zerod_stream *const *streams, uint32_t nstreams,
                                  const struct zerod_wait_options *options);

/* ---- Plain allocations --------------------------------------------------------------------------------- */
enum zerod_alloc_flags { ZEROD_ALLOC_DURABLE = 1u << 0 }; /* belongs to the durable job: docs/durable.md */
struct zerod_alloc_options {
	size_t struct_size;
	const char *job;    /* as in zerod_group_options */
	const char *name;   /* shown by zeroctl; NULL: ""; with DURABLE its name in the job */
	uint64_t bytes;     /* at least 1; rounded up to a multiple of 256 */
	uint64_t alignment; /* power of two up to 2 MiB; 0: 256 */
	uint32_t device;
	uint32_t flags; /* enum zerod_alloc_flags */
	uint32_t deadline_ms;
	uint32_t reserved;
};
/* Allocates zeroed memory, until the session ends. With DURABLE until zerod_free() or `zeroctl end-job`: a
 * later session that requests the same job, name and device receives it with its content (docs/durable.md).
 * Errors: NOT_FOUND (device), PERMISSION (the device is not granted), NO_MEMORY, QUOTA. With DURABLE: INVALID
 * (no name), STATE (no such durable job), EXISTS (a session uses it; names the pid), MISMATCH (another size
 * or alignment; names both). */
ZEROD_MUST_USE int zerod_alloc(zerod_client *client, const struct zerod_alloc_options *options,
                               zerod_allocation **allocation, void **data);
/* Frees the memory after the work now in `streams`. The handle becomes invalid unless this fails. */
ZEROD_MUST_USE int zerod_free(zerod_allocation *allocation, zerod_stream *const *streams, uint32_t nstreams);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
