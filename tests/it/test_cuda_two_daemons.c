/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_two_daemons.c - groups over two daemons as trainers have them: the library, both daemons, and the
 * doubles of the driver and of NCCL. Every byte that is gathered and every sum is compared.
 */
#include "cluster_scene.h"

#include <math.h>

#include "tests/it/zeroctl_scene.h"

#define STEPS 3

/* ---- Training ------------------------------------------------------------------------------------------ */

static int step; /* of the world */

/* Whole numbers, so that sums are exact. */
static float weight(uint32_t unit, uint64_t i)
{
	return (float)((i * 7 + (uint64_t)unit * 31 + (uint64_t)step * 1009) % 65521);
}

static float gradient(uint32_t unit, uint64_t i)
{
	return (float)((i + unit) % 61);
}

static void check_values(struct rank *rank, uint64_t numel, uint64_t first, float scale,
                         float (*expected)(uint32_t unit, uint64_t i), uint32_t unit)
{
	for (uint64_t i = 0; i < numel && !rank->status; i++) {
		if (rank->values[i] == expected(unit, first + i) * scale)
			continue;
		rank->status = ZEROD_E_MISMATCH;
		(void)snprintf(rank->text, sizeof(rank->text), "unit %u: element %llu is %g, expected %g",
		               unit, (unsigned long long)(first + i), (double)rank->values[i],
		               (double)(expected(unit, first + i) * scale));
	}
}

static void rank_publish(struct rank *rank)
{
	TRY(rank, zerod_update_begin(rank->units, UNITS, NULL, NULL));
	for (uint32_t u = 0; u < UNITS; u++) {
		struct zerod_shard shard = ZEROD_INIT(shard);

		TRY(rank, zerod_shard_get(rank->units[u], &shard));
		for (uint64_t i = 0; i < shard.true_numel; i++)
			rank->values[i] = weight(u, shard.offset_numel + i);
		rank_write(rank, shard.data, shard.true_numel);
	}
	TRY(rank, zerod_publish(rank->units, UNITS, &rank->stream, 1, NULL, NULL));
}

static void gather_and_check(struct rank *rank, uint32_t unit)
{
	void *whole;

	TRY(rank, zerod_gather(rank->units[unit], NULL, rank->stream, &whole));
	rank_read(rank, whole, unit_numel[unit]);
	if (!rank->status)
		check_values(rank, unit_numel[unit], 0, 1, weight, unit);
	TRY(rank, zerod_release(rank->units[unit], &rank->stream, 1, NULL, NULL));
}

static void rank_gather(struct rank *rank)
{
	for (uint32_t u = 0; u < UNITS && !rank->status; u++)
		gather_and_check(rank, u);
}

static void rank_backward(struct rank *rank)
{
	struct zerod_backward_options options = ZEROD_INIT(options);

	options.boundary = 1;
	TRY(rank, zerod_backward_begin(rank->group, &options));
	for (uint32_t u = UNITS; u-- > 0;) {
		struct zerod_entry entry = ZEROD_INIT(entry);

		TRY(rank, zerod_bucket_reserve(rank->bucket, rank->units[u], NULL, &entry));
		for (uint64_t i = 0; i < unit_numel[u]; i++)
			rank->values[i] = gradient(u, i) * (float)(rank->number + 1);
		rank_write(rank, entry.data, unit_numel[u]);
		TRY(rank, zerod_bucket_submit(rank->bucket, entry.id, &rank->stream, 1, NULL, NULL));
	}
	TRY(rank, zerod_backward_end(rank->group, NULL, NULL));
}

static double norm_squared(void)
{
	double sum = 0;

	for (uint32_t u = 0; u < UNITS; u++)
		for (uint64_t i = 0; i < unit_numel[u]; i++)
			sum += pow((double)gradient(u, i) * (WORLD * (WORLD + 1) / 2), 2);
	return sum;
}

static void rank_step(struct rank *rank)
{
	struct zerod_step_info info = ZEROD_INIT(info);

	TRY(rank, zerod_step_begin(rank->group, NULL, &info, NULL));
	for (uint32_t u = 0; u < UNITS; u++) {
		struct zerod_shard shard = ZEROD_INIT(shard);
		struct zerod_target target = ZEROD_INIT(target);

		TRY(rank, zerod_shard_get(rank->units[u], &shard));
		TRY(rank, zerod_target_get(rank->units[u], &target));
		rank_read(rank, target.data, target.true_numel);
		check_values(rank, target.true_numel, shard.offset_numel, WORLD * (WORLD + 1) / 2, gradient,
		             u);
	}
	if (info.overflow || info.step != (uint64_t)step || fabs(info.norm_squared - norm_squared()) > 1e-3) {
		rank->status = ZEROD_E_MISMATCH;
		(void)snprintf(rank->text, sizeof(rank->text), "step %llu, norm squared %g, expected %g",
		               (unsigned long long)info.step, info.norm_squared, norm_squared());
	}
	TRY(rank, zerod_step_end(rank->group, &rank->stream, 1, NULL));
	TRY(rank, zerod_commit(rank->group, (uint64_t)step, NULL));
}

static void train(const char *collectives, enum zerod_collectives how)
{
	struct world *world = world_open(collectives);

	world->collectives = how;
	world_new_id(world);
	world_form(world);
	for (step = 1; step <= STEPS; step++) {
		all_do(world, rank_publish);
		all_do(world, rank_gather);
		all_do(world, rank_backward);
		all_do(world, rank_step);
	}
	world_close(world);
}

CASE_TEST(test_trains_by_nccl)
{
	train("", ZEROD_COLLECTIVES_NCCL);
}

CASE_TEST(test_trains_checked)
{
	train("check = yes\n", ZEROD_COLLECTIVES_COPIES);
}

/* ---- Ends ---------------------------------------------------------------------------------------------- */

/* A gather returns the reason for the group's failure; the session is reset first, because its streams were
 * freed. */
static void rank_ask_why(struct rank *rank)
{
	void *whole;

	TRY(rank, zerod_session_reset(rank->client, NULL));
	TRY(rank, zerod_gather(rank->units[0], NULL, NULL, &whole));
}

/* All leave, and form the group anew with another id. */
static void form_again(struct world *world)
{
	all_do(world, rank_leave);
	world_new_id(world);
	world_form(world);
	all_do(world, rank_publish);
	all_do(world, rank_gather);
}

static void rank_join_differently(struct rank *rank)
{
	rank_join_with(rank, rank->number < LOCAL ? 0 : ZEROD_GROUP_DURABLE);
}

CASE_TEST(test_daemons_that_differ_in_flags)
{
	struct world *world = world_open("");

	some_do(world, ALL_RANKS, rank_join_differently);
	expect_failed(world, ALL_RANKS, ZEROD_E_MISMATCH, "2 a daemon (node ");
	expect_failed(world, ALL_RANKS, ZEROD_E_MISMATCH, "durable");
	world_close(world);
}

/* Checks the output of zeroctl for the group at the second daemon. */
static void expect_listed(const struct world *world, const char *state, const char *why)
{
	const char *socket_path = world->daemons[1].socket_path;
	json_t *object = zeroctl_listing(socket_path, "groups", "groups");
	const json_t *row = row_where(object, "job", "cluster");
	struct program program;

	assert_non_null(row);
	assert_string_equal(json_string_value(json_object_get(row, "state")), state);
	assert_int_equal(json_integer_value(json_object_get(row, "world_size")), WORLD);
	assert_int_equal(json_integer_value(json_object_get(row, "local_world_size")), LOCAL);
	assert_int_equal(json_integer_value(json_object_get(row, "first_rank")), LOCAL);
	assert_string_equal(json_string_value(json_object_get(row, "collectives")), "copies");
	assert_true(json_is_false(json_object_get(row, "hybrid")));
	if (why)
		assert_non_null(strstr(json_string_value(json_object_get(row, "why")), why));
	else
		assert_string_equal(json_string_value(json_object_get(row, "why")), "");
	json_decref(object);
	program = zeroctl_run(socket_path, "groups");
	assert_non_null(strstr(program.out_text, "2..3 of 4"));
	program_free(&program);
}

#define FIRST_DAEMON ((1u << LOCAL) - 1)
#define LAST         (1u << (WORLD - 1))

/* Its neighbour hears of it at once, the other daemon's ranks when they have waited for long enough; and
 * nobody comes back into the group before all have left. */
CASE_TEST(test_rank_leaves)
{
	struct world *world = world_open("timeout_s = 3\n");

	world_form(world);
	all_do(world, rank_publish);
	expect_listed(world, "READY", NULL);
	some_do(world, LAST, rank_leave);
	expect_ok(world, LAST);
	expect_listed(world, "ABORTED", "ended normally: all ranks leave");
	some_do(world, LAST, rank_join);
	expect_failed(world, LAST, ZEROD_E_PEER_LOST, "rank 3 ");
	some_do(world, ALL_RANKS & ~LAST, rank_gather);
	some_do(world, ALL_RANKS & ~LAST, rank_ask_why);
	expect_failed(world, FIRST_DAEMON, ZEROD_E_PEER_LOST, "at its deadline");
	expect_failed(world, ALL_RANKS & ~LAST & ~FIRST_DAEMON, ZEROD_E_PEER_LOST,
	              "ended normally: all ranks leave");
	form_again(world);
	world_close(world);
}

CASE_TEST(test_daemon_dies)
{
	struct world *world = world_open("timeout_s = 3\n");

	world_form(world);
	all_do(world, rank_publish);
	assert_int_equal(zd_daemon_kill(&world->daemons[1]), 0);
	some_do(world, ALL_RANKS, rank_gather);
	some_do(world, FIRST_DAEMON, rank_ask_why);
	expect_failed(world, FIRST_DAEMON, ZEROD_E_PEER_LOST, "at its deadline");
	expect_failed(world, ALL_RANKS & ~FIRST_DAEMON, ZEROD_E_DISCONNECTED, "");
	assert_int_equal(world_start_daemon(world, 1, NULL, true), 0);
	some_do(world, ALL_RANKS & ~FIRST_DAEMON, rank_close);
	some_do(world, ALL_RANKS & ~FIRST_DAEMON, rank_connect);
	expect_ok(world, ALL_RANKS & ~FIRST_DAEMON);
	form_again(world);
	world_close(world);
}

static void rank_commit(struct rank *rank)
{
	TRY(rank, zerod_commit(rank->group, 1, NULL));
}

static void rank_expect_nothing_committed(struct rank *rank)
{
	struct zerod_group_info info = ZEROD_INIT(info);

	TRY(rank, zerod_group_get(rank->group, &info));
	if (info.committed_step != 0 || info.torn)
		rank->status = ZEROD_E_MISMATCH;
}

/* The second daemon has agreed to a commit that the first one never comes to. */
CASE_TEST(test_commit_in_doubt)
{
	struct world *world = world_open("timeout_s = 3\n");
	struct program program;

	world->flags = ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW;
	world_form(world);
	all_do(world, rank_publish);
	some_do(world, ALL_RANKS & ~FIRST_DAEMON, rank_commit);
	expect_failed(world, ALL_RANKS & ~FIRST_DAEMON, ZEROD_E_PEER_LOST, "at its deadline");
	program = zeroctl_run(world->daemons[1].socket_path, "groups");
	assert_non_null(strstr(program.out_text, "step 1 is in doubt: "));
	program_free(&program);
	form_again(world);
	all_do(world, rank_expect_nothing_committed);
	all_do(world, rank_commit);
	program = zeroctl_run(world->daemons[1].socket_path, "groups");
	assert_null(strstr(program.out_text, "in doubt"));
	program_free(&program);
	world_close(world);
}

int main(int argc, char **argv)
{
	return scene_main(argc, argv);
}
