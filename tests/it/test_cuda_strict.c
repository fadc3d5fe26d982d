/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_strict.c - strict clients on GPUs: a gathered buffer can be touched exactly while somebody holds it. */
#include "cuda_strict_scene.h"

/* ---- The promise --------------------------------------------------------------------------------------------- */

/* Reads the view on the stream: what the driver says when that has run. */
static int read_view(struct CUstream_st *stream, const void *view)
{
	uint32_t word = 0;
	int result = scene_driver()->memcpyDtoHAsync(&word, (zd_cu_ptr)view, sizeof(word), stream);

	return result ? result : scene_driver()->streamSynchronize(stream);
}

/* A view is read while it is held and once more when it was released. The context is of no use after a fault. */
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

static void test_stale_view_ends_its_context(void **state)
{
	(void)state;
	assert_int_equal(read_a_stale_view(1), ZD_CU_ILLEGAL_ADDRESS);
}

static void test_stale_view_of_others_shows_something(void **state)
{
	(void)state;
	assert_int_equal(read_a_stale_view(0), ZD_CU_SUCCESS);
}

/* ---- Who holds a buffer ---------------------------------------------------------------------------------------- */

static void test_last_of_all_streams(void **state)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *streams[] = {contract_stream(rank), contract_stream(rank)};

	(void)state;
	for (int last = 0; last < 2; last++) {
		struct contract_gate *gates[2];
		const void *view = contract_gather(rank, &unit, NULL);

		for (int i = 0; i < 2; i++)
			gates[i] = contract_block(rank, streams[i]);
		OK(rank->client, zerod_release(unit.at[0], NULL, streams, 2, NULL));
		assert_true(can_touch(rank, view));
		pass(rank, streams[!last], gates[!last]);
		assert_true(can_touch(rank, view));
		pass(rank, streams[last], gates[last]);
		assert_false(can_touch(rank, view));
	}
	contract_close(c);
}

/* The stream of a release that was not the last one counts, too. */
static void test_uses_and_their_streams(void **state)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *slow = contract_stream(rank);
	struct contract_gate *gate = contract_block(rank, slow);
	void *view = NULL;

	(void)state;
	options.uses = 3;
	OK(rank->client, zerod_gather(unit.at[0], &options, NULL, &view));
	contract_release(rank, &unit, NULL);
	release_behind(rank, &unit, NULL, slow);
	contract_release(rank, &unit, NULL);
	assert_true(can_touch(rank, view));
	pass(rank, slow, gate);
	assert_false(can_touch(rank, view));
	contract_close(c);
}

static void test_every_tag(void **state)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	const void *view = contract_gather(rank, &unit, "plan");

	(void)state;
	assert_ptr_equal(contract_gather(rank, &unit, "fallback"), view);
	contract_release(rank, &unit, "plan");
	assert_true(can_touch(rank, view));
	FAILS(rank->client, zerod_release(unit.at[0], "plan", NULL, 0, NULL), ZEROD_E_NOT_HELD, NULL);
	assert_true(can_touch(rank, view));
	contract_release(rank, &unit, "fallback");
	assert_false(can_touch(rank, view));
	contract_close(c);
}

/* Gathered again while a stream still uses the released copy: the new one is another, and outlives it. */
static void test_gathered_again_before_the_stream_passed(void **state)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *slow = contract_stream(rank);
	struct contract_gate *gate = contract_block(rank, slow);
	const void *before = contract_gather(rank, &unit, NULL), *after;

	(void)state;
	release_behind(rank, &unit, NULL, slow);
	after = contract_gather(rank, &unit, NULL);
	assert_ptr_not_equal(before, after);
	assert_true(can_touch(rank, before) && can_touch(rank, after));
	pass(rank, slow, gate);
	assert_false(can_touch(rank, before));
	assert_true(can_touch(rank, after));
	contract_close(c);
}

/* A slot: the next unit comes to the same segment, behind the stream that closes it for the former one. */
static void test_slot_changes_hands(void **state)
{
	struct contract_unit unit, large, small;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *slow = contract_stream(rank);
	struct contract_gate *gate;
	zerod_ticket ticket;
	const void *view;
	void *again = NULL;

	(void)state;
	slot_unit(c, "large", SEGMENT_BYTES / 2, 1, &large);
	slot_unit(c, "small", SCENE_NUMEL, 1, &small);
	view = contract_gather(rank, &large, NULL);
	gate = contract_block(rank, slow);
	release_behind(rank, &large, NULL, slow);
	OK(rank->client, zerod_gather_begin(small.at[0], NULL, &ticket));
	contract_unblock(gate);
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, &again));
	assert_ptr_equal(again, view);
	assert_true(can_touch(rank, view));
	contract_expect_bytes(&small, again, 1);
	contract_release(rank, &small, NULL);
	assert_false(can_touch(rank, view));
	contract_close(c);
}

/* Two of each, by one call. */
static void test_many_at_once(void **state)
{
	struct contract_unit units[2];
	struct contract *c = strict_open(&units[0]);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *stream = contract_stream(rank);
	zerod_unit *both[2];
	zerod_ticket tickets[2];
	struct contract_gate *gate;
	void *views[2];

	(void)state;
	contract_plain_unit(c, "v", SCENE_NUMEL, &units[1]);
	contract_publish_all(c, &units[1]);
	for (int i = 0; i < 2; i++) {
		both[i] = units[i].at[0];
		OK(rank->client, zerod_gather_begin(both[i], NULL, &tickets[i]));
	}
	OK(rank->client, zerod_wait_many(rank->client, tickets, 2, stream, views));
	gate = contract_block(rank, stream);
	OK(rank->client, zerod_release_many(both, 2, NULL, &stream, 1, NULL));
	assert_true(can_touch(rank, views[0]) && can_touch(rank, views[1]));
	pass(rank, stream, gate);
	assert_false(can_touch(rank, views[0]) || can_touch(rank, views[1]));
	contract_close(c);
}

static void test_streams_keep_what_a_claim_held(void **state)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *stream = contract_stream(rank);
	struct contract_gate *gate = contract_block(rank, stream);
	void *view = NULL;

	(void)state;
	OK(rank->client, zerod_forward_begin(rank->group, (zerod_scope){0}, NULL, 0, &options.scope));
	OK(rank->client, zerod_gather(unit.at[0], &options, NULL, &view));
	OK(rank->client, zerod_forward_end(rank->client, options.scope, 1, NULL, 0));
	assert_true(can_touch(rank, view));
	OK(rank->client, zerod_claim_end(rank->client, options.scope, &stream, 1));
	assert_true(can_touch(rank, view));
	pass(rank, stream, gate);
	assert_false(can_touch(rank, view));
	contract_close(c);
}

static void test_persistent_units_stay(void **state)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	const void *view = contract_gather(rank, &unit, NULL);

	(void)state;
	OK(rank->client, zerod_unit_set_persistent(unit.at[0], 1)); /* while it is held */
	contract_release(rank, &unit, NULL);
	assert_true(can_touch(rank, view));
	assert_ptr_equal(contract_gather(rank, &unit, NULL), view);
	OK(rank->client, zerod_unit_set_persistent(unit.at[0], 0));
	assert_true(can_touch(rank, view));
	contract_release(rank, &unit, NULL);
	assert_false(can_touch(rank, view));
	contract_close(c);
}

/* ---- Who writes it ----------------------------------------------------------------------------------------------- */

static bool is_filled(struct contract *c)
{
	return strcmp(contract_buffer(c, 0, "w").state, "AVAILABLE") == 0;
}

/* The daemon's mapping is another one. */
static void test_pushes_need_no_access_of_the_client(void **state)
{
	struct zerod_gather_options prefetch = ZEROD_INIT(prefetch);
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	const void *view;
	zerod_ticket ticket;
	void *again = NULL;

	(void)state;
	for (uint64_t version = 1; version <= 3; version++) {
		view = contract_gather(rank, &unit, NULL);
		contract_expect_bytes(&unit, view, version);
		contract_release(rank, &unit, NULL);
		contract_publish_all(c, &unit);
		prefetch.flags = version == 2 ? ZEROD_GATHER_PREFETCH : 0;
		OK(rank->client, zerod_gather_begin(unit.at[0], &prefetch, &ticket));
		AWAIT(is_filled(c));
		assert_false(can_touch(rank, view));
		OK(rank->client, zerod_wait(rank->client, ticket, NULL, version == 2 ? NULL : &again));
		assert_int_equal(can_touch(rank, view), version != 2);
		if (version == 2)
			continue;
		assert_ptr_equal(again, view);
		contract_expect_bytes(&unit, again, version + 1);
		contract_release(rank, &unit, NULL);
	}
	contract_close(c);
}

/* Nobody has said that the stream uses the buffer, but the own slice is still to be copied by it. */
static void test_own_slice_holds_its_buffer(void **state)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *stream = contract_stream(rank);
	struct contract_gate *gate = contract_block(rank, stream);
	void *view = NULL;

	(void)state;
	OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &view));
	contract_release(rank, &unit, NULL);
	assert_true(can_touch(rank, view));
	assert_int_equal(contract_device(c, 0).quarantine_bytes, SEGMENT_BYTES);
	pass(rank, stream, gate);
	assert_false(can_touch(rank, view));
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	contract_close(c);
}

/* An update that has begun copies what is due, into a buffer that nobody has waited for. */
static void test_own_slice_of_an_update_opens_its_buffer(void **state)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_ticket ticket;
	const void *view = contract_gather(rank, &unit, NULL);
	void *again = NULL;

	(void)state;
	contract_release(rank, &unit, NULL);
	assert_false(can_touch(rank, view));
	AWAIT(contract_device(c, 0).quarantine_bytes == 0); /* so that the next one is placed at once */
	OK(rank->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	OK(rank->client, zerod_update_begin(&unit.at[0], 1));
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, &again));
	assert_ptr_equal(again, view);
	contract_expect_bytes(&unit, again, 1);
	contract_release(rank, &unit, NULL);
	OK(rank->client, zerod_publish(&unit.at[0], 1, NULL, 0, 0));
	contract_close(c);
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

#define ONE_GPU "ZD_DOUBLE_DEVICES=1" /* where clients copy their own slices */

int main(int argc, char **argv)
{
	struct a_case cases[] = {
	        CASE(test_stale_view_ends_its_context),
	        CASE(test_stale_view_of_others_shows_something),
	        CASE(test_last_of_all_streams),
	        CASE(test_uses_and_their_streams),
	        CASE(test_every_tag),
	        CASE(test_gathered_again_before_the_stream_passed),
	        CASE(test_slot_changes_hands),
	        CASE(test_many_at_once),
	        CASE(test_streams_keep_what_a_claim_held),
	        CASE(test_persistent_units_stay),
	        CASE(test_pushes_need_no_access_of_the_client),
	        CASE(test_own_slice_holds_its_buffer, ONE_GPU),
	        CASE(test_own_slice_of_an_update_opens_its_buffer, ONE_GPU),
	};

	return scene_main(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
