/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_gather.c - gathers by pushes that are not in step: one process holds all memory, one executor thread
 * per GPU issues the pushes that have their source there, one requester thread per GPU asks for gathers and
 * times each until every source has written its fence.
 *
 *   together  all ranks ask at once, and wait for each other before the next
 *   one       only rank 0 asks: all others push into one GPU
 *   apart     each rank pauses for a random time of up to two gathers
 *   flood     each rank asks again as soon as its gather is there
 *
 * Each with one stream per executor, and with a stream per pair of GPUs. With an argument `load`, a trainer
 * process per GPU runs products of 8192 meanwhile.
 */
#include "gpu_common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define UNIT_MAX GIB
#define WARM_UP  3

enum manner { TOGETHER, ONE, APART, FLOOD, MANNERS };

static const char *const MANNER[] = {"together", "one", "apart", "flood"};

/* Written by one thread and read by another; a line each. */
struct line {
	_Alignas(64) _Atomic uint64_t value;
};

struct rig {
	int devices;
	struct gpu_segment shard[GPU_DEVICES_MAX];
	struct gpu_segment full[GPU_DEVICES_MAX];
	struct gpu_page page;
	bool stream_per_pair;
	enum manner manner;
	size_t unit_bytes;
	uint64_t gathers;
	double gather_us;
	struct line wanted[GPU_DEVICES_MAX];
	struct gpu_samples samples[GPU_DEVICES_MAX];
	pthread_barrier_t barrier;
	_Atomic bool stop;
};

struct thread {
	struct rig *rig;
	int device;
	pthread_t id;
};

static size_t fence_index(const struct rig *rig, int source, int target)
{
	return (size_t)(source * rig->devices + target) * 8;
}

static void push(struct rig *rig, int source, int target, uint64_t value, CUstream stream)
{
	size_t slice = rig->unit_bytes / (size_t)rig->devices;
	CUdeviceptr fence = rig->page.device + fence_index(rig, source, target) * sizeof(uint64_t);

	GPU_MUST(cuMemcpyAsync(rig->full[target].at + (size_t)source * slice, rig->shard[source].at, slice,
	                       stream));
	GPU_MUST(cuStreamWriteValue64(stream, fence, value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

static void *executor(void *arg)
{
	struct thread *self = arg;
	struct rig *rig = self->rig;
	uint64_t issued[GPU_DEVICES_MAX] = {0};
	CUstream streams[GPU_DEVICES_MAX];

	gpu_open(self->device);
	for (int i = 0; i < rig->devices; i++)
		streams[i] = gpu_stream(true);
	for (int i = 0; i < rig->devices; i++)
		issued[i] = rig->page.host[fence_index(rig, self->device, i)];
	pthread_barrier_wait(&rig->barrier);
	while (!atomic_load(&rig->stop))
		for (int step = 1; step < rig->devices; step++) {
			int target = (self->device + step) % rig->devices;
			uint64_t wanted = atomic_load_explicit(&rig->wanted[target].value,
			                                       memory_order_acquire);

			if (wanted == issued[target])
				continue;
			issued[target] = wanted;
			push(rig, self->device, target, wanted, streams[rig->stream_per_pair ? target : 0]);
		}
	for (int i = 0; i < rig->devices; i++) {
		GPU_MUST(cuStreamSynchronize(streams[i]));
		GPU_MUST(cuStreamDestroy(streams[i]));
	}
	return NULL;
}

static double gather(struct rig *rig, int device)
{
	double begin = gpu_now_us();
	uint64_t value = atomic_load(&rig->wanted[device].value) + 1;

	atomic_store_explicit(&rig->wanted[device].value, value, memory_order_release);
	for (int source = 0; source < rig->devices; source++) {
		if (source == device)
			continue;
		while (rig->page.host[fence_index(rig, source, device)] < value)
			;
	}
	return gpu_now_us() - begin;
}

static void *requester(void *arg)
{
	struct thread *self = arg;
	struct rig *rig = self->rig;
	uint64_t seed = (uint64_t)self->device + 1;

	pthread_barrier_wait(&rig->barrier);
	if (rig->manner == ONE && self->device != 0)
		return NULL;
	for (uint64_t i = 0; i < rig->gathers + WARM_UP; i++) {
		double took;

		if (rig->manner == TOGETHER)
			pthread_barrier_wait(&rig->barrier);
		if (rig->manner == APART) {
			double until = gpu_now_us() +
			               2 * rig->gather_us * (double)(gpu_random(&seed) % 1000) / 1000;

			while (gpu_now_us() < until)
				;
		}
		took = gather(rig, self->device);
		if (i >= WARM_UP)
			gpu_samples_add(&rig->samples[self->device], took);
	}
	return NULL;
}

static void threads_start(struct thread *threads, struct rig *rig, void *(*entry)(void *))
{
	for (int i = 0; i < rig->devices; i++) {
		threads[i].rig = rig;
		threads[i].device = i;
		SYS_MUST(pthread_create(&threads[i].id, NULL, entry, &threads[i]) ? -1 : 0);
	}
}

/* The barrier first takes all threads; then, re-made, the requesters alone step with it. */
static void run(struct rig *rig)
{
	struct thread executors[GPU_DEVICES_MAX], requesters[GPU_DEVICES_MAX];
	struct gpu_samples all = {0};
	double begin, wall, median;
	char name[160];

	atomic_store(&rig->stop, false);
	pthread_barrier_init(&rig->barrier, NULL, (unsigned)rig->devices + 1);
	threads_start(executors, rig, executor);
	pthread_barrier_wait(&rig->barrier);
	pthread_barrier_destroy(&rig->barrier);
	pthread_barrier_init(&rig->barrier, NULL, (unsigned)rig->devices);
	begin = gpu_now_us();
	threads_start(requesters, rig, requester);
	for (int i = 0; i < rig->devices; i++)
		pthread_join(requesters[i].id, NULL);
	wall = gpu_now_us() - begin;
	atomic_store(&rig->stop, true);
	for (int i = 0; i < rig->devices; i++) {
		pthread_join(executors[i].id, NULL);
		for (size_t j = 0; j < rig->samples[i].count; j++)
			gpu_samples_add(&all, rig->samples[i].values[j]);
		gpu_samples_free(&rig->samples[i]);
	}
	pthread_barrier_destroy(&rig->barrier);
	median = gpu_samples_at(&all, 0.5);
	snprintf(name, sizeof(name), "  %7zu KiB, %-8s, %s", rig->unit_bytes / KIB, MANNER[rig->manner],
	         rig->stream_per_pair ? "stream per pair    " : "stream per executor");
	gpu_samples_print(name, &all);
	printf("    busbw %.0f GB/s at the median; all ranks together %.0f GB/s\n",
	       (double)rig->unit_bytes * (rig->devices - 1) / rig->devices / median / 1e3,
	       (double)all.count * (double)rig->unit_bytes * (rig->devices - 1) / rig->devices / wall / 1e3);
	if (rig->manner == TOGETHER)
		rig->gather_us = median;
	gpu_samples_free(&all);
}

static void daemon_main(int sock, void *arg)
{
	static const size_t sizes[] = {64 * KIB, MIB, 16 * MIB, 64 * MIB, GIB};
	struct rig *rig = arg;

	(void)sock;
	for (int i = 0; i < rig->devices; i++)
		gpu_open(i);
	for (int i = 0; i < rig->devices; i++) {
		gpu_open(i);
		rig->shard[i] = gpu_segment_new(i, UNIT_MAX / (size_t)rig->devices, rig->devices);
		rig->full[i] = gpu_segment_new(i, UNIT_MAX, rig->devices);
	}
	rig->page = gpu_page_map(gpu_page_new(16384), 16384);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (int pairs = 0; pairs < 2; pairs++)
			for (enum manner manner = TOGETHER; manner < MANNERS; manner++) {
				rig->unit_bytes = sizes[i];
				rig->gathers = sizes[i] < 64 * MIB ? 500 : sizes[i] < GIB ? 200 : 40;
				rig->stream_per_pair = pairs;
				rig->manner = manner;
				run(rig);
			}
}

/* Products until the socket closes. */
static void load_main(int sock, void *arg)
{
	struct gpu_load *load;
	char byte;

	gpu_open(*(int *)arg);
	load = gpu_load_new(8192);
	gpu_put(sock, "", 1);
	while (recv(sock, &byte, 1, MSG_DONTWAIT) == -1) {
		gpu_load_queue(load, 10);
		gpu_load_finish(load);
	}
}

int main(int argc, char **argv)
{
	static struct rig rig;
	struct gpu_child loads[GPU_DEVICES_MAX], daemon;
	bool loaded = argc > 1 && strcmp(argv[1], "load") == 0;
	int failed;
	char byte;

	alarm(240);
	setvbuf(stdout, NULL, _IOLBF, 0);
	rig.devices = gpu_count();
	printf("gathers by pushes, %d GPUs, %s\n", rig.devices,
	       loaded ? "products of 8192 on every GPU" : "idle");
	for (int i = 0; i < rig.devices && loaded; i++) {
		loads[i] = gpu_child_start(load_main, &i);
		gpu_get(loads[i].sock, &byte, 1);
	}
	daemon = gpu_child_start(daemon_main, &rig);
	failed = gpu_child_wait(&daemon) != 0;
	for (int i = 0; i < rig.devices && loaded; i++)
		failed |= gpu_child_wait(&loads[i]) != 0;
	return failed;
}
