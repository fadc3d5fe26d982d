/* SPDX-License-Identifier: Apache-2.0 */
/* test_hostile_names.c - names with zero bytes, and the longest ones. The unit tests have names that are
 * too long, empty or not UTF-8. */
#include "tests/it/hostile.h"

#include <stdio.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static uint64_t group, unit;

/* ---- Where names stand --------------------------------------------------------------------------------- */

typedef uint64_t send_fn(const char *name, size_t zeros);

/* Sends the request; packing ends a text at its first zero byte, so `zeros` marks behind "abc" become them
 * afterwards. */
static uint64_t send_marked(Zd__Request *request, size_t zeros)
{
	static uint8_t bytes[ZD_MAX_PACKET_BYTES];
	size_t nbytes;
	uint8_t *at;

	request->id = ++raw.last_id;
	nbytes = raw_pack(request, bytes, sizeof(bytes));
	if (zeros > 0) {
		at = memmem(bytes, nbytes, "abc", 3);
		assert_non_null(at);
		memset(at + 3, 0, zeros);
	}
	raw_send_bytes(&raw, bytes, nbytes, NULL, 0);
	return request->id;
}

static uint64_t send_client_name(const char *name, size_t zeros)
{
	return send_marked(
	        RAW(HELLO, hello, Hello, .version_min = 1, .version_max = 1, .name = RAW_TEXT(name)), zeros);
}

static uint64_t send_job(const char *name, size_t zeros)
{
	return send_marked(RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT(name),
	                       .group = RAW_TEXT("g"), .world_size = 2),
	                   zeros);
}

static uint64_t send_group(const char *name, size_t zeros)
{
	return send_marked(RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("j"),
	                       .group = RAW_TEXT(name), .world_size = 2),
	                   zeros);
}

static uint64_t send_unit(const char *name, size_t zeros)
{
	return send_marked(RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = group,
	                       .name = RAW_TEXT(name), .dtype = ZEROD_INT8, .numel = 9),
	                   zeros);
}

static uint64_t send_view(const char *name, size_t zeros)
{
	Zd__View view = ZD__VIEW__INIT, *views[] = {&view};

	view.name = RAW_TEXT(name);
	return send_marked(RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = group,
	                       .name = RAW_TEXT("u"), .dtype = ZEROD_INT8, .numel = 9, .n_views = 1,
	                       .views = views),
	                   zeros);
}

static uint64_t send_gather_tag(const char *name, size_t zeros)
{
	return send_marked(RAW(GATHER, gather, Gather, .unit = unit, .tag = RAW_TEXT(name)), zeros);
}

static uint64_t send_release_tag(const char *name, size_t zeros)
{
	return send_marked(RAW(RELEASE, release, Release, .unit = unit, .tag = RAW_TEXT(name)), zeros);
}

static uint64_t send_alloc_job(const char *name, size_t zeros)
{
	return send_marked(RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT(name), .bytes = 256), zeros);
}

static uint64_t send_alloc_name(const char *name, size_t zeros)
{
	return send_marked(
	        RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT("j"), .name = RAW_TEXT(name), .bytes = 256), zeros);
}

static const struct place {
	send_fn *send;
	size_t max_bytes;
	bool is_hello;
	bool waits; /* a good one: for a rank, or for a version */
} places[] = {
        {send_client_name, ZD_MAX_NAME_BYTES, true, false}, {send_job, ZD_MAX_NAME_BYTES, false, true},
        {send_group, ZD_MAX_NAME_BYTES, false, true},       {send_unit, ZD_MAX_UNIT_NAME_BYTES, false, false},
        {send_view, ZD_MAX_UNIT_NAME_BYTES, false, false},  {send_gather_tag, ZD_MAX_TAG_BYTES, false, true},
        {send_release_tag, ZD_MAX_TAG_BYTES, false, false}, {send_alloc_job, ZD_MAX_NAME_BYTES, false, false},
        {send_alloc_name, ZD_MAX_NAME_BYTES, false, false},
};

/* ---- Tests --------------------------------------------------------------------------------------------- */

static void scene_open(const struct place *place)
{
	uint64_t id;

	if (place->is_hello) {
		raw_connect(&raw, hostile_socket());
		return;
	}
	raw_open(&raw, hostile_socket());
	id = raw_send(&raw, RAW(GROUP_JOIN, group_join, GroupJoin, .job = RAW_TEXT("names"),
	                        .group = RAW_TEXT("world"), .world_size = 1));
	group = raw_expect(&raw, id, 0)->group_join->group;
	id = raw_send(&raw, RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = group,
	                        .name = RAW_TEXT("w"), .dtype = ZEROD_INT8, .numel = 9));
	unit = raw_expect(&raw, id, 0)->unit_register->unit;
}

static void expect_refused(const struct place *place, const char *name, size_t zeros, const char *text)
{
	uint64_t id;

	scene_open(place);
	id = place->send(name, zeros);
	RAW_EXPECT_ERROR(&raw, id, ZEROD_E_INVALID, text);
	if (place->is_hello)
		raw_expect_end(&raw);
	else
		(void)raw_expect(&raw, raw_send(&raw, RAW(DAEMON_STATUS, daemon_status, DaemonStatus)), 0);
	raw_close(&raw);
}

/* Read as a C string it would be another name, and a valid one. */
HOSTILE_TEST(test_zero_bytes)
{
	for (size_t i = 0; i < COUNT(places); i++) {
		expect_refused(&places[i], "abc?xyz", 1, "a zero byte in the ");
		expect_refused(&places[i], "abc?", 1, "a zero byte in the ");
		expect_refused(&places[i], "abc???", 3, "a zero byte in the ");
	}
}

/* As long as can be, of characters of several bytes. */
HOSTILE_TEST(test_longest)
{
	char name[ZD_MAX_UNIT_NAME_BYTES + 1];

	for (size_t i = 0; i < COUNT(places); i++) {
		const struct place *place = &places[i];
		uint64_t id;

		for (size_t at = 0; at + 2 <= place->max_bytes; at += 2)
			memcpy(name + at, "\xc3\xa9", 2);
		name[place->max_bytes - 1] = '!';
		name[place->max_bytes] = '\0';
		scene_open(place);
		id = place->send(name, 0);
		if (place->waits) {
			(void)raw_expect(&raw,
			                 raw_send(&raw, RAW(DAEMON_STATUS, daemon_status, DaemonStatus)), 0);
			assert_null(raw_find(&raw, id));
		} else if (place->send == send_release_tag) {
			RAW_EXPECT_ERROR(&raw, id, ZEROD_E_NOT_HELD, name);
		} else {
			(void)raw_expect(&raw, id, 0);
		}
		raw_close(&raw);
	}
}

int main(void)
{
	return test_run(hostile_start, hostile_stop);
}
