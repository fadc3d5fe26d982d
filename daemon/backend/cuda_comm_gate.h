/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_gate.h - keeps two things of a daemon apart: kernels of communicators that run, and calls of the
 * driver that wait for them.
 *
 * Such a kernel runs until all ranks have come, which may take as long as they like. To free pinned memory,
 * or to unregister it, waits for all kernels of the process's context and keeps all other calls out meanwhile
 * (tests/bench/results/2026-11-22-h200-x2-ahead.txt): executors stand still, and a rank that one of them is
 * to serve first never comes. So who frees waits until nothing runs, and what is to be launched waits until
 * it is through. Freeing takes milliseconds and depends on nobody, so nothing waits for long but what is to
 * be freed: its turn comes when nothing runs by itself, since to hold launches back for it could hold up a
 * rank that somebody waits for.
 *
 * A communicator that is aborted does not wait: the other ranks learn of it by that.
 */
#ifndef ZD_BACKEND_CUDA_COMM_GATE_H
#define ZD_BACKEND_CUDA_COMM_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Of a daemon: communicators of several GPUs free together. Thread-safe; nothing here waits. */
struct zd_cuda_comm_gate {
	pthread_mutex_t lock;
	uint32_t running; /* operations of communicators, from their launch to their end */
	uint32_t freeing; /* threads */
};

void zd_cuda_comm_gate_init(struct zd_cuda_comm_gate *gate);
/* Nothing runs, nobody frees. */
void zd_cuda_comm_gate_deinit(struct zd_cuda_comm_gate *gate);

/* Before a launch; false: not now. */
bool zd_cuda_comm_gate_enter(struct zd_cuda_comm_gate *gate) __attribute__((warn_unused_result));
/* What had entered has ended. */
void zd_cuda_comm_gate_leave(struct zd_cuda_comm_gate *gate);

/* Before freeing; false: not now. */
bool zd_cuda_comm_gate_close(struct zd_cuda_comm_gate *gate) __attribute__((warn_unused_result));
void zd_cuda_comm_gate_open(struct zd_cuda_comm_gate *gate);

#endif
