/* SPDX-License-Identifier: Apache-2.0 */
/* trim.c - the daemon returns memory that it does not use to a device. */
#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

static int take_trim(const Zd__Reply *reply, void *freed_bytes, struct zd_err *err)
{
	(void)err;
	if (freed_bytes)
		*(uint64_t *)freed_bytes = reply->trim->freed_bytes;
	return 0;
}

int zerod_trim(zerod_client *client, uint32_t device, uint64_t keep_bytes,
               const struct zerod_wait_options *options, uint64_t *freed_bytes)
{
	uint32_t deadline_ms;
	Zd__Trim trim = ZD__TRIM__INIT;
	Zd__Request request = ZD_REQUEST(TRIM, trim, &trim);
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_quietly(client, &err);

	if (!rc)
		rc = zc_wait_options(options, &deadline_ms, err);
	if (rc)
		return rc;
	trim.device = device;
	trim.keep_bytes = keep_bytes;
	return zc_call_take(client, &request, deadline_ms, ZD__REPLY__BODY_TRIM, take_trim, freed_bytes);
}
