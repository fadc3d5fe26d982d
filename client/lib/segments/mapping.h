/* SPDX-License-Identifier: Apache-2.0 */
/* mapping.h - mapped host memory, which a segment and the caller's views share. */
#ifndef ZD_CLIENT_MAPPING_H
#define ZD_CLIENT_MAPPING_H

#include <stdint.h>

struct zerod_mapping;

/* Takes ownership of `bytes` bytes that mmap() returned. NULL: no memory. zerod_mapping_release() drops the
 * reference. */
struct zerod_mapping *zc_mapping_new(void *at, uint64_t bytes);

#endif
