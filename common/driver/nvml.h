/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvml.h - the daemon's queries to NVML, which is loaded at run time: the processes on a GPU, its load, and
 * its errors.
 *
 * Without NVML (in containers that lack libnvidia-ml.so.1) the daemon assumes that a process has left the
 * GPUs when its pidfd reports its end.
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
/* Closes NVML; NULL is allowed. */
void zd_nvml_close(struct zd_nvml *nvml);

/* Returns whether NVML lists the process as using the GPU (named "GPU-..."): 1, 0, or a status. A process
 * that was killed remains listed until the driver has destroyed its context, which a forked child can keep
 * alive. About 5 us. */
int zd_nvml_lists(struct zd_nvml *nvml, const char *uuid_text, pid_t pid, struct zd_err *err)
        __attribute__((warn_unused_result));

/* An error that a GPU has reported. */
struct zd_nvml_xid {
	char uuid_text[41];
	uint64_t xid;
};
/* Returns 1 with the next Xid that any GPU has reported since the last call, or 0. Never waits. */
int zd_nvml_next_xid(struct zd_nvml *nvml, struct zd_nvml_xid *xid);

#endif
