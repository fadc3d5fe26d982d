/* SPDX-License-Identifier: Apache-2.0 */
/* contract_reduce.c - gradients of known values, and what they come to. */
#include "contract_reduce.h"

#include "base/dtype.h"
#include "base/mem.h"

/* ---- Calls --------------------------------------------------------------------------------------------- */

void contract_backward(struct contract_rank *rank, uint32_t stage, bool boundary)
{
	struct zerod_backward_options options = ZEROD_INIT(options);

	options.stage = stage;
	options.boundary = boundary;
	OK(rank->client, zerod_backward_begin(rank->group, &options));
}

void contract_backward_end(struct contract_rank *rank)
{
	OK(rank->client, zerod_backward_end(rank->group, NULL, NULL));
}

zerod_bucket *contract_bucket_as(struct contract_rank *rank, enum zerod_dtype dtype, uint64_t slot_bytes,
                                 uint32_t nslots)
{
	struct zerod_bucket_options options = ZEROD_INIT(options);
	zerod_bucket *bucket = NULL;

	options.dtype = dtype;
	options.slot_bytes = slot_bytes;
	options.nslots = nslots;
	OK(rank->client, zerod_bucket_create(rank->group, &options, &bucket));
	return bucket;
}

zerod_bucket *contract_bucket(struct contract_rank *rank, uint64_t slot_bytes, uint32_t nslots)
{
	return contract_bucket_as(rank, ZEROD_FLOAT32, slot_bytes, nslots);
}

struct zerod_step_info contract_step(struct contract_rank *rank)
{
	struct zerod_step_info info = ZEROD_INIT(info);

	OK(rank->client, zerod_step_begin(rank->group, NULL, &info, NULL));
	return info;
}

void contract_step_end(struct contract_rank *rank)
{
	OK(rank->client, zerod_step_end(rank->group, NULL, 0, NULL));
}

/* ---- Gradients ----------------------------------------------------------------------------------------- */

float contract_gradient(uint32_t rank, uint64_t i)
{
	return (float)((int)((i * 7 + rank * 3) % 11) - 5);
}

void contract_write_gradient(struct contract_rank *rank, zerod_stream *stream,
                             const struct zerod_entry *entry, uint64_t first, uint64_t numel, float factor)
{
	float *values = zd_calloc(numel + 1, sizeof(*values));

	for (uint64_t i = 0; i < numel; i++)
		values[i] = contract_gradient(rank->number, first + i) * factor;
	contract_write(stream, (float *)entry->data + first, values, numel * sizeof(*values));
	free(values);
}

void contract_reduce(struct contract_rank *rank, zerod_bucket *bucket, const struct contract_unit *unit,
                     float factor, const struct zerod_reduce_options *options)
{
	struct zerod_entry entry = ZEROD_INIT(entry);

	OK(rank->client, zerod_bucket_reserve(bucket, unit->at[rank->number], NULL, &entry));
	contract_write_gradient(rank, NULL, &entry, 0, unit->numel, factor);
	OK(rank->client, zerod_bucket_submit(bucket, entry.id, NULL, 0, options, NULL));
}

/* ---- Targets ------------------------------------------------------------------------------------------- */

static float reference(uint32_t contributors, uint64_t i, float factor)
{
	float sum = 0;

	for (uint32_t rank = 0; rank < CONTRACT_RANKS; rank++)
		if (contributors & (1u << rank))
			sum += contract_gradient(rank, i) * factor;
	return sum;
}

static float widen(enum zerod_dtype dtype, const void *data, uint64_t i)
{
	if (dtype == ZEROD_FLOAT32)
		return ((const float *)data)[i];
	return dtype == ZEROD_FLOAT16 ? zd_f16_to_f32(((const uint16_t *)data)[i])
	                              : zd_bf16_to_f32(((const uint16_t *)data)[i]);
}

float *contract_target(struct contract_rank *rank, const struct contract_unit *unit,
                       struct zerod_target *target)
{
	uint64_t bytes;
	float *values;
	void *data;

	OK(rank->client, zerod_target_get(unit->at[rank->number], SIZED(target)));
	bytes = target->shard_numel * zerod_dtype_bytes(target->dtype);
	data = zd_calloc(1, bytes);
	values = zd_calloc(target->shard_numel, sizeof(*values));
	contract_read(NULL, data, target->data, bytes);
	for (uint64_t i = 0; i < target->shard_numel; i++)
		values[i] = widen(target->dtype, data, i);
	free(data);
	return values;
}

void contract_expect_target(struct contract_rank *rank, const struct contract_unit *unit,
                            uint32_t contributors, float factor)
{
	struct zerod_target target = ZEROD_INIT(target);
	float *values = contract_target(rank, unit, &target);
	struct zerod_shard shard = ZEROD_INIT(shard);
	uint64_t first, wrong = 0;

	OK(rank->client, zerod_shard_get(unit->at[rank->number], &shard));
	first = target.shard_numel == unit->padded_numel ? 0 : shard.offset_numel; /* the whole, or a slice */
	for (uint64_t i = 0; i < target.shard_numel; i++)
		wrong += values[i] !=
		         (i < target.true_numel ? reference(contributors, first + i, factor) : 0.0f);
	free(values);
	CHECK_BYTES(wrong == 0);
}

double contract_norm_squared(const struct contract_unit *unit, uint32_t contributors, float factor)
{
	double sum = 0;

	for (uint64_t i = 0; i < unit->numel; i++) {
		double value = reference(contributors, i, factor);

		sum += value * value;
	}
	return sum;
}

/* ---- All ranks ----------------------------------------------------------------------------------------- */

struct expected_step {
	const struct contract_sum *sums;
	uint32_t count;
};

static void expect_step(struct contract_rank *rank, void *arg)
{
	const struct expected_step *expected = arg;
	struct zerod_step_info info = contract_step(rank);
	double norm_squared = 0;

	for (uint32_t i = 0; i < expected->count; i++) {
		const struct contract_sum *sum = &expected->sums[i];

		contract_expect_target(rank, sum->unit, sum->contributors, sum->factor);
		norm_squared += contract_norm_squared(sum->unit, sum->contributors, sum->factor);
	}
	CHECK(info.norm_squared == norm_squared);
	CHECK(!info.overflow);
	contract_step_end(rank);
}

void contract_expect_step(struct contract *c, const struct contract_sum *sums, uint32_t count)
{
	struct expected_step expected = {sums, count};

	contract_run(c, expect_step, &expected);
}

void contract_backward_all(struct contract *c, uint32_t stage, bool boundary)
{
	for (uint32_t i = 0; i < c->world_size; i++)
		contract_backward(&c->ranks[i], stage, boundary);
}

static void end_backward(struct contract_rank *rank, void *arg)
{
	(void)arg;
	contract_backward_end(rank);
}

void contract_backward_end_all(struct contract *c)
{
	contract_run(c, end_backward, NULL);
}

/* ---- A world of two ranks ------------------------------------------------------------------------------ */

void contract_open_world(struct contract_world *w)
{
	w->c = contract_open(&(struct contract_options){.world_size = WORLD_RANKS});
	contract_plain_unit(w->c, "w", WORLD_NUMEL, &w->first);
	contract_plain_unit(w->c, "v", 3, &w->second);
	for (uint32_t i = 0; i < WORLD_RANKS; i++) {
		w->buckets[i] = contract_bucket(&w->c->ranks[i], 65536, 2);
		w->streams[i] = contract_stream(&w->c->ranks[i]);
	}
}

void contract_reduce_all(struct contract_world *w, const struct contract_unit *unit, float factor)
{
	for (uint32_t i = 0; i < WORLD_RANKS; i++)
		contract_reduce(&w->c->ranks[i], w->buckets[i], unit, factor, NULL);
}

void contract_skip_all(struct contract_world *w, const struct contract_unit *unit)
{
	for (uint32_t i = 0; i < WORLD_RANKS; i++)
		OK(w->c->ranks[i].client, zerod_reduce_skip(unit->at[i], NULL, NULL));
}

void contract_expect_sums(struct contract_world *w, float first, float second)
{
	struct contract_sum sums[] = {{&w->first, CONTRACT_ALL(w->c), first},
	                              {&w->second, CONTRACT_ALL(w->c), second}};

	contract_expect_step(w->c, sums, 2);
}
