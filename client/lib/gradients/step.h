/* SPDX-License-Identifier: Apache-2.0 */
/* step.h - steps, and the backwards before them. */
#ifndef ZD_CLIENT_STEP_H
#define ZD_CLIENT_STEP_H

#include "client/lib/base/handles.h"

/* Waits until at most `left` (0, 1) of the steps that ended without a wait are still open, or the deadline
 * has passed. Without the lock. */
int zc_step_await(zerod_group *group, uint32_t left, uint64_t deadline_ns, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns PEER_LOST if the last backward's end was answered with that status and no thread has waited for its
 * ticket: the daemon reports the loss only once. */
int zc_backward_report(struct zerod_group *group, struct zd_err *err) __attribute__((warn_unused_result));

#endif
