/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_segment.c - the daemon's memory on GPUs, mapped into this process.
 *
 * A segment is imported and mapped whole at its first use, for its own GPU. It remains mapped until the
 * client is closed or the daemon retires the segment. Mapping takes 30 us to 10 ms. Revoking a strict
 * client's access, or granting it again, takes 30 to 50 us. None of these calls waits for work in streams.
 */
#include "client/lib/segments/cuda_segment.h"

#include "client/lib/segments/cuda_context.h"

/* In the GPU's context: the driver does so for whole mappings only. */
static int set_access(const struct zd_cuda *driver, const struct zc_gpu *gpu, zd_cu_ptr at, uint64_t bytes,
                      int flags)
{
	const struct zd_cu_access access = {.location = {ZD_CU_LOCATION_DEVICE, gpu->device}, .flags = flags};

	return driver->memSetAccess(at, bytes, &access, 1);
}

/* In the GPU's context. */
static int map(const struct zd_cuda *driver, const struct zc_gpu *gpu, const struct zc_segment *segment,
               zd_cu_memory memory, zd_cu_ptr *at, struct zd_err *err)
{
	zd_cu_ptr reserved = 0;
	int result, rc = zd_cuda_err(driver, driver->memAddressReserve(&reserved, segment->bytes, 0, 0, 0),
	                             err, "reserving %llu bytes of addresses for segment %u",
	                             (unsigned long long)segment->bytes, segment->id);

	if (rc)
		return rc;
	rc = zd_cuda_err(driver, driver->memMap(reserved, segment->bytes, 0, memory, 0), err,
	                 "mapping segment %u of %llu bytes", segment->id, (unsigned long long)segment->bytes);
	if (rc)
		goto free_address;
	result = set_access(driver, gpu, reserved, segment->bytes,
	                    segment->read_only ? ZD_CU_ACCESS_READ : ZD_CU_ACCESS_READWRITE);
	rc = zd_cuda_err(driver, result, err, "giving %s access to segment %u", gpu->name, segment->id);
	if (rc && segment->read_only) /* readers then copy */
		rc = zd_err_set(err, ZEROD_E_UNSUPPORTED, "the driver gives %s no access that only reads",
		                gpu->name);
	if (rc)
		goto unmap;
	*at = reserved;
	return 0;
unmap:
	(void)driver->memUnmap(reserved, segment->bytes);
free_address:
	(void)driver->memAddressFree(reserved, segment->bytes);
	return rc;
}

/* In the GPU's context. The mapping retains the memory: its handle is not needed any more. */
static int import(const struct zd_cuda *driver, const struct zc_gpu *gpu, const struct zc_segment *segment,
                  zd_cu_ptr *at, struct zd_err *err)
{
	zd_cu_memory memory;
	/* The driver takes descriptors as pointers. NOLINTNEXTLINE(performance-no-int-to-ptr) */
	void *handle = (void *)(intptr_t)segment->fd;
	int rc = zd_cuda_err(driver,
	                     driver->memImportFromShareableHandle(&memory, handle, ZD_CU_HANDLE_POSIX_FD),
	                     err, "importing segment %u on %s", segment->id, gpu->name);

	if (rc)
		return rc;
	rc = map(driver, gpu, segment, memory, at, err);
	(void)driver->memRelease(memory);
	return rc;
}

int zc_cuda_segment_map(struct zerod_client *client, struct zc_segment *segment, struct zd_err *err)
{
	struct zc_cuda *cuda = client->cuda;
	const struct zc_gpu *gpu = zc_gpu_find(cuda, segment->device);
	struct zc_cuda_scope scope;
	zd_cu_ptr at = 0;
	int rc;

	if (!gpu)
		return zd_err_set(err, ZEROD_E_PROTOCOL,
		                  "segment %u is on device %u, which this client has not joined", segment->id,
		                  segment->device);
	rc = zd_cuda_err(cuda->driver, zc_cuda_enter(cuda->driver, gpu->context, &scope), err, "entering %s",
	                 gpu->name);
	if (!rc)
		rc = import(cuda->driver, gpu, segment, &at, err);
	zc_cuda_leave(cuda->driver, &scope);
	if (rc)
		return rc;
	segment->map = (void *)at; /* NOLINT(performance-no-int-to-ptr): for the caller's kernels */
	segment->gpu = gpu;
	return 0;
}

int zc_cuda_segment_protect(struct zerod_client *client, const struct zc_segment *segment, bool open,
                            struct zd_err *err)
{
	const struct zc_cuda *cuda = client->cuda;
	const struct zc_gpu *gpu = segment->gpu;
	struct zc_cuda_scope scope;
	int result = zc_cuda_enter(cuda->driver, gpu->context, &scope);

	if (result == ZD_CU_SUCCESS)
		result = set_access(cuda->driver, gpu, (zd_cu_ptr)segment->map, segment->bytes,
		                    open ? ZD_CU_ACCESS_READWRITE : ZD_CU_ACCESS_NONE);
	zc_cuda_leave(cuda->driver, &scope);
	return zd_cuda_err(cuda->driver, result, err,
	                   open ? "giving %s access to segment %u"
	                        : "taking %s's access to segment %u of a released buffer away",
	                   gpu->name, segment->id);
}

/* A GPU's address of registered memory is the CPU's, but for rare systems. */
int zc_cuda_segment_register(struct zerod_client *client, struct zc_segment *segment, struct zd_err *err)
{
	const struct zc_cuda *cuda = client->cuda;
	struct zc_cuda_scope scope;
	zd_cu_ptr at = 0;
	int result;

	if (segment->registered)
		return 0;
	if (!cuda || cuda->ngpus == 0)
		return zd_err_set(err, ZEROD_E_STATE, "this client has joined no GPU");
	result = zc_cuda_enter(cuda->driver, cuda->gpus[0].context, &scope);
	if (result == ZD_CU_SUCCESS)
		result = cuda->driver->memHostRegister(segment->map, segment->bytes,
		                                       ZD_CU_HOST_REGISTER_PORTABLE |
		                                               ZD_CU_HOST_REGISTER_DEVICEMAP);
	segment->registered = result == ZD_CU_SUCCESS;
	if (result == ZD_CU_SUCCESS)
		result = cuda->driver->memHostGetDevicePointer(&at, segment->map, 0);
	zc_cuda_leave(cuda->driver, &scope);
	if (result == ZD_CU_SUCCESS && at != (zd_cu_ptr)segment->map)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "GPUs of this machine have other addresses for host memory");
	return zd_cuda_err(cuda->driver, result, err, "giving GPUs access to segment %u of host memory",
	                   segment->id);
}

static void unregister(struct zc_cuda *cuda, struct zc_segment *segment)
{
	struct zc_cuda_scope scope;

	if (!segment->registered || cuda->ngpus == 0)
		return;
	zc_cuda_enter_last(cuda->driver, cuda->gpus[0].context, &scope);
	(void)cuda->driver->memHostUnregister(segment->map);
	zc_cuda_leave(cuda->driver, &scope);
	segment->registered = false;
}

static void unmap(struct zc_cuda *cuda, struct zc_segment *segment)
{
	const struct zc_gpu *gpu = segment->is_file ? NULL : zc_gpu_find(cuda, segment->device);
	zd_cu_ptr at = (zd_cu_ptr)segment->map;
	struct zc_cuda_scope scope;

	if (segment->is_file)
		unregister(cuda, segment);
	if (!segment->map || !gpu)
		return;
	zc_cuda_enter_last(cuda->driver, gpu->context, &scope);
	(void)cuda->driver->memUnmap(at, segment->bytes);
	(void)cuda->driver->memAddressFree(at, segment->bytes);
	zc_cuda_leave(cuda->driver, &scope);
	segment->map = NULL;
}

void zc_cuda_segment_unmap(struct zerod_client *client, struct zc_segment *segment)
{
	struct zc_cuda *cuda = client->cuda;

	if (cuda) /* otherwise its end has started */
		unmap(cuda, segment);
}

/* ---- Ranges -------------------------------------------------------------------------------------------- */

/* Maps the memory of a mapped segment a second time. In the GPU's context. */
static int map_again(const struct zd_cuda *driver, const struct zc_segment *segment, zd_cu_ptr at)
{
	zd_cu_memory memory;
	int result = driver->memRetainAllocationHandle(&memory, segment->map);

	if (result != ZD_CU_SUCCESS)
		return result;
	result = driver->memMap(at, segment->bytes, 0, memory, 0);
	(void)driver->memRelease(memory);
	return result;
}

static void unmap_parts(const struct zd_cuda *driver, struct zc_segment *const *segments, unsigned count,
                        zd_cu_ptr at)
{
	for (unsigned i = 0; i < count; i++) {
		if (!segments[i])
			continue;
		(void)driver->memUnmap(at, segments[i]->bytes);
		at += segments[i]->bytes;
	}
}

/* In the GPU's context. */
static int map_parts(const struct zd_cuda *driver, const struct zc_gpu *gpu, const struct zc_range *range,
                     struct zc_segment *const *segments, zd_cu_ptr base)
{
	int result = ZD_CU_SUCCESS;
	zd_cu_ptr at = base;
	unsigned i;

	for (i = 0; i < ZC_RANGE_PARTS && result == ZD_CU_SUCCESS; i++) {
		if (!segments[i])
			continue;
		result = map_again(driver, segments[i], at);
		at += segments[i]->bytes;
	}
	if (result == ZD_CU_SUCCESS)
		result = set_access(driver, gpu, base, range->bytes, ZD_CU_ACCESS_READWRITE);
	else
		i--; /* the last one is not mapped */
	if (result != ZD_CU_SUCCESS)
		unmap_parts(driver, segments, i, base);
	return result;
}

int zc_cuda_range_map(struct zerod_client *client, struct zc_range *range, struct zc_segment *const *segments,
                      struct zd_err *err)
{
	const struct zc_cuda *cuda = client->cuda;
	const struct zc_gpu *gpu = segments[1]->gpu;
	struct zc_cuda_scope scope;
	zd_cu_ptr base = 0;
	int result = zc_cuda_enter(cuda->driver, gpu->context, &scope);

	if (result == ZD_CU_SUCCESS)
		result = cuda->driver->memAddressReserve(&base, range->bytes, 0, 0, 0);
	if (result == ZD_CU_SUCCESS) {
		result = map_parts(cuda->driver, gpu, range, segments, base);
		if (result != ZD_CU_SUCCESS)
			(void)cuda->driver->memAddressFree(base, range->bytes);
	}
	zc_cuda_leave(cuda->driver, &scope);
	if (result != ZD_CU_SUCCESS)
		return zd_cuda_err(cuda->driver, result, err, "mapping %llu bytes around segment %u on %s",
		                   (unsigned long long)range->bytes, segments[1]->id, gpu->name);
	range->map = (void *)base; /* NOLINT(performance-no-int-to-ptr): for the caller's kernels */
	range->gpu = gpu;
	return 0;
}

/* Whole mappings are unmapped together. */
void zc_cuda_range_unmap(struct zerod_client *client, struct zc_range *range)
{
	const struct zc_cuda *cuda = client->cuda;
	struct zc_cuda_scope scope;

	if (!cuda || !range->map)
		return;
	zc_cuda_enter_last(cuda->driver, range->gpu->context, &scope);
	(void)cuda->driver->memUnmap((zd_cu_ptr)range->map, range->bytes);
	(void)cuda->driver->memAddressFree((zd_cu_ptr)range->map, range->bytes);
	zc_cuda_leave(cuda->driver, &scope);
	range->map = NULL;
}

void zc_cuda_segments_unmap(struct zerod_client *client, struct zc_cuda *cuda)
{
	struct zc_segment *segment, *next;
	struct zc_range *range, *after;

	HASH_ITER (hh, client->ranges, range, after)
		zc_cuda_range_unmap(client, range);
	HASH_ITER (hh, client->segments, segment, next)
		unmap(cuda, segment);
}
