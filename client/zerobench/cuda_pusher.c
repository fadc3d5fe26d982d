// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_pusher.c - the same bytes without zerod: the speed of the copy engines alone. One process holds all
 * memory, with one thread per GPU, which pushes the shards of the GPU in rotation, and waits until all pushes
 * into the buffers of its own ranks have arrived. With --on-host each thread pulls all shards from pinned
 * host memory.
 */
#include "client/zerobench/cuda_bench.h"

#include <pthread.h>
#include <unistd.h>

#include "base/mem.h"

struct pusher {
	const struct zd_member *member;
	const struct zd_cuda_run *run;
	struct zd_gpu gpus[ZD_CUDA_MAX_RANKS];
	struct zd_gpu_memory shards[ZD_CUDA_MAX_RANKS];
	struct zd_gpu_memory buffers[ZD_CUDA_MAX_RANKS];
	pthread_mutex_t failing;
};

struct push_thread {
	struct pusher *pusher;
	pthread_t thread;
	uint64_t slice_bytes;
	uint64_t round; /* the value of the marks */
	uint32_t device;
	struct zd_err err;
};

/* If a thread fails, the others would wait for it at a barrier. The process therefore ends. */
static void need(struct push_thread *self, int status)
{
	struct pusher *pusher = self->pusher;
	if (!status)
		return;
	pthread_mutex_lock(&pusher->failing);
	*pusher->member->err = self->err;
	zd_member_need(status);
}

/* All marks are in the memory of the first GPU's marks. */
static unsigned mark_of(uint32_t target, uint32_t source)
{
	return target * ZD_CUDA_MAX_RANKS + source;
}

static void push_shard(struct push_thread *self, uint32_t source, uint32_t target)
{
	const struct pusher *pusher = self->pusher;
	const struct zd_gpu *gpu = &pusher->gpus[self->device];
	need(self,
	     zd_cuda_err(gpu->cuda,
	                 gpu->cuda->memcpyAsync(pusher->buffers[target].at + source * self->slice_bytes,
	                                        pusher->shards[source].at, self->slice_bytes, gpu->stream),
	                 &self->err, "pushing %llu bytes", (unsigned long long)self->slice_bytes));
	need(self, zd_cuda_err(gpu->cuda,
	                       gpu->cuda->streamWriteValue64(
	                               gpu->stream,
	                               pusher->gpus[0].marks_at + mark_of(target, source) * sizeof(uint64_t),
	                               self->round, ZD_CU_WRITE_DEFAULT),
	                       &self->err, "a write-value"));
}

/* Whether zerod's ranks gather into this rank's buffer. */
static bool is_target(const struct zd_cuda_run *run, uint32_t rank)
{
	return rank == 0 || !run->bench->options.alone;
}

/* Pushes the shards of this device's ranks around the ring: no two sources start with the same target. */
static void push_all(struct push_thread *self)
{
	const struct zd_cuda_run *run = self->pusher->run;
	for (uint32_t step = 1; step < run->ranks; step++)
		for (uint32_t source = self->device; source < run->ranks; source += run->devices) {
			const uint32_t target = (source + step) % run->ranks;
			if (is_target(run, target))
				push_shard(self, source, target);
		}
}

static void pull_all(struct push_thread *self)
{
	const struct zd_cuda_run *run = self->pusher->run;
	for (uint32_t target = self->device; target < run->ranks; target += run->devices)
		for (uint32_t step = 0; step < run->ranks && is_target(run, target); step++)
			push_shard(self, (target + step) % run->ranks, target);
}

static void await_arrivals(struct push_thread *self, uint32_t target)
{
	const struct pusher *pusher = self->pusher;
	for (uint32_t source = 0; source < pusher->run->ranks; source++)
		if (source != target || pusher->run->bench->options.on_host)
			need(self, zd_gpu_await(&pusher->gpus[0], pusher->gpus[self->device].stream,
			                        mark_of(target, source), self->round, &self->err));
}

static void push_turn(struct push_thread *self, uint64_t *samples)
{
	const struct zd_cuda_run *run = self->pusher->run;
	const struct zd_gpu *gpu = &self->pusher->gpus[self->device];
	self->round++;
	const uint64_t start_ns = zd_bench_now_ns();
	if (run->bench->options.on_host)
		pull_all(self);
	else
		push_all(self);
	for (uint32_t target = self->device; target < run->ranks; target += run->devices) {
		if (!is_target(run, target))
			break;
		await_arrivals(self, target);
		if (samples)
			samples[target] = zd_bench_now_ns() - start_ns;
	}
	need(self, zd_gpu_synchronize(gpu, gpu->stream, &self->err));
}

static void push_size(struct push_thread *self, uint64_t numel)
{
	const struct zd_cuda_run *run = self->pusher->run;
	const struct zd_bench_options *options = &run->bench->options;
	self->slice_bytes = zd_bench_shard_numel(run->bench, numel) * zerod_dtype_bytes(options->dtype);
	for (uint32_t i = 0; i < options->warmup + options->iters; i++) {
		uint64_t *samples = i < options->warmup
		                            ? NULL
		                            : zd_cuda_samples(run, ZD_CUDA_PUSHES, i - options->warmup);
		zd_cuda_meet_all(run); /* before the turn of zerod */
		zd_cuda_meet_all(run); /* before the turn of NCCL */
		zd_cuda_meet_all(run);
		push_turn(self, samples);
	}
	zd_cuda_meet_all(run); /* all ranks have stored their samples */
}

static void *thread_main(void *arg)
{
	struct push_thread *self = arg;
	const struct zd_bench *bench = self->pusher->run->bench;
	need(self, zd_gpu_enter(&self->pusher->gpus[self->device], &self->err));
	for (uint64_t bytes = bench->options.min_bytes; bytes <= bench->options.max_bytes;
	     bytes *= bench->options.factor)
		push_size(self, zd_bench_numel(bench, bytes));
	return NULL;
}

static void pin_memory(const struct pusher *pusher, uint64_t bytes, struct zd_gpu_memory *memory)
{
	const struct zd_cuda *cuda = pusher->gpus[0].cuda;
	void *at = NULL;
	zd_member_need(zd_cuda_err(
	        cuda, cuda->memHostAlloc(&at, bytes, ZD_CU_HOST_ALLOC_PORTABLE | ZD_CU_HOST_ALLOC_DEVICEMAP),
	        pusher->member->err, "pinning %llu bytes", (unsigned long long)bytes));
	memory->at = (zd_cu_ptr)(uintptr_t)at;
}

/* Makes room for the largest size. */
static void make_memory(struct pusher *pusher)
{
	const struct zd_cuda_run *run = pusher->run;
	const struct zd_bench_options *options = &run->bench->options;
	const struct zd_cuda *cuda = NULL;
	struct zd_err *err = pusher->member->err;
	const uint64_t slice_bytes = zd_bench_shard_numel(run->bench,
	                                                  zd_bench_numel(run->bench, options->max_bytes)) *
	                             zerod_dtype_bytes(options->dtype);
	int ngpus = 0;
	zd_member_need(zd_cuda_load(&cuda, err));
	zd_member_need(zd_cuda_err(cuda, cuda->deviceGetCount(&ngpus), err, "counting GPUs"));
	for (uint32_t device = 0; device < run->devices; device++) {
		const struct zd_gpu *gpu = &pusher->gpus[device];
		zd_member_need(zd_gpu_enter(gpu, err));
		for (uint32_t rank = device; rank < run->ranks; rank += run->devices) {
			if (options->on_host)
				pin_memory(pusher, slice_bytes, &pusher->shards[rank]);
			else
				zd_member_need(zd_gpu_memory_new(gpu, slice_bytes, (uint32_t)ngpus,
				                                 &pusher->shards[rank], err));
			zd_member_need(zd_gpu_memory_new(gpu, slice_bytes * run->ranks, (uint32_t)ngpus,
			                                 &pusher->buffers[rank], err));
		}
	}
}

void zd_cuda_pusher_main(const struct zd_member *member, const struct zd_cuda_run *run)
{
	struct pusher pusher = {.member = member, .run = run, .failing = PTHREAD_MUTEX_INITIALIZER};
	struct push_thread threads[ZD_CUDA_MAX_RANKS];
	for (uint32_t i = 0; i < run->devices; i++)
		zd_member_need(zd_gpu_open(&pusher.gpus[i], run->names[i], member->err));
	make_memory(&pusher);
	for (uint32_t i = 0; i < run->devices; i++) {
		threads[i] = (struct push_thread){.pusher = &pusher, .device = i, .err = ZD_ERR_NONE};
		const int failure = pthread_create(&threads[i].thread, NULL, thread_main, &threads[i]);
		if (failure)
			need(&threads[i],
			     zd_err_errno(&threads[i].err, failure, "cannot start a thread of the pusher"));
	}
	for (uint32_t i = 0; i < run->devices; i++) /* memory and contexts end with the process */
		pthread_join(threads[i].thread, NULL);
}
