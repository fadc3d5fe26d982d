/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_offloaded_sum_faults.c - one reduction, with every call of the driver that the trainer makes
 * failing in turn: once for want of memory, once by a context that is lost. The sum is right, or some call
 * says that it is not; nothing is left behind, and the daemon serves the next one.
 *
 * The trainer is this program with a socket for its argument.
 */
#include <zerod.h>

#include "driver/driver.h"
#include "tests/it/program.h"
#include "tests/support/daemon_fixture.h"
#include "tests/unit/driver/cases.h"

#define NUMEL         5000u
#define LINES         96
#define OUT_OF_MEMORY 2
#define LOST          719

enum outcome { RIGHT = 0, WRONG = 1, REFUSED = 3 };

/* ---- The trainer --------------------------------------------------------------------------------------- */

struct trainer {
	const struct zd_cuda *driver;
	struct CUctx_st *context; /* NULL: not retained */
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;
	zerod_bucket *bucket;
};

static int join(struct trainer *trainer, const char *socket_path)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group = ZEROD_INIT(group);
	struct zerod_unit_options unit = ZEROD_INIT(unit);

	options.socket_path = socket_path;
	group.job = "job", group.world_size = 1;
	unit.name = "w", unit.dtype = ZEROD_FLOAT32, unit.numel = NUMEL;
	return zd_cuda_load(&trainer->driver, NULL) ||
	       trainer->driver->devicePrimaryCtxRetain(&trainer->context, 0) ||
	       trainer->driver->ctxSetCurrent(trainer->context) ||
	       zerod_connect(&options, &trainer->client) ||
	       zerod_group_join(trainer->client, &group, &trainer->group) ||
	       zerod_unit_register(trainer->group, &unit, &trainer->unit);
}

static int reduce(struct trainer *trainer)
{
	struct zerod_backward_options backward = ZEROD_INIT(backward);
	struct zerod_bucket_options bucket = ZEROD_INIT(bucket);
	struct zerod_entry entry = ZEROD_INIT(entry);
	float values[NUMEL];

	backward.boundary = true;
	bucket.dtype = ZEROD_FLOAT32, bucket.slot_bytes = sizeof(values);
	for (unsigned i = 0; i < NUMEL; i++)
		values[i] = (float)i;
	return zerod_backward_begin(trainer->group, &backward) ||
	       zerod_bucket_create(trainer->group, &bucket, &trainer->bucket) ||
	       zerod_bucket_reserve(trainer->bucket, trainer->unit, NULL, &entry) ||
	       trainer->driver->memcpyHtoDAsync((zd_cu_ptr)entry.data, values, sizeof(values), NULL) ||
	       trainer->driver->streamSynchronize(NULL) ||
	       zerod_bucket_submit(trainer->bucket, entry.id, NULL, 0, NULL, NULL) ||
	       zerod_backward_end(trainer->group, NULL, NULL);
}

static enum outcome look(struct trainer *trainer)
{
	struct zerod_step_info info = ZEROD_INIT(info);
	struct zerod_target target = ZEROD_INIT(target);
	float values[NUMEL];
	double squares = 0;

	if (zerod_step_begin(trainer->group, NULL, &info, NULL) || zerod_target_get(trainer->unit, &target) ||
	    trainer->driver->memcpyDtoHAsync(values, (zd_cu_ptr)target.data, sizeof(values), NULL) ||
	    trainer->driver->streamSynchronize(NULL) || zerod_step_end(trainer->group, NULL, 0, NULL))
		return REFUSED;
	for (unsigned i = 0; i < NUMEL; i++) {
		if (values[i] != (float)i)
			return WRONG;
		squares += (double)i * i;
	}
	return info.norm_squared == squares && !info.overflow ? RIGHT : WRONG;
}

static int trainer_main(const char *socket_path)
{
	struct trainer trainer = {.context = NULL};
	enum outcome outcome = REFUSED;

	if (join(&trainer, socket_path) == 0 && reduce(&trainer) == 0)
		outcome = look(&trainer);
	zerod_close(trainer.client);
	if (trainer.context)
		(void)trainer.driver->devicePrimaryCtxRelease(0);
	return outcome;
}

/* How it ended. */
static int run_trainer(const struct zd_daemon *daemon, const char *name, const char *value)
{
	char *const args[] = {(char *)"trainer", (char *)daemon->socket_path, NULL};
	char program[PATH_MAX];
	int status = -1;
	pid_t pid;

	case_program(program);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)setenv(name, value, 1);
		(void)setenv("ZD_DOUBLE_LEAKS", "1", 1);
		alarm(CASE_SECONDS);
		(void)execv(program, args);
		_exit(126);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* ---- The faults ---------------------------------------------------------------------------------------- */

static bool is_allowed(int status)
{
	return WIFEXITED(status) && (WEXITSTATUS(status) == RIGHT || WEXITSTATUS(status) == REFUSED);
}

/* Returns how many of them ended with the right sum all the same. */
static unsigned run_faults(const struct zd_daemon *daemon, const char *function, unsigned long calls,
                           int result)
{
	unsigned nright = 0;
	char fault[128];

	for (unsigned long nth = 1; nth <= calls; nth++) {
		int status;

		(void)snprintf(fault, sizeof(fault), "%s:%lu:%d", function, nth, result);
		status = run_trainer(daemon, "ZD_DOUBLE_FAIL", fault);
		if (!is_allowed(status))
			fail_msg("with %s the trainer's wait status is 0x%x", fault, (unsigned)status);
		nright += WEXITSTATUS(status) == RIGHT;
	}
	return nright;
}

struct count {
	char function[64];
	unsigned long calls;
};

static unsigned read_counts(const char *path, struct count counts[LINES])
{
	FILE *file = fopen(path, "re");
	char program[64];
	unsigned n = 0;

	assert_non_null(file);
	while (n < LINES && fscanf(file, "%63s %63s %lu", program, counts[n].function, &counts[n].calls) == 3)
		n += strcmp(counts[n].function, "all") != 0;
	assert_int_equal(fclose(file), 0);
	return n;
}

CASE_TEST(test_every_call_fails_once)
{
	static const char *const args[] = {"--backend", "cuda", NULL};
	const struct zd_daemon_options options = {.args = args, .config = "[devices]\nsegment = 2M\n"};
	struct count counts[LINES];
	struct zd_daemon daemon;
	unsigned n, nright = 0;
	char path[] = "/tmp/zd-counts-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	(void)close(fd);
	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	assert_int_equal(run_trainer(&daemon, "ZD_DOUBLE_COUNT", path), 0);
	n = read_counts(path, counts);
	(void)unlink(path);
	assert_true(n > 20);
	for (unsigned i = 0; i < n; i++) {
		nright += run_faults(&daemon, counts[i].function, counts[i].calls, OUT_OF_MEMORY);
		nright += run_faults(&daemon, counts[i].function, counts[i].calls, LOST);
	}
	assert_true(nright > 0); /* the daemon sums, or what has failed only gives back */
	assert_int_equal(run_trainer(&daemon, "ZD_DOUBLE_LEAKS", "1"), 0);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[0], "trainer") == 0)
		return trainer_main(argv[1]);
	return case_run_all(argc, argv);
}
