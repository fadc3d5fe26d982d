/* SPDX-License-Identifier: Apache-2.0 */
/* trim.c - the daemon returns memory that it does not use to a device. */
#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

struct trimming {
	uint64_t freed_bytes;
	struct zd_err *err;
};

static int take_trim(const Zd__Reply *reply, void *arg)
{
	struct trimming *trimming = arg;
	int rc = zc_check_body(reply, ZD__REPLY__BODY_TRIM, trimming->err);

	if (!rc)
		trimming->freed_bytes = reply->trim->freed_bytes;
	return rc;
}

int zerod_trim(zerod_client *client, uint32_t device, uint64_t keep_bytes,
               const struct zerod_wait_options *options, uint64_t *freed_bytes)
{
	uint32_t deadline_ms;
	Zd__Trim trim = ZD__TRIM__INIT;
	Zd__Request request = ZD_REQUEST(TRIM, trim, &trim);
	struct trimming trimming;
	ZC_INSIDE(client);
	int rc = zc_enter_quietly(client, &trimming.err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, trimming.err);
	if (rc)
		return rc;
	trim.device = device;
	trim.keep_bytes = keep_bytes;
	rc = zc_call(client, &request, deadline_ms, take_trim, &trimming);
	if (!rc && freed_bytes)
		*freed_bytes = trimming.freed_bytes;
	return rc;
}
