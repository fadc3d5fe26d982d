/* SPDX-License-Identifier: Apache-2.0 */
/* comm_backend.h - communicators as the daemon uses them: through its backend. */
#ifndef ZD_TEST_GPU_COMM_BACKEND_H
#define ZD_TEST_GPU_COMM_BACKEND_H

#include <stdint.h>

/* Tests two communicators over all of the process's GPUs, one for each role, with a rank on each GPU. The
 * ranks submit operations of both in different orders; all bytes are compared. NCCL has been loaded. Returns
 * EXIT_SUCCESS, or EXIT_FAILURE with the reason on standard output. */
int comm_through_backend(uint32_t ngpus);

#endif
