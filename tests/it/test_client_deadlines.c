/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_deadlines.c - calls that wait send the deadline that they were given, and wait no longer
 * themselves. */
#include "tests/it/client_scene.h"

#include <pthread.h>
#include <string.h>

#include "proto/limits.h"

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

static void test_every_call_sends_its_deadline(void **state)
{
	struct zerod_wait_options mine = ZEROD_INIT(mine), none = ZEROD_INIT(none);
	struct scene scene = {0};

	(void)state;
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
static void test_a_name_is_waited_for_until_a_deadline(void **state)
{
	static struct naming naming;
	pthread_t first;

	(void)state;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_every_call_sends_its_deadline),
	        cmocka_unit_test(test_a_name_is_waited_for_until_a_deadline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
