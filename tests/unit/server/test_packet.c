/* SPDX-License-Identifier: Apache-2.0 */
/* test_packet.c - packets that are built field by field are what the library would have made of the whole
 * message. */
#include <fcntl.h>
#include <unistd.h>

#include "server/packet.h"
#include "tests/support/test.h"

#define MAX_REPLIES 8

static void expect_same(Zd__Reply **replies, size_t count)
{
	static uint8_t expected[ZD_MAX_PACKET_BYTES];
	struct zd_packet *packet = zd_packet_new();
	Zd__DaemonPacket message = ZD__DAEMON_PACKET__INIT;
	size_t nbytes;

	for (size_t i = 0; i < count; i++)
		assert_true(zd_packet_add_reply(packet, replies[i], 0));
	message.replies = replies;
	message.n_replies = count;
	nbytes = zd__daemon_packet__pack(&message, expected);
	assert_int_equal(packet->nbytes, nbytes);
	assert_memory_equal(packet->bytes, expected, nbytes);
	zd_packet_free(packet);
}

TEST(test_plain)
{
	static const int statuses[] = {0, -1, -31, -63, -64, -65, 1, 63, 64, INT32_MIN, INT32_MAX};
	static const uint64_t ids[] = {0, 1, 127, 128, 1u << 14, UINT64_MAX};

	for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
		for (size_t j = 0; j < sizeof(ids) / sizeof(ids[0]); j++) {
			Zd__Reply reply = ZD__REPLY__INIT;
			Zd__Reply *replies[] = {&reply};
			char text[300];

			reply.id = ids[j];
			reply.status = statuses[i];
			expect_same(replies, 1);
			memset(text, 'x', sizeof(text));
			text[299] = '\0';
			reply.error = text;
			expect_same(replies, 1);
			text[127] = '\0';
			expect_same(replies, 1);
			text[128 - 1] = 'x';
			text[128] = '\0';
			expect_same(replies, 1);
		}
	}
}

TEST(test_bodies)
{
	Zd__Reply reply[MAX_REPLIES];
	Zd__Reply *replies[MAX_REPLIES];
	Zd__GatherReply gather = ZD__GATHER_REPLY__INIT;
	Zd__Frames frames = ZD__FRAMES__INIT;
	Zd__ReleaseReply release = ZD__RELEASE_REPLY__INIT;
	Zd__Location location = ZD__LOCATION__INIT;
	Zd__Fence fence = ZD__FENCE__INIT;
	Zd__Fence *fences[200];
	Zd__StepBeginReply step = ZD__STEP_BEGIN_REPLY__INIT;
	Zd__DaemonStatusReply status = ZD__DAEMON_STATUS_REPLY__INIT;
	Zd__Usage usage = ZD__USAGE__INIT;

	for (size_t i = 0; i < MAX_REPLIES; i++) {
		reply[i] = (Zd__Reply)ZD__REPLY__INIT;
		reply[i].id = 1000 + i;
		replies[i] = &reply[i];
	}
	for (size_t i = 0; i < 200; i++)
		fences[i] = &fence;
	fence.value = UINT64_MAX / 2;
	location.segment = 7;
	location.offset = 1ull << 40;
	location.bytes = 4096;
	gather.buffer = &location;
	frames.low = frames.own = frames.high = &location;
	gather.frames = &frames;
	gather.fences = fences;
	gather.n_fences = 200; /* a body with a length of two bytes */
	step.norm_squared = 0.1;
	step.target = &location;
	status.daemon = (char *)"0.1.0";
	status.usage = &usage;
	reply[1].body_case = ZD__REPLY__BODY_GATHER;
	reply[1].gather = &gather;
	reply[2].body_case = ZD__REPLY__BODY_RELEASE;
	reply[2].release = &release; /* an empty body is there all the same */
	reply[3].body_case = ZD__REPLY__BODY_STEP_BEGIN;
	reply[3].step_begin = &step;
	reply[4].body_case = ZD__REPLY__BODY_DAEMON_STATUS;
	reply[4].daemon_status = &status;
	reply[5].status = -7;
	reply[5].error = (char *)"not held";
	expect_same(replies, MAX_REPLIES);
}

/* Up to the last byte, and not one further. */
TEST(test_room)
{
	struct zd_packet *packet = zd_packet_new();
	Zd__Reply reply = ZD__REPLY__INIT;
	/* Of the packet: a tag and three bytes of length; of the reply: the same for the text. */
	size_t most = ZD_MAX_PACKET_BYTES - 8;
	char *text = malloc(ZD_MAX_PACKET_BYTES);

	assert_non_null(text);
	memset(text, 'x', ZD_MAX_PACKET_BYTES);
	reply.error = text;
	text[most + 1] = '\0';
	assert_false(zd_packet_add_reply(packet, &reply, 0));
	assert_int_equal(packet->nbytes, 0);
	text[most] = '\0';
	assert_false(zd_packet_add_reply(packet, &reply, 1));
	assert_true(zd_packet_add_reply(packet, &reply, 0));
	assert_int_equal(packet->nbytes, ZD_MAX_PACKET_BYTES);
	free(text);
	zd_packet_free(packet);
}

TEST(test_descriptors)
{
	struct zd_packet *packet = zd_packet_new(), *copy;
	Zd__Segment segment = ZD__SEGMENT__INIT;
	Zd__DaemonPacket *message;
	int fds[2] = {open("/dev/null", O_RDONLY), open("/dev/null", O_RDONLY)};

	segment.id = UINT32_MAX;
	segment.device = UINT32_MAX;
	segment.bytes = UINT64_MAX;
	zd_packet_add_fd(packet, fds[0], NULL);
	assert_int_equal(packet->nbytes, 0);
	zd_packet_add_fd(packet, fds[1], &segment);
	assert_true(packet->nbytes <= ZD_PACKET_SEGMENT_BYTES);
	copy = zd_packet_shrunk(packet);
	assert_int_equal(packet->nfds, 0);
	assert_int_equal(copy->nfds, 2);
	message = zd__daemon_packet__unpack(NULL, copy->nbytes, copy->bytes);
	assert_int_equal(message->n_segments, 1);
	assert_int_equal(message->segments[0]->bytes, UINT64_MAX);
	zd__daemon_packet__free_unpacked(message, NULL);
	zd_packet_free(packet);
	assert_true(fcntl(fds[0], F_GETFD) >= 0);
	zd_packet_free(copy);
	assert_int_equal(fcntl(fds[0], F_GETFD), -1);
	assert_int_equal(fcntl(fds[1], F_GETFD), -1);
}
