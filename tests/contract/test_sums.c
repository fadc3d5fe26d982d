/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sums.c - what a reduction comes to: in float32 whatever travels, in rank order whatever arrives first,
 * agreed by all.
 */
#include "contract_reduce.h"

#include <math.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "client/lib/compute/cast.h"

#define NUMEL 1000u
#define RANKS 4u

/* ---- Sum, mean, factor --------------------------------------------------------------------------------- */

struct kind {
	enum zerod_reduce_op op;
	float prescale;
	float factor; /* of the plain sum */
};

CONTRACT_TEST(test_sum_mean_and_prescale)
{
	static const struct kind kinds[] = {
	        {ZEROD_SUM, 0, 1}, {ZEROD_MEAN, 0, 0.25f}, {ZEROD_SUM, 0.5f, 0.5f}, {ZEROD_MEAN, 8, 2}};
	struct contract *c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});
	zerod_bucket *buckets[RANKS];
	struct contract_unit unit;

	contract_plain_unit(c, "w", NUMEL, &unit);
	for (uint32_t i = 0; i < RANKS; i++)
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		struct zerod_reduce_options options = ZEROD_INIT(options);
		struct contract_sum sum = {&unit, CONTRACT_ALL(c), kinds[k].factor};

		options.op = kinds[k].op;
		options.prescale = kinds[k].prescale;
		contract_backward_all(c, 3, true);
		for (uint32_t i = 0; i < RANKS; i++)
			contract_reduce(&c->ranks[i], buckets[i], &unit, 1, &options);
		contract_backward_end_all(c);
		contract_expect_step(c, &sum, 1);
	}
	contract_close(c);
}

/* ---- Order --------------------------------------------------------------------------------------------- */

/* Values whose sum depends on its order. */
static float rough(uint32_t rank, uint64_t i)
{
	return sinf((float)(i * 13 + rank * 101 + 1)) * powf(10.0f, (float)((i + rank) % 7) - 3.0f);
}

static void reduce_rough(struct contract_rank *rank, zerod_bucket *bucket, const struct contract_unit *unit)
{
	struct zerod_entry entry = ZEROD_INIT(entry);
	float values[NUMEL];

	for (uint64_t i = 0; i < NUMEL; i++)
		values[i] = rough(rank->number, i);
	OK(rank->client, zerod_bucket_reserve(bucket, unit->at[rank->number], NULL, &entry));
	contract_write(NULL, entry.data, values, sizeof(values));
	OK(rank->client, zerod_bucket_submit(bucket, entry.id, NULL, 0, NULL, NULL));
}

/* Of each daemon's ranks, then over the daemons, in their order; rounded at every step. */
static float rough_sum(const struct contract *c, uint64_t i)
{
	uint32_t count = RANKS / c->daemons;
	volatile float sum = 0;

	for (uint32_t daemon = 0; daemon < c->daemons; daemon++) {
		volatile float part = 0;

		for (uint32_t r = daemon * count; r < (daemon + 1) * count; r++)
			part = part + rough(r, i);
		sum = sum + part;
	}
	return sum;
}

static void expect_rough(struct contract_rank *rank, void *arg)
{
	const struct contract_unit *unit = arg;
	struct zerod_target target = ZEROD_INIT(target);
	uint64_t first = rank->number * unit->shard_numel, wrong = 0;
	float *values;

	(void)contract_step(rank);
	values = contract_target(rank, unit, &target);
	for (uint64_t i = 0; i < target.true_numel; i++) {
		float sum = rough_sum(rank->world, first + i);

		wrong += memcmp(&values[i], &sum, sizeof(sum)) != 0;
	}
	free(values);
	CHECK_BYTES(wrong == 0);
	contract_step_end(rank);
}

CONTRACT_TEST(test_bits_are_those_of_rank_order)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});
	zerod_bucket *buckets[RANKS];
	struct contract_unit unit;

	contract_plain_unit(c, "w", NUMEL, &unit);
	for (uint32_t i = 0; i < RANKS; i++)
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
	for (uint32_t run = 0; run < 10; run++) {
		contract_backward_all(c, 3, true);
		for (uint32_t i = 0; i < RANKS; i++) {
			uint32_t turn = (run % 2 ? RANKS - 1 - i + run : i + run) % RANKS;

			reduce_rough(&c->ranks[turn], buckets[turn], &unit);
		}
		contract_backward_end_all(c);
		contract_run(c, expect_rough, &unit);
	}
	contract_close(c);
}

/* ---- Dtypes -------------------------------------------------------------------------------------------- */

#define MICRO_STEPS 8u

struct mixed {
	struct contract_unit unit;
	zerod_bucket *buckets[RANKS];
	enum zerod_dtype gradients, target;
	bool overwrite;
};

/* Exact in the gradients' dtype, but not once a few of them are added. */
static float fine(enum zerod_dtype dtype, uint32_t rank, uint64_t i, uint32_t micro_step)
{
	bool narrow = dtype == ZEROD_FLOAT8_E4M3 || dtype == ZEROD_FLOAT8_E5M2;
	float last_bit = dtype == ZEROD_FLOAT8_E5M2   ? 0.25f
	                 : dtype == ZEROD_FLOAT8_E4M3 ? 0.125f
	                                              : 1 / 128.0f;

	return 1.0f + (float)((i + rank + micro_step) % (narrow ? 4 : 5)) * last_bit;
}

static void reduce_mixed(struct contract_rank *rank, struct mixed *m, uint32_t micro_step)
{
	struct zerod_reduce_options options = ZEROD_INIT(options);
	struct zerod_entry entry = ZEROD_INIT(entry);
	float wide[NUMEL], narrow[NUMEL];

	options.flags = m->overwrite ? ZEROD_REDUCE_OVERWRITE : 0;
	for (uint64_t i = 0; i < NUMEL; i++)
		wide[i] = fine(m->gradients, rank->number, i, micro_step);
	zc_cast(ZEROD_FLOAT32, wide, m->gradients, narrow, NUMEL);
	OK(rank->client,
	   zerod_bucket_reserve(m->buckets[rank->number], m->unit.at[rank->number], NULL, &entry));
	contract_write(NULL, entry.data, narrow, NUMEL * zerod_dtype_bytes(m->gradients));
	OK(rank->client, zerod_bucket_submit(m->buckets[rank->number], entry.id, NULL, 0, &options, NULL));
}

static float stored(enum zerod_dtype dtype, float value)
{
	if (dtype == ZEROD_BFLOAT16)
		return zd_bf16_to_f32(zd_f32_to_bf16(value));
	return value;
}

/* Between step and step_end. */
static void check_mixed(struct contract_rank *rank, const struct mixed *m)
{
	struct zerod_target target = ZEROD_INIT(target);
	uint64_t first = rank->number * m->unit.shard_numel, wrong = 0;
	float *values = contract_target(rank, &m->unit, &target);

	CHECK(target.dtype == m->target);
	for (uint64_t i = 0; i < target.true_numel; i++) {
		float total = 0;

		for (uint32_t step = m->overwrite ? MICRO_STEPS - 1 : 0; step < MICRO_STEPS; step++) {
			float sum = 0;

			for (uint32_t r = 0; r < rank->world->world_size; r++)
				sum += fine(m->gradients, r, first + i, step);
			total = stored(m->target, sum + total);
		}
		wrong += values[i] != total;
	}
	free(values);
	CHECK_BYTES(wrong == 0);
}

struct all_mixed {
	struct mixed *of;
	uint32_t count;
};

static void expect_mixed(struct contract_rank *rank, void *arg)
{
	const struct all_mixed *all = arg;

	(void)contract_step(rank);
	for (uint32_t k = 0; k < all->count; k++)
		check_mixed(rank, &all->of[k]);
	contract_step_end(rank);
}

/* All of them in every micro-step of one window; their target's dtype is one. */
static void accumulate_all(struct mixed *mixed, uint32_t count)
{
	struct contract *c = contract_open(NULL);
	struct zerod_backward_options options = ZEROD_INIT(options);
	struct all_mixed all = {mixed, count};

	for (uint32_t k = 0; k < count; k++) {
		contract_plain_unit(c, zerod_dtype_name(mixed[k].gradients), NUMEL, &mixed[k].unit);
		for (uint32_t i = 0; i < 2; i++)
			mixed[k].buckets[i] = contract_bucket_as(&c->ranks[i], mixed[k].gradients, 65536, 2);
	}
	options.stage = 2;
	options.target_dtype = mixed[0].target;
	for (uint32_t step = 0; step < MICRO_STEPS; step++) {
		options.boundary = step == MICRO_STEPS - 1;
		for (uint32_t i = 0; i < 2; i++) {
			OK(c->ranks[i].client, zerod_backward_begin(c->ranks[i].group, &options));
			for (uint32_t k = 0; k < count; k++)
				reduce_mixed(&c->ranks[i], &mixed[k], step);
		}
		contract_backward_end_all(c);
		assert_int_equal(contract_devices(c).bucket_bytes, 0); /* of any dtype */
	}
	contract_run(c, expect_mixed, &all);
	contract_close(c);
}

static void accumulate(enum zerod_dtype gradients, enum zerod_dtype target, bool overwrite)
{
	struct mixed m = {.gradients = gradients, .target = target, .overwrite = overwrite};

	accumulate_all(&m, 1);
}

CONTRACT_TEST(test_accumulation_is_in_the_targets_dtype)
{
	accumulate(ZEROD_BFLOAT16, ZEROD_FLOAT32, false);
	accumulate(ZEROD_FLOAT16, ZEROD_FLOAT32, false);
	accumulate(ZEROD_FLOAT32, ZEROD_BFLOAT16, false);
	accumulate(ZEROD_FLOAT8_E4M3, ZEROD_FLOAT32, false);
	accumulate(ZEROD_FLOAT8_E5M2, ZEROD_BFLOAT16, false);
}

CONTRACT_TEST(test_dtypes_mixed_in_one_step)
{
	struct mixed mixed[] = {{.gradients = ZEROD_BFLOAT16, .target = ZEROD_FLOAT32},
	                        {.gradients = ZEROD_FLOAT32, .target = ZEROD_FLOAT32},
	                        {.gradients = ZEROD_FLOAT16, .target = ZEROD_FLOAT32},
	                        {.gradients = ZEROD_FLOAT8_E4M3, .target = ZEROD_FLOAT32}};

	accumulate_all(mixed, 4);
}

CONTRACT_TEST(test_overwrite_keeps_the_last)
{
	accumulate(ZEROD_BFLOAT16, ZEROD_FLOAT32, true);
}

/* ---- Overflow and norm --------------------------------------------------------------------------------- */

static void expect_overflow(struct contract_rank *rank, void *arg)
{
	struct zerod_step_info info = contract_step(rank);

	(void)arg;
	CHECK(info.overflow);
	contract_step_end(rank);
}

/* One element of one rank, in a slice that another rank owns: all see it, and the next step is clean. */
CONTRACT_TEST(test_overflow_on_one_rank_is_seen_by_all)
{
	static const float bad[] = {INFINITY, NAN};
	struct contract *c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});
	zerod_bucket *buckets[RANKS];
	struct contract_unit unit;
	struct contract_sum sum = {&unit, CONTRACT_ALL(c), 1};

	contract_plain_unit(c, "w", NUMEL, &unit);
	for (uint32_t i = 0; i < RANKS; i++)
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
	for (size_t k = 0; k < 2; k++) {
		contract_backward_all(c, 3, true);
		for (uint32_t i = 0; i < RANKS; i++) {
			struct zerod_entry entry = ZEROD_INIT(entry);

			OK(c->ranks[i].client, zerod_bucket_reserve(buckets[i], unit.at[i], NULL, &entry));
			contract_write_gradient(&c->ranks[i], NULL, &entry, 0, NUMEL, 1);
			if (i == 1)
				contract_write(NULL, (float *)entry.data + NUMEL - 1, &bad[k],
				               sizeof(bad[k]));
			OK(c->ranks[i].client,
			   zerod_bucket_submit(buckets[i], entry.id, NULL, 0, NULL, NULL));
		}
		contract_backward_end_all(c);
		assert_int_not_equal(contract_devices(c).target_bytes, 0);
		contract_run(c, expect_overflow, NULL);
		assert_int_equal(contract_devices(c).target_bytes, 0);
		contract_backward_all(c, 3, true);
		for (uint32_t i = 0; i < RANKS; i++)
			contract_reduce(&c->ranks[i], buckets[i], &unit, 1, NULL);
		contract_backward_end_all(c);
		contract_expect_step(c, &sum, 1);
	}
	contract_close(c);
}

/* ---- Placements ---------------------------------------------------------------------------------------- */

/* The rank waits for its own sum, and its CPU reads the first element: no call has copied it. */
static void expect_in_host_memory(struct contract_rank *rank, const struct contract_unit *unit, float factor)
{
	struct zerod_target target = ZEROD_INIT(target);
	uint64_t first = rank->number * unit->shard_numel;
	float sum = 0;

	for (uint32_t i = 0; i < RANKS; i++)
		sum += contract_gradient(i, first) * factor;
	OK(rank->client, zerod_reduce_wait(unit->at[rank->number], NULL, NULL, &target));
	assert_true(*(const float *)target.data == sum);
}

/* Each unit is reduced in one of two backwards or in both, so that sums are added up in both memories. */
CONTRACT_TEST(test_units_of_both_placements)
{
	static const float factors[2] = {3, 1}; /* of all units that a backward reduces */
	contract_needs(CONTRACT_UNITS_ON_HOST);
	struct contract *c = contract_open(&(struct contract_options){.world_size = RANKS, .devices = 2});
	struct contract_unit units[4];
	const struct contract_sum sums[] = {{&units[0], CONTRACT_ALL(c), 4},
	                                    {&units[1], CONTRACT_ALL(c), 4},
	                                    {&units[2], CONTRACT_ALL(c), 3},
	                                    {&units[3], CONTRACT_ALL(c), 1}};
	zerod_bucket *buckets[RANKS];

	contract_plain_unit(c, "host", NUMEL, &units[0]);
	contract_device_unit(c, "device", NUMEL, &units[1]);
	contract_plain_unit(c, "first", NUMEL + 1, &units[2]);
	contract_plain_unit(c, "last", 3, &units[3]);
	for (uint32_t i = 0; i < RANKS; i++)
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
	for (unsigned backward = 0; backward < 2; backward++) {
		contract_backward_all(c, 3, false);
		for (unsigned u = 0; u < 4; u++) {
			for (uint32_t i = 0; i < RANKS && u != 3 - backward; i++)
				contract_reduce(&c->ranks[i], buckets[i], &units[u], factors[backward], NULL);
		}
		contract_backward_end_all(c);
	}
	for (uint32_t i = 0; i < RANKS; i++)
		expect_in_host_memory(&c->ranks[i], &units[0], 4);
	contract_expect_step(c, sums, ZD_ARRAY_LEN(sums));
	contract_close(c);
}
