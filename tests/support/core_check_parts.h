/* SPDX-License-Identifier: Apache-2.0 */
/* core_check_parts.h - parts of zd_engine_check(). */
#ifndef ZD_TESTS_CORE_CHECK_PARTS_H
#define ZD_TESTS_CORE_CHECK_PARTS_H

#include "core/engine/objects.h"
#include "core/plan/plan.h"

/* core_check_gather.c */
void zd_barrier_check(const struct zd_group *group);
void zd_plan_check(const struct zd_plan *plan);
void zd_shadow_check(const struct zd_part *part);
void zd_deferred_check(const struct zd_session *session);
void zd_collective_check(const struct zd_part *part);
void zd_relays_check(const struct zd_session *session);
void zd_cluster_check_members(const struct zd_group *group);
void zd_commit_check(const struct zd_group *group);
void zd_load_check(const struct zd_unit *unit);
/* Adds the charged and the quarantined bytes of the new shards to charged[device][kind] and
 * quarantine[device]. */
void zd_move_check(const struct zd_unit *unit, uint64_t (*charged)[ZD_NCHARGES], uint64_t *quarantine);
/* The group's reductions, buckets and targets are consistent. Adds the charged and the quarantined bytes, by
 * device (core_check_reduce.c). */
void zd_reduce_check(const struct zd_group *group, uint64_t (*found)[ZD_NCHARGES], uint64_t *quarantine);
/* core_check_segments.c */
void zd_owned_segments_check(const struct zd_engine *e);

#endif
