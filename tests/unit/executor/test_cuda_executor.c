/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_executor.c - one GPU's executor, whose links the tests take from it, over the driver's double. */
#include <pthread.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"
#include "executor/cuda/cuda_executor.h"
#include "executor/cuda/cuda_segment.h"
#include "tests/unit/executor/cuda_double.h"

#define DEADLINE_S 30
#define GPUS       3u
#define MIB        (1ull << 20)
#define LARGE      (ZD_CUDA_LINK_SLOT_LEAST_BYTES + MIB)
#define MOST       ZD_CUDA_GROUP
#define LATER      (UINT64_MAX / 2) /* a link is taken for as long as the test wants */

struct fixture {
	struct zd_cuda_devices devices;
	struct zd_cuda_segments segments; /* of GPU i the one with id i + 1 */
	struct zd_cuda_executor executor; /* GPU 0's */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t ended[MOST]; /* commands in the order of their ends */
	unsigned nended, nfailed;
};

static void done(void *arg, const struct zd_completion *completion)
{
	struct fixture *f = arg;
	struct zd_completion owned = *completion;
	pthread_mutex_lock(&f->lock);
	f->nfailed += completion->status != 0;
	f->ended[f->nended++] = completion->op;
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
	zd_completion_deinit(&owned);
}

/* The commands that have ended are these. */
static void wait_ended(struct fixture *f, unsigned count, const uint64_t *ops)
{
	struct timespec until;
	unsigned nended, nfailed;
	int rc = 0;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += DEADLINE_S;
	pthread_mutex_lock(&f->lock);
	while (f->nended < count && rc == 0)
		rc = pthread_cond_timedwait(&f->changed, &f->lock, &until);
	nended = f->nended;
	nfailed = f->nfailed;
	pthread_mutex_unlock(&f->lock);
	assert_int_equal(nended, count);
	assert_int_equal(nfailed, 0);
	assert_memory_equal(f->ended, ops, count * sizeof(*ops));
}

static void add_segment(struct fixture *f, uint32_t index)
{
	struct zd_cuda_device *device = &f->devices.all[index];
	struct zd_cuda_segment *segment = NULL;
	struct zd_err err = ZD_ERR_NONE;
	bool pushed = zd_cuda_device_push(device);
	assert_int_equal(zd_cuda_segment_new(&f->devices, index, index + 1, LARGE, NULL, &segment, &err), 0);
	zd_cuda_segments_add(&f->segments, segment);
	zd_cuda_leave(device->cuda, pushed);
}

static int open_fixture(void **state)
{
	struct fixture *f = zd_calloc(1, sizeof(*f));
	struct zd_backend_config config = {.done = done, .done_arg = f};
	struct zd_err err = ZD_ERR_NONE;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
	zd_cuda_segments_init(&f->segments);
	assert_int_equal(zd_cuda_devices_init(&f->devices, "0,1,2", &err), 0);
	for (uint32_t i = 0; i < GPUS; i++)
		add_segment(f, i);
	bool pushed = zd_cuda_device_push(&f->devices.all[0]);
	assert_int_equal(zd_cuda_executor_init(&f->executor, &f->devices, 0, &config, &err), 0);
	zd_cuda_leave(f->devices.cuda, pushed);
	*state = f;
	return 0;
}

static int close_fixture(void **state)
{
	struct fixture *f = *state;
	zd_cuda_executor_deinit(&f->executor);
	zd_cuda_segments_deinit(&f->segments);
	zd_cuda_devices_deinit(&f->devices);
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->lock);
	free(f);
	return 0;
}

#define EXECUTOR_TEST(name) FIXTURE_TEST(name, struct fixture *f, open_fixture, close_fixture)

static struct zd_cuda_task *push_task(struct fixture *f, uint64_t op, uint32_t target, uint64_t bytes)
{
	struct zd_command push = {.kind = ZD_CMD_COPY, .op = op};
	push.u.copy.src = (struct zd_location){1, 0, bytes};
	push.u.copy.dst = (struct zd_location){target + 1, 0, bytes};
	push.u.copy.dst_device = target;
	return zd_cuda_task_new(&push, &f->segments, NULL, NULL);
}

static void submit_push(struct fixture *f, uint64_t op, uint32_t target, uint64_t bytes)
{
	zd_cuda_executor_submit(&f->executor, push_task(f, op, target, bytes));
}

/* Without slots on the links, the executor would issue the first push first, and on one stream it would
 * complete first. */
EXECUTOR_TEST(test_large_pushes_wait_for_their_links)
{
	static const uint64_t order[] = {2, 1};
	struct zd_cuda_device *all = f->devices.all;
	atomic_store(&all[1].in_ns, LATER);
	submit_push(f, 1, 1, LARGE);
	submit_push(f, 2, 2, LARGE);
	wait_ended(f, 1, order);
	atomic_store(&all[1].in_ns, 0);
	wait_ended(f, 2, order);
}

/* Others can see it. */
EXECUTOR_TEST(test_large_pushes_take_their_links)
{
	static const uint64_t order[] = {1};
	struct zd_cuda_device *all = f->devices.all;
	submit_push(f, 1, 2, LARGE);
	wait_ended(f, 1, order);
	assert_true(atomic_load(&all[2].in_ns) > 0);
	assert_int_equal(atomic_load(&all[2].in_ns), atomic_load(&all[0].out_ns));
	assert_int_equal(atomic_load(&all[1].in_ns), 0);
	assert_int_equal(atomic_load(&f->devices.distance), 2);
}

EXECUTOR_TEST(test_small_pushes_wait_for_no_link)
{
	static const uint64_t order[] = {1, 2};
	for (uint32_t i = 0; i < GPUS; i++)
		atomic_store(&f->devices.all[i].in_ns, LATER);
	atomic_store(&f->devices.all[0].out_ns, LATER);
	submit_push(f, 1, 1, MIB);
	wait_ended(f, 1, order);
	submit_push(f, 2, 1, ZD_CUDA_LINK_SLOT_LEAST_BYTES);
	wait_ended(f, 2, order);
	assert_int_equal(atomic_load(&f->devices.all[1].in_ns), LATER);
}

EXECUTOR_TEST(test_collected_tasks_wait_for_the_flush)
{
	static const uint64_t order[] = {2, 1, 3};
	zd_cuda_executor_collect(&f->executor, push_task(f, 1, 1, MIB));
	zd_cuda_executor_collect(&f->executor, push_task(f, 3, 1, MIB));
	submit_push(f, 2, 1, MIB);
	wait_ended(f, 1, order);
	zd_cuda_executor_flush(&f->executor);
	wait_ended(f, 3, order);
}

EXECUTOR_TEST(test_a_full_group_waits_for_no_flush)
{
	uint64_t order[ZD_CUDA_GROUP];
	for (uint32_t i = 0; i < ZD_CUDA_GROUP; i++) {
		order[i] = i + 1;
		zd_cuda_executor_collect(&f->executor, push_task(f, order[i], 1, MIB));
	}
	wait_ended(f, ZD_CUDA_GROUP, order);
}

/* The text of a failure belongs to nobody then: the leak sanitizer tells whether it went. */
EXECUTOR_TEST(test_what_nobody_hears_of_fails_at_the_end)
{
	atomic_store(&f->devices.all[1].in_ns, LATER);
	submit_push(f, 0, 1, LARGE);
	zd_cuda_executor_deinit(&f->executor);
	assert_int_equal(f->nended, 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	use_double(argv);
	return test_run(NULL, NULL);
}
