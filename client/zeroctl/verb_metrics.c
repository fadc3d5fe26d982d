// SPDX-License-Identifier: Apache-2.0
/*
 * verb_metrics.c - zeroctl metrics: the daemon's counters and histograms, for Prometheus and the like.
 */
#include "ctl.h"
#include "metrics.h"

#include <string.h>
#include <unistd.h>

struct printing {
	FILE *out;
	int status;
};

static int print_reply(const Zd__Reply *reply, void *arg)
{
	struct printing *printing = arg;
	if (reply->body_case == ZD__REPLY__BODY_METRICS)
		printing->status = zd_ctl_metrics_print(printing->out, reply->metrics);
	return 0;
}

static int make(FILE *out, void *arg)
{
	Zd__Metrics body = ZD__METRICS__INIT;
	Zd__Request request = ZD__REQUEST__INIT;
	request.body_case = ZD__REQUEST__BODY_METRICS;
	request.metrics = &body;
	struct printing printing = {.out = out, .status = ZEROD_E_PROTOCOL};
	int status = zd_ctl_call(arg, &request, print_reply, &printing);
	if (!status && printing.status)
		status = zd_ctl_fail(printing.status, "PROTOCOL: the daemon's metrics make no sense");
	return status;
}

int zd_ctl_metrics(struct zd_ctl *ctl)
{
	if (!ctl->http)
		return make(stdout, ctl);
	int status = zd_ctl_http_serve(STDIN_FILENO, STDOUT_FILENO, make, ctl);
	return status ? zd_ctl_fail(status, "cannot write the answer") : 0;
}
