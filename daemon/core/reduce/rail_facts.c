/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail_facts.c - the values that the ranks of a rail compare before they exchange a slice.
 *
 * All ranks of a rail must reduce the same unit, and contribute with the same options. A daemon whose ranks
 * have all skipped the unit has no options, and learns them from the others.
 */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/text.h"
#include "core/cluster/cluster.h"
#include "core/reduce/slice.h"

bool zd_slice_contributes(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	return slice->planner == &zd_plan_exchange ? r->ranks[slice->owner].entry != NULL : r->nsubmitted > 0;
}

struct zd_rail_facts zd_rail_facts_of(const struct zd_slice *slice)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_member_reduce *mr = zd_member_reduce(&r->group->members[slice->owner]);
	return (struct zd_rail_facts){
	        .unit = zd_text_hash(r->unit->name),
	        .shard_numel = r->unit->shard_numel,
	        .contributes = zd_slice_contributes(slice),
	        .op = r->options.op,
	        .dtype = r->options.dtype,
	        .overwrite = r->options.overwrite,
	        .prescale = r->options.prescale,
	        .all_reduce = r->unit->all_reduce,
	        .target_dtype = mr->w->target_dtype,
	};
}

/* Compares values that do not depend on contributions. An all-gather of totals has the target's element
 * size. */
static bool units_differ(const struct zd_rail_facts *a, const struct zd_rail_facts *b)
{
	return a->unit != b->unit || a->shard_numel != b->shard_numel || a->all_reduce != b->all_reduce ||
	       a->target_dtype != b->target_dtype;
}

static bool options_differ(const struct zd_rail_facts *a, const struct zd_rail_facts *b)
{
	return a->op != b->op || a->dtype != b->dtype || a->overwrite != b->overwrite ||
	       a->prescale != b->prescale;
}

/* Whether the options are valid: a daemon without options copies them. */
static bool options_valid(const struct zd_rail_facts *facts)
{
	return (facts->op == ZEROD_SUM || facts->op == ZEROD_MEAN) && zd_dtype_reducible(facts->dtype) &&
	       isfinite(facts->prescale);
}

static int facts_differ(const struct zd_slice *slice, const struct zd_rail_facts *first, uint32_t first_peer,
                        const struct zd_rail_facts *other, uint32_t other_peer, struct zd_err *err)
{
	const struct zd_reduction *r = slice->reduction;
	const struct zd_member *member = &r->group->members[slice->owner];
	bool same = first->unit == other->unit;
	return zd_err_set(
	        err, ZEROD_E_MISMATCH,
	        "unit '%.64s' of rank %u: rank %u reduces %llu elements a rank by %s of %s into %s, prescale "
	        "%.9g, %s%s; rank %u says %llu by %s of %s into %s, prescale %.9g, %s%s%s",
	        r->unit->name, zd_world_rank(member), zd_cluster_world_rank(member, first_peer),
	        (unsigned long long)first->shard_numel, first->op == ZEROD_MEAN ? "mean" : "sum",
	        zerod_dtype_name(first->dtype), zerod_dtype_name((uint32_t)first->target_dtype),
	        (double)first->prescale, first->overwrite ? "overwrite" : "accumulate",
	        first->all_reduce ? ", all-reduced" : "", zd_cluster_world_rank(member, other_peer),
	        (unsigned long long)other->shard_numel, other->op == ZEROD_MEAN ? "mean" : "sum",
	        zerod_dtype_name(other->dtype), zerod_dtype_name((uint32_t)other->target_dtype),
	        (double)other->prescale, other->overwrite ? "overwrite" : "accumulate",
	        other->all_reduce ? ", all-reduced" : "", same ? "" : ", of another unit");
}

/* Compares the values of all ranks. *options: the options of the *n ranks that contribute. */
int zd_rail_facts_check(const struct zd_slice *slice, const unsigned char *values,
                        struct zd_rail_facts *options, uint32_t *n, struct zd_err *err)
{
	const struct zd_member *member = &slice->reduction->group->members[slice->owner];
	struct zd_rail_facts own = zd_rail_facts_of(slice);
	uint32_t rank = zd_cluster_rank(member), first = rank;
	*n = 0;
	for (uint32_t peer = 0; peer < slice->reduction->group->cluster->nranks; peer++) {
		struct zd_rail_facts other;
		memcpy(&other, values + peer * sizeof(other), sizeof(other));
		if (units_differ(&own, &other))
			return facts_differ(slice, &own, rank, &other, peer, err);
		if (!other.contributes)
			continue;
		if (!options_valid(&other))
			return zd_err_set(err, ZEROD_E_MISMATCH,
			                  "unit '%.64s' of rank %u: rank %u sent invalid reduction options",
			                  slice->reduction->unit->name, zd_world_rank(member),
			                  zd_cluster_world_rank(member, peer));
		if (*n > 0 && options_differ(options, &other))
			return facts_differ(slice, options, first, &other, peer, err);
		if ((*n)++ > 0)
			continue;
		*options = other;
		first = peer;
	}
	return 0;
}
