/* SPDX-License-Identifier: Apache-2.0 */
/*
 * script.c - a script as configuration and program, and the operations that only scripts have.
 *
 * A barrier lets nobody on before all ranks have come to it with all of their replies; the others look at the
 * engine's tables when the rank has its replies, while its streams and the executors are still at work.
 */
#include "script.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "sim.h"

/* ---- Configuration ------------------------------------------------------------------------------------- */

#define NDTYPES    ((uint32_t)ZEROD_BOOL - ZEROD_FLOAT32 + 1)
#define MOST_NUMEL 600ull

static uint64_t unit_numel(const struct zd_sim_script *script, struct zd_sim_rng *rng)
{
	if (script->tiny)
		return zd_sim_between(rng, 1, script->world - 1);
	if (script->large)
		return zd_sim_between(rng, 10 * MOST_NUMEL, 12 * MOST_NUMEL);
	return zd_sim_percent(rng, 30) ? zd_sim_between(rng, 1, 3) : zd_sim_between(rng, 1, MOST_NUMEL);
}

static void derive_units(const struct zd_sim_script *script, struct zd_sim_rng *rng,
                         struct zd_sim_group_config *group)
{
	static const enum zerod_dtype dtypes[] = {ZEROD_FLOAT32, ZEROD_FLOAT16, ZEROD_BFLOAT16};

	uint64_t first = zd_sim_below(rng, NDTYPES);

	group->nunits = script->nunits;
	for (uint32_t u = 0; u < script->nunits; u++) {
		struct zd_sim_unit_config *unit = &group->units[u];

		(void)snprintf(unit->name, sizeof(unit->name), "u%u", u);
		unit->dtype = dtypes[zd_sim_below(rng, ZD_ARRAY_LEN(dtypes))];
		unit->numel = unit_numel(script, rng);
		if (script->nslots ||
		    script->ncopies) { /* one fills a bucket's slot, or its share of the budget */
			unit->dtype = group->units[0].dtype;
			unit->numel = group->units[0].numel;
		}
		if (script->all_dtypes)
			unit->dtype = (enum zerod_dtype)(ZEROD_FLOAT32 + (first + u) % NDTYPES);
		if (script->too_large && u + 2 == script->nunits)
			unit->numel *= 2;
		if (script->too_large && u + 1 == script->nunits)
			unit->numel *= 20;
		unit->nviews = script->viewed ? 2 : (uint32_t)zd_sim_below(rng, 3);
		unit->slot = script->one_slot ? 1 : ZEROD_NO_SLOT;
		unit->frozen = script->frozen && u == 0;
		unit->copied = script->ncopies > 0;
	}
}

/* Devices that have no room for everything. */
static void derive_room(const struct zd_sim_script *script, struct zd_sim_config *config,
                        struct zd_sim_group_config *group)
{
	struct zd_sim_unit_config *unit = &group->units[0];
	uint64_t shard_bytes;

	for (uint32_t a = 0; a < config->nactors && script->ncopies; a++)
		config->devices[a].gather_budget_bytes = script->ncopies *
		                                         zd_sim_gathered_bytes(config, a, 0, 0);
	if (script->too_wide) {
		unit->dtype = ZEROD_UINT8;
		unit->numel = 30000;
		group->plan.gradient_dtype = ZEROD_FLOAT32;
		group->plan.target_dtype = ZEROD_BFLOAT16;
		for (uint32_t d = 0; d < config->ndevices; d++)
			config->devices[d].arena_bytes = 98304; /* the entry has 120000 */
	}
	if (!script->full)
		return;
	config->segment_bytes = 4096;
	shard_bytes = zd_sim_shard_numel(group, 0) * zerod_dtype_bytes(unit->dtype);
	config->devices[0].arena_bytes = script->world * zd_align_up(shard_bytes, config->segment_bytes) +
	                                 zd_align_up(zd_sim_padded_bytes(group, 0), config->segment_bytes);
	config->devices[0].gather_budget_bytes = 0;
}

void zd_sim_script_config(const struct zd_sim_script *script, uint64_t seed, struct zd_sim_config *config)
{
	static const uint64_t scales[] = {100, 1000, 10000};
	struct zd_sim_rng rng;

	memset(config, 0, sizeof(*config));
	zd_sim_rng_init(&rng, seed, UINT64_MAX);
	config->seed = seed;
	config->clean = true;
	config->granule_bytes = seed / 4 % 2 ? 512 : 4096;
	config->sums_ahead = seed / 2 % 2; /* no draw: all else of a seed stays as it is */
	config->unordered = zd_sim_percent(&rng, 50);
	config->linger = zd_sim_percent(&rng, 25);
	config->end_step_objects = zd_sim_mix(seed, 2) % 4;
	config->executor_ns = scales[zd_sim_below(&rng, ZD_ARRAY_LEN(scales))];
	config->stream_ns = scales[zd_sim_below(&rng, ZD_ARRAY_LEN(scales))];
	config->actor_ns = scales[zd_sim_below(&rng, ZD_ARRAY_LEN(scales))];
	config->ndevices = script->apart  ? script->world
	                   : script->full ? 1
	                                  : (uint32_t)zd_sim_between(&rng, 1, 4);
	config->slow_device = zd_sim_percent(&rng, 30) ? (uint32_t)zd_sim_below(&rng, config->ndevices)
	                                               : config->ndevices;
	config->njobs = config->ngroups = 1;
	config->jobs[0] =
	        (struct zd_sim_job_config){.name = "j0", .uid = 1000, .world = script->world, .ngroups = 1};
	for (; config->nactors < script->world; config->nactors++)
		config->actors[config->nactors] =
		        (struct zd_sim_actor_config){.rank = config->nactors,
		                                     .device = config->nactors % config->ndevices,
		                                     .uid = 1000,
		                                     .strict = zd_sim_percent(&rng, 15) || script->copies,
		                                     .poison = zd_sim_mix(seed, config->nactors) % 4 == 0,
		                                     .maps_frames = zd_sim_percent(&rng, 60)};
	struct zd_sim_group_config *group = &config->groups[0];
	*group = (struct zd_sim_group_config){.name = "g0",
	                                      .world = script->world,
	                                      .granule_bytes = script->world > 1 ? config->granule_bytes : 0};
	zd_sim_derive_plan(&rng, config, &group->plan);
	derive_units(script, &rng, group);
	group->plan.stage = script->stage;
	group->plan.micro_steps = script->backwards;
	group->plan.one_at_a_time = script->one_buffer;
	group->plan.inf_percent = script->overflows ? 100 : 0;
	group->plan.overwrite = group->plan.overwrite || script->overwrites;
	group->plan.mixed = script->mixes || (group->plan.mixed && !script->nslots && !script->too_wide);
	zd_sim_derive_devices(&rng, config);
	derive_room(script, config, group);
}

/* ---- Program ------------------------------------------------------------------------------------------- */

static void push(struct zd_sim_program *program, uint32_t actor, const struct zd_sim_script_op *op)
{
	zd_assert(program->nops < ZD_SIM_OPS);
	program->ops[program->nops++] = (struct zd_sim_op){
	        .kind = (uint8_t)op->kind,
	        .actor = (uint8_t)actor,
	        .unit = (uint8_t)op->unit,
	        .tag = (uint8_t)op->tag,
	        .arg = op->arg,
	        .expect = (int8_t)op->expect,
	        .ahead = op->ahead,
	        .says = op->says,
	};
}

static void push_simple(struct zd_sim_program *program, uint32_t actor, enum zd_sim_op_kind kind,
                        uint32_t unit, uint32_t arg)
{
	push(program, actor, &(struct zd_sim_script_op){.kind = kind, .unit = unit, .arg = arg});
}

static void actor_program(const struct zd_sim_script *script, const struct zd_sim_group_config *group,
                          uint32_t actor, struct zd_sim_program *program)
{
	uint32_t barriers = 0;

	push_simple(program, actor, ZD_SIM_OPEN, 0, 0);
	push_simple(program, actor, ZD_SIM_JOIN, 0, 0);
	for (uint32_t u = 0; u < script->nunits; u++)
		push_simple(program, actor, ZD_SIM_REGISTER, u, 0);
	for (uint32_t i = 0; i < zd_sim_nbuckets(group); i++)
		push_simple(program, actor, ZD_SIM_BUCKET_CREATE, i, script->nslots);
	push_simple(program, actor, ZD_SIM_UPDATE_BEGIN, ZD_SIM_ALL_UNITS, 0);
	push_simple(program, actor, ZD_SIM_PUBLISH, ZD_SIM_ALL_UNITS, 0);
	push_simple(program, actor, ZD_SIM_BARRIER, 0, ++barriers);
	for (uint32_t i = 0; i < script->repeats * script->nops; i++) {
		struct zd_sim_script_op op = script->ops[i % script->nops];
		if (op.kind == ZD_SIM_BARRIER)
			op.arg = ++barriers;
		if (op.ranks & (1u << actor))
			push(program, actor, &op);
	}
	push_simple(program, actor, ZD_SIM_BARRIER, 0, ++barriers);
	push_simple(program, actor, ZD_SIM_CLOSE, 0, 0);
}

void zd_sim_script_program(const struct zd_sim_script *script, const struct zd_sim_config *config,
                           struct zd_sim_program *program)
{
	program->nops = 0;
	for (uint32_t actor = 0; actor < config->nactors; actor++) {
		program->first[actor] = program->nops;
		actor_program(script, &config->groups[0], actor, program);
	}
	program->first[config->nactors] = program->nops;
}

/* ---- Barriers ------------------------------------------------------------------------------------------ */

bool zd_sim_barrier(struct zd_sim_world *world, uint32_t actor, const struct zd_sim_op *op)
{
	bool all = true;

	if (world->actors[actor].barriers < op->arg) {
		world->actors[actor].barriers = op->arg;
		for (uint32_t a = 0; a < world->config.nactors; a++) {
			if (a != actor)
				zd_sim_actor_wake(world, a);
		}
	}
	for (uint32_t a = 0; a < world->config.nactors; a++)
		all = all && world->actors[a].barriers >= op->arg;
	return all;
}

/* ---- What must be seen --------------------------------------------------------------------------------- */

struct sight {
	const char *unit;
	uint32_t rank, count;
	uint64_t bytes;
};

static bool live_row(uint64_t id, const Zd__Row *row, void *arg)
{
	struct sight *sight = arg;
	bool live = strcmp(row->buffer->state, "INFLIGHT") == 0 ||
	            strcmp(row->buffer->state, "AVAILABLE") == 0;

	(void)id;
	if (live && row->buffer->rank == sight->rank && strcmp(row->buffer->unit, sight->unit) == 0) {
		sight->count++;
		sight->bytes += row->buffer->padded_bytes;
	}
	return true;
}

/* The rank has so many live copies of the unit, which are what it is charged for. */
static void expect_live(struct zd_sim_world *world, const struct zd_sim_op *op)
{
	struct sight sight = {.unit = world->config.groups[0].units[op->unit].name,
	                      .rank = world->config.actors[op->actor].rank};
	Zd__List query = {.table = ZD__TABLE__BUFFERS};

	(void)zd_engine_list(world->engine, 0, &query, 0, live_row, &sight);
	if (sight.count != op->arg ||
	    sight.bytes != op->arg * zd_sim_gathered_bytes(&world->config, op->actor, 0, op->unit))
		zd_sim_fail(world, "rank %u has %u live copies of %s, %llu bytes; the script expects %u",
		            sight.rank, sight.count, sight.unit, (unsigned long long)sight.bytes, op->arg);
}

/* Each of these is for one sleep, which may not have begun yet. */
static void expect_asleep(struct zd_sim_world *world, const struct zd_sim_op *op)
{
	if (world->actors[op->arg].sleeps > world->actors[op->actor].asleep_seen++)
		zd_sim_fail(world, "the thread of rank %u has woken up: something has waited for it",
		            op->arg);
}

static void reshape(struct zd_sim_unit_config *unit)
{
	unit->numel = unit->numel == 1 ? 2 : unit->numel - 1;
}

void zd_sim_expect(struct zd_sim_world *world, const struct zd_sim_op *op)
{
	struct zd_engine_totals totals;

	if (op->kind == ZD_SIM_RESHAPE) {
		reshape(&world->config.groups[0].units[op->unit]);
		return;
	}
	zd_sim_rows_check(world);
	zd_engine_totals(world->engine, &totals);
	if (op->kind == ZD_SIM_EXPECT_ASLEEP)
		expect_asleep(world, op);
	if (op->kind == ZD_SIM_EXPECT_LIVE)
		expect_live(world, op);
	if (op->kind == ZD_SIM_EXPECT_TRANSFERS && totals.gathers != op->arg)
		zd_sim_fail(world, "%llu transfers were made; the script expects %u",
		            (unsigned long long)totals.gathers, op->arg);
	if (op->kind == ZD_SIM_EXPECT_NO_GRADIENTS &&
	    totals.usage.bucket_bytes + totals.usage.target_bytes + totals.usage.staging_bytes)
		zd_sim_fail(world, "between steps there are %llu bytes of buckets, %llu of targets",
		            (unsigned long long)totals.usage.bucket_bytes,
		            (unsigned long long)totals.usage.target_bytes);
	if (op->kind == ZD_SIM_EXPECT_NO_BUCKETS && totals.usage.bucket_bytes + totals.usage.staging_bytes)
		zd_sim_fail(world, "behind a backward there are %llu bytes of buckets",
		            (unsigned long long)totals.usage.bucket_bytes);
}
