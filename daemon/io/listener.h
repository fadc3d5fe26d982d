/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.h - accepts connections, and goes on accepting when descriptors run out.
 */
#ifndef ZD_IO_LISTENER_H
#define ZD_IO_LISTENER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct zd_err;
struct zd_loop;

struct zd_listener {
	uv_poll_t readiness;
	uv_timer_t pause; /* while nothing can be accepted, not even to be closed */
	int sock;
	int spare; /* an open descriptor to give up when there are no others; -1: given up */
	uint64_t complained_ns;
	uint64_t refused; /* since then */
	/* Gets a connected socket, which is its own from then on, also when it fails. */
	int (*accepted)(void *arg, int sock, struct zd_err *err);
	void *arg;
};

/* Serves `sock`, which listens and does not block; it stays the caller's. */
int zd_listener_open(struct zd_listener *listener, struct zd_loop *loop, int sock,
                     int (*accepted)(void *arg, int sock, struct zd_err *err), void *arg, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Closes the connections that wait at `sock`, for a daemon that will not serve them. */
void zd_listener_turn_away(int sock);
/* Accepts no more and begins to close; the memory is free when the loop has run. */
void zd_listener_close(struct zd_listener *listener);

#endif
