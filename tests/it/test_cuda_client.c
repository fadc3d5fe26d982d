/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_client.c - streams of GPUs in libzerod: wrapped, captured, destroyed early, of the wrong GPU, and
 * own slices. */
#include "cuda_scene.h"

#include <signal.h>

#include <zerod_cuda.h>
#include <zerod_host.h>
#include "tests/contract/contract_reduce.h"
#include "tests/support/daemon_fixture.h"

/* ---- Wrapping ------------------------------------------------------------------------------------------ */

CASE_TEST(test_what_cannot_be_wrapped)
{
	struct contract *c = contract_open(NULL);
	zerod_client *client = c->ranks[0].client;
	zerod_stream *stream = NULL;

	FAILS(client, zerod_cuda_stream_wrap(client, ZD_CU_STREAM_PER_THREAD, &stream), ZEROD_E_INVALID,
	      "CU_STREAM_PER_THREAD");
	assert_int_equal(scene_driver()->ctxSetCurrent(NULL), 0);
	FAILS(client, zerod_cuda_stream_wrap(client, NULL, &stream), ZEROD_E_INVALID, "has no current one");
	FAILS(client, zerod_cuda_stream_wrap(client, NULL, NULL), ZEROD_E_INVALID, NULL);
	scene_make_current(0);
	OK(client, zerod_cuda_stream_wrap(client, NULL, &stream));
	FAILS(client, zerod_host_stream_launch(stream, free, NULL), ZEROD_E_INVALID, "runs no functions");
	zerod_stream_destroy(stream);
	contract_close(c);
}

CASE_TEST(test_emulated_devices_have_no_gpu_streams)
{
	struct contract *c;
	zerod_stream *stream = NULL;

	assert_int_equal(setenv("ZEROD_TEST_BACKEND", "host", 1), 0);
	c = contract_open(NULL);
	FAILS(c->ranks[0].client, zerod_cuda_stream_wrap(c->ranks[0].client, NULL, &stream),
	      ZEROD_E_UNSUPPORTED, "emulated");
	contract_close(c);
}

/* The legacy default stream stands for whatever context is current when it is wrapped, and for that one from
 * then on. */
CASE_TEST(test_default_stream)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	zerod_client *client = c->ranks[0].client;
	zerod_stream *stream = NULL;
	void *data = NULL;

	scene_make_current(0);
	OK(client, zerod_cuda_stream_wrap(client, ZD_CU_STREAM_LEGACY, &stream));
	scene_make_current(1);
	OK(client, zerod_gather(unit.at[0], NULL, stream, &data));
	OK(client, zerod_stream_synchronize(stream));
	contract_expect_bytes(&unit, data, 1);
	OK(client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	zerod_stream_destroy(stream);
	contract_close(c);
}

/* A context that is current in the calling thread does not matter, and is current again afterwards. */
CASE_TEST(test_contexts_of_the_caller_stay)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	zerod_stream *stream = contract_stream(&c->ranks[0]);
	struct CUctx_st *before, *after = NULL;

	for (int ordinal = -1; ordinal < 2; ordinal++) {
		void *data = NULL;

		if (ordinal < 0)
			assert_int_equal(scene_driver()->ctxSetCurrent(NULL), 0);
		else
			scene_make_current(ordinal);
		assert_int_equal(scene_driver()->ctxGetCurrent(&before), 0);
		OK(c->ranks[0].client, zerod_gather(unit.at[0], NULL, stream, &data));
		OK(c->ranks[0].client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
		OK(c->ranks[0].client, zerod_gather(unit.at[0], NULL, NULL, &data));
		OK(c->ranks[0].client, zerod_release(unit.at[0], NULL, 0, NULL, NULL));
		OK(c->ranks[0].client, zerod_stream_synchronize(stream));
		assert_int_equal(scene_driver()->ctxGetCurrent(&after), 0);
		assert_ptr_equal(after, before);
	}
	contract_close(c);
}

CASE_TEST(test_stream_of_another_gpu_is_refused)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	zerod_client *client = c->ranks[0].client;
	struct CUstream_st *handle = scene_stream(1);
	struct zerod_device_info info = ZEROD_INIT(info);
	zerod_stream *stream = NULL;
	void *data = NULL;

	OK(client, zerod_cuda_stream_wrap(client, handle, &stream));
	for (uint32_t device = 0; device < 2; device++) {
		zerod_ticket ticket;

		OK(client, zerod_device_get(client, device, &info));
		OK(client, zerod_gather_begin(unit.at[0], NULL, &ticket));
		FAILS(client, zerod_wait(client, ticket, stream, &data), ZEROD_E_INVALID, info.name);
		OK(client, zerod_wait(client, ticket, NULL, &data));
		contract_expect_bytes(&unit, data, 1);
		OK(client, zerod_release(unit.at[0], NULL, 0, NULL, NULL));
	}
	zerod_stream_destroy(stream);
	contract_close(c);
}

/* ---- A shard that is gathered in place ----------------------------------------------------------------- */

/* Behind this client's own publish streams go on by themselves: the daemon stands still. */
CASE_TEST(test_own_publish_is_awaited_without_the_daemon)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = 1});
	struct contract_rank *rank = &c->ranks[0];
	struct CUstream_st *handles[2] = {scene_stream(0), scene_stream(0)};
	zerod_stream *streams[2];
	struct contract_unit unit;
	zerod_ticket published;
	uint64_t *gate;

	contract_plain_unit(c, "w", SCENE_NUMEL, &unit);
	contract_publish_all(c, &unit);
	OK(rank->client, zerod_update_begin(unit.at, 1, NULL, NULL));
	gate = scene_hold(handles[0]);
	for (int i = 0; i < 2; i++)
		OK(rank->client, zerod_cuda_stream_wrap(rank->client, handles[i], &streams[i]));
	OK(rank->client, zerod_publish(unit.at, 1, streams, 1, NULL, &published));
	for (int i = 0; i < 2; i++)
		OK(rank->client, zerod_gather(unit.at[0], NULL, streams[i], NULL));
	assert_int_equal(kill(contract_daemon()->pid, SIGSTOP), 0);
	scene_let_go(gate);
	for (int i = 0; i < 2; i++)
		OK(rank->client, zerod_stream_synchronize(streams[i]));
	assert_int_equal(kill(contract_daemon()->pid, SIGCONT), 0);
	OK(rank->client, zerod_wait(rank->client, published, NULL, NULL));
	for (int i = 0; i < 2; i++) {
		OK(rank->client, zerod_release(unit.at[0], &streams[i], 1, NULL, NULL));
		zerod_stream_destroy(streams[i]);
	}
	contract_close(c);
}

/* ---- Ends ---------------------------------------------------------------------------------------------- */

/* The handle goes while the stream is held up; its value is still to be written, and its timeline nobody
 * else's. */
CASE_TEST(test_handle_goes_before_its_fence)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	struct CUstream_st *handle = scene_stream(0);
	zerod_stream *stream = NULL;
	uint64_t *gate;
	void *held = NULL, *data = NULL;

	OK(rank->client, zerod_cuda_stream_wrap(rank->client, handle, &stream));
	OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &held));
	gate = scene_hold(handle);
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	zerod_stream_destroy(stream);
	for (unsigned i = 0; i < 3; i++) { /* on the same timeline, their values would be written first */
		zerod_stream *other = contract_stream(rank);

		OK(rank->client, zerod_gather(unit.at[0], NULL, other, &data));
		assert_ptr_not_equal(data, held);
		OK(rank->client, zerod_release(unit.at[0], &other, 1, NULL, NULL));
		contract_sync(rank, other);
		AWAIT(contract_device(c, 0).quarantine_bytes <= contract_padded_bytes(&unit));
	}
	scene_let_go(gate);
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	contract_close(c);
}

/* ---- Captures ------------------------------------------------------------------------------------------ */

CASE_TEST(test_captured_stream_is_refused)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	zerod_client *client = c->ranks[0].client;
	const struct zd_cuda *driver = scene_driver();
	struct CUstream_st *handle = scene_stream(0);
	struct CUgraph_st *graph = NULL;
	zerod_stream *stream = NULL;
	zerod_ticket ticket;
	void *data = NULL;

	OK(client, zerod_cuda_stream_wrap(client, handle, &stream));
	OK(client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	assert_int_equal(driver->streamBeginCapture(handle, ZD_CU_CAPTURE_GLOBAL), 0);
	FAILS(client, zerod_wait(client, ticket, stream, &data), ZEROD_E_UNSUPPORTED, "before the capture");
	FAILS(client, zerod_release(unit.at[0], &stream, 1, NULL, NULL), ZEROD_E_UNSUPPORTED,
	      "release after");
	assert_int_equal(contract_buffer(c, 0, "w").uses, 1);
	assert_int_equal(driver->streamEndCapture(handle, &graph), 0);
	assert_int_equal(driver->graphDestroy(graph), 0);
	OK(client, zerod_wait(client, ticket, stream, &data));
	OK(client, zerod_stream_synchronize(stream));
	contract_expect_bytes(&unit, data, 1);
	OK(client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	zerod_stream_destroy(stream);
	contract_close(c);
}

/* Joining, mapping, copying and synchronizing beside it: all that the library does with the driver. */
CASE_TEST(test_capture_elsewhere_is_not_disturbed)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	const struct zd_cuda *driver = scene_driver();
	struct CUstream_st *captured = scene_stream(0), *handle = scene_stream(0);
	struct CUgraph_st *graph = NULL;
	zerod_stream *stream = NULL;
	struct contract_unit unit;
	void *data = NULL;

	contract_plain_unit(c, "w", SCENE_NUMEL, &unit);
	contract_publish_all(c, &unit);
	assert_int_equal(driver->streamBeginCapture(captured, ZD_CU_CAPTURE_GLOBAL), 0);
	OK(rank->client, zerod_cuda_stream_wrap(rank->client, handle, &stream));
	OK(rank->client, zerod_gather(unit.at[0], NULL, NULL, &data));
	OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &data));
	OK(rank->client, zerod_stream_synchronize(stream));
	OK(rank->client, zerod_release(unit.at[0], NULL, 0, NULL, NULL));
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	zerod_stream_destroy(stream);
	assert_int_equal(driver->streamEndCapture(captured, &graph), 0);
	assert_int_equal(driver->graphDestroy(graph), 0);
	contract_close(c);
}

/* ---- Allocations --------------------------------------------------------------------------------------- */

/* An allocation that the process cannot map is freed in the daemon. */
CASE_TEST(test_allocation_that_cannot_be_mapped, "ZD_DOUBLE_FAIL_IN=case", "ZD_DOUBLE_FAIL=cuMemMap:1:2")
{
	struct contract *c = contract_open(NULL);
	zerod_client *client = c->ranks[0].client;
	struct zerod_alloc_options options = ZEROD_INIT(options);
	zerod_allocation *buffer;
	void *data;

	options.job = "job", options.bytes = 4 << 20;
	FAILS(client, zerod_alloc(client, &options, &buffer, &data), ZEROD_E_NO_MEMORY, "OUT_OF_MEMORY");
	assert_int_equal(contract_device(c, 0).allocation_bytes, 0);
	OK(client, zerod_alloc(client, &options, &buffer, &data));
	OK(client, zerod_free(buffer, NULL, 0));
	contract_close(c);
}

/* An entry that the process cannot map stays reserved, and the next call returns it: to the daemon, a second
 * reservation would be an error. */
CASE_TEST(test_entry_that_cannot_be_mapped, "ZD_DOUBLE_FAIL_IN=case", "ZD_DOUBLE_FAIL=cuMemMap:3:2")
{
	struct contract_unit unit;
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_entry entry = ZEROD_INIT(entry);
	zerod_bucket *bucket = contract_bucket(rank, 1 << 20, 2);

	contract_plain_unit(c, "w", SCENE_NUMEL, &unit);
	contract_backward(rank, 3, false);
	FAILS(rank->client, zerod_bucket_reserve(bucket, unit.at[0], NULL, &entry), ZEROD_E_NO_MEMORY,
	      "OUT_OF_MEMORY");
	OK(rank->client, zerod_bucket_reserve(bucket, unit.at[0], NULL, &entry));
	FAILS(rank->client, zerod_bucket_reserve(bucket, unit.at[0], NULL, &entry), ZEROD_E_DUPLICATE, NULL);
	OK(rank->client, zerod_bucket_submit(bucket, entry.id, NULL, 0, NULL, NULL));
	OK(c->ranks[1].client, zerod_backward_begin(c->ranks[1].group, NULL));
	OK(c->ranks[1].client, zerod_reduce_skip(unit.at[1], NULL, NULL));
	contract_backward_end_all(c);
	contract_close(c);
}

int main(int argc, char **argv)
{
	return scene_main(argc, argv);
}
