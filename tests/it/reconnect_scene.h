/* SPDX-License-Identifier: Apache-2.0 */
/* reconnect_scene.h - a private daemon that is started again, and clients that go on with the next one. */
#ifndef ZD_TESTS_RECONNECT_SCENE_H
#define ZD_TESTS_RECONNECT_SCENE_H

#include <stdio.h>

#include <zerod.h>

#include "tests/it/client_scene.h"
#include "tests/support/daemon_fixture.h"

#define DEADLINE_MS  20000u
#define RECONNECT_MS 20000u

static const char *const keep[] = {"--keep-state", "holder", NULL};
static const struct zd_daemon_options keeps = {.args = keep};

struct rank {
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit, *frozen;
	struct zerod_shard shard;
	zerod_stream *stream;
	zerod_bucket *bucket;
	unsigned rank;
	int status;
};

static struct zd_daemon daemon_;

static inline int open_client(struct rank *rank, uint32_t reconnect_ms)
{
	struct zerod_options options = ZEROD_INIT(options);

	options.socket_path = daemon_.socket_path;
	options.deadline_ms = DEADLINE_MS;
	options.reconnect_ms = reconnect_ms;
	return zerod_connect(&options, &rank->client);
}

static inline int join_alone(struct rank *rank, uint32_t flags)
{
	struct zerod_group_options options = ZEROD_INIT(options);

	options.job = "lm";
	options.world_size = 1;
	options.flags = flags;
	return zerod_group_join(rank->client, &options, &rank->group);
}

/* A daemon with one rank, which is alone in its group. */
static inline void begin_alone(const struct zd_daemon_options *options, uint32_t flags, uint32_t reconnect_ms,
                               struct rank *rank)
{
	*rank = (struct rank){0};
	assert_int_equal(zd_daemon_start(options, &daemon_), 0);
	assert_int_equal(open_client(rank, reconnect_ms), 0);
	assert_int_equal(join_alone(rank, flags), 0);
}

static inline void end_alone(struct rank *rank)
{
	zerod_close(rank->client);
	assert_int_equal(zd_daemon_zeroctl(&daemon_, "end-job lm"), 0);
	assert_int_equal(zd_daemon_stop(&daemon_), 0);
}

static inline void restart(const struct zd_daemon_options *options)
{
	assert_int_equal(zd_daemon_kill(&daemon_), 0);
	assert_int_equal(zd_daemon_restart(options, &daemon_), 0);
}

#endif
