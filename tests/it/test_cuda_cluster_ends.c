/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_cluster_ends.c - groups over two daemons that end: trainers and daemons that are killed inside a
 * gather or a reduction, an administrator's abort, ranks that do not come or mean another group; over the
 * doubles of the driver, of NVML and of NCCL.
 *
 * Each rank is a process of its own: this program, with a socket and its rank for arguments. It does what it
 * is ordered to on its stdin, and answers each order. Orders that need other ranks are given to all of them
 * before an answer is awaited.
 */
#include <signal.h>

#include <zerod.h>
#include <zerod_cuda.h>

#include "driver/driver.h"
#include "tests/it/program.h"
#include "tests/support/daemon_fixture.h"
#include "tests/unit/driver/cases.h"

#define DAEMONS 2u
#define LOCAL   2u
#define WORLD   (DAEMONS * LOCAL)
#define ALL     ((1u << WORLD) - 1)
#define FIRST   ((1u << LOCAL) - 1) /* daemon's ranks */
#define LAST    (1u << (WORLD - 1))
#define NUMEL   1000u
#define TEXT    512

enum what { MAKE_ID, JOIN, PLACE_GATHER, GATHER, COMMIT, END_BACKWARD, LEAVE };

struct order {
	enum what what;
	uint32_t world_size, deadline_ms; /* to join */
	enum zerod_dtype dtype;           /* of the unit */
	struct zerod_unique_id id;
};

struct answer {
	int status;
	char text[TEXT];
	struct zerod_unique_id id;
};

/* ---- A rank -------------------------------------------------------------------------------------------- */

struct rank {
	uint32_t number;
	zerod_client *client;
	zerod_stream *stream;
	zerod_group *group;
	zerod_unit *unit;
	zerod_bucket *bucket;
};

static int rank_open(struct rank *rank, const char *socket_path)
{
	struct zerod_options options = ZEROD_INIT(options);
	const struct zd_cuda *driver = NULL;
	struct CUctx_st *context;
	struct CUstream_st *stream;

	options.socket_path = socket_path;
	options.deadline_ms = 30000;
	return zd_cuda_load(&driver, NULL) || driver->devicePrimaryCtxRetain(&context, (int)rank->number) ||
	       driver->ctxSetCurrent(context) ||
	       driver->streamCreateWithPriority(&stream, ZD_CU_STREAM_NON_BLOCKING, 0) ||
	       zerod_connect(&options, &rank->client) ||
	       zerod_cuda_stream_wrap(rank->client, stream, &rank->stream);
}

static struct zerod_group_options group_of(const struct rank *rank, const struct order *order)
{
	struct zerod_group_options group = ZEROD_INIT(group);

	group.job = "job", group.rank = rank->number, group.device = rank->number % LOCAL;
	group.world_size = order->world_size, group.local_world_size = LOCAL;
	return group;
}

static int rank_make_id(const struct rank *rank, const struct order *order, struct zerod_unique_id *id)
{
	const struct zerod_group_options group = group_of(rank, order);

	return zerod_group_unique_id(rank->client, &group, NULL, id);
}

/* Joined, with a unit in its first version, all zero. */
static int rank_join(struct rank *rank, const struct order *order)
{
	struct zerod_group_options join = group_of(rank, order);
	struct zerod_unit_options unit = ZEROD_INIT(unit);
	struct zerod_bucket_options bucket = ZEROD_INIT(bucket);

	join.unique_id = &order->id, join.deadline_ms = order->deadline_ms;
	unit.name = "w", unit.dtype = order->dtype, unit.numel = NUMEL;
	bucket.dtype = ZEROD_FLOAT32;
	int status = zerod_group_join(rank->client, &join, &rank->group);
	if (!status)
		status = zerod_unit_register(rank->group, &unit, &rank->unit);
	if (!status)
		status = zerod_bucket_create(rank->group, &bucket, &rank->bucket);
	if (!status)
		status = zerod_update_begin(&rank->unit, 1, NULL, NULL);
	return status ? status : zerod_publish(&rank->unit, 1, NULL, 0, NULL, NULL);
}

/* The stream's wait was freed where the group has ended; what it was asked for next says why. */
static int rank_gather(struct rank *rank)
{
	void *data;
	int status = zerod_gather(rank->unit, NULL, rank->stream, &data);
	if (!status)
		status = zerod_stream_synchronize(rank->stream);
	if (status == ZEROD_E_ABORTED && !zerod_session_reset(rank->client, NULL))
		status = zerod_gather(rank->unit, NULL, NULL, &data);
	return status ? status : zerod_release(rank->unit, &rank->stream, 1, NULL, NULL);
}

static int rank_commit(struct rank *rank)
{
	struct zerod_backward_options backward = ZEROD_INIT(backward);
	struct zerod_entry entry = ZEROD_INIT(entry);
	int status = zerod_backward_begin(rank->group, &backward);

	if (!status)
		status = zerod_bucket_reserve(rank->bucket, rank->unit, NULL, &entry);
	return status ? status : zerod_bucket_submit(rank->bucket, entry.id, NULL, 0, NULL, NULL);
}

/* The reset is for gathers that may have been aborted. */
static int rank_leave(struct rank *rank)
{
	zerod_group *group = rank->group;
	int status = zerod_session_reset(rank->client, NULL);

	rank->group = NULL;
	return status ? status : zerod_group_leave(group, NULL);
}

static int rank_obey(struct rank *rank, const struct order *order, struct answer *answer)
{
	switch (order->what) {
	case MAKE_ID:
		return rank_make_id(rank, order, &answer->id);
	case JOIN:
		return rank_join(rank, order);
	case PLACE_GATHER:
		return zerod_gather(rank->unit, NULL, rank->stream, NULL);
	case GATHER:
		return rank_gather(rank);
	case COMMIT:
		return rank_commit(rank);
	case END_BACKWARD:
		return zerod_backward_end(rank->group, NULL, NULL);
	case LEAVE:
		return rank_leave(rank);
	}
	return ZEROD_E_INVALID;
}

static int trainer_main(const char *socket_path, const char *number)
{
	struct rank rank = {.number = (uint32_t)atoi(number)};
	struct answer answer = {.status = 0};
	struct order order;

	if (rank_open(&rank, socket_path))
		return 1;
	while (read(STDIN_FILENO, &order, sizeof(order)) == sizeof(order)) {
		answer.status = rank_obey(&rank, &order, &answer);
		(void)snprintf(answer.text, sizeof(answer.text), "%s",
		               answer.status ? zerod_last_error(rank.client) : "");
		if (write(STDOUT_FILENO, &answer, sizeof(answer)) != sizeof(answer))
			return 1;
	}
	zerod_close(rank.client);
	return 0;
}

/* ---- The world ----------------------------------------------------------------------------------------- */

struct trainer {
	struct case_process process;
	struct answer answer;
};

struct world {
	struct zd_daemon daemons[DAEMONS];
	struct trainer trainers[WORLD];
	struct zerod_unique_id id;
};

static void start_trainer(struct world *world, uint32_t rank)
{
	char number[16];
	char *const args[] = {(char *)"trainer", world->daemons[rank / LOCAL].socket_path, number, NULL};

	(void)snprintf(number, sizeof(number), "%u", rank);
	world->trainers[rank].process = case_spawn(args);
}

static struct world *open_world(const char *collectives)
{
	struct world *world = zd_calloc(1, sizeof(*world));
	char config[256];

	(void)signal(SIGPIPE, SIG_IGN);
	(void)snprintf(config, sizeof(config), "[collectives]\n%s", collectives);
	for (uint32_t d = 0; d < DAEMONS; d++) {
		const char *const args[] = {"--backend", "cuda", "--gpus", d == 0 ? "0,1" : "2,3", NULL};
		struct zd_daemon_options options = {.config = config, .args = args};

		assert_int_equal(zd_daemon_start(&options, &world->daemons[d]), 0);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		start_trainer(world, rank);
	return world;
}

static void close_world(struct world *world)
{
	for (uint32_t rank = 0; rank < WORLD; rank++)
		if (world->trainers[rank].process.pid && !world->trainers[rank].process.ended)
			assert_int_equal(case_end(&world->trainers[rank].process), 0);
	for (uint32_t d = 0; d < DAEMONS; d++)
		assert_int_equal(zd_daemon_stop(&world->daemons[d]), 0);
	free(world);
}

/* ---- Orders -------------------------------------------------------------------------------------------- */

static void give(struct world *world, uint32_t ranks, const struct order *order)
{
	for (uint32_t rank = 0; rank < WORLD; rank++)
		if (ranks & 1u << rank)
			assert_int_equal(write(world->trainers[rank].process.to, order, sizeof(*order)),
			                 sizeof(*order));
}

static const struct answer *take_answer(struct world *world, uint32_t rank)
{
	struct answer *answer = &world->trainers[rank].answer;

	assert_int_equal(read(world->trainers[rank].process.from, answer, sizeof(*answer)), sizeof(*answer));
	return answer;
}

static void expect(struct world *world, uint32_t ranks, int status, const char *text)
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		const struct answer *answer = NULL;

		if (ranks & 1u << rank)
			answer = take_answer(world, rank);
		if (!answer)
			continue;
		if (answer->status != status || !strstr(answer->text, text))
			fail_msg("rank %u: %s: %s; expected %s: %s", rank, zerod_status_name(answer->status),
			         answer->text, zerod_status_name(status), text);
	}
}

static void order_ok(struct world *world, uint32_t ranks, enum what what)
{
	give(world, ranks, &(struct order){.what = what, .world_size = WORLD});
	expect(world, ranks, ZEROD_OK, "");
}

static struct order join_order(struct world *world, uint32_t deadline_ms)
{
	struct order order = {
	        .what = JOIN, .world_size = WORLD, .deadline_ms = deadline_ms, .dtype = ZEROD_FLOAT32};

	order_ok(world, 1, MAKE_ID);
	order.id = world->trainers[0].answer.id;
	return order;
}

static void form(struct world *world)
{
	struct order order = join_order(world, 0);

	give(world, ALL, &order);
	expect(world, ALL, ZEROD_OK, "");
}

/* With another id, and all work. */
static void form_again(struct world *world, uint32_t left)
{
	order_ok(world, left, LEAVE);
	form(world);
	order_ok(world, ALL, GATHER);
	order_ok(world, ALL, COMMIT);
	order_ok(world, ALL, END_BACKWARD);
	close_world(world);
}

/* ---- Ends ---------------------------------------------------------------------------------------------- */

#define SHORT "timeout_s = 2\n"

static char env[64];
static const char gpus[] = "ZD_DOUBLE_DEVICES=4";

CASE_TEST(test_killed_inside_a_gather, env, gpus)
{
	struct world *world = open_world(SHORT);
	char gone[64];

	form(world);
	order_ok(world, LAST, PLACE_GATHER);
	(void)snprintf(gone, sizeof(gone), "rank 3 (pid %d)", (int)world->trainers[3].process.pid);
	case_kill(&world->trainers[3].process);
	give(world, ALL & ~LAST, &(struct order){.what = GATHER});
	expect(world, ALL & ~LAST & ~FIRST, ZEROD_E_PEER_LOST, gone);
	expect(world, FIRST, ZEROD_E_PEER_LOST, "group 'world'");
	start_trainer(world, 3);
	form_again(world, ALL & ~LAST);
}

CASE_TEST(test_killed_inside_a_reduction, env, gpus)
{
	struct world *world = open_world(SHORT);

	form(world);
	order_ok(world, ALL & ~FIRST, COMMIT);
	case_kill(&world->trainers[3].process);
	order_ok(world, FIRST, COMMIT);
	give(world, ALL & ~LAST, &(struct order){.what = END_BACKWARD});
	expect(world, ALL & ~LAST & ~FIRST, ZEROD_E_PEER_LOST, "rank 3");
	expect(world, FIRST, ZEROD_E_PEER_LOST, "group 'world'");
	start_trainer(world, 3);
	form_again(world, ALL & ~LAST);
}

CASE_TEST(test_daemon_killed_inside_a_gather, env, gpus)
{
	struct world *world = open_world(SHORT);

	form(world);
	order_ok(world, FIRST, PLACE_GATHER);
	assert_int_equal(zd_daemon_kill(&world->daemons[1]), 0);
	give(world, ALL, &(struct order){.what = GATHER});
	expect(world, FIRST, ZEROD_E_PEER_LOST, "group 'world'");
	expect(world, ALL & ~FIRST, ZEROD_E_DISCONNECTED, "");
	close_world(world);
}

CASE_TEST(test_aborted_by_an_administrator, env, gpus)
{
	struct world *world = open_world(SHORT);
	const char *const args[] = {"zeroctl",     "--socket",  world->daemons[0].socket_path,
	                            "abort-group", "job/world", NULL};
	struct program program;

	form(world);
	order_ok(world, FIRST, PLACE_GATHER);
	program_start(&program, args, NULL);
	program_wait(&program);
	if (program.status)
		fail_msg("zeroctl: %d: %s", program.status, program.err_text);
	program_free(&program);
	give(world, FIRST, &(struct order){.what = GATHER});
	expect(world, FIRST, ZEROD_E_ABORTED, "");
	order_ok(world, ALL & ~FIRST, COMMIT);
	give(world, ALL & ~FIRST, &(struct order){.what = END_BACKWARD});
	expect(world, ALL & ~FIRST, ZEROD_E_PEER_LOST, "group 'world'");
	form_again(world, ALL);
}

/* ---- Groups that do not come about --------------------------------------------------------------------- */

/* One rank of the daemon has waited for the other daemon's until its deadline, by which its neighbour's join
 * has ended as well. */
static void expect_given_up(struct world *world, uint32_t daemon)
{
	uint32_t at_deadline = 0;

	for (uint32_t rank = daemon * LOCAL; rank < (daemon + 1) * LOCAL; rank++) {
		const struct answer *answer = take_answer(world, rank);

		if (answer->status == ZEROD_E_DEADLINE && strstr(answer->text, "ranks in other daemons"))
			at_deadline++;
		else if (answer->status != ZEROD_E_PEER_LOST)
			fail_msg("rank %u: %s: %s", rank, zerod_status_name(answer->status), answer->text);
	}
	assert_true(at_deadline > 0);
}

CASE_TEST(test_rank_that_never_joins, env, gpus)
{
	struct world *world = open_world("");
	struct order order;

	order = join_order(world, 1000);
	give(world, ALL & ~LAST, &order);
	expect(world, ALL & ~LAST & ~FIRST, ZEROD_E_DEADLINE, "rank 3");
	expect_given_up(world, 0);
	form(world);
	close_world(world);
}

CASE_TEST(test_ids_differ, env, gpus)
{
	struct world *world = open_world("");
	struct order orders[2];

	for (uint32_t d = 0; d < DAEMONS; d++)
		orders[d] = join_order(world, 1000);
	for (uint32_t d = 0; d < DAEMONS; d++)
		give(world, FIRST << d * LOCAL, &orders[d]);
	for (uint32_t d = 0; d < DAEMONS; d++)
		expect_given_up(world, d);
	form(world);
	close_world(world);
}

/* Daemons that mean worlds of different sizes do not go on, whichever of them NCCL tells. */
CASE_TEST(test_sizes_differ, env, gpus)
{
	struct world *world = open_world("");
	struct order order;

	order = join_order(world, 1000);
	give(world, FIRST, &order);
	order.world_size = WORLD + LOCAL;
	give(world, ALL & ~FIRST, &order);
	for (uint32_t d = 0; d < DAEMONS; d++)
		expect_given_up(world, d);
	form(world);
	close_world(world);
}

/* Checked, the ranks learn what the others took the unit for. */
CASE_TEST(test_dtypes_differ, env, gpus)
{
	struct world *world = open_world("check = yes\n");
	struct order order;

	order = join_order(world, 0);
	give(world, FIRST, &order);
	order.dtype = ZEROD_BFLOAT16;
	give(world, ALL & ~FIRST, &order);
	expect(world, ALL, ZEROD_OK, "");
	give(world, ALL, &(struct order){.what = GATHER});
	expect(world, ALL, ZEROD_E_MISMATCH, "gather of version 1 of 'w'");
	form_again(world, ALL);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[0], "trainer") == 0)
		return trainer_main(argv[1], argv[2]);
	return case_main_in_dir(argc, argv, env);
}
