/* SPDX-License-Identifier: Apache-2.0 */
/*
 * structures.c - a compile-time check of the structures in the public headers, by GCC. clang checks only
 * structures that this file uses; tests/it/test_cplusplus.sh checks all of them.
 *
 * A byte that belongs to no field would be unset in a program of today and an option of a later version. The
 * compiler therefore rejects a structure with gaps between its fields or at the end. A new field replaces a
 * reserved one, or comes last and fills 8 bytes. The test also finds structures that do not begin with
 * struct_size.
 */
#pragma GCC diagnostic error "-Wpadded"

#include <zerod.h>
#include <zerod_cuda.h>
#include <zerod_host.h>
#include <zerod_optimizer.h>
#include <zerod_read.h>

_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "libzerod is for machines of 64 bits");

/* These three are values, and never grow: two ids, and bytes that only the library reads. */
_Static_assert(sizeof(struct zerod_ticket) == 8 && sizeof(struct zerod_scope) == 8, "ids");
_Static_assert(sizeof(struct zerod_unique_id) == ZEROD_UNIQUE_ID_BYTES, "bytes");
