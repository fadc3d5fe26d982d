/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_gather - hello_gather on GPUs. Two trainers share a unit of a million numbers. Each owns a half of it
 * in its GPU's memory, and gathers the whole in the order of its own stream. With one GPU both use it. Run it
 * with a daemon: zerod --backend cuda --foreground
 *
 *     gpu_gather [SOCKET]
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zerod.h>
#include <zerod_cuda.h>

#include "gpu.h"

#define WORLD 2
#define NUMEL 1000000

static zerod_group *join(zerod_client *client, const char *job, uint32_t rank, uint32_t device)
{
	zerod_group *group;
	struct zerod_group_options place = ZEROD_INIT(place);
	place.job = job;
	place.world_size = WORLD;
	place.rank = rank;
	place.device = device;
	check(client, zerod_group_join(client, &place, &group), "join");
	return group;
}

static zerod_unit *register_weights(zerod_client *client, zerod_group *group)
{
	zerod_unit *unit;
	struct zerod_unit_options weights = ZEROD_INIT(weights);
	weights.name = "weights";
	weights.dtype = ZEROD_FLOAT32;
	weights.numel = NUMEL;
	check(client, zerod_unit_register(group, &weights, &unit), "register");
	return unit;
}

/* The shard has its content when `stream` has run this work. The CPU does not wait for that here. */
static void publish(zerod_client *client, zerod_unit *unit, void *cuda_stream, zerod_stream *stream,
                    float *values)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	check(client, zerod_shard_get(unit, &shard), "shard");
	for (uint64_t i = 0; i < shard.true_numel; i++)
		values[i] = (float)(shard.offset_numel + i);
	check(client, zerod_update_begin(&unit, 1, NULL, NULL), "update_begin");
	must(cuMemcpyHtoDAsync(shard.data, values, shard.true_numel * sizeof(float), cuda_stream), "copy");
	check(client, zerod_publish(&unit, 1, &stream, 1, NULL, NULL), "publish");
}

static void run_rank(const char *socket_path, const char *job, uint32_t rank)
{
	static float values[NUMEL];
	zerod_client *client = NULL;
	zerod_stream *stream;
	void *cuda_stream, *whole;
	uint64_t right = 0;
	struct zerod_options options = ZEROD_INIT(options);
	options.socket_path = socket_path;
	load_driver();
	check(NULL, zerod_connect(&options, &client), "connect");
	zerod_group *group = join(client, job, rank, take_gpu(client, rank));
	zerod_unit *unit = register_weights(client, group);
	must(cuStreamCreateWithPriority(&cuda_stream, 1, 0), "cuStreamCreateWithPriority"); /* non-blocking */
	check(client, zerod_cuda_stream_wrap(client, cuda_stream, &stream), "wrap");
	publish(client, unit, cuda_stream, stream, values);

	/* The stream waits for the bytes, and the release waits for the stream. */
	check(client, zerod_gather(unit, NULL, stream, &whole), "gather");
	must(cuMemcpyDtoHAsync(values, whole, sizeof(values), cuda_stream), "copy");
	check(client, zerod_release(unit, &stream, 1, NULL, NULL), "release");
	check(client, zerod_stream_synchronize(stream), "synchronize");
	for (uint64_t i = 0; i < NUMEL; i++)
		right += values[i] == (float)i;
	printf("rank %u: %llu of %d numbers are right\n", rank, (unsigned long long)right, NUMEL);
	check(client, zerod_commit(group, 1, NULL), "commit"); /* until then, shards must remain */
	zerod_stream_destroy(stream);
	zerod_close(client);
	exit(right == NUMEL ? EXIT_SUCCESS : EXIT_FAILURE);
}

int main(int argc, char **argv)
{
	char job[32];
	(void)snprintf(job, sizeof(job), "gpu-%d", (int)getpid());
	for (uint32_t rank = 0; rank < WORLD; rank++)
		if (fork() == 0) /* before CUDA, which a forked child could not use */
			run_rank(argc > 1 ? argv[1] : NULL, job, rank);
	int status, failed = 0;
	while (wait(&status) > 0)
		failed |= status;
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
