/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_daemon.c - the library against the real daemon: two ranks, each a client and a thread of this
 * process.
 *
 * A rank's function returns 0 or the line that failed; cmocka's assertions stay in the test's own thread.
 */
#include <pthread.h>
#include <stdio.h>

#include <zerod.h>
#include <zerod_host.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/test.h"

#define WORLD 2
#define NUMEL 1000 /* not a multiple of anything: the last shard is partly padding */

struct rank {
	const char *socket_path;
	uint32_t number;
	int (*body)(struct rank *rank);
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;
	int failed_line;
};

/* In a rank's function. */
#define expect(cond)                                                                                         \
	do {                                                                                                 \
		if (!(cond)) {                                                                               \
			fprintf(stderr, "rank %u: line %d: %s: %s\n", rank->number, __LINE__, #cond,         \
			        zerod_last_error(rank->client));                                             \
			return __LINE__;                                                                     \
		}                                                                                            \
	} while (0)

static int join(struct rank *rank)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group = ZEROD_INIT(group);
	struct zerod_unit_options unit = ZEROD_INIT(unit);

	options.socket_path = rank->socket_path;
	options.deadline_ms = 30000;
	expect(zerod_connect(&options, &rank->client) == ZEROD_OK);
	group.job = "job";
	group.world_size = WORLD;
	group.rank = rank->number;
	group.device = rank->number;
	expect(zerod_group_join(rank->client, &group, &rank->group) == ZEROD_OK);
	unit.name = "w";
	unit.dtype = ZEROD_FLOAT32;
	unit.numel = NUMEL;
	expect(zerod_unit_register(rank->group, &unit, &rank->unit) == ZEROD_OK);
	return 0;
}

static void *run_rank(void *arg)
{
	struct rank *rank = arg;

	rank->failed_line = join(rank);
	if (!rank->failed_line)
		rank->failed_line = rank->body(rank);
	zerod_close(rank->client);
	return NULL;
}

static void run_ranks(int (*body)(struct rank *rank))
{
	struct rank ranks[WORLD];
	pthread_t threads[WORLD];
	struct zd_daemon daemon;

	assert_int_equal(zd_daemon_start(NULL, &daemon), 0);
	for (uint32_t i = 0; i < WORLD; i++) {
		ranks[i] = (struct rank){.socket_path = daemon.socket_path, .number = i, .body = body};
		assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
	}
	for (uint32_t i = 0; i < WORLD; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
	for (uint32_t i = 0; i < WORLD; i++)
		assert_int_equal(ranks[i].failed_line, 0);
}

/* Writes version `version` of this rank's shard: element i of the unit is i + version / 10. */
static int publish(struct rank *rank, unsigned version)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	float *data;

	expect(zerod_update_begin(&rank->unit, 1, NULL, NULL) == ZEROD_OK);
	expect(zerod_shard_get(rank->unit, &shard) == ZEROD_OK);
	data = shard.data;
	for (uint64_t i = 0; i < shard.true_numel; i++)
		data[i] = (float)(shard.offset_numel + i) + (float)version / 10;
	expect(zerod_publish(&rank->unit, 1, NULL, 0, NULL, NULL) == ZEROD_OK);
	expect(zerod_shard_get(rank->unit, &shard) == ZEROD_OK);
	expect(shard.version == version);
	return 0;
}

static bool holds_version(const float *data, unsigned version)
{
	for (unsigned i = 0; i < NUMEL; i++)
		if (data[i] != (float)i + (float)version / 10)
			return false;
	return true;
}

/* ---- Gather -------------------------------------------------------------------------------------------- */

#define STEPS 10

static int gather_steps(struct rank *rank)
{
	for (unsigned step = 1; step <= STEPS; step++) {
		zerod_ticket ticket;
		void *data = NULL;
		int rc = publish(rank, step);

		if (rc)
			return rc;
		expect(zerod_gather_begin(rank->unit, NULL, &ticket) == ZEROD_OK);
		expect(zerod_wait(rank->client, ticket, NULL, &data) == ZEROD_OK);
		expect(holds_version(data, step));
		expect(zerod_release(rank->unit, NULL, 0, NULL, NULL) == ZEROD_OK);
		expect(zerod_wait(rank->client, ticket, NULL, NULL) == ZEROD_E_STALE);
		expect(zerod_release(rank->unit, NULL, 0, NULL, NULL) == ZEROD_E_NOT_HELD);
		expect(zerod_commit(rank->group, step, NULL) == ZEROD_OK);
	}
	return 0;
}

TEST(test_gather_steps)
{
	run_ranks(gather_steps);
}

struct check {
	const float *data;
	unsigned version;
	unsigned wrong;
};

static void check_version(void *arg)
{
	struct check *check = arg;

	check->wrong += !holds_version(check->data, check->version);
}

/* Everything of a step is appended before any of it need have happened; publish waits for nobody here but the
 * leases. */
static int gather_on_streams(struct rank *rank)
{
	struct check checks[STEPS + 1] = {{0}};
	zerod_stream *streams[2];

	for (int i = 0; i < 2; i++)
		expect(zerod_host_stream_create(rank->client, &streams[i]) == ZEROD_OK);
	for (unsigned step = 1; step <= STEPS; step++) {
		zerod_ticket ticket;
		int rc = publish(rank, step);
		void *data = NULL;

		if (rc)
			return rc;
		expect(zerod_gather_begin(rank->unit, NULL, &ticket) == ZEROD_OK);
		for (int i = 0; i < 2; i++)
			expect(zerod_wait(rank->client, ticket, streams[i], &data) == ZEROD_OK);
		checks[step] = (struct check){.data = data, .version = step};
		expect(zerod_host_stream_launch(streams[step % 2], check_version, &checks[step]) == ZEROD_OK);
		expect(zerod_release(rank->unit, streams, 2, NULL, NULL) == ZEROD_OK);
		expect(zerod_commit(rank->group, step, NULL) == ZEROD_OK);
	}
	for (int i = 0; i < 2; i++)
		expect(zerod_stream_synchronize(streams[i]) == ZEROD_OK);
	for (unsigned step = 1; step <= STEPS; step++)
		expect(checks[step].wrong == 0);
	return 0;
}

TEST(test_gather_on_streams)
{
	run_ranks(gather_on_streams);
}

/* ---- Reduce -------------------------------------------------------------------------------------------- */

struct producer {
	float *data;
	uint32_t rank;
};

static void produce(void *arg)
{
	struct producer *producer = arg;

	for (unsigned i = 0; i < NUMEL; i++)
		producer->data[i] = (float)(i % 7) * (float)(producer->rank + 1);
}

static int reduce_steps(struct rank *rank)
{
	struct zerod_bucket_options options = ZEROD_INIT(options);
	struct zerod_backward_options backward = ZEROD_INIT(backward);
	zerod_bucket *bucket;
	zerod_stream *stream;

	options.dtype = ZEROD_FLOAT32;
	options.slot_bytes = 65536;
	backward.boundary = 1;
	expect(zerod_bucket_create(rank->group, &options, &bucket) == ZEROD_OK);
	expect(zerod_host_stream_create(rank->client, &stream) == ZEROD_OK);
	for (unsigned step = 1; step <= STEPS; step++) {
		struct zerod_step_info info = ZEROD_INIT(info);
		struct zerod_target target = ZEROD_INIT(target);
		struct zerod_shard shard = ZEROD_INIT(shard);
		struct zerod_entry entry = ZEROD_INIT(entry);
		struct producer producer;

		expect(zerod_backward_begin(rank->group, &backward) == ZEROD_OK);
		expect(zerod_bucket_reserve(bucket, rank->unit, NULL, &entry) == ZEROD_OK);
		expect(entry.padded_numel >= NUMEL);
		producer = (struct producer){entry.data, rank->number};
		expect(zerod_host_stream_launch(stream, produce, &producer) == ZEROD_OK);
		expect(zerod_bucket_submit(bucket, entry.id, &stream, 1, NULL, NULL) == ZEROD_OK);
		expect(zerod_backward_end(rank->group, NULL, NULL) == ZEROD_OK);
		expect(zerod_target_get(rank->unit, &target) == ZEROD_E_STATE);
		expect(zerod_step_begin(rank->group, NULL, &info, NULL) == ZEROD_OK);
		expect(info.step == step && !info.overflow && info.norm_squared > 0);
		expect(zerod_target_get(rank->unit, &target) == ZEROD_OK);
		expect(zerod_shard_get(rank->unit, &shard) == ZEROD_OK);
		for (uint64_t i = 0; i < target.true_numel; i++)
			expect(((float *)target.data)[i] == (float)((shard.offset_numel + i) % 7) * 3);
		expect(zerod_step_end(rank->group, &stream, 1, NULL) == ZEROD_OK);
		expect(zerod_target_get(rank->unit, &target) == ZEROD_E_STATE);
	}
	expect(zerod_bucket_destroy(bucket) == ZEROD_OK);
	return 0;
}

TEST(test_reduce_steps)
{
	run_ranks(reduce_steps);
}

/* ---- Handles ------------------------------------------------------------------------------------------- */

static int second_handle(struct rank *rank)
{
	struct zerod_view view = {.struct_size = sizeof(view), .name = "view", .ndim = 2, .shape = {10, 100}};
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct zerod_shard first = ZEROD_INIT(first), second = ZEROD_INIT(second);
	zerod_unit *again, *other;

	options.name = "w";
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	expect(zerod_unit_register(rank->group, &options, &again) == ZEROD_OK);
	expect(zerod_shard_get(rank->unit, &first) == ZEROD_OK);
	expect(zerod_shard_get(again, &second) == ZEROD_OK);
	expect(first.data == second.data);
	/* A lease is of the unit, whichever handle it was taken by. */
	expect(publish(rank, 1) == 0);
	expect(zerod_gather(again, NULL, NULL, NULL) == ZEROD_OK);
	expect(zerod_unit_unregister(again, NULL) == ZEROD_OK);
	expect(zerod_unit_unregister(rank->unit, NULL) == ZEROD_E_BUSY);
	expect(zerod_release(rank->unit, NULL, 0, NULL, NULL) == ZEROD_OK);
	options.numel = NUMEL + 1;
	expect(zerod_unit_register(rank->group, &options, &other) == ZEROD_E_MISMATCH);
	options.name = "viewed";
	options.numel = NUMEL;
	options.nviews = 1;
	options.views = &view;
	expect(zerod_unit_register(rank->group, &options, &other) == ZEROD_OK);
	expect(zerod_unit_unregister(other, NULL) == ZEROD_OK);
	expect(zerod_commit(rank->group, 1, NULL) ==
	       ZEROD_OK); /* nobody leaves while the other still needs it */
	expect(zerod_group_leave(rank->group, NULL) == ZEROD_OK);
	return 0;
}

TEST(test_second_handle)
{
	run_ranks(second_handle);
}

TEST(test_alloc_and_devices)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	struct zerod_device_info before = ZEROD_INIT(before), during = ZEROD_INIT(during),
	                         after = ZEROD_INIT(after);
	struct zd_daemon daemon;
	zerod_client *client;
	zerod_allocation *buffer;
	uint8_t *bytes;
	void *data;

	assert_int_equal(zd_daemon_start(NULL, &daemon), 0);
	options.socket_path = daemon.socket_path;
	assert_int_equal(zerod_connect(&options, &client), ZEROD_OK);
	assert_int_equal(zerod_device_get(client, 0, &before), ZEROD_OK);
	assert_string_equal(before.name, "host0");
	assert_int_equal(zerod_device_get(client, 99, &after), ZEROD_E_NOT_FOUND);
	alloc.job = "job";
	alloc.bytes = 5000;
	alloc.alignment = 4096;
	assert_int_equal(zerod_alloc(client, &alloc, &buffer, &data), ZEROD_OK);
	assert_int_equal((uintptr_t)data % 4096, 0);
	bytes = data;
	for (unsigned i = 0; i < 5000; i++)
		assert_int_equal(bytes[i], 0);
	memset(data, 1, 5000);
	assert_int_equal(zerod_device_get(client, 0, &during), ZEROD_OK);
	assert_true(during.allocated_bytes >= before.allocated_bytes + 5000);
	assert_int_equal(zerod_free(buffer, NULL, 0), ZEROD_OK);
	assert_int_equal(zerod_device_get(client, 0, &after), ZEROD_OK);
	assert_int_equal(after.allocated_bytes, before.allocated_bytes);
	alloc.bytes = UINT64_MAX;
	assert_int_equal(zerod_alloc(client, &alloc, &buffer, &data), ZEROD_E_INVALID);
	zerod_close(client);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

/* ---- Death --------------------------------------------------------------------------------------------- */

static void *wait_for_rank_1(void *arg)
{
	struct zerod_group_options group = ZEROD_INIT(group);
	zerod_group *joined;

	group.job = "lonely";
	group.world_size = 2;
	return (void *)(intptr_t)zerod_group_join(arg, &group, &joined);
}

TEST(test_daemon_killed)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_device_info info = ZEROD_INIT(info);
	struct zd_daemon daemon;
	zerod_client *client;
	pthread_t waiter;
	void *status;

	assert_int_equal(zd_daemon_start(NULL, &daemon), 0);
	options.socket_path = daemon.socket_path;
	assert_int_equal(zerod_connect(&options, &client), ZEROD_OK);
	assert_int_equal(pthread_create(&waiter, NULL, wait_for_rank_1, client), 0);
	assert_int_equal(zerod_device_get(client, 0, &info), ZEROD_OK);
	assert_int_equal(zd_daemon_kill(&daemon), 0);
	pthread_join(waiter, &status);
	assert_int_equal((intptr_t)status, ZEROD_E_DISCONNECTED);
	assert_int_equal(zerod_device_get(client, 0, &info), ZEROD_E_DISCONNECTED);
	zerod_close(client);
	assert_int_equal(zd_daemon_restart(NULL, &daemon), 0);
	assert_int_equal(zerod_connect(&options, &client), ZEROD_OK);
	zerod_close(client);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}
