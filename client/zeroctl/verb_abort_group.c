// SPDX-License-Identifier: Apache-2.0
/*
 * verb_abort_group.c - zeroctl abort-group: all that waits in the group fails with ABORTED, at once.
 */
#include "ctl.h"

int zd_ctl_abort_group(struct zd_ctl *ctl)
{
	static const char *const keys[] = {"job", "name", NULL};
	Zd__AbortGroup body = ZD__ABORT_GROUP__INIT;
	Zd__Request request = ZD__REQUEST__INIT;
	int status = zd_ctl_list_find(ctl, &zd_ctl_groups_listing, keys, ctl->args[0], &body.group);
	if (status)
		return status;
	request.body_case = ZD__REQUEST__BODY_ABORT_GROUP;
	request.abort_group = &body;
	return zd_ctl_call(ctl, &request, NULL, NULL);
}
