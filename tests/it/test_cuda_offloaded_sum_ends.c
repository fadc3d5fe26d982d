/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_offloaded_sum_ends.c - trainers that are stopped or killed while their GPU is to make a sum; over
 * the doubles of the driver and of NVML.
 *
 * Rank 0 is this process, rank 1 this program with a socket for its argument, told what to do by the letters
 * that it reads.
 */
#include <zerod.h>

#include "driver/driver.h"
#include "tests/it/zeroctl_scene.h"
#include "tests/support/daemon_fixture.h"
#include "tests/unit/driver/cases.h"

#define NUMEL  600000u /* entries, targets and staging each have segments of their own */
#define FORKS  "forking "
#define PARKS  "parking "
#define QUEUES "queueing " /* as parking, and there are as many hardware queues as there mostly are */
#define FINISH 'f'
#define CLOSE  'c'
#define SUMMED "summed by rank 1's process" /* it is to be, or is being */

/* ---- Both ranks ---------------------------------------------------------------------------------------- */

struct rank {
	uint32_t number;
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;
	zerod_bucket *bucket;
};

static const struct zd_cuda *driver(void)
{
	const struct zd_cuda *loaded = NULL;

	return zd_cuda_load(&loaded, NULL) ? NULL : loaded;
}

static int make_current(uint32_t device)
{
	struct CUctx_st *context;

	return driver()->devicePrimaryCtxRetain(&context, (int)device) || driver()->ctxSetCurrent(context);
}

/* Joined, in a backward; 0, or what failed. */
static int open_rank(struct rank *rank, const char *socket_path, const char *job, uint32_t world_size)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options join = ZEROD_INIT(join);
	struct zerod_unit_options unit = ZEROD_INIT(unit);
	struct zerod_bucket_options bucket = ZEROD_INIT(bucket);
	struct zerod_backward_options backward = ZEROD_INIT(backward);

	options.socket_path = socket_path;
	join.job = job, join.world_size = world_size, join.rank = join.device = rank->number;
	unit.name = "w", unit.dtype = ZEROD_FLOAT32, unit.numel = NUMEL;
	bucket.dtype = ZEROD_FLOAT32, bucket.slot_bytes = 65536, bucket.nslots = 1;
	backward.stage = 3, backward.boundary = true, backward.target_dtype = ZEROD_FLOAT32;
	return make_current(rank->number) || zerod_connect(&options, &rank->client) ||
	       zerod_group_join(rank->client, &join, &rank->group) ||
	       zerod_unit_register(rank->group, &unit, &rank->unit) ||
	       zerod_backward_begin(rank->group, &backward) ||
	       zerod_bucket_create(rank->group, &bucket, &rank->bucket);
}

/* A gradient of `value` everywhere. */
static int commit(struct rank *rank, float value)
{
	static float values[NUMEL];
	struct zerod_entry entry = ZEROD_INIT(entry);

	for (unsigned i = 0; i < NUMEL; i++)
		values[i] = value;
	return zerod_bucket_reserve(rank->bucket, rank->unit, NULL, &entry) ||
	       driver()->memcpyHtoDAsync((zd_cu_ptr)entry.data, values, sizeof(values), NULL) ||
	       driver()->streamSynchronize(NULL) ||
	       zerod_bucket_submit(rank->bucket, entry.id, NULL, 0, NULL, NULL);
}

/* The step; the rank's slice of the sum is `value` everywhere. */
static int look(struct rank *rank, float value)
{
	static float values[NUMEL];
	struct zerod_step_info info = ZEROD_INIT(info);
	struct zerod_target target = ZEROD_INIT(target);

	if (zerod_step_begin(rank->group, NULL, &info, NULL) || zerod_target_get(rank->unit, &target) ||
	    driver()->memcpyDtoHAsync(values, (zd_cu_ptr)target.data, target.true_numel * sizeof(float),
	                              NULL) ||
	    driver()->streamSynchronize(NULL) || zerod_step_end(rank->group, NULL, 0, NULL))
		return 1;
	for (uint64_t i = 0; i < target.true_numel; i++)
		if (values[i] != value)
			return 1;
	return 0;
}

static int finish(struct rank *rank, float value)
{
	return zerod_backward_end(rank->group, NULL, NULL) || look(rank, value);
}

/* ---- Rank 1 -------------------------------------------------------------------------------------------- */

/* All that follows in the stream's hardware queue waits until the word is 1. */
static int park(uint64_t **word)
{
	struct CUstream_st *stream;
	void *made;
	zd_cu_ptr at;

	if (driver()->streamCreateWithPriority(&stream, ZD_CU_STREAM_NON_BLOCKING, 0) ||
	    driver()->memHostAlloc(&made, sizeof(**word), ZD_CU_HOST_ALLOC_DEVICEMAP) ||
	    driver()->memHostGetDevicePointer(&at, made, 0) ||
	    driver()->streamWaitValue64(stream, at, 1, ZD_CU_WAIT_GEQ))
		return 1;
	*word = made;
	return 0;
}

static bool begins(const char *name, const char *with)
{
	return strncmp(name, with, strlen(with)) == 0;
}

static int trainer_main(const char *name, const char *socket_path)
{
	struct rank rank = {.number = 1};
	uint64_t *word = NULL;
	pid_t child = 0;
	char letter;

	(void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", begins(name, QUEUES) ? "8" : "1", 1);
	if (open_rank(&rank, socket_path, "job", 2) || commit(&rank, 2))
		return 1;
	if ((begins(name, PARKS) || begins(name, QUEUES)) && park(&word))
		return 1;
	if (begins(name, FORKS))
		child = fork();
	if (child == 0 && begins(name, FORKS))
		for (;;)
			(void)pause();
	if (write(STDOUT_FILENO, &child, sizeof(child)) != sizeof(child) ||
	    read(STDIN_FILENO, &letter, 1) != 1)
		return 1;
	if (letter == FINISH && finish(&rank, 5))
		return 1;
	if (word && letter == FINISH)
		__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	zerod_close(rank.client);
	if (letter == FINISH)
		return 0;
	(void)!write(STDOUT_FILENO, &letter, 1);
	for (;;)
		(void)pause();
}

static struct case_process start_trainer(const struct zd_daemon *daemon, const char *name)
{
	char *const args[] = {(char *)name, (char *)daemon->socket_path, NULL};

	return case_spawn(args);
}

static void say(const struct case_process *trainer, char letter)
{
	assert_int_equal(write(trainer->to, &letter, 1), 1);
}

static void stop_trainer(const struct case_process *trainer)
{
	int status = 0;

	assert_int_equal(kill(trainer->pid, SIGSTOP), 0);
	assert_int_equal(waitpid(trainer->pid, &status, WUNTRACED), trainer->pid);
	assert_true(WIFSTOPPED(status));
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

struct scene {
	struct zd_daemon daemon;
	struct case_process trainer;
	struct rank rank; /* 0 */
};

/* Both ranks have committed; the trainer makes no call. */
static void open_scene(struct scene *scene, const char *name, bool stopped)
{
	static const char *const args[] = {"--backend", "cuda", NULL};
	const struct zd_daemon_options options = {.args = args, .config = "[devices]\nsegment = 2M\n"};

	*scene = (struct scene){.rank = {.number = 0}};
	assert_int_equal(zd_daemon_start(&options, &scene->daemon), 0);
	scene->trainer = start_trainer(&scene->daemon, name);
	assert_int_equal(open_rank(&scene->rank, scene->daemon.socket_path, "job", 2), 0);
	case_await(&scene->trainer);
	if (stopped)
		stop_trainer(&scene->trainer);
	assert_int_equal(commit(&scene->rank, 3), 0);
}

/* The trainer's slice is to be summed, and it does not. */
static void open_held_up(struct scene *scene, const char *name, bool stopped)
{
	open_scene(scene, name, stopped);
	zeroctl_wait_table(scene->daemon.socket_path, "buckets", SUMMED, true);
}

static void close_scene(struct scene *scene)
{
	zerod_close(scene->rank.client);
	zeroctl_wait_table(scene->daemon.socket_path, "jobs", "\"job\"", false);
	assert_int_equal(zd_daemon_stop(&scene->daemon), 0);
}

static char env[64];

/* Its memory is announced to it, mapped and summed all the same. */
CASE_TEST(test_trainer_that_makes_no_call, env)
{
	struct scene scene;

	open_scene(&scene, "trainer", false);
	assert_int_equal(zerod_backward_end(scene.rank.group, NULL, NULL), 0);
	say(&scene.trainer, FINISH);
	assert_int_equal(look(&scene.rank, 5), 0);
	assert_int_equal(case_end(&scene.trainer), 0);
	close_scene(&scene);
}

/* A trainer's long kernels fill one of its hardware queues, and the sum runs in another. */
CASE_TEST(test_sum_beside_a_full_queue, env)
{
	struct scene scene;

	open_scene(&scene, QUEUES "trainer", false);
	assert_int_equal(zerod_backward_end(scene.rank.group, NULL, NULL), 0);
	say(&scene.trainer, FINISH);
	assert_int_equal(look(&scene.rank, 5), 0);
	assert_int_equal(case_end(&scene.trainer), 0);
	close_scene(&scene);
}

/* Others' sums go on, and its own when it does. */
CASE_TEST(test_stopped_trainer, env)
{
	struct rank other = {.number = 0};
	struct scene scene;

	open_held_up(&scene, "trainer", true);
	assert_int_equal(open_rank(&other, scene.daemon.socket_path, "another", 1), 0);
	assert_int_equal(commit(&other, 7), 0);
	assert_int_equal(finish(&other, 7), 0);
	zerod_close(other.client);
	zeroctl_wait_table(scene.daemon.socket_path, "buckets", SUMMED, true);
	assert_int_equal(kill(scene.trainer.pid, SIGCONT), 0);
	say(&scene.trainer, FINISH);
	assert_int_equal(finish(&scene.rank, 5), 0);
	assert_int_equal(case_end(&scene.trainer), 0);
	close_scene(&scene);
}

static void expect_lost(struct scene *scene)
{
	assert_int_equal(kill(scene->trainer.pid, SIGKILL), 0);
	assert_true(WIFSIGNALED(case_end(&scene->trainer)));
	assert_int_equal(zerod_backward_end(scene->rank.group, NULL, NULL), ZEROD_E_PEER_LOST);
}

CASE_TEST(test_killed_before_it_began, env)
{
	struct scene scene;

	open_held_up(&scene, "trainer", true);
	expect_lost(&scene);
	close_scene(&scene);
}

CASE_TEST(test_killed_under_its_kernel, env)
{
	struct scene scene;

	open_held_up(&scene, PARKS "trainer", false);
	expect_lost(&scene);
	close_scene(&scene);
}

/* Its library waits for the sum, and does not say goodbye when that does not end. */
CASE_TEST(test_closed_under_its_kernel, env)
{
	struct scene scene;
	char reason[64], letter;

	open_held_up(&scene, PARKS "trainer", false);
	say(&scene.trainer, CLOSE);
	assert_int_equal(read(scene.trainer.from, &letter, 1), 1);
	(void)snprintf(reason, sizeof(reason), "process %d to leave device 1", (int)scene.trainer.pid);
	zeroctl_wait_table(scene.daemon.socket_path, "sessions", reason, true);
	expect_lost(&scene);
	close_scene(&scene);
}

/* Its child keeps it on the GPU: what it was to sum stays until then. */
CASE_TEST(test_killed_and_not_gone, env)
{
	struct scene scene;
	char reason[64];

	open_held_up(&scene, FORKS "trainer", true);
	expect_lost(&scene);
	zerod_close(scene.rank.client);
	scene.rank.client = NULL;
	(void)snprintf(reason, sizeof(reason), "process %d to leave device 1", (int)scene.trainer.pid);
	zeroctl_wait_table(scene.daemon.socket_path, "sessions", reason, true);
	zeroctl_wait_table(scene.daemon.socket_path, "jobs", "\"job\"", true);
	assert_int_equal(kill(scene.trainer.child, SIGKILL), 0);
	close_scene(&scene);
}

int main(int argc, char **argv)
{
	if (argc == 2 && strstr(argv[0], "trainer"))
		return trainer_main(argv[0], argv[1]);
	return case_main_in_dir(argc, argv, env);
}
