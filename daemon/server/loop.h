/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h - the daemon's event loop, its clock, and the translation of libuv's errors. */
#ifndef ZD_SERVER_LOOP_H
#define ZD_SERVER_LOOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#include "base/spin.h"

/*
 * A source of events in memory that other threads or processes write. The loop polls it while awake. The
 * writers therefore need not wake the loop. An event of the same source by a handle lists the source, because
 * another event often follows soon.
 */
struct zd_poll_source {
	/* Returns whether an event can be handled now. */
	bool (*has)(const void *arg);
	/* Handles one event, like a callback of the loop. It can list and drop any source. */
	void (*take)(void *arg);
	void *arg;
	atomic_uint *polling; /* not 0 while listed; otherwise the writers wake the loop */
	bool listed;
	TAILQ_ENTRY(zd_poll_source) link;
};

struct zd_loop {
	uv_loop_t uv;
	struct zd_spin spin; /* busy-polling for events within microseconds of the last one */
	TAILQ_HEAD(, zd_poll_source) poll_sources;
	unsigned npoll_sources;
	uv_prepare_t before_sleep;
	uv_idle_t awake; /* active: the loop does not sleep */
	uint64_t iterations;
	void (*round)(void *arg); /* called in each iteration; NULL: none */
	void *round_arg;
	bool may_wait; /* this iteration may sleep if there is no event */
	bool active;   /* an event has occurred since the last check */
	bool stopped;
};

int zd_loop_init(struct zd_loop *loop, struct zd_err *err) __attribute__((warn_unused_result));
/* Runs until all handles are closed. Every owner of a handle must have started to close it. An open handle is
 * an error of the daemon and aborts it. */
void zd_loop_deinit(struct zd_loop *loop);

/* Lets the loop busy-poll for a moment after each event before it sleeps. Called by owners of event sources
 * that answer within microseconds. */
void zd_loop_allow_spinning(struct zd_loop *loop);
/* Records that a handle of the loop has received a request or a completion. */
static inline void zd_loop_note_event(uv_loop_t *uv)
{
	((struct zd_loop *)uv)->active = true; /* `uv` is its first member */
}

/* Returns whether the loop ever busy-polls. If not, writers need not use memory that it would poll. */
static inline bool zd_loop_spins(const struct zd_loop *loop)
{
	return loop->spin.window_ns > 0;
}

/* Adds a source, which the loop polls at least once, and until the loop sleeps. Does nothing if the loop
 * never busy-polls. */
void zd_loop_list(struct zd_loop *loop, struct zd_poll_source *source);
/* Stops polling the source; does nothing if it is not listed. Must be called before the source, or the memory
 * that it reads, is freed. */
void zd_loop_drop(struct zd_loop *loop, struct zd_poll_source *source);

/* From the next iteration on `round` is called once per iteration, like a callback of the loop, and the loop
 * does not sleep. Only one round exists at a time. Both functions can be called repeatedly, also by the
 * round. */
void zd_loop_begin_rounds(struct zd_loop *loop, void (*round)(void *arg), void *arg);
void zd_loop_end_rounds(struct zd_loop *loop);

/* Whether an event has occurred that the loop has not handled, timers aside. A system call. */
bool zd_loop_has_events(const struct zd_loop *loop);

/* Announces an event within microseconds, for which the loop busy-polls. Called on the loop's thread. */
void zd_loop_expect(struct zd_loop *loop);

/* Handles the pending events. With `wait`, sleeps first if there are none. Returns false if no handle is
 * active. */
bool zd_loop_run_once(struct zd_loop *loop, bool wait);
/* Handles events until zd_loop_stop(). */
void zd_loop_run(struct zd_loop *loop);
void zd_loop_stop(struct zd_loop *loop);

/* Returns the time of the monotonic clock, which is also the engine's. */
uint64_t zd_loop_now_ns(void);

/* Sets SYSTEM with libuv's text for its negative return value. */
int zd_loop_error(struct zd_err *err, int uv_status, const char *doing);

#endif
