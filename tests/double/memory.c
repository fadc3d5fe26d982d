/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - physical device memory: memfds that can be handed to other processes, and how much of a device
 * is left.
 *
 * Memory lives while it has a handle or a mapping here, and its bytes as long as anybody has a descriptor.
 * Only memory that was created counts against the device, not what was imported.
 */
#include "tests/double/double.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FD_NAME "zd-double-gpu-" /* followed by the index on the node */

static TAILQ_HEAD(, double_memory) memories = TAILQ_HEAD_INITIALIZER(memories);
static zd_cu_memory last_handle = 0x7a640000;

int double_count_memory(void)
{
	struct double_memory *memory;
	int count = 0;

	TAILQ_FOREACH (memory, &memories, link)
		count += memory->handle != 0;
	return count;
}

struct double_memory *double_memory_find(zd_cu_memory handle)
{
	struct double_memory *memory;

	TAILQ_FOREACH (memory, &memories, link)
		if (handle && memory->handle == handle)
			return memory;
	return NULL;
}

void double_memory_ref(struct double_memory *memory)
{
	memory->refs++;
}

void double_memory_unref(struct double_memory *memory)
{
	if (--memory->refs > 0)
		return;
	TAILQ_REMOVE(&memories, memory, link);
	(void)munmap(memory->alias, memory->bytes);
	(void)close(memory->fd);
	free(memory);
}

static uint64_t available_bytes(int device)
{
	uint64_t used = double_taken_bytes(double_config()->visible[device]);
	struct double_memory *memory;

	TAILQ_FOREACH (memory, &memories, link)
		if (memory->device == device && !memory->imported)
			used += memory->bytes;
	return used < double_config()->memory_bytes ? double_config()->memory_bytes - used : 0;
}

int cuMemGetInfo(size_t *available, size_t *total)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);

	if (result)
		return result;
	*available = available_bytes(double_current()->device);
	*total = double_config()->memory_bytes;
	return double_leave(ZD_CU_SUCCESS);
}

/* ---- Creating ------------------------------------------------------------------------------------------ */

static int check_allocation(const struct zd_cu_allocation *allocation)
{
	int device = allocation->location.id;

	if (allocation->type != ZD_CU_ALLOCATION_PINNED ||
	    allocation->location.type != ZD_CU_LOCATION_DEVICE || allocation->win32)
		return ZD_CU_INVALID_VALUE;
	if (!double_is_device(device))
		return ZD_CU_INVALID_DEVICE;
	if (allocation->handle_types != 0 && allocation->handle_types != ZD_CU_HANDLE_POSIX_FD)
		return ZD_CU_NOT_SUPPORTED;
	if (!double_has_attribute(device, ZD_CU_ATTR_VMM_SUPPORTED) ||
	    (allocation->handle_types && !double_has_attribute(device, ZD_CU_ATTR_POSIX_FD_SUPPORTED)) ||
	    (allocation->flags.gpu_direct_rdma && !double_has_attribute(device, ZD_CU_ATTR_RDMA_SUPPORTED)))
		return ZD_CU_NOT_SUPPORTED;
	return ZD_CU_SUCCESS;
}

int cuMemGetAllocationGranularity(size_t *bytes, const struct zd_cu_allocation *allocation, int option)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);

	if (result)
		return result;
	result = check_allocation(allocation);
	if (!result && option != ZD_CU_GRANULARITY_MINIMUM && option != 1)
		result = ZD_CU_INVALID_VALUE;
	if (!result)
		*bytes = DOUBLE_GRANULARITY;
	return double_leave(result);
}

/* Takes the descriptor over, also when it fails. */
static int add_memory(struct double_memory *from, zd_cu_memory *handle)
{
	struct double_memory *made = malloc(sizeof(*made));

	*handle = 0;
	if (made) {
		*made = *from;
		made->alias = mmap(NULL, made->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
	}
	if (!made || made->alias == MAP_FAILED) {
		(void)close(from->fd);
		free(made);
		return ZD_CU_OUT_OF_MEMORY;
	}
	made->refs = made->nhandles = 1;
	made->handle = ++last_handle;
	TAILQ_INSERT_TAIL(&memories, made, link);
	*handle = made->handle;
	return ZD_CU_SUCCESS;
}

static int create(zd_cu_memory *handle, size_t bytes, const struct zd_cu_allocation *allocation)
{
	struct double_memory made = {.device = allocation->location.id,
	                             .exportable = allocation->handle_types != 0,
	                             .bytes = bytes};
	char name[64];

	if (bytes > available_bytes(made.device))
		return ZD_CU_OUT_OF_MEMORY;
	(void)snprintf(name, sizeof(name), FD_NAME "%d", double_config()->visible[made.device]);
	made.fd = memfd_create(name, MFD_CLOEXEC);
	if (made.fd < 0)
		return ZD_CU_OUT_OF_MEMORY;
	if (ftruncate(made.fd, (off_t)bytes) != 0) {
		(void)close(made.fd);
		return ZD_CU_OUT_OF_MEMORY;
	}
	return add_memory(&made, handle);
}

int cuMemCreate(zd_cu_memory *memory, size_t bytes, const struct zd_cu_allocation *allocation,
                unsigned long long flags)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);

	if (result)
		return result;
	result = check_allocation(allocation);
	if (!result && (bytes == 0 || bytes % DOUBLE_GRANULARITY || flags))
		result = ZD_CU_INVALID_VALUE;
	return double_leave(result ? result : create(memory, bytes, allocation));
}

/* Memory that is mapped stays, without a handle. */
int cuMemRelease(zd_cu_memory memory)
{
	int after = 0, result = double_enter_giving_back(__func__, DOUBLE_NEEDS_INIT, &after);
	struct double_memory *found;

	if (result)
		return result;
	found = double_memory_find(memory);
	if (!found)
		return double_leave(ZD_CU_INVALID_VALUE);
	if (--found->nhandles == 0)
		found->handle = 0;
	double_memory_unref(found);
	return double_leave(after);
}

/* The handle of what is mapped there, which may have been released. */
int cuMemRetainAllocationHandle(zd_cu_memory *memory, void *at)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_mapping *mapping;

	if (result)
		return result;
	mapping = double_mapping_at((zd_cu_ptr)(uintptr_t)at);
	if (!mapping)
		return double_leave(ZD_CU_INVALID_VALUE);
	if (mapping->memory->nhandles++ == 0)
		mapping->memory->handle = ++last_handle;
	double_memory_ref(mapping->memory);
	*memory = mapping->memory->handle;
	return double_leave(ZD_CU_SUCCESS);
}

/* ---- Descriptors --------------------------------------------------------------------------------------- */

int cuMemExportToShareableHandle(void *handle, zd_cu_memory memory, int type, unsigned long long flags)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);
	struct double_memory *found;
	int fd;

	if (result)
		return result;
	found = double_memory_find(memory);
	if (!found || !found->exportable || type != ZD_CU_HANDLE_POSIX_FD || flags)
		return double_leave(ZD_CU_INVALID_VALUE);
	fd = fcntl(found->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return double_leave(ZD_CU_OUT_OF_MEMORY);
	memcpy(handle, &fd, sizeof(fd));
	return double_leave(ZD_CU_SUCCESS);
}

/* The ordinal of the device whose memory the descriptor is: -1 if it is no such memory, -2 if the device is
 * not visible. */
static int device_of(int fd)
{
	char path[64], name[128] = "";
	const char *found;
	int index;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, name, sizeof(name) - 1) < 0)
		return -1;
	found = strstr(name, "memfd:" FD_NAME);
	if (!found)
		return -1;
	index = (int)strtol(found + strlen("memfd:" FD_NAME), NULL, 10);
	for (int i = 0; i < double_config()->nvisible; i++)
		if (double_config()->visible[i] == index)
			return i;
	return -2;
}

static int import(zd_cu_memory *handle, int fd)
{
	struct double_memory made = {.device = device_of(fd), .exportable = true, .imported = true};
	struct stat status;

	if (made.device < 0)
		return made.device == -1 ? ZD_CU_INVALID_VALUE : ZD_CU_INVALID_DEVICE;
	if (fstat(fd, &status) != 0 || status.st_size <= 0)
		return ZD_CU_INVALID_VALUE;
	made.bytes = (size_t)status.st_size;
	made.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (made.fd < 0)
		return ZD_CU_OUT_OF_MEMORY;
	return add_memory(&made, handle);
}

/* The caller keeps its descriptor. */
int cuMemImportFromShareableHandle(zd_cu_memory *memory, void *handle, int type)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);

	if (result)
		return result;
	if (type != ZD_CU_HANDLE_POSIX_FD)
		return double_leave(ZD_CU_INVALID_VALUE);
	return double_leave(import(memory, (int)(intptr_t)handle));
}

/* The type of memory only: of a device, or registered; none of other memory of the CPU. */
int cuPointerGetAttribute(void *value, int attribute, zd_cu_ptr at)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);

	if (result)
		return result;
	if (attribute != ZD_CU_POINTER_MEMORY_TYPE)
		return double_leave(ZD_CU_INVALID_VALUE);
	if (double_is_reserved(at))
		*(unsigned int *)value = ZD_CU_MEMORY_OF_DEVICE;
	else if (double_host_find(double_pointer(at), 1))
		*(unsigned int *)value = 1;
	else
		return double_leave(ZD_CU_INVALID_VALUE);
	return double_leave(ZD_CU_SUCCESS);
}
