/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_segment.c - segments of GPU memory. */
#include "executor/cuda/cuda_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "executor/cuda/cuda_host_memory.h"

/* ---- One segment --------------------------------------------------------------------------------------- */

/* Other processes can have allocated the GPU's memory without the daemon's knowledge. The text therefore has
 * the free bytes. */
static int no_memory(const struct zd_cuda_segment *segment, struct zd_err *err)
{
	size_t available = 0, total = 0;
	char wanted[ZD_BYTES_TEXT], left[ZD_BYTES_TEXT], all[ZD_BYTES_TEXT];
	(void)segment->device->cuda->memGetInfo(&available, &total);
	return zd_err_set(err, ZEROD_E_NO_MEMORY, "a segment of %s does not fit on %s: %s of %s are free",
	                  zd_bytes_text(segment->bytes, wanted), segment->device->name,
	                  zd_bytes_text(available, left), zd_bytes_text(total, all));
}

static int create(struct zd_cuda_segment *segment, struct zd_err *err)
{
	const struct zd_cuda *cuda = segment->device->cuda;
	struct zd_cu_allocation allocation = zd_cuda_device_allocation(segment->device);
	int result = cuda->memCreate(&segment->memory, segment->bytes, &allocation, 0);
	if (result)
		segment->memory = 0;
	if (result == ZD_CU_OUT_OF_MEMORY)
		return no_memory(segment, err);
	return zd_cuda_err(cuda, result, err, "making a segment");
}

static int map(struct zd_cuda_segment *segment, struct zd_err *err)
{
	const struct zd_cuda *cuda = segment->device->cuda;
	int result = cuda->memAddressReserve(&segment->range, segment->bytes,
	                                     segment->device->granularity_bytes, 0, 0);
	if (result) {
		segment->range = 0;
		return zd_cuda_err(cuda, result, err, "reserving a segment's addresses");
	}
	result = cuda->memMap(segment->range, segment->bytes, 0, segment->memory, 0);
	segment->mapped = result == 0;
	return zd_cuda_err(cuda, result, err, "mapping a segment");
}

static int allow(struct zd_cuda_segment *segment, const struct zd_cuda_devices *devices, struct zd_err *err)
{
	const struct zd_cuda *cuda = segment->device->cuda;
	struct zd_cu_access access[ZD_MAX_DEVICES];
	size_t n = 0;
	for (uint32_t i = 0; i < devices->count; i++) {
		if (!zd_cuda_device_reaches(&devices->all[i], segment->device->index))
			continue;
		access[n++] = (struct zd_cu_access){
		        .location = {.type = ZD_CU_LOCATION_DEVICE, .id = devices->all[i].ordinal},
		        .flags = ZD_CU_ACCESS_READWRITE};
	}
	return zd_cuda_err(cuda, cuda->memSetAccess(segment->range, segment->bytes, access, n), err,
	                   "giving GPUs access to a segment");
}

static int zero_segment(struct zd_cuda_segment *segment, struct CUstream_st *stream, struct zd_err *err)
{
	const struct zd_cuda *cuda = segment->device->cuda;
	int result = cuda->memsetD8Async(segment->range, 0, segment->bytes, stream);
	if (!result)
		result = cuda->streamSynchronize(stream);
	return zd_cuda_err(cuda, result, err, "zeroing a segment");
}

static int export(struct zd_cuda_segment *segment, struct zd_err *err)
{
	const struct zd_cuda *cuda = segment->device->cuda;
	int fd = -1;
	int rc = zd_cuda_err(cuda,
	                     cuda->memExportToShareableHandle(&fd, segment->memory, ZD_CU_HANDLE_POSIX_FD, 0),
	                     err, "exporting a segment");
	if (rc)
		return rc;
	segment->fd = fd;
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return zd_err_errno(err, errno, "a segment's descriptor");
	return 0;
}

int zd_cuda_segment_new(const struct zd_cuda_devices *devices, uint32_t index, uint32_t id, uint64_t bytes,
                        struct CUstream_st *stream, struct zd_cuda_segment **segment, struct zd_err *err)
{
	zd_assert(id != 0 && bytes > 0 && bytes <= ZD_MAX_BYTES);
	struct zd_cuda_segment *made = zd_calloc(1, sizeof(*made));
	made->id = id;
	made->device = &devices->all[index];
	made->bytes = zd_align_up(bytes, made->device->granularity_bytes);
	made->fd = -1;
	int rc = create(made, err);
	if (!rc)
		rc = map(made, err);
	if (!rc)
		rc = allow(made, devices, err);
	if (!rc)
		rc = zero_segment(made, stream, err);
	if (!rc)
		rc = export(made, err);
	if (rc) {
		/* The lack of any resource, descriptors for instance, can be the cause. The GPU has failed
		 * only if its context is lost. */
		zd_cuda_device_check(made->device, stream);
		zd_cuda_segment_free(made);
		return rc;
	}
	*segment = made;
	return 0;
}

static int import(struct zd_cuda_segment *segment, struct zd_err *err)
{
	const struct zd_cuda *cuda = segment->device->cuda;
	void *handle = NULL;
	intptr_t fd = segment->fd;
	memcpy(&handle, &fd, sizeof(handle)); /* the driver expects a descriptor in the place of a pointer */
	int result = cuda->memImportFromShareableHandle(&segment->memory, handle, ZD_CU_HANDLE_POSIX_FD);
	if (result)
		segment->memory = 0;
	return zd_cuda_err(cuda, result, err, "importing a segment");
}

int zd_cuda_segment_import(const struct zd_cuda_devices *devices, uint32_t index, uint32_t id, uint64_t bytes,
                           int fd, struct zd_cuda_segment **segment, struct zd_err *err)
{
	struct zd_cuda_segment *made = zd_calloc(1, sizeof(*made));
	made->id = id;
	made->device = &devices->all[index];
	made->bytes = zd_align_up(bytes, made->device->granularity_bytes);
	made->fd = fd;
	bool pushed = zd_cuda_device_push(made->device);
	int rc = import(made, err);
	if (!rc)
		rc = map(made, err);
	if (!rc)
		rc = allow(made, devices, err);
	zd_cuda_leave(made->device->cuda, pushed);
	if (rc) {
		zd_cuda_segment_free(made);
		return rc;
	}
	*segment = made;
	return 0;
}

void zd_cuda_segment_free(struct zd_cuda_segment *segment)
{
	if (!segment)
		return;
	const struct zd_cuda *cuda = segment->device->cuda;
	/* On a failed GPU all of these calls can fail. The memory is then freed with the process. */
	bool pushed = zd_cuda_device_push(segment->device);
	if (segment->mapped)
		(void)cuda->memUnmap(segment->range, segment->bytes);
	if (segment->range)
		(void)cuda->memAddressFree(segment->range, segment->bytes);
	if (segment->memory)
		(void)cuda->memRelease(segment->memory);
	zd_cuda_leave(cuda, pushed);
	if (segment->fd >= 0)
		(void)close(segment->fd);
	free(segment);
}

/* ---- The table ----------------------------------------------------------------------------------------- */

void zd_cuda_segments_init(struct zd_cuda_segments *segments)
{
	for (size_t i = 0; i < ZD_CUDA_SEGMENT_BUCKETS; i++)
		LIST_INIT(&segments->buckets[i]);
	segments->host = NULL;
	pthread_mutex_init(&segments->lock, NULL);
}

void zd_cuda_segments_deinit(struct zd_cuda_segments *segments)
{
	for (size_t i = 0; i < ZD_CUDA_SEGMENT_BUCKETS; i++) {
		struct zd_cuda_segment *segment = LIST_FIRST(&segments->buckets[i]);
		while (segment) {
			struct zd_cuda_segment *next = LIST_NEXT(segment, in_bucket);
			zd_cuda_segment_free(segment);
			segment = next;
		}
	}
	pthread_mutex_destroy(&segments->lock);
}

static struct zd_cuda_segment_bucket *bucket_of(struct zd_cuda_segments *segments, uint32_t id)
{
	return &segments->buckets[id % ZD_CUDA_SEGMENT_BUCKETS];
}

/* The caller holds the lock. */
static struct zd_cuda_segment *find_segment(struct zd_cuda_segments *segments, uint32_t id)
{
	struct zd_cuda_segment *segment;
	LIST_FOREACH (segment, bucket_of(segments, id), in_bucket) {
		if (segment->id == id)
			break;
	}
	return segment;
}

void zd_cuda_segments_add(struct zd_cuda_segments *segments, struct zd_cuda_segment *segment)
{
	pthread_mutex_lock(&segments->lock);
	zd_assert(!find_segment(segments, segment->id));
	LIST_INSERT_HEAD(bucket_of(segments, segment->id), segment, in_bucket);
	pthread_mutex_unlock(&segments->lock);
}

struct zd_cuda_segment *zd_cuda_segments_take(struct zd_cuda_segments *segments, uint32_t id)
{
	pthread_mutex_lock(&segments->lock);
	struct zd_cuda_segment *segment = find_segment(segments, id);
	if (segment)
		LIST_REMOVE(segment, in_bucket);
	pthread_mutex_unlock(&segments->lock);
	return segment;
}

int zd_cuda_segments_fd(struct zd_cuda_segments *segments, uint32_t id)
{
	pthread_mutex_lock(&segments->lock);
	struct zd_cuda_segment *segment = find_segment(segments, id);
	int fd = segment ? segment->fd : -1;
	pthread_mutex_unlock(&segments->lock);
	return segment || !segments->host ? fd : zd_cuda_host_memory_fd(segments->host, id);
}

bool zd_cuda_segments_on_host(const struct zd_cuda_segments *segments, uint32_t segment)
{
	return segments->host && zd_cuda_host_memory_has(segments->host, segment);
}

zd_cu_ptr zd_cuda_segments_at(struct zd_cuda_segments *segments, const struct zd_location *location)
{
	if (location->bytes == 0)
		return 0;
	pthread_mutex_lock(&segments->lock);
	struct zd_cuda_segment *segment = find_segment(segments, location->segment);
	pthread_mutex_unlock(&segments->lock);
	/* Valid without the lock: the core destroys no segment that a command may still name. */
	if (!segment && segments->host)
		return zd_cuda_host_memory_at(segments->host, location);
	zd_assert(segment);
	zd_assert(location->offset <= segment->bytes && location->bytes <= segment->bytes - location->offset);
	return segment->range + location->offset;
}
