/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.h - reports the daemon's state to the service manager: sd_notify(3)'s messages, without blocking.
 *
 * sd_notify() blocks while the manager does not read, and would block the loop and every trainer.
 */
#ifndef ZD_MAIN_NOTIFY_H
#define ZD_MAIN_NOTIFY_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <uv.h>

struct zd_loop;

#define ZD_NOTIFY_BYTES 1024

struct zd_notify {
	int sock; /* -1: there is no service manager */
	struct sockaddr_un address;
	socklen_t address_bytes;
	uv_timer_t retry;
	size_t npending;
	char pending[ZD_NOTIFY_BYTES]; /* states that could not be sent yet */
};

/* Opens $NOTIFY_SOCKET. If it is not set, or unusable, the other functions do nothing. */
void zd_notify_open(struct zd_notify *notify, struct zd_loop *loop);
/* Begins to close the handle; pending states are dropped. */
void zd_notify_close(struct zd_notify *notify);

/* Sends a state such as "READY=1", or several lines; retries until it is sent. */
void zd_notify_state(struct zd_notify *notify, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sends the state with a copy of the descriptor (-1: none), and waits up to a second for the manager to read.
 * Returns 0, or -1 with errno; ENOTCONN: there is no service manager. */
int zd_notify_fd(struct zd_notify *notify, const char *state, int fd) __attribute__((warn_unused_result));
/* Sends WATCHDOG=1; dropped if it cannot be sent. */
void zd_notify_alive(struct zd_notify *notify);

#endif
