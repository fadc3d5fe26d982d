/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.h - buffers that callers allocate. */
#ifndef ZD_CLIENT_ALLOC_H
#define ZD_CLIENT_ALLOC_H

#include "client/lib/base/client.h"
#include "client/lib/base/location.h"

struct zerod_allocation {
	struct zerod_client *client;
	uint64_t id; /* 0: of a daemon that has ended */
	LIST_ENTRY(zerod_allocation) link;
};

/* Allocates and maps the memory that `alloc` describes, and adds the buffer to the client's list. */
int zc_buffer_new(struct zerod_client *client, Zd__Alloc *alloc, uint64_t bytes, uint32_t deadline_ms,
                  struct zerod_allocation **buffer, struct zc_location *location, void **data,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* Frees the handle; the memory belongs to the daemon. */
void zc_buffer_forget(struct zerod_allocation *buffer);

#endif
