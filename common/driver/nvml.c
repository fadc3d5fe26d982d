/* SPDX-License-Identifier: Apache-2.0 */
/* nvml.c - NVML, loaded at run time. Its binary interface is declared here as far as it is used. */
#include "driver/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define NVML_SUCCESS           0
#define NVML_INSUFFICIENT_SIZE 7
#define NVML_EVENT_XID         8ull
#define PROCESSES_AT_FIRST     64u
#define UUID_TEXT              sizeof(((struct zd_nvml_xid *)0)->uuid_text)

struct nvml_process {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance, compute_instance;
};

struct nvml_event {
	void *device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

struct zd_nvml {
	void *library;
	void *events; /* NULL: the machine's NVML cannot tell */
	int (*init)(void);
	int (*shutdown)(void);
	const char *(*errorString)(int error);
	int (*deviceGetCount)(unsigned int *count);
	int (*deviceGetHandleByIndex)(unsigned int index, void **device);
	int (*deviceGetHandleByUuid)(const char *uuid, void **device);
	int (*deviceGetUuid)(void *device, char *uuid, unsigned int bytes);
	int (*deviceGetProcesses)(void *device, unsigned int *count, struct nvml_process *processes);
	int (*eventSetCreate)(void **set);
	int (*eventSetFree)(void *set);
	int (*deviceRegisterEvents)(void *device, unsigned long long types, void *set);
	int (*eventSetWait)(void *set, struct nvml_event *event, unsigned int timeout_ms);
};

static const struct {
	const char *name;
	size_t offset;
} functions[] = {
        {"nvmlInit_v2", offsetof(struct zd_nvml, init)},
        {"nvmlShutdown", offsetof(struct zd_nvml, shutdown)},
        {"nvmlErrorString", offsetof(struct zd_nvml, errorString)},
        {"nvmlDeviceGetCount_v2", offsetof(struct zd_nvml, deviceGetCount)},
        {"nvmlDeviceGetHandleByIndex_v2", offsetof(struct zd_nvml, deviceGetHandleByIndex)},
        {"nvmlDeviceGetHandleByUUID", offsetof(struct zd_nvml, deviceGetHandleByUuid)},
        {"nvmlDeviceGetUUID", offsetof(struct zd_nvml, deviceGetUuid)},
        {"nvmlDeviceGetComputeRunningProcesses_v3", offsetof(struct zd_nvml, deviceGetProcesses)},
        {"nvmlEventSetCreate", offsetof(struct zd_nvml, eventSetCreate)},
        {"nvmlEventSetFree", offsetof(struct zd_nvml, eventSetFree)},
        {"nvmlDeviceRegisterEvents", offsetof(struct zd_nvml, deviceRegisterEvents)},
        {"nvmlEventSetWait_v2", offsetof(struct zd_nvml, eventSetWait)},
};

static int translate(const struct zd_nvml *nvml, int result, struct zd_err *err, const char *what)
{
	const char *text;

	if (result == NVML_SUCCESS)
		return 0;
	text = nvml->errorString(result);
	return zd_err_set(err, ZEROD_E_DEVICE, "%s: NVML: %s", what, text ? text : "an error without a text");
}

/* Without events the daemon hears of a broken GPU from the driver's next answer only. */
static void watch_xids(struct zd_nvml *nvml)
{
	unsigned int count = 0;

	if (nvml->deviceGetCount(&count) || nvml->eventSetCreate(&nvml->events)) {
		nvml->events = NULL;
		return;
	}
	for (unsigned int i = 0; i < count; i++) {
		void *device;

		if (nvml->deviceGetHandleByIndex(i, &device) == NVML_SUCCESS)
			(void)nvml->deviceRegisterEvents(device, NVML_EVENT_XID, nvml->events);
	}
}

static int find_functions(struct zd_nvml *nvml, struct zd_err *err)
{
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *found = dlsym(nvml->library, functions[i].name);

		if (!found)
			return zd_err_set(err, ZEROD_E_NOT_FOUND, "libnvidia-ml.so.1 has no %s",
			                  functions[i].name);
		memcpy((char *)nvml + functions[i].offset, &found, sizeof(found));
	}
	return 0;
}

int zd_nvml_open(struct zd_nvml **nvml, struct zd_err *err)
{
	struct zd_nvml *made = zd_calloc(1, sizeof(*made));
	int rc;

	made->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!made->library) {
		rc = zd_err_set(err, ZEROD_E_NOT_FOUND, "there is no NVML: %s", dlerror());
		free(made);
		return rc;
	}
	rc = find_functions(made, err);
	if (!rc)
		rc = translate(made, made->init(), err, "initialising");
	if (rc) {
		(void)dlclose(made->library);
		free(made);
		return rc;
	}
	watch_xids(made);
	*nvml = made;
	return 0;
}

void zd_nvml_close(struct zd_nvml *nvml)
{
	if (!nvml)
		return;
	if (nvml->events)
		(void)nvml->eventSetFree(nvml->events);
	(void)nvml->shutdown();
	(void)dlclose(nvml->library);
	free(nvml);
}

static int list(struct zd_nvml *nvml, void *device, struct nvml_process **processes, unsigned int *count,
                struct zd_err *err)
{
	unsigned int room = PROCESSES_AT_FIRST;

	for (;;) {
		struct nvml_process *made = zd_calloc(room, sizeof(*made));
		unsigned int n = room;
		int result = nvml->deviceGetProcesses(device, &n, made);

		if (result == NVML_SUCCESS) {
			*processes = made;
			*count = n;
			return 0;
		}
		free(made);
		if (result != NVML_INSUFFICIENT_SIZE)
			return translate(nvml, result, err, "listing a GPU's processes");
		room = 2 * (n > room ? n : room);
	}
}

int zd_nvml_lists(struct zd_nvml *nvml, const char *uuid_text, pid_t pid, struct zd_err *err)
{
	struct nvml_process *processes;
	unsigned int count;
	void *device;
	int found = 0;
	int rc = translate(nvml, nvml->deviceGetHandleByUuid(uuid_text, &device), err, uuid_text);

	if (!rc)
		rc = list(nvml, device, &processes, &count, err);
	if (rc)
		return rc;
	for (unsigned int i = 0; i < count; i++)
		found |= processes[i].pid == (unsigned int)pid;
	free(processes);
	return found;
}

int zd_nvml_next_xid(struct zd_nvml *nvml, struct zd_nvml_xid *xid)
{
	struct nvml_event event = {.device = NULL};

	if (!nvml->events || nvml->eventSetWait(nvml->events, &event, 0) != NVML_SUCCESS ||
	    event.type != NVML_EVENT_XID)
		return 0;
	*xid = (struct zd_nvml_xid){.xid = event.data};
	if (nvml->deviceGetUuid(event.device, xid->uuid_text, UUID_TEXT) != NVML_SUCCESS)
		xid->uuid_text[0] = '\0';
	return 1;
}
