/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.h - tells the service manager how the daemon is: sd_notify(3)'s messages, without waiting for
 * anybody.
 *
 * sd_notify() itself blocks when the manager does not read, and with it the loop and every trainer.
 */
#ifndef ZD_DAEMON_NOTIFY_H
#define ZD_DAEMON_NOTIFY_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <uv.h>

struct zd_loop;

#define ZD_NOTIFY_BYTES 1024

struct zd_notify {
	int sock; /* -1: nobody wants to know */
	struct sockaddr_un address;
	socklen_t address_bytes;
	uv_timer_t retry;
	size_t npending;
	char pending[ZD_NOTIFY_BYTES]; /* what could not be sent yet */
};

/* To $NOTIFY_SOCKET. Without one, or with one that cannot be used, the others do nothing. */
void zd_notify_open(struct zd_notify *notify, struct zd_loop *loop);
/* Begins to close; what is pending is dropped. */
void zd_notify_close(struct zd_notify *notify);

/* A state such as "READY=1", or several in lines; tried again until it is sent. */
void zd_notify_state(struct zd_notify *notify, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A sign of life; one that cannot be sent is dropped. */
void zd_notify_alive(struct zd_notify *notify);

#endif
