/* SPDX-License-Identifier: Apache-2.0 */
/* read.c - reads of a group's last commit. */
#include <stdbool.h>
#include <unistd.h>

#include <zerod_read.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/handles.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/alloc.h"
#include "client/lib/conn/request.h"

#define BUSY_US 200 /* a shard is saved in less than that, if it is small */

struct committed {
	struct zerod_committed made;
	struct zd_err *err;
};

static int take_committed(const Zd__Reply *reply, void *arg)
{
	struct committed *committed = arg;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_COMMIT_WAIT, committed->err);

	if (rc)
		return rc;
	committed->made.group = reply->commit_wait->group;
	committed->made.step = reply->commit_wait->step;
	return 0;
}

int zerod_commit_wait(zerod_client *client, const struct zerod_commit_source *given, uint64_t after,
                      struct zerod_committed *committed)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__CommitWait wait = ZD__COMMIT_WAIT__INIT;
	struct zerod_commit_source source;
	struct committed result = {0};
	ZC_INSIDE(client);
	int rc = zc_enter(client, &result.err);

	if (!rc)
		rc = zc_options(&source, sizeof(source), given, "zerod_commit_source", result.err);
	if (!rc)
		rc = zc_result_check(committed, "committed", result.err);
	if (!rc && !source.job)
		rc = zd_err_set(result.err, ZEROD_E_INVALID, "job is NULL");
	if (!rc)
		rc = zc_reserved(source.reserved, "zerod_commit_source", result.err);
	if (!rc)
		rc = zc_flags(source.flags, ZEROD_COMMIT_PIN, "zerod_commit_source", result.err);
	if (rc)
		return rc;
	wait.job = (char *)source.job;
	wait.group = (char *)(source.group ? source.group : "world");
	wait.uid = source.uid;
	wait.after = after;
	wait.pin = source.flags & ZEROD_COMMIT_PIN;
	request.body_case = ZD__REQUEST__BODY_COMMIT_WAIT;
	request.commit_wait = &wait;
	rc = zc_call(client, &request, source.deadline_ms, take_committed, &result);
	if (!rc)
		zc_result_fill(committed, &result.made, sizeof(result.made));
	return rc;
}

struct info {
	struct zerod_unit_info made;
	struct zd_err *err;
};

static int take_info(const Zd__Reply *reply, void *arg)
{
	struct info *info = arg;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_UNIT_READ, info->err);

	if (rc)
		return rc;
	info->made.numel = reply->unit_read->numel;
	info->made.dtype = (enum zerod_dtype)reply->unit_read->dtype;
	return 0;
}

static int check_read(const struct zerod_client *client, const struct zerod_unit_read_options *options,
                      struct zd_err *err)
{
	int rc = zc_reserved(options->reserved, "zerod_unit_read_options", err);

	if (rc)
		return rc;
	if (!options->unit)
		return zd_err_set(err, ZEROD_E_INVALID, "unit is NULL");
	if (!options->into)
		return options->bytes == 0 ? 0 : zd_err_set(err, ZEROD_E_INVALID, "into is NULL");
	if (options->into->client != client)
		return zd_err_set(err, ZEROD_E_INVALID, "into is of another client");
	if (options->into->id == 0)
		return zd_err_set(err, ZEROD_E_RESTARTED, "the allocation ended with the daemon before");
	return 0;
}

int zerod_unit_read(zerod_client *client, const struct zerod_unit_read_options *given,
                    struct zerod_unit_info *info)
{
	Zd__Request request = ZD__REQUEST__INIT;
	Zd__UnitRead read = ZD__UNIT_READ__INIT;
	struct zerod_unit_read_options options;
	struct info result = {0};
	uint64_t until;
	bool busy;
	ZC_INSIDE(client);
	int rc = zc_enter(client, &result.err);

	if (!rc)
		rc = zc_options(&options, sizeof(options), given, "zerod_unit_read_options", result.err);
	if (!rc && info)
		rc = zc_result_check(info, "info", result.err);
	if (!rc)
		rc = check_read(client, &options, result.err);
	if (rc)
		return rc;
	read.group = options.group;
	read.unit = (char *)options.unit;
	read.step = options.step;
	read.offset = options.offset_bytes;
	read.bytes = options.bytes;
	read.allocation = options.into ? options.into->id : 0;
	read.allocation_offset = options.into_offset_bytes;
	request.body_case = ZD__REQUEST__BODY_UNIT_READ;
	request.unit_read = &read;
	until = zc_until_ns(zc_deadline_ms(client, options.deadline_ms));
	do {
		rc = zc_call(client, &request, options.deadline_ms, take_info, &result);
		busy = rc == ZEROD_E_BUSY && zc_now_ns() < until;
		if (busy)
			(void)usleep(BUSY_US);
	} while (busy);
	if (!rc && info)
		zc_result_fill(info, &result.made, sizeof(result.made));
	return rc;
}
