/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_around.c - a copy that begins and ends on GPU 0, made by the daemon's side, while trainers' matrix
 * products run on both GPUs or not: at home; across, that is by GPU 1's engine in one copy; pushed to GPU 1
 * and back, the CPU in between. And what groups of pushes cost by one call each and by one for all.
 *
 *     gpu_around [SIDE]     matrix products of SIDE x SIDE in processes of their own; without it the GPUs are
 *                           idle
 *
 * Each copy begins at a random moment of a product: one right behind the other they would all meet the same
 * one.
 */
#include "gpu_common.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SEGMENT      (64 * MIB)
#define HALF         (32 * MIB)
#define SAMPLES      200
#define SAMPLES_SLOW 60 /* at home beside products: milliseconds each */
#define PUSHES       96
#define PUSH_BYTES   (256 * KIB)
#define SPREAD_US    1500

/* ---- Load ---------------------------------------------------------------------------------------------- */

struct place {
	int device, side;
};

static void load_main(int sock, void *arg)
{
	const struct place *place = arg;
	struct gpu_load *load;

	gpu_open(place->device);
	load = gpu_load_new(place->side);
	gpu_load_queue(load, 20);
	gpu_load_finish(load);
	gpu_put(sock, "", 1); /* the products run */
	for (;;) {
		gpu_load_queue(load, 20);
		gpu_load_finish(load);
	}
}

/* ---- Engines ------------------------------------------------------------------------------------------- */

/* A GPU's context, a stream in it, and a word that the stream counts up. */
struct engine {
	CUcontext context;
	CUstream stream;
	CUdeviceptr word;
	volatile uint64_t *seen;
	uint64_t asked;
};

static struct engine engine_new(int device)
{
	struct engine engine = {0};
	void *page;

	gpu_open(device);
	GPU_MUST(cuCtxGetCurrent(&engine.context));
	engine.stream = gpu_stream(false);
	GPU_MUST(cuMemHostAlloc(&page, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	engine.seen = page;
	*engine.seen = 0;
	GPU_MUST(cuMemHostGetDevicePointer(&engine.word, page, 0));
	return engine;
}

static void finish(struct engine *engine)
{
	GPU_MUST(cuStreamWriteValue64(engine->stream, engine->word, ++engine->asked, 0));
	while (__atomic_load_n(engine->seen, __ATOMIC_ACQUIRE) < engine->asked)
		;
}

static void copy(struct engine *engine, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	GPU_MUST(cuCtxSetCurrent(engine->context));
	GPU_MUST(cuMemcpyAsync(to, from, bytes, engine->stream));
	finish(engine);
}

/* ---- Ways ---------------------------------------------------------------------------------------------- */

struct setting {
	struct engine engines[2];
	struct gpu_segment home, other;
};

static void at_home(struct setting *s, size_t bytes)
{
	copy(&s->engines[0], s->home.at + HALF, s->home.at, bytes);
}

static void across(struct setting *s, size_t bytes)
{
	copy(&s->engines[1], s->home.at + HALF, s->home.at, bytes);
}

static void out_and_back(struct setting *s, size_t bytes)
{
	copy(&s->engines[0], s->other.at, s->home.at, bytes);
	copy(&s->engines[1], s->home.at + HALF, s->other.at, bytes);
}

static void push(struct setting *s, size_t bytes)
{
	copy(&s->engines[0], s->other.at, s->home.at, bytes);
}

static void measure(struct setting *s, const char *name, void (*way)(struct setting *s, size_t bytes),
                    int count)
{
	uint64_t seed = 7;

	for (size_t bytes = 16 * KIB; bytes <= 16 * MIB; bytes *= 4) {
		struct gpu_samples samples = {0};
		char line[96];

		for (int i = 0; i < count; i++) {
			double begin;

			gpu_sleep_us((double)(gpu_random(&seed) % SPREAD_US));
			begin = gpu_now_us();
			way(s, bytes);
			gpu_samples_add(&samples, gpu_now_us() - begin);
		}
		snprintf(line, sizeof(line), "  %-12s %6zu KiB", name, bytes / KIB);
		gpu_samples_print(line, &samples);
		gpu_samples_free(&samples);
	}
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

static void push_one_by_one(struct setting *s)
{
	for (size_t i = 0; i < PUSHES; i++)
		GPU_MUST(cuMemcpyAsync(s->other.at + i * PUSH_BYTES, s->home.at + i * PUSH_BYTES, PUSH_BYTES,
		                       s->engines[0].stream));
}

static void push_by_one_call(struct setting *s)
{
	CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUdeviceptr to[PUSHES], from[PUSHES];
	size_t bytes[PUSHES], first = 0;

	for (size_t i = 0; i < PUSHES; i++) {
		to[i] = s->other.at + i * PUSH_BYTES;
		from[i] = s->home.at + i * PUSH_BYTES;
		bytes[i] = PUSH_BYTES;
	}
	GPU_MUST(cuMemcpyBatchAsync(to, from, bytes, PUSHES, &attributes, &first, 1, s->engines[0].stream));
}

static void measure_group(struct setting *s, const char *name, void (*group)(struct setting *s))
{
	struct gpu_samples calls = {0}, whole = {0};
	char line[96];

	GPU_MUST(cuCtxSetCurrent(s->engines[0].context));
	for (int i = 0; i < SAMPLES; i++) {
		double begin = gpu_now_us();

		group(s);
		gpu_samples_add(&calls, gpu_now_us() - begin);
		finish(&s->engines[0]);
		gpu_samples_add(&whole, gpu_now_us() - begin);
	}
	snprintf(line, sizeof(line), "  %d pushes of %zu KiB %s, calls", PUSHES, PUSH_BYTES / KIB, name);
	gpu_samples_print(line, &calls);
	snprintf(line, sizeof(line), "  %d pushes of %zu KiB %s, landed", PUSHES, PUSH_BYTES / KIB, name);
	gpu_samples_print(line, &whole);
	gpu_samples_free(&calls);
	gpu_samples_free(&whole);
}

int main(int argc, char **argv)
{
	struct place places[2] = {{0, argc > 1 ? atoi(argv[1]) : 0}, {1, argc > 1 ? atoi(argv[1]) : 0}};
	struct gpu_child children[2];
	struct setting s;

	if (gpu_count() < 2) {
		puts("  two GPUs are needed");
		return 0;
	}
	for (int i = 0; i < 2 && places[i].side > 0; i++) {
		char byte;

		children[i] = gpu_child_start(load_main, &places[i]);
		gpu_get(children[i].sock, &byte, 1);
	}
	for (int i = 0; i < 2; i++)
		s.engines[i] = engine_new(i);
	s.home = gpu_segment_new(0, SEGMENT, 2);
	s.other = gpu_segment_new(1, SEGMENT, 2);
	printf("beside products of %d\n", places[0].side);
	measure(&s, "at home", at_home, places[0].side > 0 ? SAMPLES_SLOW : SAMPLES);
	measure(&s, "across", across, SAMPLES);
	measure(&s, "out and back", out_and_back, SAMPLES);
	measure(&s, "push", push, SAMPLES);
	measure_group(&s, "one by one", push_one_by_one);
	measure_group(&s, "by one call", push_by_one_call);
	for (int i = 0; i < 2 && places[i].side > 0; i++)
		(void)gpu_child_kill(&children[i]);
	return 0;
}
