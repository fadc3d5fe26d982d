/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_optimizer.c - shards updated by an optimizer, with masters in two halves: on every backend, in the
 * order of a stream.
 *
 * Expected masters are computed here, element by element in float32, as docs/optimizer.md says.
 */
#include "contract.h"

#include <math.h>

#include <zerod_optimizer.h>

#include "base/mem.h"

#define WORLD 3u
#define NUMEL 1000u
#define STEPS 4u

static bool on_gpus(void)
{
	const char *name = getenv("ZEROD_TEST_BACKEND");

	return name && strcmp(name, "cuda") == 0;
}

/* The arrays of a rank's slice, one behind the other in memory of its device: low, values, m, v, scale. */
struct state {
	struct contract_rank *rank;
	zerod_allocation *memory;
	uint64_t numel, offset_numel;
	uint16_t *low;
	float *m, *v, *values, *scale;
	zerod_stream *stream; /* NULL: the CPU updates units in its memory */
};

static void sync_state(const struct state *state)
{
	if (state->stream)
		contract_sync(state->rank, state->stream);
}

static void state_open(struct contract_rank *rank, struct contract_unit *unit, struct state *state)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	struct zerod_alloc_options options = ZEROD_INIT(options);
	float zeros[3 * NUMEL] = {0};
	void *data = NULL;

	OK(rank->client, zerod_shard_get(unit->at[rank->number], &shard));
	options.job = "state";
	options.device = contract_memory_of(rank);
	options.bytes = sizeof(float) * 4 * NUMEL;
	*state = (struct state){.rank = rank, .numel = shard.true_numel, .offset_numel = shard.offset_numel};
	OK(rank->client, zerod_alloc(rank->client, &options, &state->memory, &data));
	state->low = data;
	state->values = (float *)data + NUMEL / 2;
	state->m = state->values + shard.true_numel;
	state->v = state->m + shard.true_numel;
	state->scale = state->v + shard.true_numel;
	state->stream = on_gpus() && contract_on_host() ? NULL : contract_stream(rank);
	contract_write(state->stream, state->m, zeros, 2 * shard.true_numel * sizeof(float));
	sync_state(state);
}

static void state_close(struct state *state)
{
	OK(state->rank->client, zerod_free(state->memory, NULL, 0));
}

static struct zerod_optimizer_part part_of(const struct state *state, struct contract_unit *unit,
                                           uint64_t first, uint64_t last)
{
	return (struct zerod_optimizer_part){.struct_size = sizeof(struct zerod_optimizer_part),
	                                     .unit = unit->at[state->rank->number],
	                                     .offset_numel = first,
	                                     .numel = last - first,
	                                     .low = state->low + first,
	                                     .m = state->m + first,
	                                     .v = state->v + first,
	                                     .values = state->values + first};
}

static struct zerod_optimizer_step adamw(uint64_t step, double lr)
{
	return (struct zerod_optimizer_step){.struct_size = sizeof(struct zerod_optimizer_step),
	                                     .rule = ZEROD_RULE_ADAMW,
	                                     .step = step,
	                                     .lr = lr,
	                                     .weight_decay = 0.1,
	                                     .beta1 = 0.9,
	                                     .beta2 = 0.99,
	                                     .eps = 1e-8};
}

static struct zerod_optimizer_part masters_of(const struct state *state, struct contract_unit *unit)
{
	struct zerod_optimizer_part part = part_of(state, unit, 0, state->numel);

	part.m = part.v = NULL;
	return part;
}

/* ---- The same in one process --------------------------------------------------------------------------- */

struct model {
	float master[NUMEL], m[NUMEL], v[NUMEL];
};

static float first_master(uint64_t i)
{
	return (float)((double)i * 0.0137 - 5);
}

static float gradient(uint64_t i, uint64_t step)
{
	return (float)(sin((double)(i * 7 + step * 131)) / 3);
}

static uint16_t rounded(float master)
{
	uint32_t bits;

	memcpy(&bits, &master, sizeof(bits));
	return (uint16_t)((bits + 0x8000u) >> 16);
}

static void model_step(struct model *model, uint64_t i, uint64_t step, double lr, float scale)
{
	float g = gradient(i, step) * scale, kept = model->master[i] * (float)(1 - lr * 0.1);

	model->m[i] = 0.9f * model->m[i] + (float)(1 - 0.9) * g;
	model->v[i] = 0.99f * model->v[i] + (float)(1 - 0.99) * (g * g);
	model->master[i] = kept -
	                   (float)(lr / (1 - pow(0.9, (double)step))) *
	                           (model->m[i] /
	                            (sqrtf(model->v[i]) / (float)sqrt(1 - pow(0.99, (double)step)) + 1e-8f));
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

static double lr_of(uint64_t element)
{
	return element % 2 ? 0.5 : 0.01; /* two parameter groups, by the half of the slice */
}

static void write_values(struct state *state, float (*value)(uint64_t i, uint64_t step), uint64_t step)
{
	float values[NUMEL], scale = (float)(step % 3) + 0.5f;

	for (uint64_t i = 0; i < state->numel; i++)
		values[i] = value(state->offset_numel + i, step);
	contract_write(state->stream, state->values, values, state->numel * sizeof(*values));
	contract_write(state->stream, state->scale, &scale, sizeof(scale));
	if (!contract_can_touch(state->rank, state->values))
		return;
	sync_state(state); /* the host's stream reads `values` when it runs */
}

static float master_value(uint64_t i, uint64_t step)
{
	(void)step;
	return first_master(i);
}

static void publish(struct state *state, struct contract_unit *unit)
{
	zerod_unit **handle = &unit->at[state->rank->number];

	OK(state->rank->client, zerod_publish(handle, 1, &state->stream, state->stream != NULL, NULL, NULL));
}

static void begin(struct state *state, struct contract_unit *unit)
{
	OK(state->rank->client, zerod_update_begin(&unit->at[state->rank->number], 1, NULL, NULL));
}

static void split_masters(struct contract_rank *rank, struct contract_unit *unit, struct state *state)
{
	struct zerod_optimizer_part part;

	state_open(rank, unit, state);
	part = masters_of(state, unit);
	begin(state, unit);
	write_values(state, master_value, 0);
	OK(rank->client, zerod_optimizer_split(&part, 1, state->stream));
	publish(state, unit);
}

static void step_one(struct state *state, struct contract_unit *unit, uint64_t step)
{
	uint64_t half = state->numel / 2;
	struct zerod_optimizer_part parts[] = {part_of(state, unit, 0, half),
	                                       part_of(state, unit, half, state->numel)};

	begin(state, unit);
	write_values(state, gradient, step);
	for (unsigned i = 0; i < 2; i++) {
		struct zerod_optimizer_step options = adamw(step, lr_of(i));

		options.scale = state->scale;
		OK(state->rank->client, zerod_optimizer_update(&parts[i], 1, &options, state->stream));
	}
	publish(state, unit);
}

static void expect_gathered(struct contract_rank *rank, struct contract_unit *unit, const struct model *model)
{
	uint16_t content[NUMEL];

	contract_read(NULL, content, contract_gather(rank, unit, NULL), sizeof(content));
	contract_release(rank, unit, NULL);
	for (uint64_t i = 0; i < NUMEL; i++)
		assert_int_equal(content[i], rounded(model->master[i]));
}

static void expect_masters(struct state *state, struct contract_unit *unit, const struct model *model)
{
	struct zerod_optimizer_part part = masters_of(state, unit);
	float values[NUMEL];

	OK(state->rank->client, zerod_optimizer_join(&part, 1, state->stream));
	contract_read(state->stream, values, state->values, state->numel * sizeof(*values));
	sync_state(state);
	assert_memory_equal(values, model->master + state->offset_numel, state->numel * sizeof(*values));
}

/* Gathers see the upper halves; the masters are those of one process, bit by bit. */
CONTRACT_TEST(test_steps_are_those_of_one_process)
{
	struct contract *c = contract_open(&(struct contract_options){.world_size = WORLD});
	struct model *model = zd_calloc(1, sizeof(*model));
	struct contract_unit unit;
	struct state states[WORLD];

	contract_unit_of(c, "w", ZEROD_BFLOAT16, NUMEL, &unit);
	for (uint64_t i = 0; i < NUMEL; i++)
		model->master[i] = first_master(i);
	for (uint32_t r = 0; r < WORLD; r++)
		split_masters(&c->ranks[r], &unit, &states[r]);
	for (uint64_t step = 1; step <= STEPS; step++) {
		for (uint32_t r = 0; r < WORLD; r++)
			expect_gathered(&c->ranks[r], &unit, model);
		for (uint32_t r = 0; r < WORLD; r++) {
			const struct state *state = &states[r];

			step_one(&states[r], &unit, step);
			for (uint64_t i = 0; i < state->numel; i++)
				model_step(model, state->offset_numel + i, step, lr_of(i >= state->numel / 2),
				           (float)(step % 3) + 0.5f);
		}
	}
	for (uint32_t r = 0; r < WORLD; r++) {
		expect_gathered(&c->ranks[r], &unit, model);
		expect_masters(&states[r], &unit, model);
		state_close(&states[r]);
	}
	free(model);
	contract_close(c);
}

/* A float32 shard is its own master, and has no lower half. SGD without momentum has no state. */
CONTRACT_TEST(test_float32)
{
	struct contract *c = contract_open(NULL);
	struct contract_unit unit;
	struct state states[2];

	contract_unit_of(c, "w", ZEROD_FLOAT32, NUMEL, &unit);
	for (uint32_t r = 0; r < 2; r++) {
		struct zerod_optimizer_step sgd = {
		        sizeof(sgd), ZEROD_RULE_SGD, ZEROD_OPTIMIZER_MAXIMIZE, 1, 0.5, 0, 0, 0, 0, 0, NULL,
		        NULL};
		struct state *state = &states[r];
		struct zerod_optimizer_part part;

		state_open(&c->ranks[r], &unit, state);
		part = masters_of(state, &unit);
		part.low = NULL;
		begin(state, &unit);
		write_values(state, master_value, 0);
		OK(state->rank->client, zerod_optimizer_split(&part, 1, state->stream));
		write_values(state, gradient, 1);
		OK(state->rank->client, zerod_optimizer_update(&part, 1, &sgd, state->stream));
		publish(state, &unit);
		OK(state->rank->client, zerod_optimizer_join(&part, 1, state->stream));
	}
	for (uint32_t r = 0; r < 2; r++) {
		float content[NUMEL], joined[NUMEL];
		struct state *state = &states[r];

		contract_read(NULL, content, contract_gather(state->rank, &unit, NULL), sizeof(content));
		contract_release(state->rank, &unit, NULL);
		for (uint64_t i = 0; i < NUMEL; i++)
			assert_true(content[i] == first_master(i) + 0.5f * gradient(i, 1));
		contract_read(state->stream, joined, state->values, state->numel * sizeof(*joined));
		sync_state(state);
		assert_memory_equal(joined, content + state->offset_numel, state->numel * sizeof(*joined));
		state_close(state);
	}
	contract_close(c);
}

/* ---- What is refused ----------------------------------------------------------------------------------- */

#define REFUSED(member, value, status, text)                                                                 \
	do {                                                                                                 \
		struct zerod_optimizer_part wrong = part;                                                    \
		wrong.member = value;                                                                        \
		FAILS(rank->client, zerod_optimizer_update(&wrong, 1, &step, state.stream), status, text);   \
	} while (0)

#define REFUSED_STEP(member, value, text)                                                                    \
	do {                                                                                                 \
		struct zerod_optimizer_step wrong = step;                                                    \
		wrong.member = value;                                                                        \
		FAILS(NULL, zerod_optimizer_update(&part, 1, &wrong, state.stream), ZEROD_E_INVALID, text);  \
	} while (0)

/* And nothing is changed, also by the parts before. */
CONTRACT_TEST(test_wrong_calls)
{
	struct contract *c = contract_open(NULL);
	struct contract_rank *rank = &c->ranks[0];
	struct zerod_optimizer_step step = adamw(1, 0.5);
	struct model *model = zd_calloc(1, sizeof(*model));
	struct zerod_optimizer_part part, both[2];
	struct contract_unit unit;
	struct state state, other;

	contract_unit_of(c, "w", ZEROD_BFLOAT16, NUMEL, &unit);
	for (uint64_t i = 0; i < NUMEL; i++)
		model->master[i] = first_master(i);
	split_masters(rank, &unit, &state);
	split_masters(&c->ranks[1], &unit, &other);
	part = part_of(&state, &unit, 0, state.numel);
	REFUSED(m, part.m, ZEROD_E_STATE, "not under update");
	begin(&state, &unit);
	write_values(&state, gradient, 1);
	REFUSED(offset_numel, 1, ZEROD_E_INVALID, "end beyond the shard's");
	REFUSED(low, NULL, ZEROD_E_INVALID, "low is NULL");
	REFUSED(m, NULL, ZEROD_E_INVALID, "m is NULL");
	REFUSED(v, (float *)(void *)((char *)part.v + 2), ZEROD_E_INVALID, "v is not aligned");
	REFUSED(values, NULL, ZEROD_E_INVALID, "values is NULL");
	REFUSED_STEP(rule, 0, "rule is 0");
	REFUSED_STEP(flags, 64, "zerod_optimizer_step");
	REFUSED_STEP(step, 0, "step is 0");
	REFUSED_STEP(lr, NAN, "lr is nan");
	REFUSED_STEP(beta1, 1, "beta1 is 1");
	REFUSED_STEP(dampening, 0.5, "SGD's");
	REFUSED_STEP(overflow, (float *)(void *)((char *)state.scale + 2), "not aligned");
	FAILS(NULL, zerod_optimizer_update(&part, 1, NULL, state.stream), ZEROD_E_INVALID, "step is NULL");
	FAILS(NULL, zerod_optimizer_update(NULL, 1, &step, state.stream), ZEROD_E_INVALID, "parts is NULL");
	FAILS(NULL, zerod_optimizer_update(&part, 0, &step, state.stream), ZEROD_E_INVALID, "count is 0");
	both[0] = both[1] = part;
	both[1].unit = unit.at[1];
	FAILS(rank->client, zerod_optimizer_update(both, 2, &step, state.stream), ZEROD_E_INVALID,
	      "another client than part 0");
	if (other.stream)
		FAILS(rank->client, zerod_optimizer_update(&part, 1, &step, other.stream), ZEROD_E_INVALID,
		      "another client");
	part.m = part.v = NULL;
	FAILS(rank->client, zerod_optimizer_split(&part, 2000, state.stream), ZEROD_E_INVALID,
	      "count is 2000");
	if (on_gpus() && !contract_on_host())
		FAILS(rank->client, zerod_optimizer_join(&part, 1, NULL), ZEROD_E_INVALID, "on a GPU");
	expect_masters(&state, &unit, model);
	publish(&state, &unit);
	state_close(&state);
	state_close(&other);
	free(model);
	contract_close(c);
}
