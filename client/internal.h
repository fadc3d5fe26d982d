/* SPDX-License-Identifier: Apache-2.0 */
/*
 * internal.h - declarations that the library's files share, and zc_call(), which the programs that ship with
 * it use.
 *
 * zeroctl and zerobench send requests that the public interface does not have (listing, administration) with
 * zc_call(). All other declarations are private to the library.
 *
 * Other declarations are in headers by subject: this one includes fence.h, segment.h, request.h and
 * objects.h; files that need stream.h or cuda.h include them.
 *
 * Locks, in the order in which they nest: a client's send_lock, its copy_lock, its cuda_lock, its lock, a
 * stream's lock, the client's page_lock. The library holds none of them while a function of the caller runs.
 *
 * Devices are either emulated, and the CPU can access their memory, or GPUs, whose memory it cannot access:
 * addresses of the daemon's memory are then the GPU's, and the library must not dereference them.
 * client/cuda.h is the interface to GPUs.
 */
#ifndef ZD_CLIENT_INTERNAL_H
#define ZD_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include <zerod.h>

#include "base/err.h"
#include "base/spin.h"
#include "client/fence.h"
#include "client/objects.h"
#include "client/request.h"
#include "client/segment.h"
#include "proto/limits.h"
#include "proto/endpoint.h"
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

/* The daemon enforces deadlines. The library waits this much longer, in case the daemon hangs. */
#define ZC_GRACE_NS 2000000000ull
/* Outstanding requests from which a sender also reads, so that replies cannot pile up in the daemon. */
#define ZC_DRAIN_ABOVE 32u
/* Limit of answered tickets that no lease keeps and no thread has waited for; the oldest are dropped
 * first. */
#define ZC_MAX_FINISHED 4096u
/* Limit of a lease's tickets beyond its remaining uses. */
#define ZC_SURPLUS_TICKETS 64u
/* Limit of freed tickets that are kept for new requests. */
#define ZC_MAX_SPARE_TICKETS 128u
/* The socket's receive timeout: a longer wait is several of these. */
#define ZC_RECEIVE_SLICE_MS 1000
#define ZC_SPIN_NS          50000u   /* busy-polling after an event, before a thread sleeps */
#define ZC_CALL_SPIN_NS     250000u  /* busy-polling for the answer to a blocking call */
#define ZC_SPIN_PROCESSORS  8u       /* with fewer, threads do not spin */
#define ZC_NAPS_NS          5000000u /* after an event, threads nap this long before they sleep */
/* The interval at which a thread that sleeps on a counter checks that the daemon is alive. */
#define ZC_POLL_SLICE_NS 100000000ull

/* ---- The client ---------------------------------------------------------------------------------------- */

/* The channel over which the daemon requests sums of this process, and the thread that makes
 * them (offloaded_sum.c). */
struct zc_worker {
	struct zd_endpoint endpoint; /* sock -1: the daemon requests no sums */
	struct zd_work_page *page;   /* GPUs write the sums' results here; NULL: none */
	int expected;                /* an eventfd: a request will come soon; -1: none */
	/* With cuda_lock: */
	bool running;
	pthread_t thread;
	int stop; /* an eventfd that ends the thread */
};

struct zerod_client {
	/* Set by zerod_connect(), then fixed. */
	struct zd_endpoint endpoint; /* the holder of send_lock sends, the `reading` thread receives */
	struct zd_rings *rings;      /* beside it, and beside the worker's; NULL: none */
	uint64_t serial; /* identifies this client for ever: threads keep their error texts under it */
	unsigned fork_generation;
	uint32_t deadline_ms;
	bool strict;
	bool poison_mode; /* the daemon fills released buffers with NaN patterns; see `poisoned` for aborts */
	bool on_gpus;     /* devices are GPUs: see client/cuda.h */
	bool collectives; /* the daemon has communicators */
	uint32_t ntimelines;
	uint64_t *client_page; /* the library writes, the daemon reads */
	uint64_t *daemon_page; /* the daemon writes; on GPUs the library may, after its end */
	uint64_t *gpu_page;    /* GPUs write: client_page, or a strict client's own page (cuda_strict.c) */

	struct zc_worker worker;

	pthread_mutex_t send_lock; /* the order of packets on the socket */

	atomic_uint_fast64_t packets; /* sent so far */
	atomic_bool poisoned;         /* a wait was freed by an abort */
	atomic_bool lost; /* the connection has ended; broken_status says so when it was read to its end */
	atomic_bool detached_failed; /* detached.nfailures > 0 */
	atomic_uint ncorked;         /* threads with a batch; 0 spares a search */
	atomic_int broken_status;    /* 0, or the status with which the connection broke; see broken_text */
	char broken_text[ZD_ERR_TEXT_BYTES];

	struct zc_cuda *_Atomic cuda; /* NULL until the first GPU is opened; fixed then */

	pthread_mutex_t page_lock;  /* segments' holders and their unmapping, and: */
	struct zd_err page_failure; /* of taking access away; status 0: none */

	pthread_mutex_t copy_lock; /* one own-slice copy of the CPU at a time */
	pthread_mutex_t cuda_lock; /* one GPU is opened at a time */
	pthread_mutex_t lock;      /* all members below */
	uint64_t next_id;
	uint64_t nlists;                     /* number of unit lists so far: see zc_unit.listed */
	struct zc_op_list ops[ZC_OP_CHAINS]; /* by id */
	unsigned outstanding, abandoned;
	struct zc_op_list spare_tickets; /* kept for the next ones */
	unsigned nspare_tickets;
	struct zc_op_queue finished;
	unsigned nfinished;

	struct zc_detached detached;

	bool reading;        /* a thread reads the socket */
	bool naps;           /* it waits for a call's answer: it naps before it sleeps */
	struct zd_spin spin; /* the reader's */
	struct zc_waiter_queue waiters;
	struct zc_packet *spare_packet;
	uint8_t *receive_buffer; /* the reader's; ZD_MAX_PACKET_BYTES */

	struct zc_segment *segments; /* hash by id */
	struct zc_segment *retired;  /* unmapped, and still named by a hold */
	uint64_t nretired;           /* segments that the daemon has retired so far */
	uint32_t *unmapped;          /* nunmapped ids that are not reported to the daemon yet */
	size_t nunmapped, unmapped_room;
	struct zc_unit *units; /* hash by id */
	LIST_HEAD(, zc_naming) namings;
	pthread_cond_t named; /* a naming has ended */
	LIST_HEAD(, zc_batch) batches;
	struct zc_batch *spare_batch;
	LIST_HEAD(, zerod_group) groups;
	LIST_HEAD(, zerod_allocation) buffers;
	LIST_HEAD(, zerod_stream) streams;
	uint32_t nlent; /* units whose place in a target this client may access (target.c) */
	LIST_HEAD(, zc_lease) scope_leases; /* of all units */
	bool timeline_used[ZEROD_MAX_STREAMS];
	uint64_t timeline_value[ZEROD_MAX_STREAMS]; /* last used: the next stream counts on from it */
};

/* ---- errors.c ------------------------------------------------------------------------------------------ */

/* The calling thread's last error on the client (NULL: on none). Never NULL; valid until the thread's next
 * zc_err() for another client. */
struct zd_err *zc_err(const struct zerod_client *client);
/* A number of the calling thread that no other thread ever has. */
uint64_t zc_thread_serial(void);

/* ---- client.c ------------------------------------------------------------------------------------------ */

/* Every public function begins with one of these two. Errors: INVALID for NULL, FORKED, the status with which
 * the connection broke, or the failure of a detached request that no call has reported yet. */
int zc_enter(struct zerod_client *client, struct zd_err **err) __attribute__((warn_unused_result));
/* The same without failures of detached requests: for calls that end or free something, for calls on streams
 * alone, and inside the library. */
int zc_enter_quietly(const struct zerod_client *client, struct zd_err **err)
        __attribute__((warn_unused_result));
/* Returns the reason for the connection's end, as far as it has been read. */
int zc_say_lost(const struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));
/* POISONED when an abort has freed a wait of this session; the connection's status if its end has freed the
 * wait. */
int zc_check_poison(struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- options.c ----------------------------------------------------------------------------------------- */

/* Copies options of the caller's struct_size into `copy` of `known_bytes`, zeroed where the caller's are
 * shorter. INVALID when a longer structure sets members that this library does not have. `given` NULL: all
 * zero. */
int zc_options(void *copy, size_t known_bytes, const void *given, const char *what, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The same of element `i` of an array, `what`. The first element's struct_size is the stride and must be that
 * of all. The elements before `i` have been read. */
int zc_element(void *copy, size_t known_bytes, const void *array, uint32_t i, const char *what,
               struct zd_err *err) __attribute__((warn_unused_result));
/* INVALID unless a field that has no meaning yet is 0. */
int zc_reserved(uint32_t reserved, const char *what, struct zd_err *err) __attribute__((warn_unused_result));
/* The deadline in `options`, as it was given; 0 for NULL. */
int zc_wait_options(const struct zerod_wait_options *options, uint32_t *deadline_ms, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Checks a result structure: INVALID for NULL and for a struct_size that was not set. `what` is the
 * parameter. */
int zc_result_check(const void *given, const char *what, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Fills the caller's structure up to its struct_size; members that this library does not have become zero. */
void zc_result_fill(void *given, const void *made, size_t known_bytes);
/* INVALID names bits beyond `known`. */
int zc_flags(uint32_t flags, uint32_t known, const char *what, struct zd_err *err)
        __attribute__((warn_unused_result));
/* The deadline as it travels: milliseconds, 0 for none. */
uint32_t zc_deadline_ms(const struct zerod_client *client, uint32_t option_ms);
/* The time at which that deadline passes, for the library's own waits; UINT64_MAX: never. CLOCK_MONOTONIC. */
uint64_t zc_until_ns(uint32_t wire_ms);
/* The time left until the deadline, for an option in ms: at least 1. */
uint32_t zc_left_ms(uint64_t deadline_ns);
/* The same for an answer of the daemon, which enforces the deadline itself: ZC_GRACE_NS later. */
uint64_t zc_deadline_ns(uint32_t wire_ms);
uint64_t zc_now_ns(void);

/* Checks that the reply has the body that the request expects; PROTOCOL otherwise. */
int zc_check_body(const Zd__Reply *reply, Zd__Reply__BodyCase body, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- offloaded_sum.c ----------------------------------------------------------------------------------- */

/* Maps the session's rings; takes the descriptor over. */
int zc_rings_take(struct zerod_client *client, int fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Maps the page; takes both descriptors over. */
int zc_worker_take(struct zerod_client *client, int sock, int page_fd, struct zd_err *err)
        __attribute__((warn_unused_result));
/* With cuda_lock. Starts the thread, once, if the daemon may request sums. */
int zc_worker_start(struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));
/* The daemon will soon request a sum because of this process's call: wakes the worker thread, so that it is
 * awake when the request arrives. */
void zc_worker_expect(const struct zerod_client *client);
/* Stops the thread: it begins no further sums. */
void zc_worker_stop(struct zerod_client *client);
/* At the client's end, also in a forked child. */
void zc_worker_deinit(struct zerod_client *client);

/* ---- device.c ------------------------------------------------------------------------------------------ */

/* Call this before a request about memory on the daemon's device, without a lock. It opens the GPU, and
 * starts the thread that unmaps segments while the process makes no call. Errors: NOT_FOUND, UNSUPPORTED,
 * DEVICE, SYSTEM. */
int zc_device_join(struct zerod_client *client, uint32_t index, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Finds the daemon's device with that name, or the only one whose name begins with it. Errors: NOT_FOUND,
 * INVALID, UNSUPPORTED. Without a lock. */
int zc_device_find(struct zerod_client *client, const char *uuid, uint32_t *device, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
