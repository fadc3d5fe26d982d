/* SPDX-License-Identifier: Apache-2.0 */
/*
 * internal.h - what the library's files share, and the one door for the programs that ship with it.
 *
 * zeroctl and zerobench send requests that the public interface does not have (listing, administration) with
 * zc_call(). Everything below that is the library's own.
 *
 * How a call travels: a request gets an id and an op, is packed, and is sent at once or put into its thread's
 * batch (cork.c). There is no thread that reads: of the threads that wait for answers one, the leader, reads
 * the socket and hands out what came; when it has its own answer it leaves, and another takes over
 * (receive.c). A round trip thus wakes one thread, the one that wanted it.
 *
 * Locks, in the order in which they nest: a client's send_lock, its copy_lock, its cuda_lock, its lock, a
 * stream's lock, the client's page_lock. None is held while the caller's functions run.
 *
 * Devices are either emulated, and the CPU reaches their memory, or GPUs, where it does not: addresses of
 * memory that the daemon owns are then the GPU's, and nothing here may look behind one. What GPUs need is
 * behind client/cuda.h.
 */
#ifndef ZD_CLIENT_INTERNAL_H
#define ZD_CLIENT_INTERNAL_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define HASH_NONFATAL_OOM 1 /* an element that could not be added has hh.tbl NULL */
#include <uthash.h>

#include <zerod.h>

#include "base/err.h"
#include "base/spin.h"
#include "proto/link.h"
#include "proto/limits.h"
#include "proto/zerod.pb-c.h"

/*
 * Fills request->id and request->deadline_ms, sends the request and waits for its reply. `deadline_ms` as in
 * zerod.h: 0 is the client's default, ZEROD_NO_DEADLINE none. Returns the reply's status when that is not 0
 * (its text is then in zerod_last_error()), else what `fn` returns. `fn` runs on the calling thread; the
 * reply is valid during the call only. It may be NULL. When it returns PROTOCOL, the connection is ended.
 */
ZEROD_MUST_USE int zc_call(zerod_client *client, Zd__Request *request, uint32_t deadline_ms,
                           int (*fn)(const Zd__Reply *reply, void *arg), void *arg);

/* ---- Limits of the library ----------------------------------------------------------------------------- */

/* The daemon keeps the deadlines; we wait that much longer, should it hang. */
#define ZC_GRACE_NS 2000000000ull
/* Outstanding requests from which a sender also reads, so that replies cannot pile up in the daemon. */
#define ZC_DRAIN_ABOVE 32u
/* Answered tickets that no lease keeps and nobody waited for; the oldest go first. */
#define ZC_MAX_FINISHED 4096u
/* Tickets of a lease beyond the uses that it has left. */
#define ZC_SURPLUS_TICKETS 64u
/* Tickets kept for new requests. */
#define ZC_MAX_SPARE_TICKETS 128u
/* How long the socket blocks whoever reads it, at most: longer waits are several of these. */
#define ZC_RECEIVE_SLICE_MS 1000
#define ZC_SPIN_NS          50000u   /* after an event, of threads that look again before they sleep */
#define ZC_CALL_SPIN_NS     250000u  /* for the answer to a call, which the caller only waits for */
#define ZC_SPIN_PROCESSORS  8u       /* fewer are not for spinning */
#define ZC_NAPS_NS          5000000u /* so long behind an event threads nap before they sleep */
/* How often a thread that sleeps on a counter looks whether the daemon lives. */
#define ZC_POLL_SLICE_NS 100000000ull

struct zc_gpu;
struct zc_stream_wait;

/* ---- Fences -------------------------------------------------------------------------------------------- */

struct zc_fence {
	uint32_t timeline;
	uint64_t value;
};

/* Most gathers have one fence a device: they fit without an allocation. */
#define ZC_FEW_FENCES 8u

struct zc_fences {
	unsigned count;
	struct zc_fence few[ZC_FEW_FENCES];
	struct zc_fence *many; /* NULL: `few` holds them */
};

static inline const struct zc_fence *zc_fences_list(const struct zc_fences *fences)
{
	return fences->many ? fences->many : fences->few;
}

/* The last value of each timeline: values of one timeline come in order, so that it stands for all. */
struct zc_fence_merge {
	struct zc_fences fences; /* of `list`: not to be deinitialised */
	uint64_t seen[ZD_TIMELINES / 64];
	uint16_t at[ZD_TIMELINES]; /* of timelines that were seen: where in the list */
	struct zc_fence list[ZD_TIMELINES];
};

/* Signed and cyclic, as the daemon compares. */
static inline bool zc_fence_reached(uint64_t counter, uint64_t value)
{
	return (int64_t)(counter - value) >= 0;
}

/* ---- Segments and places ------------------------------------------------------------------------------- */

struct zc_location {
	uint32_t segment; /* 0: nowhere */
	uint64_t offset;
	uint64_t bytes;
};

struct zc_segment {
	uint32_t id;
	uint32_t device;
	uint64_t bytes;
	int fd;                   /* -1 once it is mapped */
	void *map;                /* NULL until the first use; on GPUs an address of theirs */
	const struct zc_gpu *gpu; /* for which it is mapped; NULL: an emulated one */
	uint32_t *page_holders;   /* strict: of each page, or of the whole; NULL until the first hold */
	uint64_t nholds;          /* strict: that name it */
	struct zc_segment *next_retired;
	UT_hash_handle hh;
};

/* ---- Pages of strict clients --------------------------------------------------------------------------- */

/* Whoever may still touch a gathered buffer: its pages stay accessible while one of these is left (strict.c).
 * On GPUs a segment is one page. */
struct zc_hold {
	struct zc_segment *segment;
	uint64_t page, npages;
	LIST_ENTRY(zc_hold) link;
};

LIST_HEAD(zc_hold_list, zc_hold);

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* An unpacked packet of the daemon, shared by the callers whose replies it carries. */
struct zc_packet {
	unsigned refs;
	struct zd_arena arena;
};

enum zc_op_kind {
	ZC_OP_CALL,     /* a caller waits for the reply; the op is on its stack */
	ZC_OP_GATHER,   /* a ticket, valid while its lease lasts */
	ZC_OP_PREFETCH, /* a ticket without a lease, consumed by the first wait */
	ZC_OP_RELEASE,  /* the same */
	ZC_OP_DETACHED, /* no ticket: a failure is the next call's (detached.c) */
	ZC_OP_OTHER,    /* a ticket as a release's, of another call: `type` says which */
};

struct zc_op;

/* How the tickets of one call differ from those of others. Functions that are NULL do nothing. */
struct zc_ticket_type {
	const char *what; /* for words, the unit's name follows where there is one: "the update of" */
	/* A stream may be given to zerod_wait(): it then waits for op->fences and for what settle() adds.
	 * Else a wait returns when the daemon has answered, and takes no stream. */
	bool takes_stream;
	/* With the lock: the daemon has granted it. An error is a reply that makes no sense: the connection
	 * ends. */
	int (*answered)(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
	                struct zd_err *err);
	/* With the lock: the daemon has refused it, or will not answer any more; op->status says why. */
	void (*failed)(struct zerod_client *client, struct zc_op *op);
	/* Without the lock, once it is granted: what this process has to do before the stream (NULL: the
	 * calling thread) goes on. Adds to `copied`, on the client's page, what is to be awaited. */
	int (*settle)(struct zerod_client *client, struct zc_op *op, zerod_stream *stream,
	              struct zc_fence_merge *copied, struct zd_err *err);
	/* With the lock: frees op->data. */
	void (*deinit)(struct zerod_client *client, struct zc_op *op);
};

/*
 * One request. It is in the client's table from zc_op_add() until it has been answered (CALL), consumed, or
 * released (tickets): "in the table" is what makes a ticket valid.
 */
struct zc_op {
	uint64_t id;
	enum zc_op_kind kind;
	bool sent;     /* not in a batch any more */
	bool answered; /* status is set */
	bool stale;    /* the lease ended before the answer came */
	int status;
	LIST_ENTRY(zc_op) in_table;

	/* CALL: the packet is referenced until zc_packet_unref(); both NULL when the connection broke. */
	const Zd__Reply *reply;
	struct zc_packet *packet;

	/* tickets */
	const struct zc_ticket_type *type; /* OTHER */
	void *data;                        /* the type's */
	unsigned refs;                     /* the table's, and one for each thread that waits */
	bool finished;                     /* in the client's list of finished tickets */
	bool waited;                       /* GATHER: somebody knows where its buffer is */
	uint32_t deadline_ms;
	char *error;                 /* of the daemon; NULL: none, or no memory for it */
	uint32_t uses;               /* GATHER: what it added to its lease; 0 in a scope */
	const char *what;            /* DETACHED: "release", "commit", for error texts; a literal */
	struct zc_unit *unit;        /* NULL: of no unit */
	struct zc_lease *lease;      /* GATHER: until the lease ends or the gather fails */
	TAILQ_ENTRY(zc_op) in_queue; /* of its lease, or of finished tickets */

	/* Once answered with 0 */
	struct zc_location buffer; /* GATHER */
	struct zc_fences fences;   /* GATHER, and OTHER where streams may wait: on the daemon's page */
};

LIST_HEAD(zc_op_list, zc_op);
TAILQ_HEAD(zc_op_queue, zc_op);

/* Failures of detached requests that no call has reported yet. */
struct zc_detached {
	uint64_t nfailures;
	struct zd_err first; /* valid while nfailures > 0 */
};

/* Ids count up, so that as many chains as there may be outstanding requests stay short without a hash
 * function. */
#define ZC_OP_CHAINS ZD_MAX_OUTSTANDING

/* A thread that sleeps until its op is answered (op NULL: until anything is), or until it has to read. */
struct zc_waiter {
	pthread_cond_t wake;
	const struct zc_op *op;
	TAILQ_ENTRY(zc_waiter) link;
};

TAILQ_HEAD(zc_waiter_queue, zc_waiter);

/* The requests that one thread has collected since it corked. Only that thread touches it, but for
 * `link`. */
struct zc_batch {
	uint64_t thread; /* zc_thread_serial() */
	unsigned depth;
	struct zd_err failure; /* of the first packet that could not be sent */
	unsigned count;
	uint64_t ids[ZD_MAX_BATCH];
	size_t nbytes;
	uint8_t bytes[ZD_MAX_PACKET_BYTES];
	LIST_ENTRY(zc_batch) link;
};

/* ---- Objects ------------------------------------------------------------------------------------------- */

/* What this session may still release under one tag. Ends when uses_left is 0. */
struct zc_lease {
	char tag[ZD_MAX_TAG_BYTES + 1];
	struct zc_unit *unit;
	uint64_t uses_left;
	struct zc_op_queue tickets; /* oldest first */
	uint64_t ntickets;
	struct zc_hold_list holds; /* strict: where its waits have been given access, the newest first */
	uint64_t scope;            /* whose it is, until that has ended; 0: the tag's */
	LIST_ENTRY(zc_lease) link, scope_link;
};

/* Streams that may be copying one shard at a time; the first place is the library's own stream's. */
#define ZC_SHARD_READERS 4u

/* The rank's own part of its gathered copy, which the daemon may leave to us (own_slice.c). */
struct zc_own_slice {
	uint64_t transfer; /* of the copy that this is about; 0: none, or the daemon names none */
	bool due;          /* nobody has copied yet */
	struct zc_location from, to;
	/* GPUs: on the client's page, value 0: none. Passed when this transfer has been copied; and the
	 * copies of any transfer that read the shard, the last one of each stream. */
	struct zc_fence copied, readers[ZC_SHARD_READERS];
};

/* A unit as the daemon knows it; handles of one unit share it, and so do its ops. */
struct zc_unit {
	uint64_t id;
	unsigned refs;    /* handles and ops */
	unsigned handles; /* the last one to be unregistered tells the daemon */
	enum zerod_dtype dtype;
	struct zc_location shard;
	uint64_t shard_numel, true_numel, offset_numel, padded_numel, numel;
	uint64_t target_offset_numel;
	uint64_t target_numel, target_true_numel; /* in this rank's target */
	bool target_lent;                         /* this client may access its place there (target.c) */
	struct zc_location target_place;
	enum zerod_dtype target_dtype;
	uint64_t version;
	bool updating;            /* between update_begin and publish, as far as this client knows */
	uint64_t listed;          /* the last list of units that it was taken into (zc_units_take()) */
	bool granted;             /* by the daemon, to an update_begin that failed then, or is unawaited */
	bool unawaited;           /* an update_begin with a ticket, whose shard may not be written yet */
	struct zc_op *publishing; /* a publish with a ticket that has not been answered; NULL: none */
	bool frozen;
	bool persistent;
	struct zc_own_slice own;
	LIST_HEAD(, zc_lease) leases;
	struct zc_hold_list kept; /* strict: of a persistent copy; one or none */
	UT_hash_handle hh;
	char name[ZD_MAX_UNIT_NAME_BYTES + 1];
};

struct zerod_unit {
	struct zerod_group *group;
	struct zc_unit *shared;
	LIST_ENTRY(zerod_unit) link;
};

/* Room that was asked for, until the caller commits it (entry.c). */
struct zc_reserved {
	struct zc_unit *unit; /* with a reference */
	enum zerod_dtype dtype;
	bool claimed;     /* a call goes on with it */
	struct zc_op *op; /* NULL: the daemon has answered */
	uint64_t entry;
	struct zc_location location;
	struct zc_fences fences;
	struct zc_accumulation *sum; /* NULL: the gradient is one commit (accumulate.c) */
	LIST_ENTRY(zc_reserved) link;
};

/* An entry that several gradients of one unit are added up in, until the backward's end commits it. */
struct zc_accumulation {
	uint32_t ngradients; /* handed over so far */
	bool open;           /* a gradient is being added: reserved, and not handed over */
	struct zerod_reduce_options options;
	uint32_t nfences; /* behind all that has written it: the last one of each timeline */
	struct zc_fence fences[ZD_MAX_FENCES];
};

struct zerod_bucket {
	struct zerod_group *group;
	uint64_t id;
	enum zerod_dtype dtype;
	LIST_HEAD(, zc_reserved) reserved; /* no caller has got them yet */
	LIST_HEAD(, zc_reserved) given;    /* not committed yet */
	LIST_ENTRY(zerod_bucket) link;
};

struct zerod_group {
	struct zerod_client *client;
	uint64_t id;
	uint32_t nshards, shard; /* that its units are cut into, and which of these this rank has */
	bool shadow;
	uint64_t committed_step; /* at the join, and by zerod_commit() since */
	bool torn;
	/* The flat target between step_begin and step_end. While a reset is under way it is in doubt: the
	 * daemon may be taking it back, since the group has failed. */
	bool target_bound, target_in_doubt;
	struct zc_location target;
	enum zerod_dtype target_dtype;
	struct zc_location scalars; /* of the bound target; segment 0: none */
	LIST_HEAD(, zerod_unit) units;
	LIST_HEAD(, zerod_bucket) buckets;
	LIST_ENTRY(zerod_group) link;
};

struct zerod_allocation {
	struct zerod_client *client;
	uint64_t id;
	LIST_ENTRY(zerod_allocation) link;
};

/* What the daemon asks this process to do, and the thread that does it (work.c). */
struct zc_worker {
	struct zd_link link;       /* sock -1: the daemon asks for nothing */
	struct zd_work_page *page; /* GPUs write what sums have come to; NULL: none */
	int expected;              /* an eventfd: work will be asked for soon; -1: none */
	/* With cuda_lock: */
	bool running;
	pthread_t thread;
	int stop; /* an eventfd that ends the thread */
};

struct zerod_client {
	/* Set by zerod_connect(), then fixed. */
	struct zd_link link;    /* who has the send_lock sends, who is `reading` receives */
	struct zd_rings *rings; /* beside it, and beside the worker's; NULL: none */
	uint64_t serial; /* of this client, never used again: threads keep their error texts under it */
	unsigned fork_generation;
	uint32_t deadline_ms;
	bool strict;
	bool on_gpus;     /* devices are GPUs: see client/cuda.h */
	bool collectives; /* the daemon has communicators */
	uint32_t ntimelines;
	uint64_t *client_page; /* we write, the daemon reads */
	uint64_t *daemon_page; /* the daemon writes; writable on GPUs, for the day on which it dies */
	uint64_t *gpu_page;    /* GPUs write: the client's, or a strict client's own (cuda_strict.c) */

	struct zc_worker worker;

	pthread_mutex_t send_lock; /* the order of packets on the socket */

	atomic_uint_fast64_t packets; /* sent so far */
	atomic_bool poisoned;         /* a wait was freed by an abort */
	atomic_bool lost; /* the connection has ended; broken_status says so when it was read to its end */
	atomic_bool detached_failed; /* detached.nfailures > 0 */
	atomic_uint ncorked;         /* threads with a batch: spares all others the search */
	atomic_int
	        broken_status; /* 0, or why the connection is of no use any more; broken_text goes with it */
	char broken_text[ZD_ERR_TEXT_BYTES];

	struct zc_cuda *_Atomic cuda; /* NULL until the first GPU is opened; fixed then */

	pthread_mutex_t page_lock;  /* segments' holders and their unmapping, and: */
	struct zd_err page_failure; /* of taking access away; status 0: none */

	pthread_mutex_t copy_lock; /* one own-slice copy of the CPU at a time */
	pthread_mutex_t cuda_lock; /* one GPU is opened at a time */
	pthread_mutex_t lock;      /* all that follows */
	uint64_t next_id;
	uint64_t nlists;                     /* lists of units that were taken: see zc_unit.listed */
	struct zc_op_list ops[ZC_OP_CHAINS]; /* by id */
	unsigned outstanding, abandoned;
	struct zc_op_list spare_tickets; /* kept for the next ones */
	unsigned nspare_tickets;
	struct zc_op_queue finished;
	unsigned nfinished;

	struct zc_detached detached;

	bool reading;        /* some thread is at the socket */
	bool naps;           /* and waits for a call's answer: it naps before it sleeps */
	struct zd_spin spin; /* the reader's */
	struct zc_waiter_queue waiters;
	struct zc_packet *spare_packet;
	uint8_t *receive_buffer; /* the reader's; ZD_MAX_PACKET_BYTES */

	struct zc_segment *segments; /* hash by id */
	struct zc_segment *retired;  /* unmapped, and still named by a hold */
	uint64_t nretired;           /* segments that the daemon wanted back so far */
	uint32_t *unmapped;          /* of what the daemon is still to be told: nunmapped ids */
	size_t nunmapped, unmapped_room;
	struct zc_unit *units; /* hash by id */
	LIST_HEAD(, zc_naming) namings;
	pthread_cond_t named; /* one of them has ended */
	LIST_HEAD(, zc_batch) batches;
	struct zc_batch *spare_batch;
	LIST_HEAD(, zerod_group) groups;
	LIST_HEAD(, zerod_allocation) buffers;
	LIST_HEAD(, zerod_stream) streams;
	uint32_t nlent; /* units whose place in a target this client may access (target.c) */
	LIST_HEAD(, zc_lease) scope_leases; /* of all units */
	bool timeline_used[ZEROD_MAX_STREAMS];
	uint64_t timeline_value
	        [ZEROD_MAX_STREAMS]; /* where the next stream on it goes on: values never go back */
};

/* ---- errors.c ------------------------------------------------------------------------------------------ */

/* Where this thread keeps its last error on the client (NULL: on none). Never NULL; valid until the thread's
 * next zc_err() for another client. */
struct zd_err *zc_err(const struct zerod_client *client);
/* A number of the calling thread that no other thread ever has. */
uint64_t zc_thread_serial(void);

/* ---- client.c ------------------------------------------------------------------------------------------ */

/* Every public function begins with one of these. INVALID for NULL, FORKED, why the connection broke, or the
 * failure of a detached request that no call has reported yet. */
int zc_enter(struct zerod_client *client, struct zd_err **err) __attribute__((warn_unused_result));
/* The same without failures of detached requests: for calls that end or free something, for calls on streams
 * alone, and inside the library. */
int zc_enter_quietly(const struct zerod_client *client, struct zd_err **err)
        __attribute__((warn_unused_result));
/* The connection has ended, for this reason as far as it has been read. */
int zc_say_lost(const struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));
/* POISONED when a wait of this session was freed by an abort; why the connection ended, if that was it. */
int zc_check_poison(struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- alloc.c ------------------------------------------------------------------------------------------- */

/* Allocates and maps what `alloc` asks for; the buffer is in the client's list then. */
int zc_buffer_new(struct zerod_client *client, Zd__Alloc *alloc, uint64_t bytes, uint32_t deadline_ms,
                  struct zerod_allocation **buffer, struct zc_location *location, void **data,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* Frees the handle: the memory is the daemon's. */
void zc_buffer_forget(struct zerod_allocation *buffer);

/* ---- options.c ----------------------------------------------------------------------------------------- */

/* Copies options of the caller's struct_size into `copy` of `known_bytes`, zeroed where the caller's are
 * shorter. INVALID when a longer structure sets what this library does not know. `given` NULL: all zero. */
int zc_options(void *copy, size_t known_bytes, const void *given, const char *what, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The same of element `i` of an array, `what`. The first element's struct_size is the stride and must be that of
 * all. The elements before `i` have been read. */
int zc_element(void *copy, size_t known_bytes, const void *array, uint32_t i, const char *what,
               struct zd_err *err) __attribute__((warn_unused_result));
/* INVALID unless a field that has no meaning yet is 0. */
int zc_reserved(uint32_t reserved, const char *what, struct zd_err *err) __attribute__((warn_unused_result));
/* The deadline in `options`, as it was given; 0 for NULL. */
int zc_wait_options(const struct zerod_wait_options *options, uint32_t *deadline_ms, struct zd_err *err)
        __attribute__((warn_unused_result));
/* A structure that the caller wants filled: INVALID for NULL and for a struct_size that was not set. `what`
 * is the parameter. */
int zc_result_check(const void *given, const char *what, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Fills it as far as the caller knows it; what this library does not know becomes zero. */
void zc_result_fill(void *given, const void *made, size_t known_bytes);
/* INVALID names bits beyond `known`. */
int zc_flags(uint32_t flags, uint32_t known, const char *what, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The deadline as it travels: milliseconds, 0 for none. */
uint32_t zc_deadline_ms(const struct zerod_client *client, uint32_t option_ms);
/* When that deadline passes, for waits that the library makes itself; UINT64_MAX for none. CLOCK_MONOTONIC. */
uint64_t zc_until_ns(uint32_t wire_ms);
/* What is left of it, as an option: at least 1. */
uint32_t zc_left_ms(uint64_t deadline_ns);
/* The same for an answer of the daemon, which keeps the deadline: a moment later. */
uint64_t zc_deadline_ns(uint32_t wire_ms);
uint64_t zc_now_ns(void);

/* Checks that the reply has the body that the request asks for; PROTOCOL otherwise. */
int zc_check_body(const Zd__Reply *reply, Zd__Reply__BodyCase body, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- request.c ----------------------------------------------------------------------------------------- */

/* With the lock: */
struct zc_op *zc_op_find(struct zerod_client *client, uint64_t id);
void zc_op_remove(struct zc_op *op);
/* A ticket of what needs no request: it is in the table and answered with success. Its id. */
uint64_t zc_op_done(struct zerod_client *client, struct zc_op *op);
/* The op is answered here, not by the daemon: the request could not be sent, or the connection broke. */
void zc_op_fail(struct zerod_client *client, struct zc_op *op, const struct zd_err *err);

/* Packets that the client has sent so far. */
uint64_t zc_packets_sent(const struct zerod_client *client);
/* Without the lock. The daemon has closed the connection: what it said last, perhaps the reason, is still to
 * be read. `err` is what it is taken for otherwise. Returns what the connection broke with. */
int zc_read_last_words(struct zerod_client *client, struct zd_err *err);
/* Without the lock. Takes room for `count` requests of this kind. With `deadline_ns` 0 it does not wait for
 * room, and the error is LIMIT; else DEADLINE. */
int zc_room_take(struct zerod_client *client, Zd__Request__BodyCase body, unsigned count,
                 uint64_t deadline_ns, struct zd_err *err) __attribute__((warn_unused_result));
/* The same for one request whose answer is awaited, until its deadline. */
int zc_room_await(struct zerod_client *client, const Zd__Request *request, struct zd_err *err)
        __attribute__((warn_unused_result));
/* With the lock: so many will not be sent. */
void zc_room_return(struct zerod_client *client, unsigned count);
/* Sends a packet with the requests `ids`, which have room, or fails their ops, returns their room and says
 * why. */
int zc_transmit(struct zerod_client *client, const uint8_t *bytes, size_t nbytes, const uint64_t *ids,
                unsigned nids, struct zd_err *err) __attribute__((warn_unused_result));
/* Sends a request of an op that is no CALL, or puts it into the thread's batch. It has room; the op is the
 * table's from then on. On failure the op is gone, and so is its room. */
int zc_post(struct zerod_client *client, struct zc_op *op, Zd__Request *request, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Without the lock. Tells the daemon what was unmapped, unless somebody is sending: who then does so
 * afterwards. */
void zc_unmapped_send(struct zerod_client *client);

/* ---- receive.c ----------------------------------------------------------------------------------------- */

/* All with the lock held; they give it back while they block. */

/* Waits on the condition until then; UINT64_MAX: for ever. Returns ETIMEDOUT, or 0 as pthread_cond_wait(). */
int zc_cond_wait(pthread_cond_t *wake, pthread_mutex_t *lock, uint64_t deadline_ns);
/* Waits until the op is answered. DEADLINE, without a text, when it is not in time. */
int zc_wait_answer(struct zerod_client *client, const struct zc_op *op, uint64_t deadline_ns)
        __attribute__((warn_unused_result));
/* Reads, or sleeps until another thread has read. False when the deadline has passed. */
bool zc_wait_progress(struct zerod_client *client, const struct zc_op *op, uint64_t deadline_ns);
/* To be called by who stops waiting: somebody else may have to read now. */
void zc_hand_over(struct zerod_client *client);
/* Reads what is there, unless somebody else does. */
void zc_drain(struct zerod_client *client);
/* Takes one packet, if one comes within the timeout, and says whether; with `or_writable` also returns when
 * the socket has room. Nobody may be reading. */
bool zc_read(struct zerod_client *client, int timeout_ms, bool or_writable);
/* Waits until one of them is ready, or until then, and says whether one is: in naps, for a processor that has
 * been idle for long takes hundreds of microseconds to wake up. Needs no lock. */
bool zc_nap(struct pollfd *fds, nfds_t nfds, uint64_t until_ns);
/* Ends the connection: everything outstanding is answered with err->status and its text. The first break
 * counts. */
void zc_break(struct zerod_client *client, const struct zd_err *err);
/* The op is answered: wakes who waits for it. */
void zc_wake(struct zerod_client *client, const struct zc_op *op);
void zc_packet_unref(struct zerod_client *client, struct zc_packet *packet);
void zc_packet_free(struct zc_packet *packet);

/* ---- cork.c -------------------------------------------------------------------------------------------- */

/* The calling thread's batch; NULL when it has not corked. */
struct zc_batch *zc_batch_find(struct zerod_client *client);
/* Adds a packed request; sends what is there first when it does not fit. The op is answered with the failure
 * if that cannot be sent. */
void zc_batch_add(struct zerod_client *client, struct zc_batch *batch, const uint8_t *bytes, size_t nbytes,
                  uint64_t id);
/* The same with a request whose answer is awaited: sends all. */
int zc_batch_add_last(struct zerod_client *client, struct zc_batch *batch, const uint8_t *bytes,
                      size_t nbytes, uint64_t id, struct zd_err *err) __attribute__((warn_unused_result));
/* Sends the calling thread's batch: every call that waits begins with it. A failure is in the ops and in the
 * uncork. */
void zc_flush(struct zerod_client *client);
void zc_batches_free(struct zerod_client *client);

/* ---- segment.c ----------------------------------------------------------------------------------------- */

/* All with the lock. NULL: it was never sent. */
struct zc_segment *zc_segment_find(struct zerod_client *client, uint32_t id);
/* The descriptor is taken over, whatever is returned. PROTOCOL for anything that does not fit. */
int zc_segment_add(struct zerod_client *client, const Zd__Segment *segment, int fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Maps `bytes` of a page that the daemon has sealed against shrinking; takes the descriptor over. `what` is
 * its name in texts. */
int zc_page_map(int fd, size_t bytes, int protection, const char *what, void **page, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Maps the fence pages; takes both descriptors over. */
int zc_pages_map(struct zerod_client *client, int client_fd, int daemon_fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Checks that the place lies in a segment that we have, holds `min_bytes`, and is aligned for elements of
 * `align` bytes. */
int zc_location_take(struct zerod_client *client, const Zd__Location *from, uint64_t min_bytes, size_t align,
                     struct zc_location *location, struct zd_err *err) __attribute__((warn_unused_result));
/* The address of a place that was taken; maps its segment at the first use. SYSTEM when that fails; STALE
 * when the place was given back meanwhile and its segment with it. */
int zc_location_map(struct zerod_client *client, const struct zc_location *location, void **data,
                    struct zd_err *err) __attribute__((warn_unused_result));
/* The daemon wants it back, and names no place in it any more: unmaps it, and remembers to say so. PROTOCOL
 * when it was never sent. */
int zc_segment_retire(struct zerod_client *client, uint32_t id, struct zd_err *err)
        __attribute__((warn_unused_result));
void zc_segments_free(struct zerod_client *client);

/* ---- work.c -------------------------------------------------------------------------------------------- */

/* Maps the session's rings; takes the descriptor over. */
int zc_rings_take(struct zerod_client *client, int fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Maps the page; takes both descriptors over. */
int zc_worker_take(struct zerod_client *client, int sock, int page_fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* With cuda_lock. Starts the thread, once, where the daemon may ask. */
int zc_worker_start(struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));
/* What this process has asked for will soon make the daemon ask for a sum: the thread is to be awake by
 * then. */
void zc_worker_expect(const struct zerod_client *client);
/* Nothing is begun any more. */
void zc_worker_stop(struct zerod_client *client);
/* At the client's end, also in a forked child. */
void zc_worker_deinit(struct zerod_client *client);

/* ---- fence.c ------------------------------------------------------------------------------------------- */

/* Copies and checks fences on the daemon's page. */
int zc_fences_take(const struct zerod_client *client, size_t count, Zd__Fence *const *from,
                   struct zc_fences *fences, struct zd_err *err) __attribute__((warn_unused_result));
void zc_fences_deinit(struct zc_fences *fences);
void zc_fence_merge_init(struct zc_fence_merge *merge);
void zc_fence_merge_add(struct zc_fence_merge *merge, struct zc_fence fence);
/* Have all passed: 1, not yet: 0, or ZEROD_E_ABORTED. */
int zc_fences_poll(const struct zerod_client *client, const struct zc_fences *fences);
/* Blocks the calling thread, without the lock, until all have passed: 0, ABORTED (the session is poisoned
 * then), DEADLINE, or why the connection broke. `what` is waited for. */
int zc_fences_wait(struct zerod_client *client, const struct zc_fences *fences, uint64_t deadline_ns,
                   const char *what, struct zd_err *err) __attribute__((warn_unused_result));
/* The session was reset: the daemon is about to take its aborts back. Blocks until it has, or is gone. */
void zc_aborts_settle(struct zerod_client *client);
/* A counter that frees whoever waits for it, of those that streams wait for; NULL: there is none. */
const uint64_t *zc_abort_find(const struct zerod_client *client);
/* Stores into the client's page and wakes who sleeps on it. */
void zc_timeline_signal(struct zerod_client *client, uint32_t timeline, uint64_t value);

/* ---- own_slice.c --------------------------------------------------------------------------------------- */

/* With the lock: the daemon placed a gather of the unit in `buffer` and left the own slice, at `from`, to
 * us. */
void zc_own_slice_leave(struct zc_unit *unit, uint64_t transfer, const struct zc_location *from,
                        const struct zc_location *buffer);
/* With the lock: a gather was placed, and nothing is left to us, since the daemon copies the own slice
 * too. */
void zc_own_slice_is_there(struct zc_unit *unit, uint64_t transfer);
/* With the lock: nobody holds the unit's copy any more, nothing is to be copied into it. */
void zc_own_slice_drop(struct zc_unit *unit);
/*
 * Without the lock: copies the slices of gathers' buffers that are due. Adds to `copied`, on the client's
 * page, what passes when they are there. STALE, and nothing is copied by a GPU, when one of the tickets was
 * released.
 */
int zc_own_slices_copy(struct zerod_client *client, struct zc_op *const *ops, uint32_t count,
                       struct zc_fence_merge *copied, struct zd_err *err) __attribute__((warn_unused_result));
/* Without the lock, for a GPU's stream: the same, and makes it wait for what `wait` has on the daemon's page,
 * and for `copied`, to which it adds. */
int zc_own_slices_append(struct zerod_client *client, struct zc_op *const *ops, uint32_t count,
                         zerod_stream *stream, struct zc_stream_wait *wait, struct zc_fence_merge *copied,
                         struct zd_err *err) __attribute__((warn_unused_result));
/* Without the lock: an update of the units has begun. Copies what is due, and returns when no copy reads a
 * shard, or DEADLINE; with `copied`, GPUs' copies are added to that instead. */
int zc_own_slices_settle(struct zerod_client *client, struct zc_unit *const *units, uint32_t count,
                         uint64_t deadline_ns, struct zc_fence_merge *copied, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- stream.c ------------------------------------------------------------------------------------------ */

/* Fences behind all that is now in some streams, as they go into a request. */
struct zc_fence_args {
	size_t count;
	Zd__Fence fences[ZD_MAX_FENCES];
	Zd__Fence *pointers[ZD_MAX_FENCES];
};

/* A stream with nothing to do needs no fence: its work has ended before the request is sent. The others have
 * `holds`, too, until their fence has passed (NULL: nothing). May be called with the client's lock. */
int zc_streams_fence_holding(struct zerod_client *client, zerod_stream *const *streams, uint32_t nstreams,
                             const struct zc_hold_list *holds, struct zc_fence_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
int zc_streams_fence(struct zerod_client *client, zerod_stream *const *streams, uint32_t nstreams,
                     struct zc_fence_args *args, struct zd_err *err) __attribute__((warn_unused_result));
/* INVALID unless the stream is the client's. */
int zc_stream_check(const struct zerod_client *client, const zerod_stream *stream, struct zd_err *err)
        __attribute__((warn_unused_result));
/* With the client's lock: has an abort freed a wait of a GPU's stream, which tells nobody itself? */
bool zc_streams_aborted(struct zerod_client *client);
/* With the client's lock: streams whose wait was aborted take work again. */
void zc_streams_reset(struct zerod_client *client);
/* In a forked child, where nothing of the stream exists. */
void zc_stream_forget(zerod_stream *stream);

/* ---- ticket.c ------------------------------------------------------------------------------------------ */

/* Without the lock. The op has one reference, which becomes the table's; NULL when there is no memory. `unit`
 * may be NULL for OTHER. */
struct zc_op *zc_ticket_new(struct zerod_client *client, enum zc_op_kind kind, struct zc_unit *unit,
                            uint32_t deadline_ms, struct zd_err *err);
/* The same for OTHER. `data` is the op's when it is made, else the caller's. */
struct zc_op *zc_ticket_new_other(struct zerod_client *client, const struct zc_ticket_type *type, void *data,
                                  struct zc_unit *unit, uint32_t deadline_ms, struct zd_err *err);
/* Without the lock. Sends a request of no unit, or puts it into the thread's batch, and makes its ticket.
 * `deadline_ms` is as the caller gave it. `data` is NULL or from malloc(), and the op's, also after an
 * error. */
int zc_post_other(struct zerod_client *client, const struct zc_ticket_type *type, void *data,
                  Zd__Request *request, uint32_t deadline_ms, zerod_ticket *ticket, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Without the lock: an op that was not posted goes. */
void zc_ticket_withdraw(struct zerod_client *client, struct zc_op *op);
/* All others with the lock. The daemon answered a ticket; PROTOCOL when the answer makes no sense. */
int zc_ticket_answer(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                     struct zd_err *err) __attribute__((warn_unused_result));
/* It will not answer it; the op's status says why. */
void zc_ticket_fail(struct zerod_client *client, struct zc_op *op, const char *error);
/* The ticket is of no use any more: takes it out of the table, now or when it is answered. */
void zc_ticket_drop(struct zerod_client *client, struct zc_op *op);
/* With the lock. Answered: stays in the table for its lease, or among the finished ones, or not at all. */
void zc_ticket_settle(struct zerod_client *client, struct zc_op *op);
void zc_ticket_unref(struct zerod_client *client, struct zc_op *op);
void zc_tickets_free(struct zerod_client *client);

/* ---- device.c ------------------------------------------------------------------------------------------ */

/* To be called before something on the daemon's device is asked for, without a lock: opens the GPU, and starts
 * the thread that unmaps segments while the process makes no call. NOT_FOUND, UNSUPPORTED, DEVICE, SYSTEM. */
int zc_device_join(struct zerod_client *client, uint32_t index, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Which of the daemon's devices has that name, or alone begins so: NOT_FOUND, INVALID, UNSUPPORTED. Without a
 * lock. */
int zc_device_find(struct zerod_client *client, const char *uuid, uint32_t *device, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- detached.c ---------------------------------------------------------------------------------------- */

/* Sends a request about the unit without a ticket, or puts it into the thread's batch. Of an error nothing
 * was sent. `what` names the request in the text of a later failure: a string literal. */
int zc_post_detached(struct zerod_client *client, struct zc_unit *unit, const char *what,
                     Zd__Request *request, struct zd_err *err) __attribute__((warn_unused_result));
/* With the lock: the daemon refused the request, or a gather that was released; the op's status says why. */
void zc_detached_fail(struct zerod_client *client, const struct zc_op *op, const char *error);
/* Without the lock. Returns what has failed since the last report, once; 0: nothing. */
int zc_detached_report(struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- gather.c, wait.c ---------------------------------------------------------------------------------- */

/* The holder's name, or the default one where none is given. INVALID. */
int zc_tag_choose(const char *given, const char **tag, struct zd_err *err)
        __attribute__((warn_unused_result));
/* As it travels: the default is left out of messages. */
char *zc_tag_wire(const char *tag);
/* zerod_wait_many() of a client that has been entered. */
int zc_wait_many(struct zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                 zerod_stream *stream, void **data, struct zd_err *err) __attribute__((warn_unused_result));
/* Waits for releases' tickets, all of them, and consumes them. Returns the first failure. */
int zc_releases_await(struct zerod_client *client, const zerod_ticket *tickets, uint32_t count,
                      uint64_t deadline_ns, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- lease.c ------------------------------------------------------------------------------------------- */

/* All with the lock. A gather adds its uses and its ticket to the lease of its tag. */
int zc_lease_add(struct zerod_client *client, struct zc_unit *unit, const char *tag, struct zc_op *op,
                 struct zd_err *err) __attribute__((warn_unused_result));
/* The same for a scope (not 0): one lease, whatever is gathered there, until zc_scope_leases_end(). */
int zc_lease_join(struct zerod_client *client, struct zc_unit *unit, uint64_t scope, struct zc_op *op,
                  struct zd_err *err) __attribute__((warn_unused_result));
void zc_scope_leases_end(struct zerod_client *client, uint64_t scope);
/* Adds to `holds` what the scope's leases hold; 0: those of all scopes. An error leaves the list empty. */
int zc_scope_holds(struct zerod_client *client, uint64_t scope, struct zc_hold_list *holds,
                   struct zd_err *err) __attribute__((warn_unused_result));
/* What the lease of the tag holds; NULL: nothing. */
const struct zc_hold_list *zc_lease_holds(const struct zc_unit *unit, const char *tag);
/* One release of the tag; the last one makes the lease's tickets stale. Nothing where nothing is held. */
void zc_lease_release(struct zerod_client *client, struct zc_unit *unit, const char *tag);
/* The gather failed: what it added is taken back. */
void zc_lease_withdraw(struct zerod_client *client, struct zc_op *op);
void zc_leases_end(struct zerod_client *client, struct zc_unit *unit);

/* ---- strict.c ------------------------------------------------------------------------------------------ */

/* Nothing of this does anything in a client that is not strict. An error leaves nothing behind. */

/* With the lock: the ticket's buffer may be touched until its lease ends. STALE when that has ended. */
int zc_strict_open(struct zerod_client *client, struct zc_op *op, struct zd_err *err)
        __attribute__((warn_unused_result));
/* With the lock: this part of the unit's gathered copy may be touched until the hold is dropped. */
int zc_strict_hold(struct zerod_client *client, const struct zc_unit *unit, const struct zc_location *part,
                   struct zc_hold_list *list, struct zd_err *err) __attribute__((warn_unused_result));
/* GPUs, with the lock: the same for a whole segment. */
int zc_strict_hold_segment(struct zerod_client *client, struct zc_segment *segment, struct zc_hold_list *list,
                           struct zd_err *err) __attribute__((warn_unused_result));
/* With the lock: the unit's gathered copy may be touched when its leases have ended, until unit->kept is
 * dropped. */
int zc_strict_keep(struct zerod_client *client, struct zc_unit *unit, struct zd_err *err)
        __attribute__((warn_unused_result));
/* With or without the lock. */
int zc_holds_copy(struct zerod_client *client, const struct zc_hold_list *from, struct zc_hold_list *to,
                  struct zd_err *err) __attribute__((warn_unused_result));
void zc_holds_drop(struct zerod_client *client, struct zc_hold_list *list);

/* ---- update.c ------------------------------------------------------------------------------------------ */

/* Units of one client, by the daemon's ids. */
struct zc_unit_list {
	struct zerod_client *client;
	size_t count;
	uint64_t ids[ZD_MAX_UNITS_PER_REQUEST];
};

/* Enters the client of the first unit, and fails unless all are its. */
int zc_units_take(zerod_unit *const *units, uint32_t count, struct zc_unit_list *list, struct zd_err **err)
        __attribute__((warn_unused_result));
/* The same for calls that are refused while the session is poisoned. */
int zc_update_take(zerod_unit *const *units, uint32_t count, struct zc_unit_list *list, struct zd_err **err)
        __attribute__((warn_unused_result));
/* Reads and checks what the caller gave. */
int zc_publish_options(struct zerod_publish_options *options, const struct zerod_publish_options *given,
                       struct zd_err *err) __attribute__((warn_unused_result));
/* Publishes what was taken, behind the streams; with a ticket, does not wait for the answer. */
/* With the lock. Adds the fences, on the client's page, behind which the unit is being published; false when it
 * is not, or they are not known. */
bool zc_publish_writers(const struct zc_unit *unit, struct zc_fence_merge *writers);
int zc_publish(struct zc_unit_list *list, zerod_unit *const *units, zerod_stream *const *streams,
               uint32_t nstreams, const struct zerod_publish_options *options, zerod_ticket *ticket,
               struct zd_err *err) __attribute__((warn_unused_result));
/* With the lock, the session was reset: what a group with shadows had under update may have been set back. */
void zc_updates_reset(struct zerod_client *client);
/* ---- target.c ------------------------------------------------------------------------------------------ */

/* Before the unit's next contribution: ends its loan, if there is one, behind the streams that waited for
 * it. */
int zc_target_return(struct zerod_client *client, struct zc_unit *unit, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The same for all units of the group. */
int zc_targets_return(struct zerod_group *group, struct zd_err *err) __attribute__((warn_unused_result));
/* With the lock: the daemon has ended the group's loans. */
void zc_targets_forget(struct zerod_group *group);
/* The stream's handle is about to go: ends all loans, if it waited for one. */
void zc_reader_end(const zerod_stream *stream);
/* Both with the lock. A reset begins: which steps it leaves is to be heard. It has ended: targets of
 * steps that the reply does not name are the daemon's again; NULL: it names none at all. */
void zc_targets_doubt(struct zerod_client *client);
void zc_targets_settle(struct zerod_client *client, const Zd__SessionResetReply *reply);
/* With the lock, these two. */
void zc_bucket_free(struct zerod_bucket *bucket);
/* entry.c: what was asked for and no caller has got. */
void zc_reserved_forget(struct zerod_bucket *bucket);
/* The same of all the group's buckets. */
void zc_buckets_forget(struct zerod_group *group);

/* How a request is sent that answers nothing but a status. */
struct zc_sending {
	const struct zc_ticket_type *type;
	const char *word; /* for a detached one's failure */
	struct zc_unit *unit;
	bool detached;
	zerod_ticket *ticket; /* NULL: blocks, unless it is detached */
};
int zc_entry_submit(struct zerod_client *client, const struct zerod_bucket *bucket, uint64_t entry_id,
                    const struct zc_fence_args *fences, const struct zerod_reduce_options *options,
                    const struct zc_sending *sending, struct zd_err *err) __attribute__((warn_unused_result));
/* With the lock. Frees it, as its entry is the daemon's now. */
void zc_reserved_free(struct zc_reserved *reserved);

/* ---- accumulate.c -------------------------------------------------------------------------------------- */

/* With the lock: the entry that sums up the unit's gradients in this backward; NULL: there is none. STATE
 * while an earlier gradient is not handed over. */
int zc_accumulation_find(const struct zerod_bucket *bucket, const struct zc_unit *unit,
                         struct zc_reserved **found, struct zd_err *err) __attribute__((warn_unused_result));
/* A gradient is in the entry once the fences have passed; the ticket (NULL: none) is answered at once. */
int zc_accumulation_add(struct zerod_client *client, struct zc_reserved *given,
                        const struct zc_fence_args *fences, const struct zerod_reduce_options *options,
                        const struct zc_sending *sending, struct zd_err *err)
        __attribute__((warn_unused_result));
/* INVALID: absent views, of which an earlier gradient may be there. */
int zc_accumulation_check(const struct zerod_reduce_options *options, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Adds the fences of the sums of all the group's buckets: of entries that are given up. */
int zc_accumulations_fence(struct zerod_group *group, struct zc_fence_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Commits the sums of all the group's buckets, detached. */
int zc_accumulations_submit(struct zerod_group *group, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- collectives.c ------------------------------------------------------------------------------------- */

/* The options' part about daemons and collectives, where the rest has been checked; a local_world_size of 0
 * becomes the group's. */
int zc_collectives_check(const struct zerod_client *client, struct zerod_group_options *options,
                         struct zd_err *err) __attribute__((warn_unused_result));
/* The same part as it travels; the ids stay the caller's. */
void zc_collectives_pack(const struct zerod_group_options *options, Zd__GroupJoin *join);
/* Which shard of each unit is the rank's. */
void zc_collectives_place(const struct zerod_group_options *options, struct zerod_group *group);

/* ---- group.c, unit.c ----------------------------------------------------------------------------------- */

/* With the lock. */
void zc_group_free(struct zerod_group *group);
void zc_unit_handle_free(struct zerod_unit *unit);
void zc_unit_unref(struct zc_unit *unit);
/* Bytes of the unit's shard and of its whole gathered buffer. */
uint64_t zc_unit_shard_bytes(const struct zc_unit *unit);
uint64_t zc_unit_bytes(const struct zc_unit *unit); /* without padding */
uint64_t zc_unit_padded_bytes(const struct zc_unit *unit);
/* The handle's client; NULL for NULL. */
struct zerod_client *zc_unit_client(const struct zerod_unit *unit);
struct zerod_client *zc_group_client(const struct zerod_group *group);

#endif
