/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - the few functions of CUDA that the examples for GPUs use. A trainer links CUDA, includes its
 * headers and runs kernels where these programs copy. Here the functions are looked up in the driver, so that
 * the examples can be built without CUDA.
 */
#ifndef ZEROD_EXAMPLES_GPU_H
#define ZEROD_EXAMPLES_GPU_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zerod.h>

/* glibc's; errno.h has it for _GNU_SOURCE alone. NOLINTNEXTLINE(readability-redundant-declaration) */
extern char *program_invocation_short_name;

static int (*cuInit)(unsigned int flags);
static int (*cuDeviceGetCount)(int *count);
static int (*cuDeviceGetUuid)(unsigned char uuid[16], int device);
static int (*cuDevicePrimaryCtxRetain)(void **context, int device);
static int (*cuCtxSetCurrent)(void *context);
static int (*cuStreamCreateWithPriority)(void **stream, unsigned int flags, int priority);
static int (*cuMemcpyHtoDAsync)(void *to, const void *from, size_t bytes, void *stream);
static int (*cuMemcpyDtoHAsync)(void *to, const void *from, size_t bytes, void *stream);

/* Uses the driver's own look-up, which knows versions. */
static int (*cuGetProcAddress)(const char *name, void **function, int version, uint64_t flags, int *status);

static void resolve_symbol(const char *name, void *function)
{
	void *found = NULL;
	if (cuGetProcAddress(name, &found, 12000, 0, NULL) || !found) {
		fprintf(stderr, "%s: the driver has no %s\n", program_invocation_short_name, name);
		exit(EXIT_FAILURE);
	}
	memcpy(function, &found, sizeof(found));
}

static void load_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	void *found = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;
	if (!found) {
		fprintf(stderr, "%s: there is no CUDA driver\n", program_invocation_short_name);
		exit(EXIT_FAILURE);
	}
	memcpy(&cuGetProcAddress, &found, sizeof(found));
	resolve_symbol("cuInit", &cuInit);
	resolve_symbol("cuDeviceGetCount", &cuDeviceGetCount);
	resolve_symbol("cuDeviceGetUuid", &cuDeviceGetUuid);
	resolve_symbol("cuDevicePrimaryCtxRetain", &cuDevicePrimaryCtxRetain);
	resolve_symbol("cuCtxSetCurrent", &cuCtxSetCurrent);
	resolve_symbol("cuStreamCreateWithPriority", &cuStreamCreateWithPriority);
	resolve_symbol("cuMemcpyHtoDAsync", &cuMemcpyHtoDAsync);
	resolve_symbol("cuMemcpyDtoHAsync", &cuMemcpyDtoHAsync);
}

static void must(int result, const char *what)
{
	if (result == 0)
		return;
	fprintf(stderr, "%s: %s: CUDA error %d\n", program_invocation_short_name, what, result);
	exit(EXIT_FAILURE);
}

/* Ends the process with the library's text if a call has failed. */
static void check(const zerod_client *client, int status, const char *what)
{
	if (status == ZEROD_OK)
		return;
	fprintf(stderr, "%s: %s: %s: %s\n", program_invocation_short_name, what, zerod_status_name(status),
	        zerod_last_error(client));
	exit(-status);
}

/* Finds the GPU by its UUID, because the daemon numbers GPUs independently of this process. */
static int find_gpu(const char *name)
{
	int count = 0;
	must(cuInit(0), "cuInit");
	must(cuDeviceGetCount(&count), "cuDeviceGetCount");
	for (int device = 0; device < count; device++) {
		unsigned char uuid[16];
		char text[48] = "GPU-";
		must(cuDeviceGetUuid(uuid, device), "cuDeviceGetUuid");
		for (int i = 0; i < 16; i++)
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%02x",
			         i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
		if (strcmp(text, name) == 0)
			return device;
	}
	fprintf(stderr, "%s: this process does not see %s\n", program_invocation_short_name, name);
	exit(EXIT_FAILURE);
}

/* Chooses a GPU of the daemon: one per rank, as far as they suffice. Its context becomes the thread's. */
static uint32_t take_gpu(zerod_client *client, uint32_t local_rank)
{
	struct zerod_device_info info = ZEROD_INIT(info);
	uint32_t count = 0;
	void *context;
	while (zerod_device_get(client, count, &info) == ZEROD_OK)
		count++;
	check(client, zerod_device_get(client, local_rank % (count ? count : 1), &info), "device");
	must(cuDevicePrimaryCtxRetain(&context, find_gpu(info.name)), "cuDevicePrimaryCtxRetain");
	must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	return info.index;
}

#endif
