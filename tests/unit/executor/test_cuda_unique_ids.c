/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_unique_ids.c - processes that make unique ids and listen for their ranks: when they end, how many
 * there may be, and what goes wrong; over the doubles of the driver and of NCCL. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <sys/wait.h>

#include "tests/unit/executor/collective_scene.h"

#define OTHER_USER 4711u

static bool has_children(void)
{
	siginfo_t info;
	return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

/* Ended, and reaped; else the alarm. */
static void await_no_children(void)
{
	while (has_children())
		(void)sched_yield();
}

/* Of all threads: each has its own. */
static unsigned count_children(void)
{
	DIR *threads = opendir("/proc/self/task");
	struct dirent *thread;
	unsigned count = 0;
	assert_non_null(threads);
	while ((thread = readdir(threads))) {
		char path[sizeof("/proc/self/task//children") + sizeof(thread->d_name)];
		FILE *file;
		int pid;
		(void)snprintf(path, sizeof(path), "/proc/self/task/%s/children", thread->d_name);
		file = fopen(path, "r");
		while (file && fscanf(file, "%d", &pid) == 1)
			count++;
		if (file)
			(void)fclose(file);
	}
	(void)closedir(threads);
	return count;
}

static void await_children(unsigned count)
{
	while (count_children() != count)
		(void)sched_yield();
}

static uint64_t ask_for(struct collective_scene *s, uint32_t uid)
{
	struct zd_command command = to_rank(s, 0, ZD_CMD_UNIQUE_IDS);
	command.u.ids.count = 1;
	command.u.ids.uid = uid;
	return submit(s->nodes[0], command);
}

static void free_ids(struct record record)
{
	free(record.completion.result.values);
}

static void expect_failed(struct collective_scene *s, uint64_t op, int status, const char *text)
{
	struct record record = wait_op(s->nodes[0], op);
	assert_int_equal(record.completion.status, status);
	expect_text(record.completion.error, text);
	assert_null(record.completion.result.values);
}

/* ---- When they end ------------------------------------------------------------------------------------- */

SCENE_TEST(test_until_all_have_met, scene_open(s, 1, NULL), scene_close_both(s))
{
	scene_make_some_ids(s, REDUCTIONS);
	scene_connect(s, GATHERS);
	assert_true(has_children()); /* one of its ids is not used */
	scene_connect(s, REDUCTIONS);
	await_no_children();
}

/* Nobody comes to an id whose rank has gone. */
SCENE_TEST(test_until_a_rank_has_gone, scene_open(s, 1, NULL), scene_close(s))
{
	uint64_t opening;
	scene_make_some_ids(s, GATHERS);
	opening = open_comm(s, 0, GATHERS);
	assert_true(has_children());
	(void)wait_ok(s->nodes[0], close_comm(s, 0, GATHERS, true));
	(void)wait_op(s->nodes[0], opening);
	await_no_children();
}

SCENE_TEST(test_until_the_time_to_meet_is_over, scene_open(s, 1, &impatient), scene_close(s))
{
	scene_make_some_ids(s, REDUCTIONS);
	await_no_children();
}

SCENE_TEST(test_until_the_daemon_ends, scene_open(s, 1, NULL), scene_close(s))
{
	struct record record;
	uint64_t asked;
	scene_make_some_ids(s, REDUCTIONS);
	asked = ask_for(s, 0);
	close_backend(s->nodes[0]);
	record = wait_op(s->nodes[0], asked); /* it may have been quick */
	if (record.completion.status != 0)
		assert_int_equal(record.completion.status, ZEROD_E_SHUTDOWN);
	free_ids(record);
	await_no_children();
	close_backend(s->nodes[1]);
}

/* ---- How many ------------------------------------------------------------------------------------------ */

/* A user who has too many loses the oldest that nobody has come with; others' stay. */
CASE_TEST(test_no_more_than_may_wait, "ZD_DOUBLE_LEAKS=1")
{
	const uint32_t users = ZD_CUDA_IDS_MOST / ZD_CUDA_IDS_MOST_OF_USER;
	struct collective_scene s;
	char text[128];
	scene_open(&s, 1, NULL);
	for (uint32_t i = 0; i < ZD_CUDA_IDS_MOST_OF_USER + 2; i++)
		free_ids(wait_ok(s.nodes[0], ask_for(&s, OTHER_USER)));
	await_children(ZD_CUDA_IDS_MOST_OF_USER);
	for (uint32_t i = 0; i < ZD_CUDA_IDS_MOST - ZD_CUDA_IDS_MOST_OF_USER; i++)
		free_ids(wait_ok(s.nodes[0], ask_for(&s, OTHER_USER + 1 + i % (users - 1))));
	await_children(ZD_CUDA_IDS_MOST);
	(void)snprintf(
	        text, sizeof(text),
	        "unique ids of %u requests wait for their ranks, 0 of uid %u; at most %u, %u of one user",
	        ZD_CUDA_IDS_MOST, 0u, ZD_CUDA_IDS_MOST, ZD_CUDA_IDS_MOST_OF_USER);
	expect_failed(&s, ask_for(&s, 0), ZEROD_E_LIMIT, text);
	scene_close(&s);
	assert_false(has_children());
}

/* Ids with which a rank has joined stay valid, however old they are. */
SCENE_TEST(test_who_is_waited_for_stays, scene_open(s, 1, NULL), scene_close(s))
{
	uint64_t opening;
	scene_make_some_ids(s, GATHERS);
	opening = open_comm(s, 0, GATHERS);
	for (uint32_t i = 0; i < 2 * ZD_CUDA_IDS_MOST_OF_USER; i++)
		free_ids(wait_ok(s->nodes[0], ask_for(s, 0)));
	await_children(ZD_CUDA_IDS_MOST_OF_USER);
	(void)open_comm(s, 1, GATHERS);
	(void)wait_ok(s->nodes[0], opening);
	await_children(ZD_CUDA_IDS_MOST_OF_USER - 1); /* the one that was used */
	scene_disconnect(s, GATHERS);
}

/* ---- What goes wrong ----------------------------------------------------------------------------------- */

SCENE_TEST(test_ids_that_cannot_be_made, scene_open(s, 1, NULL), scene_close(s), "ZD_DOUBLE_NCCL_IDS=2")
{
	expect_failed(s, ask_ids(s, 0, 3), ZEROD_E_SYSTEM,
	              "a unique id for a communicator: unhandled system error");
	await_no_children();
	free_ids(wait_ok(s->nodes[0], ask_ids(s, 0, 2)));
}

/* Its words are for the daemon's log. */
SCENE_TEST(test_nccl_that_talks, scene_open(s, 1, NULL), scene_close(s), "ZD_DOUBLE_NCCL_TALKS=1")
{
	scene_make_ids(s);
	scene_connect(s, GATHERS);
	scene_disconnect(s, GATHERS);
}

SCENE_TEST(test_ids_that_take_for_ever, scene_open(s, 1, &impatient), scene_close(s), "ZD_DOUBLE_NCCL_IDS=-2")
{
	expect_failed(s, ask_ids(s, 0, 1), ZEROD_E_SYSTEM, "NCCL has not created unique ids in time");
	await_no_children();
}

/* The helper process ends with the daemon, whatever NCCL is doing. */
CASE_TEST(test_the_program_ends_with_its_input, "ZD_DOUBLE_NCCL_IDS=-2")
{
	char number[] = "1", program[] = "zerod", arg[] = ZD_CUDA_IDS_PROGRAM_ARG;
	char *argv[] = {program, arg, number, NULL};
	int in[2], status;
	pid_t pid;
	assert_int_equal(pipe(in), 0);
	pid = fork();
	if (pid == 0) {
		(void)dup2(in[0], STDIN_FILENO);
		(void)execv("/proc/self/exe", argv);
		_exit(99);
	}
	(void)close(in[0]);
	(void)close(in[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

SCENE_TEST(test_a_process_that_ends, scene_open(s, 1, NULL), scene_close(s), "ZD_DOUBLE_NCCL_IDS=-1")
{
	expect_failed(s, ask_ids(s, 0, 1), ZEROD_E_SYSTEM, "the process that creates unique ids has ended");
	await_no_children();
}

/* A rank that waits for room has come with its id. */
SCENE_TEST(test_the_ids_of_who_waits_for_room, scene_open(s, 1, NULL), scene_close(s))
{
	static const uint64_t numbers[] = {1, 3, 4, 5};
	enum { NEXT = 6 };
	scene_make_ids(s);
	for (unsigned i = 0; i < ZD_ARRAY_LEN(numbers); i++)
		scene_connect(s, numbers[i]);
	s->control->polls(UINT_MAX); /* the first does not part for now */
	uint64_t closing[NODES];
	for (uint32_t rank = 0; rank < NODES; rank++)
		closing[rank] = close_comm(s, rank, numbers[0], false);
	struct record made = wait_ok(s->nodes[0], ask_for(s, OTHER_USER));
	memcpy(s->ids[NEXT - 1], made.completion.result.values, ZD_UNIQUE_ID_BYTES);
	free_ids(made);
	uint64_t opening = open_comm(s, 0, NEXT);
	wait_for_thread(s, 0);
	assert_int_equal(times_completed(s->nodes[0], opening), 0);
	assert_int_equal(count_children(), 2);
	for (unsigned i = 1; i < ZD_CUDA_IDS_MOST_OF_USER; i++)
		free_ids(wait_ok(s->nodes[0], ask_for(s, OTHER_USER)));
	await_children(1 + ZD_CUDA_IDS_MOST_OF_USER);
	free_ids(wait_ok(s->nodes[0], ask_for(s, OTHER_USER))); /* takes another one's place */
	await_children(1 + ZD_CUDA_IDS_MOST_OF_USER);
	s->control->polls(2);
	uint64_t other = open_comm(s, 1, NEXT);
	(void)wait_ok(s->nodes[0], opening);
	(void)wait_ok(s->nodes[1], other);
	/* Its process has been needed so long, and is not any more. */
	await_children(ZD_CUDA_IDS_MOST_OF_USER);
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], closing[rank]);
	for (unsigned i = 1; i < ZD_ARRAY_LEN(numbers); i++)
		scene_disconnect(s, numbers[i]);
	scene_disconnect(s, NEXT);
}

int main(int argc, char **argv)
{
	ID_PROGRAM(argc, argv);
	return case_run_all(argc, argv);
}
