// SPDX-License-Identifier: Apache-2.0
/*
 * verb_kill_session.c - zeroctl kill-session: ends a session; all that it holds goes as if its process had
 * died.
 */
#include "ctl.h"

int zd_ctl_kill_session(struct zd_ctl *ctl)
{
	Zd__KillSession body = ZD__KILL_SESSION__INIT;
	Zd__Request request = ZD__REQUEST__INIT;
	if (zd_ctl_parse_id(ctl->args[0], &body.session))
		return zd_ctl_fail(ZD_CTL_USAGE, "expected the id of a session, found '%s'", ctl->args[0]);
	request.body_case = ZD__REQUEST__BODY_KILL_SESSION;
	request.kill_session = &body;
	return zd_ctl_call(ctl, &request, NULL, NULL);
}
