/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ends.c - ends of sessions that take several turns: the user's requests come behind, and the backend
 * closes the session last.
 */
#include "api_scene.h"

#include <poll.h>

#include "server/session.h"

#define UNITS 300u /* the steps are of 64 */
#define STEPS (UNITS / 64u)

static struct scene *scene_of_ops;
static struct zd_backend_ops ops;
static void (*real_session_close)(struct zd_backend *backend, uint64_t session, bool clean_exit);
static unsigned nclosed;
static int told[2]; /* sockets whose clients must know of the daemon's end by now; 0: none */

static unsigned nuntold;

/* A client that finds its fences aborted looks whether the daemon has hung up. */
static bool is_told(int sock)
{
	struct pollfd hangup = {.fd = sock, .events = POLLRDHUP};

	return poll(&hangup, 1, 0) == 1;
}

static void session_close(struct zd_backend *backend, uint64_t session, bool clean_exit)
{
	for (unsigned i = 0; i < 2 && told[i]; i++)
		nuntold += !is_told(told[i]);
	assert_false(zd_engine_session_ends(scene_of_ops->api.bridge.engine, session));
	nclosed++;
	real_session_close(backend, session, clean_exit);
}

static int setup(void **state)
{
	struct scene *scene;
	int rc = scene_setup(state);

	scene = scene_of_ops = *state;
	ops = *scene->api.bridge.ops;
	real_session_close = ops.session_close;
	ops.session_close = session_close;
	scene->api.bridge.ops = &ops;
	nclosed = 0;
	return rc;
}

#define ENDS_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup, scene_teardown)

static uint64_t newest_session(const struct scene *scene)
{
	const struct zd_api_session *session = scene->api.sessions;

	while (session->hh.next)
		session = session->hh.next;
	return session->id;
}

/* A session with many units; from here on each turn is one step. */
static int large_session(struct scene *scene, uint64_t *id)
{
	int sock = scene_session(scene);
	uint64_t group = scene_join(scene, sock, "job");

	*id = newest_session(scene);
	for (unsigned i = 0; i < UNITS; i++) {
		Zd__Request request = ZD__REQUEST__INIT;
		Zd__UnitRegister body = ZD__UNIT_REGISTER__INIT;
		char name[16];

		(void)snprintf(name, sizeof(name), "u%u", i);
		body.group = group;
		body.name = name;
		body.dtype = ZEROD_FLOAT32;
		body.numel = 16;
		request.body_case = ZD__REQUEST__BODY_UNIT_REGISTER;
		request.unit_register = &body;
		assert_int_equal(scene_status(scene, sock, &request), 0);
	}
	scene->api.conns.users.turn_ns = 0;
	return sock;
}

static void close_and_begin(struct scene *scene, int sock, uint64_t id)
{
	(void)close(sock);
	while (!zd_engine_session_ends(scene->api.bridge.engine, id))
		(void)zd_loop_run_once(&scene->loop, true);
}

/* Returns the number of the loop's iterations until the session has ended. */
static unsigned await_end(struct scene *scene, uint64_t id)
{
	unsigned iterations = 0;

	while (zd_engine_session_ends(scene->api.bridge.engine, id)) {
		(void)zd_loop_run_once(&scene->loop, true);
		iterations++;
	}
	return iterations;
}

ENDS_TEST(test_each_step_is_a_turn)
{
	uint64_t id;
	int sock = large_session(scene, &id);

	close_and_begin(scene, sock, id);
	assert_int_equal(zd_api_session_count(&scene->api), 1);
	assert_int_equal(nclosed, 0);
	assert_true(await_end(scene, id) >= STEPS);
	assert_int_equal(nclosed, 1);
	assert_null(scene->api.ends);
}

/* A request that was handled between two steps would complete the end at once. */
ENDS_TEST(test_requests_come_behind)
{
	Zd__Request request = ZD__REQUEST__INIT, *batch[] = {&request};
	Zd__Free body = ZD__FREE__INIT;
	struct delivery delivery;
	uint64_t id;
	int sock = large_session(scene, &id);

	request.id = ++scene->last_id;
	request.body_case = ZD__REQUEST__BODY_FREE;
	request.free = &body;
	close_and_begin(scene, sock, id);
	scene_send(scene->witness, batch, 1);
	assert_true(await_end(scene, id) >= STEPS);
	delivery = scene_receive(scene, scene->witness);
	assert_int_equal(delivery.packet->replies[0]->status, ZEROD_E_NOT_FOUND);
	delivery_free(&delivery);
}

/* In one packet with the request that kills the session, too. */
ENDS_TEST(test_requests_behind_a_kill_come_behind)
{
	Zd__Request kill = ZD__REQUEST__INIT, behind = ZD__REQUEST__INIT, *batch[] = {&kill, &behind};
	Zd__KillSession kill_session = ZD__KILL_SESSION__INIT;
	Zd__Free body = ZD__FREE__INIT;
	unsigned nreplies = 0;
	uint64_t id;
	int sock = large_session(scene, &id);

	scene->api.conns.users.turn_ns = UINT64_MAX;
	kill_session.session = id;
	kill.id = 1;
	kill.body_case = ZD__REQUEST__BODY_KILL_SESSION;
	kill.kill_session = &kill_session;
	behind.id = 2;
	behind.body_case = ZD__REQUEST__BODY_FREE;
	behind.free = &body;
	scene_send(scene->witness, batch, 2);
	while (nreplies < 2) {
		struct delivery delivery = scene_receive(scene, scene->witness);

		if (nreplies == 0)
			assert_int_equal(delivery.packet->n_replies, 1);
		nreplies += (unsigned)delivery.packet->n_replies;
		delivery_free(&delivery);
	}
	assert_int_equal(nclosed, 1);
	(void)close(sock);
}

ENDS_TEST(test_the_daemon_ends_between_two_steps)
{
	uint64_t id;
	int sock = large_session(scene, &id);

	close_and_begin(scene, sock, id);
	assert_non_null(scene->api.ends); /* the rest is in the teardown */
}

/* No client sees what the end of another one does to the group before it sees the end of the daemon. */
ENDS_TEST(test_all_are_told_before_one_ends)
{
	struct delivery delivery;

	told[0] = scene->witness;
	told[1] = scene_session(scene);
	zd_api_close(&scene->api, "the reason");
	assert_int_equal(nclosed, 2);
	assert_int_equal(nuntold, 0);
	for (unsigned i = 0; i < 2; i++) {
		delivery = scene_receive(scene, told[i]);
		assert_string_equal(delivery.packet->replies[0]->error, "the reason");
		delivery_free(&delivery);
	}
	(void)close(told[1]);
	memset(told, 0, sizeof(told));
}

int main(void)
{
	(void)alarm(120);
	return test_run(NULL, NULL);
}
