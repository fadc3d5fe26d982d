/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - the uses that this session can still release, per unit and tag.
 *
 * The daemon owns the leases. This is the library's copy of their use counts, in the order of the caller's
 * calls. A ticket therefore becomes stale at the release that ends its lease, before the daemon has received
 * that release. The copy has no other effect: a release without a lease is sent like any other, and the
 * daemon returns NOT_HELD.
 *
 * A lease that lasts while further gathers and releases use its tag would collect their tickets. It therefore
 * retains as many tickets as it has uses left, and a few more. Beyond that, the oldest of the tickets that
 * have been waited for become stale. A ticket without a wait is retained, up to ZC_MAX_FINISHED, because a
 * thread can be about to wait for it.
 *
 * A lease of a scope has no uses. It ends with the scope, when the daemon has reported the scope's end.
 */
#include "client/lib/calls/lease.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/segments/strict.h"

static struct zc_lease *find_lease(const struct zc_unit *unit, const char *tag)
{
	struct zc_lease *lease;

	LIST_FOREACH (lease, &unit->leases, link)
		if (strcmp(lease->tag, tag) == 0)
			return lease;
	return NULL;
}

static struct zc_lease *new_lease(struct zc_unit *unit, const char *tag)
{
	struct zc_lease *lease = calloc(1, sizeof(*lease));

	if (!lease)
		return NULL;
	memcpy(lease->tag, tag, strlen(tag) + 1); /* its length was checked */
	lease->unit = unit;
	TAILQ_INIT(&lease->tickets);
	LIST_INIT(&lease->holds);
	LIST_INSERT_HEAD(&unit->leases, lease, link);
	return lease;
}

static void detach(struct zc_lease *lease, struct zc_op *op)
{
	TAILQ_REMOVE(&lease->tickets, op, in_queue);
	lease->ntickets--;
	op->lease = NULL;
}

static void drop_ticket(struct zerod_client *client, struct zc_lease *lease, struct zc_op *op)
{
	detach(lease, op);
	zc_ticket_drop(client, op);
}

static void end_lease(struct zerod_client *client, struct zc_lease *lease)
{
	struct zc_op *op;

	while ((op = TAILQ_FIRST(&lease->tickets)))
		drop_ticket(client, lease, op);
	LIST_REMOVE(lease, link);
	if (lease->scope)
		LIST_REMOVE(lease, scope_link);
	zc_holds_drop(client, &lease->holds);
	free(lease);
}

/* NULL: none. A ticket without an answer can still fail, and then subtracts its uses. */
static struct zc_op *surplus_ticket(const struct zc_lease *lease)
{
	struct zc_op *op;

	if (lease->ntickets <= lease->uses_left + ZC_SURPLUS_TICKETS)
		return NULL;
	TAILQ_FOREACH (op, &lease->tickets, in_queue)
		if (op->answered && op->waited)
			return op;
	op = TAILQ_FIRST(&lease->tickets);
	return op->answered && lease->ntickets > lease->uses_left + ZC_MAX_FINISHED ? op : NULL;
}

static void attach(struct zerod_client *client, struct zc_lease *lease, struct zc_op *op)
{
	struct zc_op *surplus;

	lease->uses_left += op->uses;
	op->lease = lease;
	TAILQ_INSERT_TAIL(&lease->tickets, op, in_queue);
	lease->ntickets++;
	while ((surplus = surplus_ticket(lease)))
		drop_ticket(client, lease, surplus);
}

int zc_lease_add(struct zerod_client *client, struct zc_unit *unit, const char *tag, struct zc_op *op,
                 struct zd_err *err)
{
	struct zc_lease *lease = find_lease(unit, tag);

	if (!lease)
		lease = new_lease(unit, tag);
	if (!lease)
		return zd_err_errno(err, ENOMEM, "gathering unit '%s'", unit->name);
	attach(client, lease, op);
	return 0;
}

int zc_lease_join(struct zerod_client *client, struct zc_unit *unit, uint64_t scope, struct zc_op *op,
                  struct zd_err *err)
{
	char tag[ZD_MAX_TAG_BYTES + 1]; /* no caller's: theirs do not begin so */
	struct zc_lease *lease;

	(void)snprintf(tag, sizeof(tag), "%c%llu", ZD_RESERVED_TAG, (unsigned long long)scope);
	lease = find_lease(unit, tag);
	if (!lease) {
		lease = new_lease(unit, tag);
		if (!lease)
			return zd_err_errno(err, ENOMEM, "gathering unit '%s'", unit->name);
		lease->scope = scope;
		LIST_INSERT_HEAD(&client->scope_leases, lease, scope_link);
	}
	attach(client, lease, op);
	return 0;
}

void zc_scope_leases_end(struct zerod_client *client, uint64_t scope)
{
	struct zc_lease *lease = LIST_FIRST(&client->scope_leases);

	while (lease) {
		struct zc_lease *next = LIST_NEXT(lease, scope_link);

		if (lease->scope == scope)
			end_lease(client, lease);
		lease = next;
	}
}

int zc_scope_holds(struct zerod_client *client, uint64_t scope, struct zc_hold_list *holds,
                   struct zd_err *err)
{
	const struct zc_lease *lease;
	int rc = 0;

	LIST_FOREACH (lease, &client->scope_leases, scope_link) {
		if (!rc && (scope == 0 || lease->scope == scope))
			rc = zc_holds_copy(client, &lease->holds, holds, err);
	}
	return rc;
}

const struct zc_hold_list *zc_lease_holds(const struct zc_unit *unit, const char *tag)
{
	const struct zc_lease *lease = find_lease(unit, tag);

	return lease ? &lease->holds : NULL;
}

void zc_lease_release(struct zerod_client *client, struct zc_unit *unit, const char *tag)
{
	struct zc_lease *lease = find_lease(unit, tag);

	if (lease && --lease->uses_left == 0)
		end_lease(client, lease);
}

void zc_lease_withdraw(struct zerod_client *client, struct zc_op *op)
{
	struct zc_lease *lease = op->lease;

	if (!lease)
		return;
	detach(lease, op);
	/* Releases that were sent before the failure can have used some of them. */
	lease->uses_left -= op->uses < lease->uses_left ? op->uses : lease->uses_left;
	if (lease->uses_left == 0 && !(lease->scope && lease->ntickets > 0))
		end_lease(client, lease);
}

void zc_leases_end(struct zerod_client *client, struct zc_unit *unit)
{
	struct zc_lease *lease = LIST_FIRST(&unit->leases);

	while (lease) {
		struct zc_lease *next = LIST_NEXT(lease, link);

		end_lease(client, lease);
		lease = next;
	}
}

int zc_leases_keep(struct zerod_client *client, struct zc_unit *unit, struct zd_err *err)
{
	const struct zc_lease *lease;
	int rc = 0;

	LIST_FOREACH (lease, &unit->leases, link)
		if (!rc && !LIST_EMPTY(&lease->holds))
			rc = zc_strict_keep(client, unit, LIST_FIRST(&lease->holds), err);
	return rc;
}
