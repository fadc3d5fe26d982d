// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_gpu_list.c - the GPUs that this process sees, read by a child process.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "client/zerobench/bench.h"
#include "client/zerobench/cuda_gpu.h"

struct listing {
	struct zd_gpu_list list;
	struct zd_err err;
};

static int describe_gpu(const struct zd_cuda *cuda, int ordinal, struct zd_gpu_list *list, struct zd_err *err)
{
	struct zd_cu_uuid uuid;
	size_t bytes = 0;
	int device = 0;
	int status = zd_cuda_err(cuda, cuda->deviceGet(&device, ordinal), err, "GPU %d", ordinal);
	if (!status)
		status = zd_cuda_err(cuda, cuda->deviceGetUuid(&uuid, device), err, "the UUID of GPU %d",
		                     ordinal);
	if (!status)
		status = zd_cuda_err(cuda, cuda->deviceTotalMem(&bytes, device), err, "the memory of GPU %d",
		                     ordinal);
	if (status)
		return status;
	zd_cuda_uuid_text(&uuid, list->names[ordinal]);
	if (ordinal == 0 || bytes < list->memory_bytes)
		list->memory_bytes = bytes;
	return 0;
}

static int list_gpus(struct zd_gpu_list *list, struct zd_err *err)
{
	const struct zd_cuda *cuda;
	int count = 0;
	int status = zd_cuda_load(&cuda, err);
	if (!status)
		status = zd_cuda_err(cuda, cuda->deviceGetCount(&count), err, "counting GPUs");
	count = count < ZD_GPU_MAX ? count : ZD_GPU_MAX;
	for (int i = 0; i < count && !status; i++)
		status = describe_gpu(cuda, i, list, err);
	list->count = (uint32_t)count;
	return status;
}

int zd_gpu_list(struct zd_gpu_list *list, struct zd_err *err)
{
	struct listing *shared = zd_shared_new(sizeof(*shared), err);
	int wait_status = 0;
	if (!shared)
		return ZEROD_E_SYSTEM;
	shared->err.status = ZEROD_E_DEVICE;
	const pid_t pid = fork();
	if (pid == 0) {
		struct zd_err said = ZD_ERR_NONE;
		(void)list_gpus(&shared->list, &said);
		shared->err = said;
		_exit(0);
	}
	while (pid > 0 && waitpid(pid, &wait_status, 0) < 0)
		continue;
	int status = shared->err.status;
	if (status)
		zd_err_set(err, status, "%s",
		           shared->err.text[0] ? shared->err.text
		                               : "the CUDA driver ended the process that asked it");
	else
		*list = shared->list;
	zd_shared_free(shared, sizeof(*shared));
	return status;
}
