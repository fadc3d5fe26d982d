/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_queue.h - the order in which a device launches the operations of its communicators: all of one
 * role.
 *
 * NCCL's kernels wait for each other: two ranks that launch those of two communicators in different orders
 * wait for ever, where the GPU has room for one of them alone. Ranks of several groups, or users, that share
 * a GPU have no order in common; nor have a group's reductions and another's, which begin when gradients are
 * there. So a queue takes no more communicators than the GPU has room for at once (zd_cuda_comm_room()), and
 * none ever waits for another: not before its launch either, when an operation may wait for other ranks,
 * since NCCL connects them at a communicator's first. The operations of one communicator begin in the order
 * in which they were given, and so do those of all that are ready.
 *
 * In checking mode ranks describe an operation to each other before they launch it, and it fails on all of
 * them with both descriptions when two differ. That costs a round trip each, during which nothing else of the
 * communicator is launched.
 *
 * All that an operation depends on has happened when it is given. It has ended when zd_cuda_comm_queue_take()
 * gives it back, until then it is the queue's; one that has failed may have written anything to where it
 * receives.
 *
 * Not thread-safe: cuda_comm_thread's own, with the device's context current. Nothing here waits; nothing
 * moves but in zd_cuda_comm_queue_poll().
 */
#ifndef ZD_BACKEND_CUDA_COMM_QUEUE_H
#define ZD_BACKEND_CUDA_COMM_QUEUE_H

#include "backend/cuda_comm.h"

enum zd_cuda_comm_phase {
	ZD_CUDA_COMM_WAITING,    /* for those before it, or for its communicator */
	ZD_CUDA_COMM_DESCRIBING, /* the exchange of descriptions is being launched */
	ZD_CUDA_COMM_COMPARING,  /* it runs */
	ZD_CUDA_COMM_LAUNCHING,
	ZD_CUDA_COMM_FLYING,
};

struct zd_cuda_comm_op {
	/* the caller's */
	struct zd_cuda_comm_call call;
	zd_cu_ptr send, receive; /* on the device; in place as NCCL allows it. Of an agreement: */
	const void *value;       /* this rank's */
	void *values;            /* of all ranks, one behind the other; written when it has ended well */
	uint64_t deadline_ns;    /* to end, of zd_thread_now_ns(); then the communicator fails. 0: none */
	uint64_t patience_ns;    /* the same, from its launch on */
	struct zd_err err;       /* when it has ended: status 0, or what its communicator failed with */

	/* the queue's */
	STAILQ_ENTRY(zd_cuda_comm_op) next;
	struct zd_cuda_comm *comm;
	enum zd_cuda_comm_phase phase;
	bool entered;      /* the daemon's gate */
	uint64_t number;   /* the Nth of its communicator */
	uint64_t progress; /* of its communicator's stream when it has ended */
};

/* Of a device; there are as many as cuda_comm.h says. */
struct zd_cuda_comm_queue {
	struct zd_cuda_comm_home home;
	uint32_t room; /* communicators at most */
	LIST_HEAD(, zd_cuda_comm) comms;
	struct zd_cuda_comm_ops waiting; /* or being launched: of each communicator its first */
	struct zd_cuda_comm_ops ended;
};

void zd_cuda_comm_queue_init(struct zd_cuda_comm_queue *queue, const struct zd_cuda_comm_home *home);
/* It has no communicators. */
void zd_cuda_comm_queue_deinit(struct zd_cuda_comm_queue *queue);

/* Are there as many as there is room for? One that has ended takes room until it is removed: its kernels may
 * be there still. */
bool zd_cuda_comm_queue_is_full(const struct zd_cuda_comm_queue *queue);
/* A communicator on the device; errors as of zd_cuda_comm_new(), and LIMIT if it is full. The queue polls
 * it. */
int zd_cuda_comm_queue_add(struct zd_cuda_comm_queue *queue, const struct zd_cuda_comm_config *config,
                           struct zd_cuda_comm **comm, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Frees one that is over, and whose operations have been taken. */
void zd_cuda_comm_queue_remove(struct zd_cuda_comm_queue *queue, struct zd_cuda_comm *comm);

/* The queue owns the operation from here on. The communicator may be CONNECTING: then it waits.
 * Errors: INVALID; the communicator's failure; STATE for one that ends. */
int zd_cuda_comm_queue_give(struct zd_cuda_comm_queue *queue, struct zd_cuda_comm *comm,
                            struct zd_cuda_comm_op *op, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Moves on whatever can. True: something is under way, and only another poll will tell. */
bool zd_cuda_comm_queue_poll(struct zd_cuda_comm_queue *queue, uint64_t now_ns);
/* The next operation that has ended; NULL: none. */
struct zd_cuda_comm_op *zd_cuda_comm_queue_take(struct zd_cuda_comm_queue *queue);

/* Has a GPU's failure stopped what runs: then the device is marked, and the next poll fails all its
 * communicators. Neither progress nor NCCL tells of it. */
void zd_cuda_comm_queue_check(struct zd_cuda_comm_queue *queue);

#endif
