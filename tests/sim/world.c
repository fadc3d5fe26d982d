/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.c - what a seed's node looks like: devices, jobs, groups, units, and how much goes wrong.
 *
 * A third of the seeds are clean: nothing fails, memory is enough for one rank after the other to go on, and
 * every request must succeed. They find lost wake-ups. In a fifth nothing goes wrong but that ranks die, in
 * the middle of a step that others go on with. In the rest anything may happen; few of these get far. There
 * only safety is checked.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "sim.h"

uint32_t zd_sim_rank(const struct zd_sim_config *config, uint32_t actor, uint32_t group)
{
	const struct zd_sim_group_config *g = &config->groups[group];
	uint32_t rank = config->actors[actor].rank;

	return g->reversed ? g->world - 1 - rank : rank;
}

/* The bytes of a shard, padded to a multiple of `align`. */
static uint64_t shard_bytes(const struct zd_sim_group_config *group, uint32_t unit, uint64_t align)
{
	const struct zd_sim_unit_config *u = &group->units[unit];

	return zd_align_up((u->numel + group->world - 1) / group->world * zerod_dtype_bytes(u->dtype), align);
}

uint64_t zd_sim_shard_numel(const struct zd_sim_group_config *group, uint32_t unit)
{
	uint64_t align = zd_sim_is_in_place(group, unit) ? group->granule_bytes : ZD_SHARD_ALIGN_BYTES;

	return shard_bytes(group, unit, align) / zerod_dtype_bytes(group->units[unit].dtype);
}

bool zd_sim_is_in_place(const struct zd_sim_group_config *group, uint32_t unit)
{
	return group->granule_bytes && !group->units[unit].on_host && !group->units[unit].copied &&
	       shard_bytes(group, unit, ZD_SHARD_ALIGN_BYTES) >= 2 * group->granule_bytes;
}

bool zd_sim_maps_frames(const struct zd_sim_actor_config *actor)
{
	return actor->maps_frames && !actor->strict && !actor->poison;
}

enum zerod_dtype zd_sim_gradient_dtype(const struct zd_sim_group_config *group, uint32_t unit)
{
	uint32_t first = (uint32_t)group->plan.gradient_dtype - ZEROD_FLOAT32;

	return (enum zerod_dtype)(ZEROD_FLOAT32 + (first + zd_sim_bucket_of(group, unit)) % ZD_SIM_BUCKETS);
}

uint32_t zd_sim_bucket_of(const struct zd_sim_group_config *group, uint32_t unit)
{
	return group->plan.mixed ? unit % ZD_SIM_BUCKETS : 0;
}

uint32_t zd_sim_nbuckets(const struct zd_sim_group_config *group)
{
	return group->plan.mixed ? (uint32_t)zd_min_u64(group->nunits, ZD_SIM_BUCKETS) : 1;
}

uint64_t zd_sim_true_numel(const struct zd_sim_group_config *group, uint32_t unit, uint32_t rank)
{
	uint64_t shard = zd_sim_shard_numel(group, unit), numel = group->units[unit].numel;

	return rank * shard >= numel ? 0 : zd_min_u64(shard, numel - rank * shard);
}

uint64_t zd_sim_padded_bytes(const struct zd_sim_group_config *group, uint32_t unit)
{
	return group->world * zd_sim_shard_numel(group, unit) * zerod_dtype_bytes(group->units[unit].dtype);
}

uint64_t zd_sim_copied_bytes(const struct zd_sim_config *config, uint32_t actor, uint32_t group,
                             uint32_t unit)
{
	uint64_t padded = zd_sim_padded_bytes(&config->groups[group], unit);
	const struct zd_device_config *device = &config->devices[config->actors[actor].device];
	uint64_t align = config->strict_by_segment && device->segment_align_bytes
	                         ? device->segment_align_bytes
	                         : ZD_STRICT_ALIGN_BYTES;

	return config->actors[actor].strict ? zd_align_up(padded, align) : padded;
}

uint64_t zd_sim_gathered_bytes(const struct zd_sim_config *config, uint32_t actor, uint32_t group,
                               uint32_t unit)
{
	const struct zd_sim_group_config *g = &config->groups[group];
	uint64_t bytes = zd_sim_copied_bytes(config, actor, group, unit);

	return zd_sim_is_in_place(g, unit) && zd_sim_maps_frames(&config->actors[actor])
	               ? bytes - bytes / g->world
	               : bytes;
}

static enum zerod_dtype reducible_dtype(struct zd_sim_rng *rng)
{
	static const enum zerod_dtype dtypes[] = {ZEROD_FLOAT32, ZEROD_FLOAT16, ZEROD_BFLOAT16};

	return dtypes[zd_sim_below(rng, ZD_ARRAY_LEN(dtypes))];
}

static uint64_t unit_numel(struct zd_sim_rng *rng, const struct zd_sim_group_config *group,
                           enum zerod_dtype dtype)
{
	static const uint64_t odd[] = {1, 2, 3, 63, 64, 65, 127, 257};
	uint64_t granules = group->granule_bytes * group->world / zerod_dtype_bytes(dtype);

	if (granules && granules <= 8192 && zd_sim_percent(rng, 55)) /* around the least size in place */
		return zd_sim_between(rng, 2 * granules - 2, 5 * granules);
	return zd_sim_percent(rng, 40) ? odd[zd_sim_below(rng, ZD_ARRAY_LEN(odd))]
	                               : zd_sim_between(rng, 1, 600);
}

static void derive_plan(struct zd_sim_rng *rng, const struct zd_sim_config *config, struct zd_sim_plan *plan)
{
	static const float prescales[] = {0, 1, 0.5f, 0.25f};

	plan->steps = config->nactors > 8
	                      ? 1
	                      : (uint32_t)zd_sim_between(rng, config->mortal ? 2 : 1, config->mortal ? 3 : 2);
	plan->micro_steps = (uint32_t)zd_sim_between(rng, 1, zd_sim_percent(rng, 30) ? 3 : 1);
	plan->stage = (uint32_t)zd_sim_between(rng, 1, 3);
	plan->target_dtype = zd_sim_percent(rng, 60) ? ZEROD_FLOAT32 : reducible_dtype(rng);
	plan->gradient_dtype = reducible_dtype(rng);
	plan->op = zd_sim_percent(rng, 50) ? ZEROD_SUM : ZEROD_MEAN;
	plan->prescale = prescales[zd_sim_below(rng, ZD_ARRAY_LEN(prescales))];
	plan->overwrite = zd_sim_percent(rng, 15);
	plan->same_order = config->clean || zd_sim_percent(rng, 70);
	plan->one_at_a_time = zd_sim_percent(rng, 50);
	plan->batched_publish = zd_sim_percent(rng, 60);
	plan->commits = (uint32_t)zd_sim_percent(rng, 60);
	plan->prefetches = zd_sim_percent(rng, 50);
	plan->inf_percent = zd_sim_percent(rng, 15) ? 5 : 0;
	plan->mixed = zd_sim_percent(rng, 25);
}

static void derive_group(struct zd_sim_rng *rng, struct zd_sim_config *config,
                         struct zd_sim_group_config *group)
{
	uint32_t nslots = zd_sim_percent(rng, 40) ? (uint32_t)zd_sim_between(rng, 1, 3) : 0;

	derive_plan(rng, config, &group->plan);
	group->nunits = (uint32_t)zd_sim_between(rng, 1, config->nactors > 6 ? 3 : ZD_SIM_UNITS);
	for (uint32_t u = 0; u < group->nunits; u++) {
		struct zd_sim_unit_config *unit = &group->units[u];

		snprintf(unit->name, sizeof(unit->name), "u%u", u);
		unit->dtype = zd_sim_percent(rng, 60)
		                      ? reducible_dtype(rng)
		                      : (enum zerod_dtype)zd_sim_between(rng, ZEROD_FLOAT32, ZEROD_BOOL);
		unit->numel = unit_numel(rng, group, unit->dtype);
		unit->slot = nslots && zd_sim_percent(rng, 70) ? 1 + u % nslots : ZEROD_NO_SLOT;
		unit->nviews = (uint32_t)zd_sim_below(rng, 3);
		unit->frozen = zd_sim_percent(rng, 15);
		unit->on_host = config->has_host && zd_sim_mix(config->seed, unit->numel) % 2; /* no draw */
		unit->copied = zd_sim_percent(rng, 15);
		unit->untargeted = !config->jobs[group->job].durable &&
		                   zd_sim_mix(config->seed, 1 + unit->numel) % 4 == 0; /* no draw */
		unit->terms = unit->untargeted && zd_sim_mix(config->seed, 2 + unit->numel) % 4 > 0;
		unit->persistent = !unit->slot && !group->plan.one_at_a_time &&
		                   zd_sim_percent(rng, config->mortal ? 40 : 15);
	}
}

static void derive_jobs(struct zd_sim_rng *rng, struct zd_sim_config *config)
{
	static const uint32_t worlds[] = {1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 8, 8, 16};
	uint32_t wanted = zd_sim_percent(rng, 60) ? 1 : (uint32_t)zd_sim_between(rng, 2, ZD_SIM_JOBS);
	uint32_t left = 16;

	for (uint32_t j = 0; j < wanted && left > 0; j++) {
		struct zd_sim_job_config *job = &config->jobs[config->njobs++];

		snprintf(job->name, sizeof(job->name), "j%u", j);
		job->uid = 1000 + (uint32_t)zd_sim_below(rng, 2);
		job->durable = zd_sim_percent(rng, config->mortal ? 60 : 40);
		job->shadow = job->durable && zd_sim_percent(rng, config->mortal ? 80 : 60);
		job->world = (uint32_t)zd_min_u64(left, worlds[zd_sim_below(rng, ZD_ARRAY_LEN(worlds))]);
		left -= job->world;
		for (uint32_t r = 0; r < job->world; r++) {
			struct zd_sim_actor_config *actor = &config->actors[config->nactors++];

			actor->job = (int)j;
			actor->rank = r;
			actor->uid = job->uid;
			actor->strict = zd_sim_percent(rng, 15);
			/* no draw: all else of a seed stays as it is */
			actor->poison = zd_sim_mix(config->seed, config->nactors) % 4 == 0;
			actor->maps_frames = zd_sim_percent(rng, 70);
			actor->device = (uint32_t)(zd_sim_percent(rng, 80)
			                                   ? r % config->ndevices
			                                   : zd_sim_below(rng, config->ndevices));
		}
	}
	for (uint32_t j = 0; j < config->njobs; j++) {
		struct zd_sim_job_config *job = &config->jobs[j];

		job->first_group = config->ngroups;
		job->ngroups = zd_sim_percent(rng, 80) ? 1 : 2;
		for (uint32_t g = 0; g < job->ngroups; g++) {
			struct zd_sim_group_config *group = &config->groups[config->ngroups++];

			snprintf(group->name, sizeof(group->name), "g%u", g);
			group->job = j;
			group->world = job->world;
			group->reversed = g == 1;
			group->granule_bytes = job->world > 1 && !job->shadow ? config->granule_bytes : 0;
			derive_group(rng, config, group);
			if (job->shadow && config->mortal)
				group->plan.commits = (uint32_t)zd_sim_between(rng, 1, 2);
		}
	}
}

static void derive_strangers(struct zd_sim_rng *rng, struct zd_sim_config *config)
{
	uint32_t strangers = config->clean || config->mortal ? 0 : (uint32_t)zd_sim_below(rng, 3);

	for (uint32_t s = 0; s < strangers; s++) {
		struct zd_sim_actor_config *actor = &config->actors[config->nactors++];

		actor->job = -1;
		actor->admin = zd_sim_percent(rng, 50);
		actor->uid = actor->admin ? 0 : 2000;
	}
}

/* The memory that suffices on a device in any order of events: for everything at once. */
static void enough_memory(const struct zd_sim_config *config, uint32_t device, uint64_t *all,
                          uint64_t *largest)
{
	*all = *largest = 0;
	for (uint32_t a = 0; a < config->nactors; a++) {
		if (config->actors[a].job < 0 ||
		    (config->actors[a].device != device && device < config->ndevices))
			continue;
		const struct zd_sim_job_config *job = &config->jobs[config->actors[a].job];
		for (uint32_t g = job->first_group; g < job->first_group + job->ngroups; g++)
			for (uint32_t u = 0; u < config->groups[g].nunits; u++) {
				uint64_t bytes = zd_sim_copied_bytes(config, a, g, u);
				*all += bytes;
				*largest = zd_max_u64(*largest, bytes);
			}
	}
}

static void derive_devices(struct zd_sim_rng *rng, struct zd_sim_config *config)
{
	bool one_at_a_time = true;

	for (uint32_t g = 0; g < config->ngroups; g++)
		one_at_a_time = one_at_a_time && config->groups[g].plan.one_at_a_time;
	config->segment_bytes = 4096ull << zd_sim_below(rng, 5);
	config->cut_bytes = zd_sim_percent(rng, 50) ? 128ull << zd_sim_below(rng, 3) : 0;
	for (uint32_t d = 0; d < zd_sim_ndevices(config); d++) {
		struct zd_device_config *device = &config->devices[d];
		uint64_t all, largest;

		snprintf(device->name, sizeof(device->name), "sim%u", d);
		device->host_memory = d == config->ndevices;
		device->has_host = config->has_host && !device->host_memory;
		device->host = config->ndevices;
		if (config->granule_bytes && !device->host_memory) /* the largest one is the layout's */
			device->segment_align_bytes = config->granule_bytes >>
			                              (d > 0 && zd_sim_percent(rng, 30));
		enough_memory(config, d, &all, &largest);
		if (config->clean || config->mortal) {
			/* shards, gathers, buckets, targets, pieces: each at most 8 bytes for one of the
			 * smallest dtype */
			device->arena_bytes = zd_align_up(64 * all + 32 * config->segment_bytes + (1 << 20),
			                                  4096);
			device->gather_budget_bytes = one_at_a_time ? zd_max_u64(largest, 256) : all + 256;
		} else {
			device->arena_bytes = zd_align_up(zd_sim_between(rng, 4096, 8192 + 8 * all), 4096);
			device->gather_budget_bytes =
			        zd_sim_percent(rng, 30)
			                ? 0
			                : zd_align_up(zd_sim_between(rng, 256, all + 512), 256);
		}
		if (zd_sim_percent(rng, 50))
			device->staging_bytes = 256ull << zd_sim_below(rng, 6);
	}
}

void zd_sim_config_derive(uint64_t seed, struct zd_sim_config *config)
{
	static const uint64_t scales[] = {100, 1000, 10000};
	struct zd_sim_rng rng;

	memset(config, 0, sizeof(*config));
	zd_sim_rng_init(&rng, seed, UINT64_MAX);
	config->seed = seed;
	config->clean = zd_sim_percent(&rng, 35);
	config->mortal = !config->clean && zd_sim_percent(&rng, 25);
	config->granule_bytes = 512ull << zd_sim_below(&rng, 4);
	config->sums_ahead = seed / 2 % 2; /* no draw: all else of a seed stays as it is */
	config->publishes_ahead = seed / 8 % 2;
	config->steps_ahead = (config->clean || config->mortal) && seed / 4 % 2; /* no draw either */
	config->unordered = zd_sim_percent(&rng, 50);
	config->linger = zd_sim_percent(&rng, config->mortal ? 60 : 25);
	config->strict_by_segment = seed % 2; /* no draw: all else of a seed stays as it is */
	config->lends = zd_sim_mix(seed, 1) % 2;
	config->end_step_objects = zd_sim_mix(seed, 2) % 4;
	config->ndevices = (uint32_t)zd_sim_between(&rng, 1, config->mortal ? 2 : 4);
	config->has_host = zd_sim_mix(seed, 3) % 3 == 0; /* no draw */
	config->executor_ns = scales[zd_sim_below(&rng, ZD_ARRAY_LEN(scales))];
	config->stream_ns = scales[zd_sim_below(&rng, ZD_ARRAY_LEN(scales))];
	config->actor_ns = scales[zd_sim_below(&rng, ZD_ARRAY_LEN(scales))];
	config->slow_device = zd_sim_percent(&rng, config->mortal ? 80 : 30)
	                              ? (uint32_t)zd_sim_below(&rng, config->ndevices)
	                              : config->ndevices;
	derive_jobs(&rng, config);
	derive_strangers(&rng, config);
	derive_devices(&rng, config);
	if (config->clean)
		return;
	config->regroups = zd_sim_percent(&rng, config->mortal ? 90 : 50);
	if (config->mortal) {
		config->death_percent = (uint32_t)zd_sim_between(&rng, 1, 4);
		return;
	}
	config->noise_percent = (uint32_t)zd_sim_below(&rng, 25);
	config->death_percent = zd_sim_percent(&rng, 60) ? (uint32_t)zd_sim_below(&rng, 4) : 0;
	config->create_fault_percent = zd_sim_percent(&rng, 20) ? 20 : 0;
	config->device_fault_permille = zd_sim_percent(&rng, 15) ? 10 : 0;
	config->patience_ns = zd_sim_percent(&rng, 40) ? zd_sim_between(&rng, 1000, 1000000) : 0;
	if (zd_sim_percent(&rng, 25))
		config->quota_bytes = zd_sim_between(&rng, 4096, 1 << 18);
}

static void print_group(const struct zd_sim_config *config, uint32_t g)
{
	const struct zd_sim_group_config *group = &config->groups[g];
	const struct zd_sim_plan *plan = &group->plan;

	printf("  %s/%s world %u%s: %u steps of %u, stage %u, gradients %s%s, target %s, %s, prescale "
	       "%g%s%s\n",
	       config->jobs[group->job].name, group->name, group->world, group->reversed ? " (reversed)" : "",
	       plan->steps, plan->micro_steps, plan->stage, zerod_dtype_name(plan->gradient_dtype),
	       plan->mixed ? " and others" : "", zerod_dtype_name(plan->target_dtype),
	       plan->op == ZEROD_SUM ? "sum" : "mean", (double)plan->prescale,
	       plan->overwrite ? ", overwrite" : "", plan->one_at_a_time ? ", one unit at a time" : "");
	for (uint32_t u = 0; u < group->nunits; u++)
		printf("    %s %s numel %llu, %llu padded bytes, slot %u%s%s%s%s%s%s%s\n",
		       group->units[u].name, zerod_dtype_name(group->units[u].dtype),
		       (unsigned long long)group->units[u].numel,
		       (unsigned long long)zd_sim_padded_bytes(group, u), group->units[u].slot,
		       group->units[u].persistent ? " persistent" : "",
		       group->units[u].frozen ? " frozen" : "", group->units[u].on_host ? " on the host" : "",
		       group->units[u].copied ? " copied" : "",
		       group->units[u].untargeted ? " untargeted" : "",
		       group->units[u].terms ? " with terms" : "",
		       zd_sim_is_in_place(group, u) ? " in place" : "");
}

void zd_sim_config_print(const struct zd_sim_config *config)
{
	printf("seed %llu: %s, segments of %llu bytes, granules of %llu, slices cut from %llu, quota %llu, "
	       "noise %u %%, deaths "
	       "%u "
	       "%%, device faults "
	       "%u/1000%s%s%s%s%s%s%s%s\n",
	       (unsigned long long)config->seed,
	       config->clean    ? "clean"
	       : config->mortal ? "mortal"
	                        : "noisy",
	       (unsigned long long)config->segment_bytes, (unsigned long long)config->granule_bytes,
	       (unsigned long long)config->cut_bytes, (unsigned long long)config->quota_bytes,
	       config->noise_percent, config->death_percent, config->device_fault_permille,
	       config->sums_ahead ? ", sums ahead" : "", config->steps_ahead ? ", steps ahead" : "",
	       config->publishes_ahead ? ", publishes ahead" : "",
	       config->unordered ? ", unordered executors" : "", config->linger ? ", processes linger" : "",
	       config->strict_by_segment ? ", strict by segment" : "",
	       config->regroups ? ", ranks wait for those who come in place of others" : "",
	       config->lends ? ", places of targets are lent" : "");
	for (uint32_t d = 0; d < zd_sim_ndevices(config); d++)
		printf("  device %u: arena %llu, gather budget %llu, staging %llu%s\n", d,
		       (unsigned long long)config->devices[d].arena_bytes,
		       (unsigned long long)config->devices[d].gather_budget_bytes,
		       (unsigned long long)config->devices[d].staging_bytes,
		       d == config->slow_device ? ", slow" : "");
	for (uint32_t j = 0; j < config->njobs; j++)
		printf("  job %s: uid %u%s\n", config->jobs[j].name, config->jobs[j].uid,
		       config->jobs[j].shadow    ? ", durable, shadow shards"
		       : config->jobs[j].durable ? ", durable"
		                                 : "");
	for (uint32_t g = 0; g < config->ngroups; g++)
		print_group(config, g);
	for (uint32_t a = 0; a < config->nactors; a++)
		printf("  actor %u: job %d rank %u device %u uid %u%s%s%s%s\n", a, config->actors[a].job,
		       config->actors[a].rank, config->actors[a].device, config->actors[a].uid,
		       config->actors[a].admin ? " admin" : "", config->actors[a].strict ? " strict" : "",
		       config->actors[a].poison ? " poison" : "",
		       config->actors[a].maps_frames ? " maps frames" : "");
}
