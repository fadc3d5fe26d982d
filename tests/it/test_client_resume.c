/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_resume.c - units_resume as the library sends it, and replies of a scripted daemon alone. */
#include <unistd.h>

#include "tests/it/client_scene.h"

/* Until the daemon has ended. */
static void open_durable(struct scene *scene, fake_script script)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group = ZEROD_INIT(group);
	struct zerod_unit_options unit = ZEROD_INIT(unit);

	assert_int_equal(fake_start(&scene->fake, script, NULL), 0);
	options.socket_path = scene->fake.socket_path;
	options.deadline_ms = options.reconnect_ms = 20000;
	assert_status(NULL, zerod_connect(&options, &scene->client), ZEROD_OK);
	group.job = "job";
	group.world_size = 2;
	group.flags = ZEROD_GROUP_DURABLE;
	assert_status(scene->client, zerod_group_join(scene->client, &group, &scene->group), ZEROD_OK);
	unit.name = "w";
	unit.dtype = ZEROD_FLOAT32;
	unit.numel = FAKE_PADDED_BYTES / sizeof(float);
	unit.flags = ZEROD_UNIT_PERSISTENT;
	assert_status(scene->client, zerod_unit_register(scene->group, &unit, &scene->unit), ZEROD_OK);
	assert_int_equal(zerod_group_barrier(scene->group, NULL, NULL), ZEROD_E_RESTARTED);
}

/* The daemon ends in the barrier, and the next one has the request, whose id is returned; 0: a check has
 * failed. */
static uint64_t serve_until_resume(struct fake_peer *peer)
{
	const Zd__Request *request;

	fake_serve_unit(peer);
	(void)fake_expect(peer, ZD__REQUEST__BODY_GROUP_BARRIER);
	(void)close(peer->sock);
	fake_hello(peer);
	fake_serve_join(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_UNITS_RESUME);
	if (!request || !fake_check(peer, request->units_resume->n_units == 1) ||
	    !fake_check(peer, request->units_resume->n_descriptions == 1) ||
	    !fake_check(peer, request->units_resume->n_persistent == 1))
		return 0;
	fake_check(peer, request->units_resume->group == FAKE_GROUP);
	fake_check(peer, request->units_resume->units[0] == FAKE_UNIT);
	fake_check(peer, request->units_resume->descriptions[0] == FAKE_DESCRIPTION);
	fake_check(peer, request->units_resume->persistent[0]);
	return request->id;
}

static void an_older_daemon(struct fake_peer *peer, void *arg)
{
	uint64_t id = serve_until_resume(peer);

	(void)arg;
	if (id == 0)
		return;
	fake_error(peer, id, ZEROD_E_UNSUPPORTED, "this daemon knows no request with the field number 87");
	fake_serve_register(peer);
	fake_expect_end(peer);
}

/* It registers the unit instead. */
TEST(test_an_older_daemon)
{
	struct zerod_group_info info = ZEROD_INIT(info);
	struct zerod_shard shard = ZEROD_INIT(shard);
	struct scene scene;

	open_durable(&scene, an_older_daemon);
	assert_status(scene.client, zerod_group_get(scene.group, &info), ZEROD_OK);
	assert_status(scene.client, zerod_shard_get(scene.unit, &shard), ZEROD_OK);
	scene_close(&scene);
}

static void a_short_reply(struct fake_peer *peer, void *arg)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__UnitsResumeReply resumed = ZD__UNITS_RESUME_REPLY__INIT;
	uint32_t segment = FAKE_SEGMENT;

	(void)arg;
	reply.id = serve_until_resume(peer);
	if (reply.id == 0)
		return;
	resumed.n_segments = 1;
	resumed.segments = &segment;
	reply.body_case = ZD__REPLY__BODY_UNITS_RESUME;
	reply.units_resume = &resumed;
	fake_reply(peer, &reply);
	fake_expect_end(peer);
}

static void a_segment_never_sent(struct fake_peer *peer, void *arg)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__UnitsResumeReply resumed = ZD__UNITS_RESUME_REPLY__INIT;
	uint32_t segment = FAKE_SEGMENT;
	uint64_t zero = 0;

	(void)arg;
	reply.id = serve_until_resume(peer);
	if (reply.id == 0)
		return;
	resumed.n_segments = resumed.n_offsets = resumed.n_versions = resumed.n_target_offsets_numel = 1;
	resumed.segments = &segment;
	resumed.offsets = resumed.versions = resumed.target_offsets_numel = &zero;
	reply.body_case = ZD__REPLY__BODY_UNITS_RESUME;
	reply.units_resume = &resumed;
	fake_reply(peer, &reply);
	fake_expect_end(peer);
}

TEST(test_replies_that_cannot_be)
{
	const struct {
		fake_script script;
		const char *text;
	} cases[] = {
	        {a_short_reply, "does not have all of 1 units"},
	        {a_segment_never_sent, "segment 7, which it never sent"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct zerod_group_info info = ZEROD_INIT(info);
		struct scene scene;

		open_durable(&scene, cases[i].script);
		assert_status(scene.client, zerod_group_get(scene.group, &info), ZEROD_E_PROTOCOL);
		assert_non_null(strstr(zerod_last_error(scene.client), cases[i].text));
		scene_close(&scene);
	}
}
