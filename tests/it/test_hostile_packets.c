/* SPDX-License-Identifier: Apache-2.0 */
/* test_hostile_packets.c - packets that make no sense, too much of them, and clients that do not listen. */
#include "tests/it/hostile.h"

#include <stdio.h>

#define STATUS RAW(DAEMON_STATUS, daemon_status, DaemonStatus)

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

/* Nobody can tell it from the end of the connection. */
HOSTILE_TEST(test_empty_packet)
{
	raw_open(&raw, hostile_socket());
	raw_send_bytes(&raw, "", 0, NULL, 0);
	raw_expect_end(&raw);
	raw_close(&raw);
}

/* ---- Requests that do not exist ------------------------------------------------------------------------ */

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

/* ---- Too much ------------------------------------------------------------------------------------------ */

static uint64_t send_join(struct raw_client *client, unsigned group, uint32_t rank)
{
	char name[32];

	(void)snprintf(name, sizeof(name), "g%u", group);
	return raw_send(client, RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("crowd"),
	                            .group = RAW_TEXT(name), .world_size = 2, .rank = rank));
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
