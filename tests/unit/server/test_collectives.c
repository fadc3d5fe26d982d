/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_collectives.c - unique ids, and the part of a join that is about daemons and collectives. The backend
 * is the host's, but that it has communicators, as far as their ids.
 */
#include "api_scene.h"

#include "base/mem.h"
#include "server/handlers.h"

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
	scene->api.conns.users.turn_ns = UINT64_MAX;
	scene->witness = scene_session(scene);
	*state = scene;
	return 0;
}

static void test_backend_is_told(void **state)
{
	(void)state;
	assert_string_equal(opened.nccl_path, "/opt/libnccl.so.2");
	assert_true(opened.check_collectives);
	assert_int_equal(opened.collective_timeout_ns, 7);
}

static void test_hello_says_so(void **state)
{
	struct scene *scene = *state;
	int sock = scene_connect(scene);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__Hello hello = ZD__HELLO__INIT;
	struct delivery delivery;

	hello.version_min = hello.version_max = ZD_PROTOCOL_VERSION;
	hello.name = (char *)"trainer";
	request.body_case = ZD__REQUEST__BODY_HELLO;
	request.hello = &hello;
	delivery = scene_call(scene, sock, &request);
	assert_int_equal(delivery.packet->replies[0]->hello->n_features, 1);
	assert_string_equal(delivery.packet->replies[0]->hello->features[0], "collectives");
	delivery_free(&delivery);
	(void)close(sock);
}

static void test_unique_ids(void **state)
{
	static const uint32_t counts[] = {1, 2, ZD_MAX_UNIQUE_IDS};
	struct scene *scene = *state;
	int sock = scene_session(scene);
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__UniqueIds unique_ids = ZD__UNIQUE_IDS__INIT;

	request.body_case = ZD__REQUEST__BODY_UNIQUE_IDS;
	request.unique_ids = &unique_ids;
	for (size_t i = 0; i < ZD_ARRAY_LEN(counts); i++) {
		struct delivery delivery;
		const ProtobufCBinaryData *ids;

		unique_ids.count = counts[i];
		delivery = scene_call(scene, sock, &request);
		assert_int_equal(delivery.packet->replies[0]->status, 0);
		assert_int_equal(delivery.packet->replies[0]->body_case, ZD__REPLY__BODY_UNIQUE_IDS);
		ids = &delivery.packet->replies[0]->unique_ids->ids;
		assert_int_equal(ids->len, counts[i] * ZD_UNIQUE_ID_BYTES);
		for (uint32_t b = 0; b < ids->len; b++)
			assert_int_equal(ids->data[b], id_byte(b));
		delivery_free(&delivery);
	}
	unique_ids.count = 0;
	assert_int_equal(scene_status(scene, sock, &request), ZEROD_E_LIMIT);
	unique_ids.count = ZD_MAX_UNIQUE_IDS + 1;
	assert_int_equal(scene_status(scene, sock, &request), ZEROD_E_LIMIT);
	(void)close(sock);
}

/* Translates a client's GroupJoin into the engine's arguments. */
static int translate(Zd__GroupJoin *join, struct zd_args *args, struct zd_err *err)
{
	Zd__Request request = ZD__REQUEST__INIT;

	memset(args, 0, sizeof(*args));
	request.body_case = ZD__REQUEST__BODY_GROUP_JOIN;
	request.group_join = join;
	return zd_args_group_join(&request, NULL, args, err);
}

static void test_join(void **state)
{
	uint8_t ids[(ZD_MAX_UNIQUE_IDS + 1) * ZD_UNIQUE_ID_BYTES] = {0};
	Zd__GroupJoin join = ZD__GROUP_JOIN__INIT;
	struct zd_args args;
	struct zd_err err;

	(void)state;
	assert_int_equal(translate(&join, &args, &err), 0);
	assert_int_equal(args.u.group_join.local_world_size, 0);
	assert_false(args.u.group_join.nccl_collectives);
	assert_false(args.u.group_join.hybrid);
	assert_null(args.u.group_join.ids);
	join.local_world_size = 4;
	join.hybrid = true;
	join.collectives = ZD__COLLECTIVES__NCCL;
	join.unique_ids.data = ids;
	join.unique_ids.len = (size_t)ZD_MAX_UNIQUE_IDS * ZD_UNIQUE_ID_BYTES;
	assert_int_equal(translate(&join, &args, &err), 0);
	assert_int_equal(args.u.group_join.local_world_size, 4);
	assert_true(args.u.group_join.hybrid);
	assert_true(args.u.group_join.nccl_collectives);
	assert_ptr_equal(args.u.group_join.ids, ids);
	assert_int_equal(args.u.group_join.ids_bytes, sizeof(ids) - ZD_UNIQUE_ID_BYTES);
	join.unique_ids.len--;
	assert_int_equal(translate(&join, &args, &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "unique ids of 4095 bytes together, expected a multiple of 128");
	join.unique_ids.len = sizeof(ids);
	assert_int_equal(translate(&join, &args, &err), ZEROD_E_LIMIT);
	assert_string_equal(err.text, "33 unique ids in one request, at most 32 are allowed");
	join.unique_ids.len = 0;
	join.collectives = 2;
	assert_int_equal(translate(&join, &args, &err), ZEROD_E_INVALID);
	assert_string_equal(err.text, "collectives 2, expected 0 (copies) or 1 (NCCL)");
}

/* Ids are bytes: a zero among them is none in a text. */
static void test_zeros_in_ids(void **state)
{
	struct scene *scene = *state;
	int sock = scene_session(scene);
	uint8_t ids[ZD_UNIQUE_ID_BYTES + 1] = {0};
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
	assert_string_equal(delivery.packet->replies[0]->error,
	                    "unique ids of 129 bytes together, expected a multiple of 128");
	delivery_free(&delivery);
	(void)close(sock);
}

#define COLLECTIVES_TEST(name) cmocka_unit_test_setup_teardown(name, setup, scene_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        COLLECTIVES_TEST(test_backend_is_told), COLLECTIVES_TEST(test_hello_says_so),
	        COLLECTIVES_TEST(test_unique_ids),      cmocka_unit_test(test_join),
	        COLLECTIVES_TEST(test_zeros_in_ids),
	};

	(void)alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
