/* SPDX-License-Identifier: Apache-2.0 */
/* repeat.h - requests that are repeated to the next daemon. */
#ifndef ZD_CLIENT_REPEAT_H
#define ZD_CLIENT_REPEAT_H

#include <stddef.h>
#include <stdint.h>

#include <zerod.h>

#include "base/err.h"
#include "client/lib/conn/request.h"

struct zc_kept_request {
	size_t nbytes;
	uint8_t bytes[];
};

/* Copies a granted request. NULL: no memory, or the client never reconnects. Owned: free(). */
struct zc_kept_request *zc_request_keep(const struct zerod_client *client, const Zd__Request *request);
/* Objects of one kind, each created by a request of this client. */
struct zc_repeat {
	const struct zc_kept_request *(*kept)(const void *object);
	Zd__Reply__BodyCase body; /* of the replies */
	zc_take_fn *take;         /* as of zc_call_take() */
	/* Names the object in the text of its failure. NULL: the text is sufficient. */
	void (*explain)(const void *object, struct zd_err *err);
};

/* Sends the requests of all objects again, with the group's present id, in this order and in full packets.
 * Returns the first failure. Some of the objects can then exist again. */
int zc_requests_repeat(struct zerod_group *group, const struct zc_repeat *repeat, void *const *objects,
                       size_t count, struct zd_err *err) __attribute__((warn_unused_result));

#endif
