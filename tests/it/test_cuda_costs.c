/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_costs.c - how many calls of the driver a gather and its release cost, and that many units at once
 * share all but their copies. Each call takes a trainer's CPU a microsecond or two, so their number is what a
 * change may not raise.
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
	unsigned count;
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
	options.world_size = 1;
	options.flags = t->flags;
	must(zerod_group_join(t->client, &options, &t->group));
	for (unsigned i = 0; i < t->count; i++) {
		struct zerod_unit_options unit = ZEROD_INIT(unit);
		char name[8] = {'u', (char)('a' + i)};

		unit.name = name;
		unit.dtype = ZEROD_FLOAT32;
		unit.numel = SCENE_NUMEL;
		must(zerod_unit_register(t->group, &unit, &t->units[i]));
	}
	must(zerod_update_begin(t->units, t->count, NULL, NULL));
	must(zerod_publish(t->units, t->count, NULL, 0, NULL, NULL));
	t->handle = scene_stream(0);
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

static int trainer_main(unsigned count, unsigned rounds, uint32_t flags)
{
	struct trainer t = {.count = count, .flags = flags};

	alarm(TRAINER_SECONDS);
	join(&t);
	for (unsigned i = 0; i < rounds; i++)
		do_round(&t);
	must(zerod_stream_synchronize(t.stream)); /* else the end may have to ask how the GPU is */
	zerod_stream_destroy(t.stream);
	zerod_close(t.client);
	return 0;
}

/* ---- Counting ------------------------------------------------------------------------------------------ */

struct calls {
	unsigned all, copies, orders, captures;
};

/* With a group of these flags. */
static void run_trainer(const char *socket_path, unsigned count, unsigned rounds, uint32_t flags,
                        const char *count_file)
{
	char units_text[16], rounds_text[16], flags_text[16];
	char *const args[] = {(char *)"case", (char *)TRAINER, units_text, rounds_text, flags_text, NULL};
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		(void)snprintf(units_text, sizeof(units_text), "%u", count);
		(void)snprintf(rounds_text, sizeof(rounds_text), "%u", rounds);
		(void)snprintf(flags_text, sizeof(flags_text), "%u", flags);
		(void)setenv("ZEROD_SOCKET", socket_path, 1);
		(void)setenv("ZD_DOUBLE_COUNT", count_file, 1);
		(void)execv("/proc/self/exe", args);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* Whether the daemon's fences have passed already decides which of three calls orders the stream, not how
 * many. */
static bool orders_stream(const char *function)
{
	return strcmp(function, "cuStreamBatchMemOp") == 0 || strcmp(function, "cuStreamWaitValue64") == 0 ||
	       strcmp(function, "cuStreamWriteValue64") == 0;
}

static struct calls count_calls(const char *socket_path, unsigned count, unsigned rounds, uint32_t flags)
{
	char path[] = "/tmp/zd-count-XXXXXX", line[128], function[64];
	struct calls calls = {0};
	int fd = mkstemp(path);
	FILE *file;

	assert_true(fd >= 0);
	(void)close(fd);
	run_trainer(socket_path, count, rounds, flags, path);
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
		else if (orders_stream(function))
			calls.orders += n;
	}
	(void)fclose(file);
	(void)unlink(path);
	return calls;
}

/* Of ROUNDS rounds of `count` units. */
static struct calls cost(unsigned count, uint32_t flags)
{
	const char *const args[] = {"--backend", "cuda", NULL};
	struct zd_daemon_options options = {.args = args};
	struct zd_daemon daemon;
	struct calls some, more;

	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	some = count_calls(daemon.socket_path, count, ROUNDS, flags);
	more = count_calls(daemon.socket_path, count, 2 * ROUNDS, flags);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
	return (struct calls){more.all - some.all, more.copies - some.copies, more.orders - some.orders,
	                      more.captures - some.captures};
}

/* A rank that is alone gathers copies in such a group only. */
#define COPIES (ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW)

/* Beside what is named: entering the context and leaving it, once for the wait and once for the release. */
static void expect_cost(unsigned count)
{
	struct calls calls = cost(count, COPIES);

	assert_int_equal(calls.copies, ROUNDS * count);
	assert_int_equal(calls.orders, ROUNDS * 2);
	assert_int_equal(calls.captures, ROUNDS * 2);
	assert_int_equal(calls.all, ROUNDS * (count + 2 + 2 + 2 * 3));
}

static void test_one_unit(void **state)
{
	(void)state;
	expect_cost(1);
}

static void test_many_units(void **state)
{
	(void)state;
	expect_cost(MANY);
}

/* Waits are only enqueued for what has not passed yet, so their number is not known. */
static void test_many_units_of_several_gpus(void **state)
{
	struct calls calls = cost(MANY, COPIES);

	(void)state;
	assert_int_equal(calls.copies, 0);
	assert_int_equal(calls.captures, ROUNDS * 2);
}

/* The gathered buffer is the shard: what is left is the fence of each release. */
static void test_a_rank_that_is_alone(void **state)
{
	struct calls calls = cost(MANY, 0);

	(void)state;
	assert_int_equal(calls.copies, 0);
	assert_int_equal(calls.orders, ROUNDS);
}

/* On one GPU the client copies its own slices, on several the daemon does. */
int main(int argc, char **argv)
{
	struct a_case cases[] = {
	        CASE(test_one_unit, "ZD_DOUBLE_DEVICES=1"),
	        CASE(test_many_units, "ZD_DOUBLE_DEVICES=1"),
	        CASE(test_many_units_of_several_gpus, "ZD_DOUBLE_DEVICES=2"),
	        CASE(test_a_rank_that_is_alone, "ZD_DOUBLE_DEVICES=1"),
	};

	if (argc == 5 && strcmp(argv[1], TRAINER) == 0)
		return trainer_main((unsigned)strtoul(argv[2], NULL, 10),
		                    (unsigned)strtoul(argv[3], NULL, 10),
		                    (uint32_t)strtoul(argv[4], NULL, 10));
	return scene_main(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
