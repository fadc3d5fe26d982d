/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_detached.c - requests without a ticket: their failures are the next call's, once. */
#include "tests/it/client_scene.h"

#include <pthread.h>

#include "client/lib/base/handles.h"
#include "client/lib/conn/request.h"

#define MANY 200u

static int release(struct scene *scene)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Release body = ZD__RELEASE__INIT;
	struct zd_err err;

	body.unit = scene->unit->shared->id;
	request.body_case = ZD__REQUEST__BODY_RELEASE;
	request.release = &body;
	return zc_post_detached(scene->client, scene->unit->shared, "release", &request, &err);
}

static int persist(struct scene *scene)
{
	return zerod_unit_set_persistent(scene->unit, 1);
}

static void refuse_releases(struct fake_peer *peer, unsigned count)
{
	for (unsigned i = 0; i < count && !peer->failed; i++) {
		const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_RELEASE);

		if (request)
			fake_error(peer, request->id, ZEROD_E_NOT_HELD,
			           i == 0 ? "the first text" : "another text");
	}
}

static void answer_persist(struct fake_peer *peer)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_SET_PERSISTENT);

	if (request)
		fake_ok(peer, request->id);
}

/* The answers to the releases come before the first call's. */
static void refuse(struct fake_peer *peer, void *arg)
{
	const unsigned *count = arg;

	fake_serve_unit(peer);
	refuse_releases(peer, *count);
	answer_persist(peer);
	answer_persist(peer);
	fake_expect_end(peer);
}

TEST(test_of_many_the_first_is_named)
{
	struct scene scene = {0};
	unsigned count = 3;

	scene_open(&scene, refuse, &count);
	for (unsigned i = 0; i < count; i++)
		assert_status(scene.client, release(&scene), ZEROD_OK);
	assert_status(scene.client, persist(&scene), ZEROD_OK);
	assert_int_equal(persist(&scene), ZEROD_E_NOT_HELD);
	assert_non_null(strstr(zerod_last_error(scene.client), "the first text"));
	assert_non_null(strstr(zerod_last_error(scene.client), "and 2 more requests failed"));
	assert_status(scene.client, persist(&scene), ZEROD_OK);
	scene_close(&scene);
}

#define LOST "rank 1 is gone"

/* The daemon says once that a rank went: no other failure hides it. */
static void lose_rank(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;

	(void)arg;
	fake_serve_unit(peer);
	refuse_releases(peer, 2);
	request = fake_expect(peer, ZD__REQUEST__BODY_RELEASE);
	if (request)
		fake_error(peer, request->id, ZEROD_E_PEER_LOST, LOST);
	refuse_releases(peer, 1);
	answer_persist(peer);
	fake_expect_end(peer);
}

TEST(test_a_lost_rank_comes_first)
{
	struct scene scene = {0};

	scene_open(&scene, lose_rank, NULL);
	for (unsigned i = 0; i < 4; i++)
		assert_status(scene.client, release(&scene), ZEROD_OK);
	assert_status(scene.client, persist(&scene), ZEROD_OK);
	assert_int_equal(persist(&scene), ZEROD_E_PEER_LOST);
	assert_non_null(strstr(zerod_last_error(scene.client), LOST));
	assert_non_null(strstr(zerod_last_error(scene.client), "and 3 more requests failed"));
	scene_close(&scene);
}

/* Nobody can wait for the gather any more when its answer comes. */
static void lose_rank_behind_a_release(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;
	uint64_t gather;

	(void)arg;
	fake_serve_unit(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
	gather = request ? request->id : 0;
	request = fake_expect(peer, ZD__REQUEST__BODY_RELEASE);
	fake_error(peer, gather, ZEROD_E_PEER_LOST, LOST);
	if (request)
		fake_error(peer, request->id, ZEROD_E_NOT_HELD, "the gather's failure");
	fake_expect_end(peer);
}

TEST(test_a_released_gather_tells_of_a_lost_rank)
{
	struct scene scene = {0};
	zerod_ticket gather, released;

	scene_open(&scene, lose_rank_behind_a_release, NULL);
	assert_status(scene.client, zerod_gather_begin(scene.unit, NULL, &gather), ZEROD_OK);
	assert_status(scene.client, zerod_release(scene.unit, NULL, 0, NULL, &released), ZEROD_OK);
	assert_int_equal(zerod_wait(scene.client, released, NULL, NULL), ZEROD_E_NOT_HELD);
	assert_int_equal(persist(&scene), ZEROD_E_PEER_LOST);
	assert_non_null(
	        strstr(zerod_last_error(scene.client), "a released gather of unit 'w' failed: " LOST));
	scene_close(&scene);
}

/* Another thread's call reports it, and calls that end something do not. */
static void *persist_main(void *arg)
{
	return (void *)(intptr_t)persist(arg);
}

TEST(test_any_thread_reports)
{
	struct scene scene = {0};
	unsigned count = 1;
	pthread_t thread;
	void *status;

	scene_open(&scene, refuse, &count);
	assert_status(scene.client, release(&scene), ZEROD_OK);
	assert_status(scene.client, persist(&scene), ZEROD_OK);
	zerod_cork(scene.client);
	assert_status(scene.client, zerod_uncork(scene.client), ZEROD_OK);
	assert_int_equal(pthread_create(&thread, NULL, persist_main, &scene), 0);
	pthread_join(thread, &status);
	assert_int_equal((intptr_t)status, ZEROD_E_NOT_HELD);
	assert_status(scene.client, persist(&scene), ZEROD_OK);
	scene_close(&scene);
}

/* In a batch they go out with the rest of it. */
static void refuse_batch(struct fake_peer *peer, void *arg)
{
	unsigned *packets = arg, before;

	fake_serve_unit(peer);
	before = peer->packets;
	refuse_releases(peer, 3);
	*packets = peer->packets - before;
	answer_persist(peer);
	fake_expect_end(peer);
}

TEST(test_batches_take_them)
{
	struct scene scene = {0};
	unsigned packets = 0;

	scene_open(&scene, refuse_batch, &packets);
	zerod_cork(scene.client);
	for (unsigned i = 0; i < 3; i++)
		assert_status(scene.client, release(&scene), ZEROD_OK);
	assert_status(scene.client, zerod_uncork(scene.client), ZEROD_OK);
	assert_status(scene.client, persist(&scene), ZEROD_OK);
	assert_int_equal(persist(&scene), ZEROD_E_NOT_HELD);
	scene_close(&scene);
	assert_int_equal(packets, 1);
}

/* ---- Ends ---------------------------------------------------------------------------------------------- */

static void never_answer(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	for (unsigned i = 0; i < MANY && !peer->failed; i++)
		(void)fake_expect(peer, ZD__REQUEST__BODY_RELEASE);
	fake_expect_end(peer);
}

TEST(test_close_with_open_requests)
{
	struct scene scene = {0};

	scene_open(&scene, never_answer, NULL);
	for (unsigned i = 0; i < MANY; i++)
		assert_status(scene.client, release(&scene), ZEROD_OK);
	scene_close(&scene);
}

static void close_with_open_requests(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	(void)fake_expect(peer, ZD__REQUEST__BODY_RELEASE);
}

/* The connection's end is what calls return, again and again. */
TEST(test_the_connection_ends)
{
	struct scene scene = {0};

	scene_open(&scene, close_with_open_requests, NULL);
	assert_status(scene.client, release(&scene), ZEROD_OK);
	assert_int_equal(persist(&scene), ZEROD_E_DISCONNECTED);
	assert_int_equal(persist(&scene), ZEROD_E_DISCONNECTED);
	scene_close(&scene);
}
