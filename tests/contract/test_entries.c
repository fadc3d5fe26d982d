/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_entries.c - gradients that are handed over without blocking: streams that wait for room, tickets and
 * detached requests, gradients in memory of the caller's, and what the daemon zeroes.
 */
#include "contract_reduce.h"

#define NUMEL 1000u
#define UNITS 6u

/* The stream stands still, and every unit's gradient goes through the same slot all the same. */
CONTRACT_TEST(test_a_stream_waits_for_the_slot)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(&(struct contract_options){.world_size = 1, .devices = 1});
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_reserve_options options = ZEROD_INIT(options);
	struct contract_unit units[UNITS];
	struct contract_sum sums[UNITS];
	zerod_ticket tickets[UNITS];
	struct contract_gate *gate;
	zerod_bucket *bucket;

	options.stream = contract_stream(rank);
	for (uint32_t i = 0; i < UNITS; i++) {
		char name[] = {(char)('a' + (char)i), '\0'};

		contract_plain_unit(c, name, NUMEL, &units[i]);
		sums[i] = (struct contract_sum){&units[i], CONTRACT_ALL(c), (float)(i + 1)};
	}
	bucket = contract_bucket(rank, contract_padded_bytes(&units[0]), 1);
	contract_backward_all(c, 3, true);
	gate = contract_block(rank, options.stream);
	for (uint32_t i = 0; i < UNITS; i++) {
		struct zerod_entry entry = ZEROD_INIT(entry);

		OK(rank->client, zerod_bucket_reserve(bucket, units[i].at[0], &options, &entry));
		contract_write_gradient(rank, options.stream, &entry, 0, NUMEL, (float)(i + 1));
		OK(rank->client,
		   zerod_bucket_submit(bucket, entry.id, &options.stream, 1, NULL, &tickets[i]));
	}
	contract_unblock(gate);
	for (uint32_t i = 0; i < UNITS; i++)
		OK(rank->client, zerod_wait(rank->client, tickets[i], NULL, NULL));
	contract_backward_end_all(c);
	contract_expect_step(c, sums, UNITS);
	contract_close(c);
}

/* Room that did not come in time is neither held nor lost: the rank reserves the unit later, or skips it. */
CONTRACT_TEST(test_a_deadline_in_a_reservation)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_reserve_options brief = ZEROD_INIT(brief);
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct contract_unit units[3];
	const struct contract_sum sums[] = {{&units[0], 3, 1}, {&units[1], 3, 1}, {&units[2], 2, 1}};
	zerod_bucket *buckets[2];
	struct contract_gate *gate;
	zerod_stream *stream;

	contract_plain_unit(c, "a", NUMEL, &units[0]);
	contract_plain_unit(c, "b", NUMEL, &units[1]);
	contract_plain_unit(c, "c", NUMEL, &units[2]);
	buckets[0] = contract_bucket(rank, contract_padded_bytes(&units[0]), 1);
	buckets[1] = contract_bucket(&c->ranks[1], contract_padded_bytes(&units[0]), 3);
	contract_backward_all(c, 3, true);
	stream = contract_stream(rank);
	gate = contract_block(rank, stream);
	OK(rank->client, zerod_bucket_reserve(buckets[0], units[0].at[0], NULL, &entry));
	contract_write_gradient(rank, stream, &entry, 0, NUMEL, 1);
	OK(rank->client, zerod_bucket_submit(buckets[0], entry.id, &stream, 1, NULL, NULL));
	brief.deadline_ms = 10;
	for (uint32_t i = 1; i < 3; i++) {
		entry.id = 7;
		FAILS(rank->client, zerod_bucket_reserve(buckets[0], units[i].at[0], &brief, &entry),
		      ZEROD_E_DEADLINE, "unit 'a'");
		CHECK(entry.id == 7);
	}
	contract_unblock(gate);
	for (uint32_t i = 0; i < 3; i++)
		contract_reduce(&c->ranks[1], buckets[1], &units[i], 1, NULL);
	contract_reduce(rank, buckets[0], &units[1], 1, NULL);
	OK(rank->client, zerod_reduce_skip(units[2].at[0], NULL, NULL));
	contract_backward_end_all(c);
	contract_expect_step(c, sums, 3);
	contract_close(c);
}

/* The caller's own memory, as the stream reaches it: an entry of another unit's, which is not submitted. */
CONTRACT_TEST(test_reduce_from_memory)
{
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(NULL);
	struct zerod_reduce_options detached = ZEROD_INIT(detached);
	struct contract_unit unit, source;
	struct contract_sum sums[] = {{&unit, CONTRACT_ALL(c), 3}, {&source, CONTRACT_ALL(c), 3}};
	zerod_bucket *buckets[2];

	detached.flags = ZEROD_REDUCE_DETACHED;
	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_plain_unit(c, "source", NUMEL, &source);
	for (uint32_t i = 0; i < 2; i++)
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
	contract_backward_all(c, 3, true);
	for (uint32_t i = 0; i < 2; i++) {
		struct contract_rank *rank = &c->ranks[i];
		struct zerod_entry from = ZEROD_INIT(from);
		zerod_stream *stream = contract_stream(rank);
		zerod_unit *w = unit.at[i];
		const void *data;

		OK(rank->client, zerod_bucket_reserve(buckets[i], source.at[i], NULL, &from));
		data = from.data;
		contract_write_gradient(rank, stream, &from, 0, NUMEL, 3);
		FAILS(rank->client, zerod_reduce(buckets[i], w, NULL, stream, NULL, NULL), ZEROD_E_INVALID,
		      "'w': data is NULL");
		FAILS(rank->client, zerod_reduce(buckets[i], w, (const char *)data + 1, stream, NULL, NULL),
		      ZEROD_E_INVALID, "not aligned");
		FAILS(rank->client, zerod_reduce(buckets[i], w, data, NULL, NULL, NULL), ZEROD_E_INVALID,
		      "stream is NULL");
		OK(rank->client, zerod_reduce(buckets[i], w, data, stream, &detached, NULL));
		OK(rank->client, zerod_bucket_submit(buckets[i], from.id, &stream, 1, NULL, NULL));
	}
	contract_backward_end_all(c);
	contract_expect_step(c, sums, 2);
	contract_close(c);
}

/* A detached submit that is refused: the next call says so, with the unit's name. */
CONTRACT_TEST(test_a_detached_commit_is_refused)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = 1, .devices = 1});
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_reduce_options options = ZEROD_INIT(options);
	struct zerod_skip_options skip = ZEROD_INIT(skip);
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct contract_unit unit;
	const uint32_t absent[] = {7};
	zerod_ticket ticket;

	contract_plain_unit(c, "w", NUMEL, &unit);
	zerod_bucket *bucket = contract_bucket(rank, 65536, 2);
	contract_backward_all(c, 3, true);
	OK(rank->client, zerod_bucket_reserve(bucket, unit.at[0], NULL, &entry));
	contract_write_gradient(rank, NULL, &entry, 0, NUMEL, 1);
	options.absent = absent;
	options.nabsent = 1;
	FAILS(rank->client, zerod_bucket_submit(bucket, entry.id, NULL, 0, &options, NULL), ZEROD_E_INVALID,
	      "absent[0] is view 7; unit 'w' has 0");
	options.flags = ZEROD_REDUCE_DETACHED; /* which is why the backward cannot end */
	OK(rank->client, zerod_bucket_submit(bucket, entry.id, NULL, 0, &options, NULL));
	FAILS(rank->client, zerod_backward_end(rank->group, NULL, NULL), ZEROD_E_INVALID,
	      "of unit 'w' failed: absent[0] is view 7; unit 'w' has 0");
	OK(rank->client, zerod_bucket_submit(bucket, entry.id, NULL, 0, NULL, NULL));
	OK(rank->client, zerod_reduce_skip(unit.at[0], NULL, &ticket));
	FAILS(rank->client, zerod_wait(rank->client, ticket, NULL, NULL), ZEROD_E_DUPLICATE, "'w'");
	skip.flags = ZEROD_SKIP_DETACHED;
	OK(rank->client, zerod_reduce_skip(unit.at[0], &skip, NULL));
	OK(rank->client, zerod_backward_end(rank->group, NULL, NULL)); /* it ends all the same */
	FAILS(rank->client, zerod_backward_begin(rank->group, NULL), ZEROD_E_DUPLICATE, "'w'");
	contract_close(c);
}

/* A unit that all ranks skip, and nothing else, leaves zeros and a step that succeeds. */
CONTRACT_TEST(test_a_unit_that_was_only_skipped)
{
	struct contract *c = contract_open(NULL);
	struct contract_unit unit;
	struct contract_sum sum = {&unit, 0, 1};

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_backward_all(c, 3, true);
	for (uint32_t i = 0; i < 2; i++)
		OK(c->ranks[i].client, zerod_reduce_skip(unit.at[i], NULL, NULL));
	contract_backward_end_all(c);
	contract_expect_step(c, &sum, 1);
	contract_close(c);
}

/* ---- Several gradients of one unit --------------------------------------------------------------------- */

static struct zerod_entry reserve_more(struct contract_rank *rank, zerod_bucket *bucket, zerod_unit *unit)
{
	struct zerod_reserve_options options = ZEROD_INIT(options);
	struct zerod_entry entry = ZEROD_INIT(entry);

	options.flags = ZEROD_RESERVE_ACCUMULATE;
	OK(rank->client, zerod_bucket_reserve(bucket, unit, &options, &entry));
	return entry;
}

/* Half of the elements, which the rank's other gradient of the unit leaves alone: the sum is both. */
static void give_half(struct contract_rank *rank, zerod_bucket *bucket, zerod_unit *unit, bool second,
                      zerod_stream *stream, zerod_ticket *ticket)
{
	struct zerod_entry entry = reserve_more(rank, bucket, unit);
	struct zerod_entry half = entry;

	CHECK(entry.accumulates == second);
	half.data = (float *)entry.data + (second ? NUMEL / 2 : 0);
	float *values = calloc(NUMEL / 2, sizeof(*values));

	for (uint32_t i = 0; i < NUMEL / 2; i++)
		values[i] = contract_gradient(rank->number, i + (second ? NUMEL / 2 : 0)) * 2;
	contract_write(stream, half.data, values, NUMEL / 2 * sizeof(*values));
	OK(rank->client, zerod_bucket_submit(bucket, entry.id, &stream, stream != NULL, NULL, ticket));
	free(values);
}

/* One rank gives two gradients of a unit, the other one, or none. */
CONTRACT_TEST(test_ranks_accumulate)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(NULL);
	struct contract_unit tied, skipped;
	const struct contract_sum sums[] = {{&tied, CONTRACT_ALL(c), 2}, {&skipped, 1, 2}};
	zerod_bucket *buckets[2];
	zerod_ticket tickets[2];

	contract_plain_unit(c, "tied", NUMEL, &tied);
	contract_plain_unit(c, "skipped", NUMEL, &skipped);
	for (uint32_t i = 0; i < 2; i++)
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
	contract_backward_all(c, 3, true);
	for (uint32_t i = 0; i < 2; i++) {
		give_half(&c->ranks[0], buckets[0], tied.at[0], i == 1, contract_stream(&c->ranks[0]),
		          &tickets[i]);
		give_half(&c->ranks[0], buckets[0], skipped.at[0], i == 1, NULL, NULL);
	}
	OK(c->ranks[0].client, zerod_wait_many(c->ranks[0].client, tickets, 2, NULL, NULL));
	contract_reduce(&c->ranks[1], buckets[1], &tied, 2, NULL);
	OK(c->ranks[1].client, zerod_reduce_skip(skipped.at[1], NULL, NULL));
	contract_backward_end_all(c);
	contract_expect_step(c, sums, 2);
	contract_close(c);
}

/* Every stream that wrote the entry is awaited, not only those of the last commit. */
CONTRACT_TEST(test_all_producers_are_awaited)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = 1, .devices = 1});
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_backward_end_options end = ZEROD_INIT(end);
	zerod_stream *stream = contract_stream(rank);
	struct contract_gate *gate;
	struct contract_unit unit;
	const struct contract_sum sum = {&unit, 1, 2};

	end.deadline_ms = 20;
	contract_plain_unit(c, "tied", NUMEL, &unit);
	zerod_bucket *bucket = contract_bucket(rank, 65536, 2);
	contract_backward_all(c, 3, true);
	gate = contract_block(rank, stream);
	give_half(rank, bucket, unit.at[0], false, stream, NULL);
	give_half(rank, bucket, unit.at[0], true, contract_stream(rank), NULL);
	FAILS(rank->client, zerod_backward_end(rank->group, &end, NULL), ZEROD_E_DEADLINE, NULL);
	contract_unblock(gate);
	contract_backward_end_all(c);
	contract_expect_step(c, &sum, 1);
	contract_close(c);
}

/* Gradients that cannot be accumulated into the same sum are rejected. */
CONTRACT_TEST(test_what_does_not_accumulate)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = 1, .devices = 1});
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_reserve_options more = ZEROD_INIT(more);
	struct zerod_reduce_options options = ZEROD_INIT(options);
	struct zerod_entry entry, again = ZEROD_INIT(again);
	struct contract_unit unit, once;
	const uint32_t absent = 0;

	more.flags = ZEROD_RESERVE_ACCUMULATE;
	contract_plain_unit(c, "tied", NUMEL, &unit);
	contract_plain_unit(c, "once", NUMEL, &once);
	zerod_bucket *bucket = contract_bucket(rank, 65536, 2);
	contract_backward_all(c, 3, true);
	contract_reduce(rank, bucket, &once, 1, NULL);
	FAILS(rank->client, zerod_bucket_reserve(bucket, once.at[0], &more, &again), ZEROD_E_DUPLICATE,
	      "'once'");
	entry = reserve_more(rank, bucket, unit.at[0]);
	FAILS(rank->client, zerod_bucket_reserve(bucket, unit.at[0], &more, &again), ZEROD_E_STATE, "'tied'");
	options.nabsent = 1;
	options.absent = &absent;
	FAILS(rank->client, zerod_bucket_submit(bucket, entry.id, NULL, 0, &options, NULL), ZEROD_E_INVALID,
	      "absent");
	FAILS(rank->client, zerod_backward_end(rank->group, NULL, NULL), ZEROD_E_STATE, "'tied'");
	OK(rank->client, zerod_bucket_submit(bucket, entry.id, NULL, 0, NULL, NULL));
	FAILS(rank->client, zerod_bucket_submit(bucket, entry.id, NULL, 0, NULL, NULL), ZEROD_E_STATE,
	      "submitted already");
	FAILS(rank->client, zerod_bucket_reserve(bucket, unit.at[0], NULL, &again), ZEROD_E_DUPLICATE,
	      "'tied'");
	FAILS(rank->client, zerod_reduce_skip(unit.at[0], NULL, NULL), ZEROD_E_DUPLICATE, "'tied'");
	again = reserve_more(rank, bucket, unit.at[0]);
	CHECK(again.id == entry.id && again.data == entry.data && again.accumulates);
	options.nabsent = 0;
	options.prescale = 2;
	FAILS(rank->client, zerod_bucket_submit(bucket, entry.id, NULL, 0, &options, NULL), ZEROD_E_MISMATCH,
	      "'tied'");
	OK(rank->client, zerod_bucket_submit(bucket, entry.id, NULL, 0, NULL, NULL));
	contract_backward_end_all(c);
	contract_close(c);
}

/* The group fails: the end of the backward gives the entry back all the same. */
CONTRACT_TEST(test_a_failed_group_gets_it_back)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct contract_unit unit, other;

	contract_plain_unit(c, "tied", NUMEL, &unit);
	contract_plain_unit(c, "other", NUMEL, &other);
	zerod_bucket *bucket = contract_bucket(rank, 65536, 2);
	contract_backward_all(c, 3, true);
	give_half(rank, bucket, unit.at[0], false, NULL, NULL);
	contract_leave(&c->ranks[1]);
	AWAIT(zerod_reduce_skip(other.at[0], NULL, NULL) == ZEROD_E_PEER_LOST);
	FAILS(rank->client, zerod_backward_end(rank->group, NULL, NULL), ZEROD_E_PEER_LOST, NULL);
	FAILS(rank->client, zerod_reduce_skip(other.at[0], NULL, NULL), ZEROD_E_PEER_LOST,
	      "a detached gradient of unit 'tied'");
	contract_close(c);
}

int main(void)
{
	(void)setenv("ZEROD_RUN_AHEAD", "1",
	             1); /* streams are held here, and pageable memory is not copied to */
	return test_run(NULL, NULL);
}
