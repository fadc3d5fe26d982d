/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c - a WATCH in the form in which an executor polls it. */
#include "executor/watch.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void zd_watch_init(struct zd_watch *watch, const struct zd_command *command,
                   struct zd_backend_session *session)
{
	uint32_t n = command->u.watch.nfences;
	*watch = (struct zd_watch){.session = zd_backend_session_ref(session),
	                           .nfences = n,
	                           .until_gone = command->u.watch.until_gone};
	if (n == 0)
		return;
	watch->fences = zd_calloc(n, sizeof(*watch->fences));
	memcpy(watch->fences, command->u.watch.fences, n * sizeof(*watch->fences));
}

void zd_watch_deinit(struct zd_watch *watch)
{
	zd_backend_session_unref(watch->session);
	free(watch->fences);
	*watch = (struct zd_watch){.session = NULL};
}

bool zd_watch_hurries(const struct zd_watch *watch)
{
	return !watch->until_gone && watch->session &&
	       !atomic_load_explicit(&watch->session->lingers, memory_order_relaxed);
}

bool zd_watch_poll(struct zd_watch *watch, struct zd_completion *completion)
{
	struct zd_backend_session *session = watch->session;
	if (!session || atomic_load_explicit(&session->closed, memory_order_relaxed)) {
		zd_completion_fail(completion, ZEROD_E_ABORTED, "the session has ended");
		return true;
	}
	/* A fence that has passed remains passed. Each poll therefore costs one load: of the last fence that
	 * has not passed. */
	while (watch->nfences > 0) {
		const struct zd_fence *fence = &watch->fences[watch->nfences - 1];
		if (!zd_fence_reached(zd_backend_session_counter(session, fence->timeline), fence->value))
			return false;
		watch->nfences--;
	}
	return !watch->until_gone;
}
