/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oracle.c - what must be in gathered buffers and in targets, computed from what the clients did.
 *
 * A shard's content is known by number for each version. A reduced gradient is the sum of what the ranks
 * wrote, in float32 and rank order, in the target's dtype after every backward; so the comparison is exact.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sim.h"

void zd_sim_taint(struct zd_sim_world *world, uint32_t group)
{
	world->groups[group].tainted = true;
}

void zd_sim_gather_check(struct zd_sim_world *world, const struct zd_sim_item *item)
{
	const struct zd_sim_group_config *group = &world->config.groups[item->group];
	uint64_t each = zerod_dtype_bytes(group->units[item->unit].dtype);
	uint64_t shard_bytes = zd_sim_shard_numel(group, item->unit) * each;
	const uint8_t *bytes = zd_sim_memory(world, &item->at, "gathered buffer");

	for (uint64_t r = item->begin; r < item->end; r++, bytes += shard_bytes) {
		uint64_t true_bytes = zd_sim_true_numel(group, item->unit, r) * each;
		if (item->keys[r] ==
		    ZD_SIM_UNKNOWN) /* committed without being restored: the trainers' own doing */
			continue;
		size_t same = zd_sim_pattern_check(item->keys[r], bytes, true_bytes);

		if (same != true_bytes)
			zd_sim_fail(
			        world,
			        "gathered %s/%s at %u+%llu, version %llu: slice of rank %llu is wrong from "
			        "byte %zu of %llu",
			        group->name, group->units[item->unit].name, item->at.segment,
			        (unsigned long long)item->at.offset, (unsigned long long)item->value,
			        (unsigned long long)r, same, (unsigned long long)true_bytes);
		same = zd_sim_pattern_check(0, bytes + true_bytes, shard_bytes - true_bytes);
		if (same != shard_bytes - true_bytes)
			zd_sim_fail(world, "gathered %s/%s, version %llu: padding of rank %llu is not zero",
			            group->name, group->units[item->unit].name,
			            (unsigned long long)item->value, (unsigned long long)r);
	}
	world->stats.gathers_checked++;
}

/* Small numbers beside large ones, so that a sum in another order is another sum; all are exact in every
 * dtype. */
float zd_sim_gradient_value(uint64_t key, uint64_t inf_at, uint64_t index)
{
	uint32_t bits = (uint32_t)(key ^ (key >> 32)) + (uint32_t)index * 2654435761u;

	if (index == inf_at)
		return INFINITY;
	return ldexpf((float)((int)(bits >> 16) % 7 - 3), (int)(bits >> 8) % 25 - 14);
}

static bool has_gradient(const struct zd_sim_group_config *config, const struct zd_sim_gradient *gradients)
{
	bool any = false;

	for (uint32_t r = 0; r < config->world; r++)
		any = any || gradients[r].present;
	return any;
}

/* target = backward's sum, on top of what it holds. True: an inf came up. */
static bool apply_backward(const struct zd_sim_group_config *config, const struct zd_sim_gradient *gradients,
                           uint64_t numel, uint64_t padded, float *target)
{
	const struct zd_sim_plan *plan = &config->plan;
	float prescale = plan->prescale == 0 ? 1 : plan->prescale;
	float postscale = plan->op == ZEROD_MEAN ? 1.0f / (float)config->world : 1;
	bool overflow = false;

	if (!has_gradient(config, gradients))
		return false;
	for (uint64_t i = 0; i < padded; i++) {
		float sum = 0;
		for (uint32_t r = 0; i < numel && r < config->world; r++) {
			if (gradients[r].present)
				sum += zd_sim_gradient_value(gradients[r].key, gradients[r].inf_at, i) *
				       prescale;
		}
		sum *= postscale;
		if (!plan->overwrite)
			sum += target[i];
		uint8_t stored[sizeof(float)];
		zd_sim_float_store(plan->target_dtype, stored, 0, sum);
		target[i] = zd_sim_float_load(plan->target_dtype, stored, 0);
		overflow = overflow || !isfinite(target[i]);
	}
	return overflow;
}

/* Ranks have written over what they were lent. */
static void apply_edits(const struct zd_sim_group_config *config, const struct zd_sim_gradient *gradients,
                        uint64_t shard, float *target)
{
	for (uint32_t r = 0; r < config->world; r++) {
		for (uint64_t i = 0; gradients[r].edit && i < shard; i++)
			target[r * shard + i] = zd_sim_gradient_value(gradients[r].edit, UINT64_MAX, i);
	}
}

void zd_sim_expect_unit(const struct zd_sim_world *world, const struct zd_sim_item *item, float *expected)
{
	const struct zd_sim_group_config *config = &world->config.groups[item->group];
	uint64_t shard = zd_sim_shard_numel(config, item->unit);

	for (uint64_t b = zd_max_u64(item->begin, item->sum_first); b < item->end; b++) {
		const struct zd_sim_gradient *gradients =
		        world->groups[item->group].gradients[b % ZD_SIM_BACKWARDS][item->unit];
		(void)apply_backward(config, gradients, config->units[item->unit].numel,
		                     config->world * shard, expected);
		if (b + 1 < item->end)
			apply_edits(config, gradients, shard, expected);
	}
	for (uint64_t i = 0; item->key && i < config->world * shard; i++)
		expected[i] = zd_sim_gradient_value(item->key, UINT64_MAX, i % shard);
}

/* Norms are those of the last sum, whatever was written over it. */
static double expect_unit_step(struct zd_sim_world *world, uint32_t group, uint32_t unit, float *expected)
{
	const struct zd_sim_group_config *config = &world->config.groups[group];
	struct zd_sim_group *model = &world->groups[group];
	uint64_t shard = zd_sim_shard_numel(config, unit), padded = config->world * shard;
	double norm_squared = 0;

	for (uint32_t b = model->step_first; b < model->step_last; b++) {
		const struct zd_sim_gradient *gradients = model->gradients[b % ZD_SIM_BACKWARDS][unit];
		model->overflow_once |= apply_backward(config, gradients, config->units[unit].numel, padded,
		                                       expected);
		if (has_gradient(config, gradients))
			norm_squared = 0;
		for (uint64_t i = 0; i < padded && has_gradient(config, gradients); i++)
			norm_squared += (double)expected[i] * (double)expected[i];
		apply_edits(config, gradients, shard, expected);
	}
	return norm_squared;
}

void zd_sim_expect_step(struct zd_sim_world *world, uint32_t group, uint32_t first, uint32_t last)
{
	const struct zd_sim_group_config *config = &world->config.groups[group];
	struct zd_sim_group *model = &world->groups[group];

	model->step_first = first;
	model->step_last = last;
	model->norm_squared = 0;
	model->overflow_once = false;
	for (uint32_t u = 0; u < config->nunits; u++) {
		free(model->expected[u]);
		model->expected[u] = zd_calloc(config->world * zd_sim_shard_numel(config, u), sizeof(float));
		model->norm_squared += expect_unit_step(world, group, u, model->expected[u]);
	}
}

void zd_sim_target_check(struct zd_sim_world *world, const struct zd_sim_session *session,
                         const struct zd_sim_item *item)
{
	const struct zd_sim_group_config *config = &world->config.groups[item->group];
	const struct zd_sim_group *model = &world->groups[item->group];
	const struct zd_sim_member *member = &session->members[item->group];
	uint32_t rank = zd_sim_rank(&world->config, session->actor, item->group);
	uint64_t each = zerod_dtype_bytes(config->plan.target_dtype);

	if (model->step_first != item->begin || model->step_last != item->end)
		return;
	if (item->nfences && model->tainted) /* the step was promised, and has failed since */
		return;
	const uint8_t *bytes = zd_sim_memory(world, &item->at, "target");
	for (uint32_t u = 0; u < config->nunits; u++) {
		uint64_t shard = zd_sim_shard_numel(config, u), offset = item->keys[u];

		if (config->units[u].frozen || !(item->units >> u & 1) || !member->handles[u].id)
			continue;
		uint64_t end = offset + shard;
		if (end * each > item->at.bytes)
			zd_sim_fail(world, "slice of %s/%s ends at element %llu of a target of %llu bytes",
			            config->name, config->units[u].name, (unsigned long long)end,
			            (unsigned long long)item->at.bytes);
		for (uint64_t i = 0; i < shard; i++) {
			float found = zd_sim_float_load(config->plan.target_dtype, bytes, offset + i);
			float want = model->expected[u][rank * shard + i];
			if (found != want && !(isnan(found) && isnan(want)))
				zd_sim_fail(world,
				            "target of %s/%s, rank %u, element %llu: found %g, the reference "
				            "sum is %g",
				            config->name, config->units[u].name, rank, (unsigned long long)i,
				            (double)found, (double)want);
		}
	}
	world->stats.reductions_checked++;
}
