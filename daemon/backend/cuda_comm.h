/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm.h - a communicator of NCCL: one rank of a group, on one device of this daemon.
 *
 *   CONNECTING   until all ranks have met
 *   READY        operations run on a stream of its own
 *   ENDING       in order: what ran has ended, and NCCL says goodbye to the other ranks; then ENDED
 *   FAILED       something went wrong, or a deadline passed; the communicator is being aborted, or has been
 *   ABORTED      the same on request
 *
 * Nothing here waits. NCCL is asked to be nonblocking, and what may block all the same - making and ending a
 * communicator, its stream and its pinned memory - is done by a thread of the communicator's own, so that one
 * that hangs holds up no other. In between the handle is the caller's, who polls. In the last three states
 * the caller still polls, until zd_cuda_comm_is_over(): before that, kernels may be running that write where
 * they were told to.
 *
 * Operations are given to a queue, which keeps their order (cuda_comm_queue.h). Not thread-safe:
 * cuda_comm_thread's own, with the device's context current.
 */
#ifndef ZD_BACKEND_CUDA_COMM_H
#define ZD_BACKEND_CUDA_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "backend/cuda_comm_call.h"
#include "backend/cuda_comm_roster.h"
#include "backend/cuda_device.h"
#include "base/err.h"
#include "driver/nccl.h"

enum zd_cuda_comm_state {
	ZD_CUDA_COMM_CONNECTING,
	ZD_CUDA_COMM_READY,
	ZD_CUDA_COMM_ENDING,
	ZD_CUDA_COMM_ENDED,
	ZD_CUDA_COMM_FAILED,
	ZD_CUDA_COMM_ABORTED,
};

/*
 * What a communicator's kernels take of a GPU, and for how many communicators of one queue there is room.
 *
 * A kernel waits for those of the other ranks, and keeps its multiprocessors meanwhile. Ranks launch what is
 * in different queues, and of different communicators, in any order: so all that may have been launched must
 * fit on the GPU at once, or one rank's first kernels leave no room for those that another rank has begun
 * with, for ever. NCCL's default is up to 32 blocks each; half of that carries what leaves a node, and most
 * of what does not.
 */
#define ZD_CUDA_COMM_QUEUES 2u
#define ZD_CUDA_COMM_BLOCKS 16u
/* Both at least 1. */
uint32_t zd_cuda_comm_blocks(const struct zd_cuda_device *device);
uint32_t zd_cuda_comm_room(const struct zd_cuda_device *device);

/* Where communicators are made: a device of the daemon. */
struct zd_cuda_comm_home {
	struct zd_cuda_device *device;
	const struct zd_nccl *nccl;
	struct zd_cuda_comm_roster *roster; /* the daemon's */
};

struct zd_cuda_comm_config {
	const char *group;    /* its name, for words; copied */
	struct zd_nccl_id id; /* the same for all ranks */
	uint32_t nranks, rank;
	struct zd_comm_world world;
	bool checking;        /* operations are described and compared first; the same for all ranks */
	uint64_t deadline_ns; /* for all ranks to meet, of zd_thread_now_ns(); 0: none */
};

struct zd_cuda_comm_op;
STAILQ_HEAD(zd_cuda_comm_ops, zd_cuda_comm_op);

/* How the communicator's thread is to end it: when NCCL has said goodbye to all ranks; the same for a second
 * at most; at once. */
enum zd_cuda_comm_leaving {
	ZD_CUDA_COMM_STAYS,
	ZD_CUDA_COMM_LEAVES,
	ZD_CUDA_COMM_PARTS,
	ZD_CUDA_COMM_IS_ABORTED
};

struct zd_cuda_comm {
	/* set at start */
	LIST_ENTRY(zd_cuda_comm) link; /* of its queue's */
	struct zd_cuda_comm_home home;
	struct zd_cuda_comm_rank self; /* `group` is its own copy */
	bool checking;
	uint64_t deadline_ns;

	uint8_t state;
	struct zd_err failure;          /* FAILED, ABORTED */
	uint64_t given;                 /* operations so far */
	uint32_t nops;                  /* given, and not ended */
	struct zd_cuda_comm_ops flying; /* launched, in order */
	uint64_t issued;                /* the last progress that was asked for */
	struct zd_cuda_comm_op *agrees; /* whose values are in the page; NULL: none */

	/* made and given back by the thread; the caller's while it is READY */
	struct ncclComm *handle;
	struct CUstream_st *stream;
	_Atomic uint64_t *counter;                  /* pinned: how far the stream is */
	zd_cu_ptr counter_at;                       /* the same for the GPU */
	struct zd_cuda_comm_description *described; /* behind it: of each rank, in checking mode */
	zd_cu_ptr described_at;
	unsigned char *values; /* behind those: of an agreement */
	zd_cu_ptr values_at;

	/* between the thread and the caller */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool opened, over;
	bool parted; /* from all ranks: it runs no kernel any more, and ends when nobody else does either */
	enum zd_cuda_comm_leaving leaving;
	struct zd_err opening, ending; /* how that went */
};

/* CONNECTING. Errors: INVALID; EXISTS or MISMATCH beside another rank of this daemon; SYSTEM. */
int zd_cuda_comm_new(const struct zd_cuda_comm_home *home, const struct zd_cuda_comm_config *config,
                     struct zd_cuda_comm **comm, struct zd_err *err) __attribute__((warn_unused_result));
/* It is over, and its operations have ended. NULL is allowed. */
void zd_cuda_comm_free(struct zd_cuda_comm *comm);

/* From all ranks: what is left of it is memory, which waits for a moment without kernels. Any thread. */
bool zd_cuda_comm_has_parted(struct zd_cuda_comm *comm);
/* Looks whether it has come further: READY, FAILED with the reason or at the deadline, ENDED. */
void zd_cuda_comm_poll(struct zd_cuda_comm *comm, uint64_t now_ns);
/* Ends it with these words, whatever it does, unless it has failed, was aborted or has ended: the other
 * communicators of the device go on. The other ranks are not told. */
void zd_cuda_comm_fail(struct zd_cuda_comm *comm, const struct zd_err *why);
void zd_cuda_comm_abort(struct zd_cuda_comm *comm, const char *why);
/* As zd_cuda_comm_fail(), of one that is READY and has nothing in flight: what other ranks are yet to receive
 * of it may still be on its way, and reaches them. */
void zd_cuda_comm_part(struct zd_cuda_comm *comm, const struct zd_err *why);
/* Ends it in order, when all that it was given has ended; one that is CONNECTING is aborted. */
void zd_cuda_comm_end(struct zd_cuda_comm *comm);
/* Nothing of it is left but its memory. */
bool zd_cuda_comm_is_over(struct zd_cuda_comm *comm);

static inline bool zd_cuda_comm_lives(const struct zd_cuda_comm *comm)
{
	return comm->state == ZD_CUDA_COMM_CONNECTING || comm->state == ZD_CUDA_COMM_READY;
}

/* "CONNECTING", ... */
const char *zd_cuda_comm_state_name(const struct zd_cuda_comm *comm);

/* ---- Of one that is READY ------------------------------------------------------------------------------ */

/* SUCCESS, IN_PROGRESS while a call is, or what went wrong. */
int zd_cuda_comm_look(const struct zd_cuda_comm *comm);
/* Behind what was launched a store of the next progress, `*progress`. Errors: NO_MEMORY; DEVICE, then it is
 * marked. */
int zd_cuda_comm_mark(struct zd_cuda_comm *comm, uint64_t *progress, struct zd_err *err)
        __attribute__((warn_unused_result));
uint64_t zd_cuda_comm_progress(const struct zd_cuda_comm *comm);

#endif
