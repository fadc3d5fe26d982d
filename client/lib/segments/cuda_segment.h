/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_segment.h - segments as GPUs have them mapped, without types of the driver. */
#ifndef ZD_CLIENT_CUDA_SEGMENT_H
#define ZD_CLIENT_CUDA_SEGMENT_H

#include "client/lib/segments/segment.h"

struct zc_cuda;

/* Maps the range's segments side by side. Each can be NULL, and all are already mapped. */
int zc_cuda_range_map(struct zerod_client *client, struct zc_range *range, struct zc_segment *const *segments,
                      struct zd_err *err) __attribute__((warn_unused_result));
void zc_cuda_range_unmap(struct zerod_client *client, struct zc_range *range);

/* Imports and maps the segment for its own GPU, which may write to it unless it is read_only. PROTOCOL if the
 * descriptor is not GPU memory, or the segment's device was not joined. With the lock. */
int zc_cuda_segment_map(struct zerod_client *client, struct zc_segment *segment, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Lets the GPUs of this process access a mapped segment of host memory, which takes 60 ms per GiB. Done once,
 * until the segment is unmapped. With the lock. */
int zc_cuda_segment_register(struct zerod_client *client, struct zc_segment *segment, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Unmaps a segment whose memory is not in use any more. For host memory, ends only the GPUs' access. With the
 * lock and page_lock. */
void zc_cuda_segment_unmap(struct zerod_client *client, struct zc_segment *segment);
/* Grants or revokes the GPU's access to a mapped segment, whose content does not change. With page_lock. */
int zc_cuda_segment_protect(struct zerod_client *client, const struct zc_segment *segment, bool open,
                            struct zd_err *err) __attribute__((warn_unused_result));
/* Unmaps all segments at the client's end. */
void zc_cuda_segments_unmap(struct zerod_client *client, struct zc_cuda *cuda);

#endif
