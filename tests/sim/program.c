/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.c - what every trainer is going to do: training steps, with noise in between where the seed asks
 * for it.
 *
 * The whole program is made before the run, so that shrinking can leave out single operations. Without noise
 * it is a correct training program: whoever follows it may expect success from every request.
 */
#include <string.h>

#include "base/mem.h"
#include "generate.h"
#include "sim.h"

#define ABANDONED_PERCENT 20u /* of windows, where ranks lend */

static void push(struct zd_sim_generator *gen, enum zd_sim_op_kind kind, uint32_t group, uint32_t unit,
                 uint32_t tag, uint32_t arg, bool noise)
{
	struct zd_sim_program *program = gen->program;

	if (program->nops == ZD_SIM_OPS || gen->dead)
		return;
	program->ops[program->nops++] = (struct zd_sim_op){
	        .kind = (uint8_t)kind,
	        .actor = (uint8_t)gen->actor,
	        .group = (uint8_t)group,
	        .unit = (uint8_t)unit,
	        .tag = (uint8_t)tag,
	        .noise = noise,
	        .arg = arg,
	        .ahead = kind == ZD_SIM_PUBLISH
	                         ? gen->config->publishes_ahead
	                         : gen->config->steps_ahead &&
	                                   (kind == ZD_SIM_STEP_END || (kind == ZD_SIM_BACKWARD_END && arg)),
	};
}

static void push_noise(struct zd_sim_generator *gen)
{
	static const enum zd_sim_op_kind kinds[] = {
	        ZD_SIM_GATHER,
	        ZD_SIM_GATHER,
	        ZD_SIM_GATHER,
	        ZD_SIM_PREFETCH,
	        ZD_SIM_RELEASE,
	        ZD_SIM_RELEASE,
	        ZD_SIM_USE,
	        ZD_SIM_SET_PERSISTENT,
	        ZD_SIM_SET_PERSISTENT,
	        ZD_SIM_PLACE,
	        ZD_SIM_ALLOC,
	        ZD_SIM_FREE,
	        ZD_SIM_GARBAGE,
	        ZD_SIM_GARBAGE,
	        ZD_SIM_UPDATE_BEGIN,
	        ZD_SIM_PUBLISH,
	        ZD_SIM_COMMIT,
	        ZD_SIM_REGISTER,
	        ZD_SIM_UNREGISTER,
	        ZD_SIM_RESERVE,
	        ZD_SIM_BUCKET_SUBMIT,
	        ZD_SIM_SKIP,
	        ZD_SIM_BACKWARD_BEGIN,
	        ZD_SIM_BACKWARD_END,
	        ZD_SIM_STEP_BEGIN,
	        ZD_SIM_STEP_END,
	        ZD_SIM_BUCKET_CREATE,
	        ZD_SIM_BUCKET_DESTROY,
	        ZD_SIM_RESET,
	        ZD_SIM_RELOAD,
	        ZD_SIM_JOIN,
	        ZD_SIM_FORWARD_BEGIN,
	        ZD_SIM_FORWARD_BEGIN,
	        ZD_SIM_FORWARD_END,
	        ZD_SIM_CLAIM_END,
	        ZD_SIM_SCOPE_ABANDON,
	        ZD_SIM_CONTEXT_BEGIN,
	        ZD_SIM_CONTEXT_END,
	        ZD_SIM_REDUCE_WAIT, /* where ranks lend */
	        ZD_SIM_REDUCE_WAIT,
	        ZD_SIM_TARGET_RETURN,
	        ZD_SIM_BACKWARD_ABANDON,
	};
	static const enum zd_sim_op_kind rare[] = {ZD_SIM_KILL, ZD_SIM_ABORT, ZD_SIM_END_JOB, ZD_SIM_LEAVE};
	const struct zd_sim_config *config = gen->config;
	uint32_t nkinds = (uint32_t)ZD_ARRAY_LEN(kinds) - (config->lends ? 0 : 4);
	enum zd_sim_op_kind kind = kinds[zd_sim_below(&gen->rng, nkinds)];
	const struct zd_sim_job_config *job = &config->jobs[config->actors[gen->actor].job];
	uint32_t group = job->first_group + (uint32_t)zd_sim_below(&gen->rng, job->ngroups);

	if (zd_sim_percent(&gen->rng, 3))
		kind = rare[zd_sim_below(&gen->rng, ZD_ARRAY_LEN(rare))];
	bool scoped = (kind == ZD_SIM_GATHER || kind == ZD_SIM_USE) && zd_sim_percent(&gen->rng, 30);
	uint32_t tag = (uint32_t)(scoped ? zd_sim_between(&gen->rng, ZD_SIM_TAGS, ZD_SIM_HOLDERS - 1)
	                                 : zd_sim_below(&gen->rng, ZD_SIM_TAGS));
	if (kind >= ZD_SIM_FORWARD_BEGIN && kind <= ZD_SIM_CONTEXT_END)
		tag = (uint32_t)zd_sim_below(&gen->rng, ZD_SIM_SCOPES);
	push(gen, kind, group, (uint32_t)zd_sim_below(&gen->rng, config->groups[group].nunits), tag,
	     (uint32_t)zd_sim_below(&gen->rng, 4), true);
}

/* Fills order[] with 0 .. count-1, mixed. */
static void shuffle(struct zd_sim_generator *gen, uint8_t *order, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		order[i] = (uint8_t)i;
	for (uint32_t i = count; i > 1; i--) {
		uint32_t j = (uint32_t)zd_sim_below(&gen->rng, i);
		uint8_t swap = order[i - 1];
		order[i - 1] = order[j];
		order[j] = swap;
	}
}

/*
 * Does the process die in front of the operation: rather while it has something that it was given to write or
 * to read, or has published what is not committed.
 */
static bool dies(struct zd_sim_generator *gen, enum zd_sim_op_kind kind)
{
	bool has = kind == ZD_SIM_BUCKET_SUBMIT || kind == ZD_SIM_STEP_END || kind == ZD_SIM_PUBLISH ||
	           kind == ZD_SIM_COMMIT;
	uint32_t rarely = gen->config->mortal ? 2000 : 300;

	return zd_sim_below(&gen->rng, has ? 50 : rarely) < gen->config->death_percent;
}

/* Parts of a window that come behind its first backward's begin. */
static bool of_window(enum zd_sim_op_kind kind)
{
	return kind >= ZD_SIM_RESERVE && kind <= ZD_SIM_STEP_BEGIN;
}

/* Does the rank leave the operation out: it has abandoned the window. */
static bool left_out(struct zd_sim_generator *gen, enum zd_sim_op_kind kind, uint32_t group)
{
	if (of_window(kind) && gen->abandons_in > 0 &&
	    (--gen->abandons_in == 0 || kind == ZD_SIM_STEP_BEGIN)) {
		gen->abandons_in = 0;
		push(gen, ZD_SIM_BACKWARD_ABANDON, group, 0, 0, 0, false);
		gen->has_abandoned = true;
		gen->steps_over = zd_sim_percent(&gen->rng, 50);
	}
	if (kind == ZD_SIM_STEP_BEGIN || kind == ZD_SIM_STEP_END)
		return gen->has_abandoned && !gen->steps_over;
	return gen->has_abandoned && (of_window(kind) || kind == ZD_SIM_BACKWARD_BEGIN);
}

void zd_sim_train(struct zd_sim_generator *gen, enum zd_sim_op_kind kind, uint32_t group, uint32_t unit,
                  uint32_t tag, uint32_t arg)
{
	if (left_out(gen, kind, group))
		return;
	while (zd_sim_percent(&gen->rng, gen->config->noise_percent))
		push_noise(gen);
	if (zd_sim_percent(&gen->rng, 3))
		push(gen, zd_sim_percent(&gen->rng, 60) ? ZD_SIM_ALLOC : ZD_SIM_FREE, group, 0, 0,
		     (uint32_t)zd_sim_below(&gen->rng, ZD_SIM_ALLOCS), false);
	if (dies(gen, kind)) {
		push(gen, ZD_SIM_DIE, 0, 0, 0, 0, true);
		gen->dead = true;
	}
	push(gen, kind, group, unit, tag, arg, false);
}

static void release_held(struct zd_sim_generator *gen, uint32_t group, uint32_t index)
{
	zd_sim_train(gen, ZD_SIM_RELEASE, group, gen->held[index].unit, gen->held[index].tag, 0);
	gen->held[index] = gen->held[--gen->nheld];
}

/* A holder of one unit of a slot may not ask for another one of it. */
static void release_slot(struct zd_sim_generator *gen, uint32_t group, uint32_t unit)
{
	const struct zd_sim_unit_config *units = gen->config->groups[group].units;

	for (uint32_t i = gen->nheld; i-- > 0;)
		if (units[unit].slot && gen->held[i].unit != unit &&
		    units[gen->held[i].unit].slot == units[unit].slot)
			release_held(gen, group, i);
}

static void gather_and_use(struct zd_sim_generator *gen, uint32_t group, uint32_t unit, bool keep)
{
	uint32_t tag = (uint32_t)zd_sim_below(&gen->rng, ZD_SIM_TAGS);
	uint32_t uses = zd_sim_percent(&gen->rng, 15) ? (uint32_t)zd_sim_between(&gen->rng, 2, 3) : 1;

	release_slot(gen, group, unit);
	zd_sim_train(gen, ZD_SIM_GATHER, group, unit, tag, uses);
	for (uint32_t i = 0; i < uses; i++) {
		if (zd_sim_percent(&gen->rng, 40))
			zd_sim_train(gen, ZD_SIM_USE, group, unit, tag, 0);
		if (keep && i == uses - 1 && gen->nheld < ZD_ARRAY_LEN(gen->held)) {
			gen->held[gen->nheld].unit = (uint8_t)unit;
			gen->held[gen->nheld++].tag = (uint8_t)tag;
			return;
		}
		zd_sim_train(gen, ZD_SIM_RELEASE, group, unit, tag, 0);
	}
}

static void forward(struct zd_sim_generator *gen, uint32_t group)
{
	const struct zd_sim_group_config *g = &gen->config->groups[group];
	uint8_t order[ZD_SIM_UNITS] = {0};

	zd_sim_frames_forward(gen, group);
	shuffle(gen, order, g->nunits);
	for (uint32_t i = 0; i < g->nunits; i++) {
		uint32_t next = i + 1 < g->nunits ? order[i + 1] : order[i];
		uint32_t slot = g->units[next].slot;

		if (g->plan.prefetches && zd_sim_percent(&gen->rng, 60) &&
		    (!slot || slot != g->units[order[i]].slot)) {
			release_slot(gen, group, next);
			zd_sim_train(gen, ZD_SIM_PREFETCH, group, next, 0, 0);
		}
		gather_and_use(gen, group, order[i], !g->plan.one_at_a_time && zd_sim_percent(&gen->rng, 30));
		if (gen->nheld && zd_sim_percent(&gen->rng, 30))
			release_held(gen, group, (uint32_t)zd_sim_below(&gen->rng, gen->nheld));
	}
}

/* Of the unit, or of any. Where ranks reduce in different orders they would wait for each other. */
static void wait_for_sum(struct zd_sim_generator *gen, uint32_t group, uint32_t unit, uint32_t percent)
{
	const struct zd_sim_group_config *g = &gen->config->groups[group];

	if (!gen->config->lends || !zd_sim_percent(&gen->rng, percent))
		return;
	if (zd_sim_percent(&gen->rng, 25))
		unit = (uint32_t)zd_sim_below(&gen->rng, g->nunits);
	zd_sim_train(gen, ZD_SIM_REDUCE_WAIT, group, unit, 0,
	             (uint32_t)zd_sim_below(&gen->rng, g->plan.same_order ? 8 : ZD_SIM_LOAN_BLOCKS));
	if (zd_sim_percent(&gen->rng, 20))
		zd_sim_train(gen, ZD_SIM_TARGET_RETURN, group, unit, 0, 0);
}

static void backward(struct zd_sim_generator *gen, uint32_t group, bool boundary)
{
	const struct zd_sim_group_config *g = &gen->config->groups[group];
	bool reduces = g->plan.stage > 1 || boundary;
	bool late = gen->config->mortal && zd_sim_percent(&gen->rng, 60);
	uint8_t order[ZD_SIM_UNITS] = {0};

	shuffle(gen, order, g->nunits);
	/* stages 2 and 3 take no notice of it, and ranks need not say the same */
	zd_sim_train(gen, ZD_SIM_BACKWARD_BEGIN, group, 0, 0,
	             g->plan.stage == 1 ? boundary : (uint32_t)zd_sim_below(&gen->rng, 2));
	zd_sim_frames_backward(gen, group);
	for (uint32_t i = 0; i < g->nunits; i++) {
		uint32_t unit = g->plan.same_order ? g->nunits - 1 - i : order[i];

		if (zd_sim_percent(&gen->rng, 60))
			gather_and_use(gen, group, unit, false);
		if (g->units[unit].frozen || !reduces)
			continue;
		if (zd_sim_percent(&gen->rng, 12)) {
			zd_sim_train(gen, ZD_SIM_SKIP, group, unit, 0, 0);
		} else {
			zd_sim_train(gen, ZD_SIM_RESERVE, group, unit, 0, 0);
			if (!late)
				zd_sim_train(gen, ZD_SIM_BUCKET_SUBMIT, group, unit, 0, 0);
		}
		wait_for_sum(gen, group, unit, 40);
	}
	for (uint32_t u = 0; u < g->nunits && late; u++) /* void where nothing is reserved */
		zd_sim_train(gen, ZD_SIM_BUCKET_SUBMIT, group, u, 0, 0);
	zd_sim_train(gen, ZD_SIM_BACKWARD_END, group, 0, 0, boundary);
	wait_for_sum(gen, group, 0, 40);
}

static void release_all(struct zd_sim_generator *gen, uint32_t group)
{
	while (gen->nheld)
		release_held(gen, group, gen->nheld - 1);
	zd_sim_frames_end(gen, group);
}

static void update(struct zd_sim_generator *gen, uint32_t group)
{
	const struct zd_sim_group_config *g = &gen->config->groups[group];
	uint8_t order[ZD_SIM_UNITS] = {0};

	release_all(gen, group);
	if (g->plan.batched_publish) {
		zd_sim_train(gen, ZD_SIM_UPDATE_BEGIN, group, ZD_SIM_ALL_UNITS, 0, 0);
		zd_sim_train(gen, ZD_SIM_PUBLISH, group, ZD_SIM_ALL_UNITS, 0, 0);
		return;
	}
	shuffle(gen, order, g->nunits);
	for (uint32_t i = 0; i < g->nunits; i++) {
		zd_sim_train(gen, ZD_SIM_UPDATE_BEGIN, group, order[i], 0, 0);
		zd_sim_train(gen, ZD_SIM_PUBLISH, group, order[i], 0, 0);
	}
}

static bool is_committed(const struct zd_sim_plan *plan, uint32_t step)
{
	return plan->commits && step % plan->commits == 0;
}

/* Does a rank abandon the step's window: the same for all ranks, since none updates anything then. */
static bool is_abandoned(struct zd_sim_generator *gen, uint32_t group, uint32_t number)
{
	uint64_t draw = zd_sim_mix(gen->config->seed, 1000 + ZD_SIM_VERSIONS * group + number);
	uint32_t by = (uint32_t)(draw >> 32) % gen->config->groups[group].world;

	gen->has_abandoned = false;
	gen->abandons_in = 0;
	if (!gen->config->lends || draw % 100 >= ABANDONED_PERCENT)
		return false;
	if (zd_sim_rank(gen->config, gen->actor, group) == by)
		gen->abandons_in = (uint32_t)zd_sim_between(&gen->rng, 1, 12);
	return true;
}

/* Before the update no rank gathers: others may have published. */
static void move_unit(struct zd_sim_generator *gen, uint32_t group, uint32_t unit, uint32_t on_host,
                      bool updated)
{
	/* a lease of a shard in place would be in the way when the last rank calls */
	bool ahead = zd_sim_percent(&gen->rng, 50) && !zd_sim_is_in_place(&gen->config->groups[group], unit);

	if (updated && ahead && zd_sim_percent(&gen->rng, 30)) {
		release_slot(gen, group, unit);
		zd_sim_train(gen, ZD_SIM_PREFETCH, group, unit, 0, 0);
	}
	if (updated && zd_sim_percent(&gen->rng, 30))
		gather_and_use(gen, group, unit, false);
	zd_sim_train(gen, ZD_SIM_PLACE, group, unit, 0, on_host | (ahead ? ZD_SIM_PLACE_AHEAD : 0));
	if (updated && ahead)
		gather_and_use(gen, group, unit, false);
}

/* All ranks move the same units behind the same steps: some with gathers before and beside it. */
static void move_units(struct zd_sim_generator *gen, uint32_t group, uint32_t number, bool updated)
{
	for (uint32_t u = 0; gen->config->has_host && u < gen->config->groups[group].nunits; u++) {
		uint64_t draw = zd_sim_mix(gen->config->seed,
		                           2000 + (ZD_SIM_VERSIONS * group + number) * 8 + u);
		if (draw % 2 == 0 && (updated || !zd_sim_is_in_place(&gen->config->groups[group], u)))
			move_unit(gen, group, u, (uint32_t)(draw >> 32) % 2, updated);
	}
}

static void step(struct zd_sim_generator *gen, uint32_t group, uint32_t number)
{
	const struct zd_sim_plan *plan = &gen->config->groups[group].plan;

	bool given_up = is_abandoned(gen, group, number);
	for (uint32_t m = 0; m < plan->micro_steps; m++) {
		forward(gen, group);
		backward(gen, group, m + 1 == plan->micro_steps);
	}
	if (!plan->one_at_a_time && !gen->config->groups[group].units[0].slot &&
	    zd_sim_percent(&gen->rng, 20))
		zd_sim_train(gen, ZD_SIM_SET_PERSISTENT, group, 0, 0, (uint32_t)zd_sim_below(&gen->rng, 2));
	bool keeps = gen->config->lends && gen->config->clean && !given_up && zd_sim_percent(&gen->rng, 15);
	zd_sim_train(gen, ZD_SIM_STEP_BEGIN, group, 0, 0, keeps ? ZD_SIM_KEEPS_LOANS : 0);
	zd_sim_train(gen, ZD_SIM_STEP_END, group, 0, 0, 0);
	/* not while the only shard is leased */
	bool holds = gen->config->groups[group].world > 1 && zd_sim_mix(gen->config->seed, number) % 2;
	if (!given_up && holds)
		move_units(gen, group, number, false);
	if (given_up)
		release_all(gen, group);
	else
		update(gen, group);
	if (!given_up && !holds)
		move_units(gen, group, number, true);
	if (is_committed(plan, number) || (gen->config->clean && number == plan->steps))
		zd_sim_train(gen, ZD_SIM_COMMIT, group, 0, 0, number + 1);
}

/*
 * `again`: it takes the place of one that died, and looks at what a durable job has kept. `done`: steps of
 * each group; the others still commit the last of them.
 */
static void set_up(struct zd_sim_generator *gen, const struct zd_sim_job_config *job, bool again,
                   const uint32_t *done)
{
	bool looks = again && job->durable && zd_sim_percent(&gen->rng, 80);
	uint8_t order[ZD_SIM_UNITS] = {0};

	push(gen, ZD_SIM_OPEN, 0, 0, 0, 0, false);
	for (uint32_t g = job->first_group; g < job->first_group + job->ngroups; g++)
		zd_sim_train(gen, ZD_SIM_JOIN, g, 0, 0, 0);
	for (uint32_t g = job->first_group; g < job->first_group + job->ngroups; g++) {
		shuffle(gen, order, gen->config->groups[g].nunits);
		for (uint32_t i = 0; i < gen->config->groups[g].nunits; i++)
			zd_sim_train(gen, ZD_SIM_REGISTER, g, order[i], 0, 0);
		for (uint32_t i = 0; i < zd_sim_nbuckets(&gen->config->groups[g]); i++)
			zd_sim_train(gen, ZD_SIM_BUCKET_CREATE, g, i, 0, 0);
		for (uint32_t i = 0; looks && i < gen->config->groups[g].nunits; i++) {
			if (zd_sim_percent(&gen->rng, 50))
				gather_and_use(gen, g, order[i], false);
		}
		update(gen, g);
		if (is_committed(&gen->config->groups[g].plan, done[g]))
			zd_sim_train(gen, ZD_SIM_COMMIT, g, 0, 0, done[g] + 1);
	}
}

/* Half of the jobs: each rank gathers as long as it likes behind its last step, whoever has ended by then. */
static bool evaluates(const struct zd_sim_config *config, const struct zd_sim_job_config *job)
{
	return zd_sim_mix(config->seed, 500 + job->first_group) % 2;
}

static void tear_down(struct zd_sim_generator *gen, const struct zd_sim_job_config *job)
{
	bool leaves = zd_sim_percent(&gen->rng, 30), unregisters = zd_sim_percent(&gen->rng, 30);
	uint32_t gathers = evaluates(gen->config, job) ? (uint32_t)zd_sim_below(&gen->rng, 12) : 0;

	unregisters = unregisters && !evaluates(gen->config, job);
	for (uint32_t g = job->first_group; gathers > 0; gathers--) {
		uint32_t group = g + (uint32_t)zd_sim_below(&gen->rng, job->ngroups);
		gather_and_use(gen, group,
		               (uint32_t)zd_sim_below(&gen->rng, gen->config->groups[group].nunits), false);
	}
	for (uint32_t g = job->first_group; g < job->first_group + job->ngroups; g++) {
		if (zd_sim_percent(&gen->rng, 30))
			zd_sim_train(
			        gen, ZD_SIM_BUCKET_DESTROY, g,
			        (uint32_t)zd_sim_below(&gen->rng, zd_sim_nbuckets(&gen->config->groups[g])),
			        0, 0);
		for (uint32_t u = 0; unregisters && u < gen->config->groups[g].nunits; u++)
			zd_sim_train(gen, ZD_SIM_UNREGISTER, g, u, 0, 0);
		if (leaves)
			zd_sim_train(gen, ZD_SIM_LEAVE, g, 0, 0, 0);
	}
	push(gen, ZD_SIM_CLOSE, 0, 0, 0, 0, false);
}

static void trainer(struct zd_sim_generator *gen)
{
	const struct zd_sim_config *config = gen->config;
	const struct zd_sim_job_config *job = &config->jobs[config->actors[gen->actor].job];
	uint32_t done[ZD_SIM_GROUPS] = {0};

	/* lives: the process that dies is replaced by one that goes on with the next step */
	for (uint32_t life = 0; life < 3; life++) {
		gen->dead = false;
		gen->nheld = 0;
		memset(gen->scopes, 0, sizeof(gen->scopes));
		set_up(gen, job, life > 0, done);
		for (uint32_t g = job->first_group; g < job->first_group + job->ngroups; g++)
			for (; done[g] < config->groups[g].plan.steps && !gen->dead; done[g]++)
				step(gen, g, done[g] + 1);
		tear_down(gen, job);
		if (!gen->dead && (config->clean || !zd_sim_percent(&gen->rng, 10)))
			return;
	}
}

static void stranger(struct zd_sim_generator *gen)
{
	static const enum zd_sim_op_kind kinds[] = {
	        ZD_SIM_ALLOC, ZD_SIM_ALLOC, ZD_SIM_FREE,   ZD_SIM_GARBAGE, ZD_SIM_GARBAGE, ZD_SIM_KILL,
	        ZD_SIM_JOIN,  ZD_SIM_ABORT, ZD_SIM_RELOAD, ZD_SIM_RELOAD,  ZD_SIM_END_JOB, ZD_SIM_REGISTER,
	};
	uint32_t count = (uint32_t)zd_sim_between(&gen->rng, 2, 16);

	push(gen, ZD_SIM_OPEN, 0, 0, 0, 0, false);
	for (uint32_t i = 0; i < count; i++)
		push(gen, kinds[zd_sim_below(&gen->rng, ZD_ARRAY_LEN(kinds))],
		     (uint32_t)zd_sim_below(&gen->rng, gen->config->ngroups), 0, 0,
		     (uint32_t)zd_sim_below(&gen->rng, 4), true);
	push(gen, ZD_SIM_CLOSE, 0, 0, 0, 0, true);
}

void zd_sim_program_generate(const struct zd_sim_config *config, struct zd_sim_program *program)
{
	struct zd_sim_generator gen = {.config = config, .program = program};

	program->nops = 0;
	for (gen.actor = 0; gen.actor < config->nactors; gen.actor++) {
		gen.dead = false;
		gen.nheld = 0;
		zd_sim_rng_init(&gen.rng, config->seed, UINT64_MAX - 1 - gen.actor);
		program->first[gen.actor] = program->nops;
		if (config->actors[gen.actor].job < 0)
			stranger(&gen);
		else
			trainer(&gen);
	}
	program->first[config->nactors] = program->nops;
}
