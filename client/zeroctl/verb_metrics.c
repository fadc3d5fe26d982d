// SPDX-License-Identifier: Apache-2.0
/*
 * verb_metrics.c - zeroctl metrics: the daemon's counters and histograms, for Prometheus and the like.
 */
#include "ctl.h"
#include "metrics.h"

#include <unistd.h>

struct printing {
	FILE *out;
	enum zd_ctl_metrics_format format;
	int status;
};

static int print_reply(const Zd__Reply *reply, void *arg)
{
	struct printing *printing = arg;
	if (reply->body_case == ZD__REPLY__BODY_METRICS)
		printing->status = zd_ctl_metrics_print(printing->out, printing->format, reply->metrics);
	return 0;
}

static int make(FILE *out, enum zd_ctl_metrics_format format, void *arg)
{
	Zd__Metrics body = ZD__METRICS__INIT;
	Zd__Request request = ZD_REQUEST(METRICS, metrics, &body);
	struct printing printing = {.out = out, .format = format, .status = ZEROD_E_PROTOCOL};
	int status = zd_ctl_call(arg, &request, print_reply, &printing);
	if (!status && printing.status)
		status = zd_ctl_fail(printing.status, "PROTOCOL: the daemon's metrics are invalid");
	return status;
}

/* A session of its own: one that stayed would hold up the daemon's end. */
static int make_once(FILE *out, enum zd_ctl_metrics_format format, void *arg)
{
	struct zd_ctl *ctl = arg;
	const int status = make(out, format, ctl);
	zerod_close(ctl->client);
	ctl->client = NULL;
	return status;
}

int zd_ctl_metrics(struct zd_ctl *ctl)
{
	if (!ctl->http)
		return make(stdout, ctl->prometheus ? ZD_CTL_PROMETHEUS : ZD_CTL_OPENMETRICS, ctl);
	int status = zd_ctl_http_serve(STDIN_FILENO, STDOUT_FILENO, make_once, ctl);
	return status ? zd_ctl_fail(status, "cannot write the answer") : 0;
}
