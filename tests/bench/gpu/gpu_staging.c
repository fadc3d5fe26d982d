/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_staging.c - what it costs to send by way of the host: two GPUs stand for two nodes, a process beside
 * their trainers copies 64 MiB from each into pinned memory and from there into the other, both ways at once,
 * in pieces, by copy engines. The network between is left out: so these are the least times, and what
 * trainers' matrix products lose to the copies alone.
 *
 *     gpu_staging [SIDE]     matrix products of SIDE x SIDE, 8192 by default
 */
#include "gpu_common.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BYTES    (64 * MIB)
#define PIECE    (4 * MIB)
#define PIECES   (BYTES / PIECE)
#define SLOTS    4 /* pieces on the host at a time */
#define SAMPLES  100
#define PRODUCTS 300

/* ---- Trainers ------------------------------------------------------------------------------------------ */

struct trainer {
	int device, side;
};

/* Runs products whenever it is asked to, and says how long one took. */
static void trainer_main(int sock, void *arg)
{
	const struct trainer *trainer = arg;
	struct gpu_load *load;
	int products;

	gpu_open(trainer->device);
	load = gpu_load_new(trainer->side);
	while (read(sock, &products, sizeof(products)) == sizeof(products)) {
		double us = gpu_load_product_us(load, products, NULL, NULL);

		gpu_put(sock, &us, sizeof(us));
	}
	gpu_load_free(load);
}

/* ---- Ways ---------------------------------------------------------------------------------------------- */

struct end {
	CUcontext context;
	CUstream stream;
	CUdeviceptr memory;
	CUevent passed[PIECES];
};

/* From one GPU to the other one: how many pieces have been asked for and have come, to the host and from
 * there. */
struct way {
	struct end from, to;
	char *host;
	size_t out, in, landed;
};

static struct end end_new(int device, size_t bytes)
{
	struct end end = {0};

	gpu_open(device);
	GPU_MUST(cuCtxGetCurrent(&end.context));
	end.stream = gpu_stream(false);
	GPU_MUST(cuMemAlloc(&end.memory, bytes));
	for (size_t i = 0; i < PIECES; i++)
		GPU_MUST(cuEventCreate(&end.passed[i], CU_EVENT_DISABLE_TIMING));
	return end;
}

static struct way way_new(int from, int to)
{
	struct way way = {.from = end_new(from, BYTES), .to = end_new(to, BYTES)};
	void *host;

	GPU_MUST(cuMemHostAlloc(&host, SLOTS * PIECE, CU_MEMHOSTALLOC_PORTABLE));
	way.host = host;
	return way;
}

static bool has_passed(const struct end *end, size_t piece)
{
	CUresult result;

	GPU_MUST(cuCtxSetCurrent(end->context));
	result = cuEventQuery(end->passed[piece]);
	if (result != CUDA_ERROR_NOT_READY)
		GPU_MUST(result);
	return result == CUDA_SUCCESS;
}

static void turn(struct way *way)
{
	if (way->out < PIECES && way->out < way->landed + SLOTS) {
		GPU_MUST(cuCtxSetCurrent(way->from.context));
		GPU_MUST(cuMemcpyDtoHAsync(way->host + way->out % SLOTS * PIECE,
		                           way->from.memory + way->out * PIECE, PIECE, way->from.stream));
		GPU_MUST(cuEventRecord(way->from.passed[way->out], way->from.stream));
		way->out++;
	}
	if (way->in < way->out && has_passed(&way->from, way->in)) {
		GPU_MUST(cuCtxSetCurrent(way->to.context));
		GPU_MUST(cuMemcpyHtoDAsync(way->to.memory + way->in * PIECE,
		                           way->host + way->in % SLOTS * PIECE, PIECE, way->to.stream));
		GPU_MUST(cuEventRecord(way->to.passed[way->in], way->to.stream));
		way->in++;
	}
	if (way->landed < way->in && has_passed(&way->to, way->landed))
		way->landed++;
}

static void send_both(struct way ways[2])
{
	for (int i = 0; i < 2; i++)
		ways[i].out = ways[i].in = ways[i].landed = 0;
	while (ways[0].landed < PIECES || ways[1].landed < PIECES)
		for (int i = 0; i < 2; i++)
			turn(&ways[i]);
}

/* ---- Measuring ----------------------------------------------------------------------------------------- */

static void ask(struct gpu_child trainers[2])
{
	const int products = PRODUCTS;

	for (int i = 0; i < 2; i++)
		gpu_put(trainers[i].sock, &products, sizeof(products));
}

static bool have_answered(struct gpu_child trainers[2])
{
	for (int i = 0; i < 2; i++) {
		struct pollfd answer = {.fd = trainers[i].sock, .events = POLLIN};

		if (poll(&answer, 1, 0) != 1)
			return false;
	}
	return true;
}

static double product_us(struct gpu_child trainers[2])
{
	double us[2];

	for (int i = 0; i < 2; i++)
		gpu_get(trainers[i].sock, &us[i], sizeof(us[i]));
	return (us[0] + us[1]) / 2;
}

static void print_sends(const char *when, struct gpu_samples *samples)
{
	char name[64];

	snprintf(name, sizeof(name), "  64 MiB each way by way of the host, %s", when);
	gpu_samples_print(name, samples);
	printf("    %.1f GB/s each way\n", (double)BYTES / gpu_samples_at(samples, 0.5) / 1e3);
	gpu_samples_free(samples);
}

int main(int argc, char **argv)
{
	const int side = argc > 1 ? atoi(argv[1]) : 8192;
	struct trainer places[2] = {{0, side}, {1, side}};
	struct gpu_samples idle = {0}, beside = {0};
	struct gpu_child trainers[2];
	struct way ways[2];
	double alone_us, beside_us;

	if (gpu_count() < 2) {
		puts("  two GPUs are needed");
		return 0;
	}
	for (int i = 0; i < 2; i++)
		trainers[i] = gpu_child_start(trainer_main, &places[i]);
	ways[0] = way_new(0, 1);
	ways[1] = way_new(1, 0);
	ask(trainers);
	alone_us = product_us(trainers);
	for (int i = 0; i < SAMPLES; i++) {
		double begin = gpu_now_us();

		send_both(ways);
		gpu_samples_add(&idle, gpu_now_us() - begin);
	}
	ask(trainers);
	while (!have_answered(trainers)) {
		double begin = gpu_now_us();

		send_both(ways);
		gpu_samples_add(&beside, gpu_now_us() - begin);
	}
	beside_us = product_us(trainers);
	print_sends("idle", &idle);
	print_sends("beside products", &beside);
	printf("  a product of %d: %.1f us alone, %.1f us beside sends without pause: %.1f %% longer\n", side,
	       alone_us, beside_us, 100 * (beside_us / alone_us - 1));
	for (int i = 0; i < 2; i++)
		close(trainers[i].sock);
	return 0;
}
