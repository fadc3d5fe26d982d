/* SPDX-License-Identifier: Apache-2.0 */
/* test_reconnect_units.c - a client that goes on with the next daemon registers many units again. */
#include "tests/it/reconnect_scene.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "client/lib/conn/request.h"
#include "proto/limits.h"
#include "tests/support/options.h"

#define NUNITS      1500u /* more than may be outstanding */
#define LARGE       400u  /* the index of one of them */
#define LARGE_BYTES (32u << 20)
#define FEW_PACKETS 6u /* hello, join, a listing, the units, and what is unmapped */
#define WRITTEN     0x11

static void register_units(const struct rank *rank, zerod_unit *units[NUNITS])
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	char name[32];

	options.name = name;
	options.dtype = ZEROD_UINT8;
	for (unsigned i = 0; i < NUNITS; i++) {
		(void)snprintf(name, sizeof(name), i == LARGE ? "large" : "unit.%u", i);
		options.numel = i == LARGE ? LARGE_BYTES : 1;
		assert_int_equal(zerod_unit_register(rank->group, &options, &units[i]), 0);
	}
}

/* Units that the daemon has kept are not registered one by one, and all handles of a unit are valid again. */
TEST(test_many_units)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct zerod_group_info info = ZEROD_INIT(info);
	struct zerod_shard shard = ZEROD_INIT(shard), other = ZEROD_INIT(other);
	zerod_unit *units[NUNITS], *again;
	struct rank rank;
	uint64_t packets;

	begin_alone(&keeps, ZEROD_GROUP_DURABLE, RECONNECT_MS, &rank);
	register_units(&rank, units);
	options.name = "unit.7";
	options.dtype = ZEROD_UINT8;
	options.numel = 1;
	assert_int_equal(zerod_unit_register(rank.group, &options, &again), 0);
	assert_int_equal(zerod_update_begin(&units[7], 1, NULL, NULL), 0);
	assert_int_equal(zerod_shard_get(units[7], &shard), 0);
	*(uint8_t *)shard.data = WRITTEN;
	assert_int_equal(zerod_publish(&units[7], 1, NULL, 0, NULL, NULL), 0);
	assert_int_equal(zerod_commit(rank.group, 1, NULL), 0);
	restart(&keeps);
	packets = zc_packets_sent(rank.client);
	assert_status(rank.client, zerod_group_get(rank.group, &info), 0);
	assert_in_range(zc_packets_sent(rank.client) - packets, 3, FEW_PACKETS);
	assert_int_equal(zerod_shard_get(units[7], &shard), 0);
	assert_int_equal(zerod_shard_get(again, &other), 0);
	assert_ptr_equal(shard.data, other.data);
	assert_int_equal(*(uint8_t *)shard.data, WRITTEN);
	assert_int_equal(zerod_unit_unregister(again, NULL), 0);
	assert_int_equal(zerod_shard_get(units[7], &shard), 0);
	for (unsigned i = 0; i < NUNITS; i++)
		assert_int_equal(zerod_unit_unregister(units[i], NULL), 0);
	end_alone(&rank);
}

/* The next daemon has none of the units, and no memory for one of them: units are registered in full packets,
 * the text names the unit, and the group can be joined when there is memory. */
TEST(test_a_refused_unit)
{
	const struct zd_daemon_options small = {.arena = "8M"};
	struct zerod_group_info info = ZEROD_INIT(info);
	struct zerod_shard shard = ZEROD_INIT(shard);
	zerod_unit *units[NUNITS];
	struct rank rank;
	uint64_t packets;

	begin_alone(NULL, ZEROD_GROUP_DURABLE, RECONNECT_MS, &rank);
	register_units(&rank, units);
	restart(&small);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(zerod_group_get(rank.group, &info), ZEROD_E_NO_MEMORY);
		assert_non_null(strstr(zerod_last_error(rank.client), "'large'"));
		assert_int_equal(zerod_shard_get(units[0], &shard), ZEROD_E_RESTARTED);
	}
	restart(NULL);
	packets = zc_packets_sent(rank.client);
	assert_status(rank.client, zerod_group_get(rank.group, &info), 0);
	assert_in_range(zc_packets_sent(rank.client) - packets, NUNITS / ZD_MAX_BATCH,
	                NUNITS / ZD_MAX_BATCH + FEW_PACKETS);
	for (unsigned i = 0; i < NUNITS; i++)
		assert_int_equal(zerod_shard_get(units[i], &shard), 0);
	zerod_close(rank.client);
	assert_int_equal(zd_daemon_stop(&daemon_), 0);
}

/* The next daemon has another unit of the same name, and even of the same id, since it numbers from the
 * beginning: the text names the unit. */
TEST(test_a_unit_that_is_another)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct zerod_group_info info = ZEROD_INIT(info);
	struct zerod_shard shard = ZEROD_INIT(shard);
	struct rank rank, other = {0};

	begin_alone(NULL, ZEROD_GROUP_DURABLE, RECONNECT_MS, &rank);
	options.name = "w";
	options.dtype = ZEROD_UINT8;
	options.numel = 100;
	assert_int_equal(zerod_unit_register(rank.group, &options, &rank.unit), 0);
	restart(NULL);
	assert_int_equal(open_client(&other, 0), 0);
	assert_int_equal(join_alone(&other, ZEROD_GROUP_DURABLE), 0);
	options.numel = 200;
	assert_int_equal(zerod_unit_register(other.group, &options, &other.unit), 0);
	zerod_close(other.client);
	assert_int_equal(zerod_group_get(rank.group, &info), ZEROD_E_MISMATCH);
	assert_non_null(strstr(zerod_last_error(rank.client), "'w'"));
	assert_int_equal(zerod_shard_get(rank.unit, &shard), ZEROD_E_RESTARTED);
	end_alone(&rank);
}

static void *go_on(void *arg)
{
	struct zerod_group_info info = ZEROD_INIT(info);
	struct rank *rank = arg;

	do
		rank->status = zerod_group_get(rank->group, &info);
	while (rank->status == ZEROD_E_RESTARTED);
	return NULL;
}

/* The daemon is killed again when the client has sent its units: it goes on with the one after. */
TEST(test_killed_in_between)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	zerod_unit *units[NUNITS];
	struct rank rank;
	pthread_t thread;
	uint64_t packets;

	begin_alone(&keeps, ZEROD_GROUP_DURABLE, RECONNECT_MS, &rank);
	register_units(&rank, units);
	restart(&keeps);
	packets = zc_packets_sent(rank.client);
	assert_int_equal(pthread_create(&thread, NULL, go_on, &rank), 0);
	while (zc_packets_sent(rank.client) - packets < 3)
		(void)sched_yield();
	restart(&keeps);
	assert_int_equal(pthread_join(thread, NULL), 0);
	go_on(&rank); /* the first daemon may have replied to all requests */
	assert_status(rank.client, rank.status, 0);
	for (unsigned i = 0; i < NUNITS; i++)
		assert_int_equal(zerod_shard_get(units[i], &shard), 0);
	assert_int_equal(zerod_update_begin(&units[7], 1, NULL, NULL), 0);
	end_alone(&rank);
}

/* The next daemon has the unit where it was moved to, though its registration names the device; and back. */
TEST(test_a_unit_that_was_moved)
{
	static const char *const args[] = {"--keep-state", "holder", "--host-arena", "16M", NULL};
	const struct zd_daemon_options options = {.args = args};
	struct zerod_unit_options unit = ZEROD_INIT(unit);
	struct rank rank;

	begin_alone(&options, ZEROD_GROUP_DURABLE, RECONNECT_MS, &rank);
	unit.name = "w";
	unit.dtype = ZEROD_UINT8;
	unit.numel = 1000;
	assert_int_equal(zerod_unit_register(rank.group, &unit, &rank.unit), 0);
	assert_int_equal(zerod_update_begin(&rank.unit, 1, NULL, NULL), 0);
	assert_int_equal(zerod_shard_get(rank.unit, SIZED(&rank.shard)), 0);
	memset(rank.shard.data, 7, 1000);
	assert_int_equal(zerod_publish(&rank.unit, 1, NULL, 0, NULL, NULL), 0);
	assert_int_equal(zerod_commit(rank.group, 1, NULL), 0);
	for (unsigned round = 0; round < 4; round++) {
		uint32_t flags = round % 2 ? 0 : ZEROD_UNIT_ON_HOST;
		struct zerod_group_info info = ZEROD_INIT(info);
		const uint8_t *data;

		assert_int_equal(zerod_unit_place(rank.unit, flags, NULL), 0);
		restart(&options);
		assert_int_equal(zerod_group_get(rank.group, &info), 0);
		assert_int_equal(info.committed_step, 1);
		assert_int_equal(zerod_shard_get(rank.unit, SIZED(&rank.shard)), 0);
		assert_int_equal(rank.shard.flags, flags);
		assert_int_equal(rank.shard.version, 1);
		assert_int_equal(zerod_gather(rank.unit, NULL, NULL, (void **)&data), 0);
		for (unsigned i = 0; i < 1000; i++)
			assert_true(data[i] == 7 && ((const uint8_t *)rank.shard.data)[i] == 7);
		assert_int_equal(zerod_release(rank.unit, NULL, 0, NULL, NULL), 0);
	}
	end_alone(&rank);
}
