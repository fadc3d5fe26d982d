/* SPDX-License-Identifier: Apache-2.0 */
/* enter.h - checks whether a call can start, and whether the process has created the client. */
#ifndef ZD_CLIENT_ENTER_H
#define ZD_CLIENT_ENTER_H

#include <stdbool.h>

#include "client/lib/base/client.h"
#include "client/lib/base/inside.h"

/* ---- fork.c -------------------------------------------------------------------------------------------- */

/* Counts the forks of this process from now on, in the children. Returns the present number. */
unsigned zc_fork_watch(void);
extern atomic_uint zc_fork_generation;
/* Whether this process is a child of the process that created the client. */
static inline bool zc_is_forked(const struct zerod_client *client)
{
	return client->fork_generation != atomic_load_explicit(&zc_fork_generation, memory_order_relaxed);
}

/* ---- enter.c ------------------------------------------------------------------------------------------- */

/* Begins a public function, as does zc_enter_quietly(). Errors: INVALID for NULL, FORKED, the status with
 * which the connection broke, or the failure of a detached request that no call has reported yet. */
int zc_enter(struct zerod_client *client, struct zd_err **err) __attribute__((warn_unused_result));
/* As zc_enter(), without reporting failures of detached requests: for calls that end or free an object, for
 * calls only on streams, and inside the library. */
int zc_enter_quietly(const struct zerod_client *client, struct zd_err **err)
        __attribute__((warn_unused_result));
/* zc_enter() and zc_enter_quietly() for the group's client. RESTARTED while the group is not joined again. */
int zc_enter_group(const struct zerod_group *group, struct zd_err **err) __attribute__((warn_unused_result));
int zc_enter_group_quietly(const struct zerod_group *group, struct zd_err **err)
        __attribute__((warn_unused_result));
/* Returns `rc`, or RESTARTED while the group is not joined again. */
int zc_enter_check(int rc, const struct zerod_group *group, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the reason for the connection's end, as far as it has been read. */
int zc_loss_say(const struct zerod_client *client, struct zd_err *err) __attribute__((warn_unused_result));
/* Makes the loss of the connection, as `err` has it, RESTARTED in a client that reconnects. */
void zc_loss_explain(const struct zerod_client *client, struct zd_err *err);

#endif
