/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_faults.c - libzerod on GPUs when a daemon dies or aborts a transfer, and in processes with forked
 * children and several threads.
 */
#include "cuda_scene.h"

#include <zerod_cuda.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "tests/double/control.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/options.h"

/* Copies of the daemon take so long, those of this process do not. */
static void slow_the_daemon_down(const char *copy_us)
{
	(void)scene_driver();
	assert_int_equal(setenv("ZD_DOUBLE_COPY_US", copy_us, 1), 0);
}

static bool has_ended(struct CUstream_st *stream)
{
	return scene_driver()->streamQuery(stream) == ZD_CU_SUCCESS;
}

/* ---- The daemon ---------------------------------------------------------------------------------------- */

/* Gathers until it sees the stream wait: the daemon may have been quicker than this process. */
static void make_wait(struct contract_rank *rank, struct contract_unit *unit, struct CUstream_st *handle,
                      zerod_stream *stream)
{
	void *data = NULL;

	OK(rank->client, zerod_gather(unit->at[0], NULL, stream, &data));
	while (has_ended(handle)) {
		OK(rank->client, zerod_release(unit->at[0], &stream, 1, NULL, NULL));
		OK(rank->client, zerod_gather(unit->at[0], NULL, stream, &data));
	}
}

/* The stream is free before anybody has called the library again. */
CASE_TEST(test_daemon_killed_while_a_stream_waits)
{
	struct contract_unit unit;
	struct contract *c;
	struct contract_rank *rank;
	struct CUstream_st *handle = scene_stream(0);
	zerod_stream *stream = NULL;

	slow_the_daemon_down("1000000");
	c = scene_open(&unit);
	rank = &c->ranks[0];
	OK(rank->client, zerod_cuda_stream_wrap(rank->client, handle, &stream));
	make_wait(rank, &unit, handle, stream);
	assert_int_equal(zd_daemon_kill(contract_daemon()), 0);
	AWAIT(has_ended(handle));
	FAILS(rank->client, zerod_stream_synchronize(stream), ZEROD_E_DISCONNECTED, NULL);
	FAILS(rank->client, zerod_publish(&unit.at[0], 1, &stream, 1, NULL, NULL), ZEROD_E_DISCONNECTED,
	      NULL);
	zerod_stream_destroy(stream);
	assert_int_equal(contract_teardown(NULL), 0);
}

struct full_stream {
	struct contract_rank *rank;
	struct contract_unit *unit;
	zerod_stream *stream;
	const struct double_control *control;
	atomic_bool released;
};

static void *release_into_full(void *arg)
{
	struct full_stream *full = arg;
	zerod_ticket ticket;

	full->control->fill_streams(true);
	FAILS(full->rank->client, zerod_release(full->unit->at[0], &full->stream, 1, NULL, &ticket),
	      ZEROD_E_DISCONNECTED, NULL);
	full->released = true;
	return NULL;
}

/* As a trainer that is far ahead of its GPU: the driver takes nothing more until the stream moves. */
CASE_TEST(test_daemon_killed_while_a_stream_is_full)
{
	struct contract_unit unit;
	struct contract *c;
	struct CUstream_st *handle = scene_stream(0);
	struct full_stream full = {.unit = &unit};
	unsigned long stores;
	pthread_t thread;

	slow_the_daemon_down("1000000");
	full.control = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "double_control");
	assert_non_null(full.control);
	c = scene_open(&unit);
	full.rank = &c->ranks[0];
	OK(full.rank->client, zerod_cuda_stream_wrap(full.rank->client, handle, &full.stream));
	make_wait(full.rank, &unit, handle, full.stream);
	stores = full.control->calls("cuStreamWriteValue64");
	assert_int_equal(pthread_create(&thread, NULL, release_into_full, &full), 0);
	AWAIT(full.control->calls("cuStreamWriteValue64") > stores);
	assert_int_equal(zd_daemon_kill(contract_daemon()), 0);
	AWAIT(full.released);
	assert_int_equal(pthread_join(thread, NULL), 0);
	zerod_stream_destroy(full.stream);
	assert_int_equal(contract_teardown(NULL), 0);
}

/* The daemon's pending stores write into the pages, so the pages stay until the daemon has written. */
CASE_TEST(test_close_while_a_stream_waits)
{
	struct contract_unit unit;
	struct contract *c;
	struct CUstream_st *handle = scene_stream(0);
	zerod_stream *stream = NULL;

	slow_the_daemon_down("200000");
	c = scene_open(&unit);
	OK(c->ranks[0].client, zerod_cuda_stream_wrap(c->ranks[0].client, handle, &stream));
	make_wait(&c->ranks[0], &unit, handle, stream);
	contract_leave(&c->ranks[0]);
	assert_true(has_ended(handle));
	contract_close(c);
}

/* The daemon's first push fails: whether the stream waited by then or not, nothing of this rank is
 * published. */
CASE_TEST(test_abort_poisons, "ZD_DOUBLE_FAIL_IN=zerod", "ZD_DOUBLE_FAIL=cuMemcpyAsync:1:2")
{
	struct contract_unit unit;
	struct contract *c = scene_open_with(&unit, SCENE_IN_PLACE_NUMEL);
	struct contract_rank *rank = &c->ranks[0];
	zerod_stream *stream = contract_stream(rank);
	void *data = NULL;
	int status;

	status = zerod_gather(unit.at[0], NULL, stream, &data);
	if (status == ZEROD_OK)
		status = zerod_stream_synchronize(stream);
	contract_expect(rank->client, status, ZEROD_E_ABORTED, "reset", "a wait for an aborted gather",
	                __LINE__);
	FAILS(rank->client, zerod_update_begin(&unit.at[0], 1, NULL, NULL), ZEROD_E_POISONED, NULL);
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	OK(rank->client, zerod_session_reset(rank->client, NULL));
	OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &data));
	contract_sync(rank, stream);
	contract_expect_bytes(&unit, data, 1);
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	contract_publish(rank, &unit);
	contract_close(c);
}

/* ---- Processes and threads ----------------------------------------------------------------------------- */

/* The child's part: 0, or the line that went wrong. */
static int use_in_child(struct contract_rank *rank, struct contract_unit *unit, zerod_stream *stream)
{
	zerod_stream *another;
	void *data;

	if (zerod_gather(unit->at[0], NULL, stream, &data) != ZEROD_E_FORKED)
		return __LINE__;
	if (zerod_stream_synchronize(stream) != ZEROD_E_FORKED)
		return __LINE__;
	if (zerod_cuda_stream_wrap(rank->client, NULL, &another) != ZEROD_E_FORKED)
		return __LINE__;
	zerod_stream_destroy(stream);
	zerod_close(rank->client);
	return 0;
}

/* A data loader's worker: made while a stream waits, and still there when its parent's sessions have ended.
 * It keeps the parent among the GPUs' processes, but what said goodbye is not waited for. */
CASE_TEST(test_forked_child)
{
	char dir[] = CASE_DIR; /* where processes on GPUs are listed */
	struct contract_unit unit;
	struct contract *c;
	struct contract_rank *rank;
	struct contract_gate *gate;
	zerod_stream *stream;
	int status = 0, ends[2];
	void *data = NULL;
	char byte;
	pid_t pid;

	assert_non_null(mkdtemp(dir));
	assert_int_equal(setenv("ZD_DOUBLE_DIR", dir, 1), 0);
	c = scene_open(&unit);
	rank = &c->ranks[0];
	stream = contract_stream(rank);
	assert_int_equal(pipe(ends), 0);
	OK(rank->client, zerod_gather(unit.at[0], NULL, stream, &data));
	gate = contract_block(rank, stream);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int line = use_in_child(rank, &unit, stream);

		(void)close(ends[1]);
		(void)!read(ends[0], &byte, 1); /* until the parent has ended its session */
		_exit(line % 256);
	}
	OK(rank->client, zerod_release(unit.at[0], &stream, 1, NULL, NULL));
	contract_unblock(gate);
	contract_sync(rank, stream);
	contract_expect_version(rank, &unit, 1);
	contract_close(c);
	assert_int_equal(close(ends[1]), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	case_remove_dir(dir);
}

/* Both of the thread's streams wait for the copy. */
static void gather_for_both(const struct scene_user *user, struct contract_rank *rank, unsigned round,
                            void **data)
{
	zerod_stream *const both[] = {user->own, user->shared};
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_ticket ticket;

	options.tag = user->tag;
	OK(rank->client, zerod_gather_begin(user->unit->at[rank->number], &options, &ticket));
	OK(rank->client, zerod_wait(rank->client, ticket, both[round % 2], data));
	OK(rank->client, zerod_wait(rank->client, ticket, user->own, data));
}

CASE_TEST(test_threads_and_streams)
{
	struct contract_unit units[2];
	struct contract *c = scene_open(&units[0]);

	contract_plain_unit(c, "v", 3 * SCENE_NUMEL, &units[1]);
	contract_publish_all(c, &units[1]);
	scene_run_users(c, (struct contract_unit *const[]){&units[0], &units[1]},
	                (const char *const[]){"a", "a"},
	                &(struct scene_user){.gather = gather_for_both, .rounds = 60});
	contract_close(c);
}

int main(int argc, char **argv)
{
	return scene_main(argc, argv);
}
