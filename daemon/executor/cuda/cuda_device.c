/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_device.c - the GPUs that the daemon drives. */
#include "executor/cuda/cuda_device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

/* ---- Failures ------------------------------------------------------------------------------------------ */

void zd_cuda_device_fail(struct zd_cuda_device *device, const char *why)
{
	pthread_mutex_lock(&device->lock);
	bool first = !atomic_load_explicit(&device->failed, memory_order_relaxed);
	if (first)
		(void)snprintf(device->failure, sizeof(device->failure), "%s", why);
	atomic_store_explicit(&device->failed, true, memory_order_release);
	pthread_mutex_unlock(&device->lock);
	if (first)
		zd_log(ZD_LOG_ERROR, "device %" PRIu32 " (%s) has failed: %s", device->index, device->name,
		       why);
}

bool zd_cuda_device_why(struct zd_cuda_device *device, char why[ZD_FAILURE_TEXT])
{
	pthread_mutex_lock(&device->lock);
	bool failed = zd_cuda_device_failed(device);
	memcpy(why, device->failure, sizeof(device->failure));
	pthread_mutex_unlock(&device->lock);
	return failed;
}

int zd_cuda_device_failure(struct zd_cuda_device *device, struct zd_err *err)
{
	char why[ZD_FAILURE_TEXT];
	(void)zd_cuda_device_why(device, why);
	return zd_err_set(err, ZEROD_E_DEVICE, "%s has failed: %s", device->name, why);
}

int zd_cuda_device_err(struct zd_cuda_device *device, int result, struct zd_err *err, const char *what)
{
	int rc = zd_cuda_err(device->cuda, result, err, "%s", what);
	if (rc == ZEROD_E_DEVICE)
		zd_cuda_device_fail(device, err->text);
	return rc;
}

void zd_cuda_device_check(struct zd_cuda_device *device, struct CUstream_st *stream)
{
	int result = device->cuda->streamQuery(stream);
	struct zd_err err;
	if (result != ZD_CU_NOT_READY && zd_cuda_device_err(device, result, &err, "looking at a stream") != 0)
		return; /* zd_cuda_device_err() has marked the device */
}

void zd_cuda_device_enter(struct zd_cuda_device *device)
{
	struct zd_err err;
	int rc = zd_cuda_device_err(device, device->cuda->ctxSetCurrent(device->context), &err,
	                            "making the context current");
	(void)rc; /* zd_cuda_device_err() has marked the device */
}

bool zd_cuda_device_push(const struct zd_cuda_device *device)
{
	bool pushed = false;
	int result = zd_cuda_enter(device->cuda, device->context, &pushed);
	return result == 0 && pushed;
}

/* ---- Capabilities -------------------------------------------------------------------------------------- */

struct zd_cu_allocation zd_cuda_device_allocation(const struct zd_cuda_device *device)
{
	struct zd_cu_allocation allocation = {
	        .type = ZD_CU_ALLOCATION_PINNED,
	        .handle_types = ZD_CU_HANDLE_POSIX_FD,
	        .location = {.type = ZD_CU_LOCATION_DEVICE, .id = device->ordinal},
	};
	allocation.flags.gpu_direct_rdma = device->rdma;
	return allocation;
}

static int check_attributes(struct zd_cuda_device *device, struct zd_err *err)
{
	static const struct {
		int attribute;
		const char *what;
	} needed[] = {
	        {ZD_CU_ATTR_VMM_SUPPORTED, "virtual memory management"},
	        {ZD_CU_ATTR_POSIX_FD_SUPPORTED, "memory that is shared by descriptors"},
	        {ZD_CU_ATTR_CAN_USE_64_BIT_MEM_OPS, "64-bit memory operations on streams"},
	};
	for (size_t i = 0; i < ZD_ARRAY_LEN(needed); i++) {
		int value = 0;
		int rc = zd_cuda_err(
		        device->cuda,
		        device->cuda->deviceGetAttribute(&value, needed[i].attribute, device->ordinal), err,
		        "asking %s for %s", device->name, needed[i].what);
		if (rc)
			return rc;
		if (!value)
			return zd_err_set(err, ZEROD_E_UNSUPPORTED, "%s (%s) has no %s", device->name,
			                  device->model, needed[i].what);
	}
	return 0;
}

/* In both modes the daemon's context would be the only one that the GPU accepts. */
static int check_compute_mode(struct zd_cuda_device *device, struct zd_err *err)
{
	int mode = 0;
	int rc =
	        zd_cuda_err(device->cuda,
	                    device->cuda->deviceGetAttribute(&mode, ZD_CU_ATTR_COMPUTE_MODE, device->ordinal),
	                    err, "asking %s for its compute mode", device->name);
	if (rc || (mode != ZD_CU_COMPUTE_EXCLUSIVE_PROCESS && mode != ZD_CU_COMPUTE_PROHIBITED))
		return rc;
	return zd_err_set(err, ZEROD_E_INVALID,
	                  "%s is in compute mode %s: trainers cannot use the GPU while the daemon runs; "
	                  "expected mode DEFAULT "
	                  "(nvidia-smi -c DEFAULT)",
	                  device->name,
	                  mode == ZD_CU_COMPUTE_PROHIBITED ? "PROHIBITED" : "EXCLUSIVE_PROCESS");
}

static int ask_name(struct zd_cuda_device *device, struct zd_err *err)
{
	const struct zd_cuda *cuda = device->cuda;
	struct zd_cu_uuid uuid;
	int rc = zd_cuda_err(cuda, cuda->deviceGetUuid(&uuid, device->ordinal), err, "the UUID of GPU %d",
	                     device->ordinal);
	if (rc)
		return rc;
	zd_cuda_uuid_text(&uuid, device->name);
	return zd_cuda_err(cuda, cuda->deviceGetName(device->model, sizeof(device->model), device->ordinal),
	                   err, "the name of %s", device->name);
}

/* The address is only for people. Without an answer it is empty. */
static void ask_pci_address(struct zd_cuda_device *device)
{
	static const int attributes[] = {ZD_CU_ATTR_PCI_DOMAIN, ZD_CU_ATTR_PCI_BUS, ZD_CU_ATTR_PCI_DEVICE};
	int values[ZD_ARRAY_LEN(attributes)];

	for (size_t i = 0; i < ZD_ARRAY_LEN(attributes); i++) {
		if (device->cuda->deviceGetAttribute(&values[i], attributes[i], device->ordinal) != 0)
			return;
	}
	(void)snprintf(device->pci_address, sizeof(device->pci_address), "%04x:%02x:%02x.0",
	               (unsigned)values[0] & 0xffffu, (unsigned)values[1] & 0xffu,
	               (unsigned)values[2] & 0xffu);
}

static int ask_memory(struct zd_cuda_device *device, struct zd_err *err)
{
	const struct zd_cuda *cuda = device->cuda;
	size_t bytes = 0;
	int rdma = 0;
	int rc = zd_cuda_err(cuda, cuda->deviceTotalMem(&bytes, device->ordinal), err, "the memory of %s",
	                     device->name);
	if (rc)
		return rc;
	device->memory_bytes = bytes;
	/* Without an answer RDMA remains off, because it only accelerates traffic between nodes. */
	device->rdma = cuda->deviceGetAttribute(&rdma, ZD_CU_ATTR_RDMA_SUPPORTED, device->ordinal) == 0 &&
	               rdma;
	struct zd_cu_allocation allocation = zd_cuda_device_allocation(device);
	rc = zd_cuda_err(cuda,
	                 cuda->memGetAllocationGranularity(&bytes, &allocation, ZD_CU_GRANULARITY_MINIMUM),
	                 err, "the granularity of memory on %s", device->name);
	if (rc)
		return rc;
	if (bytes == 0 || (bytes & (bytes - 1)) != 0 || bytes > device->memory_bytes)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED, "%s maps memory in pieces of %zu bytes",
		                  device->name, bytes);
	device->granularity_bytes = bytes;
	return 0;
}

static int ask_multiprocessors(struct zd_cuda_device *device, struct zd_err *err)
{
	int count = 0;
	int rc = zd_cuda_err(
	        device->cuda,
	        device->cuda->deviceGetAttribute(&count, ZD_CU_ATTR_MULTIPROCESSORS, device->ordinal), err,
	        "asking %s for its multiprocessors", device->name);
	if (!rc)
		device->multiprocessors = (uint32_t)count;
	return rc;
}

static int open_device(struct zd_cuda_device *device, struct zd_err *err)
{
	int rc = ask_name(device, err);
	ask_pci_address(device);
	if (!rc)
		rc = check_attributes(device, err);
	if (!rc)
		rc = check_compute_mode(device, err);
	if (!rc)
		rc = ask_memory(device, err);
	if (!rc)
		rc = ask_multiprocessors(device, err);
	if (rc)
		return rc;
	return zd_cuda_err(device->cuda,
	                   device->cuda->devicePrimaryCtxRetain(&device->context, device->ordinal), err,
	                   "a context on %s", device->name);
}

/* ---- Which GPUs ---------------------------------------------------------------------------------------- */

static int add_device(struct zd_cuda_devices *devices, int ordinal, struct zd_err *err)
{
	if (devices->count == ZD_MAX_DEVICES)
		return zd_err_set(err, ZEROD_E_INVALID, "more than %u GPUs", ZD_MAX_DEVICES);
	for (uint32_t i = 0; i < devices->count; i++) {
		if (devices->all[i].ordinal == ordinal)
			return zd_err_set(err, ZEROD_E_INVALID, "GPU %d (%s) is listed twice", ordinal,
			                  devices->all[i].name);
	}
	if (!devices->all) /* allocated at full size, because pointers into it must remain valid */
		devices->all = zd_calloc(ZD_MAX_DEVICES, sizeof(*devices->all));
	struct zd_cuda_device *device = &devices->all[devices->count];
	*device = (struct zd_cuda_device){.cuda = devices->cuda, .index = devices->count, .ordinal = ordinal};
	pthread_mutex_init(&device->lock, NULL);
	devices->count++;
	return open_device(device, err);
}

static int add_chosen(struct zd_cuda_devices *devices, const char *word, int visible, struct zd_err *err)
{
	int ordinal;
	int rc;
	if (word[0] < '0' || word[0] > '9') {
		rc = zd_cuda_find_device(devices->cuda, word, &ordinal, err);
		return rc ? rc : add_device(devices, ordinal, err);
	}
	char *end;
	long number = strtol(word, &end, 10);
	if (*end || number >= visible)
		return zd_err_set(err, ZEROD_E_NOT_FOUND,
		                  "'%s' is no GPU: expected a number from 0 to %d, or a UUID such as "
		                  "GPU-12345678-1234-1234-1234-123456789abc",
		                  word, visible - 1);
	rc = zd_cuda_err(devices->cuda, devices->cuda->deviceGet(&ordinal, (int)number), err, "GPU %ld",
	                 number);
	return rc ? rc : add_device(devices, ordinal, err);
}

static int add_list(struct zd_cuda_devices *devices, const char *chosen, int visible, struct zd_err *err)
{
	static const char between[] = ", \t";
	char *words = zd_strdup(chosen), *rest = NULL;
	int rc = 0;
	for (char *word = strtok_r(words, between, &rest); word && !rc; word = strtok_r(NULL, between, &rest))
		rc = add_chosen(devices, word, visible, err);
	free(words);
	if (!rc && devices->count == 0)
		rc = zd_err_set(err, ZEROD_E_INVALID, "the list of GPUs is empty");
	return rc;
}

static int add_all(struct zd_cuda_devices *devices, int visible, struct zd_err *err)
{
	int rc = 0;
	for (int i = 0; i < visible && !rc; i++) {
		int ordinal;
		rc = zd_cuda_err(devices->cuda, devices->cuda->deviceGet(&ordinal, i), err, "GPU %d", i);
		if (!rc)
			rc = add_device(devices, ordinal, err);
	}
	return rc;
}

/* ---- Peer access --------------------------------------------------------------------------------------- */

static int ask_peers(struct zd_cuda_devices *devices, struct zd_err *err)
{
	for (uint32_t i = 0; i < devices->count; i++) {
		struct zd_cuda_device *from = &devices->all[i];
		for (uint32_t j = 0; j < devices->count; j++) {
			struct zd_cuda_device *to = &devices->all[j];
			int can = i == j;
			int rc = 0;
			if (i != j)
				rc = zd_cuda_err(
				        devices->cuda,
				        devices->cuda->deviceCanAccessPeer(&can, from->ordinal, to->ordinal),
				        err, "asking whether %s reaches %s", from->name, to->name);
			if (rc)
				return rc;
			from->reaches |= can ? 1ull << j : 0;
			if (!can)
				zd_log(ZD_LOG_WARNING,
				       "device %" PRIu32 " (%s) cannot reach the memory of device %" PRIu32
				       " (%s): copies pass through the host",
				       i, from->name, j, to->name);
		}
	}
	return 0;
}

static void log_devices(const struct zd_cuda_devices *devices)
{
	char text[ZD_BYTES_TEXT];
	for (uint32_t i = 0; i < devices->count; i++) {
		const struct zd_cuda_device *device = &devices->all[i];
		zd_log(ZD_LOG_NOTICE, "device %" PRIu32 ": %s, %s, %s", i, device->name, device->model,
		       zd_bytes_text(device->memory_bytes, text));
	}
}

/*
 * Streams share hardware queues, by default 8. Work that waits in a queue blocks all later work in the queue,
 * of any stream. A store of progress after an NCCL kernel waits until the other daemons have launched theirs.
 * Pushes in the same queue would wait with it, as would an exchange that another daemon has launched first.
 * With 32 queues, the maximum, each stream of several groups has its own.
 */
void zd_cuda_devices_prepare(void)
{
	(void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

int zd_cuda_devices_init(struct zd_cuda_devices *devices, const char *chosen, struct zd_err *err)
{
	struct zd_cuda_devices made = {.count = 0};
	bool all = !chosen || !chosen[0] || strcmp(chosen, "all") == 0;
	int visible = 0;
	zd_cuda_devices_prepare();
	int rc = zd_cuda_load(&made.cuda, err);
	if (!rc)
		rc = zd_cuda_err(made.cuda, made.cuda->deviceGetCount(&visible), err, "counting GPUs");
	if (!rc)
		rc = all ? add_all(&made, visible, err) : add_list(&made, chosen, visible, err);
	if (!rc)
		rc = ask_peers(&made, err);
	if (rc) {
		zd_cuda_devices_deinit(&made);
		return rc;
	}
	log_devices(&made);
	*devices = made;
	return 0;
}

void zd_cuda_devices_deinit(struct zd_cuda_devices *devices)
{
	for (uint32_t i = 0; i < devices->count; i++) {
		struct zd_cuda_device *device = &devices->all[i];
		if (device->context)
			(void)device->cuda->devicePrimaryCtxRelease(device->ordinal);
		pthread_mutex_destroy(&device->lock);
	}
	free(devices->all);
	*devices = (struct zd_cuda_devices){.count = 0};
}
