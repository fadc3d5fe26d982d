/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h - the one event loop of the daemon, its clock, and libuv's errors in our words. */
#ifndef ZD_IO_LOOP_H
#define ZD_IO_LOOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#include "base/spin.h"

struct zd_err;

/*
 * Something in memory that others write to, and that the loop looks at, as long as it is awake, instead of
 * being woken. It is listed by who has just heard of it otherwise: whoever was busy a moment ago soon has
 * more.
 */
struct zd_look {
	/* Is there something, and may it be taken? */
	bool (*has)(const void *arg);
	/* Handles one thing, as a callback of the loop: it may list and drop any look. */
	void (*take)(void *arg);
	void *arg;
	atomic_uint *looks; /* not 0 while it is listed; the writers wake the loop otherwise */
	bool listed;
	TAILQ_ENTRY(zd_look) link;
};

struct zd_loop {
	uv_loop_t uv;
	struct zd_spin spin; /* for what comes within microseconds of the last event */
	TAILQ_HEAD(, zd_look) looks;
	unsigned nlooks;
	uv_prepare_t before_sleep;
	bool may_wait; /* this turn sleeps if nothing is there */
	bool active;   /* something came since it was looked at */
	bool stopped;
};

int zd_loop_init(struct zd_loop *loop, struct zd_err *err) __attribute__((warn_unused_result));
/* Every owner of a handle has begun to close it: runs until the last is closed. A handle that nobody closes
 * is our own mistake and aborts. */
void zd_loop_deinit(struct zd_loop *loop);

/* To be asked for by who answers within microseconds: the loop spins for a moment after each event before it
 * sleeps. */
void zd_loop_allow_spinning(struct zd_loop *loop);
/* A request or a completion has come, by a handle of the loop. */
static inline void zd_loop_note_event(uv_loop_t *uv)
{
	((struct zd_loop *)uv)->active = true; /* its first member */
}

/* Does it ever spin? Where it does not, nobody need write where it would look. */
static inline bool zd_loop_spins(const struct zd_loop *loop)
{
	return loop->spin.window_ns > 0;
}

/* From now on until the loop sleeps, and once at least. Nothing where it does not spin. */
void zd_loop_list(struct zd_loop *loop, struct zd_look *look);
/* Not any more; nothing if it is not listed. Whoever frees a look, or what it looks at, drops it before. */
void zd_loop_drop(struct zd_loop *loop, struct zd_look *look);

/* More is on its way: it spins for that in any case. On the loop's thread. */
void zd_loop_expect(struct zd_loop *loop);

/* Serves what there is; `wait`: after a sleep if there is nothing yet. False: nothing is left that could
 * come. */
bool zd_loop_turn(struct zd_loop *loop, bool wait);
/* Serves events until zd_loop_stop(). */
void zd_loop_run(struct zd_loop *loop);
void zd_loop_stop(struct zd_loop *loop);

/* Monotonic; the clock that the engine is told. */
uint64_t zd_loop_now_ns(void);

/* SYSTEM with libuv's words for its negative return value. */
int zd_loop_error(struct zd_err *err, int uv_status, const char *doing);

#endif
