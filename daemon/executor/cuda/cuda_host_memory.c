/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_host_memory.c - the host memory of GPUs.
 *
 * Pinning memory takes time mainly for the first touch of its pages. Several threads therefore touch them.
 * Pinned pages cannot move: the node is chosen before that.
 */
#include "executor/cuda/cuda_host_memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "executor/host/memory_limit.h"
#include "executor/thread.h"

#define ALIGN_BYTES    (2ull << 20)  /* of segments: huge pages, if the kernel has them for files */
#define TOUCHED_BYTES  (64ull << 20) /* at once, by a thread */
#define PAGE_BYTES     4096u
#define MPOL_PREFERRED 1
#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

/* ---- Pinning ------------------------------------------------------------------------------------------- */

struct touch {
	uint8_t *base;
	atomic_int error;
};

static void touch_part(void *arg, uint64_t from, uint64_t bytes)
{
	struct touch *touch = arg;
	if (atomic_load(&touch->error)) /* another part has failed, and with it the segment */
		return;
	if (madvise(touch->base + from, bytes, MADV_POPULATE_WRITE) == 0)
		return;
	if (errno != EINVAL) { /* the kernel supports the advice, but has no memory */
		atomic_store(&touch->error, errno);
		return;
	}
	for (uint64_t i = 0; i < bytes; i += PAGE_BYTES)
		((volatile uint8_t *)touch->base)[from + i] = 0;
}

/* The pages are the daemon's, and zeroed, because no other process has the segment. */
static int touch_pages(uint8_t *base, uint64_t bytes, struct zd_err *err)
{
	struct touch touch = {.base = base};
	char text[ZD_BYTES_TEXT];
	zd_run_in_parts(bytes, TOUCHED_BYTES, touch_part, &touch);
	int error = atomic_load(&touch.error);
	if (error)
		return zd_err_set(err, ZEROD_E_NO_MEMORY,
		                  "a segment of %s of host memory: the kernel has no pages for it (%s); see "
		                  "memory limits of the daemon's control group",
		                  zd_bytes_text(bytes, text), error == ENOMEM ? "ENOMEM" : "EFAULT");
	return 0;
}

/* A preference: without it, or without memory on the node, the pages are elsewhere. */
static void prefer_node(const struct zd_cuda_host_node *node, void *base, uint64_t bytes)
{
	unsigned long mask = 0;
	if (node->number < 0 || (size_t)node->number >= 8 * sizeof(mask) || node->memory->count < 2)
		return;
	mask = 1ul << node->number;
	(void)syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, &mask, 8 * sizeof(mask) + 1, 0);
}

static int pin(void *arg, void *base, uint64_t bytes, struct zd_err *err)
{
	const struct zd_cuda_host_node *node = arg;
	const struct zd_cuda_device *gpu = &node->memory->devices->all[0];
	char text[ZD_BYTES_TEXT];
	int result, rc;
	prefer_node(node, base, bytes);
	(void)madvise(base, bytes, MADV_HUGEPAGE);
	rc = touch_pages(base, bytes, err);
	if (rc)
		return rc;
	bool pushed = zd_cuda_device_push(gpu);
	result = gpu->cuda->memHostRegister(base, bytes,
	                                    ZD_CU_HOST_REGISTER_PORTABLE | ZD_CU_HOST_REGISTER_DEVICEMAP);
	zd_cuda_leave(gpu->cuda, pushed);
	if (result == ZD_CU_OUT_OF_MEMORY)
		return zd_err_set(err, ZEROD_E_NO_MEMORY,
		                  "the driver cannot pin a segment of %s of host memory",
		                  zd_bytes_text(bytes, text));
	return zd_cuda_err(gpu->cuda, result, err, "pinning a segment of host memory");
}

static void unpin(void *arg, void *base)
{
	const struct zd_cuda_host_node *node = arg;
	const struct zd_cuda_device *gpu = &node->memory->devices->all[0];
	bool pushed = zd_cuda_device_push(gpu);
	(void)gpu->cuda->memHostUnregister(base);
	zd_cuda_leave(gpu->cuda, pushed);
}

/* ---- Nodes --------------------------------------------------------------------------------------------- */

static int numa_node(const struct zd_cuda_device *gpu)
{
	char path[80];
	int node = -1;
	FILE *file;
	(void)snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", gpu->pci_address);
	file = fopen(path, "re");
	if (file && fscanf(file, "%d", &node) != 1)
		node = -1;
	if (file)
		(void)fclose(file);
	return node < 0 ? -1 : node;
}

static uint32_t find_node(const struct zd_cuda_host_memory *memory, int number)
{
	uint32_t i = 0;
	while (i < memory->count && memory->nodes[i].number != number)
		i++;
	return i;
}

static int start_node(struct zd_cuda_host_memory *memory, int number, const struct zd_backend_config *config,
                      struct zd_err *err)
{
	struct zd_cuda_host_node *node = &memory->nodes[memory->count];
	node->number = number;
	node->memory = memory;
	node->pinning = (struct zd_host_pinning){.pin = pin, .unpin = unpin, .arg = node};
	zd_host_segments_init(&node->segments);
	node->segments.pinning = &node->pinning;
	int rc = zd_host_executor_init(&node->executor, memory->devices->count + memory->count,
	                               &node->segments, config, err);
	if (rc)
		zd_host_segments_deinit(&node->segments);
	else
		memory->count++;
	return rc;
}

static int check_size(const struct zd_cuda_host_memory *memory, struct zd_err *err)
{
	char wanted[ZD_BYTES_TEXT], found[ZD_BYTES_TEXT];
	uint64_t have = zd_host_memory_bytes();
	struct zd_memory_limit limit;
	if (memory->arena_bytes == 0 || memory->arena_bytes > ZD_MAX_BYTES)
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "host_arena: expected 2 MiB to 1 PiB, found less or more");
	if (have && memory->arena_bytes > have / memory->count)
		return zd_err_set(err, ZEROD_E_NO_MEMORY,
		                  "host_arena: %s for each of %u NUMA nodes, and the machine has %s",
		                  zd_bytes_text(memory->arena_bytes, wanted), memory->count,
		                  zd_bytes_text(have, found));
	if (zd_memory_limit_exceeded("", memory->arena_bytes * memory->count, false, &limit))
		return zd_err_set(err, ZEROD_E_NO_MEMORY,
		                  "host_arena: %s for each of %u NUMA nodes, and the daemon's control group "
		                  "is limited to %s (%s; see MemoryHigh= and MemoryMax= of its unit)",
		                  zd_bytes_text(memory->arena_bytes, wanted), memory->count,
		                  zd_bytes_text(limit.bytes, found), limit.file);
	return 0;
}

int zd_cuda_host_memory_init(struct zd_cuda_host_memory *memory, struct zd_cuda_devices *devices,
                             const struct zd_backend_config *config, struct zd_err *err)
{
	int rc = 0;
	*memory = (struct zd_cuda_host_memory){
	        .devices = devices,
	        .arena_bytes = config->host_arena_bytes / ALIGN_BYTES * ALIGN_BYTES,
	};
	if (config->host_arena_bytes == 0)
		return 0;
	memory->nodes = zd_calloc(devices->count, sizeof(*memory->nodes)); /* nodes point to themselves */
	for (uint32_t i = 0; i < devices->count && !rc; i++) {
		int number = numa_node(&devices->all[i]);
		if (find_node(memory, number) == memory->count)
			rc = start_node(memory, number, config, err);
	}
	if (!rc && devices->count + memory->count > ZD_CUDA_MOST_DEVICES)
		rc = zd_err_set(err, ZEROD_E_INVALID, "more than %u devices with host memory",
		                ZD_CUDA_MOST_DEVICES);
	if (!rc)
		rc = check_size(memory, err);
	if (rc) {
		zd_cuda_host_memory_stop(memory);
		zd_cuda_host_memory_deinit(memory);
	}
	return rc;
}

void zd_cuda_host_memory_stop(struct zd_cuda_host_memory *memory)
{
	for (uint32_t i = 0; i < memory->count; i++)
		zd_host_executor_deinit(&memory->nodes[i].executor);
}

void zd_cuda_host_memory_deinit(struct zd_cuda_host_memory *memory)
{
	for (uint32_t i = 0; i < memory->count; i++)
		zd_host_segments_deinit(&memory->nodes[i].segments);
	free(memory->nodes);
	*memory = (struct zd_cuda_host_memory){.count = 0};
}

uint32_t zd_cuda_host_memory_of(const struct zd_cuda_host_memory *memory, const struct zd_cuda_device *gpu)
{
	return memory->devices->count + find_node(memory, numa_node(gpu));
}

struct zd_cuda_host_node *zd_cuda_host_memory_node(const struct zd_cuda_host_memory *memory, uint32_t device)
{
	if (memory->count == 0 || device < memory->devices->count)
		return NULL;
	zd_assert(device - memory->devices->count < memory->count);
	return &memory->nodes[device - memory->devices->count];
}

void zd_cuda_host_memory_info(const struct zd_cuda_host_memory *memory, uint32_t device,
                              struct zd_device_config *info)
{
	const struct zd_cuda_host_node *node = zd_cuda_host_memory_node(memory, device);
	*info = (struct zd_device_config){
	        .arena_bytes = memory->arena_bytes, .segment_align_bytes = ALIGN_BYTES, .host_memory = true};
	(void)snprintf(info->name, sizeof(info->name), "memory%d", node->number < 0 ? 0 : node->number);
}

/* ---- Segments ------------------------------------------------------------------------------------------ */

static struct zd_cuda_host_node *node_with(const struct zd_cuda_host_memory *memory, uint32_t segment)
{
	for (uint32_t i = 0; i < memory->count; i++) {
		if (zd_host_segments_fd(&memory->nodes[i].segments, segment) >= 0)
			return &memory->nodes[i];
	}
	return NULL;
}

bool zd_cuda_host_memory_has(const struct zd_cuda_host_memory *memory, uint32_t segment)
{
	return node_with(memory, segment) != NULL;
}

zd_cu_ptr zd_cuda_host_memory_at(const struct zd_cuda_host_memory *memory, const struct zd_location *location)
{
	struct zd_cuda_host_node *node = node_with(memory, location->segment);
	zd_assert(node);
	return (zd_cu_ptr)(uintptr_t)zd_host_segments_at(&node->segments, location);
}

int zd_cuda_host_memory_fd(const struct zd_cuda_host_memory *memory, uint32_t segment)
{
	struct zd_cuda_host_node *node = node_with(memory, segment);
	return node ? zd_host_segments_fd(&node->segments, segment) : -1;
}

int zd_cuda_host_memory_import(struct zd_cuda_host_node *node, uint32_t id, uint64_t bytes, int fd,
                               struct zd_err *err)
{
	struct zd_host_segment *segment;
	int rc = zd_host_segment_import(id, bytes, fd, &segment, err);
	if (!rc) {
		rc = zd_host_segment_pin(segment, &node->pinning, err);
		if (rc)
			zd_host_segment_free(segment);
	}
	if (!rc)
		zd_host_segments_add(&node->segments, segment);
	return rc;
}
