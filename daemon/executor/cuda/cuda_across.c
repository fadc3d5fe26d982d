/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_across.c - copies within a GPU, and small fills, by the copy engine of another GPU. */
#include "executor/cuda/cuda_across.h"

#include "base/err.h"

#define SEGMENT_ID UINT32_MAX /* the segment is in no table: the id is never looked up */

static bool find_other(const struct zd_cuda_devices *devices, uint32_t device, uint32_t *other)
{
	for (uint32_t step = 1; step < devices->count; step++) {
		*other = (device + step) % devices->count;
		if (zd_cuda_device_reaches(&devices->all[device], *other) &&
		    zd_cuda_device_reaches(&devices->all[*other], device))
			return true;
	}
	return false;
}

int zd_cuda_across_init(struct zd_cuda_across *across, struct zd_cuda_devices *devices, uint32_t device,
                        struct zd_err *err)
{
	uint32_t other;
	*across = (struct zd_cuda_across){.home = device};
	if (!find_other(devices, device, &other))
		return 0;
	bool pushed = zd_cuda_device_push(&devices->all[other]);
	int rc = zd_cuda_copy_stream_init(&across->stream, devices, other, UINT64_MAX, err);
	if (!rc)
		rc = zd_cuda_segment_new(devices, other, SEGMENT_ID, ZD_CUDA_ACROSS_ZEROS_BYTES,
		                         across->stream.cuda_stream, &across->zeros, err);
	zd_cuda_leave(devices->cuda, pushed);
	if (rc)
		zd_cuda_across_deinit(across);
	/* The daemon works without, but copies within this GPU then wait for the trainers' kernels. */
	return rc == ZEROD_E_NO_MEMORY ? 0 : rc;
}

void zd_cuda_across_deinit(struct zd_cuda_across *across)
{
	zd_cuda_copy_stream_deinit(&across->stream);
	zd_cuda_segment_free(across->zeros);
	across->zeros = NULL;
}

int zd_cuda_across_issue(struct zd_cuda_across *across, struct zd_cuda_task *task, struct zd_err *err)
{
	const struct zd_cuda *cuda = across->stream.device->cuda;
	struct zd_cuda_piece piece = {.dst = task->u.copy.dst,
	                              .src = task->base.kind == ZD_CMD_FILL ? across->zeros->range
	                                                                    : task->u.copy.src,
	                              .bytes = task->u.copy.bytes,
	                              .target = across->home,
	                              .together = across->stream.nmoves > 0 || STAILQ_NEXT(task, next),
	                              .ends = task};
	bool pushed = zd_cuda_device_push(across->stream.device);
	int rc = zd_cuda_copy_stream_issue(&across->stream, &piece, err);
	if (!rc && zd_cuda_copy_stream_group_is_full(&across->stream))
		zd_cuda_copy_stream_close(&across->stream);
	zd_cuda_leave(cuda, pushed);
	return rc;
}

void zd_cuda_across_close(struct zd_cuda_across *across)
{
	if (across->stream.group == 0)
		return;
	bool pushed = zd_cuda_device_push(across->stream.device);
	zd_cuda_copy_stream_close(&across->stream);
	zd_cuda_leave(across->stream.device->cuda, pushed);
}
