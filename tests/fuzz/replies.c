/* SPDX-License-Identifier: Apache-2.0 */
/* replies.c - what a daemon answers, right or nearly so: one segment, places in it, fences, lists. */
#include <string.h>

#include "proto/limits.h"
#include "tests/fuzz/script.h"

#define COUNT(a)      (sizeof(a) / sizeof((a)[0]))
#define SEGMENT_BYTES 65536u /* fuzz_client_packet.c sends files of that size */

static uint32_t random_state;

static uint32_t pick(uint32_t among)
{
	random_state = random_state * 1664525u + 1013904223u;
	return (random_state >> 8) % among;
}

static uint64_t pick_number(uint64_t usual)
{
	static const uint64_t odd[] = {0, 1, 255, 256, 65536, 65537, 1ull << 50, 1ull << 63, UINT64_MAX};

	return pick(8) ? usual : odd[pick(COUNT(odd))];
}

static Zd__Location *pick_location(uint64_t bytes)
{
	static Zd__Location locations[2];
	Zd__Location *location = &locations[pick(2)];

	*location = (Zd__Location)ZD__LOCATION__INIT;
	location->segment = pick(8) ? 1 : pick(4);
	location->offset = pick_number(256ull * pick(16));
	location->bytes = pick_number(bytes);
	return pick(16) ? location : NULL;
}

static size_t pick_fences(Zd__Fence ***out)
{
	static Zd__Fence fences[2];
	static Zd__Fence *pointers[2];
	size_t count = pick(COUNT(fences) + 1);

	for (size_t i = 0; i < count; i++) {
		fences[i] = (Zd__Fence)ZD__FENCE__INIT;
		fences[i].timeline = pick(8) ? pick(4) : 600;
		fences[i].value = pick_number(5);
		pointers[i] = &fences[i];
	}
	*out = pointers;
	return count;
}

/* A group of one rank has no frames; a hostile daemon may send some all the same. */
static Zd__Frames *pick_frames(void)
{
	static Zd__Frames frames;

	frames = (Zd__Frames)ZD__FRAMES__INIT;
	frames.low = pick(2) ? NULL : pick_location(0);
	frames.own = pick_location(512);
	frames.high = pick(2) ? NULL : pick_location(0);
	return &frames;
}

/* ---- Bodies -------------------------------------------------------------------------------------------- */

/* Bodies live until the next reply is made. */
static union {
	Zd__HelloReply hello;
	Zd__GroupJoinReply group_join;
	Zd__UniqueIdsReply unique_ids;
	Zd__UnitRegisterReply unit_register;
	Zd__GatherReply gather;
	Zd__ReleaseReply release;
	Zd__BackwardBeginReply backward_begin;
	Zd__BucketCreateReply bucket_create;
	Zd__BucketReserveReply bucket_reserve;
	Zd__UpdateBeginReply update_begin;
	Zd__StepBeginReply step_begin, step_get;
	Zd__AllocReply alloc;
	Zd__ListReply list;
	Zd__DaemonStatusReply daemon_status;
} body;

#define BASE(field) .base = PROTOBUF_C_MESSAGE_INIT(&zd__##field##__descriptor)
#define FILL(field, ...)                                                                                     \
	body.field = (__typeof__(body.field))                                                                \
	{                                                                                                    \
		BASE(field##_reply), __VA_ARGS__                                                             \
	}

/* The ids that were requested are those of one rank. */
static ProtobufCBinaryData pick_ids(void)
{
	static uint8_t bytes[2 * ZD_UNIQUE_ID_BYTES];

	memset(bytes, 1, sizeof(bytes));
	return (ProtobufCBinaryData){.len = pick(8) ? sizeof(bytes) : pick(sizeof(bytes)), .data = bytes};
}

/* The group has one rank, the unit 100 float32: 128 with its padding. */
static void fill_body(Zd__Reply__BodyCase kind)
{
	static char *features[] = {(char *)ZD_FEATURE_COLLECTIVES};

	switch (kind) {
	case ZD__REPLY__BODY_HELLO:
		FILL(hello, .version = pick(8) ? 1 : 2, .session = 1, .daemon = (char *)"fuzz",
		     .backend = (char *)"host", .devices = 2, .timelines = (uint32_t)pick_number(512),
		     .n_features = pick(4) != 0, .features = features);
		break;
	case ZD__REPLY__BODY_GROUP_JOIN:
		FILL(group_join, .group = pick_number(3), .torn = pick(4) == 0);
		break;
	case ZD__REPLY__BODY_UNIQUE_IDS:
		FILL(unique_ids, .ids = pick_ids());
		break;
	case ZD__REPLY__BODY_UNIT_REGISTER:
		FILL(unit_register, .unit = pick_number(4), .shard = pick_location(512),
		     .shard_numel = pick_number(128), .true_numel = pick_number(100),
		     .padded_numel = pick_number(128), .target_offset_numel = pick_number(0));
		break;
	case ZD__REPLY__BODY_UPDATE_BEGIN:
		FILL(update_begin, .n_fences = 0);
		body.update_begin.n_fences = pick_fences(&body.update_begin.fences);
		break;
	case ZD__REPLY__BODY_GATHER:
		FILL(gather, .buffer = pick_location(512), .version = pick_number(1),
		     .frames = pick(4) ? NULL : pick_frames());
		body.gather.n_fences = pick_fences(&body.gather.fences);
		break;
	case ZD__REPLY__BODY_BUCKET_CREATE:
		FILL(bucket_create, .bucket = pick_number(5));
		break;
	case ZD__REPLY__BODY_BUCKET_RESERVE:
		FILL(bucket_reserve, .entry = pick_number(6), .location = pick_location(512));
		body.bucket_reserve.n_fences = pick_fences(&body.bucket_reserve.fences);
		break;
	case ZD__REPLY__BODY_STEP_BEGIN:
		FILL(step_begin, .step = pick_number(1), .norm_squared = 1.0, .target = pick_location(512),
		     .target_dtype = pick(8) ? 1 : pick(14));
		body.step_begin.n_fences = pick_fences(&body.step_begin.fences);
		break;
	case ZD__REPLY__BODY_STEP_GET:
		body.step_get = (Zd__StepBeginReply)ZD__STEP_BEGIN_REPLY__INIT;
		body.step_get.step = pick_number(1);
		body.step_get.norm_squared = 1.0;
		break;
	case ZD__REPLY__BODY_ALLOC:
		FILL(alloc, .allocation = pick_number(7), .location = pick_location(1024));
		break;
	case ZD__REPLY__BODY_BACKWARD_BEGIN:
		FILL(backward_begin, .backward = pick_number(1));
		break;
	case ZD__REPLY__BODY_DAEMON_STATUS:
		FILL(daemon_status, .devices = 2);
		break;
	case ZD__REPLY__BODY_RELEASE:
	default:
		FILL(release, .lease_ended = pick(2));
		break;
	}
}

/* Devices, as zerod_device_get() asks for them. */
static void fill_list(void)
{
	static Zd__DeviceRow device;
	static Zd__Usage usage;
	static Zd__Row row, *rows[] = {&row};

	usage = (Zd__Usage)ZD__USAGE__INIT;
	device = (Zd__DeviceRow)ZD__DEVICE_ROW__INIT;
	device.index = pick(2);
	device.name = (char *)(pick(4) ? "host0"
	                               : "a name of more than sixty-four bytes, which is more than "
	                                 "there is room for");
	device.usage = pick(4) ? &usage : NULL;
	device.state = (char *)(pick(2) ? "ok" : "failed");
	row = (Zd__Row)ZD__ROW__INIT;
	row.row_case = pick(8) ? ZD__ROW__ROW_DEVICE : ZD__ROW__ROW__NOT_SET;
	row.device = &device;
	FILL(list, .n_rows = pick(2), .rows = rows, .next = pick(2));
}

static const Zd__Reply__BodyCase kinds[] = {
        ZD__REPLY__BODY_HELLO,         ZD__REPLY__BODY_GROUP_JOIN,     ZD__REPLY__BODY_UNIT_REGISTER,
        ZD__REPLY__BODY_GATHER,        ZD__REPLY__BODY_RELEASE,        ZD__REPLY__BODY_BACKWARD_BEGIN,
        ZD__REPLY__BODY_BUCKET_CREATE, ZD__REPLY__BODY_BUCKET_RESERVE, ZD__REPLY__BODY_STEP_BEGIN,
        ZD__REPLY__BODY_ALLOC,         ZD__REPLY__BODY_LIST,           ZD__REPLY__BODY_DAEMON_STATUS,
        ZD__REPLY__BODY_UNIQUE_IDS,    ZD__REPLY__BODY_STEP_GET,       ZD__REPLY__BODY__NOT_SET,
};

size_t fuzz_reply(unsigned seed, Zd__Reply__BodyCase kind, uint8_t bytes[FUZZ_PACKET_BYTES])
{
	Zd__DaemonPacket packet = ZD__DAEMON_PACKET__INIT;
	Zd__Reply reply = ZD__REPLY__INIT, *replies[] = {&reply};
	Zd__Segment segment = ZD__SEGMENT__INIT, *segments[] = {&segment};
	uint32_t retired = 1;

	random_state = seed;
	if (kind == ZD__REPLY__BODY_LIST)
		fill_list();
	else
		fill_body(kind);
	reply.id = pick(8) ? 1 : pick(6);
	if (pick(8) == 0) {
		reply.status = -(int32_t)pick(40);
		reply.error = (char *)"the fuzzer wants it so";
	}
	reply.body_case = kind;
	if (kind != ZD__REPLY__BODY__NOT_SET)
		reply.hello = &body.hello; /* the union of all bodies' pointers */
	segment.id = pick(8) ? 1 : pick(3);
	segment.bytes = pick_number(SEGMENT_BYTES);
	packet.n_segments = kind == ZD__REPLY__BODY_UNIT_REGISTER || pick(8) == 0;
	packet.segments = segments;
	packet.n_replies = 1;
	packet.replies = replies;
	packet.n_retired = pick(16) == 0;
	packet.retired = &retired;
	return zd__daemon_packet__pack(&packet, bytes);
}

size_t fuzz_make_reply(unsigned seed, uint8_t bytes[FUZZ_PACKET_BYTES])
{
	return fuzz_reply(seed, kinds[seed % COUNT(kinds)], bytes);
}
