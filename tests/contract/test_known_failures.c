/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_known_failures.c - what goes wrong in sharded training beside the four pull requests.
 *
 * Ranks that do not do the same, parameters of awkward shapes, and the order in which the good and the
 * careless call.
 */
#include "contract_reduce.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/mem.h"

#define NUMEL 1000u

/* ---- Ranks that do not do the same --------------------------------------------------------------------- */

#define UNITS 6u

struct orders {
	struct contract_unit units[UNITS];
};

/* Each rank begins elsewhere and goes in its own direction; nobody waits for anybody. */
static void gather_in_own_order(struct contract_rank *rank, void *arg)
{
	struct orders *orders = arg;

	for (uint32_t i = 0; i < 3 * UNITS; i++) {
		uint32_t at = (rank->number % 2 ? 3 * UNITS - i : i) + rank->number;

		contract_expect_version(rank, &orders->units[at % UNITS], 1);
	}
}

CONTRACT_TEST(test_ranks_gather_in_different_orders)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(&(struct contract_options){.world_size = 4, .devices = 2});
	struct orders orders;

	for (uint32_t i = 0; i < UNITS; i++) {
		char name[8] = {'u', (char)('a' + i)};

		contract_plain_unit(c, name, NUMEL + i, &orders.units[i]);
		contract_publish_all(c, &orders.units[i]);
	}
	contract_run(c, gather_in_own_order, &orders);
	contract_close(c);
}

#define THREADS 4u
#define ROUNDS  50u

struct threads {
	struct contract_unit unit;
	atomic_uint started; /* a number of its own for each */
};

/* Under a tag that all of them use, and under one of its own. */
static void gather_again_and_again(struct contract_rank *rank, void *arg)
{
	struct threads *threads = arg;
	char own[16];

	(void)snprintf(own, sizeof(own), "thread %u", atomic_fetch_add(&threads->started, 1));
	for (uint32_t i = 0; i < ROUNDS; i++) {
		const char *tag = i % 2 ? own : "shared";
		const void *data = contract_gather(rank, &threads->unit, tag);

		contract_expect_bytes(&threads->unit, data, 1);
		contract_release(rank, &threads->unit, tag);
	}
}

/* The last release of one is not the last of all: whoever holds it finds its bytes, and in the end there are
 * none. */
CONTRACT_TEST(test_threads_gather_one_unit)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(&(struct contract_options){.fresh = true});
	struct contract_task *tasks[THREADS];
	struct threads threads = {0};

	contract_plain_unit(c, "w", NUMEL, &threads.unit);
	contract_publish_all(c, &threads.unit);
	for (uint32_t i = 0; i < THREADS; i++)
		tasks[i] = contract_start(&c->ranks[0], gather_again_and_again, &threads);
	for (uint32_t i = 0; i < THREADS; i++)
		contract_finish(tasks[i]);
	assert_int_equal(contract_device(c, 0).gathered_bytes, 0);
	assert_int_equal(contract_device(c, 0).peak_gathered_bytes, contract_padded_bytes(&threads.unit));
	assert_int_equal(contract_device(c, 0).transfers + contract_device(c, 0).joined, THREADS * ROUNDS);
	contract_close(c);
}

/* One rank gathers and has a gradient; the others only say that they have none, and one never touches the
 * unit at all. */
CONTRACT_TEST(test_expert_used_by_one_rank)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = 3});
	struct contract_unit expert, unused;
	struct contract_sum sums[] = {{&expert, 1u << 1, 2}, {&unused, 0, 1}};

	contract_plain_unit(c, "expert", NUMEL, &expert);
	contract_plain_unit(c, "unused", NUMEL, &unused);
	contract_publish_all(c, &expert);
	for (uint32_t step = 0; step < 2; step++) {
		contract_expect_version(&c->ranks[1], &expert, 1);
		contract_backward_all(c, 3, true);
		for (uint32_t i = 0; i < 3; i++) {
			if (i == 1)
				contract_reduce(&c->ranks[i], contract_bucket(&c->ranks[i], 65536, 2),
				                &expert, 2, NULL);
			else
				OK(c->ranks[i].client, zerod_reduce_skip(expert.at[i], NULL, NULL));
		}
		contract_backward_end_all(c);
		contract_expect_step(c, sums, 2);
	}
	contract_close(c);
}

static void end_with_mismatch(struct contract_rank *rank, void *arg)
{
	(void)arg;
	FAILS(rank->client, zerod_backward_end(rank->group, NULL, NULL), ZEROD_E_MISMATCH,
	      "rank 1 ended backward 1 without a gradient or skip for unit 'expert'");
}

/* A rank that forgets to say so is named, and nobody hangs. */
CONTRACT_TEST(test_forgotten_skip_is_named)
{
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(NULL);
	struct contract_unit expert;
	struct contract_task *task;

	contract_plain_unit(c, "expert", NUMEL, &expert);
	contract_backward_all(c, 3, true);
	contract_reduce(&c->ranks[0], contract_bucket(&c->ranks[0], 65536, 2), &expert, 1, NULL);
	task = contract_start(&c->ranks[0], end_with_mismatch, NULL);
	AWAIT(contract_somebody_waits(c, "1 reduction, first unit 'expert' (rank 1)"));
	end_with_mismatch(&c->ranks[1], NULL);
	contract_finish(task);
	contract_close(c);
}

static void end_with_peer_lost(struct contract_rank *rank, void *arg)
{
	(void)arg;
	FAILS(rank->client, zerod_backward_end(rank->group, NULL, NULL), ZEROD_E_PEER_LOST, "rank 1");
}

static void join_group_again(struct contract_rank *rank, void *arg)
{
	(void)arg;
	contract_replace(rank);
}

/* Its peers are told at once, and gather on; all that it held is gone but its shard; another may come. */
CONTRACT_TEST(test_rank_that_leaves_early)
{
	contract_needs(CONTRACT_ONE_SIDED);
	if (contract_on_host()) /* whose shards stay charged to one device */
		skip();
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct contract_unit unit;
	struct contract_task *task;
	struct zerod_shard shard = ZEROD_INIT(shard);
	uint32_t device = contract_device_of(&c->ranks[1]); /* on one GPU also rank 0's */
	uint64_t shard_bytes;

	contract_plain_unit(c, "w", NUMEL, &unit);
	shard_bytes = contract_device(c, device).shard_bytes;
	contract_publish_all(c, &unit);
	(void)contract_gather(&c->ranks[1], &unit, NULL);
	contract_backward_all(c, 3, true);
	contract_reduce(rank, contract_bucket(rank, 65536, 2), &unit, 1, NULL);
	task = contract_start(rank, end_with_peer_lost, NULL);
	AWAIT(contract_somebody_waits(c, "1 reduction, first unit 'w' (rank 1)"));
	contract_leave(&c->ranks[1]);
	contract_finish(task);
	contract_expect_version(rank, &unit, 1);
	AWAIT(contract_device(c, 1).gathered_bytes == 0);
	assert_int_equal(contract_device(c, device).shard_bytes, shard_bytes);
	assert_int_equal(contract_device(c, 1).target_bytes, 0);
	assert_int_equal(contract_device(c, 1).bucket_bytes, 0);

	task = contract_start(&c->ranks[1], join_group_again, NULL);
	contract_finish(task);
	options.name = "w";
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	OK(c->ranks[1].client, contract_register(c->ranks[1].group, &options, &unit.at[1]));
	OK(c->ranks[1].client, zerod_shard_get(unit.at[1], &shard));
	assert_int_equal(shard.version, 0); /* one behind: its first publish catches up */
	contract_publish(&c->ranks[1], &unit);
	contract_expect_version(rank, &unit, 1);
	contract_expect_version(&c->ranks[1], &unit, 1);
	contract_close(c);
}

/* ---- Shapes and dtypes --------------------------------------------------------------------------------- */

/* Ranks that own nothing of a unit take part in everything. */
CONTRACT_TEST(test_unit_smaller_than_the_world)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = 4, .devices = 2});
	struct contract_unit unit;
	struct contract_sum sum = {&unit, CONTRACT_ALL(c), 3};

	contract_plain_unit(c, "scale", 1, &unit);
	for (uint64_t version = 1; version < 4; version++) {
		contract_publish_all(c, &unit);
		for (uint32_t i = 0; i < 4; i++)
			contract_expect_version(&c->ranks[i], &unit, version);
		contract_backward_all(c, 3, true);
		for (uint32_t i = 0; i < 4; i++)
			contract_reduce(&c->ranks[i], contract_bucket(&c->ranks[i], 65536, 2), &unit, 3,
			                NULL);
		contract_backward_end_all(c);
		contract_expect_step(c, &sum, 1);
	}
	contract_close(c);
}

/* A shard's block that was full of something else: the tail behind its elements is zero, and no publish
 * writes it. */
CONTRACT_TEST(test_padding_of_a_used_block_is_zero)
{
	struct contract *c = contract_open(NULL);
	struct contract_unit large, small;

	for (uint32_t round = 0; round < 3; round++) {
		contract_plain_unit(c, "large", 128 * (round + 1ull), &large);
		contract_publish_all(c, &large);
		for (uint32_t i = 0; i < 2; i++)
			OK(c->ranks[i].client, zerod_unit_unregister(large.at[i], NULL));
		contract_plain_unit(c, "small", 65, &small); /* one element on rank 1 */
		contract_publish_all(c, &small);
		contract_expect_version(&c->ranks[0], &small, 1); /* looks at the padding */
		for (uint32_t i = 0; i < 2; i++)
			OK(c->ranks[i].client, zerod_unit_unregister(small.at[i], NULL));
	}
	contract_close(c);
}

CONTRACT_TEST(test_views_of_every_shape)
{
	enum { SIZE = sizeof(struct zerod_view) };
	const struct zerod_view views[] = {{SIZE, "scalar", 0, 0, 0, {0}},
	                                   {SIZE, "empty", 1, 1, 0, {0}},
	                                   {SIZE, "one", 1, 3, 0, {1, 1, 1}},
	                                   {SIZE, "prime", 2, 2, 0, {7, 11}},
	                                   {SIZE, "empty at the end", 79, 2, 0, {4, 0}}};
	const struct zerod_view beyond = {sizeof(struct zerod_view), "beyond", 70, 1, 0, {10}};
	struct contract *c = contract_open(NULL);
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct contract_unit unit;
	zerod_unit *refused;

	options.name = "viewed";
	options.dtype = ZEROD_BFLOAT16;
	options.numel = 79;
	options.nviews = 5;
	options.views = views;
	contract_unit(c, &options, &unit);
	contract_publish_all(c, &unit);
	contract_expect_version(&c->ranks[0], &unit, 1);
	options.name = "refused";
	options.nviews = 1;
	options.views = &beyond;
	FAILS(c->ranks[0].client, zerod_unit_register(c->ranks[0].group, &options, &refused), ZEROD_E_INVALID,
	      "view 'beyond' of 10 elements at 70 ends behind the unit's 79");
	options.nviews = 0;
	options.numel = 0;
	FAILS(c->ranks[0].client, zerod_unit_register(c->ranks[0].group, &options, &refused), ZEROD_E_INVALID,
	      "numel 0");
	contract_close(c);
}

CONTRACT_TEST(test_mixed_dtypes_in_one_step)
{
	static const enum zerod_dtype dtypes[] = {ZEROD_FLOAT32,     ZEROD_FLOAT16,     ZEROD_BFLOAT16,
	                                          ZEROD_FLOAT8_E4M3, ZEROD_FLOAT8_E5M2, ZEROD_INT8,
	                                          ZEROD_INT16,       ZEROD_INT32,       ZEROD_INT64,
	                                          ZEROD_UINT8,       ZEROD_BOOL};
	enum { DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };
	struct contract *c = contract_open(NULL);
	struct contract_unit units[DTYPES];
	void *data[DTYPES];

	for (uint32_t i = 0; i < DTYPES; i++) {
		struct zerod_unit_options options = ZEROD_INIT(options);

		options.name = zerod_dtype_name(dtypes[i]);
		options.dtype = dtypes[i];
		options.numel = 301 + i;
		contract_unit(c, &options, &units[i]);
		contract_publish_all(c, &units[i]);
	}
	for (uint32_t i = 0; i < DTYPES; i++)
		data[i] = contract_gather(&c->ranks[0], &units[i], NULL);
	for (uint32_t i = 0; i < DTYPES; i++) {
		contract_expect_bytes(&units[i], data[i], 1);
		contract_release(&c->ranks[0], &units[i], NULL);
	}
	contract_close(c);
}

/* ---- Registration -------------------------------------------------------------------------------------- */

CONTRACT_TEST(test_registration_with_another_shape_is_a_mismatch)
{
	contract_needs(CONTRACT_ONE_DAEMON);
	const struct zerod_view view = {sizeof(view), "weight", 0, 2, 0, {10, 100}},
	                        turned = {sizeof(turned), "weight", 0, 2, 0, {100, 10}};
	struct contract *c = contract_open(NULL);
	struct contract_rank *first = &c->ranks[0], *second = &c->ranks[1];
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit[2], *again;

	options.name = "w";
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	options.nviews = 1;
	options.views = &view;
	OK(first->client, zerod_unit_register(first->group, &options, &unit[0]));
	options.views = &turned;
	FAILS(second->client, zerod_unit_register(second->group, &options, &unit[1]), ZEROD_E_MISMATCH,
	      "rank 0 registered float32, 1000 elements, views weight[10,100]@0; rank 1 says float32, 1000 "
	      "elements, "
	      "views weight[100,10]@0");
	/* The others learn of it, too, and nobody hangs; where all gather together it would be the group's
	 * end. */
	if (!contract_gathers_together())
		FAILS(first->client, zerod_gather(unit[0], NULL, NULL, NULL), ZEROD_E_MISMATCH,
		      "rank 1 says");
	options.views = &view;
	options.dtype = ZEROD_BFLOAT16;
	FAILS(second->client, zerod_unit_register(second->group, &options, &unit[1]), ZEROD_E_MISMATCH,
	      "rank 1 says bfloat16");
	options.dtype = ZEROD_FLOAT32;
	OK(second->client, zerod_unit_register(second->group, &options, &unit[1]));
	/* Twice alike is harmless, differently is not. */
	OK(first->client, zerod_unit_register(first->group, &options, &again));
	options.numel = NUMEL + 1;
	FAILS(first->client, zerod_unit_register(first->group, &options, &again), ZEROD_E_MISMATCH,
	      "1001 elements");
	contract_close(c);
}

/* Two modules that share a parameter hold it apart, as two tags of one buffer; its gradient is reduced
 * once. */
CONTRACT_TEST(test_tied_parameters)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_unit_options options = ZEROD_INIT(options);
	struct contract_unit embedding;
	struct contract_sum sum = {&embedding, CONTRACT_ALL(c), 2};
	struct zerod_shard first = ZEROD_INIT(first), second = ZEROD_INIT(second);
	zerod_unit *head;
	zerod_bucket *buckets[2];
	struct zerod_entry entry = ZEROD_INIT(entry);
	void *data;

	contract_plain_unit(c, "embedding", NUMEL, &embedding);
	options.name = "embedding";
	options.dtype = ZEROD_FLOAT32;
	options.numel = NUMEL;
	OK(rank->client, contract_register(rank->group, &options, &head));
	OK(rank->client, zerod_shard_get(embedding.at[0], &first));
	OK(rank->client, zerod_shard_get(head, &second));
	assert_ptr_equal(first.data, second.data);
	contract_publish_all(c, &embedding);
	data = contract_gather(rank, &embedding, "embed");
	assert_ptr_equal(contract_gather(rank, &embedding, "head"), data);
	assert_int_equal(contract_device(c, 0).transfers, 1);
	contract_release(rank, &embedding, "embed");
	contract_expect_bytes(&embedding, data, 1);
	OK(rank->client, zerod_unit_unregister(head, NULL)); /* one of two handles */
	FAILS(rank->client, zerod_unit_unregister(embedding.at[0], NULL), ZEROD_E_BUSY, "held by 'head'");
	contract_backward_all(c, 3, true);
	for (uint32_t i = 0; i < 2; i++) {
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
		contract_reduce(&c->ranks[i], buckets[i], &embedding, 2, NULL);
	}
	FAILS(rank->client, zerod_bucket_reserve(buckets[0], embedding.at[0], NULL, &entry),
	      ZEROD_E_DUPLICATE, "'embedding'");
	contract_release(rank, &embedding, "head");
	assert_int_equal(contract_device(c, 0).gathered_bytes, 0);
	contract_backward_end_all(c);
	contract_expect_step(c, &sum, 1);
	contract_close(c);
}

/* ---- Careless calls ------------------------------------------------------------------------------------ */

/* They give their room to a gather that needs it, the oldest first, and are gone with a publish and the
 * session. */
CONTRACT_TEST(test_prefetches_never_used)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c =
	        contract_open(&(struct contract_options){.config = "[devices]\ngather_budget = 12K\n"});
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_gather_options prefetch = ZEROD_INIT(prefetch);
	struct contract_unit units[4];
	void *data;

	prefetch.flags = ZEROD_GATHER_PREFETCH;
	for (uint32_t i = 0; i < 4; i++) {
		char name[8] = {'u', (char)('a' + i)};

		contract_plain_unit(c, name, NUMEL, &units[i]); /* 4 KiB: three of them fit */
		contract_publish_all(c, &units[i]);
	}
	for (uint32_t i = 0; i < 3; i++)
		OK(rank->client, zerod_gather(units[i].at[0], &prefetch, NULL, NULL));
	assert_int_equal(contract_device(c, 0).gathered_bytes, 12288);
	data = contract_gather(rank, &units[3], NULL); /* waits for nobody */
	contract_expect_bytes(&units[3], data, 1);
	assert_string_equal(contract_buffer(c, 0, "ua").state, "NOT_AVAILABLE");
	assert_int_equal(contract_device(c, 0).gathered_bytes, 12288);
	assert_true(contract_buffer(c, 0, "ub").prefetched);
	contract_publish_all(c, &units[1]);
	assert_string_equal(contract_buffer(c, 0, "ub").state, "NOT_AVAILABLE");
	FAILS(rank->client, zerod_release(units[2].at[0], NULL, 0, NULL, NULL), ZEROD_E_NOT_HELD, "'uc'");
	/* Used after all: no second transfer. */
	contract_expect_version(rank, &units[2], 1);
	assert_int_equal(contract_device(c, 0).transfers, 4);
	contract_release(rank, &units[3], NULL);
	assert_int_equal(contract_device(c, 0).peak_gathered_bytes, 12288);
	contract_close(c);
}

/* A write into a gathered copy is visible to its holder only; the next gather returns the published bytes. */
CONTRACT_TEST(test_edit_without_publishing_is_lost)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct contract_unit unit;
	uint8_t edit[64];
	void *data;

	memset(edit, 0, sizeof(edit)); /* no pattern has a zero */
	contract_plain_unit(c, "w", NUMEL, &unit);
	contract_publish_all(c, &unit);
	data = contract_gather(rank, &unit, NULL);
	contract_write(NULL, data, edit, sizeof(edit));
	contract_expect_version(&c->ranks[1], &unit, 1);
	contract_release(rank, &unit, NULL);
	contract_expect_version(rank, &unit, 1);
	contract_expect_version(&c->ranks[1], &unit, 1);
	contract_close(c);
}

static void wait_for_room(struct contract_rank *rank, void *arg)
{
	contract_expect_version(rank, arg, 1);
}

/* The budget holds; who waits is served in the order in which it came, and one that can never fit is told at
 * once. */
CONTRACT_TEST(test_budget_is_kept_and_served_in_order)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c =
	        contract_open(&(struct contract_options){.config = "[devices]\ngather_budget = 8K\n"});
	struct contract_rank *rank = &c->ranks[0];
	struct contract_unit two, one, huge;
	struct contract_task *first, *second;

	contract_plain_unit(c, "two", 2048, &two); /* 8 KiB */
	contract_plain_unit(c, "one", NUMEL, &one);
	contract_plain_unit(c, "huge", 2049, &huge);
	contract_publish_all(c, &two);
	contract_publish_all(c, &one);
	contract_publish_all(c, &huge);
	FAILS(rank->client, zerod_gather(huge.at[0], NULL, NULL, NULL), ZEROD_E_NO_MEMORY,
	      "budget of device 0 is 8192");
	(void)contract_gather(rank, &one, "held");
	first = contract_start(rank, wait_for_room, &two);
	AWAIT(contract_somebody_waits(c, "8192 bytes of device 0's gather budget (4096 live)"));
	/* There is room for this one, but it joins; another unit would have to wait for its turn. */
	contract_expect_version(rank, &one, 1);
	contract_plain_unit(c, "late", NUMEL, &huge);
	contract_publish_all(c, &huge);
	second = contract_start(rank, wait_for_room, &huge);
	AWAIT(contract_somebody_waits(c, "gathers before it that wait for room on device 0"));
	contract_release(rank, &one, "held");
	contract_finish(first);
	contract_finish(second);
	assert_int_equal(contract_device(c, 0).peak_gathered_bytes, 8192);
	contract_close(c);
}
