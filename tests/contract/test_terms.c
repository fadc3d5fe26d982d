/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_terms.c - terms of a sum that is not made: an update from them is the update from the sum, and they
 * remain until the streams that were named by their loan have read them.
 */
#include "contract_reduce.h"

#include <math.h>

#include <zerod_optimizer.h>

#include "base/mem.h"
#include "client/kernels/element.h"

#define WORLD 3u
#define NUMEL 1000u
#define STEPS 2u

/* Of one rank: a unit whose sum it takes, and another whose terms it takes. */
enum { SUM, TERMS, NUNITS };

struct state {
	struct contract_rank *rank;
	zerod_bucket *bucket;
	zerod_stream *stream;
	zerod_allocation *memory;
	uint64_t numel;        /* of the rank's slices */
	float *arrays[NUNITS]; /* m, v and the lower halves */
};

struct scene {
	struct contract *c;
	enum zerod_dtype dtype;
	struct contract_unit units[NUNITS];
	struct state states[WORLD];
};

static void state_open(struct scene *s, uint32_t number)
{
	struct contract_rank *rank = &s->c->ranks[number];
	struct zerod_alloc_options options = ZEROD_INIT(options);
	struct zerod_shard shard = ZEROD_INIT(shard);
	float zeros[NUNITS * 3 * NUMEL] = {0};
	struct state *state = &s->states[number];
	void *data = NULL;

	for (unsigned i = 0; i < NUNITS; i++)
		OK(rank->client, zerod_unit_set_target(s->units[i].at[number], 0));
	OK(rank->client, zerod_shard_get(s->units[SUM].at[number], &shard));
	options.job = "state";
	options.device = contract_memory_of(rank);
	options.bytes = sizeof(zeros);
	*state = (struct state){.rank = rank, .numel = shard.true_numel, .stream = contract_stream(rank)};
	OK(rank->client, zerod_alloc(rank->client, &options, &state->memory, &data));
	contract_write(state->stream, data, zeros, sizeof(zeros));
	contract_sync(rank, state->stream);
	for (unsigned i = 0; i < NUNITS; i++)
		state->arrays[i] = (float *)data + i * 3 * NUMEL;
	state->bucket = contract_bucket_as(rank, s->dtype, 64 << 10, 2);
}

static void scene_open(struct scene *s, enum zerod_dtype dtype)
{
	contract_needs(CONTRACT_ONE_SIDED);
	if (contract_on_host())
		skip();
	*s = (struct scene){.c = contract_open(&(struct contract_options){.world_size = WORLD}),
	                    .dtype = dtype};
	contract_unit_of(s->c, "sum", dtype, NUMEL, &s->units[SUM]);
	contract_unit_of(s->c, "terms", dtype, NUMEL, &s->units[TERMS]);
	for (uint32_t r = 0; r < WORLD; r++)
		state_open(s, r);
}

static void scene_close(struct scene *s)
{
	for (uint32_t r = 0; r < WORLD; r++)
		OK(s->states[r].rank->client, zerod_free(s->states[r].memory, NULL, 0));
	contract_close(s->c);
}

/* No sum of these is exact. */
static void submit(struct scene *s, uint32_t r, unsigned which, uint64_t step)
{
	struct state *state = &s->states[r];
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct zerod_reduce_options options = ZEROD_INIT(options);
	float wide[NUMEL];
	uint16_t narrow[NUMEL];
	bool is_wide = s->dtype == ZEROD_FLOAT32;

	for (uint64_t i = 0; i < NUMEL; i++) {
		wide[i] = (float)sin((double)(i * 7 + r * 31 + step * 131));
		narrow[i] = zc_bf16_from_f32(wide[i]);
	}
	OK(state->rank->client, zerod_bucket_reserve(state->bucket, s->units[which].at[r], NULL, &entry));
	contract_write(state->stream, entry.data, is_wide ? (void *)wide : narrow,
	               NUMEL * zerod_dtype_bytes(s->dtype));
	contract_sync(state->rank, state->stream);
	options.op = ZEROD_MEAN;
	options.prescale = 0.37f;
	options.flags = which == TERMS ? ZEROD_REDUCE_TERMS : 0;
	OK(state->rank->client,
	   zerod_bucket_submit(state->bucket, entry.id, &state->stream, 1, &options, NULL));
}

/* Two parts, the second of which is not aligned for vectors. */
static void update(struct scene *s, uint32_t r, unsigned which, uint64_t step)
{
	struct state *state = &s->states[r];
	zerod_unit *unit = s->units[which].at[r];
	struct zerod_optimizer_step numbers = {.struct_size = sizeof(numbers),
	                                       .rule = ZEROD_RULE_ADAMW,
	                                       .step = step,
	                                       .lr = 0.1,
	                                       .weight_decay = 0.1,
	                                       .beta1 = 0.9,
	                                       .beta2 = 0.99,
	                                       .eps = 1e-8};
	struct zerod_target target = ZEROD_INIT(target);
	struct zerod_terms terms = ZEROD_INIT(terms);
	uint64_t bounds[] = {0, state->numel / 2 + 1, state->numel};

	if (which == TERMS)
		OK(state->rank->client, zerod_reduce_terms(unit, NULL, state->stream, &terms));
	else
		OK(state->rank->client, zerod_reduce_wait(unit, NULL, state->stream, &target));
	OK(state->rank->client, zerod_update_begin(&unit, 1, NULL, NULL));
	for (unsigned i = 0; i < 2; i++) {
		float *m = state->arrays[which] + bounds[i];
		struct zerod_optimizer_part part = {.struct_size = sizeof(part),
		                                    .unit = unit,
		                                    .offset_numel = bounds[i],
		                                    .numel = bounds[i + 1] - bounds[i],
		                                    .m = m,
		                                    .v = m + NUMEL};

		if (s->dtype == ZEROD_BFLOAT16)
			part.low = (uint16_t *)(state->arrays[which] + 2 * NUMEL) + bounds[i];
		if (which == TERMS)
			part.terms = &terms;
		else
			part.values = (float *)target.data + bounds[i];
		OK(state->rank->client, zerod_optimizer_update(&part, 1, &numbers, state->stream));
	}
	OK(state->rank->client, zerod_publish(&unit, 1, &state->stream, 1, NULL, NULL));
	OK(state->rank->client, zerod_target_return(unit));
}

static void expect_equal_states(const struct state *state)
{
	float found[NUNITS][3 * NUMEL];

	for (unsigned i = 0; i < NUNITS; i++)
		contract_read(state->stream, found[i], state->arrays[i], sizeof(found[i]));
	contract_sync(state->rank, state->stream);
	assert_memory_equal(found[SUM], found[TERMS], sizeof(found[SUM]));
	assert_true(found[SUM][0] != 0);
}

static void expect_equal_weights(struct scene *s)
{
	unsigned char found[NUNITS][NUMEL * sizeof(float)];
	size_t bytes = NUMEL * zerod_dtype_bytes(s->dtype);

	for (unsigned i = 0; i < NUNITS; i++) {
		contract_read(NULL, found[i], contract_gather(&s->c->ranks[0], &s->units[i], NULL), bytes);
		contract_release(&s->c->ranks[0], &s->units[i], NULL);
	}
	assert_memory_equal(found[SUM], found[TERMS], bytes);
}

static void step_begin_end(struct contract_rank *rank, void *arg)
{
	(void)arg;
	(void)contract_step(rank);
	contract_step_end(rank);
}

static void expect_equal_updates(enum zerod_dtype dtype)
{
	struct scene s;

	scene_open(&s, dtype);
	for (uint64_t step = 1; step <= STEPS; step++) {
		contract_backward_all(s.c, 3, true);
		for (uint32_t r = 0; r < WORLD; r++)
			for (unsigned i = 0; i < NUNITS; i++)
				submit(&s, r, i, step);
		for (uint32_t r = 0; r < WORLD; r++)
			for (unsigned i = 0; i < NUNITS; i++)
				update(&s, r, i, step);
		contract_backward_end_all(s.c);
		contract_run(s.c, step_begin_end, NULL);
		expect_equal_weights(&s);
	}
	for (uint32_t r = 0; r < WORLD; r++)
		expect_equal_states(&s.states[r]);
	assert_int_equal(contract_devices(s.c).target_bytes, 0);
	scene_close(&s);
}

CONTRACT_TEST(test_halves_updated_from_terms)
{
	expect_equal_updates(ZEROD_BFLOAT16);
}

CONTRACT_TEST(test_float32_updated_from_terms)
{
	expect_equal_updates(ZEROD_FLOAT32);
}

static void end_backward(struct contract_rank *rank, void *arg)
{
	(void)arg;
	contract_backward_end(rank);
}

/* A stream still reads the terms that were returned: their memory does not change, and the backward does not
 * end. */
CONTRACT_TEST(test_a_reader_of_terms)
{
	struct zerod_terms terms = ZEROD_INIT(terms);
	uint16_t before[WORLD][NUMEL], after[WORLD][NUMEL];
	struct contract_gate *gate;
	struct contract_task *end;
	struct state *state;
	struct scene s;

	scene_open(&s, ZEROD_BFLOAT16);
	state = &s.states[1];
	contract_backward_all(s.c, 3, true);
	for (uint32_t r = 0; r < WORLD; r++)
		submit(&s, r, TERMS, 1);
	OK(state->rank->client, zerod_reduce_terms(s.units[TERMS].at[1], NULL, state->stream, &terms));
	assert_int_equal(terms.count, WORLD);
	for (uint32_t i = 0; i < WORLD; i++)
		contract_read(NULL, before[i], terms.each[i], terms.shard_numel * sizeof(uint16_t));
	gate = contract_block(state->rank, state->stream);
	OK(state->rank->client, zerod_target_return(s.units[TERMS].at[1]));
	end = contract_start(state->rank, end_backward, NULL);
	AWAIT(contract_somebody_waits(s.c, "unit 'terms' has terms that streams of rank 1 still read"));
	for (uint32_t i = 0; i < WORLD; i++) {
		contract_read(NULL, after[i], terms.each[i], terms.shard_numel * sizeof(uint16_t));
		assert_memory_equal(before[i], after[i], terms.shard_numel * sizeof(uint16_t));
	}
	contract_unblock(gate);
	contract_sync(state->rank, state->stream);
	for (uint32_t r = 0; r < WORLD; r += 2) {
		OK(s.c->ranks[r].client, zerod_reduce_terms(s.units[TERMS].at[r], NULL, NULL, &terms));
		OK(s.c->ranks[r].client, zerod_target_return(s.units[TERMS].at[r]));
	}
	contract_backward_end(&s.c->ranks[0]);
	contract_backward_end(&s.c->ranks[2]);
	contract_finish(end);
	contract_run(s.c, step_begin_end, NULL);
	scene_close(&s);
}

CONTRACT_TEST(test_wrong_calls)
{
	struct zerod_terms terms = ZEROD_INIT(terms), wrong;
	struct zerod_target target = ZEROD_INIT(target);
	struct zerod_reduce_options options = ZEROD_INIT(options);
	struct zerod_entry entry = ZEROD_INIT(entry);
	struct zerod_optimizer_part part = {.struct_size = sizeof(part), .numel = 1, .terms = &wrong};
	struct zerod_optimizer_step sgd = {.struct_size = sizeof(sgd), .rule = ZEROD_RULE_SGD, .step = 1};
	zerod_client *client;
	zerod_unit *unit;
	struct scene s;

	scene_open(&s, ZEROD_FLOAT32);
	client = s.c->ranks[0].client;
	unit = s.units[TERMS].at[0];
	for (uint32_t r = 0; r < WORLD; r++)
		OK(s.c->ranks[r].client, zerod_unit_set_target(s.units[SUM].at[r], 1));
	contract_backward_all(s.c, 3, true);
	OK(client, zerod_bucket_reserve(s.states[0].bucket, s.units[SUM].at[0], NULL, &entry));
	options.flags = ZEROD_REDUCE_TERMS;
	FAILS(client, zerod_bucket_submit(s.states[0].bucket, entry.id, NULL, 0, &options, NULL),
	      ZEROD_E_INVALID, "has a place in the target");
	options.flags = 0;
	OK(client, zerod_bucket_submit(s.states[0].bucket, entry.id, NULL, 0, &options, NULL));
	FAILS(client, zerod_reduce_terms(s.units[SUM].at[0], NULL, NULL, &terms), ZEROD_E_STATE,
	      "there are no terms");
	for (uint32_t r = 1; r < WORLD; r++)
		OK(s.c->ranks[r].client, zerod_reduce_skip(s.units[SUM].at[r], NULL, NULL));
	for (uint32_t r = 0; r < WORLD; r++)
		submit(&s, r, TERMS, 1);
	FAILS(client, zerod_reduce_wait(unit, NULL, NULL, &target), ZEROD_E_STATE, "lends its terms");
	for (uint32_t r = 0; r < WORLD; r++)
		OK(s.c->ranks[r].client, zerod_reduce_terms(s.units[TERMS].at[r], NULL, NULL, &terms));
	FAILS(client, zerod_target_get(unit, &target), ZEROD_E_STATE, "has terms of a sum");
	OK(client, zerod_update_begin(&unit, 1, NULL, NULL));
	part.unit = unit;
	wrong = terms;
	wrong.count = 65;
	FAILS(client, zerod_optimizer_update(&part, 1, &sgd, s.states[0].stream), ZEROD_E_INVALID,
	      "65 terms");
	wrong = terms;
	wrong.shard_numel++;
	FAILS(client, zerod_optimizer_update(&part, 1, &sgd, s.states[0].stream), ZEROD_E_INVALID,
	      "elements");
	wrong = terms;
	wrong.dtype = ZEROD_FLOAT16;
	FAILS(client, zerod_optimizer_update(&part, 1, &sgd, s.states[0].stream), ZEROD_E_UNSUPPORTED,
	      "terms of float16");
	wrong = terms;
	part.values = s.states[0].arrays[0];
	FAILS(client, zerod_optimizer_update(&part, 1, &sgd, s.states[0].stream), ZEROD_E_INVALID,
	      "values has no meaning");
	FAILS(client, zerod_optimizer_split(&part, 1, s.states[0].stream), ZEROD_E_INVALID, "terms are for");
	OK(client, zerod_publish(&unit, 1, NULL, 0, NULL, NULL));
	for (uint32_t r = 0; r < WORLD; r++)
		OK(s.c->ranks[r].client, zerod_target_return(s.units[TERMS].at[r]));
	FAILS(client, zerod_reduce_terms(unit, NULL, NULL, &terms), ZEROD_E_STATE, "has returned the terms");
	contract_backward_end_all(s.c);
	contract_run(s.c, step_begin_end, NULL);
	scene_close(&s);
}
