/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_calls.c - every call that a trainer's life makes to the driver fails once in turn: out of memory,
 * an invalid handle, a context that is lost. Whatever fails, the library says so in words or goes on, gives
 * everything back and ends; the daemon serves the next one.
 */
#include "cuda_scene.h"

#include <zerod_cuda.h>

#include <errno.h>
#include <signal.h>

#include "tests/support/daemon_fixture.h"

#define LIFE             "life"
#define STRICT           "ZD_LIFE_STRICT" /* in its environment: how its client is */
#define LIFE_SECONDS     30
#define LIFE_DEADLINE_MS 500
#define SAID_SO          3 /* its exit status when a call failed, and said why */

static int failed; /* the first status of a life that is not OK */

static bool did(zerod_client *client, int status)
{
	if (status == ZEROD_OK)
		return true;
	if (zerod_last_error(client)[0] == '\0')
		_exit(1); /* without a word */
	failed = failed ? failed : status;
	return false;
}

static void use_gpu(zerod_client *client, zerod_unit *unit, zerod_stream *stream)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	void *data;

	(void)did(client, zerod_shard_get(unit, &shard));
	if (!did(client, zerod_update_begin(&unit, 1, NULL, NULL)) ||
	    !did(client, zerod_publish(&unit, 1, &stream, 1, NULL, NULL)))
		return;
	for (unsigned i = 0; i < 2; i++) {
		if (!did(client, zerod_gather(unit, NULL, i ? stream : NULL, &data)))
			return;
		if (!did(client, zerod_release(unit, &stream, 1, NULL, NULL)))
			(void)did(client, zerod_release(unit, NULL, 0, NULL, NULL));
	}
	(void)did(client, zerod_stream_synchronize(stream));
}

/* The caller's own part, which fails in its turn as well. */
static bool make_stream(struct CUstream_st **handle, bool *retained)
{
	const struct zd_cuda *driver = scene_driver();
	struct CUctx_st *context = NULL;
	bool made;

	*retained = !driver->devicePrimaryCtxRetain(&context, 0);
	made = *retained && !driver->ctxSetCurrent(context) &&
	       !driver->streamCreateWithPriority(handle, ZD_CU_STREAM_NON_BLOCKING, 0);
	failed = failed || made ? failed : ZEROD_E_DEVICE;
	return made;
}

static void live(zerod_client *client)
{
	struct zerod_group_options options = ZEROD_INIT(options);
	struct zerod_unit_options unit_options = ZEROD_INIT(unit_options);
	struct CUstream_st *handle = NULL;
	zerod_stream *stream = NULL;
	bool retained = false;
	zerod_group *group;
	zerod_unit *unit;

	options.job = "life";
	options.world_size = 1;
	unit_options.name = "w";
	unit_options.dtype = ZEROD_FLOAT32;
	unit_options.numel = SCENE_NUMEL;
	if (!did(client, zerod_group_join(client, &options, &group)) ||
	    !did(client, zerod_unit_register(group, &unit_options, &unit)))
		return;
	if (make_stream(&handle, &retained) && did(client, zerod_cuda_stream_wrap(client, handle, &stream)))
		use_gpu(client, unit, stream);
	(void)did(client, zerod_unit_unregister(unit, NULL));
	zerod_stream_destroy(stream);
	if (handle)
		(void)scene_driver()->streamDestroy(handle);
	if (retained)
		(void)scene_driver()->devicePrimaryCtxRelease(0);
}

/* In a process of its own, with a fault in its environment. */
static int life_main(void)
{
	struct zerod_options options = ZEROD_INIT(options);
	zerod_client *client;

	alarm(LIFE_SECONDS);
	if (getenv("ZD_DOUBLE_FAIL")) /* fences of a context that is lost are never written */
		options.deadline_ms = LIFE_DEADLINE_MS;
	options.strict = getenv(STRICT) != NULL;
	if (zerod_connect(&options, &client))
		return 1;
	live(client);
	zerod_close(client);
	return failed ? SAID_SO : 0;
}

static int run_life(const char *socket_path, const char *fault, const char *count_file)
{
	char *const args[] = {(char *)"case", (char *)LIFE, NULL};
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		(void)setenv("ZEROD_SOCKET", socket_path, 1);
		(void)setenv("ZD_DOUBLE_LEAKS", "1", 1);
		if (fault)
			(void)setenv("ZD_DOUBLE_FAIL", fault, 1);
		if (count_file)
			(void)setenv("ZD_DOUBLE_COUNT", count_file, 1);
		(void)execv("/proc/self/exe", args);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static unsigned count_calls(const char *socket_path)
{
	char path[] = "/tmp/zd-count-XXXXXX", line[128];
	unsigned calls = 0;
	int fd = mkstemp(path);
	FILE *file;

	assert_true(fd >= 0);
	(void)close(fd);
	assert_int_equal(run_life(socket_path, NULL, path), 0);
	file = fopen(path, "re");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		(void)sscanf(line, "case all %u", &calls);
	(void)fclose(file);
	(void)unlink(path);
	assert_true(calls > 40);
	return calls;
}

static void fail_each_call(int result)
{
	const char *const args[] = {"--backend", "cuda", NULL};
	struct zd_daemon_options options = {.args = args};
	struct zd_daemon daemon;
	unsigned calls, said = 0;

	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	calls = count_calls(daemon.socket_path);
	for (unsigned i = 1; i <= calls; i++) {
		char fault[32];
		int status;

		(void)snprintf(fault, sizeof(fault), "%u:%d", i, result);
		status = run_life(daemon.socket_path, fault, NULL);
		if (status != 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == SAID_SO))
			fail_msg("with fault %s: wait status 0x%x", fault, (unsigned)status);
		said += status != 0;
	}
	assert_true(said > calls / 3); /* faults at the end, and of what is not needed, have nobody to tell */
	assert_int_equal(run_life(daemon.socket_path, NULL, NULL), 0);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

CASE_TEST(test_out_of_memory_in_each_call)
{
	fail_each_call(ZD_CU_OUT_OF_MEMORY);
}

CASE_TEST(test_invalid_handle_in_each_call)
{
	fail_each_call(ZD_CU_INVALID_HANDLE);
}

CASE_TEST(test_device_lost_in_each_call)
{
	fail_each_call(ZD_CU_ILLEGAL_ADDRESS);
}

/* The same of strict clients, whose calls to take access away are a thread's. */
CASE_TEST(test_strict_client_in_each_call)
{
	assert_int_equal(setenv(STRICT, "1", 1), 0);
	fail_each_call(ZD_CU_OUT_OF_MEMORY);
	fail_each_call(ZD_CU_ILLEGAL_ADDRESS);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], LIFE) == 0)
		return life_main();
	return scene_main(argc, argv);
}
