/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradients - two processes reduce the gradients of one step, in ZeRO's stage 2: two micro-steps, one bucket
 * per process, an entry that two streams write, and an expert that only one rank has used. Run it with a
 * daemon: zerod --backend host --devices 2 --foreground
 *
 *     gradients [SOCKET]
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zerod.h>
#include <zerod_host.h>

#include "host.h"

#define WORLD       2
#define NUMEL       1024
#define MICRO_STEPS 2

static zerod_client *client;
static zerod_group *group;
static zerod_stream *streams[2];
static uint32_t rank;

/* Ends the process with the library's text if a call has failed. */
static void check(int status, const char *what)
{
	if (status == ZEROD_OK)
		return;
	fprintf(stderr, "gradients: %s: %s: %s\n", what, zerod_status_name(status), zerod_last_error(client));
	exit(-status);
}

static void join(const char *socket_path, const char *job)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options place = ZEROD_INIT(place);

	options.socket_path = socket_path;
	check(zerod_connect(&options, &client), "connect");
	need_host_devices(client);
	place.job = job;
	place.world_size = WORLD;
	place.rank = rank;
	place.device = rank;
	check(zerod_group_join(client, &place, &group), "join");
	for (int i = 0; i < 2; i++)
		check(zerod_host_stream_create(client, &streams[i]), "host_stream_create");
}

static zerod_unit *make_unit(const char *name)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit;

	options.name = name;
	options.dtype = ZEROD_BFLOAT16; /* of the weights; gradients and their sums are float32 here */
	options.numel = NUMEL;
	check(zerod_unit_register(group, &options, &unit), "register");
	return unit;
}

static zerod_bucket *make_bucket(void)
{
	struct zerod_bucket_options options = ZEROD_INIT(options);
	zerod_bucket *bucket;

	options.dtype = ZEROD_FLOAT32;
	options.slot_bytes = 1 << 16; /* two slots: one is filled while the other is reduced */
	check(zerod_bucket_create(group, &options, &bucket), "bucket_create");
	return bucket;
}

/* The bytes that are charged to this rank's device. */
static unsigned long long allocated_bytes(void)
{
	struct zerod_device_info info = ZEROD_INIT(info);

	check(zerod_device_get(client, rank, &info), "device_get");
	return info.allocated_bytes;
}

static float expert_gradient[NUMEL];

/* Every element of rank r's gradient is r + 1. */
static void write_half(void *data)
{
	for (int i = 0; i < NUMEL / 2; i++)
		((float *)data)[i] = (float)(rank + 1);
}

/* The call does not wait for its reply. The client's next call after the reply reports a failure. */
static struct zerod_reduce_options mean(void)
{
	struct zerod_reduce_options options = ZEROD_INIT(options);

	options.op = ZEROD_MEAN;
	options.prescale = 1.0f / MICRO_STEPS;
	options.flags = ZEROD_REDUCE_DETACHED;
	return options;
}

/* Two streams write a half each, in any order. The submit names both, and the sum waits for both. */
static void reduce_in_place(zerod_bucket *bucket, zerod_unit *unit)
{
	const struct zerod_reduce_options options = mean();
	struct zerod_entry entry = ZEROD_INIT(entry);

	check(zerod_bucket_reserve(bucket, unit, NULL, &entry), "bucket_reserve");
	for (int i = 0; i < 2; i++)
		check(zerod_host_stream_launch(streams[i], write_half, (float *)entry.data + i * NUMEL / 2),
		      "launch");
	check(zerod_bucket_submit(bucket, entry.id, streams, 2, &options, NULL), "bucket_submit");
}

/* A gradient in the caller's memory: a stream writes it, and then zerod copies it. */
static void reduce_from_memory(zerod_bucket *bucket, zerod_unit *unit)
{
	const struct zerod_reduce_options options = mean();

	for (int i = 0; i < 2; i++)
		check(zerod_host_stream_launch(streams[0], write_half, expert_gradient + i * NUMEL / 2),
		      "launch");
	check(zerod_reduce(bucket, unit, expert_gradient, streams[0], &options, NULL), "reduce");
}

/* The gradients are added to the step's target, which is bound at the first backward after a step. A step can
 * have any number of backwards, the same on all ranks. No backward is marked as the last one. */
static void backward(zerod_bucket *bucket, zerod_unit *weight, zerod_unit *expert)
{
	struct zerod_backward_options options = ZEROD_INIT(options);

	options.stage = 2;
	check(zerod_backward_begin(group, &options), "backward_begin");
	reduce_in_place(bucket, weight);
	if (rank == 1)
		reduce_from_memory(bucket, expert);
	else /* no token used it */
		check(zerod_reduce_skip(expert, NULL, NULL), "reduce_skip");
	check(zerod_backward_end(group, NULL, NULL),
	      "backward_end"); /* every sum is stored, and bucket storage is free */
}

static float first_of(zerod_unit *unit)
{
	struct zerod_target target = ZEROD_INIT(target);

	check(zerod_target_get(unit, &target), "unit_target");
	return *(const float *)target.data;
}

static void run_rank(const char *socket_path, const char *job)
{
	struct zerod_step_info step = ZEROD_INIT(step);

	join(socket_path, job);
	zerod_unit *weight = make_unit("weight"), *expert = make_unit("expert");
	zerod_bucket *bucket = make_bucket();
	const unsigned long long before = allocated_bytes();

	for (int micro = 1; micro <= MICRO_STEPS; micro++)
		backward(bucket, weight, expert);
	const unsigned long long targets = allocated_bytes() - before;

	/* All ranks receive the same result: whether any rank had an inf or a nan, and the whole norm. */
	check(zerod_step_begin(group, NULL, &step, NULL), "step_begin");
	if (!step.overflow)
		printf("rank %u, step %llu: weight %g, expert %g, norm squared %g\n", rank,
		       (unsigned long long)step.step, (double)first_of(weight), (double)first_of(expert),
		       step.norm_squared);
	/* The optimizer copies the values that it needs. The target is freed before the optimizer
	 * allocates. */
	check(zerod_step_end(group, NULL, 0, NULL), "step_end");
	printf("rank %u held %llu bytes of targets, holds %llu\n", rank, targets, allocated_bytes() - before);
	zerod_close(client);
}

int main(int argc, char **argv)
{
	char job[32];
	int status, failed = 0;

	(void)snprintf(job, sizeof(job), "gradients-%d", (int)getpid());
	for (rank = 0; rank < WORLD; rank++) {
		if (fork() == 0) {
			run_rank(argc > 1 ? argv[1] : NULL, job);
			return EXIT_SUCCESS;
		}
	}
	while (wait(&status) > 0)
		failed |= status;
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
