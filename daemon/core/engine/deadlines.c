/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deadlines.c - a binary heap.
 *
 * Invariant: heap[i] has deadline_at i + 1, and no earlier deadline than heap[(i - 1) / 2].
 */
#include "core/engine/deadlines.h"

#include <stdlib.h>

#include "core/engine/request.h"

#define FIRST_ROOM 16u

static void put(struct zd_deadlines *deadlines, uint32_t at, struct zd_request *req)
{
	deadlines->heap[at] = req;
	req->deadline_at = at + 1;
}

/* Moves the request up or down from the free place `at` to its position. */
static void sift(struct zd_deadlines *deadlines, uint32_t at, struct zd_request *req)
{
	struct zd_request **heap = deadlines->heap;
	for (; at > 0 && heap[(at - 1) / 2]->deadline_ns > req->deadline_ns; at = (at - 1) / 2)
		put(deadlines, at, heap[(at - 1) / 2]);
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child + 1 < deadlines->count && heap[child + 1]->deadline_ns < heap[child]->deadline_ns)
			child++;
		if (child >= deadlines->count || heap[child]->deadline_ns >= req->deadline_ns)
			break;
		put(deadlines, at, heap[child]);
		at = child;
	}
	put(deadlines, at, req);
}

void zd_deadlines_add(struct zd_deadlines *deadlines, struct zd_request *req)
{
	zd_assert(req->deadline_ns != 0 && req->deadline_at == 0);
	if (deadlines->count == deadlines->room) {
		deadlines->room = deadlines->room ? 2 * deadlines->room : FIRST_ROOM;
		deadlines->heap = zd_realloc(deadlines->heap, deadlines->room, sizeof(struct zd_request *));
	}
	put(deadlines, deadlines->count, req);
	sift(deadlines, deadlines->count++, req);
}

void zd_deadlines_remove(struct zd_deadlines *deadlines, struct zd_request *req)
{
	if (req->deadline_at == 0)
		return;
	uint32_t at = req->deadline_at - 1;
	struct zd_request *last = deadlines->heap[--deadlines->count];
	req->deadline_at = 0;
	if (last != req)
		sift(deadlines, at, last);
}

void zd_deadlines_deinit(struct zd_deadlines *deadlines)
{
	free(deadlines->heap);
	*deadlines = (struct zd_deadlines){0};
}
