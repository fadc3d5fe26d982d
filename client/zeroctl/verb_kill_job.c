// SPDX-License-Identifier: Apache-2.0
/*
 * verb_kill_job.c - zeroctl kill-job: ends all sessions of a job and, of a durable one, its memory.
 */
#include "explain.h"

#include <stdlib.h>

int zd_ctl_kill_job(struct zd_ctl *ctl)
{
	Zd__KillJob body = ZD__KILL_JOB__INIT;
	Zd__Request request = ZD_REQUEST(KILL_JOB, kill_job, &body);
	char *what;
	int status = zd_ctl_find_job(ctl, ctl->args[0], &body.job, &what);
	if (status)
		return status;
	status = zd_ctl_call(ctl, &request, NULL, NULL);
	if (!status)
		zd_ctl_say("ended %s", what);
	free(what);
	return status;
}
