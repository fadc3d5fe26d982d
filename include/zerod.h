/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zerod.h - the public C interface of libzerod. Beside it: zerod_cuda.h for GPUs, zerod_host.h for the CPU.
 *
 * zerod is a per-node daemon that owns the memory of sharded training: shards, gathered parameters, gradient
 * buckets and reduction targets. A training process connects, joins a group as one rank on one device,
 * registers its units, gathers each before use, releases it after use, and reduces its gradient.
 *
 * Conventions
 *   - Every function that can fail returns ZEROD_OK (0) or a negative ZEROD_E_* status. The text that
 *     explains the last failure on a client is kept per client and thread: zerod_last_error().
 *   - Out-parameters come last and are untouched on failure.
 *   - `numel` counts elements, `bytes` counts bytes. Shapes are in elements, row-major.
 *   - Every structure begins with `struct_size`; set it with the ZEROD_INIT macro, which also zeroes the
 *     rest. Zero means "the default" for every option. In arrays the first element's struct_size is the
 *     stride. A library that knows fewer bytes of a structure rejects options beyond them that are not
 *     zero, and sets results beyond them to zero; one that knows more bytes leaves them out.
 *   - All functions may be called from several threads at once, on one client or many. A handle must not be
 *     used while or after another thread frees it.
 *   - Functions that wait for other ranks, for streams or for memory take a deadline in their options; 0
 *     means the client's default, ZEROD_NO_DEADLINE none. When it passes they return ZEROD_E_DEADLINE and
 *     the text says what was waited for. Functions that wait for the daemon's answer alone use the
 *     client's default.
 *   - Functions with a `ticket` block where it is NULL. Otherwise they return at once, and zerod_wait() on
 *     the ticket tells how the request ended, and makes a stream wait for it instead of the caller.
 *   - A client has room for 1024 requests that the daemon has not answered, and for 1024 more releases. Calls
 *     that return at once fail with ZEROD_E_LIMIT beyond that; calls that block wait for room first.
 *   - A process may make no call for as long as it likes: answers wait for it, and a thread of the library
 *     does what the daemon asks of the process.
 *   - A process that forks must not use its parent's client: every call returns ZEROD_E_FORKED.
 *   - Addresses of memory that the daemon owns are the device's: on GPUs, of GPU memory for kernels and
 *     copies of the caller's, which the CPU must not touch.
 *   - Nothing here prints, exits or raises a signal.
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
#endif

#define ZEROD_VERSION_MAJOR 0
#define ZEROD_VERSION_MINOR 1
#define ZEROD_VERSION_PATCH 0

/* The version of the library that runs, as major * 1 000 000 + minor * 1000 + patch. */
uint32_t zerod_version(void);

#if defined(__GNUC__)
#define ZEROD_MUST_USE __attribute__((warn_unused_result))
#else
#define ZEROD_MUST_USE
#endif

/* ---- Status codes ------------------------------------------------------------------------------
 * The same numbers travel in the protocol; zeroctl and zerobench exit with the positive value. */

enum zerod_status {
	ZEROD_OK = 0,
	ZEROD_E_INVALID = -1, /* an argument is wrong; the text names it */
	/* -2 is reserved: the programs exit with 2 when their command line is wrong */
	ZEROD_E_NOT_FOUND = -3,      /* no such job, group, unit, bucket, entry, session, device */
	ZEROD_E_EXISTS = -4,         /* taken already: a rank, a name */
	ZEROD_E_MISMATCH = -5,       /* two ranks (or two calls) describe one thing differently */
	ZEROD_E_STATE = -6,          /* not allowed now, e.g. publish without update_begin */
	ZEROD_E_NOT_HELD = -7,       /* released what is not held under this tag */
	ZEROD_E_STALE = -8,          /* the ticket's buffer was released already */
	ZEROD_E_STALE_VERSION = -9,  /* the version asked for is no longer held */
	ZEROD_E_BUSY = -10,          /* leases are outstanding */
	ZEROD_E_SLOT_CONFLICT = -11, /* the slot holds another unit that the caller itself still holds */
	ZEROD_E_POISONED = -12,      /* the session ran on after an aborted wait; reset it first */
	ZEROD_E_DUPLICATE = -13,     /* the same unit reduced twice in one backward */
	ZEROD_E_CAPACITY = -14,      /* ranks reduce in orders that cross beyond their buckets' capacity */
	ZEROD_E_PEER_LOST = -15,     /* a rank of the group ended; the text names it */
	ZEROD_E_ABORTED = -16,       /* the group was aborted by an administrator */
	ZEROD_E_DEADLINE = -17,      /* the deadline passed; the text says what was waited for */
	ZEROD_E_NO_MEMORY = -18,     /* can never fit; the text has the sizes */
	ZEROD_E_QUOTA = -19,         /* beyond the uid's quota */
	ZEROD_E_LIMIT = -20,         /* beyond a limit of the protocol, see proto/limits.h */
	ZEROD_E_PERMISSION = -21,    /* not the owner, nor an administrator */
	ZEROD_E_UNSUPPORTED = -22,   /* the daemon, backend or dtype cannot do this */
	ZEROD_E_VERSION = -23,       /* protocol versions do not overlap */
	ZEROD_E_PROTOCOL = -24,      /* a message that makes no sense */
	ZEROD_E_CONNECT = -25,       /* no daemon listens on the socket */
	ZEROD_E_DISCONNECTED = -26,  /* the daemon went away */
	ZEROD_E_TORN = -27,          /* a durable group died inside an update; restore, then commit */
	ZEROD_E_DEVICE = -28,        /* the device or its driver failed; the text has its words */
	ZEROD_E_SHUTDOWN = -29,      /* the daemon is draining */
	ZEROD_E_SYSTEM = -30,        /* a system call failed; the text has errno's words */
	ZEROD_E_FORKED = -31,        /* the client was made before fork() */
};

/* The status's name without prefix, e.g. "NOT_HELD"; "UNKNOWN" for numbers that are none. Never NULL. */
const char *zerod_status_name(int status);

/* ---- Data types ---------------------------------------------------------------------------------------- */

enum zerod_dtype {
	ZEROD_FLOAT32 = 1,
	ZEROD_FLOAT16 = 2,
	ZEROD_BFLOAT16 = 3,
	ZEROD_FLOAT8_E4M3 = 4,
	ZEROD_FLOAT8_E5M2 = 5,
	ZEROD_INT8 = 6,
	ZEROD_INT16 = 7,
	ZEROD_INT32 = 8,
	ZEROD_INT64 = 9,
	ZEROD_UINT8 = 10,
	ZEROD_BOOL = 11,
};

/* Bytes of one element; 0 for an unknown dtype. */
size_t zerod_dtype_bytes(enum zerod_dtype dtype);
/* "float32", "bfloat16", ...; "unknown" otherwise. Never NULL. */
const char *zerod_dtype_name(enum zerod_dtype dtype);

/* ---- Client -------------------------------------------------------------------------------------------- */

typedef struct zerod_client zerod_client;         /* one connection to the daemon */
typedef struct zerod_group zerod_group;           /* this client's membership in a group: one rank */
typedef struct zerod_unit zerod_unit;             /* this rank's handle of a unit */
typedef struct zerod_bucket zerod_bucket;         /* this rank's gradient bucket */
typedef struct zerod_stream zerod_stream;         /* an in-order stream of work, see below */
typedef struct zerod_allocation zerod_allocation; /* a plain allocation */

/* An asynchronous request. Compare and copy freely; {0} is "none". */
typedef struct zerod_ticket {
	uint64_t id;
} zerod_ticket;

/* What holds gathered buffers beside leases with a tag: a forward scope, the claim that it becomes, or a user
 * context. Compare and copy freely; {0} is "none". Never used again once it has ended. */
typedef struct zerod_scope {
	uint64_t id;
} zerod_scope;

#define ZEROD_NO_DEADLINE UINT32_MAX

/* Zeroed options with struct_size set:  struct zerod_options o = ZEROD_INIT(o); */
#ifdef __cplusplus
extern "C++" {
template <typename T> inline T zerod_init()
{
	T options = T();
	options.struct_size = sizeof(T);
	return options;
}
}
#define ZEROD_INIT(var) zerod_init<decltype(var)>()
#else
#define ZEROD_INIT(var)                                                                                      \
	{                                                                                                    \
		.struct_size = sizeof(var)                                                                   \
	}
#endif

/* How a call waits. NULL in its place: with the client's deadline. */
struct zerod_wait_options {
	size_t struct_size;
	uint32_t deadline_ms;
	uint32_t reserved; /* 0 */
};

/* $ZEROD_SPIN: "never", no thread of the library looks again and again before it sleeps; "always", also where
 * there are few processors; "auto", the default. */
struct zerod_options {
	size_t struct_size;
	const char *socket_path; /* NULL: $ZEROD_SOCKET, else /run/zerod/zerod.sock */
	const char *name;        /* shown by zeroctl; NULL: the program's name; at most 63 bytes of UTF-8 */
	uint32_t deadline_ms;    /* default for every wait; 0: 60 000 */
	int strict;              /* released views fault, see below */
	int poison;              /* released views show NaN, see below; $ZEROD_POISON=1 does the same */
	uint32_t reserved;       /* 0 */
};

/*
 * Strict clients find stale views. When the last lease of a gathered buffer has been released - under every
 * tag, and every stream that the releases named has run what was in it then - its pages are taken out of this
 * process: an access through a view that was kept raises SIGSEGV, instead of reading what the memory holds
 * next. The next zerod_wait() for a gather that is placed there gives access before it returns. Persistent
 * units, shards, targets, bucket entries and allocations stay accessible. A release without streams takes
 * access away before it returns, one that named one stream before zerod_stream_synchronize() of that returns.
 *
 * On GPUs access is taken from this process's mapping: a kernel or copy that touches the view fails with
 * CUDA_ERROR_ILLEGAL_ADDRESS (or is refused), and as always after that the process can do nothing more there.
 * A thread of the library takes it away when the streams have come so far, some ten microseconds later; only
 * then may the place be another unit's. The GPU takes access from whole segments, so that each gathered
 * buffer and slot has one of its own, of 2 MiB or a multiple.
 *
 * It costs a system call, on GPUs one of the driver's of 30 to 50 us, at each wait and last release, and
 * memory: gathered buffers fill whole pages of 4096 bytes, or segments, of their own, and padded bytes are
 * charged and listed rounded up to that. A child process keeps the access that its parent had when it forked.
 */

/*
 * Poison mode finds stale views by their values. When the last lease of a gathered buffer has ended, and
 * every stream that the releases named has run what was in it then, the daemon fills the buffer with bytes of
 * 0xFF: NaN in every floating-point dtype, -1 in signed integers. The memory is reused behind the fill. So a
 * view that was kept shows NaN until other bytes come, and a sum that a stale read has entered stays NaN.
 * Strict mode cannot see a stale read of a slot that another unit has; poison mode shows NaN there until that
 * unit's bytes come. The two may be combined.
 *
 * Addresses are given ahead of the streams as in other clients: bytes that come into the same memory come
 * behind the fill. A unit with one shard in this daemon is copied, as in strict clients. Buffers of other
 * clients are not filled, nor are copies that were prefetched and never leased, shards, targets, bucket
 * entries and allocations. A persistent copy is filled when it ends, and not when it is refreshed. What a
 * client holds when it is closed is not filled.
 *
 * It costs a fill for each last release: on GPUs a kernel of the daemon's, which takes turns with the
 * trainer's. Bytes are uncharged at the release as otherwise.
 *
 * $ZEROD_POISON=1 puts every client of a process into poison mode, so that a program need not be changed;
 * "0", or nothing, leaves it to the option.
 */

/*
 * Connects and shakes hands. `options` may be NULL.
 * Errors: INVALID (path too long, name, an environment variable), CONNECT, DISCONNECTED, DEADLINE, VERSION,
 * LIMIT (daemon full), PERMISSION, SYSTEM, UNSUPPORTED (strict, and pages of more than 4096 bytes; strict or
 * poison, and a daemon that does not know it): zerod_last_error(NULL) says.
 */
ZEROD_MUST_USE int zerod_connect(const struct zerod_options *options, zerod_client **client);

/* Ends the session: leases, buckets and allocations of a job that is not durable are freed. NULL is allowed.
 * All handles of the client become invalid. Blocks until host streams have drained, and GPUs' streams what
 * this library has put into them; work of the caller's that uses memory of the daemon must have ended. */
void zerod_close(zerod_client *client);

/* The text of this thread's last failure on `client` (NULL: on none), until its next call; "" if none. A
 * later call that failed before it knew its client, such as zerod_update_begin(NULL, 0), counts for every
 * client. */
const char *zerod_last_error(const zerod_client *client);

/* Clears the POISONED mark after the caller has synchronized its streams and discarded what it computed since
 * the abort. Streams whose waits were aborted take work again. What a failed group has left to this rank is
 * given up, as by zerod_backward_begin(). Where a group with shadows was set back to its last commit (see
 * zerod_commit()), this rank may go on with it from there. */
ZEROD_MUST_USE int zerod_session_reset(zerod_client *client, const struct zerod_wait_options *options);

struct zerod_device_info {
	size_t struct_size;
	uint32_t index;
	uint32_t reserved;        /* 0 */
	char name[64];            /* "host0", or the GPU's UUID */
	uint64_t arena_bytes;     /* what the daemon may hold on this device */
	uint64_t allocated_bytes; /* held by somebody: what is charged, in padded bytes */
	uint64_t gathered_bytes;  /* live gathered buffers, padded */
	uint64_t peak_bytes;      /* highest allocated_bytes since the daemon's start */
};

/* `device` counts from 0; NOT_FOUND past the last. */
ZEROD_MUST_USE int zerod_device_get(zerod_client *client, uint32_t device, struct zerod_device_info *info);

/*
 * Gives memory that the daemon holds on the device and nobody uses back to it: for a caller whose own
 * allocator runs out. Of this user's jobs (administrators': of all), until what the daemon holds there, in
 * use or not, is `keep_bytes` or less; copies that were prefetched and not asked for since go too. The
 * addresses of buffers that were released are not mapped any more then. `freed_bytes` (NULL: not wanted):
 * what the device has got back.
 * Waits for all processes that have the memory mapped: a thread of the library unmaps it there.
 * Errors: NOT_FOUND, DEADLINE (names a process that is stopped; its memory follows when it goes on).
 * Without a trim the memory is kept for the next gathers, and for what else finds no other.
 */
ZEROD_MUST_USE int zerod_trim(zerod_client *client, uint32_t device, uint64_t keep_bytes,
                              const struct zerod_wait_options *options, uint64_t *freed_bytes);

/* ---- Batching ----------------------------------------------------------------------------------
 * Between cork and uncork, requests of the *calling thread* that return tickets or are detached are collected
 * and sent together, as few packets as fit; uncork sends. Calls that wait send first. Nesting counts. */
void zerod_cork(zerod_client *client);
ZEROD_MUST_USE int zerod_uncork(zerod_client *client);

/* ---- Streams -----------------------------------------------------------------------------------
 * A stream is a first-in first-out sequence of work that runs asynchronously to its caller. Waits and
 * releases name streams, so that the daemon orders its own work against the trainer's without blocking
 * either's CPU. NULL in place of a stream means "the calling thread itself": a wait then blocks the
 * thread, and a release or commit says that all use has ended already. */

/* Streams of one client that have a handle, of both kinds: zerod_host.h has streams of the CPU, zerod_cuda.h
 * those of GPUs. */
#define ZEROD_MAX_STREAMS 256

/* Blocks until all that is in the stream has run. Errors: DEVICE, ABORTED (an abort has freed a wait). */
ZEROD_MUST_USE int zerod_stream_synchronize(zerod_stream *stream);
/* Drains and frees a host stream. Of a GPU's only the handle goes: what is in it runs on. NULL is allowed. */
void zerod_stream_destroy(zerod_stream *stream);

/* ---- Jobs and groups ----------------------------------------------------------------------------------- */

enum zerod_group_flags {
	ZEROD_GROUP_DURABLE = 1u << 0, /* the job's shards outlive its sessions, until zeroctl ends it */
	ZEROD_GROUP_SHADOW = 1u << 1,  /* with DURABLE: the last commit is kept, too, see zerod_commit() */
	ZEROD_GROUP_HYBRID = 1u << 2,  /* of several daemons: each has all shards, see zerod_group_join() */
};

/* How bytes travel between the ranks of one daemon. Between daemons NCCL carries them in either case. */
enum zerod_collectives {
	ZEROD_COLLECTIVES_COPIES = 0, /* the daemon's copies: no kernels, and gathers are one-sided */
	ZEROD_COLLECTIVES_NCCL = 1,   /* as between daemons, and under the same contract */
};

/* By which the ranks of a group that spans daemons find each other: bytes to be carried, as they are, from
 * the rank that made them to all others, by the job's launcher: a file, MPI, a key-value store. */
#define ZEROD_UNIQUE_ID_BYTES 4096
struct zerod_unique_id {
	unsigned char bytes[ZEROD_UNIQUE_ID_BYTES];
};

#define ZEROD_MAX_LOCAL_RANKS 16 /* of a group that spans daemons, in each of them */

struct zerod_group_options {
	size_t struct_size;
	const char *job;     /* a namespace of the caller's uid; 1..63 bytes of UTF-8 */
	const char *group;   /* name inside the job; 1..63 bytes; NULL: "world" */
	uint32_t world_size; /* 1..1024, of all daemons */
	/* Ranks in each daemon: ranks 0 to local_world_size - 1 in the first, and so on, as torchrun numbers
	 * them. world_size is a multiple of it. 0: all ranks are in this daemon. */
	uint32_t local_world_size;
	uint32_t rank;   /* 0..world_size-1 */
	uint32_t device; /* index on this node; several ranks may share a device */
	/* Which device, by the name that struct zerod_device_info has for it: a GPU's UUID as
	 * "GPU-12345678-1234-1234-1234-123456789abc", or a prefix that one device alone has. `device` is 0 or
	 * the number of the same device. NULL: `device` counts. */
	const char *device_uuid;
	/* The same on all ranks. Given if and only if the group spans daemons. */
	const struct zerod_unique_id *unique_id;
	enum zerod_collectives collectives;
	uint32_t flags;       /* enum zerod_group_flags */
	uint32_t deadline_ms; /* for the other ranks to come */
	uint32_t reserved;    /* 0 */
};

/*
 * Makes the id of one group that is to span daemons, with `local_world_size` ranks in each (1 to
 * ZEROD_MAX_LOCAL_RANKS). One rank calls it, usually rank 0, and all ranks, itself among them, give the same
 * bytes to zerod_group_join(). Each id serves one group once: a group that is joined again needs another one.
 * The ranks meet at the daemon that made it, which must run until all have joined; the session that asked may
 * end. It listens for them, at NCCL_SOCKET_IFNAME of its environment, as long as ranks have to meet
 * (timeout_s of its configuration); then the id is void. A call may take seconds: NCCL looks at the network.
 * Errors: INVALID, UNSUPPORTED (emulated devices), NOT_FOUND (no NCCL), LIMIT (ranks wait with sixteen ids of
 * this user, or too many ids of others are not used yet), DEVICE and SYSTEM (NCCL's words), DEADLINE.
 */
ZEROD_MUST_USE int zerod_unique_id(zerod_client *client, uint32_t local_world_size,
                                   const struct zerod_wait_options *options, struct zerod_unique_id *id);

/*
 * Joins as one rank and waits until every rank has. A rank whose process died may be replaced by joining
 * again with the same rank; the group then leaves the failed state.
 *
 * When a rank ends, the next call of each other rank about the group returns PEER_LOST with the lost rank's
 * name, once, also when it has been replaced meanwhile. The calls are those for gathers, updates, loads,
 * publishes, commits, scopes, buckets, backwards, steps, barriers and agreements; a call or ticket that was
 * waiting then counts, a prefetch's does not. Where several ranks have ended since, the text names up to four. Before that call a rank gathers nothing and contributes nothing. In a group with
 * shadows zerod_session_reset() counts as well. Calls that end something are carried out all the same.
 *
 * Where local_world_size is less than world_size, the group spans daemons, one a node in general: world_size
 * / local_world_size of them, each with the ranks n * local_world_size to (n + 1) * local_world_size - 1. All
 * calls for units, gradients and steps mean the same there, but gathers and reductions between daemons are
 * collectives, and their contract is NCCL's:
 *   - all ranks of a group ask for the same gathers, and commit the same gradients, in the same order, each
 *     within the time that the daemons give collectives ([collectives] timeout). A gather that joins a copy
 *     that is there, or on its way, is none; so all ranks also release in the same places of their programs.
 *     A prefetch takes its turn like any gather. Ranks that ask in different orders wait for each other until
 *     that time has passed, or get one unit's bytes for another's if these have the same size: daemons with
 *     [collectives] check find it, and name what both ranks asked for;
 *   - all ranks register the same units. A daemon compares its own ranks' only;
 *   - where ranks are in several groups like that, the order is over the gathers of all of them;
 *   - what is gathered is not written to: the daemon's other ranks take from it what came over the network;
 *   - a rank that goes or leaves, or gives up what others wait for, a collective that fails, or whose time
 *     passes, ends the group for good: what is outstanding and what comes later ends with PEER_LOST (or with
 *     MISMATCH, DEVICE, ABORTED, whichever it was) and a text that says what has happened. In the other
 *     daemons it ends when their next collective fails, or its time has passed. All ranks leave, and join
 *     again with a new unique_id; nobody is replaced, and nobody joins before all have left.
 * A group of one daemon that asks for ZEROD_COLLECTIVES_NCCL is bound by the same.
 *
 * With ZEROD_GROUP_HYBRID units are sharded over the ranks of each daemon alone, so that each has the whole
 * of them: rank r has the shard r % local_world_size of local_world_size. Gathers are those of one daemon, in
 * any order; gradients are summed over all daemons' ranks, and ranks with the same shard get the same bits.
 *
 * Errors: INVALID (SHADOW without DURABLE; HYBRID in one daemon, or with NCCL's collectives; world_size that
 * is no multiple of local_world_size, or more than ZEROD_MAX_LOCAL_RANKS of them; unique_id missing where the
 * group spans daemons, given where it does not, or made for fewer local ranks; device_uuid that several
 * devices have, or another one than `device`), NOT_FOUND (device or device_uuid: the text lists them), EXISTS
 * (the rank is taken; by which pid), MISMATCH (sizes, flags, collectives or unique_id differ from the first
 * joiner's; both are named), DEADLINE (names the missing ranks), LIMIT, ABORTED, UNSUPPORTED (the daemon has
 * no communicators), PEER_LOST (the ranks of the other daemons were not met). On GPUs: NOT_FOUND when this
 * process does not see the device (CUDA_VISIBLE_DEVICES, a container: the text names it and those that it
 * sees), UNSUPPORTED and DEVICE in the driver's words, UNSUPPORTED when device_uuid is a MIG instance, which
 * has no peer access to other GPUs.
 */
ZEROD_MUST_USE int zerod_group_join(zerod_client *client, const struct zerod_group_options *options,
                                    zerod_group **group);
/* As this rank knows it from its join and from its own commits since. */
struct zerod_group_info {
	size_t struct_size;
	uint64_t committed_step; /* the last one; 0: none */
	int torn;                /* an update after it was never committed: restore all units and commit */
	uint32_t reserved;       /* 0 */
};

ZEROD_MUST_USE int zerod_group_get(zerod_group *group, struct zerod_group_info *info);

/*
 * A barrier: waits until every rank of the group has called it as often as this rank has. Without one, a
 * rank that ends first is PEER_LOST to the ranks that still work; a rank that has passed a last barrier may
 * leave or end at once. Only calls are ordered: work in streams is not waited for.
 *
 * `ticket` NULL: blocks. Else returns at once, and zerod_wait(client, *ticket, NULL, NULL) waits; a rank may
 * be several barriers ahead of others. A call that ends with an error does not count: when its deadline has
 * passed, the other ranks still wait for this one.
 *
 * In a group that spans daemons or has NCCL's collectives a rank waits at one barrier at a time, and not
 * while its backward, its zerod_step_begin() or its zerod_commit() is under way. A deadline that passes after
 * all ranks of the daemon have come ends such a group.
 * Errors: INVALID, PEER_LOST, ABORTED, DEADLINE (names the first rank that is missing), LIMIT (too many
 * requests are outstanding), STATE (other work is under way, see above).
 */
ZEROD_MUST_USE int zerod_group_barrier(zerod_group *group, const struct zerod_wait_options *options,
                                       zerod_ticket *ticket);

/* Leaves; what this rank holds in the group is freed as at session end. The handle, its units and buckets
 * become invalid, whatever is returned but DEADLINE: then the call may be repeated. NULL is allowed. */
int zerod_group_leave(zerod_group *group, const struct zerod_wait_options *options);

/* ---- Units --------------------------------------------------------------------------------------------- */

#define ZEROD_MAX_DIMS 8
#define ZEROD_NO_SLOT  0

/* A tensor inside a unit: `offset_numel` elements from the gathered buffer's start, of this shape. A zero
 * in the shape makes an empty view; ndim 0 is a scalar. Views may overlap. */
struct zerod_view {
	size_t struct_size;
	const char *name; /* unique in the unit; 1..127 bytes of UTF-8 */
	uint64_t offset_numel;
	uint32_t ndim;
	uint32_t reserved; /* 0 */
	uint64_t shape[ZEROD_MAX_DIMS];
};

enum zerod_unit_flags {
	ZEROD_UNIT_PERSISTENT = 1u << 0, /* the gathered copy survives its last release */
	ZEROD_UNIT_FROZEN = 1u << 1,     /* has no gradient: no part in targets */
	ZEROD_UNIT_ALL_REDUCE =
	        1u << 2, /* all ranks get the whole reduced gradient, see zerod_target_get() */
};

struct zerod_unit_options {
	size_t struct_size;
	const char *name; /* unique in the group; 1..127 bytes of UTF-8 */
	uint64_t numel;   /* elements of the whole unit, at least 1 */
	enum zerod_dtype dtype;
	uint32_t nviews; /* 0: one view of shape {numel} with the unit's name */
	const struct zerod_view *views;
	uint32_t slot;  /* ZEROD_NO_SLOT, or 1..: gathered at the slot's fixed address */
	uint32_t flags; /* enum zerod_unit_flags */
	uint32_t deadline_ms;
	uint32_t reserved; /* 0 */
};

/*
 * Registers this rank's part and allocates its zeroed shard. All ranks register the same units, in any order.
 * shard_numel is ceil(numel / world_size), rounded up so that a shard's bytes are a multiple of 256; the
 * gathered buffer has world_size * shard_numel elements, of which the first numel are real. (In a hybrid
 * group: of local_world_size, here and in what follows.) Registering twice identically returns a second
 * handle. A unit that all ranks have unregistered may be registered anew; that waits for what still uses it.
 * Errors: INVALID, MISMATCH (both ranks and both descriptions are named), NO_MEMORY, QUOTA, LIMIT, PEER_LOST.
 */
ZEROD_MUST_USE int zerod_unit_register(zerod_group *group, const struct zerod_unit_options *options,
                                       zerod_unit **unit);
/* Unregisters this rank's part. Errors: BUSY while it is leased, updated or reduced, and while the bound
 * target has a place for it, from zerod_backward_begin() to zerod_step_end(). */
ZEROD_MUST_USE int zerod_unit_unregister(zerod_unit *unit, const struct zerod_wait_options *options);

struct zerod_shard {
	size_t struct_size;
	void *data;            /* shard_numel elements, mapped in this process */
	uint64_t shard_numel;  /* equal for all ranks, padding included */
	uint64_t true_numel;   /* of which are real; the rest is zero and stays so; may be 0 */
	uint64_t offset_numel; /* of the shard's first element in the unit */
	uint64_t version;      /* last published; 0: never. Older if the group was set back: register again */
	uint64_t padded_numel; /* world_size * shard_numel */
	enum zerod_dtype dtype;
	uint32_t reserved; /* 0 */
};

ZEROD_MUST_USE int zerod_shard_get(zerod_unit *unit, struct zerod_shard *shard);

/*
 * Begins an update of this rank's shards of `count` units: returns when no gather reads them any more, and
 * gathers asked for later wait for the new version. The shards may then be written. Publishes of these units
 * that have a ticket and are not answered yet are waited for first.
 * With a `ticket` the call does not wait for gathers. zerod_wait() with the ticket blocks until no transfer to
 * another rank reads the shards any more; they may be written after it, or on the stream that it was given. A
 * publish before that wait returns STATE. LIMIT: too many requests are outstanding.
 * Where the gathered buffer is the shard (see zerod_gather_begin()), the update comes behind the streams of
 * past releases: the call without a ticket waits for them, and zerod_wait() with a stream makes the stream
 * wait in place of the caller. It is BUSY while a lease is outstanding: which tags.
 * Errors, and no shard is under update: STATE (one is already), BUSY, POISONED, DEADLINE, PEER_LOST.
 */
ZEROD_MUST_USE int zerod_update_begin(zerod_unit *const *units, uint32_t count,
                                      const struct zerod_wait_options *options, zerod_ticket *ticket);

enum zerod_publish_flags {
	ZEROD_PUBLISH_FORCE = 1u << 0, /* even with leases outstanding on this rank's gathered copy */
};

struct zerod_publish_options {
	size_t struct_size;
	uint32_t flags; /* enum zerod_publish_flags */
	uint32_t deadline_ms;
};

/*
 * Ends the update: the shards have their new content once all work now in `streams` has run (none: they have
 * it already); the version rises by one and gathered copies of this rank become stale.
 * Every rank publishes every version of every unit, empty and unchanged shards included.
 * With a `ticket` the call does not wait for `streams`. The ticket need not be waited for: gathers of the new
 * version that are asked for later are answered at once, and their copies begin when all ranks' streams have
 * come so far. zerod_wait() with the ticket (stream and data NULL) returns when the version is published. An
 * error of a ticket's publish leaves the update open, and frees the streams of gathers that wait for it, as
 * after an abort.
 * Errors, and nothing is published: STATE (no update), BUSY (leases outstanding; which tags), POISONED.
 */
ZEROD_MUST_USE int zerod_publish(zerod_unit *const *units, uint32_t count, zerod_stream *const *streams,
                                 uint32_t nstreams, const struct zerod_publish_options *options,
                                 zerod_ticket *ticket);

/* What becomes a rank's shard of one unit. */
struct zerod_source {
	size_t struct_size;
	zerod_unit *unit;
	const void *data; /* true_numel elements, see zerod_publish_from(); may be NULL where that is 0 */
};

/*
 * Fills the shards of `count` units under update from sources of another dtype, then publishes them: an
 * optimizer keeps float32 masters, and what travels is narrowed first. Each source has the shard's true_numel
 * elements of `source_dtype`, beginning with this rank's first; the shard's padding stays zero. The data are
 * read in the order of `stream` (NULL: by the calling thread), and must stay as they are until this returns
 * 0, or after an error until `stream` has run what was in it. The publish waits for the stream's work up to
 * here, as in zerod_publish(); `options` and `ticket` are the same.
 *
 * float32, float16 and bfloat16 are converted to all floating dtypes, rounded once to nearest, ties to even.
 * What is beyond the largest finite value becomes infinity, or nan in float8_e4m3, which has no infinity (as
 * PyTorch's float8_e4m3fn); nan stays nan. Equal dtypes, integers and bool too, are copied byte by byte.
 *
 * On emulated devices the data lie anywhere in this process' memory, zerod_alloc()'s included, and `stream`
 * is a host stream. On GPUs they lie in memory that the shard's GPU can read; a kernel converts them, on
 * `stream` or, where that is NULL, on one of the library's. Streams of another context than the GPU's primary
 * one only copy. Data that are aligned to 16 bytes are read fastest.
 *
 * Errors, with nothing converted: INVALID (data NULL, not aligned for their dtype, or overlapping their
 * unit's shard; a stream that is not of the shards' GPU), UNSUPPORTED (names both dtypes; or the reason why
 * the GPU or the stream cannot run kernels), STATE (no update of this client is open; in a group with shadows
 * zerod_session_reset() ends it; the stream takes no work), POISONED, LIMIT. Errors of zerod_publish(), and
 * DEVICE: nothing is published, shards may have been written, and the update stays open.
 */
ZEROD_MUST_USE int zerod_publish_from(const struct zerod_source *sources, uint32_t count,
                                      enum zerod_dtype source_dtype, zerod_stream *stream,
                                      const struct zerod_publish_options *options, zerod_ticket *ticket);

/*
 * Brings what one rank has read, from a checkpoint say, on the shards of all ranks. Every rank of the group
 * calls it, with the unit under update (zerod_update_begin()). Exactly one gives `data`: the unit's numel
 * elements of its dtype, one behind the other; all others give NULL. Each shard then has its elements, byte
 * by byte, in every dtype; its padding stays zero. zerod_publish() makes them visible; a rank may write its
 * shard before that, and load it again.
 * The data are read in the order of `stream` (NULL: by the calling thread), and must stay as they are until
 * this returns 0 and the stream has run what was in it. On emulated devices they lie anywhere in this
 * process' memory, and `stream` is a host stream; on GPUs they lie in memory that the rank's GPU can read.
 * Ranks without data give any stream: it is not used. The rank with data needs as much memory again for the
 * call, charged as an allocation named "unit_load", and waits for it also where a `ticket` is given.
 * With a `ticket` the call does not wait for the other ranks. zerod_wait() with the ticket (stream and data
 * NULL) returns when the shard is complete. Until then nobody writes it, and it cannot be published.
 * Errors, with no shard written: INVALID (data not aligned for the dtype; a stream that is not of the rank's
 * GPU), STATE (no update is open; the rank loads the unit already), MISMATCH on all ranks (two ranks with
 * data, which; or none), NO_MEMORY and QUOTA (with the sizes), UNSUPPORTED (the group spans daemons, or its
 * collectives are NCCL's), PEER_LOST, POISONED, DEADLINE (names the rank that has not called), LIMIT.
 * DEVICE, on all ranks: shards may have been written. The update stays open after every error.
 */
ZEROD_MUST_USE int zerod_unit_load(zerod_unit *unit, const void *data, zerod_stream *stream,
                                   const struct zerod_wait_options *options, zerod_ticket *ticket);

/*
 * Marks everything published as one finished step, atomically over all ranks and units of the group: waits
 * until every rank has called it with the same `step`.
 * Errors: MISMATCH (another rank commits another step), STATE (an update is open; versions differ between
 * ranks; committed already), POISONED, PEER_LOST, DEADLINE.
 *
 * In a group that spans daemons, a commit that fails because the group has ended may have been made in other
 * daemons. In a durable job all ranks go on from the same one all the same, when they have joined again: from
 * this one if any daemon has made it, else from the one before. zerod_group_get() says which. A
 * zerod_update_begin() during a commit waits until it has ended.
 *
 * A group with ZEROD_GROUP_SHADOW goes back to its last commit when a rank goes: shards and versions, on all
 * ranks, are then what they were at that commit (or at their registration, if that came later), and nothing
 * is torn. Each shard has a second block of its size, charged as shard bytes; the first zerod_update_begin()
 * after a commit waits until the shard is copied there, and a commit itself copies nothing. A rank that
 * stays, and has published or begun an update since the commit, gets PEER_LOST from gathers, updates,
 * publishes and commits until it has synchronized its streams, dropped what it computed and called
 * zerod_session_reset(), which returns when its shards are back; what it had under update is not any more. A
 * rank that leaves must not write its shards any longer.
 */
ZEROD_MUST_USE int zerod_commit(zerod_group *group, uint64_t step, const struct zerod_wait_options *options);

/*
 * Makes the gathered copy survive its last release, or not. May be called at any time. In a group that spans
 * daemons all ranks are to keep the same copies: it counts from behind what was asked of the unit before.
 */
ZEROD_MUST_USE int zerod_unit_set_persistent(zerod_unit *unit, int persistent);

/*
 * Changes where this rank gathers the unit: into `slot`, or with ZEROD_NO_SLOT into no slot. Between two uses
 * of the unit: nobody holds its gathered copy, and no gather of it waits or is under way. A persistent or
 * prefetched copy that is there goes; the next gather makes another one. Ranks need not change it at the same
 * moment, nor all to the same slot; where gathers are collectives, all ranks change it at the same place of
 * their programs. A rank that registers the unit later gives the slot of the first registration, and changes
 * it by this call.
 * A slot that gets a unit larger than all before has another address from that unit's next gather on. The
 * block of a slot goes with the last unit that leaves it.
 * Errors, and nothing is changed: BUSY (names the tags that hold the copy, or the gather), LIMIT (`slot`).
 */
ZEROD_MUST_USE int zerod_unit_set_slot(zerod_unit *unit, uint32_t slot);

/*
 * Freezes the unit on this rank, so that it has no gradient, or unfreezes it. Between the end of a step and
 * the next zerod_backward_begin(). All ranks make the same change before their next backward: the first rank
 * that begins one counts, and a rank that begins the same one otherwise gets MISMATCH with the unit and both
 * ranks. (A daemon compares its own ranks only.) A rank that registers the unit later gives the flag of the
 * first registration, and changes it by this call.
 * An unfrozen unit has a place at the end of the targets, or its former one. The place of a frozen unit is
 * given back when all ranks have frozen it and it is the last; else the targets keep it, unused.
 * Errors, and nothing is changed: STATE (a backward has begun whose step has not ended), LIMIT.
 */
ZEROD_MUST_USE int zerod_unit_set_frozen(zerod_unit *unit, int frozen);

/* ---- Gather and release -------------------------------------------------------------------------------- */

enum zerod_gather_flags {
	ZEROD_GATHER_PREFETCH = 1u << 0, /* no lease: a later gather finds the bytes under way or there.
	                                    Yields its memory to gathers that need it; not in a group that
	                                    spans daemons, unless that is hybrid. */
	ZEROD_GATHER_NO_SLOT =
	        1u << 1, /* a copy that this gather makes is placed outside the unit's slot. One
	                                    that is there already is joined where it is, as is this one by
	                                    gathers without the flag. */
};

struct zerod_gather_options {
	size_t struct_size;
	const char *tag;   /* the holder's name, 1..31 bytes, no '@' in front; NULL: "default" */
	zerod_scope scope; /* holds the copy in place of a tag: then no tag, one use, no prefetch */
	uint64_t version;  /* exact version; 0: the newest, at least what this rank last published */
	uint32_t uses;     /* releases that end the lease; 0: 1 */
	uint32_t flags;    /* enum zerod_gather_flags */
	uint32_t deadline_ms;
	uint32_t reserved; /* 0 */
};

/*
 * Asks for this rank's gathered copy of the unit. Returns at once; `options` may be NULL. The ticket is
 * waited for with zerod_wait(). Gathers of a copy that is there, or on its way, join it: one transfer, any
 * number of leases. No other rank takes part, unless the group spans daemons (see zerod_group_join()). Each
 * gather that succeeds adds `uses` releases to the lease of (session, tag). It waits until every rank has
 * registered the unit and asked to publish the version: of a unit that was never published, version 1.
 *
 * The address is given while the memory is still read, and while the version is still being published: the
 * bytes then come behind the streams that released the memory and behind those of the publishes, and the
 * waiting stream comes behind the bytes. So a program may enqueue far ahead of its streams. The address has
 * to wait for calls that were not made yet: releases, and publishes of other ranks. It also waits for streams
 * in strict clients, in groups that span daemons, and where the memory was another process's or has another
 * size.
 *
 * The buffer is for reading. Where a unit has one shard in this daemon (world_size 1, or a hybrid group with
 * one rank in each daemon), the gathered buffer is the shard: at the address of zerod_shard_get(), with or
 * without a slot (there is no SLOT_CONFLICT), and with no copy, budget or charge of its own. So an update
 * must wait for its readers, see zerod_update_begin(), and a persistent buffer that nobody has leased shows
 * what an update writes. A stream that waits for a gather behind a publish comes behind the publish's
 * streams. Strict clients, clients in poison mode, groups with ZEROD_GROUP_SHADOW and those with
 * ZEROD_COLLECTIVES_NCCL still get copies.
 *
 * Errors here: INVALID, LIMIT, DISCONNECTED. Errors at the wait: STALE_VERSION, SLOT_CONFLICT, NO_MEMORY
 * (can never fit), QUOTA, PEER_LOST, MISMATCH, TORN, DEADLINE.
 */
ZEROD_MUST_USE int zerod_gather_begin(zerod_unit *unit, const struct zerod_gather_options *options,
                                      zerod_ticket *ticket);

/*
 * Completes a ticket. For a gather: makes `stream` (NULL: the calling thread) wait for the bytes and returns
 * the gathered buffer's address in *data: padded_numel elements, valid until the lease is released. Work that
 * is appended to the stream afterwards sees the bytes. Blocks the caller only until the daemon has placed the
 * buffer. Waiting again is harmless; after the release it returns STALE. For tickets of other calls `stream`
 * (but for zerod_update_begin()) and `data` must be NULL, and the first wait consumes the ticket; so it is
 * with a prefetch, which has no address (*data is NULL). `data` may be NULL. The stream must be of the
 * unit's GPU (INVALID names both).
 * On GPUs a rank's own slice may be left to its own GPU, a small one to the first stream that waits:
 * zerod_update_begin() waits until that stream has come to it.
 * ABORTED, here or when the stream is synchronized: an abort has freed the wait. The lease is still held.
 */
ZEROD_MUST_USE int zerod_wait(zerod_client *client, zerod_ticket ticket, zerod_stream *stream, void **data);

/*
 * Completes `count` tickets (at most ZEROD_MAX_TICKETS; 0: nothing) like zerod_wait(), at the price of little
 * more than one: the stream is told once what to wait for. `data` has room for `count` addresses, or is NULL.
 * The same ticket may be given twice. When the daemon refused one, the text says which, the first if several:
 * "tickets[3]: ...". The stream has been told nothing then, and no address is given out. If the one that
 * failed is a release's or a prefetch's, it is consumed; all others may be waited for again.
 * Errors: those of zerod_wait(), LIMIT. With STALE or INVALID no ticket has been waited for.
 */
#define ZEROD_MAX_TICKETS 1024
ZEROD_MUST_USE int zerod_wait_many(zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                                   zerod_stream *stream, void **data);

/* zerod_gather_begin() and zerod_wait() in one. */
ZEROD_MUST_USE int zerod_gather(zerod_unit *unit, const struct zerod_gather_options *options,
                                zerod_stream *stream, void **data);

enum zerod_release_flags {
	/* Nothing waits for the answer, and there is no ticket: a failure is returned by the client's next
	 * call after the answer was read, with the unit's name. */
	ZEROD_RELEASE_DETACHED = 1u << 0,
};

struct zerod_release_options {
	size_t struct_size;
	const char *tag; /* of the gather; NULL: "default" */
	uint32_t flags;  /* enum zerod_release_flags */
	uint32_t deadline_ms;
};

/*
 * Releases one use of the lease of (session, tag). The bytes are not reused before all work
 * now in `streams` has run; accounting falls at once. With `ticket` NULL the call waits for the daemon's
 * answer, unless it is DETACHED; otherwise it returns at once and the ticket tells. When the daemon refuses a
 * detached release, the client's next call returns that failure, once, and is not carried out itself. Calls
 * that end or free something, calls on streams alone and zerod_uncork() do not report it.
 * Errors: NOT_HELD (nothing is changed), INVALID (a ticket for a detached release), LIMIT (see above).
 */
ZEROD_MUST_USE int zerod_release(zerod_unit *unit, zerod_stream *const *streams, uint32_t nstreams,
                                 const struct zerod_release_options *options, zerod_ticket *ticket);

/*
 * Releases one use of each of `count` units of one client (at most ZEROD_MAX_TICKETS; 0: nothing) under one
 * tag, with one fence per stream for all of them. A unit may be given as often as it is held. With `tickets`
 * NULL the call waits for all answers; otherwise it returns at once, and tickets[i] tells of units[i].
 * Errors: INVALID and LIMIT, when nothing is released. NOT_HELD names the first unit that was not held; all
 * others are released, since each is a request of its own.
 */
ZEROD_MUST_USE int zerod_release_many(zerod_unit *const *units, uint32_t count, zerod_stream *const *streams,
                                      uint32_t nstreams, const struct zerod_release_options *options,
                                      zerod_ticket *tickets);

/* ---- Gathering outside the plan ---------------------------------------------------------------------------
 * A plan gathers under its tag and releases under its tag. Code that nobody planned for - frames that a
 * compiler skips, a program that looks at its weights - cannot know when the last user is done. It gathers in
 * a scope, which holds each unit once however often it is gathered there; all end together, with the scope.
 * No release under a tag touches what a scope holds, nor the other way round, and the storage is freed with
 * its last holder of any kind. zeroctl shows holders of this kind as "@scope 12", "@claim 12" and "@context
 * 12", and counts what forward scopes had to gather.
 *
 *     zerod_forward_begin(group, none, NULL, 0, &scope);
 *     options.scope = scope;                       // of struct zerod_gather_options
 *     zerod_gather(unit, &options, stream, &data); // as often as the frame touches it
 *     zerod_forward_end(client, scope, grad, &stream, 1);
 *     ...                                          // if grad: gathers in the scope find the weights there
 *     zerod_claim_end(client, scope, &stream, 1);
 *
 * In all of these `streams` are those that may still use what ends: as for zerod_release(), the bytes are not
 * reused before all work now in them has run, and accounting falls at once. An error changes nothing. A scope
 * goes with its rank's membership; at most 1024 at a time. Gathers in it that were begun are waited for.
 */

/*
 * Begins a forward pass, nested in the open scope `parent` or, with {0}, outermost. A rank runs one outermost
 * forward at a time: scopes that are still open then were left by a forward that raised an exception, and end
 * here, with `streams`, unless a claim is outstanding - whose backward may yet run a part of such a forward
 * again. They stay then until the next outermost forward or zerod_scope_abandon().
 * Errors: INVALID and STATE (parent: a context, of another group, not open), NOT_FOUND, LIMIT, PEER_LOST.
 */
ZEROD_MUST_USE int zerod_forward_begin(zerod_group *group, zerod_scope parent, zerod_stream *const *streams,
                                       uint32_t nstreams, zerod_scope *scope);

/*
 * Ends the scope's forward pass. With `grad` a backward will follow: the scope becomes a claim and holds what
 * it has, with or without `streams`, until zerod_claim_end(). Gathers in it still work. Else it ends.
 * Errors: STATE (the forward has ended; an open scope is nested: which), INVALID (a context), NOT_FOUND.
 */
ZEROD_MUST_USE int zerod_forward_end(zerod_client *client, zerod_scope scope, int grad,
                                     zerod_stream *const *streams, uint32_t nstreams,
                                     const struct zerod_wait_options *options);

/* The backward of this claim is over. Other claims are not concerned: two forwards may come before their
 * backwards, in any order. Errors: STATE (the forward has not ended), INVALID (a context), NOT_FOUND. */
ZEROD_MUST_USE int zerod_claim_end(zerod_client *client, zerod_scope claim, zerod_stream *const *streams,
                                   uint32_t nstreams, const struct zerod_wait_options *options);

/* Drops an open scope with all open ones nested in it, or a claim: its forward raised an exception, or its
 * backward will not come. Claims of forwards that were nested in it stay. Waiting gathers end with NOT_FOUND.
 * Errors: INVALID (a context), NOT_FOUND. */
ZEROD_MUST_USE int zerod_scope_abandon(zerod_client *client, zerod_scope scope, zerod_stream *const *streams,
                                       uint32_t nstreams);

/*
 * Gathers `count` units (1..1024, of one group) as a whole, and holds them until zerod_context_end(). When
 * one cannot be had, or not in time, none is held. Addresses come from gathers that name the context.
 * Contexts of a rank may be nested, and end in any order, if no unit is in two of them.
 * Errors: EXISTS (a unit is in another context: which, and in which), INVALID (twice in this one, of another
 * group), NO_MEMORY (more than the gather budget), DEADLINE, and those of zerod_gather().
 */
ZEROD_MUST_USE int zerod_context_begin(zerod_unit *const *units, uint32_t count,
                                       const struct zerod_wait_options *options, zerod_scope *context);
/* Errors: INVALID (a forward scope), NOT_FOUND. */
ZEROD_MUST_USE int zerod_context_end(zerod_client *client, zerod_scope context, zerod_stream *const *streams,
                                     uint32_t nstreams, const struct zerod_wait_options *options);

/* ---- Reduce -------------------------------------------------------------------------------------------- */

enum zerod_backward_flags {
	ZEROD_BACKWARD_DETACHED =
	        1u << 0, /* as ZEROD_RELEASE_DETACHED; what depends on it fails with STATE */
};

struct zerod_backward_options {
	size_t struct_size;
	uint32_t stage;                /* ZeRO stage 1, 2 or 3; 0: 3 */
	int boundary;                  /* stage 1: the last micro-step before the optimizer's step */
	enum zerod_dtype target_dtype; /* of the reduced gradients: float32 (0), float16 or bfloat16 */
	uint32_t deadline_ms;
	uint32_t flags;    /* enum zerod_backward_flags */
	uint32_t reserved; /* 0 */
};

/*
 * Begins a backward pass of this rank. The backwards between two steps form a window. All ranks run the same
 * number of them, in the same stage, into the same dtype. In stages 2 and 3 every backward reduces, and
 * zerod_step_begin() closes the window, whatever `boundary` says. In stage 1 only the boundary reduces, and
 * the step follows it. Binds the step-local target (one flat buffer): at the first backward of a window in
 * stages 2 and 3, at the boundary in stage 1, where reducing off a boundary is an error. A unit's first
 * reduction after that overwrites its place. When the group fails (PEER_LOST, ABORTED) its backward and step
 * are over on all ranks, but entries that this rank has reserved and not committed, and the target of a step
 * that it has begun, stay in place and charged: its streams may use them still. Each is given back by its
 * zerod_bucket_submit() or zerod_step_end(), with its streams; the rest by zerod_bucket_destroy(),
 * zerod_session_reset(), by leaving the group, and by this call but for PEER_LOST. So begin one only when the
 * failed one's streams are empty.
 * MISMATCH: ranks differ in stage, dtype or boundary (nothing has changed), or another rank has begun the
 * step after fewer backwards (the text has both counts). The latter fails the window, as failed reductions
 * do: no rank takes its step. Each rank is told by its next zerod_backward_begin(), zerod_backward_end() or
 * zerod_step_begin(), and leaves the window by zerod_step_begin() or, once it was told, by its next
 * zerod_backward_begin(). A group that spans daemons ends instead.
 * Waits until the rank's last step has ended, see zerod_step_end(). DETACHED it waits for nothing else, and
 * calls of the backward may follow at once, in the same packet.
 * Errors: STATE (a backward or a step runs; stage 1: the step is next), MISMATCH, NO_MEMORY, QUOTA,
 * PEER_LOST, POISONED, and those of a window that has failed.
 */
ZEROD_MUST_USE int zerod_backward_begin(zerod_group *group, const struct zerod_backward_options *options);

struct zerod_bucket_options {
	size_t struct_size;
	enum zerod_dtype dtype; /* of the gradients: any floating one */
	uint32_t nslots;        /* 0: 2; at most 16 */
	uint64_t slot_bytes;    /* 0: 32 MiB; rounded up to a multiple of 256 */
};

/* Creates a bucket for this rank. Storage is taken at the first reservation of a backward and given back when
 * the backward has ended. Errors: INVALID, UNSUPPORTED (dtype), LIMIT. */
ZEROD_MUST_USE int zerod_bucket_create(zerod_group *group, const struct zerod_bucket_options *options,
                                       zerod_bucket **bucket);
/* Errors: BUSY while entries are not reduced yet. Those of a failed group go: see zerod_backward_begin(). */
ZEROD_MUST_USE int zerod_bucket_destroy(zerod_bucket *bucket);

enum zerod_reserve_flags {
	ZEROD_RESERVE_ZERO_HOLES = 1u << 0, /* elements that no view of the unit covers are zeroed */
	ZEROD_RESERVE_ACCUMULATE = 1u << 1, /* further gradients of the unit may come in this backward */
};

struct zerod_reserve_options {
	size_t struct_size;
	zerod_stream
	        *stream; /* waits, in place of the caller, until the room may be written; NULL: none does */
	uint32_t flags;  /* enum zerod_reserve_flags */
	uint32_t deadline_ms;
};

struct zerod_entry {
	size_t struct_size;
	uint64_t id;
	void *data; /* padded_numel elements of the bucket's dtype: the unit's numel are the caller's to
	                          write, all of them; the padding behind them is zero */
	uint64_t padded_numel; /* world_size * shard_numel of the unit */
	int accumulates;       /* 1: it holds earlier gradients of the unit; add to them */
	uint32_t reserved;     /* 0 */
};

/*
 * Reserves room for the gradient of `unit` in the bucket's open slot, or in a buffer of its own if it is
 * larger than a slot. The caller writes the unit's elements; the padding is zero, and so are the holes
 * between its views with ZERO_HOLES.
 *
 * Without a stream the call returns when the room may be written: when the slot's former entries have been
 * read. With a stream it returns as soon as that depends on no further call of any rank, and work appended to
 * the stream from then on runs when the room may be written: write the entry on that stream, or behind it.
 * The call still blocks while a rank has neither committed nor skipped the unit of a former entry, while
 * a former entry waits for staging memory, and in groups that span daemons.
 *
 * ACCUMULATE is for a unit that has several gradients in one backward of a rank, as tied weights have. It is
 * given with each of the unit's reservations in that backward, in the same bucket, the first one included;
 * ranks need not have the same number of them. The first reservation is as any other, and its commit returns
 * without handing the entry over. A later one, behind that commit, returns the same entry (id and address)
 * with `accumulates` set: the caller adds its gradient to the elements, on a stream that runs behind the
 * streams that wrote them, or that does so itself; the library orders the caller's streams only behind the
 * room, and never behind each other. zerod_backward_end() hands the entry over, with the streams of all its
 * commits. Until then the entry holds its place in the bucket, as one that is not committed does (CAPACITY),
 * and other ranks' gradients of the unit are not reduced. An entry whose group fails is given back by
 * zerod_backward_end() as well. Where gradients are collectives (see zerod_group_join()), all ranks give
 * ACCUMULATE for the same units, which they first reserve in the same order.
 *
 * After an error the call may be repeated. Room that the daemon reserved for a call that ended with DEADLINE,
 * or that could not be awaited, is handed out by the next call for the unit.
 * Errors: INVALID (a stream of another client or GPU), STATE (no backward; stage 1 off a boundary;
 * ACCUMULATE while an earlier gradient of the unit is not committed), DUPLICATE (the rank has contributed, or
 * holds the unit's entry, and not each of its reservations had ACCUMULATE), CAPACITY (ranks and units),
 * NO_MEMORY, PEER_LOST, DEADLINE; without a stream DEVICE (zeroing).
 */
ZEROD_MUST_USE int zerod_bucket_reserve(zerod_bucket *bucket, zerod_unit *unit,
                                        const struct zerod_reserve_options *options,
                                        struct zerod_entry *entry);

enum zerod_reduce_op { ZEROD_SUM = 0, ZEROD_MEAN = 1 };
enum zerod_reduce_flags {
	ZEROD_REDUCE_OVERWRITE = 1u << 0, /* replace the target's content; default: add to it */
	ZEROD_REDUCE_DETACHED = 1u << 1,  /* no answer is awaited: the client's next call reports a failure */
	ZEROD_REDUCE_ACCUMULATE = 1u << 2, /* zerod_reduce(): as ZEROD_RESERVE_ACCUMULATE */
};

struct zerod_reduce_options {
	size_t struct_size;
	enum zerod_reduce_op op;
	float prescale; /* every input is multiplied by it in float32 before the sum; 0: 1.0 */
	uint32_t flags; /* enum zerod_reduce_flags */
	uint32_t deadline_ms;
	uint32_t nabsent;       /* views of the unit that have no gradient: this rank contributes zeros */
	uint32_t reserved;      /* 0 */
	const uint32_t *absent; /* their indices; such a view need not be written */
};

/*
 * Hands the entry over for reduction once all work now in `streams` - every stream that wrote it - has run.
 * When all ranks have committed (or skipped) the unit in this backward, each owner's slice is summed in
 * float32 in rank order (in a group that spans daemons: in each of them, then over the daemons in their
 * order) and added to its target: on a GPU by the owner's own, on a stream of the library's, whatever its
 * process is doing; one that is stopped holds up its slices. `options` may be NULL; op, prescale and
 * OVERWRITE must be equal on all ranks. Absent views are zeroed by the daemon once `streams` have run.
 * Returns when the daemon has taken it; with a ticket or DETACHED at once. The ticket is for zerod_wait()
 * without a stream.
 * An entry that was reserved with ACCUMULATE takes further gradients until zerod_backward_end() hands it
 * over: this call notes the streams, and the ticket is answered at once. All commits of the entry have the
 * same op, prescale and OVERWRITE (MISMATCH), and no absent views (INVALID: add zeros instead). At most 64
 * streams (LIMIT). The client's call behind zerod_backward_end() reports a hand-over that failed; the entry
 * is still reserved then, and this call, without DETACHED, repeats it.
 * Errors: INVALID (an index in `absent` that is out of range or given twice: which), NOT_FOUND (no such
 * entry), STATE (committed already), MISMATCH, PEER_LOST and ABORTED (the group has failed since: the entry
 * is not reduced, but given back once all work now in `streams` has run).
 */
ZEROD_MUST_USE int zerod_bucket_submit(zerod_bucket *bucket, uint64_t entry_id, zerod_stream *const *streams,
                                       uint32_t nstreams, const struct zerod_reduce_options *options,
                                       zerod_ticket *ticket);

/*
 * Reduces a gradient that lies in memory of the caller's: reserves room with `stream` as
 * zerod_bucket_reserve() does, copies the unit's numel elements, of the bucket's dtype, from `data` on
 * `stream`, and commits. `data` must stay as it is until the copy has run. On GPUs it is an address that
 * the stream's GPU reaches. With ACCUMULATE (see zerod_bucket_reserve()) a further gradient is added on
 * `stream`, element by element in float32 and rounded to the bucket's dtype. On GPUs that is UNSUPPORTED:
 * reserve with ACCUMULATE, and add there.
 * Errors: INVALID (data NULL or misaligned; stream NULL, of another client, kind or GPU), and those of
 * zerod_bucket_reserve() and zerod_bucket_submit().
 */
ZEROD_MUST_USE int zerod_reduce(zerod_bucket *bucket, zerod_unit *unit, const void *data,
                                zerod_stream *stream, const struct zerod_reduce_options *options,
                                zerod_ticket *ticket);

enum zerod_skip_flags {
	ZEROD_SKIP_DETACHED = 1u << 0, /* as ZEROD_REDUCE_DETACHED */
};

struct zerod_skip_options {
	size_t struct_size;
	uint32_t flags; /* enum zerod_skip_flags */
	uint32_t deadline_ms;
};

/* This rank has no gradient for the unit in this backward: it contributes zeros. Errors as for reserve. What
 * one rank commits and all others skip comes to all targets as it is: weights that one rank has read. */
ZEROD_MUST_USE int zerod_reduce_skip(zerod_unit *unit, const struct zerod_skip_options *options,
                                     zerod_ticket *ticket);

enum zerod_backward_end_flags {
	/* Units that other ranks reduce in this backward, before or after this call, and that this rank has
	 * neither reduced nor skipped, it skips. Not in a group that spans daemons. */
	ZEROD_BACKWARD_SKIP_REST = 1u << 0,
};

struct zerod_backward_end_options {
	size_t struct_size;
	uint32_t flags; /* enum zerod_backward_end_flags */
	uint32_t deadline_ms;
};

/*
 * Ends the backward: completes when this rank's slices are summed, and its gradients have been read; of units
 * that are all-reduced, and in groups that span daemons, when the whole reduction is complete; with
 * ZEROD_BACKWARD_SKIP_REST also when every other rank has ended the backward or asked to. Other owners may
 * still sum theirs: what fails there is told by zerod_step_begin(), and whoever leaves the group without a
 * step takes them along. Bucket storage is given back. With `ticket` NULL the call waits, else it returns at
 * once, and zerod_wait() without a stream completes it.
 * After DEADLINE the backward runs on; what was skipped by the flag stays skipped.
 * Hands over what was accumulated (ZEROD_RESERVE_ACCUMULATE), before its own request.
 * Errors: STATE (no backward; an entry reserved but not committed), MISMATCH (a rank ended without a gradient
 * or a skip for a unit that others reduced), UNSUPPORTED (the flag, and the group spans daemons), INVALID,
 * PEER_LOST, DEADLINE.
 */
ZEROD_MUST_USE int zerod_backward_end(zerod_group *group, const struct zerod_backward_end_options *options,
                                      zerod_ticket *ticket);

/*
 * Gives up all backwards since the last step, for all ranks: in a backward or between two. Entries of this
 * rank that are not committed are given back when all work now in `streams`, those that may still write them,
 * has run; committed ones are dropped. An entry that was reserved with ZEROD_RESERVE_ACCUMULATE is given back
 * behind the streams of its commits as well. Returns when this rank's buckets are empty. Its next
 * zerod_backward_begin() begins a new window; it may also call zerod_step_begin() first.
 * The other ranks go on as if nothing had happened: zerod_bucket_reserve(), zerod_bucket_submit() and
 * zerod_reduce_skip() of the abandoned window succeed, and nothing is reduced; zerod_backward_end() completes
 * when their own streams have passed. Their zerod_step_begin() waits for nobody, returns 0 and says so in
 * `abandoned`. No rank has a target then, and no step is counted. A group that spans daemons ends: all calls,
 * this one too, return ABORTED.
 * Errors: STATE (no backward has begun since the last step; a zerod_backward_begin() of the rank waits),
 * PEER_LOST, ABORTED, DEADLINE (the window is abandoned; the call may be repeated).
 */
ZEROD_MUST_USE int zerod_backward_abandon(zerod_group *group, zerod_stream *const *streams, uint32_t nstreams,
                                          const struct zerod_wait_options *options);

struct zerod_step_info {
	size_t struct_size;
	uint64_t step;       /* counts from 1 */
	double norm_squared; /* of the reduced gradients, over all ranks */
	int overflow;        /* an inf or nan was seen by any rank */
	int abandoned;       /* a rank has abandoned the window: nothing was reduced, there are no targets */
	uint32_t abandoned_rank;
	uint32_t reserved; /* 0 */
};

enum zerod_step_flags {
	ZEROD_STEP_SCALARS = 1u << 0, /* the result is stored for kernels: zerod_step_scalars_get() */
};

struct zerod_step_options {
	size_t struct_size;
	uint32_t flags; /* enum zerod_step_flags */
	uint32_t deadline_ms;
};

/*
 * After a window's last backward: waits until every rank has called it, and returns what they agree on. The
 * target may then be read by zerod_target_get() until zerod_step_end(). What was not reduced is zero there.
 *
 * With `ticket` not NULL the call returns at once, and `info` must be NULL. It may then be called while the
 * backward still ends, after zerod_backward_end() with a ticket. The daemon answers when every rank has
 * called it, in a group that spans daemons when all sums are known. zerod_wait() for the ticket blocks until
 * this answer, and makes its stream, or without one the caller, wait until the target may be read;
 * zerod_target_get() is valid from then on, and zerod_step_get() has the info. zerod_step_end() may be called
 * at once, too.
 * From the answer on the step cannot be given up. If a sum fails after it, if a rank gives up its
 * zerod_step_begin() by a deadline, or if the group fails, the streams that wait go on all the same and the
 * content of the target is undefined: zerod_step_get() returns the failure, else this rank's next
 * zerod_backward_begin() does, once. Call zerod_step_get() before zerod_publish().
 * After DEADLINE of the ticket the step is not begun, and the backward ends as before.
 * Errors: STATE (no backward has ended since the last step, in stage 1 no boundary's), MISMATCH (another rank
 * has run another number of backwards; the text has both), DEVICE (zeroing; may be called again), POISONED,
 * PEER_LOST, DEADLINE, and those of a window that has failed: see zerod_backward_begin().
 */
ZEROD_MUST_USE int zerod_step_begin(zerod_group *group, const struct zerod_step_options *options,
                                    struct zerod_step_info *info, zerod_ticket *ticket);

/*
 * What the last step that this rank has begun came to; blocks until it is known. May be called until the next
 * zerod_step_begin(), any number of times, also after zerod_step_end().
 * Errors: STATE (no step was begun), DEADLINE (may be called again), and what the step failed with: DEVICE,
 * ABORTED (another rank gave it up), PEER_LOST, and those of a window that has failed.
 */
ZEROD_MUST_USE int zerod_step_get(zerod_group *group, const struct zerod_wait_options *options,
                                  struct zerod_step_info *info);

/* In memory of the rank's device, for kernels: a fused optimizer takes `overflow` as its found_inf. */
struct zerod_step_scalars {
	size_t struct_size;
	const float *overflow;     /* 1 after an overflow, else 0 */
	const float *norm_squared; /* rounded to float32 */
};

/*
 * Where the result of a step is that was begun with ZEROD_STEP_SCALARS. They may be read as the target may:
 * behind zerod_step_begin(), or on a stream that waited for its ticket, until zerod_step_end(). A step that
 * fails after its answer leaves 1 and infinity there.
 * Errors: STATE (no step is begun; it was begun without the flag, abandoned, or all units are frozen).
 */
ZEROD_MUST_USE int zerod_step_scalars_get(zerod_group *group, struct zerod_step_scalars *scalars);

/*
 * Squared norms of the reduced gradients of `count` units (1 to 1024) in the step that zerod_step_get() is
 * about, each over all ranks; 0 for a unit that no rank has reduced. Waits as that call does.
 * Errors: those of zerod_step_get(), INVALID (NULL; a unit of another group), LIMIT, UNSUPPORTED (the group
 * spans daemons and is not hybrid).
 */
ZEROD_MUST_USE int zerod_step_norms_get(zerod_group *group, zerod_unit *const *units, uint32_t count,
                                        const struct zerod_wait_options *options, double *norms_squared);

struct zerod_target {
	size_t struct_size;
	void *data;           /* this rank's reduced slice: shard_numel elements, padding zero */
	uint64_t shard_numel; /* of a unit with ZEROD_UNIT_ALL_REDUCE the whole: padded_numel, */
	uint64_t true_numel;  /* and numel */
	enum zerod_dtype dtype;
	uint32_t reserved; /* 0 */
};

/*
 * Waits until the unit's gradient of this backward is summed, and lends this rank its place in the target
 * before the step: for an optimizer that runs in the backward, or a program that looks at gradients after it.
 * Called behind this rank's submit or skip of the unit, in a backward or between two. With a `stream` the call
 * returns as soon as the sum depends on no further call of any rank, and work appended to the stream from then
 * on runs when the sum is stored. It blocks while another rank has neither submitted nor skipped the unit,
 * while the sum waits for staging memory, and in groups that span daemons. With stream NULL it returns when
 * the sum is stored. zerod_target_get() has the place as well, for as long as it is lent.
 *
 * The rank may read and write the place on `stream`, on streams that waited for the unit likewise, and on
 * streams that these are made to wait for; the norm and the overflow flag stay those of the sums. The loan
 * ends with the unit's next zerod_bucket_submit(), zerod_reduce() or zerod_reduce_skip() of this rank, with
 * zerod_backward_end() and ZEROD_BACKWARD_SKIP_REST, zerod_backward_abandon() and zerod_step_begin(), and when
 * a GPU's stream that waited for a loan is destroyed. The next sum is stored when all work that these streams
 * have then has run; the caller need not wait. Between zerod_step_begin() and zerod_step_end() the whole target
 * is the rank's.
 * Errors: NOT_FOUND (all ranks have skipped the unit since the last step), STATE (this rank has neither
 * submitted nor skipped it; the window was abandoned: by which rank), INVALID (the unit is frozen; a stream of
 * another client or GPU), POISONED, PEER_LOST, DEADLINE, and those of a window that has failed. A sum that
 * fails after the call has returned leaves the content undefined; zerod_step_begin() returns the failure.
 */
ZEROD_MUST_USE int zerod_reduce_wait(zerod_unit *unit, const struct zerod_wait_options *options,
                                     zerod_stream *stream, struct zerod_target *target);

/* Errors: STATE outside step_begin .. step_end, unless zerod_reduce_wait() has lent the unit's place. INVALID
 * for a frozen unit. */
ZEROD_MUST_USE int zerod_target_get(zerod_unit *unit, struct zerod_target *target);

/*
 * Drops this rank's target. `streams`: as for zerod_release(). Also the path after an overflow, and after the
 * group failed during the step: it succeeds then all the same, since what it asks for is done. A step that was
 * begun with a ticket ends when its sums are known and `streams` have passed. The call does not wait for that,
 * but zerod_backward_begin(), zerod_unit_set_frozen() and zerod_unit_unregister() do.
 * Errors: STATE (no step was begun), PEER_LOST and ABORTED (nor was one when the group failed).
 */
ZEROD_MUST_USE int zerod_step_end(zerod_group *group, zerod_stream *const *streams, uint32_t nstreams,
                                  const struct zerod_wait_options *options);

/* ---- Agreement ----------------------------------------------------------------------------------------- */

#define ZEROD_MAX_AGREED 16u
enum zerod_agree_op { ZEROD_AGREE_SUM = 0, ZEROD_AGREE_MAX = 1, ZEROD_AGREE_MIN = 2 };

/*
 * Replaces each of `count` values (1 .. ZEROD_MAX_AGREED) by the sum, maximum or minimum of all ranks' values
 * at that place. Waits until every rank of the group has called it. Sums are made in rank order, so that all
 * ranks and all runs have the same bits; a maximum or minimum with a NaN is a NaN. `values` are untouched
 * after an error.
 * Errors: INVALID, LIMIT, MISMATCH (ranks differ in `op` or `count`: all of them are told), STATE (another
 * thread of this rank waits in it), UNSUPPORTED (the group spans daemons), PEER_LOST, ABORTED, DEADLINE.
 */
ZEROD_MUST_USE int zerod_group_agree(zerod_group *group, enum zerod_agree_op op, double *values,
                                     uint32_t count, const struct zerod_wait_options *options);

/* ---- Plain allocations --------------------------------------------------------------------------------- */

enum zerod_alloc_flags {
	ZEROD_ALLOC_DURABLE = 1u << 0, /* the durable job's; see zerod_alloc() */
};

struct zerod_alloc_options {
	size_t struct_size;
	const char *job;    /* as in zerod_group_options */
	const char *name;   /* shown by zeroctl; NULL: "" */
	uint64_t bytes;     /* at least 1; rounded up to a multiple of 256 */
	uint64_t alignment; /* power of two up to 2 MiB; 0: 256 */
	uint32_t device;
	uint32_t flags; /* enum zerod_alloc_flags */
	uint32_t deadline_ms;
	uint32_t reserved; /* 0 */
};

/*
 * Zeroed memory, until the session ends. Errors: INVALID, NOT_FOUND, NO_MEMORY, QUOTA, DEADLINE.
 *
 * With ZEROD_ALLOC_DURABLE the memory belongs to a durable job, of which a durable group has been joined.
 * When the session ends it stays, charged to the user, until zerod_free() or `zeroctl end-job`. A later
 * session of the user that asks for the same job, name and device gets the same memory, with the bytes that
 * were last written there. So optimizer state survives with the shards. It takes part in a commit as shards
 * without shadows do: written between zerod_update_begin() and zerod_commit(), it is what was committed, or
 * the group is torn (struct zerod_group_info). ZEROD_GROUP_SHADOW covers shards only: what was written into
 * an allocation since the last commit stays when the shards are set back.
 * More errors: INVALID (no name), STATE (the job is not durable, or there is none), EXISTS (another session
 * has it, or this one: which pid), MISMATCH (it has another size, or not this alignment; both are named).
 */
ZEROD_MUST_USE int zerod_alloc(zerod_client *client, const struct zerod_alloc_options *options,
                               zerod_allocation **buffer, void **data);
/* Frees once all work now in `streams` has run. The handle becomes invalid unless an error is returned. */
ZEROD_MUST_USE int zerod_free(zerod_allocation *buffer, zerod_stream *const *streams, uint32_t nstreams);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
