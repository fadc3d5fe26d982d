/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_costs.c - how many calls of the driver a gather and its release cost, which many units share.
 * Each call takes a trainer's CPU a microsecond or two, so their number is what a change may not raise.
 *
 * The driver's double counts what a process calls. One of N rounds and one of 2 N differ by the calls of N
 * rounds.
 */
#include "cuda_scene.h"

#include <zerod_cuda.h>

#include "tests/support/daemon_fixture.h"

#define TRAINER         "trainer"
#define TRAINER_SECONDS 30
#define ROUNDS          10u
#define MANY            16u

/* ---- The trainer, in a process of its own -------------------------------------------------------------- */

struct trainer {
	zerod_client *client;
	zerod_group *group;
	zerod_stream *stream;
	struct CUstream_st *handle;
	zerod_unit *units[MANY];
	unsigned count, rank, world;
	uint32_t flags; /* of its group */
};

static void must(int status)
{
	if (status)
		_exit(2);
}

static void join(struct trainer *t)
{
	struct zerod_group_options options = ZEROD_INIT(options);

	must(zerod_connect(NULL, &t->client));
	options.job = "costs";
	options.world_size = t->world;
	options.rank = options.device = t->rank;
	options.flags = t->flags;
	must(zerod_group_join(t->client, &options, &t->group));
	for (unsigned i = 0; i < t->count; i++) {
		struct zerod_unit_options unit = ZEROD_INIT(unit);
		char name[8] = {'u', (char)('a' + i)};

		unit.name = name;
		unit.dtype = ZEROD_FLOAT32;
		unit.numel = t->world > 1 ? SCENE_IN_PLACE_NUMEL : SCENE_NUMEL;
		must(zerod_unit_register(t->group, &unit, &t->units[i]));
	}
	must(zerod_update_begin(t->units, t->count, NULL, NULL));
	must(zerod_publish(t->units, t->count, NULL, 0, NULL, NULL));
	t->handle = scene_stream((int)t->rank);
	must(zerod_cuda_stream_wrap(t->client, t->handle, &t->stream));
}

static void do_round(struct trainer *t)
{
	zerod_ticket tickets[MANY];

	for (unsigned i = 0; i < t->count; i++)
		must(zerod_gather_begin(t->units[i], NULL, &tickets[i]));
	must(zerod_wait_many(t->client, tickets, t->count, t->stream, NULL));
	must(zerod_release_many(t->units, t->count, &t->stream, 1, NULL, NULL));
}

/* The others are there until rank 0 has done its rounds. */
static int trainer_main(unsigned count, unsigned rounds, uint32_t flags, unsigned rank, unsigned world)
{
	struct trainer t = {.count = count, .flags = flags, .rank = rank, .world = world};

	alarm(TRAINER_SECONDS);
	join(&t);
	for (unsigned i = 0; i < rounds && rank == 0; i++)
		do_round(&t);
	must(zerod_group_barrier(t.group, NULL, NULL));
	must(zerod_stream_synchronize(t.stream)); /* else the end may have to ask how the GPU is */
	zerod_stream_destroy(t.stream);
	zerod_close(t.client);
	return 0;
}

/* ---- Counting ------------------------------------------------------------------------------------------ */

struct calls {
	unsigned all, copies, orders, captures, maps;
};

struct job {
	unsigned count, world; /* of units, of ranks */
	uint32_t flags;        /* of the group */
};

/* Counts if there is a file. */
static pid_t start_rank(const struct job *job, unsigned rank, unsigned rounds, const char *socket_path,
                        const char *count_file)
{
	const unsigned numbers[] = {job->count, rounds, job->flags, rank, job->world};
	char texts[5][16];
	char *const args[] = {(char *)"case", (char *)TRAINER, texts[0], texts[1],
	                      texts[2],       texts[3],        texts[4], NULL};
	pid_t pid = fork();

	if (pid != 0)
		return pid;
	for (unsigned i = 0; i < 5; i++)
		(void)snprintf(texts[i], sizeof(texts[i]), "%u", numbers[i]);
	(void)setenv("ZEROD_SOCKET", socket_path, 1);
	if (count_file)
		(void)setenv("ZD_DOUBLE_COUNT", count_file, 1);
	(void)execv("/proc/self/exe", args);
	_exit(127);
}

static void run_job(const struct job *job, const char *socket_path, unsigned rounds, const char *count_file)
{
	pid_t pids[2];
	int status = 0;

	for (unsigned rank = 0; rank < job->world; rank++)
		pids[rank] = start_rank(job, rank, rounds, socket_path, rank == 0 ? count_file : NULL);
	for (unsigned rank = 0; rank < job->world; rank++) {
		assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
		assert_int_equal(status, 0);
	}
}

/* Whether the daemon's fences have passed already decides which of three calls orders the stream, not how
 * many. */
static bool orders_stream(const char *function)
{
	return strcmp(function, "cuStreamBatchMemOp") == 0 || strcmp(function, "cuStreamWaitValue64") == 0 ||
	       strcmp(function, "cuStreamWriteValue64") == 0;
}

static struct calls count_calls(const struct job *job, const char *socket_path, unsigned rounds)
{
	char path[] = "/tmp/zd-count-XXXXXX", line[128], function[64];
	struct calls calls = {0};
	int fd = mkstemp(path);
	FILE *file;

	assert_true(fd >= 0);
	(void)close(fd);
	run_job(job, socket_path, rounds, path);
	file = fopen(path, "re");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		unsigned n = 0;

		assert_int_equal(sscanf(line, "case %63s %u", function, &n), 2);
		if (strcmp(function, "all") == 0)
			calls.all = n;
		else if (strcmp(function, "cuMemcpyAsync") == 0)
			calls.copies = n;
		else if (strcmp(function, "cuStreamIsCapturing") == 0)
			calls.captures = n;
		else if (strcmp(function, "cuMemMap") == 0 || strcmp(function, "cuMemUnmap") == 0)
			calls.maps += n;
		else if (orders_stream(function))
			calls.orders += n;
	}
	(void)fclose(file);
	(void)unlink(path);
	return calls;
}

/* Of ROUNDS rounds. */
static struct calls cost(const struct job *job)
{
	const char *const args[] = {"--backend", "cuda", NULL};
	struct zd_daemon_options options = {.args = args};
	struct zd_daemon daemon;
	struct calls some, more;

	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	some = count_calls(job, daemon.socket_path, ROUNDS);
	more = count_calls(job, daemon.socket_path, 2 * ROUNDS);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
	return (struct calls){more.all - some.all, more.copies - some.copies, more.orders - some.orders,
	                      more.captures - some.captures, more.maps - some.maps};
}

/* A rank that is alone gathers copies in such a group only. Waits are only enqueued for what has not
 * passed yet, so their number is not known. */
CASE_TEST(test_copies, "ZD_DOUBLE_DEVICES=1")
{
	const struct job job = {.count = MANY, .world = 1, .flags = ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW};
	struct calls calls = cost(&job);

	assert_int_equal(calls.copies, 0);
	assert_int_equal(calls.captures, ROUNDS * 2);
}
CASE_AGAIN(test_copies, 2, .env = {"ZD_DOUBLE_DEVICES=2"})

/* The gathered buffer is the shard: what is left is the fence of each release. */
CASE_TEST(test_a_rank_that_is_alone, "ZD_DOUBLE_DEVICES=1")
{
	const struct job job = {.count = MANY, .world = 1};
	struct calls calls = cost(&job);

	assert_int_equal(calls.copies, 0);
	assert_int_equal(calls.orders, ROUNDS);
}

/* A unit in frames that it has been in before is mapped there. */
CASE_TEST(test_in_place, "ZD_DOUBLE_DEVICES=2")
{
	const struct job job = {.count = 3, .world = 2};
	struct calls calls = cost(&job);

	assert_int_equal(calls.maps, 0);
	assert_int_equal(calls.copies, 0);
	assert_int_equal(calls.captures, ROUNDS * 2);
}

int main(int argc, char **argv)
{
	unsigned numbers[5];

	if (argc != 7 || strcmp(argv[1], TRAINER) != 0)
		return scene_main(argc, argv);
	for (int i = 0; i < 5; i++)
		numbers[i] = (unsigned)strtoul(argv[2 + i], NULL, 10);
	return trainer_main(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]);
}
