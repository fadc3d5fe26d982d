/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_abi.c - the declarations of driver.h against cuda.h's, where that is installed: sizes, offsets,
 * numbers, and that the functions exist. Without cuda.h there is nothing to compare with.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "driver/driver.h"

#if defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#define HAS_CUDA_H 1
#endif
#endif

#ifdef HAS_CUDA_H

#define SAME(ours, theirs)      assert_int_equal((long long)(ours), (long long)(theirs))
#define SAME_SIZE(ours, theirs) SAME(sizeof(ours), sizeof(theirs))
#define SAME_PLACE(ours, our_member, theirs, their_member)                                                   \
	do {                                                                                                 \
		SAME(offsetof(ours, our_member), offsetof(theirs, their_member));                            \
		SAME(sizeof(((ours *)0)->our_member), sizeof(((theirs *)0)->their_member));                  \
	} while (0)

static void test_types(void **state)
{
	(void)state;
	SAME_SIZE(zd_cu_ptr, CUdeviceptr);
	SAME_SIZE(zd_cu_memory, CUmemGenericAllocationHandle);
	SAME_SIZE(int, CUdevice);
	SAME_SIZE(int, CUresult);
	SAME_SIZE(struct zd_cu_uuid, CUuuid);
	SAME_SIZE(struct zd_cu_location, CUmemLocation);
	SAME_PLACE(struct zd_cu_location, type, CUmemLocation, type);
	SAME_PLACE(struct zd_cu_location, id, CUmemLocation, id);
	SAME_SIZE(struct zd_cu_access, CUmemAccessDesc);
	SAME_PLACE(struct zd_cu_access, location, CUmemAccessDesc, location);
	SAME_PLACE(struct zd_cu_access, flags, CUmemAccessDesc, flags);
}

static void test_allocation(void **state)
{
	(void)state;
	SAME_SIZE(struct zd_cu_allocation, CUmemAllocationProp);
	SAME_PLACE(struct zd_cu_allocation, type, CUmemAllocationProp, type);
	SAME_PLACE(struct zd_cu_allocation, handle_types, CUmemAllocationProp, requestedHandleTypes);
	SAME_PLACE(struct zd_cu_allocation, location, CUmemAllocationProp, location);
	SAME_PLACE(struct zd_cu_allocation, win32, CUmemAllocationProp, win32HandleMetaData);
	SAME_PLACE(struct zd_cu_allocation, flags, CUmemAllocationProp, allocFlags);
	SAME_PLACE(struct zd_cu_allocation, flags.compression, CUmemAllocationProp,
	           allocFlags.compressionType);
	SAME_PLACE(struct zd_cu_allocation, flags.gpu_direct_rdma, CUmemAllocationProp,
	           allocFlags.gpuDirectRDMACapable);
	SAME_PLACE(struct zd_cu_allocation, flags.usage, CUmemAllocationProp, allocFlags.usage);
}

#if CUDA_VERSION >= ZD_CUDA_NEWER_VERSION
static void test_copy_attributes(void **state)
{
	(void)state;
	SAME_SIZE(struct zd_cu_copy_attributes, CUmemcpyAttributes);
	SAME_PLACE(struct zd_cu_copy_attributes, source_order, CUmemcpyAttributes, srcAccessOrder);
	SAME_PLACE(struct zd_cu_copy_attributes, source, CUmemcpyAttributes, srcLocHint);
	SAME_PLACE(struct zd_cu_copy_attributes, destination, CUmemcpyAttributes, dstLocHint);
	SAME_PLACE(struct zd_cu_copy_attributes, flags, CUmemcpyAttributes, flags);
	SAME(ZD_CU_SOURCE_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
}
#endif

static void test_rows(void **state)
{
	(void)state;
	SAME_SIZE(struct zd_cu_copy_peer, CUDA_MEMCPY3D_PEER);
	SAME_PLACE(struct zd_cu_copy_peer, source.type, CUDA_MEMCPY3D_PEER, srcMemoryType);
	SAME_PLACE(struct zd_cu_copy_peer, source.at, CUDA_MEMCPY3D_PEER, srcDevice);
	SAME_PLACE(struct zd_cu_copy_peer, source.context, CUDA_MEMCPY3D_PEER, srcContext);
	SAME_PLACE(struct zd_cu_copy_peer, source.height, CUDA_MEMCPY3D_PEER, srcHeight);
	SAME_PLACE(struct zd_cu_copy_peer, destination.at, CUDA_MEMCPY3D_PEER, dstDevice);
	SAME_PLACE(struct zd_cu_copy_peer, depth, CUDA_MEMCPY3D_PEER, Depth);
	SAME(ZD_CU_MEMORY_UNIFIED, CU_MEMORYTYPE_UNIFIED);
}

static void test_memory_operations(void **state)
{
	(void)state;
	SAME_SIZE(union zd_cu_mem_op, CUstreamBatchMemOpParams);
	SAME_PLACE(union zd_cu_mem_op, operation, CUstreamBatchMemOpParams, operation);
	SAME_PLACE(union zd_cu_mem_op, wait.operation, CUstreamBatchMemOpParams, waitValue.operation);
	SAME_PLACE(union zd_cu_mem_op, wait.address, CUstreamBatchMemOpParams, waitValue.address);
	SAME_PLACE(union zd_cu_mem_op, wait.value, CUstreamBatchMemOpParams, waitValue.value64);
	SAME_PLACE(union zd_cu_mem_op, wait.flags, CUstreamBatchMemOpParams, waitValue.flags);
	SAME_PLACE(union zd_cu_mem_op, wait.alias, CUstreamBatchMemOpParams, waitValue.alias);
	SAME_PLACE(union zd_cu_mem_op, write.operation, CUstreamBatchMemOpParams, writeValue.operation);
	SAME_PLACE(union zd_cu_mem_op, write.address, CUstreamBatchMemOpParams, writeValue.address);
	SAME_PLACE(union zd_cu_mem_op, write.value, CUstreamBatchMemOpParams, writeValue.value64);
	SAME_PLACE(union zd_cu_mem_op, write.flags, CUstreamBatchMemOpParams, writeValue.flags);
	SAME_PLACE(union zd_cu_mem_op, write.alias, CUstreamBatchMemOpParams, writeValue.alias);
	SAME(ZD_CU_OP_WAIT_64, CU_STREAM_MEM_OP_WAIT_VALUE_64);
	SAME(ZD_CU_OP_WRITE_64, CU_STREAM_MEM_OP_WRITE_VALUE_64);
}

static void test_results(void **state)
{
	(void)state;
	SAME(ZD_CU_SUCCESS, CUDA_SUCCESS);
	SAME(ZD_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
	SAME(ZD_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
	SAME(ZD_CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
	SAME(ZD_CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
	SAME(ZD_CU_DEVICE_UNAVAILABLE, CUDA_ERROR_DEVICE_UNAVAILABLE);
	SAME(ZD_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
	SAME(ZD_CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
	SAME(ZD_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
	SAME(ZD_CU_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
	SAME(ZD_CU_NVLINK_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE);
	SAME(ZD_CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
	SAME(ZD_CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
	SAME(ZD_CU_NOT_READY, CUDA_ERROR_NOT_READY);
	SAME(ZD_CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
	SAME(ZD_CU_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	SAME(ZD_CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
	SAME(ZD_CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
	SAME(ZD_CU_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
	SAME(ZD_CU_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	SAME(ZD_CU_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void test_flags_and_modes(void **state)
{
	(void)state;
	SAME(ZD_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
	SAME(ZD_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
	SAME(ZD_CU_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	SAME(ZD_CU_ACCESS_NONE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	SAME(ZD_CU_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
	SAME(ZD_CU_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	SAME(ZD_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	SAME(ZD_CU_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
	SAME(ZD_CU_HOST_REGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
	SAME(ZD_CU_HOST_ALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
	SAME(ZD_CU_HOST_ALLOC_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP);
	SAME(ZD_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
	SAME(ZD_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
	SAME(ZD_CU_WAIT_GEQ, CU_STREAM_WAIT_VALUE_GEQ);
	SAME(ZD_CU_WRITE_DEFAULT, CU_STREAM_WRITE_VALUE_DEFAULT);
	SAME(ZD_CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
	SAME(ZD_CU_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
	SAME(ZD_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
	SAME(ZD_CU_COMPUTE_EXCLUSIVE_PROCESS, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
	SAME(ZD_CU_COMPUTE_PROHIBITED, CU_COMPUTEMODE_PROHIBITED);
	assert_ptr_equal(ZD_CU_STREAM_LEGACY, CU_STREAM_LEGACY);
	assert_ptr_equal(ZD_CU_STREAM_PER_THREAD, CU_STREAM_PER_THREAD);
}

static void test_attributes(void **state)
{
	(void)state;
	SAME(ZD_CU_ATTR_PCI_BUS, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
	SAME(ZD_CU_ATTR_PCI_DEVICE, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
	SAME(ZD_CU_ATTR_PCI_DOMAIN, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
	SAME(ZD_CU_ATTR_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	SAME(ZD_CU_ATTR_COMPUTE_MODE, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
	SAME(ZD_CU_ATTR_CAN_USE_HOST_POINTER, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
	SAME(ZD_CU_ATTR_VMM_SUPPORTED, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
	SAME(ZD_CU_ATTR_POSIX_FD_SUPPORTED, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
	SAME(ZD_CU_ATTR_RDMA_SUPPORTED, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	SAME(ZD_CU_ATTR_CAN_USE_64_BIT_MEM_OPS, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
}

/* Their types are C's business only where both headers name them alike, so that a look at cuda.h stays
 * necessary. */
static void test_functions_exist(void **state)
{
	(void)state;
#define EXISTS(member, name, args) (void)sizeof(&(name));
	ZD_CUDA_FUNCTIONS(EXISTS)
#if CUDA_VERSION >= ZD_CUDA_NEWER_VERSION
	ZD_CUDA_NEWER_FUNCTIONS(EXISTS)
#endif
#undef EXISTS
}

#else

static void test_without_cuda_h(void **state)
{
	(void)state;
	print_message("there is no cuda.h to compare with\n");
	skip();
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
#ifdef HAS_CUDA_H
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_allocation),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_memory_operations),
#if CUDA_VERSION >= ZD_CUDA_NEWER_VERSION
		cmocka_unit_test(test_copy_attributes),
#endif
		cmocka_unit_test(test_results),
		cmocka_unit_test(test_flags_and_modes),
		cmocka_unit_test(test_attributes),
		cmocka_unit_test(test_functions_exist),
#else
		cmocka_unit_test(test_without_cuda_h),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
