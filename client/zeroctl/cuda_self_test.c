// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_self_test.c - copies between this process and a GPU, by the driver that libzerod has loaded.
 */
#include "self_test.h"

#include <zerod_cuda.h>

#include "driver/driver.h"

static int enter(const struct zd_ctl_gpu *gpu, bool *pushed, struct zd_err *err)
{
	return zd_cuda_err(gpu->driver, zd_cuda_enter(gpu->driver, gpu->context, pushed), err,
	                   "entering the context");
}

int zd_ctl_gpu_open(struct zd_ctl_gpu *gpu, zerod_client *client, const char *name, struct zd_err *err)
{
	bool pushed;
	int status = zd_cuda_load(&gpu->driver, err);
	if (!status)
		status = zd_cuda_find_device(gpu->driver, name, &gpu->device, err);
	if (!status)
		status = zd_cuda_err(gpu->driver,
		                     gpu->driver->devicePrimaryCtxRetain(&gpu->context, gpu->device), err,
		                     "opening %s", name);
	if (!status)
		status = enter(gpu, &pushed, err);
	if (status)
		return status;
	status = zd_cuda_err(
	        gpu->driver,
	        gpu->driver->streamCreateWithPriority(&gpu->cuda_stream, ZD_CU_STREAM_NON_BLOCKING, 0), err,
	        "making a stream");
	if (!status) {
		status = zerod_cuda_stream_wrap(client, gpu->cuda_stream, &gpu->stream);
		if (status)
			(void)zd_err_set(err, status, "%s", zerod_last_error(client));
	}
	zd_cuda_leave(gpu->driver, pushed);
	return status;
}

void zd_ctl_gpu_close(struct zd_ctl_gpu *gpu)
{
	struct zd_err err;
	bool pushed;
	if (!gpu->context)
		return;
	zerod_stream_destroy(gpu->stream);
	if (!enter(gpu, &pushed, &err)) {
		if (gpu->cuda_stream)
			(void)gpu->driver->streamDestroy(gpu->cuda_stream);
		zd_cuda_leave(gpu->driver, pushed);
	}
	(void)gpu->driver->devicePrimaryCtxRelease(gpu->device);
	*gpu = (struct zd_ctl_gpu){0};
}

/* One of `to_gpu` and `to_cpu` is NULL. */
static int copy(const struct zd_ctl_gpu *gpu, void *to_gpu, void *to_cpu, const void *from, size_t bytes,
                struct zd_err *err)
{
	const struct zd_cuda *driver = gpu->driver;
	bool pushed;
	int status = enter(gpu, &pushed, err);
	if (status)
		return status;
	int result = to_gpu ? driver->memcpyHtoDAsync((zd_cu_ptr)to_gpu, from, bytes, gpu->cuda_stream)
	                    : driver->memcpyDtoHAsync(to_cpu, (zd_cu_ptr)from, bytes, gpu->cuda_stream);
	if (result == ZD_CU_SUCCESS)
		result = driver->streamSynchronize(gpu->cuda_stream);
	zd_cuda_leave(driver, pushed);
	return zd_cuda_err(driver, result, err, "copying");
}

int zd_ctl_gpu_write(const struct zd_ctl_gpu *gpu, void *at, const void *from, size_t bytes,
                     struct zd_err *err)
{
	return copy(gpu, at, NULL, from, bytes, err);
}

int zd_ctl_gpu_read(const struct zd_ctl_gpu *gpu, void *to, const void *at, size_t bytes, struct zd_err *err)
{
	return copy(gpu, NULL, to, at, bytes, err);
}
