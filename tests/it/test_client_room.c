/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_room.c - a sender that waits until the daemon may be sent more requests. */
#include "tests/it/client_scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "client/lib/conn/request.h"

static int call(zerod_client *client, uint32_t deadline_ms)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__DaemonStatus status = ZD__DAEMON_STATUS__INIT;

	request.body_case = ZD__REQUEST__BODY_DAEMON_STATUS;
	request.daemon_status = &status;
	return zc_call(client, &request, deadline_ms, NULL, NULL);
}

static int post(struct scene *scene)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_ticket ticket;

	options.flags = ZEROD_GATHER_PREFETCH;
	return zerod_gather_begin(scene->unit, &options, &ticket);
}

static void pause_shortly(void)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	(void)nanosleep(&pause, NULL);
}

/* Does a thread sleep that any event may wake? */
static bool one_sleeps(zerod_client *client)
{
	const struct zc_waiter *waiter;

	TAILQ_FOREACH (waiter, &client->waiters, link)
		if (!waiter->op)
			return true;
	return false;
}

static bool one_reads(zerod_client *client)
{
	return client->reading;
}

static void await(zerod_client *client, bool (*so_far)(zerod_client *client))
{
	bool is = false;

	while (!is) {
		pause_shortly();
		pthread_mutex_lock(&client->lock);
		is = so_far(client);
		pthread_mutex_unlock(&client->lock);
	}
}

/* A thread that reads, since it waits for the answer to a call, and one that has to wait for room. */
struct full {
	struct scene scene;
	atomic_bool asleep; /* the one that waits for room */
	int read_status, sent_status;
};

static void *read_main(void *arg)
{
	struct full *full = arg;

	full->read_status = call(full->scene.client, 20000);
	return NULL;
}

static void *send_main(void *arg)
{
	struct full *full = arg;

	full->sent_status = call(full->scene.client, 20000);
	return NULL;
}

/* `unanswered` posts fill what there is room for. */
static void wait_for_room(struct full *full, unsigned unanswered)
{
	pthread_t reader, sender;

	assert_int_equal(pthread_create(&reader, NULL, read_main, full), 0);
	await(full->scene.client, one_reads);
	for (unsigned i = 0; i < unanswered; i++)
		assert_status(full->scene.client, post(&full->scene), ZEROD_OK);
	assert_int_equal(pthread_create(&sender, NULL, send_main, full), 0);
	await(full->scene.client, one_sleeps);
	full->asleep = true;
	pthread_join(sender, NULL);
	pthread_join(reader, NULL);
	assert_int_equal(full->sent_status, ZEROD_OK);
	assert_int_equal(full->read_status, ZEROD_OK);
	scene_close(&full->scene);
}

/* ---- An answer that nobody waits for ------------------------------------------------------------------- */

#define BESIDE_CALLS  (ZD_MAX_OUTSTANDING - 2)
#define BESIDE_A_CALL (ZD_MAX_OUTSTANDING - 1)

static uint64_t expect(struct fake_peer *peer, Zd__Request__BodyCase body)
{
	const Zd__Request *request = fake_expect(peer, body);

	return request ? request->id : 0;
}

static void answer_late(struct fake_peer *peer, void *arg)
{
	struct full *full = arg;
	uint64_t given_up, waited_for, posts[BESIDE_CALLS], last;

	fake_serve_unit(peer);
	given_up = expect(peer, ZD__REQUEST__BODY_DAEMON_STATUS);
	waited_for = expect(peer, ZD__REQUEST__BODY_DAEMON_STATUS);
	for (unsigned i = 0; i < BESIDE_CALLS; i++)
		posts[i] = expect(peer, ZD__REQUEST__BODY_GATHER);
	while (!full->asleep)
		pause_shortly();
	fake_ok(peer, given_up);
	last = expect(peer, ZD__REQUEST__BODY_DAEMON_STATUS);
	for (unsigned i = 0; i < BESIDE_CALLS; i++)
		fake_ok(peer, posts[i]);
	fake_ok(peer, waited_for);
	fake_ok(peer, last);
	fake_expect_end(peer);
}

TEST(test_late_answers_make_room)
{
	struct full full = {.asleep = false};

	scene_open(&full.scene, answer_late, &full);
	assert_int_equal(call(full.scene.client, 1), ZEROD_E_DEADLINE);
	wait_for_room(&full, BESIDE_CALLS);
}

/* ---- Segments that the daemon wants back --------------------------------------------------------------- */

/* The answers wait for them. */
static void retire(struct fake_peer *peer, const uint64_t *posts, unsigned nposts)
{
	Zd__DaemonPacket packet = ZD__DAEMON_PACKET__INIT;
	uint32_t retired = FAKE_SEGMENT;
	uint64_t unmapped, last;

	packet.n_retired = 1;
	packet.retired = &retired;
	fake_send(peer, &packet, NULL, 0);
	unmapped = expect(peer, ZD__REQUEST__BODY_SEGMENTS_UNMAPPED);
	fake_ok(peer, unmapped);
	for (unsigned i = 0; i < nposts; i++)
		fake_ok(peer, posts[i]);
	last = expect(peer, ZD__REQUEST__BODY_DAEMON_STATUS);
	fake_ok(peer, last);
}

static void retire_beside_a_reader(struct fake_peer *peer, void *arg)
{
	struct full *full = arg;
	uint64_t waited_for, posts[BESIDE_A_CALL];

	fake_serve_unit(peer);
	waited_for = expect(peer, ZD__REQUEST__BODY_DAEMON_STATUS);
	for (unsigned i = 0; i < BESIDE_A_CALL; i++)
		posts[i] = expect(peer, ZD__REQUEST__BODY_GATHER);
	while (!full->asleep)
		pause_shortly();
	retire(peer, posts, BESIDE_A_CALL);
	fake_ok(peer, waited_for);
	fake_expect_end(peer);
}

TEST(test_the_sleeping_sender_tells)
{
	struct full full = {.asleep = false};

	scene_open(&full.scene, retire_beside_a_reader, &full);
	wait_for_room(&full, BESIDE_A_CALL);
}

static void retire_alone(struct fake_peer *peer, void *arg)
{
	uint64_t posts[ZD_MAX_OUTSTANDING];

	(void)arg;
	fake_serve_unit(peer);
	for (unsigned i = 0; i < ZD_MAX_OUTSTANDING; i++)
		posts[i] = expect(peer, ZD__REQUEST__BODY_GATHER);
	retire(peer, posts, ZD_MAX_OUTSTANDING);
	fake_expect_end(peer);
}

TEST(test_the_sender_that_reads_tells)
{
	struct scene scene = {0};

	scene_open(&scene, retire_alone, NULL);
	for (unsigned i = 0; i < ZD_MAX_OUTSTANDING; i++)
		assert_status(scene.client, post(&scene), ZEROD_OK);
	assert_status(scene.client, call(scene.client, 20000), ZEROD_OK);
	scene_close(&scene);
}

/* ---- Who does not wait --------------------------------------------------------------------------------- */

static int release(struct scene *scene, zerod_ticket *ticket)
{
	return zerod_release(scene->unit, NULL, 0, NULL, ticket);
}

/* The first answer is given when the release has come. */
static void answer_after_a_release(struct fake_peer *peer, void *arg)
{
	uint64_t posts[ZD_MAX_OUTSTANDING], released;

	(void)arg;
	fake_serve_unit(peer);
	for (unsigned i = 0; i < ZD_MAX_OUTSTANDING; i++)
		posts[i] = expect(peer, ZD__REQUEST__BODY_GATHER);
	released = expect(peer, ZD__REQUEST__BODY_RELEASE);
	fake_ok(peer, released);
	for (unsigned i = 0; i < ZD_MAX_OUTSTANDING; i++)
		fake_ok(peer, posts[i]);
	fake_ok(peer, expect(peer, ZD__REQUEST__BODY_DAEMON_STATUS));
	fake_ok(peer, expect(peer, ZD__REQUEST__BODY_GATHER));
	fake_ok(peer, expect(peer, ZD__REQUEST__BODY_DAEMON_STATUS));
	fake_expect_end(peer);
}

/* While a call waits for room, requests that return at once are refused, and releases come through. */
TEST(test_a_waiting_call_holds_nobody_up)
{
	struct full full = {.asleep = false};
	struct scene *scene = &full.scene;
	zerod_ticket ticket;
	pthread_t sender;

	scene_open(scene, answer_after_a_release, NULL);
	for (unsigned i = 0; i < ZD_MAX_OUTSTANDING; i++)
		assert_status(scene->client, post(scene), ZEROD_OK);
	assert_int_equal(post(scene), ZEROD_E_LIMIT);
	assert_string_equal(zerod_last_error(scene->client), "1024 requests are outstanding; at most 1024");
	assert_int_equal(pthread_create(&sender, NULL, send_main, &full), 0);
	await(scene->client, one_reads);
	assert_int_equal(post(scene), ZEROD_E_LIMIT);
	assert_status(scene->client, release(scene, &ticket), ZEROD_OK);
	assert_status(scene->client, zerod_wait(scene->client, ticket, NULL, NULL), ZEROD_OK);
	pthread_join(sender, NULL);
	assert_int_equal(full.sent_status, ZEROD_OK);
	assert_status(scene->client, post(scene), ZEROD_OK);
	assert_status(scene->client, call(scene->client, 20000), ZEROD_OK);
	scene_close(scene);
}
