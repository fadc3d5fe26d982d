/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizer.c - updates of shards by an optimizer, and masters in two halves: the calls of
 * zerod_optimizer.h.
 *
 * All arguments are checked before the first element changes. On emulated devices one piece of work runs all
 * parts of a call, so that a stream accepts all or none of them; a GPU has one kernel for each part.
 */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include <zerod_optimizer.h>

#include "base/mem.h"
#include "client/lib/base/enter.h"
#include "client/lib/base/errors.h"
#include "client/lib/base/handles.h"
#include "client/lib/base/options.h"
#include "client/lib/compute/cast.h"
#include "client/lib/compute/optimizer.h"
#include "client/lib/device/cuda.h"
#include "client/lib/streams/stream.h"

#define MOST_PARTS 1024u

struct updates {
	struct zerod_client *client;
	bool by_cpu; /* all of them: shards in host memory, and no stream of a GPU */
	uint32_t count;
	struct zc_update each[];
};

/* ---- The numbers of a step ----------------------------------------------------------------------------- */

static int check_number(double value, double least, double most, const char *what, struct zd_err *err)
{
	if (value >= least && value <= most)
		return 0;
	return zd_err_set(err, ZEROD_E_INVALID, "%s is %g: %g to %g is expected", what, value, least, most);
}

static int check_adam(const struct zerod_optimizer_step *step, struct zd_err *err)
{
	const double below_one = 1.0 - 0x1p-24; /* the largest float32 below 1 */
	int rc = check_number(step->beta1, 0, below_one, "beta1", err);

	if (!rc)
		rc = check_number(step->beta2, 0, below_one, "beta2", err);
	if (!rc)
		rc = check_number(step->eps, 0, FLT_MAX, "eps", err);
	if (!rc && (step->dampening != 0 || step->flags & ZEROD_OPTIMIZER_NESTEROV))
		rc = zd_err_set(err, ZEROD_E_INVALID, "dampening and NESTEROV are SGD's");
	return rc;
}

static int check_sgd(const struct zerod_optimizer_step *step, struct zd_err *err)
{
	int rc = check_number(step->beta1, 0, FLT_MAX, "beta1 (the momentum)", err);

	if (!rc)
		rc = check_number(step->dampening, -FLT_MAX, FLT_MAX, "dampening", err);
	if (!rc && (step->beta2 != 0 || step->eps != 0))
		rc = zd_err_set(err, ZEROD_E_INVALID, "beta2 and eps are Adam's");
	return rc;
}

static int take_step(const struct zerod_optimizer_step *given, struct zerod_optimizer_step *step,
                     struct zd_err *err)
{
	int rc = given ? zc_options(step, sizeof(*step), given, "zerod_optimizer_step", err)
	               : zd_err_set(err, ZEROD_E_INVALID, "step is NULL");

	if (!rc)
		rc = zc_flags(step->flags, ZEROD_OPTIMIZER_MAXIMIZE | ZEROD_OPTIMIZER_NESTEROV,
		              "zerod_optimizer_step", err);
	if (!rc && (step->rule < ZEROD_RULE_ADAMW || step->rule > ZEROD_RULE_SGD))
		rc = zd_err_set(err, ZEROD_E_INVALID, "rule is %u", step->rule);
	if (!rc && ((uintptr_t)step->scale | (uintptr_t)step->overflow) % sizeof(float) != 0)
		rc = zd_err_set(err, ZEROD_E_INVALID, "scale or overflow is not aligned");
	if (!rc && step->step == 0)
		rc = zd_err_set(err, ZEROD_E_INVALID, "step is 0: the first one is 1");
	if (!rc)
		rc = check_number(step->lr, 0, FLT_MAX, "lr", err);
	if (!rc)
		rc = check_number(step->weight_decay, 0, FLT_MAX, "weight_decay", err);
	if (rc)
		return rc;
	return step->rule == ZEROD_RULE_SGD ? check_sgd(step, err) : check_adam(step, err);
}

static struct zc_update_numbers numbers_of(const struct zerod_optimizer_step *step)
{
	double count = (double)step->step;
	bool is_sgd = step->rule == ZEROD_RULE_SGD, apart = step->rule == ZEROD_RULE_ADAMW;
	double correction = is_sgd ? 1 : 1 - pow(step->beta1, count);

	return (struct zc_update_numbers){
	        .lr = (float)(step->lr / correction),
	        .keep = apart ? (float)(1 - step->lr * step->weight_decay) : 1,
	        .decay = apart ? 0 : (float)step->weight_decay,
	        .beta1 = (float)step->beta1,
	        .rest1 = (float)(1 - (is_sgd ? step->dampening : step->beta1)),
	        .beta2 = (float)step->beta2,
	        .rest2 = (float)(1 - step->beta2),
	        .root = is_sgd ? 1 : (float)sqrt(1 - pow(step->beta2, count)),
	        .eps = (float)step->eps,
	        .sign = step->flags & ZEROD_OPTIMIZER_MAXIMIZE ? -1 : 1,
	        .nesterov = (step->flags & ZEROD_OPTIMIZER_NESTEROV) != 0,
	        .first = step->step == 1 || step->beta1 == 0,
	};
}

/* ---- Parts --------------------------------------------------------------------------------------------- */

static int check_array(const void *array, bool wanted, size_t bytes, const struct zc_unit *unit,
                       const char *what, struct zd_err *err)
{
	if (!array && wanted)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': %s is NULL", unit->name, what);
	if (array && !wanted)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': %s has no meaning here", unit->name,
		                  what);
	if ((uintptr_t)array % bytes != 0)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': %s is not aligned", unit->name, what);
	return 0;
}

static int check_part(const struct zerod_optimizer_part *part, const struct zc_update *update,
                      const struct zc_unit *unit, struct zd_err *err)
{
	bool is_split = unit->dtype == ZEROD_BFLOAT16, is_adam = update->kind == ZC_UPDATE_ADAM;
	bool moves = update->kind == ZC_UPDATE_SGD && update->numbers.beta1 != 0;
	int rc = 0;

	if (!is_split && unit->dtype != ZEROD_FLOAT32)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "unit '%s' is %s: bfloat16 and float32 have masters here", unit->name,
		                  zerod_dtype_name(unit->dtype));
	if (part->offset_numel > unit->true_numel || part->numel > unit->true_numel - part->offset_numel)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "unit '%s': %llu elements at %llu end beyond the shard's %llu", unit->name,
		                  (unsigned long long)part->numel, (unsigned long long)part->offset_numel,
		                  (unsigned long long)unit->true_numel);
	if ((!unit->updating || unit->unawaited) && update->kind != ZC_UPDATE_JOIN)
		return zd_err_set(err, ZEROD_E_STATE, "unit '%s' is not under update%s", unit->name,
		                  unit->unawaited ? " yet: call zerod_wait() on the ticket first" : "");
	if (part->numel == 0)
		return 0;
	if (part->terms && update->kind != ZC_UPDATE_ADAM && update->kind != ZC_UPDATE_SGD)
		return zd_err_set(err, ZEROD_E_INVALID, "unit '%s': terms are for updates", unit->name);
	rc = check_array(part->low, is_split, sizeof(*part->low), unit, "low", err);
	if (!rc)
		rc = check_array(part->m, is_adam || moves, sizeof(float), unit, "m", err);
	if (!rc)
		rc = check_array(part->v, is_adam, sizeof(float), unit, "v", err);
	return rc ? rc : check_array(part->values, !part->terms, sizeof(float), unit, "values", err);
}

/* Takes the terms of the part's elements. */
static int take_terms(const struct zerod_optimizer_part *part, const struct zc_unit *unit,
                      struct zc_terms *to, struct zd_err *err)
{
	struct zerod_terms terms;
	int rc = zc_options(&terms, sizeof(terms), part->terms, "zerod_terms", err);
	size_t each;

	if (rc)
		return rc;
	each = zerod_dtype_bytes(terms.dtype);
	if (terms.dtype != ZEROD_FLOAT32 && terms.dtype != ZEROD_BFLOAT16)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "unit '%s': terms of %s: float32 and bfloat16 are", unit->name,
		                  each ? zerod_dtype_name(terms.dtype) : "an unknown dtype");
	if (terms.count == 0 || terms.count > ZC_MOST_TERMS || terms.shard_numel != unit->shard_numel)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "unit '%s': %u terms of %llu elements: 1 to %u of %llu are expected",
		                  unit->name, terms.count, (unsigned long long)terms.shard_numel,
		                  ZC_MOST_TERMS, (unsigned long long)unit->shard_numel);
	*to = (struct zc_terms){.count = terms.count,
	                        .dtype = terms.dtype,
	                        .prescale = terms.prescale,
	                        .postscale = terms.postscale};
	for (uint32_t i = 0; i < terms.count && !rc; i++) {
		rc = check_array(terms.each[i], true, each, unit, "a term", err);
		to->each[i] = (const char *)terms.each[i] + part->offset_numel * each;
	}
	return rc;
}

/* With the lock. */
static int take_part(struct updates *updates, const struct zerod_optimizer_part *part,
                     const struct zc_update *like, zerod_stream *stream, struct zd_err *err)
{
	struct zc_unit *unit = part->unit->shared;
	struct zc_update *update = &updates->each[updates->count];
	struct zerod_client *client = updates->client;
	void *shard = NULL;
	int rc = check_part(part, like, unit, err);

	if (rc || part->numel == 0)
		return rc;
	rc = zc_stream_map(client, stream, &unit->shard, &shard, err);
	if (rc)
		return rc;
	updates->by_cpu &= !client->on_gpus || (unit->on_host && !(stream && stream->ops->convert));
	*update = *like;
	rc = part->terms ? take_terms(part, unit, &update->terms, err) : 0;
	if (rc)
		return rc;
	update->shard = (char *)shard + part->offset_numel * zerod_dtype_bytes(unit->dtype);
	update->low = part->low;
	update->m = part->m;
	update->v = part->v;
	update->values = part->values;
	update->numel = part->numel;
	updates->count++;
	return 0;
}

static int take_one(struct updates *updates, const struct zerod_optimizer_part *parts, uint32_t i,
                    const struct zc_update *like, zerod_stream *stream, struct zd_err *err)
{
	struct zerod_optimizer_part part;
	int rc = zc_element(&part, sizeof(part), parts, i, "parts", err);

	if (!rc && zc_unit_client(part.unit) != updates->client)
		rc = zd_err_set(err, ZEROD_E_INVALID, "part %u %s", i,
		                part.unit ? "belongs to another client than part 0" : "has no unit");
	if (!rc)
		rc = zc_enter_group(zc_unit_group(part.unit), &err);
	if (rc)
		return rc;
	ZC_LOCKED(&updates->client->lock);
	return take_part(updates, &part, like, stream, err);
}

/* A GPU that accesses unregistered memory of the CPU loses its context. A CPU reaches no memory of a GPU. */
static int check_array_reach(const struct updates *updates, const void *array, const char *name,
                             struct zd_err *err)
{
	if (!array || !updates->client->on_gpus)
		return 0;
	if (updates->by_cpu && zc_cuda_is_gpu_address(updates->client, array))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "%s is memory of a GPU, which the CPU cannot update: pass a stream of the "
		                  "GPU",
		                  name);
	if (!updates->by_cpu && zc_cuda_is_unreachable(updates->client, array))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "%s is memory of the CPU that the GPU cannot access: register it with "
		                  "the driver (cudaHostRegister()), or copy it to the GPU",
		                  name);
	return 0;
}

static int check_reach(const struct updates *updates, const struct zc_update *update, struct zd_err *err)
{
	const void *const arrays[] = {update->low,    update->m,     update->v,
	                              update->values, update->scale, update->overflow};
	static const char *const names[] = {"low", "m", "v", "values", "scale", "overflow"};
	int rc = 0;

	for (size_t i = 0; i < ZD_ARRAY_LEN(arrays) && !rc; i++)
		rc = check_array_reach(updates, arrays[i], names[i], err);
	for (uint32_t i = 0; i < update->terms.count && !rc; i++)
		rc = check_array_reach(updates, update->terms.each[i], "a term", err);
	return rc;
}

/* The updates belong to the caller. */
static int take_all(struct updates *updates, const struct zerod_optimizer_part *parts, uint32_t count,
                    const struct zc_update *like, zerod_stream *stream, struct zd_err *err)
{
	int rc = zc_streams_check_poison(updates->client, err);

	if (!rc)
		rc = zc_stream_check(updates->client, stream, err);
	updates->by_cpu = true;
	updates->count = 0;
	for (uint32_t i = 0; i < count && !rc; i++)
		rc = take_one(updates, parts, i, like, stream, err);
	for (uint32_t i = 0; i < updates->count && !rc; i++)
		rc = check_reach(updates, &updates->each[i], err);
	return rc;
}

/* ---- Running ------------------------------------------------------------------------------------------- */

static void run_all(void *arg)
{
	const struct updates *updates = arg;

	for (uint32_t i = 0; i < updates->count; i++)
		zc_update_run(&updates->each[i]);
}

/* Masters that are float32 shards are copied. */
static int update_on_gpu(zerod_stream *stream, const struct zc_update *update, struct zd_err *err)
{
	struct zc_conversion copy = {
	        .from_dtype = ZEROD_FLOAT32, .to_dtype = ZEROD_FLOAT32, .numel = update->numel};

	if (update->low || update->kind == ZC_UPDATE_ADAM || update->kind == ZC_UPDATE_SGD)
		return stream->ops->update(stream, update, err);
	copy.from = update->kind == ZC_UPDATE_SPLIT ? update->values : update->shard;
	copy.to = update->kind == ZC_UPDATE_SPLIT ? update->shard : update->values;
	return stream->ops->convert(stream, &copy, err);
}

static int run_on_gpu(const struct updates *updates, zerod_stream *stream, struct zd_err *err)
{
	int rc = 0;

	if (!stream || !stream->ops->update)
		return zd_err_set(err, ZEROD_E_INVALID, "the shards are on a GPU, the stream is %s",
		                  stream ? "a host stream" : "NULL");
	rc = stream->ops->converts(stream, err);
	for (uint32_t i = 0; i < updates->count && !rc; i++)
		rc = update_on_gpu(stream, &updates->each[i], err);
	return rc;
}

/* Takes over `updates`. A stream frees them when it has run them. */
static int run(struct updates *updates, zerod_stream *stream, struct zd_err *err)
{
	int rc;

	if (updates->count == 0 || updates->by_cpu)
		return zc_stream_run(updates->count > 0 ? stream : NULL, run_all, updates, err);
	rc = run_on_gpu(updates, stream, err);
	free(updates);
	return rc;
}

static int update_parts(const struct zerod_optimizer_part *parts, uint32_t count,
                        const struct zc_update *like, zerod_stream *stream, struct zd_err *err)
{
	struct zerod_optimizer_part first;
	struct updates *updates;
	int rc;

	if (!parts || count == 0 || count > MOST_PARTS)
		return zd_err_set(err, ZEROD_E_INVALID, "parts is %s, count is %u: 1 to %u",
		                  parts ? "given" : "NULL", count, MOST_PARTS);
	rc = zc_element(&first, sizeof(first), parts, 0, "parts", err);
	if (rc)
		return rc;
	ZC_INSIDE(zc_unit_client(first.unit));
	rc = zc_enter_group(zc_unit_group(first.unit), &err);
	if (rc)
		return rc;
	updates = malloc(sizeof(*updates) + count * sizeof(updates->each[0]));
	if (!updates)
		return zd_err_errno(err, ENOMEM, "updating %u parts", count);
	updates->client = zc_unit_client(first.unit);
	rc = take_all(updates, parts, count, like, stream, err);
	if (!rc)
		return run(updates, stream, err);
	free(updates);
	return rc;
}

int zerod_optimizer_update(const struct zerod_optimizer_part *parts, uint32_t count,
                           const struct zerod_optimizer_step *given, zerod_stream *stream)
{
	struct zerod_optimizer_step step;
	struct zd_err *err = zc_err(NULL);
	struct zc_update like;
	int rc = take_step(given, &step, err);

	if (rc)
		return rc;
	like = (struct zc_update){
	        .kind = step.rule == ZEROD_RULE_SGD ? ZC_UPDATE_SGD : ZC_UPDATE_ADAM,
	        .scale = step.scale,
	        .overflow = step.overflow,
	        .numbers = numbers_of(&step),
	};
	return update_parts(parts, count, &like, stream, err);
}

int zerod_optimizer_split(const struct zerod_optimizer_part *parts, uint32_t count, zerod_stream *stream)
{
	return update_parts(parts, count, &(struct zc_update){.kind = ZC_UPDATE_SPLIT}, stream, zc_err(NULL));
}

int zerod_optimizer_join(const struct zerod_optimizer_part *parts, uint32_t count, zerod_stream *stream)
{
	return update_parts(parts, count, &(struct zc_update){.kind = ZC_UPDATE_JOIN}, stream, zc_err(NULL));
}
