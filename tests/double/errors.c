/* SPDX-License-Identifier: Apache-2.0 */
/* errors.c - results by name. Callable at any time, and no call that counts. */
#include "tests/double/double.h"

static const struct {
	int result;
	const char *name, *text;
} results[] = {
        {ZD_CU_SUCCESS, "CUDA_SUCCESS", "no error"},
        {ZD_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
        {ZD_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
        {ZD_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
        {ZD_CU_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
        {ZD_CU_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device(s) is/are busy or unavailable"},
        {ZD_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no device is detected"},
        {ZD_CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
        {ZD_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
        {ZD_CU_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
        {ZD_CU_NVLINK_UNCORRECTABLE, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error"},
        {ZD_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
        {DOUBLE_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be done in this state"},
        {ZD_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
        {ZD_CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
        {ZD_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
        {DOUBLE_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
        {ZD_CU_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
         "part or all of the requested memory range is already mapped"},
        {DOUBLE_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
         "pointer does not correspond to a registered memory region"},
        {DOUBLE_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
        {ZD_CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
        {ZD_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
        {ZD_CU_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system driver mismatch"},
        {ZD_CU_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
         "operation not permitted when stream is capturing"},
        {ZD_CU_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
         "operation failed due to a previous error during capture"},
        {DOUBLE_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
         "operation would result in a merge of separate capture sequences"},
        {DOUBLE_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
         "capture was not ended in the same stream as it began"},
        {DOUBLE_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
         "dependency created on uncaptured work in another stream"},
        {DOUBLE_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
         "operation would make the legacy stream depend on a capturing blocking stream"},
        {DOUBLE_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
         "operation not permitted on an event last recorded in a capturing stream"},
        {DOUBLE_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
         "attempt to terminate a thread-local capture sequence from another thread"},
};

static int find(int error)
{
	for (int i = 0; i < (int)(sizeof(results) / sizeof(results[0])); i++)
		if (results[i].result == error)
			return i;
	return -1;
}

int cuGetErrorName(int error, const char **name)
{
	int i = find(error);

	*name = i < 0 ? NULL : results[i].name;
	return i < 0 ? ZD_CU_INVALID_VALUE : ZD_CU_SUCCESS;
}

int cuGetErrorString(int error, const char **text)
{
	int i = find(error);

	*text = i < 0 ? NULL : results[i].text;
	return i < 0 ? ZD_CU_INVALID_VALUE : ZD_CU_SUCCESS;
}
