/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c - one request as the bytes of a packet. */
#include <errno.h>
#include <stdlib.h>

#include "client/lib/conn/request.h"
#include "proto/envelope.h"

int zc_pack(const Zd__Request *request, struct zc_packed *packed, struct zd_err *err)
{
	struct zd_envelope envelope = zd_envelope_request(request);

	packed->large = NULL;
	packed->bytes = packed->small;
	packed->nbytes = envelope.bytes;
	if (packed->nbytes > ZD_MAX_PACKET_BYTES)
		return zd_err_set(err, ZEROD_E_LIMIT, "the request has %zu bytes, a packet at most %u",
		                  packed->nbytes, ZD_MAX_PACKET_BYTES);
	if (packed->nbytes > sizeof(packed->small)) {
		packed->large = malloc(packed->nbytes);
		if (!packed->large)
			return zd_err_errno(err, ENOMEM, "packing a request");
		packed->bytes = packed->large;
	}
	zd_envelope_pack(&envelope, packed->bytes);
	return 0;
}
