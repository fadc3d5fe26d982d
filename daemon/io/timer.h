/* SPDX-License-Identifier: Apache-2.0 */
/* timer.h - wakes the loop when the engine's earliest deadline has come. */
#ifndef ZD_IO_TIMER_H
#define ZD_IO_TIMER_H

#include <stdint.h>
#include <uv.h>

struct zd_engine;
struct zd_loop;

struct zd_timer {
	uv_timer_t uv;
	const struct zd_engine *engine;
	uint64_t armed_ns; /* UINT64_MAX: not */
	void (*due)(void *arg);
	void *arg;
};

void zd_timer_init(struct zd_timer *timer, struct zd_loop *loop, const struct zd_engine *engine,
                   void (*due)(void *arg), void *arg);
/* Begins to close; the memory is free when the loop has run. */
void zd_timer_close(struct zd_timer *timer);

/* To be called after every event that the engine was given: cheap unless an earlier deadline has appeared. */
void zd_timer_update(struct zd_timer *timer);

#endif
