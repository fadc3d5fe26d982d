/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_kernels.c - the library's kernels in trainers: loaded before anything waits, run in the order of
 * their stream; and a GPU that cannot load them does all else.
 */
#include "cuda_scene.h"

#include <zerod_cuda.h>

#include "base/mem.h"

#define SOURCE_BYTES (SCENE_NUMEL * sizeof(float))

/* A unit of bfloat16 under update, and float32 zeros on its GPU to publish, with room for one more. */
struct scene {
	struct contract *c;
	struct contract_rank *rank;
	struct contract_unit unit;
	zerod_allocation *buffer;
	struct zerod_source source;
};

static void open_scene(struct scene *scene)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	void *data = NULL;

	scene->c = contract_open(NULL);
	scene->rank = &scene->c->ranks[0];
	options.name = "w";
	options.dtype = ZEROD_BFLOAT16;
	options.numel = SCENE_NUMEL;
	contract_unit(scene->c, &options, &scene->unit);
	alloc.job = "masters";
	alloc.bytes = SOURCE_BYTES + sizeof(float);
	OK(scene->rank->client, zerod_alloc(scene->rank->client, &alloc, &scene->buffer, &data));
	scene->source = (struct zerod_source){sizeof(struct zerod_source), scene->unit.at[0], data};
	OK(scene->rank->client, zerod_update_begin(&scene->source.unit, 1, NULL, NULL));
}

static void close_scene(struct scene *scene)
{
	OK(scene->rank->client, zerod_free(scene->buffer, NULL, 0));
	contract_close(scene->c);
}

static uint64_t version(struct scene *scene)
{
	struct zerod_shard shard = ZEROD_INIT(shard);

	OK(scene->rank->client, zerod_shard_get(scene->source.unit, &shard));
	return shard.version;
}

static int publish(struct scene *scene, enum zerod_dtype from, zerod_stream *stream)
{
	return zerod_publish_from(&scene->source, 1, from, stream, NULL, NULL);
}

/* The source's bytes, on a stream of the test's. */
static void fill(const struct scene *scene, struct CUstream_st *handle, uint8_t byte)
{
	assert_int_equal(
	        scene_driver()->memsetD8Async((zd_cu_ptr)scene->source.data, byte, SOURCE_BYTES, handle), 0);
}

/* All bytes of this rank's part: those of a float32 that is one byte four times become that byte twice. */
static void expect_shard(struct scene *scene, zerod_unit *unit, uint64_t element_bytes, uint8_t byte)
{
	uint8_t bytes[SOURCE_BYTES];
	struct zerod_shard shard = ZEROD_INIT(shard);

	OK(scene->rank->client, zerod_shard_get(unit, &shard));
	contract_read(NULL, bytes, shard.data, shard.true_numel * element_bytes);
	for (uint64_t i = 0; i < shard.true_numel * element_bytes; i++)
		assert_int_equal(bytes[i], byte);
}

/* ---- A GPU without kernels ----------------------------------------------------------------------------- */

/* The calls of both ranks fail, which join one after the other. */
CASE_TEST(test_gpu_without_kernels, "ZD_DOUBLE_LEAKS=1",
          "ZD_DOUBLE_FAIL=cuModuleGetFunction:1:500,cuModuleGetFunction:2:500")
{
	struct scene scene;
	zerod_stream *stream;

	open_scene(&scene);
	stream = contract_stream(scene.rank);
	for (int i = 0; i < 2; i++)
		FAILS(scene.rank->client, publish(&scene, ZEROD_FLOAT32, i ? stream : NULL),
		      ZEROD_E_UNSUPPORTED, "cannot run the library's kernels");
	FAILS(scene.rank->client, publish(&scene, ZEROD_FLOAT32, NULL), ZEROD_E_UNSUPPORTED,
	      "CUDA_ERROR_NOT_FOUND");
	assert_int_equal(version(&scene), 0);
	OK(scene.rank->client,
	   publish(&scene, ZEROD_BFLOAT16, stream)); /* the update is open, and copies are */
	OK(scene.rank->client, zerod_stream_synchronize(stream));
	assert_int_equal(version(&scene), 1);
	close_scene(&scene);
}

/* Nor is what comes before, and needs none. */
CASE_TEST(test_without_kernels_nothing_is_copied,
          "ZD_DOUBLE_FAIL=cuModuleGetFunction:1:500,cuModuleGetFunction:2:500")
{
	struct CUstream_st *handle = scene_stream(0);
	struct zerod_source sources[2];
	struct contract_unit copied;
	struct scene scene;
	zerod_stream *stream;

	open_scene(&scene);
	stream = contract_stream(scene.rank);
	contract_plain_unit(scene.c, "copied", SCENE_NUMEL, &copied);
	OK(scene.rank->client, zerod_update_begin(&copied.at[0], 1, NULL, NULL));
	fill(&scene, handle, 0x3f);
	assert_int_equal(scene_driver()->streamSynchronize(handle), 0);
	sources[0] = (struct zerod_source){sizeof(struct zerod_source), copied.at[0], scene.source.data};
	sources[1] = scene.source;
	for (int i = 0; i < 2; i++)
		FAILS(scene.rank->client,
		      zerod_publish_from(sources, 2, ZEROD_FLOAT32, i ? stream : NULL, NULL, NULL),
		      ZEROD_E_UNSUPPORTED, "kernels");
	OK(scene.rank->client, zerod_stream_synchronize(stream));
	expect_shard(&scene, copied.at[0], sizeof(float), 0);
	close_scene(&scene);
}

/* ---- A GPU with them ----------------------------------------------------------------------------------- */

/* The double's loading waits for all streams: were there any now, this would wait for ever. */
CASE_TEST(test_nothing_is_loaded_beside_a_wait)
{
	struct CUstream_st *handle;
	struct scene scene;
	uint64_t *gate;

	open_scene(&scene);
	handle = scene_stream(0);
	gate = scene_hold(handle);
	OK(scene.rank->client, publish(&scene, ZEROD_FLOAT32, NULL));
	assert_int_equal(version(&scene), 1);
	scene_let_go(gate);
	assert_int_equal(scene_driver()->streamSynchronize(handle), 0);
	close_scene(&scene);
}

CASE_TEST(test_kernels_are_given_back, "ZD_DOUBLE_LEAKS=1")
{
	struct scene scene;

	open_scene(&scene);
	OK(scene.rank->client, publish(&scene, ZEROD_FLOAT32, NULL));
	close_scene(&scene);
}

struct publication {
	struct scene *scene;
	zerod_stream *stream;
};

static void publish_on_stream(struct contract_rank *rank, void *arg)
{
	struct publication *publication = arg;

	OK(rank->client, publish(publication->scene, ZEROD_FLOAT32, publication->stream));
}

/* The kernel that writes the source is before the publish in the stream. That stream is not the first one,
 * which shares the default stream's queue. */
CASE_TEST(test_kernels_are_in_the_order_of_their_stream)
{
	struct CUstream_st *first = scene_stream(0), *handle = scene_stream(0);
	struct publication publication;
	struct contract_task *task;
	struct scene scene;
	uint64_t *gate;

	(void)first;
	open_scene(&scene);
	publication.scene = &scene;
	OK(scene.rank->client, zerod_cuda_stream_wrap(scene.rank->client, handle, &publication.stream));
	gate = scene_hold(handle);
	fill(&scene, handle, 0x3f);
	task = contract_start(scene.rank, publish_on_stream, &publication);
	AWAIT(contract_somebody_waits(scene.c, "the caller's own streams"));
	scene_let_go(gate);
	contract_finish(task);
	expect_shard(&scene, scene.source.unit, 2, 0x3f);
	zerod_stream_destroy(publication.stream);
	close_scene(&scene);
}

/* A GPU faults at a vector that is not aligned, and so does the double. */
CASE_TEST(test_source_that_is_aligned_for_its_elements_only)
{
	struct CUstream_st *handle = scene_stream(0);
	struct scene scene;

	open_scene(&scene);
	scene.source.data = (const float *)scene.source.data + 1;
	fill(&scene, handle, 0x41);
	assert_int_equal(scene_driver()->streamSynchronize(handle), 0);
	OK(scene.rank->client, publish(&scene, ZEROD_FLOAT32, NULL));
	expect_shard(&scene, scene.source.unit, 2, 0x41);
	close_scene(&scene);
}

CASE_TEST(test_captured_stream_converts_nothing)
{
	const struct zd_cuda *driver = scene_driver();
	struct CUstream_st *handle = scene_stream(0);
	struct CUgraph_st *graph = NULL;
	zerod_stream *stream = NULL;
	struct scene scene;

	open_scene(&scene);
	OK(scene.rank->client, zerod_cuda_stream_wrap(scene.rank->client, handle, &stream));
	assert_int_equal(driver->streamBeginCapture(handle, ZD_CU_CAPTURE_GLOBAL), 0);
	FAILS(scene.rank->client, publish(&scene, ZEROD_FLOAT32, stream), ZEROD_E_UNSUPPORTED, "captured");
	assert_int_equal(version(&scene), 0);
	OK(scene.rank->client, publish(&scene, ZEROD_FLOAT32, NULL)); /* on a stream of the library's */
	assert_int_equal(driver->streamEndCapture(handle, &graph), 0);
	assert_int_equal(driver->graphDestroy(graph), 0);
	assert_int_equal(version(&scene), 1);
	zerod_stream_destroy(stream);
	close_scene(&scene);
}

/* ---- Sources in memory of the CPU ---------------------------------------------------------------------- */

static void use_cpu_memory(struct scene *scene, float *values)
{
	for (uint32_t i = 0; i < SCENE_NUMEL; i++)
		values[i] = 1.0f;
	scene->source.data = values;
}

static void expect_ones(struct scene *scene)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	uint16_t values[SCENE_NUMEL];

	OK(scene->rank->client, zerod_shard_get(scene->source.unit, &shard));
	contract_read(NULL, values, shard.data, shard.true_numel * sizeof(*values));
	for (uint64_t i = 0; i < shard.true_numel; i++)
		assert_int_equal(values[i], 0x3f80);
}

/* No kernel runs, which would lose the context. The update stays open, and the same call succeeds once the
 * memory is registered. */
CASE_TEST(test_source_that_the_gpu_cannot_read)
{
	const struct zd_cuda *driver = scene_driver();
	static float values[SCENE_NUMEL];
	struct scene scene;
	zerod_stream *stream;

	open_scene(&scene);
	stream = contract_stream(scene.rank);
	use_cpu_memory(&scene, values);
	for (int i = 0; i < 2; i++)
		FAILS(scene.rank->client, publish(&scene, ZEROD_FLOAT32, i ? stream : NULL), ZEROD_E_INVALID,
		      "unit 'w': data is memory of the CPU, which the GPU cannot read to convert float32 to "
		      "bfloat16; register it");
	assert_int_equal(version(&scene), 0);
	scene_make_current(0);
	assert_int_equal(driver->memHostRegister(values, sizeof(values), ZD_CU_HOST_REGISTER_DEVICEMAP), 0);
	OK(scene.rank->client, publish(&scene, ZEROD_FLOAT32, NULL));
	assert_int_equal(version(&scene), 1);
	expect_ones(&scene);
	OK(scene.rank->client, zerod_stream_synchronize(stream));
	assert_int_equal(driver->memHostUnregister(values), 0);
	close_scene(&scene);
}

/* Without a stream the CPU converts. */
CASE_TEST(test_unit_on_the_host_and_a_stream_of_the_gpu, "ZEROD_TEST_PLACEMENT=host")
{
	static float values[SCENE_NUMEL];
	struct scene scene;
	zerod_stream *stream;

	open_scene(&scene);
	stream = contract_stream(scene.rank);
	use_cpu_memory(&scene, values);
	FAILS(scene.rank->client, publish(&scene, ZEROD_FLOAT32, stream), ZEROD_E_INVALID,
	      "unit 'w': data is memory of the CPU");
	OK(scene.rank->client, publish(&scene, ZEROD_FLOAT32, NULL));
	expect_ones(&scene);
	OK(scene.rank->client, zerod_stream_synchronize(stream));
	close_scene(&scene);
}

/* Nothing is copied to another unit of the call, whose source is on the GPU. */
CASE_TEST(test_one_source_of_two_that_the_gpu_cannot_read)
{
	struct CUstream_st *handle = scene_stream(0);
	static float values[SCENE_NUMEL];
	struct zerod_source sources[2];
	struct contract_unit copied;
	struct scene scene;

	open_scene(&scene);
	contract_plain_unit(scene.c, "copied", SCENE_NUMEL, &copied);
	OK(scene.rank->client, zerod_update_begin(&copied.at[0], 1, NULL, NULL));
	fill(&scene, handle, 0x3f);
	assert_int_equal(scene_driver()->streamSynchronize(handle), 0);
	sources[0] = (struct zerod_source){sizeof(struct zerod_source), copied.at[0], scene.source.data};
	use_cpu_memory(&scene, values);
	sources[1] = scene.source;
	FAILS(scene.rank->client, zerod_publish_from(sources, 2, ZEROD_FLOAT32, NULL, NULL, NULL),
	      ZEROD_E_INVALID, "unit 'w': data is memory of the CPU");
	expect_shard(&scene, copied.at[0], sizeof(float), 0);
	close_scene(&scene);
}

/* The driver copies from any memory of the process. */
CASE_TEST(test_source_in_cpu_memory_of_the_same_dtype)
{
	static uint16_t values[SCENE_NUMEL];
	struct scene scene;

	open_scene(&scene);
	for (uint32_t i = 0; i < SCENE_NUMEL; i++)
		values[i] = 0x3f80;
	scene.source.data = values;
	OK(scene.rank->client, publish(&scene, ZEROD_BFLOAT16, NULL));
	expect_ones(&scene);
	close_scene(&scene);
}

CASE_TEST(test_gpus_that_reach_all_memory, "ZD_DOUBLE_ATTRIBUTES=88=1")
{
	static float values[SCENE_NUMEL];
	struct scene scene;

	open_scene(&scene);
	use_cpu_memory(&scene, values);
	OK(scene.rank->client, publish(&scene, ZEROD_FLOAT32, NULL));
	expect_ones(&scene);
	close_scene(&scene);
}

/* The first element is registered, and those behind it are not. */
CASE_TEST_WITH(test_source_that_is_registered_in_part, .says = "seen")
{
	static float values[SCENE_NUMEL];
	struct scene scene;
	zerod_stream *stream;

	open_scene(&scene);
	stream = contract_stream(scene.rank);
	use_cpu_memory(&scene, values);
	scene_make_current(0);
	assert_int_equal(
	        scene_driver()->memHostRegister(values, sizeof(*values), ZD_CU_HOST_REGISTER_DEVICEMAP), 0);
	FAILS(scene.rank->client, publish(&scene, ZEROD_FLOAT32, NULL), ZEROD_E_DEVICE,
	      "CUDA_ERROR_ILLEGAL_ADDRESS");
	assert_int_equal(version(&scene), 0);
	FAILS(scene.rank->client, zerod_stream_synchronize(stream), ZEROD_E_DEVICE, NULL);
	print_message("seen\n");
	(void)contract_teardown(NULL);
	_exit(0); /* the context is lost */
}

int main(int argc, char **argv)
{
	return scene_main(argc, argv);
}
