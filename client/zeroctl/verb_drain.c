// SPDX-License-Identifier: Apache-2.0
/*
 * verb_drain.c - zeroctl drain and undrain: whether jobs can start, and ranks can join; and the jobs that
 * still run.
 */
#include "ctl.h"

static int send_drain(struct zd_ctl *ctl, bool undrain)
{
	Zd__Drain body = ZD__DRAIN__INIT;
	Zd__Request request = ZD_REQUEST(DRAIN, drain, &body);
	body.undrain = undrain;
	return zd_ctl_call(ctl, &request, NULL, NULL);
}

int zd_ctl_drain(struct zd_ctl *ctl)
{
	json_int_t running = 0, kept = 0, sessions = 0;
	json_t *jobs, *job;
	size_t i;
	int status = send_drain(ctl, false);
	if (!status)
		status = zd_ctl_list_fetch(ctl, &zd_ctl_jobs_listing, &jobs);
	if (status)
		return status;
	json_array_foreach(jobs, i, job)
	{
		const json_int_t of_job = zd_ctl_integer(job, "sessions");
		running += of_job > 0;
		kept += of_job == 0;
		sessions += of_job;
	}
	json_decref(jobs);
	if (running)
		printf("draining: %" JSON_INTEGER_FORMAT " job%s still run%s, with %" JSON_INTEGER_FORMAT
		       " session%s",
		       running, running == 1 ? "" : "s", running == 1 ? "s" : "", sessions,
		       sessions == 1 ? "" : "s");
	else
		fputs("drained: no job runs", stdout);
	if (kept)
		printf("; jobs without sessions, whose memory is retained: %" JSON_INTEGER_FORMAT, kept);
	putchar('\n');
	return 0;
}

int zd_ctl_undrain(struct zd_ctl *ctl)
{
	return send_drain(ctl, true);
}
