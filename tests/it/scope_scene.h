/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scope_scene.h - ranks over a private daemon that gather in scopes, and streams that stay where they are
 * until told.
 */
#ifndef ZD_TESTS_SCOPE_SCENE_H
#define ZD_TESTS_SCOPE_SCENE_H

#include "tests/it/client_scene.h"

#include <zerod_host.h>

#include <errno.h>
#include <semaphore.h>
#include <time.h>

#include "tests/support/daemon_fixture.h"

#define UNIT_BYTES  4096u
#define DEADLINE_MS 20000u

static struct zd_daemon daemon_;

/* The only rank of a group. */
struct rank {
	zerod_client *client;
	zerod_group *group;
};

static inline void rank_open(struct rank *rank, const char *job, int strict)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options join = ZEROD_INIT(join);

	options.socket_path = daemon_.socket_path;
	options.deadline_ms = DEADLINE_MS;
	options.strict = strict;
	assert_status(NULL, zerod_connect(&options, &rank->client), ZEROD_OK);
	join.job = job;
	join.world_size = 1;
	assert_status(rank->client, zerod_group_join(rank->client, &join, &rank->group), ZEROD_OK);
}

/* Every byte of it is `fill`. */
static inline zerod_unit *new_unit(struct rank *rank, const char *name, uint8_t fill)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct zerod_shard shard = ZEROD_INIT(shard);
	zerod_unit *unit;

	options.name = name;
	options.dtype = ZEROD_UINT8;
	options.numel = UNIT_BYTES;
	assert_status(rank->client, zerod_unit_register(rank->group, &options, &unit), ZEROD_OK);
	assert_status(rank->client, zerod_shard_get(unit, &shard), ZEROD_OK);
	assert_status(rank->client, zerod_update_begin(&unit, 1, NULL, NULL), ZEROD_OK);
	memset(shard.data, fill, shard.true_numel);
	assert_status(rank->client, zerod_publish(&unit, 1, NULL, 0, NULL, NULL), ZEROD_OK);
	return unit;
}

static inline zerod_scope forward(struct rank *rank, zerod_scope parent)
{
	zerod_scope scope = {0};

	assert_status(rank->client, zerod_forward_begin(rank->group, parent, NULL, 0, &scope), ZEROD_OK);
	assert_int_not_equal(scope.id, 0);
	return scope;
}

static inline zerod_ticket touch_begin(struct rank *rank, zerod_unit *unit, zerod_scope scope)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_ticket ticket;

	options.scope = scope;
	assert_status(rank->client, zerod_gather_begin(unit, &options, &ticket), ZEROD_OK);
	return ticket;
}

static inline uint8_t *touch(struct rank *rank, zerod_unit *unit, zerod_scope scope)
{
	zerod_ticket ticket = touch_begin(rank, unit, scope);
	void *data;

	assert_status(rank->client, zerod_wait(rank->client, ticket, NULL, &data), ZEROD_OK);
	return data;
}

static inline uint64_t gathered_bytes(struct rank *rank)
{
	struct zerod_device_info info = ZEROD_INIT(info);

	assert_status(rank->client, zerod_device_get(rank->client, 0, &info), ZEROD_OK);
	return info.gathered_bytes;
}

/* ---- Fixtures: one rank with two units, over a daemon of the program's --------------------------------- */

static struct rank me;
static zerod_unit *a, *b;

static inline int scene_start(void **state)
{
	(void)state;
	return zd_daemon_start(NULL, &daemon_);
}

static inline int scene_stop(void **state)
{
	(void)state;
	return zd_daemon_stop(&daemon_);
}

static inline void scene_setup(const char *job, int strict)
{
	rank_open(&me, job, strict);
	a = new_unit(&me, "a", 1);
	b = new_unit(&me, "b", 2);
}

static inline int scene_teardown(void **state)
{
	(void)state;
	assert_status(me.client, zerod_group_leave(me.group, NULL), ZEROD_OK);
	assert_int_equal(gathered_bytes(&me), 0); /* whatever the test has left */
	zerod_close(me.client);
	return 0;
}

/* ---- A stream that stays where it is until it is told -------------------------------------------------- */

struct gated {
	zerod_stream *stream;
	sem_t gate;
	const uint8_t *data; /* read behind the gate */
	uint8_t seen;
};

static inline void gated_read(void *arg)
{
	struct gated *gated = arg;
	struct timespec deadline;

	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += DEADLINE_MS / 1000;
	while (sem_timedwait(&gated->gate, &deadline) != 0)
		if (errno == ETIMEDOUT)
			abort();
	gated->seen = gated->data[0];
}

static inline void gated_open(struct rank *rank, struct gated *gated, const uint8_t *data)
{
	*gated = (struct gated){.data = data};
	assert_int_equal(sem_init(&gated->gate, 0, 0), 0);
	assert_status(rank->client, zerod_host_stream_create(rank->client, &gated->stream), ZEROD_OK);
	assert_status(rank->client, zerod_host_stream_launch(gated->stream, gated_read, gated), ZEROD_OK);
}

static inline void gated_finish(struct rank *rank, struct gated *gated, uint8_t expected)
{
	sem_post(&gated->gate);
	assert_status(rank->client, zerod_stream_synchronize(gated->stream), ZEROD_OK);
	assert_int_equal(gated->seen, expected);
	zerod_stream_destroy(gated->stream);
	sem_destroy(&gated->gate);
}

#endif
