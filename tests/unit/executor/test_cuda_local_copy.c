/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_local_copy.c - fills of one GPU, over the driver's double: which are the driver's, and that they
 * keep to their bytes. */
#include "base/err.h"
#include "base/mem.h"
#include "executor/cuda/cuda_segment.h"
#include "executor/cuda/cuda_local_copy.h"
#include "tests/unit/executor/cuda_double.h"

#define SEGMENT_BYTES (16ull << 20)
#define DIRT          0x5a
#define COPIED        0x33 /* what the upper half holds */

struct fixture {
	struct zd_cuda driver; /* the GPUs', whose fills are counted */
	struct zd_cuda_devices devices;
	struct zd_cuda_segment *segment;
	struct zd_cuda_local_copy local; /* GPU 0's */
	unsigned char *seen;
	bool pushed;
};

static const struct zd_cuda *real;
static unsigned nfills; /* the driver's */

static int count_fill(zd_cu_ptr at, unsigned char value, size_t bytes, struct CUstream_st *cuda_stream)
{
	nfills++;
	return real->memsetD8Async(at, value, bytes, cuda_stream);
}

static void open_fixture(struct fixture *f, const char *gpus)
{
	struct zd_err err = ZD_ERR_NONE;
	assert_int_equal(zd_cuda_devices_init(&f->devices, gpus, &err), 0);
	real = f->devices.cuda;
	f->driver = *real;
	f->driver.memsetD8Async = count_fill;
	for (uint32_t i = 0; i < f->devices.count; i++)
		f->devices.all[i].cuda = &f->driver;
	f->pushed = zd_cuda_device_push(&f->devices.all[0]);
	assert_int_equal(zd_cuda_segment_new(&f->devices, 0, 1, SEGMENT_BYTES, NULL, &f->segment, &err), 0);
	assert_int_equal(zd_cuda_local_copy_init(&f->local, &f->devices, 0, &err), 0);
	f->seen = malloc(SEGMENT_BYTES);
}

static void close_fixture(struct fixture *f)
{
	zd_cuda_local_copy_deinit(&f->local);
	zd_cuda_segment_free(f->segment);
	zd_cuda_leave(f->devices.cuda, f->pushed);
	zd_cuda_devices_deinit(&f->devices);
	free(f->seen);
}

static void soil(struct fixture *f)
{
	struct CUstream_st *cuda_stream = f->local.direct.cuda_stream;
	memset(f->seen, DIRT, SEGMENT_BYTES / 2);
	memset(f->seen + SEGMENT_BYTES / 2, COPIED, SEGMENT_BYTES / 2);
	assert_int_equal(real->memcpyHtoDAsync(f->segment->range, f->seen, SEGMENT_BYTES, cuda_stream), 0);
	assert_int_equal(real->streamSynchronize(cuda_stream), 0);
	nfills = 0;
}

static struct zd_cuda_task fill_of(const struct fixture *f, uint64_t offset, uint64_t bytes)
{
	return (struct zd_cuda_task){.base.kind = ZD_CMD_FILL,
	                             .u.copy = {.dst = f->segment->range + offset, .bytes = bytes}};
}

static void issue(struct fixture *f, struct zd_cuda_task *task)
{
	struct zd_err err = ZD_ERR_NONE;
	bool whole = false;
	while (!whole) {
		assert_true(zd_cuda_local_copy_has_room(&f->local, task));
		assert_int_equal(zd_cuda_local_copy_issue(&f->local, task, &whole, &err), 0);
	}
}

/* All that was issued: fails unless it ends with this task, and `bytes` at an offset have its pattern now,
 * and nothing else; else the lower half holds `lower`. */
static void expect_filled(struct fixture *f, const struct zd_cuda_task *last, uint64_t offset, uint64_t bytes,
                          unsigned char lower)
{
	struct zd_cuda_task *ended = NULL;
	struct CUstream_st *cuda_stream = f->local.direct.cuda_stream;
	zd_cuda_local_copy_close(&f->local);
	struct zd_cuda_copy_stream *streams[] = {&f->local.direct, &f->local.across.stream};
	for (size_t i = 0; i < ZD_ARRAY_LEN(streams); i++) {
		while (streams[i]->count > 0) {
			zd_cuda_copy_stream_wait(streams[i]);
			assert_true(zd_cuda_copy_stream_reap(streams[i], &ended));
		}
	}
	assert_ptr_equal(ended, last);
	assert_int_equal(real->memcpyDtoHAsync(f->seen, f->segment->range, SEGMENT_BYTES, cuda_stream), 0);
	assert_int_equal(real->streamSynchronize(cuda_stream), 0);
	for (uint64_t i = 0; i < SEGMENT_BYTES; i++) {
		unsigned char expected = i < SEGMENT_BYTES / 2 ? lower : COPIED;
		if (f->seen[i] !=
		    (i >= offset && i - offset < bytes ? (unsigned char)last->u.copy.pattern : expected))
			fail_msg("byte %llu is %u", (unsigned long long)i, f->seen[i]);
	}
}

static void fill(struct fixture *f, uint64_t offset, uint64_t bytes)
{
	struct zd_cuda_task task = fill_of(f, offset, bytes);
	soil(f);
	issue(f, &task);
	expect_filled(f, &task, offset, bytes, DIRT);
}

/* The driver's are kernels, which wait for the trainer's and stop them: an entry's padding is not worth
 * that. */
TEST(test_small_fills_come_from_another_gpu)
{
	static const uint64_t sizes[] = {1, 2, 255, 256, 4096, ZD_CUDA_ACROSS_ZEROS_BYTES};
	struct fixture f;
	open_fixture(&f, "0,1");
	for (size_t i = 0; i < ZD_ARRAY_LEN(sizes); i++) {
		fill(&f, 2 * i + 1, sizes[i]);
		assert_int_equal(nfills, 0);
	}
	close_fixture(&f);
}

/* Readers' copies and shadows'. Those for which a stream waits stay in order. */
TEST(test_large_copies_without_a_session_stay)
{
	struct zd_cuda_session session = {0};
	struct fixture f;
	open_fixture(&f, "0,1");
	for (int i = 0; i < 4; i++) {
		struct zd_cuda_task task = {.base.kind = ZD_CMD_COPY,
		                            .session = i / 2 ? &session : NULL,
		                            .u.copy.bytes = ZD_CUDA_ACROSS_MOST_BYTES + i % 2};
		assert_int_equal(zd_cuda_across_accepts(&f.local.across, &task), i != 1);
	}
	close_fixture(&f);
}

/* A copy is in progress across: it goes behind it. */
TEST(test_small_fills_keep_their_place)
{
	struct fixture f;
	open_fixture(&f, "0,1");
	struct zd_cuda_task task = fill_of(&f, 7, 4096);
	struct zd_cuda_task copy = {.base.kind = ZD_CMD_COPY,
	                            .u.copy = {.dst = f.segment->range,
	                                       .src = f.segment->range + SEGMENT_BYTES / 2,
	                                       .bytes = SEGMENT_BYTES / 2}};
	soil(&f);
	issue(&f, &copy);
	issue(&f, &task);
	expect_filled(&f, &task, 7, 4096, COPIED);
	assert_int_equal(nfills, 0);
	close_fixture(&f);
}

TEST(test_others_are_the_drivers)
{
	struct fixture f;
	open_fixture(&f, "0,1");
	fill(&f, 3, ZD_CUDA_ACROSS_ZEROS_BYTES + 1);
	assert_int_equal(nfills, 1);
	fill(&f, 0, SEGMENT_BYTES);
	assert_int_equal(nfills, 1);
	close_fixture(&f);
	open_fixture(&f, "0"); /* there is no other GPU */
	fill(&f, 3, 4096);
	assert_int_equal(nfills, 1);
	close_fixture(&f);
}

/* The other GPU has zeros only. */
TEST(test_patterns_are_the_drivers)
{
	struct fixture f;
	open_fixture(&f, "0,1");
	struct zd_cuda_task task = fill_of(&f, 7, 4096);
	task.u.copy.pattern = ZD_FILL_NAN;
	soil(&f);
	issue(&f, &task);
	expect_filled(&f, &task, 7, 4096, DIRT);
	assert_int_equal(nfills, 1);
	close_fixture(&f);
}

int main(int argc, char **argv)
{
	(void)argc;
	use_double(argv);
	return test_run(NULL, NULL);
}
