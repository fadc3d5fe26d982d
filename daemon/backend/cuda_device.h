/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_device.h - the GPUs that the daemon drives: which, what they can, who reaches whose memory, which have
 * failed.
 *
 * A GPU's primary context is retained as long as the daemon runs. A GPU that has failed stays so: whatever
 * the driver says afterwards, its commands end with DEVICE and the first error's words.
 */
#ifndef ZD_BACKEND_CUDA_DEVICE_H
#define ZD_BACKEND_CUDA_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "driver/driver.h"
#include "proto/limits.h"

struct zd_err;

struct zd_cuda_device {
	const struct zd_cuda *cuda;
	uint32_t index; /* the daemon's */
	int ordinal;    /* the driver's */
	char name[ZD_CUDA_UUID_TEXT];
	char model[64];
	struct CUctx_st *context;
	uint64_t memory_bytes;
	uint64_t granularity_bytes; /* of physical allocations; a power of two */
	uint32_t multiprocessors;
	bool rdma;        /* GPUDirect RDMA with memory that is made like ours */
	uint64_t reaches; /* bit i: it can access device i's memory directly; its own too */

	_Atomic uint64_t in_ns,
	        out_ns; /* until then its links are taken, into its memory and out of it: cuda_turns.h */
	_Atomic uint64_t due_bytes,
	        due_to;   /* what of its large pushes has not been issued, and to whom, a bit each */
	atomic_bool idle; /* as far as is known; zd_cuda_monitor looks */
	atomic_bool failed;
	pthread_mutex_t lock; /* of the text */
	char failure[ZD_FAILURE_TEXT];
};

struct zd_cuda_devices {
	const struct zd_cuda *cuda;
	uint32_t count;
	struct zd_cuda_device *all;
	_Atomic uint32_t distance; /* of the latest turn, of any: cuda_turns.h */
};

/* To be called before the driver is loaded for the daemon; again does no harm. */
void zd_cuda_devices_prepare(void);

/* Loads the driver and takes the GPUs that `chosen` lists by UUID or by the driver's index, between commas or
 * blanks; NULL, "" or "all": every GPU that this process sees. On failure there is nothing to deinit. Errors:
 * those of zd_cuda_load(); NOT_FOUND, INVALID for the choice; INVALID for a compute mode without room for
 * trainers; UNSUPPORTED; NO_MEMORY, DEVICE. */
int zd_cuda_devices_init(struct zd_cuda_devices *devices, const char *chosen, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Gives the contexts back. */
void zd_cuda_devices_deinit(struct zd_cuda_devices *devices);

static inline bool zd_cuda_device_reaches(const struct zd_cuda_device *device, uint32_t other)
{
	return device->reaches >> other & 1;
}

/* Marks it failed and logs why; the first time counts. From any thread. */
void zd_cuda_device_fail(struct zd_cuda_device *device, const char *why);
static inline bool zd_cuda_device_failed(const struct zd_cuda_device *device)
{
	return atomic_load_explicit(&device->failed, memory_order_acquire);
}
/* Of a device that has failed: sets `err` to DEVICE with the name and the first error's words, and returns
 * that. */
int zd_cuda_device_failure(struct zd_cuda_device *device, struct zd_err *err);
/* Has it failed: then with these words. */
bool zd_cuda_device_why(struct zd_cuda_device *device, char why[ZD_FAILURE_TEXT]);
/* Turns the driver's answer into ours. An error that is not for want of memory marks the device failed. */
int zd_cuda_device_err(struct zd_cuda_device *device, int result, struct zd_err *err, const char *what)
        __attribute__((warn_unused_result));
/* Has work on a stream of its own gone wrong: then it is marked. Its context is current. */
void zd_cuda_device_check(struct zd_cuda_device *device, struct CUstream_st *stream);

/* Makes its context current for the calling thread, for good; failing that, the device has failed. */
void zd_cuda_device_enter(struct zd_cuda_device *device);
/* The same until zd_cuda_leave(), for what is given back: a failure is none of the device's. Is it to be
 * left. */
bool zd_cuda_device_push(const struct zd_cuda_device *device);

/* Do kernels run there most of the time, or may they. */
static inline bool zd_cuda_device_is_busy(const struct zd_cuda_device *device)
{
	return !atomic_load_explicit(&device->idle, memory_order_relaxed);
}

/* The properties of memory on the device, for memCreate. */
struct zd_cu_allocation zd_cuda_device_allocation(const struct zd_cuda_device *device);

#endif
