/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_join.c - opens the daemon's device at its first use by this process. */
#include "client/lib/device/cuda_internal.h"
#include "client/lib/device/device.h"
#include "client/lib/device/offloaded_sum.h"

#define NO_DEVICE (-1)

static bool is_joined(struct zerod_client *client, uint32_t index)
{
	ZC_LOCKED(&client->lock);

	return zc_gpu_find(client->cuda, index) != NULL;
}

/* Opens the daemon's device for this process. NOT_FOUND if this process does not see that GPU (the text lists
 * the GPUs that it sees) or there is no driver. */
static int join(struct zerod_client *client, uint32_t index, struct zd_err *err)
{
	struct zerod_device_info info = ZEROD_INIT(info);
	struct zc_cuda *cuda;
	struct zc_gpu *gpu;
	int device = NO_DEVICE, rc;

	if (is_joined(client, index))
		return 0;
	rc = zerod_device_get(client, index, &info);
	if (!rc && info.host == index) /* memory of the host, which no GPU is opened for */
		return 0;
	if (!rc)
		rc = zc_cuda_load(client, &cuda, err);
	if (!rc)
		rc = zd_cuda_find_device(cuda->driver, info.name, &device, err);
	if (!rc)
		rc = zc_gpu_open(client, cuda, device, &gpu, err);
	if (rc)
		return rc;
	ZC_LOCKED(&client->lock);
	gpu->index = index;
	gpu->joined = true;
	return 0;
}

int zc_device_join(struct zerod_client *client, uint32_t index, struct zd_err *err)
{
	if (client->on_gpus)
		return join(client, index, err);
	ZC_LOCKED(&client->cuda_lock);
	return zc_worker_start(client, err);
}
