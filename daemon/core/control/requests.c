/* SPDX-License-Identifier: Apache-2.0 */
/* requests.c - the table of all kinds of requests. */
#include "core/control/control.h"

const struct zd_request_type *const zd_request_types[ZD_NREQUESTS] = {
#define REQUEST(KIND, name) [ZD_REQ_##KIND] = &zd_req_##name,
#include "core/requests.def"
};
