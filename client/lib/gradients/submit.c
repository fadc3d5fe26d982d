/* SPDX-License-Identifier: Apache-2.0 */
/* submit.c - reservations that end, and entries that are submitted to the daemon. */
#include <stdlib.h>
#include <string.h>

#include "client/lib/base/options.h"
#include "client/lib/device/offloaded_sum.h"
#include "client/lib/gradients/bucket.h"

/* Its op, if any, then has no reservation. */
void zc_reserved_free(struct zc_reserved *reserved)
{
	LIST_REMOVE(reserved, link);
	if (reserved->op)
		reserved->op->data = NULL;
	zc_fences_deinit(&reserved->fences);
	zc_unit_unref(reserved->unit);
	free(reserved->sum);
	free(reserved);
}

static void forget_before(struct zc_reserved *reserved, uint64_t request)
{
	while (reserved) {
		struct zc_reserved *next = LIST_NEXT(reserved, link);

		if (reserved->made < request)
			zc_reserved_free(reserved);
		reserved = next;
	}
}

void zc_reserved_forget(struct zerod_bucket *bucket, uint64_t request)
{
	forget_before(LIST_FIRST(&bucket->reserved), request);
	forget_before(LIST_FIRST(&bucket->given), request);
}

int zc_entry_send(struct zerod_client *client, const struct zc_sending *sending, Zd__Request *request,
                  uint32_t deadline_ms, struct zd_err *err)
{
	if (!sending->detached && !sending->ticket)
		return zc_call(client, request, deadline_ms, NULL, NULL);
	if (!sending->detached)
		return zc_post_other(client, sending->type, NULL, sending->unit, request, deadline_ms,
		                     sending->ticket, err);
	request->deadline_ms = zc_deadline_ms(client, deadline_ms);
	return zc_post_detached(client, sending->unit, sending->word, request, err);
}

int zc_entry_submit(struct zerod_client *client, const struct zerod_bucket *bucket, uint64_t entry_id,
                    const struct zc_fence_args *fences, const struct zerod_reduce_options *options,
                    const struct zc_sending *sending, struct zd_err *err)
{
	Zd__BucketSubmit submit = ZD__BUCKET_SUBMIT__INIT;
	Zd__Request request = ZD_REQUEST(BUCKET_SUBMIT, bucket_submit, &submit);
	uint32_t absent[ZD_MAX_VIEWS];
	int rc;

	submit.bucket = bucket->id;
	submit.entry = entry_id;
	submit.n_fences = fences->count;
	submit.fences = (Zd__Fence **)fences->pointers;
	submit.op = options->op;
	submit.prescale = options->prescale;
	submit.overwrite = options->flags & ZEROD_REDUCE_OVERWRITE;
	submit.terms = (options->flags & ZEROD_REDUCE_TERMS) != 0;
	if (options->nabsent > 0)
		memcpy(absent, options->absent, options->nabsent * sizeof(*absent));
	submit.n_absent = options->nabsent;
	submit.absent = absent;
	rc = zc_entry_send(client, sending, &request, options->deadline_ms, err);
	if (!rc)
		zc_worker_expect(client);
	return rc;
}
