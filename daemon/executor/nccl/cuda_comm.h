/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm.h - an NCCL communicator: one rank of a group, on one device of this daemon.
 *
 *   CONNECTING   until all ranks have connected
 *   READY        operations run on the communicator's stream
 *   ENDING       in order: its operations have ended, and NCCL finalizes with the other ranks; then ENDED
 *   FAILED       after an error or at a deadline; the communicator is being aborted, or has been
 *   ABORTED      the same, on request
 *
 * No function here blocks. NCCL is used in its nonblocking mode. Some calls block all the same: those that
 * make and free a communicator, its stream and its pinned memory. Each communicator has a thread for these,
 * so that a call that hangs delays no other communicator. Between those calls the handle belongs to the
 * caller, which polls. The caller has to poll in the last three states as well, until
 * zd_cuda_comm_is_over(): before that, kernels may still write into the memory of operations.
 *
 * Operations are queued in a zd_cuda_comm_queue, which keeps their order (cuda_comm_queue.h). Not
 * thread-safe: only cuda_comm_thread calls these functions, with the device's context current.
 */
#ifndef ZD_EXECUTOR_CUDA_COMM_H
#define ZD_EXECUTOR_CUDA_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/err.h"
#include "driver/nccl.h"
#include "executor/cuda/cuda_device.h"
#include "executor/nccl/cuda_comm_call.h"
#include "executor/nccl/cuda_comm_local_ranks.h"

enum zd_cuda_comm_state {
	ZD_CUDA_COMM_CONNECTING,
	ZD_CUDA_COMM_READY,
	ZD_CUDA_COMM_ENDING,
	ZD_CUDA_COMM_ENDED,
	ZD_CUDA_COMM_FAILED,
	ZD_CUDA_COMM_ABORTED,
};

/*
 * The share of a GPU that a communicator's kernels occupy, and the number of communicators in one queue. A
 * kernel waits for the kernels of the other ranks and occupies its multiprocessors in this time. Ranks launch
 * the operations of different queues and communicators in any order. All kernels that can be launched must
 * therefore fit on the GPU at once. Otherwise one rank's first kernels could leave no room for the kernels
 * that another rank launched first, and both ranks would hang. NCCL's default is up to 32 blocks for each
 * kernel. Half of that saturates the links between nodes, and reaches most of the bandwidth inside one.
 */
#define ZD_CUDA_COMM_QUEUES 2u
#define ZD_CUDA_COMM_BLOCKS 16u
/* Return the blocks of a communicator's kernels, and the number of communicators in a queue. Both at least
 * 1. */
uint32_t zd_cuda_comm_blocks(const struct zd_cuda_device *device);
uint32_t zd_cuda_comm_room(const struct zd_cuda_device *device);

/* The device and the daemon-wide objects that a communicator needs. */
struct zd_cuda_comm_home {
	struct zd_cuda_device *device;
	const struct zd_nccl *nccl;
	struct zd_cuda_comm_local_ranks *local_ranks; /* shared by all devices of the daemon */
};

struct zd_cuda_comm_config {
	const char *group;    /* the group's name, for error texts; copied */
	struct zd_nccl_id id; /* the same for all ranks */
	uint32_t nranks, rank;
	struct zd_comm_world world;
	bool checking;        /* ranks compare descriptions of each operation first; the same for all ranks */
	uint64_t deadline_ns; /* for all ranks to connect, on the clock of zd_thread_now_ns(); 0: none */
};

struct zd_cuda_comm_op;
STAILQ_HEAD(zd_cuda_comm_ops, zd_cuda_comm_op);

/* How the thread ends the communicator: not yet; after NCCL has finalized with all ranks (LEAVES); as LEAVES,
 * but within a second (PARTS); at once (IS_ABORTED). */
enum zd_cuda_comm_leaving {
	ZD_CUDA_COMM_STAYS,
	ZD_CUDA_COMM_LEAVES,
	ZD_CUDA_COMM_PARTS,
	ZD_CUDA_COMM_IS_ABORTED
};

struct zd_cuda_comm {
	/* constant after zd_cuda_comm_new() */
	LIST_ENTRY(zd_cuda_comm) link; /* in the list of its queue */
	struct zd_cuda_comm_home home;
	struct zd_cuda_comm_rank self; /* `group` is a copy that the communicator owns */
	bool checking;
	uint64_t deadline_ns;

	uint8_t state;
	struct zd_err failure;            /* set in FAILED and ABORTED */
	uint64_t given;                   /* number of queued operations */
	uint32_t nops;                    /* operations that were queued and have not ended */
	struct zd_cuda_comm_ops inflight; /* launched operations, in order */
	uint64_t issued;                  /* the last progress value that the stream was asked to store */
	struct zd_cuda_comm_op *agrees;   /* the agreement whose values are in the page; NULL: none */

	/* the thread creates and frees these; the caller uses them while the state is READY */
	struct ncclComm *handle;
	struct CUstream_st *stream;
	_Atomic uint64_t *counter;                  /* pinned: the progress of the stream */
	zd_cu_ptr counter_at;                       /* the counter's address for the GPU */
	struct zd_cuda_comm_description *described; /* the descriptions of all ranks, in checking mode */
	zd_cu_ptr described_at;
	unsigned char *values; /* the values of an agreement */
	zd_cu_ptr values_at;

	/* shared by the thread and the caller */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool opened, over;
	bool parted; /* finalized with all ranks: the kernels have ended, and the memory waits for the gate */
	enum zd_cuda_comm_leaving leaving;
	struct zd_err opening, ending; /* the results of making and ending the communicator */
};

/* Creates a communicator, which is CONNECTING. Errors: INVALID; EXISTS or MISMATCH if it conflicts with
 * another rank of this daemon; SYSTEM. */
int zd_cuda_comm_new(const struct zd_cuda_comm_home *home, const struct zd_cuda_comm_config *config,
                     struct zd_cuda_comm **comm, struct zd_err *err) __attribute__((warn_unused_result));
/* Frees a communicator that is over (zd_cuda_comm_is_over()) and whose operations have ended. NULL is
 * allowed. */
void zd_cuda_comm_free(struct zd_cuda_comm *comm);

/* Returns whether NCCL has finalized the communicator with all ranks. Only its memory then remains, which is
 * freed when no kernel of a communicator runs. Thread-safe. */
bool zd_cuda_comm_has_parted(struct zd_cuda_comm *comm);
/* Updates the state: to READY, to FAILED (with the reason, or at the deadline), or to ENDED. */
void zd_cuda_comm_poll(struct zd_cuda_comm *comm, uint64_t now_ns);
/* Abort the communicator and record the reason, unless it has failed, was aborted or has ended. The
 * device's other communicators are not affected. The other ranks are not notified. */
void zd_cuda_comm_fail(struct zd_cuda_comm *comm, const struct zd_err *why);
void zd_cuda_comm_abort(struct zd_cuda_comm *comm, const char *why);
/* As zd_cuda_comm_fail(), for a READY communicator without operations in flight. Before that it finalizes for
 * up to a second, so that data for other ranks that NCCL still holds reaches them. */
void zd_cuda_comm_part(struct zd_cuda_comm *comm, const struct zd_err *why);
/* Ends the communicator in order; its operations must have ended. A CONNECTING communicator is aborted. */
void zd_cuda_comm_end(struct zd_cuda_comm *comm);
/* Returns whether only the communicator's memory remains. */
bool zd_cuda_comm_is_over(struct zd_cuda_comm *comm);

static inline bool zd_cuda_comm_lives(const struct zd_cuda_comm *comm)
{
	return comm->state == ZD_CUDA_COMM_CONNECTING || comm->state == ZD_CUDA_COMM_READY;
}

/* Returns "CONNECTING", ... */
const char *zd_cuda_comm_state_name(const struct zd_cuda_comm *comm);

/* ---- For READY communicators --------------------------------------------------------------------------- */

/* Returns NCCL's state of the communicator: SUCCESS, IN_PROGRESS while a call is in progress, or an error. */
int zd_cuda_comm_query(const struct zd_cuda_comm *comm);
/* Enqueues a store of the next progress value after the launched work, and returns the value in `*progress`.
 * Errors: NO_MEMORY; DEVICE, and then the device is marked failed. */
int zd_cuda_comm_mark(struct zd_cuda_comm *comm, uint64_t *progress, struct zd_err *err)
        __attribute__((warn_unused_result));
uint64_t zd_cuda_comm_progress(const struct zd_cuda_comm *comm);

#endif
