/* SPDX-License-Identifier: Apache-2.0 */
/* place.h - unit_place: moves a unit between its ranks' devices and host memory; see place.c. */
#ifndef ZD_CORE_GATHER_PLACE_H
#define ZD_CORE_GATHER_PLACE_H

#include "core/gather/unit.h"

enum zd_move_state {
	ZD_MOVE_CALLED,  /* ranks are awaited */
	ZD_MOVE_CLOSED,  /* all have called: the parts are MOVING, and the new shards are being allocated */
	ZD_MOVE_COPYING, /* shards are being copied */
};

struct zd_move {
	struct zd_unit *unit; /* with a reference */
	enum zd_move_state state;
	bool doomed;                  /* COPYING: a rank has left, and the new shards are uncharged */
	uint64_t generation;          /* of the group, when the copies began */
	uint32_t nrequests;           /* number of requests in `requests` */
	struct zd_request **requests; /* by rank; NULL: the rank has not called, or has left; owned */
	bool *called;             /* by rank: the rank has called, even if its deadline has passed; owned */
	struct zd_extent *shards; /* by rank: the new shard, with its shadow; owned */
	uint32_t ops;             /* copies that have not ended */
	struct zd_err failure;    /* of the first copy that failed; status 0: none */
};

#endif
