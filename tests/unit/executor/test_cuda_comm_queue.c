/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_comm_queue.c - operations of communicators: their data, their order, checking mode, deadlines,
 * errors; over the doubles of the driver and of NCCL. */
#include "base/dtype.h"
#include "tests/unit/executor/comm_data.h"

/* ---- Data ---------------------------------------------------------------------------------------------- */

CONNECTED_TEST(test_data, 3, false)
{
	static const uint64_t numels[] = {1, 7, 1000, 100000, 0};

	for (int kind = 1; kind <= COLLECTIVE_KINDS; kind++)
		for (size_t i = 0; i < ZD_ARRAY_LEN(numels); i++) {
			struct zd_cuda_comm_call call = collective_call(kind, numels[i], 3);

			comm_expect_right(s, &call, 3);
		}
}

CONNECTED_TEST(test_dtypes, 2, false)
{
	for (int dtype = ZEROD_FLOAT32; dtype <= ZEROD_BOOL; dtype++)
		for (int kind = 1; kind <= COLLECTIVE_KINDS; kind++) {
			struct zd_cuda_comm_call call = collective_call(kind, 333, 2);

			call.dtype = (enum zerod_dtype)dtype;
			call.send_stride *= sizeof(int64_t) / sizeof(int16_t);
			call.receive_stride *= sizeof(int64_t) / sizeof(int16_t);
			if (!collective_sums(call.kind) || zd_dtype_holds_sums(call.dtype))
				comm_expect_right(s, &call, 2);
		}
}

/* Progress is stored behind what NCCL launches, and it launches when its call is no longer in progress. */
CONNECTED_TEST(test_calls_that_are_long_in_progress, 2, true)
{
	static const unsigned polls[] = {0, 1, 10};

	for (size_t i = 0; i < ZD_ARRAY_LEN(polls); i++) {
		struct zd_cuda_comm_call call = collective_call(ZD_CUDA_COMM_ALL_TO_ALL, 1000, 2);

		s->control->polls(polls[i]);
		comm_expect_right(s, &call, 2);
	}
}

/* ---- What is refused ----------------------------------------------------------------------------------- */

static void expect_refused(struct comm_scene *s, struct zd_cuda_comm_call call, const char *text)
{
	struct comm_op op = comm_op(s, 0, call);
	struct zd_err err = ZD_ERR_NONE;

	assert_int_equal(zd_cuda_comm_queue_give(&s->ranks[0].queue, s->ranks[0].comm, &op.op, &err),
	                 ZEROD_E_INVALID);
	assert_string_equal(err.text, text);
}

CONNECTED_TEST(test_bad_calls, 1, false)
{
	struct zd_cuda_comm_call call = {.kind = ZD_CUDA_COMM_ALL_GATHER, .dtype = ZEROD_FLOAT32, .numel = 1};
	zd_cu_ptr receive;

	call.kind = 0;
	expect_refused(s, call, "0 is no collective operation");
	call.kind = 8;
	expect_refused(s, call, "8 is no collective operation");
	call.kind = ZD_CUDA_COMM_ALL_GATHER;
	call.dtype = 99;
	expect_refused(s, call, "all_gather of unknown");
	call.kind = ZD_CUDA_COMM_ALL_REDUCE;
	call.dtype = ZEROD_INT32;
	expect_refused(s, call, "all_reduce of int32");
	call.dtype = ZEROD_FLOAT32;
	call.numel = UINT64_MAX;
	expect_refused(
	        s, call,
	        "all_reduce of 18446744073709551615 float32 over 1 ranks: more than 1125899906842624 bytes");
	call.numel = 1;
	call.root = 1;
	expect_refused(s, call, "all_reduce from rank 1 in a group of 1 ranks");
	call.kind = ZD_CUDA_COMM_BROADCAST;
	expect_refused(s, call, "broadcast from rank 1 in a group of 1 ranks");
	call.root = 0;
	receive = s->ranks[0].receive;
	s->ranks[0].receive = 0;
	expect_refused(s, call, "group 'world': an operation without memory");
	s->ranks[0].receive = receive;
	assert_int_equal(s->ranks[0].comm->nops, 0);
}

/* ---- Order --------------------------------------------------------------------------------------------- */

struct pair {
	struct zd_cuda_comm *other[2]; /* of another group over the same devices */
	struct comm_op first[2], second[2];
};

static void open_pair(struct comm_scene *s, struct pair *pair, bool checking)
{
	struct zd_nccl_id id;

	comm_open(s, 2);
	comm_connect(s, checking);
	comm_make_id(s, &id);
	for (uint32_t i = 0; i < 2; i++) {
		struct zd_cuda_comm_config config = comm_config(s, i);

		config.group = "other";
		config.id = id;
		config.checking = checking;
		pair->other[i] = comm_add(s, i, &config);
	}
	for (uint32_t i = 0; i < 2; i++) {
		COMM_AWAIT(s, pair->other[i]->state == ZD_CUDA_COMM_READY);
		pair->first[i] = comm_op(s, i, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 100));
		pair->second[i] = comm_op(s, i, comm_bytes(ZD_CUDA_COMM_ALL_TO_ALL, 100));
		pair->second[i].op.receive += COMM_BYTES / 2; /* both may run at once */
	}
}

static void give_other(struct comm_scene *s, const struct pair *pair, uint32_t i, struct comm_op *op)
{
	struct zd_err err;

	comm_must(zd_cuda_comm_queue_give(&s->ranks[i].queue, pair->other[i], &op->op, &err), &err);
}

static void close_pair(struct comm_scene *s, struct pair *pair)
{
	for (uint32_t i = 0; i < 2; i++)
		zd_cuda_comm_end(pair->other[i]);
	for (uint32_t i = 0; i < 2; i++)
		comm_remove(s, i, pair->other[i]);
	comm_close(s);
}

/* The second waits neither for the first's launch, which may need other ranks, nor for its end. */
TEST(test_two_communicators_at_once)
{
	struct comm_scene s;
	struct pair pair;

	open_pair(&s, &pair, false);
	s.control->polls(3);
	comm_give(&s, 0, &pair.first[0]);
	give_other(&s, &pair, 0, &pair.second[0]);
	for (int poll = 0; poll < 4; poll++) {
		enum zd_cuda_comm_phase phase = poll == 0 ? ZD_CUDA_COMM_WAITING : ZD_CUDA_COMM_LAUNCHING;

		assert_int_equal(pair.first[0].op.phase, phase);
		assert_int_equal(pair.second[0].op.phase, phase);
		assert_int_equal(s.control->kernels(), 0);
		comm_poll(&s);
	}
	COMM_AWAIT(&s, pair.second[0].op.phase == ZD_CUDA_COMM_FLYING);
	COMM_AWAIT(&s, pair.first[0].op.phase == ZD_CUDA_COMM_FLYING);
	assert_int_equal(s.control->kernels(), 2);
	comm_give(&s, 1, &pair.first[1]);
	give_other(&s, &pair, 1, &pair.second[1]);
	for (uint32_t i = 0; i < 2; i++) {
		COMM_AWAIT(&s, pair.first[i].taken && pair.second[i].taken);
		assert_int_equal(pair.first[i].op.err.status, 0);
		assert_int_equal(pair.second[i].op.err.status, 0);
	}
	close_pair(&s, &pair);
}

/* Ranks that share a GPU give theirs in an order of their own: what is compared with other ranks holds up
 * nobody else. */
TEST(test_crossing_orders_in_checking_mode)
{
	struct comm_scene s;
	struct pair pair;

	open_pair(&s, &pair, true);
	comm_give(&s, 0, &pair.first[0]);
	give_other(&s, &pair, 0, &pair.second[0]);
	give_other(&s, &pair, 1, &pair.second[1]);
	comm_give(&s, 1, &pair.first[1]);
	for (uint32_t i = 0; i < 2; i++) {
		COMM_AWAIT(&s, pair.first[i].taken && pair.second[i].taken);
		assert_int_equal(pair.first[i].op.err.status, 0);
		assert_int_equal(pair.second[i].op.err.status, 0);
	}
	close_pair(&s, &pair);
}

/* Of one communicator in the order in which they were given; another one, that is not ready or is stuck,
 * holds up nothing. */
TEST(test_the_order_is_that_of_giving)
{
	struct comm_op next;
	struct comm_scene s;
	struct pair pair;

	open_pair(&s, &pair, false);
	s.control->polls(1000000);
	give_other(&s, &pair, 0, &pair.second[0]);
	comm_give(&s, 0, &pair.first[0]);
	next = comm_op(&s, 0, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 100));
	comm_give(&s, 0, &next);
	for (int poll = 0; poll < 4; poll++)
		comm_poll(&s);
	assert_int_equal(pair.second[0].op.phase, ZD_CUDA_COMM_LAUNCHING);
	assert_int_equal(pair.first[0].op.phase, ZD_CUDA_COMM_LAUNCHING);
	assert_int_equal(next.op.phase, ZD_CUDA_COMM_WAITING);
	for (uint32_t i = 0; i < 2; i++) {
		zd_cuda_comm_abort(s.ranks[i].comm, "the test is over");
		zd_cuda_comm_abort(pair.other[i], "the test is over");
	}
	COMM_AWAIT(&s, pair.first[0].taken && pair.second[0].taken && next.taken);
	close_pair(&s, &pair);
}

/* One that is aborted while it is launched lets the next go. */
TEST(test_the_next_goes_on)
{
	struct comm_scene s;
	struct pair pair;

	open_pair(&s, &pair, false);
	s.control->polls(1000000);
	comm_give(&s, 0, &pair.first[0]);
	give_other(&s, &pair, 0, &pair.second[0]);
	COMM_AWAIT(&s, pair.first[0].op.phase == ZD_CUDA_COMM_LAUNCHING);
	s.control->polls(2);
	zd_cuda_comm_abort(s.ranks[0].comm, "the test says so");
	give_other(&s, &pair, 1, &pair.second[1]);
	COMM_AWAIT(&s, pair.first[0].taken && pair.second[0].taken && pair.second[1].taken);
	assert_int_equal(pair.first[0].op.err.status, ZEROD_E_ABORTED);
	assert_int_equal(pair.second[0].op.err.status, 0);
	zd_cuda_comm_abort(s.ranks[1].comm, "its peer was");
	close_pair(&s, &pair);
}

/* ---- Checking mode ------------------------------------------------------------------------------------- */

static struct zd_cuda_comm_call three_calls[3];
static const char *other_group;

static void connect_checked(struct comm_scene *s)
{
	comm_open(s, 3);
	for (uint32_t i = 0; i < 3; i++) {
		struct zd_cuda_comm_config config = comm_config(s, i);

		config.checking = true;
		config.group = i == 2 && other_group ? other_group : "world";
		s->ranks[i].comm = comm_add(s, i, &config);
		three_calls[i] = (struct zd_cuda_comm_call){
		        .kind = ZD_CUDA_COMM_ALL_GATHER, .dtype = ZEROD_BFLOAT16, .numel = 1000};
	}
	for (uint32_t i = 0; i < 3; i++)
		COMM_AWAIT(s, s->ranks[i].comm->state == ZD_CUDA_COMM_READY);
}

/* All ranks fail, with the same words, and nothing was received. They part in order: a rank may not have all
 * that this one told it. */
static void expect_mismatch(struct comm_scene *s, const char *text)
{
	struct comm_op ops[3];

	comm_prepare(s, &three_calls[0], 3);
	s->control->fail_call("ncclCommFinalize", 0, 0);
	for (uint32_t i = 0; i < 3; i++) {
		ops[i] = comm_op(s, i, three_calls[i]);
		comm_give(s, i, &ops[i]);
	}
	for (uint32_t i = 0; i < 3; i++) {
		uint8_t byte = 0;

		COMM_AWAIT(s, ops[i].taken);
		assert_int_equal(ops[i].op.err.status, ZEROD_E_MISMATCH);
		assert_int_equal(s->ranks[i].comm->state, ZD_CUDA_COMM_FAILED);
		if (i < 2 || !other_group)
			assert_string_equal(ops[i].op.err.text, text);
		comm_read(s, i, &byte, s->ranks[i].receive, 1);
		assert_int_equal(byte, 0xee);
		COMM_AWAIT(s, zd_cuda_comm_is_over(s->ranks[i].comm));
	}
	assert_int_equal(s->control->calls(), 3);
	comm_close(s);
}

TEST(test_another_operation)
{
	struct comm_scene s;

	connect_checked(&s);
	three_calls[2].kind = ZD_CUDA_COMM_REDUCE_SCATTER;
	expect_mismatch(
	        &s,
	        "group 'world': rank 0 runs its 1st operation all_gather of 1000 bfloat16, rank 2 its 1st "
	        "operation reduce_scatter of 1000 bfloat16");
}

TEST(test_another_size_in_the_seventeenth)
{
	struct zd_cuda_comm_call call = {.kind = ZD_CUDA_COMM_ALL_REDUCE, .dtype = ZEROD_FLOAT32, .numel = 3};
	struct comm_scene s;

	connect_checked(&s);
	for (int i = 0; i < 16; i++)
		comm_expect_right(&s, &call, 3);
	three_calls[1].numel = 2000;
	expect_mismatch(
	        &s,
	        "group 'world': rank 0 runs its 17th operation all_gather of 1000 bfloat16, rank 1 its 17th "
	        "operation all_gather of 2000 bfloat16");
}

TEST(test_another_dtype)
{
	struct comm_scene s;

	connect_checked(&s);
	three_calls[0].dtype = ZEROD_INT16; /* as many bytes */
	expect_mismatch(
	        &s, "group 'world': rank 0 runs its 1st operation all_gather of 1000 int16, rank 1 its 1st "
	            "operation all_gather of 1000 bfloat16");
}

TEST(test_another_root)
{
	struct comm_scene s;

	connect_checked(&s);
	for (uint32_t i = 0; i < 3; i++)
		three_calls[i] = (struct zd_cuda_comm_call){
		        .kind = ZD_CUDA_COMM_BROADCAST, .dtype = ZEROD_INT8, .numel = 100, .root = i == 1};
	expect_mismatch(
	        &s,
	        "group 'world': rank 0 runs its 1st operation broadcast of 100 int8 from rank 0, rank 1 its "
	        "1st operation broadcast of 100 int8 from rank 1");
}

TEST(test_another_group)
{
	struct comm_scene s;

	other_group = "worlds";
	connect_checked(&s);
	expect_mismatch(
	        &s,
	        "group 'world': rank 0 runs its 1st operation all_gather of 1000 bfloat16, rank 2 its 1st "
	        "operation all_gather of 1000 bfloat16 in a group of another name");
	other_group = NULL;
}

/* A rank that does not check sends what it was to send. */
COMM_TEST(test_a_rank_that_does_not_check, 2)
{
	struct zd_cuda_comm_call call = comm_bytes(ZD_CUDA_COMM_ALL_GATHER,
	                                           sizeof(struct zd_cuda_comm_description));
	struct comm_op ops[2];

	for (uint32_t i = 0; i < 2; i++) {
		struct zd_cuda_comm_config config = comm_config(s, i);

		config.checking = i == 0;
		s->ranks[i].comm = comm_add(s, i, &config);
	}
	comm_prepare(s, &call, 2);
	for (uint32_t i = 0; i < 2; i++) {
		ops[i] = comm_op(s, i, call);
		comm_give(s, i, &ops[i]);
	}
	COMM_AWAIT(s, ops[0].taken);
	assert_int_equal(ops[0].op.err.status, ZEROD_E_MISMATCH);
	assert_string_equal(ops[0].op.err.text, "group 'world': rank 1 did not describe its operation: set "
	                                        "checking mode on all ranks or on none");
	COMM_AWAIT(s, ops[1].taken);
}

TEST(test_ordinals)
{
	static const struct {
		uint64_t number;
		const char *text;
	} cases[] = {{1, "1st"},   {2, "2nd"},   {3, "3rd"},   {4, "4th"},     {11, "11th"},  {12, "12th"},
	             {13, "13th"}, {21, "21st"}, {22, "22nd"}, {101, "101st"}, {111, "111th"}};
	const struct zd_cuda_comm_call call = {
	        .kind = ZD_CUDA_COMM_ALL_REDUCE, .dtype = ZEROD_FLOAT16, .numel = 8};

	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		char text[ZD_CUDA_COMM_TEXT], expected[ZD_CUDA_COMM_TEXT];

		(void)snprintf(expected, sizeof(expected), "%s operation all_reduce of 8 float16",
		               cases[i].text);
		assert_string_equal(zd_cuda_comm_call_text(&call, cases[i].number, text), expected);
	}
}

static bool is_every_third(const void *arg, uint32_t rank)
{
	return rank % 3 == 0 && rank < *(const uint32_t *)arg;
}

TEST(test_ranks_in_words)
{
	static const struct {
		uint32_t below;
		const char *text;
	} cases[] = {{0, ""},
	             {1, "rank 0"},
	             {4, "ranks 0 and 3"},
	             {7, "ranks 0, 3 and 6"},
	             {60, "ranks 0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45 and 4 more"}};
	const struct zd_cuda_comm_rank self = {.nranks = 1024};

	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		char text[ZD_CUDA_COMM_RANKS_TEXT];

		assert_string_equal(zd_cuda_comm_ranks_text(&self, is_every_third, &cases[i].below, text),
		                    cases[i].text);
	}
}

/* ---- Deadlines ----------------------------------------------------------------------------------------- */

static void expect_expired(struct comm_scene *s, struct comm_op *op, const char *text)
{
	comm_poll_at(s, 99);
	assert_int_equal(s->ranks[0].comm->state, ZD_CUDA_COMM_READY);
	comm_poll_at(s, 100);
	assert_int_equal(s->ranks[0].comm->state, ZD_CUDA_COMM_FAILED);
	COMM_AWAIT(s, op->taken);
	assert_int_equal(op->op.err.status, ZEROD_E_DEADLINE);
	assert_string_equal(op->op.err.text, text);
}

static void miss_deadline(bool checking, enum zd_cuda_comm_phase phase, unsigned polls, const char *text)
{
	struct comm_scene s;
	struct comm_op op;

	comm_open(&s, 3);
	comm_connect(&s, checking);
	s.control->polls(polls);
	op = comm_op(&s, 0, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 10));
	op.op.deadline_ns = 100;
	comm_give(&s, 0, &op);
	COMM_AWAIT(&s, op.op.phase == phase);
	expect_expired(&s, &op, text);
	for (uint32_t i = 1; i < 3; i++)
		zd_cuda_comm_abort(s.ranks[i].comm, "its peer was");
	comm_close(&s);
}

TEST(test_peers_that_do_not_run_it)
{
	miss_deadline(false, ZD_CUDA_COMM_FLYING, 2,
	              "group 'world': at its deadline rank 0's 1st operation all_gather of 10 uint8 runs, "
	              "and a rank has not launched it, or is late");
	miss_deadline(false, ZD_CUDA_COMM_LAUNCHING, 1000000,
	              "group 'world': at its deadline rank 0's 1st operation all_gather of 10 uint8 runs, "
	              "and a rank has not launched it, or is late");
	miss_deadline(true, ZD_CUDA_COMM_COMPARING, 2,
	              "group 'world': at its deadline rank 0's 1st operation all_gather of 10 uint8 waits "
	              "for word of "
	              "ranks 1 and 2");
}

/* Another communicator goes on. */
TEST(test_deadline_behind_another)
{
	struct comm_scene s;
	struct comm_op next;
	struct pair pair;

	open_pair(&s, &pair, false);
	s.control->polls(1000000);
	give_other(&s, &pair, 0, &pair.second[0]);
	comm_give(&s, 0, &pair.first[0]);
	next = comm_op(&s, 0, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 50));
	next.op.deadline_ns = 100;
	comm_give(&s, 0, &next);
	COMM_AWAIT(&s, pair.first[0].op.phase == ZD_CUDA_COMM_LAUNCHING);
	expect_expired(&s, &next,
	               "group 'world': at its deadline rank 0's 2nd operation all_gather of 50 uint8 waits "
	               "for the launch of its 1st operation all_gather of 100 uint8");
	assert_int_equal(pair.other[0]->state, ZD_CUDA_COMM_READY);
	zd_cuda_comm_abort(s.ranks[1].comm, "its peer was");
	for (uint32_t i = 0; i < 2; i++)
		zd_cuda_comm_abort(pair.other[i], "the test is over");
	COMM_AWAIT(&s, pair.first[0].taken && pair.second[0].taken);
	close_pair(&s, &pair);
}

COMM_TEST(test_deadline_before_all_have_met, 1)
{
	struct zd_cuda_comm_config config;
	struct comm_op op;

	config = comm_config(s, 0);
	config.nranks = 2;
	s->ranks[0].comm = comm_add(s, 0, &config);
	op = comm_op(s, 0, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 10));
	op.op.deadline_ns = 100;
	comm_give(s, 0, &op);
	comm_poll_at(s, 100);
	COMM_AWAIT(s, op.taken);
	assert_string_equal(op.op.err.text,
	                    "group 'world': at its deadline rank 0's 1st operation all_gather of 10 uint8 "
	                    "waits for the ranks of its group to connect; not in this daemon: rank 1");
}

/* ---- Errors that come later ---------------------------------------------------------------------------- */

static void fail_later(bool checking, enum zd_cuda_comm_phase phase)
{
	struct comm_scene s;
	struct comm_op op;

	comm_open(&s, 2);
	comm_connect(&s, checking);
	op = comm_op(&s, 0, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 10));
	comm_give(&s, 0, &op);
	COMM_AWAIT(&s, op.op.phase == phase);
	s.control->set_async_error(s.ranks[0].comm->handle, ZD_NCCL_REMOTE_ERROR);
	COMM_AWAIT(&s, op.taken);
	assert_int_equal(op.op.err.status, ZEROD_E_PEER_LOST);
	assert_string_equal(op.op.err.text, "group 'world': rank 0's 1st operation all_gather of 10 uint8: "
	                                    "remote process exited or there "
	                                    "was a network error");
	assert_int_equal(s.ranks[0].comm->state, ZD_CUDA_COMM_FAILED);
	zd_cuda_comm_abort(s.ranks[1].comm, "its peer was");
	comm_close(&s);
}

TEST(test_errors_that_come_later)
{
	fail_later(false, ZD_CUDA_COMM_FLYING);
	fail_later(true, ZD_CUDA_COMM_COMPARING);
	fail_later(false, ZD_CUDA_COMM_LAUNCHING);
	fail_later(true, ZD_CUDA_COMM_DESCRIBING);
}

/* The stream has come to the progress, and NCCL says that the communicator is broken: nobody knows what was
 * received. */
CONNECTED_TEST(test_progress_of_a_broken_communicator, 2, false)
{
	struct comm_op ops[2];

	for (uint32_t i = 0; i < 2; i++) {
		ops[i] = comm_op(s, i, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 10));
		comm_give(s, i, &ops[i]);
	}
	COMM_AWAIT(s, ops[0].op.phase == ZD_CUDA_COMM_FLYING || ops[0].taken);
	while (!ops[0].taken && zd_cuda_comm_progress(s->ranks[0].comm) == 0) {
		comm_enter(s, 1);
		(void)zd_cuda_comm_queue_poll(&s->ranks[1].queue, 1);
	}
	assert_false(ops[0].taken);
	s->control->set_async_error(s->ranks[0].comm->handle, ZD_NCCL_SYSTEM_ERROR);
	COMM_AWAIT(s, ops[0].taken);
	assert_int_equal(ops[0].op.err.status, ZEROD_E_SYSTEM);
	COMM_AWAIT(s, zd_cuda_comm_queue_take(&s->ranks[1].queue) || ops[1].taken);
	zd_cuda_comm_abort(s->ranks[1].comm, "its peer was");
}

int main(int argc, char **argv)
{
	(void)argc;
	use_double(argv);
	return test_run(NULL, NULL);
}
