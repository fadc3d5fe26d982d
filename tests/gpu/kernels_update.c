/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_update.c - an optimizer's update by the GPU beside that by the CPU. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "client/lib/compute/optimizer.h"
#include "tests/gpu/kernels_check.h"

/* Sizes around a thread's, a block's, and the whole grid's. */
static const uint64_t numels[] = {1,    7,    8,    9,      255,
                                  2047, 2048, 2049, 100003, ZC_UPDATE_BLOCKS *ZC_UPDATE_THREADS * 2 + 5};

/* The places of an update's arrays in the image. */
struct places {
	uint64_t shard, low, m, v, values, scale, overflow;
};

static struct places place_all(struct checks *checks, bool split, uint64_t numel, unsigned skip)
{
	checks->used = 0;
	return (struct places){
	        .shard = checks_place(checks, split ? ZEROD_BFLOAT16 : ZEROD_FLOAT32, numel, skip),
	        .low = checks_place(checks, ZEROD_BFLOAT16, numel, skip),
	        .m = checks_place(checks, ZEROD_FLOAT32, numel, 0),
	        .v = checks_place(checks, ZEROD_FLOAT32, numel, 0),
	        .values = checks_place(checks, ZEROD_FLOAT32, numel, skip),
	        .scale = checks_place(checks, ZEROD_FLOAT32, 1, 0),
	        .overflow = checks_place(checks, ZEROD_FLOAT32, 1, 0),
	};
}

static void store_float(struct checks *checks, uint64_t at, float value)
{
	memcpy(checks->wanted + at, &value, sizeof(value));
}

/* The way in which the gradients are given: none, one term of float32, or two of bfloat16. */
static struct zc_terms terms_of(unsigned way)
{
	return (struct zc_terms){.count = way,
	                         .dtype = way == 2 ? ZEROD_BFLOAT16 : ZEROD_FLOAT32,
	                         .prescale = 0.7f,
	                         .postscale = 1.0f / 3};
}

/* Magnitudes of v; no nan, whose bits may differ. */
static void fill_all(struct checks *checks, const struct places *at, bool split, const struct zc_update *like,
                     float overflow)
{
	uint64_t numel = like->numel;
	float *v = (float *)(void *)(checks->wanted + at->v);

	checks_fill(checks, split ? ZEROD_BFLOAT16 : ZEROD_FLOAT32, checks->wanted + at->shard, numel, false);
	for (uint64_t i = 0; i < numel; i++)
		((uint16_t *)(void *)(checks->wanted + at->low))[i] = (uint16_t)checks_random(checks);
	checks_fill(checks, ZEROD_FLOAT32, checks->wanted + at->m, numel, false);
	checks_fill(checks, ZEROD_FLOAT32, v, numel, false);
	for (uint64_t i = 0; i < numel; i++)
		v[i] = fabsf(v[i]);
	if (like->terms.count == 2)
		checks_fill(checks, ZEROD_BFLOAT16, checks->wanted + at->values, 2 * numel, false);
	else
		checks_fill(checks, ZEROD_FLOAT32, checks->wanted + at->values, numel, false);
	store_float(checks, at->scale, 0.37f);
	store_float(checks, at->overflow, overflow);
}

static struct zc_update update_at(const struct zc_update *like, const struct places *at, void *base,
                                  bool split)
{
	struct zc_update update = *like;
	bool steps = like->kind == ZC_UPDATE_ADAM || like->kind == ZC_UPDATE_SGD;

	update.shard = (char *)base + at->shard;
	update.low = split ? (void *)((char *)base + at->low) : NULL;
	update.m = steps ? (void *)((char *)base + at->m) : NULL;
	update.v = like->kind == ZC_UPDATE_ADAM ? (void *)((char *)base + at->v) : NULL;
	if (like->terms.count == 0)
		update.values = (void *)((char *)base + at->values);
	for (uint32_t i = 0; i < like->terms.count; i++)
		update.terms.each[i] = (char *)base + at->values + i * sizeof(uint16_t) * like->numel;
	update.scale = steps ? (void *)((char *)base + at->scale) : NULL;
	update.overflow = steps ? (void *)((char *)base + at->overflow) : NULL;
	return update;
}

static bool check_one(struct checks *checks, const struct zc_update *like, bool split, unsigned skip,
                      float overflow)
{
	struct places at = place_all(checks, split, like->numel, skip);
	struct zc_update here, there;

	fill_all(checks, &at, split, like, overflow);
	if (!checks_upload(checks))
		return false;
	here = update_at(like, &at, checks->wanted, split);
	there = update_at(like, &at, (void *)checks_on_gpu(checks, 0), split);
	if (zc_kernels_update(&checks->kernels, checks->gpu.stream, &there, &checks->err))
		return checks_fail(checks, "%s", checks->err.text);
	zc_update_run(&here);
	return checks_download(checks) && checks_compare(checks);
}

bool check_updates(struct checks *checks)
{
	static const char *const names[] = {"adam", "sgd", "split", "join"};
	struct zc_update like = {.numbers = {.lr = 0.013f,
	                                     .keep = 0.999f,
	                                     .decay = 0.01f,
	                                     .beta1 = 0.9f,
	                                     .rest1 = 0.1f,
	                                     .beta2 = 0.999f,
	                                     .rest2 = 0.001f,
	                                     .root = 0.3f,
	                                     .eps = 1e-8f,
	                                     .sign = -1,
	                                     .nesterov = 1}};

	for (like.kind = ZC_UPDATE_ADAM; like.kind < ZC_UPDATE_KINDS; like.kind++) {
		for (unsigned i = 0; i < ZD_ARRAY_LEN(numels) * 24; i++) {
			bool split = i & 1, steps = like.kind < ZC_UPDATE_SPLIT;
			char why[sizeof(checks->why)];

			like.numel = numels[i / 24];
			like.terms = terms_of(i / 8 % 3);
			if ((!steps && (!split || like.terms.count > 0)) ||
			    check_one(checks, &like, split, i & 2 ? 3 : 0, i & 4 ? 1 : 0))
				continue;
			(void)memcpy(why, checks->why, sizeof(why));
			return checks_fail(checks, "%s of %llu elements, way %u: %.400s", names[like.kind],
			                   (unsigned long long)like.numel, i % 24, why);
		}
	}
	return true;
}
