/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_comm_room.c - what operations of communicators share: the GPU's room, a page for agreements,
 * their time; over the doubles of the driver and of NCCL. */
#include "executor/cuda/cuda_gate.h"
#include "executor/nccl/cuda_comm_tasks.h"
#include "tests/unit/executor/comm_data.h"

/* ---- The GPU's room ------------------------------------------------------------------------------------ */

/* All kernels of both queues fit on the GPU at once, and one is always let go. */
TEST(test_blocks_fit_on_the_gpu)
{
	static const struct {
		uint32_t multiprocessors, blocks, at_once;
	} cases[] = {{0, 1, 1},    {1, 1, 1},    {20, 10, 1}, {40, 16, 1},
	             {108, 16, 3}, {132, 16, 4}, {160, 16, 5}};

	for (size_t i = 0; i < ZD_ARRAY_LEN(cases); i++) {
		struct zd_cuda_device device = {.multiprocessors = cases[i].multiprocessors};

		assert_int_equal(zd_cuda_comm_blocks(&device), cases[i].blocks);
		assert_int_equal(zd_cuda_comm_room(&device), cases[i].at_once);
	}
}

COMM_TEST(test_nccl_is_told_of_the_room, 2)
{
	s->ranks[1].device.multiprocessors = 20;
	comm_connect(s, false);
	assert_int_equal(s->control->blocks(), 16 + 10);
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
CONNECTED_TEST(test_one_agreement_at_a_time, 2, false)
{
	struct agreement first[2], second[2];

	give_value(s, 0, &first[0], 10);
	give_value(s, 0, &second[0], 20);
	COMM_AWAIT(s, first[0].op.op.phase == ZD_CUDA_COMM_FLYING);
	for (int poll = 0; poll < 5; poll++)
		comm_poll(s);
	assert_int_equal(second[0].op.op.phase, ZD_CUDA_COMM_WAITING);
	give_value(s, 1, &first[1], 11);
	give_value(s, 1, &second[1], 21);
	for (uint32_t i = 0; i < 2; i++) {
		COMM_AWAIT(s, first[i].op.taken && second[i].op.taken);
		assert_int_equal(first[i].values[0], 10);
		assert_int_equal(first[i].values[1], 11);
		assert_int_equal(second[i].values[0], 20);
		assert_int_equal(second[i].values[1], 21);
	}
}

CONNECTED_TEST(test_too_large_a_value, 1, false)
{
	struct zd_err err;
	struct comm_op op;

	op = comm_op(s, 0, comm_bytes(ZD_CUDA_COMM_AGREE, ZD_CUDA_COMM_VALUE_BYTES + 1));
	assert_int_equal(zd_cuda_comm_queue_give(&s->ranks[0].queue, s->ranks[0].comm, &op.op, &err),
	                 ZEROD_E_INVALID);
	assert_string_equal(err.text, "agree of 129 bytes, at most 128");
}

/* ---- Time ---------------------------------------------------------------------------------------------- */

/* It has so long from its launch on, however long it has waited for that. */
COMM_TEST(test_patience_begins_with_the_launch, 2)
{
	struct zd_cuda_comm_config config;
	struct comm_op op;

	config = comm_config(s, 0);
	s->ranks[0].comm = comm_add(s, 0, &config);
	op = comm_op(s, 0, comm_bytes(ZD_CUDA_COMM_ALL_GATHER, 10));
	op.op.patience_ns = 100;
	comm_give(s, 0, &op);
	comm_poll_at(s, 1000);
	assert_int_equal(s->ranks[0].comm->state, ZD_CUDA_COMM_CONNECTING);
	config = comm_config(s, 1);
	s->ranks[1].comm = comm_add(s, 1, &config);
	while (op.op.phase != ZD_CUDA_COMM_FLYING)
		comm_poll_at(s, 2000);
	comm_poll_at(s, 2000); /* that has begun at the latest */
	comm_poll_at(s, 2099);
	assert_int_equal(s->ranks[0].comm->state, ZD_CUDA_COMM_READY);
	comm_poll_at(s, 2100);
	assert_int_equal(s->ranks[0].comm->state, ZD_CUDA_COMM_FAILED);
	COMM_AWAIT(s, op.taken);
	assert_int_equal(op.op.err.status, ZEROD_E_DEADLINE);
	zd_cuda_comm_abort(s->ranks[1].comm, "its peer was");
}

/* ---- Words --------------------------------------------------------------------------------------------- */

/* A description comes from another process: its words need not have an end. */
TEST(test_description_without_an_end)
{
	struct zd_cuda_comm_call call = {
	        .kind = ZD_CUDA_COMM_AGREE, .dtype = ZEROD_UINT8, .numel = 8, .what = "step 7"};
	/* a rail: of the second ranks of two daemons with two each */
	const struct zd_cuda_comm_rank self = {.group = "world", .nranks = 2, .world = {1, 1}};
	struct zd_cuda_comm_description all[2];
	struct zd_err err;

	for (int i = 0; i < 2; i++)
		zd_cuda_comm_describe(&call, 1, "world", &all[i]);
	assert_int_equal(zd_cuda_comm_compare(all, &self, &err), 0);
	memset(all[1].what, 'x', sizeof(all[1].what));
	assert_int_equal(zd_cuda_comm_compare(all, &self, &err), ZEROD_E_MISMATCH);
	comm_expect_text(err.text, "rank 1 runs its 1st operation agree of 8 uint8 (step 7), rank 3 its 1st "
	                           "operation agree of 8 uint8 (xxxxxxxx");
}

/* ---- Who waits for room -------------------------------------------------------------------------------- */

enum { MOST = 16, FIRST_CLOSING = 16 };

/* One device's communicators of gathers, each of one rank; what has ended, by op. */
struct room_scene {
	struct comm_scene s;
	struct zd_cuda_comm_settings settings;
	struct zd_cuda_comms comms;
	bool ended[FIRST_CLOSING + MOST];
	int status[FIRST_CLOSING + MOST];
};

static void note_end(void *arg, const struct zd_completion *completion)
{
	struct room_scene *scene = arg;
	struct zd_completion taken = *completion;

	scene->ended[completion->op] = true;
	scene->status[completion->op] = completion->status;
	zd_completion_deinit(&taken);
}

static void room_open(struct room_scene *scene, uint64_t timeout_ns)
{
	*scene = (struct room_scene){.settings = {.timeout_ns = timeout_ns}};
	comm_open(&scene->s, 1);
	scene->settings.local_ranks = &scene->s.local_ranks;
	scene->settings.done = note_end;
	scene->settings.done_arg = scene;
	zd_cuda_comms_init(&scene->comms, &scene->s.ranks[0].device, &scene->settings);
}

static void run(struct room_scene *scene, const struct zd_command *command)
{
	zd_cuda_comms_run(&scene->comms, zd_cuda_comm_task_new(command, NULL, NULL));
}

static void begin_opening(struct room_scene *scene, uint64_t number)
{
	struct zd_command command = {.kind = ZD_CMD_COMM_OPEN, .op = number};
	struct zd_nccl_id id;

	comm_make_id(&scene->s, &id);
	command.u.comm_open =
	        (struct zd_comm_desc){.comm = number, .group = "world", .role = ZD_COMM_GATHERS, .nranks = 1};
	memcpy(command.u.comm_open.id, &id, sizeof(id));
	run(scene, &command);
}

static void begin_closing(struct room_scene *scene, uint64_t number)
{
	struct zd_command command = {.kind = ZD_CMD_COMM_CLOSE, .op = FIRST_CLOSING + number};

	command.u.comm_close.comm = number;
	run(scene, &command);
}

static int await_end(struct room_scene *scene, uint64_t op)
{
	while (!scene->ended[op])
		(void)zd_cuda_comms_poll(&scene->comms, 1);
	return scene->status[op];
}

/* By a thread of its own; nobody polls. */
static void await_parted(struct room_scene *scene)
{
	struct zd_cuda_comm *comm;
	bool parted = false;

	while (!parted) {
		LIST_FOREACH (comm, &scene->comms.queues[ZD_COMM_GATHERS].comms, link)
			parted |= zd_cuda_comm_has_parted(comm);
		(void)sched_yield();
	}
}

/* How the only one does. */
static enum zd_cuda_comm_leaving leaving(struct room_scene *scene)
{
	struct zd_cuda_comm *comm = LIST_FIRST(&scene->comms.queues[ZD_COMM_GATHERS].comms);
	enum zd_cuda_comm_leaving how;

	assert_non_null(comm);
	pthread_mutex_lock(&comm->lock);
	how = comm->leaving;
	pthread_mutex_unlock(&comm->lock);
	return how;
}

static void room_close(struct room_scene *scene, uint64_t first, uint64_t last)
{
	for (uint64_t number = first; number <= last; number++) {
		begin_closing(scene, number);
		assert_int_equal(await_end(scene, FIRST_CLOSING + number), 0);
	}
	zd_cuda_comms_deinit(&scene->comms);
	comm_close(&scene->s);
}

TEST(test_room_is_for_who_came_first)
{
	struct room_scene scene;

	room_open(&scene, 0);
	for (uint64_t number = 1; number <= 4; number++) {
		begin_opening(&scene, number);
		assert_int_equal(await_end(&scene, number), 0);
	}
	scene.s.control->polls(UINT_MAX); /* the first does not part for now */
	begin_closing(&scene, 1);
	(void)zd_cuda_comms_poll(&scene.comms, 1);
	begin_opening(&scene, 5); /* waits: there is no room, but it comes */
	(void)zd_cuda_comms_poll(&scene.comms, 1);
	assert_false(scene.ended[5]);
	scene.s.control->polls(2);
	await_parted(&scene);
	begin_opening(&scene, 6);
	assert_int_equal(await_end(&scene, 6), ZEROD_E_LIMIT);
	assert_int_equal(await_end(&scene, 5), 0);
	room_close(&scene, 2, 5);
}

/* It has said goodbye to all ranks in time, and waits for others' kernels: what it frees would wait for them,
 * and keep out who ends them. */
TEST(test_a_parted_one_has_time)
{
	struct room_scene scene;

	room_open(&scene, 1);
	begin_opening(&scene, 1);
	assert_int_equal(await_end(&scene, 1), 0);
	assert_true(zd_cuda_gate_enter(&scene.s.local_ranks.gate)); /* a kernel runs */
	begin_closing(&scene, 1);
	(void)zd_cuda_comms_poll(&scene.comms, 1);
	await_parted(&scene);
	(void)zd_cuda_comms_poll(&scene.comms, UINT64_MAX);
	assert_int_not_equal(leaving(&scene), ZD_CUDA_COMM_IS_ABORTED);
	zd_cuda_gate_leave(&scene.s.local_ranks.gate);
	assert_int_equal(await_end(&scene, FIRST_CLOSING + 1), 0);
	room_close(&scene, 2, 1);
}

int main(int argc, char **argv)
{
	(void)argc;
	use_double(argv);
	return test_run(NULL, NULL);
}
