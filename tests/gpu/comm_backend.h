/* SPDX-License-Identifier: Apache-2.0 */
/* comm_backend.h - communicators as the daemon uses them: through its backend. */
#ifndef ZD_TEST_GPU_COMM_BACKEND_H
#define ZD_TEST_GPU_COMM_BACKEND_H

#include <stdint.h>

/* One rank on each of the process's GPUs, and two communicators over all, one a role: operations of both,
 * which ranks ask for in different orders; all bytes are compared. NCCL has been loaded. EXIT_SUCCESS, or
 * EXIT_FAILURE and what was wrong, on standard output. */
int comm_through_backend(uint32_t ngpus);

#endif
