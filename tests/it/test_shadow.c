/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shadow.c - shadow groups over libzerod: what a trainer sees of the way back to the last commit.
 */
#include "tests/it/client_scene.h"

#include <pthread.h>

#include "tests/it/program.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/options.h"

#define NUMEL  512u
#define NRANKS 2

#define MAX_TRIES 100000

static struct zd_daemon daemon_;

struct rank {
	uint32_t rank;
	uint64_t step; /* to commit */
	int status;    /* of what it did last */
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;
	struct zerod_shard shard;
};

static void *join_and_register(void *arg)
{
	struct rank *rank = arg;
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options join = ZEROD_INIT(join);
	struct zerod_unit_options unit = ZEROD_INIT(unit);

	options.socket_path = daemon_.socket_path;
	options.deadline_ms = 20000;
	join.job = "shadow";
	join.world_size = NRANKS;
	join.rank = rank->rank;
	join.device = rank->rank;
	join.flags = ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW;
	unit.name = "w";
	unit.dtype = ZEROD_UINT8;
	unit.numel = NUMEL;
	rank->status = zerod_connect(&options, &rank->client);
	if (!rank->status)
		rank->status = zerod_group_join(rank->client, &join, &rank->group);
	/* The daemon may hear of us before it hears that our predecessor has gone. */
	for (int tries = 0; rank->status == ZEROD_E_EXISTS && tries < MAX_TRIES; tries++)
		rank->status = zerod_group_join(rank->client, &join, &rank->group);
	if (!rank->status)
		rank->status = zerod_unit_register(rank->group, &unit, &rank->unit);
	if (!rank->status)
		rank->status = zerod_shard_get(rank->unit, SIZED(&rank->shard));
	return NULL;
}

static void *commit(void *arg)
{
	struct rank *rank = arg;

	rank->status = zerod_commit(rank->group, rank->step, NULL);
	return NULL;
}

/* Runs fn() for all ranks at once, because each call waits for the others. */
static void together(struct rank *ranks, void *(*fn)(void *))
{
	pthread_t threads[NRANKS];

	for (int i = 0; i < NRANKS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, fn, &ranks[i]), 0);
	for (int i = 0; i < NRANKS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(ranks[i].status, ZEROD_OK);
	}
}

static void publish(struct rank *rank, uint8_t value)
{
	assert_status(rank->client, zerod_update_begin(&rank->unit, 1, NULL, NULL), ZEROD_OK);
	memset(rank->shard.data, value, rank->shard.true_numel);
	assert_status(rank->client, zerod_publish(&rank->unit, 1, NULL, 0, NULL, NULL), ZEROD_OK);
}

static void commit_all(struct rank *ranks, uint64_t step)
{
	for (int i = 0; i < NRANKS; i++)
		ranks[i].step = step;
	together(ranks, commit);
}

/* Two ranks whose shards are of `value` + rank at step 1. */
static void start(struct rank *ranks, uint8_t value)
{
	for (uint32_t i = 0; i < NRANKS; i++)
		ranks[i] = (struct rank){.rank = i};
	together(ranks, join_and_register);
	for (uint32_t i = 0; i < NRANKS; i++)
		publish(&ranks[i], (uint8_t)(value + i));
	commit_all(ranks, 1);
}

static void expect_gathered(struct rank *rank, uint8_t value)
{
	void *data;

	assert_status(rank->client, zerod_gather(rank->unit, NULL, NULL, &data), ZEROD_OK);
	for (unsigned i = 0; i < NUMEL; i++)
		assert_int_equal(((uint8_t *)data)[i], value + i / (NUMEL / NRANKS));
	assert_status(rank->client, zerod_release(rank->unit, NULL, 0, NULL, NULL), ZEROD_OK);
}

static void expect_info(struct rank *rank, uint64_t step)
{
	struct zerod_group_info info = ZEROD_INIT(info);

	assert_status(rank->client, zerod_group_get(rank->group, &info), ZEROD_OK);
	assert_int_equal(info.committed_step, step);
	assert_int_equal(info.torn, 0);
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static int setup(void **state);
static int teardown(void **state);
#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, teardown)

/* Rank 1 had published when rank 0 went: it is told so until it has reset its session. */
SETUP_TEST(test_a_rank_that_stays)
{
	struct rank ranks[NRANKS];
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *again;
	void *data;

	start(ranks, 30);
	publish(&ranks[1], 77);
	zerod_close(ranks[0].client);
	ranks[0] = (struct rank){.rank = 0};
	(void)join_and_register(&ranks[0]);
	assert_int_equal(ranks[0].status, ZEROD_OK);
	expect_info(&ranks[0], 1);
	assert_int_equal(zerod_gather(ranks[1].unit, NULL, NULL, &data), ZEROD_E_PEER_LOST);
	assert_int_equal(zerod_update_begin(&ranks[1].unit, 1, NULL, NULL), ZEROD_E_PEER_LOST);
	assert_non_null(strstr(zerod_last_error(ranks[1].client), "rank 1 is restored to step 1"));
	assert_status(ranks[1].client, zerod_session_reset(ranks[1].client, NULL), ZEROD_OK);
	for (unsigned i = 0; i < NUMEL / NRANKS; i++) /* at the same address, when the reset has returned */
		assert_int_equal(((uint8_t *)ranks[1].shard.data)[i], 31);
	options.name = "w";
	options.dtype = ZEROD_UINT8;
	options.numel = NUMEL;
	assert_status(ranks[1].client, zerod_unit_register(ranks[1].group, &options, &again), ZEROD_OK);
	assert_status(ranks[1].client, zerod_shard_get(ranks[1].unit, SIZED(&ranks[1].shard)), ZEROD_OK);
	assert_int_equal(ranks[1].shard.version, 1);
	for (int i = 0; i < NRANKS; i++)
		expect_gathered(&ranks[i], 30);
	for (int i = 0; i < NRANKS; i++)
		zerod_close(ranks[i].client);
}

SETUP_TEST(test_listing)
{
	const char *args[] = {"zeroctl", "--socket", daemon_.socket_path, "groups", "--json", NULL};
	struct rank ranks[NRANKS];
	struct program program;

	start(ranks, 50);
	program_start(&program, args, NULL);
	program_wait(&program);
	assert_int_equal(program.status, 0);
	assert_non_null(strstr(program.out_text, "\"shadow\": true"));
	assert_non_null(strstr(program.out_text, "\"committed_step\": 1"));
	program_free(&program);
	for (int i = 0; i < NRANKS; i++)
		zerod_close(ranks[i].client);
}

SETUP_TEST(test_bad_options)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options join = ZEROD_INIT(join);
	zerod_client *client;
	zerod_group *group;

	options.socket_path = daemon_.socket_path;
	assert_status(NULL, zerod_connect(&options, &client), ZEROD_OK);
	join.job = "plain";
	join.world_size = 1;
	join.flags = ZEROD_GROUP_SHADOW;
	assert_int_equal(zerod_group_join(client, &join, &group), ZEROD_E_INVALID);
	assert_non_null(strstr(zerod_last_error(client), "needs ZEROD_GROUP_DURABLE"));
	join.flags = 0;
	assert_status(client, zerod_group_join(client, &join, &group), ZEROD_OK);
	assert_int_equal(zerod_group_get(group, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_group_get(NULL, NULL), ZEROD_E_INVALID);
	zerod_close(client);
}

/* ---- main ---------------------------------------------------------------------------------------------- */

/* A daemon for each: what a durable job keeps would be the next one's. */
static int setup(void **state)
{
	(void)state;
	return zd_daemon_start(NULL, &daemon_);
}

static int teardown(void **state)
{
	(void)state;
	return zd_daemon_stop(&daemon_);
}
