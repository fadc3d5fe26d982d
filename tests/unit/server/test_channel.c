/* SPDX-License-Identifier: Apache-2.0 */
/* test_channel.c - a work channel's packets, its client that does not read, and its end. */
#include <stdio.h>
#include <unistd.h>

#include "base/err.h"
#include "proto/frame.h"
#include "server/channel.h"
#include "server/conn.h"
#include "server/loop.h"
#include "tests/support/test.h"

struct scene {
	struct zd_loop loop;
	struct zd_conns conns;
	struct zd_channel *channel;
	int client;
	unsigned npackets, nwritable, nbroken;
	char last[64]; /* packet */
	struct zd_err why;
};

static void on_packet(void *arg, const uint8_t *bytes, size_t nbytes)
{
	struct scene *scene = arg;

	assert_true(nbytes < sizeof(scene->last));
	memcpy(scene->last, bytes, nbytes);
	scene->last[nbytes] = '\0';
	scene->npackets++;
}

static void on_writable(void *arg)
{
	((struct scene *)arg)->nwritable++;
}

static void on_broken(void *arg, const struct zd_err *why)
{
	struct scene *scene = arg;

	scene->nbroken++;
	scene->why = *why;
}

static const struct zd_channel_ops ops = {.packet = on_packet, .writable = on_writable, .broken = on_broken};

static void open_scene(struct scene *scene)
{
	*scene = (struct scene){.client = -1};
	assert_int_equal(zd_loop_init(&scene->loop, NULL), 0);
	zd_conns_init(&scene->conns, &scene->loop);
	assert_int_equal(zd_channel_new(&scene->conns, 0, &ops, scene, &scene->channel, &scene->client, NULL),
	                 0);
}

static void close_scene(struct scene *scene)
{
	zd_channel_close(scene->channel);
	if (scene->client >= 0)
		(void)close(scene->client);
	zd_loop_deinit(&scene->loop);
	zd_conns_deinit(&scene->conns);
}

static void run_loop(struct scene *scene)
{
	(void)uv_run(&scene->loop.uv, UV_RUN_ONCE);
}

static void client_says(const struct scene *scene, const char *text)
{
	assert_int_equal(zd_frame_send(scene->client, text, strlen(text), NULL, 0, NULL), 0);
}

/* Sends until there is no room; how many packets that were. */
static unsigned fill(struct scene *scene)
{
	static const uint8_t bytes[4096] = {1};
	unsigned count = 0;
	int rc;

	while ((rc = zd_channel_send(scene->channel, bytes, sizeof(bytes), NULL)) == 0)
		count++;
	assert_int_equal(rc, ZD_FRAME_AGAIN);
	assert_true(count > 0);
	return count;
}

static void read_one(const struct scene *scene)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];
	int fds[ZD_MAX_PACKET_FDS];
	unsigned nfds;
	size_t nbytes;

	assert_int_equal(zd_frame_recv(scene->client, bytes, sizeof(bytes), &nbytes, fds, &nfds, NULL), 0);
	assert_int_equal(nfds, 0);
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

/* A client that does not read is told nothing more, and may still say something. */
TEST(test_no_room_is_told_and_passes)
{
	struct scene scene;
	unsigned count;

	open_scene(&scene);
	count = fill(&scene);
	client_says(&scene, "busy");
	run_loop(&scene);
	assert_int_equal(scene.npackets, 1);
	assert_int_equal(scene.nwritable, 0);
	while (count-- > 0)
		read_one(&scene);
	run_loop(&scene);
	assert_int_equal(scene.nwritable, 1);
	(void)fill(&scene); /* asked for again: told again */
	assert_int_equal(scene.nbroken, 0);
	close_scene(&scene);
}

TEST(test_its_end_is_told_once)
{
	struct scene scene;

	open_scene(&scene);
	client_says(&scene, "last");
	assert_int_equal(close(scene.client), 0);
	scene.client = -1;
	run_loop(&scene);
	assert_string_equal(scene.last, "last");
	assert_int_equal(scene.nbroken, 0);
	run_loop(&scene);
	assert_int_equal(scene.nbroken, 1);
	assert_int_equal(scene.why.status, ZEROD_E_DISCONNECTED);
	assert_int_equal(zd_channel_send(scene.channel, (const uint8_t *)"x", 1, NULL), ZEROD_E_DISCONNECTED);
	(void)uv_run(&scene.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(scene.nbroken, 1);
	close_scene(&scene);
}

/* Which the socket reports before what the client had sent. */
TEST(test_end_of_a_client_that_has_not_read)
{
	struct scene scene;

	open_scene(&scene);
	assert_int_equal(zd_channel_send(scene.channel, (const uint8_t *)"x", 1, NULL), 0);
	client_says(&scene, "one");
	client_says(&scene, "two");
	assert_int_equal(close(scene.client), 0);
	scene.client = -1;
	run_loop(&scene);
	assert_string_equal(scene.last, "one");
	run_loop(&scene);
	assert_string_equal(scene.last, "two");
	run_loop(&scene);
	assert_int_equal(scene.npackets, 2);
	assert_int_equal(scene.nbroken, 1);
	assert_int_equal(scene.why.status, ZEROD_E_DISCONNECTED);
	close_scene(&scene);
}

TEST(test_descriptors_break_it)
{
	struct scene scene;
	int fd = STDIN_FILENO;

	open_scene(&scene);
	assert_int_equal(zd_frame_send(scene.client, "x", 1, &fd, 1, NULL), 0);
	run_loop(&scene);
	assert_int_equal(scene.npackets, 0);
	assert_int_equal(scene.nbroken, 1);
	assert_int_equal(scene.why.status, ZEROD_E_PROTOCOL);
	assert_non_null(strstr(scene.why.text, "1 descriptors on the work channel"));
	close_scene(&scene);
}

static void run_nothing(void *arg)
{
	(void)arg;
}

/* The user's request, in the same iteration, has used up the turn. */
TEST(test_answers_have_turns)
{
	struct scene scene;
	struct zd_task request = {.run = run_nothing};
	struct zd_user *user;
	uv_async_t alive; /* as the daemon's loop always is */

	open_scene(&scene);
	assert_int_equal(uv_async_init(&scene.loop.uv, &alive, NULL), 0);
	scene.conns.users.turn_ns = 0;
	user = zd_user_get(&scene.conns.users, 0);
	zd_user_enqueue(user, &request);
	client_says(&scene, "one");
	run_loop(&scene);
	assert_false(request.queued);
	assert_int_equal(scene.npackets, 0);
	run_loop(&scene);
	assert_int_equal(scene.npackets, 1);
	zd_user_enqueue(user, &request);
	client_says(&scene, "never handled");
	run_loop(&scene);
	zd_user_put(user);
	uv_close((uv_handle_t *)&alive, NULL);
	close_scene(&scene); /* with a task that is queued */
	assert_int_equal(scene.npackets, 1);
}
