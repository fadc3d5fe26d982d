/* SPDX-License-Identifier: Apache-2.0 */
/* work.h - the result page of a session: results of the works that the daemon has requested of its
 * process. */
#ifndef ZD_PROTO_WORK_H
#define ZD_PROTO_WORK_H

#include <stdint.h>

#include "proto/limits.h"

/* The result of a sum, over the target's content afterwards. The client's GPU writes the result before the
 * work's fence passes. */
struct zd_work_result {
	double sum_squares;
	uint64_t overflow; /* not 0: an inf or a nan */
	uint64_t unused[6];
};
_Static_assert(sizeof(struct zd_work_result) == ZD_WORK_SLOT_BYTES, "a result fills its slot");

struct zd_work_page {
	struct zd_work_result slots[ZD_WORK_SLOTS];
};

#endif
