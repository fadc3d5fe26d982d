/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_strict.c - strict clients on GPUs: what a stale view does to its reader, and own slices. Who
 * holds a buffer is the contract's (tests/contract/test_strict.c).
 */
#include "cuda_strict_scene.h"

#include <zerod_cuda.h>

#include "client/lib/segments/cuda_context.h"
#include "client/lib/streams/stream.h"

/* ---- The promise --------------------------------------------------------------------------------------- */

/* Reads the view on the stream: what the driver says when that has run. */
static int read_view(struct CUstream_st *stream, const void *view)
{
	uint32_t word = 0;
	int result = scene_driver()->memcpyDtoHAsync(&word, (zd_cu_ptr)view, sizeof(word), stream);

	return result ? result : scene_driver()->streamSynchronize(stream);
}

/* A view is read while it is held and once more when it was released. The context is of no use after a
 * fault. */
static int read_a_stale_view(int strict)
{
	struct contract *c = contract_open(&(struct contract_options){.strict = strict});
	struct contract_rank *rank = &c->ranks[0];
	struct CUstream_st *handle = scene_stream(0);
	zerod_stream *stream = NULL;
	struct contract_unit unit;
	void *view = NULL;
	int result;

	contract_plain_unit(c, "w", SCENE_NUMEL, &unit);
	OK(rank->client, zerod_cuda_stream_wrap(rank->client, handle, &stream));
	publish_zeros(c, &unit);
	for (int round = 0; round < 2; round++) { /* access comes back with the next gather */
		OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &view));
		assert_int_equal(read_view(handle, view), ZD_CU_SUCCESS);
		release_behind(rank, &unit, NULL, stream);
		OK(rank->client, zerod_stream_synchronize(stream));
	}
	result = read_view(handle, view);
	if (result)
		FAILS(rank->client, zerod_gather(unit.at[0], NULL, stream, &view), ZEROD_E_DEVICE, NULL);
	zerod_stream_destroy(stream);
	contract_close(c);
	return result;
}

CASE_TEST(test_stale_view_ends_its_context)
{
	assert_int_equal(read_a_stale_view(1), ZD_CU_ILLEGAL_ADDRESS);
}

CASE_TEST(test_stale_view_of_others_shows_something)
{
	assert_int_equal(read_a_stale_view(0), ZD_CU_SUCCESS);
}

/* ---- What the daemon sees ------------------------------------------------------------------------------ */

static bool has_come(const uint64_t *page, const zerod_stream *stream)
{
	return zc_counter_load(page, stream->timeline) != 0;
}

/* From the counter on, the place may be another unit's. While the pages are locked, no access is taken
 * away. */
CASE_TEST(test_daemon_sees_the_stream_when_access_is_gone)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_client *client = rank->client;
	struct CUstream_st *handle = scene_stream(0);
	zerod_stream *stream = NULL;
	const void *view = contract_gather(rank, &unit, NULL);
	uint64_t *word;

	OK(client, zerod_cuda_stream_wrap(client, handle, &stream));
	word = scene_hold(handle);
	release_behind(rank, &unit, NULL, stream);
	pthread_mutex_lock(&client->page_lock);
	scene_let_go(word);
	assert_int_equal(scene_driver()->streamSynchronize(handle), 0);
	assert_true(has_come(client->gpu_page, stream));
	assert_false(has_come(client->client_page, stream));
	pthread_mutex_unlock(&client->page_lock);
	AWAIT(has_come(client->client_page, stream));
	assert_false(contract_can_touch(rank, view));
	zerod_stream_destroy(stream);
	contract_close(c);
}

/* ---- main ---------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
	return scene_main(argc, argv);
}
