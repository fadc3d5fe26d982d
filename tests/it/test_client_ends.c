/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_ends.c - a client with reconnect_ms whose daemon ends in order: calls return RESTARTED. */
#include "tests/it/client_scene.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <unistd.h>

#include <zerod_host.h>

#include "client/lib/base/client.h"

#define REASON "the daemon ended: drained by SIGTERM"

/* ---- Waits for bytes ----------------------------------------------------------------------------------- */

struct end {
	bool says_why;
	bool is_read; /* another thread waits for an answer, and reads */
};

/* As a daemon does: the connection ends first, then the fences are aborted. The socket stays open. */
static void hang_up_and_abort(struct fake_peer *peer, bool says_why)
{
	if (says_why)
		fake_error(peer, 0, ZEROD_E_SHUTDOWN, REASON);
	(void)shutdown(peer->sock, SHUT_RDWR);
	fake_abort(peer);
}

static void end_while_one_waits(struct fake_peer *peer, void *arg)
{
	const struct end *end = arg;
	const Zd__Request *request;

	fake_serve_unit(peer);
	if (end->is_read)
		(void)fake_expect(peer, ZD__REQUEST__BODY_GROUP_BARRIER);
	request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
	if (request)
		fake_gather_reply(peer, request->id, 1);
	(void)fake_expect(peer, ZD__REQUEST__BODY_RELEASE); /* the client has the answer */
	hang_up_and_abort(peer, end->says_why);
}

static void *waits_at_a_barrier(void *arg)
{
	const struct scene *scene = arg;

	return (void *)(intptr_t)zerod_group_barrier(scene->group, NULL, NULL);
}

static void await_reader(zerod_client *client)
{
	bool reads = false;

	while (!reads) {
		pthread_mutex_lock(&client->lock);
		reads = client->reading;
		pthread_mutex_unlock(&client->lock);
		(void)sched_yield();
	}
}

static void check_waits(struct end *end)
{
	struct scene scene = {0};
	zerod_stream *stream;
	zerod_ticket ticket;
	pthread_t reader;
	void *status;

	scene_open(&scene, end_while_one_waits, end);
	assert_status(scene.client, zerod_host_stream_create(scene.client, &stream), ZEROD_OK);
	if (end->is_read) {
		assert_int_equal(pthread_create(&reader, NULL, waits_at_a_barrier, &scene), 0);
		await_reader(scene.client);
	}
	assert_status(scene.client, zerod_gather(scene.unit, NULL, stream, NULL), ZEROD_OK);
	assert_status(scene.client, zerod_release(scene.unit, &stream, 1, NULL, &ticket), ZEROD_OK);
	assert_status(scene.client, zerod_stream_synchronize(stream), ZEROD_E_RESTARTED);
	assert_int_equal(!!strstr(zerod_last_error(scene.client), REASON), end->says_why);
	assert_status(scene.client, zerod_wait(scene.client, ticket, NULL, NULL), ZEROD_E_RESTARTED);
	if (end->is_read) {
		assert_int_equal(pthread_join(reader, &status), 0);
		assert_int_equal((intptr_t)status, ZEROD_E_RESTARTED);
	}
	scene_close(&scene);
}

TEST(test_a_wait_that_is_freed)
{
	for (unsigned i = 0; i < 4; i++)
		check_waits(&(struct end){.says_why = i & 1, .is_read = i & 2});
}

/* ---- Calls after the end ------------------------------------------------------------------------------- */

static void abort_then_end(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;

	(void)arg;
	fake_serve_unit(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
	if (request)
		fake_gather_reply(peer, request->id, 1);
	fake_abort(peer);
	(void)fake_expect(peer, ZD__REQUEST__BODY_GROUP_BARRIER); /* the client has seen the abort */
	(void)shutdown(peer->sock, SHUT_RDWR);
}

static void nothing(void *arg)
{
	(void)arg;
}

/* The client is poisoned when the daemon ends, and has not read that yet: an abort does not hide the end. */
TEST(test_after_an_abort)
{
	struct pollfd hangup = {.events = POLLRDHUP};
	struct scene scene = {0};
	zerod_stream *stream;
	zerod_ticket ticket;

	scene_open(&scene, abort_then_end, NULL);
	assert_status(scene.client, zerod_host_stream_create(scene.client, &stream), ZEROD_OK);
	assert_status(scene.client, zerod_gather(scene.unit, NULL, stream, NULL), ZEROD_OK);
	assert_status(scene.client, zerod_stream_synchronize(stream), ZEROD_E_ABORTED);
	assert_status(scene.client, zerod_group_barrier(scene.group, NULL, &ticket), ZEROD_OK);
	hangup.fd = scene.client->endpoint.sock;
	assert_int_equal(poll(&hangup, 1, -1), 1);
	assert_status(scene.client, zerod_stream_synchronize(stream), ZEROD_E_RESTARTED);
	assert_status(scene.client, zerod_host_stream_launch(stream, nothing, NULL), ZEROD_E_RESTARTED);
	assert_status(scene.client, zerod_commit(scene.group, 1, NULL), ZEROD_E_RESTARTED);
	scene_close(&scene);
}

/* ---- A daemon that drains ------------------------------------------------------------------------------ */

static void refuse(struct fake_peer *peer, Zd__Request__BodyCase body)
{
	const Zd__Request *request = fake_expect(peer, body);

	if (request)
		fake_error(peer, request->id, ZEROD_E_SHUTDOWN, "the daemon is draining");
}

static void hang_up(struct fake_peer *peer)
{
	(void)close(peer->sock);
	peer->sock = -1;
}

static void await_hangup(struct fake_peer *peer)
{
	uint8_t byte;

	fake_await_request(peer);
	fake_check(peer, recv(peer->sock, &byte, 1, 0) <= 0);
	hang_up(peer);
}

/* The client meets two daemons that drain: one accepts no session any more, the other one no rank. It has
 * joined before the first daemon ends. */
static void drain_twice(struct fake_peer *peer, void *joined)
{
	fake_hello(peer);
	fake_serve_join(peer);
	while (sem_wait(joined) != 0)
		continue;
	hang_up(peer);
	fake_accept(peer);
	refuse(peer, ZD__REQUEST__BODY_HELLO);
	hang_up(peer);
	fake_hello(peer);
	refuse(peer, ZD__REQUEST__BODY_GROUP_JOIN);
	await_hangup(peer);
	fake_hello(peer);
	fake_serve_join(peer);
	fake_expect_end(peer);
}

TEST(test_daemons_that_drain)
{
	struct zerod_group_options options = ZEROD_INIT(options);
	struct zerod_group_info info = ZEROD_INIT(info);
	struct pollfd hangup = {.events = POLLRDHUP};
	struct scene scene = {0};
	sem_t joined;

	assert_int_equal(sem_init(&joined, 0, 0), 0);
	scene_connect(&scene, drain_twice, &joined, 20000);
	options.job = "job";
	options.world_size = 2;
	options.flags = ZEROD_GROUP_DURABLE;
	assert_status(scene.client, zerod_group_join(scene.client, &options, &scene.group), ZEROD_OK);
	assert_int_equal(sem_post(&joined), 0);
	hangup.fd = scene.client->endpoint.sock;
	assert_int_equal(poll(&hangup, 1, -1), 1);
	assert_status(scene.client, zerod_group_get(scene.group, &info), ZEROD_E_RESTARTED);
	assert_status(scene.client, zerod_group_get(scene.group, &info), ZEROD_OK);
	scene_close(&scene);
	(void)sem_destroy(&joined);
}

int main(void)
{
	(void)setenv("ZEROD_RECONNECT_MS", "20000", 1);
	return test_run(NULL, NULL);
}
