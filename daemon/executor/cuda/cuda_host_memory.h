/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_host_memory.h - the host memory of GPUs: a device for each NUMA node that has GPUs.
 *
 * Its segments are sealed files, which clients map. The daemon pins them for all GPUs, on the node of the
 * device. GPUs copy from and to host memory. The thread of an emulated device (executor/host) makes copies
 * and fills within host memory.
 */
#ifndef ZD_EXECUTOR_CUDA_HOST_MEMORY_H
#define ZD_EXECUTOR_CUDA_HOST_MEMORY_H

#include <stdbool.h>

#include "executor/cuda/cuda_device.h"
#include "executor/host/host_executor.h"

struct zd_cuda_host_node {
	int number; /* NUMA node; -1: the machine has none */
	struct zd_host_segments segments;
	struct zd_host_pinning pinning;
	struct zd_host_executor executor;
	struct zd_cuda_host_memory *memory;
};

struct zd_cuda_host_memory {
	struct zd_cuda_devices *devices;
	uint64_t arena_bytes; /* of each node */
	uint32_t count;       /* of nodes; 0: no host memory */
	struct zd_cuda_host_node *nodes;
};

/* Starts a device for each node if the configuration has a host arena. On failure there is nothing to deinit.
 * Errors: INVALID for too many devices; NO_MEMORY with the sizes; SYSTEM. */
int zd_cuda_host_memory_init(struct zd_cuda_host_memory *memory, struct zd_cuda_devices *devices,
                             const struct zd_backend_config *config, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Stops the threads: no task completes afterwards. */
void zd_cuda_host_memory_stop(struct zd_cuda_host_memory *memory);
/* Frees the segments, after a stop. */
void zd_cuda_host_memory_deinit(struct zd_cuda_host_memory *memory);

/* Returns the number of the device that is the host memory of a GPU. */
uint32_t zd_cuda_host_memory_of(const struct zd_cuda_host_memory *memory, const struct zd_cuda_device *gpu);
/* Returns the node of a device that is host memory, otherwise NULL. */
struct zd_cuda_host_node *zd_cuda_host_memory_node(const struct zd_cuda_host_memory *memory, uint32_t device);
void zd_cuda_host_memory_info(const struct zd_cuda_host_memory *memory, uint32_t device,
                              struct zd_device_config *info);

/* Returns whether the segment is in host memory. */
bool zd_cuda_host_memory_has(const struct zd_cuda_host_memory *memory, uint32_t segment);
/* Returns the address of a location in host memory, for the CPU and for all GPUs. */
zd_cu_ptr zd_cuda_host_memory_at(const struct zd_cuda_host_memory *memory,
                                 const struct zd_location *location);
/* Returns the segment's descriptor; -1: it is not in host memory. */
int zd_cuda_host_memory_fd(const struct zd_cuda_host_memory *memory, uint32_t segment);
/* As zd_cuda_segment_import(), and adds the segment. */
int zd_cuda_host_memory_import(struct zd_cuda_host_node *node, uint32_t id, uint64_t bytes, int fd,
                               struct zd_err *err) __attribute__((warn_unused_result));

#endif
