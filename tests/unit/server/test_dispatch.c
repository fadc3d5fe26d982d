/* SPDX-License-Identifier: Apache-2.0 */
/* test_dispatch.c - what comes in wrong, and what becomes of it: always an answer, never another session's
 * trouble. */
#include "api_scene.h"
#include "base/mem.h"

/* The hello's parts as the test wants them, and what must come back before the end. */
static void expect_hello_refused(struct scene *scene, uint32_t least, uint32_t most, const char *name,
                                 int status, const char *text)
{
	int sock = scene_connect(scene);
	struct delivery delivery;

	delivery = scene_call(
	        scene, sock,
	        RAW(HELLO, hello, Hello, .version_min = least, .version_max = most, .name = (char *)name));
	assert_int_equal(delivery.packet->replies[0]->status, status);
	assert_non_null(strstr(delivery.packet->replies[0]->error, text));
	assert_int_equal(delivery.nfds, 0);
	delivery_free(&delivery);
	assert_null(scene_receive(scene, sock).packet);
	scene_check_witness(scene);
	(void)close(sock);
}

SCENE_TEST(test_hello)
{
	int sock = scene_connect(scene);
	const Zd__HelloReply *reply;
	struct delivery delivery;
	Zd__Request *request = RAW(HELLO, hello, Hello, .version_max = 7, .name = (char *)"trainer");

	delivery = scene_call(scene, sock, request);
	assert_int_equal(delivery.nfds, 2);
	assert_int_equal(delivery.packet->n_segments, 0);
	reply = delivery.packet->replies[0]->hello;
	assert_non_null(reply);
	assert_int_equal(reply->version, ZD_PROTOCOL_VERSION);
	assert_true(reply->session > 0);
	assert_string_equal(reply->backend, "host");
	assert_int_equal(reply->devices, 2);
	assert_int_equal(reply->timelines, ZD_TIMELINES);
	delivery_free(&delivery);
	/* A second one is an error, and no more than that. */
	assert_int_equal(scene_status(scene, sock, request), ZEROD_E_PROTOCOL);
	assert_int_equal(scene_status(scene, sock, request), ZEROD_E_PROTOCOL);
	(void)close(sock);
}

SCENE_TEST(test_hello_refused)
{
	char longest[ZD_MAX_NAME_BYTES + 2];
	int sock;

	expect_hello_refused(scene, 2, 9, "x", ZEROD_E_VERSION, "versions 2 to 9, the daemon 1 to 1");
	expect_hello_refused(scene, 0, 0, "x", ZEROD_E_VERSION, "versions 0 to 0, the daemon 1 to 1");
	expect_hello_refused(scene, 9, 1, "x", ZEROD_E_VERSION, "versions 9 to 1");
	expect_hello_refused(scene, 1, 1, "a\nb", ZEROD_E_INVALID, "client name");
	expect_hello_refused(scene, 1, 1, "\xff\xfe", ZEROD_E_INVALID, "client name");
	memset(longest, 'x', sizeof(longest));
	longest[ZD_MAX_NAME_BYTES + 1] = '\0';
	expect_hello_refused(scene, 1, 1, longest, ZEROD_E_INVALID, "client name");
	longest[ZD_MAX_NAME_BYTES] = '\0';
	sock = scene_connect(scene);
	assert_int_equal(scene_hello(scene, sock, longest), 0);
	(void)close(sock);
	sock = scene_connect(scene);
	assert_int_equal(scene_hello(scene, sock, ""), 0);
	(void)close(sock);
}

SCENE_TEST(test_hello_comes_first)
{
	int sock = scene_connect(scene);
	struct delivery delivery;

	delivery = scene_call(scene, sock, RAW(GATHER, gather, Gather));
	assert_int_equal(delivery.packet->replies[0]->status, ZEROD_E_PROTOCOL);
	assert_string_equal(delivery.packet->replies[0]->error, "the first request is gather, not hello");
	delivery_free(&delivery);
	assert_null(scene_receive(scene, sock).packet);
	scene_check_witness(scene);
	(void)close(sock);
}

/* All of a batch counts as after the hello that it begins with, and nothing of it after a hello that was
 * refused. */
SCENE_TEST(test_hello_in_a_batch)
{
	Zd__Request first = ZD__REQUEST__INIT, second = ZD__REQUEST__INIT;
	Zd__Request *batch[] = {&first, &second};
	Zd__Hello hello = ZD__HELLO__INIT;
	Zd__DaemonStatus status = ZD__DAEMON_STATUS__INIT;
	struct delivery delivery;

	first.id = 1;
	first.body_case = ZD__REQUEST__BODY_HELLO;
	first.hello = &hello;
	second.id = 2;
	second.body_case = ZD__REQUEST__BODY_DAEMON_STATUS;
	second.daemon_status = &status;
	for (uint32_t version = 1; version <= 2; version++) {
		int sock = scene_connect(scene);

		hello.version_min = hello.version_max = version;
		scene_send(sock, batch, 2);
		delivery = scene_receive(scene, sock);
		assert_int_equal(delivery.packet->n_replies, version == 1 ? 2 : 1);
		assert_int_equal(delivery.packet->replies[0]->status, version == 1 ? 0 : ZEROD_E_VERSION);
		delivery_free(&delivery);
		(void)close(sock);
	}
}

SCENE_TEST(test_request_id_0)
{
	int sock = scene_session(scene);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Request *batch[] = {&request};

	scene_send(sock, batch, 1);
	scene_expect_refusal(scene, sock, ZEROD_E_PROTOCOL, "a request with the id 0");
}

SCENE_TEST(test_garbage)
{
	static const char *const packets[] = {"garbage", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
	                                      "\x0a\x7f", "\x0a\x02\x08",
	                                      "\x0a\x02\x08\x05\xff"}; /* behind a request */
	int last = scene_session(scene);

	for (size_t i = 0; i < sizeof(packets) / sizeof(packets[0]); i++) {
		int sock = scene_session(scene);

		scene_send_bytes(sock, packets[i], strlen(packets[i]));
		scene_expect_refusal(scene, sock, ZEROD_E_PROTOCOL, "not a valid ClientPacket");
	}
	scene_send_bytes(last, "\x0a\x01\x08", 3);
	scene_expect_refusal(scene, last, ZEROD_E_PROTOCOL, "not a valid Request");
}

/* A packet of an unknown field alone: from a newer client, and nothing to answer. */
SCENE_TEST(test_unknown_field)
{
	Zd__Request request = ZD__REQUEST__INIT;
	int sock = scene_session(scene);

	scene_send_bytes(sock, "\x50\x01", 2);
	request.body_case = ZD__REQUEST__BODY__NOT_SET;
	assert_int_equal(scene_status(scene, sock, &request), ZEROD_E_UNSUPPORTED);
	(void)close(sock);
}

SCENE_TEST(test_unknown_request)
{
	int sock = scene_session(scene);
	/* requests { id: 9, field 99: "" } */
	static const uint8_t packet[] = {0x0a, 0x05, 0x08, 0x09, 0x9a, 0x06, 0x00};
	struct delivery delivery;

	scene_send_bytes(sock, packet, sizeof(packet));
	delivery = scene_receive(scene, sock);
	assert_int_equal(delivery.packet->replies[0]->id, 9);
	assert_int_equal(delivery.packet->replies[0]->status, ZEROD_E_UNSUPPORTED);
	assert_non_null(strstr(delivery.packet->replies[0]->error, "99"));
	delivery_free(&delivery);
	(void)close(sock);
}

SCENE_TEST(test_batch_limit)
{
	int sock = scene_session(scene);
	Zd__Request requests[ZD_MAX_BATCH + 1];
	Zd__Request *batch[ZD_MAX_BATCH + 1];
	struct delivery delivery;
	uint64_t id = 0;

	for (size_t i = 0; i <= ZD_MAX_BATCH; i++) {
		requests[i] = (Zd__Request)ZD__REQUEST__INIT;
		requests[i].id = i + 1;
		batch[i] = &requests[i];
	}
	scene_send(sock, batch, ZD_MAX_BATCH);
	while (id < ZD_MAX_BATCH) {
		delivery = scene_receive(scene, sock);
		for (size_t i = 0; i < delivery.packet->n_replies; i++)
			assert_int_equal(delivery.packet->replies[i]->id, ++id);
		delivery_free(&delivery);
	}
	scene_send(sock, batch, ZD_MAX_BATCH + 1);
	scene_expect_refusal(scene, sock, ZEROD_E_LIMIT, "more than 256 requests in one packet");
}

/* ---- Counts and fences, seen before the engine sees them ----------------------------------------------- */

static void expect_error(struct scene *scene, int sock, Zd__Request *request, int status, const char *text)
{
	struct delivery delivery = scene_call(scene, sock, request);

	assert_int_equal(delivery.packet->replies[0]->status, status);
	assert_non_null(strstr(delivery.packet->replies[0]->error, text));
	delivery_free(&delivery);
}

/* A request whose messages would need thirty times its bytes. The request before it is handled. */
SCENE_TEST(test_field_limit)
{
	static Zd__Fence fence = ZD__FENCE__INIT, *fences[32000];
	int sock = scene_session(scene);
	Zd__Request first = ZD__REQUEST__INIT, second = ZD__REQUEST__INIT, *requests[] = {&first, &second};
	Zd__DaemonStatus status = ZD__DAEMON_STATUS__INIT;
	Zd__Publish publish = ZD__PUBLISH__INIT;
	struct delivery delivery;

	for (size_t i = 0; i < ZD_ARRAY_LEN(fences); i++)
		fences[i] = &fence;
	publish.n_fences = ZD_ARRAY_LEN(fences);
	publish.fences = fences;
	first.id = 1;
	first.body_case = ZD__REQUEST__BODY_DAEMON_STATUS;
	first.daemon_status = &status;
	second.id = 2;
	second.body_case = ZD__REQUEST__BODY_PUBLISH;
	second.publish = &publish;
	scene_send(sock, requests, 2);
	delivery = scene_receive(scene, sock);
	assert_int_equal(delivery.packet->n_replies, 2);
	assert_int_equal(delivery.packet->replies[0]->id, 1);
	assert_int_equal(delivery.packet->replies[0]->status, 0);
	assert_int_equal(delivery.packet->replies[1]->id, 0);
	assert_int_equal(delivery.packet->replies[1]->status, ZEROD_E_LIMIT);
	assert_non_null(strstr(delivery.packet->replies[1]->error, "with more than 1536 fields"));
	delivery_free(&delivery);
	assert_null(scene_receive(scene, sock).packet);
	(void)close(sock);
}

SCENE_TEST(test_fences)
{
	int sock = scene_session(scene);
	Zd__Fence fence = ZD__FENCE__INIT;
	Zd__Fence *fences[ZD_MAX_FENCES + 1];

	for (size_t i = 0; i <= ZD_MAX_FENCES; i++)
		fences[i] = &fence;
	Zd__Request *request = RAW(RELEASE, release, Release);

	request->release->fences = fences;
	request->release->n_fences = 1;
	fence.value = 1;
	assert_int_equal(scene_status(scene, sock, request),
	                 ZEROD_E_NOT_FOUND); /* the engine: no such unit */
	fence.timeline = ZD_TIMELINES;
	expect_error(scene, sock, request, ZEROD_E_INVALID, "fence 0: timeline 1024; a page has 1024");
	fence.timeline = UINT32_MAX;
	expect_error(scene, sock, request, ZEROD_E_INVALID, "timeline 4294967295");
	fence.timeline = 0;
	fence.value = 0;
	expect_error(scene, sock, request, ZEROD_E_INVALID, "fence 0: value 0");
	fence.value = INT64_MAX;
	expect_error(scene, sock, request, ZEROD_E_INVALID, "value 9223372036854775807");
	fence.value = UINT64_MAX;
	expect_error(scene, sock, request, ZEROD_E_INVALID, "value 18446744073709551615");
	fence.value = 1;
	request->release->n_fences = ZD_MAX_FENCES + 1;
	expect_error(scene, sock, request, ZEROD_E_LIMIT, "65 fences in one request, at most 64");
	(void)close(sock);
}

SCENE_TEST(test_counts)
{
	int sock = scene_session(scene);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__UpdateBegin update = ZD__UPDATE_BEGIN__INIT;
	Zd__Publish publish = ZD__PUBLISH__INIT;
	Zd__TargetReturn back = ZD__TARGET_RETURN__INIT;
	Zd__StepGet get = ZD__STEP_GET__INIT;
	Zd__UnitRegister unit = ZD__UNIT_REGISTER__INIT;
	Zd__View view = ZD__VIEW__INIT;
	Zd__View *views[ZD_MAX_VIEWS + 1];
	uint64_t numbers[ZD_MAX_UNITS_PER_REQUEST + 1] = {0};
	uint32_t segments[ZD_MAX_RETIRED + 1] = {0};
	Zd__SegmentsUnmapped unmapped = ZD__SEGMENTS_UNMAPPED__INIT;

	update.units = publish.units = numbers;
	update.n_units = publish.n_units = ZD_MAX_UNITS_PER_REQUEST + 1;
	request.body_case = ZD__REQUEST__BODY_UPDATE_BEGIN;
	request.update_begin = &update;
	expect_error(scene, sock, &request, ZEROD_E_LIMIT, "1025 units in one request, at most 1024");
	request.body_case = ZD__REQUEST__BODY_PUBLISH;
	request.publish = &publish;
	expect_error(scene, sock, &request, ZEROD_E_LIMIT, "1025 units in one request, at most 1024");
	back.units = get.units = numbers;
	back.n_units = get.n_units = ZD_MAX_UNITS_PER_REQUEST + 1;
	request.body_case = ZD__REQUEST__BODY_TARGET_RETURN;
	request.target_return = &back;
	expect_error(scene, sock, &request, ZEROD_E_LIMIT, "1025 units in one request, at most 1024");
	request.body_case = ZD__REQUEST__BODY_STEP_GET;
	request.step_get = &get;
	expect_error(scene, sock, &request, ZEROD_E_LIMIT, "1025 units in one request, at most 1024");
	for (size_t i = 0; i <= ZD_MAX_VIEWS; i++)
		views[i] = &view;
	view.shape = numbers;
	unit.views = views;
	unit.n_views = ZD_MAX_VIEWS + 1;
	request.body_case = ZD__REQUEST__BODY_UNIT_REGISTER;
	request.unit_register = &unit;
	expect_error(scene, sock, &request, ZEROD_E_LIMIT, "257 views in one request, at most 256");
	unit.n_views = 1;
	view.n_shape = ZD_MAX_DIMS + 1;
	expect_error(scene, sock, &request, ZEROD_E_LIMIT, "a view with 9 dimensions; at most 8");
	unmapped.segments = segments;
	unmapped.n_segments = ZD_MAX_RETIRED + 1;
	request.body_case = ZD__REQUEST__BODY_SEGMENTS_UNMAPPED;
	request.segments_unmapped = &unmapped;
	expect_error(scene, sock, &request, ZEROD_E_LIMIT, "1025 segments in one request, at most 1024");
	(void)close(sock);
}

/* Whether the engine serves the request; the server answers all others itself. */
static bool is_of_engine(unsigned body)
{
	static const bool rows[] = {
#define REQUEST(KIND, name) [ZD__REQUEST__BODY_##KIND] = true,
#include "core/requests.def"
	};

	return body < sizeof(rows) && rows[body];
}

/* Every request of the protocol, empty: each has a handler; and every request of the engine is one of the
 * protocol's. */
SCENE_TEST(test_every_request_has_a_handler)
{
	const ProtobufCMessageDescriptor *descriptor = &zd__request__descriptor;
	int sock = scene_session(scene);
	unsigned engine = 0, answered = 0;

	for (unsigned i = 0; i < descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
		const ProtobufCMessageDescriptor *body = field->descriptor;
		union {
			ProtobufCMessage base;
			uint8_t bytes[256];
		} message;
		Zd__Request request = ZD__REQUEST__INIT;
		struct delivery delivery;

		if (field->type != PROTOBUF_C_TYPE_MESSAGE)
			continue;
		assert_true(body->sizeof_message <= sizeof(message));
		protobuf_c_message_init(body, &message);
		request.body_case = (Zd__Request__BodyCase)field->id;
		request.hello = (Zd__Hello *)&message.base; /* all bodies share one place */
		delivery = scene_call(scene, sock, &request);
		assert_null(strstr(delivery.packet->replies[0]->error, "this daemon knows no request"));
		assert_null(strstr(delivery.packet->replies[0]->error, "without a body"));
		delivery_free(&delivery);
		engine += is_of_engine(field->id);
		answered += !is_of_engine(field->id);
	}
	assert_int_equal(engine, ZD_NREQUESTS);
	assert_true(answered > 0);
	(void)close(sock);
}

/* ---- Noise --------------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

/* Valid packets with bytes changed, cut off and appended: the daemon answers or closes, and serves the next
 * one. */
SCENE_TEST(test_mutated_packets)
{
	uint64_t seed = 0x9e3779b97f4a7c15u;
	uint8_t bytes[512];
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	Zd__View view = ZD__VIEW__INIT;
	Zd__View *views[] = {&view, &view};
	Zd__Request *request = RAW(UNIT_REGISTER, unit_register, UnitRegister, .name = (char *)"layer",
	                           .views = views, .n_views = 2, .numel = 1000);
	Zd__Request *batch[] = {request};
	uint64_t shape[] = {3, 5, 7};

	view.name = (char *)"weight";
	view.shape = shape;
	view.n_shape = 3;
	request->id = 77;
	packet.requests = batch;
	packet.n_requests = 1;
	for (int round = 0; round < 500; round++) {
		int sock = scene_session(scene);
		size_t nbytes = zd__client_packet__pack(&packet, bytes);

		for (unsigned changes = 1 + next_random(&seed) % 8; changes > 0; changes--)
			bytes[next_random(&seed) % nbytes] = (uint8_t)next_random(&seed);
		if (next_random(&seed) % 4 == 0)
			nbytes = 1 + next_random(&seed) % nbytes;
		scene_send_bytes(sock, bytes, nbytes);
		(void)zd_loop_run_once(&scene->loop, false);
		(void)close(sock);
		scene_check_witness(scene);
	}
}

int main(void)
{
	(void)alarm(120);
	return test_run(NULL, NULL);
}
