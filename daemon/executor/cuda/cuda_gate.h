/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_gate.h - mutual exclusion, in one daemon, between running kernels of communicators and driver calls
 * that wait for them.
 *
 * A communicator's kernel runs until all ranks have launched theirs, which can take any time. A driver call
 * that frees or unregisters pinned memory waits for all kernels of the process's context, and blocks all
 * other driver calls in this time (tests/bench/results/2026-11-22-h200-x2-ahead.txt). Executors would stop. A
 * rank that needs an executor before it can launch its kernel would also stop: a deadlock. Therefore a thread
 * frees pinned memory only while no such kernel runs, and no kernel is launched while a thread frees. Freeing
 * takes milliseconds and does not depend on other processes. It therefore delays launches only briefly.
 * Freeing has no priority: it waits until no kernel runs, because a delay of launches for it could block a
 * rank that another rank waits for. Aborting a communicator does not use the gate, because the abort releases
 * the other ranks.
 */
#ifndef ZD_EXECUTOR_CUDA_GATE_H
#define ZD_EXECUTOR_CUDA_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The daemon's gate. All its GPUs share it, because these calls affect the whole process. Thread-safe; no
 * function waits. */
struct zd_cuda_gate {
	pthread_mutex_t lock;
	uint32_t running; /* operations of communicators that were launched and have not ended */
	uint32_t freeing; /* threads that free pinned memory */
};

void zd_cuda_gate_init(struct zd_cuda_gate *gate);
/* Destroys the gate, whose counts must be 0. */
void zd_cuda_gate_deinit(struct zd_cuda_gate *gate);

/* Called before a launch. False: a thread is freeing memory, and the caller retries. */
bool zd_cuda_gate_enter(struct zd_cuda_gate *gate) __attribute__((warn_unused_result));
/* Called once for each successful enter, when the operation has ended. */
void zd_cuda_gate_leave(struct zd_cuda_gate *gate);

/* Called before freeing. False: an operation runs, and the caller retries. */
bool zd_cuda_gate_close(struct zd_cuda_gate *gate) __attribute__((warn_unused_result));
void zd_cuda_gate_open(struct zd_cuda_gate *gate);

#endif
