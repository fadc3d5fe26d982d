/* SPDX-License-Identifier: Apache-2.0 */
/* lease.h - the uses that this session can still release. */
#ifndef ZD_CLIENT_LEASE_H
#define ZD_CLIENT_LEASE_H

#include "client/lib/base/handles.h"
#include "client/lib/conn/request.h"

/* The uses under one tag that this session can still release. The lease ends when uses_left is 0. */
struct zc_lease {
	char tag[ZD_MAX_TAG_BYTES + 1];
	struct zc_unit *unit;
	uint64_t uses_left;
	struct zc_op_queue tickets; /* oldest first */
	uint64_t ntickets;
	struct zc_hold_list holds; /* strict: pages that the lease's waits have opened, newest first */
	uint64_t scope;            /* of the scope that holds it, until the scope's end; 0: the tag's */
	LIST_ENTRY(zc_lease) link, scope_link;
};

/* All functions below: with the lock. */

/* Adds a gather's uses and its ticket to the lease of its tag. */
int zc_lease_add(struct zerod_client *client, struct zc_unit *unit, const char *tag, struct zc_op *op,
                 struct zd_err *err) __attribute__((warn_unused_result));
/* Adds a gather's ticket to the lease of a scope (not 0), which has one lease of the unit until
 * zc_scope_leases_end(), for any number of gathers. */
int zc_lease_join(struct zerod_client *client, struct zc_unit *unit, uint64_t scope, struct zc_op *op,
                  struct zd_err *err) __attribute__((warn_unused_result));
void zc_scope_leases_end(struct zerod_client *client, uint64_t scope);
/* Adds the holds of the scope's leases to `holds`; 0: of all scopes. An error leaves the list empty. */
int zc_scope_holds(struct zerod_client *client, uint64_t scope, struct zc_hold_list *holds,
                   struct zd_err *err) __attribute__((warn_unused_result));
/* Returns the pages that the tag's lease holds, or NULL without a lease. */
const struct zc_hold_list *zc_lease_holds(const struct zc_unit *unit, const char *tag);
/* Releases one use of the tag; the last release makes the lease's tickets stale. Does nothing without a
 * lease. */
void zc_lease_release(struct zerod_client *client, struct zc_unit *unit, const char *tag);
/* Removes the uses of a gather that has failed from the lease. */
void zc_lease_withdraw(struct zerod_client *client, struct zc_op *op);
void zc_leases_end(struct zerod_client *client, struct zc_unit *unit);
/* Keeps the unit's gathered buffer accessible after the end of its leases, in a strict client. */
int zc_leases_keep(struct zerod_client *client, struct zc_unit *unit, struct zd_err *err)
        __attribute__((warn_unused_result));

#endif
