/* SPDX-License-Identifier: Apache-2.0 */
/* unit.h - units: handles that end, and registrations that are repeated. */
#ifndef ZD_CLIENT_UNIT_H
#define ZD_CLIENT_UNIT_H

#include "client/lib/base/handles.h"
#include "proto/zerod.pb-c.h"

/* Frees the handle. With the lock. */
void zc_unit_handle_free(struct zerod_unit *unit);
/* Fills in the daemon's description of the unit, and adds it to the table. With the lock. */
int zc_unit_place(struct zerod_group *group, struct zc_unit *unit, const Zd__UnitRegisterReply *reply,
                  struct zd_err *err) __attribute__((warn_unused_result));
/* Restores the settings of a unit that was registered again. Without a lock. */
int zc_unit_set_again(struct zerod_unit *unit, struct zd_err *err) __attribute__((warn_unused_result));
/* Registers all units again, except those that a failed attempt has already registered (reconnect.c). Without
 * a lock. */
int zc_units_rejoin(struct zerod_group *group, struct zd_err *err) __attribute__((warn_unused_result));

#endif
