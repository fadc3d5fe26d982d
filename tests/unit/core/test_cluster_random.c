/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs at random in groups that span daemons. All ranks run the same one, each as far as it can before
 * others come at all; what devices and communicators were given ends in any order that is allowed. Every
 * gathered copy and every sum is compared, no schedule may get stuck, and everything is given back. In some a
 * rank is killed, or leaves, or a daemon or an operation fails: then nobody may be left waiting. Groups are
 * hybrid or not, durable with shadows or not, of strict sessions or not; their ranks share a device or have
 * one each.
 *
 * All follows from the seed, which a failure prints. ZEROD_TEST_SEED=n runs that one alone.
 */
#include <stdio.h>

#include "base/mem.h"
#include "cluster_program.h"
#include "tests/support/core_net.h"
#include "tests/support/core_reduce.h"
#include "tests/support/sweep.h"

#define SEEDS       300              /* of each test */
#define SMALL_ARENA (128 * CORE_KIB) /* for each rank of a device */

/* A copy that was released ahead of the stream that uses it: its fence is passed when the copy is there and
 * was compared. */
struct drain {
	uint64_t request, version, value;
	bool open;
};

/* One rank, and how far it has come. */
struct runner {
	uint32_t rank, at;
	uint64_t waits;               /* a request whose reply the step waits for; 0: it has not been sent */
	uint64_t gathered[UNITS];     /* requests */
	uint64_t asked[STEPS + MORE]; /* all requests of gathers and prefetches */
	uint32_t nasked;
	struct zd_location shard[UNITS];
	uint64_t version[UNITS]; /* that it has written */
	struct drain drains[UNITS];
	uint64_t bucket;
	bool over; /* it does no more */
};

struct run {
	uint64_t random;
	struct core_nodes_config config;
	struct core_nodes nodes;
	uint64_t unit[UNITS][CORE_NODES], shard_numel[UNITS], offset[UNITS];
	struct units units; /* when the program begins */
	double norm;        /* that the last window's first rank was told */
	uint32_t norm_window;
	struct program program;
	struct runner runners[CORE_TEAM];
	uint32_t world;
	bool failing; /* what does not end well is expected not to */
};

static uint64_t running; /* the seed of a test that has not ended */

static uint32_t pick(struct run *run, uint32_t n)
{
	return draw(&run->random, n);
}

/* ---- Ranks --------------------------------------------------------------------------------------------- */

static struct core_driver *core_of(struct run *run, const struct runner *runner)
{
	return core_nodes_core(&run->nodes, runner->rank);
}

static uint64_t session_of(struct run *run, const struct runner *runner)
{
	return core_nodes_session(&run->nodes, runner->rank);
}

static uint64_t unit_of(struct run *run, const struct runner *runner, uint32_t unit)
{
	return run->unit[unit][runner->rank / run->nodes.local_world_size];
}

static bool passed(struct run *run, const struct runner *runner, uint64_t request)
{
	const struct zd_reply *reply = core_reply(core_of(run, runner), request);
	if (!reply)
		return false;
	for (uint32_t i = 0; reply->status == 0 && i < reply->fences.count; i++) {
		struct zd_fence fence = reply->fences.fences[i];
		if (!zd_fence_reached(
		            core_timeline(core_of(run, runner), session_of(run, runner), fence.timeline),
		            fence.value))
			return false;
	}
	return true;
}

static void write_shard(struct run *run, struct runner *runner, uint32_t unit)
{
	memset(core_bytes(core_of(run, runner), runner->shard[unit]),
	       core_pattern(runner->rank, ++runner->version[unit]), runner->shard[unit].bytes);
}

static uint64_t send_step(struct run *run, struct runner *runner, const struct step *step)
{
	struct core_driver *core = core_of(run, runner);
	struct core_team *team = core_nodes_team(&run->nodes, runner->rank);
	uint32_t rank = runner->rank % run->nodes.local_world_size;
	uint64_t session = session_of(run, runner), unit = unit_of(run, runner, step->unit);
	switch (step->kind) {
	case GATHER:
		return core_gather(core, session, unit);
	case PREFETCH:
		return core_prefetch(core, session, unit);
	case RELEASE:
		return core_release(core, session, unit);
	case BACKWARD:
		return core_backward(team, rank, 2, step->which);
	case REDUCE:
		if (step->which >> runner->rank & 1)
			return core_reserve(team, rank, runner->bucket, unit);
		return core_skip(team, rank, unit);
	case BACKWARD_END:
		return core_backward_end(team, rank);
	case STEP:
		return core_step(team, rank);
	case STEP_END:
		return core_step_end(team, rank, NULL, 0);
	case PERSIST:
	case FORGET:
		return core_set_persistent(core, session, unit, step->kind == PERSIST);
	case UPDATE:
		return core_update(core, session, unit);
	case PUBLISH:
		write_shard(run, runner, step->unit);
		return core_publish(core, session, unit);
	default:
		return core_commit(core, session, team->group, step->version);
	}
}

/* A rank whose request has failed, or whose streams were freed, does no more. */
static bool is_well(struct run *run, struct runner *runner, uint64_t request)
{
	const struct zd_reply *reply = core_reply(core_of(run, runner), request);
	if (!run->failing)
		core_expect(core_of(run, runner), request, 0);
	bool well = reply->status == 0;
	for (uint32_t i = 0; well && reply->kind == ZD_REQ_GATHER && i < reply->fences.count; i++)
		well = core_timeline(core_of(run, runner), session_of(run, runner),
		                     reply->fences.fences[i].timeline) != ZD_FENCE_ABORTED;
	assert_true(well || run->failing);
	runner->over |= !well;
	return well;
}

/* Ranks among which a unit is cut. */
static uint32_t nshards(const struct run *run)
{
	return run->config.hybrid ? run->nodes.local_world_size : run->world;
}

static void check_copy(struct run *run, const struct runner *runner, uint32_t unit,
                       const struct zd_reply *reply, uint64_t version)
{
	const uint8_t *data = core_bytes(core_of(run, runner), reply->place);
	uint64_t bytes = run->shard_numel[unit] * sizeof(float);
	uint32_t first = runner->rank / nshards(run) * nshards(run);
	for (uint64_t i = 0; i < nshards(run) * bytes; i++)
		assert_int_equal(data[i], core_pattern(first + (uint32_t)(i / bytes), version));
}

/* The copy that is to be released is there, and right. */
static bool is_gathered(struct run *run, struct runner *runner, uint32_t unit, uint64_t request,
                        uint64_t version)
{
	if (!passed(run, runner, request) || !is_well(run, runner, request))
		return false;
	check_copy(run, runner, unit, core_reply(core_of(run, runner), request), version);
	return true;
}

/* Streams of former gathers that have come to their end. */
static bool drain(struct run *run, struct runner *runner)
{
	for (uint32_t unit = 0; unit < UNITS; unit++) {
		struct drain *drain = &runner->drains[unit];
		if (!drain->open || !passed(run, runner, drain->request))
			continue;
		(void)is_gathered(run, runner, unit, drain->request, drain->version);
		drain->open = false;
		core_pass(core_of(run, runner), session_of(run, runner), unit, drain->value);
		return true;
	}
	return false;
}

/* Sends the release before the copy is there. */
static bool release_early(struct run *run, struct runner *runner, const struct step *step)
{
	struct drain *drain = &runner->drains[step->unit];
	uint64_t request = runner->gathered[step->unit];
	const struct zd_reply *reply = core_reply(core_of(run, runner), request);
	if (drain->open || !reply || reply->status != 0 || pick(run, 2))
		return false;
	*drain = (struct drain){request, step->version, drain->value + 1, true};
	struct zd_fence fence = {step->unit, drain->value};
	runner->waits = core_release_tag(core_of(run, runner), session_of(run, runner),
	                                 unit_of(run, runner, step->unit), CORE_TAG, &fence, 1);
	return true;
}

/* The entry is there: it is written, and committed. */
static bool commit_entry(struct run *run, struct runner *runner, const struct step *step)
{
	struct core_team *team = core_nodes_team(&run->nodes, runner->rank);
	const struct zd_reply *reply = core_reply(team->core, runner->waits);
	struct core_commit commit = {.bucket = runner->bucket, .entry = reply->u.bucket_reserve.entry};
	core_write(team->core, reply->place, ZEROD_FLOAT32, runner->rank,
	           nshards(run) * run->shard_numel[step->unit], 1.0f);
	return is_well(run, runner,
	               core_bucket_submit(team, runner->rank % run->nodes.local_world_size, &commit));
}

static bool is_all_reduced(uint32_t unit)
{
	return unit >= UNITS / 2;
}

/* Small whole numbers, exact in every order. */
static float expected(const struct run *run, const struct window *window, uint32_t unit, uint64_t i)
{
	float sum = 0.0f;
	for (uint32_t rank = 0; rank < run->world; rank++)
		sum += (float)window->times[unit][rank] * core_gradient(rank, i);
	return sum;
}

static void check_step(struct run *run, const struct runner *runner, const struct step *step)
{
	const struct zd_reply *reply = core_reply(core_of(run, runner), runner->waits);
	const float *target = (const float *)(const void *)core_bytes(core_of(run, runner), reply->target);
	for (uint32_t unit = 0; unit < UNITS; unit++) {
		bool all = is_all_reduced(unit);
		uint64_t first = all ? 0 : runner->rank % nshards(run) * run->shard_numel[unit];
		for (uint64_t i = 0; i < run->shard_numel[unit] * (all ? nshards(run) : 1); i++) {
			float want = expected(run, &run->program.windows[step->which], unit, first + i);
			assert_true(target[run->offset[unit] + i] == want);
		}
	}
	if (run->norm_window == step->which + 1)
		assert_memory_equal(&run->norm, &reply->u.step_begin.norm_squared, sizeof(run->norm));
	run->norm = reply->u.step_begin.norm_squared;
	run->norm_window = step->which + 1;
}

/* Ends the rank's step, whose request has been answered. */
static void end_step(struct run *run, struct runner *runner, const struct step *step)
{
	bool well = is_well(run, runner, runner->waits);
	if (well && step->kind == REDUCE && step->which >> runner->rank & 1)
		well = commit_entry(run, runner, step);
	if (well && step->kind == STEP)
		check_step(run, runner, step);
	runner->waits = 0;
	runner->at += well;
}

/* Takes the rank's next step, or sees that it cannot be taken yet. */
static bool take_step(struct run *run, struct runner *runner)
{
	const struct step *step = &run->program.steps[runner->at];
	struct core_driver *core = core_of(run, runner);
	if (core && core_is_open(core, session_of(run, runner)) && drain(run, runner))
		return true;
	if (runner->over || runner->at == run->program.nsteps)
		return false;
	if (runner->waits) {
		if (!core_reply(core_of(run, runner), runner->waits))
			return false;
		end_step(run, runner, step);
		return true;
	}
	if (step->kind == RELEASE && release_early(run, runner, step))
		return true;
	if (step->kind == RELEASE &&
	    !is_gathered(run, runner, step->unit, runner->gathered[step->unit], step->version))
		return false;
	uint64_t request = send_step(run, runner, step);
	if (step->kind == GATHER)
		runner->gathered[step->unit] = request;
	if (step->kind == GATHER || step->kind == PREFETCH) {
		runner->asked[runner->nasked++] = request;
		runner->at++;
	} else {
		runner->waits = request;
	}
	return true;
}

/* ---- Schedules ----------------------------------------------------------------------------------------- */

static bool run_command(struct run *run, uint32_t node)
{
	struct core_driver *core = run->nodes.node[node].core;
	return core && (core_run_nth(core, pick(run, 8)) || core_run_nth(core, 0));
}

/* Something happens: a rank takes a step, or a command ends. False if nothing can. */
static bool move(struct run *run)
{
	uint32_t first = pick(run, run->world), node = pick(run, run->nodes.nnodes);
	if (pick(run, 3) == 0 && run_command(run, node))
		return true;
	for (uint32_t i = 0; i < run->world; i++) {
		if (take_step(run, &run->runners[(first + i) % run->world]))
			return true;
	}
	for (uint32_t i = 0; i < run->nodes.nnodes; i++) {
		if (run_command(run, (node + i) % run->nodes.nnodes))
			return true;
	}
	return false;
}

static void show(struct run *run)
{
	for (uint32_t i = 0; i < run->world; i++) {
		const struct runner *runner = &run->runners[i];
		const struct step *step = &run->program.steps[runner->at];
		struct core_row row;
		if (runner->over || runner->at == run->program.nsteps)
			continue;
		core_row(core_of(run, runner), ZD__TABLE__SESSIONS, session_of(run, runner), &row);
		print_message("rank %u: step %u, %s of unit %u; %zu wait, first for %s\n", runner->rank,
		              runner->at, step_names[step->kind], step->unit, row.row->session->n_waits,
		              row.row->session->n_waits ? row.row->session->waits[0] : "-");
	}
}

/* Commands that run when the schedule says so; the first two kinds also for a group that has ended, while the
 * next one begins. */
static const enum zd_command_kind held_kinds[] = {ZD_CMD_COPY, ZD_CMD_EXCHANGE, ZD_CMD_FILL, ZD_CMD_AGREE,
                                                  ZD_CMD_SEGMENT_CREATE};

static void hold_from(struct run *run, uint32_t first, bool held)
{
	for (uint32_t node = 0; node < run->nodes.nnodes; node++) {
		for (uint32_t i = first; i < ZD_ARRAY_LEN(held_kinds); i++)
			(held ? core_hold : core_unhold)(run->nodes.node[node].core, held_kinds[i]);
	}
}

/* Runs commands of a former group until the request is answered. */
static const struct zd_reply *await(struct run *run, struct core_driver *core, uint64_t request)
{
	bool moved = true;
	while (moved && !core_reply(core, request)) {
		moved = false;
		for (uint32_t node = 0; node < run->nodes.nnodes && !moved; node++)
			moved = run_command(run, node);
	}
	return core_expect(core, request, 0);
}

/* By one rank. */
static void register_unit(struct run *run, struct runner *runner, uint32_t index)
{
	char name[2] = {(char)('a' + index), '\0'};
	struct core_unit unit = {.name = name,
	                         .numel = run->world * ZD_SHARD_ALIGN_BYTES * (1 + index % 2) / 4,
	                         .all_reduce = is_all_reduced(index),
	                         .slot = ZEROD_NO_SLOT};
	struct core_driver *core = core_of(run, runner);
	uint64_t request = core_register(core, session_of(run, runner),
	                                 core_nodes_team(&run->nodes, runner->rank)->group, &unit);
	const struct zd_reply *reply = await(run, core, request);
	run->unit[index][runner->rank / run->nodes.local_world_size] = reply->u.unit_register.unit;
	run->shard_numel[index] = reply->u.unit_register.shard_numel;
	run->offset[index] = reply->u.unit_register.target_offset_numel;
	runner->shard[index] = reply->place;
	runner->version[index] = reply->u.unit_register.version;
	assert_int_equal(runner->version[index], run->runners[0].version[index]);
}

/* Registered and published by all ranks. What they kept of a former group is of one version. */
static void new_unit(struct run *run, uint32_t index)
{
	for (uint32_t rank = 0; rank < run->world; rank++)
		register_unit(run, &run->runners[rank], index);
	for (uint32_t rank = 0; rank < run->world; rank++) {
		struct runner *runner = &run->runners[rank];
		struct core_driver *core = core_of(run, runner);
		uint64_t session = session_of(run, runner), id = unit_of(run, runner, index);
		core_expect(core, core_set_persistent(core, session, id, false), 0);
		(void)await(run, core, core_update(core, session, id));
		write_shard(run, runner, index);
		core_expect(core, core_publish(core, session, id), 0);
	}
	run->units.version[index] = run->runners[0].version[index];
}

/* Of a group that all ranks are in: units, buckets, and a program. */
static void run_begin(struct run *run)
{
	memset(run->runners, 0, sizeof(run->runners));
	memset(&run->program, 0, sizeof(run->program));
	run->norm_window = 0;
	for (uint32_t rank = 0; rank < run->world; rank++)
		run->runners[rank].rank = rank;
	for (uint32_t i = 0; i < UNITS; i++)
		new_unit(run, i);
	for (uint32_t rank = 0; rank < run->world; rank++) {
		struct core_team *team = core_nodes_team(&run->nodes, rank);
		run->runners[rank].bucket = core_bucket_ok(team, rank % team->nranks, ZEROD_FLOAT32,
		                                           4 * CORE_KIB, 2);
	}
	run->program.random = &run->random;
	run->program.world = run->world;
	program_new(&run->program, run->units);
	hold_from(run, 0, true);
}

static void run_new(struct run *run, uint64_t seed)
{
	static const uint32_t shapes[][2] = {{2, 2}, {2, 2}, {2, 2}, {3, 1}, {3, 2}, {2, 3}};
	memset(run, 0, sizeof(*run));
	run->random = seed;
	const uint32_t *shape = shapes[pick(run, ZD_ARRAY_LEN(shapes))];
	run->config = (struct core_nodes_config){
	        .nnodes = shape[0], .local_world_size = shape[1], .exchange = pick(run, 5) == 0};
	struct core_options *options = &run->config.options;
	options->ndevices = pick(run, 3) ? shape[1] : 1;
	options->unordered = pick(run, 2);
	options->sessions_linger = pick(run, 2);
	run->config.hybrid = !run->config.exchange && shape[1] > 1 && pick(run, 4) == 0;
	run->config.durable = run->config.shadow = pick(run, 2);
	run->config.strict = pick(run, 3) == 0;
	options->strict_by_segment = run->config.strict && pick(run, 2);
	options->no_frames = pick(run, 2);
	if (pick(run, 2)) {
		options->arena_bytes = SMALL_ARENA * (options->ndevices == 1 ? shape[1] : 1);
		options->staging_bytes = 1 + pick(run, 8 * CORE_KIB);
		options->segment_bytes = 8 * CORE_KIB;
	}
	core_nodes_new(&run->nodes, &run->config);
	run->world = shape[0] * shape[1];
	run_begin(run);
}

static bool is_done(const struct run *run)
{
	for (uint32_t i = 0; i < run->world; i++) {
		if (run->runners[i].at < run->program.nsteps)
			return false;
		for (uint32_t unit = 0; unit < UNITS; unit++) {
			if (run->runners[i].drains[unit].open)
				return false;
		}
	}
	return true;
}

static void each_seed(void (*test)(uint64_t seed))
{
	const char *only = getenv("ZEROD_TEST_SEED");
	uint64_t first = only ? strtoull(only, NULL, 10) : 1, last = only ? first : SEEDS;
	for (running = first; running <= last; running += sweep_step())
		test(running);
	running = 0;
}

static int name_seed(void **state)
{
	(void)state;
	if (running)
		print_message("it was seed %llu\n", (unsigned long long)running);
	return 0;
}

#define SEED_TEST(name) TEST_DEFINE(name, void, , name(), NULL, name_seed)

/* ---- Tests --------------------------------------------------------------------------------------------- */

static void run_to_the_end(struct run *run)
{
	while (!is_done(run)) {
		if (!move(run)) {
			show(run);
			fail_msg("nothing happens any more");
		}
	}
}

static void run_whole(uint64_t seed)
{
	struct run run;
	run_new(&run, seed);
	run_to_the_end(&run);
	core_net_end(run.nodes.net);
}

SEED_TEST(test_programs)
{
	each_seed(run_whole);
}

/* The rank's session ends, in one of the ways in which it can. */
static void end_rank(struct run *run, struct runner *runner, bool in_order)
{
	struct core_driver *core = core_of(run, runner);
	if (!core || !core_is_open(core, session_of(run, runner)))
		return;
	runner->over = true;
	if (in_order)
		zd_engine_session_goodbye(core_engine(core), session_of(run, runner));
	core_close(core, session_of(run, runner));
}

static void lose_daemon(struct run *run, uint32_t node)
{
	core_abandon(run->nodes.node[node].core);
	run->nodes.node[node].core = NULL;
	for (uint32_t i = 0; i < run->world; i++)
		run->runners[i].over |= i / run->nodes.local_world_size == node;
}

static void abort_group(struct run *run, uint32_t node)
{
	struct core_team *team = &run->nodes.node[node];
	uint64_t admin = core_open_admin(team->core);
	core_do(team->core, admin, ZD_REQ_ABORT_GROUP, team->group);
	core_close(team->core, admin);
}

static void break_something(struct run *run)
{
	static const enum zd_command_kind kinds[] = {ZD_CMD_COPY, ZD_CMD_EXCHANGE, ZD_CMD_AGREE};
	uint32_t rank = pick(run, run->world), node = rank / run->nodes.local_world_size;
	run->failing = true;
	switch (pick(run, run->config.durable ? 4 : 5)) {
	case 0:
		end_rank(run, &run->runners[rank], false);
		break;
	case 1:
		end_rank(run, &run->runners[rank], true);
		break;
	case 2:
		abort_group(run, node);
		break;
	case 3:
		lose_daemon(run, node);
		break;
	default:
		core_fail_next(run->nodes.node[node].core, kinds[pick(run, ZD_ARRAY_LEN(kinds))],
		               ZEROD_E_DEVICE, "broken by the test");
	}
}

/* Of a group that has ended, every request has its reply; and no stream waits for what will not come. */
static void expect_nobody_hangs(struct run *run)
{
	for (uint32_t i = 0; i < run->world; i++) {
		const struct runner *runner = &run->runners[i];
		struct core_driver *core = core_of(run, runner);
		struct core_row group;
		bool waits = runner->waits && core && !core_reply(core, runner->waits);
		if (!core || !core_is_open(core, session_of(run, runner)))
			continue;
		for (uint32_t k = 0; k < runner->nasked; k++) {
			waits |= !core_reply(core, runner->asked[k]);
			assert_true(!core_reply(core, runner->asked[k]) ||
			            passed(run, runner, runner->asked[k]));
		}
		core_row(core, ZD__TABLE__GROUPS, core_nodes_team(&run->nodes, i)->group, &group);
		if (waits && strcmp(group.state, "ABORTED") == 0) {
			show(run);
			fail_msg("rank %u waits, in a group that has ended", i);
		}
	}
}

/* Runs all that can run, and lets the deadlines of requests for lost ranks pass. */
static void run_out(struct run *run)
{
	while (move(run))
		;
	core_net_expire(run->nodes.net);
	while (move(run))
		;
	expect_nobody_hangs(run);
}

static void end_ranks(struct run *run)
{
	for (uint32_t i = 0, first = pick(run, run->world); i < run->world; i++) {
		end_rank(run, &run->runners[(first + i) % run->world], pick(run, 2));
		(void)move(run);
	}
}

/* All ranks of some daemon have voted for a commit, and do not know its result. */
static bool is_committing(struct run *run)
{
	uint32_t local = run->nodes.local_world_size;
	for (uint32_t node = 0; node < run->nodes.nnodes; node++) {
		uint32_t n = 0;
		for (uint32_t i = node * local; i < (node + 1) * local; i++) {
			const struct runner *runner = &run->runners[i];
			n += runner->waits && run->program.steps[runner->at].kind == COMMIT &&
			     !core_reply(core_of(run, runner), runner->waits);
		}
		if (n == local)
			return true;
	}
	return false;
}

/* All ranks join, and are told the same. */
static void join_again(struct run *run)
{
	uint64_t request[CORE_TEAM];
	for (uint32_t rank = 0; rank < run->world; rank++) {
		struct core_join join = core_nodes_join(&run->nodes, &run->config, rank);
		request[rank] = core_join(core_nodes_core(&run->nodes, rank),
		                          core_nodes_session(&run->nodes, rank), &join);
	}
	for (uint32_t rank = 0; rank < run->world; rank++) {
		struct core_team *team = core_nodes_team(&run->nodes, rank);
		const struct zd_reply *reply = core_expect(team->core, request[rank], 0);
		team->group = reply->u.group_join.group;
		run->units.committed = reply->u.group_join.committed_step;
		assert_false(reply->u.group_join.torn);
	}
}

/* All ranks are there again, in other sessions, while some of what the former group was doing has not
 * ended. */
static void run_again(struct run *run)
{
	run->failing = false;
	hold_from(run, 2, false);
	for (uint32_t rank = 0; rank < run->world; rank++) {
		struct core_team *team = core_nodes_team(&run->nodes, rank);
		team->session[rank - team->first_rank] =
		        (run->config.strict ? core_open_strict : core_open)(team->core, CORE_ALICE);
		for (uint32_t i = 0; i < ZD_ARRAY_LEN(held_kinds); i++)
			core_fail_next(team->core, held_kinds[i], 0, NULL);
	}
	core_nodes_new_ids(&run->nodes);
	join_again(run);
	run_begin(run);
	run_to_the_end(run);
}

static bool all_daemons_live(const struct run *run)
{
	for (uint32_t node = 0; node < run->nodes.nnodes; node++) {
		if (!run->nodes.node[node].core)
			return false;
	}
	return true;
}

static void run_broken(uint64_t seed)
{
	struct run run;
	run_new(&run, seed);
	for (uint32_t left = pick(&run, 1500); left > 0 && !is_done(&run) && move(&run); left--)
		;
	while (run.config.durable && is_committing(&run) && move(&run))
		;
	break_something(&run);
	/* else the next group has room beside it, and nothing of it is behind what has not ended */
	if (run.config.durable || run.config.options.arena_bytes || !run.config.options.unordered ||
	    pick(&run, 2))
		run_out(&run);
	end_ranks(&run);
	if (all_daemons_live(&run) && !run.config.options.sessions_linger)
		run_again(&run);
	core_net_end(run.nodes.net);
}

SEED_TEST(test_broken_programs)
{
	each_seed(run_broken);
}
