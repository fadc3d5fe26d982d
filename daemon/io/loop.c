/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.c - the one event loop of the daemon.
 *
 * Everything but the executors runs on it. What must hold: no callback blocks, and every handle has one owner, which
 * closes it before zd_loop_deinit().
 */
#include "io/loop.h"

#include "base/err.h"

#define SPIN_NS         50000u
#define SPIN_PROCESSORS 8u

int zd_loop_init(struct zd_loop *loop, struct zd_err *err)
{
	int rc = uv_loop_init(&loop->uv);

	loop->spin = (struct zd_spin){.window_ns = 0};
	loop->active = loop->stopped = false;
	return rc ? zd_loop_error(err, rc, "making the event loop") : 0;
}

static void assert_closing(uv_handle_t *handle, void *arg)
{
	(void)arg;
	zd_assert(uv_is_closing(handle));
}

void zd_loop_deinit(struct zd_loop *loop)
{
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

static uv_run_mode next_mode(struct zd_loop *loop)
{
	uint64_t now_ns;

	if (loop->spin.window_ns == 0)
		return UV_RUN_ONCE;
	now_ns = zd_loop_now_ns();
	if (loop->active)
		zd_spin_event(&loop->spin, now_ns);
	loop->active = false;
	return zd_spin_may(&loop->spin, now_ns) ? UV_RUN_NOWAIT : UV_RUN_ONCE;
}

void zd_loop_run(struct zd_loop *loop)
{
	while (!loop->stopped && uv_run(&loop->uv, next_mode(loop)) != 0)
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
