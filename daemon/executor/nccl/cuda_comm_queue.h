/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_queue.h - the order in which a device launches the operations of its communicators of one role.
 *
 * NCCL's kernels wait for each other. If two ranks launch the kernels of two communicators in different
 * orders, and the GPU has room for only one of them, the ranks deadlock. No common order exists: not for
 * several groups or users on one GPU, nor between a group's gathers and its reductions, which start when
 * gradients are ready. A queue therefore accepts only as many communicators as the GPU has room for
 * (zd_cuda_comm_room()), and no communicator waits for another. This also holds before a launch, because a
 * communicator's first operation waits until NCCL has connected the ranks.
 *
 * Operations of one communicator start in the order in which they were queued. The same holds for the
 * operations of all ready communicators. In checking mode ranks exchange descriptions of an operation before
 * they launch it. If two descriptions differ, the operation fails on all ranks, with both descriptions in the
 * text. The exchange costs a round trip for each operation, in which the communicator launches no other work.
 *
 * All dependencies of an operation have completed when it is queued. The queue owns the operation until
 * zd_cuda_comm_queue_take() returns it. An operation that has failed can have written anything into its
 * receive memory.
 *
 * Not thread-safe: only cuda_comm_thread calls these functions, with the device's context current. No
 * function waits, and only zd_cuda_comm_queue_poll() advances operations.
 */
#ifndef ZD_EXECUTOR_CUDA_COMM_QUEUE_H
#define ZD_EXECUTOR_CUDA_COMM_QUEUE_H

#include "executor/nccl/cuda_comm.h"

enum zd_cuda_comm_phase {
	ZD_CUDA_COMM_WAITING,    /* for the operations before it, or for its communicator */
	ZD_CUDA_COMM_DESCRIBING, /* the exchange of descriptions is being launched */
	ZD_CUDA_COMM_COMPARING,  /* the exchange of descriptions runs */
	ZD_CUDA_COMM_LAUNCHING,
	ZD_CUDA_COMM_FLYING,
};

struct zd_cuda_comm_op {
	/* set by the caller */
	struct zd_cuda_comm_call call;
	zd_cu_ptr send, receive; /* device addresses; in place where NCCL allows it. Of an agreement: */
	const void *value;       /* this rank's value */
	void *values;            /* all ranks' values in rank order; written on success */
	uint64_t deadline_ns;    /* of zd_thread_now_ns(); then the communicator fails. 0: none */
	uint64_t patience_ns;    /* sets deadline_ns at the launch, if that is 0; 0: none */
	struct zd_err err;       /* when it has ended: status 0, or the communicator's failure */

	/* private to the queue */
	STAILQ_ENTRY(zd_cuda_comm_op) next;
	struct zd_cuda_comm *comm;
	enum zd_cuda_comm_phase phase;
	bool entered;      /* counted in the daemon's gate */
	uint64_t number;   /* the operation's place in its communicator's order, from 1 */
	uint64_t progress; /* the stream's progress value when the operation has ended */
};

/* A queue of a device, which has ZD_CUDA_COMM_QUEUES queues. */
struct zd_cuda_comm_queue {
	struct zd_cuda_comm_home home;
	uint32_t room; /* the highest number of communicators */
	LIST_HEAD(, zd_cuda_comm) comms;
	struct zd_cuda_comm_ops waiting; /* in order; the first of each can be launching */
	struct zd_cuda_comm_ops ended;
};

void zd_cuda_comm_queue_init(struct zd_cuda_comm_queue *queue, const struct zd_cuda_comm_home *home);
/* Frees the queue, from which all communicators must have been removed. */
void zd_cuda_comm_queue_deinit(struct zd_cuda_comm_queue *queue);

/* Returns whether the queue has no room for another communicator. An ending communicator counts until NCCL
 * has finalized it with all ranks, or it is removed, because its kernels can still run. */
bool zd_cuda_comm_queue_is_full(const struct zd_cuda_comm_queue *queue);
/* Adds a communicator on the device; the queue polls it. Errors: those of zd_cuda_comm_new(), and LIMIT if
 * the queue is full. */
int zd_cuda_comm_queue_add(struct zd_cuda_comm_queue *queue, const struct zd_cuda_comm_config *config,
                           struct zd_cuda_comm **comm, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Removes and frees a communicator that has ended. The caller must have taken its operations. */
void zd_cuda_comm_queue_remove(struct zd_cuda_comm_queue *queue, struct zd_cuda_comm *comm);

/* Queues the operation, which the queue then owns. The communicator can be CONNECTING. Errors: INVALID; the
 * communicator's failure; STATE if it is ending or has ended. */
int zd_cuda_comm_queue_give(struct zd_cuda_comm_queue *queue, struct zd_cuda_comm *comm,
                            struct zd_cuda_comm_op *op, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Advances all communicators and operations. Returns whether work is in progress. If so, the caller has to
 * poll again, because no event wakes it. */
bool zd_cuda_comm_queue_poll(struct zd_cuda_comm_queue *queue, uint64_t now_ns);
/* Returns the next operation that has ended; NULL: none. */
struct zd_cuda_comm_op *zd_cuda_comm_queue_take(struct zd_cuda_comm_queue *queue);

/* Asks the driver whether the GPU has failed; then the device is marked failed, and the next poll fails all
 * of its communicators. Neither the progress counters nor NCCL report such a failure. */
void zd_cuda_comm_queue_check(struct zd_cuda_comm_queue *queue);

#endif
