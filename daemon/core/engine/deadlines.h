/* SPDX-License-Identifier: Apache-2.0 */
/* deadlines.h - waiting requests by deadline, in a heap. Its first request is the next to expire. */
#ifndef ZD_CORE_ENGINE_DEADLINES_H
#define ZD_CORE_ENGINE_DEADLINES_H

#include <stddef.h>
#include <stdint.h>

struct zd_request;

/* All zero: empty. */
struct zd_deadlines {
	struct zd_request **heap;
	uint32_t count, room;
};

/* The request has a deadline, and is not in the heap. */
void zd_deadlines_add(struct zd_deadlines *deadlines, struct zd_request *req);
/* Ignores a request that is not in the heap. */
void zd_deadlines_remove(struct zd_deadlines *deadlines, struct zd_request *req);
/* Returns the request with the earliest deadline, or NULL. */
static inline struct zd_request *zd_deadlines_first(const struct zd_deadlines *deadlines)
{
	return deadlines->count > 0 ? deadlines->heap[0] : NULL;
}
void zd_deadlines_deinit(struct zd_deadlines *deadlines);

#endif
