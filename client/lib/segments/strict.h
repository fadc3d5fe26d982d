/* SPDX-License-Identifier: Apache-2.0 */
/* strict.h - the accessible pages of a strict client. */
#ifndef ZD_CLIENT_STRICT_H
#define ZD_CLIENT_STRICT_H

#include "client/lib/base/handles.h"
#include "client/lib/segments/segment.h"

/* These functions do nothing in a client that is not strict. After an error no hold exists. */

/* Makes the unit's buffer at `place` accessible, until the holds of its lease (NULL: the lease has ended,
 * which is STALE) are dropped. With the lock. */
int zc_strict_open(struct zerod_client *client, struct zc_unit *unit, const struct zc_location *place,
                   struct zc_hold_list *holds, struct zd_err *err) __attribute__((warn_unused_result));
/* Makes a whole segment accessible until the hold is dropped, on GPUs. With the lock. */
int zc_strict_hold_segment(struct zerod_client *client, struct zc_segment *segment, struct zc_hold_list *list,
                           struct zd_err *err) __attribute__((warn_unused_result));
/* Retains access to the place of this hold of the unit's gathered buffer until unit->kept is dropped. With
 * the lock. */
int zc_strict_keep(struct zerod_client *client, struct zc_unit *unit, const struct zc_hold *place,
                   struct zd_err *err) __attribute__((warn_unused_result));
/* Copy and drop a list of holds. With or without the lock. */
int zc_holds_copy(struct zerod_client *client, const struct zc_hold_list *from, struct zc_hold_list *to,
                  struct zd_err *err) __attribute__((warn_unused_result));
void zc_holds_drop(struct zerod_client *client, struct zc_hold_list *list);

#endif
