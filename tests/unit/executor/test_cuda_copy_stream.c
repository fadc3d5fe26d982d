/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_copy_stream.c - a stream, and what is in flight on it, over the driver's double. */
#include "base/err.h"
#include "base/mem.h"
#include "executor/cuda/cuda_copy_stream.h"
#include "executor/cuda/cuda_segment.h"
#include "tests/unit/executor/cuda_double.h"

#define MIB (1ull << 20)

struct fixture {
	struct zd_cuda_devices devices;
	struct zd_cuda_segment *from, *to; /* a MiB each, of GPUs 0 and 1 */
	struct zd_cuda_copy_stream stream; /* GPU 0's */
	struct zd_cuda_task tasks[2];
	bool pushed;
};

static struct zd_cuda_segment *new_segment(struct fixture *f, uint32_t device)
{
	struct zd_cuda_segment *segment = NULL;
	struct zd_err err = ZD_ERR_NONE;
	bool pushed = zd_cuda_device_push(&f->devices.all[device]);
	assert_int_equal(zd_cuda_segment_new(&f->devices, device, device + 1, MIB, NULL, &segment, &err), 0);
	zd_cuda_leave(f->devices.cuda, pushed);
	return segment;
}

static int open_fixture(void **state)
{
	struct fixture *f = zd_calloc(1, sizeof(*f));
	struct zd_err err = ZD_ERR_NONE;
	assert_int_equal(zd_cuda_devices_init(&f->devices, "0,1", &err), 0);
	f->from = new_segment(f, 0);
	f->to = new_segment(f, 1);
	f->pushed = zd_cuda_device_push(&f->devices.all[0]);
	assert_int_equal(zd_cuda_copy_stream_init(&f->stream, &f->devices, 0, ZD_CUDA_OPEN_BYTES, &err), 0);
	*state = f;
	return 0;
}

static int close_fixture(void **state)
{
	struct fixture *f = *state;
	zd_cuda_copy_stream_deinit(&f->stream);
	zd_cuda_leave(f->devices.cuda, f->pushed);
	zd_cuda_segment_free(f->from);
	zd_cuda_segment_free(f->to);
	zd_cuda_devices_deinit(&f->devices);
	free(f);
	return 0;
}

#define EXECUTOR_TEST(name) FIXTURE_TEST(name, struct fixture *f, open_fixture, close_fixture)

static void issue(struct fixture *f, uint64_t bytes, bool open, struct zd_cuda_task *ends)
{
	struct zd_cuda_piece piece = {.dst = f->to->range,
	                              .src = f->from->range,
	                              .bytes = bytes,
	                              .target = 1,
	                              .open = open,
	                              .ends = ends};
	struct zd_err err = ZD_ERR_NONE;
	assert_true(zd_cuda_copy_stream_has_room(&f->stream));
	assert_int_equal(zd_cuda_copy_stream_issue(&f->stream, &piece, &err), 0);
}

/* All that the stream was given is done: the next one that has completed, and what ends with it. */
static void expect_landed(struct fixture *f, const struct zd_cuda_task *ends)
{
	struct zd_cuda_task none, *ended = &none;
	zd_cuda_copy_stream_wait(&f->stream);
	assert_true(zd_cuda_copy_stream_reap(&f->stream, &ended));
	assert_ptr_equal(ended, ends);
}

static void expect_nothing_landed(struct fixture *f)
{
	struct zd_cuda_task *ended;
	zd_cuda_copy_stream_wait(&f->stream);
	assert_false(zd_cuda_copy_stream_reap(&f->stream, &ended));
}

/* A store idles the link. Nobody looks for an open piece: it is seen with the one that ends the task. */
EXECUTOR_TEST(test_open_pieces_have_no_stores)
{
	for (int i = 0; i < 3; i++) {
		issue(f, MIB, true, NULL);
		zd_cuda_copy_stream_close(&f->stream);
		assert_int_equal(f->stream.issued, 0);
	}
	expect_nothing_landed(f);
	issue(f, MIB, false, &f->tasks[0]);
	zd_cuda_copy_stream_close(&f->stream);
	assert_int_equal(f->stream.issued, 1);
	for (int i = 0; i < 3; i++)
		expect_landed(f, NULL);
	expect_landed(f, &f->tasks[0]);
	expect_nothing_landed(f);
	assert_int_equal(f->stream.inflight_bytes, 0);
}

/* Else there would be no room for more, and nobody would see any. */
EXECUTOR_TEST(test_open_pieces_of_many_bytes_have_one)
{
	issue(f, MIB, true, NULL);
	f->stream.group_bytes = ZD_CUDA_OPEN_BYTES - 1;
	zd_cuda_copy_stream_close(&f->stream);
	assert_int_equal(f->stream.issued, 0);
	f->stream.group_bytes++;
	zd_cuda_copy_stream_close(&f->stream);
	assert_int_equal(f->stream.issued, 1);
	expect_landed(f, NULL);
}

EXECUTOR_TEST(test_what_follows_an_open_piece_lands_behind_it)
{
	issue(f, MIB, true, NULL);
	zd_cuda_copy_stream_close(&f->stream);
	zd_cuda_copy_stream_follow(&f->stream, &f->tasks[1]);
	expect_nothing_landed(f);
	zd_cuda_copy_stream_close(&f->stream);
	expect_landed(f, NULL);
	expect_landed(f, &f->tasks[1]);
	/* With nothing in flight it need not wait. */
	zd_cuda_copy_stream_follow(&f->stream, &f->tasks[0]);
	expect_landed(f, &f->tasks[0]);
}

EXECUTOR_TEST(test_small_pieces_share_a_store)
{
	for (unsigned i = 0; i < ZD_CUDA_GROUP; i++) {
		assert_false(zd_cuda_copy_stream_group_is_full(&f->stream));
		issue(f, 4096, false, &f->tasks[i % 2]);
	}
	assert_true(zd_cuda_copy_stream_group_is_full(&f->stream));
	expect_nothing_landed(f);
	zd_cuda_copy_stream_close(&f->stream);
	assert_int_equal(f->stream.issued, 1);
	for (unsigned i = 0; i < ZD_CUDA_GROUP; i++)
		expect_landed(f, &f->tasks[i % 2]);
	expect_nothing_landed(f);
}

int main(int argc, char **argv)
{
	(void)argc;
	use_double(argv);
	return test_run(NULL, NULL);
}
