/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills within pinned host memory, which several threads make. */
#include "base/err.h"
#include "base/mem.h"
#include "executor/host/host_task.h"
#include "tests/support/test.h"

#define SEGMENT_BYTES (12u << 20)
#define FROM          (3u << 10) /* of the copied range, in both segments */
#define BYTES         ((9u << 20) + 5)

static int pin(void *arg, void *base, uint64_t bytes, struct zd_err *err)
{
	(void)arg;
	(void)base;
	(void)bytes;
	(void)err;
	return 0;
}

static void unpin(void *arg, void *base)
{
	(void)arg;
	(void)base;
}

static void run(struct zd_host_segments *segments, const struct zd_command *command)
{
	struct zd_host_task *task = zd_host_task_new(command, segments, NULL, NULL);
	struct zd_completion completion = {.status = 0};

	while (!zd_host_task_step(task, segments, &completion))
		continue;
	assert_int_equal(completion.status, 0);
	zd_host_task_free(task);
}

static uint8_t *create(struct zd_host_segments *segments, uint32_t id)
{
	const struct zd_location begin = {.segment = id, .bytes = 1};
	struct zd_command command = {.kind = ZD_CMD_SEGMENT_CREATE};

	command.u.segment.segment = id;
	command.u.segment.bytes = SEGMENT_BYTES;
	run(segments, &command);
	return zd_host_segments_at(segments, &begin);
}

TEST(test_copies_and_fills)
{
	const struct zd_host_pinning pinning = {pin, unpin, NULL};
	const struct zd_location range[] = {{.segment = 1, .offset = FROM, .bytes = BYTES},
	                                    {.segment = 2, .offset = FROM, .bytes = BYTES}};
	struct zd_command copy = {.kind = ZD_CMD_COPY}, fill = {.kind = ZD_CMD_FILL};
	uint8_t *expected = zd_calloc(1, SEGMENT_BYTES), *from, *to;
	struct zd_host_segments segments;

	zd_host_segments_init(&segments);
	segments.pinning = &pinning;
	from = create(&segments, 1);
	to = create(&segments, 2);
	for (uint32_t i = 0; i < SEGMENT_BYTES; i++)
		from[i] = (uint8_t)(i ^ i >> 8 ^ i >> 16);
	memcpy(expected + FROM, from + FROM, BYTES);
	copy.u.copy.src = range[0];
	copy.u.copy.dst = range[1];
	run(&segments, &copy);
	assert_int_equal(memcmp(to, expected, SEGMENT_BYTES), 0);

	memset(expected + FROM, 0xff, BYTES);
	fill.u.fill.dst = range[1];
	fill.u.fill.pattern = ZD_FILL_NAN;
	run(&segments, &fill);
	assert_int_equal(memcmp(to, expected, SEGMENT_BYTES), 0);
	zd_host_segments_deinit(&segments);
	free(expected);
}
