// SPDX-License-Identifier: Apache-2.0
/*
 * verb_end_job.c - zeroctl end-job: ends a durable job; its shards are freed, nothing can re-attach.
 */
#include "ctl.h"

int zd_ctl_end_job(struct zd_ctl *ctl)
{
	Zd__EndJob body = ZD__END_JOB__INIT;
	Zd__Request request = ZD__REQUEST__INIT;
	int status = zd_ctl_find_job(ctl, ctl->args[0], &body.job);
	if (status)
		return status;
	request.body_case = ZD__REQUEST__BODY_END_JOB;
	request.end_job = &body;
	return zd_ctl_call(ctl, &request, NULL, NULL);
}
