/* SPDX-License-Identifier: Apache-2.0 */
/* group.h - joining groups. */
#ifndef ZD_CLIENT_GROUP_H
#define ZD_CLIENT_GROUP_H

#include "client/lib/base/handles.h"
#include "proto/zerod.pb-c.h"

/* ---- group.c ------------------------------------------------------------------------------------------- */

/* Frees the object. With the lock. */
void zc_group_free(struct zerod_group *group);
/* Joins again, as at first. Without a lock. */
int zc_group_rejoin(struct zerod_group *group, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- group_options.c ----------------------------------------------------------------------------------- */

/* Copies the options with defaults, and checks all except those that collectives.c checks. */
int zc_group_options(const struct zerod_group_options *given, struct zerod_group_options *options,
                     struct zd_err *err) __attribute__((warn_unused_result));

/* ---- collectives.c ------------------------------------------------------------------------------------- */

/* Checks the options about daemons and collectives, after all others. Replaces a local_world_size of 0 by the
 * group's. */
int zc_collectives_check(const struct zerod_client *client, struct zerod_group_options *options,
                         struct zd_err *err) __attribute__((warn_unused_result));
/* Packs the same options; the caller still owns the ids. */
void zc_collectives_pack(const struct zerod_group_options *options, Zd__GroupJoin *join);
/* Sets the index of the rank's shard in each unit. */
void zc_collectives_place(const struct zerod_group_options *options, struct zerod_group *group);

#endif
