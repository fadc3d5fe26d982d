/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - initialising, devices and what they can do; the way to all functions by name. */
#include "tests/double/double.h"

#include <stdio.h>
#include <string.h>

bool double_is_device(int device)
{
	return device >= 0 && device < double_config()->nvisible;
}

bool double_is_peer(int device, int peer)
{
	const struct double_config *config = double_config();

	return !config->no_peer[config->visible[device]][config->visible[peer]];
}

/* As an H200 answers. */
static const struct {
	int attribute, value;
} attributes[] = {
        {ZD_CU_ATTR_MULTIPROCESSORS, 132},
        {ZD_CU_ATTR_PCI_DEVICE, 0},
        {ZD_CU_ATTR_PCI_DOMAIN, 0},
        {41, 1}, /* unified addressing */
        {75, 9}, /* compute capability, major and minor */
        {76, 0},
        {ZD_CU_ATTR_CAN_USE_HOST_POINTER, 1},
        {ZD_CU_ATTR_VMM_SUPPORTED, 1},
        {ZD_CU_ATTR_POSIX_FD_SUPPORTED, 1},
        {ZD_CU_ATTR_RDMA_SUPPORTED, 1},
        {ZD_CU_ATTR_CAN_USE_64_BIT_MEM_OPS, 1},
};

int double_attribute(int device, int attribute, int *value)
{
	const struct double_config *config = double_config();

	if (!double_is_device(device))
		return ZD_CU_INVALID_DEVICE;
	for (int i = 0; i < config->noverrides; i++)
		if (config->overrides[i].attribute == attribute) {
			*value = config->overrides[i].value;
			return ZD_CU_SUCCESS;
		}
	if (attribute == ZD_CU_ATTR_COMPUTE_MODE) {
		*value = config->compute_mode;
		return ZD_CU_SUCCESS;
	}
	if (attribute == ZD_CU_ATTR_PCI_BUS) {
		*value = 0x1b + config->visible[device];
		return ZD_CU_SUCCESS;
	}
	for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++)
		if (attributes[i].attribute == attribute) {
			*value = attributes[i].value;
			return ZD_CU_SUCCESS;
		}
	return ZD_CU_INVALID_VALUE;
}

bool double_has_attribute(int device, int attribute)
{
	int value = 0;

	return double_attribute(device, attribute, &value) == ZD_CU_SUCCESS && value;
}

/* ---- By name ------------------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	void *function;
} functions[] = {
#define FUNCTION(member, name, args) {#name, (void *)(name)},
        ZD_CUDA_FUNCTIONS(FUNCTION) ZD_CUDA_NEWER_FUNCTIONS(FUNCTION)
#undef FUNCTION
                {"cuLaunchHostFunc", (void *)cuLaunchHostFunc},
};

DOUBLE_EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                      int *status);

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	const char *lacks = double_config()->lacks;

	(void)version;
	(void)flags;
	*function = NULL;
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		if (strcmp(functions[i].name, name) == 0 && !(lacks && strcmp(lacks, name) == 0))
			*function = functions[i].function;
	if (status)
		*status = *function ? 0 : 1;
	return *function ? ZD_CU_SUCCESS : ZD_CU_NOT_FOUND;
}

/* ---- Initialising -------------------------------------------------------------------------------------- */

int cuInit(unsigned int flags)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_NOTHING);

	if (result)
		return result;
	if (flags)
		return double_leave(ZD_CU_INVALID_VALUE);
	if (double_config()->nvisible == 0)
		return double_leave(ZD_CU_NO_DEVICE);
	double_set_initialised();
	return double_leave(ZD_CU_SUCCESS);
}

int cuDriverGetVersion(int *version)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_NOTHING);

	if (result)
		return result;
	*version = double_config()->version;
	return double_leave(ZD_CU_SUCCESS);
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

int cuDeviceGetCount(int *count)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);

	if (result)
		return result;
	*count = double_config()->nvisible;
	return double_leave(ZD_CU_SUCCESS);
}

int cuDeviceGet(int *device, int ordinal)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);

	if (result)
		return result;
	if (!double_is_device(ordinal))
		return double_leave(ZD_CU_INVALID_DEVICE);
	*device = ordinal;
	return double_leave(ZD_CU_SUCCESS);
}

int cuDeviceGetUuid(struct zd_cu_uuid *uuid, int device)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);

	if (result)
		return result;
	if (!double_is_device(device))
		return double_leave(ZD_CU_INVALID_DEVICE);
	double_uuid(double_config()->visible[device], uuid->bytes);
	return double_leave(ZD_CU_SUCCESS);
}

int cuDeviceGetName(char *name, int bytes, int device)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);

	if (result)
		return result;
	if (!double_is_device(device))
		return double_leave(ZD_CU_INVALID_DEVICE);
	if (bytes <= 0)
		return double_leave(ZD_CU_INVALID_VALUE);
	(void)snprintf(name, (size_t)bytes, "zerod driver double");
	return double_leave(ZD_CU_SUCCESS);
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);

	return result ? result : double_leave(double_attribute(device, attribute, value));
}

int cuDeviceTotalMem(size_t *bytes, int device)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);

	if (result)
		return result;
	if (!double_is_device(device))
		return double_leave(ZD_CU_INVALID_DEVICE);
	*bytes = double_config()->memory_bytes;
	return double_leave(ZD_CU_SUCCESS);
}

int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
	int result = double_enter(__func__, DOUBLE_NEEDS_INIT);

	if (result)
		return result;
	if (!double_is_device(device) || !double_is_device(peer))
		return double_leave(ZD_CU_INVALID_DEVICE);
	/* A device is no peer of itself. */
	*can = device != peer && double_is_peer(device, peer);
	return double_leave(ZD_CU_SUCCESS);
}
