/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_gather.c - tickets, leases and waits of the calling thread. */
#include "tests/it/client_scene.h"
#include "tests/support/options.h"

#include <signal.h>
#include <sys/time.h>

#include "client/lib/base/fence.h"

static uint64_t answer_gather(struct fake_peer *peer, uint64_t fence_value)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);

	if (!request)
		return 0;
	fake_gather_reply(peer, request->id, fence_value);
	return request->id;
}

static void answer_release(struct fake_peer *peer, int status)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_RELEASE);

	if (request)
		fake_error(peer, request->id, status, "the daemon's words");
}

static zerod_ticket begin(struct scene *scene, uint32_t uses, uint32_t flags)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_ticket ticket = {0};

	options.uses = uses;
	options.flags = flags;
	assert_status(scene->client, zerod_gather_begin(scene->unit, &options, &ticket), ZEROD_OK);
	return ticket;
}

static int wait_for(struct scene *scene, zerod_ticket ticket)
{
	return zerod_wait(scene->client, ticket, NULL, NULL);
}

static int release(struct scene *scene)
{
	return zerod_release(scene->unit, NULL, 0, NULL, NULL);
}

/* ---- Leases -------------------------------------------------------------------------------------------- */

static void gather_release(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	answer_gather(peer, 0);
	answer_release(peer, ZEROD_OK);
	answer_release(peer, ZEROD_E_NOT_HELD);
	fake_expect_end(peer);
}

TEST(test_wait_release_wait)
{
	struct scene scene = {0};
	struct zerod_shard shard = ZEROD_INIT(shard);
	void *data = NULL, *again = NULL;
	zerod_ticket ticket;

	scene_open(&scene, gather_release, NULL);
	ticket = begin(&scene, 0, 0);
	assert_status(scene.client, zerod_wait(scene.client, ticket, NULL, &data), ZEROD_OK);
	assert_status(scene.client, zerod_wait(scene.client, ticket, NULL, &again), ZEROD_OK);
	assert_ptr_equal(data, again);
	assert_status(scene.client, zerod_shard_get(scene.unit, &shard), ZEROD_OK);
	assert_ptr_equal(data, (uint8_t *)shard.data + FAKE_BUFFER_OFFSET);
	assert_int_equal(shard.shard_numel, 64);
	assert_int_equal(shard.padded_numel, 128);
	assert_status(scene.client, release(&scene), ZEROD_OK);
	assert_int_equal(wait_for(&scene, ticket), ZEROD_E_STALE);
	/* Nothing is held: the daemon says so, not the library. */
	assert_int_equal(release(&scene), ZEROD_E_NOT_HELD);
	assert_string_equal(zerod_last_error(scene.client), "the daemon's words");
	/* Tickets that never were. */
	assert_int_equal(wait_for(&scene, (zerod_ticket){0}), ZEROD_E_INVALID);
	assert_int_equal(wait_for(&scene, (zerod_ticket){1000000}), ZEROD_E_INVALID);
	scene_close(&scene);
}

#define CYCLES      (2 * ZC_SURPLUS_TICKETS)
#define MANY_CYCLES (ZC_MAX_FINISHED + CYCLES)

static void gather_cycles(struct fake_peer *peer, void *arg)
{
	const unsigned *cycles = arg;

	fake_serve_unit(peer);
	answer_gather(peer, 0);
	answer_gather(peer, 0);
	for (unsigned i = 0; i < *cycles && !peer->failed; i++) {
		answer_gather(peer, 0);
		answer_release(peer, ZEROD_OK);
	}
	fake_expect_end(peer);
}

/* A lease that never ends does not collect tickets for ever; one that a slow thread is about to wait for is
 * no surplus. */
TEST(test_long_lease)
{
	unsigned cycles = CYCLES;
	struct scene scene = {0};
	zerod_ticket first, slow, last = {0};

	scene_open(&scene, gather_cycles, &cycles);
	first = begin(&scene, 1, 0);
	assert_status(scene.client, wait_for(&scene, first), ZEROD_OK);
	slow = begin(&scene, 1, 0);
	for (unsigned i = 0; i < CYCLES; i++) {
		last = begin(&scene, 1, 0);
		assert_status(scene.client, wait_for(&scene, last), ZEROD_OK);
		assert_status(scene.client, release(&scene), ZEROD_OK);
	}
	assert_status(scene.client, wait_for(&scene, last), ZEROD_OK);
	assert_int_equal(wait_for(&scene, first), ZEROD_E_STALE);
	assert_status(scene.client, wait_for(&scene, slow), ZEROD_OK);
	scene_close(&scene);
}

/* Nor does one whose tickets nobody waits for. */
TEST(test_long_lease_without_waits)
{
	unsigned cycles = MANY_CYCLES;
	struct scene scene = {0};
	zerod_ticket first, last = {0};

	scene_open(&scene, gather_cycles, &cycles);
	first = begin(&scene, 1, 0);
	(void)begin(&scene, 1, 0);
	for (unsigned i = 0; i < MANY_CYCLES; i++) {
		last = begin(&scene, 1, 0);
		assert_status(scene.client, release(&scene), ZEROD_OK);
	}
	assert_status(scene.client, wait_for(&scene, last), ZEROD_OK);
	assert_int_equal(wait_for(&scene, first), ZEROD_E_STALE);
	scene_close(&scene);
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

static void fail_then_serve(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;
	uint64_t failing, good;

	(void)arg;
	fake_serve_unit(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
	if (!request)
		return;
	failing = request->id;
	request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
	if (!request)
		return;
	good = request->id;
	fake_gather_reply(peer, good, 0);
	fake_error(peer, failing, ZEROD_E_NO_MEMORY, "never fits");
	answer_release(peer, ZEROD_OK);
	fake_expect_end(peer);
}

/* A gather that failed holds nothing: one release ends the lease of the other. */
TEST(test_failed_gather)
{
	struct scene scene = {0};
	zerod_ticket failing, good;

	scene_open(&scene, fail_then_serve, NULL);
	failing = begin(&scene, 3, 0);
	good = begin(&scene, 1, 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(wait_for(&scene, failing), ZEROD_E_NO_MEMORY);
		assert_string_equal(zerod_last_error(scene.client), "never fits");
	}
	assert_status(scene.client, wait_for(&scene, good), ZEROD_OK);
	assert_status(scene.client, release(&scene), ZEROD_OK);
	assert_int_equal(wait_for(&scene, good), ZEROD_E_STALE);
	scene_close(&scene);
}

static void answer_prefetch(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__GatherReply gather = ZD__GATHER_REPLY__INIT;

	(void)arg;
	fake_serve_unit(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
	if (!request)
		return;
	fake_check(peer, request->gather->prefetch);
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_GATHER;
	reply.gather = &gather;
	fake_reply(peer, &reply);
	answer_release(peer, ZEROD_E_NOT_HELD);
	answer_release(peer, ZEROD_E_NOT_HELD);
	fake_expect_end(peer);
}

/* A prefetch and a release with a ticket are consumed by the first wait. */
TEST(test_consumed_tickets)
{
	struct scene scene = {0};
	zerod_ticket prefetch, released;
	void *data = &scene;

	scene_open(&scene, answer_prefetch, NULL);
	prefetch = begin(&scene, 1, ZEROD_GATHER_PREFETCH);
	assert_status(scene.client, zerod_wait(scene.client, prefetch, NULL, &data), ZEROD_OK);
	assert_null(data);
	assert_int_equal(wait_for(&scene, prefetch), ZEROD_E_STALE);
	assert_int_equal(release(&scene), ZEROD_E_NOT_HELD);
	assert_status(scene.client, zerod_release(scene.unit, NULL, 0, NULL, &released), ZEROD_OK);
	assert_int_equal(zerod_wait(scene.client, released, NULL, &data), ZEROD_E_INVALID);
	assert_int_equal(wait_for(&scene, released), ZEROD_E_NOT_HELD);
	assert_int_equal(wait_for(&scene, released), ZEROD_E_STALE);
	scene_close(&scene);
}

#define FORGOTTEN (ZC_MAX_FINISHED + 100)

static void answer_many(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	for (unsigned i = 0; i < FORGOTTEN && !peer->failed; i++)
		answer_release(peer, ZEROD_E_NOT_HELD);
	fake_expect_end(peer);
}

/* Tickets that nobody waits for do not pile up for ever: the oldest go. */
TEST(test_forgotten_tickets)
{
	struct scene scene = {0};
	zerod_ticket first, last;

	scene_open(&scene, answer_many, NULL);
	assert_status(scene.client, zerod_release(scene.unit, NULL, 0, NULL, &first), ZEROD_OK);
	for (unsigned i = 1; i < FORGOTTEN; i++)
		assert_status(scene.client, zerod_release(scene.unit, NULL, 0, NULL, &last), ZEROD_OK);
	assert_int_equal(wait_for(&scene, last), ZEROD_E_NOT_HELD);
	assert_int_equal(wait_for(&scene, first), ZEROD_E_STALE);
	scene_close(&scene);
}

/* ---- Waiting for the bytes ----------------------------------------------------------------------------- */

/* The scripts below let the test's thread say when they may go on. */
static void *wait_in_thread(void *arg)
{
	struct scene *scene = arg;
	void *data = NULL;
	int rc = zerod_gather(scene->unit, NULL, NULL, &data);

	if (rc == ZEROD_OK && memcmp(data, "bytes", 5) != 0)
		rc = ZEROD_E_PROTOCOL;
	return (void *)(intptr_t)rc;
}

#define WAITERS 4

/* The bytes are written, and the counter raised, only after all gathers were answered. */
static void signal_later(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	for (int i = 0; i < WAITERS && !peer->failed; i++)
		answer_gather(peer, 2);
	if (peer->failed)
		return;
	fake_signal(peer, 0, 1);
	memcpy(peer->segment + FAKE_BUFFER_OFFSET, "bytes", 5);
	fake_signal(peer, 0, 2);
	fake_expect_end(peer);
}

TEST(test_threads_wait_for_bytes)
{
	pthread_t threads[WAITERS];
	struct scene scene = {0};

	scene_open(&scene, signal_later, NULL);
	for (int i = 0; i < WAITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, wait_in_thread, &scene), 0);
	for (int i = 0; i < WAITERS; i++) {
		void *status;

		pthread_join(threads[i], &status);
		assert_int_equal((intptr_t)status, ZEROD_OK);
	}
	scene_close(&scene);
}

/* A counter past INT64_MAX and a fence on the other side of the wrap: signed and cyclic. */
TEST(test_fence_compare)
{
	assert_true(zc_fence_reached(5, 5));
	assert_true(zc_fence_reached(6, 5));
	assert_false(zc_fence_reached(4, 5));
	assert_true(zc_fence_reached(2, UINT64_MAX));
	assert_false(zc_fence_reached(UINT64_MAX, 2));
	assert_true(zc_fence_reached(ZD_FENCE_ABORTED, 1));
}

/* Raises the counter only when it is told to. */
static void signal_when_told(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;

	(void)arg;
	fake_serve_unit(peer);
	answer_gather(peer, 1);
	request = fake_expect(peer, ZD__REQUEST__BODY_SET_PERSISTENT);
	if (!request)
		return;
	fake_signal(peer, 0, 1);
	fake_ok(peer, request->id);
	fake_expect_end(peer);
}

TEST(test_bytes_deadline)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	struct scene scene = {0};
	zerod_ticket ticket;

	scene_open(&scene, signal_when_told, NULL);
	options.deadline_ms = 1;
	assert_status(scene.client, zerod_gather_begin(scene.unit, &options, &ticket), ZEROD_OK);
	assert_int_equal(wait_for(&scene, ticket), ZEROD_E_DEADLINE);
	assert_non_null(strstr(zerod_last_error(scene.client), "'w'"));
	/* Nothing was lost: it may be waited for again. */
	assert_status(scene.client, zerod_unit_set_persistent(scene.unit, 1), ZEROD_OK);
	assert_status(scene.client, wait_for(&scene, ticket), ZEROD_OK);
	scene_close(&scene);
}

static void close_after_answer(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	answer_gather(peer, 1);
}

static void count_ticks(int number)
{
	(void)number;
}

/* Signals cut every sleep short. */
TEST(test_daemon_dies_under_a_timer)
{
	const struct sigaction action = {.sa_handler = count_ticks, .sa_flags = SA_RESTART};
	const struct itimerval ticks = {{.tv_usec = 20000}, {.tv_usec = 20000}}, none = {{0}, {0}};
	struct zerod_gather_options options = ZEROD_INIT(options);
	struct scene scene = {0};

	options.deadline_ms = 5000;
	scene_open(&scene, close_after_answer, NULL);
	assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &ticks, NULL), 0);
	assert_int_equal(zerod_gather(scene.unit, &options, NULL, NULL), ZEROD_E_DISCONNECTED);
	assert_int_equal(setitimer(ITIMER_REAL, &none, NULL), 0);
	scene_close(&scene);
}

/* ---- Abort --------------------------------------------------------------------------------------------- */

static void abort_the_wait(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;

	(void)arg;
	fake_serve_unit(peer);
	answer_gather(peer, 1);
	fake_abort(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_SESSION_RESET);
	if (!request)
		return;
	fake_ok(peer, request->id);
	request = fake_expect(peer, ZD__REQUEST__BODY_UPDATE_BEGIN);
	if (request)
		fake_ok(peer, request->id);
	fake_expect_end(peer);
}

TEST(test_abort_poisons)
{
	struct zerod_backward_options backward = ZEROD_INIT(backward);
	struct zerod_step_info info = ZEROD_INIT(info);
	struct scene scene = {0};

	scene_open(&scene, abort_the_wait, NULL);
	assert_int_equal(zerod_gather(scene.unit, NULL, NULL, NULL), ZEROD_E_ABORTED);
	assert_int_equal(zerod_update_begin(&scene.unit, 1, NULL, NULL), ZEROD_E_POISONED);
	assert_int_equal(zerod_publish(&scene.unit, 1, NULL, 0, NULL, NULL), ZEROD_E_POISONED);
	assert_int_equal(zerod_commit(scene.group, 1, NULL), ZEROD_E_POISONED);
	assert_int_equal(zerod_backward_begin(scene.group, &backward), ZEROD_E_POISONED);
	assert_int_equal(zerod_step_begin(scene.group, NULL, &info, NULL), ZEROD_E_POISONED);
	assert_status(scene.client, zerod_session_reset(scene.client, NULL), ZEROD_OK);
	assert_status(scene.client, zerod_update_begin(&scene.unit, 1, NULL, NULL), ZEROD_OK);
	scene_close(&scene);
}

/* One more timeline is aborted with each answer; the reset is answered when the one that counts is back. */
static void abort_one_by_one(struct fake_peer *peer, void *arg)
{
	static const uint32_t timelines[] = {ZD_AWAITED_TIMELINES, ZD_AWAITED_TIMELINES - 1};
	const Zd__Request *request;

	(void)arg;
	fake_serve_unit(peer);
	for (int i = 0; i < 2; i++) {
		request = fake_expect(peer, ZD__REQUEST__BODY_SET_PERSISTENT);
		if (!request)
			return;
		fake_signal(peer, timelines[i], ZD_FENCE_ABORTED);
		fake_ok(peer, request->id);
	}
	request = fake_expect(peer, ZD__REQUEST__BODY_SESSION_RESET);
	if (!request)
		return;
	fake_signal(peer, timelines[1], 0);
	fake_ok(peer, request->id);
	fake_expect_end(peer);
}

/* An abort of pieces that failed may stay for ever: the daemon asks for no sum that would wait for them. */
TEST(test_reset_waits_for_streams_timelines)
{
	struct scene scene = {0};

	scene_open(&scene, abort_one_by_one, NULL);
	assert_status(scene.client, zerod_unit_set_persistent(scene.unit, 1), ZEROD_OK);
	assert_null(zc_fence_find_abort(scene.client));
	assert_status(scene.client, zerod_unit_set_persistent(scene.unit, 0), ZEROD_OK);
	assert_ptr_equal(zc_fence_find_abort(scene.client),
	                 &scene.client->daemon_page[ZD_AWAITED_TIMELINES - 1]);
	assert_status(scene.client, zerod_session_reset(scene.client, NULL), ZEROD_OK);
	assert_null(zc_fence_find_abort(scene.client));
	scene_close(&scene);
}

/* ---- Arguments ----------------------------------------------------------------------------------------- */

static void only_unit(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	fake_expect_end(peer);
}

TEST(test_bad_arguments)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	struct zerod_unit_options unit_options = ZEROD_INIT(unit_options);
	struct zerod_group_options group_options = ZEROD_INIT(group_options);
	struct scene scene = {0};
	zerod_ticket ticket;
	zerod_group *group;
	zerod_unit *unit;

	scene_open(&scene, only_unit, NULL);
	assert_int_equal(zerod_gather_begin(NULL, NULL, &ticket), ZEROD_E_INVALID);
	assert_int_equal(zerod_gather_begin(scene.unit, NULL, NULL), ZEROD_E_INVALID);
	options.flags = 1u << 31;
	assert_int_equal(zerod_gather_begin(scene.unit, &options, &ticket), ZEROD_E_INVALID);
	assert_int_equal(zerod_wait(NULL, ticket, NULL, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_release(scene.unit, NULL, 0, TAGGED(""), NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_release(scene.unit, NULL, 1, NULL, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_release(scene.unit, NULL, ZD_MAX_FENCES + 1, NULL, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_publish(NULL, 1, NULL, 0, NULL, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_publish(&scene.unit, 0, NULL, 0, NULL, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_publish(&scene.unit, 1, NULL, 0, PUBLISH(2), NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_unit_register(scene.group, NULL, &unit), ZEROD_E_INVALID);
	unit_options.name = "u";
	unit_options.dtype = (enum zerod_dtype)99;
	assert_int_equal(zerod_unit_register(scene.group, &unit_options, &unit), ZEROD_E_INVALID);
	unit_options.dtype = ZEROD_INT8;
	unit_options.nviews = 1;
	assert_int_equal(zerod_unit_register(scene.group, &unit_options, &unit), ZEROD_E_INVALID);
	group_options.job = "job";
	assert_int_equal(zerod_group_join(scene.client, &group_options, &group), ZEROD_E_INVALID);
	group_options.world_size = 1;
	group_options.rank = 1;
	assert_int_equal(zerod_group_join(scene.client, &group_options, &group), ZEROD_E_INVALID);
	group_options.rank = 0;
	group_options.job = NULL;
	assert_int_equal(zerod_group_join(scene.client, &group_options, &group), ZEROD_E_INVALID);
	assert_int_equal(zerod_target_get(scene.unit, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_group_get(scene.group, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_group_get(NULL, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_target_get(scene.unit, OPTIONS_OF(zerod_target, .data = NULL)), ZEROD_E_STATE);
	assert_int_equal(zerod_free(NULL, NULL, 0), ZEROD_E_INVALID);
	assert_int_equal(zerod_group_leave(NULL, NULL), ZEROD_OK);
	scene_close(&scene);
}
