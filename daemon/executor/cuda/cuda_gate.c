/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_gate.c - mutual exclusion between kernels that run and calls that wait for them. */
#include "executor/cuda/cuda_gate.h"

#include "base/err.h"

void zd_cuda_gate_init(struct zd_cuda_gate *gate)
{
	*gate = (struct zd_cuda_gate){.running = 0};
	pthread_mutex_init(&gate->lock, NULL);
}

void zd_cuda_gate_deinit(struct zd_cuda_gate *gate)
{
	zd_assert(gate->running == 0 && gate->freeing == 0);
	pthread_mutex_destroy(&gate->lock);
}

static bool count_up(struct zd_cuda_gate *gate, uint32_t *count, const uint32_t *others)
{
	pthread_mutex_lock(&gate->lock);
	bool may = *others == 0;
	*count += may;
	pthread_mutex_unlock(&gate->lock);
	return may;
}

static void count_down(struct zd_cuda_gate *gate, uint32_t *count)
{
	pthread_mutex_lock(&gate->lock);
	zd_assert(*count > 0);
	(*count)--;
	pthread_mutex_unlock(&gate->lock);
}

bool zd_cuda_gate_enter(struct zd_cuda_gate *gate)
{
	return count_up(gate, &gate->running, &gate->freeing);
}

void zd_cuda_gate_leave(struct zd_cuda_gate *gate)
{
	count_down(gate, &gate->running);
}

bool zd_cuda_gate_close(struct zd_cuda_gate *gate)
{
	return count_up(gate, &gate->freeing, &gate->running);
}

void zd_cuda_gate_open(struct zd_cuda_gate *gate)
{
	count_down(gate, &gate->freeing);
}
