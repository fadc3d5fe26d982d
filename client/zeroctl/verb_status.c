// SPDX-License-Identifier: Apache-2.0
/*
 * verb_status.c - zeroctl status: the daemon itself, its totals and the bytes that it holds by purpose.
 */
#include "ctl.h"

#include <string.h>

/* "SERVING", "DRAINING by session 4 (pid 12, uid 0)", "DRAINING by SIGTERM, ends in 9.5 s", "SERVING; durable
 * state is lost: REASON" */
static char *state_text(const json_t *row)
{
	const char *state = zd_ctl_string(row, "state");
	const char *by = zd_ctl_string(row, "drained_by");
	json_int_t ends_in_ns = zd_ctl_integer(row, "ends_in_ns");
	const char *lost = zd_ctl_string(row, "state_lost");
	char age[ZD_CTL_AGE_TEXT] = "";
	if (ends_in_ns > 0)
		(void)zd_ctl_age_text((uint64_t)ends_in_ns, age);
	return zd_ctl_text("%s%s%s%s%s%s%s", state, *by ? " by " : "", by, *age ? ", ends in " : "", age,
	                   *lost ? "; durable state is lost: " : "", lost);
}

bool zd_ctl_status_ends(const json_t *row)
{
	const char *by = zd_ctl_string(row, "drained_by");
	bool draining = zd_ctl_is(row, "state", "DRAINING");
	/* An older daemon does not report the requester of a drain, and drains only to end. */
	return draining && (!*by || zd_ctl_integer(row, "ends_in_ns") > 0);
}

const struct zd_ctl_column zd_ctl_status_columns[] = {
        {"daemon", "daemon", ZD_CTL_TEXT, 0, NULL},
        {"backend", "backend", ZD_CTL_TEXT, 0, NULL},
        {"state", "state", ZD_CTL_CUSTOM, 0, state_text},
        {"pid", "pid", ZD_CTL_COUNT, 0, NULL},
        {"uptime", "uptime_ns", ZD_CTL_AGE, 0, NULL},
        {"own memory", "resident_bytes", ZD_CTL_BYTES, 0, NULL},
        {"devices", "devices", ZD_CTL_COUNT, 0, NULL},
        {"sessions", "sessions", ZD_CTL_COUNT, 0, NULL},
        {"jobs", "jobs", ZD_CTL_COUNT, 0, NULL},
        {"groups", "groups", ZD_CTL_COUNT, 0, NULL},
        {"requests", "requests", ZD_CTL_COUNT, 0, NULL},
        {"gathers", "gathers", ZD_CTL_COUNT, 0, NULL},
        {"fallback gathers", "fallback_gathers", ZD_CTL_COUNT, 0, NULL},
        {"gathered since start", "gathered_bytes_total", ZD_CTL_BYTES, 0, NULL},
        {"shards", "usage.shard_bytes", ZD_CTL_BYTES, 0, NULL},
        {"gathered now", "usage.gathered_bytes", ZD_CTL_BYTES, 0, NULL},
        {"gathered at peak", "usage.peak_gathered_bytes", ZD_CTL_BYTES, 0, NULL},
        {"buckets", "usage.bucket_bytes", ZD_CTL_BYTES, 0, NULL},
        {"staging", "usage.staging_bytes", ZD_CTL_BYTES, 0, NULL},
        {"targets", "usage.target_bytes", ZD_CTL_BYTES, 0, NULL},
        {"allocations", "usage.allocation_bytes", ZD_CTL_BYTES, 0, NULL},
        {"all at peak", "usage.peak_bytes", ZD_CTL_BYTES, 0, NULL},
        {NULL, NULL, ZD_CTL_TEXT, 0, NULL},
};

static int take_status(const Zd__Reply *reply, void *arg)
{
	json_t **row = arg;
	if (reply->body_case != ZD__REPLY__BODY_DAEMON_STATUS)
		return 0;
	*row = zd_ctl_object(&reply->daemon_status->base);
	return 0;
}

int zd_ctl_status_fetch(struct zd_ctl *ctl, json_t **row)
{
	Zd__DaemonStatus body = ZD__DAEMON_STATUS__INIT;
	Zd__Request request = ZD_REQUEST(DAEMON_STATUS, daemon_status, &body);
	json_t *taken = NULL;
	int status = zd_ctl_call(ctl, &request, take_status, &taken);
	if (!status && !taken)
		status = zd_ctl_fail(ZEROD_E_PROTOCOL, "PROTOCOL: the daemon's status is invalid");
	if (status)
		return status;
	*row = taken;
	return 0;
}

int zd_ctl_status(struct zd_ctl *ctl)
{
	json_t *row;
	int status = zd_ctl_status_fetch(ctl, &row);
	if (status)
		return status;
	if (ctl->json)
		return zd_ctl_print_json(stdout, ctl->verb, json_pack("[o]", row));
	zd_ctl_print_record(ctl, row, zd_ctl_status_columns);
	json_decref(row);
	return 0;
}
