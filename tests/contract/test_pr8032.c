/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pr8032.c - gathered storage follows leases and nothing else.
 *
 * Upstream, a gathered parameter was a true-shape view of a padded buffer, and the generated code kept that
 * view: the release cleared the registry's tensor, and the storage stayed. Here a release ends the storage,
 * whoever still has its address, and the bytes are out of the accounts at once.
 */
#include "contract.h"

#include <stdio.h>

#include "base/mem.h"

#define LARGE_NUMEL 3000u
#define NUMEL       1000u /* two shards of 512: 24 elements of padding */

static struct contract_rank *first_of(struct contract *c)
{
	return &c->ranks[0];
}

/* The daemon hears of a transfer's end a little after its waiters. */
static bool is_available(struct contract *c, const char *unit)
{
	return strcmp(contract_buffer(c, 0, unit).state, "AVAILABLE") == 0;
}

/* ---- Gather -------------------------------------------------------------------------------------------- */

#define THREADS 4

struct gatherers {
	struct contract_unit *unit;
	void *data[THREADS];
};

struct gatherer {
	struct gatherers *all;
	unsigned index;
};

static void gather_in_thread(struct contract_rank *rank, void *arg)
{
	struct gatherer *me = arg;

	me->all->data[me->index] = contract_gather(rank, me->all->unit, NULL);
}

CONTRACT_TEST(test_concurrent_gathers_are_one_transfer)
{
	struct contract *c = contract_open(NULL);
	struct contract_unit unit;
	struct gatherers all = {.unit = &unit};
	struct gatherer gatherers[THREADS];
	struct contract_task *tasks[THREADS];
	struct contract_device device;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	for (unsigned i = 0; i < THREADS; i++) {
		gatherers[i] = (struct gatherer){&all, i};
		contract_others_gather(first_of(c), &unit, NULL);
		tasks[i] = contract_start(first_of(c), gather_in_thread, &gatherers[i]);
	}
	for (unsigned i = 0; i < THREADS; i++)
		contract_finish(tasks[i]);
	device = contract_device(c, 0);
	assert_int_equal(device.transfers, 1);
	assert_int_equal(device.joined, THREADS - 1);
	assert_int_equal(device.gathered_bytes, contract_padded_bytes(&unit));
	assert_int_equal(contract_buffer(c, 0, "w").uses, THREADS);
	AWAIT(is_available(c, "w"));
	for (unsigned i = 0; i < THREADS; i++) {
		assert_ptr_equal(all.data[i], all.data[0]);
		contract_expect_bytes(&unit, all.data[i], 1);
		assert_string_equal(contract_buffer(c, 0, "w").state, "AVAILABLE");
		contract_release(first_of(c), &unit, NULL);
	}
	assert_string_equal(contract_buffer(c, 0, "w").state, "NOT_AVAILABLE");
	contract_close(c);
}

CONTRACT_TEST(test_waiting_again_never_revives)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = first_of(c);
	struct contract_unit unit;
	zerod_ticket ticket;
	void *data = NULL, *again = NULL;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	contract_others_gather(rank, &unit, NULL);
	OK(rank->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, &data));
	OK(rank->client, zerod_wait(rank->client, ticket, NULL, &again));
	assert_ptr_equal(data, again);
	contract_release(rank, &unit, NULL);
	FAILS(rank->client, zerod_wait(rank->client, ticket, NULL, &again), ZEROD_E_STALE, NULL);
	assert_string_equal(contract_buffer(c, 0, "w").state, "NOT_AVAILABLE");
	assert_int_equal(contract_device(c, 0).transfers, 1);
	assert_int_equal(contract_device(c, 0).gathered_bytes, 0);
	contract_expect_version(rank, &unit, 1);
	FAILS(rank->client, zerod_wait(rank->client, ticket, NULL, &again), ZEROD_E_STALE, NULL);
	contract_close(c);
}

/* One that waits has what it wants, whatever a stream that waited before has still to do. */
CONTRACT_TEST(test_waits_are_apart)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = first_of(c);
	struct contract_unit unit;
	zerod_stream *slow = contract_stream(rank), *stream = contract_stream(rank);
	struct contract_gate *gate;
	uint8_t *seen;
	void *data = NULL;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	seen = zd_calloc(1, contract_padded_bytes(&unit));
	gate = contract_block(rank, slow);
	contract_others_gather(rank, &unit, NULL);
	OK(rank->client, zerod_gather(unit.at[0], NULL, slow, &data));
	OK(rank->client, zerod_gather(unit.at[0], NULL, NULL, &data));
	contract_expect_bytes(&unit, data, 1);
	OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &data));
	contract_read(stream, seen, data, contract_padded_bytes(&unit));
	contract_sync(rank, stream);
	CHECK_BYTES(contract_bytes_are(&unit, seen, 1));
	contract_unblock(gate);
	OK(rank->client, zerod_release(unit.at[0], &slow, 1, NULL, NULL));
	contract_release(rank, &unit, NULL);
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	free(seen);
	contract_close(c);
}

/* ---- Release ------------------------------------------------------------------------------------------- */

/* The bytes are off the account at the release; the block serves nobody else before the slow consumer is
 * through. */
CONTRACT_TEST(test_release_waits_for_every_consumer)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = first_of(c);
	struct contract_unit unit, other;
	zerod_stream *streams[3];
	struct contract_gate *gate;
	zerod_ticket ticket;
	uint8_t *seen;
	void *data = NULL, *next;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_plain_unit(c, "v", NUMEL, &other);
	contract_publish_all(c, &unit);
	contract_publish_all(c, &other);
	seen = zd_calloc(1, contract_padded_bytes(&unit));
	for (unsigned i = 0; i < 3; i++)
		streams[i] = contract_stream(rank);
	contract_others_gather(rank, &unit, NULL);
	OK(rank->client, zerod_gather_begin(unit.at[0], NULL, &ticket));
	for (unsigned i = 0; i < 3; i++)
		OK(rank->client, zerod_wait(rank->client, ticket, streams[i], &data));
	AWAIT(is_available(c, "w"));             /* from here on the streams alone keep the block */
	gate = contract_block(rank, streams[1]); /* neither the first nor the last */
	contract_read(streams[1], seen, data, contract_padded_bytes(&unit));
	OK(rank->client, zerod_release(unit.at[0], streams, 3, NULL, NULL));
	contract_others_release(rank, &unit, NULL);
	assert_int_equal(contract_device(c, 0).gathered_bytes, 0);
	assert_int_equal(contract_device(c, 0).quarantine_bytes, contract_padded_bytes(&unit));
	contract_sync(rank, streams[0]);
	contract_sync(rank, streams[2]);
	next = contract_gather(rank, &other, NULL);
	assert_ptr_not_equal(next, data);
	contract_release(rank, &other, NULL);
	contract_unblock(gate);
	contract_sync(rank, streams[1]);
	CHECK_BYTES(contract_bytes_are(&unit, seen, 1));
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	next = contract_gather(rank, &other, NULL);
	assert_ptr_equal(next, data);
	contract_release(rank, &other, NULL);
	free(seen);
	contract_close(c);
}

/* A stream with nothing left in it is not through as long as it runs. */
CONTRACT_TEST(test_release_waits_for_what_runs)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = first_of(c);
	struct contract_unit unit, other;
	zerod_stream *stream = contract_stream(rank);
	struct contract_gate *gate;
	void *data;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_plain_unit(c, "v", NUMEL, &other);
	contract_publish_all(c, &unit);
	contract_publish_all(c, &other);
	data = contract_gather(rank, &unit, NULL);
	AWAIT(is_available(c, "w"));
	gate = contract_block(rank, stream);
	AWAIT(contract_is_blocked(gate));
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	contract_others_release(rank, &unit, NULL);
	assert_int_equal(contract_device(c, 0).quarantine_bytes, contract_padded_bytes(&unit));
	assert_ptr_not_equal(contract_gather(rank, &other, NULL), data);
	contract_release(rank, &other, NULL);
	contract_unblock(gate);
	contract_sync(rank, stream);
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	contract_close(c);
}

CONTRACT_TEST(test_multi_use_buffer_survives_all_but_the_last_release)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = first_of(c);
	struct zerod_gather_options options = ZEROD_INIT(options);
	struct contract_unit unit;
	zerod_ticket ticket;
	void *data = NULL;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	options.uses = 3;
	for (uint32_t i = 0; i < options.uses; i++)
		contract_others_gather(rank, &unit, NULL);
	OK(rank->client, zerod_gather_begin(unit.at[0], &options, &ticket));
	for (uint32_t left = 3; left > 0; left--) {
		OK(rank->client, zerod_wait(rank->client, ticket, NULL, &data));
		assert_int_equal(contract_buffer(c, 0, "w").uses, left);
		assert_int_equal(contract_device(c, 0).gathered_bytes, contract_padded_bytes(&unit));
		contract_expect_bytes(&unit, data, 1);
		contract_release(rank, &unit, NULL);
	}
	assert_int_equal(contract_device(c, 0).gathered_bytes, 0);
	FAILS(rank->client, zerod_wait(rank->client, ticket, NULL, &data), ZEROD_E_STALE, NULL);
	FAILS(rank->client, zerod_release(unit.at[0], NULL, 0, NULL, NULL), ZEROD_E_NOT_HELD, "'w'");
	contract_close(c);
}

/* The view is the unit's true shape, which is less than what is charged; it is kept past the release. */
CONTRACT_TEST(test_views_keep_no_storage)
{
	enum { SIZE = sizeof(struct zerod_view) };
	const struct zerod_view views[] = {{SIZE, "weight", 0, 2, 0, {30, 33}},
	                                   {SIZE, "bias", 990, 1, 0, {10}},
	                                   {SIZE, "empty", 5, 2, 0, {0, 7}}};
	struct contract *c = contract_open(&(struct contract_options){.fresh = true});
	struct contract_rank *rank = first_of(c);
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct contract_unit unit, other;
	const uint8_t *view;
	uint8_t kept[10 * sizeof(float)];
	void *data, *next;

	options.name = "layer";
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	options.nviews = 3;
	options.views = views;
	contract_unit(c, &options, &unit);
	contract_plain_unit(c, "v", NUMEL, &other);
	contract_publish_all(c, &unit);
	contract_publish_all(c, &other);
	data = contract_gather(rank, &unit, NULL);
	contract_expect_bytes(&unit, data, 1);
	view = (const uint8_t *)data + 990 * sizeof(float);
	assert_int_equal(contract_padded_bytes(&unit), 1024 * sizeof(float));
	assert_int_equal(contract_device(c, 0).gathered_bytes, contract_padded_bytes(&unit));
	assert_int_equal(contract_buffer(c, 0, "layer").padded_bytes, contract_padded_bytes(&unit));
	contract_release(rank, &unit, NULL);
	assert_int_equal(contract_device(c, 0).gathered_bytes, 0);
	assert_string_equal(contract_buffer(c, 0, "layer").state, "NOT_AVAILABLE");
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	next = contract_gather(rank, &other, NULL);
	assert_ptr_equal(next, data); /* reused, whatever view is still around */
	contract_read(NULL, kept, view, sizeof(kept));
	contract_expect_bytes(&other, next, 1);
	assert_int_equal(contract_device(c, 0).peak_gathered_bytes, contract_padded_bytes(&unit));
	contract_release(rank, &other, NULL);
	contract_close(c);
}

CONTRACT_TEST(test_release_of_what_is_not_held_changes_nothing)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = first_of(c);
	struct contract_unit unit;
	struct contract_device before, after;
	void *data;

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	FAILS(rank->client, zerod_release(unit.at[0], NULL, 0, NULL, NULL), ZEROD_E_NOT_HELD,
	      "rank 0 does not hold unit 'w' under tag 'default'");
	data = contract_gather(rank, &unit, "plan");
	before = contract_device(c, 0);
	FAILS(rank->client, zerod_release(unit.at[0], NULL, 0, NULL, NULL), ZEROD_E_NOT_HELD, "'default'");
	FAILS(rank->client, zerod_release(unit.at[0], NULL, 0, TAGGED("fallback"), NULL), ZEROD_E_NOT_HELD,
	      "'fallback'");
	/* Another rank's lease is another lease. */
	FAILS(c->ranks[1].client, zerod_release(unit.at[1], NULL, 0, TAGGED("plan"), NULL), ZEROD_E_NOT_HELD,
	      "rank 1");
	after = contract_device(c, 0);
	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(contract_buffer(c, 0, "w").uses, 1);
	contract_expect_bytes(&unit, data, 1);
	contract_release(rank, &unit, "plan");
	AWAIT(contract_device(c, 0).quarantine_bytes == 0);
	before = contract_device(c, 0);
	FAILS(rank->client, zerod_release(unit.at[0], NULL, 0, TAGGED("plan"), NULL), ZEROD_E_NOT_HELD,
	      "'plan'");
	after = contract_device(c, 0);
	assert_memory_equal(&before, &after, sizeof(before));
	contract_close(c);
}

/* ---- Persistent units ---------------------------------------------------------------------------------- */

CONTRACT_TEST(test_persistent_unit_keeps_its_buffer)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = first_of(c);
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct contract_unit unit;
	void *data;

	options.name = "norm";
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	options.flags = ZEROD_UNIT_PERSISTENT;
	contract_unit(c, &options, &unit);
	contract_publish_all(c, &unit);
	data = contract_gather(rank, &unit, NULL);
	for (unsigned step = 0; step < 10; step++) {
		contract_release(rank, &unit, NULL);
		assert_int_equal(contract_device(c, 0).gathered_bytes, contract_padded_bytes(&unit));
		AWAIT(is_available(c, "norm"));
		assert_int_equal(contract_buffer(c, 0, "norm").holders, 0);
		assert_ptr_equal(contract_gather(rank, &unit, NULL), data);
		contract_expect_bytes(&unit, data, 1);
	}
	assert_int_equal(contract_device(c, 0).transfers, 1);
	contract_release(rank, &unit, NULL);
	contract_close(c);
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

CONTRACT_TEST(test_slot_has_one_address)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = first_of(c);
	struct contract_unit small, large, filler;
	void *address;

	contract_slot_unit(c, "small", NUMEL, 1, &small);
	contract_slot_unit(c, "large", LARGE_NUMEL, 1, &large);
	contract_plain_unit(c, "filler", NUMEL, &filler);
	contract_publish_all(c, &filler);
	address = contract_gather(rank, &small, NULL);
	contract_release(rank, &small, NULL);
	for (unsigned step = 0; step < 10; step++) {
		struct contract_unit *unit = step % 2 ? &small : &large;

		(void)contract_gather(rank, &filler, NULL); /* takes what would be next in the pool */
		assert_ptr_equal(contract_gather(rank, unit, NULL), address);
		contract_expect_bytes(unit, address, 1);
		contract_release(rank, unit, NULL);
		contract_release(rank, &filler, NULL);
	}
	contract_close(c);
}

CONTRACT_TEST(test_slot_conflict_is_an_error)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = first_of(c);
	struct contract_unit small, large;
	void *data;

	contract_slot_unit(c, "small", NUMEL, 1, &small);
	contract_slot_unit(c, "large", LARGE_NUMEL, 1, &large);
	data = contract_gather(rank, &small, NULL);
	FAILS(rank->client, zerod_gather(large.at[0], NULL, NULL, NULL), ZEROD_E_SLOT_CONFLICT, "'small'");
	contract_expect_bytes(&small, data, 1);
	contract_release(rank, &small, NULL);
	contract_expect_version(rank, &large, 1);
	contract_close(c);
}

#define AHEAD_UNITS 8

/* A whole forward over two slots is enqueued while the stream stands still: no call waits for it, and every
 * unit is read as it was gathered. */
CONTRACT_TEST(test_forward_runs_ahead_of_its_stream)
{
	struct contract *c;
	struct contract_rank *rank;
	zerod_stream *stream;
	struct contract_unit units[AHEAD_UNITS];
	struct contract_gate *gate;
	uint8_t *seen[AHEAD_UNITS];
	void *data[AHEAD_UNITS];

	contract_needs(CONTRACT_ONE_SIDED);
	c = contract_open(NULL);
	rank = first_of(c);
	stream = contract_stream(rank);
	for (unsigned i = 0; i < AHEAD_UNITS; i++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "h.%u", i);
		contract_slot_unit(c, name, NUMEL + i, 1 + i % 2, &units[i]);
		seen[i] = zd_calloc(1, contract_padded_bytes(&units[i]));
	}
	gate = contract_block(rank, stream);
	for (unsigned i = 0; i < AHEAD_UNITS; i++) {
		OK(rank->client, zerod_gather(units[i].at[0], NULL, stream, &data[i]));
		contract_read(stream, seen[i], data[i], contract_padded_bytes(&units[i]));
		OK(rank->client, zerod_release(units[i].at[0], &stream, 1, NULL, NULL));
		if (i >= 2)
			assert_ptr_equal(data[i], data[i - 2]);
	}
	contract_unblock(gate);
	contract_sync(rank, stream);
	for (unsigned i = 0; i < AHEAD_UNITS; i++) {
		CHECK_BYTES(contract_bytes_are(&units[i], seen[i], 1));
		free(seen[i]);
	}
	contract_close(c);
}
