/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_entries.c - reservations in a bucket, opposite a scripted daemon: answers behind the caller's
 * deadline, and requests that share a packet.
 */
#include "tests/it/client_scene.h"

#include <semaphore.h>
#include <time.h>

#include <zerod_host.h>

#define BUCKET    9u
#define ENTRY     11u
#define WAIT_S    20
#define SHORT_MS  1u
#define BUCKET_AT FAKE_BUFFER_OFFSET
#define ELEMENTS  (FAKE_PADDED_BYTES / sizeof(float))
#define LATE_TEXT "the daemon's own deadline"

/* ---- The daemon's side --------------------------------------------------------------------------------- */

struct script {
	sem_t gave_up;    /* the client's call has returned */
	int status;       /* of the first reservation's answer */
	unsigned packets; /* of the requests that are sent together */
};

static void await_client(struct fake_peer *peer, struct script *script)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_S;
	fake_check(peer, sem_timedwait(&script->gave_up, &until) == 0);
}

static void serve_bucket(struct fake_peer *peer)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__BucketCreateReply create = ZD__BUCKET_CREATE_REPLY__INIT;
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_BUCKET_CREATE);

	if (!request)
		return;
	create.bucket = BUCKET;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_BUCKET_CREATE;
	reply.bucket_create = &create;
	fake_reply(peer, &reply);
}

static uint64_t expect_reserve(struct fake_peer *peer)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_BUCKET_RESERVE);

	return request ? request->id : 0;
}

static void grant(struct fake_peer *peer, uint64_t id)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__BucketReserveReply reserve = ZD__BUCKET_RESERVE_REPLY__INIT;
	Zd__Location location = ZD__LOCATION__INIT;

	location.segment = FAKE_SEGMENT;
	location.offset = BUCKET_AT;
	location.bytes = FAKE_PADDED_BYTES;
	reserve.entry = ENTRY;
	reserve.location = &location;
	reply.id = id;
	reply.body_case = ZD__REPLY__BODY_BUCKET_RESERVE;
	reply.bucket_reserve = &reserve;
	fake_reply(peer, &reply);
}

static void serve_ok(struct fake_peer *peer, Zd__Request__BodyCase body)
{
	const Zd__Request *request = fake_expect(peer, body);

	if (request && body == ZD__REQUEST__BODY_BUCKET_SUBMIT)
		fake_check(peer, request->bucket_submit->entry == ENTRY);
	if (request)
		fake_ok(peer, request->id);
}

static void serve_end(struct fake_peer *peer)
{
	serve_ok(peer, ZD__REQUEST__BODY_BUCKET_SUBMIT);
	serve_ok(peer, ZD__REQUEST__BODY_BACKWARD_END);
	fake_expect_end(peer);
}

/* ---- The client's side --------------------------------------------------------------------------------- */

static zerod_bucket *make_bucket(struct scene *scene)
{
	struct zerod_bucket_options options = ZEROD_INIT(options);
	zerod_bucket *bucket;

	options.dtype = ZEROD_FLOAT32;
	assert_status(scene->client, zerod_bucket_create(scene->group, &options, &bucket), ZEROD_OK);
	return bucket;
}

static void end_backward(struct scene *scene, zerod_bucket *bucket, const struct zerod_entry *entry)
{
	assert_int_equal(entry->id, ENTRY);
	assert_int_equal(entry->padded_numel, ELEMENTS);
	assert_status(scene->client, zerod_bucket_submit(bucket, entry->id, NULL, 0, NULL, NULL), ZEROD_OK);
	assert_status(scene->client, zerod_backward_end(scene->group, NULL, NULL), ZEROD_OK);
}

/* ---- Deadlines ----------------------------------------------------------------------------------------- */

/* A second request is made only where the first was refused. */
static void answer_late(struct fake_peer *peer, void *arg)
{
	struct script *script = arg;
	uint64_t id;

	fake_serve_unit(peer);
	serve_bucket(peer);
	id = expect_reserve(peer);
	await_client(peer, script);
	if (script->status) {
		fake_error(peer, id, script->status, LATE_TEXT);
		id = expect_reserve(peer);
	}
	grant(peer, id);
	serve_end(peer);
}

static void late_answer(int status)
{
	struct script script = {.status = status};
	struct zerod_reserve_options options = ZEROD_INIT(options);
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct scene scene = {0};
	zerod_bucket *bucket;

	assert_int_equal(sem_init(&script.gave_up, 0, 0), 0);
	scene_open(&scene, answer_late, &script);
	bucket = make_bucket(&scene);
	options.deadline_ms = SHORT_MS;
	assert_status(scene.client, zerod_bucket_reserve(bucket, scene.unit, &options, &entry),
	              ZEROD_E_DEADLINE);
	assert_non_null(strstr(zerod_last_error(scene.client), "'w'"));
	assert_int_equal(sem_post(&script.gave_up), 0);
	assert_status(scene.client, zerod_bucket_reserve(bucket, scene.unit, NULL, &entry), ZEROD_OK);
	end_backward(&scene, bucket, &entry);
	scene_close(&scene);
	(void)sem_destroy(&script.gave_up);
}

/* The daemon grants the room when the caller has given up: the next call gets that entry. */
TEST(test_a_grant_behind_the_deadline)
{
	late_answer(0);
}

/* The daemon cancels it, and the caller has given up before it knows. The next call has a deadline of its
 * own. */
TEST(test_a_refusal_behind_the_deadline)
{
	late_answer(ZEROD_E_DEADLINE);
}

/* The daemon cancels it in time: nothing is kept. */
static void cancel_first(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	serve_bucket(peer);
	fake_error(peer, expect_reserve(peer), ZEROD_E_DEADLINE, LATE_TEXT);
	grant(peer, expect_reserve(peer));
	serve_end(peer);
}

TEST(test_the_daemon_cancels)
{
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct scene scene = {0};
	zerod_bucket *bucket;

	scene_open(&scene, cancel_first, NULL);
	bucket = make_bucket(&scene);
	assert_status(scene.client, zerod_bucket_reserve(bucket, scene.unit, NULL, &entry), ZEROD_E_DEADLINE);
	assert_string_equal(zerod_last_error(scene.client), LATE_TEXT);
	assert_status(scene.client, zerod_bucket_reserve(bucket, scene.unit, NULL, &entry), ZEROD_OK);
	end_backward(&scene, bucket, &entry);
	scene_close(&scene);
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

static void serve_abandon(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;

	(void)arg;
	fake_serve_unit(peer);
	serve_bucket(peer);
	grant(peer, expect_reserve(peer));
	request = fake_expect(peer, ZD__REQUEST__BODY_BACKWARD_ABANDON);
	if (request && fake_check(peer, request->backward_abandon->n_fences == 1))
		fake_check(peer, request->backward_abandon->fences[0]->value > 0);
	if (request)
		fake_ok(peer, request->id);
	fake_expect_end(peer);
}

static void wait_for(void *semaphore)
{
	while (sem_wait(semaphore) != 0)
		continue;
}

/* The daemon learns which streams wrote an entry of several gradients when the backward ends or is given
 * up. */
TEST(test_an_abandoned_sum_has_its_streams)
{
	struct zerod_reserve_options options = ZEROD_INIT(options);
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct scene scene = {0};
	zerod_bucket *bucket;
	zerod_stream *stream;
	sem_t gate;

	assert_int_equal(sem_init(&gate, 0, 0), 0);
	scene_open(&scene, serve_abandon, NULL);
	bucket = make_bucket(&scene);
	assert_status(scene.client, zerod_host_stream_create(scene.client, &stream), ZEROD_OK);
	assert_status(scene.client, zerod_host_stream_launch(stream, wait_for, &gate), ZEROD_OK);
	options.flags = ZEROD_RESERVE_ACCUMULATE;
	assert_status(scene.client, zerod_bucket_reserve(bucket, scene.unit, &options, &entry), ZEROD_OK);
	assert_status(scene.client, zerod_bucket_submit(bucket, entry.id, &stream, 1, NULL, NULL), ZEROD_OK);
	assert_status(scene.client, zerod_backward_abandon(scene.group, NULL, 0, NULL), ZEROD_OK);
	assert_int_equal(sem_post(&gate), 0);
	zerod_stream_destroy(stream);
	scene_close(&scene);
	(void)sem_destroy(&gate);
}

/* ---- Packets ------------------------------------------------------------------------------------------- */

static void serve_packet(struct fake_peer *peer, void *arg)
{
	struct script *script = arg;
	const Zd__Request *request;
	unsigned before;
	uint64_t gather = 0;

	fake_serve_unit(peer);
	serve_bucket(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
	if (request)
		fake_gather_reply(peer, request->id, 0);
	grant(peer, expect_reserve(peer));
	before = peer->packets;
	serve_ok(peer, ZD__REQUEST__BODY_BUCKET_SUBMIT);
	serve_ok(peer, ZD__REQUEST__BODY_RELEASE);
	request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
	if (request)
		gather = request->id;
	grant(peer, expect_reserve(peer));
	script->packets = peer->packets - before;
	fake_gather_reply(peer, gather, 0);
	fake_expect_end(peer);
}

/* The requests of a hook in a layer's backward, without the layer's own work, are one packet. */
TEST(test_a_layers_requests_are_one_packet)
{
	struct script script = {0};
	struct zerod_reduce_options submit = ZEROD_INIT(submit);
	struct zerod_release_options release = ZEROD_INIT(release);
	struct zerod_reserve_options reserve = ZEROD_INIT(reserve);
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct scene scene = {0};
	zerod_bucket *bucket;
	zerod_ticket ticket;
	void *data;

	scene_open(&scene, serve_packet, &script);
	bucket = make_bucket(&scene);
	assert_status(scene.client, zerod_host_stream_create(scene.client, &reserve.stream), ZEROD_OK);
	submit.flags = ZEROD_REDUCE_DETACHED;
	release.flags = ZEROD_RELEASE_DETACHED;
	assert_status(scene.client, zerod_gather(scene.unit, NULL, NULL, &data), ZEROD_OK);
	assert_status(scene.client, zerod_bucket_reserve(bucket, scene.unit, &reserve, &entry), ZEROD_OK);
	zerod_cork(scene.client);
	assert_status(scene.client, zerod_bucket_submit(bucket, entry.id, &reserve.stream, 1, &submit, NULL),
	              ZEROD_OK);
	assert_status(scene.client, zerod_release(scene.unit, &reserve.stream, 1, &release, NULL), ZEROD_OK);
	assert_status(scene.client, zerod_gather_begin(scene.unit, NULL, &ticket), ZEROD_OK);
	assert_status(scene.client, zerod_bucket_reserve(bucket, scene.unit, &reserve, &entry), ZEROD_OK);
	assert_status(scene.client, zerod_uncork(scene.client), ZEROD_OK);
	assert_status(scene.client, zerod_wait(scene.client, ticket, NULL, &data), ZEROD_OK);
	zerod_stream_destroy(reserve.stream);
	scene_close(&scene);
	assert_int_equal(script.packets, 1);
}
