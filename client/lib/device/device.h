/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - the daemon's devices, as this process opens and finds them. */
#ifndef ZD_CLIENT_DEVICE_H
#define ZD_CLIENT_DEVICE_H

#include <stdint.h>

#include <zerod.h>

#include "base/err.h"

/* Opens the GPU, and starts the thread that unmaps segments while the process makes no call. Called before a
 * request about memory on the daemon's device, without a lock. Errors: NOT_FOUND, UNSUPPORTED, DEVICE,
 * SYSTEM. */
int zc_device_join(struct zerod_client *client, uint32_t index, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Finds the daemon's device with that name, or the only one whose name starts with it. Errors: NOT_FOUND,
 * INVALID, UNSUPPORTED. Without a lock. */
int zc_device_find(struct zerod_client *client, const char *uuid, uint32_t *device, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
