/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_comm_room.c - what operations of communicators share: the GPU's room, a page for agreements,
 * their time; over the doubles of the driver and of NCCL. */
#include "tests/unit/backend/comm_data.h"

/* ---- The GPU's room ------------------------------------------------------------------------------------ */

/* All kernels of both queues fit on the GPU at once, and one is always let go. */
static void test_blocks_fit_on_the_gpu(void **state)
{
	static const struct {
		uint32_t multiprocessors, blocks, at_once;
	} cases[] = {{0, 1, 1},    {1, 1, 1},    {20, 10, 1}, {40, 16, 1},
	             {108, 16, 3}, {132, 16, 4}, {160, 16, 5}};

	(void)state;
	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		struct zd_cuda_device device = {.multiprocessors = cases[i].multiprocessors};

		assert_int_equal(zd_cuda_comm_blocks(&device), cases[i].blocks);
		assert_int_equal(zd_cuda_comm_room(&device), cases[i].at_once);
	}
}

static void test_nccl_is_told_of_the_room(void **state)
{
	struct comm_scene s;

	(void)state;
	comm_open(&s, 2);
	s.ranks[1].device.multiprocessors = 20;
	comm_connect(&s, false);
	assert_int_equal(s.control->blocks(), 16 + 10);
	comm_close(&s);
}

/* Another communicator of both ranks; the first one is the scene's. */
static void add_comm(struct comm_scene *s, struct zd_cuda_comm *comms[2])
{
	struct zd_nccl_id id;

	comm_make_id(s, &id);
	for (uint32_t i = 0; i < 2; i++) {
		struct zd_cuda_comm_config config = comm_config(s, i);

		config.id = id;
		comms[i] = comm_add(s, i, &config);
	}
	for (uint32_t i = 0; i < 2; i++)
		COMM_AWAIT(s, comms[i]->state == ZD_CUDA_COMM_READY);
}

static void give_to(struct comm_scene *s, uint32_t i, struct zd_cuda_comm *comm, struct comm_op *op,
                    uint64_t offset)
{
	struct zd_err err;

	*op = comm_op(s, i, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 100));
	op->op.receive += offset;
	comm_must(zd_cuda_comm_queue_give(&s->ranks[i].queue, comm, &op->op, &err), &err);
}

/* Ranks that share two GPUs begin with one group here and with the other there: both kernels are on both
 * GPUs. */
static void test_crossing_orders(void **state)
{
	struct zd_cuda_comm *other[2];
	struct comm_op first[2], second[2];
	struct comm_scene s;

	(void)state;
	comm_open(&s, 2);
	comm_connect(&s, false);
	add_comm(&s, other);
	for (uint32_t i = 0; i < 2; i++)
		assert_true(s.ranks[i].queue.room >= 2);
	give_to(&s, 0, s.ranks[0].comm, &first[0], 0);
	give_to(&s, 0, other[0], &second[0], COMM_BYTES / 2);
	give_to(&s, 1, other[1], &second[1], COMM_BYTES / 2);
	give_to(&s, 1, s.ranks[1].comm, &first[1], 0);
	for (uint32_t i = 0; i < 2; i++)
		COMM_AWAIT(&s, first[i].taken && second[i].taken);
	for (uint32_t i = 0; i < 2; i++) {
		zd_cuda_comm_end(other[i]);
		comm_remove(&s, i, other[i]);
	}
	comm_close(&s);
}

/* Where there is no room for their kernels beside each other there is none for the communicator; room comes
 * back when one is gone, and not before its kernels have ended. */
static void test_no_more_communicators_than_room(void **state)
{
	struct zd_cuda_comm_config config;
	struct zd_cuda_comm *more;
	struct comm_scene s;
	struct zd_err err;

	(void)state;
	comm_open(&s, 2);
	s.ranks[0].queue.room = 1;
	comm_connect(&s, false);
	config = comm_config(&s, 0);
	comm_make_id(&s, &config.id);
	config.group = "other";
	assert_int_equal(zd_cuda_comm_queue_add(&s.ranks[0].queue, &config, &more, &err), ZEROD_E_LIMIT);
	comm_expect_text(err.text, "group 'other': ");
	comm_expect_text(err.text,
	                 "has room for the kernels of 1 communicators at once, and as many are there");
	s.control->hold_aborts(1);
	zd_cuda_comm_abort(s.ranks[0].comm, "the test says so");
	comm_poll(&s);
	assert_true(zd_cuda_comm_queue_is_full(&s.ranks[0].queue));
	s.control->hold_aborts(0);
	comm_remove(&s, 0, s.ranks[0].comm);
	s.ranks[0].comm = NULL;
	assert_false(zd_cuda_comm_queue_is_full(&s.ranks[0].queue));
	zd_cuda_comm_abort(s.ranks[1].comm, "its peer was");
	comm_close(&s);
}

/* ---- Agreements ---------------------------------------------------------------------------------------- */

struct agreement {
	struct comm_op op;
	unsigned char value, values[2];
};

static void give_value(struct comm_scene *s, uint32_t i, struct agreement *agreement, unsigned char value)
{
	*agreement = (struct agreement){.op = comm_op(s, i, comm_bytes(ZD_CUDA_COMM_AGREE, 1)),
	                                .value = value};
	agreement->op.op.value = &agreement->value;
	agreement->op.op.values = agreement->values;
	comm_give(s, i, &agreement->op);
}

/* The page has room for one: the next is launched when the values of the one before it are the caller's. */
static void test_one_agreement_at_a_time(void **state)
{
	struct agreement first[2], second[2];
	struct comm_scene s;

	(void)state;
	comm_open(&s, 2);
	comm_connect(&s, false);
	give_value(&s, 0, &first[0], 10);
	give_value(&s, 0, &second[0], 20);
	COMM_AWAIT(&s, first[0].op.op.phase == ZD_CUDA_COMM_FLYING);
	for (int poll = 0; poll < 5; poll++)
		comm_poll(&s);
	assert_int_equal(second[0].op.op.phase, ZD_CUDA_COMM_WAITING);
	give_value(&s, 1, &first[1], 11);
	give_value(&s, 1, &second[1], 21);
	for (uint32_t i = 0; i < 2; i++) {
		COMM_AWAIT(&s, first[i].op.taken && second[i].op.taken);
		assert_int_equal(first[i].values[0], 10);
		assert_int_equal(first[i].values[1], 11);
		assert_int_equal(second[i].values[0], 20);
		assert_int_equal(second[i].values[1], 21);
	}
	comm_close(&s);
}

static void test_too_large_a_value(void **state)
{
	struct zd_err err;
	struct comm_scene s;
	struct comm_op op;

	(void)state;
	comm_open(&s, 1);
	comm_connect(&s, false);
	op = comm_op(&s, 0, comm_bytes(ZD_CUDA_COMM_AGREE, ZD_CUDA_COMM_VALUE_BYTES + 1));
	assert_int_equal(zd_cuda_comm_queue_give(&s.ranks[0].queue, s.ranks[0].comm, &op.op, &err),
	                 ZEROD_E_INVALID);
	assert_string_equal(err.text, "agree of 129 bytes, at most 128");
	comm_close(&s);
}

/* ---- Time ---------------------------------------------------------------------------------------------- */

/* It has so long from its launch on, however long it has waited for that. */
static void test_patience_begins_with_the_launch(void **state)
{
	struct zd_cuda_comm_config config;
	struct comm_scene s;
	struct comm_op op;

	(void)state;
	comm_open(&s, 2);
	config = comm_config(&s, 0);
	s.ranks[0].comm = comm_add(&s, 0, &config);
	op = comm_op(&s, 0, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 10));
	op.op.patience_ns = 100;
	comm_give(&s, 0, &op);
	comm_poll_at(&s, 1000);
	assert_int_equal(s.ranks[0].comm->state, ZD_CUDA_COMM_CONNECTING);
	config = comm_config(&s, 1);
	s.ranks[1].comm = comm_add(&s, 1, &config);
	while (op.op.phase != ZD_CUDA_COMM_FLYING)
		comm_poll_at(&s, 2000);
	comm_poll_at(&s, 2000); /* that has begun at the latest */
	comm_poll_at(&s, 2099);
	assert_int_equal(s.ranks[0].comm->state, ZD_CUDA_COMM_READY);
	comm_poll_at(&s, 2100);
	assert_int_equal(s.ranks[0].comm->state, ZD_CUDA_COMM_FAILED);
	COMM_AWAIT(&s, op.taken);
	assert_int_equal(op.op.err.status, ZEROD_E_DEADLINE);
	zd_cuda_comm_abort(s.ranks[1].comm, "its peer was");
	comm_close(&s);
}

/* ---- Words --------------------------------------------------------------------------------------------- */

/* A description comes from another process: its words need not have an end. */
static void test_description_without_an_end(void **state)
{
	struct zd_cuda_comm_call call = {
	        .kind = ZD_CUDA_COMM_AGREE, .dtype = ZEROD_UINT8, .numel = 8, .what = "step 7"};
	/* a rail: of the second ranks of two daemons with two each */
	const struct zd_cuda_comm_rank self = {.group = "world", .nranks = 2, .world = {1, 1}};
	struct zd_cuda_comm_description all[2];
	struct zd_err err;

	(void)state;
	for (int i = 0; i < 2; i++)
		zd_cuda_comm_describe(&call, 1, "world", &all[i]);
	assert_int_equal(zd_cuda_comm_compare(all, &self, &err), 0);
	memset(all[1].what, 'x', sizeof(all[1].what));
	assert_int_equal(zd_cuda_comm_compare(all, &self, &err), ZEROD_E_MISMATCH);
	comm_expect_text(err.text, "rank 1 runs its 1st operation agree of 8 uint8 (step 7), rank 3 its 1st "
	                           "operation agree of 8 uint8 (xxxxxxxx");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_blocks_fit_on_the_gpu),
	        cmocka_unit_test(test_nccl_is_told_of_the_room),
	        cmocka_unit_test(test_crossing_orders),
	        cmocka_unit_test(test_no_more_communicators_than_room),
	        cmocka_unit_test(test_one_agreement_at_a_time),
	        cmocka_unit_test(test_too_large_a_value),
	        cmocka_unit_test(test_patience_begins_with_the_launch),
	        cmocka_unit_test(test_description_without_an_end),
	};

	(void)argc;
	use_double(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
