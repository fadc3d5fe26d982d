/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zerod.h - the public C interface of libzerod.
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
 *   - Option structures begin with `struct_size`; set it with the ZEROD_INIT macro, which also zeroes the
 *     rest. Zero means "the default" for every option.
 *   - All functions may be called from several threads at once, on one client or many. A handle must not be
 *     used while or after another thread frees it.
 *   - Functions that wait take the deadline of their options; 0 means the client's default, ZEROD_NO_DEADLINE
 *     none. When it passes they return ZEROD_E_DEADLINE and the text says what was waited for.
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

#if defined(__GNUC__)
#define ZEROD_MUST_USE __attribute__((warn_unused_result))
#else
#define ZEROD_MUST_USE
#endif

/* ---- Status codes ------------------------------------------------------------------------------
 * The same numbers travel in the protocol; zeroctl and zerobench exit with the positive value. */

enum zerod_status {
	ZEROD_OK = 0,
	ZEROD_E_INVALID = -1,        /* an argument is wrong; the text names it */
	ZEROD_E_USAGE = -2,          /* command line programs: wrong usage */
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

typedef struct zerod_client zerod_client; /* one connection to the daemon */
typedef struct zerod_group zerod_group;   /* this client's membership in a group: one rank */
typedef struct zerod_unit zerod_unit;     /* this rank's handle of a unit */
typedef struct zerod_bucket zerod_bucket; /* this rank's gradient bucket */
typedef struct zerod_stream zerod_stream; /* an in-order stream of work, see below */
typedef struct zerod_buffer zerod_buffer; /* a plain allocation */

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

/* $ZEROD_SPIN: "never", no thread of the library looks again and again before it sleeps; "always", also where
 * there are few processors; "auto", the default. */
struct zerod_options {
	size_t struct_size;
	const char *socket_path; /* NULL: $ZEROD_SOCKET, else /run/zerod/zerod.sock */
	const char *name;        /* shown by zeroctl; NULL: the program's name; at most 63 bytes of UTF-8 */
	uint32_t deadline_ms;    /* default for every wait; 0: 60 000 */
	int strict;              /* released views fault, see below */
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
 * Connects and shakes hands. `options` may be NULL.
 * Errors: INVALID (path too long, name), CONNECT, DISCONNECTED, DEADLINE, VERSION, LIMIT (daemon full),
 * PERMISSION, SYSTEM, UNSUPPORTED (strict, and pages of more than 4096 bytes): zerod_last_error(NULL) says.
 */
ZEROD_MUST_USE int zerod_connect(const struct zerod_options *options, zerod_client **client);

/* Ends the session: leases, buckets and allocations of a job that is not durable are freed. NULL is allowed.
 * All handles of the client become invalid. Blocks until host streams have drained, and GPUs' streams what
 * this library has put into them; work of the caller's that uses memory of the daemon must have ended. */
void zerod_close(zerod_client *client);

/* The text of this thread's last failure on `client` (NULL: on none), until its next call; "" if none. */
const char *zerod_last_error(const zerod_client *client);

/* Clears the POISONED mark after the caller has synchronized its streams and discarded what it computed since
 * the abort. Streams whose waits were aborted take work again. What a failed group has left to this rank is
 * given up, as by zerod_backward_begin(). Where a group with shadows was set back to its last commit (see
 * zerod_commit()), this rank may go on with it from there. */
ZEROD_MUST_USE int zerod_session_reset(zerod_client *client);

struct zerod_device_info {
	uint32_t index;
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
 * Waits for all processes that have the memory mapped: each lets go in its next call that waits.
 * Errors: NOT_FOUND, DEADLINE (names the process; its memory follows when it calls).
 * Without a trim the memory is kept for the next gathers, and for what else finds no other.
 */
ZEROD_MUST_USE int zerod_trim(zerod_client *client, uint32_t device, uint64_t keep_bytes,
                              uint64_t *freed_bytes);

/* ---- Batching ----------------------------------------------------------------------------------
 * Between cork and uncork, requests of the *calling thread* that return tickets are collected and sent
 * together, as few packets as fit; uncork sends. Calls that wait uncork first. Nesting counts. */
void zerod_cork(zerod_client *client);
ZEROD_MUST_USE int zerod_uncork(zerod_client *client);

/* ---- Streams -----------------------------------------------------------------------------------
 * A stream is a first-in first-out sequence of work that runs asynchronously to its caller. Waits and
 * releases name streams, so that the daemon orders its own work against the trainer's without blocking
 * either's CPU. NULL in place of a stream means "the calling thread itself": a wait then blocks the
 * thread, and a release or commit says that all use has ended already. */

/* A host stream: a thread that runs functions in order. Its timeline is one of at most
 * ZEROD_MAX_STREAMS of the session. Errors: LIMIT, SYSTEM. */
#define ZEROD_MAX_STREAMS 256
ZEROD_MUST_USE int zerod_host_stream_create(zerod_client *client, zerod_stream **stream);
/* Appends fn(arg). Errors: INVALID (a GPU's stream), STATE (a wait was aborted, and no reset since). */
ZEROD_MUST_USE int zerod_host_stream_launch(zerod_stream *stream, void (*fn)(void *), void *arg);

/*
 * A GPU's stream: `cu_stream` is a CUstream or cudaStream_t of this process; NULL or CU_STREAM_LEGACY is the
 * legacy default stream of the calling thread's current context. Work stays the caller's: launch kernels and
 * copies as always, behind zerod_wait() and before zerod_release(). The stream may be of any context of its
 * GPU, the primary one (PyTorch, the runtime API) or another; calls may come from any thread, whatever
 * context is current there. Wrap each once: it takes one of ZEROD_MAX_STREAMS, and must outlive its handle.
 *
 * A CUDA graph cannot wait for the daemon when it is replayed: calls with a stream under capture return
 * UNSUPPORTED. Capture what lies between wait and release of units with a slot; gather before each replay.
 *
 * A GPU does not say that an abort, or the daemon's death, has freed a wait: what it goes on with is garbage.
 * It shows as ABORTED or DISCONNECTED at zerod_stream_synchronize() and zerod_wait(), and as POISONED where
 * results would be published: synchronize with the former, not by CUDA, before results leave the GPU.
 *
 * The driver is loaded by the first call that needs it (this one, zerod_group_join(), zerod_alloc()), and
 * each GPU's primary context is held until zerod_close(). With CUDA_DEVICE_MAX_CONNECTIONS small, streams
 * share few hardware queues, and one that waits, or that has much queued, may hold up another's kernels,
 * though never in a circle. The library has four streams a GPU for sums, and one for copies: a trainer that
 * keeps more than three busy itself wants more queues than the 8 it has by default.
 *
 * Errors: UNSUPPORTED (devices are emulated, or the driver is too old), INVALID (CU_STREAM_PER_THREAD, which
 * is another stream in each thread; no context is current), NOT_FOUND (no driver), LIMIT, DEVICE.
 */
ZEROD_MUST_USE int zerod_cuda_stream_wrap(zerod_client *client, void *cu_stream, zerod_stream **stream);

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
	const char *job;      /* a namespace of the caller's uid; 1..63 bytes of UTF-8 */
	const char *group;    /* name inside the job; 1..63 bytes; NULL: "world" */
	uint32_t world_size;  /* 1..1024, of all daemons */
	uint32_t rank;        /* 0..world_size-1 */
	uint32_t device;      /* index on this node; several ranks may share a device */
	uint32_t flags;       /* enum zerod_group_flags */
	uint32_t deadline_ms; /* for the other ranks to come */
	/* The same on all ranks. Given if and only if the group spans daemons. */
	const struct zerod_unique_id *unique_id;
	/* Ranks in each daemon: ranks 0 to local_world_size - 1 in the first, and so on, as torchrun numbers
	 * them. world_size is a multiple of it. 0: all ranks are in this daemon. */
	uint32_t local_world_size;
	enum zerod_collectives collectives;
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
                                   struct zerod_unique_id *id);

/*
 * Joins as one rank and waits until every rank has. A rank whose process died may be replaced by joining
 * again with the same rank; the group then leaves the failed state.
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
 * group spans daemons, given where it does not, or made for fewer local ranks), NOT_FOUND (device), EXISTS
 * (the rank is taken; by which pid), MISMATCH (sizes, flags, collectives or unique_id differ from the first
 * joiner's; both are named), DEADLINE (names the missing ranks), LIMIT, ABORTED, UNSUPPORTED (the daemon has
 * no communicators), PEER_LOST (the ranks of the other daemons were not met). On GPUs: NOT_FOUND when this
 * process does not see the device (CUDA_VISIBLE_DEVICES, a container: the text names it and those that it
 * sees), UNSUPPORTED and DEVICE in the driver's words.
 */
ZEROD_MUST_USE int zerod_group_join(zerod_client *client, const struct zerod_group_options *options,
                                    zerod_group **group);
/* As this rank knows it from its join and from its own commits since. */
struct zerod_group_info {
	uint64_t committed_step; /* the last one; 0: none */
	int torn;                /* an update after it was never committed: restore all units and commit */
};

ZEROD_MUST_USE int zerod_group_get(zerod_group *group, struct zerod_group_info *info);

/* Leaves; what this rank holds in the group is freed as at session end. The handle, its units and buckets
 * become invalid whatever is returned. NULL is allowed. */
int zerod_group_leave(zerod_group *group);

/* ---- Units --------------------------------------------------------------------------------------------- */

#define ZEROD_MAX_DIMS 8
#define ZEROD_NO_SLOT  0

/* A tensor inside a unit: `offset_numel` elements from the gathered buffer's start, of this shape. A zero
 * in the shape makes an empty view; ndim 0 is a scalar. Views may overlap. */
struct zerod_view {
	const char *name; /* 1..127 bytes of UTF-8 */
	uint64_t offset_numel;
	uint32_t ndim;
	uint64_t shape[ZEROD_MAX_DIMS];
};

enum zerod_unit_flags {
	ZEROD_UNIT_PERSISTENT = 1u << 0, /* the gathered copy survives its last release */
	ZEROD_UNIT_FROZEN = 1u << 1,     /* has no gradient: no part in targets */
	ZEROD_UNIT_ALL_REDUCE =
	        1u << 2, /* all ranks get the whole reduced gradient, see zerod_unit_target() */
};

struct zerod_unit_options {
	size_t struct_size;
	const char *name; /* unique in the group; 1..127 bytes of UTF-8 */
	enum zerod_dtype dtype;
	uint64_t numel;  /* elements of the whole unit, at least 1 */
	uint32_t nviews; /* 0: one view of shape {numel} with the unit's name */
	const struct zerod_view *views;
	uint32_t slot;  /* ZEROD_NO_SLOT, or 1..: gathered at the slot's fixed address */
	uint32_t flags; /* enum zerod_unit_flags */
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
/* Unregisters this rank's part. Errors: BUSY while it is leased, updated or reduced. */
ZEROD_MUST_USE int zerod_unit_unregister(zerod_unit *unit);

struct zerod_shard {
	void *data;            /* shard_numel elements, mapped in this process */
	uint64_t shard_numel;  /* equal for all ranks, padding included */
	uint64_t true_numel;   /* of which are real; the rest is zero and stays so; may be 0 */
	uint64_t offset_numel; /* of the shard's first element in the unit */
	uint64_t version;      /* last published; 0: never. Older if the group was set back: register again */
	uint64_t padded_numel; /* world_size * shard_numel */
	enum zerod_dtype dtype;
};

ZEROD_MUST_USE int zerod_unit_shard(zerod_unit *unit, struct zerod_shard *shard);

/*
 * Begins an update of this rank's shards of `count` units: returns when no gather reads them any more, and
 * gathers asked for later wait for the new version. The shards may then be written.
 * Errors, and no shard is under update: STATE (one is already), POISONED, DEADLINE, PEER_LOST.
 */
ZEROD_MUST_USE int zerod_update_begin(zerod_unit *const *units, uint32_t count);

enum zerod_publish_flags {
	ZEROD_PUBLISH_FORCE = 1u << 0, /* even with leases outstanding on this rank's gathered copy */
};

/*
 * Ends the update: the shards have their new content once all work now in `streams` has run (none: they have
 * it already); the version rises by one and gathered copies of this rank become stale.
 * Every rank publishes every version of every unit, empty and unchanged shards included.
 * Errors, and nothing is published: STATE (no update), BUSY (leases outstanding; which tags), POISONED.
 */
ZEROD_MUST_USE int zerod_publish(zerod_unit *const *units, uint32_t count, zerod_stream *const *streams,
                                 uint32_t nstreams, uint32_t flags);

/* What becomes a rank's shard of one unit. */
struct zerod_source {
	zerod_unit *unit;
	const void *data; /* true_numel elements, see zerod_publish_from(); may be NULL where that is 0 */
};

/*
 * Fills the shards of `count` units under update from sources of another dtype, then publishes them: an
 * optimizer keeps float32 masters, and what travels is narrowed first. Each source has the shard's true_numel
 * elements of `source_dtype`, beginning with this rank's first; the shard's padding stays zero. The data are
 * read in the order of `stream` (NULL: by the calling thread), and must stay as they are until this returns
 * 0, or after an error until `stream` has run what was in it. The publish waits for the stream's work up to
 * here, as in zerod_publish(); `flags` are the same.
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
                                      enum zerod_dtype source_dtype, zerod_stream *stream, uint32_t flags);

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
ZEROD_MUST_USE int zerod_commit(zerod_group *group, uint64_t step);

/*
 * Makes the gathered copy survive its last release, or not. May be called at any time. In a group that spans
 * daemons all ranks are to keep the same copies: it counts from behind what was asked of the unit before.
 */
ZEROD_MUST_USE int zerod_unit_set_persistent(zerod_unit *unit, int persistent);

/* ---- Gather and release -------------------------------------------------------------------------------- */

enum zerod_gather_flags {
	ZEROD_GATHER_PREFETCH = 1u << 0, /* no lease: a later gather finds the bytes under way or there.
	                                    Yields its memory to gathers that need it; not in a group that
	                                    spans daemons, unless that is hybrid. */
};

struct zerod_gather_options {
	size_t struct_size;
	const char *tag;  /* the holder's name, 1..31 bytes, no '@' in front; NULL: "default" */
	uint32_t uses;    /* releases that end the lease; 0: 1 */
	uint64_t version; /* exact version; 0: the newest, at least what this rank last published */
	uint32_t flags;   /* enum zerod_gather_flags */
	uint32_t deadline_ms;
	zerod_scope scope; /* holds the copy in place of a tag: then no tag, one use, no prefetch */
};

/*
 * Asks for this rank's gathered copy of the unit. Returns at once; `options` may be NULL. The ticket is
 * waited for with zerod_wait(). Gathers of a copy that is there, or on its way, join it: one transfer, any
 * number of leases. No other rank takes part, unless the group spans daemons (see zerod_group_join()). Each
 * gather that succeeds adds `uses` releases to the lease of (session, tag). It waits until every rank has
 * registered the unit and published the version: of a unit that was never published, version 1.
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
 * and `data` must be NULL, and the first wait consumes the ticket; so it is with a prefetch, which has no
 * address (*data is NULL). `data` may be NULL. The stream must be of the unit's GPU (INVALID names both).
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

/*
 * Releases one use of the lease of (session, tag) (NULL: "default"). The bytes are not reused before all work
 * now in `streams` has run; accounting falls at once. With `ticket` NULL the call waits for the daemon's
 * answer; otherwise it returns at once and the ticket tells.
 * Errors: NOT_HELD (nothing is changed), INVALID.
 */
ZEROD_MUST_USE int zerod_release(zerod_unit *unit, const char *tag, zerod_stream *const *streams,
                                 uint32_t nstreams, zerod_ticket *ticket);

/*
 * Releases one use of each of `count` units of one client (at most ZEROD_MAX_TICKETS; 0: nothing) under one
 * tag, with one fence per stream for all of them. A unit may be given as often as it is held. With `tickets`
 * NULL the call waits for all answers; otherwise it returns at once, and tickets[i] tells of units[i].
 * Errors: INVALID and LIMIT, when nothing is released. NOT_HELD names the first unit that was not held; all
 * others are released, since each is a request of its own.
 */
ZEROD_MUST_USE int zerod_release_many(zerod_unit *const *units, uint32_t count, const char *tag,
                                      zerod_stream *const *streams, uint32_t nstreams, zerod_ticket *tickets);

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
                                     zerod_stream *const *streams, uint32_t nstreams);

/* The backward of this claim is over. Other claims are not concerned: two forwards may come before their
 * backwards, in any order. Errors: STATE (the forward has not ended), INVALID (a context), NOT_FOUND. */
ZEROD_MUST_USE int zerod_claim_end(zerod_client *client, zerod_scope claim, zerod_stream *const *streams,
                                   uint32_t nstreams);

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
ZEROD_MUST_USE int zerod_context_begin(zerod_unit *const *units, uint32_t count, zerod_scope *context);
/* Errors: INVALID (a forward scope), NOT_FOUND. */
ZEROD_MUST_USE int zerod_context_end(zerod_client *client, zerod_scope context, zerod_stream *const *streams,
                                     uint32_t nstreams);

/* ---- Reduce -------------------------------------------------------------------------------------------- */

struct zerod_backward_options {
	size_t struct_size;
	uint32_t stage;                /* ZeRO stage 1, 2 or 3; 0: 3 */
	int boundary;                  /* the last micro-step before the optimizer's step */
	enum zerod_dtype target_dtype; /* of the reduced gradients: float32 (0), float16 or bfloat16 */
};

/*
 * Begins a backward pass of this rank. All ranks run the same sequence of backwards and steps. Binds the
 * step-local target (one flat buffer): at the first backward after a step in stages 2 and 3, at the boundary
 * in stage 1, where reducing off a boundary is an error. A unit's first reduction after that overwrites its
 * place. When the group fails (PEER_LOST, ABORTED) its backward and step are over on all ranks, but entries
 * that this rank has reserved and not committed, and the target of a step that it has begun, stay in place
 * and charged: its streams may use them still. Each is given back by its zerod_bucket_commit() or
 * zerod_step_end(), with its streams; the rest by zerod_bucket_destroy(), zerod_session_reset(), by leaving
 * the group, and by this call but for PEER_LOST. So begin one only when the failed one's streams are empty.
 * Errors: STATE (a backward runs), NO_MEMORY, QUOTA, PEER_LOST, POISONED.
 */
ZEROD_MUST_USE int zerod_backward_begin(zerod_group *group, const struct zerod_backward_options *options);

struct zerod_bucket_options {
	size_t struct_size;
	enum zerod_dtype dtype; /* of the gradients: any floating one */
	uint64_t slot_bytes;    /* 0: 32 MiB; rounded up to a multiple of 256 */
	uint32_t nslots;        /* 0: 2; at most 16 */
};

/* Creates a bucket for this rank. Storage is taken at the first reservation of a backward and given back when
 * the backward has ended. Errors: INVALID, UNSUPPORTED (dtype), LIMIT. */
ZEROD_MUST_USE int zerod_bucket_create(zerod_group *group, const struct zerod_bucket_options *options,
                                       zerod_bucket **bucket);
/* Errors: BUSY while entries are not reduced yet. Those of a failed group go: see zerod_backward_begin(). */
ZEROD_MUST_USE int zerod_bucket_destroy(zerod_bucket *bucket);

struct zerod_entry {
	uint64_t id;
	void *data; /* padded_numel elements of the bucket's dtype: the unit's numel are the caller's to
	                          write, all of them; the padding behind them is zero */
	uint64_t padded_numel; /* world_size * shard_numel of the unit */
};

/*
 * Reserves room for the gradient of `unit` in the bucket's open slot, or in a buffer of its own if it is
 * larger than a slot. Waits while the next slot is still being reduced. After an error it may be asked again.
 * Errors: STATE (no backward; stage 1 off a boundary), DUPLICATE, CAPACITY (ranks and units), NO_MEMORY,
 * PEER_LOST, DEADLINE.
 */
ZEROD_MUST_USE int zerod_bucket_reserve(zerod_bucket *bucket, zerod_unit *unit, struct zerod_entry *entry);

enum zerod_reduce_op { ZEROD_SUM = 0, ZEROD_MEAN = 1 };
enum zerod_reduce_flags {
	ZEROD_REDUCE_OVERWRITE = 1u << 0, /* replace the target's content; default: add to it */
};

struct zerod_reduce_options {
	size_t struct_size;
	enum zerod_reduce_op op;
	float prescale; /* every input is multiplied by it in float32 before the sum; 0: 1.0 */
	uint32_t flags; /* enum zerod_reduce_flags */
};

/*
 * Hands the entry over for reduction once all work now in `streams` - every stream that wrote it - has run.
 * When all ranks have committed (or skipped) the unit in this backward, each owner's slice is summed in
 * float32 in rank order (in a group that spans daemons: in each of them, then over the daemons in their
 * order) and added to its target: on a GPU by the owner's own, on a stream of the library's, whatever its
 * process is doing; one that is stopped holds up its slices. `options` may be NULL and must be equal on all
 * ranks. Returns when the daemon has taken it.
 * Errors: NOT_FOUND (no such entry), STATE (committed already), MISMATCH, INVALID, PEER_LOST and ABORTED (the
 * group has failed since: the entry is not reduced, but given back once all work now in `streams` has run).
 */
ZEROD_MUST_USE int zerod_bucket_commit(zerod_bucket *bucket, uint64_t entry_id, zerod_stream *const *streams,
                                       uint32_t nstreams, const struct zerod_reduce_options *options);

/* This rank has no gradient for the unit in this backward: it contributes zeros. Errors as for reserve. What
 * one rank commits and all others skip comes to all targets as it is: weights that one rank has read. */
ZEROD_MUST_USE int zerod_reduce_skip(zerod_unit *unit);

/*
 * Ends the backward: returns when this rank's slices are summed, and its gradients have been read; of units
 * that are all-reduced, and in groups that span daemons, when the whole reduction is complete. Other owners
 * may still sum theirs: what fails there is told by zerod_step_begin(), and whoever leaves the group without
 * a step takes them along. Bucket storage is given back.
 * Errors: STATE (no backward; an entry reserved but not committed), MISMATCH (a rank ended without a gradient
 * or a skip for a unit that others reduced), PEER_LOST, DEADLINE.
 */
ZEROD_MUST_USE int zerod_backward_end(zerod_group *group);

struct zerod_step_info {
	uint64_t step;       /* counts from 1 */
	int overflow;        /* an inf or nan was seen by any rank */
	double norm_squared; /* of the reduced gradients, over all ranks */
};

/*
 * After a boundary's backward: waits until every rank has called it, and returns what they agree on. The
 * target may then be read by zerod_unit_target() until zerod_step_end(). What was not reduced is zero there.
 * Errors: STATE (no boundary backward has ended), DEVICE (zeroing; may be called again), POISONED,
 * PEER_LOST, DEADLINE.
 */
ZEROD_MUST_USE int zerod_step_begin(zerod_group *group, struct zerod_step_info *info);

struct zerod_target {
	void *data;           /* this rank's reduced slice: shard_numel elements, padding zero */
	uint64_t shard_numel; /* of a unit with ZEROD_UNIT_ALL_REDUCE the whole: padded_numel, */
	uint64_t true_numel;  /* and numel */
	enum zerod_dtype dtype;
};

/* Errors: STATE outside step_begin .. step_end. INVALID for a frozen unit. */
ZEROD_MUST_USE int zerod_unit_target(zerod_unit *unit, struct zerod_target *target);

/*
 * Drops this rank's target. `streams`: as for zerod_release(). Also the path after an overflow, and after the
 * group failed during the step: it succeeds then all the same, since what it asks for is done.
 * Errors: STATE (no step was begun), PEER_LOST and ABORTED (nor was one when the group failed).
 */
ZEROD_MUST_USE int zerod_step_end(zerod_group *group, zerod_stream *const *streams, uint32_t nstreams);

/* ---- Plain allocations --------------------------------------------------------------------------------- */

struct zerod_alloc_options {
	size_t struct_size;
	const char *job;  /* as in zerod_group_options */
	const char *name; /* shown by zeroctl; NULL: "" */
	uint32_t device;
	uint64_t bytes;     /* at least 1; rounded up to a multiple of 256 */
	uint64_t alignment; /* power of two up to 2 MiB; 0: 256 */
	uint32_t deadline_ms;
};

/* Zeroed memory, until the session ends. Errors: INVALID, NOT_FOUND, NO_MEMORY, QUOTA, DEADLINE. */
ZEROD_MUST_USE int zerod_alloc(zerod_client *client, const struct zerod_alloc_options *options,
                               zerod_buffer **buffer, void **data);
/* Frees once all work now in `streams` has run. The handle becomes invalid unless an error is returned. */
ZEROD_MUST_USE int zerod_free(zerod_buffer *buffer, zerod_stream *const *streams, uint32_t nstreams);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
