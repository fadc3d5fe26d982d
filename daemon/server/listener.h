/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.h - accepts connections, also when the process has no descriptors left.
 */
#ifndef ZD_SERVER_LISTENER_H
#define ZD_SERVER_LISTENER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct zd_err;
struct zd_loop;

struct zd_listener {
	uv_poll_t readiness;
	uv_timer_t pause; /* runs while no connection can be accepted, not even to be closed */
	int sock;
	int spare; /* an open descriptor to close when no other is free; -1: closed */
	uint64_t complained_ns;
	uint64_t refused; /* connections closed after that log line */
	/* Receives a connected socket, and owns it from then on, also on failure. */
	int (*accepted)(void *arg, int sock, struct zd_err *err);
	void *arg;
};

/* Serves `sock`, a nonblocking listening socket, which the caller still owns. */
int zd_listener_open(struct zd_listener *listener, struct zd_loop *loop, int sock,
                     int (*accepted)(void *arg, int sock, struct zd_err *err), void *arg, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Closes the connections that wait at `sock`, for a daemon that will not serve them. */
void zd_listener_reject(int sock);
/* Stops accepting and starts to close the handles. The caller can free the memory when the loop has run. */
void zd_listener_close(struct zd_listener *listener);

#endif
