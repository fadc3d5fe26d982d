// SPDX-License-Identifier: Apache-2.0
/*
 * verb_end.c - zeroctl end-job: ends a durable job and frees its shards. No process can re-attach.
 * zeroctl kill-job: ends all sessions of a job and, for a durable job, frees its memory.
 */
#include "explain.h"

#include <stdlib.h>

/* `job` is in the request's body. */
static int end(struct zd_ctl *ctl, Zd__Request *request, uint64_t *job)
{
	char *what;
	int status = zd_ctl_find_job(ctl, ctl->args[0], job, &what);
	if (status)
		return status;
	status = zd_ctl_call(ctl, request, NULL, NULL);
	if (!status)
		zd_ctl_say("ended %s", what);
	free(what);
	return status;
}

int zd_ctl_end_job(struct zd_ctl *ctl)
{
	Zd__EndJob body = ZD__END_JOB__INIT;
	Zd__Request request = ZD_REQUEST(END_JOB, end_job, &body);
	return end(ctl, &request, &body.job);
}

int zd_ctl_kill_job(struct zd_ctl *ctl)
{
	Zd__KillJob body = ZD__KILL_JOB__INIT;
	Zd__Request request = ZD_REQUEST(KILL_JOB, kill_job, &body);
	return end(ctl, &request, &body.job);
}
