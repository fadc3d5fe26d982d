// SPDX-License-Identifier: Apache-2.0
/*
 * verb_kill_session.c - zeroctl kill-session: ends a session, and frees its objects as if its process had
 * died.
 */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

int zd_ctl_kill_session(struct zd_ctl *ctl)
{
	struct zd_ctl_facts facts = {.map = NULL};
	Zd__KillSession body = ZD__KILL_SESSION__INIT;
	Zd__Request request = ZD_REQUEST(KILL_SESSION, kill_session, &body);
	const char *arg = ctl->args[0], *slash = strchr(arg, '/');
	if (zd_ctl_parse_id(slash ? slash + 1 : arg, &body.session))
		return zd_ctl_fail(ZD_CTL_USAGE, "expected the id of a session, found '%s'", arg);
	int status = zd_ctl_list_fetch(ctl, &zd_ctl_sessions_listing, &facts.sessions);
	if (status)
		return status;
	status = zd_ctl_find_id(facts.sessions, arg, &body.session);
	if (!status && !body.session)
		status = zd_ctl_fail(ZEROD_E_NOT_FOUND, "NOT_FOUND: no session %s", arg);
	char *text = zd_ctl_session_text(&facts, ZD_CTL_INT(body.session));
	zd_ctl_facts_deinit(&facts);
	if (!status)
		status = zd_ctl_call(ctl, &request, NULL, NULL);
	if (!status)
		zd_ctl_say("ended %s", text);
	free(text);
	return status;
}
