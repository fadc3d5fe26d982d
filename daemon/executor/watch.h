/* SPDX-License-Identifier: Apache-2.0 */
/* watch.h - a WATCH in the form in which an executor polls it: the fences of a session's client page that
 * have not passed yet. */
#ifndef ZD_EXECUTOR_WATCH_H
#define ZD_EXECUTOR_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "executor/backend.h"
#include "executor/session.h"

struct zd_watch {
	struct zd_backend_session *session; /* NULL: closed already */
	uint32_t nfences;                   /* the number of fences that have not passed yet */
	bool until_gone;                    /* without fences: completes when the session ends */
	struct zd_fence *fences;
};

/* Copies the command's fences, and takes a reference to the session, which may be NULL. */
void zd_watch_init(struct zd_watch *watch, const struct zd_command *command,
                   struct zd_backend_session *session);
void zd_watch_deinit(struct zd_watch *watch);

/* Returns whether a caller can be waiting. If so, a delay of milliseconds would be noticed. */
bool zd_watch_hurries(const struct zd_watch *watch);

/* Returns true when the watch has ended; then the completion's status and error are set. */
bool zd_watch_poll(struct zd_watch *watch, struct zd_completion *completion);

#endif
