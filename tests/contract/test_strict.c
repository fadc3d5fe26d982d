/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_strict.c - strict clients: a gathered buffer can be touched exactly while somebody holds it.
 *
 * Pages of emulated devices, and what an access without a right ends in, are looked at in tests/it
 * (test_strict.c, test_cuda_strict.c).
 */
#include "contract.h"

#define NUMEL 1000ull

/* Two strict ranks, and a unit in its first version. */
static struct contract *strict_open(struct contract_unit *unit)
{
	struct contract *c = contract_open(&(struct contract_options){.strict = 1});

	contract_plain_unit(c, "w", NUMEL, unit);
	contract_publish_all(c, unit);
	return c;
}

/* All that was in the stream has run. */
static void pass(struct contract_rank *rank, zerod_stream *stream, struct contract_gate *gate)
{
	contract_unblock(gate);
	contract_sync(rank, stream);
}

static void release_behind(struct contract_rank *rank, struct contract_unit *unit, const char *tag,
                           zerod_stream *stream)
{
	OK(rank->client, zerod_release(unit->at[rank->number], &stream, 1, TAGGED(tag), NULL));
	contract_others_release(rank, unit, tag);
}

/* ---- Who holds a buffer -------------------------------------------------------------------------------- */

CONTRACT_TEST(test_last_of_all_streams)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *streams[] = {contract_stream(rank), contract_stream(rank)};

	for (int last = 0; last < 2; last++) {
		struct contract_gate *gates[2];
		const void *view = contract_gather(rank, &unit, NULL);

		for (int i = 0; i < 2; i++)
			gates[i] = contract_block(rank, streams[i]);
		OK(rank->client, zerod_release(unit.at[0], streams, 2, NULL, NULL));
		contract_others_release(rank, &unit, NULL);
		assert_true(contract_can_touch(rank, view));
		pass(rank, streams[!last], gates[!last]);
		assert_true(contract_can_touch(rank, view));
		pass(rank, streams[last], gates[last]);
		assert_false(contract_can_touch(rank, view));
	}
	contract_close(c);
}

/* The stream of a release that was not the last one counts, too. */
CONTRACT_TEST(test_uses_and_their_streams)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *slow = contract_stream(rank);
	struct contract_gate *gate = contract_block(rank, slow);
	void *view = NULL;

	options.uses = 3;
	for (uint32_t i = 0; i < options.uses; i++)
		contract_others_gather(rank, &unit, NULL);
	OK(rank->client, zerod_gather(unit.at[0], &options, NULL, &view));
	contract_release(rank, &unit, NULL);
	release_behind(rank, &unit, NULL, slow);
	contract_release(rank, &unit, NULL);
	assert_true(contract_can_touch(rank, view));
	pass(rank, slow, gate);
	assert_false(contract_can_touch(rank, view));
	contract_close(c);
}

CONTRACT_TEST(test_every_tag)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	const void *view = contract_gather(rank, &unit, "plan");

	assert_ptr_equal(contract_gather(rank, &unit, "fallback"), view);
	contract_release(rank, &unit, "plan");
	assert_true(contract_can_touch(rank, view));
	FAILS(rank->client, zerod_release(unit.at[0], NULL, 0, TAGGED("plan"), NULL), ZEROD_E_NOT_HELD, NULL);
	assert_true(contract_can_touch(rank, view));
	contract_release(rank, &unit, "fallback");
	assert_false(contract_can_touch(rank, view));
	contract_close(c);
}

/* Gathered again while a stream still uses the released copy: the new one is another, and outlives it. */
CONTRACT_TEST(test_gathered_again_before_the_stream_passed)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *slow = contract_stream(rank);
	struct contract_gate *gate = contract_block(rank, slow);
	const void *before = contract_gather(rank, &unit, NULL), *after;

	release_behind(rank, &unit, NULL, slow);
	after = contract_gather(rank, &unit, NULL);
	assert_ptr_not_equal(before, after);
	assert_true(contract_can_touch(rank, before) && contract_can_touch(rank, after));
	pass(rank, slow, gate);
	assert_false(contract_can_touch(rank, before));
	assert_true(contract_can_touch(rank, after));
	contract_close(c);
}

/* A slot: the next unit comes to the same place, behind the stream that closes it for the former one. */
CONTRACT_TEST(test_slot_changes_hands)
{
	struct contract_unit unit, large, small;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *slow = contract_stream(rank);
	struct contract_gate *gate;
	zerod_ticket ticket;
	const void *view;
	void *again = NULL;

	contract_slot_unit(c, "large", 5 * NUMEL, 1, &large);
	contract_slot_unit(c, "small", NUMEL, 1, &small);
	view = contract_gather(rank, &large, NULL);
	gate = contract_block(rank, slow);
	release_behind(rank, &large, NULL, slow);
	contract_others_gather(rank, &small, NULL);
	OK(rank->client, zerod_gather_begin(small.at[0], NULL, &ticket));
	contract_unblock(gate);
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, &again));
	assert_ptr_equal(again, view);
	assert_true(contract_can_touch(rank, view));
	contract_expect_bytes(&small, again, 1);
	contract_release(rank, &small, NULL);
	assert_false(contract_can_touch(rank, view));
	contract_close(c);
}

/* Two of each, by one call. */
CONTRACT_TEST(test_many_at_once)
{
	struct contract_unit units[2];
	struct contract *c = strict_open(&units[0]);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *stream = contract_stream(rank);
	zerod_unit *both[2];
	zerod_ticket tickets[2];
	struct contract_gate *gate;
	void *views[2];

	contract_plain_unit(c, "v", NUMEL, &units[1]);
	contract_publish_all(c, &units[1]);
	for (int i = 0; i < 2; i++) {
		both[i] = units[i].at[0];
		contract_others_gather(rank, &units[i], NULL);
		OK(rank->client, zerod_gather_begin(both[i], NULL, &tickets[i]));
	}
	OK(rank->client, zerod_wait_many(rank->client, tickets, 2, stream, views));
	gate = contract_block(rank, stream);
	OK(rank->client, zerod_release_many(both, 2, &stream, 1, NULL, NULL));
	assert_true(contract_can_touch(rank, views[0]) && contract_can_touch(rank, views[1]));
	pass(rank, stream, gate);
	assert_false(contract_can_touch(rank, views[0]) || contract_can_touch(rank, views[1]));
	contract_close(c);
}

CONTRACT_TEST(test_streams_keep_what_a_claim_held)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *stream = contract_stream(rank);
	struct contract_gate *gate = contract_block(rank, stream);
	void *view = NULL;

	OK(rank->client, zerod_forward_begin(rank->group, (zerod_scope){0}, NULL, 0, &options.scope));
	contract_others_gather(rank, &unit, NULL);
	OK(rank->client, zerod_gather(unit.at[0], &options, NULL, &view));
	OK(rank->client, zerod_forward_end(rank->client, options.scope, 1, NULL, 0, NULL));
	assert_true(contract_can_touch(rank, view));
	OK(rank->client, zerod_claim_end(rank->client, options.scope, &stream, 1, NULL));
	assert_true(contract_can_touch(rank, view));
	pass(rank, stream, gate);
	assert_false(contract_can_touch(rank, view));
	contract_close(c);
}

CONTRACT_TEST(test_persistent_units_stay)
{
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	const void *view = contract_gather(rank, &unit, NULL);

	contract_set_persistent(c, &unit, 1); /* while it is held */
	contract_release(rank, &unit, NULL);
	assert_true(contract_can_touch(rank, view));
	assert_ptr_equal(contract_gather(rank, &unit, NULL), view);
	contract_set_persistent(c, &unit, 0);
	assert_true(contract_can_touch(rank, view));
	contract_release(rank, &unit, NULL);
	assert_false(contract_can_touch(rank, view));
	contract_set_persistent(c, &unit, 1); /* before it is gathered */
	view = contract_gather(rank, &unit, NULL);
	contract_release(rank, &unit, NULL);
	assert_true(contract_can_touch(rank, view));
	contract_set_persistent(c, &unit, 0); /* when nobody holds it */
	assert_false(contract_can_touch(rank, view));
	contract_close(c);
}

/* ---- Who writes it ------------------------------------------------------------------------------------- */

static bool is_filled(struct contract *c)
{
	return strcmp(contract_buffer(c, 0, "w").state, "AVAILABLE") == 0;
}

/* The daemon's mapping is another one. Access comes with the wait that gives out the address. */
CONTRACT_TEST(test_pushes_need_no_access_of_the_client)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct zerod_gather_options prefetch = ZEROD_INIT(prefetch);
	struct contract_unit unit;
	struct contract *c = strict_open(&unit);
	struct contract_rank *rank = &c->ranks[0];
	const void *view;
	zerod_ticket ticket;
	void *again = NULL;

	for (uint64_t version = 1; version <= 3; version++) {
		view = contract_gather(rank, &unit, NULL);
		contract_expect_bytes(&unit, view, version);
		contract_release(rank, &unit, NULL);
		contract_publish_all(c, &unit);
		AWAIT(contract_device(c, 0).quarantine_bytes == 0); /* so that it comes to the same place */
		prefetch.flags = version == 2 ? ZEROD_GATHER_PREFETCH : 0;
		OK(rank->client, zerod_gather_begin(unit.at[0], &prefetch, &ticket));
		AWAIT(is_filled(c));
		assert_false(contract_can_touch(rank, view));
		OK(rank->client, zerod_wait(rank->client, ticket, NULL, version == 2 ? NULL : &again));
		assert_int_equal(contract_can_touch(rank, view), version != 2);
		if (version == 2)
			continue;
		assert_ptr_equal(again, view);
		contract_expect_bytes(&unit, again, version + 1);
		contract_release(rank, &unit, NULL);
	}
	contract_close(c);
}

/* ---- Units that end ------------------------------------------------------------------------------------ */

static void unregister(struct contract_rank *rank, void *arg)
{
	struct contract_unit *unit = arg;

	OK(rank->client, zerod_unit_unregister(unit->at[rank->number], NULL));
}

CONTRACT_TEST(test_units_that_end_take_their_access)
{
	struct contract_unit held, kept;
	struct contract *c = strict_open(&held);
	struct contract_rank *rank = &c->ranks[0];
	const void *held_view, *kept_view;

	contract_plain_unit(c, "kept", NUMEL, &kept);
	contract_publish_all(c, &kept);
	OK(rank->client, zerod_unit_set_persistent(kept.at[0], 1));
	kept_view = contract_gather(rank, &kept, NULL);
	held_view = contract_gather(rank, &held, NULL);
	contract_release(rank, &kept, NULL);
	assert_true(contract_can_touch(rank, kept_view));
	contract_run(c, unregister, &kept);
	assert_false(contract_can_touch(rank, kept_view));
	assert_true(contract_can_touch(rank, held_view));
	OK(rank->client, zerod_group_leave(rank->group, NULL));
	assert_false(contract_can_touch(rank, held_view));
	contract_close(c);
}
