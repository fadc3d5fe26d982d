/* SPDX-License-Identifier: Apache-2.0 */
/* cancel.c - a client cancels one of its requests. The request then fails as if its deadline had passed. */
#include "core/engine/objects.h"

static int cancel_begin(struct zd_engine *e, struct zd_request *req, struct zd_err *err)
{
	struct zd_request *given_up;
	(void)err;
	HASH_FIND(hh, req->session->waiting, &req->args->u.cancel.request,
	          sizeof(req->args->u.cancel.request), given_up);
	if (given_up)
		zd_request_expire(e, given_up);
	return 0;
}

const struct zd_request_type zd_req_cancel = {.begin = cancel_begin};
