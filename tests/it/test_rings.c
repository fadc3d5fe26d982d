/* SPDX-License-Identifier: Apache-2.0 */
/* test_rings.c - requests and replies by shared memory, between the library and a daemon that looks there. */
#include "tests/it/client_scene.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/conn/request.h"
#include "tests/support/daemon_fixture.h"

#define CALLERS 6
#define CALLS   300

static int status_call(zerod_client *client)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__DaemonStatus status = ZD__DAEMON_STATUS__INIT;

	request.body_case = ZD__REQUEST__BODY_DAEMON_STATUS;
	request.daemon_status = &status;
	return zc_call(client, &request, 0, NULL, NULL);
}

static zerod_client *connect_to(const char *socket_path)
{
	struct zerod_options options = ZEROD_INIT(options);
	zerod_client *client = NULL;

	options.socket_path = socket_path;
	assert_status(NULL, zerod_connect(&options, &client), ZEROD_OK);
	return client;
}

/* A daemon of the environment's ZEROD_SPIN. */
static void start(struct zd_daemon *daemon, const char *spin)
{
	assert_int_equal(setenv("ZEROD_SPIN", spin, 1), 0);
	assert_int_equal(zd_daemon_start(NULL, daemon), 0);
}

/* The daemon may sleep just then: until a request and a reply have gone by the rings. */
static void call_by_rings(zerod_client *client)
{
	uint64_t requests, replies;

	assert_non_null(client->rings);
	requests = client->endpoint.out.place;
	replies = client->endpoint.in.place;
	while (client->endpoint.out.place == requests || client->endpoint.in.place == replies)
		assert_status(client, status_call(client), ZEROD_OK);
}

TEST(test_calls)
{
	zerod_client *clients[4];
	struct zd_daemon daemon;

	start(&daemon, "always");
	for (unsigned i = 0; i < 4; i++)
		clients[i] = connect_to(daemon.socket_path);
	for (unsigned i = 0; i < 4; i++)
		call_by_rings(clients[i]);
	zerod_close(clients[1]);
	for (unsigned i = 0; i < 4; i++)
		if (i != 1)
			call_by_rings(clients[i]);
	zerod_close(clients[0]);
	zerod_close(clients[2]);
	zerod_close(clients[3]);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

static void *call_often(void *arg)
{
	zerod_client *client = arg;

	for (unsigned i = 0; i < CALLS; i++)
		if (status_call(client))
			return client;
	return NULL;
}

TEST(test_threads_of_one_client)
{
	pthread_t threads[CALLERS];
	struct zd_daemon daemon;
	zerod_client *client;

	start(&daemon, "always");
	client = connect_to(daemon.socket_path);
	for (unsigned i = 0; i < CALLERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, call_often, client), 0);
	for (unsigned i = 0; i < CALLERS; i++) {
		void *failed;

		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	call_by_rings(client);
	zerod_close(client);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

static void *call_until_it_fails(void *arg)
{
	zerod_client *client = arg;
	int rc;

	while (!(rc = status_call(client)))
		continue;
	return rc == ZEROD_E_DISCONNECTED ? NULL : client;
}

TEST(test_the_daemon_dies)
{
	struct zd_daemon daemon;
	pthread_t thread;
	zerod_client *client;
	void *failed;

	start(&daemon, "always");
	client = connect_to(daemon.socket_path);
	call_by_rings(client);
	assert_int_equal(pthread_create(&thread, NULL, call_until_it_fails, client), 0);
	assert_int_equal(zd_daemon_kill(&daemon), 0);
	assert_int_equal(pthread_join(thread, &failed), 0);
	assert_null(failed);
	zerod_close(client);
	assert_int_equal(zd_daemon_restart(NULL, &daemon), 0);
	client = connect_to(daemon.socket_path);
	call_by_rings(client);
	zerod_close(client);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

/* Nothing is left in rings that a client keeps when its session has ended: they would be the daemon's memory,
 * and nobody's session. */
TEST(test_rings_of_an_ended_session_are_empty)
{
	static const uint8_t zeros[ZD_RINGS_BYTES];
	struct zd_daemon daemon;
	struct zd_rings *rings;
	zerod_client *client;

	start(&daemon, "always");
	client = connect_to(daemon.socket_path);
	call_by_rings(client);
	rings = client->rings;
	client->rings = NULL; /* stay mapped */
	client->endpoint.in.ring = client->endpoint.out.ring = NULL;
	zerod_close(client);
	while (memcmp(rings, zeros, sizeof(zeros)) != 0)
		(void)sched_yield();
	assert_int_equal(munmap(rings, ZD_RINGS_BYTES), 0);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

TEST(test_what_the_environment_says)
{
	const char *args[] = {"--check-config", NULL};
	struct zerod_options options = ZEROD_INIT(options);
	struct zd_daemon daemon;
	zerod_client *client;
	char output[256];
	int status;

	start(&daemon, "never");
	client = connect_to(daemon.socket_path);
	assert_null(client->rings);
	assert_status(client, status_call(client), ZEROD_OK);
	zerod_close(client);
	assert_int_equal(setenv("ZEROD_SPIN", "sometimes", 1), 0);
	options.socket_path = daemon.socket_path;
	assert_int_equal(zerod_connect(&options, &client), ZEROD_E_INVALID);
	assert_non_null(strstr(zerod_last_error(NULL), "ZEROD_SPIN is 'sometimes'"));
	assert_int_equal(zd_daemon_run(args, &status, output, sizeof(output)), 0);
	assert_int_equal(status, 2);
	assert_non_null(strstr(output, "ZEROD_SPIN is 'sometimes': auto, always, busy or never is expected"));
	assert_int_equal(unsetenv("ZEROD_SPIN"), 0);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

/* ---- A daemon that errs -------------------------------------------------------------------------------- */

static void bring_few_bytes(struct fake_peer *peer, void *arg)
{
	(void)arg;
	peer->rings_bytes = ZD_RINGS_BYTES - 4096;
	fake_hello(peer);
	fake_expect_end(peer);
}

TEST(test_rings_that_are_too_small)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct fake_daemon fake;
	zerod_client *client;

	assert_int_equal(fake_start(&fake, bring_few_bytes, NULL), 0);
	options.socket_path = fake.socket_path;
	assert_int_equal(zerod_connect(&options, &client), ZEROD_E_PROTOCOL);
	assert_non_null(strstr(zerod_last_error(NULL), "the rings has 65536 bytes"));
	assert_int_equal(fake_stop(&fake), 0);
}

static void write_nonsense(struct fake_peer *peer, void *arg)
{
	(void)arg;
	peer->rings_bytes = ZD_RINGS_BYTES;
	fake_hello(peer);
	if (!fake_expect(peer, ZD__REQUEST__BODY_DAEMON_STATUS))
		return;
	atomic_store(&peer->rings->replies.tail, UINT64_MAX);
	fake_expect_end(peer);
}

TEST(test_a_daemon_that_writes_nonsense)
{
	struct scene scene = {0};

	scene_connect(&scene, write_nonsense, NULL, 20000);
	assert_status(scene.client, status_call(scene.client), ZEROD_E_PROTOCOL);
	assert_non_null(strstr(zerod_last_error(scene.client), "a ring with"));
	scene_close(&scene);
}
