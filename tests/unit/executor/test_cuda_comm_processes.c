/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_comm_processes.c - a group over two daemons of one host, over the doubles of the driver and of
 * NCCL.
 *
 * The second daemon is this program with an argument, and gets the unique id through a pipe, as trainers pass
 * it on.
 */
#include <signal.h>

#include "tests/unit/executor/comm_data.h"

#define EACH  2u /* ranks of a daemon */
#define WORLD 4u

static const struct zd_cuda_comm_call first_call = {
        .kind = ZD_CUDA_COMM_ALL_GATHER, .dtype = ZEROD_FLOAT32, .numel = 1000};
static const struct zd_cuda_comm_call other_call = {
        .kind = ZD_CUDA_COMM_REDUCE_SCATTER, .dtype = ZEROD_FLOAT32, .numel = 1000};
static const char difference[] =
        "group 'world': rank 0 runs its 1st operation all_gather of 1000 float32, rank 2 its 1st "
        "operation reduce_scatter of 1000 float32";

static void run_all_kinds(struct comm_scene *s)
{
	for (int kind = 1; kind <= COLLECTIVE_KINDS; kind++) {
		struct zd_cuda_comm_call call = collective_call(kind, 1000, WORLD);

		comm_expect_right(s, &call, WORLD);
	}
}

static void expect_difference(struct comm_scene *s, const struct zd_cuda_comm_call *call)
{
	struct comm_op ops[COMM_RANKS];

	comm_run(s, call, ops);
	for (uint32_t i = 0; i < EACH; i++) {
		assert_int_equal(ops[i].op.err.status, ZEROD_E_MISMATCH);
		assert_string_equal(ops[i].op.err.text, difference);
	}
}

/* ---- The second daemon --------------------------------------------------------------------------------- */

static int second_main(const char *what)
{
	struct comm_scene s;

	comm_open(&s, EACH);
	s.first = EACH;
	s.world = WORLD;
	if (read(STDIN_FILENO, &s.id, sizeof(s.id)) != sizeof(s.id))
		return 1;
	comm_connect(&s, true);
	if (strcmp(what, "dies") == 0)
		return raise(SIGKILL);
	if (strcmp(what, "differs") == 0)
		expect_difference(&s, &other_call);
	else
		run_all_kinds(&s);
	comm_close(&s);
	return 0;
}

static pid_t start_second(const char *what, const struct zd_nccl_id *id)
{
	char *const args[] = {(char *)"second", (char *)what, NULL};
	char program[PATH_MAX];
	int fds[2];
	pid_t pid;

	case_program(program);
	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)dup2(fds[0], STDIN_FILENO);
		(void)close(fds[0]);
		(void)close(fds[1]);
		(void)setenv("CUDA_VISIBLE_DEVICES", "2,3", 1);
		(void)execv(program, args);
		_exit(126);
	}
	assert_int_equal(write(fds[1], id, sizeof(*id)), sizeof(*id));
	(void)close(fds[0]);
	(void)close(fds[1]);
	return pid;
}

static int wait_for(pid_t pid)
{
	int status = 0;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* ---- The first ----------------------------------------------------------------------------------------- */

static pid_t open_both(struct comm_scene *s, const char *what)
{
	pid_t pid;

	comm_open(s, EACH);
	s->world = WORLD;
	pid = start_second(what, &s->id);
	comm_connect(s, true);
	return pid;
}

TEST(test_two_daemons)
{
	struct comm_scene s;
	pid_t pid;

	pid = open_both(&s, "runs");
	run_all_kinds(&s);
	comm_close(&s);
	assert_int_equal(wait_for(pid), 0);
}

TEST(test_daemons_that_differ)
{
	struct comm_scene s;
	pid_t pid;

	pid = open_both(&s, "differs");
	expect_difference(&s, &first_call);
	comm_close(&s);
	assert_int_equal(wait_for(pid), 0);
}

/* Its ranks never come: the deadline says which. */
TEST(test_a_daemon_that_is_killed)
{
	struct comm_op ops[EACH];
	struct comm_scene s;
	pid_t pid;

	pid = open_both(&s, "dies");
	assert_true(WIFSIGNALED(wait_for(pid)));
	for (uint32_t i = 0; i < EACH; i++) {
		ops[i] = comm_op(&s, i, first_call);
		ops[i].op.deadline_ns = 100;
		comm_give(&s, i, &ops[i]);
		COMM_AWAIT(&s, ops[i].op.phase == ZD_CUDA_COMM_COMPARING);
	}
	comm_poll_at(&s, 100);
	for (uint32_t i = 0; i < EACH; i++) {
		COMM_AWAIT(&s, ops[i].taken);
		assert_int_equal(ops[i].op.err.status, ZEROD_E_DEADLINE);
		comm_expect_text(ops[i].op.err.text, "waits for word of ranks ");
		comm_expect_text(ops[i].op.err.text, "2 and 3");
	}
	comm_close(&s);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return second_main(argv[1]);
	use_double(argv);
	return test_run(NULL, NULL);
}
