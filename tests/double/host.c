/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - host memory that devices may touch: registered by its owner, or allocated here.
 *
 * It is given back when the operations on it have ended: unregistering and freeing wait for them.
 */
#include "tests/double/double.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static TAILQ_HEAD(, double_host) hosts = TAILQ_HEAD_INITIALIZER(hosts);

int double_count_hosts(void)
{
	struct double_host *host;
	int count = 0;

	TAILQ_FOREACH (host, &hosts, link)
		count++;
	return count;
}

struct double_host *double_host_find(const void *at, size_t bytes)
{
	struct double_host *host;
	uintptr_t from = (uintptr_t)at;

	TAILQ_FOREACH (host, &hosts, link) {
		uintptr_t first = (uintptr_t)host->at;

		if (from >= first && from - first < host->bytes && bytes <= host->bytes - (from - first))
			return host;
	}
	return NULL;
}

struct double_host *double_host_find_device(zd_cu_ptr at, size_t bytes)
{
	struct double_host *host;

	TAILQ_FOREACH (host, &hosts, link)
		if (host->mapped && at >= host->device_at && at - host->device_at < host->bytes &&
		    bytes <= host->bytes - (at - host->device_at))
			return host;
	return NULL;
}

/* ---- Checks -------------------------------------------------------------------------------------------- */

/* The driver pins pages to write to them: so all of them must be there, writable. */
static bool is_writable(uintptr_t at, size_t bytes)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t to = at + bytes;
	char *line = NULL;
	size_t room = 0;

	while (maps && at < to && getline(&line, &room, maps) > 0) {
		char *end = NULL;
		uintptr_t first = strtoull(line, &end, 16);
		uintptr_t last = strtoull(end + 1, &end, 16);

		if (first <= at && at < last && end[1] == 'r' && end[2] == 'w')
			at = last;
	}
	free(line);
	if (maps)
		(void)fclose(maps);
	return at >= to;
}

static bool overlaps(const void *at, size_t bytes)
{
	struct double_host *host;
	uintptr_t from = (uintptr_t)at;

	TAILQ_FOREACH (host, &hosts, link)
		if (from < (uintptr_t)host->at + host->bytes && (uintptr_t)host->at < from + bytes)
			return true;
	return false;
}

/* ---- Begin and end ------------------------------------------------------------------------------------- */

/* Where devices see it: at its own address, or at one that the CPU cannot follow. */
static zd_cu_ptr device_address(void *at, size_t bytes)
{
	void *other;

	if (double_has_attribute(double_current()->device, ZD_CU_ATTR_CAN_USE_HOST_POINTER))
		return (zd_cu_ptr)(uintptr_t)at;
	other = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return other == MAP_FAILED ? 0 : (zd_cu_ptr)(uintptr_t)other;
}

static int add_host(void *at, size_t bytes, unsigned int flags, bool allocated)
{
	struct double_host *made = calloc(1, sizeof(*made));

	if (!made)
		return ZD_CU_OUT_OF_MEMORY;
	made->at = at;
	made->bytes = bytes;
	made->allocated = allocated;
	/* The same bit for both calls. What is allocated is always mapped where addresses are unified. */
	made->mapped = allocated || (flags & ZD_CU_HOST_REGISTER_DEVICEMAP);
	made->device_at = device_address(at, bytes);
	if (!made->device_at) {
		free(made);
		return ZD_CU_OUT_OF_MEMORY;
	}
	TAILQ_INSERT_TAIL(&hosts, made, link);
	return ZD_CU_SUCCESS;
}

/* Takes it out of the list first, so that nothing new begins on it. */
static void remove_host(struct double_host *host)
{
	TAILQ_REMOVE(&hosts, host, link);
	while (host->pending > 0)
		double_wait(&double_moved);
	if (host->device_at != (zd_cu_ptr)(uintptr_t)host->at)
		(void)munmap(double_pointer(host->device_at), host->bytes);
	if (host->allocated)
		(void)munmap(host->at, host->bytes);
	free(host);
}

static int check_register(void *at, size_t bytes, unsigned int flags)
{
	const unsigned int known = ZD_CU_HOST_REGISTER_PORTABLE | ZD_CU_HOST_REGISTER_DEVICEMAP;
	int result = double_check_unsafe();

	if (result)
		return result;
	if (at && bytes > 0 && overlaps(at, bytes))
		return ZD_CU_HOST_MEMORY_ALREADY_REGISTERED;
	return at && bytes > 0 && !(flags & ~known) && is_writable((uintptr_t)at, bytes)
	               ? ZD_CU_SUCCESS
	               : ZD_CU_INVALID_VALUE;
}

int cuMemHostRegister(void *at, size_t bytes, unsigned int flags)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);

	if (result)
		return result;
	result = check_register(at, bytes, flags);
	return double_leave(result ? result : add_host(at, bytes, flags, false));
}

static int give_back(const char *function, void *at, bool allocated, int not_found)
{
	int after = 0, result = double_enter_giving_back(function, DOUBLE_NEEDS_CONTEXT, &after);
	struct double_host *host;

	if (result)
		return result;
	result = double_check_unsafe();
	if (result)
		return double_leave(result);
	host = double_host_find(at, 1);
	if (!host || host->at != at || host->allocated != allocated)
		return double_leave(not_found);
	double_wait_for_kernels();
	remove_host(host);
	return double_leave(after);
}

int cuMemHostUnregister(void *at)
{
	return give_back(__func__, at, false, DOUBLE_HOST_MEMORY_NOT_REGISTERED);
}

int cuMemFreeHost(void *at)
{
	return give_back(__func__, at, true, ZD_CU_INVALID_VALUE);
}

int cuMemHostAlloc(void **at, size_t bytes, unsigned int flags)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	const unsigned int known = ZD_CU_HOST_ALLOC_PORTABLE | ZD_CU_HOST_ALLOC_DEVICEMAP;
	void *made;

	if (result)
		return result;
	result = double_check_unsafe();
	if (!result && (bytes == 0 || (flags & ~known)))
		result = ZD_CU_INVALID_VALUE;
	if (result)
		return double_leave(result);
	made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		return double_leave(ZD_CU_OUT_OF_MEMORY);
	result = add_host(made, bytes, flags, true);
	if (result)
		(void)munmap(made, bytes);
	else
		*at = made;
	return double_leave(result);
}

int cuMemHostGetDevicePointer(zd_cu_ptr *device, void *host, unsigned int flags)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_CONTEXT);
	struct double_host *found;

	if (result)
		return result;
	found = double_host_find(host, 1);
	if (!found || !found->mapped || flags)
		return double_leave(ZD_CU_INVALID_VALUE);
	*device = found->device_at + (zd_cu_ptr)((unsigned char *)host - found->at);
	return double_leave(ZD_CU_SUCCESS);
}
