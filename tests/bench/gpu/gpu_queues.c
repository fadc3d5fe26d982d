/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_queues.c - what parked waits do to other streams. 64 streams; some have a wait on a host-memory fence
 * parked, each of the others gets a small kernel (or a copy from the host): how many of those get through
 * before the fence is set. Run for CUDA_DEVICE_MAX_CONNECTIONS unset, 1, 8 and 32, which the driver reads
 * when a context is made.
 */
#include "gpu_common.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define STREAMS     64
#define PATIENCE_US 100e3

struct rig {
	CUstream streams[STREAMS];
	struct gpu_page page;
	CUdeviceptr memory;
	CUfunction touch;
	uint64_t fence;
	void *host;
};

static void submit(struct rig *rig, CUstream stream, bool copy)
{
	void *args[] = {&rig->memory};

	if (copy)
		GPU_MUST(cuMemcpyHtoDAsync(rig->memory + 64, rig->host, 64, stream));
	else
		GPU_MUST(cuLaunchKernel(rig->touch, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
}

static int through(struct rig *rig, int parked)
{
	int done = 0;

	for (int i = parked; i < STREAMS; i++) {
		CUresult result = cuStreamQuery(rig->streams[i]);

		if (result == CUDA_SUCCESS)
			done++;
		else if (result != CUDA_ERROR_NOT_READY)
			GPU_MUST(result);
	}
	return done;
}

static void measure(struct rig *rig, int parked, bool copy)
{
	double begin, submitted, released;
	int done = 0;

	rig->fence++;
	for (int i = 0; i < parked; i++)
		GPU_MUST(cuStreamWaitValue64(rig->streams[i], rig->page.device, rig->fence,
		                             CU_STREAM_WAIT_VALUE_GEQ));
	begin = gpu_now_us();
	for (int i = parked; i < STREAMS; i++)
		submit(rig, rig->streams[i], copy);
	submitted = gpu_now_us() - begin;
	while (done < STREAMS - parked && gpu_now_us() - begin < PATIENCE_US)
		done = through(rig, parked);
	begin = gpu_now_us();
	__atomic_store_n(rig->page.host, rig->fence, __ATOMIC_RELEASE);
	GPU_MUST(cuCtxSynchronize());
	released = gpu_now_us() - begin;
	printf("    %2d parked: %2d of %2d %s got through; submitting took %.0f us, all done %.0f us after "
	       "the release\n",
	       parked, done, STREAMS - parked, copy ? "copies" : "kernels", submitted, released);
}

static void queues_main(int sock, void *arg)
{
	static const int parked[] = {0, 1, 2, 4, 7, 8, 16, 31, 32, 48, 63};
	int fd = gpu_page_new(4096);
	struct rig rig = {0};

	(void)sock;
	if (arg)
		setenv("CUDA_DEVICE_MAX_CONNECTIONS", arg, 1);
	else
		unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
	gpu_open(0);
	rig.touch = gpu_kernel("touch");
	rig.page = gpu_page_map(fd, 4096);
	GPU_MUST(cuMemAlloc(&rig.memory, 4096));
	GPU_MUST(cuMemAllocHost(&rig.host, 4096));
	for (int i = 0; i < STREAMS; i++)
		rig.streams[i] = gpu_stream(false);
	for (int i = 0; i < STREAMS; i++) {
		submit(&rig, rig.streams[i], false);
		submit(&rig, rig.streams[i], true);
	}
	GPU_MUST(cuCtxSynchronize());
	printf("  CUDA_DEVICE_MAX_CONNECTIONS %s\n", arg ? (const char *)arg : "unset");
	for (int copy = 0; copy < 2; copy++)
		for (size_t i = 0; i < sizeof(parked) / sizeof(parked[0]); i++)
			measure(&rig, parked[i], copy);
}

int main(void)
{
	static char *const connections[] = {NULL, "1", "8", "32"};

	alarm(120);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("64 streams, some with a parked wait\n");
	for (size_t i = 0; i < sizeof(connections) / sizeof(connections[0]); i++) {
		struct gpu_child child = gpu_child_start(queues_main, connections[i]);

		if (gpu_child_wait(&child) != 0)
			return 1;
	}
	return 0;
}
