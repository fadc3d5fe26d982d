/* SPDX-License-Identifier: Apache-2.0 */
/* timer.h - wakes the loop at the engine's earliest deadline. */
#ifndef ZD_SERVER_TIMER_H
#define ZD_SERVER_TIMER_H

#include <stdint.h>
#include <uv.h>

struct zd_engine;
struct zd_loop;

struct zd_timer {
	uv_timer_t uv;
	const struct zd_engine *engine;
	uint64_t armed_ns; /* UINT64_MAX: not armed */
	void (*due)(void *arg);
	void *arg;
};

void zd_timer_init(struct zd_timer *timer, struct zd_loop *loop, const struct zd_engine *engine,
                   void (*due)(void *arg), void *arg);
/* Starts to close the handle. The caller can free the memory when the loop has run. */
void zd_timer_close(struct zd_timer *timer);

/* Updates the timer. Called after every event for the engine. Cheap unless a deadline is earlier. */
void zd_timer_update(struct zd_timer *timer);

#endif
