/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_fatbin.c - the kernels as machine code, if make has found nvcc. ZD_KERNELS_FATBIN then names the file
 * that make has created.
 */
#include "base/embed.h"
#include "client/lib/compute/cuda_kernels.h"

#ifdef ZD_KERNELS_FATBIN

ZD_EMBED(zc_kernels_fatbin_bytes, ZD_KERNELS_FATBIN);

const void *zc_kernels_fatbin(void)
{
	return zc_kernels_fatbin_bytes;
}

#else

const void *zc_kernels_fatbin(void)
{
	return NULL;
}

#endif
