/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hostile_disconnect.c - connections that end at the worst of moments.
 *
 * Two ranks go through everything that the protocol offers, packet by packet. The whole is done again for
 * every packet after which rank 0 closes its socket without a word, and for rank 1 leaving first; the daemon
 * must come back to what it held before, each time.
 */
#include "tests/it/hostile.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define NUMEL    1000u

static struct raw_client other = {.sock = -1}; /* rank 1 */

static struct {
	uint64_t group, unit, bucket, entry, allocation;
	uint64_t peer_bucket, peer_entry;
	uint64_t last[2]; /* of rank 0 and 1: the request that was sent last */
	uint64_t early_gather, early_release;
} scene;

static int close_other(void **state)
{
	raw_close(&other);
	return hostile_after(state);
}

#define HOSTILE_BEFORE_TEST(name) TEST_DEFINE(name, void, , name(), hostile_before, close_other)

/* ---- The script ---------------------------------------------------------------------------------------- */

static void send_0(Zd__Request *request)
{
	scene.last[0] = raw_send(&raw, request);
}

static void send_1(Zd__Request *request)
{
	scene.last[1] = raw_send(&other, request);
}

static const Zd__Reply *done_0(void)
{
	return raw_expect(&raw, scene.last[0], 0);
}

static const Zd__Reply *done_1(void)
{
	return raw_expect(&other, scene.last[1], 0);
}

static void both(Zd__Request *request)
{
	send_0(request);
	request->id = 0;
	send_1(request);
}

static void both_done(void)
{
	(void)done_0();
	(void)done_1();
}

/* Fences that rank 0 has not passed yet: value n of timeline n. */
static Zd__Fence **unpassed(uint32_t number)
{
	static Zd__Fence fence;
	static Zd__Fence *fences[] = {&fence};

	fence = (Zd__Fence)ZD__FENCE__INIT;
	fence.timeline = number;
	fence.value = number;
	return fences;
}

#define FENCE(number) .n_fences = 1, .fences = unpassed(number)

static void connect_only(void)
{
	raw_connect(&raw, hostile_socket());
}
static void hello_unread(void)
{
	send_0(RAW(HELLO, hello, Hello, .version_min = 1, .version_max = 1));
}
static void hello_read(void)
{
	(void)done_0();
}
static Zd__Request *join_request(uint32_t rank)
{
	static Zd__GroupJoin body;
	static Zd__Request request;

	body = (Zd__GroupJoin)ZD__GROUP_JOIN__INIT;
	body.job = RAW_TEXT("leavers");
	body.group = RAW_TEXT("world");
	body.world_size = 2;
	body.rank = body.device = rank;
	request = (Zd__Request)ZD__REQUEST__INIT;
	request.body_case = ZD__REQUEST__BODY_GROUP_JOIN;
	request.group_join = &body;
	return &request;
}
static void join_alone(void)
{
	send_0(join_request(0));
}
static void join_both(void)
{
	raw_open(&other, hostile_socket());
	send_1(join_request(1));
	scene.group = done_1()->group_join->group;
	(void)done_0();
}
static void register_unread(void)
{
	both(RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = scene.group, .name = RAW_TEXT("u"),
	         .dtype = ZEROD_FLOAT32, .numel = NUMEL));
}
static void register_read(void)
{
	scene.unit = done_0()->unit_register->unit;
	(void)done_1();
}
static void gather_too_early(void)
{
	send_0(RAW(GATHER, gather, Gather, .unit = scene.unit, .tag = RAW_TEXT("early")));
	scene.early_gather = scene.last[0];
}
static void release_too_early(void)
{
	send_0(RAW(RELEASE, release, Release, .unit = scene.unit, .tag = RAW_TEXT("early")));
	scene.early_release = scene.last[0];
}
static void update_unread(void)
{
	both(RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &scene.unit));
}
static void update_read(void)
{
	both_done();
}
static void publish_behind_a_fence(void)
{
	send_0(RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &scene.unit, FENCE(1)));
	send_1(RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &scene.unit));
	(void)done_1();
}
static void publish_done(void)
{
	raw_signal(&raw, 1, 1);
	(void)done_0();
	(void)raw_expect(&raw, scene.early_gather, 0);
	(void)raw_expect(&raw, scene.early_release, 0);
}
static void prefetch(void)
{
	both(RAW(GATHER, gather, Gather, .unit = scene.unit, .tag = RAW_TEXT("ahead"), .prefetch = true));
}
static void gather_unread(void)
{
	both_done();
	both(RAW(GATHER, gather, Gather, .unit = scene.unit, .tag = RAW_TEXT("t"), .uses = 2));
}
static void gather_read(void)
{
	both_done();
}
static void update_under_lease(void)
{
	send_0(RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &scene.unit));
	(void)done_0();
}
static void gather_of_the_next(void)
{
	(void)raw_send(&other, RAW(GATHER, gather, Gather, .unit = scene.unit, .tag = RAW_TEXT("next"),
	                           .version = 2));
	hostile_sync(&other);
}
static void release_behind_a_fence(void)
{
	send_0(RAW(RELEASE, release, Release, .unit = scene.unit, .tag = RAW_TEXT("t")));
	send_0(RAW(RELEASE, release, Release, .unit = scene.unit, .tag = RAW_TEXT("t"), FENCE(2)));
	(void)done_0();
	send_1(RAW(RELEASE, release, Release, .unit = scene.unit, .tag = RAW_TEXT("t")));
	(void)done_1();
}
static void publish_forced(void)
{
	send_0(RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &scene.unit, .force = true));
	(void)done_0();
	send_1(RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &scene.unit));
	(void)done_1();
	send_1(RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &scene.unit, .force = true));
	(void)done_1();
}
static void gather_behind_quarantine(void)
{
	send_0(RAW(GATHER, gather, Gather, .unit = scene.unit, .tag = RAW_TEXT("t")));
	(void)done_0();
}
static void set_persistent(void)
{
	send_0(RAW(SET_PERSISTENT, set_persistent, SetPersistent, .unit = scene.unit, .persistent = true));
	(void)done_0();
	send_0(RAW(RELEASE, release, Release, .unit = scene.unit, .tag = RAW_TEXT("t")));
	(void)done_0();
}
static void backward_unread(void)
{
	both(RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = scene.group, .stage = 3,
	         .boundary = true));
}
static void buckets(void)
{
	both_done();
	both(RAW(BUCKET_CREATE, bucket_create, BucketCreate, .group = scene.group, .dtype = ZEROD_FLOAT32,
	         .slot_bytes = sizeof(float) * 2 * NUMEL, .nslots = 2));
	scene.bucket = done_0()->bucket_create->bucket;
	scene.peer_bucket = done_1()->bucket_create->bucket;
}
static void reserve_unread(void)
{
	send_0(RAW(BUCKET_RESERVE, bucket_reserve, BucketReserve, .bucket = scene.bucket,
	           .unit = scene.unit));
	send_1(RAW(BUCKET_RESERVE, bucket_reserve, BucketReserve, .bucket = scene.peer_bucket,
	           .unit = scene.unit));
}
static void reserve_read(void)
{
	scene.entry = done_0()->bucket_reserve->entry;
	scene.peer_entry = done_1()->bucket_reserve->entry;
}
static void entry_behind_a_fence(void)
{
	send_0(RAW(BUCKET_SUBMIT, bucket_submit, BucketSubmit, .bucket = scene.bucket, .entry = scene.entry,
	           FENCE(3)));
	(void)done_0();
	send_1(RAW(BUCKET_SUBMIT, bucket_submit, BucketSubmit, .bucket = scene.peer_bucket,
	           .entry = scene.peer_entry));
	(void)done_1();
}
static void backward_end_waits(void)
{
	both(RAW(BACKWARD_END, backward_end, BackwardEnd, .group = scene.group));
	hostile_sync(&raw);
}
static void backward_end_done(void)
{
	raw_signal(&raw, 3, 3);
	both_done();
}
static void step_waits(void)
{
	send_0(RAW(STEP_BEGIN, step_begin, StepBegin, .group = scene.group));
}
static void step_taken(void)
{
	send_1(RAW(STEP_BEGIN, step_begin, StepBegin, .group = scene.group));
	both_done();
}
static void step_end_behind_a_fence(void)
{
	send_0(RAW(STEP_END, step_end, StepEnd, .group = scene.group, FENCE(4)));
	(void)done_0();
}
static void commit_waits(void)
{
	send_0(RAW(COMMIT, commit, Commit, .group = scene.group, .step = 1));
	hostile_sync(&raw);
}
static void commit_done(void)
{
	send_1(RAW(COMMIT, commit, Commit, .group = scene.group, .step = 1));
	both_done();
}
static void alloc_unread(void)
{
	send_0(RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT("leavers"), .name = RAW_TEXT("a"), .bytes = 1 << 20));
}
static void alloc_read(void)
{
	scene.allocation = done_0()->alloc->allocation;
}
static void free_behind_a_fence(void)
{
	send_0(RAW(FREE, free, Free, .allocation = scene.allocation, FENCE(5)));
	(void)done_0();
}
static void list_unread(void)
{
	send_0(RAW(LIST, list, List, .table = ZD__TABLE__SESSIONS));
}
static void leave(void)
{
	send_0(RAW(GROUP_LEAVE, group_leave, GroupLeave, .group = scene.group));
	(void)done_0();
}

typedef void packet_fn(void);
static packet_fn *const script[] = {
        connect_only,
        hello_unread,
        hello_read,
        join_alone,
        join_both,
        register_unread,
        register_read,
        gather_too_early,
        release_too_early,
        update_unread,
        update_read,
        publish_behind_a_fence,
        publish_done,
        prefetch,
        gather_unread,
        gather_read,
        update_under_lease,
        gather_of_the_next,
        release_behind_a_fence,
        publish_forced,
        gather_behind_quarantine,
        set_persistent,
        backward_unread,
        buckets,
        reserve_unread,
        reserve_read,
        entry_behind_a_fence,
        backward_end_waits,
        backward_end_done,
        step_waits,
        step_taken,
        step_end_behind_a_fence,
        commit_waits,
        commit_done,
        alloc_unread,
        alloc_read,
        free_behind_a_fence,
        list_unread,
        leave,
};

static void play(size_t packets)
{
	memset(&scene, 0, sizeof(scene));
	for (size_t i = 0; i < packets; i++)
		script[i]();
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

HOSTILE_BEFORE_TEST(test_rank_0_goes)
{
	for (size_t packets = 0; packets <= COUNT(script); packets++) {
		play(packets);
		raw_close(&raw);
		raw_close(&other);
		hostile_expect_unchanged();
	}
}

HOSTILE_BEFORE_TEST(test_rank_1_goes)
{
	for (size_t packets = 0; packets <= COUNT(script); packets++) {
		play(packets);
		raw_close(&other);
		if (packets > 2)
			hostile_sync(&raw); /* who stays is served on */
		raw_close(&raw);
		hostile_expect_unchanged();
	}
}

/* It says that it will send no more, and goes on reading. */
HOSTILE_BEFORE_TEST(test_half_closed)
{
	for (size_t packets = 1; packets <= COUNT(script); packets++) {
		play(packets);
		assert_int_equal(shutdown(raw.sock, SHUT_WR), 0);
		raw_expect_end(&raw);
		raw_close(&raw);
		raw_close(&other);
		hostile_expect_unchanged();
	}
}

/* Everything that may wait does, or is under way, in one packet, and the socket is closed behind it. */
HOSTILE_BEFORE_TEST(test_all_outstanding)
{
	for (int round = 0; round < 50; round++) {
		play(6); /* the registrations are unread */
		scene.unit = done_0()->unit_register->unit;
		send_0(RAW(GATHER, gather, Gather, .unit = scene.unit, .tag = RAW_TEXT("t")));
		send_0(RAW(RELEASE, release, Release, .unit = scene.unit, .tag = RAW_TEXT("t"), FENCE(1)));
		send_0(RAW(GATHER, gather, Gather, .unit = scene.unit, .prefetch = true,
		           .tag = RAW_TEXT("p")));
		send_0(RAW(UPDATE_BEGIN, update_begin, UpdateBegin, .n_units = 1, .units = &scene.unit));
		send_0(RAW(PUBLISH, publish, Publish, .n_units = 1, .units = &scene.unit, FENCE(2)));
		send_0(RAW(COMMIT, commit, Commit, .group = scene.group, .step = 1));
		send_0(RAW(BACKWARD_BEGIN, backward_begin, BackwardBegin, .group = scene.group));
		send_0(RAW(BUCKET_CREATE, bucket_create, BucketCreate, .group = scene.group, .dtype = 1));
		send_0(RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = scene.group, .dtype = 1,
		           .name = RAW_TEXT("v"), .numel = 1 << 20));
		send_0(RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT("leavers"), .bytes = 4 << 20));
		send_0(RAW(ALLOC, alloc, Alloc, .job = RAW_TEXT("another"), .bytes = 4 << 20));
		send_0(RAW(LIST, list, List, .table = ZD__TABLE__BUFFERS));
		raw_close(&raw);
		raw_close(&other);
		hostile_expect_unchanged();
	}
}

/* It leaves at the moment at which the deadline of its request comes: nobody is there to be told any more.
 * The moment is looked for, and need not be met each time. */
HOSTILE_BEFORE_TEST(test_deadline_at_the_end)
{
	for (long wait_us = 900; wait_us < 2100; wait_us += 20) {
		Zd__Request *join = join_request(0);

		raw_open(&raw, hostile_socket());
		join->deadline_ms = 1;
		send_0(join);
		(void)nanosleep(&(const struct timespec){.tv_nsec = wait_us * 1000}, NULL);
		raw_close(&raw);
	}
}

/* Takes the daemon's limit down until it can open `left` more: the limit bounds their numbers. */
static void leave_descriptors(int left, struct rlimit limit)
{
	char path[64];

	for (limit.rlim_cur = 0; left >= 0; limit.rlim_cur++) {
		(void)snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)hostile.daemon.pid,
		               (unsigned)limit.rlim_cur);
		left -= faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
	}
	limit.rlim_cur--;
	assert_int_equal(prlimit(hostile.daemon.pid, RLIMIT_NOFILE, &limit, NULL), 0);
}

/* A first unit needs a segment and a copy of its descriptor. True when it was had. */
static bool register_with_few(void)
{
	const Zd__Reply *reply;

	send_0(RAW(UNIT_REGISTER, unit_register, UnitRegister, .group = scene.group, .dtype = ZEROD_INT8,
	           .name = RAW_TEXT("u"), .numel = 100));
	reply = raw_answer(&raw, scene.last[0]);
	if (!reply) /* it could not be told where its memory is, and was told why */
		reply = raw_find(&raw, 0);
	assert_non_null(reply);
	if (reply->status == 0)
		return true;
	assert_int_equal(reply->status, ZEROD_E_SYSTEM);
	assert_non_null(strstr(reply->error, "Too many open files"));
	return false;
}

/* Descriptors run out under a session that needs more: what needs one fails by name, the rest is served. */
HOSTILE_BEFORE_TEST(test_descriptors_exhausted)
{
	struct rlimit usual;

	assert_int_equal(prlimit(hostile.daemon.pid, RLIMIT_NOFILE, NULL, &usual), 0);
	for (int left = 0; left < 4; left++) {
		bool had;

		play(5); /* both have joined, no segment is there */
		leave_descriptors(left, usual);
		had = register_with_few();
		assert_int_equal(had, left >= 2);
		hostile_witness();
		assert_int_equal(prlimit(hostile.daemon.pid, RLIMIT_NOFILE, &usual, NULL), 0);
		if (left == 0)
			assert_true(register_with_few()); /* once there are enough again */
		raw_close(&raw);
		raw_close(&other);
		hostile_expect_unchanged();
	}
}

int main(void)
{
	return test_run(hostile_start, hostile_stop);
}
