/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_processes.c - the cuda backend and the processes on its GPUs, and Xids; over the driver's double
 * and NVML's.
 *
 * A trainer is this program with an argument: it makes a context, may fork a child, and waits to be killed.
 */
#define TEST_BACKEND zd_backend_cuda

#include <signal.h>
#include <sys/wait.h>

#include "driver/driver.h"
#include "tests/unit/driver/cases.h"
#include "tests/unit/executor/backend_fixture.h"

/* ---- Trainers ------------------------------------------------------------------------------------------ */

static int trainer_main(bool forks)
{
	const struct zd_cuda *cuda;
	struct CUctx_st *context;
	struct zd_err err;
	pid_t child = 0;
	if (zd_cuda_load(&cuda, &err) || cuda->devicePrimaryCtxRetain(&context, 0))
		return 1;
	if (forks)
		child = fork();
	if (forks && child == 0)
		for (;;)
			pause();
	if (write(STDOUT_FILENO, &child, sizeof(child)) != sizeof(child))
		return 1;
	for (;;)
		pause();
}

static struct case_process start_trainer(const char *kind)
{
	char *const args[] = {(char *)"trainer", (char *)kind, NULL};
	struct case_process trainer = case_spawn(args);
	case_await(&trainer);
	return trainer;
}

/* ---- Sessions of theirs -------------------------------------------------------------------------------- */

static struct fixture *open_fixture(void **state)
{
	assert_int_equal(open_devices(state, 2), 0);
	return *state;
}

static struct client open_for(struct fixture *f, uint64_t session, pid_t pid)
{
	struct client c = {.client_fd = -1};
	int pidfd = open_pidfd(pid);
	assert_int_equal(ops->session_open(f->backend, session, pid, pidfd, &c.client_fd, &c.daemon_fd, NULL),
	                 0);
	(void)close(pidfd);
	(void)close(c.client_fd);
	(void)close(c.daemon_fd);
	return c;
}

static uint64_t watch_until_gone(struct fixture *f, uint64_t session)
{
	struct zd_command command = watch(0, session, 0, NULL);
	command.u.watch.until_gone = true;
	return submit(f, command);
}

/* Ends sessions of processes that are on no GPU, one after the other: so the monitor has looked at all that
 * was there before. */
static void let_it_look(struct fixture *f)
{
	static uint64_t next = 1000;
	for (int i = 0; i < 3; i++) {
		uint64_t session = next++;
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		(void)open_for(f, session, pid);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		uint64_t op = watch_until_gone(f, session);
		ops->session_close(f->backend, session, false);
		assert_int_equal(wait_op(f, op).completion.status, ZEROD_E_ABORTED);
	}
}

static char env[64];

#define STATE_CASE(name, ...) CASE_DEFINE(name, void **state, name(state), .env = {__VA_ARGS__})

STATE_CASE(test_killed_trainer, env)
{
	struct fixture *f = open_fixture(state);
	struct case_process trainer = start_trainer("trainer");
	struct zd_fence never = {0, 1};
	(void)open_for(f, SESSION, trainer.pid);
	uint64_t gone = watch_until_gone(f, SESSION), released = submit(f, watch(1, SESSION, 1, &never));
	/* Its connection is gone, and it is not yet. */
	ops->session_close(f->backend, SESSION, false);
	let_it_look(f);
	assert_int_equal(times_completed(f, gone), 0);
	assert_int_equal(times_completed(f, released), 0);
	case_kill(&trainer);
	assert_int_equal(wait_op(f, gone).completion.status, ZEROD_E_ABORTED);
	assert_int_equal(wait_op(f, released).completion.status, ZEROD_E_ABORTED);
	close_all(state);
}

/* The dead process has been reaped, and its context lives in the child. */
STATE_CASE(test_forked_child_keeps_the_context, env)
{
	struct fixture *f = open_fixture(state);
	struct case_process trainer = start_trainer("forking trainer");
	(void)open_for(f, SESSION, trainer.pid);
	uint64_t gone = watch_until_gone(f, SESSION);
	case_kill(&trainer);
	ops->session_close(f->backend, SESSION, false);
	let_it_look(f);
	assert_int_equal(times_completed(f, gone), 0);
	assert_int_equal(kill(trainer.child, SIGKILL), 0);
	assert_int_equal(wait_op(f, gone).completion.status, ZEROD_E_ABORTED);
	close_all(state);
}

STATE_CASE(test_session_that_ends_in_order, env)
{
	struct fixture *f = open_fixture(state);
	struct case_process trainer = start_trainer("trainer");
	(void)open_for(f, SESSION, trainer.pid);
	uint64_t gone = watch_until_gone(f, SESSION);
	ops->session_close(f->backend, SESSION, true);
	assert_int_equal(wait_op(f, gone).completion.status, ZEROD_E_ABORTED);
	case_kill(&trainer);
	close_all(state);
}

/* No NVML that knows us: the process's end must do, and must be waited for. */
STATE_CASE(test_process_that_nobody_lists)
{
	struct fixture *f = open_fixture(state);
	struct case_process trainer = start_trainer("trainer");
	(void)open_for(f, SESSION, trainer.pid);
	uint64_t gone = watch_until_gone(f, SESSION);
	ops->session_close(f->backend, SESSION, false);
	let_it_look(f);
	assert_int_equal(times_completed(f, gone), 0);
	case_kill(&trainer);
	assert_int_equal(wait_op(f, gone).completion.status, ZEROD_E_ABORTED);
	close_all(state);
}

/* A process that cannot be watched has not ended: it gets no session. */
STATE_CASE(test_no_session_without_a_pidfd)
{
	struct fixture *f = open_fixture(state);
	struct client c;
	struct zd_err err;
	assert_int_equal(
	        ops->session_open(f->backend, SESSION, getpid(), -1, &c.client_fd, &c.daemon_fd, &err),
	        ZEROD_E_SYSTEM);
	assert_non_null(strstr(err.text, "pidfd"));
	close_all(state);
}

STATE_CASE(test_end_with_sessions_that_linger, env)
{
	struct fixture *f = open_fixture(state);
	struct case_process trainer = start_trainer("trainer");
	(void)open_for(f, SESSION, trainer.pid);
	uint64_t gone = watch_until_gone(f, SESSION);
	ops->session_close(f->backend, SESSION, false);
	close_backend(f);
	assert_int_equal(wait_op(f, gone).completion.status, ZEROD_E_SHUTDOWN);
	case_kill(&trainer);
	close_all(state);
}

/* ---- Xids ---------------------------------------------------------------------------------------------- */

STATE_CASE(test_xids, env)
{
	const char *dir = getenv("ZD_DOUBLE_DIR");
	case_write_file(dir, "xid-0", "31"); /* a program's own fault */
	case_write_file(dir, "xid-1", "79"); /* fallen off the bus */
	struct fixture *f = open_fixture(state);
	let_it_look(f);
	struct record record = create(f, 1, 1, 2 * MIB);
	assert_int_equal(record.completion.status, ZEROD_E_DEVICE);
	assert_non_null(strstr(record.completion.error, "has failed: Xid 79"));
	assert_int_equal(create(f, 0, 2, 2 * MIB).completion.status, 0);
	assert_int_equal(wait_op(f, submit(f, fill(0, at(2, 0, MIB)))).completion.status, 0);
	close_all(state);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[0], "trainer") == 0)
		return trainer_main(strcmp(argv[1], "forking trainer") == 0);
	return case_main_in_dir(argc, argv, env);
}
