/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_fatbin.c - the kernels as machine code, where make has found nvcc: ZD_KERNELS_FATBIN then names the
 * file that it made.
 */
#include "client/cuda_kernels.h"

#ifdef ZD_KERNELS_FATBIN

__asm__(".pushsection .rodata\n"
        ".balign 16\n"
        ".globl zc_kernels_fatbin_bytes\n"
        ".hidden zc_kernels_fatbin_bytes\n"
        "zc_kernels_fatbin_bytes:\n"
        ".incbin \"" ZD_KERNELS_FATBIN "\"\n"
        ".popsection\n");

extern const unsigned char zc_kernels_fatbin_bytes[] __attribute__((visibility("hidden")));

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
