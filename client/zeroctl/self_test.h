/* SPDX-License-Identifier: Apache-2.0 */
/*
 * self_test.h - memory of the daemon that this process reads and writes, on an emulated device or a GPU.
 */
#ifndef ZD_CTL_SELF_TEST_H
#define ZD_CTL_SELF_TEST_H

#include "base/err.h"
#include "ctl.h"

/* A stream of a GPU; of an emulated device all zero. */
struct zd_ctl_gpu {
	const struct zd_cuda *driver;
	int device;
	struct CUctx_st *context; /* the primary one, retained */
	struct CUstream_st *cuda_stream;
	zerod_stream *stream; /* wrapped, of the client */
};

/* Opens the GPU that the daemon calls `name`. After an error zd_ctl_gpu_close() is still called. */
int zd_ctl_gpu_open(struct zd_ctl_gpu *gpu, zerod_client *client, const char *name, struct zd_err *err)
        __attribute__((warn_unused_result));
void zd_ctl_gpu_close(struct zd_ctl_gpu *gpu);
/* Copy after the work in the GPU's stream, and wait for the copy. `at` is memory of the GPU. */
int zd_ctl_gpu_write(const struct zd_ctl_gpu *gpu, void *at, const void *from, size_t bytes,
                     struct zd_err *err) __attribute__((warn_unused_result));
int zd_ctl_gpu_read(const struct zd_ctl_gpu *gpu, void *to, const void *at, size_t bytes, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
