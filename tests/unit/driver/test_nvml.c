/* SPDX-License-Identifier: Apache-2.0 */
/* test_nvml.c - NVML as the daemon uses it, over its double: who is on a GPU, how busy it is, and Xids. */
#include "driver/nvml.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>

#include "tests/unit/driver/double_fixture.h"

#define FIRST  "GPU-7a65726f-d00b-4e00-8000-000000000000"
#define SECOND "GPU-7a657270-d00b-4e00-8000-000000000001"

/* The folder by which processes see each other. */
static char dir[] = CASE_DIR;

static void make_dir(void)
{
	assert_non_null(mkdtemp(dir));
	assert_int_equal(setenv("ZD_DOUBLE_DIR", dir, 1), 0);
}

static struct zd_nvml *nvml_open(void)
{
	struct zd_nvml *nvml = NULL;
	struct zd_err err = ZD_ERR_NONE;

	if (zd_nvml_open(&nvml, &err))
		fail_msg("%s", err.text);
	return nvml;
}

static void expect_listed(struct zd_nvml *nvml, const char *uuid, pid_t pid, int expected)
{
	struct zd_err err = ZD_ERR_NONE;

	assert_int_equal(zd_nvml_lists(nvml, uuid, pid, &err), expected);
}

CASE_TEST_WITH(test_no_nvml, .libraries = CASE_BROKEN)
{
	struct zd_nvml *nvml = NULL;
	struct zd_err err = ZD_ERR_NONE;

	assert_int_equal(zd_nvml_open(&nvml, &err), ZEROD_E_NOT_FOUND);
	assert_non_null(strstr(err.text, "there is no NVML: "));
	assert_null(nvml);
	zd_nvml_close(NULL);
}

CASE_TEST_WITH(test_an_nvml_without_what_is_needed, .libraries = CASE_SWAPPED)
{
	struct zd_nvml *nvml = NULL;
	struct zd_err err = ZD_ERR_NONE;

	assert_int_equal(zd_nvml_open(&nvml, &err), ZEROD_E_NOT_FOUND);
	assert_string_equal(err.text, "libnvidia-ml.so.1 has no nvmlInit_v2");
}

CASE_TEST(test_a_process_is_listed_while_it_has_a_context, "CUDA_VISIBLE_DEVICES=1")
{
	const struct zd_cuda *cuda;
	struct zd_nvml *nvml;

	make_dir();
	cuda = load();
	nvml = nvml_open();
	expect_listed(nvml, SECOND, getpid(), 0);
	(void)enter(cuda, 0); /* the second one of the node, here */
	expect_listed(nvml, SECOND, getpid(), 1);
	expect_listed(nvml, FIRST, getpid(), 0);
	expect_listed(nvml, SECOND, getpid() + 1, 0);
	leave(cuda, 0);
	expect_listed(nvml, SECOND, getpid(), 0);
	zd_nvml_close(nvml);
	case_remove_dir(dir);
}

CASE_TEST(test_an_unknown_gpu)
{
	struct zd_nvml *nvml = nvml_open();
	struct zd_err err = ZD_ERR_NONE;

	assert_int_equal(zd_nvml_lists(nvml, "GPU-7a65726f", 1, &err), ZEROD_E_DEVICE);
	assert_string_equal(err.text, "GPU-7a65726f: NVML: Not Found");
	zd_nvml_close(nvml);
}

/* A trainer with a forked worker: reports through the pipe when it has its context, and is then killed. */
static void trainer(int ready, int hold)
{
	const struct zd_cuda *cuda = load_and_enter();
	char byte = 0;

	(void)cuda;
	if (fork() == 0) {
		/* Reads until its parent's parent closes the other end. */
		(void)!write(ready, &byte, 1);
		(void)!read(hold, &byte, 1);
		_exit(0);
	}
	(void)pause();
	_exit(1);
}

CASE_TEST(test_a_forked_child_keeps_its_dead_parent_listed)
{
	int ready[2], hold[2], status = 0;
	struct zd_nvml *nvml;
	char byte = 0;
	pid_t pid;

	make_dir();
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
	(void)fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)close(hold[1]);
		(void)close(ready[0]);
		trainer(ready[1], hold[0]);
	}
	(void)close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	nvml = nvml_open();
	expect_listed(nvml, FIRST, pid, 1);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	expect_listed(nvml, FIRST, pid, 1);
	/* The child ends: it was the last one to hold the pipe. */
	(void)close(hold[1]);
	assert_int_equal(read(ready[0], &byte, 1), 0);
	while (zd_nvml_lists(nvml, FIRST, pid, NULL) == 1)
		(void)sched_yield();
	expect_listed(nvml, FIRST, pid, 0);
	(void)close(ready[0]);
	(void)close(hold[0]);
	zd_nvml_close(nvml);
	case_remove_dir(dir);
}

/* More than the caller has room for at first. */
CASE_TEST(test_many_processes)
{
	enum { MANY = 150 };
	struct zd_nvml *nvml;
	int fds[MANY];
	char path[64];

	make_dir();
	for (int i = 0; i < MANY; i++) {
		(void)snprintf(path, sizeof(path), "%s/gpu-0-pid-%d", dir, 1000000 + i);
		fds[i] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		assert_int_equal(flock(fds[i], LOCK_EX), 0);
	}
	nvml = nvml_open();
	for (int i = 0; i < MANY; i++)
		expect_listed(nvml, FIRST, 1000000 + i, 1);
	for (int i = 0; i < MANY; i++)
		(void)close(fds[i]);
	expect_listed(nvml, FIRST, 1000000, 0);
	zd_nvml_close(nvml);
	case_remove_dir(dir);
}

CASE_TEST(test_an_xid_is_told_once)
{
	struct zd_nvml_xid xid = {.xid = 0};
	struct zd_nvml *nvml;

	make_dir();
	nvml = nvml_open();
	assert_int_equal(zd_nvml_next_xid(nvml, &xid), 0);
	case_write_file(dir, "xid-1", "79\n");
	assert_int_equal(zd_nvml_next_xid(nvml, &xid), 1);
	assert_int_equal(xid.xid, 79);
	assert_string_equal(xid.uuid_text, SECOND);
	assert_int_equal(zd_nvml_next_xid(nvml, &xid), 0);
	zd_nvml_close(nvml);
	case_remove_dir(dir);
}

int main(int argc, char **argv)
{
	return case_run_all(argc, argv);
}
