/* SPDX-License-Identifier: Apache-2.0 */
/* log_limit.h - the limit of log lines that one user's sessions can cause. */
#ifndef ZD_SERVER_LOG_LIMIT_H
#define ZD_SERVER_LOG_LIMIT_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "base/log.h"

struct zd_log_share;
struct zd_loop;

/* Enough for 256 sessions, the default limit of one user, to start or end at once. Three of these users
 * remain below the journal's own limit of 10000 lines of the daemon in 30 s by default. */
#define ZD_LOG_LIMIT_LINES     500u
#define ZD_LOG_LIMIT_WINDOW_MS 5000u

struct zd_log_limit {
	struct zd_log_share *shares; /* uthash by uid: of the users with lines in the current window */
	unsigned window_ms;
	uv_timer_t window; /* active while there are shares */
};

/* `window_ms`: ZD_LOG_LIMIT_WINDOW_MS, but in tests. */
void zd_log_limit_init(struct zd_log_limit *limit, struct zd_loop *loop, unsigned window_ms);
/* Reports the number of dropped lines, and starts to close the handle. */
void zd_log_limit_close(struct zd_log_limit *limit);

/* Returns whether to log a line of this level for the user now. If not, and the level is logged at all, the
 * line is counted. At the window's end one line reports the number. */
bool zd_log_limit_admits(struct zd_log_limit *limit, uid_t uid, enum zd_log_level level);

#endif
