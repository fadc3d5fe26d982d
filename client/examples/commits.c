/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commits - a trainer dies in the middle of an update, and the next one continues from the last commit. Run
 * it with a daemon: zerod --backend host --foreground
 *
 *     commits [SOCKET]
 *
 * A durable job's shards remain in the daemon when its trainers end. With shadow shards the daemon also
 * preserves the shards of the last commit: the next trainer never finds half-written values of a trainer that
 * has died. Memory of zerod_alloc() with ZEROD_ALLOC_DURABLE also remains, and is found again by its name,
 * but a commit does not cover it.
 *
 * The job remains until it is ended: zeroctl end-job.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zerod.h>

#include "host.h"

#define NUMEL 1024

static zerod_client *client;
static zerod_group *group;
static zerod_unit *unit;
static struct zerod_shard shard = ZEROD_INIT(shard);

/* Ends the process with the library's text if a call has failed. */
static void check(int status, const char *what)
{
	if (status == ZEROD_OK)
		return;
	fprintf(stderr, "commits: %s: %s: %s\n", what, zerod_status_name(status), zerod_last_error(client));
	exit(-status);
}

static void join(const char *socket_path, const char *job)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options place = ZEROD_INIT(place);
	struct zerod_unit_options weights = ZEROD_INIT(weights);
	int status;

	options.socket_path = socket_path;
	check(zerod_connect(&options, &client), "connect");
	need_host_devices(client);
	place.job = job;
	place.world_size = 1;
	place.flags = ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW;
	do /* the daemon can receive this request before it detects the predecessor's end */
		status = zerod_group_join(client, &place, &group);
	while (status == ZEROD_E_EXISTS);
	check(status, "join");
	weights.name = "weights";
	weights.dtype = ZEROD_FLOAT32;
	weights.numel = NUMEL;
	check(zerod_unit_register(group, &weights, &unit), "register"); /* with the job's values of it */
	check(zerod_shard_get(unit, &shard), "shard");
}

static void fill(float value, uint64_t numel)
{
	for (uint64_t i = 0; i < numel; i++)
		((float *)shard.data)[i] = value;
}

static void train(const char *socket_path, const char *job)
{
	join(socket_path, job);
	check(zerod_update_begin(&unit, 1, NULL, NULL), "update_begin");
	fill(1, shard.true_numel);
	check(zerod_publish(&unit, 1, NULL, 0, NULL, NULL), "publish");
	check(zerod_commit(group, 1, NULL), "commit"); /* on all ranks and units, or on none */

	check(zerod_update_begin(&unit, 1, NULL, NULL), "update_begin");
	fill(2, shard.true_numel / 2);
	printf("dies inside the update of step 2\n");
	(void)fflush(stdout);
	_exit(EXIT_SUCCESS);
}

static void go_on(const char *socket_path, const char *job)
{
	struct zerod_group_info info = ZEROD_INIT(info);

	join(socket_path, job);
	check(zerod_group_get(group, &info), "group_get");
	if (!shard.data || shard.true_numel == 0)
		return;
	printf("goes on after step %llu%s: version %llu, first element %g, last %g\n",
	       (unsigned long long)info.committed_step, info.torn ? ", torn" : "",
	       (unsigned long long)shard.version, (double)((float *)shard.data)[0],
	       (double)((float *)shard.data)[shard.true_numel - 1]);
	zerod_close(client);
	printf("to end it: zeroctl end-job %s\n", job);
}

int main(int argc, char **argv)
{
	const char *socket_path = argc > 1 ? argv[1] : NULL;
	char job[32];
	int status;

	(void)snprintf(job, sizeof(job), "commits-%d", (int)getpid());
	if (fork() == 0)
		train(socket_path, job);
	if (wait(&status) < 0 || status != 0)
		return EXIT_FAILURE;
	go_on(socket_path, job);
	return EXIT_SUCCESS;
}
