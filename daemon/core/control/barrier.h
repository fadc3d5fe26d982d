/* SPDX-License-Identifier: Apache-2.0 */
/* barrier.h - barriers of groups; see barrier.c. */
#ifndef ZD_CORE_CONTROL_BARRIER_H
#define ZD_CORE_CONTROL_BARRIER_H

#include "core/engine/objects.h"

/* Asserts the invariants of the group's barriers, for zd_engine_check(). */
void zd_barrier_check(const struct zd_group *group);

#endif
