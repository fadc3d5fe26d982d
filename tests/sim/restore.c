/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore.c - engines that are restored from the journal of the running one, at random moments.
 *
 * The journal is stored after every call, and now and then begun anew, in steps between the calls. Another
 * engine is restored from it, and must have what the running one would keep if all its ranks died now: its
 * durable jobs with their groups, units, parts and allocations, in the same memory, and no other. Some of its
 * commands are completed, and a third engine is restored from its journal. The program goes on as if nothing
 * had happened.
 *
 * This file compares the objects of both engines themselves: what is compared is more than the tables show.
 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "core/engine/objects.h"
#include "core/gather/commit.h"
#include "core/memory/allocation.h"
#include "sim.h"

#define RESTORED_EVERY 4  /* calls, on average */
#define BEGUN_EVERY    16 /* restores between two beginnings of the journal */

struct trial {
	struct zd_sim_world *world;
	const struct zd_engine *former; /* the running engine, or one that was restored itself */
	struct zd_engine *engine;
	uint64_t *ops;
	uint32_t nops, room;
};

static void append(uint8_t **journal, size_t *journal_bytes, const uint8_t *bytes, size_t nbytes)
{
	*journal = zd_realloc(*journal, *journal_bytes + nbytes + 1, 1);
	memcpy(*journal + *journal_bytes, bytes, nbytes);
	*journal_bytes += nbytes;
}

static void store(struct zd_sim_world *world)
{
	const uint8_t *bytes;
	size_t nbytes = zd_engine_journal_take(world->engine, &bytes);
	append(&world->journal, &world->journal_bytes, bytes, nbytes);
	if (world->next_journal)
		append(&world->next_journal, &world->next_bytes, bytes, nbytes);
}

/* Records some objects in the journal that is begun anew, which is in use when it has all. */
static void step(struct zd_sim_world *world, uint32_t nobjects)
{
	bool complete = zd_engine_journal_step(world->engine, nobjects);
	const uint8_t *bytes;
	size_t nbytes = zd_engine_journal_take(world->engine, &bytes);
	append(&world->next_journal, &world->next_bytes, bytes, nbytes);
	if (!complete)
		return;
	free(world->journal);
	world->journal = world->next_journal;
	world->journal_bytes = world->next_bytes;
	world->next_journal = NULL;
	world->next_bytes = 0;
}

static void begin(struct zd_sim_world *world)
{
	zd_engine_journal_begin(world->engine);
	world->next_bytes = 0;
	step(world, world->journal ? 1 : UINT32_MAX);
}

void zd_sim_segment_kept(void *arg, uint32_t id, bool kept)
{
	struct zd_sim_segment *segment = zd_sim_segment_find(arg, id);
	if (!segment || segment->kept == kept)
		zd_sim_fail(arg, "segment %u is %s twice, or is not there", id, kept ? "kept" : "let go");
	segment->kept = kept;
}

/* ---- What is restored ---------------------------------------------------------------------------------- */

static bool same_extent(const struct zd_extent *a, const struct zd_extent *b)
{
	return a->bytes == b->bytes && a->segment->id == b->segment->id &&
	       a->block->offset == b->block->offset;
}

static void check(struct trial *trial, bool holds, const char *what, uint64_t id)
{
	if (!holds)
		zd_sim_fail(trial->world, "restored: %s (%llu)", what, (unsigned long long)id);
}

static bool is_kept(const struct zd_part *part)
{
	return !zd_part_is_gone(part) && part->state != ZD_PART_FILLING;
}

/* The rank would be set back: the shard was written since the last commit. */
static bool is_undone(const struct zd_part *part)
{
	return part->shadow != ZD_SHADOW_NONE && !part->unit->group->voted_step &&
	       (part->version != zd_part_committed(part) || zd_part_is_written(part));
}

/* Of a part of a restored engine, which no transfer reads. */
static uint32_t count_holds(const struct zd_part *part)
{
	return part->readers - (part->shadow == ZD_SHADOW_RESTORING);
}

static void compare_part(struct trial *trial, const struct zd_part *was, const struct zd_part *is)
{
	uint64_t id = was->unit->id;
	bool due = is_undone(was) || zd_shadow_is_owed(was);
	if (!is_kept(was)) {
		check(trial, is->state == ZD_PART_ABSENT, "a part that was not kept", id);
		return;
	}
	check(trial, is->state == ZD_PART_DETACHED, "the part's state", id);
	check(trial, same_extent(&is->shard, &was->shard), "the part's memory", id);
	check(trial, is->first == was->first && zd_part_committed(is) == zd_part_committed(was),
	      "the part's commit", id);
	check(trial, is->version == (is_undone(was) ? zd_part_committed(was) : was->version),
	      "the part's version", id);
	if (due)
		check(trial, zd_shadow_is_owed(is), "a part that is not set back", id);
	else if (was->shadow == ZD_SHADOW_SAVING)
		check(trial, is->shadow == ZD_SHADOW_FREE, "a shadow that was not whole", id);
	else
		check(trial, zd_part_shadow(is) == zd_part_shadow(was), "the part's shadow", id);
	if (zd_part_member(was)->session) /* whose process may go on */
		check(trial, count_holds(is) > 0, "a part that is not held", id);
	if (trial->former != trial->world->engine)
		check(trial, count_holds(is) == count_holds(was), "the part's holds", id);
}

static void compare_unit(struct trial *trial, const struct zd_unit *was, const struct zd_unit *is)
{
	check(trial,
	      is->id == was->id && is->dtype == was->dtype && is->numel == was->numel &&
	              is->slot == was->slot && is->frozen == was->frozen &&
	              is->all_reduce == was->all_reduce && is->first_rank == was->first_rank &&
	              is->nviews == was->nviews && is->targeted == was->targeted &&
	              is->on_host == was->on_host && is->placed == was->placed && is->copied == was->copied &&
	              is->in_place == was->in_place && is->shard_numel == was->shard_numel &&
	              is->description == was->description,
	      "the unit's description", was->id);
	check(trial, !was->targeted || is->target_offset_numel == was->target_offset_numel,
	      "the unit's place in the target", was->id);
	for (uint32_t i = 0; i < was->nviews; i++)
		check(trial,
		      strcmp(was->views[i]->name, is->views[i]->name) == 0 &&
		              was->views[i]->offset_numel == is->views[i]->offset_numel &&
		              was->views[i]->n_shape == is->views[i]->n_shape &&
		              memcmp(was->views[i]->shape, is->views[i]->shape,
		                     was->views[i]->n_shape * sizeof(was->views[i]->shape[0])) == 0,
		      "a view", was->id);
	for (uint32_t rank = 0; rank < was->group->local_world_size; rank++)
		compare_part(trial, &was->parts[rank], &is->parts[rank]);
}

/* As the group would be when its attached ranks had died: without shadows, it is torn by what was not
 * committed. */
static bool would_be_torn(const struct zd_group *group)
{
	if (group->torn || group->shadow)
		return group->torn;
	const struct zd_unit *unit;
	TAILQ_FOREACH (unit, &group->units, group_link) {
		for (uint32_t rank = 0; rank < group->local_world_size; rank++) {
			const struct zd_part *part = &unit->parts[rank];
			if (is_kept(part) &&
			    (zd_part_is_written(part) || part->version != zd_part_committed(part)))
				return true;
		}
	}
	return false;
}

static void compare_group(struct trial *trial, const struct zd_group *was, const struct zd_group *is)
{
	const struct zd_unit *unit;
	uint32_t nkept = 0;
	check(trial,
	      strcmp(is->name, was->name) == 0 && is->world_size == was->world_size &&
	              is->local_world_size == was->local_world_size && is->first_rank == was->first_rank &&
	              is->shadow == was->shadow,
	      "the group's description", was->id);
	check(trial,
	      is->state == (was->state == ZD_GROUP_FORMING ? ZD_GROUP_FORMING : ZD_GROUP_FAILED) &&
	              is->attached == 0,
	      "the group's state", was->id);
	check(trial, is->committed_step == was->committed_step && is->torn == would_be_torn(was),
	      "the group's commit", was->id);
	for (uint32_t rank = 0; rank < was->local_world_size; rank++) {
		const struct zd_member *from = &was->members[rank], *to = &is->members[rank];
		bool joined = from->joined_before || (from->session && was->state != ZD_GROUP_FORMING);
		check(trial,
		      to->joined_before == joined && (!joined || to->device->index == from->device->index),
		      "a rank", was->id);
	}
	TAILQ_FOREACH (unit, &was->units, group_link) {
		const struct zd_unit *restored;
		bool kept = false;
		for (uint32_t rank = 0; rank < was->local_world_size; rank++)
			kept |= is_kept(&unit->parts[rank]);
		restored = zd_unit_find_name(is, unit->name, false);
		check(trial, kept == (restored != NULL), "a unit", unit->id);
		nkept += kept;
		if (kept)
			compare_unit(trial, unit, restored);
	}
	check(trial, is->nunits == nkept, "the group's units", was->id);
}

static void compare_allocations(struct trial *trial, const struct zd_job *was, const struct zd_job *is)
{
	const struct zd_allocation *allocation, *restored;
	uint32_t nkept = 0, n = 0;
	TAILQ_FOREACH (allocation, &was->allocations, job_link) {
		if (!allocation->extent.block || allocation->filling)
			continue;
		HASH_FIND(hh, trial->engine->allocations, &allocation->id, sizeof(allocation->id), restored);
		check(trial,
		      restored && restored->job == is && restored->durable && !restored->session &&
		              strcmp(restored->name, allocation->name) == 0 &&
		              same_extent(&restored->extent, &allocation->extent),
		      "an allocation", allocation->id);
		check(trial, !allocation->session || restored->pending > 0, "an allocation that is not held",
		      allocation->id);
		if (trial->former != trial->world->engine)
			check(trial, restored->pending == allocation->pending, "the allocation's holds",
			      allocation->id);
		nkept++;
	}
	TAILQ_FOREACH (allocation, &is->allocations, job_link)
		n++;
	check(trial, n == nkept, "the job's allocations", was->id);
}

static void compare_job(struct trial *trial, const struct zd_job *was, const struct zd_job *is)
{
	const struct zd_group *group, *restored;
	uint32_t nkept = 0, n = 0;
	check(trial,
	      is && strcmp(is->name, was->name) == 0 && is->owner->uid == was->owner->uid && is->durable,
	      "a job", was->id);
	TAILQ_FOREACH (group, &was->groups, job_link) {
		if (group->over)
			continue;
		HASH_FIND(hh, trial->engine->groups, &group->id, sizeof(group->id), restored);
		check(trial, restored && restored->job == is, "a group", group->id);
		compare_group(trial, group, restored);
		nkept++;
	}
	TAILQ_FOREACH (group, &is->groups, job_link)
		n++;
	check(trial, n == nkept, "the job's groups", was->id);
	compare_allocations(trial, was, is);
}

static void compare(struct trial *trial)
{
	const struct zd_job *job, *restored;
	uint32_t nkept = 0;
	for (job = trial->former->jobs; job; job = job->hh.next) {
		if (!job->durable)
			continue;
		HASH_FIND(hh, trial->engine->jobs, &job->id, sizeof(job->id), restored);
		compare_job(trial, job, restored);
		nkept++;
	}
	check(trial, HASH_COUNT(trial->engine->jobs) == nkept, "the jobs", nkept);
}

/* ---- The restored engine ------------------------------------------------------------------------------- */

static void trial_command(void *arg, const struct zd_command *command)
{
	struct trial *trial = arg;
	if (command->op == 0)
		return;
	trial->ops = zd_sim_grow(trial->ops, trial->nops, &trial->room, sizeof(*trial->ops));
	trial->ops[trial->nops++] = command->op;
}

static int trial_segment(void *arg, uint32_t device, uint32_t id, uint64_t bytes, struct zd_err *err)
{
	struct trial *trial = arg;
	const struct zd_sim_segment *segment = zd_sim_segment_find(trial->world, id);
	if (segment && segment->kept && segment->data && segment->device == device && segment->bytes == bytes)
		return 0;
	return zd_err_set(err, ZEROD_E_INVALID, "segment %u of %llu bytes was not kept", id,
	                  (unsigned long long)bytes);
}

/* Processes leave, and shards are set back, in any order; until `left` commands are under way. */
static void complete(struct trial *trial, struct zd_sim_rng *rng, uint64_t left)
{
	while (trial->nops > left) {
		uint32_t i = (uint32_t)zd_sim_below(rng, trial->nops);
		uint64_t op = trial->ops[i];
		trial->ops[i] = trial->ops[--trial->nops];
		zd_engine_op_done(trial->engine, op, 0, "", NULL);
		zd_engine_check(trial->engine);
	}
}

static void end(struct trial *trial, struct zd_sim_rng *rng)
{
	const struct zd_group *group;
	const struct zd_unit *unit;
	complete(trial, rng, 0);
	check(trial, HASH_COUNT(trial->engine->sessions) == 0, "a former session stays", 0);
	for (group = trial->engine->groups; group; group = group->hh.next) {
		TAILQ_FOREACH (unit, &group->units, group_link) {
			for (uint32_t rank = 0; rank < group->local_world_size; rank++)
				check(trial,
				      unit->parts[rank].readers == 0 &&
				              !zd_shadow_is_owed(&unit->parts[rank]),
				      "a part is never set back", unit->id);
		}
	}
	zd_engine_free(trial->engine);
	free(trial->ops);
	trial->world->stats.restores++;
}

static void restore(struct trial *trial, const uint8_t *journal, size_t nbytes)
{
	struct zd_engine_config config = trial->world->engine_config;
	struct zd_engine_sink sink = {
	        .arg = trial, .command = trial_command, .segment_restore = trial_segment};
	struct zd_err err = ZD_ERR_NONE;
	config.devices = trial->world->config.devices;
	trial->engine = zd_engine_new(&config, &sink);
	zd_engine_tick(trial->engine, trial->world->now_ns);
	if (zd_engine_restore(trial->engine, journal, nbytes, &err) != 0)
		zd_sim_fail(trial->world, "the journal is refused: %s", err.text);
	zd_engine_check(trial->engine);
	compare(trial);
}

static void restore_twice(struct zd_sim_world *world, struct zd_sim_rng *rng)
{
	struct trial first = {.world = world, .former = world->engine}, second = {.world = world};
	const uint8_t *journal;
	restore(&first, world->journal, world->journal_bytes);
	zd_engine_journal_all(first.engine);
	complete(&first, rng, first.nops ? zd_sim_below(rng, first.nops + 1) : 0);
	size_t nbytes = zd_engine_journal_take(first.engine, &journal);
	second.former = first.engine;
	restore(&second, journal, nbytes);
	end(&first, rng);
	end(&second, rng);
}

/* Draws from a generator of its own: all else of a seed stays as it is. */
void zd_sim_restore_check(struct zd_sim_world *world)
{
	struct zd_sim_rng rng;
	if (!world->journal) {
		begin(world);
		return;
	}
	store(world);
	if (world->next_journal)
		step(world, 1 + (uint32_t)(world->calls % 3));
	zd_sim_rng_init(&rng, zd_sim_mix(world->config.seed, world->calls), 0);
	if (zd_sim_below(&rng, RESTORED_EVERY) != 0)
		return;
	restore_twice(world, &rng);
	if (zd_sim_below(&rng, BEGUN_EVERY) == 0 && !world->next_journal)
		begin(world);
}
