/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_step.c - until when the library hands a step's target out. */
#include "tests/it/client_scene.h"

static void answer_step(struct fake_peer *peer)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_STEP_BEGIN);
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__StepBeginReply begun = ZD__STEP_BEGIN_REPLY__INIT;
	Zd__Location target = ZD__LOCATION__INIT;

	if (!request)
		return;
	target.segment = FAKE_SEGMENT;
	target.bytes = FAKE_SHARD_BYTES;
	begun.step = 1;
	begun.target = &target;
	begun.target_dtype = ZEROD_FLOAT32;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_STEP_BEGIN;
	reply.step_begin = &begun;
	fake_reply(peer, &reply);
}

/* With the groups in whose step the session is. */
static void answer_reset(struct fake_peer *peer, uint64_t *steps, size_t nsteps)
{
	const Zd__Request *request = fake_expect(peer, ZD__REQUEST__BODY_SESSION_RESET);
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__SessionResetReply reset = ZD__SESSION_RESET_REPLY__INIT;

	if (!request)
		return;
	reset.n_steps = nsteps;
	reset.steps = steps;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_SESSION_RESET;
	reply.session_reset = &reset;
	fake_reply(peer, &reply);
}

static void reset_four_times(struct fake_peer *peer, void *arg)
{
	uint64_t steps[] = {FAKE_GROUP + 1, FAKE_GROUP};
	const Zd__Request *request;

	(void)arg;
	fake_serve_unit(peer);
	answer_step(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_SESSION_RESET);
	if (request)
		fake_error(peer, request->id, ZEROD_E_DEADLINE, "copies are under way");
	answer_reset(peer, steps, 2);
	request = fake_expect(peer, ZD__REQUEST__BODY_SESSION_RESET);
	if (request)
		fake_ok(peer, request->id);
	answer_reset(peer, steps, 1);
	fake_expect_end(peer);
}

static void expect_no_target(struct scene *scene, const char *why)
{
	struct zerod_target target = ZEROD_INIT(target);

	assert_int_equal(zerod_target_get(scene->unit, &target), ZEROD_E_STATE);
	assert_non_null(strstr(zerod_last_error(scene->client), why));
}

TEST(test_resets)
{
	struct zerod_target target = ZEROD_INIT(target), same = ZEROD_INIT(same);
	struct zerod_step_info info = ZEROD_INIT(info);
	struct scene scene = {0};

	scene_open(&scene, reset_four_times, NULL);
	assert_status(scene.client, zerod_step_begin(scene.group, NULL, &info, NULL), ZEROD_OK);
	assert_status(scene.client, zerod_target_get(scene.unit, &target), ZEROD_OK);
	assert_int_equal(zerod_session_reset(scene.client, NULL), ZEROD_E_DEADLINE);
	expect_no_target(&scene, "until zerod_session_reset() has succeeded");
	assert_status(scene.client, zerod_session_reset(scene.client, NULL), ZEROD_OK);
	assert_status(scene.client, zerod_target_get(scene.unit, &same), ZEROD_OK);
	assert_ptr_equal(same.data, target.data);
	/* An older daemon names none. */
	assert_status(scene.client, zerod_session_reset(scene.client, NULL), ZEROD_OK);
	assert_status(scene.client, zerod_target_get(scene.unit, &same), ZEROD_OK);
	/* Of a group that it does not name the target is the daemon's again. */
	assert_status(scene.client, zerod_session_reset(scene.client, NULL), ZEROD_OK);
	expect_no_target(&scene, "outside step_begin and step_end");
	scene_close(&scene);
}
