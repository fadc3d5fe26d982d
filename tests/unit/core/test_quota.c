/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_quota.c - a uid's quota counts what its segments occupy: the rest of a segment beside a small block,
 * blocks in quarantine, and segments that sessions have not unmapped.
 *
 * Granules are 4 KiB here. A quota of 64 KiB has 16 of them more on the one device: 128 KiB of segments.
 */
#include <stdio.h>

#include "tests/support/core_driver.h"

#define QUOTA (64 * CORE_KIB)
#define MOST  (QUOTA + 64 * CORE_KIB) /* that the segments of a uid occupy */

#define QUOTA_TEST(name, devices, quota_bytes)                                                               \
	ENGINE_TEST(name, .ndevices = devices, .arena_bytes = 4 * CORE_MIB, .uid_quota_bytes = quota_bytes,  \
	            .sessions_map = true)

static uint64_t segment_bytes(struct core_driver *core)
{
	struct core_row rows[2];
	uint64_t sum = 0;
	uint32_t n = core_rows(core, ZD__TABLE__DEVICES, rows, 2);

	for (uint32_t i = 0; i < n; i++)
		sum += rows[i].row->device->segment_bytes;
	return sum;
}

static void free_behind(struct core_driver *core, uint64_t session, uint64_t request,
                        const struct zd_fence *fence)
{
	uint64_t allocation = core_expect(core, request, 0)->u.alloc.allocation;

	core_expect(core, core_free(core, session, allocation, fence), 0);
}

/* Each job of a few bytes has a segment of its own. */
QUOTA_TEST(test_small_jobs_pay, 1, 256 * CORE_KIB)
{
	uint64_t alice = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB), request;
	char job[16];
	uint32_t n = 0;

	do {
		(void)snprintf(job, sizeof(job), "job %u", n++);
		request = core_alloc(core, alice, job, 0, 1);
	} while (core_reply(core, request)->status == 0 && n < 1000);
	/* segments of one granule each, and 16 granules beyond the quota */
	assert_int_equal(n, 64 + 16 + 1);
	core_expect_error(
	        core, request, ZEROD_E_QUOTA,
	        "uid 1000 has segments of 327680 bytes, 20480 of them charged, and needs one of 4096 "
	        "bytes more on device 0; its quota is 262144");
	/* There is room in the segments of the jobs that have one. */
	core_expect(core, core_alloc(core, alice, "job 3", 0, 3 * CORE_KIB), 0);
	core_expect(core, core_alloc(core, bob, "job", 0, 256 * CORE_KIB), 0);
	core_close_all(core);
}

/* A job's segments grow up to a sixteenth of the quota. */
QUOTA_TEST(test_growth_ends, 1, 1024 * CORE_KIB)
{
	uint64_t alice = core_open(core, CORE_ALICE);

	for (int i = 0; i < 64; i++)
		core_expect(core, core_alloc(core, alice, "job", 0, 4 * CORE_KIB), 0);
	assert_int_equal(segment_bytes(core), 256 * CORE_KIB);
	core_expect(core, core_alloc(core, alice, "job", 0, 1), 0);
	assert_int_equal(segment_bytes(core), (256 + 64) * CORE_KIB);
	core_close_all(core);
}

QUOTA_TEST(test_quarantine_counts, 1, QUOTA)
{
	const struct zd_fence fence = {.timeline = 900, .value = 1};
	uint64_t alice = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB), third;

	core_expect(core, core_alloc(core, alice, "job", 0, 1), 0); /* the job stays */
	free_behind(core, alice, core_alloc(core, alice, "job", 0, 60 * CORE_KIB), &fence);
	free_behind(core, alice, core_alloc(core, alice, "job", 0, 60 * CORE_KIB), &fence);
	assert_int_equal(core_usage(core).allocation_bytes, 256);
	third = core_alloc(core, alice, "job", 0, 60 * CORE_KIB);
	core_expect_waits(core, third, "alloc: 61440 bytes of device 0's arena");
	core_expect(core, core_alloc(core, bob, "job", 0, QUOTA), 0);
	core_pass(core, alice, fence.timeline, fence.value);
	core_expect(core, third, 0);
	core_close_all(core);
}

/* Alice's segments are as many as they may be; each holds a few bytes. */
static void fill_quota(struct core_driver *core, uint64_t session)
{
	uint64_t request;
	char job[16];
	uint32_t n = 0;

	do {
		(void)snprintf(job, sizeof(job), "small %u", n++);
		request = core_alloc(core, session, job, 0, 1);
	} while (core_reply(core, request)->status == 0 && n < 1000);
	core_expect(core, request, ZEROD_E_QUOTA);
}

/* Another user's quarantine is no reason to wait. */
QUOTA_TEST(test_nothing_comes, 1, QUOTA)
{
	const struct zd_fence fence = {.timeline = 900, .value = 1};
	uint64_t alice = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB);

	core_expect(core, core_alloc(core, bob, "job", 0, 1), 0);
	free_behind(core, bob, core_alloc(core, bob, "job", 0, CORE_KIB), &fence);
	fill_quota(core, alice);
	assert_int_equal(core_quarantine(core, 0), CORE_KIB);
	assert_int_equal(segment_bytes(core), MOST + 4 * CORE_KIB);
	core_pass(core, bob, fence.timeline, fence.value);
	core_close_all(core);
}

/* The uid's own empty segments are given back before it is refused one, on any device; nobody else's are, nor
 * are others' that retire awaited. */
QUOTA_TEST(test_empty_segments_are_given_back, 2, 2 * QUOTA)
{
	const struct zd_fence fence = {.timeline = 900, .value = 1};
	uint64_t alice = core_open(core, CORE_ALICE), bob = core_open(core, CORE_BOB), request;
	uint32_t created;
	char text[64];

	core_expect(core, core_alloc(core, bob, "job", 1, 1), 0);
	free_behind(core, bob, core_alloc(core, bob, "job", 1, 100 * CORE_KIB), NULL);
	free_behind(core, bob, core_alloc(core, bob, "ended", 0, 100 * CORE_KIB), NULL);
	core_expect(core, core_alloc(core, alice, "job", 1, 1), 0);
	free_behind(core, alice, core_alloc(core, alice, "job", 1, 100 * CORE_KIB), &fence);
	free_behind(core, alice, core_alloc(core, alice, "job", 1, 100 * CORE_KIB), &fence);
	core_pass(core, alice, fence.timeline, fence.value);
	/* 204 of 256 KiB on device 1 */
	request = core_alloc(core, alice, "job", 0, 124 * CORE_KIB);
	(void)snprintf(text, sizeof(text), " to unmap segment %u", core_told(core, alice));
	core_expect_waits(core, request, text);
	core_unmap(core, alice);
	core_expect(core, request, 0);
	created = core_count(core, ZD_CMD_SEGMENT_CREATE);
	core_expect(core, core_alloc(core, bob, "job", 1, 100 * CORE_KIB), 0);
	assert_int_equal(core_count(core, ZD_CMD_SEGMENT_CREATE), created);
	core_close_all(core);
}

/* A segment that a session does not unmap counts until it does. */
QUOTA_TEST(test_retiring_counts, 1, QUOTA)
{
	uint64_t alice = core_open(core, CORE_ALICE), large, other;

	core_expect(core, core_alloc(core, alice, "job", 0, 1), 0);
	free_behind(core, alice, core_alloc(core, alice, "job", 0, 40 * CORE_KIB), NULL);
	free_behind(core, alice, core_alloc(core, alice, "job", 0, 60 * CORE_KIB), NULL);
	large = core_alloc(core, alice, "job", 0, 64 * CORE_KIB - 256);
	core_expect_waits(core, large, " to unmap segment ");
	other = core_alloc(core, alice, "other", 0, 45 * CORE_KIB);
	core_expect_waits(core, other, " to unmap segment ");
	assert_true(segment_bytes(core) <= MOST);
	core_unmap(core, alice);
	core_expect(core, large, 0);
	core_expect(core, other, ZEROD_E_QUOTA);
	assert_true(segment_bytes(core) <= MOST);
	core_close_all(core);
}

/* A gather waits while its own job will free what it needs, and fails where no release would help. */
TEST(test_gathers)
{
	struct core_driver *core =
	        core_new(&(struct core_options){.ndevices = 1, .uid_quota_bytes = 2 * QUOTA, .copies = true});
	uint64_t a, b, c, wait;

	struct core_team team = core_team_new(core, "job", 1, false);
	a = core_team_unit(&team, "a", 16 * CORE_KIB);
	b = core_team_unit(&team, "b", 8 * CORE_KIB);
	c = core_team_unit(&team, "c", 32 * CORE_KIB);
	core_expect(core, core_gather(core, team.session[0], a), 0);
	fill_quota(core, team.session[0]);
	wait = core_gather(core, team.session[0], b);
	core_expect_waits(core, wait, "8192 bytes of device 0's arena");
	core_expect(core, core_release(core, team.session[0], a), 0);
	core_expect(core, wait, 0);
	core_expect_error(core, core_gather(core, team.session[0], c), ZEROD_E_QUOTA,
	                  "and needs one of 32768 bytes more on device 0; its quota is 131072");
	core_close_all(core);
	core_end(core);
}
