/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h - the one event loop of the daemon, its clock, and libuv's errors in our words. */
#ifndef ZD_IO_LOOP_H
#define ZD_IO_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/spin.h"

struct zd_err;

struct zd_loop {
	uv_loop_t uv;
	struct zd_spin spin; /* for what comes within microseconds of the last event */
	bool active;         /* something came since it was looked at */
	bool stopped;
};

int zd_loop_init(struct zd_loop *loop, struct zd_err *err) __attribute__((warn_unused_result));
/* Every owner of a handle has begun to close it: runs until the last is closed. A handle that nobody closes is our own
 * mistake and aborts. */
void zd_loop_deinit(struct zd_loop *loop);

/* To be asked for by who answers within microseconds: the loop spins for a moment after each event before it sleeps. */
void zd_loop_allow_spinning(struct zd_loop *loop);
/* A request or a completion has come, by a handle of the loop. */
static inline void zd_loop_note_event(uv_loop_t *uv)
{
	((struct zd_loop *)uv)->active = true; /* its first member */
}

/* More is on its way: it spins for that in any case. On the loop's thread. */
void zd_loop_expect(struct zd_loop *loop);

/* Serves events until zd_loop_stop(). */
void zd_loop_run(struct zd_loop *loop);
void zd_loop_stop(struct zd_loop *loop);

/* Monotonic; the clock that the engine is told. */
uint64_t zd_loop_now_ns(void);

/* SYSTEM with libuv's words for its negative return value. */
int zd_loop_error(struct zd_err *err, int uv_status, const char *doing);

#endif
