/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.h - the parts of `zeroctl metrics`: text for Prometheus and the like, and HTTP.
 */
#ifndef ZD_CTL_METRICS_H
#define ZD_CTL_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "proto/zerod.pb-c.h"

enum zd_ctl_metrics_format {
	ZD_CTL_OPENMETRICS, /* 1.0 */
	ZD_CTL_PROMETHEUS,  /* the text format 0.0.4, which has no units, info metrics or end */
};

/* Prints the families, each name with the prefix "zerod_". Returns PROTOCOL, after printing nothing or a
 * part, if a sample does not fit its family, or a name is invalid in these formats. */
int zd_ctl_metrics_print(FILE *out, enum zd_ctl_metrics_format format, const Zd__MetricsReply *reply)
        __attribute__((warn_unused_result));

#define ZD_CTL_HTTP_MAX_BYTES 8192u /* of a request's line and headers */

/* Returns the status of the reply to a request, which is 200 for GET and HEAD of /metrics. 0: its headers
 * have not all arrived. If the status is not 0, sets *head for HEAD. */
int zd_ctl_http_status(const char *request, size_t nbytes, bool *head) __attribute__((warn_unused_result));

/* Returns the format for a request of HTTP: OpenMetrics if Accept gives it at least the weight of plain
 * text. */
enum zd_ctl_metrics_format zd_ctl_http_format(const char *request);

/* Reads one request from `in`, for at most 5 s, and writes the reply to `out`. If `in` is a listening socket,
 * serves its connections until there have been none for 30 s. `make` makes the body for 200. If it fails, the
 * reply is 503. Returns 0 after any reply, and also if the peer has gone; SYSTEM if the reply to the one
 * request could not be written for another reason. */
int zd_ctl_http_serve(int in, int out, int (*make)(FILE *body, enum zd_ctl_metrics_format format, void *arg),
                      void *arg) __attribute__((warn_unused_result));

#endif
