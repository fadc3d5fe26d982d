/* SPDX-License-Identifier: Apache-2.0 */
/* target.h - this rank's reduced gradients, and their places that are lent. */
#ifndef ZD_CLIENT_TARGET_H
#define ZD_CLIENT_TARGET_H

#include "client/lib/base/handles.h"
#include "proto/zerod.pb-c.h"

/* If the unit's place in the target is lent, returns it after the streams that waited for it. Called before
 * the unit's next contribution. */
int zc_target_return(struct zerod_client *client, struct zc_unit *unit, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the lent places of all units of the group. in_backward: but sums without a place in the target that
 * were lent in this backward. */
int zc_targets_return(struct zerod_group *group, bool in_backward, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Records that the daemon has ended the lending of all the group's places. With the lock. */
void zc_targets_forget(struct zerod_group *group);
/* Marks all targets as in doubt when a reset starts. Its reply will name the steps that survive. With the
 * lock. */
void zc_targets_doubt(struct zerod_client *client);
/* Ends the doubt when the reset has ended. Targets of steps that the reply (can be NULL) does not name belong
 * to the daemon again. With the lock. */
void zc_targets_settle(struct zerod_client *client, const Zd__SessionResetReply *reply);

#endif
