/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvml.h - what the daemon asks NVML, loaded at run time: which processes are on a GPU, how busy it is, and
 * what has gone wrong with it.
 *
 * Without NVML (containers that lack libnvidia-ml.so.1) the daemon works, and takes a process for gone when
 * its pidfd says so.
 */
#ifndef ZD_DRIVER_NVML_H
#define ZD_DRIVER_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct zd_err;
struct zd_nvml;

/* Loads libnvidia-ml.so.1 and initialises it. Errors: NOT_FOUND, DEVICE with NVML's words. */
int zd_nvml_open(struct zd_nvml **nvml, struct zd_err *err) __attribute__((warn_unused_result));
/* NULL is allowed. */
void zd_nvml_close(struct zd_nvml *nvml);

/* Is the process listed as using the GPU (named "GPU-..."): 1, 0, or a status. A process that was killed
 * stays listed until the driver has taken down its context, which a forked child can keep alive. About 5
 * us. */
int zd_nvml_lists(struct zd_nvml *nvml, const char *uuid_text, pid_t pid, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Of the last 200 ms (on an H200), the part in which kernels ran there: 0 to 100, or a status. About 12
 * us. */
int zd_nvml_busy_percent(struct zd_nvml *nvml, const char *uuid_text, struct zd_err *err)
        __attribute__((warn_unused_result));

/* The next Xid that any of the GPUs reported since the last call: 1 and what it was, or 0. Never waits. */
struct zd_nvml_xid {
	char uuid_text[41];
	uint64_t xid;
};
int zd_nvml_next_xid(struct zd_nvml *nvml, struct zd_nvml_xid *xid);

#endif
