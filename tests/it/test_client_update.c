/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_update.c - masters in two halves and an optimizer's update by the CPU, beside references that
 * compute in double, or by comparing distances.
 *
 * ZEROD_TEST_SWEEP=1 splits all 2^32 patterns, else some.
 */
#include <math.h>

#include "base/mem.h"
#include "client/kernels/update.h"
#include "client/lib/compute/optimizer.h"
#include "tests/support/test.h"

#define NUMEL 1003u
#define STEPS 200u

/* ---- Halves -------------------------------------------------------------------------------------------- */

static bool is_nan(uint32_t bits)
{
	return (bits & ZC_F32_MAGNITUDE) > ZC_F32_INF;
}

/* The nearest of the neighbours that have 16 bits; halfway between two, the one that is further from zero. */
static bool is_nearest(uint32_t bits, uint16_t high)
{
	uint32_t below = bits & 0xffff0000u, above = below + 0x10000u;

	return (uint32_t)high << 16 == (bits - below < above - bits ? below : above);
}

static void check_pattern(uint32_t bits)
{
	float master = zc_f32_from_bits(bits);
	uint16_t high = zc_master_high(master), low = zc_master_low(master);

	if (is_nan(bits)) {
		assert_int_equal(high, 0x7fc0);
		assert_int_equal(low, 0);
		return;
	}
	if (!is_nearest(bits, high) || zc_f32_bits(zc_master_join(high, low)) != bits)
		fail_msg("0x%08x is split into 0x%04x and 0x%04x", bits, high, low);
}

TEST(test_halves_give_back_every_float)
{
	uint64_t stride = getenv("ZEROD_TEST_SWEEP") ? 1 : 257;

	for (uint64_t bits = 0; bits <= UINT32_MAX; bits += stride)
		check_pattern((uint32_t)bits);
	for (uint32_t high = 0; high <= 0xffffu; high++) /* around every tie, infinity and nan */
		for (uint32_t low = 0x7ffe; low <= 0x8002; low++)
			check_pattern(high << 16 | low);
}

/* ---- Updates ------------------------------------------------------------------------------------------- */

struct model {
	uint16_t high[NUMEL], low[NUMEL];
	float master[NUMEL], m[NUMEL], v[NUMEL], gradient[NUMEL];
};

static float number(uint64_t i)
{
	uint64_t mixed = (i + 1) * 0x9e3779b97f4a7c15ull;

	return ((float)(mixed >> 40) / (1 << 24) - 0.5f) * ldexpf(1, (int)(mixed & 15) - 8);
}

static struct model *model_new(void)
{
	struct model *model = zd_calloc(1, sizeof(*model));

	for (uint32_t i = 0; i < NUMEL; i++) {
		model->master[i] = number(i);
		model->high[i] = zc_master_high(model->master[i]);
		model->low[i] = zc_master_low(model->master[i]);
		model->m[i] = model->v[i] = NAN; /* the first step reads no momentum; Adam's are zeroed */
	}
	return model;
}

/* With split masters, or with float32 shards: `first` to `last` of them. */
static void update(struct model *model, const struct zc_update *like, bool split, uint32_t first,
                   uint32_t last)
{
	struct zc_update update = *like;

	update.shard = split ? (void *)(model->high + first) : (void *)(model->master + first);
	update.low = split ? model->low + first : NULL;
	update.m = model->m + first;
	update.v = like->kind == ZC_UPDATE_ADAM ? model->v + first : NULL;
	update.values = model->gradient + first;
	update.numel = last - first;
	zc_update_run(&update);
}

static void set_gradients(struct model *model, uint64_t step)
{
	for (uint32_t i = 0; i < NUMEL; i++)
		model->gradient[i] = number(step * NUMEL + i) + model->master[i] / 8;
}

static void zero_state(struct model *model)
{
	memset(model->m, 0, sizeof(model->m));
	memset(model->v, 0, sizeof(model->v));
}

/* In double, as the formulas of docs/optimizer.md stand. */
static void adam_reference(double *p, double *m, double *v, double g, uint32_t step, bool apart)
{
	const double lr = 1e-2, beta1 = 0.9, beta2 = 0.99, eps = 1e-8, decay = 0.1;

	if (apart)
		*p *= 1 - lr * decay;
	else
		g += decay * *p;
	*m = beta1 * *m + (1 - beta1) * g;
	*v = beta2 * *v + (1 - beta2) * g * g;
	*p -= lr / (1 - pow(beta1, step)) * *m / (sqrt(*v) / sqrt(1 - pow(beta2, step)) + eps);
}

static struct zc_update adam(uint32_t step, bool apart)
{
	return (struct zc_update){.kind = ZC_UPDATE_ADAM,
	                          .numbers = {.lr = (float)(1e-2 / (1 - pow(0.9, step))),
	                                      .keep = apart ? 0.999f : 1,
	                                      .decay = apart ? 0 : 0.1f,
	                                      .beta1 = 0.9f,
	                                      .rest1 = 0.1f,
	                                      .beta2 = 0.99f,
	                                      .rest2 = 0.01f,
	                                      .root = (float)sqrt(1 - pow(0.99, step)),
	                                      .eps = 1e-8f,
	                                      .sign = 1}};
}

/* Split, whole and cut into ranges: the same bits; and close to the formulas. */
static void check_adam(bool apart)
{
	struct model *split = model_new(), *whole = model_new(), *cut = model_new();
	double p[NUMEL], m[NUMEL] = {0}, v[NUMEL] = {0};

	zero_state(split), zero_state(whole), zero_state(cut);
	for (uint32_t i = 0; i < NUMEL; i++)
		p[i] = whole->master[i];
	for (uint32_t step = 1; step <= STEPS; step++) {
		struct zc_update like = adam(step, apart);

		set_gradients(whole, step);
		memcpy(split->gradient, whole->gradient, sizeof(whole->gradient));
		memcpy(cut->gradient, whole->gradient, sizeof(whole->gradient));
		for (uint32_t i = 0; i < NUMEL; i++)
			adam_reference(&p[i], &m[i], &v[i], whole->gradient[i], step, apart);
		update(whole, &like, false, 0, NUMEL);
		update(split, &like, true, 0, NUMEL);
		update(cut, &like, true, 0, step);
		update(cut, &like, true, step, NUMEL);
	}
	for (uint32_t i = 0; i < NUMEL; i++) {
		float joined = zc_master_join(split->high[i], split->low[i]);

		assert_memory_equal(&joined, &whole->master[i], sizeof(joined));
		assert_true(fabs(joined - p[i]) <= 1e-5 * (fabs(p[i]) + 1));
	}
	assert_memory_equal(split->m, whole->m, sizeof(whole->m));
	assert_memory_equal(split->v, whole->v, sizeof(whole->v));
	assert_memory_equal(cut->high, split->high, sizeof(cut->high));
	assert_memory_equal(cut->low, split->low, sizeof(cut->low));
	free(split), free(whole), free(cut);
}

TEST(test_adam)
{
	check_adam(true);
	check_adam(false);
}

TEST(test_sgd)
{
	struct zc_update like = {.kind = ZC_UPDATE_SGD,
	                         .numbers = {.lr = 0.5f,
	                                     .decay = 0.25f,
	                                     .beta1 = 0.5f,
	                                     .rest1 = 0.75f,
	                                     .sign = 1,
	                                     .nesterov = 1,
	                                     .first = 1}};
	struct model *model = model_new();
	float before = model->master[7], g, moved;

	set_gradients(model, 1);
	g = model->gradient[7] + 0.25f * before;
	update(model, &like, false, 0, NUMEL);
	assert_true(model->m[7] == g); /* no momentum yet, and so no dampening */
	assert_true(model->master[7] == before - 0.5f * (g + 0.5f * g));
	like.numbers.first = 0;
	before = model->master[7], moved = g;
	set_gradients(model, 2);
	g = model->gradient[7] + 0.25f * before;
	moved = 0.5f * moved + 0.75f * g;
	update(model, &like, false, 0, NUMEL);
	assert_true(model->m[7] == moved);
	assert_true(model->master[7] == before - 0.5f * (g + 0.5f * moved));
	free(model);
}

/* A scale and a sign are factors of the gradient; after an overflow everything stays as it was. */
TEST(test_scale_and_overflow)
{
	struct model *model = model_new(), *other = model_new();
	struct zc_update like = adam(1, true);
	float scale = 0.25f, overflow = 1;

	zero_state(model), zero_state(other);
	set_gradients(model, 1);
	for (uint32_t i = 0; i < NUMEL; i++)
		other->gradient[i] = model->gradient[i] * -0.25f;
	update(other, &like, true, 0, NUMEL);
	like.scale = &scale, like.overflow = &overflow;
	like.numbers.sign = -1;
	update(model, &like, true, 0, NUMEL);
	assert_true(zc_master_join(model->high[3], model->low[3]) == model->master[3] && model->m[3] == 0);
	overflow = 0;
	update(model, &like, true, 0, NUMEL);
	assert_memory_equal(model->high, other->high, sizeof(model->high));
	assert_memory_equal(model->low, other->low, sizeof(model->low));
	assert_memory_equal(model->v, other->v, sizeof(model->v));
	free(model), free(other);
}

/* Neither is lost in the halves. */
TEST(test_nan_and_infinity)
{
	struct model *model = model_new();
	struct zc_update like = adam(1, true);

	zero_state(model);
	set_gradients(model, 1);
	model->gradient[1] = NAN;
	model->gradient[2] = INFINITY;
	update(model, &like, true, 0, NUMEL);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(isnan(zc_master_join(model->high[i], model->low[i])) != 0, i == 1 || i == 2);
	assert_true(isnan(zc_f32_from_bf16(model->high[1]))); /* what is gathered shows it */
	free(model);
}
