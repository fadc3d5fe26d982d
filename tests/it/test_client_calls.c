/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_calls.c - requests and replies: order, threads, batches, full sockets, deadlines, and a daemon
 * that errs. */
#include "tests/it/client_scene.h"

#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include <zerod_read.h>

#include "client/lib/calls/alloc.h"
#include "client/lib/conn/request.h"

static int status_call(zerod_client *client, uint32_t deadline_ms)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__DaemonStatus status = ZD__DAEMON_STATUS__INIT;

	request.body_case = ZD__REQUEST__BODY_DAEMON_STATUS;
	request.daemon_status = &status;
	return zc_call(client, &request, deadline_ms, NULL, NULL);
}

/* ---- Order and threads --------------------------------------------------------------------------------- */

#define CALLERS 8
#define ROUNDS  50

/* Collects a request of each thread, then answers the last one first, each with its own rank in the text. */
static void answer_backwards(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_hello(peer);
	for (int round = 0; round < ROUNDS && !peer->failed; round++) {
		uint64_t ids[CALLERS], sessions[CALLERS];
		char text[32];

		for (int i = 0; i < CALLERS; i++) {
			const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_KILL_SESSION);

			if (!request)
				return;
			ids[i] = request->id;
			sessions[i] = request->kill_session->session;
		}
		for (int i = CALLERS - 1; i >= 0; i--) {
			snprintf(text, sizeof(text), "caller %d", (int)sessions[i]);
			fake_error(peer, ids[i], ZEROD_E_NOT_FOUND, text);
		}
	}
	fake_expect_end(peer);
}

struct caller {
	zerod_client *client;
	uint64_t number;
	bool right;
};

static void *call_in_rounds(void *arg)
{
	struct caller *caller = arg;
	char expected[32];

	snprintf(expected, sizeof(expected), "caller %d", (int)caller->number);
	caller->right = true;
	for (int round = 0; round < ROUNDS; round++) {
		Zd__Request request = ZD__REQUEST__INIT;
		Zd__KillSession kill_session = ZD__KILL_SESSION__INIT;

		kill_session.session = caller->number;
		request.body_case = ZD__REQUEST__BODY_KILL_SESSION;
		request.kill_session = &kill_session;
		if (zc_call(caller->client, &request, 0, NULL, NULL) != ZEROD_E_NOT_FOUND ||
		    strcmp(zerod_last_error(caller->client), expected) != 0)
			caller->right = false;
	}
	return NULL;
}

TEST(test_threads_out_of_order)
{
	struct caller callers[CALLERS];
	pthread_t threads[CALLERS];
	struct scene scene = {0};

	scene_connect(&scene, answer_backwards, NULL, 20000);
	for (int i = 0; i < CALLERS; i++) {
		callers[i] = (struct caller){.client = scene.client, .number = (uint64_t)i + 1};
		assert_int_equal(pthread_create(&threads[i], NULL, call_in_rounds, &callers[i]), 0);
	}
	for (int i = 0; i < CALLERS; i++) {
		pthread_join(threads[i], NULL);
		assert_true(callers[i].right);
	}
	scene_close(&scene);
}

/* ---- Batches ------------------------------------------------------------------------------------------- */

#define PAIRS 32

static void count_packets(struct fake_peer *peer, void *arg)
{
	unsigned *packets = arg;
	unsigned before;

	fake_serve_unit(peer);
	before = peer->packets;
	for (int i = 0; i < PAIRS && !peer->failed; i++) {
		const Zd__Request *gather = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
		const Zd__Request *release;

		if (!gather)
			return;
		fake_gather_reply(peer, gather->id, 0);
		release = fake_expect(peer, ZD__REQUEST__BODY_RELEASE);
		if (!release)
			return;
		fake_ok(peer, release->id);
	}
	*packets = peer->packets - before;
	fake_expect_end(peer);
}

TEST(test_cork)
{
	zerod_ticket gathers[PAIRS], releases[PAIRS];
	struct scene scene = {0};
	unsigned packets = 0;

	scene_open(&scene, count_packets, &packets);
	zerod_cork(scene.client);
	zerod_cork(scene.client);
	for (int i = 0; i < PAIRS; i++) {
		assert_status(scene.client, zerod_gather_begin(scene.unit, NULL, &gathers[i]), ZEROD_OK);
		assert_status(scene.client, zerod_release(scene.unit, NULL, 0, NULL, &releases[i]), ZEROD_OK);
	}
	assert_status(scene.client, zerod_uncork(scene.client), ZEROD_OK);
	assert_status(scene.client, zerod_uncork(scene.client), ZEROD_OK);
	assert_int_equal(zerod_uncork(scene.client), ZEROD_E_STATE);
	for (int i = 0; i < PAIRS; i++) {
		assert_status(scene.client, zerod_wait(scene.client, releases[i], NULL, NULL), ZEROD_OK);
		assert_int_equal(zerod_wait(scene.client, gathers[i], NULL, NULL), ZEROD_E_STALE);
	}
	scene_close(&scene);
	assert_int_equal(packets, 1);
}

/* A wait inside the cork sends what was collected, and only the thread that corked is held back. */
TEST(test_wait_uncorks)
{
	zerod_ticket gathers[PAIRS], releases[PAIRS];
	struct scene scene = {0};
	unsigned packets = 0;

	scene_open(&scene, count_packets, &packets);
	zerod_cork(scene.client);
	for (int i = 0; i < PAIRS; i++) {
		assert_status(scene.client, zerod_gather_begin(scene.unit, NULL, &gathers[i]), ZEROD_OK);
		if (i % 16 == 0)
			assert_status(scene.client, zerod_wait(scene.client, gathers[i], NULL, NULL),
			              ZEROD_OK);
		assert_status(scene.client, zerod_release(scene.unit, NULL, 0, NULL, &releases[i]), ZEROD_OK);
	}
	assert_status(scene.client, zerod_uncork(scene.client), ZEROD_OK);
	for (int i = 0; i < PAIRS; i++)
		assert_status(scene.client, zerod_wait(scene.client, releases[i], NULL, NULL), ZEROD_OK);
	scene_close(&scene);
	assert_int_equal(packets, 3);
}

/* ---- Many requests ------------------------------------------------------------------------------------- */

#define MANY 5000

static void *release_many(void *arg)
{
	struct scene *scene = arg;
	intptr_t wrong = 0;

	for (int i = 0; i < MANY; i++) {
		zerod_ticket ticket;

		wrong += zerod_release(scene->unit, NULL, 0, NULL, &ticket) != ZEROD_OK;
		if (i % 100 == 99)
			wrong += zerod_wait(scene->client, ticket, NULL, NULL) != ZEROD_OK;
	}
	return (void *)wrong;
}

/* More than a socket holds, before it reads a single request: the client must read while it cannot send.
 * These answer a request that was answered before, which is no breach. */
#define FLOOD 3000

static void flood_then_answer(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	for (int i = 0; i < FLOOD && !peer->failed; i++)
		fake_ok(peer, 1);
	for (int i = 0; i < 2 * MANY && !peer->failed; i++) {
		const Zd__Request *release = fake_expect(peer, ZD__REQUEST__BODY_RELEASE);

		if (release)
			fake_ok(peer, release->id);
	}
	fake_expect_end(peer);
}

TEST(test_full_sockets)
{
	struct scene scene = {0};
	pthread_t other;
	void *wrong;

	scene_open(&scene, flood_then_answer, NULL);
	assert_int_equal(pthread_create(&other, NULL, release_many, &scene), 0);
	assert_int_equal((intptr_t)release_many(&scene), 0);
	pthread_join(other, &wrong);
	assert_int_equal((intptr_t)wrong, 0);
	scene_close(&scene);
}

/* Releases have room for so many. */
#define RELEASES (ZD_MAX_OUTSTANDING + ZD_RELEASE_ROOM)

/* At most so many are on their way, in however many packets. */
static void hold_answers(struct fake_peer *peer, void *arg)
{
	static uint64_t ids[RELEASES];

	(void)arg;
	fake_serve_unit(peer);
	for (unsigned i = 0; i < RELEASES && !peer->failed; i++) {
		const Zd__Request *release = fake_expect(peer, ZD__REQUEST__BODY_RELEASE);

		if (!release)
			return;
		ids[i] = release->id;
	}
	/* The client sends its next request only because of this answer. */
	fake_ok(peer, ids[0]);
	fake_await_request(peer);
	for (unsigned i = 1; i < RELEASES; i++)
		fake_ok(peer, ids[i]);
	fake_ok(peer, fake_expect(peer, ZD__REQUEST__BODY_RELEASE)->id);
	fake_expect_end(peer);
}

TEST(test_outstanding_limit)
{
	struct scene scene = {0};
	zerod_ticket ticket;

	scene_open(&scene, hold_answers, NULL);
	for (unsigned i = 0; i < RELEASES; i++)
		assert_status(scene.client, zerod_release(scene.unit, NULL, 0, NULL, &ticket), ZEROD_OK);
	assert_status(scene.client, zerod_release(scene.unit, NULL, 0, NULL, NULL), ZEROD_OK);
	scene_close(&scene);
}

/* ---- Ends ---------------------------------------------------------------------------------------------- */

static void close_with_requests(struct fake_peer *peer, void *arg)
{
	unsigned requests = *(unsigned *)arg;

	fake_serve_unit(peer);
	for (unsigned i = 0; i < requests && !peer->failed; i++)
		(void)fake_expect(peer, ZD__REQUEST__BODY_GATHER);
}

static void *gather_and_wait(void *arg)
{
	struct scene *scene = arg;

	return (void *)(intptr_t)zerod_gather(scene->unit, NULL, NULL, NULL);
}

TEST(test_daemon_closes)
{
	pthread_t threads[CALLERS];
	unsigned requests = CALLERS;
	struct scene scene = {0};
	zerod_ticket ticket;

	scene_open(&scene, close_with_requests, &requests);
	for (int i = 0; i < CALLERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, gather_and_wait, &scene), 0);
	for (int i = 0; i < CALLERS; i++) {
		void *status;

		pthread_join(threads[i], &status);
		assert_int_equal((intptr_t)status, ZEROD_E_DISCONNECTED);
	}
	assert_int_equal(zerod_gather_begin(scene.unit, NULL, &ticket), ZEROD_E_DISCONNECTED);
	assert_string_not_equal(zerod_last_error(scene.client), "");
	assert_int_equal(zerod_group_leave(scene.group, NULL), ZEROD_E_DISCONNECTED);
	scene_close(&scene);
}

/* Its last words are heard even by who finds out by sending. */
static void farewell(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_hello(peer);
	fake_error(peer, 0, ZEROD_E_SHUTDOWN, "the daemon is going down");
}

TEST(test_last_words)
{
	struct scene scene = {0};

	scene_connect(&scene, farewell, NULL, 0);
	assert_int_equal(status_call(scene.client, 0), ZEROD_E_SHUTDOWN);
	assert_string_equal(zerod_last_error(scene.client), "the daemon is going down");
	scene_close(&scene);
}

/* The late answer to a call that was given up is no breach. */
static void answer_too_late(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;
	uint64_t late_id;

	(void)arg;
	fake_hello(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_DAEMON_STATUS);
	if (!request)
		return;
	late_id = request->id;
	fake_check(peer, request->deadline_ms == 1);
	request = fake_expect(peer, ZD__REQUEST__BODY_DAEMON_STATUS);
	if (!request)
		return;
	fake_check(peer, request->deadline_ms == 0);
	fake_ok(peer, late_id);
	fake_ok(peer, request->id);
	fake_expect_end(peer);
}

TEST(test_deadline)
{
	struct scene scene = {0};

	scene_connect(&scene, answer_too_late, NULL, 0);
	assert_int_equal(status_call(scene.client, 1), ZEROD_E_DEADLINE);
	assert_status(scene.client, status_call(scene.client, ZEROD_NO_DEADLINE), ZEROD_OK);
	scene_close(&scene);
}

/* ---- A daemon that errs -------------------------------------------------------------------------------- */

enum fault {
	FAULT_UNKNOWN_ID,
	FAULT_POSITIVE_STATUS,
	FAULT_NO_ID,
	FAULT_NO_BODY,
	FAULT_NO_LOCATION,
	FAULT_UNKNOWN_SEGMENT,
	FAULT_BEHIND_SEGMENT,
	FAULT_OFFSET_OVERFLOW,
	FAULT_SHORT_BUFFER,
	FAULT_MISALIGNED,
	FAULT_FENCE_TIMELINE,
	FAULT_FENCE_VALUE,
	FAULT_FENCE_ZERO,
	FAULT_SEGMENT_TWICE,
	FAULT_SEGMENT_UNSEALED,
	FAULT_SEGMENT_SHORT,
	FAULT_SEGMENT_EMPTY,
	FAULT_SEGMENT_WITHOUT_FD,
	FAULT_FD_WITHOUT_SEGMENT,
	FAULT_SECOND_HELLO,
	FAULTS
};

static void faulty_gather(struct fake_peer *peer, uint64_t id, enum fault fault)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__GatherReply gather = ZD__GATHER_REPLY__INIT;
	Zd__Location buffer = ZD__LOCATION__INIT;
	Zd__Fence fence = ZD__FENCE__INIT;
	Zd__Fence *fences = &fence;

	buffer.segment = fault == FAULT_UNKNOWN_SEGMENT ? 99 : FAKE_SEGMENT;
	buffer.bytes = fault == FAULT_SHORT_BUFFER ? FAKE_PADDED_BYTES - 1 : FAKE_PADDED_BYTES;
	buffer.offset = fault == FAULT_BEHIND_SEGMENT    ? FAKE_SEGMENT_BYTES - 4
	                : fault == FAULT_OFFSET_OVERFLOW ? UINT64_MAX - 255
	                : fault == FAULT_MISALIGNED      ? 4097
	                                                 : 4096;
	fence.timeline = fault == FAULT_FENCE_TIMELINE ? ZD_TIMELINES : 0;
	fence.value = fault == FAULT_FENCE_VALUE ? (uint64_t)INT64_MAX : fault == FAULT_FENCE_ZERO ? 0 : 1;
	gather.buffer = fault == FAULT_NO_LOCATION ? NULL : &buffer;
	gather.n_fences = 1;
	gather.fences = &fences;
	reply.id = fault == FAULT_UNKNOWN_ID ? id + 1000 : fault == FAULT_NO_ID ? 0 : id;
	reply.status = fault == FAULT_POSITIVE_STATUS;
	if (fault != FAULT_NO_BODY) {
		reply.body_case = ZD__REPLY__BODY_GATHER;
		reply.gather = &gather;
	}
	fake_reply(peer, &reply);
}

static void faulty_segment(struct fake_peer *peer, enum fault fault)
{
	Zd__DaemonPacket packet = ZD__DAEMON_PACKET__INIT;
	Zd__Segment segment = ZD__SEGMENT__INIT;
	Zd__Segment *segments = &segment;
	unsigned nfds = fault == FAULT_SEGMENT_WITHOUT_FD ? 0 : fault == FAULT_FD_WITHOUT_SEGMENT ? 2 : 1;
	int seals = fault == FAULT_SEGMENT_UNSEALED ? 0 : FAKE_SEALS;
	int fds[2];

	fds[0] = fake_memfd(fault == FAULT_SEGMENT_SHORT ? 4096 : 8192, seals, NULL);
	fds[1] = fake_memfd(8192, seals, NULL);
	segment.id = fault == FAULT_SEGMENT_TWICE ? FAKE_SEGMENT : 8;
	segment.bytes = fault == FAULT_SEGMENT_EMPTY ? 0 : 8192;
	packet.n_segments = 1;
	packet.segments = &segments;
	fake_send(peer, &packet, fds, nfds);
	close(fds[0]);
	close(fds[1]);
}

/* A hello's reply to a request that was none: no pages are taken a second time. */
static void second_hello(struct fake_peer *peer, uint64_t id)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__HelloReply hello = ZD__HELLO_REPLY__INIT;

	reply.id = id;
	reply.body_case = ZD__REPLY__BODY_HELLO;
	reply.hello = &hello;
	fake_reply(peer, &reply);
}

static void commit_fault(struct fake_peer *peer, void *arg)
{
	enum fault fault = *(enum fault *)arg;
	const Zd__Request *request;

	fake_serve_unit(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
	if (!request)
		return;
	if (fault == FAULT_SECOND_HELLO)
		second_hello(peer, request->id);
	else if (fault >= FAULT_SEGMENT_TWICE)
		faulty_segment(peer, fault);
	else
		faulty_gather(peer, request->id, fault);
	fake_expect_end(peer);
}

TEST(test_faults)
{
	for (enum fault fault = 0; fault < FAULTS; fault++) {
		struct scene scene = {0};
		void *data = NULL;
		int rc;

		scene_open(&scene, commit_fault, &fault);
		rc = zerod_gather(scene.unit, NULL, NULL, &data);
		if (rc != ZEROD_E_PROTOCOL)
			print_error("fault %d: %s\n", (int)fault, zerod_last_error(scene.client));
		assert_int_equal(rc, ZEROD_E_PROTOCOL);
		assert_null(data);
		assert_int_equal(zerod_gather(scene.unit, NULL, NULL, &data), ZEROD_E_PROTOCOL);
		scene_close(&scene);
	}
}

#define ROW_BYTES 8u

static void copy_one_row(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	for (uint32_t rows = 1; rows <= 2; rows++) {
		Zd__Reply reply = ZD__REPLY__INIT;
		Zd__UnitReadReply read = ZD__UNIT_READ_REPLY__INIT;
		const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_UNIT_READ);

		if (!request)
			return;
		fake_check(peer, request->unit_read->rows == rows);
		reply.id = request->id;
		reply.body_case = ZD__REPLY__BODY_UNIT_READ;
		reply.unit_read = &read;
		fake_reply(peer, &reply);
	}
	fake_expect_end(peer);
}

TEST(test_an_older_daemon_copies_one_row)
{
	struct zerod_unit_read_options options = ZEROD_INIT(options);
	struct zerod_allocation into = {.id = 1};
	struct scene scene = {0};

	scene_open(&scene, copy_one_row, NULL);
	into.client = scene.client;
	options.unit = "w";
	options.into = &into;
	options.bytes = options.stride_bytes = ROW_BYTES;
	options.rows = 1;
	assert_status(scene.client, zerod_unit_read(scene.client, &options, NULL), ZEROD_OK);
	options.rows = 2;
	assert_status(scene.client, zerod_unit_read(scene.client, &options, NULL), ZEROD_E_UNSUPPORTED);
	assert_non_null(strstr(zerod_last_error(scene.client), "copies one row of a read"));
	scene_close(&scene);
}

/* Packets of seeded random bytes, and good ones with a byte changed: any status will do, as long as we
 * live. */
static void send_noise(struct fake_peer *peer, void *arg)
{
	unsigned seed = *(unsigned *)arg;
	uint8_t bytes[600];
	size_t nbytes;

	fake_serve_unit(peer);
	if (!fake_expect(peer, ZD__REQUEST__BODY_GATHER))
		return;
	nbytes = 1 + (size_t)rand_r(&seed) % (sizeof(bytes) - 1);
	for (size_t i = 0; i < nbytes; i++)
		bytes[i] = (uint8_t)(rand_r(&seed) >> 7);
	if (seed % 2) { /* looks like a reply */
		bytes[0] = 0x12;
		bytes[1] = (uint8_t)(nbytes < 120 ? nbytes : 100);
		bytes[2] = 0x08;
	}
	fake_send_bytes(peer, bytes, nbytes, NULL, 0);
}

TEST(test_noise)
{
	for (unsigned seed = 1; seed <= 200; seed++) {
		struct scene scene = {0};
		unsigned script_seed = seed;

		scene_open(&scene, send_noise, &script_seed);
		assert_int_not_equal(zerod_gather(scene.unit, NULL, NULL, NULL), ZEROD_OK);
		scene_close(&scene);
	}
}
