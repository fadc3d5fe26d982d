/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions over rails: sums bit for bit, in the order that is promised, whatever comes first; ranks and
 * daemons that skip; and what becomes of a group when ranks mean different things or an operation fails.
 */
#include "base/mem.h"
#include "tests/support/core_net.h"
#include "tests/support/core_reduce.h"

#define SLOT_BYTES (16 * CORE_KIB)
#define UNITS      2
#define ALL        0xffu

struct rig {
	struct core_nodes nodes;
	uint32_t world;
	bool exchange, hybrid;
	uint64_t bucket[CORE_TEAM];
	uint64_t unit[UNITS][CORE_NODES], numel[UNITS], shard_numel[UNITS], offset[UNITS];
	float *expected[UNITS]; /* what all targets hold, by element of the unit */
	enum zerod_reduce_op op;
	float prescale;
};

static struct core_team *team_of(struct rig *rig, uint32_t rank)
{
	return core_nodes_team(&rig->nodes, rank);
}

static uint32_t local(const struct rig *rig, uint32_t rank)
{
	return rank % rig->nodes.local_world_size;
}

static uint64_t unit_of(const struct rig *rig, uint32_t unit, uint32_t rank)
{
	return rig->unit[unit][rank / rig->nodes.local_world_size];
}

static void add_unit(struct rig *rig, uint32_t index, uint64_t numel)
{
	const char *const names[UNITS] = {"u", "v"};
	struct core_unit unit = {.name = names[index], .numel = numel, .slot = ZEROD_NO_SLOT};
	core_nodes_register(&rig->nodes, &unit, rig->unit[index]);
	const struct core_team *team = &rig->nodes.node[0];
	const struct zd_reply *reply =
	        core_expect(team->core, core_register(team->core, team->session[0], team->group, &unit), 0);
	rig->numel[index] = numel;
	rig->shard_numel[index] = reply->u.unit_register.shard_numel;
	rig->offset[index] = reply->u.unit_register.target_offset_numel;
	rig->expected[index] = zd_calloc(rig->world * rig->shard_numel[index], sizeof(float));
}

static void rig_new(struct rig *rig, const struct core_nodes_config *config, uint64_t u_numel,
                    uint64_t v_numel)
{
	*rig = (struct rig){.op = ZEROD_SUM};
	core_nodes_new(&rig->nodes, config);
	rig->exchange = config && config->exchange;
	rig->hybrid = config && config->hybrid;
	rig->world = rig->nodes.nnodes * rig->nodes.local_world_size;
	for (uint32_t rank = 0; rank < rig->world; rank++) {
		uint64_t request = core_bucket(team_of(rig, rank), local(rig, rank), ZEROD_FLOAT32,
		                               SLOT_BYTES, 2);
		rig->bucket[rank] = core_expect(team_of(rig, rank)->core, request, 0)->u.bucket_create.bucket;
	}
	add_unit(rig, 0, u_numel);
	add_unit(rig, 1, v_numel);
}

static void rig_end(struct rig *rig)
{
	core_net_end(rig->nodes.net);
	for (uint32_t i = 0; i < UNITS; i++)
		free(rig->expected[i]);
}

#define RIG_TEST(name) CORE_RIG_TEST(name, struct rig, rig, rig_new(rig, NULL, 500, 70), rig_end)

/* ---- Gradients and their sums -------------------------------------------------------------------------- */

/* Numbers whose sums depend on the order. */
static float gradient(uint32_t rank, uint32_t unit, uint64_t i)
{
	static const float values[] = {1e8f, 1.0f, -1e8f, 0.3f, 3e-8f, -7.0f, 1e-3f};
	return values[(rank * 3 + unit + i * (1 + rank)) % ZD_ARRAY_LEN(values)];
}

static float factor(const struct rig *rig)
{
	return rig->prescale ? rig->prescale : 1.0f;
}

/* By each daemon's ranks first, then by daemon; or by all ranks. In float32. */
static float sum(const struct rig *rig, uint32_t unit, uint64_t i, uint32_t contributors)
{
	float all = 0.0f, node = 0.0f;
	for (uint32_t rank = 0; rank < rig->world; rank++) {
		float value = gradient(rank, unit, i) * factor(rig);
		if (contributors & 1u << rank && rig->exchange)
			all += value;
		else if (contributors & 1u << rank)
			node += value;
		if (!rig->exchange && local(rig, rank) == rig->nodes.local_world_size - 1) {
			all += node;
			node = 0.0f;
		}
	}
	return rig->op == ZEROD_MEAN ? all * (1.0f / (float)rig->world) : all;
}

/* ---- Passes -------------------------------------------------------------------------------------------- */

static void begin(struct rig *rig, uint32_t stage, bool boundary)
{
	for (uint32_t rank = 0; rank < rig->world; rank++)
		core_expect(team_of(rig, rank)->core,
		            core_backward(team_of(rig, rank), local(rig, rank), stage, boundary), 0);
}

/* One rank's part in a reduction: the request must end with the status. */
static void contribute_to(struct rig *rig, uint32_t unit, uint32_t rank, int status)
{
	struct core_team *team = team_of(rig, rank);
	uint64_t request = core_reserve(team, local(rig, rank), rig->bucket[rank], unit_of(rig, unit, rank));
	const struct zd_reply *reply = core_expect(team->core, request, 0);
	struct zd_location where = reply->place;
	for (uint64_t i = 0; i < rig->numel[unit]; i++)
		core_element_set(ZEROD_FLOAT32, core_bytes(team->core, where), i, gradient(rank, unit, i));
	struct core_commit commit = {.bucket = rig->bucket[rank],
	                             .entry = reply->u.bucket_reserve.entry,
	                             .op = rig->op,
	                             .prescale = rig->prescale};
	core_expect(team->core, core_bucket_submit(team, local(rig, rank), &commit), status);
}

static void send_skip(struct rig *rig, uint32_t unit, uint32_t rank)
{
	core_expect(team_of(rig, rank)->core,
	            core_skip(team_of(rig, rank), local(rig, rank), unit_of(rig, unit, rank)), 0);
}

static void take_part(struct rig *rig, uint32_t unit, uint32_t rank, uint32_t contributors)
{
	if (contributors & 1u << rank)
		contribute_to(rig, unit, rank, 0);
	else
		send_skip(rig, unit, rank);
}

static void expect_sum(struct rig *rig, uint32_t unit, uint32_t contributors)
{
	for (uint64_t i = 0; i < rig->numel[unit]; i++)
		rig->expected[unit][i] += sum(rig, unit, i, contributors);
}

static void reduce(struct rig *rig, uint32_t unit, uint32_t contributors)
{
	for (uint32_t rank = 0; rank < rig->world; rank++)
		take_part(rig, unit, rank, contributors);
	if (contributors & ((1u << rig->world) - 1))
		expect_sum(rig, unit, contributors);
}

static void end(struct rig *rig, int status)
{
	uint64_t request[CORE_TEAM];
	for (uint32_t rank = 0; rank < rig->world; rank++)
		request[rank] = core_backward_end(team_of(rig, rank), local(rig, rank));
	for (uint32_t rank = 0; rank < rig->world; rank++)
		core_expect(team_of(rig, rank)->core, request[rank], status);
}

/* Which of a unit's slices is the rank's. */
static uint32_t slice_of(const struct rig *rig, uint32_t rank)
{
	return rig->hybrid ? local(rig, rank) : rank;
}

static double squares(const struct rig *rig, uint32_t unit, uint32_t rank)
{
	double all = 0.0;
	for (uint64_t i = 0; i < rig->shard_numel[unit]; i++) {
		double value = (double)rig->expected[unit][slice_of(rig, rank) * rig->shard_numel[unit] + i];
		all += value * value;
	}
	return all;
}

/* As it is agreed on: by unit in a rank, then by rank, then by daemon. In a hybrid group each daemon has it
 * all. */
static double norm(const struct rig *rig)
{
	double all = 0.0, node = 0.0;
	uint32_t ranks = rig->hybrid ? rig->nodes.local_world_size : rig->world;
	for (uint32_t rank = 0; rank < ranks; rank++) {
		for (uint32_t unit = 0; unit < UNITS; unit++)
			node += squares(rig, unit, rank);
		if (rig->exchange || local(rig, rank) == rig->nodes.local_world_size - 1) {
			all += node;
			node = 0.0;
		}
	}
	return all;
}

static void check_target(struct rig *rig, uint32_t rank, const struct zd_reply *step)
{
	const uint8_t *target = core_bytes(team_of(rig, rank)->core, step->target);
	for (uint32_t unit = 0; unit < UNITS; unit++) {
		for (uint64_t i = 0; i < rig->shard_numel[unit]; i++) {
			float is = core_element(ZEROD_FLOAT32, target, rig->offset[unit] + i);
			float want = rig->expected[unit][slice_of(rig, rank) * rig->shard_numel[unit] + i];
			if (memcmp(&is, &want, sizeof(is)) != 0)
				fail_msg("rank %u, unit %u, element %llu: %.9g, not %.9g", rank, unit,
				         (unsigned long long)i, (double)is, (double)want);
		}
	}
}

/* All ranks take the step: targets and norm are as expected, and gone then. */
static void step(struct rig *rig)
{
	uint64_t request[CORE_TEAM];
	double agreed = norm(rig);
	for (uint32_t rank = 0; rank < rig->world; rank++)
		request[rank] = core_step(team_of(rig, rank), local(rig, rank));
	for (uint32_t rank = 0; rank < rig->world; rank++) {
		const struct zd_reply *reply = core_expect(team_of(rig, rank)->core, request[rank], 0);
		check_target(rig, rank, reply);
		assert_memory_equal(&reply->u.step_begin.norm_squared, &agreed, sizeof(agreed));
		assert_false(reply->u.step_begin.overflow);
		core_expect(team_of(rig, rank)->core,
		            core_step_end(team_of(rig, rank), local(rig, rank), NULL, 0), 0);
	}
	for (uint32_t unit = 0; unit < UNITS; unit++)
		memset(rig->expected[unit], 0, rig->world * rig->shard_numel[unit] * sizeof(float));
}

static void pass(struct rig *rig)
{
	begin(rig, 3, true);
	reduce(rig, 0, ALL);
	reduce(rig, 1, ALL);
	end(rig, 0);
	step(rig);
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

static const struct core_nodes_config shapes[] = {
        {.nnodes = 2, .local_world_size = 2}, {.nnodes = 3, .local_world_size = 1},
        {.nnodes = 3, .local_world_size = 2}, {.nnodes = 2, .local_world_size = 3},
        {.nnodes = 2, .exchange = true},      {.nnodes = 3, .exchange = true},
        {.nnodes = 1, .exchange = true},      {.nnodes = 2, .hybrid = true},
        {.nnodes = 3, .hybrid = true},
};

TEST(test_sums)
{
	static const uint64_t numel[][UNITS] = {{1024, 64}, {1, 65}, {257, 3001}};
	for (size_t shape = 0; shape < ZD_ARRAY_LEN(shapes); shape++) {
		for (size_t i = 0; i < ZD_ARRAY_LEN(numel); i++) {
			struct rig rig;
			rig_new(&rig, &shapes[shape], numel[i][0], numel[i][1]);
			pass(&rig);
			rig.op = ZEROD_MEAN;
			rig.prescale = 0.5f;
			pass(&rig);
			rig_end(&rig);
		}
	}
}

TEST(test_accumulation)
{
	for (size_t shape = 0; shape < ZD_ARRAY_LEN(shapes); shape++) {
		struct rig rig;
		rig_new(&rig, &shapes[shape], 500, 70);
		for (uint32_t micro = 0; micro < 4; micro++) {
			begin(&rig, 2, micro == 3);
			reduce(&rig, micro % 2, ALL);
			reduce(&rig, 1 - micro % 2, ALL);
			end(&rig, 0);
		}
		step(&rig);
		rig_end(&rig);
	}
}

/* Ranks, or all of a daemon, or all, have no gradient. */
TEST(test_skips)
{
	static const uint32_t contributors[] = {0xe, 0x3, 0xc, 0x1, 0x8, 0x9, 0x0};
	for (size_t shape = 0; shape < ZD_ARRAY_LEN(shapes); shape++) {
		struct rig rig;
		rig_new(&rig, &shapes[shape], 500, 70);
		for (size_t i = 0; i < ZD_ARRAY_LEN(contributors); i++) {
			begin(&rig, 3, true);
			reduce(&rig, 0, contributors[i]);
			reduce(&rig, 1, contributors[ZD_ARRAY_LEN(contributors) - 1 - i]);
			end(&rig, 0);
			step(&rig);
		}
		rig_end(&rig);
	}
}

/* When nobody adds to it in the last micro-step, what the target holds still counts. */
TEST(test_norm_of_what_was_accumulated)
{
	for (size_t shape = 0; shape < ZD_ARRAY_LEN(shapes); shape++) {
		struct rig rig;
		rig_new(&rig, &shapes[shape], 500, 70);
		begin(&rig, 2, false);
		reduce(&rig, 0, ALL);
		reduce(&rig, 1, ALL);
		end(&rig, 0);
		begin(&rig, 2, true);
		reduce(&rig, 0, 0);
		reduce(&rig, 1, ALL);
		end(&rig, 0);
		step(&rig);
		rig_end(&rig);
	}
}

/* Ranks of a daemon are on rails of their own, each in an order of its own. */
static void expect_crossing(const struct core_nodes_config *config)
{
	struct rig rig;
	rig_new(&rig, config, 1024, 1024);
	begin(&rig, 3, true);
	for (uint32_t i = 0; i < UNITS; i++) {
		for (uint32_t rank = 0; rank < rig.world; rank++)
			contribute_to(&rig, local(&rig, rank) == 0 ? i : 1 - i, rank, 0);
	}
	expect_sum(&rig, 0, ALL);
	expect_sum(&rig, 1, ALL);
	end(&rig, 0);
	step(&rig);
	rig_end(&rig);
}

TEST(test_crossing_orders)
{
	expect_crossing(NULL);
	/* with staging for one reduction at a time, which must not be the one that has to wait for the
	 * other */
	expect_crossing(&(struct core_nodes_config){.options = {.staging_bytes = 1}});
}

/* One daemon is a whole backward ahead. */
RIG_TEST(test_daemon_ahead)
{
	uint64_t request[2];
	begin(rig, 3, true);
	for (uint32_t rank = 0; rank < 2; rank++) {
		contribute_to(rig, 0, rank, 0);
		contribute_to(rig, 1, rank, 0);
		request[rank] = core_backward_end(team_of(rig, rank), rank);
	}
	core_expect_waits(team_of(rig, 0)->core, request[0], "");
	for (uint32_t rank = 2; rank < 4; rank++) {
		contribute_to(rig, 0, rank, 0);
		contribute_to(rig, 1, rank, 0);
		(void)core_backward_end(team_of(rig, rank), rank - 2);
	}
	core_expect(team_of(rig, 0)->core, request[0], 0);
	expect_sum(rig, 0, ALL);
	expect_sum(rig, 1, ALL);
	step(rig);
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

static void expect_ended(struct rig *rig, uint32_t rank, int status, const char *text)
{
	struct core_team *team = team_of(rig, rank);
	core_expect_error(team->core, core_backward_end(team, local(rig, rank)), status, text);
}

RIG_TEST(test_daemons_mean_different_sums)
{
	begin(rig, 3, true);
	contribute_to(rig, 0, 0, 0);
	contribute_to(rig, 0, 1, 0);
	rig->op = ZEROD_MEAN;
	contribute_to(rig, 0, 2, 0);
	contribute_to(rig, 0, 3, 0);
	for (uint32_t rank = 0; rank < 4; rank++)
		expect_ended(rig, rank, ZEROD_E_MISMATCH,
		             "by sum of float32 into float32, prescale 1, accumulate; rank");
}

TEST(test_daemons_reduce_different_units)
{
	struct rig rig;
	rig_new(&rig, NULL, 500, 500);
	begin(&rig, 3, true);
	for (uint32_t rank = 0; rank < 4; rank++)
		contribute_to(&rig, rank < 2 ? 0 : 1, rank, 0);
	for (uint32_t rank = 0; rank < 4; rank++)
		expect_ended(&rig, rank, ZEROD_E_MISMATCH, ", of another unit");
	rig_end(&rig);
}

/* The ranks of one daemon would send more than those of the other, whose surplus would be received as the
 * next reduction's. */
RIG_TEST(test_daemons_mean_different_kinds)
{
	for (uint32_t rank = 0; rank < 4; rank++) {
		struct core_team *team = team_of(rig, rank);
		struct core_unit unit = {
		        .name = "w", .numel = 70, .slot = ZEROD_NO_SLOT, .all_reduce = rank < 2};
		rig->unit[1][rank / 2] = core_register_ok(team->core, team->session[local(rig, rank)],
		                                          team->group, &unit);
	}
	begin(rig, 3, true);
	for (uint32_t rank = 0; rank < 4; rank++)
		contribute_to(rig, 1, rank, 0);
	for (uint32_t rank = 0; rank < 4; rank++)
		expect_ended(rig, rank, ZEROD_E_MISMATCH,
		             rank < 2 ? "accumulate, all-reduced; rank 2 says" : "accumulate, all-reduced");
}

/* The reduced gradients of an all-reduced unit, which have the target's size, go over the rails too. Who
 * skips says it as well. */
static void expect_targets_differ(bool all_reduce, uint32_t contributors)
{
	struct rig rig;
	struct core_unit unit = {.name = "w", .numel = 70, .slot = ZEROD_NO_SLOT, .all_reduce = all_reduce};
	rig_new(&rig, NULL, 500, 70);
	core_nodes_register(&rig.nodes, &unit, rig.unit[1]);
	for (uint32_t rank = 0; rank < 4; rank++)
		core_expect(team_of(&rig, rank)->core,
		            core_backward_into(team_of(&rig, rank), local(&rig, rank), 3, true,
		                               rank < 2 ? ZEROD_FLOAT32 : ZEROD_BFLOAT16),
		            0);
	for (uint32_t rank = 0; rank < 4; rank++)
		take_part(&rig, 1, rank, contributors);
	for (uint32_t rank = 0; rank < 4; rank++)
		expect_ended(&rig, rank, ZEROD_E_MISMATCH,
		             rank < 2 ? "into bfloat16, prescale" : "into float32, prescale");
	core_net_expire(rig.nodes.net);
	rig_end(&rig);
}

TEST(test_daemons_mean_different_targets)
{
	expect_targets_differ(true, ALL);
	expect_targets_differ(true, 3);
	expect_targets_differ(false, ALL);
	expect_targets_differ(false, 0);
}

/* Another daemon's word is not taken for this one's own where it makes no sense: staging has room for what
 * can be. */
static void expect_refused(const struct core_nodes_config *config, uint32_t offset, uint32_t says)
{
	struct rig rig;
	uint32_t half;
	rig_new(&rig, config, 500, 70);
	half = rig.nodes.local_world_size;
	begin(&rig, 3, true);
	core_net_lie(rig.nodes.net, rig.nodes.node[1].core, offset, &says, sizeof(says));
	for (uint32_t rank = 0; rank < rig.world; rank++)
		take_part(&rig, 0, rank, rank < half ? 0 : ALL);
	for (uint32_t rank = 0; rank < half; rank++)
		expect_ended(&rig, rank, ZEROD_E_MISMATCH, "sent invalid reduction options");
	core_net_expire(rig.nodes.net);
	rig_end(&rig);
}

TEST(test_options_of_others_are_checked)
{
	enum { OP = 20, DTYPE = 24, PRESCALE = 32 };
	const struct core_nodes_config exchange = {.exchange = true};
	expect_refused(NULL, OP, 77);
	expect_refused(NULL, DTYPE, ZEROD_INT64);
	expect_refused(NULL, PRESCALE, 0x7f800000); /* inf */
	expect_refused(&exchange, DTYPE, ZEROD_INT64);
	expect_refused(&exchange, DTYPE, 1000);
}

static void expect_failure(enum zd_command_kind kind, const char *text)
{
	struct rig rig;
	rig_new(&rig, NULL, 500, 70);
	begin(&rig, 3, true);
	core_fail_next(team_of(&rig, 0)->core, kind, ZEROD_E_DEVICE, "broken by the test");
	for (uint32_t rank = 0; rank < 4; rank++)
		contribute_to(&rig, 0, rank, 0);
	expect_ended(&rig, 0, ZEROD_E_DEVICE, text);
	expect_ended(&rig, 1, ZEROD_E_DEVICE, text);
	core_net_expire(rig.nodes.net);
	rig_end(&rig);
}

TEST(test_operations_fail)
{
	expect_failure(ZD_CMD_COPY, "broken by the test");
	expect_failure(ZD_CMD_REDUCE, "broken by the test");
	expect_failure(ZD_CMD_AGREE, "broken by the test");
	expect_failure(ZD_CMD_EXCHANGE, "broken by the test");
}

/* There is memory for what is to go over a rail later, and then none for what is to go first: that is an
 * error, and no circle. */
TEST(test_crossing_orders_without_memory)
{
	struct rig rig;
	const struct core_nodes_config config = {.options = {.staging_bytes = 1,
	                                                     .segment_bytes = CORE_KIB,
	                                                     .segment_align_bytes = CORE_KIB,
	                                                     .arena_bytes = 31 * CORE_KIB}};
	rig_new(&rig, &config, 1024, 1024);
	begin(&rig, 3, true);
	for (uint32_t i = 0; i < UNITS; i++) {
		for (uint32_t rank = 0; rank < rig.world; rank++)
			contribute_to(&rig, local(&rig, rank) == 0 ? i : 1 - i, rank, 0);
	}
	for (uint32_t rank = 0; rank < rig.world; rank++)
		expect_ended(&rig, rank, ZEROD_E_NO_MEMORY, "device");
	core_net_expire(rig.nodes.net);
	rig_end(&rig);
}

static void expect_group_ended(struct rig *rig)
{
	struct core_row row;
	core_row(rig->nodes.node[0].core, ZD__TABLE__GROUPS, rig->nodes.node[0].group, &row);
	assert_string_equal(row.state, "ABORTED");
	core_net_expire(rig->nodes.net);
	rig_end(rig);
}

/* Rank 1 ends its backward without u before rank 0 commits it, instead of behind that. */
TEST(test_ended_without_before_others_commit)
{
	struct rig rig;
	struct core_team *team;
	rig_new(&rig, NULL, 500, 70);
	begin(&rig, 3, true);
	team = team_of(&rig, 0);
	const struct zd_reply *reply =
	        core_expect(team->core, core_reserve(team, 0, rig.bucket[0], unit_of(&rig, 0, 0)), 0);
	struct core_commit commit = {.bucket = rig.bucket[0], .entry = reply->u.bucket_reserve.entry};
	core_expect(team->core, core_backward_end(team, 1), 0);
	core_expect_error(team->core, core_bucket_submit(team, 0, &commit), ZEROD_E_MISMATCH,
	                  "rank 1 ended backward 1 without a gradient or skip for unit 'u'");
	/* The other daemon's ranks wait for it. */
	contribute_to(&rig, 0, 2, 0);
	contribute_to(&rig, 0, 3, 0);
	expect_group_ended(&rig);
}
