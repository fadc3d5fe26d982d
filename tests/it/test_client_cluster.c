/* SPDX-License-Identifier: Apache-2.0 */
/* test_client_cluster.c - groups whose ranks are in several daemons, as the library sees them: opposite a
 * scripted daemon. */
#include "tests/it/client_scene.h"

#include "proto/limits.h"

#define WORLD       4u
#define LOCAL       2u
#define RANK        3u /* of the second daemon */
#define GATHER_FROM 8192u

static unsigned char id_byte(size_t i)
{
	return (unsigned char)(1 + i % 251);
}

/* With the stamp. */
static size_t bytes_of(uint32_t nids)
{
	return ZD_ID_STAMP_BYTES + (size_t)nids * ZD_UNIQUE_ID_BYTES;
}

static struct zerod_unique_id whole_id(uint32_t local_world_size)
{
	struct zerod_unique_id id = {{0}};

	for (size_t i = 0; i < bytes_of(local_world_size * ZD_UNIQUE_IDS_PER_RANK); i++)
		id.bytes[i] = id_byte(i);
	return id;
}

static struct zerod_group_options cluster_options(const struct zerod_unique_id *id)
{
	struct zerod_group_options options = ZEROD_INIT(options);

	options.job = "job";
	options.world_size = WORLD;
	options.local_world_size = LOCAL;
	options.rank = RANK;
	options.unique_id = id;
	return options;
}

/* ---- Options ------------------------------------------------------------------------------------------- */

static void hello_and_end(struct fake_peer *peer, void *arg)
{
	peer->feature = arg;
	fake_hello(peer);
	fake_expect_end(peer);
}

#define REFUSED(scene, options, text)                                                                        \
	do {                                                                                                 \
		zerod_group *group_ = NULL;                                                                  \
		assert_status((scene)->client, zerod_group_join((scene)->client, options, &group_),          \
		              ZEROD_E_INVALID);                                                              \
		assert_string_equal(zerod_last_error((scene)->client), text);                                \
	} while (0)

#define HYBRID_REFUSED                                                                                       \
	"group 'world': ZEROD_GROUP_HYBRID is for ranks in several daemons, with ZEROD_COLLECTIVES_COPIES"

/* None of these reaches the daemon, which expects nothing more. */
TEST(test_bad_options)
{
	struct zerod_unique_id id = whole_id(LOCAL);
	struct zerod_group_options options = cluster_options(&id);
	struct scene scene = {0};

	scene_connect(&scene, hello_and_end, (char *)ZD_FEATURE_COLLECTIVES, 0);
	options.world_size = 5;
	REFUSED(&scene, &options, "group 'world': world_size 5 is no multiple of local_world_size 2");
	options.world_size = RANK + 1;
	options.local_world_size = RANK + 2;
	REFUSED(&scene, &options, "group 'world': world_size 4 is no multiple of local_world_size 5");
	options.world_size = 34;
	options.local_world_size = 17;
	REFUSED(&scene, &options,
	        "group 'world': local_world_size 17, at most 16 ranks of a group that spans daemons are in "
	        "one");
	options = cluster_options(NULL);
	REFUSED(&scene, &options,
	        "group 'world': unique_id is NULL, and 2 of 4 ranks are in other daemons: "
	        "zerod_group_unique_id() creates one");
	options = cluster_options(&id);
	options.local_world_size = WORLD;
	REFUSED(&scene, &options,
	        "group 'world': unique_id is set, and all 4 ranks are in this daemon: local_world_size is "
	        "the number of ranks in each daemon");
	options.local_world_size = 0;
	REFUSED(&scene, &options,
	        "group 'world': unique_id is set, and all 4 ranks are in this daemon: local_world_size is "
	        "the number of ranks in each daemon");
	options = cluster_options(&id);
	options.flags = ZEROD_GROUP_HYBRID;
	options.collectives = ZEROD_COLLECTIVES_NCCL;
	REFUSED(&scene, &options, HYBRID_REFUSED);
	options.collectives = ZEROD_COLLECTIVES_COPIES;
	options.local_world_size = WORLD;
	REFUSED(&scene, &options, HYBRID_REFUSED);
	options = cluster_options(&id);
	options.flags = ZEROD_GROUP_SHADOW;
	REFUSED(&scene, &options, "group 'world': ZEROD_GROUP_SHADOW needs ZEROD_GROUP_DURABLE");
	options = cluster_options(&id);
	options.collectives = (enum zerod_collectives)2;
	REFUSED(&scene, &options, "group 'world': unknown value 2 of collectives");
	id = whole_id(LOCAL - 1);
	options = cluster_options(&id);
	REFUSED(&scene, &options,
	        "group 'world': unique_id was made for fewer than 2 local ranks, or is incomplete");
	id = whole_id(LOCAL + 1);
	REFUSED(&scene, &options,
	        "group 'world': unique_id was made for more than 2 local ranks, or for other collectives");
	scene_close(&scene);
}

TEST(test_daemon_without_communicators)
{
	struct zerod_unique_id id = whole_id(LOCAL), before = id;
	struct zerod_group_options options = cluster_options(&id);
	struct scene scene = {0};
	zerod_group *group;

	scene_connect(&scene, hello_and_end, NULL, 0);
	assert_int_equal(zerod_group_join(scene.client, &options, &group), ZEROD_E_UNSUPPORTED);
	options.local_world_size = 0;
	options.unique_id = NULL;
	options.collectives = ZEROD_COLLECTIVES_NCCL;
	assert_int_equal(zerod_group_join(scene.client, &options, &group), ZEROD_E_UNSUPPORTED);
	options = cluster_options(NULL);
	assert_int_equal(zerod_group_unique_id(scene.client, &options, NULL, &id), ZEROD_E_UNSUPPORTED);
	assert_non_null(strstr(zerod_last_error(scene.client), "no communicators"));
	assert_memory_equal(&id, &before, sizeof(id));
	scene_close(&scene);
}

/* ---- What is sent -------------------------------------------------------------------------------------- */

struct expected_join {
	uint32_t local_world_size;
	Zd__Collectives collectives;
	uint32_t ids;
	bool hybrid;
};

static void check_join(struct fake_peer *peer, void *arg)
{
	const struct expected_join *expected = arg;
	const Zd__Request *request;

	peer->feature = ZD_FEATURE_COLLECTIVES;
	fake_hello(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_GROUP_JOIN);
	if (!request)
		return;
	fake_check(peer, request->group_join->local_world_size == expected->local_world_size);
	fake_check(peer, request->group_join->collectives == expected->collectives);
	fake_check(peer, request->group_join->hybrid == expected->hybrid);
	fake_check(peer,
	           request->group_join->unique_ids.len == (expected->ids > 0 ? bytes_of(expected->ids) : 0));
	for (size_t i = 0; i < request->group_join->unique_ids.len; i++)
		fake_check(peer, request->group_join->unique_ids.data[i] == id_byte(i));
	fake_error(peer, request->id, ZEROD_E_ABORTED, "seen");
	fake_expect_end(peer);
}

static void expect_sent(const struct zerod_group_options *options, struct expected_join expected)
{
	struct scene scene = {0};
	zerod_group *group;

	scene_connect(&scene, check_join, &expected, 20000);
	assert_status(scene.client, zerod_group_join(scene.client, options, &group), ZEROD_E_ABORTED);
	scene_close(&scene);
}

TEST(test_join)
{
	struct zerod_unique_id id = whole_id(LOCAL);
	struct zerod_group_options options = cluster_options(&id);

	expect_sent(&options, (struct expected_join){LOCAL, ZD__COLLECTIVES__COPIES, 2 * LOCAL, false});
	options.flags = ZEROD_GROUP_HYBRID;
	expect_sent(&options, (struct expected_join){LOCAL, ZD__COLLECTIVES__COPIES, 2 * LOCAL, true});
	options.flags = 0;
	options.collectives = ZEROD_COLLECTIVES_NCCL;
	id = whole_id(1);
	expect_sent(&options, (struct expected_join){LOCAL, ZD__COLLECTIVES__NCCL, 2, false});
	options.collectives = ZEROD_COLLECTIVES_COPIES;
	id = whole_id(ZEROD_MAX_LOCAL_RANKS);
	options.world_size = 2 * ZEROD_MAX_LOCAL_RANKS;
	options.local_world_size = ZEROD_MAX_LOCAL_RANKS;
	expect_sent(&options, (struct expected_join){ZEROD_MAX_LOCAL_RANKS, ZD__COLLECTIVES__COPIES,
	                                             2 * ZEROD_MAX_LOCAL_RANKS, false});
	/* One daemon: nothing to tell it, but how bytes travel. */
	options.unique_id = NULL;
	options.local_world_size = options.world_size;
	expect_sent(&options, (struct expected_join){0, ZD__COLLECTIVES__COPIES, 0, false});
	options.local_world_size = 0;
	options.collectives = ZEROD_COLLECTIVES_NCCL;
	expect_sent(&options, (struct expected_join){0, ZD__COLLECTIVES__NCCL, 0, false});
}

/* A program that was compiled before there were such groups: what is behind its structure says nothing. */
TEST(test_older_program)
{
	struct zerod_group_options options;

	memset(&options, 0xff, sizeof(options));
	options.struct_size = offsetof(struct zerod_group_options, device_uuid);
	options.job = "job";
	options.group = NULL;
	options.world_size = 2;
	options.local_world_size = options.rank = options.device = 0;
	expect_sent(&options, (struct expected_join){0, ZD__COLLECTIVES__COPIES, 0, false});
}

/* ---- Ids ----------------------------------------------------------------------------------------------- */

/* arg: how many bytes more than were asked for come. */
static void answer_ids(struct fake_peer *peer, void *arg)
{
	uint8_t bytes[ZEROD_UNIQUE_ID_BYTES];
	const Zd__Request *request;
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__UniqueIdsReply ids = ZD__UNIQUE_IDS_REPLY__INIT;

	peer->feature = ZD_FEATURE_COLLECTIVES;
	fake_hello(peer);
	request = fake_expect(peer, ZD__REQUEST__BODY_UNIQUE_IDS);
	if (!request)
		return;
	fake_check(peer, request->unique_ids->count == LOCAL * ZD_UNIQUE_IDS_PER_RANK);
	fake_check(peer, strcmp(request->unique_ids->job, "job") == 0);
	fake_check(peer, strcmp(request->unique_ids->group, "world") == 0);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = id_byte(i);
	ids.ids.data = bytes;
	ids.ids.len = bytes_of(LOCAL * ZD_UNIQUE_IDS_PER_RANK) + (size_t) * (const int *)arg;
	reply.id = request->id;
	reply.body_case = ZD__REPLY__BODY_UNIQUE_IDS;
	reply.unique_ids = &ids;
	fake_reply(peer, &reply);
	fake_expect_end(peer);
}

#define NO_ID(scene, options, id, text)                                                                      \
	do {                                                                                                 \
		assert_status((scene)->client, zerod_group_unique_id((scene)->client, options, NULL, id),    \
		              ZEROD_E_INVALID);                                                              \
		assert_string_equal(zerod_last_error((scene)->client), text);                                \
	} while (0)

TEST(test_unique_id)
{
	struct zerod_unique_id id, expected = whole_id(LOCAL);
	struct zerod_group_options options = cluster_options(NULL);
	struct scene scene = {0};

	scene_connect(&scene, answer_ids, &(int){0}, 20000);
	NO_ID(&scene, NULL, &id, "group is NULL");
	NO_ID(&scene, &options, NULL, "id is NULL");
	options.local_world_size = 0;
	NO_ID(&scene, &options, &id, "group 'world': all 4 ranks are in this daemon: it has no unique id");
	options.local_world_size = ZEROD_MAX_LOCAL_RANKS + 1;
	options.world_size = 2 * options.local_world_size;
	NO_ID(&scene, &options, &id,
	      "group 'world': local_world_size 17, at most 16 ranks of a group that spans daemons are in "
	      "one");
	options = cluster_options(NULL);
	options.job = "";
	NO_ID(&scene, &options, &id, "job is empty");
	options = cluster_options(NULL);
	memset(&id, 0xff, sizeof(id));
	assert_status(scene.client, zerod_group_unique_id(scene.client, &options, NULL, &id), ZEROD_OK);
	assert_memory_equal(&id, &expected, sizeof(id));
	scene_close(&scene);
}

TEST(test_ids_of_another_size)
{
	static const int more[] = {-1, 1, -(int)(LOCAL * ZD_UNIQUE_IDS_PER_RANK * ZD_UNIQUE_ID_BYTES),
	                           -(int)ZD_ID_STAMP_BYTES};
	const struct zerod_group_options options = cluster_options(NULL);
	struct zerod_unique_id id = {{0}}, before = id;

	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
		struct scene scene = {0};

		scene_connect(&scene, answer_ids, (void *)&more[i], 20000);
		assert_int_equal(zerod_group_unique_id(scene.client, &options, NULL, &id), ZEROD_E_PROTOCOL);
		assert_memory_equal(&id, &before, sizeof(id));
		scene_close(&scene);
	}
}

/* ---- Gathers ------------------------------------------------------------------------------------------- */

static void open_unit(struct scene *scene, fake_script script, void *arg, uint32_t flags)
{
	struct zerod_unique_id id = whole_id(LOCAL);
	struct zerod_group_options options = cluster_options(&id);
	struct zerod_unit_options unit_options = ZEROD_INIT(unit_options);

	options.flags = flags;
	scene_connect(scene, script, arg, 20000);
	assert_status(scene->client, zerod_group_join(scene->client, &options, &scene->group), ZEROD_OK);
	unit_options.name = "w";
	unit_options.dtype = ZEROD_FLOAT32;
	unit_options.numel = WORLD * FAKE_SHARD_BYTES / sizeof(float);
	assert_status(scene->client, zerod_unit_register(scene->group, &unit_options, &scene->unit),
	              ZEROD_OK);
}

static void serve_unit(struct fake_peer *peer)
{
	peer->feature = ZD_FEATURE_COLLECTIVES;
	peer->world_size = WORLD;
	fake_serve_unit(peer);
}

static void reply_gather(struct fake_peer *peer, uint64_t id, Zd__Fence **fences, size_t nfences)
{
	Zd__Reply reply = ZD__REPLY__INIT;
	Zd__GatherReply gather = ZD__GATHER_REPLY__INIT;
	Zd__Location buffer = ZD__LOCATION__INIT;

	buffer.segment = FAKE_SEGMENT;
	buffer.offset = GATHER_FROM;
	buffer.bytes = (uint64_t)WORLD * FAKE_SHARD_BYTES;
	gather.buffer = &buffer;
	gather.fences = fences;
	gather.n_fences = nfences;
	reply.id = id;
	reply.body_case = ZD__REPLY__BODY_GATHER;
	reply.gather = &gather;
	fake_reply(peer, &reply);
}

static void serve_a_unit(struct fake_peer *peer, void *arg)
{
	(void)arg;
	serve_unit(peer);
	fake_expect_end(peer);
}

/* The place of a shard is the rank's in the whole group, not in its daemon. */
TEST(test_shards)
{
	struct scene scene = {0};
	struct zerod_shard shard = ZEROD_INIT(shard);

	open_unit(&scene, serve_a_unit, NULL, 0);
	assert_status(scene.client, zerod_shard_get(scene.unit, &shard), ZEROD_OK);
	assert_int_equal(shard.offset_numel * sizeof(float), RANK * FAKE_SHARD_BYTES);
	assert_int_equal(shard.padded_numel * sizeof(float), WORLD * FAKE_SHARD_BYTES);
	scene_close(&scene);
}

static void serve_hybrid(struct fake_peer *peer, void *arg)
{
	(void)arg;
	peer->feature = ZD_FEATURE_COLLECTIVES;
	peer->world_size = LOCAL;
	fake_serve_unit(peer);
	fake_expect_end(peer);
}

/* Each daemon has all shards: the place of a shard is the rank's in its daemon. */
TEST(test_hybrid_shards)
{
	struct scene scene = {0};
	struct zerod_shard shard = ZEROD_INIT(shard);

	open_unit(&scene, serve_hybrid, NULL, ZEROD_GROUP_HYBRID);
	assert_status(scene.client, zerod_shard_get(scene.unit, &shard), ZEROD_OK);
	assert_int_equal(shard.offset_numel * sizeof(float), RANK % LOCAL * FAKE_SHARD_BYTES);
	assert_int_equal(shard.padded_numel * sizeof(float), LOCAL * FAKE_SHARD_BYTES);
	scene_close(&scene);
}

/* Pushes, exchanges and relays of as many devices as a daemon may have. */
#define FENCES (3 * ZD_MAX_DEVICES)

/* The first gather's last fence is aborted when all others have passed, the second one's have passed all. */
static void fence_every_device(struct fake_peer *peer, void *arg)
{
	Zd__Fence fences[FENCES], *pointers[FENCES];
	const Zd__Request *request;

	(void)arg;
	serve_unit(peer);
	for (uint32_t i = 0; i < FENCES; i++) {
		fences[i] = (Zd__Fence)ZD__FENCE__INIT;
		fences[i].timeline = i;
		fences[i].value = i + 1;
		pointers[i] = &fences[i];
	}
	for (int round = 0; round < 2; round++) {
		request = fake_expect(peer, ZD__REQUEST__BODY_GATHER);
		if (!request)
			return;
		for (uint32_t i = 0; i < FENCES; i++)
			fake_signal(peer, i, round == 0 && i == FENCES - 1 ? INT64_MAX : i + 1);
		reply_gather(peer, request->id, pointers, FENCES);
	}
	fake_expect_end(peer);
}

TEST(test_fences)
{
	struct scene scene = {0};

	open_unit(&scene, fence_every_device, NULL, 0);
	assert_int_equal(zerod_gather(scene.unit, NULL, NULL, NULL), ZEROD_E_ABORTED);
	assert_status(scene.client, zerod_gather(scene.unit, NULL, NULL, NULL), ZEROD_OK);
	scene_close(&scene);
}
