/* SPDX-License-Identifier: Apache-2.0 */
/* inside.h - the threads inside of a client. The client can reconnect when no thread is inside. */
#ifndef ZD_CLIENT_INSIDE_H
#define ZD_CLIENT_INSIDE_H

#include "client/lib/base/client.h"

struct zc_inside {
	struct zerod_client *client; /* NULL: the thread was inside already, or the client never reconnects */
	const struct zerod_client *before;
};

/* Declares that the thread is inside of the client (NULL: of none) until the end of the block. Every public
 * function that accesses the connection does so before it enters, and waits while another thread reconnects.
 * The thread of a host stream is always inside of its client. */
#define ZC_INSIDE(client)                                                                                    \
	struct zc_inside inside __attribute__((cleanup(zc_inside_end), unused)) = zc_inside_begin(client)
struct zc_inside zc_inside_begin(struct zerod_client *client);
void zc_inside_end(struct zc_inside *inside);
void zc_inside_stay(const struct zerod_client *client);
/* Excludes other threads, and waits until threads inside have returned: their calls fail. Returns the client
 * that the thread was inside of, for zc_inside_open(). */
const struct zerod_client *zc_inside_close(struct zerod_client *client);
void zc_inside_open(struct zerod_client *client, const struct zerod_client *before);

#endif
