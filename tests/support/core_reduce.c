/* SPDX-License-Identifier: Apache-2.0 */
/* core_reduce.c - gradient reduction with a driven engine: requests in words, gradients of known values,
 * their sums. */
#include <math.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "core_reduce.h"

/* ---- Elements ------------------------------------------------------------------------------------------ */

float core_element(enum zerod_dtype dtype, const void *data, uint64_t i)
{
	if (dtype == ZEROD_FLOAT32)
		return ((const float *)data)[i];
	uint16_t bits = ((const uint16_t *)data)[i];
	return dtype == ZEROD_FLOAT16 ? zd_f16_to_f32(bits) : zd_bf16_to_f32(bits);
}

void core_element_set(enum zerod_dtype dtype, void *data, uint64_t i, float value)
{
	if (dtype == ZEROD_FLOAT32)
		((float *)data)[i] = value;
	else
		((uint16_t *)data)[i] = dtype == ZEROD_FLOAT16 ? zd_f32_to_f16(value) : zd_f32_to_bf16(value);
}

float core_gradient(uint32_t rank, uint64_t i)
{
	return (float)(rank + 1) + (float)(i % 5);
}

void core_write(struct core_driver *core, struct zd_location where, enum zerod_dtype dtype, uint32_t rank,
                uint64_t numel, float factor)
{
	void *data = core_bytes(core, where);
	assert_true(numel * zerod_dtype_bytes(dtype) <= where.bytes);
	for (uint64_t i = 0; i < numel; i++)
		core_element_set(dtype, data, i, core_gradient(rank, i) * factor);
}

void core_reduce_execute(struct core_driver *core, const struct zd_reduce_desc *desc,
                         struct zd_op_result *result)
{
	void *target = core_bytes(core, desc->target);
	uint64_t input_bytes = desc->numel * zerod_dtype_bytes(desc->input_dtype);
	assert_true(desc->target.bytes == desc->numel * zerod_dtype_bytes(desc->target_dtype));
	assert_true(desc->ninputs > 0 || desc->overwrite);
	for (uint64_t i = 0; i < desc->numel; i++) {
		float sum = 0.0f;
		for (uint32_t k = 0; k < desc->ninputs; k++) {
			assert_true(desc->inputs[k].bytes == input_bytes);
			sum += core_element(desc->input_dtype, core_bytes(core, desc->inputs[k]), i) *
			       desc->prescale;
		}
		sum *= desc->postscale;
		if (!desc->overwrite)
			sum += core_element(desc->target_dtype, target, i);
		core_element_set(desc->target_dtype, target, i, sum);
		sum = core_element(desc->target_dtype, target, i);
		result->sum_squares += (double)sum * (double)sum;
		result->overflow |= !isfinite(sum);
	}
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

uint64_t core_backward_into(struct core_team *team, uint32_t rank, uint32_t stage, bool boundary,
                            uint32_t target_dtype)
{
	struct zd_args args = {.kind = ZD_REQ_BACKWARD_BEGIN,
	                       .u.backward_begin = {.group = team->group,
	                                            .stage = stage,
	                                            .boundary = boundary,
	                                            .target_dtype = target_dtype}};
	return core_send(team->core, team->session[rank], &args);
}

uint64_t core_backward(struct core_team *team, uint32_t rank, uint32_t stage, bool boundary)
{
	return core_backward_into(team, rank, stage, boundary, 0);
}

uint64_t core_backward_end(struct core_team *team, uint32_t rank)
{
	struct zd_args args = {.kind = ZD_REQ_BACKWARD_END, .u.backward_end.group = team->group};
	return core_send(team->core, team->session[rank], &args);
}

uint64_t core_bucket(struct core_team *team, uint32_t rank, uint32_t dtype, uint64_t slot_bytes,
                     uint32_t nslots)
{
	struct zd_args args = {
	        .kind = ZD_REQ_BUCKET_CREATE,
	        .u.bucket_create = {
	                .group = team->group, .dtype = dtype, .slot_bytes = slot_bytes, .nslots = nslots}};
	return core_send(team->core, team->session[rank], &args);
}

uint64_t core_bucket_ok(struct core_team *team, uint32_t rank, uint32_t dtype, uint64_t slot_bytes,
                        uint32_t nslots)
{
	return core_expect(team->core, core_bucket(team, rank, dtype, slot_bytes, nslots), 0)
	        ->u.bucket_create.bucket;
}

uint64_t core_bucket_destroy(struct core_team *team, uint32_t rank, uint64_t bucket)
{
	struct zd_args args = {.kind = ZD_REQ_BUCKET_DESTROY, .u.bucket_destroy.bucket = bucket};
	return core_send(team->core, team->session[rank], &args);
}

uint64_t core_reserve(struct core_team *team, uint32_t rank, uint64_t bucket, uint64_t unit)
{
	struct zd_args args = {.kind = ZD_REQ_BUCKET_RESERVE,
	                       .u.bucket_reserve = {.bucket = bucket, .unit = unit}};
	return core_send(team->core, team->session[rank], &args);
}

uint64_t core_bucket_submit(struct core_team *team, uint32_t rank, const struct core_commit *commit)
{
	struct zd_args args = {.kind = ZD_REQ_BUCKET_SUBMIT,
	                       .u.bucket_submit = {.bucket = commit->bucket,
	                                           .entry = commit->entry,
	                                           .op = commit->op,
	                                           .prescale = commit->prescale,
	                                           .overwrite = commit->overwrite,
	                                           .terms = commit->terms},
	                       .fences = {commit->nfences, commit->fences}};
	return core_send(team->core, team->session[rank], &args);
}

uint64_t core_skip(struct core_team *team, uint32_t rank, uint64_t unit)
{
	struct zd_args args = {.kind = ZD_REQ_REDUCE_SKIP, .u.reduce_skip.unit = unit};
	return core_send(team->core, team->session[rank], &args);
}

uint64_t core_wait_sum(struct core_team *team, uint32_t rank, uint64_t unit, bool ahead)
{
	struct zd_args args = {.kind = ZD_REQ_REDUCE_WAIT, .u.reduce_wait = {.unit = unit, .ahead = ahead}};
	return core_send(team->core, team->session[rank], &args);
}

uint64_t core_wait_terms(struct core_team *team, uint32_t rank, uint64_t unit)
{
	struct zd_args args = {.kind = ZD_REQ_REDUCE_WAIT, .u.reduce_wait = {.unit = unit, .terms = true}};
	return core_send(team->core, team->session[rank], &args);
}

uint64_t core_return_sum(struct core_team *team, uint32_t rank, uint64_t unit, const struct zd_fence *fence)
{
	struct zd_args args = {.kind = ZD_REQ_TARGET_RETURN,
	                       .u.target_return = {.n_units = 1, .units = &unit},
	                       .fences = {fence != NULL, fence}};
	return core_send(team->core, team->session[rank], &args);
}

uint64_t core_step(struct core_team *team, uint32_t rank)
{
	struct zd_args args = {.kind = ZD_REQ_STEP_BEGIN, .u.step_begin.group = team->group};
	return core_send(team->core, team->session[rank], &args);
}

uint64_t core_step_end(struct core_team *team, uint32_t rank, const struct zd_fence *fences, uint32_t nfences)
{
	struct zd_args args = {
	        .kind = ZD_REQ_STEP_END, .u.step_end = {.group = team->group}, .fences = {nfences, fences}};
	return core_send(team->core, team->session[rank], &args);
}

/* ---- Whole passes -------------------------------------------------------------------------------------- */

struct core_reducers core_reducers_new(struct core_driver *core, uint32_t world_size, uint32_t dtype,
                                       uint64_t slot_bytes, uint32_t nslots)
{
	struct core_reducers g = {.dtype = dtype, .team = core_team_new(core, "job", world_size, false)};
	for (uint32_t rank = 0; rank < world_size; rank++) {
		uint64_t request = core_bucket(&g.team, rank, dtype, slot_bytes, nslots);
		g.bucket[rank] = core_expect(core, request, 0)->u.bucket_create.bucket;
	}
	return g;
}

uint64_t core_reducers_unit(struct core_reducers *g, const char *name, uint64_t numel)
{
	struct core_unit unit = {.name = name, .numel = numel};
	uint64_t id = core_team_register(&g->team, &unit);
	struct core_row row;
	core_row(g->team.core, ZD__TABLE__UNITS, id, &row);
	g->numel = numel;
	g->shard_numel = row.row->unit->padded_bytes / 4 / g->team.world_size;
	return id;
}

void core_reducers_units(struct core_reducers *g, uint64_t *units, uint32_t count, uint64_t numel)
{
	for (uint32_t i = 0; i < count; i++)
		units[i] = core_reducers_unit(g, (char[]){(char)('a' + (char)i), '\0'}, numel);
}

void core_reducers_begin(struct core_reducers *g, uint32_t stage, bool boundary)
{
	for (uint32_t rank = 0; rank < g->team.world_size; rank++)
		core_expect(g->team.core, core_backward(&g->team, rank, stage, boundary), 0);
}

void core_reducers_end(struct core_reducers *g)
{
	uint64_t request[CORE_TEAM];
	for (uint32_t rank = 0; rank < g->team.world_size; rank++)
		request[rank] = core_backward_end(&g->team, rank);
	for (uint32_t rank = 0; rank < g->team.world_size; rank++)
		core_expect(g->team.core, request[rank], 0);
}

uint64_t core_put(struct core_reducers *g, uint32_t rank, uint64_t unit, float factor)
{
	struct core_driver *core = g->team.core;
	const struct zd_reply *reply = core_expect(core, core_reserve(&g->team, rank, g->bucket[rank], unit),
	                                           0);
	struct core_row row;
	core_row(core, ZD__TABLE__UNITS, unit, &row);
	core_write(core, reply->place, g->dtype, rank, row.row->unit->numel, factor);
	return reply->u.bucket_reserve.entry;
}

uint64_t core_submit(struct core_reducers *g, uint32_t rank, uint64_t entry, const struct zd_fence *fence)
{
	struct core_commit commit = {
	        .bucket = g->bucket[rank], .entry = entry, .nfences = fence != NULL, .fences = fence};
	return core_bucket_submit(&g->team, rank, &commit);
}

uint64_t core_submit_terms(struct core_reducers *g, uint32_t rank, uint64_t entry,
                           const struct zd_fence *fence)
{
	struct core_commit commit = {.bucket = g->bucket[rank],
	                             .entry = entry,
	                             .terms = true,
	                             .nfences = fence != NULL,
	                             .fences = fence};
	return core_bucket_submit(&g->team, rank, &commit);
}

void core_reduce(struct core_reducers *g, uint32_t rank, uint64_t unit, float factor)
{
	core_expect(g->team.core, core_submit(g, rank, core_put(g, rank, unit, factor), NULL), 0);
}

void core_reduce_all(struct core_reducers *g, uint64_t unit, float factor)
{
	for (uint32_t rank = 0; rank < g->team.world_size; rank++)
		core_reduce(g, rank, unit, factor);
}

void core_skip_all(struct core_reducers *g, uint64_t unit)
{
	for (uint32_t rank = 0; rank < g->team.world_size; rank++)
		core_expect(g->team.core, core_skip(&g->team, rank, unit), 0);
}

void core_reducers_step(struct core_reducers *g, const struct zd_reply *replies[CORE_TEAM])
{
	uint64_t request[CORE_TEAM];
	for (uint32_t rank = 0; rank < g->team.world_size; rank++)
		request[rank] = core_step(&g->team, rank);
	for (uint32_t rank = 0; rank < g->team.world_size; rank++)
		replies[rank] = core_expect(g->team.core, request[rank], 0);
}

void core_reducers_step_end(struct core_reducers *g)
{
	for (uint32_t rank = 0; rank < g->team.world_size; rank++)
		core_expect(g->team.core, core_step_end(&g->team, rank, NULL, 0), 0);
}

void core_check_target(struct core_reducers *g, uint32_t rank, const struct zd_reply *step,
                       uint64_t offset_numel, float factor)
{
	enum zerod_dtype dtype = step->u.step_begin.target_dtype;
	const uint8_t *data = core_bytes(g->team.core, step->target);
	assert_int_equal(step->kind, ZD_REQ_STEP_BEGIN);
	data += offset_numel * zerod_dtype_bytes(dtype);
	for (uint64_t i = 0; i < g->shard_numel; i++) {
		uint64_t element = rank * g->shard_numel + i;
		float expected = 0.0f;
		for (uint32_t source = 0; source < g->team.world_size && element < g->numel; source++)
			expected += core_gradient(source, element) * factor;
		if (core_element(dtype, data, i) != expected)
			fail_msg("rank %u, element %llu is %g, not %g", rank, (unsigned long long)i,
			         (double)core_element(dtype, data, i), (double)expected);
	}
}

void core_check_step(struct core_reducers *g, uint64_t number, uint32_t nunits, float factor)
{
	const struct zd_reply *step[CORE_TEAM];
	core_reducers_step(g, step);
	for (uint32_t rank = 0; rank < g->team.world_size; rank++) {
		assert_false(step[rank]->u.step_begin.abandoned);
		assert_true(number == 0 || step[rank]->u.step_begin.step == number);
		for (uint32_t i = 0; i < nunits; i++)
			core_check_target(g, rank, step[rank], i * g->shard_numel, factor);
	}
	core_reducers_step_end(g);
}

void core_scene_open(struct core_scene *s, uint32_t nranks, uint32_t nunits,
                     const struct core_options *options)
{
	struct core_options mine = options ? *options : (struct core_options){0};
	if (mine.ndevices == 0)
		mine.ndevices = nranks;
	s->core = core_new(&mine);
	s->g = core_reducers_new(s->core, nranks, ZEROD_FLOAT32, CORE_SLOT_BYTES, 2);
	s->unit = nunits > 0 ? core_reducers_unit(&s->g, "w", CORE_NUMEL) : 0;
	s->other = nunits > 1 ? core_reducers_unit(&s->g, "x", CORE_NUMEL) : 0;
}
