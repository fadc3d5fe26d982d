/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timer.c - wakes the loop at the engine's earliest deadline.
 *
 * Nearly all requests end long before their deadline. The timer is therefore not moved when the earliest
 * deadline disappears: it fires once without effect, and is armed again. Invariant: it is never armed later
 * than the earliest deadline.
 */
#include "server/timer.h"

#include "core/engine.h"
#include "server/loop.h"

#define NS_PER_MS 1000000u

static void on_timer(uv_timer_t *uv)
{
	struct zd_timer *timer = uv->data;

	timer->armed_ns = UINT64_MAX;
	timer->due(timer->arg);
	zd_timer_update(timer);
}

void zd_timer_init(struct zd_timer *timer, struct zd_loop *loop, const struct zd_engine *engine,
                   void (*due)(void *arg), void *arg)
{
	*timer = (struct zd_timer){.engine = engine, .armed_ns = UINT64_MAX, .due = due, .arg = arg};
	(void)uv_timer_init(&loop->uv, &timer->uv);
	timer->uv.data = timer;
}

void zd_timer_close(struct zd_timer *timer)
{
	uv_close((uv_handle_t *)&timer->uv, NULL);
}

void zd_timer_update(struct zd_timer *timer)
{
	uint64_t deadline_ns = zd_engine_next_deadline(timer->engine);
	uint64_t now_ns, wait_ms;

	if (deadline_ns >= timer->armed_ns)
		return;
	/* libuv counts from its last wake-up, and rounds to milliseconds. One more millisecond prevents an
	 * early firing. */
	uv_update_time(timer->uv.loop);
	now_ns = zd_loop_now_ns();
	wait_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / NS_PER_MS + 1 : 0;
	(void)uv_timer_start(&timer->uv, on_timer, wait_ms, 0);
	timer->armed_ns = deadline_ns;
}
