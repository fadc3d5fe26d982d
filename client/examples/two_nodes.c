/* SPDX-License-Identifier: Apache-2.0 */
/*
 * two_nodes - a group whose ranks are in several daemons: each rank publishes its shards, gathers two layers,
 * checks every number of them, and reduces their gradients, three steps long.
 *
 * It is one rank of a job if torchrun --no-python, srun or mpirun starts it with these in the environment:
 *
 *     RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
 *     UNIQUE_ID_FILE    a path that all nodes see: rank 0 writes the group's id there. It must be new for
 *                       each job, because an aborted job can have left its file
 *     ZEROD_SOCKET      the node's daemon, if it is not the default one
 *     COLLECTIVES=nccl  NCCL also inside the nodes
 *
 * Without RANK it starts a whole job itself, on one host: LOCAL_WORLD_SIZE ranks (1) for each daemon in its
 * arguments.
 *
 *     (umask 077; head -c 32 /dev/urandom >/tmp/key)
 *     zerod --backend cuda --key-file /tmp/key --gpus 0 --socket /tmp/a.sock &
 *     zerod --backend cuda --key-file /tmp/key --gpus 1 --socket /tmp/b.sock &
 *     two_nodes /tmp/a.sock /tmp/b.sock
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <zerod.h>
#include <zerod_cuda.h>

#include "gpu.h"

#define LAYERS     2
#define NUMEL      100003 /* not divisible by any number of ranks: the last shards are shorter */
#define STEPS      3
#define PATIENCE   60 /* seconds of waiting for rank 0's file */
#define JOB_TEXT   64
#define MOST_RANKS 64

/* ---- What the launcher says ---------------------------------------------------------------------------- */

static uint32_t number_of(const char *name, const char *otherwise)
{
	const char *text = getenv(name) ? getenv(name) : otherwise;
	char *end;
	unsigned long number = text ? strtoul(text, &end, 10) : 0;
	if (!text || *end || end == text || number > UINT16_MAX) {
		fprintf(stderr, "two_nodes: %s is '%s', expected a number\n", name, text ? text : "");
		exit(EXIT_FAILURE);
	}
	return (uint32_t)number;
}

static void fail(const char *what, const char *path)
{
	fprintf(stderr, "two_nodes: %s %s: %s\n", what, path, strerror(errno));
	exit(EXIT_FAILURE);
}

/* ---- The id, from rank 0 to all others ----------------------------------------------------------------- */

/* Writes the file under another name until it is complete. An existing file is another job's, with used
 * ids. */
static void leave_id(const char *path, const struct zerod_unique_id *id)
{
	char begun[PATH_MAX];
	FILE *file;
	snprintf(begun, sizeof(begun), "%s.begun", path);
	file = fopen(begun, "wx");
	if (!file || fwrite(id, sizeof(*id), 1, file) != 1 || fclose(file) || link(begun, path))
		fail("writing", path);
	(void)unlink(begun);
}

static void find_id(const char *path, struct zerod_unique_id *id)
{
	const struct timespec pause = {.tv_nsec = 10000000};
	time_t until = time(NULL) + PATIENCE;
	FILE *file;
	while (!(file = fopen(path, "r")) && errno == ENOENT && time(NULL) < until)
		(void)nanosleep(&pause, NULL);
	if (!file || fread(id, sizeof(*id), 1, file) != 1)
		fail("reading", path);
	(void)fclose(file);
}

/* ---- A rank -------------------------------------------------------------------------------------------- */

struct trainer {
	zerod_client *client;
	zerod_group *group;
	uint32_t rank, world_size;
	zerod_unit *layers[LAYERS];
	zerod_bucket *bucket;
	void *cuda_stream;
	zerod_stream *stream;
	float values[NUMEL];
};

static void join(struct trainer *t, const char *job)
{
	struct zerod_group_options place = ZEROD_INIT(place);
	const char *collectives = getenv("COLLECTIVES"), *path = getenv("UNIQUE_ID_FILE");
	uint32_t local_rank = number_of("LOCAL_RANK", NULL);
	struct zerod_unique_id id;

	place.job = job;
	place.rank = t->rank;
	place.world_size = t->world_size;
	place.local_world_size = number_of("LOCAL_WORLD_SIZE", NULL);
	place.device = take_gpu(t->client, local_rank);
	if (collectives && strcmp(collectives, "nccl") == 0)
		place.collectives = ZEROD_COLLECTIVES_NCCL;
	if (place.local_world_size < place.world_size) {
		if (!path) {
			fprintf(stderr, "two_nodes: UNIQUE_ID_FILE is not set\n");
			exit(EXIT_FAILURE);
		}
		if (t->rank == 0) {
			check(t->client, zerod_group_unique_id(t->client, &place, NULL, &id), "unique_id");
			leave_id(path, &id);
		} else {
			find_id(path, &id);
		}
		place.unique_id = &id;
	}
	check(t->client, zerod_group_join(t->client, &place, &t->group), "join");
	if (t->rank == 0 && path)
		(void)unlink(path); /* all have joined, and have therefore read it */
}

static void set_up(struct trainer *t)
{
	struct zerod_bucket_options bucket = ZEROD_INIT(bucket);

	must(cuStreamCreateWithPriority(&t->cuda_stream, 1, 0),
	     "cuStreamCreateWithPriority"); /* non-blocking */
	check(t->client, zerod_cuda_stream_wrap(t->client, t->cuda_stream, &t->stream), "wrap");
	for (int l = 0; l < LAYERS; l++) {
		struct zerod_unit_options layer = ZEROD_INIT(layer);
		char name[16];
		snprintf(name, sizeof(name), "layer%d", l);
		layer.name = name;
		layer.dtype = ZEROD_FLOAT32;
		layer.numel = NUMEL;
		check(t->client, zerod_unit_register(t->group, &layer, &t->layers[l]), "register");
	}
	bucket.dtype = ZEROD_FLOAT32;
	check(t->client, zerod_bucket_create(t->group, &bucket, &t->bucket), "bucket_create");
}

/* Small whole numbers, so that every sum of them is exact. */
static float weight(int step, int layer, uint64_t i)
{
	return (float)((i * 7 + (uint64_t)layer * 31 + (uint64_t)step) % 4093);
}

static float gradient(int layer, uint64_t i)
{
	return (float)((i + (uint64_t)layer) % 61);
}

static void publish(struct trainer *t, int step)
{
	check(t->client, zerod_update_begin(t->layers, LAYERS, NULL, NULL), "update_begin");
	for (int l = 0; l < LAYERS; l++) {
		struct zerod_shard shard = ZEROD_INIT(shard);
		check(t->client, zerod_shard_get(t->layers[l], &shard), "shard");
		for (uint64_t i = 0; i < shard.true_numel; i++)
			t->values[i] = weight(step, l, shard.offset_numel + i);
		must(cuMemcpyHtoDAsync(shard.data, t->values, shard.true_numel * sizeof(float),
		                       t->cuda_stream),
		     "copy");
		check(t->client, zerod_stream_synchronize(t->stream),
		      "synchronize"); /* `values` can be written again */
	}
	check(t->client, zerod_publish(t->layers, LAYERS, &t->stream, 1, NULL, NULL), "publish");
}

/* All ranks must gather the layers in the same order. Returns the number of correct elements. */
static uint64_t forward(struct trainer *t, int step)
{
	uint64_t right = 0;
	for (int l = 0; l < LAYERS; l++) {
		void *whole;
		check(t->client, zerod_gather(t->layers[l], NULL, t->stream, &whole), "gather");
		must(cuMemcpyDtoHAsync(t->values, whole, sizeof(t->values), t->cuda_stream), "copy");
		check(t->client, zerod_release(t->layers[l], &t->stream, 1, NULL, NULL), "release");
		check(t->client, zerod_stream_synchronize(t->stream), "synchronize");
		for (uint64_t i = 0; i < NUMEL; i++)
			right += t->values[i] == weight(step, l, i);
	}
	return right;
}

/* Every rank's gradient is (rank + 1) times the same numbers. */
static void backward(struct trainer *t)
{
	struct zerod_backward_options options = ZEROD_INIT(options);
	options.boundary = 1;
	check(t->client, zerod_backward_begin(t->group, &options), "backward_begin");
	for (int l = LAYERS - 1; l >= 0; l--) {
		struct zerod_entry entry = ZEROD_INIT(entry);
		check(t->client, zerod_bucket_reserve(t->bucket, t->layers[l], NULL, &entry),
		      "bucket_reserve");
		for (uint64_t i = 0; i < NUMEL; i++)
			t->values[i] = gradient(l, i) * (float)(t->rank + 1);
		must(cuMemcpyHtoDAsync(entry.data, t->values, sizeof(t->values), t->cuda_stream), "copy");
		check(t->client, zerod_bucket_submit(t->bucket, entry.id, &t->stream, 1, NULL, NULL),
		      "bucket_submit");
		check(t->client, zerod_stream_synchronize(t->stream), "synchronize");
	}
	check(t->client, zerod_backward_end(t->group, NULL, NULL), "backward_end");
}

/* Checks this rank's slices of the sums across all ranks of all nodes, and the norm, which all ranks
 * share. */
static uint64_t step_sums(struct trainer *t)
{
	float ranks = (float)t->world_size * (float)(t->world_size + 1) / 2; /* 1 + 2 + ... */
	struct zerod_step_info info = ZEROD_INIT(info);
	double norm_squared = 0;
	uint64_t right = 0;

	check(t->client, zerod_step_begin(t->group, NULL, &info, NULL), "step_begin");
	for (int l = 0; l < LAYERS; l++) {
		struct zerod_shard shard = ZEROD_INIT(shard);
		struct zerod_target target = ZEROD_INIT(target);
		check(t->client, zerod_shard_get(t->layers[l], &shard), "shard");
		check(t->client, zerod_target_get(t->layers[l], &target), "target");
		must(cuMemcpyDtoHAsync(t->values, target.data, target.true_numel * sizeof(float),
		                       t->cuda_stream),
		     "copy");
		check(t->client, zerod_stream_synchronize(t->stream), "synchronize");
		for (uint64_t i = 0; i < target.true_numel; i++)
			right += t->values[i] == gradient(l, shard.offset_numel + i) * ranks;
		right += NUMEL - target.true_numel; /* the other ranks' */
		for (uint64_t i = 0; i < NUMEL; i++)
			norm_squared += pow((double)(gradient(l, i) * ranks), 2);
	}
	if (info.overflow || fabs(info.norm_squared / norm_squared - 1) > 1e-9) {
		fprintf(stderr, "two_nodes: rank %u: norm squared %g, expected %g\n", t->rank,
		        info.norm_squared, norm_squared);
		exit(EXIT_FAILURE);
	}
	check(t->client, zerod_step_end(t->group, &t->stream, 1, NULL), "step_end");
	return right;
}

static int run_rank(void)
{
	static struct trainer t;
	uint64_t weights = 0, sums = 0;
	const char *path = getenv("UNIQUE_ID_FILE");
	char job[JOB_TEXT];

	/* The name comes from the file's, so that two jobs on the same daemons differ. */
	snprintf(job, sizeof(job), "two-nodes-%.40s",
	         path && strrchr(path, '/') ? strrchr(path, '/') + 1 : "");
	load_driver();
	t.rank = number_of("RANK", NULL);
	t.world_size = number_of("WORLD_SIZE", NULL);
	check(NULL, zerod_connect(NULL, &t.client), "connect");
	join(&t, job);
	set_up(&t);
	for (int step = 1; step <= STEPS; step++) {
		publish(&t, step);
		weights += forward(&t, step);
		backward(&t);
		sums += step_sums(&t);
		check(t.client, zerod_commit(t.group, (uint64_t)step, NULL), "commit");
	}
	printf("rank %u of %u: %llu of %d weights and %llu of %d sums are right\n", t.rank, t.world_size,
	       (unsigned long long)weights, STEPS * LAYERS * NUMEL, (unsigned long long)sums,
	       STEPS * LAYERS * NUMEL);
	zerod_stream_destroy(t.stream);
	zerod_close(t.client);
	return weights + sums == 2ull * STEPS * LAYERS * NUMEL ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- A launcher for one host --------------------------------------------------------------------------- */

static void set_number(const char *name, uint32_t number)
{
	char text[16];
	snprintf(text, sizeof(text), "%u", number);
	setenv(name, text, 1);
}

/* When one fails, the others would wait for it for ever. */
static int wait_for_all(pid_t *ranks, uint32_t count)
{
	int status, failed = 0;
	for (pid_t ended = wait(&status); ended > 0; ended = wait(&status)) {
		for (uint32_t r = 0; r < count; r++) {
			if (ranks[r] == ended)
				ranks[r] = 0;
			else if (status && !failed && ranks[r])
				(void)kill(ranks[r], SIGTERM);
		}
		failed |= status;
	}
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Starts all ranks, or none continues. */
static int start_all(pid_t *ranks, char *const *sockets, uint32_t nodes, uint32_t each)
{
	for (uint32_t rank = 0; rank < nodes * each; rank++) {
		set_number("RANK", rank);
		set_number("LOCAL_RANK", rank % each);
		setenv("ZEROD_SOCKET", sockets[rank / each], 1);
		ranks[rank] = fork();
		if (ranks[rank] == 0) /* before CUDA, which a forked child could not use */
			exit(run_rank());
		if (ranks[rank] > 0)
			continue;
		fprintf(stderr, "two_nodes: starting a rank for %s: %s\n", sockets[rank / each],
		        strerror(errno));
		for (uint32_t r = 0; r < rank; r++)
			(void)kill(ranks[r], SIGTERM);
		(void)wait_for_all(ranks, rank);
		return EXIT_FAILURE;
	}
	return wait_for_all(ranks, nodes * each);
}

static int launch(char *const *sockets, uint32_t nodes)
{
	uint32_t each = number_of("LOCAL_WORLD_SIZE", "1");
	char folder[] = "/tmp/two-nodes-XXXXXX", path[64];
	pid_t ranks[MOST_RANKS];
	int failed;

	if (nodes * each > MOST_RANKS) {
		fprintf(stderr, "two_nodes: more than %d ranks\n", MOST_RANKS);
		return EXIT_FAILURE;
	}
	if (!mkdtemp(folder))
		fail("making", folder);
	snprintf(path, sizeof(path), "%s/id-%d", folder, (int)getpid());
	setenv("UNIQUE_ID_FILE", path, 1);
	set_number("WORLD_SIZE", nodes * each);
	set_number("LOCAL_WORLD_SIZE", each);
	failed = start_all(ranks, sockets, nodes, each);
	(void)unlink(path);
	(void)rmdir(folder);
	return failed;
}

int main(int argc, char **argv)
{
	if (getenv("RANK"))
		return run_rank();
	if (argc < 2) {
		fprintf(stderr, "usage: two_nodes SOCKET..., or with RANK and the like in the environment\n");
		return 2;
	}
	return launch(argv + 1, (uint32_t)argc - 1);
}
