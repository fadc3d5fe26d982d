/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_offloaded_sum.c - sums that the trainer's own GPU makes: whose they are, beside captures, in
 * strict clients, under forks, and where a GPU cannot.
 */
#include "cuda_scene.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>

#include "client/lib/base/client.h"
#include "client/lib/device/offloaded_sum.h"
#include "tests/contract/contract_reduce.h"

#define NUMEL 700000u

/* Makes calls fail in the daemon only: the environment of its process has this. */
#define IN_DAEMON "ZD_DOUBLE_FAIL_IN=zerod"

/* Gradients, targets and staging each have segments of their own. */
static struct contract *open_ranks(uint32_t world_size, int strict, struct contract_unit *unit)
{
	const struct contract_options options = {
	        .world_size = world_size, .strict = strict, .config = "[devices]\nsegment = 2M\n"};
	struct contract *c = contract_open(&options);

	contract_plain_unit(c, "w", NUMEL, unit);
	return c;
}

/* The whole gradient of every rank, twice into the same target. */
static void reduce_twice(struct contract *c, const struct contract_unit *unit)
{
	zerod_bucket *buckets[CONTRACT_RANKS];

	for (uint32_t i = 0; i < c->world_size; i++)
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
	for (unsigned pass = 0; pass < 2; pass++) {
		contract_backward_all(c, 3, pass == 1);
		for (uint32_t i = 0; i < c->world_size; i++)
			contract_reduce(&c->ranks[i], buckets[i], unit, 1, NULL);
		contract_backward_end_all(c);
	}
	contract_expect_step(c, &(struct contract_sum){unit, CONTRACT_ALL(c), 2}, 1);
}

static void reduce_and_close(uint32_t world_size, int strict)
{
	struct contract_unit unit;
	struct contract *c = open_ranks(world_size, strict, &unit);

	reduce_twice(c, &unit);
	contract_close(c);
}

/* ---- Whose they are ------------------------------------------------------------------------------------ */

/* The daemon could not fetch a thing. */
CASE_TEST(test_daemon_sums_nothing, IN_DAEMON, "ZD_DOUBLE_FAIL=cuMemcpyDtoHAsync:1:2")
{
	reduce_and_close(4, 0);
}

CASE_TEST(test_strict_client_sums, IN_DAEMON, "ZD_DOUBLE_FAIL=cuMemcpyDtoHAsync:1:2")
{
	reduce_and_close(2, 1);
}

/* Each rank's kernels may be there as machine code or as PTX, and neither loads. The bits are the same. */
CASE_TEST(test_daemon_sums_without_kernels, "ZD_DOUBLE_FAIL_IN=case",
          "ZD_DOUBLE_FAIL=cuModuleLoadData:1:2,cuModuleLoadData:2:2,cuModuleLoadData:3:2,"
          "cuModuleLoadData:4:2")
{
	reduce_and_close(2, 0);
}

CASE_TEST(test_daemon_sums_what_was_not_launched, "ZD_DOUBLE_FAIL_IN=case",
          "ZD_DOUBLE_FAIL=cuLaunchKernel:1:2,cuLaunchKernel:2:2")
{
	reduce_and_close(2, 0);
}

/* Which fails, too, to show that it was. */
CASE_TEST(test_daemon_is_asked_instead, "ZD_DOUBLE_FAIL=cuLaunchKernel:1:2,cuMemcpyDtoHAsync:1:2")
{
	struct contract_unit unit;
	struct contract *c = open_ranks(1, 0, &unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_bucket *bucket = contract_bucket(rank, 65536, 1);

	contract_backward(rank, 3, true);
	contract_reduce(rank, bucket, &unit, 1, NULL);
	FAILS(rank->client, zerod_backward_end(rank->group, NULL, NULL), ZEROD_E_DEVICE,
	      "fetching a reduction's inputs");
	contract_close(c);
}

/* The sum is there, and nothing says so: the target's rank cannot go on with it. */
CASE_TEST(test_sum_without_a_fence, "ZD_DOUBLE_FAIL_IN=case", "ZD_DOUBLE_FAIL=cuStreamWriteValue64:1:2")
{
	struct contract_unit unit;
	struct contract *c = open_ranks(1, 0, &unit);
	struct contract_rank *rank = &c->ranks[0];
	zerod_bucket *bucket = contract_bucket(rank, 65536, 1);

	contract_backward(rank, 3, true);
	contract_reduce(rank, bucket, &unit, 1, NULL);
	FAILS(rank->client, zerod_backward_end(rank->group, NULL, NULL), ZEROD_E_DEVICE, "writing a fence");
	contract_close(c);
}

/* ---- Beside others ------------------------------------------------------------------------------------- */

/* All that a sum needs is asked for while a stream is captured: kernels, mappings, launches. */
CASE_TEST(test_capture_is_not_disturbed, IN_DAEMON, "ZD_DOUBLE_FAIL=cuMemcpyDtoHAsync:1:2")
{
	struct contract_unit unit;
	struct contract *c = open_ranks(2, 0, &unit);
	const struct zd_cuda *driver = scene_driver();
	struct CUstream_st *captured = scene_stream(0);
	struct CUgraph_st *graph = NULL;
	struct zerod_entry entries[2];
	zerod_bucket *buckets[2];

	contract_backward_all(c, 3, true);
	for (unsigned i = 0; i < 2; i++) {
		struct contract_rank *rank = &c->ranks[i];

		buckets[i] = contract_bucket(rank, 65536, 1);
		OK(rank->client, zerod_bucket_reserve(buckets[i], unit.at[i], NULL, SIZED(&entries[i])));
		contract_write_gradient(rank, NULL, &entries[i], 0, unit.numel, 1);
	}
	scene_make_current(0);
	assert_int_equal(driver->streamBeginCapture(captured, ZD_CU_CAPTURE_GLOBAL), 0);
	for (unsigned i = 0; i < 2; i++)
		OK(c->ranks[i].client, zerod_bucket_submit(buckets[i], entries[i].id, NULL, 0, NULL, NULL));
	contract_backward_end_all(c);
	assert_int_equal(driver->streamEndCapture(captured, &graph), 0);
	assert_int_equal(driver->graphDestroy(graph), 0);
	contract_expect_step(c, &(struct contract_sum){&unit, CONTRACT_ALL(c), 1}, 1);
	contract_close(c);
}

/* The clients of this process wake their threads by these, and nobody else here has any. */
static unsigned count_eventfds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	const struct dirent *entry;
	unsigned count = 0;

	while (folder && (entry = readdir(folder))) {
		char kind[64] = "";

		if (readlinkat(dirfd(folder), entry->d_name, kind, sizeof(kind) - 1) > 0)
			count += strstr(kind, "[eventfd]") != NULL;
	}
	if (folder)
		(void)closedir(folder);
	return count;
}

/* The child has the channel too, and none of the threads. Its parent's sums go on, and its end is an end. It
 * keeps none of the clients' descriptors. */
CASE_TEST(test_forked_child)
{
	char dir[] = CASE_DIR; /* where processes on GPUs are listed */
	struct contract_unit unit;
	struct contract *c;
	int status = 0, ends[2];
	char byte;
	pid_t pid;

	assert_non_null(mkdtemp(dir));
	assert_int_equal(setenv("ZD_DOUBLE_DIR", dir, 1), 0);
	c = open_ranks(2, 0, &unit);
	assert_int_equal(pipe(ends), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		for (uint32_t i = 0; i < 2; i++)
			zerod_close(c->ranks[i].client);
		zerod_close(c->observers[0]);
		(void)close(ends[1]);
		(void)!read(ends[0], &byte, 1); /* until the parent has ended its sessions */
		_exit(count_eventfds() != 0);
	}
	reduce_twice(c, &unit);
	contract_close(c);
	assert_int_equal(close(ends[1]), 0);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	assert_int_equal(status, 0);
	case_remove_dir(dir);
}

/* ---- How they come ------------------------------------------------------------------------------------- */

struct waker {
	const zerod_client *client;
	atomic_bool stop;
};

/* Works are on their way, as far as the client's thread is told. */
static void *keep_awake(void *arg)
{
	struct waker *waker = arg;

	while (!atomic_load(&waker->stop)) {
		zc_worker_expect(waker->client);
		(void)sched_yield();
	}
	return NULL;
}

/* Sums of each rank, until one has come by the first one's ring: its thread may sleep all the same. */
static void reduce_by_ring(struct contract *c, const struct contract_unit *unit, zerod_bucket *const *buckets)
{
	struct waker waker = {.client = c->ranks[0].client};
	struct zd_ring *ring = &waker.client->rings->works;
	uint64_t place = atomic_load(&ring->head);
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, keep_awake, &waker), 0);
	while (atomic_load(&ring->head) == place) {
		contract_backward_all(c, 3, false);
		for (uint32_t i = 0; i < c->world_size; i++)
			contract_reduce(&c->ranks[i], buckets[i], unit, 1, NULL);
		contract_backward_end_all(c);
	}
	atomic_store(&waker.stop, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

CASE_TEST(test_works_by_the_ring, "ZEROD_SPIN=always")
{
	zerod_bucket *buckets[CONTRACT_RANKS];
	struct contract_unit unit;
	struct contract *c = open_ranks(2, 0, &unit);

	for (uint32_t i = 0; i < c->world_size; i++)
		buckets[i] = contract_bucket(&c->ranks[i], 65536, 2);
	reduce_by_ring(c, &unit, buckets);
	while (atomic_load(&c->ranks[0].client->rings->works.polling)) /* until the thread sleeps */
		(void)sched_yield();
	reduce_by_ring(c, &unit, buckets);
	contract_close(c);
}

int main(int argc, char **argv)
{
	return scene_main(argc, argv);
}
