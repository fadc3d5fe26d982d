/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_retire.c - segments that a scripted daemon wants back: unmapped at once, and said so; after a
 * reader's mapping has ended.
 */
#include "tests/it/client_scene.h"

#include <zerod_read.h>

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#define SEGMENT 8u
#define BYTES   8192u

static bool is_mapped(void *data)
{
	unsigned char resident[BYTES / 4096];

	return mincore(data, BYTES, resident) == 0 || errno != ENOMEM;
}

/* ---- Scripts ------------------------------------------------------------------------------------------- */

/* A packet with whatever of these is not NULL or 0. */
static void send_packet(struct fake_peer *peer, Zd__Reply *reply, uint32_t announced, uint32_t retired)
{
	Zd__DaemonPacket packet = ZD__DAEMON_PACKET__INIT;
	Zd__Segment segment = ZD__SEGMENT__INIT, *segments = &segment;
	int fd = announced ? fake_memfd(BYTES, FAKE_SEALS, NULL) : -1;

	segment.id = announced;
	segment.bytes = BYTES;
	packet.n_segments = announced ? 1 : 0;
	packet.segments = &segments;
	packet.n_replies = reply ? 1 : 0;
	packet.replies = &reply;
	packet.n_retired = retired ? 1 : 0;
	packet.retired = &retired;
	fake_send(peer, &packet, &fd, announced ? 1 : 0);
	if (announced)
		(void)close(fd);
}

static void serve_alloc(struct fake_peer *peer, uint32_t announced)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__AllocReply alloc = ZD__ALLOC_REPLY__INIT;
	Zd__Location location = ZD__LOCATION__INIT;
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_ALLOC);

	if (!request)
		return;
	location.segment = SEGMENT;
	location.bytes = BYTES;
	alloc.allocation = 1;
	alloc.location = &location;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_ALLOC;
	reply.alloc = &alloc;
	send_packet(peer, &reply, announced, 0);
}

/* The answer comes before anything else that the client may send, whatever it was doing. */
static void expect_unmapped(struct fake_peer *peer, uint32_t segment)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_SEGMENTS_UNMAPPED);

	if (!request)
		return;
	fake_check(peer, request->segments_unmapped->n_segments == 1);
	fake_check(peer, request->segments_unmapped->segments[0] == segment);
	fake_ok(peer, request->id);
}

static void serve_retired_behind_a_reply(struct fake_peer *peer, void *arg)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	const Zd__Request *request;

	(void)arg;
	fake_serve_unit(peer);
	serve_alloc(peer, SEGMENT);
	request = fake_expect(peer, ZD__REQUEST__BODY_FREE);
	if (!request)
		return;
	reply.id = request->id;
	send_packet(peer, &reply, 0, SEGMENT);
	expect_unmapped(peer, SEGMENT);
	/* the client goes on as ever */
	request = fake_expect(peer, ZD__REQUEST__BODY_SESSION_RESET);
	if (request)
		fake_ok(peer, request->id);
	fake_expect_end(peer);
}

static void serve_retired_alone(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;
	uint64_t id;

	(void)arg;
	fake_serve_unit(peer);
	serve_alloc(peer, SEGMENT);
	request = fake_expect(peer, ZD__REQUEST__BODY_SESSION_RESET);
	if (!request)
		return;
	id = request->id;
	send_packet(peer, NULL, 0, SEGMENT);
	expect_unmapped(peer, SEGMENT); /* while the client waits for something else */
	fake_ok(peer, id);
	fake_expect_end(peer);
}

static void serve_retired_before_its_first_use(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;
	uint64_t id;

	(void)arg;
	fake_serve_unit(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
	if (!request)
		return;
	fake_gather_reply(peer, request->id, 0);
	send_packet(peer, NULL, 0, FAKE_SEGMENT);
	request = fake_expect(peer, ZD__REQUEST__BODY_SESSION_RESET);
	if (!request)
		return;
	id = request->id;
	expect_unmapped(peer, FAKE_SEGMENT);
	fake_ok(peer, id);
	fake_expect_end(peer);
}

static void serve_map(struct fake_peer *peer, uint32_t announced, uint32_t retired)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__UnitReadReply map = ZD__UNIT_READ_REPLY__INIT;
	Zd__Location location = ZD__LOCATION__INIT;
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_UNIT_READ);

	if (!request)
		return;
	location.segment = SEGMENT;
	location.bytes = BYTES;
	map.place = &location;
	map.mapped = 5;
	map.mapped_bytes = BYTES;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_UNIT_READ;
	reply.unit_read = &map;
	send_packet(peer, &reply, announced, retired);
}

static void serve_retired_while_it_is_read(struct fake_peer *peer, void *arg)
{
	const Zd__Request *request;

	(void)arg;
	fake_serve_unit(peer);
	serve_map(peer, SEGMENT, 0);
	serve_map(peer, 0, 0);
	serve_alloc(peer, 0);
	request = fake_expect(peer, ZD__REQUEST__BODY_SESSION_RESET);
	if (!request)
		return;
	fake_ok(peer, request->id);
	send_packet(peer, NULL, 0, SEGMENT);
	for (uint32_t i = 0; i < 2; i++) {
		request = fake_expect(peer, ZD__REQUEST__BODY_UNIT_READ);
		if (!request)
			return;
		fake_check(peer, request->unit_read->mapped == 5 && request->unit_read->map_bytes == BYTES);
		if (i == 0)
			fake_ok(peer, request->id);
		else
			fake_error(peer, request->id, ZEROD_E_STALE_VERSION, "it was updated");
	}
	expect_unmapped(peer, SEGMENT);
	fake_expect_end(peer);
}

static void serve_retired_with_its_map(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	serve_map(peer, SEGMENT, SEGMENT);
	expect_unmapped(peer, SEGMENT);
	serve_alloc(peer, SEGMENT);
	fake_expect_end(peer);
}

static void serve_what_was_never_sent(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	if (fake_expect(peer, ZD__REQUEST__BODY_SESSION_RESET))
		send_packet(peer, NULL, 0, 99);
	fake_expect_end(peer);
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static void *allocate(struct scene *scene, zerod_allocation **buffer)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);
	void *data;

	options.job = "job";
	options.bytes = BYTES;
	assert_status(scene->client, zerod_alloc(scene->client, &options, buffer, &data), ZEROD_OK);
	assert_true(is_mapped(data));
	return data;
}

TEST(test_behind_a_reply)
{
	struct scene scene;
	zerod_allocation *buffer;
	void *data;

	scene_open(&scene, serve_retired_behind_a_reply, NULL);
	data = allocate(&scene, &buffer);
	assert_status(scene.client, zerod_free(buffer, NULL, 0), ZEROD_OK);
	assert_false(is_mapped(data));
	assert_status(scene.client, zerod_session_reset(scene.client, NULL), ZEROD_OK);
	scene_close(&scene);
}

TEST(test_alone)
{
	struct scene scene;
	zerod_allocation *buffer;
	void *data;

	scene_open(&scene, serve_retired_alone, NULL);
	data = allocate(&scene, &buffer);
	assert_status(scene.client, zerod_session_reset(scene.client, NULL), ZEROD_OK);
	assert_false(is_mapped(data));
	scene_close(&scene);
}

/* The daemon takes a place away that it has just given: an error, and no address that is none. */
TEST(test_before_its_first_use)
{
	struct scene scene;
	zerod_ticket ticket;
	void *data;

	scene_open(&scene, serve_retired_before_its_first_use, NULL);
	assert_status(scene.client, zerod_gather_begin(scene.unit, NULL, &ticket), ZEROD_OK);
	assert_status(scene.client, zerod_session_reset(scene.client, NULL), ZEROD_OK);
	assert_status(scene.client, zerod_wait(scene.client, ticket, NULL, &data), ZEROD_E_STALE);
	assert_non_null(strstr(zerod_last_error(scene.client), "segment 7 was released to its device"));
	scene_close(&scene);
}

/* Two mappings of one segment, to which an allocation then gives access: the last one's end unmaps it, also
 * after an error. */
TEST(test_while_it_is_read)
{
	struct zerod_unit_map_options options = ZEROD_INIT(options);
	zerod_allocation *buffer;
	zerod_mapped *mapped[2];
	const void *data;
	struct scene scene;
	uint64_t bytes;

	scene_open(&scene, serve_retired_while_it_is_read, NULL);
	options.unit = "w";
	options.bytes = BYTES + 1;
	for (uint32_t i = 0; i < 2; i++)
		assert_status(scene.client, zerod_unit_map(scene.client, &options, &mapped[i], &data, &bytes),
		              ZEROD_OK);
	assert_int_equal(bytes, BYTES);
	*(char *)allocate(&scene, &buffer) = 1; /* does not fault */
	assert_status(scene.client, zerod_session_reset(scene.client, NULL), ZEROD_OK);
	assert_status(scene.client, zerod_unit_map_end(mapped[0]), ZEROD_OK);
	assert_true(is_mapped((void *)data));
	assert_status(scene.client, zerod_unit_map_end(mapped[1]), ZEROD_E_STALE_VERSION);
	assert_false(is_mapped((void *)data));
	scene_close(&scene);
}

TEST(test_with_its_map)
{
	struct zerod_unit_map_options options = ZEROD_INIT(options);
	zerod_allocation *buffer;
	zerod_mapped *mapped;
	struct scene scene;
	const void *data;
	uint64_t bytes;

	scene_open(&scene, serve_retired_with_its_map, NULL);
	options.unit = "w";
	options.bytes = BYTES;
	assert_status(scene.client, zerod_unit_map(scene.client, &options, &mapped, &data, &bytes),
	              ZEROD_E_STALE);
	(void)allocate(&scene, &buffer); /* the session goes on */
	scene_close(&scene);
}

TEST(test_what_was_never_sent)
{
	struct scene scene;

	scene_open(&scene, serve_what_was_never_sent, NULL);
	assert_status(scene.client, zerod_session_reset(scene.client, NULL), ZEROD_E_PROTOCOL);
	assert_non_null(strstr(zerod_last_error(scene.client), "segment 99, which it never sent"));
	scene_close(&scene);
}
