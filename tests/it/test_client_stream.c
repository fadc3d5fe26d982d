/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_stream.c - host streams: order, fences both ways, aborts, timelines. */
#include "tests/it/client_scene.h"

#include <zerod_host.h>

#include <errno.h>
#include <semaphore.h>
#include <time.h>

static zerod_stream *new_stream(struct scene *scene)
{
	zerod_stream *stream = NULL;

	assert_status(scene->client, zerod_host_stream_create(scene->client, &stream), ZEROD_OK);
	return stream;
}

static void launch(struct scene *scene, zerod_stream *stream, void (*fn)(void *), void *arg)
{
	assert_status(scene->client, zerod_host_stream_launch(stream, fn, arg), ZEROD_OK);
}

/* Work that stays until it is let go, so that the stream is busy for as long as a test needs. */
static void hold(void *arg)
{
	struct timespec deadline;

	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += 20;
	while (sem_timedwait(arg, &deadline) != 0)
		if (errno == ETIMEDOUT)
			abort();
}

static void only_unit(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	fake_expect_end(peer);
}

/* ---- Order --------------------------------------------------------------------------------------------- */

#define PIECES 200

struct record {
	int next;
	int order[PIECES];
};

struct piece {
	struct record *record;
	int number;
};

static void note(void *arg)
{
	struct piece *piece = arg;

	piece->record->order[piece->record->next++] = piece->number;
}

TEST(test_order)
{
	struct piece pieces[PIECES];
	struct record record = {0};
	struct scene scene = {0};
	zerod_stream *stream;

	scene_open(&scene, only_unit, NULL);
	stream = new_stream(&scene);
	for (int i = 0; i < PIECES; i++) {
		pieces[i] = (struct piece){&record, i};
		launch(&scene, stream, note, &pieces[i]);
	}
	assert_status(scene.client, zerod_stream_synchronize(stream), ZEROD_OK);
	assert_int_equal(record.next, PIECES);
	for (int i = 0; i < PIECES; i++)
		assert_int_equal(record.order[i], i);
	assert_int_equal(zerod_host_stream_launch(stream, NULL, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_host_stream_launch(NULL, note, NULL), ZEROD_E_INVALID);
	zerod_stream_destroy(stream);
	zerod_stream_destroy(NULL);
	scene_close(&scene);
}

static void drained_at_destroy(void *arg)
{
	*(int *)arg = 1;
}

TEST(test_destroy_and_close_drain)
{
	struct scene scene = {0};
	zerod_stream *stream;
	int by_destroy = 0, by_close = 0;

	scene_open(&scene, only_unit, NULL);
	stream = new_stream(&scene);
	launch(&scene, stream, drained_at_destroy, &by_destroy);
	zerod_stream_destroy(stream);
	assert_int_equal(by_destroy, 1);
	stream = new_stream(&scene);
	launch(&scene, stream, drained_at_destroy, &by_close);
	scene_close(&scene);
	assert_int_equal(by_close, 1);
}

static void synchronize_self(void *arg)
{
	zerod_stream **stream = arg;

	if (zerod_stream_synchronize(*stream) != ZEROD_E_STATE)
		*stream = NULL;
}

TEST(test_synchronize_from_within)
{
	struct scene scene = {0};
	zerod_stream *stream, *same;

	scene_open(&scene, only_unit, NULL);
	stream = same = new_stream(&scene);
	launch(&scene, stream, synchronize_self, &same);
	assert_status(scene.client, zerod_stream_synchronize(stream), ZEROD_OK);
	assert_ptr_equal(same, stream);
	scene_close(&scene);
}

/* ---- Our fences ---------------------------------------------------------------------------------------- */

struct fence_script {
	sem_t *busy; /* let go when the release has been seen */
	uint64_t values[2];
	uint32_t timelines[2];
};

static void see_fences(struct fake_peer *peer, void *arg)
{
	struct fence_script *script = arg;
	const Zd__Request *request;

	fake_serve_unit(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_RELEASE);
	if (!request || !fake_check(peer, request->release->n_fences == 2))
		return;
	for (int i = 0; i < 2; i++) {
		script->timelines[i] = request->release->fences[i]->timeline;
		script->values[i] = request->release->fences[i]->value;
		/* The work is still running: the fence must not have passed. */
		fake_check(peer, __atomic_load_n(&peer->client_page[script->timelines[i]], __ATOMIC_ACQUIRE) <
		                         script->values[i]);
	}
	sem_post(script->busy);
	sem_post(script->busy);
	for (int i = 0; i < 2; i++)
		fake_await_timeline(peer, script->timelines[i], script->values[i]);
	fake_ok(peer, request->id);
	fake_expect_end(peer);
}

/* Two busy streams, an idle one, the calling thread: two fences, each passed when its stream's work has
 * ended. */
TEST(test_release_fences)
{
	struct fence_script script = {0};
	struct scene scene = {0};
	zerod_stream *streams[4];
	sem_t busy;

	sem_init(&busy, 0, 0);
	script.busy = &busy;
	scene_open(&scene, see_fences, &script);
	streams[0] = new_stream(&scene);
	streams[1] = new_stream(&scene);
	streams[2] = NULL;
	streams[3] = new_stream(&scene);
	launch(&scene, streams[0], hold, &busy);
	launch(&scene, streams[3], hold, &busy);
	assert_status(scene.client, zerod_release(scene.unit, streams, 4, NULL, NULL), ZEROD_OK);
	scene_close(&scene);
	sem_destroy(&busy);
	assert_int_not_equal(script.timelines[0], script.timelines[1]);
}

/* ---- Values never go back ------------------------------------------------------------------------------ */

#define TURNS 3

static void see_values(struct fake_peer *peer, void *arg)
{
	sem_t *busy = arg;
	uint64_t last = 0;

	fake_serve_unit(peer);
	for (int i = 0; i < TURNS && !peer->failed; i++) {
		const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_RELEASE);

		if (!request || !fake_check(peer, request->release->n_fences == 1))
			return;
		fake_check(peer, request->release->fences[0]->timeline == 0);
		fake_check(peer, request->release->fences[0]->value > last);
		last = request->release->fences[0]->value;
		sem_post(busy);
		fake_ok(peer, request->id);
	}
	fake_expect_end(peer);
}

/* A new stream on a destroyed one's timeline goes on where that one ended. */
TEST(test_timeline_reuse)
{
	struct scene scene = {0};
	sem_t busy;

	sem_init(&busy, 0, 0);
	scene_open(&scene, see_values, &busy);
	for (int i = 0; i < TURNS; i++) {
		zerod_stream *stream = new_stream(&scene);

		launch(&scene, stream, hold, &busy);
		assert_status(scene.client, zerod_release(scene.unit, &stream, 1, NULL, NULL), ZEROD_OK);
		zerod_stream_destroy(stream);
	}
	scene_close(&scene);
	sem_destroy(&busy);
}

TEST(test_stream_limit)
{
	static zerod_stream *streams[ZEROD_MAX_STREAMS];
	struct scene scene = {0};
	zerod_stream *one_more;

	scene_open(&scene, only_unit, NULL);
	for (int i = 0; i < ZEROD_MAX_STREAMS; i++)
		streams[i] = new_stream(&scene);
	assert_int_equal(zerod_host_stream_create(scene.client, &one_more), ZEROD_E_LIMIT);
	zerod_stream_destroy(streams[100]);
	assert_status(scene.client, zerod_host_stream_create(scene.client, &one_more), ZEROD_OK);
	scene_close(&scene);
}

/* Answers a gather with this value of its fence. Returns the release that follows. */
static const Zd__Request *serve_gather(struct fake_peer *peer, uint64_t fence_value)
{
	const Zd__Request *request;

	fake_serve_unit(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
	if (!request)
		return NULL;
	fake_gather_reply(peer, request->id, fence_value);
	return fake_expect(peer, ZD__REQUEST__BODY_RELEASE);
}

/* ---- The daemon's fences ------------------------------------------------------------------------------- */

static void signal_when_released(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request = serve_gather(peer, 1);

	(void)arg;
	if (!request || !fake_check(peer, request->release->n_fences == 1))
		return;
	/* The stream waits, so that its fence cannot have passed. */
	fake_check(peer, __atomic_load_n(&peer->client_page[0], __ATOMIC_ACQUIRE) == 0);
	memcpy(peer->segment + FAKE_BUFFER_OFFSET, "bytes", 6);
	fake_signal(peer, 0, 1);
	fake_await_timeline(peer, 0, request->release->fences[0]->value);
	fake_ok(peer, request->id);
	fake_expect_end(peer);
}

static void copy_bytes(void *arg)
{
	char **from_to = arg;

	memcpy(from_to[1], from_to[0], 6);
}

/* Gather, work and release are appended at once; the work sees the bytes, the release's fence comes after
 * it. */
TEST(test_stream_waits_for_bytes)
{
	struct scene scene = {0};
	zerod_stream *stream;
	char seen[6] = "";
	char *from_to[2] = {NULL, seen};
	zerod_ticket released;
	void *data = NULL;

	scene_open(&scene, signal_when_released, NULL);
	stream = new_stream(&scene);
	assert_status(scene.client, zerod_gather(scene.unit, NULL, stream, &data), ZEROD_OK);
	from_to[0] = data;
	launch(&scene, stream, copy_bytes, from_to);
	assert_status(scene.client, zerod_release(scene.unit, &stream, 1, NULL, &released), ZEROD_OK);
	assert_status(scene.client, zerod_wait(scene.client, released, NULL, NULL), ZEROD_OK);
	assert_string_equal(seen, "bytes");
	scene_close(&scene);
}

TEST(test_foreign_stream)
{
	struct scene one = {0}, two = {0};
	zerod_stream *stream;

	scene_open(&one, only_unit, NULL);
	scene_open(&two, only_unit, NULL);
	stream = new_stream(&two);
	assert_int_equal(zerod_release(one.unit, &stream, 1, NULL, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_wait(one.client, (zerod_ticket){1}, stream, NULL), ZEROD_E_INVALID);
	scene_close(&one);
	scene_close(&two);
}

/* ---- Aborts -------------------------------------------------------------------------------------------- */

static void abort_when_released(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request = serve_gather(peer, 1);

	(void)arg;
	if (!request || !fake_check(peer, request->release->n_fences == 1))
		return;
	fake_abort(peer);
	/* The work behind the wait is dropped; the daemon must not wait for it. */
	fake_await_timeline(peer, 0, request->release->fences[0]->value);
	fake_ok(peer, request->id);
	request = fake_expect(peer, ZD__REQUEST__BODY_SESSION_RESET);
	if (request)
		fake_ok(peer, request->id);
	fake_expect_end(peer);
}

static void count(void *arg)
{
	++*(int *)arg;
}

TEST(test_abort)
{
	struct scene scene = {0};
	zerod_stream *stream;
	zerod_ticket released;
	int ran = 0;

	scene_open(&scene, abort_when_released, NULL);
	stream = new_stream(&scene);
	assert_status(scene.client, zerod_gather(scene.unit, NULL, stream, NULL), ZEROD_OK);
	launch(&scene, stream, count, &ran);
	assert_status(scene.client, zerod_release(scene.unit, &stream, 1, NULL, &released), ZEROD_OK);
	assert_int_equal(zerod_stream_synchronize(stream), ZEROD_E_ABORTED);
	assert_int_equal(ran, 0);
	assert_int_equal(zerod_host_stream_launch(stream, count, &ran), ZEROD_E_STATE);
	assert_int_equal(zerod_publish(&scene.unit, 1, &stream, 1, NULL, NULL), ZEROD_E_POISONED);
	assert_status(scene.client, zerod_wait(scene.client, released, NULL, NULL), ZEROD_OK);
	assert_status(scene.client, zerod_session_reset(scene.client, NULL), ZEROD_OK);
	launch(&scene, stream, count, &ran);
	assert_status(scene.client, zerod_stream_synchronize(stream), ZEROD_OK);
	assert_int_equal(ran, 1);
	scene_close(&scene);
}

static void close_when_released(struct fake_peer *peer, void *arg)
{
	(void)arg;
	(void)serve_gather(peer, 1);
}

/* The daemon is gone: a stream that waits for it must not keep close from ending. */
TEST(test_daemon_dies_under_stream)
{
	struct scene scene = {0};
	zerod_stream *stream;
	zerod_ticket released;
	int ran = 0;

	scene_open(&scene, close_when_released, NULL);
	stream = new_stream(&scene);
	assert_status(scene.client, zerod_gather(scene.unit, NULL, stream, NULL), ZEROD_OK);
	launch(&scene, stream, count, &ran);
	assert_status(scene.client, zerod_release(scene.unit, &stream, 1, NULL, &released), ZEROD_OK);
	assert_int_equal(zerod_stream_synchronize(stream), ZEROD_E_DISCONNECTED);
	assert_int_equal(ran, 0);
	scene_close(&scene);
}

/* ---- What is corked ------------------------------------------------------------------------------------ */

static void answer_release(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request = serve_gather(peer, 0);

	(void)arg;
	if (request)
		fake_ok(peer, request->id);
	fake_expect_end(peer);
}

struct releaser {
	zerod_client *client;
	zerod_ticket released;
	int status;
};

static void await_release(void *arg)
{
	struct releaser *releaser = arg;

	releaser->status = zerod_wait(releaser->client, releaser->released, NULL, NULL);
}

TEST(test_destroy_sends_what_is_corked)
{
	struct releaser releaser = {.status = -1};
	struct scene scene = {0};
	zerod_stream *stream;

	scene_open(&scene, answer_release, NULL);
	stream = new_stream(&scene);
	releaser.client = scene.client;
	assert_status(scene.client, zerod_gather(scene.unit, NULL, NULL, NULL), ZEROD_OK);
	zerod_cork(scene.client);
	assert_status(scene.client, zerod_release(scene.unit, NULL, 0, NULL, &releaser.released), ZEROD_OK);
	launch(&scene, stream, await_release, &releaser);
	zerod_stream_destroy(stream);
	assert_int_equal(releaser.status, ZEROD_OK);
	assert_status(scene.client, zerod_uncork(scene.client), ZEROD_OK);
	scene_close(&scene);
}
