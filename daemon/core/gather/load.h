/* SPDX-License-Identifier: Apache-2.0 */
/* load.h - unit_load: copies an allocation of one rank into the shards of all ranks; see load.c. */
#ifndef ZD_CORE_GATHER_LOAD_H
#define ZD_CORE_GATHER_LOAD_H

#include "core/gather/unit.h"

struct zd_load {
	struct zd_unit *unit;         /* with a reference */
	uint32_t nrequests;           /* number of requests in `requests` */
	struct zd_request **requests; /* by rank; NULL: the rank has not called, or has left; owned */
	bool *called; /* by rank: the rank has called, even if its deadline has passed; owned */
	struct zd_allocation *source; /* while copying */
	uint32_t ops;                 /* copies that have not ended */
	struct zd_err failure;        /* of the first copy that failed; status 0: none */
};

#endif
