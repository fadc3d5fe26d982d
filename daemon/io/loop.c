/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.c - the one event loop of the daemon.
 *
 * Everything but the executors runs on it. What must hold: no callback blocks, and every handle has one owner, which
 * closes it before zd_loop_deinit().
 */
#include "io/loop.h"

#include "base/err.h"

int zd_loop_init(struct zd_loop *loop, struct zd_err *err)
{
	int rc = uv_loop_init(&loop->uv);

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

void zd_loop_run(struct zd_loop *loop)
{
	(void)uv_run(&loop->uv, UV_RUN_DEFAULT);
}

void zd_loop_stop(struct zd_loop *loop)
{
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
