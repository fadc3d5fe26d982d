/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvml.c - the double of NVML, as far as common/driver/nvml.c uses it: a libnvidia-ml.so.1.
 *
 * It shows all GPUs of the node, whatever CUDA_VISIBLE_DEVICES says. Processes are listed by the files in
 * ZD_DOUBLE_DIR (listed.c). A file xid-INDEX there, with a number in it, is an Xid that the GPU reports once.
 */
#include "tests/double/config.h"
#include "tests/double/listing.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	TIMEOUT = 10,
	UNKNOWN = 999,
};
#define EVENT_XID 8ull

struct process {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance, compute_instance;
};

struct event {
	void *device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

struct event_set {
	bool registered[DOUBLE_MAX_DEVICES];
};

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT const char *nvmlErrorString(int error);
EXPORT int nvmlDeviceGetCount_v2(unsigned int *count);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device);
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
EXPORT int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int bytes);
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count,
                                                   struct process *processes);
EXPORT int nvmlEventSetCreate(void **set);
EXPORT int nvmlEventSetFree(void *set);
EXPORT int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set);
EXPORT int nvmlEventSetWait_v2(void *set, struct event *event, unsigned int timeout_ms);

/* How often it was initialised; touched by atomic operations, since any thread may. */
static int initialised;

/* A device's handle is the address of its element. */
static char handles[DOUBLE_MAX_DEVICES];

static int index_of(const void *device)
{
	for (int i = 0; i < double_config()->ndevices; i++)
		if (device == &handles[i])
			return i;
	return -1;
}

static int check(void)
{
	return __atomic_load_n(&initialised, __ATOMIC_ACQUIRE) > 0 ? SUCCESS : UNINITIALIZED;
}

/* ---- Begin and end ------------------------------------------------------------------------------------- */

int nvmlInit_v2(void)
{
	(void)__atomic_add_fetch(&initialised, 1, __ATOMIC_ACQ_REL);
	return SUCCESS;
}

int nvmlShutdown(void)
{
	if (check())
		return UNINITIALIZED;
	(void)__atomic_sub_fetch(&initialised, 1, __ATOMIC_ACQ_REL);
	return SUCCESS;
}

const char *nvmlErrorString(int error)
{
	switch (error) {
	case SUCCESS:
		return "Success";
	case UNINITIALIZED:
		return "Uninitialized";
	case INVALID_ARGUMENT:
		return "Invalid Argument";
	case NOT_FOUND:
		return "Not Found";
	case INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case TIMEOUT:
		return "Timeout";
	default:
		return "Unknown Error";
	}
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

int nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (check())
		return UNINITIALIZED;
	*count = (unsigned int)double_config()->ndevices;
	return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
	if (check())
		return UNINITIALIZED;
	if (index >= (unsigned int)double_config()->ndevices)
		return INVALID_ARGUMENT;
	*device = &handles[index];
	return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
	int index;

	if (check())
		return UNINITIALIZED;
	if (!uuid)
		return INVALID_ARGUMENT;
	index = strlen(uuid) == DOUBLE_UUID_TEXT - 1
	                ? double_find_uuid(double_config(), uuid, DOUBLE_UUID_TEXT - 1)
	                : -1;
	if (index < 0)
		return NOT_FOUND;
	*device = &handles[index];
	return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int bytes)
{
	int index = index_of(device);

	if (check())
		return UNINITIALIZED;
	if (index < 0)
		return INVALID_ARGUMENT;
	if (bytes < DOUBLE_UUID_TEXT)
		return INSUFFICIENT_SIZE;
	double_uuid_text(index, uuid);
	return SUCCESS;
}

/* ---- Processes ----------------------------------------------------------------------------------------- */

/* As many as there is room for; returns how many there are. */
static unsigned int list(const char *path, int index, struct process *processes, unsigned int room)
{
	DIR *dir = path ? opendir(path) : NULL;
	const struct dirent *entry;
	unsigned int count = 0;

	while (dir && (entry = readdir(dir)) != NULL) {
		pid_t pid = double_listed_pid(entry->d_name, index);

		if (pid <= 0 || !double_listed_is(path, entry->d_name))
			continue;
		if (count < room)
			processes[count] = (struct process){.pid = (unsigned int)pid};
		count++;
	}
	if (dir)
		(void)closedir(dir);
	return count;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, struct process *processes)
{
	int index = index_of(device);
	unsigned int room;

	if (check())
		return UNINITIALIZED;
	if (index < 0 || !count || (*count && !processes))
		return INVALID_ARGUMENT;
	room = *count;
	*count = list(double_config()->dir, index, processes, room);
	return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* ---- Events -------------------------------------------------------------------------------------------- */

int nvmlEventSetCreate(void **set)
{
	if (check())
		return UNINITIALIZED;
	*set = calloc(1, sizeof(struct event_set));
	return *set ? SUCCESS : UNKNOWN;
}

int nvmlEventSetFree(void *set)
{
	if (check())
		return UNINITIALIZED;
	free(set);
	return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
	struct event_set *events = set;
	int index = index_of(device);

	if (check())
		return UNINITIALIZED;
	if (index < 0 || !events)
		return INVALID_ARGUMENT;
	events->registered[index] |= (types & EVENT_XID) != 0;
	return SUCCESS;
}

/* Taken by a rename, so that one caller of all has it. */
static bool take_xid(int index, unsigned long long *xid)
{
	char path[PATH_MAX], taken[PATH_MAX + 32], text[32] = "";
	FILE *file;

	if (!double_config()->dir)
		return false;
	(void)snprintf(path, sizeof(path), "%s/xid-%d", double_config()->dir, index);
	(void)snprintf(taken, sizeof(taken), "%s.%d", path, (int)getpid());
	if (rename(path, taken) != 0)
		return false;
	file = fopen(taken, "re");
	if (file) {
		*xid = fgets(text, sizeof(text), file) ? strtoull(text, NULL, 10) : 0;
		(void)fclose(file);
	}
	(void)unlink(taken);
	return file != NULL;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned int timeout_ms)
{
	const struct timespec tick = {.tv_nsec = 1000000};
	const struct event_set *events = set;
	unsigned long long xid = 0;

	if (check())
		return UNINITIALIZED;
	for (unsigned int waited = 0;; waited++) {
		for (int i = 0; i < double_config()->ndevices; i++) {
			if (!events->registered[i] || !take_xid(i, &xid))
				continue;
			*event = (struct event){.device = &handles[i], .type = EVENT_XID, .data = xid};
			return SUCCESS;
		}
		if (waited >= timeout_ms)
			return TIMEOUT;
		(void)nanosleep(&tick, NULL);
	}
}
