/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_structures.c - structures of programs that were compiled against an older or a newer header: options,
 * results and elements of arrays.
 */
#include "contract_reduce.h"

#define NUMEL      64u
#define ROOM_BYTES 8192u /* of a structure, and what lies behind it */
#define MORE_BYTES 64u   /* by which a newer structure is longer */

struct scene {
	struct contract *c;
	struct contract_rank *rank;
	zerod_client *client;
	zerod_group *group;
	struct contract_unit unit;
	zerod_unit *handle;
};

static void open_scene(struct scene *s)
{
	contract_needs(CONTRACT_ONE_SIDED); /* elsewhere a backward that is abandoned ends its group */
	*s = (struct scene){.c = contract_open(&(struct contract_options){.world_size = 1, .devices = 1})};
	s->rank = &s->c->ranks[0];
	s->client = s->rank->client;
	s->group = s->rank->group;
	contract_plain_unit(s->c, "w", NUMEL, &s->unit);
	s->handle = s->unit.at[0];
	contract_publish_all(s->c, &s->unit);
}

/* ---- Options ------------------------------------------------------------------------------------------- */

/* Each makes a call with the options, undoes what the call has done, and returns its status. */

static int join(struct scene *s, const void *options)
{
	zerod_group *group;
	int rc = zerod_group_join(s->client, options, &group);

	if (!rc)
		OK(s->client, zerod_group_leave(group, NULL));
	return rc;
}

static int register_unit(struct scene *s, const void *options)
{
	zerod_unit *unit;
	int rc = zerod_unit_register(s->group, options, &unit);

	if (!rc)
		OK(s->client, zerod_unit_unregister(unit, NULL));
	return rc;
}

static int gather(struct scene *s, const void *options)
{
	int rc = zerod_gather(s->handle, options, NULL, NULL);

	if (!rc)
		OK(s->client, zerod_release(s->handle, NULL, 0, NULL, NULL));
	return rc;
}

static int release(struct scene *s, const void *options)
{
	int rc;

	OK(s->client, zerod_gather(s->handle, NULL, NULL, NULL));
	rc = zerod_release(s->handle, NULL, 0, options, NULL);
	if (rc)
		OK(s->client, zerod_release(s->handle, NULL, 0, NULL, NULL));
	return rc;
}

static int update(struct scene *s, const void *options)
{
	int rc = zerod_update_begin(&s->handle, 1, options, NULL);

	if (!rc)
		OK(s->client, zerod_publish(&s->handle, 1, NULL, 0, NULL, NULL));
	return rc;
}

static int publish(struct scene *s, const void *options)
{
	int rc;

	OK(s->client, zerod_update_begin(&s->handle, 1, NULL, NULL));
	rc = zerod_publish(&s->handle, 1, NULL, 0, options, NULL);
	if (rc)
		OK(s->client, zerod_publish(&s->handle, 1, NULL, 0, NULL, NULL));
	return rc;
}

static int context(struct scene *s, const void *options)
{
	zerod_scope scope;
	int rc = zerod_context_begin(&s->handle, 1, options, &scope);

	if (!rc)
		OK(s->client, zerod_context_end(s->client, scope, NULL, 0, NULL));
	return rc;
}

static int create_bucket(struct scene *s, const void *options)
{
	zerod_bucket *bucket;
	int rc = zerod_bucket_create(s->group, options, &bucket);

	if (!rc)
		OK(s->client, zerod_bucket_destroy(bucket));
	return rc;
}

static void give_up(struct scene *s)
{
	OK(s->client, zerod_backward_abandon(s->group, NULL, 0, NULL));
}

static int backward(struct scene *s, const void *options)
{
	int rc = zerod_backward_begin(s->group, options);

	if (!rc)
		give_up(s);
	return rc;
}

static int end_backward(struct scene *s, const void *options)
{
	int rc;

	OK(s->client, zerod_backward_begin(s->group, NULL));
	rc = zerod_backward_end(s->group, options, NULL);
	give_up(s);
	return rc;
}

static int reserve(struct scene *s, const void *options)
{
	zerod_bucket *bucket = contract_bucket(s->rank, 65536, 1);
	struct zerod_entry entry = ZEROD_INIT(entry);
	int rc;

	OK(s->client, zerod_backward_begin(s->group, NULL));
	rc = zerod_bucket_reserve(bucket, s->handle, options, &entry);
	give_up(s);
	OK(s->client, zerod_bucket_destroy(bucket));
	return rc;
}

static int submit(struct scene *s, const void *options)
{
	zerod_bucket *bucket = contract_bucket(s->rank, 65536, 1);
	struct zerod_entry entry = ZEROD_INIT(entry);
	int rc;

	OK(s->client, zerod_backward_begin(s->group, NULL));
	OK(s->client, zerod_bucket_reserve(bucket, s->handle, NULL, &entry));
	rc = zerod_bucket_submit(bucket, entry.id, NULL, 0, options, NULL);
	give_up(s);
	OK(s->client, zerod_bucket_destroy(bucket));
	return rc;
}

static int skip_unit(struct scene *s, const void *options)
{
	int rc;

	OK(s->client, zerod_backward_begin(s->group, NULL));
	rc = zerod_reduce_skip(s->handle, options, NULL);
	give_up(s);
	return rc;
}

static int step(struct scene *s, const void *options)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	int rc;

	OK(s->client, zerod_backward_begin(s->group, NULL));
	OK(s->client, zerod_backward_end(s->group, NULL, NULL));
	rc = zerod_step_begin(s->group, options, &info, NULL);
	if (rc)
		give_up(s);
	else
		OK(s->client, zerod_step_end(s->group, NULL, 0, NULL));
	return rc;
}

static int barrier(struct scene *s, const void *options)
{
	return zerod_group_barrier(s->group, options, NULL);
}

static int agree(struct scene *s, const void *options)
{
	double value = 1.0;

	return zerod_group_agree(s->group, ZEROD_AGREE_SUM, &value, 1, options);
}

static int reset(struct scene *s, const void *options)
{
	return zerod_session_reset(s->client, options);
}

static int trim(struct scene *s, const void *options)
{
	return zerod_trim(s->client, 0, UINT64_MAX, options, NULL);
}

static int allocate(struct scene *s, const void *options)
{
	zerod_allocation *buffer;
	void *data;
	int rc = zerod_alloc(s->client, options, &buffer, &data);

	if (!rc)
		OK(s->client, zerod_free(buffer, NULL, 0));
	return rc;
}

static const struct zerod_group_options group_options = {
        .struct_size = sizeof(group_options), .job = "structures", .world_size = 1};
static const struct zerod_unit_options unit_options = {
        .struct_size = sizeof(unit_options), .name = "w", .dtype = ZEROD_FLOAT32, .numel = NUMEL};
static const struct zerod_bucket_options bucket_options = {.struct_size = sizeof(bucket_options),
                                                           .dtype = ZEROD_FLOAT32};
static const struct zerod_alloc_options alloc_options = {
        .struct_size = sizeof(alloc_options), .job = "structures", .bytes = 1};

/* `oldest_bytes`: of the first version that this one could have grown from: up to what the call needs. */
static const struct option {
	const char *name;
	size_t bytes, oldest_bytes;
	const void *valid; /* NULL: zeros */
	int (*call)(struct scene *s, const void *options);
} option_list[] = {
#define ONLY_SIZE          sizeof(size_t)
#define UP_TO(type, field) (offsetof(struct type, field) + sizeof(((struct type *)NULL)->field))
#define PLAIN(type, call)                                                                                    \
	{                                                                                                    \
#type, sizeof(struct type), ONLY_SIZE, NULL, call                                            \
	}
        {"zerod_group_options", sizeof(group_options), UP_TO(zerod_group_options, world_size), &group_options,
         join},
        {"zerod_unit_options", sizeof(unit_options), UP_TO(zerod_unit_options, dtype), &unit_options,
         register_unit},
        {"zerod_bucket_options", sizeof(bucket_options), UP_TO(zerod_bucket_options, dtype), &bucket_options,
         create_bucket},
        {"zerod_alloc_options", sizeof(alloc_options), UP_TO(zerod_alloc_options, bytes), &alloc_options,
         allocate},
        PLAIN(zerod_gather_options, gather),
        PLAIN(zerod_release_options, release),
        PLAIN(zerod_publish_options, publish),
        PLAIN(zerod_backward_options, backward),
        PLAIN(zerod_backward_end_options, end_backward),
        PLAIN(zerod_reserve_options, reserve),
        PLAIN(zerod_reduce_options, submit),
        PLAIN(zerod_skip_options, skip_unit),
        PLAIN(zerod_wait_options, update),
        PLAIN(zerod_wait_options, context),
        PLAIN(zerod_step_options, step),
        PLAIN(zerod_wait_options, barrier),
        PLAIN(zerod_wait_options, agree),
        PLAIN(zerod_wait_options, reset),
        PLAIN(zerod_wait_options, trim),
};
#define NOPTIONS (sizeof(option_list) / sizeof(option_list[0]))

/* The option's structure, `bytes` long, where the caller has `behind` in all that is behind it. */
static void *lay_out(const struct option *option, size_t bytes, int behind)
{
	unsigned char *room = malloc(ROOM_BYTES);

	memset(room, behind, ROOM_BYTES);
	memset(room, 0, bytes);
	if (option->valid)
		memcpy(room, option->valid, bytes < option->bytes ? bytes : option->bytes);
	memcpy(room, &bytes, sizeof(bytes));
	return room;
}

CONTRACT_TEST(test_options_of_older_programs)
{
	struct scene s;

	open_scene(&s);
	for (size_t i = 0; i < NOPTIONS; i++) {
		void *options = lay_out(&option_list[i], option_list[i].oldest_bytes, 0xff);

		contract_expect(s.client, option_list[i].call(&s, options), 0, NULL, option_list[i].name,
		                __LINE__);
		free(options);
	}
	contract_close(s.c);
}

CONTRACT_TEST(test_options_of_newer_programs)
{
	struct scene s;

	open_scene(&s);
	for (size_t i = 0; i < NOPTIONS; i++) {
		const struct option *option = &option_list[i];
		size_t bytes = option->bytes + MORE_BYTES;
		unsigned char *options = lay_out(option, bytes, 0xff);

		contract_expect(s.client, option->call(&s, options), 0, NULL, option->name, __LINE__);
		options[bytes - 1] = 1;
		contract_expect(s.client, option->call(&s, options), ZEROD_E_INVALID,
		                "sets an option at byte", option->name, __LINE__);
		FAILS(s.client, option->call(&s, options), ZEROD_E_INVALID, option->name);
		free(options);
	}
	contract_close(s.c);
}

CONTRACT_TEST(test_options_that_were_not_initialised)
{
	static const size_t sizes[] = {0, 1, sizeof(size_t) - 1, 4097, SIZE_MAX};
	struct scene s;

	open_scene(&s);
	for (size_t i = 0; i < NOPTIONS; i++) {
		void *options = lay_out(&option_list[i], option_list[i].bytes, 0);

		for (size_t j = 0; j < sizeof(sizes) / sizeof(sizes[0]); j++) {
			memcpy(options, &sizes[j], sizeof(sizes[j]));
			contract_expect(s.client, option_list[i].call(&s, options), ZEROD_E_INVALID,
			                "struct_size is", option_list[i].name, __LINE__);
		}
		free(options);
	}
	contract_close(s.c);
}

/* ---- Results ------------------------------------------------------------------------------------------- */

static int get_device(struct scene *s, void *result)
{
	return zerod_device_get(s->client, 0, result);
}

static int get_group(struct scene *s, void *result)
{
	return zerod_group_get(s->group, result);
}

static int get_shard(struct scene *s, void *result)
{
	return zerod_shard_get(s->handle, result);
}

static int get_entry(struct scene *s, void *result)
{
	zerod_bucket *bucket = contract_bucket(s->rank, 65536, 1);
	int rc;

	OK(s->client, zerod_backward_begin(s->group, NULL));
	rc = zerod_bucket_reserve(bucket, s->handle, NULL, result);
	give_up(s);
	OK(s->client, zerod_bucket_destroy(bucket));
	return rc;
}

static int get_step(struct scene *s, void *result)
{
	int rc;

	OK(s->client, zerod_backward_begin(s->group, NULL));
	OK(s->client, zerod_backward_end(s->group, NULL, NULL));
	rc = zerod_step_begin(s->group, NULL, result, NULL);
	if (rc)
		give_up(s);
	else
		OK(s->client, zerod_step_end(s->group, NULL, 0, NULL));
	return rc;
}

static int get_target(struct scene *s, void *result)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	int rc;

	OK(s->client, zerod_backward_begin(s->group, NULL));
	OK(s->client, zerod_backward_end(s->group, NULL, NULL));
	OK(s->client, zerod_step_begin(s->group, NULL, &info, NULL));
	rc = zerod_target_get(s->handle, result);
	OK(s->client, zerod_step_end(s->group, NULL, 0, NULL));
	return rc;
}

static const struct result {
	const char *name;
	size_t bytes;
	int (*call)(struct scene *s, void *result);
} results[] = {
        {"info", sizeof(struct zerod_device_info), get_device},
        {"info", sizeof(struct zerod_group_info), get_group},
        {"shard", sizeof(struct zerod_shard), get_shard},
        {"entry", sizeof(struct zerod_entry), get_entry},
        {"info", sizeof(struct zerod_step_info), get_step},
        {"target", sizeof(struct zerod_target), get_target},
};
#define NRESULTS (sizeof(results) / sizeof(results[0]))

static bool are_all(const unsigned char *bytes, size_t count, int value)
{
	for (size_t i = 0; i < count; i++)
		if (bytes[i] != value)
			return false;
	return true;
}

/* Fills `bytes` of the structure and no more; its size stays the caller's, what is unknown becomes zero. */
static void expect_filled(struct scene *s, const struct result *result, size_t bytes)
{
	size_t known = bytes < result->bytes ? bytes : result->bytes, kept;
	unsigned char *room = malloc(ROOM_BYTES);

	memset(room, 0xa5, ROOM_BYTES);
	memcpy(room, &bytes, sizeof(bytes));
	contract_expect(s->client, result->call(s, room), 0, NULL, result->name, __LINE__);
	memcpy(&kept, room, sizeof(kept));
	CHECK(kept == bytes);
	CHECK(are_all(room + bytes, ROOM_BYTES - bytes, 0xa5));
	CHECK(are_all(room + known, bytes - known, 0));
	CHECK(known == sizeof(size_t) || !are_all(room + sizeof(size_t), known - sizeof(size_t), 0xa5));
	free(room);
}

CONTRACT_TEST(test_results_of_every_size)
{
	struct scene s;

	open_scene(&s);
	for (size_t i = 0; i < NRESULTS; i++) {
		expect_filled(&s, &results[i], sizeof(size_t));
		expect_filled(&s, &results[i], results[i].bytes - 1);
		expect_filled(&s, &results[i], results[i].bytes);
		expect_filled(&s, &results[i], results[i].bytes + MORE_BYTES);
	}
	contract_close(s.c);
}

/* Nothing is written where the size makes no sense. */
CONTRACT_TEST(test_results_that_were_not_initialised)
{
	static const size_t sizes[] = {0, sizeof(size_t) - 1, 4097, SIZE_MAX};
	unsigned char *room;
	struct scene s;

	open_scene(&s);
	room = malloc(ROOM_BYTES);
	for (size_t i = 0; i < NRESULTS; i++)
		for (size_t j = 0; j < sizeof(sizes) / sizeof(sizes[0]); j++) {
			memset(room, 0xa5, ROOM_BYTES);
			memcpy(room, &sizes[j], sizeof(sizes[j]));
			contract_expect(s.client, results[i].call(&s, room), ZEROD_E_INVALID,
			                "struct_size is", results[i].name, __LINE__);
			CHECK(are_all(room + sizeof(size_t), ROOM_BYTES - sizeof(size_t), 0xa5));
		}
	contract_close(s.c);
	free(room);
}

/* ---- Arrays -------------------------------------------------------------------------------------------- */

#define NVIEWS 3u

/* Scalars, `stride` bytes apart; the last has the name of the first, which only a correct stride finds. */
static unsigned char *lay_out_views(size_t stride)
{
	static const char *const names[NVIEWS] = {"bias", "weight", "bias"};
	unsigned char *views = calloc(1, ROOM_BYTES);

	for (uint32_t i = 0; i < NVIEWS; i++) {
		struct zerod_view view = {.struct_size = stride, .name = names[i], .offset_numel = i};

		memcpy(views + i * stride, &view, stride < sizeof(view) ? stride : sizeof(view));
	}
	return views;
}

static int register_views(struct scene *s, const unsigned char *views, uint32_t count)
{
	struct zerod_unit_options options = unit_options;
	zerod_unit *unit;
	int rc;

	options.name = "viewed";
	options.nviews = count;
	options.views = (const void *)views;
	rc = zerod_unit_register(s->group, &options, &unit);
	if (!rc)
		OK(s->client, zerod_unit_unregister(unit, NULL));
	return rc;
}

static void expect_views(struct scene *s, size_t stride)
{
	unsigned char *views = lay_out_views(stride);

	OK(s->client, register_views(s, views, NVIEWS - 1));
	FAILS(s->client, register_views(s, views, NVIEWS), ZEROD_E_INVALID,
	      "views 0 and 2 both have the name 'bias'");
	free(views);
}

CONTRACT_TEST(test_elements_of_every_size)
{
	size_t newer = sizeof(struct zerod_view) + MORE_BYTES, other = sizeof(struct zerod_view);
	unsigned char *views;
	struct scene s;

	open_scene(&s);
	views = lay_out_views(newer);
	expect_views(&s, offsetof(struct zerod_view, shape));
	expect_views(&s, newer);
	views[2 * newer - 1] = 1;
	FAILS(s.client, register_views(&s, views, 2), ZEROD_E_INVALID, "views[1]: sets an option at byte");
	views[2 * newer - 1] = 0;
	memcpy(views + newer, &other, sizeof(other));
	FAILS(s.client, register_views(&s, views, 2), ZEROD_E_INVALID, "views[1]: struct_size is");
	memset(views, 0, sizeof(size_t));
	FAILS(s.client, register_views(&s, views, 2), ZEROD_E_INVALID, "views[0]: struct_size is 0");
	contract_close(s.c);
	free(views);
}

/* Makes the array of sources from which the shards of two units are filled. */
static unsigned char *lay_out_sources(size_t stride, zerod_unit *const *units, void *const *data)
{
	unsigned char *sources = calloc(1, ROOM_BYTES);

	for (uint32_t i = 0; i < 2; i++) {
		struct zerod_source source = {.struct_size = stride, .unit = units[i], .data = data[i]};

		memcpy(sources + i * stride, &source, sizeof(source));
	}
	return sources;
}

static void *allocate_data(struct scene *s, zerod_allocation **buffer)
{
	struct zerod_alloc_options options = alloc_options;
	void *data;

	options.bytes = NUMEL * sizeof(float);
	OK(s->client, zerod_alloc(s->client, &options, buffer, &data));
	return data;
}

CONTRACT_TEST(test_sources_of_a_newer_program)
{
	size_t newer = sizeof(struct zerod_source) + MORE_BYTES;
	zerod_allocation *buffers[2];
	struct contract_unit second;
	unsigned char *sources;
	void *data[2];
	struct scene s;

	open_scene(&s);
	contract_plain_unit(s.c, "v", NUMEL, &second);
	zerod_unit *units[2] = {s.handle, second.at[0]};
	for (uint32_t i = 0; i < 2; i++)
		data[i] = allocate_data(&s, &buffers[i]);
	sources = lay_out_sources(newer, units, data);
	OK(s.client, zerod_update_begin(units, 2, NULL, NULL));
	sources[2 * newer - 1] = 1;
	FAILS(s.client, zerod_publish_from((const void *)sources, 2, ZEROD_FLOAT32, NULL, NULL, NULL),
	      ZEROD_E_INVALID, "sources[1]: sets an option at byte");
	sources[2 * newer - 1] = 0;
	OK(s.client, zerod_publish_from((const void *)sources, 2, ZEROD_FLOAT32, NULL, NULL, NULL));
	for (uint32_t i = 0; i < 2; i++)
		OK(s.client, zerod_free(buffers[i], NULL, 0));
	contract_close(s.c);
	free(sources);
}
