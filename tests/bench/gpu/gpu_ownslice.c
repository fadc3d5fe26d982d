/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_ownslice.c - a rank's own slice of a gathered buffer: copied in the trainer's context on a stream of
 * the highest priority while its matrix products run, or the shard's pages exchanged into the slot (unmap,
 * map, access). All memory is the daemon's, imported by descriptor as a trainer does. Shows what either costs
 * the products too, and which of the mapping calls waits while another stream has a wait parked.
 */
#include "gpu_common.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECES  4
#define LARGEST (256 * MIB)
#define SAMPLES 25

/* The daemon's side: makes `count` allocations of LARGEST bytes and sends their descriptors. */
static void owner_main(int sock, void *arg)
{
	char byte;

	gpu_open(0);
	for (int i = 0; i < *(int *)arg; i++) {
		struct gpu_segment segment = gpu_segment_new(0, LARGEST, 0);
		int fd = gpu_segment_export(&segment);

		gpu_put_fd(sock, fd);
		close(fd);
	}
	(void)recv(sock, &byte, 1, 0);
}

struct trainer {
	CUdeviceptr shard;
	CUdeviceptr slot;
	CUstream stream;
	size_t bytes;
};

static void copy_once(void *arg)
{
	struct trainer *trainer = arg;

	GPU_MUST(cuMemcpyAsync(trainer->slot, trainer->shard, trainer->bytes, trainer->stream));
	GPU_MUST(cuStreamSynchronize(trainer->stream));
}

/* Times `once` while products of the given side run (0: idle); enough are queued to outlast the samples. */
static void under_load(const char *what, struct gpu_load *load, int side, size_t bytes, void (*once)(void *),
                       void *arg)
{
	struct gpu_samples samples = {0};
	char name[128];

	if (load)
		gpu_load_queue(load, side == 8192 ? 60 : side == 4096 ? 300 : 2500);
	for (int i = 0; i < SAMPLES && (!load || gpu_load_busy(load)); i++) {
		double begin = gpu_now_us();

		once(arg);
		gpu_samples_add(&samples, gpu_now_us() - begin);
	}
	if (load)
		gpu_load_finish(load);
	snprintf(name, sizeof(name), "  products of %4d, %6zu KiB, %s", side, bytes / KIB, what);
	gpu_samples_print(name, &samples);
	gpu_samples_free(&samples);
}

/* A slot of four pieces; the first is exchanged between its own pages and the shard's. */
struct exchange {
	CUmemGenericAllocationHandle pages[2];
	CUdeviceptr at;
	size_t bytes;
	int now;
};

static void exchange_once(void *arg)
{
	struct exchange *slot = arg;

	GPU_MUST(cuMemUnmap(slot->at, slot->bytes));
	slot->now ^= 1;
	GPU_MUST(cuMemMap(slot->at, slot->bytes, 0, slot->pages[slot->now], 0));
	gpu_access(slot->at, slot->bytes, 0, 0);
}

static struct exchange exchange_new(size_t bytes)
{
	struct exchange slot = {.bytes = bytes};

	GPU_MUST(cuMemAddressReserve(&slot.at, PIECES * bytes, 0, 0, 0));
	for (int i = 0; i < PIECES; i++) {
		CUmemGenericAllocationHandle pages = gpu_memory_new(0, bytes);

		GPU_MUST(cuMemMap(slot.at + (size_t)i * bytes, bytes, 0, pages, 0));
		if (i == 0)
			slot.pages[0] = pages;
		else
			GPU_MUST(cuMemRelease(pages));
	}
	slot.pages[1] = gpu_memory_new(0, bytes);
	gpu_access(slot.at, PIECES * bytes, 0, 0);
	return slot;
}

static void exchange_free(struct exchange *slot)
{
	for (int i = 0; i < PIECES; i++)
		GPU_MUST(cuMemUnmap(slot->at + (size_t)i * slot->bytes, slot->bytes));
	GPU_MUST(cuMemAddressFree(slot->at, PIECES * slot->bytes));
	GPU_MUST(cuMemRelease(slot->pages[0]));
	GPU_MUST(cuMemRelease(slot->pages[1]));
}

/* Frees the parked wait after a while, so that a call that waits for it shows by its time. */
static void *release_later(void *arg)
{
	gpu_sleep_us(300e3);
	__atomic_store_n((uint64_t *)arg, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void park(struct gpu_page *page, CUstream stream, pthread_t *thread)
{
	GPU_MUST(cuCtxSynchronize());
	*page->host = 0;
	GPU_MUST(cuStreamWaitValue64(stream, page->device, 1, CU_STREAM_WAIT_VALUE_GEQ));
	SYS_MUST(pthread_create(thread, NULL, release_later, (void *)page->host) ? -1 : 0);
	gpu_sleep_us(20e3);
}

/* Each call apart, with a wait parked on another stream that ends 280 ms later. */
static void calls_beside_a_parked_wait(CUstream stream)
{
	struct gpu_page page = gpu_page_map(gpu_page_new(4096), 4096);
	struct exchange slot = exchange_new(64 * MIB);
	double begin, took[4] = {0};
	CUdeviceptr memory;
	pthread_t thread;

	for (int call = 0; call < 4; call++) {
		if (call == 0)
			exchange_once(&slot);
		if (call == 1)
			GPU_MUST(cuMemUnmap(slot.at, slot.bytes));
		if (call == 2)
			GPU_MUST(cuMemMap(slot.at, slot.bytes, 0, slot.pages[0], 0));
		park(&page, stream, &thread);
		begin = gpu_now_us();
		if (call == 0)
			GPU_MUST(cuMemUnmap(slot.at, slot.bytes));
		else if (call == 1)
			GPU_MUST(cuMemMap(slot.at, slot.bytes, 0, slot.pages[0], 0));
		else if (call == 2)
			gpu_access(slot.at, slot.bytes, 0, 0);
		else
			GPU_MUST(cuMemAlloc(&memory, 64 * MIB));
		took[call] = gpu_now_us() - begin;
		pthread_join(thread, NULL);
		GPU_MUST(cuCtxSynchronize());
		if (call == 0) {
			GPU_MUST(cuMemMap(slot.at, slot.bytes, 0, slot.pages[slot.now], 0));
			gpu_access(slot.at, slot.bytes, 0, 0);
		}
		if (call == 1)
			GPU_MUST(cuMemUnmap(slot.at, slot.bytes));
	}
	printf("  beside a wait parked for 280 ms: cuMemUnmap took %.0f us, cuMemMap %.0f, cuMemSetAccess "
	       "%.0f, cuMemAlloc "
	       "%.0f\n",
	       took[0], took[1], took[2], took[3]);
}

static void trainer_main(int sock, void *arg)
{
	static const size_t sizes[] = {256 * KIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB};
	static const int sides[] = {0, 8192, 4096, 2048};
	struct gpu_segment shard, gathered;
	struct trainer trainer;

	(void)arg;
	gpu_open(0);
	shard = gpu_segment_import(gpu_get_fd(sock), 0, LARGEST, 0);
	gathered = gpu_segment_import(gpu_get_fd(sock), 0, LARGEST, 0);
	trainer = (struct trainer){shard.at, gathered.at, gpu_stream(true), 0};
	trainer.bytes = 4096;
	copy_once(&trainer);
	for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++) {
		struct gpu_load *load = sides[i] ? gpu_load_new(sides[i]) : NULL;
		int products = sides[i] == 8192 ? 120 : sides[i] == 4096 ? 600 : 4000;

		for (size_t j = 0; j < sizeof(sizes) / sizeof(sizes[0]); j++) {
			struct exchange slot = exchange_new(sizes[j] < 2 * MIB ? 2 * MIB : sizes[j]);

			trainer.bytes = sizes[j];
			under_load("copy", load, sides[i], sizes[j], copy_once, &trainer);
			under_load("pages exchanged", load, sides[i], slot.bytes, exchange_once, &slot);
			if (load && j >= 2)
				printf("    a product alone %.1f us, beside copies without pause %.1f, "
				       "beside exchanges "
				       "%.1f\n",
				       gpu_load_product_us(load, products, NULL, NULL),
				       gpu_load_product_us(load, products, copy_once, &trainer),
				       gpu_load_product_us(load, products, exchange_once, &slot));
			exchange_free(&slot);
		}
		if (load)
			gpu_load_free(load);
	}
	calls_beside_a_parked_wait(trainer.stream);
}

int main(void)
{
	struct gpu_child owner, trainer;
	int count = 2;

	alarm(180);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("a rank's own slice\n");
	owner = gpu_child_start(owner_main, &count);
	trainer = gpu_child_start(trainer_main, NULL);
	for (int i = 0; i < count; i++) {
		int fd = gpu_get_fd(owner.sock);

		gpu_put_fd(trainer.sock, fd);
		close(fd);
	}
	if (gpu_child_wait(&trainer) != 0)
		return 1;
	return gpu_child_wait(&owner) != 0;
}
