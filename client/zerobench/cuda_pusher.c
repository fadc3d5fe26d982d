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
	uint32_t device;
	pthread_t thread;
	uint64_t slice_bytes;
	uint64_t round; /* the value of the marks */
};

/* All marks are in the memory of the first GPU's marks. */
static unsigned mark_of(uint32_t target, uint32_t source)
{
	return target * ZD_CUDA_MAX_RANKS + source;
}

static int push_shard(const struct push_thread *self, uint32_t source, uint32_t target, struct zd_err *err)
{
	const struct pusher *pusher = self->pusher;
	const struct zd_gpu *gpu = &pusher->gpus[self->device];
	int status =
	        zd_cuda_err(gpu->cuda,
	                    gpu->cuda->memcpyAsync(pusher->buffers[target].at + source * self->slice_bytes,
	                                           pusher->shards[source].at, self->slice_bytes, gpu->stream),
	                    err, "pushing %llu bytes", (unsigned long long)self->slice_bytes);
	if (status)
		return status;
	return zd_cuda_err(gpu->cuda,
	                   gpu->cuda->streamWriteValue64(gpu->stream,
	                                                 pusher->gpus[0].marks_at +
	                                                         mark_of(target, source) * sizeof(uint64_t),
	                                                 self->round, ZD_CU_WRITE_DEFAULT),
	                   err, "a write-value");
}

/* Pushes the shards of this device's ranks around the ring: no two sources start with the same target. */
static int push_all(const struct push_thread *self, struct zd_err *err)
{
	const struct zd_cuda_run *run = self->pusher->run;
	int status = 0;
	for (uint32_t step = 1; step < run->ranks; step++)
		for (uint32_t source = self->device; source < run->ranks && !status; source += run->devices) {
			const uint32_t target = (source + step) % run->ranks;
			if (target == 0 || !run->bench->options.alone)
				status = push_shard(self, source, target, err);
		}
	return status;
}

static int pull_all(const struct push_thread *self, struct zd_err *err)
{
	const struct zd_cuda_run *run = self->pusher->run;
	int status = 0;
	for (uint32_t target = self->device; target < run->ranks; target += run->devices)
		for (uint32_t step = 0; step < run->ranks && !status; step++)
			if (target == 0 || !run->bench->options.alone)
				status = push_shard(self, (target + step) % run->ranks, target, err);
	return status;
}

static int await_arrivals(const struct push_thread *self, uint32_t target, struct zd_err *err)
{
	const struct pusher *pusher = self->pusher;
	int status = 0;
	for (uint32_t source = 0; source < pusher->run->ranks && !status; source++)
		if (source != target || pusher->run->bench->options.on_host)
			status = zd_gpu_await(&pusher->gpus[0], pusher->gpus[self->device].stream,
			                      mark_of(target, source), self->round, err);
	return status;
}

static int push_turn(struct push_thread *self, uint64_t *samples, struct zd_err *err)
{
	const struct zd_cuda_run *run = self->pusher->run;
	self->round++;
	const uint64_t start_ns = zd_bench_now_ns();
	int status = run->bench->options.on_host ? pull_all(self, err) : push_all(self, err);
	for (uint32_t target = self->device; target < run->ranks && !status; target += run->devices) {
		if (target && run->bench->options.alone)
			break;
		status = await_arrivals(self, target, err);
		if (samples)
			samples[target] = zd_bench_now_ns() - start_ns;
	}
	return status ? status
	              : zd_gpu_synchronize(&self->pusher->gpus[self->device],
	                                   self->pusher->gpus[self->device].stream, err);
}

static int push_size(struct push_thread *self, uint64_t numel, struct zd_err *err)
{
	const struct zd_cuda_run *run = self->pusher->run;
	const struct zd_bench_options *options = &run->bench->options;
	int status = 0;
	self->slice_bytes = zd_bench_shard_numel(run->bench, numel) * zerod_dtype_bytes(options->dtype);
	for (uint32_t i = 0; i < options->warmup + options->iters && !status; i++) {
		uint64_t *samples = i < options->warmup
		                            ? NULL
		                            : zd_cuda_samples(run, ZD_CUDA_PUSHES, i - options->warmup);
		zd_cuda_meet_all(run); /* before the turn of zerod */
		zd_cuda_meet_all(run); /* before the turn of NCCL */
		zd_cuda_meet_all(run);
		status = push_turn(self, samples, err);
	}
	if (!status)
		zd_cuda_meet_all(run); /* all ranks have stored their samples */
	return status;
}

struct sizes_arg {
	struct push_thread *self;
	struct zd_err *err;
};

static int measure_size(void *arg, uint64_t numel)
{
	const struct sizes_arg *sizes = arg;
	return push_size(sizes->self, numel, sizes->err);
}

/* If a thread fails, the others would wait for it at a barrier. The process therefore ends. */
static void *thread_main(void *arg)
{
	struct push_thread *self = arg;
	struct pusher *pusher = self->pusher;
	struct zd_err err = ZD_ERR_NONE;
	struct sizes_arg sizes = {self, &err};
	int status = zd_gpu_enter(&pusher->gpus[self->device], &err);
	if (!status)
		status = zd_cuda_each_size(pusher->run, measure_size, &sizes);
	if (status) {
		pthread_mutex_lock(&pusher->failing);
		*pusher->member->err = err;
		_exit(1);
	}
	return NULL;
}

static int open_gpus(struct pusher *pusher, struct zd_err *err)
{
	const struct zd_cuda_run *run = pusher->run;
	int status = 0;
	for (uint32_t i = 0; i < run->devices && !status; i++)
		status = zd_gpu_open(&pusher->gpus[i], run->names[i], err);
	return status;
}

static int largest_size(void *arg, uint64_t numel)
{
	uint64_t *largest = arg;
	*largest = zd_max_u64(*largest, numel);
	return 0;
}

static int pin_memory(const struct zd_cuda *cuda, uint64_t bytes, struct zd_gpu_memory *memory,
                      struct zd_err *err)
{
	void *at = NULL;
	int status = zd_cuda_err(
	        cuda, cuda->memHostAlloc(&at, bytes, ZD_CU_HOST_ALLOC_PORTABLE | ZD_CU_HOST_ALLOC_DEVICEMAP),
	        err, "pinning %llu bytes", (unsigned long long)bytes);
	if (!status)
		memory->at = (zd_cu_ptr)(uintptr_t)at;
	return status;
}

static int make_memory(struct pusher *pusher, struct zd_err *err)
{
	const struct zd_cuda_run *run = pusher->run;
	uint64_t largest = 1;
	int ngpus = 0;
	const struct zd_cuda *cuda = NULL;
	int status = zd_cuda_load(&cuda, err);
	if (!status)
		status = zd_cuda_err(cuda, cuda->deviceGetCount(&ngpus), err, "counting GPUs");
	if (!status)
		status = zd_cuda_each_size(run, largest_size, &largest);
	const uint64_t slice_bytes = zd_bench_shard_numel(run->bench, largest) *
	                             zerod_dtype_bytes(run->bench->options.dtype);
	for (uint32_t rank = 0; rank < run->ranks && !status; rank++) {
		const struct zd_gpu *gpu = &pusher->gpus[rank % run->devices];
		status = zd_gpu_enter(gpu, err);
		if (!status && run->bench->options.on_host)
			status = pin_memory(cuda, slice_bytes, &pusher->shards[rank], err);
		else if (!status)
			status = zd_gpu_memory_new(gpu, slice_bytes, (uint32_t)ngpus, &pusher->shards[rank],
			                           err);
		if (!status)
			status = zd_gpu_memory_new(gpu, slice_bytes * run->ranks, (uint32_t)ngpus,
			                           &pusher->buffers[rank], err);
	}
	return status;
}

int zd_cuda_pusher_main(const struct zd_member *member, const struct zd_cuda_run *run)
{
	struct pusher pusher = {.member = member, .run = run, .failing = PTHREAD_MUTEX_INITIALIZER};
	struct push_thread threads[ZD_CUDA_MAX_RANKS];
	int status = open_gpus(&pusher, member->err);
	if (!status)
		status = make_memory(&pusher, member->err);
	if (status)
		return status;
	for (uint32_t i = 0; i < run->devices; i++) {
		threads[i] = (struct push_thread){.pusher = &pusher, .device = i};
		const int failure = pthread_create(&threads[i].thread, NULL, thread_main, &threads[i]);
		if (failure)
			return zd_err_errno(member->err, failure, "cannot start a thread of the pusher");
	}
	for (uint32_t i = 0; i < run->devices; i++)
		pthread_join(threads[i].thread, NULL);
	return 0; /* memory and contexts end with the process */
}
