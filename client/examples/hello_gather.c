/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hello_gather - the interface in one screen. Two processes share a unit of 128 numbers. Each owns a half of
 * it, and each gathers the whole. Run it with a daemon: zerod --backend host --devices 2 --foreground
 *
 *     hello_gather [SOCKET]
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zerod.h>

#include "host.h"

#define WORLD 2
#define NUMEL 128

/* Ends the process with the library's text if a call has failed. */
static void check(const zerod_client *client, int status, const char *what)
{
	if (status == ZEROD_OK)
		return;
	fprintf(stderr, "hello_gather: %s: %s: %s\n", what, zerod_status_name(status),
	        zerod_last_error(client));
	exit(-status);
}

static void run_rank(const char *socket_path, const char *job, uint32_t rank)
{
	zerod_client *client = NULL;
	struct zerod_options options = ZEROD_INIT(options);
	options.socket_path = socket_path;
	check(NULL, zerod_connect(&options, &client), "connect");
	need_host_devices(client);

	/* This process becomes a rank of a group, on a device. The call waits for the other rank. */
	zerod_group *group;
	struct zerod_group_options place = ZEROD_INIT(place);
	place.job = job;
	place.world_size = WORLD;
	place.rank = rank;
	check(client, zerod_group_join(client, &place, &group), "join");

	/* A unit is sharded across the group: this rank has `true_numel` of its elements. */
	zerod_unit *unit;
	struct zerod_shard shard = ZEROD_INIT(shard);
	struct zerod_unit_options weights = ZEROD_INIT(weights);
	weights.name = "weights";
	weights.dtype = ZEROD_FLOAT32;
	weights.numel = NUMEL;
	check(client, zerod_unit_register(group, &weights, &unit), "register");
	check(client, zerod_shard_get(unit, &shard), "shard");

	/* A shard is written between update_begin and publish. */
	check(client, zerod_update_begin(&unit, 1, NULL, NULL), "update_begin");
	for (uint64_t i = 0; i < shard.true_numel; i++)
		((float *)shard.data)[i] = (float)(shard.offset_numel + i);
	check(client, zerod_publish(&unit, 1, NULL, 0, NULL, NULL), "publish");

	/* The whole exists from the gather to the release, and no longer. */
	void *whole;
	check(client, zerod_gather(unit, NULL, NULL, &whole), "gather");
	const float *values = whole;
	printf("rank %u owns elements %llu to %llu and sees %g to %g\n", rank,
	       (unsigned long long)shard.offset_numel,
	       (unsigned long long)(shard.offset_numel + shard.true_numel - 1), (double)values[0],
	       (double)values[NUMEL - 1]);
	check(client, zerod_release(unit, NULL, 0, NULL, NULL), "release");

	/* A commit ends when every rank has called it: until then no rank's shard disappears. */
	check(client, zerod_commit(group, 1, NULL), "commit");
	zerod_close(client);
}

int main(int argc, char **argv)
{
	const char *socket_path = argc > 1 ? argv[1] : NULL;
	char job[32];
	(void)snprintf(job, sizeof(job), "hello-%d", (int)getpid());
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		if (fork() == 0) {
			run_rank(socket_path, job, rank);
			return EXIT_SUCCESS;
		}
	}
	int status, failed = 0;
	while (wait(&status) > 0)
		failed |= status;
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
