/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_host_copy.c - a GPU's copies from host memory and to it. */
#include "executor/cuda/cuda_host_copy.h"

#define PIECE_BYTES    (32ull << 20) /* 0.6 ms of a link with 55 GB/s */
#define INFLIGHT_BYTES (2 * PIECE_BYTES)

int zd_cuda_host_copy_init(struct zd_cuda_host_copy *copy, struct zd_cuda_devices *devices, uint32_t device,
                           struct zd_err *err)
{
	int rc = 0;
	*copy = (struct zd_cuda_host_copy){.streams[ZD_CUDA_UP].device = NULL};
	for (int i = 0; i < ZD_CUDA_DIRECTIONS && devices->host_memory && !rc; i++)
		rc = zd_cuda_copy_stream_init(&copy->streams[i], devices, device, INFLIGHT_BYTES, err);
	if (rc)
		zd_cuda_host_copy_deinit(copy);
	return rc;
}

void zd_cuda_host_copy_deinit(struct zd_cuda_host_copy *copy)
{
	for (int i = 0; i < ZD_CUDA_DIRECTIONS; i++)
		zd_cuda_copy_stream_deinit(&copy->streams[i]);
}

/* The end of each piece except the last is also detected, so that pieces of other tasks are issued in
 * time. */
int zd_cuda_host_copy_issue(struct zd_cuda_copy_stream *stream, struct zd_cuda_task *task, bool *whole,
                            struct zd_err *err)
{
	struct zd_cuda_piece piece = zd_cuda_piece_next(task, stream->device->index, PIECE_BYTES);
	piece.open = false;
	*whole = piece.ends;
	int rc = zd_cuda_copy_stream_issue(stream, &piece, err);
	if (!rc)
		task->u.copy.issued_bytes += piece.bytes;
	return rc;
}
