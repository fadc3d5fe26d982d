/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_device.h - the GPUs that the daemon drives: their properties, peer access and failures.
 *
 * Each GPU's primary context is retained as long as the daemon runs. A failure is permanent: all further
 * commands of the GPU end with DEVICE and the text of the first error, even if the driver reports success
 * again.
 */
#ifndef ZD_EXECUTOR_CUDA_DEVICE_H
#define ZD_EXECUTOR_CUDA_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/driver.h"
#include "executor/backend.h"
#include "proto/limits.h"

struct zd_cuda_device {
	const struct zd_cuda *cuda;
	uint32_t index; /* the daemon's number */
	int ordinal;    /* the driver's number */
	char name[ZD_CUDA_UUID_TEXT];
	char model[64];
	char pci_address[16]; /* "": the driver does not say */
	struct CUctx_st *context;
	uint64_t memory_bytes;
	uint64_t granularity_bytes; /* of physical allocations; a power of two */
	uint32_t multiprocessors;
	bool rdma;        /* GPUDirect RDMA works with the daemon's kind of allocation */
	uint64_t reaches; /* bit i: this device has access to the memory of device i, or is device i */

	_Atomic uint64_t in_ns,
	        out_ns; /* the inward and outward links are reserved until then: cuda_link_scheduler.h */
	_Atomic uint64_t offered_bytes,
	        offered_targets; /* of its large pushes that are not issued yet; targets as bits */
	atomic_bool failed;
	pthread_mutex_t lock; /* protects `failure` */
	char failure[ZD_FAILURE_TEXT];
};

/* Queues of a GPU's executor have the numbers of the devices to which its tasks write, except these two. They
 * limit the number of devices, including host memory. */
#define ZD_CUDA_QUEUE_UP     (ZD_MAX_DEVICES - 1) /* copies from host memory */
#define ZD_CUDA_QUEUE_DOWN   (ZD_MAX_DEVICES - 2) /* copies to host memory */
#define ZD_CUDA_MOST_DEVICES (ZD_MAX_DEVICES - 2)

struct zd_cuda_devices {
	const struct zd_cuda *cuda;
	uint32_t count;
	bool host_memory; /* a device is host memory */
	struct zd_cuda_device *all;
	_Atomic uint32_t
	        distance; /* the distance of the latest link slot of any device: cuda_link_scheduler.h */
};

/* Sets the environment for the driver. Must be called before the driver is loaded; repeated calls are
 * harmless. */
void zd_cuda_devices_prepare(void);

/* Loads the driver and opens the GPUs that `chosen` lists by UUID or by the driver's index, separated by
 * commas or blanks; NULL, "" or "all": every GPU that this process sees. On failure there is nothing to
 * deinit. Errors: those of zd_cuda_load(); NOT_FOUND, INVALID for the choice; INVALID for a compute mode that
 * allows no context beside the daemon's; UNSUPPORTED; NO_MEMORY, DEVICE. */
int zd_cuda_devices_init(struct zd_cuda_devices *devices, const char *chosen, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Releases the contexts. */
void zd_cuda_devices_deinit(struct zd_cuda_devices *devices);

static inline bool zd_cuda_device_reaches(const struct zd_cuda_device *device, uint32_t other)
{
	return device->reaches >> other & 1;
}

/* Marks the device failed and logs the reason. Only the first call has an effect. Thread-safe. */
void zd_cuda_device_fail(struct zd_cuda_device *device, const char *why);
static inline bool zd_cuda_device_failed(const struct zd_cuda_device *device)
{
	return atomic_load_explicit(&device->failed, memory_order_acquire);
}
/* Returns DEVICE for a device that has failed, and sets `err` to the device's name and the first error's
 * text. */
int zd_cuda_device_failure(struct zd_cuda_device *device, struct zd_err *err);
/* Returns whether the device has failed, and then copies the reason to `why`. */
bool zd_cuda_device_why(struct zd_cuda_device *device, char why[ZD_FAILURE_TEXT]);
/* Translates the driver's result into `err`. Every error but a lack of memory marks the device failed. */
int zd_cuda_device_err(struct zd_cuda_device *device, int result, struct zd_err *err, const char *what)
        __attribute__((warn_unused_result));
/* Marks the device failed if the driver reports an error of the stream. The device's context is current. */
void zd_cuda_device_check(struct zd_cuda_device *device, struct CUstream_st *stream);

/* Makes the device's context current for the calling thread, permanently. On failure the device is marked
 * failed. */
void zd_cuda_device_enter(struct zd_cuda_device *device);
/* Makes the context current until zd_cuda_leave(), for code that frees resources: a failure does not mark the
 * device. Returns the second argument for zd_cuda_leave(). */
bool zd_cuda_device_push(const struct zd_cuda_device *device);

/* Returns the properties of memory on the device, for memCreate. */
struct zd_cu_allocation zd_cuda_device_allocation(const struct zd_cuda_device *device);

#endif
