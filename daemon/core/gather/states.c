/* SPDX-License-Identifier: Apache-2.0 */
/* states.c - the life cycles of parts, their shadows, gathered buffers and scopes, as tables. */
#include "core/gather/buffer.h"
#include "core/gather/scope.h"
#include "core/gather/shadow.h"

#define TO(state) ZD_SM_TO(state)

static const char *const part_names[] = {"ABSENT",  "FILLING",    "IDLE",   "UPDATE_WAIT", "UPDATING",
                                         "LOADING", "PUBLISHING", "MOVING", "DETACHED",    "DYING"};
#define GONE (TO(ZD_PART_DYING) | TO(ZD_PART_DETACHED) | TO(ZD_PART_ABSENT))
static const uint32_t part_moves[] = {
        [ZD_PART_ABSENT] = TO(ZD_PART_FILLING),
        [ZD_PART_FILLING] = TO(ZD_PART_IDLE) | GONE,
        [ZD_PART_IDLE] = TO(ZD_PART_UPDATE_WAIT) | TO(ZD_PART_MOVING) | GONE,
        [ZD_PART_UPDATE_WAIT] = TO(ZD_PART_UPDATING) | TO(ZD_PART_IDLE) | GONE,
        /* IDLE: the update was undone */
        [ZD_PART_UPDATING] = TO(ZD_PART_LOADING) | TO(ZD_PART_PUBLISHING) | TO(ZD_PART_IDLE) | GONE,
        [ZD_PART_LOADING] = TO(ZD_PART_UPDATING) | GONE,
        [ZD_PART_PUBLISHING] = TO(ZD_PART_IDLE) | TO(ZD_PART_UPDATING) | GONE,
        [ZD_PART_MOVING] = TO(ZD_PART_IDLE) | GONE,
        [ZD_PART_DETACHED] = TO(ZD_PART_IDLE) | TO(ZD_PART_DYING) | TO(ZD_PART_ABSENT),
        [ZD_PART_DYING] = TO(ZD_PART_ABSENT),
};
const struct zd_sm zd_sm_part = {"part", ZD_ARRAY_LEN(part_names), part_names, part_moves};

static const char *const shadow_names[] = {"NONE", "FREE", "SAVING", "SAVED", "DUE", "RESTORING"};
static const uint32_t shadow_moves[] = {
        [ZD_SHADOW_NONE] = TO(ZD_SHADOW_FREE),
        [ZD_SHADOW_FREE] = TO(ZD_SHADOW_SAVING) | TO(ZD_SHADOW_NONE),
        [ZD_SHADOW_SAVING] = TO(ZD_SHADOW_SAVED) | TO(ZD_SHADOW_FREE), /* FREE: the copy failed */
        [ZD_SHADOW_SAVED] = TO(ZD_SHADOW_FREE) | TO(ZD_SHADOW_DUE) | TO(ZD_SHADOW_NONE),
        [ZD_SHADOW_DUE] = TO(ZD_SHADOW_RESTORING) | TO(ZD_SHADOW_NONE),
        [ZD_SHADOW_RESTORING] = TO(ZD_SHADOW_SAVED),
};
const struct zd_sm zd_sm_shadow = {"shadow", ZD_ARRAY_LEN(shadow_names), shadow_names, shadow_moves};

static const char *const buffer_names[] = {"INFLIGHT", "AVAILABLE", "QUARANTINED"};
static const uint32_t buffer_moves[] = {
        [ZD_BUFFER_INFLIGHT] = TO(ZD_BUFFER_AVAILABLE) | TO(ZD_BUFFER_QUARANTINED),
        /* INFLIGHT: a persistent buffer is refreshed in place */
        [ZD_BUFFER_AVAILABLE] = TO(ZD_BUFFER_INFLIGHT) | TO(ZD_BUFFER_QUARANTINED),
        [ZD_BUFFER_QUARANTINED] = 0,
};
const struct zd_sm zd_sm_buffer = {"buffer", ZD_ARRAY_LEN(buffer_names), buffer_names, buffer_moves};

static const char *const transfer_names[] = {"PROMPT", "EXCHANGED", "DEFERRED", "LANDING", "JOINED"};
/* of the buffer's next transfer */
#define NEXT (TO(ZD_PHASE_PROMPT) | TO(ZD_PHASE_DEFERRED) | TO(ZD_PHASE_LANDING))
static const uint32_t transfer_moves[] = {
        [ZD_PHASE_PROMPT] = TO(ZD_PHASE_EXCHANGED) | NEXT,
        [ZD_PHASE_EXCHANGED] = NEXT,
        [ZD_PHASE_DEFERRED] = NEXT,
        [ZD_PHASE_LANDING] = TO(ZD_PHASE_JOINED) | NEXT,
        [ZD_PHASE_JOINED] = NEXT,
};
const struct zd_sm zd_sm_transfer = {"transfer", ZD_ARRAY_LEN(transfer_names), transfer_names,
                                     transfer_moves};

static const char *const poison_names[] = {"NONE", "DUE", "FILLING"};
static const uint32_t poison_moves[] = {
        [ZD_POISON_NONE] = TO(ZD_POISON_DUE),
        /* NONE: the buffer's heir fills the memory */
        [ZD_POISON_DUE] = TO(ZD_POISON_FILLING) | TO(ZD_POISON_NONE),
        [ZD_POISON_FILLING] = TO(ZD_POISON_NONE),
};
const struct zd_sm zd_sm_poison = {"poison", ZD_ARRAY_LEN(poison_names), poison_names, poison_moves};

static const char *const scope_names[] = {"GATHERING", "OPEN", "CLAIMED", "ENDED"};
static const uint32_t scope_moves[] = {
        [ZD_SCOPE_GATHERING] = TO(ZD_SCOPE_OPEN) | TO(ZD_SCOPE_ENDED),
        [ZD_SCOPE_OPEN] = TO(ZD_SCOPE_CLAIMED) | TO(ZD_SCOPE_ENDED),
        [ZD_SCOPE_CLAIMED] = TO(ZD_SCOPE_ENDED),
        [ZD_SCOPE_ENDED] = 0,
};
const struct zd_sm zd_sm_scope = {"scope", ZD_ARRAY_LEN(scope_names), scope_names, scope_moves};
