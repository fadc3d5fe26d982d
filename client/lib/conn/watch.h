/* SPDX-License-Identifier: Apache-2.0 */
/* watch.h - what a thread that reads the socket knows of watches (calls/watch.c). */
#ifndef ZD_CLIENT_WATCH_H
#define ZD_CLIENT_WATCH_H

#include <unistd.h>

#include <zerod_read.h>

#include "client/lib/base/client.h"

struct zerod_watch {
	struct zerod_client *client; /* NULL: it was closed */
	uint64_t id;                 /* of the ticket, whose data points to this */
	struct zerod_committed made;
	struct zd_err failure;
	bool answered, saved; /* saved: it waits for a host copy */
	int epoll, event;
	LIST_ENTRY(zerod_watch) link;
};

/* Makes the descriptor readable. */
static inline void zc_watch_wake(const struct zerod_watch *watch)
{
	const uint64_t one = 1;
	ssize_t written = write(watch->event, &one, sizeof(one)); /* fails if it is readable already */
	(void)written;
}

#endif
