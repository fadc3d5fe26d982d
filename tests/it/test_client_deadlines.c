/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_deadlines.c - calls that wait send the deadline that they were given, and wait no longer
 * themselves, in all their parts together. */
#include "tests/it/client_scene.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <zerod_read.h>

#include "client/lib/base/client.h"
#include "proto/limits.h"

/* ---- The library's clock ------------------------------------------------------------------------------- */

#define NS_PER_S 1000000000ull

/* The clock stands still until a script sets it forward. */
static _Atomic uint64_t clock_ns;

int clock_gettime(clockid_t clock, struct timespec *now)
{
	long rc = clock_ns == 0 ? syscall(SYS_clock_gettime, clock, now) : 0;

	if (clock_ns == 0)
		clock_ns = (uint64_t)now->tv_sec * NS_PER_S;
	now->tv_sec = (time_t)(clock_ns / NS_PER_S);
	now->tv_nsec = (long)(clock_ns % NS_PER_S);
	return (int)rc;
}

/* The client sees the new time when it has read a packet: a second answer to its hello, which it ignores. */
static void set_forward(struct fake_peer *peer, uint64_t seconds)
{
	clock_ns += seconds * NS_PER_S;
	fake_ok(peer, 1);
}

/* ---- What travels -------------------------------------------------------------------------------------- */

#define SCENE_DEADLINE_MS 20000u /* scene_open()'s client's */
#define MINE_MS           1234u

typedef int timed_call(const struct scene *scene, const struct zerod_wait_options *options);

static const zerod_scope scope = {9};

static int abandon(const struct scene *scene, const struct zerod_wait_options *options)
{
	return zerod_backward_abandon(scene->group, NULL, 0, options);
}

static int end_step(const struct scene *scene, const struct zerod_wait_options *options)
{
	return zerod_step_end(scene->group, NULL, 0, options);
}

static int end_forward(const struct scene *scene, const struct zerod_wait_options *options)
{
	return zerod_forward_end(scene->client, scope, 0, NULL, 0, options);
}

static int end_claim(const struct scene *scene, const struct zerod_wait_options *options)
{
	return zerod_claim_end(scene->client, scope, NULL, 0, options);
}

static int end_context(const struct scene *scene, const struct zerod_wait_options *options)
{
	return zerod_context_end(scene->client, scope, NULL, 0, options);
}

static int unregister(const struct scene *scene, const struct zerod_wait_options *options)
{
	return zerod_unit_unregister(scene->unit, options);
}

static int make_id(const struct scene *scene, const struct zerod_wait_options *options)
{
	struct zerod_group_options group = ZEROD_INIT(group);
	struct zerod_unique_id id;

	group.job = "job";
	group.world_size = 2;
	group.local_world_size = 1;
	return zerod_group_unique_id(scene->client, &group, options, &id);
}

/* The group still exists after a deadline, and after nothing else. */
static int leave(const struct scene *scene, const struct zerod_wait_options *options)
{
	return zerod_group_leave(scene->group, options);
}

static const struct {
	Zd__Request__BodyCase body;
	timed_call *call;
} calls[] = {
        {ZD__REQUEST__BODY_BACKWARD_ABANDON, abandon}, {ZD__REQUEST__BODY_STEP_END, end_step},
        {ZD__REQUEST__BODY_FORWARD_END, end_forward},  {ZD__REQUEST__BODY_CLAIM_END, end_claim},
        {ZD__REQUEST__BODY_CONTEXT_END, end_context},  {ZD__REQUEST__BODY_UNIT_UNREGISTER, unregister},
        {ZD__REQUEST__BODY_UNIQUE_IDS, make_id},       {ZD__REQUEST__BODY_GROUP_LEAVE, leave},
};

#define NCALLS (sizeof(calls) / sizeof(calls[0]))

static void refuse_in_time(struct fake_peer *peer, void *arg)
{
	static const uint32_t expected_ms[] = {MINE_MS, 0, SCENE_DEADLINE_MS};
	const Zd__Request *request;

	(void)arg;
	peer->feature = ZD_FEATURE_COLLECTIVES;
	fake_serve_unit(peer);
	for (size_t i = 0; i < NCALLS * 3; i++) {
		request = fake_expect(peer, calls[i / 3].body);
		if (!request || !fake_check(peer, request->deadline_ms == expected_ms[i % 3]))
			return;
		fake_error(peer, request->id, ZEROD_E_DEADLINE, "not yet");
	}
	request = fake_expect(peer, ZD__REQUEST__BODY_GROUP_LEAVE);
	if (request)
		fake_ok(peer, request->id);
	fake_expect_end(peer);
}

TEST(test_every_call_sends_its_deadline)
{
	struct zerod_wait_options mine = ZEROD_INIT(mine), none = ZEROD_INIT(none);
	struct scene scene = {0};

	mine.deadline_ms = MINE_MS;
	none.deadline_ms = ZEROD_NO_DEADLINE;
	scene_open(&scene, refuse_in_time, NULL);
	for (size_t i = 0; i < NCALLS; i++) {
		assert_status(scene.client, calls[i].call(&scene, &mine), ZEROD_E_DEADLINE);
		assert_status(scene.client, calls[i].call(&scene, &none), ZEROD_E_DEADLINE);
		assert_status(scene.client, calls[i].call(&scene, NULL), ZEROD_E_DEADLINE);
	}
	assert_status(scene.client, leave(&scene, NULL), ZEROD_OK);
	scene_close(&scene);
}

/* ---- Reads --------------------------------------------------------------------------------------------- */

static int give_up(void *context)
{
	(void)context;
	return 1;
}

static void answer_busy(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	for (int i = 0; i < 2; i++) {
		const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_UNIT_READ);

		clock_ns += i * NS_PER_S;
		if (request)
			fake_error(peer, request->id, ZEROD_E_BUSY, "saved");
	}
	fake_expect_end(peer);
}

TEST(test_a_read_that_is_repeated_is_given_up)
{
	struct zerod_unit_read_options options = ZEROD_INIT(options);
	struct scene scene = {0};

	options.unit = "w";
	scene_open(&scene, answer_busy, NULL);
	scene.client->interrupted = give_up;
	assert_status(scene.client, zerod_unit_read(scene.client, &options, NULL), ZEROD_E_INTERRUPTED);
	scene_close(&scene);
}

/* ---- Names --------------------------------------------------------------------------------------------- */

struct naming {
	struct scene scene;
	atomic_bool asked, answer;
	int status;
};

static void answer_late(struct fake_peer *peer, void *arg)
{
	struct naming *naming = arg;
	const Zd__Request *request;

	fake_serve_unit(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_UNIT_REGISTER);
	naming->asked = true;
	while (!naming->answer)
		(void)sched_yield();
	if (request)
		fake_error(peer, request->id, ZEROD_E_MISMATCH, "no");
	fake_expect_end(peer);
}

static int register_unit(const struct naming *naming, uint32_t deadline_ms)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit;

	options.name = "v";
	options.dtype = ZEROD_FLOAT32;
	options.numel = 1;
	options.deadline_ms = deadline_ms;
	return zerod_unit_register(naming->scene.group, &options, &unit);
}

static void *register_first(void *arg)
{
	struct naming *naming = arg;

	naming->status = register_unit(naming, 0);
	return NULL;
}

/* One thread has the name until the daemon has answered; another one waits for it no longer than it is told.
 */
TEST(test_a_name_is_waited_for_until_a_deadline)
{
	static struct naming naming;
	pthread_t first;

	scene_open(&naming.scene, answer_late, &naming);
	assert_int_equal(pthread_create(&first, NULL, register_first, &naming), 0);
	while (!naming.asked)
		(void)sched_yield();
	assert_status(naming.scene.client, register_unit(&naming, 1), ZEROD_E_DEADLINE);
	assert_non_null(strstr(zerod_last_error(naming.scene.client), "another thread"));
	naming.answer = true;
	pthread_join(first, NULL);
	assert_int_equal(naming.status, ZEROD_E_MISMATCH);
	scene_close(&naming.scene);
}

/* ---- One deadline for all parts of a call -------------------------------------------------------------- */

struct waiting {
	struct scene scene;
	atomic_bool filled; /* every place for a request is taken */
	zerod_bucket *bucket;
	uint64_t posts[ZD_MAX_OUTSTANDING];
};

static int get_devices(struct waiting *waiting)
{
	struct zerod_device_info info = ZEROD_INIT(info);

	return zerod_device_get(waiting->scene.client, 0, &info);
}

static int gather(struct waiting *waiting)
{
	return zerod_gather(waiting->scene.unit, NULL, NULL, NULL);
}

static int reserve(struct waiting *waiting)
{
	struct zerod_entry entry = ZEROD_INIT(entry);

	return zerod_bucket_reserve(waiting->bucket, waiting->scene.unit, NULL, &entry);
}

static const struct {
	Zd__Request__BodyCase body;
	int (*call)(struct waiting *waiting);
} calls_for_room[] = {
        {ZD__REQUEST__BODY_LIST, get_devices},
        {ZD__REQUEST__BODY_BUCKET_RESERVE, reserve},
        {ZD__REQUEST__BODY_GATHER, gather},
};

static unsigned now_waits; /* of these, and the script's */

static void serve_bucket(struct fake_peer *peer)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_BUCKET_CREATE);
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__BucketCreateReply bucket = ZD__BUCKET_CREATE_REPLY__INIT;

	if (!request)
		return;
	bucket.bucket = 3;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_BUCKET_CREATE;
	reply.bucket_create = &bucket;
	fake_reply(peer, &reply);
}

/* Returns when the client waits for room: its deadline runs. */
static void await_room(struct fake_peer *peer, struct waiting *waiting)
{
	zerod_client *client;
	unsigned looks =
	        0; /* in a row, at a thread that reads: a call that drains the socket reads for a moment */

	fake_serve_unit(peer);
	serve_bucket(peer);
	for (unsigned i = 0; i < ZD_MAX_OUTSTANDING; i++) {
		const Zd__Request *post = fake_expect(peer, ZD__REQUEST__BODY_GATHER);

		waiting->posts[i] = post ? post->id : 0;
	}
	while (!waiting->filled)
		(void)sched_yield();
	client = waiting->scene.client;
	while (looks < 5000) {
		pthread_mutex_lock(&client->lock);
		looks = client->reading ? looks + 1 : 0;
		pthread_mutex_unlock(&client->lock);
		(void)sched_yield();
	}
}

static void answer_posts(struct fake_peer *peer, const struct waiting *waiting)
{
	for (unsigned i = 0; i < ZD_MAX_OUTSTANDING; i++)
		fake_ok(peer, waiting->posts[i]);
}

/* There is room a second after the deadline. */
static void make_room_late(struct fake_peer *peer, void *arg)
{
	struct waiting *waiting = arg;

	await_room(peer, waiting);
	set_forward(peer, 21);
	answer_posts(peer, waiting);
	fake_expect_end(peer);
}

/* There is room for the last five seconds, and no answer. */
static void answer_late_at_all(struct fake_peer *peer, void *arg)
{
	struct waiting *waiting = arg;
	const Zd__Request *request;

	await_room(peer, waiting);
	clock_ns += 15 * NS_PER_S;
	answer_posts(peer, waiting);
	request = fake_expect(peer, calls_for_room[now_waits].body);
	if (!request || !fake_check(peer, request->deadline_ms == 5000))
		return;
	if (request->body_case != ZD__REQUEST__BODY_GATHER) /* whose wait begins when it has been sent */
		set_forward(peer, 5 + ZC_GRACE_NS / NS_PER_S);
	else
		fake_error(peer, request->id, ZEROD_E_DEADLINE, "in time");
	fake_expect_end(peer);
}

static void check_room(fake_script script, const char *text)
{
	struct zerod_gather_options prefetch = ZEROD_INIT(prefetch);
	struct zerod_bucket_options bucket = ZEROD_INIT(bucket);
	static struct waiting waiting;
	zerod_ticket ticket;

	waiting = (struct waiting){.filled = false};
	scene_open(&waiting.scene, script, &waiting);
	bucket.dtype = ZEROD_FLOAT32;
	assert_status(waiting.scene.client,
	              zerod_bucket_create(waiting.scene.group, &bucket, &waiting.bucket), ZEROD_OK);
	prefetch.flags = ZEROD_GATHER_PREFETCH;
	for (unsigned i = 0; i < ZD_MAX_OUTSTANDING; i++)
		assert_status(waiting.scene.client,
		              zerod_gather_begin(waiting.scene.unit, &prefetch, &ticket), ZEROD_OK);
	waiting.filled = true;
	assert_status(waiting.scene.client, calls_for_room[now_waits].call(&waiting), ZEROD_E_DEADLINE);
	assert_non_null(strstr(zerod_last_error(waiting.scene.client), text));
	scene_close(&waiting.scene);
}

TEST(test_room_is_waited_for_until_the_deadline)
{
	for (now_waits = 0; now_waits < sizeof(calls_for_room) / sizeof(calls_for_room[0]); now_waits++)
		check_room(make_room_late, "1024 requests are outstanding");
}

TEST(test_the_answer_has_what_is_left)
{
	for (now_waits = 0; now_waits < sizeof(calls_for_room) / sizeof(calls_for_room[0]); now_waits++)
		check_room(answer_late_at_all, now_waits < 2 ? "did not answer in time" : "in time");
}

/* ---- The end ------------------------------------------------------------------------------------------- */

static void answer_no_goodbye(struct fake_peer *peer, void *arg)
{
	(void)arg;
	fake_serve_unit(peer);
	(void)fake_expect(peer, ZD__REQUEST__BODY_GOODBYE);
	set_forward(peer, 1);
	fake_expect_end(peer);
}

/* A daemon that stands still. */
TEST(test_close_waits_for_a_second)
{
	struct scene scene = {0};

	scene_open(&scene, answer_no_goodbye, NULL);
	scene_close(&scene);
}
