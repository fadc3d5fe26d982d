/* SPDX-License-Identifier: Apache-2.0 */
/* test_hostile_packets.c - packets that make no sense, too much of them, and clients that do not listen. */
#include "tests/it/hostile.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define MANY_FDS ((size_t)2 * ZD_MAX_PACKET_FDS)
#define STATUS   RAW(DAEMON_STATUS, daemon_status, DaemonStatus)

/* The client is served as if nothing had happened. */
static void expect_served(void)
{
	const Zd__Reply *reply = raw_expect(&raw, raw_send(&raw, STATUS), 0);

	assert_string_equal(reply->daemon_status->state, "SERVING");
}

/* ---- Bytes that are no packet -------------------------------------------------------------------------- */

#define BYTES(text) text, sizeof(text) - 1

HOSTILE_TEST(test_garbage)
{
	static const struct {
		const char *bytes;
		size_t nbytes;
		const char *text;
	} packets[] = {
	        {BYTES("\xff"), "valid ClientPacket"},                             /* a tag without an end */
	        {BYTES("\xff\xff\xff\xff\xff\xff\xff\xff"), "valid ClientPacket"}, /* a long one */
	        {BYTES("\x0a"), "valid ClientPacket"},                     /* a field without its length */
	        {BYTES("\x0a\x7f"), "valid ClientPacket"},                 /* a length beyond the packet */
	        {BYTES("\x0a\xff\xff\xff\xff\x0f"), "valid ClientPacket"}, /* 4 GiB of it */
	        {BYTES("\x0f"), "valid ClientPacket"},                     /* wire type 7 */
	        {BYTES("\x08\x01"), "the id 0"},                           /* requests as a number */
	        {BYTES("\x0a\x03\x08\xff\xff"), "valid Request"},          /* an id without an end */
	        {BYTES("\x0a\x04\xc2\x02\x7f\x00"), "valid Request"}, /* a gather longer than its request */
	        {BYTES("GET / HTTP/1.1\r\n\r\n"), "valid ClientPacket"},
	};

	for (size_t i = 0; i < sizeof(packets) / sizeof(packets[0]); i++) {
		raw_open(&raw, hostile_socket());
		raw_send_bytes(&raw, packets[i].bytes, packets[i].nbytes, NULL, 0);
		RAW_EXPECT_FAREWELL(&raw, ZEROD_E_PROTOCOL, packets[i].text);
		raw_close(&raw);
	}
}

static uint32_t random_next(uint32_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 17;
	*seed ^= *seed << 5;
	return *seed;
}

/* Some of it happens to be a packet, of fields that the daemon does not know. Then nothing happens at all. */
HOSTILE_TEST(test_random_bytes)
{
	uint32_t seed = 20240607;
	uint8_t bytes[512];

	for (int round = 0; round < 200; round++) {
		size_t nbytes = 1 + random_next(&seed) % sizeof(bytes);
		Zd__ClientPacket *packet;

		for (size_t i = 0; i < nbytes; i++)
			bytes[i] = (uint8_t)random_next(&seed);
		packet = zd__client_packet__unpack(NULL, nbytes, bytes);
		raw_open(&raw, hostile_socket());
		raw_send_bytes(&raw, bytes, nbytes, NULL, 0);
		if (!packet)
			RAW_EXPECT_FAREWELL(&raw, ZEROD_E_PROTOCOL, "not a valid ClientPacket");
		else if (packet->n_requests == 0)
			expect_served();
		raw_close(&raw);
		if (packet)
			zd__client_packet__free_unpacked(packet, NULL);
	}
}

/* Every beginning of a packet that would be fine. */
HOSTILE_TEST(test_truncated)
{
	uint64_t shape[] = {3, 5};
	Zd__View view = ZD__VIEW__INIT, *views[] = {&view};
	Zd__Request *request = RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = 300,
	                           .name = RAW_TEXT("weight"), .dtype = 1, .numel = 100, .n_views = 1,
	                           .views = views, .slot = 2);
	uint8_t bytes[256];
	size_t nbytes;

	view.name = RAW_TEXT("view");
	view.n_shape = 2;
	view.shape = shape;
	request->id = 9;
	nbytes = raw_pack(request, bytes, sizeof(bytes));
	for (size_t cut = 1; cut < nbytes; cut++) {
		raw_open(&raw, hostile_socket());
		raw_send_bytes(&raw, bytes, cut, NULL, 0);
		RAW_EXPECT_FAREWELL(&raw, ZEROD_E_PROTOCOL, "not a valid ClientPacket");
		raw_close(&raw);
	}
}

/* Nobody can tell it from the end of the connection. */
HOSTILE_TEST(test_empty_packet)
{
	raw_open(&raw, hostile_socket());
	raw_send_bytes(&raw, "", 0, NULL, 0);
	raw_expect_end(&raw);
	raw_close(&raw);
}

/* A field that the daemon does not know, to fill the packet up to its limit and one byte beyond. */
static size_t fill_packet(uint8_t *bytes, size_t nbytes)
{
	size_t rest = nbytes - 5;

	memset(bytes, 0, nbytes);
	bytes[0] = 0xfa; /* field 15 of the packet, length-delimited: 0x7a; written in two bytes */
	bytes[1] = 0x00;
	bytes[2] = (uint8_t)(rest | 0x80);
	bytes[3] = (uint8_t)(rest >> 7 | 0x80);
	bytes[4] = (uint8_t)(rest >> 14);
	return nbytes;
}

HOSTILE_TEST(test_oversize)
{
	static uint8_t bytes[(size_t)2 * ZD_MAX_PACKET_BYTES];
	const size_t beyond[] = {ZD_MAX_PACKET_BYTES + 1, sizeof(bytes)};

	raw_open(&raw, hostile_socket());
	raw_send_bytes(&raw, bytes, fill_packet(bytes, ZD_MAX_PACKET_BYTES), NULL, 0);
	expect_served();
	raw_close(&raw);
	for (size_t i = 0; i < 2; i++) {
		raw_open(&raw, hostile_socket());
		raw_send_bytes(&raw, bytes, fill_packet(bytes, beyond[i]), NULL, 0);
		RAW_EXPECT_FAREWELL(&raw, ZEROD_E_LIMIT, "65536 bytes");
		raw_close(&raw);
	}
}

/* ---- Requests that do not exist ------------------------------------------------------------------------ */

HOSTILE_TEST(test_unknown_request)
{
	/* id 7 and a body of field 200, which nobody defined */
	static const uint8_t unknown[] = {0x0a, 0x05, 0x08, 0x07, 0xc2, 0x0c, 0x00};
	/* daemon_status (71) with the id 8 and the unknown field 200 beside it: served, as if without it */
	static const uint8_t beside[] = {0x0a, 0x08, 0x08, 0x08, 0xba, 0x04, 0x00, 0xc0, 0x0c, 0x01};

	raw_open(&raw, hostile_socket());
	raw_send_bytes(&raw, unknown, sizeof(unknown), NULL, 0);
	RAW_EXPECT_ERROR(&raw, 7, ZEROD_E_UNSUPPORTED, "field number 200");
	raw_send_bytes(&raw, beside, sizeof(beside), NULL, 0);
	assert_non_null(raw_expect(&raw, 8, 0)->daemon_status);
	RAW_EXPECT_ERROR(&raw, raw_send(&raw, &(Zd__Request)ZD__REQUEST__INIT), ZEROD_E_UNSUPPORTED,
	                 "without a body");
	expect_served();
	raw_close(&raw);
}

HOSTILE_TEST(test_id_zero)
{
	static const uint8_t status_without_id[] = {0x0a, 0x03, 0xba, 0x04, 0x00};

	raw_open(&raw, hostile_socket());
	raw_send_bytes(&raw, status_without_id, sizeof(status_without_id), NULL, 0);
	RAW_EXPECT_FAREWELL(&raw, ZEROD_E_PROTOCOL, "id 0");
	raw_close(&raw);
}

HOSTILE_TEST(test_id_twice)
{
	Zd__Request *join = RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("j"),
	                        .group = RAW_TEXT("g"), .world_size = 2);

	join->id = 77;
	raw_open(&raw, hostile_socket());
	raw_send(&raw, join);
	join->deadline_ms = 1;
	raw_send(&raw, join);
	RAW_EXPECT_ERROR(&raw, 77, ZEROD_E_PROTOCOL, "this id is outstanding");
	raw_close(&raw);
}

HOSTILE_TEST(test_unknown_ids)
{
	const struct {
		Zd__Request *request;
		const char *text;
	} cases[] = {
	        {RAW(GROUP_LEAVE, group_leave, GroupLeave, .group = 987654), "group 987654"},
	        {RAW(GROUP_BARRIER, group_barrier, GroupBarrier, .group = 987654), "group 987654"},
	        {RAW(GROUP_AGREE, group_agree, GroupAgree, .group = 987654), "group 987654"},
	        {RAW(COMMIT, commit, Commit, .group = 987654, .step = 1), "group 987654"},
	        {RAW(COMMIT_SAVE, commit_save, CommitSave, .group = 987654, .step = 1), "group 987654"},
	        {RAW(UNIT_READ, unit_read, UnitRead, .group = 987654, .unit = RAW_TEXT("u"), .bytes = 2,
	             .rows = UINT64_MAX, .stride = UINT64_MAX),
	         "group 987654"},
	        {RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = 987654, .name = RAW_TEXT("u"),
	             .dtype = 1, .numel = 1),
	         "group 987654"},
	        {RAW(UNITS_RESUME, units_resume, UnitsResume, .group = 987654), "group 987654"},
	        {RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = 987654, .stage = 3,
	             .target_dtype = 1),
	         "group 987654"},
	        {RAW(BACKWARD_END, backward_end, BackwardEnd, .group = 987654), "group 987654"},
	        {RAW(STEP_BEGIN, step_begin, StepBegin, .group = 987654), "group 987654"},
	        {RAW(STEP_END, step_end, StepEnd, .group = 987654), "group 987654"},
	        {RAW(BUCKET_CREATE, bucket_create, BucketCreate, .group = 987654, .dtype = 1,
	             .slot_bytes = 4096, .nslots = 2),
	         "group 987654"},
	        {RAW(UNIT_UNREGISTER, unit_unregister, UnitUnregister, .unit = 987654), "unit 987654"},
	        {RAW(SET_PERSISTENT, set_persistent, SetPersistent, .unit = 987654), "unit 987654"},
	        {RAW(SET_SLOT, set_slot, SetSlot, .unit = 987654), "unit 987654"},
	        {RAW(SET_FROZEN, set_frozen, SetFrozen, .unit = 987654), "unit 987654"},
	        {RAW(UNIT_LOAD, unit_load, UnitLoad, .unit = 987654), "unit 987654"},
	        {RAW(UNIT_LOAD, unit_load, UnitLoad, .unit = 987654, .allocation = 987655),
	         "allocation 987655"},
	        {RAW(UNIT_PLACE, unit_place, UnitPlace, .unit = 987654), "unit 987654"},
	        {RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &(uint64_t){987654}),
	         "unit 987654"},
	        {RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &(uint64_t){987654}), "unit 987654"},
	        {RAW(GATHER, gather, Gather, .unit = 987654, .tag = RAW_TEXT("t")), "unit 987654"},
	        {RAW(RELEASE, release, Release, .unit = 987654, .tag = RAW_TEXT("t")), "unit 987654"},
	        {RAW(REDUCE_SKIP, reduce_skip, ReduceSkip, .unit = 987654), "unit 987654"},
	        {RAW(BUCKET_DESTROY, bucket_destroy, BucketDestroy, .bucket = 987654), "bucket 987654"},
	        {RAW(BUCKET_RESERVE, bucket_reserve, BucketReserve, .bucket = 987654), "bucket 987654"},
	        {RAW(BUCKET_SUBMIT, bucket_submit, BucketSubmit, .bucket = 987654, .entry = 1),
	         "bucket 987654"},
	        {RAW(FREE, free, Free, .allocation = 987654), "allocation 987654"},
	        {RAW(KILL_SESSION, kill_session, KillSession, .session = 987654), "session 987654"},
	        {RAW(ABORT_GROUP, abort_group, AbortGroup, .group = 987654), "group 987654"},
	        {RAW(END_JOB, end_job, EndJob, .job = 987654), "job 987654"},
	        {RAW(KILL_JOB, kill_job, KillJob, .job = 987654), "job 987654"},
	};

	raw_open(&raw, hostile_socket());
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		RAW_EXPECT_ERROR(&raw, raw_send(&raw, cases[i].request), ZEROD_E_NOT_FOUND, cases[i].text);
	raw_close(&raw);
}

/* The objects of another session do not exist for this one. */
HOSTILE_TEST(test_ids_of_others)
{
	uint64_t id;
	const Zd__ListReply *list;

	raw_open(&raw, hostile_socket());
	id = raw_send(&raw, RAW(LIST, list, List, .table = ZD__TABLE__UNITS, .job = RAW_TEXT("witness")));
	list = raw_expect(&raw, id, 0)->list;
	assert_int_equal(list->n_rows, 1);
	id = raw_send(&raw,
	              RAW(GATHER, gather, Gather, .unit = list->rows[0]->unit->id, .tag = RAW_TEXT("t")));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_NOT_FOUND, "has not registered unit");
	id = raw_send(&raw, RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1,
	                        .units = &list->rows[0]->unit->id));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_NOT_FOUND, "has not registered unit");
	id = raw_send(&raw, RAW(LIST, list, List, .table = (Zd__Table)99));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_INVALID, "table 99");
	id = raw_send(&raw, RAW(KILL_SESSION, kill_session, KillSession, .session = raw.session));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_INVALID, "is the one that asks");
	raw_close(&raw);
}

/* ---- The hello ----------------------------------------------------------------------------------------- */

HOSTILE_TEST(test_no_hello)
{
	uint64_t id;

	raw_connect(&raw, hostile_socket());
	id = raw_send(&raw, RAW(GATHER, gather, Gather, .unit = 1, .tag = RAW_TEXT("t")));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_PROTOCOL, "first request is gather, not hello");
	raw_expect_end(&raw);
	raw_close(&raw);
	raw_connect(&raw, hostile_socket());
	raw_send_bytes(&raw, "\xff", 1, NULL, 0);
	RAW_EXPECT_FAREWELL(&raw, ZEROD_E_PROTOCOL, "not a valid ClientPacket");
	raw_close(&raw);
	raw_connect(&raw, hostile_socket());
	raw_close(&raw);
}

HOSTILE_TEST(test_second_hello)
{
	uint64_t id;

	raw_open(&raw, hostile_socket());
	id = raw_send(&raw, RAW(HELLO, hello, Hello, .version_min = 1, .version_max = 1));
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_PROTOCOL, "second hello");
	expect_served();
	raw_close(&raw);
}

HOSTILE_TEST(test_wrong_version)
{
	static const struct {
		uint32_t min, max;
		const char *text;
	} versions[] = {{2, 5, "versions 2 to 5"},
	                {0, 0, "versions 0 to 0"},
	                {UINT32_MAX, UINT32_MAX, "versions 4294967295 to 4294967295"},
	                {5, 0, "versions 5 to 0"}};

	for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
		uint64_t id;

		raw_connect(&raw, hostile_socket());
		id = raw_send(&raw, RAW(HELLO, hello, Hello, .version_min = versions[i].min,
		                        .version_max = versions[i].max));
		RAW_EXPECT_ERROR(&raw, id, ZEROD_E_VERSION, versions[i].text, "the daemon 1 to 1");
		raw_expect_end(&raw);
		raw_close(&raw);
	}
}

/* ---- Too much ------------------------------------------------------------------------------------------ */

static void send_batch(size_t count)
{
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	Zd__Request requests[ZD_MAX_BATCH + 1], *pointers[ZD_MAX_BATCH + 1];
	Zd__DaemonStatus body = ZD__DAEMON_STATUS__INIT;
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];

	for (size_t i = 0; i < count; i++) {
		requests[i] = (Zd__Request)ZD__REQUEST__INIT;
		requests[i].id = ++raw.last_id;
		requests[i].body_case = ZD__REQUEST__BODY_DAEMON_STATUS;
		requests[i].daemon_status = &body;
		pointers[i] = &requests[i];
	}
	packet.n_requests = count;
	packet.requests = pointers;
	raw_send_bytes(&raw, bytes, zd__client_packet__pack(&packet, bytes), NULL, 0);
}

HOSTILE_TEST(test_batch)
{
	raw_open(&raw, hostile_socket());
	send_batch(ZD_MAX_BATCH);
	for (uint64_t id = 0; id < ZD_MAX_BATCH; id++)
		(void)raw_expect(&raw, raw.last_id - id, 0);
	send_batch(ZD_MAX_BATCH + 1);
	RAW_EXPECT_FAREWELL(&raw, ZEROD_E_LIMIT, "more than 256 requests");
	raw_close(&raw);
}

/* A packet of nothing but empty requests, more of them than the limit by far. */
HOSTILE_TEST(test_many_empty_requests)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];

	for (size_t i = 0; i < sizeof(bytes); i += 2) {
		bytes[i] = 0x0a;
		bytes[i + 1] = 0x00;
	}
	raw_open(&raw, hostile_socket());
	raw_send_bytes(&raw, bytes, sizeof(bytes), NULL, 0);
	RAW_EXPECT_FAREWELL(&raw, ZEROD_E_LIMIT, "more than 256 requests");
	raw_close(&raw);
}

HOSTILE_TEST(test_unwanted_descriptors)
{
	const unsigned counts[] = {1, ZD_MAX_PACKET_FDS, ZD_MAX_PACKET_FDS + 1, MANY_FDS};
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC), fds[MANY_FDS];
	uint8_t bytes[64];
	Zd__Request *request = STATUS;
	size_t nbytes;

	assert_true(null >= 0);
	request->id = 5;
	nbytes = raw_pack(request, bytes, sizeof(bytes));
	for (size_t i = 0; i < MANY_FDS; i++)
		fds[i] = null;
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		raw_open(&raw, hostile_socket());
		raw_send_bytes(&raw, bytes, nbytes, fds, counts[i]);
		if (counts[i] <= ZD_MAX_PACKET_FDS)
			RAW_EXPECT_FAREWELL(&raw, ZEROD_E_PROTOCOL, "descriptors: clients send none");
		else
			RAW_EXPECT_FAREWELL(&raw, ZEROD_E_LIMIT, "more than 8 descriptors");
		assert_null(raw_find(&raw, 5));
		raw_close(&raw);
	}
	(void)close(null);
}

static uint64_t send_join(struct raw_client *client, unsigned group, uint32_t rank)
{
	char name[32];

	(void)snprintf(name, sizeof(name), "g%u", group);
	return raw_send(client, RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("crowd"),
	                            .group = RAW_TEXT(name), .world_size = 2, .rank = rank));
}

HOSTILE_TEST(test_outstanding)
{
	uint64_t last = 0;

	raw_open(&raw, hostile_socket());
	for (unsigned i = 0; i <= ZD_MAX_OUTSTANDING; i++)
		last = send_join(&raw, i, 0);
	RAW_EXPECT_ERROR(&raw, last, ZEROD_E_LIMIT, "1024 requests are outstanding");
	for (uint64_t id = 2; id < last; id++)
		assert_null(raw_find(&raw, id));
	/* The daemon still serves requests that do not wait. */
	expect_served();
	raw_close(&raw);
}

/* ---- Clients that do not read -------------------------------------------------------------------------- */

/* Requests until the daemon reads no more from who does not read. Returns how many. */
static unsigned flood(void)
{
	uint8_t bytes[64];
	unsigned count = 0;

	for (;;) {
		Zd__Request *request = STATUS;

		request->id = raw.last_id + 1;
		if (!raw_try_send(&raw, bytes, raw_pack(request, bytes, sizeof(bytes)))) {
			struct hostile_state now;

			/* The daemon had a turn after it was last seen to be full, and took nothing. */
			hostile_look(&now);
			if (!raw_try_send(&raw, bytes, raw_pack(request, bytes, sizeof(bytes))))
				return count;
		}
		raw.last_id++;
		count++;
	}
}

/* Nothing is lost: who reads late gets every reply. */
HOSTILE_TEST(test_reads_late)
{
	uint64_t first;
	unsigned count;

	raw_open(&raw, hostile_socket());
	first = raw.last_id + 1;
	count = flood();
	assert_true(count > 0);
	hostile_witness();
	for (unsigned i = 0; i < count; i++)
		(void)raw_expect(&raw, first + i, 0);
	expect_served();
	raw_close(&raw);
}

/* Another rank makes replies for a client that reads none: they wait for it, and nobody else notices. */
HOSTILE_TEST(test_never_reads)
{
	static uint64_t ids[ZD_MAX_OUTSTANDING - 1]; /* their replies are more than the socket holds */
	const unsigned joins = ZD_MAX_OUTSTANDING - 1;
	struct raw_client other;
	struct hostile_state now;

	raw_open(&raw, hostile_socket());
	raw_open(&other, hostile_socket());
	for (unsigned i = 0; i < joins; i++)
		ids[i] = send_join(&raw, i, 0);
	(void)flood();
	for (unsigned i = 0; i < joins; i++)
		(void)raw_expect(&other, send_join(&other, i, 1), 0);
	hostile_look(&now);
	assert_int_equal(now.sessions, hostile.before.sessions + 2);
	hostile_witness();
	for (unsigned i = 0; i < joins; i++)
		(void)raw_expect(&raw, ids[i], 0);
	raw_close(&other);
	raw_close(&raw);
}

int main(void)
{
	return test_run(hostile_start, hostile_stop);
}
