/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pr8080.c - a reduction reads a bucket when all of its producers have finished, and not before.
 *
 * Upstream, gradients of one bucket were copied into it by several streams, and the reduction waited for one
 * of them. Here an entry is submitted with every stream that wrote it, and its slot is filled again only when
 * it has been reduced.
 */
#include "contract_reduce.h"

#define NUMEL     1000u
#define PRODUCERS 4u

/* ---- Producers ----------------------------------------------------------------------------------------- */

struct producers {
	struct contract_rank *rank;
	zerod_bucket *bucket;
	zerod_stream *streams[PRODUCERS];
	struct contract_gate *gates[PRODUCERS]; /* of rank 0 */
};

static void open_producers(struct contract_rank *rank, uint64_t slot_bytes, struct producers *p)
{
	*p = (struct producers){.rank = rank, .bucket = contract_bucket(rank, slot_bytes, 2)};
	for (uint32_t i = 0; i < PRODUCERS; i++)
		p->streams[i] = contract_stream(rank);
}

/* The streams write a part each, and nothing else orders them; all of rank 0's are held up. */
static void reduce_by_streams(struct producers *p, const struct contract_unit *unit)
{
	struct contract_rank *rank = p->rank;
	uint64_t part = unit->numel / PRODUCERS;
	struct zerod_entry entry = ZEROD_INIT(entry);

	OK(rank->client, zerod_bucket_reserve(p->bucket, unit->at[rank->number], NULL, &entry));
	for (uint32_t i = 0; i < PRODUCERS; i++) {
		if (rank->number == 0)
			p->gates[i] = contract_block(rank, p->streams[i]);
		contract_write_gradient(rank, p->streams[i], &entry, i * part, part, 1);
	}
	OK(rank->client, zerod_bucket_submit(p->bucket, entry.id, p->streams, PRODUCERS, NULL, NULL));
}

/* Another unit, by all of the rank's streams but the slow one. */
static void reduce_without(struct producers *p, const struct contract_unit *unit, uint32_t slow)
{
	struct contract_rank *rank = p->rank;
	zerod_stream *streams[PRODUCERS - 1];
	struct zerod_entry entry = ZEROD_INIT(entry);

	for (uint32_t i = 0; i < PRODUCERS - 1; i++)
		streams[i] = p->streams[i < slow ? i : i + 1];
	OK(rank->client, zerod_bucket_reserve(p->bucket, unit->at[rank->number], NULL, &entry));
	contract_write_gradient(rank, streams[0], &entry, 0, unit->numel, 1);
	OK(rank->client, zerod_bucket_submit(p->bucket, entry.id, streams, PRODUCERS - 1, NULL, NULL));
}

static void end_backward(struct contract_rank *rank, void *arg)
{
	(void)arg;
	contract_backward_end(rank);
}

/* Whichever producer is the slow one, the sum waits for it: also when the daemon has seen the end of all
 * others, which the second unit's sum shows, where it may overtake the first one. */
static void reduce_with_slow_producers(uint64_t slot_bytes)
{
	struct contract *c = contract_open(NULL);
	struct contract_unit unit, witness;
	struct contract_sum sums[] = {{&unit, CONTRACT_ALL(c), 1}, {&witness, CONTRACT_ALL(c), 1}};
	struct producers producers[2];

	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_plain_unit(c, "witness", NUMEL, &witness);
	for (uint32_t i = 0; i < 2; i++)
		open_producers(&c->ranks[i], slot_bytes, &producers[i]);
	for (uint32_t slow = 0; slow < PRODUCERS; slow++) {
		struct contract_task *ends[2];

		contract_backward_all(c, 3, true);
		for (uint32_t i = 0; i < 2; i++) {
			reduce_by_streams(&producers[i], &unit);
			reduce_without(&producers[i], &witness, slow);
			ends[i] = contract_start(&c->ranks[i], end_backward, NULL);
		}
		AWAIT(contract_somebody_waits(c, "2 reductions, first unit 'w' (rank 0)"));
		for (uint32_t i = 0; i < PRODUCERS; i++)
			if (i != slow)
				contract_unblock(producers[0].gates[i]);
		if (!contract_gathers_together())
			AWAIT(contract_somebody_waits(c, "1 reduction, first unit 'w' (rank 0)"));
		contract_unblock(producers[0].gates[slow]);
		for (uint32_t i = 0; i < 2; i++)
			contract_finish(ends[i]);
		contract_expect_step(c, sums, 2);
	}
	contract_close(c);
}

CONTRACT_TEST(test_sum_waits_for_every_producer)
{
	reduce_with_slow_producers(65536);
}

/* Larger than a slot: a buffer of its own, and the same tracking. */
CONTRACT_TEST(test_oversize_entry_waits_for_every_producer)
{
	reduce_with_slow_producers(256);
}

CONTRACT_TEST(test_producers_of_another_session_are_refused)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	zerod_bucket *buckets[2];
	zerod_stream *foreign = contract_stream(&c->ranks[1]);
	struct contract_unit unit;
	struct contract_sum sum = {&unit, CONTRACT_ALL(c), 1};
	struct zerod_entry entry = ZEROD_INIT(entry);

	contract_plain_unit(c, "w", NUMEL, &unit);
	for (uint32_t i = 0; i < 2; i++)
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
	contract_backward_all(c, 3, true);
	OK(rank->client, zerod_bucket_reserve(buckets[0], unit.at[0], NULL, &entry));
	contract_write_gradient(rank, NULL, &entry, 0, NUMEL, 1);
	FAILS(rank->client, zerod_bucket_submit(buckets[0], entry.id, &foreign, 1, NULL, NULL),
	      ZEROD_E_INVALID, "another client");
	FAILS(rank->client, zerod_bucket_submit(buckets[0], entry.id + 1000, NULL, 0, NULL, NULL),
	      ZEROD_E_NOT_FOUND, "no entry");
	OK(rank->client, zerod_bucket_submit(buckets[0], entry.id, NULL, 0, NULL, NULL));
	/* Twice: an error that changes nothing. What it says depends on how far the reduction has come. */
	CHECK(zerod_bucket_submit(buckets[0], entry.id, NULL, 0, NULL, NULL) == ZEROD_E_STATE);
	contract_reduce(&c->ranks[1], buckets[1], &unit, 1, NULL);
	contract_backward_end_all(c);
	contract_expect_step(c, &sum, 1);
	contract_close(c);
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

struct reservation {
	zerod_bucket *bucket;
	const struct contract_unit *unit;
	struct zerod_entry entry;
};

static void reserve_in_thread(struct contract_rank *rank, void *arg)
{
	struct reservation *r = arg;

	OK(rank->client, zerod_bucket_reserve(r->bucket, r->unit->at[rank->number], NULL, SIZED(&r->entry)));
}

static void commit_entry(struct contract_rank *rank, zerod_bucket *bucket, const struct zerod_entry *entry,
                         float factor)
{
	contract_write_gradient(rank, NULL, entry, 0, NUMEL, factor);
	OK(rank->client, zerod_bucket_submit(bucket, entry->id, NULL, 0, NULL, NULL));
}

/* Two slots of one entry each. The first is submitted and waits for rank 1; the second is filled meanwhile
 * without waiting; the third wants the first's place, and gets it when that has been reduced, not before. */
CONTRACT_TEST(test_next_writer_waits_for_its_slot_and_nothing_else)
{
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0], *other = &c->ranks[1];
	struct contract_unit units[3];
	struct contract_sum sums[] = {{&units[0], CONTRACT_ALL(c), 1},
	                              {&units[1], CONTRACT_ALL(c), 2},
	                              {&units[2], CONTRACT_ALL(c), 3}};
	zerod_bucket *buckets[2];
	struct reservation third;
	struct zerod_entry first = ZEROD_INIT(first), second = ZEROD_INIT(second);
	struct contract_task *task;

	contract_plain_unit(c, "a", NUMEL, &units[0]);
	contract_plain_unit(c, "b", NUMEL, &units[1]);
	contract_plain_unit(c, "c", NUMEL, &units[2]);
	for (uint32_t i = 0; i < 2; i++)
		buckets[i] = contract_bucket(&c->ranks[i], contract_padded_bytes(&units[0]), 2);
	contract_backward_all(c, 3, true);
	OK(rank->client, zerod_bucket_reserve(buckets[0], units[0].at[0], NULL, &first));
	commit_entry(rank, buckets[0], &first, 1);
	OK(rank->client, zerod_bucket_reserve(buckets[0], units[1].at[0], NULL, &second));
	assert_ptr_not_equal(second.data, first.data);
	third = (struct reservation){buckets[0], &units[2], {0}};
	task = contract_start(rank, reserve_in_thread, &third);
	AWAIT(contract_somebody_waits(c, "a slot of the bucket: unit 'a' waits for rank 1"));
	commit_entry(rank, buckets[0], &second, 2); /* the other slot is nobody's business but its own */
	contract_reduce(other, buckets[1], &units[0], 1, NULL);
	contract_finish(task);
	assert_ptr_equal(third.entry.data, first.data);
	commit_entry(rank, buckets[0], &third.entry, 3);
	contract_reduce(other, buckets[1], &units[1], 2, NULL);
	contract_reduce(other, buckets[1], &units[2], 3, NULL);
	contract_backward_end_all(c);
	contract_expect_step(c, sums, 3);
	contract_close(c);
}

#define MANY 12u

struct many {
	struct contract_unit units[MANY];
	zerod_bucket *buckets[2];
};

static void reduce_many(struct contract_rank *rank, void *arg)
{
	struct many *many = arg;
	zerod_stream *stream = contract_stream(rank);

	contract_backward(rank, 3, true);
	for (uint32_t i = 0; i < MANY; i++) {
		const struct contract_unit *unit = &many->units[i];
		struct zerod_entry entry = ZEROD_INIT(entry);

		OK(rank->client,
		   zerod_bucket_reserve(many->buckets[rank->number], unit->at[rank->number], NULL, &entry));
		contract_write_gradient(rank, stream, &entry, 0, unit->numel, (float)(i + 1));
		OK(rank->client,
		   zerod_bucket_submit(many->buckets[rank->number], entry.id, &stream, 1, NULL, NULL));
	}
	contract_backward_end(rank);
}

/* Both ranks run through two slots as fast as they can: who writes too early is seen in a sum. */
CONTRACT_TEST(test_slots_in_quick_succession)
{
	struct contract *c = contract_open(NULL);
	struct contract_sum sums[MANY];
	struct many many;

	for (uint32_t i = 0; i < MANY; i++) {
		char name[8] = {'u', (char)('a' + i)};

		contract_plain_unit(c, name, 20000 + i, &many.units[i]);
		sums[i] = (struct contract_sum){&many.units[i], CONTRACT_ALL(c), (float)(i + 1)};
	}
	for (uint32_t i = 0; i < 2; i++)
		many.buckets[i] = contract_bucket(&c->ranks[i], contract_padded_bytes(&many.units[0]), 2);
	for (uint32_t round = 0; round < 3; round++) {
		contract_run(c, reduce_many, &many);
		contract_expect_step(c, sums, MANY);
	}
	contract_close(c);
}

/* The place was full of a large gradient; what the small one does not write must not reach its norm or its
 * padding. */
CONTRACT_TEST(test_padding_is_zero_in_a_used_slot)
{
	struct contract *c = contract_open(NULL);
	struct contract_unit large, small;
	struct contract_sum sums[] = {{&large, CONTRACT_ALL(c), 5}, {&small, CONTRACT_ALL(c), 1}};

	contract_plain_unit(c, "large", 4096, &large);
	contract_plain_unit(c, "small", 131, &small); /* the second shard has 3 elements of 128 */
	contract_backward_all(c, 3, true);
	for (uint32_t i = 0; i < 2; i++) {
		zerod_bucket *bucket = contract_bucket(&c->ranks[i], contract_padded_bytes(&large), 1);

		contract_reduce(&c->ranks[i], bucket, &large, 5, NULL);
		if (i == 1)
			contract_reduce(&c->ranks[1], bucket, &small, 1, NULL);
		else
			OK(c->ranks[0].client, zerod_reduce_skip(small.at[0], NULL, NULL));
	}
	sums[1].contributors = 1u << 1;
	contract_backward_end_all(c);
	contract_expect_step(c, sums, 2);
	contract_close(c);
}

/* ---- Order --------------------------------------------------------------------------------------------- */

struct crossing {
	zerod_bucket *bucket;
	zerod_unit *unit;
	int status;
};

static void cross(struct contract_rank *rank, void *arg)
{
	struct crossing *crossing = arg;
	struct zerod_entry entry = ZEROD_INIT(entry);

	crossing->status = zerod_bucket_reserve(crossing->bucket, crossing->unit, NULL, &entry);
	if (crossing->status == ZEROD_E_CAPACITY)
		FAILS(rank->client, crossing->status, ZEROD_E_CAPACITY,
		      "rank 1 wants room for 'a' and holds 'b'");
}

CONTRACT_TEST(test_orders_beyond_capacity_are_named)
{
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(NULL);
	struct contract_unit units[2];
	struct crossing crossings[2];
	struct contract_task *task;

	contract_plain_unit(c, "a", NUMEL, &units[0]);
	contract_plain_unit(c, "b", NUMEL, &units[1]);
	contract_backward_all(c, 3, true);
	for (uint32_t i = 0; i < 2; i++) {
		zerod_bucket *bucket = contract_bucket(&c->ranks[i], contract_padded_bytes(&units[0]), 1);

		contract_reduce(&c->ranks[i], bucket, &units[i], 1, NULL);
		crossings[i] = (struct crossing){bucket, units[1 - i].at[i], 0};
	}
	task = contract_start(&c->ranks[0], cross, &crossings[0]);
	AWAIT(contract_somebody_waits(c, "a slot of the bucket"));
	cross(&c->ranks[1], &crossings[1]);
	contract_finish(task);
	assert_int_equal(crossings[0].status, ZEROD_E_CAPACITY);
	assert_int_equal(crossings[1].status, ZEROD_E_CAPACITY);
	contract_close(c);
}

CONTRACT_TEST(test_entry_twice_in_a_backward_is_a_duplicate)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct contract_unit unit;
	struct contract_sum sum = {&unit, CONTRACT_ALL(c), 1};
	zerod_bucket *buckets[2];
	struct zerod_entry entry = ZEROD_INIT(entry);

	contract_plain_unit(c, "w", NUMEL, &unit);
	for (uint32_t i = 0; i < 2; i++)
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
	contract_backward_all(c, 3, true);
	contract_reduce(rank, buckets[0], &unit, 1, NULL);
	FAILS(rank->client, zerod_bucket_reserve(buckets[0], unit.at[0], NULL, &entry), ZEROD_E_DUPLICATE,
	      "rank 0 reduces unit 'w' a second time");
	contract_reduce(&c->ranks[1], buckets[1], &unit, 1, NULL);
	FAILS(rank->client, zerod_reduce_skip(unit.at[0], NULL, NULL), ZEROD_E_DUPLICATE, "'w'");
	FAILS(rank->client, zerod_bucket_reserve(buckets[0], unit.at[0], NULL, &entry), ZEROD_E_DUPLICATE,
	      "'w'");
	contract_backward_end_all(c);
	contract_expect_step(c, &sum, 1);
	contract_close(c);
}
