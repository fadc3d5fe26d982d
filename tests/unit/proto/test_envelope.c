/* SPDX-License-Identifier: Apache-2.0 */
/* test_envelope.c - envelopes are, byte for byte, what protobuf-c packs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/envelope.h"

static void check_request(Zd__Request *request)
{
	Zd__ClientPacket packet = ZD__CLIENT_PACKET__INIT;
	packet.n_requests = 1;
	packet.requests = &request;
	size_t bytes = zd__client_packet__get_packed_size(&packet);
	uint8_t *expected = malloc(bytes), *got = malloc(bytes);
	zd__client_packet__pack(&packet, expected);
	struct zd_envelope envelope = zd_envelope_request(request);
	assert_int_equal(envelope.bytes, bytes);
	zd_envelope_pack(&envelope, got);
	assert_memory_equal(got, expected, bytes);
	free(expected);
	free(got);
}

static void check_reply(Zd__Reply *reply)
{
	Zd__DaemonPacket packet = ZD__DAEMON_PACKET__INIT;
	packet.n_replies = 1;
	packet.replies = &reply;
	size_t bytes = zd__daemon_packet__get_packed_size(&packet);
	uint8_t *expected = malloc(bytes), *got = malloc(bytes);
	zd__daemon_packet__pack(&packet, expected);
	struct zd_envelope envelope = zd_envelope_reply(reply);
	assert_int_equal(envelope.bytes, bytes);
	zd_envelope_pack(&envelope, got);
	assert_memory_equal(got, expected, bytes);
	free(expected);
	free(got);
}

static const uint64_t numbers[] = {0, 1, 127, 128, 16383, 16384, UINT32_MAX, 1ull << 35, UINT64_MAX};

static void test_requests(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		Zd__Request request = ZD__REQUEST__INIT;
		Zd__Gather gather = ZD__GATHER__INIT;
		request.id = numbers[i];
		request.deadline_ms = (uint32_t)numbers[i];
		check_request(&request); /* no body */
		request.body_case = ZD__REQUEST__BODY_GATHER;
		request.gather = &gather;
		check_request(&request); /* an empty one */
		gather.unit = numbers[i];
		gather.tag = (char *)"fallback";
		gather.version = numbers[i];
		check_request(&request);
		Zd__EndJob end_job =
		        ZD__END_JOB__INIT; /* a field number above 15 takes two bytes, this the highest */
		end_job.job = numbers[i];
		request.body_case = ZD__REQUEST__BODY_END_JOB;
		request.end_job = &end_job;
		check_request(&request);
	}
}

static void test_long_body(void **state)
{
	(void)state;
	char name[300];
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__UnitRegister body = ZD__UNIT_REGISTER__INIT;
	body.name = name;
	request.id = 9;
	request.body_case = ZD__REQUEST__BODY_UNIT_REGISTER;
	request.unit_register = &body;
	check_request(&request);
}

static void test_replies(void **state)
{
	static const int32_t statuses[] = {0, -1, -31, 1, INT32_MIN, INT32_MAX};
	(void)state;
	for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
		Zd__Reply reply = ZD__REPLY__INIT;
		Zd__ReleaseReply release = ZD__RELEASE_REPLY__INIT;
		reply.id = numbers[i];
		reply.status = statuses[i];
		check_reply(&reply);
		reply.error = (char *)"rank 2 to publish version 4 of unit 'h1'";
		check_reply(&reply);
		release.lease_ended = true;
		reply.body_case = ZD__REPLY__BODY_RELEASE;
		reply.release = &release;
		check_reply(&reply);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_requests),
	        cmocka_unit_test(test_long_body),
	        cmocka_unit_test(test_replies),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
