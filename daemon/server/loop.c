/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.c - the daemon's event loop.
 *
 * All of the daemon but the backend's threads runs on it. What must hold: no callback blocks. Every handle
 * has one owner, which closes it before zd_loop_deinit(). Before the loop sleeps it first sets all `polling`
 * to 0, so that writers wake it, and then finds no event.
 */
#include "server/loop.h"

#include <poll.h>

#include "base/err.h"

#define SPIN_NS         50000u
#define SPIN_PROCESSORS 8u

static void on_before_sleep(uv_prepare_t *handle);

int zd_loop_init(struct zd_loop *loop, struct zd_err *err)
{
	int rc = uv_loop_init(&loop->uv);

	if (rc)
		return zd_loop_error(err, rc, "making the event loop");
	loop->spin = (struct zd_spin){.window_ns = 0};
	loop->active = loop->stopped = false;
	TAILQ_INIT(&loop->poll_sources);
	loop->npoll_sources = 0;
	loop->may_wait = false;
	(void)uv_prepare_init(&loop->uv, &loop->before_sleep);
	(void)uv_prepare_start(&loop->before_sleep, on_before_sleep);
	(void)uv_idle_init(&loop->uv, &loop->awake);
	uv_unref((uv_handle_t *)&loop->before_sleep); /* they must not keep the loop alive */
	uv_unref((uv_handle_t *)&loop->awake);
	loop->iterations = 0;
	loop->round = NULL;
	return 0;
}

static void assert_closing(uv_handle_t *handle, void *arg)
{
	(void)arg;
	zd_assert(uv_is_closing(handle));
}

void zd_loop_deinit(struct zd_loop *loop)
{
	uv_close((uv_handle_t *)&loop->before_sleep, NULL);
	uv_close((uv_handle_t *)&loop->awake, NULL);
	uv_walk(&loop->uv, assert_closing, NULL);
	while (uv_loop_alive(&loop->uv)) /* a zd_loop_stop() may still be pending */
		(void)uv_run(&loop->uv, UV_RUN_DEFAULT);
	zd_assert(uv_loop_close(&loop->uv) == 0);
}

void zd_loop_allow_spinning(struct zd_loop *loop)
{
	zd_spin_init(&loop->spin, SPIN_NS, SPIN_PROCESSORS);
}

void zd_loop_expect(struct zd_loop *loop)
{
	zd_spin_expect(&loop->spin, zd_loop_now_ns() + ZD_SPIN_AWAIT_NS);
}

/* ---- Polling ------------------------------------------------------------------------------------------- */

void zd_loop_list(struct zd_loop *loop, struct zd_poll_source *source)
{
	if (source->listed || !zd_loop_spins(loop))
		return;
	TAILQ_INSERT_TAIL(&loop->poll_sources, source, link);
	loop->npoll_sources++;
	source->listed = true;
	atomic_store_explicit(source->polling, 1, memory_order_relaxed);
}

void zd_loop_drop(struct zd_loop *loop, struct zd_poll_source *source)
{
	if (!source->listed)
		return;
	TAILQ_REMOVE(&loop->poll_sources, source, link);
	loop->npoll_sources--;
	source->listed = false;
	atomic_store(source->polling, 0);
}

/* Handles one event of each source, so that a busy source does not delay others. Handlers can drop
 * sources. */
static void poll_sources_once(struct zd_loop *loop)
{
	struct zd_poll_source *source;

	for (unsigned left = loop->npoll_sources; left > 0 && (source = TAILQ_FIRST(&loop->poll_sources));
	     left--) {
		TAILQ_REMOVE(&loop->poll_sources, source, link);
		TAILQ_INSERT_TAIL(&loop->poll_sources, source, link);
		if (source->has(source->arg))
			source->take(source->arg);
	}
}

/* Drops all sources and returns true, unless one of them has an event. */
static bool may_sleep(struct zd_loop *loop)
{
	struct zd_poll_source *source;
	bool any = false;

	TAILQ_FOREACH (source, &loop->poll_sources, link)
		atomic_store(source->polling, 0);
	TAILQ_FOREACH (source, &loop->poll_sources, link)
		any |= source->has(source->arg);
	if (any)
		TAILQ_FOREACH (source, &loop->poll_sources, link)
			atomic_store_explicit(source->polling, 1, memory_order_relaxed);
	while (!any && (source = TAILQ_FIRST(&loop->poll_sources)))
		zd_loop_drop(loop, source);
	return !any;
}

/* Runs last before the loop waits, after the timers, which may have listed a source. */
static void on_before_sleep(uv_prepare_t *handle)
{
	struct zd_loop *loop = (struct zd_loop *)handle->loop; /* `uv` is its first member */

	loop->iterations++;
	if (loop->round)
		loop->round(loop->round_arg);
	if (loop->may_wait && !loop->round && !may_sleep(loop))
		uv_stop(&loop->uv); /* for this iteration only */
}

bool zd_loop_has_events(const struct zd_loop *loop)
{
	struct pollfd poll_for = {.fd = uv_backend_fd(&loop->uv), .events = POLLIN};
	const struct zd_poll_source *source;

	TAILQ_FOREACH (source, &loop->poll_sources, link)
		if (source->has(source->arg))
			return true;
	return poll(&poll_for, 1, 0) != 0;
}

/* ---- Rounds -------------------------------------------------------------------------------------------- */

static void on_awake(uv_idle_t *handle)
{
	(void)handle; /* libuv does not wait for events while it is active */
}

void zd_loop_begin_rounds(struct zd_loop *loop, void (*round)(void *arg), void *arg)
{
	loop->round = round;
	loop->round_arg = arg;
	(void)uv_idle_start(&loop->awake, on_awake);
}

void zd_loop_end_rounds(struct zd_loop *loop)
{
	loop->round = NULL;
	(void)uv_idle_stop(&loop->awake);
}

/* ---- Running ------------------------------------------------------------------------------------------- */

static bool spins(struct zd_loop *loop)
{
	uint64_t now_ns;

	if (!zd_loop_spins(loop))
		return false;
	now_ns = zd_loop_now_ns();
	if (loop->active)
		zd_spin_event(&loop->spin, now_ns);
	loop->active = false;
	return zd_spin_may(&loop->spin, now_ns);
}

bool zd_loop_run_once(struct zd_loop *loop, bool wait)
{
	loop->may_wait = wait && !spins(loop);
	bool alive = uv_run(&loop->uv, loop->may_wait ? UV_RUN_ONCE : UV_RUN_NOWAIT) != 0;
	poll_sources_once(loop);
	return alive;
}

void zd_loop_run(struct zd_loop *loop)
{
	while (!loop->stopped && zd_loop_run_once(loop, true))
		continue;
	loop->stopped = false;
}

void zd_loop_stop(struct zd_loop *loop)
{
	loop->stopped = true;
	uv_stop(&loop->uv);
}

uint64_t zd_loop_now_ns(void)
{
	return uv_hrtime();
}

int zd_loop_error(struct zd_err *err, int uv_status, const char *doing)
{
	return zd_err_errno(err, -uv_status, "%s", doing);
}
