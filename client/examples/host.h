/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.h - the examples that compute on the CPU need memory that the CPU can access: that of emulated
 * devices.
 */
#ifndef ZEROD_EXAMPLES_HOST_H
#define ZEROD_EXAMPLES_HOST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zerod.h>

/* glibc's; errno.h has it for _GNU_SOURCE alone. NOLINTNEXTLINE(readability-redundant-declaration) */
extern char *program_invocation_short_name;

static void need_host_devices(zerod_client *client)
{
	struct zerod_device_info device = ZEROD_INIT(device);

	if (zerod_device_get(client, 0, &device) == ZEROD_OK && strncmp(device.name, "host", 4) == 0)
		return;
	fprintf(stderr,
	        "%s computes on the CPU, and the daemon's devices are GPUs. Give it the socket of another:\n"
	        "  zerod --backend host --devices 2 --foreground --socket /tmp/zerod.sock &\n"
	        "  %s /tmp/zerod.sock\n",
	        program_invocation_short_name, program_invocation_short_name);
	exit(-ZEROD_E_UNSUPPORTED);
}

#endif
