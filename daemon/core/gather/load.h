/* SPDX-License-Identifier: Apache-2.0 */
/* load.h - unit_load: copies an allocation of one rank into the shards of all ranks; see load.c. */
#ifndef ZD_CORE_GATHER_LOAD_H
#define ZD_CORE_GATHER_LOAD_H

#include "core/gather/unit.h"

/* Asserts the invariants of the unit's load, for zd_engine_check(). */
void zd_load_check(const struct zd_unit *unit);

#endif
