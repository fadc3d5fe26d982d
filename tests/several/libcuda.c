/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcuda.c - a CUDA driver that shows each GPU as several, for tests that want more GPUs than there are.
 *
 * It stands before the driver under the name libcuda.so.1, found by LD_LIBRARY_PATH. Of G GPUs, device D is
 * GPU D % G, so that two daemons that halve the devices have different devices of the same GPUs. The first of
 * a GPU's devices that a process retains has its primary context, each other one a context of its own: its
 * streams are its own, and kernels of two devices never run at the same time. Memory of all is the GPU's.
 *
 *   ZD_SEVERAL          how many devices there are in all, 4 by default; never less than there are GPUs
 *   ZD_SEVERAL_DRIVER   the path of the driver
 *
 * Only who asks for functions of zerod's version sees it, as daemon, library and tests do: what else is in
 * the process, NCCL and its runtime, asks for others, and sees the GPUs.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/driver.h"

#define EXPORT      __attribute__((visibility("default")))
#define DEVICES     4
#define MAX_DEVICES 16
#define MAX_HINTS   16

typedef int get_proc_fn(const char *name, void **fn, int version, uint64_t flags, int *status);

/* Functions of the driver that zerod never calls. */
typedef int context_create_fn(struct CUctx_st **context, unsigned int flags, int device);
typedef int context_destroy_fn(struct CUctx_st *context);

static struct {
	pthread_once_t once;
	get_proc_fn *get_proc;
	context_create_fn *context_create;
	context_destroy_fn *context_destroy;
	struct zd_cuda cuda;
} driver = {.once = PTHREAD_ONCE_INIT};

static struct device {
	struct CUctx_st *context;
	int retained; /* 0: it has none */
	bool has_primary;
} devices[MAX_DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of devices */
static int ngpus, ndevices;                              /* set by init() */

/* ---- The driver ---------------------------------------------------------------------------------------- */

_Noreturn static void give_up(const char *what, const char *why)
{
	(void)fprintf(stderr, "several: %s: %s\n", what, why);
	_exit(1);
}

static void find(void *library, const char *name, void *function)
{
	void *found = dlsym(library, name);

	if (!found)
		give_up("the driver", dlerror());
	memcpy(function, &found, sizeof(found));
}

static void find_functions(void)
{
	const struct {
		const char *name;
		int version;
		void *function;
	} wanted[] = {
#define FUNCTION(member, name, args) {#name, ZD_CUDA_VERSION, &driver.cuda.member},
	        ZD_CUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
#define FUNCTION(member, name, args) {#name, ZD_CUDA_NEWER_VERSION, &driver.cuda.member},
	                ZD_CUDA_NEWER_FUNCTIONS(FUNCTION)
#undef FUNCTION
	};

	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		void *found = NULL;

		if (driver.get_proc(wanted[i].name, &found, wanted[i].version, 0, NULL))
			found = NULL; /* zerod says so, if it needs it */
		memcpy(wanted[i].function, &found, sizeof(found));
	}
}

static void load_once(void)
{
	const char *path = getenv("ZD_SEVERAL_DRIVER");
	void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;

	if (!library)
		give_up("ZD_SEVERAL_DRIVER", path ? dlerror() : "not set");
	find(library, "cuGetProcAddress_v2", &driver.get_proc);
	find(library, "cuCtxCreate_v2", &driver.context_create);
	find(library, "cuCtxDestroy_v2", &driver.context_destroy);
	find_functions();
}

/* -1: there is no such device. */
static int gpu_of(int device)
{
	return device >= 0 && device < ndevices ? device % ngpus : -1;
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

static int init(unsigned int flags)
{
	const char *asked = getenv("ZD_SEVERAL");
	int wanted = asked ? (int)strtol(asked, NULL, 10) : DEVICES;
	int count = 0, result = driver.cuda.init(flags);

	if (!result)
		result = driver.cuda.deviceGetCount(&count);
	if (result)
		return result;
	if (count > MAX_DEVICES || wanted > MAX_DEVICES)
		give_up("ZD_SEVERAL", "more devices than there is room for");
	ngpus = count;
	ndevices = wanted > count ? wanted : count;
	return ZD_CU_SUCCESS;
}

static int device_get_count(int *count)
{
	*count = ndevices;
	return ZD_CU_SUCCESS;
}

static int device_get(int *device, int ordinal)
{
	if (gpu_of(ordinal) < 0)
		return ZD_CU_INVALID_DEVICE;
	*device = ordinal;
	return ZD_CU_SUCCESS;
}

/* Its first device has the GPU's. */
static int device_get_uuid(struct zd_cu_uuid *uuid, int device)
{
	int result = driver.cuda.deviceGetUuid(uuid, gpu_of(device));

	if (!result)
		uuid->bytes[0] ^= (unsigned char)(device / ngpus);
	return result;
}

static int device_get_name(char *name, int bytes, int device)
{
	return driver.cuda.deviceGetName(name, bytes, gpu_of(device));
}

static int device_get_attribute(int *value, int attribute, int device)
{
	return driver.cuda.deviceGetAttribute(value, attribute, gpu_of(device));
}

static int device_total_mem(size_t *bytes, int device)
{
	return driver.cuda.deviceTotalMem(bytes, gpu_of(device));
}

static int device_can_access_peer(int *can, int device, int peer)
{
	int from = gpu_of(device), to = gpu_of(peer);

	if (from != to || from < 0 || device == peer)
		return driver.cuda.deviceCanAccessPeer(can, from, to);
	*can = 1;
	return ZD_CU_SUCCESS;
}

/* ---- Contexts ------------------------------------------------------------------------------------------ */

static bool primary_is_taken(int gpu)
{
	for (int i = gpu; i < ndevices; i += ngpus)
		if (devices[i].retained && devices[i].has_primary)
			return true;
	return false;
}

/* No context is left current. */
static int make_context(struct device *made, int gpu)
{
	struct CUctx_st *popped;
	int result;

	made->has_primary = !primary_is_taken(gpu);
	if (made->has_primary)
		return driver.cuda.devicePrimaryCtxRetain(&made->context, gpu);
	result = driver.context_create(&made->context, 0, gpu);
	return result ? result : driver.cuda.ctxPopCurrent(&popped);
}

static int primary_retain(struct CUctx_st **context, int device)
{
	int gpu = gpu_of(device), result = ZD_CU_SUCCESS;

	if (gpu < 0)
		return ZD_CU_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	if (devices[device].retained == 0)
		result = make_context(&devices[device], gpu);
	if (!result) {
		devices[device].retained++;
		*context = devices[device].context;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

static int primary_release(int device)
{
	int gpu = gpu_of(device), result = ZD_CU_SUCCESS;

	if (gpu < 0)
		return ZD_CU_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	if (devices[device].retained == 0)
		result = ZD_CU_INVALID_CONTEXT;
	else if (--devices[device].retained == 0)
		result = devices[device].has_primary ? driver.cuda.devicePrimaryCtxRelease(gpu)
		                                     : driver.context_destroy(devices[device].context);
	pthread_mutex_unlock(&lock);
	return result;
}

static int context_get_device(int *device)
{
	struct CUctx_st *current = NULL;
	int result = driver.cuda.ctxGetDevice(device);

	if (!result)
		result = driver.cuda.ctxGetCurrent(&current);
	pthread_mutex_lock(&lock);
	for (int i = 0; i < ndevices && !result; i++)
		if (devices[i].retained && devices[i].context == current)
			*device = i;
	pthread_mutex_unlock(&lock);
	return result;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static struct zd_cu_location place(struct zd_cu_location location)
{
	if (location.type == ZD_CU_LOCATION_DEVICE)
		location.id = gpu_of(location.id);
	return location;
}

static int mem_granularity(size_t *bytes, const struct zd_cu_allocation *allocation, int option)
{
	struct zd_cu_allocation placed = *allocation;

	placed.location = place(allocation->location);
	return driver.cuda.memGetAllocationGranularity(bytes, &placed, option);
}

static int mem_create(zd_cu_memory *memory, size_t bytes, const struct zd_cu_allocation *allocation,
                      unsigned long long flags)
{
	struct zd_cu_allocation placed = *allocation;

	placed.location = place(allocation->location);
	return driver.cuda.memCreate(memory, bytes, &placed, flags);
}

static int mem_set_access(zd_cu_ptr at, size_t bytes, const struct zd_cu_access *access, size_t count)
{
	int result = ZD_CU_SUCCESS;

	for (size_t i = 0; i < count && !result; i++) {
		struct zd_cu_access placed = {place(access[i].location), access[i].flags};

		result = driver.cuda.memSetAccess(at, bytes, &placed, 1);
	}
	return result;
}

static int mem_get_access(unsigned long long *flags, const struct zd_cu_location *location, zd_cu_ptr at)
{
	struct zd_cu_location placed = place(*location);

	return driver.cuda.memGetAccess(flags, &placed, at);
}

static int copy_batch(zd_cu_ptr *dsts, zd_cu_ptr *srcs, size_t *bytes, size_t count,
                      struct zd_cu_copy_attributes *attributes, size_t *firsts, size_t nattributes,
                      struct CUstream_st *stream)
{
	struct zd_cu_copy_attributes placed[MAX_HINTS];

	if (nattributes > MAX_HINTS)
		return ZD_CU_INVALID_VALUE;
	for (size_t i = 0; i < nattributes; i++) {
		placed[i] = attributes[i];
		placed[i].source = place(attributes[i].source);
		placed[i].destination = place(attributes[i].destination);
	}
	return driver.cuda.memcpyBatchAsync(dsts, srcs, bytes, count, placed, firsts, nattributes, stream);
}

/* ---- By name ------------------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	int version;
	void *function;
} ours[] = {
        {"cuInit", ZD_CUDA_VERSION, (void *)init},
        {"cuDeviceGetCount", ZD_CUDA_VERSION, (void *)device_get_count},
        {"cuDeviceGet", ZD_CUDA_VERSION, (void *)device_get},
        {"cuDeviceGetUuid", ZD_CUDA_VERSION, (void *)device_get_uuid},
        {"cuDeviceGetName", ZD_CUDA_VERSION, (void *)device_get_name},
        {"cuDeviceGetAttribute", ZD_CUDA_VERSION, (void *)device_get_attribute},
        {"cuDeviceTotalMem", ZD_CUDA_VERSION, (void *)device_total_mem},
        {"cuDeviceCanAccessPeer", ZD_CUDA_VERSION, (void *)device_can_access_peer},
        {"cuDevicePrimaryCtxRetain", ZD_CUDA_VERSION, (void *)primary_retain},
        {"cuDevicePrimaryCtxRelease", ZD_CUDA_VERSION, (void *)primary_release},
        {"cuCtxGetDevice", ZD_CUDA_VERSION, (void *)context_get_device},
        {"cuMemGetAllocationGranularity", ZD_CUDA_VERSION, (void *)mem_granularity},
        {"cuMemCreate", ZD_CUDA_VERSION, (void *)mem_create},
        {"cuMemSetAccess", ZD_CUDA_VERSION, (void *)mem_set_access},
        {"cuMemGetAccess", ZD_CUDA_VERSION, (void *)mem_get_access},
        {"cuMemcpyBatchAsync", ZD_CUDA_NEWER_VERSION, (void *)copy_batch},
};

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	int result;

	(void)pthread_once(&driver.once, load_once);
	result = driver.get_proc(name, function, version, flags, status);
	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]) && !result; i++)
		if (version == ours[i].version && strcmp(name, ours[i].name) == 0)
			*function = ours[i].function;
	return result;
}
