/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_comm.c - the life of communicators, over the doubles of the driver and of NCCL. */
#include "tests/unit/executor/comm_scene.h"

/* ---- Meeting ------------------------------------------------------------------------------------------- */

/* However often NCCL says that it is not done. */
COMM_TEST(test_ready_only_when_nccl_says_so, 1)
{
	struct zd_cuda_comm_config config;
	bool opened = false;

	s->control->polls(5);
	config = comm_config(s, 0);
	s->ranks[0].comm = comm_add(s, 0, &config);
	while (!opened) {
		pthread_mutex_lock(&s->ranks[0].comm->lock);
		opened = s->ranks[0].comm->opened;
		pthread_mutex_unlock(&s->ranks[0].comm->lock);
	}
	for (int i = 0; i < 5; i++) {
		comm_poll(s);
		assert_string_equal(zd_cuda_comm_state_name(s->ranks[0].comm), "CONNECTING");
	}
	comm_poll(s);
	assert_string_equal(zd_cuda_comm_state_name(s->ranks[0].comm), "READY");
}

static void expect_missed(struct comm_scene *s, uint32_t i, const char *here)
{
	const struct zd_cuda_comm *comm = s->ranks[i].comm;

	comm_poll_at(s, 99);
	assert_int_equal(comm->state, ZD_CUDA_COMM_CONNECTING);
	comm_poll_at(s, 100);
	assert_int_equal(comm->state, ZD_CUDA_COMM_FAILED);
	assert_int_equal(comm->failure.status, ZEROD_E_DEADLINE);
	comm_expect_text(comm->failure.text, here);
}

/* Ranks 0 and 2 of four are here; of the others nothing is known. */
COMM_TEST(test_peers_that_never_come, 2)
{
	for (uint32_t i = 0; i < 2; i++) {
		struct zd_cuda_comm_config config = comm_config(s, i);

		config.nranks = 4;
		config.rank = 2 * i;
		config.deadline_ns = i == 0 ? 100 : 0;
		s->ranks[i].comm = comm_add(s, i, &config);
	}
	expect_missed(s, 0,
	              "group 'world': its 4 ranks have not connected by the deadline of rank 0: of this "
	              "daemon came "
	              "ranks 0 and 2; another one has not come");
	assert_int_equal(s->ranks[1].comm->state, ZD_CUDA_COMM_CONNECTING);
	zd_cuda_comm_abort(s->ranks[1].comm, "no more");
	comm_expect_text(s->ranks[1].comm->failure.text, "group 'world' was aborted: no more");
}

/* The same where the communicator's ranks are others in the world: they are called by what their users
 * know. */
COMM_TEST(test_peers_by_their_ranks_in_the_world, 1)
{
	struct zd_cuda_comm_config config = comm_config(s, 0);
	config.nranks = 2;
	config.rank = 1;
	config.world = (struct zd_comm_world){.first = 3, .between = 3};
	config.deadline_ns = 100;
	s->ranks[0].comm = comm_add(s, 0, &config);
	expect_missed(s, 0, "by the deadline of rank 7: of this daemon came rank 7; another one");
	comm_expect_text(s->ranks[0].comm->failure.text, "not in this daemon: rank 3");
}

/* Ranks of two daemons with different configurations never meet: the first rank's deadline passes. */
static void meet_in_vain(void (*change)(struct comm_scene *s, struct zd_cuda_comm_config *config))
{
	struct zd_cuda_comm_config config;
	struct zd_cuda_comm_local_ranks elsewhere;
	struct comm_scene s;

	comm_open(&s, 2);
	zd_cuda_comm_local_ranks_init(&elsewhere);
	s.ranks[1].queue.home.local_ranks = &elsewhere;
	config = comm_config(&s, 0);
	config.deadline_ns = 100;
	s.ranks[0].comm = comm_add(&s, 0, &config);
	config = comm_config(&s, 1);
	change(&s, &config);
	s.ranks[1].comm = comm_add(&s, 1, &config);
	expect_missed(&s, 0,
	              "of this daemon came rank 0; another one has not come, or has another unique id or "
	              "number of ranks");
	zd_cuda_comm_abort(s.ranks[1].comm, "no more");
	comm_close(&s);
	zd_cuda_comm_local_ranks_deinit(&elsewhere);
}

static void other_id(struct comm_scene *s, struct zd_cuda_comm_config *config)
{

	comm_make_id(s, &config->id);
}

static void other_size(struct comm_scene *s, struct zd_cuda_comm_config *config)
{
	(void)s;
	config->nranks = 3;
}

static void same_rank(struct comm_scene *s, struct zd_cuda_comm_config *config)
{
	(void)s;
	config->rank = 0;
}

TEST(test_daemons_that_do_not_agree)
{
	meet_in_vain(other_id);
	meet_in_vain(other_size);
	meet_in_vain(same_rank);
}

/* ---- What is refused ----------------------------------------------------------------------------------- */

static void expect_refused(struct comm_scene *s, uint32_t i, struct zd_cuda_comm_config config, int status,
                           const char *text)
{
	struct zd_cuda_comm *comm = NULL;
	struct zd_err err = ZD_ERR_NONE;

	comm_enter(s, i);
	assert_int_equal(zd_cuda_comm_queue_add(&s->ranks[i].queue, &config, &comm, &err), status);
	comm_expect_text(err.text, text);
	assert_null(comm);
}

COMM_TEST(test_bad_configurations, 1)
{
	struct zd_cuda_comm_config config;

	config = comm_config(s, 0);
	config.rank = 1;
	expect_refused(s, 0, config, ZEROD_E_INVALID, "group 'world': rank 1 of 1");
	config.rank = 0;
	config.nranks = ZD_MAX_WORLD + 1;
	expect_refused(s, 0, config, ZEROD_E_INVALID, "rank 0 of 1025, there may be 1024");
	config.nranks = 0;
	expect_refused(s, 0, config, ZEROD_E_INVALID, "rank 0 of 0");
	config = comm_config(s, 0);
	memset(&config.id, 0, sizeof(config.id));
	expect_refused(s, 0, config, ZEROD_E_INVALID, "the unique id is empty");
	config = comm_config(s, 0);
	config.group = "";
	expect_refused(s, 0, config, ZEROD_E_INVALID, "group name");
	assert_int_equal(setenv("NCCL_COMM_BLOCKING", "1", 1), 0);
	expect_refused(s, 0, comm_config(s, 0), ZEROD_E_INVALID, "NCCL_COMM_BLOCKING=1");
	assert_int_equal(unsetenv("NCCL_COMM_BLOCKING"), 0);
}

COMM_TEST(test_ranks_of_one_daemon_fit_together, 2)
{
	struct zd_cuda_comm_config config, other;

	config = comm_config(s, 0);
	s->ranks[0].comm = comm_add(s, 0, &config);
	expect_refused(s, 1, config, ZEROD_E_EXISTS, "rank 0 already exists with the same unique id");
	other = comm_config(s, 1);
	other.nranks = 5;
	expect_refused(s, 1, other, ZEROD_E_MISMATCH,
	               "rank 0 is one of 2, rank 1 with the same unique id one of 5");
	other = comm_config(s, 1);
	expect_refused(s, 0, other, ZEROD_E_EXISTS,
	               "ranks 0 and 1 on device 0: NCCL supports one rank per GPU");
}

/* An id that is none is NCCL's to refuse. */
COMM_TEST(test_an_id_that_is_none, 1)
{
	struct zd_cuda_comm_config config;

	config = comm_config(s, 0);
	memset(&config.id, 0x55, sizeof(config.id));
	s->ranks[0].comm = comm_add(s, 0, &config);
	COMM_AWAIT(s, s->ranks[0].comm->state == ZD_CUDA_COMM_FAILED);
	assert_string_equal(s->ranks[0].comm->failure.text,
	                    "group 'world': a communicator for rank 0: invalid argument");
}

/* ---- Aborts -------------------------------------------------------------------------------------------- */

static void expect_aborted(struct comm_scene *s, struct comm_op *op)
{
	COMM_AWAIT(s, op->taken);
	assert_int_equal(op->op.err.status, ZEROD_E_ABORTED);
	comm_expect_text(op->op.err.text, "group 'world' was aborted: the test says so");
}

/* Another communicator of both devices, and what it does while the first one is aborted. */
struct beside {
	struct zd_cuda_comm *comms[2];
	struct comm_op ops[2];
};

static void open_beside(struct comm_scene *s, struct beside *beside)
{
	struct zd_nccl_id id;

	comm_make_id(s, &id);
	for (uint32_t i = 0; i < 2; i++) {
		struct zd_cuda_comm_config config = comm_config(s, i);

		config.group = "beside";
		config.id = id;
		beside->comms[i] = comm_add(s, i, &config);
	}
	for (uint32_t i = 0; i < 2; i++)
		COMM_AWAIT(s, beside->comms[i]->state == ZD_CUDA_COMM_READY);
}

static void give_beside(struct comm_scene *s, struct beside *beside, uint32_t i)
{
	struct zd_err err = ZD_ERR_NONE;

	beside->ops[i] = comm_op(s, i, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 1000));
	comm_must(zd_cuda_comm_queue_give(&s->ranks[i].queue, beside->comms[i], &beside->ops[i].op, &err),
	          &err);
}

static void close_beside(struct comm_scene *s, struct beside *beside)
{
	for (uint32_t i = 0; i < 2; i++) {
		COMM_AWAIT(s, beside->ops[i].taken);
		assert_int_equal(beside->ops[i].op.err.status, 0);
		zd_cuda_comm_end(beside->comms[i]);
	}
	for (uint32_t i = 0; i < 2; i++) {
		COMM_AWAIT(s, zd_cuda_comm_is_over(beside->comms[i]));
		assert_int_equal(beside->comms[i]->state, ZD_CUDA_COMM_ENDED);
		comm_remove(s, i, beside->comms[i]);
	}
}

/* Rank 0 is aborted in an operation for which rank 1 never came, while it is in that phase. */
static void abort_in(enum zd_cuda_comm_phase phase, bool checking)
{
	struct beside beside = {.comms = {NULL}};
	struct comm_scene s;
	struct comm_op op;

	comm_open(&s, 2);
	comm_connect(&s, checking);
	open_beside(&s, &beside);
	if (phase == ZD_CUDA_COMM_LAUNCHING || phase == ZD_CUDA_COMM_DESCRIBING)
		s.control->polls(1000000);
	op = comm_op(&s, 0, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 1000));
	comm_give(&s, 0, &op);
	give_beside(&s, &beside, 0);
	if (phase != ZD_CUDA_COMM_WAITING)
		COMM_AWAIT(&s, op.op.phase == phase);
	s.control->polls(2);
	zd_cuda_comm_abort(s.ranks[0].comm, "the test says so");
	assert_string_equal(zd_cuda_comm_state_name(s.ranks[0].comm), "ABORTED");
	expect_aborted(&s, &op);
	zd_cuda_comm_abort(s.ranks[1].comm, "its peer was");
	give_beside(&s, &beside, 1);
	close_beside(&s, &beside);
	comm_close(&s);
}

TEST(test_abort_in_every_phase)
{
	abort_in(ZD_CUDA_COMM_WAITING, false);
	abort_in(ZD_CUDA_COMM_LAUNCHING, false);
	abort_in(ZD_CUDA_COMM_FLYING, false);
	abort_in(ZD_CUDA_COMM_DESCRIBING, true);
	abort_in(ZD_CUDA_COMM_COMPARING, true);
}

/* A launched operation fails once no kernel writes any more, although its stream runs on to the store of the
 * progress. */
CONNECTED_TEST(test_an_aborted_operation_never_succeeds, 2, false)
{
	struct comm_op ops[3];
	uint8_t byte = 0;

	for (int i = 0; i < 3; i++) {
		ops[i] = comm_op(s, 0, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 100));
		comm_give(s, 0, &ops[i]);
		COMM_AWAIT(s, ops[i].op.phase == ZD_CUDA_COMM_FLYING);
	}
	zd_cuda_comm_abort(s->ranks[0].comm, "the test says so");
	assert_false(ops[0].taken);
	for (int i = 0; i < 3; i++)
		expect_aborted(s, &ops[i]);
	assert_true(zd_cuda_comm_is_over(s->ranks[0].comm));
	comm_read(s, 0, &byte, s->ranks[0].receive, 1);
	assert_int_equal(byte, 0xa5); /* what a kernel leaves that is aborted */
	zd_cuda_comm_abort(s->ranks[1].comm, "its peer was");
}

CONNECTED_TEST(test_abort_of_one_that_is_idle, 2, false)
{
	struct zd_err err;
	struct comm_op op;

	for (uint32_t i = 0; i < 2; i++)
		zd_cuda_comm_abort(s->ranks[i].comm, "the test says so");
	zd_cuda_comm_abort(s->ranks[0].comm, "twice is once");
	op = comm_op(s, 0, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 100));
	assert_int_equal(zd_cuda_comm_queue_give(&s->ranks[0].queue, s->ranks[0].comm, &op.op, &err),
	                 ZEROD_E_ABORTED);
	assert_string_equal(err.text, "group 'world' was aborted: the test says so");
}

/* Finalizing is in progress for ever: what ends in order can be ended at once. */
CONNECTED_TEST(test_abort_of_one_that_ends, 1, false)
{
	struct zd_err err;
	struct comm_op op;

	s->control->polls(1000000);
	zd_cuda_comm_end(s->ranks[0].comm);
	comm_poll(s);
	assert_string_equal(zd_cuda_comm_state_name(s->ranks[0].comm), "ENDING");
	op = comm_op(s, 0, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 100));
	assert_int_equal(zd_cuda_comm_queue_give(&s->ranks[0].queue, s->ranks[0].comm, &op.op, &err),
	                 ZEROD_E_STATE);
	assert_string_equal(err.text, "group 'world': its communicator is ENDING");
	zd_cuda_comm_abort(s->ranks[0].comm, "it takes too long");
	COMM_AWAIT(s, zd_cuda_comm_is_over(s->ranks[0].comm));
	assert_string_equal(zd_cuda_comm_state_name(s->ranks[0].comm), "ABORTED");
}

COMM_TEST(test_end_of_one_that_connects, 1)
{
	struct zd_cuda_comm_config config;

	config = comm_config(s, 0);
	config.nranks = 2;
	s->ranks[0].comm = comm_add(s, 0, &config);
	zd_cuda_comm_end(s->ranks[0].comm);
	assert_string_equal(zd_cuda_comm_state_name(s->ranks[0].comm), "ABORTED");
	zd_cuda_comm_end(s->ranks[0].comm); /* nothing more happens */
}

int main(int argc, char **argv)
{
	(void)argc;
	use_double(argv);
	return test_run(NULL, NULL);
}
