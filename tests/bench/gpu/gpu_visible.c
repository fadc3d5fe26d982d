/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_visible.c - is data that a peer pushed there when its flag is? For every GPU one daemon thread a
 * channel pushes a block over NVLink into memory that a trainer process has mapped, then writes the channel's
 * flag into host memory on the same stream. The trainer checks every word of every round:
 *
 *   watch  a kernel that never ends polls the flag and then reads the block
 *   wait   a stream waits for the flag, parked before it is written, and a kernel after it reads the block
 *
 * Blocks lie in a ring of slots and their contents in a ring of tags; the counts have no common factor, so a
 * slot that still holds its last round's block is always noticed. Trainers run products of 8192 meanwhile,
 * and the daemon keeps the links full with copies of 4 MiB. `swapped` breaks the rule on purpose, to show
 * that the check can fail: it writes the flag before the push. (A flag without its memory barrier cannot be
 * tried: the driver refuses it for 64-bit writes.)
 *
 *   gpu_visible watch|wait fenced|swapped KIB SECONDS
 */
#include "gpu_common.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHANNELS   4
#define SLOTS      16
#define TAGS       61
#define PAGE_BYTES 16384
#define FILL_BYTES (4 * MIB)

/* Places in a direction's page, in 64-bit words; a cache line each. */
enum {
	FLAGS = 0,
	ACKS = CHANNELS * 8,
	PLANNED = 2 * CHANNELS * 8,
	STOP_PUSH = 3 * CHANNELS * 8,
	STOP_CHECK = STOP_PUSH + 8
};

static struct {
	int devices;
	bool wait;
	bool swapped;
	size_t block_bytes;
	int page_fd[GPU_DEVICES_MAX];
} config;

static size_t ring_bytes(void)
{
	size_t bytes = config.block_bytes * SLOTS * CHANNELS;

	return (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

/* The daemon's side of one channel: into `target`, from its neighbour. */
struct pusher {
	int target;
	int channel;
	struct gpu_page page;
	CUdeviceptr slots;
	CUdeviceptr blocks;
	uint64_t rounds;
	pthread_t id;
};

static int source_of(int target)
{
	return (target + 1) % config.devices;
}

static void push(struct pusher *self, uint64_t round, CUstream stream)
{
	CUdeviceptr flag = self->page.device + (size_t)(FLAGS + self->channel * 8) * 8;

	if (config.swapped)
		GPU_MUST(cuStreamWriteValue64(stream, flag, round, CU_STREAM_WRITE_VALUE_DEFAULT));
	GPU_MUST(cuMemcpyAsync(self->slots + round % SLOTS * config.block_bytes,
	                       self->blocks + round % TAGS * config.block_bytes, config.block_bytes, stream));
	if (!config.swapped)
		GPU_MUST(cuStreamWriteValue64(stream, flag, round, CU_STREAM_WRITE_VALUE_DEFAULT));
}

static void *pusher_main(void *arg)
{
	struct pusher *self = arg;
	volatile uint64_t *host = self->page.host;
	uint64_t round = 1;
	CUstream stream;

	gpu_open(source_of(self->target));
	stream = gpu_stream(true);
	while (!host[STOP_PUSH]) {
		if (round > host[PLANNED + self->channel * 8] ||
		    round > host[ACKS + self->channel * 8] + SLOTS)
			continue;
		push(self, round, stream);
		round++;
	}
	GPU_MUST(cuStreamSynchronize(stream));
	self->rounds = round - 1;
	return NULL;
}

/* Keeps the link into `target` full. */
static void *filler_main(void *arg)
{
	struct pusher *self = arg;
	struct gpu_segment from, to;
	CUstream stream;

	gpu_open(source_of(self->target));
	from = gpu_segment_new(source_of(self->target), FILL_BYTES, config.devices);
	to = gpu_segment_new(self->target, FILL_BYTES, config.devices);
	stream = gpu_stream(true);
	while (!self->page.host[STOP_PUSH]) {
		for (int i = 0; i < 16; i++)
			GPU_MUST(cuMemcpyAsync(to.at, from.at, FILL_BYTES, stream));
		GPU_MUST(cuStreamSynchronize(stream));
	}
	return NULL;
}

static CUdeviceptr blocks_new(int device)
{
	size_t words = config.block_bytes / sizeof(uint64_t);
	uint64_t *host = malloc(TAGS * config.block_bytes);
	CUdeviceptr blocks;

	SYS_MUST(host ? 0 : -1);
	for (uint64_t tag = 0; tag < TAGS; tag++)
		for (size_t i = 0; i < words; i++)
			host[tag * words + i] = tag;
	gpu_open(device);
	GPU_MUST(cuMemAlloc(&blocks, TAGS * config.block_bytes));
	GPU_MUST(cuMemcpyHtoD(blocks, host, TAGS * config.block_bytes));
	free(host);
	return blocks;
}

static void daemon_main(int sock, void *arg)
{
	static struct pusher pushers[GPU_DEVICES_MAX][CHANNELS], fillers[GPU_DEVICES_MAX];
	char byte;

	(void)arg;
	for (int i = 0; i < config.devices; i++)
		gpu_open(i);
	for (int i = 0; i < config.devices; i++) {
		struct gpu_segment ring = gpu_segment_new(i, ring_bytes(), config.devices);
		CUdeviceptr blocks = blocks_new(source_of(i));
		struct gpu_page page = gpu_page_map(config.page_fd[i], PAGE_BYTES);

		gpu_put_fd(sock, gpu_segment_export(&ring));
		for (int j = 0; j < CHANNELS; j++)
			pushers[i][j] = (struct pusher){
			        i, j, page, ring.at + (size_t)j * SLOTS * config.block_bytes, blocks, 0, 0};
		fillers[i] = pushers[i][0];
	}
	gpu_get(sock, &byte, 1);
	for (int i = 0; i < config.devices; i++) {
		SYS_MUST(pthread_create(&fillers[i].id, NULL, filler_main, &fillers[i]) ? -1 : 0);
		for (int j = 0; j < CHANNELS; j++)
			SYS_MUST(pthread_create(&pushers[i][j].id, NULL, pusher_main, &pushers[i][j]) ? -1
			                                                                              : 0);
	}
	for (int i = 0; i < config.devices; i++) {
		uint64_t rounds = 0;

		pthread_join(fillers[i].id, NULL);
		for (int j = 0; j < CHANNELS; j++) {
			pthread_join(pushers[i][j].id, NULL);
			rounds += pushers[i][j].rounds;
		}
		gpu_put(sock, &rounds, sizeof(rounds));
	}
}

/* The trainer's side of one channel. */
struct checker {
	int device;
	int channel;
	struct gpu_page page;
	CUdeviceptr slots;
	CUdeviceptr stale;
	CUfunction check;
	pthread_t id;
};

/* Parks the waits of up to SLOTS rounds before it tells the daemon that they may be pushed. */
static void *checker_main(void *arg)
{
	struct checker *self = arg;
	volatile uint64_t *host = self->page.host;
	unsigned words = (unsigned)(config.block_bytes / sizeof(uint64_t));
	CUdeviceptr flag = self->page.device + (size_t)(FLAGS + self->channel * 8) * 8;
	CUdeviceptr ack = self->page.device + (size_t)(ACKS + self->channel * 8) * 8;
	CUstream stream;

	gpu_open(self->device);
	stream = gpu_stream(true);
	for (uint64_t round = 1; !host[STOP_CHECK];) {
		CUdeviceptr block = self->slots + round % SLOTS * config.block_bytes;
		uint64_t tag = round % TAGS;
		void *args[] = {&block, &words, &tag, &self->stale};

		if (round > host[ACKS + self->channel * 8] + SLOTS)
			continue;
		GPU_MUST(cuStreamWaitValue64(stream, flag, round, CU_STREAM_WAIT_VALUE_GEQ));
		GPU_MUST(cuLaunchKernel(self->check, 1, 1, 1, 256, 1, 1, 0, stream, args, NULL));
		GPU_MUST(cuStreamWriteValue64(stream, ack, round, CU_STREAM_WRITE_VALUE_DEFAULT));
		host[PLANNED + self->channel * 8] = round++;
	}
	GPU_MUST(cuStreamSynchronize(stream));
	return NULL;
}

static void watch_start(struct gpu_page page, CUdeviceptr ring, CUdeviceptr stale, CUstream stream)
{
	unsigned words = (unsigned)(config.block_bytes / sizeof(uint64_t)), slots = SLOTS, tags = TAGS;
	CUdeviceptr flags = page.device + FLAGS * 8, acks = page.device + ACKS * 8,
	            stop = page.device + STOP_CHECK * 8;
	uint64_t rounds = UINT64_MAX;
	void *args[] = {&ring, &words, &slots, &tags, &rounds, &flags, &acks, &stop, &stale};

	GPU_MUST(cuLaunchKernel(gpu_kernel("watch"), CHANNELS, 1, 1, 256, 1, 1, 0, stream, args, NULL));
}

struct report {
	uint64_t checked;
	uint64_t stale;
};

static void trainer_main(int sock, void *arg)
{
	int device = *(int *)arg;
	struct checker checkers[CHANNELS];
	struct report report = {0, 0};
	struct gpu_segment ring;
	struct gpu_page page;
	struct gpu_load *load;
	CUdeviceptr stale;
	CUstream stream;

	gpu_open(device);
	load = gpu_load_new(8192);
	ring = gpu_segment_import(gpu_get_fd(sock), device, ring_bytes(), 0);
	page = gpu_page_map(config.page_fd[device], PAGE_BYTES);
	GPU_MUST(cuMemAlloc(&stale, sizeof(uint64_t)));
	GPU_MUST(cuMemsetD32(stale, 0, 2));
	stream = gpu_stream(true);
	for (int i = 0; i < CHANNELS; i++)
		checkers[i] = (struct checker){device, i,
		                               page,   ring.at + (size_t)i * SLOTS * config.block_bytes,
		                               stale,  gpu_kernel("check"),
		                               0};
	GPU_MUST(cuCtxSynchronize());
	if (!config.wait)
		watch_start(page, ring.at, stale, stream);
	for (int i = 0; i < CHANNELS && config.wait; i++)
		SYS_MUST(pthread_create(&checkers[i].id, NULL, checker_main, &checkers[i]) ? -1 : 0);
	gpu_put(sock, "", 1);
	while (!page.host[STOP_CHECK]) {
		gpu_load_queue(load, 10);
		gpu_load_finish(load);
	}
	for (int i = 0; i < CHANNELS && config.wait; i++)
		pthread_join(checkers[i].id, NULL);
	GPU_MUST(cuCtxSynchronize());
	GPU_MUST(cuMemcpyDtoH(&report.stale, stale, sizeof(report.stale)));
	for (int i = 0; i < CHANNELS; i++)
		report.checked += page.host[ACKS + i * 8];
	gpu_put(sock, &report, sizeof(report));
}

static void options(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: gpu_visible watch|wait fenced|swapped KIB SECONDS\n");
		exit(2);
	}
	config.wait = strcmp(argv[1], "wait") == 0;
	config.swapped = strcmp(argv[2], "swapped") == 0;
	config.block_bytes = (size_t)atoi(argv[3]) * KIB;
	config.devices = gpu_count();
}

static void stop(volatile uint64_t *const *pages, int place)
{
	for (int i = 0; i < config.devices; i++)
		pages[i][place] = 1;
}

int main(int argc, char **argv)
{
	struct gpu_child daemon, trainers[GPU_DEVICES_MAX];
	volatile uint64_t *pages[GPU_DEVICES_MAX];
	uint64_t pushed = 0, checked = 0, stale = 0, rounds;
	struct report report;
	char byte;

	options(argc, argv);
	alarm(60 + (unsigned)atoi(argv[4]));
	for (int i = 0; i < config.devices; i++) {
		config.page_fd[i] = gpu_page_new(PAGE_BYTES);
		pages[i] = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, config.page_fd[i], 0);
		SYS_MUST((const void *)pages[i] == MAP_FAILED ? -1 : 0);
		for (int j = 0; j < CHANNELS; j++)
			pages[i][PLANNED + j * 8] = config.wait ? 0 : UINT64_MAX;
	}
	daemon = gpu_child_start(daemon_main, NULL);
	for (int i = 0; i < config.devices; i++) {
		trainers[i] = gpu_child_start(trainer_main, &i);
		gpu_put_fd(trainers[i].sock, gpu_get_fd(daemon.sock));
	}
	for (int i = 0; i < config.devices; i++)
		gpu_get(trainers[i].sock, &byte, 1);
	gpu_put(daemon.sock, "", 1);
	gpu_sleep_us(atof(argv[4]) * 1e6);
	/* Parked waits need the pusher until they have all passed; the watching kernel needs none. */
	stop(pages, config.wait ? STOP_CHECK : STOP_PUSH);
	for (int i = 0; i < config.devices && !config.wait; i++, pushed += rounds)
		gpu_get(daemon.sock, &rounds, sizeof(rounds));
	stop(pages, STOP_CHECK);
	for (int i = 0; i < config.devices; i++) {
		gpu_get(trainers[i].sock, &report, sizeof(report));
		checked += report.checked;
		stale += report.stale;
		gpu_child_wait(&trainers[i]);
	}
	stop(pages, STOP_PUSH);
	for (int i = 0; i < config.devices && config.wait; i++, pushed += rounds)
		gpu_get(daemon.sock, &rounds, sizeof(rounds));
	printf("%s, %s, %s KiB, %d GPUs, %s s: %llu rounds pushed, %llu checked, %llu stale words\n", argv[1],
	       argv[2], argv[3], config.devices, argv[4], (unsigned long long)pushed,
	       (unsigned long long)checked, (unsigned long long)stale);
	return gpu_child_wait(&daemon) != 0;
}
