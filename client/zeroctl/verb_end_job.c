// SPDX-License-Identifier: Apache-2.0
/*
 * verb_end_job.c - zeroctl end-job: ends a durable job and frees its shards. No process can re-attach.
 */
#include "explain.h"

#include <stdlib.h>

int zd_ctl_end_job(struct zd_ctl *ctl)
{
	Zd__EndJob body = ZD__END_JOB__INIT;
	Zd__Request request = ZD_REQUEST(END_JOB, end_job, &body);
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
