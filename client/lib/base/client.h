/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - the client: a connection to a daemon, and the library's state of it.
 *
 * Locks, in the order in which they nest: a client's reconnect_lock, its send_lock, its cuda_lock, its lock,
 * a stream's lock, the client's page_lock. The library holds none of them while a function of the caller
 * runs.
 *
 * Devices are either emulated or GPUs. The CPU can access the memory of emulated devices. With GPUs,
 * addresses of the daemon's memory are the GPU's, and the library must not dereference them. device/cuda.h is
 * the interface to GPUs.
 */
#ifndef ZD_CLIENT_CLIENT_H
#define ZD_CLIENT_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include <zerod.h>

#include "base/err.h"
#include "base/spin.h"
#include "proto/endpoint.h"
#include "proto/limits.h"
#include "proto/zerod.pb-c.h"

/* ---- Limits of the library ----------------------------------------------------------------------------- */

/* The daemon enforces deadlines. The library waits this much longer, in case the daemon hangs. */
#define ZC_GRACE_NS 2000000000ull
/* Number of outstanding requests from which a sender also reads, so that replies cannot pile up in the
 * daemon. */
#define ZC_DRAIN_ABOVE 32u
/* Limit of answered tickets without a lease and without a wait. The oldest are dropped first. */
#define ZC_MAX_FINISHED 4096u
/* Limit of a lease's tickets beyond its remaining uses. */
#define ZC_SURPLUS_TICKETS 64u
/* Limit of freed tickets that are stored for new requests. */
#define ZC_MAX_SPARE_TICKETS 128u
/* The socket's receive timeout, unless the program has `interrupted`. A longer wait consists of several
 * timeouts. */
#define ZC_RECEIVE_SLICE_MS 1000
#define ZC_SPIN_NS                                                                                           \
	50000u /* busy-polling for the answer to a gather, and of the thread for sums after an event */
#define ZC_CALL_SPIN_NS    250000u   /* busy-polling for the answer to a blocking call */
#define ZC_SPIN_PROCESSORS 8u        /* with fewer, threads do not spin */
#define ZC_NAPS_NS         5000000u  /* after an event, threads nap this long before they sleep */
#define ZC_ASK_NS          50000000u /* between two calls of the program's `interrupted` */
/* The interval at which a thread that sleeps on a counter checks that the daemon is alive. */
#define ZC_POLL_SLICE_NS 100000000ull

/* ---- The client ---------------------------------------------------------------------------------------- */

LIST_HEAD(zc_op_list, zc_op);
TAILQ_HEAD(zc_op_queue, zc_op);
TAILQ_HEAD(zc_waiter_queue, zc_waiter);

/* Chains of the table of ops. Ids are consecutive. With as many chains as outstanding requests, the table
 * needs no hash function. */
#define ZC_OP_CHAINS ZD_MAX_OUTSTANDING

/* Failures of detached requests that no call has reported yet. */
struct zc_detached {
	uint64_t nfailures;
	struct zd_err first; /* valid while nfailures > 0 */
};

#define ZC_LAG_STREAMS 3u

/* Streams whose fences pass late (lag.c); fixed once the client is connected. */
struct zc_lag {
	struct zerod_stream *streams[ZC_LAG_STREAMS];
	atomic_uint_fast64_t random; /* state of the generator; 0: no stream lags */
};

/* The channel through which the daemon requests sums of this process, and the thread that computes them
 * (offloaded_sum.c). */
struct zc_worker {
	struct zd_endpoint endpoint; /* sock -1: the daemon requests no sums */
	struct zd_work_page *page;   /* GPUs write the sums' results here; NULL: none */
	int expected;                /* an eventfd: a request will arrive soon; -1: none */
	/* With cuda_lock: */
	bool running;
	pthread_t thread;
	int stop; /* an eventfd that ends the thread */
};

struct zerod_client {
	/* Set by zerod_connect(), then fixed. Each reconnection sets some of them again, when no thread is
	 * inside. */
	struct zd_endpoint endpoint; /* the holder of send_lock sends, the `reading` thread receives */
	struct zd_rings *rings;      /* of this endpoint and the worker's; NULL: none */
	uint64_t serial;  /* identifies this client for ever: threads store their error texts under it */
	uint64_t session; /* 0: none */
	uint64_t daemon;  /* a hash of its socket's path */
	char *socket_path, *name; /* owned; NULL in a client that never reconnects */
	unsigned fork_generation;
	uint32_t connect_deadline_ms;
	atomic_uint deadline_ms;           /* of calls without a deadline of their own */
	int (*interrupted)(void *context); /* NULL: none; interrupt.c */
	void *interrupted_context;
	uint32_t reconnect_ms; /* 0: the client ends with its daemon */
	unsigned generation;   /* the number of reconnections */
	bool strict;
	bool poison_mode; /* the daemon fills released buffers with NaN patterns; see `poisoned` for aborts */
	bool on_gpus;     /* devices are GPUs: see device/cuda.h */
	bool collectives; /* the daemon has communicators */
	uint32_t ntimelines;
	uint64_t *client_page; /* the library writes, the daemon reads */
	uint64_t *daemon_page; /* the daemon writes; on GPUs the library may, after its end */
	uint64_t *gpu_page;    /* GPUs write: client_page, or a strict client's own page (cuda_strict.c) */

	struct zc_worker worker;
	struct zc_lag lag;

	/* Reconnection: see reconnect.c. */
	pthread_mutex_t reconnect_lock; /* held by the thread that reconnects; locked before all others */
	uint64_t former_tickets;        /* the last one of former connections */
	uint64_t timeline_written[ZEROD_MAX_STREAMS];
	int contexts[ZD_MAX_DEVICES]; /* the driver's numbers of GPUs whose contexts outlive connections */
	unsigned ncontexts;
	atomic_uint ninside;     /* threads in a call */
	pthread_cond_t reopened; /* with the lock: `ninside` or `closed` has changed, or a join has ended */

	pthread_mutex_t send_lock; /* the order of packets on the socket */

	atomic_uint_fast64_t packets; /* number of packets sent */
	atomic_bool poisoned;         /* a wait was freed by an abort */
	atomic_bool lost; /* the connection has ended; broken_status is set when it was read to its end */
	atomic_bool detached_failed; /* detached.nfailures > 0 */
	atomic_bool closed;          /* no thread may start a call any more */
	atomic_uint ncorked;         /* threads with a batch; 0 spares a search */
	atomic_int broken_status;    /* 0, or the status with which the connection broke; see broken_text */
	char broken_text[ZD_ERR_TEXT_BYTES];

	struct zc_cuda *_Atomic cuda; /* NULL until the first GPU is opened; fixed then */

	pthread_mutex_t page_lock;  /* segments' holders and their unmapping, and: */
	struct zd_err page_failure; /* of revoking access; status 0: no failure */

	pthread_mutex_t cuda_lock; /* one GPU is opened at a time */
	pthread_mutex_t lock;      /* all members below */
	uint64_t next_id;
	uint64_t nlists;                     /* number of unit lists made: see zc_unit.listed */
	struct zc_op_list ops[ZC_OP_CHAINS]; /* by id */
	unsigned outstanding, abandoned;
	struct zc_op_list spare_tickets; /* stored for new requests */
	unsigned nspare_tickets;
	struct zc_op_queue finished;
	unsigned nfinished;

	struct zc_detached detached;

	bool reading;        /* a thread reads the socket */
	bool naps;           /* the reader waits for a call's answer: it naps before it sleeps */
	struct zd_spin spin; /* the reader's */
	struct zc_waiter_queue waiters;
	struct zc_packet *spare_packet;
	uint8_t *receive_buffer; /* the reader's; ZD_MAX_PACKET_BYTES */

	struct zc_segment *segments; /* hash by id */
	struct zc_segment *retired;  /* unmapped, and still named by a hold */
	uint64_t nretired;           /* number of segments that the daemon has retired */
	uint32_t *unmapped;          /* nunmapped ids that are not reported to the daemon yet */
	size_t nunmapped, unmapped_room;
	struct zc_unit *units; /* hash by id */
	LIST_HEAD(, zc_naming) namings;
	pthread_cond_t named; /* a naming has ended */
	LIST_HEAD(, zc_batch) batches;
	struct zc_batch *spare_batch;
	LIST_HEAD(, zerod_group) groups;
	struct zc_range *ranges; /* hash by their segments */
	LIST_HEAD(, zerod_allocation) buffers;
	LIST_HEAD(, zerod_mapped) mapped;
	LIST_HEAD(, zerod_watch) watches;
	LIST_HEAD(, zerod_stream) streams;
	uint32_t nlent; /* units whose place in a target this client can access (target.c) */
	LIST_HEAD(, zc_lease) scope_leases; /* of all units */
	bool timeline_used[ZEROD_MAX_STREAMS];
	uint64_t timeline_value[ZEROD_MAX_STREAMS]; /* last used; the next stream continues from there */
};

struct zc_locked {
	pthread_mutex_t *mutex;
};

/* Holds the mutex until the end of the block. */
#define ZC_LOCKED(mutex) struct zc_locked locked __attribute__((cleanup(zc_unlock), unused)) = zc_lock(mutex)
static inline struct zc_locked zc_lock(pthread_mutex_t *mutex)
{
	pthread_mutex_lock(mutex);
	return (struct zc_locked){mutex};
}

static inline void zc_unlock(const struct zc_locked *locked)
{
	pthread_mutex_unlock(locked->mutex);
}

#endif
