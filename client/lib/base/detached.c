/* SPDX-License-Identifier: Apache-2.0 */
/*
 * detached.c - failures of requests without a ticket, for which no call has waited.
 *
 * The op of a detached request is in the table until the daemon has answered it, like any other op, but no
 * ticket names it. A rejection is stored until a public call reports it: zc_enter() returns the failure, and
 * the call has no effect. Calls that end or free something do take effect, because otherwise one wrong call
 * would retain an object that another call releases.
 *
 * The first failure is stored with its text, and later ones are counted. PEER_LOST replaces another failure,
 * because the daemon reports a loss only once. For the same reason, the PEER_LOST of a gather that was
 * released before its answer arrived is stored: no call can wait for that gather any more.
 */
#include "client/lib/base/detached.h"

#include "client/lib/base/handles.h"

static bool is_kept(const struct zc_detached *detached, int status)
{
	return detached->nfailures == 0 ||
	       (status == ZEROD_E_PEER_LOST && detached->first.status != ZEROD_E_PEER_LOST);
}

void zc_detached_fail(struct zerod_client *client, int status, const char *what, const struct zc_unit *unit,
                      const char *error)
{
	struct zc_detached *detached = &client->detached;

	if (!error[0])
		error = zerod_status_name(status);
	if (is_kept(detached, status) && !unit)
		(void)zd_err_set(&detached->first, status,
		                 "a detached %s failed: %s; the present call had no effect", what, error);
	else if (is_kept(detached, status))
		(void)zd_err_set(&detached->first, status,
		                 "a %s %s of unit '%s' failed: %s; the present call had no effect",
		                 what ? "detached" : "released", what ? what : "gather", unit->name, error);
	detached->nfailures++;
	client->detached_failed = true;
}

int zc_detached_report(struct zerod_client *client, struct zd_err *err)
{
	struct zc_detached *detached = &client->detached;

	if (!atomic_load_explicit(&client->detached_failed, memory_order_relaxed))
		return 0;
	ZC_LOCKED(&client->lock);
	if (detached->nfailures > 1)
		(void)zd_err_set(err, detached->first.status, "%s, and %llu more requests failed",
		                 detached->first.text, (unsigned long long)detached->nfailures - 1);
	else if (detached->nfailures == 1)
		*err = detached->first;
	else /* another thread's call has reported it */
		err->status = 0;
	detached->nfailures = 0;
	client->detached_failed = false;
	return err->status;
}
