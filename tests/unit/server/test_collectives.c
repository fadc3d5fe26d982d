/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_collectives.c - unique ids and their stamps, and the part of a join that is about daemons and
 * collectives. The backend is the host's, but that it has communicators, as far as their ids.
 */
#include "api_scene.h"

#include "base/mem.h"
#include "server/handlers.h"
#include "server/id_stamp.h"

static struct zd_backend_ops with_ids; /* the host's, but for open() and submit() */
static struct zd_backend_config opened;

static int open_with_ids(const struct zd_backend_config *config, struct zd_backend **backend,
                         struct zd_err *err)
{
	opened = *config;
	return zd_backend_host.open(config, backend, err);
}

/* Byte i of all ids together. */
static unsigned char id_byte(uint32_t i)
{
	return (unsigned char)(i * 7 + i / ZD_UNIQUE_ID_BYTES);
}

static void submit_with_ids(struct zd_backend *backend, const struct zd_command *command)
{
	struct zd_completion completion = {.op = command->op};

	if (command->kind != ZD_CMD_UNIQUE_IDS) {
		zd_backend_host.submit(backend, command);
		return;
	}
	completion.result.values_bytes = command->u.ids.count * ZD_UNIQUE_ID_BYTES;
	completion.result.values = zd_calloc(1, completion.result.values_bytes);
	for (uint32_t i = 0; i < completion.result.values_bytes; i++)
		completion.result.values[i] = id_byte(i);
	opened.done(opened.done_arg, &completion);
}

static int setup(void **state)
{
	struct scene *scene = calloc(1, sizeof(*scene));
	struct zd_bridge_config config = {.backend = &with_ids,
	                                  .ndevices = 2,
	                                  .arena_bytes = 64 << 20,
	                                  .nccl_path = "/opt/libnccl.so.2",
	                                  .check_collectives = true,
	                                  .collective_timeout_ns = 7};
	struct zd_api_limits limits = default_limits();

	assert_non_null(scene);
	with_ids = zd_backend_host;
	with_ids.open = open_with_ids;
	with_ids.submit = submit_with_ids;
	with_ids.collectives = true;
	assert_int_equal(zd_loop_init(&scene->loop, NULL), 0);
	assert_int_equal(zd_api_open(&scene->api, &scene->loop, &config, &limits, NULL), 0);
	scene->api.conns.users.turn_ns = scene->api.conns.users.slice_ns = UINT64_MAX;
	scene->witness = scene_session(scene);
	*state = scene;
	return 0;
}

#define IDS_TEST(name) FIXTURE_TEST(name, struct scene *scene, setup, scene_teardown)

IDS_TEST(test_backend_is_told)
{
	(void)scene;
	assert_string_equal(opened.nccl_path, "/opt/libnccl.so.2");
	assert_true(opened.check_collectives);
	assert_int_equal(opened.collective_timeout_ns, 7);
}

IDS_TEST(test_hello_says_so)
{
	int sock = scene_connect(scene);
	struct delivery delivery;

	delivery = scene_call(scene, sock,
	                      RAW(HELLO, hello, Hello, .version_min = ZD_PROTOCOL_VERSION,
	                          .version_max = ZD_PROTOCOL_VERSION, .name = (char *)"trainer"));
	assert_int_equal(delivery.packet->replies[0]->hello->n_features, 1);
	assert_string_equal(delivery.packet->replies[0]->hello->features[0], "collectives");
	delivery_free(&delivery);
	(void)close(sock);
}

IDS_TEST(test_unique_ids)
{
	static const uint32_t counts[] = {1, 2, ZD_MAX_UNIQUE_IDS};
	int sock = scene_session(scene);
	Zd__Request *request = RAW(UNIQUE_IDS, unique_ids, UniqueIds);

	request->unique_ids->job = (char *)"job";
	request->unique_ids->group = (char *)"world";
	for (size_t i = 0; i < ZD_ARRAY_LEN(counts); i++) {
		struct delivery delivery;
		const ProtobufCBinaryData *ids;

		request->unique_ids->count = counts[i];
		delivery = scene_call(scene, sock, request);
		assert_int_equal(delivery.packet->replies[0]->status, 0);
		assert_int_equal(delivery.packet->replies[0]->body_case, ZD__REPLY__BODY_UNIQUE_IDS);
		ids = &delivery.packet->replies[0]->unique_ids->ids;
		assert_int_equal(ids->len, ZD_ID_STAMP_BYTES + counts[i] * ZD_UNIQUE_ID_BYTES);
		for (uint32_t b = 0; b < counts[i] * ZD_UNIQUE_ID_BYTES; b++)
			assert_int_equal(ids->data[ZD_ID_STAMP_BYTES + b], id_byte(b));
		delivery_free(&delivery);
	}
	request->unique_ids->count = 0;
	assert_int_equal(scene_status(scene, sock, request), ZEROD_E_LIMIT);
	request->unique_ids->count = ZD_MAX_UNIQUE_IDS + 1;
	assert_int_equal(scene_status(scene, sock, request), ZEROD_E_LIMIT);
	request->unique_ids->count = 1;
	request->unique_ids->group = (char *)"";
	assert_int_equal(scene_status(scene, sock, request), ZEROD_E_INVALID);
	request->unique_ids->job = request->unique_ids->group; /* for any group of the user */
	assert_int_equal(scene_status(scene, sock, request), 0);
	(void)close(sock);
}

/* ---- Stamps -------------------------------------------------------------------------------------------- */

#define NIDS      2u
#define IDS_BYTES (ZD_ID_STAMP_BYTES + NIDS * ZD_UNIQUE_ID_BYTES)

static uint64_t now_s(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec;
}

/* Ids that this api has made `age_s` seconds ago. */
static void make_ids(const struct scene *scene, uint32_t uid, int64_t age_s, uint8_t ids[IDS_BYTES])
{
	const struct zd_id_facts facts = {
	        .uid = uid, .job = "job", .group = "world", .now_s = now_s() - (uint64_t)age_s};

	memset(ids, 7, IDS_BYTES);
	assert_int_equal(
	        zd_id_stamp_write(&scene->api.id_key, &facts, ids + ZD_ID_STAMP_BYTES, NIDS, ids, NULL), 0);
}

/* Joins as one rank of two, of a group with NCCL's collectives. `error`: the expected one. */
static void expect_join(struct scene *scene, const char *job, const char *group, uint8_t *ids, size_t nbytes,
                        int status, const char *error)
{
	int sock = scene_session(scene);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__GroupJoin join = ZD__GROUP_JOIN__INIT;
	struct delivery delivery;

	join.job = (char *)job;
	join.group = (char *)group;
	join.world_size = 2;
	join.local_world_size = 1;
	join.rank = 2; /* the engine, if it is asked, answers at once */
	join.unique_ids.data = ids;
	join.unique_ids.len = nbytes;
	request.body_case = ZD__REQUEST__BODY_GROUP_JOIN;
	request.group_join = &join;
	delivery = scene_call(scene, sock, &request);
	if (delivery.packet->replies[0]->status != status ||
	    !strstr(delivery.packet->replies[0]->error, error))
		fail_msg("%d: %s", delivery.packet->replies[0]->status, delivery.packet->replies[0]->error);
	delivery_free(&delivery);
	(void)close(sock);
}

#define FROM_ENGINE "rank 2 of a world of 2"

IDS_TEST(test_stamped_ids)
{
	const struct zd_id_facts any = {.uid = geteuid(), .job = "", .group = "", .now_s = now_s()};
	uint8_t ids[IDS_BYTES];

	memset(ids, 7, sizeof(ids));
	assert_int_equal(
	        zd_id_stamp_write(&scene->api.id_key, &any, ids + ZD_ID_STAMP_BYTES, NIDS, ids, NULL), 0);
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_INVALID, FROM_ENGINE);
	make_ids(scene, geteuid(), 0, ids);
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_INVALID, FROM_ENGINE);
	expect_join(scene, "jobs", "world", ids, sizeof(ids), ZEROD_E_INVALID,
	            "group 'world': the unique id was made for job 'job', not for 'jobs'");
	expect_join(scene, "job", "experts", ids, sizeof(ids), ZEROD_E_INVALID,
	            "group 'experts': the unique id was made for group 'world', not for 'experts'");
	make_ids(scene, geteuid() + 1, 0, ids);
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_PERMISSION, "made for another user");
	make_ids(scene, geteuid(), 3590, ids);
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_INVALID, FROM_ENGINE);
	make_ids(scene, geteuid(), 3700, ids);
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_PERMISSION,
	            "the unique id has expired: it was made 370");
	make_ids(scene, geteuid(), -50, ids);
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_INVALID, FROM_ENGINE);
	make_ids(scene, geteuid(), -3600, ids);
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_PERMISSION,
	            "the clocks of the nodes differ");
}

IDS_TEST(test_ids_of_other_keys)
{
	const struct zd_id_key own = scene->api.id_key;
	struct zd_id_key other = own;
	uint8_t ids[IDS_BYTES];

	assert_false(own.shared);
	other.secret[0] ^= 1;
	other.name[0] ^= 1;
	zd_api_set_id_key(&scene->api, &other);
	make_ids(scene, geteuid(), 0, ids);
	zd_api_set_id_key(&scene->api, &own);
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_PERMISSION,
	            "has no key_file and accepts only ids of its own node: set key_file under [collectives]");
	scene->api.id_key.shared = true;
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_PERMISSION,
	            "the unique id was made by a daemon without a key_file: set key_file");
	other.shared = true;
	zd_api_set_id_key(&scene->api, &other);
	make_ids(scene, geteuid(), 0, ids);
	zd_api_set_id_key(&scene->api, &own);
	scene->api.id_key.shared = true;
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_PERMISSION,
	            "the unique id was made with another key than this daemon's");
}

/* Every byte counts: of the stamp and of the ids, and how many there are. */
IDS_TEST(test_changed_ids)
{
	const struct zd_id_facts facts = {.uid = geteuid(), .job = "job", .group = "world", .now_s = now_s()};
	uint8_t ids[IDS_BYTES], made_up[IDS_BYTES] = {0};
	uint32_t left_s;

	make_ids(scene, geteuid(), 0, ids);
	for (size_t i = 0; i < sizeof(ids); i++) {
		int rc;

		ids[i] ^= 0x10;
		rc = zd_id_stamp_check(&scene->api.id_key, &facts, 3600, ids, sizeof(ids), &left_s, NULL);
		assert_int_equal(rc, i < 8 ? ZEROD_E_INVALID : ZEROD_E_PERMISSION);
		ids[i] ^= 0x10;
	}
	ids[ZD_ID_STAMP_BYTES] ^= 1;
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_PERMISSION,
	            "was made by no daemon, or was changed since");
	ids[ZD_ID_STAMP_BYTES] ^= 1;
	expect_join(scene, "job", "world", ids, sizeof(ids) - ZD_UNIQUE_ID_BYTES, ZEROD_E_INVALID,
	            "320 bytes that are no unique id of a daemon");
	expect_join(scene, "job", "world", ids, 1, ZEROD_E_INVALID, "1 bytes that are no unique id");
	expect_join(scene, "job", "world", ids + ZD_ID_STAMP_BYTES, 2 * ZD_UNIQUE_ID_BYTES, ZEROD_E_INVALID,
	            "256 bytes that are no unique id");
	expect_join(scene, "job", "world", made_up, sizeof(made_up), ZEROD_E_INVALID,
	            "448 bytes that are no");
	expect_join(scene, "job", "world", ids, sizeof(ids), ZEROD_E_INVALID, FROM_ENGINE);
}

static int check(Zd__GroupJoin *join, struct zd_err *err)
{
	struct zd_args args = {.kind = ZD_REQ_GROUP_JOIN, .u.group_join = *join};

	return zd_check_group_join(NULL, &args, err);
}

TEST(test_join)
{
	Zd__GroupJoin join = ZD__GROUP_JOIN__INIT;
	struct zd_err err;

	assert_int_equal(check(&join, &err), 0);
	join.unique_ids.len = ZD_ID_STAMP_BYTES + ZD_MAX_UNIQUE_IDS * ZD_UNIQUE_ID_BYTES + 1;
	assert_int_equal(check(&join, &err), ZEROD_E_LIMIT);
	assert_string_equal(err.text, "unique ids of 4289 bytes, at most 4288 are allowed");
	join.unique_ids.len = 0;
	join.collectives = 2;
	assert_int_equal(check(&join, &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "collectives 2, expected 0 (copies) or 1 (NCCL)");
}

/* Ids are bytes: a zero among them is none in a text. */
IDS_TEST(test_zeros_in_ids)
{
	int sock = scene_session(scene);
	uint8_t ids[129] = {0};
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__GroupJoin join = ZD__GROUP_JOIN__INIT;
	struct delivery delivery;

	join.job = join.group = (char *)"a";
	join.world_size = 1;
	join.unique_ids.data = ids;
	join.unique_ids.len = sizeof(ids);
	request.body_case = ZD__REQUEST__BODY_GROUP_JOIN;
	request.group_join = &join;
	delivery = scene_call(scene, sock, &request);
	assert_int_equal(delivery.packet->replies[0]->status, ZEROD_E_INVALID);
	assert_string_equal(
	        delivery.packet->replies[0]->error,
	        "group 'a': 129 bytes that are no unique id of a daemon, or did not arrive whole");
	delivery_free(&delivery);
	(void)close(sock);
}

int main(void)
{
	(void)alarm(60);
	return test_run(NULL, NULL);
}
