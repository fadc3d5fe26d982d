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

static void test_what_cannot_be_wrapped(void **state)
{
	struct contract *c = contract_open(NULL);
	zerod_client *client = c->ranks[0].client;
	zerod_stream *stream = NULL;

	(void)state;
	FAILS(client, zerod_cuda_stream_wrap(client, ZD_CU_STREAM_PER_THREAD, &stream), ZEROD_E_INVALID,
	      "CU_STREAM_PER_THREAD");
	assert_int_equal(scene_driver()->ctxSetCurrent(NULL), 0);
	FAILS(client, zerod_cuda_stream_wrap(client, NULL, &stream), ZEROD_E_INVALID, "none is current");
	FAILS(client, zerod_cuda_stream_wrap(client, NULL, NULL), ZEROD_E_INVALID, NULL);
	scene_make_current(0);
	OK(client, zerod_cuda_stream_wrap(client, NULL, &stream));
	FAILS(client, zerod_host_stream_launch(stream, free, NULL), ZEROD_E_INVALID, "runs no functions");
	zerod_stream_destroy(stream);
	contract_close(c);
}

static void test_emulated_devices_have_no_gpu_streams(void **state)
{
	struct contract *c;
	zerod_stream *stream = NULL;

	(void)state;
	assert_int_equal(setenv("ZEROD_TEST_BACKEND", "host", 1), 0);
	c = contract_open(NULL);
	FAILS(c->ranks[0].client, zerod_cuda_stream_wrap(c->ranks[0].client, NULL, &stream),
	      ZEROD_E_UNSUPPORTED, "emulated");
	contract_close(c);
}

/* The legacy default stream stands for whatever context is current when it is wrapped, and for that one from
 * then on. */
static void test_default_stream(void **state)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	zerod_client *client = c->ranks[0].client;
	zerod_stream *stream = NULL;
	void *data = NULL;

	(void)state;
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
static void test_contexts_of_the_caller_stay(void **state)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	zerod_stream *stream = contract_stream(&c->ranks[0]);
	struct CUctx_st *before, *after = NULL;

	(void)state;
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

static void test_stream_of_another_gpu_is_refused(void **state)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	zerod_client *client = c->ranks[0].client;
	struct CUstream_st *handle = scene_stream(1);
	struct zerod_device_info info = ZEROD_INIT(info);
	zerod_stream *stream = NULL;
	void *data = NULL;

	(void)state;
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
static void test_own_publish_is_awaited_without_the_daemon(void **state)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = 1});
	struct contract_rank *rank = &c->ranks[0];
	struct CUstream_st *handles[2] = {scene_stream(0), scene_stream(0)};
	zerod_stream *streams[2];
	struct contract_unit unit;
	zerod_ticket published;
	uint64_t *gate;

	(void)state;
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
static void test_handle_goes_before_its_fence(void **state)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	struct CUstream_st *handle = scene_stream(0);
	zerod_stream *stream = NULL;
	uint64_t *gate;
	void *held = NULL, *data = NULL;

	(void)state;
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

static void test_captured_stream_is_refused(void **state)
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

	(void)state;
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
static void test_capture_elsewhere_is_not_disturbed(void **state)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	const struct zd_cuda *driver = scene_driver();
	struct CUstream_st *captured = scene_stream(0), *handle = scene_stream(0);
	struct CUgraph_st *graph = NULL;
	zerod_stream *stream = NULL;
	struct contract_unit unit;
	void *data = NULL;

	(void)state;
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
static void test_allocation_that_cannot_be_mapped(void **state)
{
	struct contract *c = contract_open(NULL);
	zerod_client *client = c->ranks[0].client;
	struct zerod_alloc_options options = ZEROD_INIT(options);
	zerod_allocation *buffer;
	void *data;

	(void)state;
	options.job = "job", options.bytes = 4 << 20;
	FAILS(client, zerod_alloc(client, &options, &buffer, &data), ZEROD_E_NO_MEMORY, "OUT_OF_MEMORY");
	assert_int_equal(contract_device(c, 0).allocation_bytes, 0);
	OK(client, zerod_alloc(client, &options, &buffer, &data));
	OK(client, zerod_free(buffer, NULL, 0));
	contract_close(c);
}

/* An entry that the process cannot map stays reserved, and the next call returns it: to the daemon, a second
 * reservation would be an error. */
static void test_entry_that_cannot_be_mapped(void **state)
{
	struct contract_unit unit;
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_entry entry = ZEROD_INIT(entry);
	zerod_bucket *bucket = contract_bucket(rank, 1 << 20, 2);

	(void)state;
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

/* ---- Own slices ---------------------------------------------------------------------------------------- */

static void spoil_shard(struct contract_rank *rank, struct contract_unit *unit)
{
	static const uint8_t spoilt[SCENE_NUMEL / 2 * sizeof(float)] = {0xff};
	struct zerod_shard shard = ZEROD_INIT(shard);

	OK(rank->client, zerod_shard_get(unit->at[rank->number], &shard));
	contract_write(NULL, shard.data, spoilt, sizeof(spoilt));
}

/* Where there are several, the daemon copies small own slices itself. */
#define ONE_GPU "ZD_DOUBLE_DEVICES=1"

/* Nobody has waited for the gather when the shard is given to its writer. */
static void test_update_waits_for_the_own_slice(void **state)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_ticket ticket;
	void *data = NULL;

	(void)state;
	contract_expect_version(rank, &unit,
	                        1); /* the gather pool is there: the next one is placed at once */
	OK(rank->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	OK(rank->client, zerod_update_begin(&unit.at[0], 1, NULL, NULL));
	spoil_shard(rank, &unit);
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, &data));
	contract_expect_bytes(&unit, data, 1);
	contract_release(rank, &unit, NULL);
	OK(rank->client, zerod_publish(&unit.at[0], 1, NULL, 0, NULL, NULL));
	contract_close(c);
}

/* The daemon has granted it when the copy fails: it goes on from there when it is asked for again. */
static void test_update_after_a_copy_that_failed(void **state)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_ticket ticket;
	void *data = NULL;

	(void)state;
	contract_expect_version(rank, &unit, 1);
	OK(rank->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	FAILS(rank->client, zerod_update_begin(&unit.at[0], 1, NULL, NULL), ZEROD_E_NO_MEMORY,
	      "copying a slice");
	OK(rank->client, zerod_update_begin(&unit.at[0], 1, NULL, NULL));
	spoil_shard(rank, &unit);
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, &data));
	contract_expect_bytes(&unit, data, 1);
	contract_release(rank, &unit, NULL);
	OK(rank->client, zerod_publish(&unit.at[0], 1, NULL, 0, NULL, NULL));
	contract_close(c);
}

/* A gather that joins the buffer finds the own slice copied, and does not copy it again. */
static void test_own_slice_is_copied_once(void **state)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	void *data, *again;

	(void)state;
	data = contract_gather(rank, &unit, "first");
	spoil_shard(rank, &unit); /* against the rules: shows whether anybody reads it */
	again = contract_gather(rank, &unit, "second");
	assert_ptr_equal(data, again);
	contract_expect_bytes(&unit, again, 1);
	contract_release(rank, &unit, "first");
	contract_release(rank, &unit, "second");
	contract_close(c);
}

/* With one hardware queue, the held stream holds up the library's own as well. The lease ends before the copy
 * has begun, whose place must not be somebody else's yet. */
static void test_release_waits_for_the_own_slice(void **state)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *stream = contract_stream(rank);
	struct contract_gate *gate;
	zerod_ticket ticket;
	void *data = NULL, *next = NULL;

	(void)state;
	OK(rank->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	gate = contract_block(rank, stream);
	OK(rank->client, zerod_wait(rank->client, ticket, stream, &data));
	AWAIT(strcmp(contract_buffer(c, 0, "w").state, "AVAILABLE") == 0);
	OK(rank->client, zerod_release(unit.at[0], NULL, 0, NULL, NULL)); /* nobody uses it: so it says */
	assert_int_equal(contract_device(c, 0).quarantine_bytes, contract_padded_bytes(&unit));
	OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &next));
	assert_ptr_not_equal(next, data);
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	contract_unblock(gate);
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	contract_close(c);
}

static bool has_ended(struct CUstream_st *handle)
{
	return scene_driver()->streamQuery(handle) == ZD_CU_SUCCESS;
}

/* Small slices are copied by the first stream that waits. It is held, and another one has all of its bytes
 * before it goes on. */
static void test_second_stream_finds_the_own_slice(void **state)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	struct CUstream_st *handle = scene_stream(0);
	zerod_stream *first = contract_stream(rank), *second = NULL;
	struct contract_gate *gate = contract_block(rank, first);
	zerod_ticket ticket;
	void *data = NULL;

	(void)state;
	OK(rank->client, zerod_cuda_stream_wrap(rank->client, handle, &second));
	OK(rank->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	OK(rank->client, zerod_wait(rank->client, ticket, first, NULL));
	OK(rank->client, zerod_wait(rank->client, ticket, second, &data));
	AWAIT(has_ended(handle));
	contract_expect_bytes(&unit, data, 1);
	contract_unblock(gate);
	OK(rank->client, zerod_release(unit.at[0], (zerod_stream *[]){first, second}, 2, NULL, NULL));
	zerod_stream_destroy(second);
	contract_close(c);
}

/* Only a thread that waits for a copy calls cuMemGetInfo(), to check the GPUs' health: here that call opens
 * the gate. */
static struct {
	struct contract_gate *gate;
	int (*ask)(size_t *available, size_t *total);
	bool asked;
} waiting;

static int open_gate_and_ask(size_t *available, size_t *total)
{
	waiting.asked = true;
	contract_unblock(waiting.gate);
	return waiting.ask(available, total);
}

static void answer_with(int (*ask)(size_t *available, size_t *total))
{
	struct zd_cuda *driver = (struct zd_cuda *)scene_driver(); /* the library's, too */

	waiting.ask = driver->memGetInfo;
	driver->memGetInfo = ask;
}

/* The shard is its writer's when the held stream has copied it, not before. */
static void test_update_waits_for_a_stream(void **state)
{
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *stream = contract_stream(rank);
	void *data = NULL;

	(void)state;
	waiting.gate = contract_block(rank, stream);
	OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &data));
	answer_with(open_gate_and_ask);
	OK(rank->client, zerod_update_begin(&unit.at[0], 1, NULL, NULL));
	answer_with(waiting.ask);
	CHECK(waiting.asked);
	spoil_shard(rank, &unit);
	contract_sync(rank, stream);
	contract_expect_bytes(&unit, data, 1);
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	OK(rank->client, zerod_publish(&unit.at[0], 1, NULL, 0, NULL, NULL));
	contract_close(c);
}

/* A held stream has still to copy out of the shard, which must be neither freed nor written before. */
static void test_shards_stay_until_streams_have_copied(void **state)
{
	struct zerod_wait_options soon = ZEROD_INIT(soon);
	struct contract_unit unit;
	struct contract *c = scene_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *stream = contract_stream(rank);
	struct contract_gate *gate = contract_block(rank, stream);
	void *data = NULL;

	(void)state;
	soon.deadline_ms = 1;
	OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &data));
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	FAILS(rank->client, zerod_unit_unregister(unit.at[0], &soon), ZEROD_E_DEADLINE,
	      "copy of this rank's");
	FAILS(rank->client, zerod_group_leave(rank->group, &soon), ZEROD_E_DEADLINE, "copy of this rank's");
	FAILS(rank->client, zerod_update_begin(&unit.at[0], 1, &soon, NULL), ZEROD_E_DEADLINE,
	      "copy of this rank's");
	FAILS(rank->client, zerod_unit_place(unit.at[0], ZEROD_UNIT_ON_HOST, &soon), ZEROD_E_DEADLINE,
	      "copy of this rank's");
	contract_unblock(gate);
	OK(rank->client, zerod_update_begin(&unit.at[0], 1, NULL, NULL)); /* goes on with it */
	OK(rank->client, zerod_publish(&unit.at[0], 1, NULL, 0, NULL, NULL));
	OK(rank->client, zerod_unit_unregister(unit.at[0], NULL));
	contract_close(c);
}

static void place(struct contract_rank *rank, void *arg)
{
	const struct contract_unit *unit = arg;

	OK(rank->client, zerod_unit_place(unit->at[rank->number], ZEROD_UNIT_ON_HOST, NULL));
}

/* While one thread moves a unit, another one begins no copy out of the shard, which is about to be freed.
 * The daemon copies the slices that the other thread leaves out, with the shard. */
static void test_no_copy_begins_while_a_unit_moves(void **state)
{
	struct zerod_gather_options soon = ZEROD_INIT(soon);
	struct contract *c =
	        contract_open(&(struct contract_options){.config = "[devices]\nhost_arena = 64M\n"});
	struct contract_rank *rank = &c->ranks[0];
	struct contract_unit unit, other;
	struct contract_task *task;
	zerod_ticket ticket;
	void *data;

	(void)state;
	contract_plain_unit(c, "w", SCENE_NUMEL, &unit);
	contract_publish_all(c, &unit);
	task = contract_start(rank, place, &unit);
	AWAIT(contract_somebody_waits(c, "rank 1 to call unit_place"));
	soon.deadline_ms = 20;
	OK(rank->client, zerod_gather_begin(unit.at[0], &soon, &ticket));
	FAILS(rank->client, zerod_wait(rank->client, ticket, NULL, &data), ZEROD_E_DEADLINE,
	      "waited for another thread that moves unit 'w'");
	place(&c->ranks[1], &unit);
	contract_finish(task);
	contract_plain_unit(c, "other", SCENE_NUMEL, &other); /* in the memory of the former shards */
	contract_publish_all(c, &other);
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, &data));
	contract_expect_bytes(&unit, data, 1);
	contract_release(rank, &unit, NULL);
	contract_close(c);
}

/* Copies that the library makes. */
static struct {
	int (*copy)(zd_cu_ptr to, zd_cu_ptr from, size_t bytes, struct CUstream_st *stream);
	unsigned count;
} copies;

static int count_copy(zd_cu_ptr to, zd_cu_ptr from, size_t bytes, struct CUstream_st *stream)
{
	copies.count++;
	return copies.copy(to, from, bytes, stream);
}

/* Gathers until the daemon does, or does not, leave the own slice to the client. */
static bool is_left(struct contract_rank *rank, struct contract_unit *unit)
{
	copies.count = 0;
	(void)contract_gather(rank, unit, NULL);
	contract_release(rank, unit, NULL);
	return copies.count > 0;
}

#define LEFT_NUMEL                                                                                           \
	(1u                                                                                                  \
	 << 20) /* half of it is left where the GPU is idle, and small enough for a stream to copy itself */

/* A held stream has still to copy the slice when the unit is gathered again, and that time the daemon copies
 * it. What the stream writes to has been released: nobody else copies there. */
static void test_own_slice_is_left_no_more(void **state)
{
	struct zd_cuda *driver = (struct zd_cuda *)scene_driver(); /* the library's, too */
	char dir[] = CASE_DIR;
	struct contract_unit unit, probe;
	struct contract_rank *rank;
	struct contract_gate *gate;
	struct contract *c;
	zerod_stream *stream;
	void *data = NULL, *next;

	(void)state;
	assert_non_null(mkdtemp(dir));
	assert_int_equal(setenv("ZD_DOUBLE_DIR", dir, 1), 0);
	case_write_file(dir, "busy-0", "0");
	/* While the stream is held, what is released waits for its copy: the probes need room of their
	 * own. */
	c = contract_open(&(struct contract_options){.arena = "2G"});
	rank = &c->ranks[0];
	contract_plain_unit(c, "w", LEFT_NUMEL, &unit);
	contract_plain_unit(c, "probe", LEFT_NUMEL, &probe);
	contract_publish_all(c, &unit);
	contract_publish_all(c, &probe);
	copies.copy = driver->memcpyAsync;
	driver->memcpyAsync = count_copy;
	AWAIT(is_left(rank, &probe));
	stream = contract_stream(rank);
	gate = contract_block(rank, stream);
	OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &data));
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	case_write_file(dir, "busy-0", "100");
	AWAIT(!is_left(rank, &probe));
	copies.count = 0;
	next = contract_gather(rank, &unit, NULL);
	assert_ptr_not_equal(next, data);
	assert_int_equal(copies.count, 0);
	contract_expect_bytes(&unit, next, 1);
	contract_release(rank, &unit, NULL);
	contract_unblock(gate);
	driver->memcpyAsync = copies.copy;
	contract_close(c);
	case_remove_dir(dir);
}

/* A gather that waits for the next version holds nothing of this one, which is released without a look at it.
 * What was still to be copied is not: the place is another unit's when the update begins. */
static void release_beside_a_later_gather(const char *tag)
{
	struct contract_unit unit, other;
	struct contract *c = scene_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_gather_options later = ZEROD_INIT(later);
	zerod_ticket ticket, next;
	void *data = NULL;

	contract_plain_unit(c, "other", SCENE_NUMEL, &other);
	contract_publish_all(c, &other);
	later.tag = tag;
	later.version = 2;
	OK(rank->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	OK(rank->client, zerod_gather_begin(unit.at[0], &later, &next));
	contract_expect_version(rank, &other, 1); /* the answer about the first gather has come */
	AWAIT(strcmp(contract_buffer(c, 0, "w").state, "AVAILABLE") == 0);
	OK(rank->client, zerod_release(unit.at[0], NULL, 0, NULL, NULL));
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	data = contract_gather(rank, &other, NULL);
	OK(rank->client, zerod_update_begin(&unit.at[0], 1, NULL, NULL));
	contract_expect_bytes(&other, data, 1);
	contract_release(rank, &other, NULL);
	OK(rank->client, zerod_publish(&unit.at[0], 1, NULL, 0, NULL, NULL));
	contract_close(c);
}

static void test_later_gather_holds_nothing(void **state)
{
	(void)state;
	release_beside_a_later_gather("later");
}

static void test_later_gather_of_the_same_tag(void **state)
{
	(void)state;
	release_beside_a_later_gather(NULL);
}

int main(int argc, char **argv)
{
	struct a_case cases[] = {
	        CASE(test_what_cannot_be_wrapped),
	        CASE(test_emulated_devices_have_no_gpu_streams),
	        CASE(test_default_stream),
	        CASE(test_contexts_of_the_caller_stay),
	        CASE(test_stream_of_another_gpu_is_refused),
	        CASE(test_own_publish_is_awaited_without_the_daemon),
	        CASE(test_handle_goes_before_its_fence),
	        CASE(test_captured_stream_is_refused),
	        CASE(test_capture_elsewhere_is_not_disturbed),
	        CASE(test_allocation_that_cannot_be_mapped, "ZD_DOUBLE_FAIL_IN=case",
	             "ZD_DOUBLE_FAIL=cuMemMap:1:2"),
	        CASE(test_entry_that_cannot_be_mapped, "ZD_DOUBLE_FAIL_IN=case",
	             "ZD_DOUBLE_FAIL=cuMemMap:3:2"),
	        CASE(test_update_waits_for_the_own_slice, ONE_GPU),
	        CASE(test_update_after_a_copy_that_failed, ONE_GPU, "ZD_DOUBLE_FAIL_IN=case",
	             "ZD_DOUBLE_FAIL=cuMemcpyAsync:2:2"),
	        CASE(test_own_slice_is_copied_once, ONE_GPU),
	        CASE(test_release_waits_for_the_own_slice, ONE_GPU, "CUDA_DEVICE_MAX_CONNECTIONS=1"),
	        CASE(test_second_stream_finds_the_own_slice, ONE_GPU),
	        CASE(test_update_waits_for_a_stream, ONE_GPU),
	        CASE(test_shards_stay_until_streams_have_copied, ONE_GPU),
	        CASE(test_no_copy_begins_while_a_unit_moves, ONE_GPU),
	        CASE(test_own_slice_is_left_no_more),
	        CASE(test_later_gather_holds_nothing, ONE_GPU),
	        CASE(test_later_gather_of_the_same_tag, ONE_GPU),
	};

	return scene_main(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
