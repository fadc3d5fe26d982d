/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - virtual time: the queue of events, and what is checked after every call into the engine.
 *
 * Events run in the order of their time; the engine's clock is moved to it first, and to every deadline on
 * the way. When nothing is left to happen, whoever still waits must do so for a reason that the tables show.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "sim.h"

#define ROWS_EVERY    16        /* calls between two looks at all tables */
#define MAX_EVENTS    20000000u /* far more than any seed needs: something goes round in circles */
#define MOST_AT_ONCE  4u        /* completions in one event */
#define MOST_EXPIRED  64u       /* requests with one deadline */
#define AHEAD_PERCENT 80        /* of slices, where processes may be asked for sums ahead */

/* ---- Words --------------------------------------------------------------------------------------------- */

void zd_sim_fail(struct zd_sim_world *world, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vprintf(format, args);
	va_end(args);
	printf("\n  at %llu ns of seed %llu\n", (unsigned long long)world->now_ns,
	       (unsigned long long)world->config.seed);
	(void)fflush(stdout);
	_exit(1); /* what the world holds is no leak */
}

void zd_sim_trace(struct zd_sim_world *world, const char *format, ...)
{
	va_list args;

	if (!world->verbose)
		return;
	printf("%12llu ", (unsigned long long)world->now_ns);
	va_start(args, format);
	(void)vprintf(format, args);
	va_end(args);
	printf("\n");
}

void *zd_sim_grow(void *array, uint32_t count, uint32_t *room, size_t each)
{
	if (count < *room)
		return array;
	*room = *room ? 2 * *room : 16;
	return zd_realloc(array, *room, each);
}

/* ---- Events -------------------------------------------------------------------------------------------- */

static bool earlier(const struct zd_sim_event *a, const struct zd_sim_event *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void swap(struct zd_sim_event *a, struct zd_sim_event *b)
{
	struct zd_sim_event kept = *a;

	*a = *b;
	*b = kept;
}

void zd_sim_schedule(struct zd_sim_world *world, struct zd_sim_event event, uint64_t delay_ns)
{
	uint32_t i = world->nevents;

	event.at_ns = world->now_ns + delay_ns;
	event.order = world->next_order++;
	world->events = zd_sim_grow(world->events, world->nevents, &world->events_room,
	                            sizeof(*world->events));
	world->events[world->nevents++] = event;
	for (; i > 0 && earlier(&world->events[i], &world->events[(i - 1) / 2]); i = (i - 1) / 2)
		swap(&world->events[i], &world->events[(i - 1) / 2]);
}

static struct zd_sim_event take_event(struct zd_sim_world *world)
{
	struct zd_sim_event first = world->events[0];
	uint32_t i = 0;

	world->events[0] = world->events[--world->nevents];
	for (;;) {
		uint32_t least = i;
		for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < world->nevents; child++) {
			if (earlier(&world->events[child], &world->events[least]))
				least = child;
		}
		if (least == i)
			return first;
		swap(&world->events[i], &world->events[least]);
		i = least;
	}
}

/* Marks the sessions that a device failure may poison: the one that the event names, or all if it names
 * none. */
static void note_abort(struct zd_sim_world *world, const struct zd_sim_event *event)
{
	for (uint32_t i = 0; i < world->nsessions && event->status == ZEROD_E_DEVICE; i++) {
		if (!event->session || world->sessions[i]->id == event->session)
			world->sessions[i]->aborted = true;
	}
}

/* The delays are no draws: all else of a seed stays as it is where no session's end takes several steps. */
static void ends(void *arg, uint32_t uid)
{
	struct zd_sim_world *world = arg;
	uint64_t mixed = zd_sim_mix(world->config.seed, world->next_order);

	zd_sim_schedule(world, (struct zd_sim_event){.kind = ZD_SIM_EVENT_END_STEP, .index = uid},
	                mixed % 3 ? mixed % world->config.executor_ns : 0);
}

/* A request of the uid may have completed its ends before. */
static void run_end_step(struct zd_sim_world *world, uint32_t uid)
{
	if (zd_engine_end_step(world->engine, uid))
		ends(world, uid);
	world->stats.end_steps++;
	zd_sim_called(world);
}

static void note_done(struct zd_sim_world *world, const struct zd_sim_event *event)
{
	world->pending_ops--;
	world->stats.ops++;
	zd_sim_trace(world, "    done %llu: %s", (unsigned long long)event->op,
	             zerod_status_name(event->status));
	note_abort(world, event);
	zd_engine_op_done(world->engine, event->op, event->status,
	                  event->status ? "a fault of the simulator" : "", &event->result);
}

/* With the completion also those that come right behind it: the driver may find several at once. */
static void run_done(struct zd_sim_world *world, const struct zd_sim_event *event)
{
	uint64_t most = zd_sim_mix(world->config.seed, event->order) % MOST_AT_ONCE;

	zd_engine_pause(world->engine);
	note_done(world, event);
	for (; most > 0 && world->nevents > 0 && world->events[0].kind == ZD_SIM_EVENT_DONE; most--) {
		struct zd_sim_event next = take_event(world);

		note_done(world, &next);
	}
	zd_engine_resume(world->engine);
	zd_sim_called(world);
}

static void run_event(struct zd_sim_world *world, const struct zd_sim_event *event)
{
	switch (event->kind) {
	case ZD_SIM_EVENT_ACTOR:
		zd_sim_actor_run(world, event->index);
		break;
	case ZD_SIM_EVENT_EXECUTOR:
		zd_sim_executor_run(world, event->index);
		break;
	case ZD_SIM_EVENT_STREAM:
		zd_sim_stream_run(world, world->sessions[event->index], event->stream);
		break;
	case ZD_SIM_EVENT_GONE:
		zd_sim_process_gone(world, world->sessions[event->index]);
		break;
	case ZD_SIM_EVENT_UNMAP:
		zd_sim_unmap(world, world->sessions[event->index], (uint32_t)event->op);
		break;
	case ZD_SIM_EVENT_SUMS:
		zd_sim_sums_run(world, event->session);
		break;
	case ZD_SIM_EVENT_END_STEP:
		run_end_step(world, event->index);
		break;
	case ZD_SIM_EVENT_DONE:
		run_done(world, event);
		break;
	}
}

/* ---- The engine ---------------------------------------------------------------------------------------- */

static bool fence_passed(void *arg, uint64_t id, struct zd_fence fence)
{
	struct zd_sim_world *world = arg;
	const struct zd_sim_session *session = zd_sim_session_find(world, id);

	return session && session->open && fence.timeline < ZD_SIM_STREAMS &&
	       zd_fence_reached(session->client_page[fence.timeline], fence.value) &&
	       zd_sim_percent(&world->rng, 70);
}

static void check_seen(struct zd_sim_world *world)
{
	for (uint32_t i = 0; i < world->nseen; i++) {
		const struct zd_sim_session *owner = zd_sim_session_find(world, world->seen[i].session);
		uint32_t uid = world->config.actors[owner->actor].uid;

		if (owner->open && !zd_engine_may_map(world->engine, owner->id, world->seen[i].segment))
			zd_sim_fail(world, "session %llu may not map segment %u, which it was given",
			            (unsigned long long)owner->id, world->seen[i].segment);
		for (uint32_t s = 0; s < world->nsessions; s++) {
			const struct zd_sim_session *other = world->sessions[s];
			if (other->open && world->config.actors[other->actor].uid != uid &&
			    zd_engine_may_map(world->engine, other->id, world->seen[i].segment))
				zd_sim_fail(world, "session %llu may map segment %u of another uid",
				            (unsigned long long)other->id, world->seen[i].segment);
		}
	}
	world->nseen = 0;
}

void zd_sim_called(struct zd_sim_world *world)
{
	zd_engine_check(world->engine);
	zd_sim_budget_check(world);
	check_seen(world);
	if (zd_engine_next_deadline(world->engine) <= world->now_ns)
		zd_sim_fail(world, "a deadline passed at %llu and its request still waits",
		            (unsigned long long)zd_engine_next_deadline(world->engine));
	zd_sim_restore_check(world);
	if (++world->calls % ROWS_EVERY == 0)
		zd_sim_rows_check(world);
}

static void tick(struct zd_sim_world *world, uint64_t now_ns)
{
	bool expires = zd_engine_next_deadline(world->engine) <= now_ns;

	world->now_ns = now_ns;
	zd_engine_tick(world->engine, now_ns);
	/* where ends take several steps, each tick expires few requests */
	for (uint32_t i = 0; i < MOST_EXPIRED && zd_engine_next_deadline(world->engine) <= now_ns; i++)
		zd_engine_tick(world->engine, now_ns);
	if (expires)
		zd_sim_called(world);
}

/* Runs until nothing happens by itself any more. */
static void drain(struct zd_sim_world *world)
{
	for (uint64_t count = 0;; count++) {
		uint64_t deadline = zd_engine_next_deadline(world->engine);
		uint64_t event = world->nevents ? world->events[0].at_ns : UINT64_MAX;

		if (event == UINT64_MAX && deadline == UINT64_MAX)
			return;
		if (count == MAX_EVENTS)
			zd_sim_fail(world, "it does not come to an end");
		if (deadline < event) {
			tick(world, deadline);
			continue;
		}
		struct zd_sim_event first = take_event(world);
		tick(world, first.at_ns);
		run_event(world, &first);
	}
}

/* ---- One seed ------------------------------------------------------------------------------------------ */

static bool sums_ahead(void *arg, uint64_t session)
{
	struct zd_sim_world *world = arg;

	(void)session;
	return zd_sim_percent(&world->rng, AHEAD_PERCENT);
}

static void start(struct zd_sim_world *world)
{
	struct zd_sim_config *config = &world->config;
	world->engine_config = (struct zd_engine_config){
	        .ndevices = zd_sim_ndevices(config),
	        .devices = config->devices,
	        .segment_bytes = config->segment_bytes,
	        .uid_quota_bytes = config->quota_bytes,
	        .reduction_cut_bytes = config->cut_bytes,
	        .landing_chunk_bytes = config->cut_bytes,
	        .sessions_linger = config->linger,
	        .strict_by_segment = config->strict_by_segment,
	        .events = 256,
	        .end_step_objects = config->end_step_objects,
	};
	struct zd_engine_sink sink = {
	        .arg = world,
	        .command = zd_sim_command,
	        .reply = zd_sim_reply,
	        .fence_passed = fence_passed,
	        .session_killed = zd_sim_session_killed,
	        .segment_retire = zd_sim_segment_retire,
	        .segment_kept = zd_sim_segment_kept,
	        .sums_ahead = config->sums_ahead ? sums_ahead : NULL,
	        .ends = config->end_step_objects ? ends : NULL,
	};

	world->engine = zd_engine_new(&world->engine_config, &sink);
	world->quota_bytes = config->quota_bytes;
	for (uint32_t d = 0; d < zd_sim_ndevices(config); d++)
		world->budget_bytes[d] = config->devices[d].gather_budget_bytes
		                                 ? config->devices[d].gather_budget_bytes
		                                 : config->devices[d].arena_bytes;
	for (uint32_t g = 0; g < config->ngroups; g++)
		world->groups[g].step_first = UINT32_MAX;
	zd_sim_rng_init(&world->rng, config->seed, UINT64_MAX / 2);
	tick(world, 1000);
	for (uint32_t a = 0; a < config->nactors; a++) {
		world->actors[a].next = world->program.first[a];
		zd_sim_actor_wake(world, a);
	}
}

static void end_job(struct zd_sim_world *world, struct zd_sim_session *session, uint64_t job, uint32_t group)
{
	struct zd_args args = {.kind = ZD_REQ_END_JOB, .u.end_job.job = job};
	struct zd_sim_request request = {.group = (uint8_t)group};

	if (job == 0)
		return;
	zd_sim_send(world, session, &request, &args);
	if (zd_sim_durable_job(world) == job)
		zd_sim_fail(world, "durable job %llu, without sessions, cannot be ended",
		            (unsigned long long)job);
}

/* Everybody is gone: durable jobs are ended, and nothing may be left. */
static void clean_up(struct zd_sim_world *world)
{
	uint32_t janitor = world->config.nactors;

	world->config.actors[janitor] = (struct zd_sim_actor_config){.job = -1, .admin = true};
	world->actors[janitor].done = true;
	zd_sim_session_open(world, janitor);
	struct zd_sim_session *session = world->actors[janitor].session;
	for (uint32_t j = 0; j < world->config.njobs; j++)
		end_job(world, session, zd_sim_job_id(world, j), world->config.jobs[j].first_group);
	for (uint64_t job = zd_sim_durable_job(world); job; job = zd_sim_durable_job(world))
		end_job(world, session, job, UINT8_MAX); /* a stranger's */
	zd_sim_session_close(world, session);
	drain(world);
	if (world->pending_ops || world->nwatches || world->nsums)
		zd_sim_fail(world, "%llu operations never end", (unsigned long long)world->pending_ops);
	zd_sim_empty_check(world);
}

static void finish(struct zd_sim_world *world)
{
	zd_engine_free(world->engine);
	for (uint32_t d = 0; d < zd_sim_ndevices(&world->config); d++)
		free(world->executors[d].queue);
	for (uint32_t i = 0; i < world->nsessions; i++) {
		for (uint32_t s = 0; s < ZD_SIM_STREAMS; s++)
			free(world->sessions[i]->streams[s].items);
		free(world->sessions[i]->daemon_page);
		free(world->sessions[i]->told_ns);
		free(world->sessions[i]->given);
		free(world->sessions[i]->residue);
		free(world->sessions[i]->requests);
		free(world->sessions[i]->mappings);
		free(world->sessions[i]);
	}
	for (uint32_t g = 0; g < ZD_SIM_GROUPS; g++) {
		for (uint32_t u = 0; u < ZD_SIM_UNITS; u++)
			free(world->groups[g].expected[u]);
	}
	free(world->journal);
	free(world->next_journal);
	free(world->sessions);
	free(world->segments);
	free(world->watches);
	free(world->sums);
	free(world->exposures);
	free(world->events);
	free(world);
}

void zd_sim_run(uint64_t seed, bool verbose, const bool *removed, struct zd_sim_stats *stats)
{
	struct zd_sim_world *world = zd_calloc(1, sizeof(*world));

	world->verbose = verbose;
	world->removed = removed;
	zd_sim_config_derive(seed, &world->config);
	zd_sim_program_generate(&world->config, &world->program);
	if (verbose) {
		zd_sim_config_print(&world->config);
		zd_sim_program_print(&world->config, &world->program, removed);
	}
	start(world);
	do {
		drain(world);
		zd_sim_waits_check(world);
	} while (zd_sim_actors_unblock(world));
	drain(world);
	clean_up(world);
	stats->requests += world->stats.requests;
	stats->ops += world->stats.ops;
	stats->gathers_checked += world->stats.gathers_checked;
	stats->reductions_checked += world->stats.reductions_checked;
	stats->loans_checked += world->stats.loans_checked;
	stats->terms_checked += world->stats.terms_checked;
	stats->moves += world->stats.moves;
	stats->in_place += world->stats.in_place;
	stats->restores += world->stats.restores;
	stats->resumed += world->stats.resumed;
	stats->end_steps += world->stats.end_steps;
	finish(world);
}
