/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.h - the CUDA driver, loaded at run time.
 *
 * Daemon and library are built on machines without CUDA and run on machines without a GPU. The build
 * therefore needs neither cuda.h nor libcuda.so.1. This file declares the few types, numbers and functions of
 * the driver's stable binary interface that zerod uses, under the driver's own structure tags. If cuda.h
 * exists, tests/unit/driver/test_abi.c compares each with it. Handles are pointers to the driver's incomplete
 * structures, so that they are not mixed up.
 *
 * Functions are called through the table, `cuda->memCreate(...)`, and return a CUresult as int. zd_cuda_err()
 * translates the result into a status of zerod with the driver's text. Any thread can call all functions.
 */
#ifndef ZD_DRIVER_DRIVER_H
#define ZD_DRIVER_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct zd_err;

/* The version of the interface that is requested; the oldest driver that has all of it is 525. */
#define ZD_CUDA_VERSION 12000

/* ---- Types --------------------------------------------------------------------------------------------- */

typedef uint64_t zd_cu_ptr;    /* CUdeviceptr */
typedef uint64_t zd_cu_memory; /* CUmemGenericAllocationHandle */
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUmod_st;
struct CUfunc_st;

struct zd_cu_uuid {
	unsigned char bytes[16];
};

struct zd_cu_location {
	int type; /* ZD_CU_LOCATION_DEVICE */
	int id;
};

struct zd_cu_allocation {
	int type;         /* ZD_CU_ALLOCATION_PINNED */
	int handle_types; /* ZD_CU_HANDLE_POSIX_FD */
	struct zd_cu_location location;
	void *win32;
	struct {
		unsigned char compression;
		unsigned char gpu_direct_rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

struct zd_cu_access {
	struct zd_cu_location location;
	int flags; /* ZD_CU_ACCESS_*, of whole mappings */
};

/* The attributes of a range of copies in memcpyBatchAsync. */
struct zd_cu_copy_attributes {
	int source_order;                          /* ZD_CU_SOURCE_ORDER_STREAM */
	struct zd_cu_location source, destination; /* hints */
	unsigned int flags;
};

/* CUDA_MEMCPY3D_PEER */
struct zd_cu_copy_peer {
	struct zd_cu_place_peer {
		size_t x, y, z, lod;
		int type; /* ZD_CU_MEMORY_UNIFIED */
		const void *host;
		zd_cu_ptr at;
		void *array;
		struct CUctx_st *context;
		size_t pitch, height;
	} source, destination;
	size_t width, height, depth;
};

/* An operation of streamBatchMemOp. */
union zd_cu_mem_op {
	int operation; /* enum zd_cu_mem_op_kind */
	struct {
		int operation;
		zd_cu_ptr address;
		uint64_t value;
		unsigned int flags;
		zd_cu_ptr alias;
	} wait, write;
	uint64_t pad[6];
};

enum zd_cu_mem_op_kind { ZD_CU_OP_WAIT_64 = 4, ZD_CU_OP_WRITE_64 = 5 };

enum zd_cu_result {
	ZD_CU_SUCCESS = 0,
	ZD_CU_INVALID_VALUE = 1,
	ZD_CU_OUT_OF_MEMORY = 2,
	ZD_CU_NOT_INITIALIZED = 3,
	ZD_CU_DEINITIALIZED = 4,
	ZD_CU_DEVICE_UNAVAILABLE = 46,
	ZD_CU_NO_DEVICE = 100,
	ZD_CU_INVALID_DEVICE = 101,
	ZD_CU_INVALID_CONTEXT = 201,
	ZD_CU_ECC_UNCORRECTABLE = 214,
	ZD_CU_NVLINK_UNCORRECTABLE = 220,
	ZD_CU_INVALID_HANDLE = 400,
	ZD_CU_NOT_FOUND = 500,
	ZD_CU_NOT_READY = 600,
	ZD_CU_ILLEGAL_ADDRESS = 700,
	ZD_CU_HOST_MEMORY_ALREADY_REGISTERED = 712,
	ZD_CU_NOT_PERMITTED = 800,
	ZD_CU_NOT_SUPPORTED = 801,
	ZD_CU_SYSTEM_DRIVER_MISMATCH = 803,
	ZD_CU_STREAM_CAPTURE_UNSUPPORTED = 900,
	ZD_CU_STREAM_CAPTURE_INVALIDATED = 901,
	ZD_CU_STREAM_CAPTURE_IMPLICIT = 906,
};

enum {
	ZD_CU_LOCATION_DEVICE = 1,
	ZD_CU_ALLOCATION_PINNED = 1,
	ZD_CU_HANDLE_POSIX_FD = 1,
	ZD_CU_ACCESS_NONE = 0,
	ZD_CU_ACCESS_READ = 1,
	ZD_CU_ACCESS_READWRITE = 3,
	ZD_CU_GRANULARITY_MINIMUM = 0,
	ZD_CU_HOST_REGISTER_PORTABLE = 1,
	ZD_CU_HOST_REGISTER_DEVICEMAP = 2,
	ZD_CU_HOST_ALLOC_PORTABLE = 1,
	ZD_CU_HOST_ALLOC_DEVICEMAP = 2,
	ZD_CU_STREAM_NON_BLOCKING = 1,
	ZD_CU_EVENT_DISABLE_TIMING = 2,
	ZD_CU_POINTER_MEMORY_TYPE = 2, /* of pointerGetAttribute, with the results */
	ZD_CU_MEMORY_OF_DEVICE = 2,
	ZD_CU_MEMORY_UNIFIED = 4,
	ZD_CU_WAIT_GEQ = 0, /* cyclic: (int64_t)(*address - value) >= 0 */
	ZD_CU_WRITE_DEFAULT = 0,
	ZD_CU_CAPTURE_NONE = 0,   /* a result of streamIsCapturing */
	ZD_CU_CAPTURE_GLOBAL = 0, /* modes */
	ZD_CU_CAPTURE_RELAXED = 2,
	/* device attributes */
	ZD_CU_ATTR_MULTIPROCESSORS = 16,
	ZD_CU_ATTR_COMPUTE_MODE = 20,
	ZD_CU_ATTR_PCI_BUS = 33,
	ZD_CU_ATTR_PCI_DEVICE = 34,
	ZD_CU_ATTR_PCI_DOMAIN = 50,
	ZD_CU_ATTR_PAGEABLE_MEMORY_ACCESS = 88, /* kernels reach all memory of the process */
	ZD_CU_ATTR_CAN_USE_HOST_POINTER = 91,
	ZD_CU_ATTR_VMM_SUPPORTED = 102,
	ZD_CU_ATTR_POSIX_FD_SUPPORTED = 103,
	ZD_CU_ATTR_RDMA_SUPPORTED = 110, /* GPUDirect RDMA with memCreate */
	ZD_CU_ATTR_CAN_USE_64_BIT_MEM_OPS = 122,
	ZD_CU_COMPUTE_EXCLUSIVE_PROCESS = 3,
	ZD_CU_COMPUTE_PROHIBITED = 2,
};

/* Special handles: CU_STREAM_LEGACY is another name of NULL, CU_STREAM_PER_THREAD is a stream for each
 * thread. */
#define ZD_CU_STREAM_LEGACY     ((struct CUstream_st *)1)
#define ZD_CU_STREAM_PER_THREAD ((struct CUstream_st *)2)

#define ZD_CU_SOURCE_ORDER_STREAM 1 /* sources are read in the order of the stream */

/* ---- Functions ----------------------------------------------------------------------------------------- */

/* F(member, the driver's name, its arguments). Streams of NULL are the legacy default stream of the current
 * context. */
#define ZD_CUDA_FUNCTIONS(F)                                                                                 \
	F(init, cuInit, (unsigned int flags))                                                                \
	F(driverGetVersion, cuDriverGetVersion, (int *version))                                              \
	F(getErrorName, cuGetErrorName, (int error, const char **name))                                      \
	F(getErrorString, cuGetErrorString, (int error, const char **text))                                  \
	F(deviceGetCount, cuDeviceGetCount, (int *count))                                                    \
	F(deviceGet, cuDeviceGet, (int *device, int ordinal))                                                \
	F(deviceGetUuid, cuDeviceGetUuid, (struct zd_cu_uuid * uuid, int device))                            \
	F(deviceGetName, cuDeviceGetName, (char *name, int bytes, int device))                               \
	F(deviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, int device))                 \
	F(deviceTotalMem, cuDeviceTotalMem, (size_t * bytes, int device))                                    \
	F(deviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, int device, int peer))                      \
	F(devicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (struct CUctx_st * *context, int device))        \
	F(devicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, (int device))                                  \
	F(ctxGetCurrent, cuCtxGetCurrent, (struct CUctx_st * *context))                                      \
	F(ctxSetCurrent, cuCtxSetCurrent, (struct CUctx_st * context))                                       \
	F(ctxPushCurrent, cuCtxPushCurrent, (struct CUctx_st * context))                                     \
	F(ctxPopCurrent, cuCtxPopCurrent, (struct CUctx_st * *context))                                      \
	F(ctxGetDevice, cuCtxGetDevice, (int *device))                                                       \
	F(ctxSynchronize, cuCtxSynchronize, (void))                                                          \
	F(ctxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int *least, int *greatest))               \
	F(memGetInfo, cuMemGetInfo, (size_t * available, size_t * total))                                    \
	F(memGetAllocationGranularity, cuMemGetAllocationGranularity,                                        \
	  (size_t * bytes, const struct zd_cu_allocation *allocation, int option))                           \
	F(memCreate, cuMemCreate,                                                                            \
	  (zd_cu_memory * memory, size_t bytes, const struct zd_cu_allocation *allocation,                   \
	   unsigned long long flags))                                                                        \
	F(memRelease, cuMemRelease, (zd_cu_memory memory))                                                   \
	F(memAddressReserve, cuMemAddressReserve,                                                            \
	  (zd_cu_ptr * at, size_t bytes, size_t alignment, zd_cu_ptr hint, unsigned long long flags))        \
	F(memAddressFree, cuMemAddressFree, (zd_cu_ptr at, size_t bytes))                                    \
	F(memMap, cuMemMap,                                                                                  \
	  (zd_cu_ptr at, size_t bytes, size_t offset, zd_cu_memory memory, unsigned long long flags))        \
	F(memUnmap, cuMemUnmap, (zd_cu_ptr at, size_t bytes))                                                \
	F(memRetainAllocationHandle, cuMemRetainAllocationHandle, (zd_cu_memory * memory, void *at))         \
	F(memSetAccess, cuMemSetAccess,                                                                      \
	  (zd_cu_ptr at, size_t bytes, const struct zd_cu_access *access, size_t count))                     \
	F(memGetAccess, cuMemGetAccess,                                                                      \
	  (unsigned long long *flags, const struct zd_cu_location *location, zd_cu_ptr at))                  \
	F(memExportToShareableHandle, cuMemExportToShareableHandle,                                          \
	  (void *handle, zd_cu_memory memory, int type, unsigned long long flags))                           \
	F(memImportFromShareableHandle, cuMemImportFromShareableHandle,                                      \
	  (zd_cu_memory * memory, void *handle, int type))                                                   \
	F(memHostRegister, cuMemHostRegister, (void *at, size_t bytes, unsigned int flags))                  \
	F(memHostUnregister, cuMemHostUnregister, (void *at))                                                \
	F(memHostGetDevicePointer, cuMemHostGetDevicePointer,                                                \
	  (zd_cu_ptr * device, void *host, unsigned int flags))                                              \
	F(memHostAlloc, cuMemHostAlloc, (void **at, size_t bytes, unsigned int flags))                       \
	F(memFreeHost, cuMemFreeHost, (void *at))                                                            \
	F(pointerGetAttribute, cuPointerGetAttribute, (void *value, int attribute, zd_cu_ptr at))            \
	F(memcpyAsync, cuMemcpyAsync,                                                                        \
	  (zd_cu_ptr dst, zd_cu_ptr src, size_t bytes, struct CUstream_st * stream))                         \
	F(memcpyPeerAsync, cuMemcpyPeerAsync,                                                                \
	  (zd_cu_ptr dst, struct CUctx_st * dst_context, zd_cu_ptr src, struct CUctx_st * src_context,       \
	   size_t bytes, struct CUstream_st * stream))                                                       \
	F(memcpy3DPeerAsync, cuMemcpy3DPeerAsync,                                                            \
	  (const struct zd_cu_copy_peer *copy, struct CUstream_st *stream))                                  \
	F(memcpyHtoDAsync, cuMemcpyHtoDAsync,                                                                \
	  (zd_cu_ptr dst, const void *src, size_t bytes, struct CUstream_st *stream))                        \
	F(memcpyDtoHAsync, cuMemcpyDtoHAsync,                                                                \
	  (void *dst, zd_cu_ptr src, size_t bytes, struct CUstream_st *stream))                              \
	F(memsetD8Async, cuMemsetD8Async,                                                                    \
	  (zd_cu_ptr dst, unsigned char value, size_t bytes, struct CUstream_st *stream))                    \
	F(streamCreateWithPriority, cuStreamCreateWithPriority,                                              \
	  (struct CUstream_st * *stream, unsigned int flags, int priority))                                  \
	F(streamDestroy, cuStreamDestroy, (struct CUstream_st * stream))                                     \
	F(streamSynchronize, cuStreamSynchronize, (struct CUstream_st * stream))                             \
	F(streamQuery, cuStreamQuery, (struct CUstream_st * stream))                                         \
	F(streamGetCtx, cuStreamGetCtx, (struct CUstream_st * stream, struct CUctx_st * *context))           \
	F(streamIsCapturing, cuStreamIsCapturing, (struct CUstream_st * stream, int *status))                \
	F(streamBeginCapture, cuStreamBeginCapture, (struct CUstream_st * stream, int mode))                 \
	F(streamEndCapture, cuStreamEndCapture, (struct CUstream_st * stream, struct CUgraph_st * *graph))   \
	F(graphDestroy, cuGraphDestroy, (struct CUgraph_st * graph))                                         \
	F(threadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (int *mode))                   \
	F(streamWaitValue64, cuStreamWaitValue64,                                                            \
	  (struct CUstream_st * stream, zd_cu_ptr at, uint64_t value, unsigned int flags))                   \
	F(streamWriteValue64, cuStreamWriteValue64,                                                          \
	  (struct CUstream_st * stream, zd_cu_ptr at, uint64_t value, unsigned int flags))                   \
	F(streamBatchMemOp, cuStreamBatchMemOp,                                                              \
	  (struct CUstream_st * stream, unsigned int count, union zd_cu_mem_op *ops, unsigned int flags))    \
	F(streamWaitEvent, cuStreamWaitEvent,                                                                \
	  (struct CUstream_st * stream, struct CUevent_st * event, unsigned int flags))                      \
	F(eventCreate, cuEventCreate, (struct CUevent_st * *event, unsigned int flags))                      \
	F(eventRecord, cuEventRecord, (struct CUevent_st * event, struct CUstream_st * stream))              \
	F(eventQuery, cuEventQuery, (struct CUevent_st * event))                                             \
	F(eventSynchronize, cuEventSynchronize, (struct CUevent_st * event))                                 \
	F(eventElapsedTime, cuEventElapsedTime, (float *ms, struct CUevent_st *from, struct CUevent_st *to)) \
	F(eventDestroy, cuEventDestroy, (struct CUevent_st * event))                                         \
	F(moduleLoadData, cuModuleLoadData, (struct CUmod_st * *module, const void *image))                  \
	F(moduleUnload, cuModuleUnload, (struct CUmod_st * module))                                          \
	F(moduleGetFunction, cuModuleGetFunction,                                                            \
	  (struct CUfunc_st * *function, struct CUmod_st * module, const char *name))                        \
	F(launchKernel, cuLaunchKernel,                                                                      \
	  (struct CUfunc_st * function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,       \
	   unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,      \
	   struct CUstream_st *stream, void **params, void **extra))

/* Functions of newer drivers, from ZD_CUDA_NEWER_VERSION on, or NULL. The copies of a batch have no order
 * among each other. The batch as a whole is in the stream's order. */
#define ZD_CUDA_NEWER_VERSION 13000
#define ZD_CUDA_NEWER_FUNCTIONS(F)                                                                           \
	F(memcpyBatchAsync, cuMemcpyBatchAsync,                                                              \
	  (zd_cu_ptr * dsts, zd_cu_ptr * srcs, size_t * bytes, size_t count,                                 \
	   struct zd_cu_copy_attributes * attributes, size_t * firsts, size_t nattributes,                   \
	   struct CUstream_st * stream))

struct zd_cuda {
#define ZD_CUDA_MEMBER(member, name, args) int(*member) args; /* NOLINT: a declarator */
	ZD_CUDA_FUNCTIONS(ZD_CUDA_MEMBER)
	ZD_CUDA_NEWER_FUNCTIONS(ZD_CUDA_MEMBER)
#undef ZD_CUDA_MEMBER
};

/*
 * Loads libcuda.so.1 at the first call and initialises it; the library stays loaded. Threads may call it at
 * the same time.
 * Errors: NOT_FOUND (no driver, or no GPU that this process may see), UNSUPPORTED (the driver is older than
 * ZD_CUDA_VERSION; both versions in the text), DEVICE with the driver's words.
 */
int zd_cuda_load(const struct zd_cuda **cuda, struct zd_err *err) __attribute__((warn_unused_result));

/* Returns 0 for success. Otherwise sets `err` to "WHAT: NAME (text)" - NO_MEMORY for the driver's out of
 * memory, DEVICE for all others - and returns its status. */
int zd_cuda_err(const struct zd_cuda *cuda, int result, struct zd_err *err, const char *what, ...)
        __attribute__((format(printf, 4, 5), warn_unused_result));

/* Makes the context current for this thread unless it is current already; zd_cuda_leave() undoes that. */
int zd_cuda_enter(const struct zd_cuda *cuda, struct CUctx_st *context, bool *pushed)
        __attribute__((warn_unused_result));
void zd_cuda_leave(const struct zd_cuda *cuda, bool pushed);

/* Writes "GPU-12345678-1234-1234-1234-123456789abc", as nvidia-smi does. */
#define ZD_CUDA_UUID_TEXT 41
void zd_cuda_uuid_text(const struct zd_cu_uuid *uuid, char text[ZD_CUDA_UUID_TEXT]);
/* Finds the ordinal of the GPU with that name. Errors: NOT_FOUND, with the GPUs that this process sees. */
int zd_cuda_find_device(const struct zd_cuda *cuda, const char *uuid_text, int *device, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
