/* SPDX-License-Identifier: Apache-2.0 */
/* place.h - unit_place: moves a unit between its ranks' devices and host memory; see place.c. */
#ifndef ZD_CORE_GATHER_PLACE_H
#define ZD_CORE_GATHER_PLACE_H

#include "core/gather/unit.h"

/* Asserts the invariants of the unit's move, for zd_engine_check(). Adds the charged and the quarantined
 * bytes of its new shards to charged[device][kind] and quarantine[device]. */
void zd_move_check(const struct zd_unit *unit, uint64_t (*charged)[ZD_NCHARGES], uint64_t *quarantine);

#endif
