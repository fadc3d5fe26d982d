/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log_limit.c - the limit of log lines that one user's sessions can cause.
 *
 * A client can open and end thousands of sessions per second, each with its lines. These would push other
 * lines out of the journal, whose own limit drops the lines of all users alike. Each user therefore has a
 * number of lines in each window. The window starts with the first line after a pause, and is the same for
 * all users.
 */
#include "server/log_limit.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "server/loop.h"

#define uthash_fatal(msg) zd_assert(!(msg))
#include <uthash.h>

struct zd_log_share {
	uid_t uid;
	unsigned nlines;
	uint64_t ndropped;
	UT_hash_handle hh;
};

static void end_window(struct zd_log_limit *limit)
{
	struct zd_log_share *share = limit->shares, *next;

	HASH_CLEAR(hh, limit->shares);
	for (; share; share = next) {
		next = share->hh.next;
		if (share->ndropped > 0)
			zd_log(ZD_LOG_WARNING,
			       "uid %u: %" PRIu64 " lines of the log dropped, beyond %u within %u ms",
			       (unsigned)share->uid, share->ndropped, ZD_LOG_LIMIT_LINES, limit->window_ms);
		free(share);
	}
}

static void on_window_over(uv_timer_t *timer)
{
	end_window(timer->data);
}

void zd_log_limit_init(struct zd_log_limit *limit, struct zd_loop *loop, unsigned window_ms)
{
	*limit = (struct zd_log_limit){.window_ms = window_ms};
	(void)uv_timer_init(&loop->uv, &limit->window);
	limit->window.data = limit;
}

void zd_log_limit_close(struct zd_log_limit *limit)
{
	uv_handle_t *window = (uv_handle_t *)&limit->window;

	if (uv_is_closing(window))
		return;
	end_window(limit);
	uv_close(window, NULL);
}

static struct zd_log_share *share_of(struct zd_log_limit *limit, uid_t uid)
{
	struct zd_log_share *share;

	HASH_FIND(hh, limit->shares, &uid, sizeof(uid), share);
	if (share)
		return share;
	share = zd_calloc(1, sizeof(*share));
	share->uid = uid;
	HASH_ADD(hh, limit->shares, uid, sizeof(share->uid), share);
	return share;
}

bool zd_log_limit_admits(struct zd_log_limit *limit, uid_t uid, enum zd_log_level level)
{
	if (!zd_log_has(level))
		return false;
	struct zd_log_share *share = share_of(limit, uid);
	if (!uv_is_active((uv_handle_t *)&limit->window)) {
		/* libuv counts from its last wake-up. */
		uv_update_time(limit->window.loop);
		(void)uv_timer_start(&limit->window, on_window_over, limit->window_ms, 0);
	}
	if (share->nlines == ZD_LOG_LIMIT_LINES) {
		share->ndropped++;
		return false;
	}
	share->nlines++;
	return true;
}
