/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.h - reports the daemon's state to the service manager: sd_notify(3)'s messages, without blocking.
 *
 * sd_notify() blocks while the manager does not read, and would block the loop and every trainer.
 */
#ifndef ZD_MAIN_NOTIFY_H
#define ZD_MAIN_NOTIFY_H

#include <uv.h>

#include "main/outbox.h"

struct zd_loop;

#define ZD_NOTIFY_BYTES 1024

struct zd_notify {
	int sock; /* -1: no service manager */
	struct zd_outbox box;
	uv_timer_t retry;
	int error; /* errno, if waiting descriptors were dropped: the manager does not exist any more */
};

/* Opens $NOTIFY_SOCKET. If it is not set, or unusable, the other functions do nothing. */
void zd_notify_open(struct zd_notify *notify, struct zd_loop *loop);
/* Starts to close the handle. Waits, at most for some seconds, for the manager to receive pending
 * messages. */
void zd_notify_close(struct zd_notify *notify);

/* Sends a state such as "READY=1", or several lines; retries until it is sent. */
void zd_notify_state(struct zd_notify *notify, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds a copy of the descriptor to the manager's store; retries until it is sent. Returns 0, or -1 with
 * errno; ENOTCONN: there is no service manager. */
int zd_notify_store(struct zd_notify *notify, const char *name, int fd) __attribute__((warn_unused_result));
/* Removes the descriptors of this name; cancels one that could not be sent yet. */
void zd_notify_remove(struct zd_notify *notify, const char *name);
/* Sends WATCHDOG=1; dropped if it cannot be sent. */
void zd_notify_alive(struct zd_notify *notify);
/* Returns the time within which the manager wants the next WATCHDOG=1, as sd_watchdog_enabled(3); 0: the
 * manager does not watch this process. */
uint64_t zd_notify_watchdog_us(void);

#endif
