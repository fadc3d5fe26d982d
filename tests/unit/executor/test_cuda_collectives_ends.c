/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_collectives_ends.c - communicators through the backend's interface that end before their time:
 * aborts, deadlines, ranks that differ, GPUs that fail, the daemon's end; over the doubles of the driver and
 * of NCCL. */
#include <sched.h>

#include "executor/nccl/cuda_comm_call.h"
#include "tests/unit/executor/collective_scene.h"

static const struct zd_backend_config checking = {.check_collectives = true};

static void expect_failed(struct collective_scene *s, uint32_t rank, uint64_t op, int status,
                          const char *text)
{
	struct record record = wait_op(node_of(s, rank), op);
	assert_int_equal(record.completion.status, status);
	expect_text(record.completion.error, text);
}

/* Node 1's ranks of both communicators go; what node 0 has closed itself is its own affair. */
static void leave_by_force(struct collective_scene *s, uint64_t comm)
{
	uint64_t ops_of[NODES];
	for (uint32_t rank = 0; rank < NODES; rank++)
		ops_of[rank] = close_comm(s, rank, comm, true);
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], ops_of[rank]);
}

static void close_by_force(struct collective_scene *s)
{
	leave_by_force(s, GATHERS);
	leave_by_force(s, REDUCTIONS);
	scene_close(s);
}

/* ---- Aborts -------------------------------------------------------------------------------------------- */

/* The kernels of what is aborted run on for a while: streams that wait for it are freed at once, but it ends
 * when nothing writes any more. */
SCENE_TEST(test_abort_under_an_exchange, scene_open_both(s, 1, NULL), close_by_force(s))
{
	struct client c;
	uint64_t exchange, close;
	c = open_session(s->nodes[0], SESSION);
	memset(s->memory[0], UNTOUCHED, ROOM);
	exchange = give_small(s, 0, GATHERS, 1);
	while (s->control->kernels() == 0)
		(void)sched_yield();
	s->control->hold_aborts(true);
	close = close_comm(s, 0, GATHERS, true);
	wait_counter(&c.daemon_page[TIMELINE], ZD_FENCE_ABORTED);
	wait_for_thread(s, 0);
	assert_int_equal(times_completed(s->nodes[0], exchange), 0);
	assert_int_equal(times_completed(s->nodes[0], close), 0);
	assert_int_equal(s->control->kernels(), 1);
	s->control->hold_aborts(false);
	expect_failed(s, 0, exchange, ZEROD_E_ABORTED,
	              "group 'world' was aborted: its communicator was closed");
	assert_int_equal(s->control->kernels(), 0);
	assert_true(wait_ok(s->nodes[0], close).order > wait_op(s->nodes[0], exchange).order);
	forget_session(&c);
}

/* A session's reset says that all which was given out counts as passed: an exchange that ends afterwards does
 * not abort its timeline again, and what comes later works. */
SCENE_TEST(test_reset_before_an_abort_is_over, scene_open_both(s, 1, NULL), close_by_force(s))
{
	struct client c;
	struct zd_command reset = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, TIMELINE, 1}};
	uint64_t exchange, later;
	c = open_session(s->nodes[0], SESSION);
	exchange = give_small(s, 0, GATHERS, 1);
	while (s->control->kernels() == 0)
		(void)sched_yield();
	s->control->hold_aborts(true);
	(void)close_comm(s, 0, GATHERS, true);
	wait_counter(&c.daemon_page[TIMELINE], ZD_FENCE_ABORTED);
	(void)wait_ok(s->nodes[0], give(s, 0, reset));
	assert_int_equal(atomic_load(&c.daemon_page[TIMELINE]), 1);
	s->control->hold_aborts(false);
	expect_failed(s, 0, exchange, ZEROD_E_ABORTED, "was aborted");
	later = give_small(s, 0, REDUCTIONS, 2);
	(void)give_small(s, 1, REDUCTIONS, 0);
	(void)wait_ok(s->nodes[0], later);
	assert_int_equal(atomic_load(&c.daemon_page[TIMELINE]), 2);
	forget_session(&c);
}

/* The same of one that goes on: it ends well, and its fence is not stored over the reset's. */
SCENE_TEST(test_reset_over_an_exchange_that_goes_on, scene_open_both(s, 1, NULL), scene_close_both(s))
{
	struct client c;
	struct zd_command reset = {.kind = ZD_CMD_SIGNAL, .signal = {SESSION, TIMELINE, 5}};
	uint64_t exchange;
	c = open_session(s->nodes[0], SESSION);
	exchange = give_small(s, 0, GATHERS, 1);
	(void)wait_ok(s->nodes[0], give(s, 0, reset));
	assert_int_equal(atomic_load(&c.daemon_page[TIMELINE]), 5);
	(void)give_small(s, 1, GATHERS, 0);
	(void)wait_ok(s->nodes[0], exchange);
	assert_int_equal(atomic_load(&c.daemon_page[TIMELINE]), 5);
	forget_session(&c);
}

/* Operations that were not launched yet end at once. An operation that has ended, and waits for its turn in a
 * timeline, ends well. */
SCENE_TEST(test_abort_of_what_waits, scene_open_both(s, 1, NULL), close_by_force(s))
{
	struct client c;
	uint64_t first, second, behind;
	c = open_session(s->nodes[0], SESSION);
	first = give_small(s, 0, GATHERS, 1);
	second = give_small(s, 0, REDUCTIONS, 2);
	behind = give_small(s, 0, REDUCTIONS, 0);
	(void)give_small(s, 1, REDUCTIONS, 0);
	(void)give_small(s, 1, REDUCTIONS, 0);
	(void)wait_ok(s->nodes[0], behind);
	assert_int_equal(times_completed(s->nodes[0], second), 0);
	leave_by_force(s, GATHERS);
	expect_failed(s, 0, first, ZEROD_E_ABORTED, "was aborted");
	(void)wait_ok(s->nodes[0], second);
	assert_int_equal(atomic_load(&c.daemon_page[TIMELINE]), ZD_FENCE_ABORTED);
	forget_session(&c);
}

static void close_while_connecting(bool aborts)
{
	struct collective_scene s;
	uint64_t open, exchange, close;
	scene_open(&s, 1, NULL);
	scene_make_ids(&s);
	open = open_comm(&s, 0, GATHERS);
	exchange = give_small(&s, 0, GATHERS, 0);
	close = close_comm(&s, 0, GATHERS, aborts);
	expect_failed(&s, 0, open, ZEROD_E_ABORTED, "group 'world' was aborted: its communicator was closed");
	expect_failed(&s, 0, exchange, ZEROD_E_ABORTED, "group 'world' was aborted");
	(void)wait_ok(s.nodes[0], close);
	scene_close(&s);
}

static char lost[64];

CASE_TEST(test_close_while_connecting, "ZD_DOUBLE_LEAKS=1")
{
	close_while_connecting(false);
	close_while_connecting(true);
}

/* ---- Deadlines ----------------------------------------------------------------------------------------- */

SCENE_TEST(test_a_rank_that_does_not_run_it, scene_open_both(s, 1, &impatient), close_by_force(s))
{
	struct client c;
	uint64_t exchange, behind, value;
	c = open_session(s->nodes[0], SESSION);
	exchange = give_small(s, 0, GATHERS, 1);
	behind = give_small(s, 0, GATHERS, 2);
	value = give_value(s, 0, GATHERS, "value", 5);
	expect_failed(
	        s, 0, exchange, ZEROD_E_PEER_LOST,
	        "group 'world': at its deadline rank 0's 1st operation exchange of 1024 uint8 (a test's "
	        "exchange) runs, and a rank has not launched it, or is late; not in this daemon: rank 1");
	expect_failed(s, 0, behind, ZEROD_E_PEER_LOST, "rank 0's 1st operation");
	expect_failed(s, 0, value, ZEROD_E_PEER_LOST, "not in this daemon: rank 1");
	assert_null(wait_op(s->nodes[0], value).completion.result.values);
	assert_int_equal(atomic_load(&c.daemon_page[TIMELINE]), ZD_FENCE_ABORTED);
	expect_failed(s, 0, give_small(s, 0, GATHERS, 0), ZEROD_E_PEER_LOST, "rank 0's 1st operation");
	forget_session(&c);
}

SCENE_TEST(test_a_rank_that_never_comes, scene_open(s, 1, &impatient), scene_close(s))
{
	uint64_t open, exchange;
	scene_make_ids(s);
	open = open_comm(s, 0, GATHERS);
	exchange = give_small(s, 0, GATHERS, 0);
	expect_failed(s, 0, open, ZEROD_E_PEER_LOST,
	              "group 'world': its 2 ranks have not connected by the deadline of rank 0: of this "
	              "daemon came "
	              "rank 0; another one has not come");
	expect_failed(s, 0, open, ZEROD_E_PEER_LOST, "not in this daemon: rank 1");
	expect_failed(s, 0, exchange, ZEROD_E_PEER_LOST, "have not connected");
	/* Nobody closes what never was open, and who does is not wrong. */
	(void)wait_ok(s->nodes[0], close_comm(s, 0, GATHERS, false));
}

/* NCCL does not end its goodbye: the close ends all the same. */
SCENE_TEST(test_parting_that_does_not_end, scene_open_both(s, 1, &impatient), scene_close(s))
{
	uint64_t closes[NODES];
	s->control->polls(UINT_MAX);
	for (uint32_t rank = 0; rank < NODES; rank++)
		closes[rank] = close_comm(s, rank, GATHERS, false);
	for (uint32_t rank = 0; rank < NODES; rank++)
		(void)wait_ok(s->nodes[rank], closes[rank]);
	leave_by_force(s, REDUCTIONS);
}

/* ---- Ranks that differ --------------------------------------------------------------------------------- */

SCENE_TEST(test_ranks_that_differ, scene_open_both(s, 1, &checking), close_by_force(s))
{
	uint64_t ops_of[NODES];
	for (uint32_t rank = 0; rank < NODES; rank++) {
		struct zd_command command = exchange_of(s, rank, GATHERS, KIB, 0, KIB);
		command.u.exchange.what = rank == 0 ? "gather of 'h.3', version 7"
		                                    : "gather of 'h.4', version 7";
		ops_of[rank] = give(s, rank, command);
	}
	for (uint32_t rank = 0; rank < NODES; rank++)
		expect_failed(
		        s, rank, ops_of[rank], ZEROD_E_MISMATCH,
		        "group 'world': rank 0 runs its 1st operation all_gather of 1024 uint8 (gather of "
		        "'h.3', version 7), rank 1 its 1st operation all_gather of 1024 uint8 (gather of "
		        "'h.4', version 7)");
}

/* As much of the words as there is room for is compared, and said. */
SCENE_TEST(test_words_that_are_long, scene_open_both(s, 1, &checking), close_by_force(s))
{
	static const char word[] = "0123456789012345678901234567890123456789012345678901234567890123456789";
	char cut[ZD_CUDA_COMM_WHAT + 32];
	uint64_t ops_of[NODES];
	(void)snprintf(cut, sizeof(cut), "(%.*s)", (int)ZD_CUDA_COMM_WHAT - 1, word);
	for (uint32_t rank = 0; rank < NODES; rank++) {
		struct zd_command command = exchange_of(s, rank, GATHERS, KIB << rank, 0, KIB << rank);
		command.u.exchange.what = word;
		ops_of[rank] = give(s, rank, command);
	}
	for (uint32_t rank = 0; rank < NODES; rank++)
		expect_failed(s, rank, ops_of[rank], ZEROD_E_MISMATCH, cut);
}

/* ---- What is refused ----------------------------------------------------------------------------------- */

SCENE_TEST(test_places_that_do_not_fit, scene_open(s, 2, NULL), scene_close(s))
{
	uint64_t first;
	scene_make_ids(s);
	expect_failed(s, 1, open_comm_as(s, 1, 9, ZD_COMM_GATHERS, 1), ZEROD_E_INVALID,
	              "group 'world': rank 1 of 1");
	first = open_comm(s, 0, GATHERS);
	wait_for_thread(s, 0);
	expect_failed(s, 1, open_comm_as(s, 1, GATHERS, ZD_COMM_GATHERS, 3), ZEROD_E_MISMATCH,
	              "rank 0 is one of 4, rank 1 with the same unique id one of 3");
	(void)wait_ok(s->nodes[0], close_comm(s, 0, GATHERS, true));
	expect_failed(s, 0, first, ZEROD_E_ABORTED, "was aborted");
}

static void expect_no_nccl(const struct zd_backend_config *settings, int status, const char *text)
{
	struct collective_scene s;
	(void)memset(&s, 0, sizeof(s));
	scene_open(&s, 1, settings);
	for (int i = 0; i < 2; i++) {
		expect_failed(&s, 0, ask_ids(&s, 0, 1), status, text);
		expect_failed(&s, 0, open_comm(&s, 0, GATHERS), status, text);
	}
	(void)wait_ok(s.nodes[0], close_comm(&s, 0, GATHERS, false));
	scene_close(&s);
}

CASE_TEST(test_nccl_that_is_missing, "ZD_DOUBLE_LEAKS=1")
{
	expect_no_nccl(&(struct zd_backend_config){.nccl_path = "/nowhere/libnccl.so.2"}, ZEROD_E_NOT_FOUND,
	               "there is no NCCL: /nowhere/libnccl.so.2");
}

CASE_TEST(test_nccl_that_is_too_old, "ZD_DOUBLE_LEAKS=1", "ZD_DOUBLE_NCCL_VERSION=22304")
{
	expect_no_nccl(NULL, ZEROD_E_UNSUPPORTED, "libnccl.so.2 is NCCL 2.23.4, 2.24.3 or newer is needed");
}

CASE_TEST(test_nccl_from_a_file, "ZD_DOUBLE_LEAKS=1")
{
	char path[PATH_MAX + 32];
	struct collective_scene s;
	(void)snprintf(path, sizeof(path), "%s/libnccl.so.2", case_double_path());
	assert_int_equal(unsetenv("LD_LIBRARY_PATH"), 0);
	scene_open_both(&s, 1, &(struct zd_backend_config){.nccl_path = path});
	scene_close_both(&s);
}

/* A backend without communicators loads no NCCL. */
SCENE_TEST(test_nccl_that_nobody_needs, scene_open(s, 1, NULL), scene_close(s))
{
	(void)s;
	assert_null(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD));
}

SCENE_TEST(test_environment_that_will_not_do, scene_open(s, 1, NULL), scene_close(s))
{
	static const char *const settings[][2] = {{"NCCL_COMM_BLOCKING", "1"},
	                                          {"NCCL_LAUNCH_MODE", "GROUP"},
	                                          {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
	                                          {"CUDA_DEVICE_MAX_CONNECTIONS", "1"},
	                                          {"NCCL_COMM_ID", "host:1234"}};
	scene_make_ids(s);
	for (size_t i = 0; i < ZD_ARRAY_LEN(settings); i++) {
		char text[128];
		(void)snprintf(text, sizeof(text),
		               "%s=%s in the daemon's environment or NCCL's configuration file",
		               settings[i][0], settings[i][1]);
		assert_int_equal(setenv(settings[i][0], settings[i][1], 1), 0);
		expect_failed(s, 0, open_comm(s, 0, GATHERS), ZEROD_E_INVALID, text);
		assert_int_equal(unsetenv(settings[i][0]), 0);
		s->control->configure(settings[i][0], settings[i][1]); /* comes when NCCL begins */
		expect_failed(s, 0, open_comm(s, 0, GATHERS), ZEROD_E_INVALID, text);
		(void)wait_ok(s->nodes[0], close_comm(s, 0, GATHERS, true));
		assert_int_equal(unsetenv(settings[i][0]), 0);
	}
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

SCENE_TEST(test_what_nccl_says, scene_open_both(s, 1, NULL), close_by_force(s))
{
	s->control->fail_call("ncclSend", 1, ZD_NCCL_REMOTE_ERROR);
	expect_failed(
	        s, 0, give_small(s, 0, GATHERS, 0), ZEROD_E_PEER_LOST,
	        "group 'world': rank 0's 1st operation exchange of 1024 uint8 (a test's exchange): remote "
	        "process exited or there was a network error; not in this daemon: "
	        "rank 1");
}

/* Under an exchange, for which the other rank never comes: it is noticed, and what comes later is refused. */
CASE_TEST(test_a_gpu_that_is_lost, lost)
{
	const char *dir = getenv("ZD_DOUBLE_DIR");
	struct collective_scene s;
	struct client c;
	uint64_t exchange;
	scene_open_both(&s, 1, NULL);
	c = open_session(s.nodes[0], SESSION);
	exchange = give_small(&s, 0, GATHERS, 1);
	while (s.control->kernels() == 0)
		(void)sched_yield();
	wait_for_thread(&s, 0);
	case_write_file(dir, "lost-0", "214");
	expect_failed(&s, 0, exchange, ZEROD_E_DEVICE, "has failed: ");
	assert_int_equal(atomic_load(&c.daemon_page[TIMELINE]), ZD_FENCE_ABORTED);
	expect_failed(&s, 0, open_comm(&s, 0, OTHER), ZEROD_E_DEVICE, "has failed: ");
	leave_by_force(&s, GATHERS);
	leave_by_force(&s, REDUCTIONS);
	forget_session(&c);
	scene_close(&s);
}

/* ---- The daemon's end ---------------------------------------------------------------------------------- */

/* Each operation under way ends once, and frees the streams that wait for it. */
SCENE_TEST(test_close_with_all_under_way, scene_open_both(s, 1, NULL), scene_close(s))
{
	struct client c;
	uint64_t inflight, waiting, value, opening, closing, ended;
	c = open_session(s->nodes[0], SESSION);
	inflight = give_small(s, 0, GATHERS, 1);
	ended = give_small(s, 0, REDUCTIONS, 2);
	(void)give_small(s, 1, REDUCTIONS, 0);
	value = give_value(s, 0, GATHERS, "value", 5);
	opening = open_comm(s, 0, OTHER);
	waiting = give_small(s, 0, OTHER, 3);
	closing = close_comm(s, 0, GATHERS, false);
	wait_for_thread(s, 0);
	close_backend(s->nodes[0]);
	expect_failed(s, 0, inflight, ZEROD_E_SHUTDOWN, "the daemon is shutting down");
	expect_failed(s, 0, value, ZEROD_E_SHUTDOWN, "the daemon is shutting down");
	expect_failed(s, 0, opening, ZEROD_E_SHUTDOWN, "the daemon is shutting down");
	expect_failed(s, 0, waiting, ZEROD_E_SHUTDOWN, "the daemon is shutting down");
	(void)wait_ok(s->nodes[0], closing);
	(void)wait_op(s->nodes[0], ended);
	assert_int_equal(atomic_load(&c.daemon_page[TIMELINE]), ZD_FENCE_ABORTED);
	forget_session(&c);
	close_backend(s->nodes[1]);
}

int main(int argc, char **argv)
{
	ID_PROGRAM(argc, argv);
	return case_main_in_dir(argc, argv, lost);
}
