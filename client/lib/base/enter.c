/* SPDX-License-Identifier: Apache-2.0 */
/* enter.c - whether a call of the program may begin: the client and its group are usable. */
#include "client/lib/base/enter.h"

#include "client/lib/base/detached.h"
#include "client/lib/base/errors.h"
#include "client/lib/base/handles.h"

/* ---- Clients ------------------------------------------------------------------------------------------- */

int zc_enter_quietly(const struct zerod_client *client, struct zd_err **err)
{
	int broken_status;

	*err = zc_err(client);
	if (!client)
		return zd_err_set(*err, ZEROD_E_INVALID, "the handle is NULL");
	if (zc_is_forked(client))
		return zd_err_set(*err, ZEROD_E_FORKED, "the client was created before fork()");
	broken_status = client->broken_status;
	return broken_status ? zd_err_set(*err, broken_status, "%s", client->broken_text) : 0;
}

int zc_enter(struct zerod_client *client, struct zd_err **err)
{
	int rc = zc_enter_quietly(client, err);

	return rc ? rc : zc_detached_report(client, *err);
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

int zc_enter_check(int rc, const struct zerod_group *group, struct zd_err *err)
{
	if (rc || !group->restarted)
		return rc;
	if (!group->joined)
		return zd_err_set(err, ZEROD_E_RESTARTED,
		                  "the daemon has ended, and the group with it: only durable groups in one "
		                  "daemon can be joined again; leave the group");
	return zd_err_set(err, ZEROD_E_RESTARTED,
	                  "the daemon has ended; zerod_group_get() joins the group in the next one");
}

int zc_enter_group(const struct zerod_group *group, struct zd_err **err)
{
	int rc = zc_enter(zc_group_client(group), err);

	return zc_enter_check(rc, group, *err);
}

int zc_enter_group_quietly(const struct zerod_group *group, struct zd_err **err)
{
	int rc = zc_enter_quietly(zc_group_client(group), err);

	return zc_enter_check(rc, group, *err);
}

/* ---- A lost connection --------------------------------------------------------------------------------- */

int zc_loss_say(const struct zerod_client *client, struct zd_err *err)
{
	if (client->broken_status)
		return zd_err_set(err, client->broken_status, "%s", client->broken_text);
	(void)zd_err_set(err, ZEROD_E_DISCONNECTED, "the daemon closed the connection");
	zc_loss_explain(client, err);
	return err->status;
}

void zc_loss_explain(const struct zerod_client *client, struct zd_err *err)
{
	if (client->reconnect_ms == 0 ||
	    (err->status != ZEROD_E_DISCONNECTED && err->status != ZEROD_E_SHUTDOWN))
		return;
	(void)zd_err_set(err, ZEROD_E_RESTARTED, "%s; zerod_group_get() reconnects to the next daemon",
	                 err->text);
}
