/* SPDX-License-Identifier: Apache-2.0 */
/* states.c - the life cycle of segments, as tables. */
#include "core/memory/pool.h"

#define TO(state) ZD_SM_TO(state)

static const char *const segment_names[] = {"CREATING", "READY", "RETIRING", "DESTROYING"};
static const uint32_t segment_moves[] = {
        [ZD_SEGMENT_CREATING] = TO(ZD_SEGMENT_READY),
        [ZD_SEGMENT_READY] = TO(ZD_SEGMENT_RETIRING),
        [ZD_SEGMENT_RETIRING] = TO(ZD_SEGMENT_DESTROYING),
        [ZD_SEGMENT_DESTROYING] = 0,
};
const struct zd_sm zd_sm_segment = {"segment", ZD_ARRAY_LEN(segment_names), segment_names, segment_moves};
