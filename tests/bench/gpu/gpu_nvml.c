/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_nvml.c - the few questions to NVML. The library is loaded at run time and its types are declared here,
 * since the toolkit does not always bring its header.
 */
#include "gpu_common.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* NVML's nvmlProcessInfo_t, version 3 of the listing. */
struct process_row {
	unsigned pid;
	unsigned long long used_bytes;
	unsigned gpu_instance;
	unsigned compute_instance;
};

/* NVML's nvmlMemory_t. */
struct memory_row {
	unsigned long long total_bytes;
	unsigned long long free_bytes;
	unsigned long long used_bytes;
};

struct gpu_nvml {
	void *device;
	int (*processes)(void *device, unsigned *count, struct process_row *rows);
	int (*memory)(void *device, struct memory_row *row);
	int (*persistence)(void *device, int *on);
};

#define ROWS_MAX 256u

static void *find(void *library, const char *name)
{
	void *found = library ? dlsym(library, name) : NULL;

	if (found)
		return found;
	fprintf(stderr, "NVML: no %s: %s\n", name, dlerror());
	_exit(1);
}

static void nvml_must(int result, const char *call)
{
	if (result == 0)
		return;
	fprintf(stderr, "NVML: %s gave %d\n", call, result);
	_exit(1);
}

struct gpu_nvml *gpu_nvml_open(int device)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	struct gpu_nvml *nvml = calloc(1, sizeof(*nvml));
	int (*init)(void);
	int (*by_index)(unsigned, void **);

	SYS_MUST(nvml ? 0 : -1);
	*(void **)&init = find(library, "nvmlInit_v2");
	*(void **)&by_index = find(library, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&nvml->processes = find(library, "nvmlDeviceGetComputeRunningProcesses_v3");
	*(void **)&nvml->memory = find(library, "nvmlDeviceGetMemoryInfo");
	*(void **)&nvml->persistence = find(library, "nvmlDeviceGetPersistenceMode");
	nvml_must(init(), "nvmlInit_v2");
	nvml_must(by_index((unsigned)device, &nvml->device), "nvmlDeviceGetHandleByIndex_v2");
	return nvml;
}

static unsigned list(struct gpu_nvml *nvml, struct process_row rows[ROWS_MAX])
{
	unsigned count = ROWS_MAX;

	nvml_must(nvml->processes(nvml->device, &count, rows), "nvmlDeviceGetComputeRunningProcesses_v3");
	return count;
}

bool gpu_nvml_lists(struct gpu_nvml *nvml, pid_t pid)
{
	struct process_row rows[ROWS_MAX];
	unsigned count = list(nvml, rows);

	for (unsigned i = 0; i < count; i++)
		if (rows[i].pid == (unsigned)pid)
			return true;
	return false;
}

unsigned gpu_nvml_processes(struct gpu_nvml *nvml)
{
	struct process_row rows[ROWS_MAX];

	return list(nvml, rows);
}

double gpu_nvml_used_mib(struct gpu_nvml *nvml)
{
	struct memory_row row;

	nvml_must(nvml->memory(nvml->device, &row), "nvmlDeviceGetMemoryInfo");
	return (double)row.used_bytes / (double)MIB;
}

int gpu_nvml_persistence(struct gpu_nvml *nvml)
{
	int on = -1;

	nvml_must(nvml->persistence(nvml->device, &on), "nvmlDeviceGetPersistenceMode");
	return on;
}
