/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.h - the parts of `zeroctl metrics`: OpenMetrics text, and HTTP for one request.
 */
#ifndef ZD_CTL_METRICS_H
#define ZD_CTL_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "proto/zerod.pb-c.h"

/* Prints the families as OpenMetrics 1.0 text, each name with "zerod_" in front. Returns PROTOCOL, with
 * nothing or a part printed, if a sample does not fit its family, or a name would not be one of OpenMetrics.
 */
int zd_ctl_metrics_print(FILE *out, const Zd__MetricsReply *reply) __attribute__((warn_unused_result));

/* The type of that text, for HTTP. */
#define ZD_CTL_METRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

#define ZD_CTL_HTTP_MAX_BYTES 8192u /* of a request's line and headers */

/* Returns the status of the answer to a request, which is 200 for GET and HEAD of /metrics; 0 while its
 * headers have not all arrived. Sets *head for HEAD, when the status is not 0. */
int zd_ctl_http_status(const char *request, size_t nbytes, bool *head) __attribute__((warn_unused_result));

/* Reads one request from `in`, for at most 5 s, and writes the answer to `out`. `make` makes the body for
 * 200: an error of it is answered by 503. Returns 0, whatever was answered, and also when the peer has gone;
 * SYSTEM when an answer could not be written for another reason. */
int zd_ctl_http_serve(int in, int out, int (*make)(FILE *body, void *arg), void *arg)
        __attribute__((warn_unused_result));

#endif
