/* SPDX-License-Identifier: Apache-2.0 */
/* states.c - the life cycles of sessions and groups, as tables. */
#include "core/engine/objects.h"

#define TO(state) ZD_SM_TO(state)

static const char *const session_names[] = {"OPEN", "POISONED", "CLOSING"};
static const uint32_t session_moves[] = {
        [ZD_SESSION_OPEN] = TO(ZD_SESSION_POISONED) | TO(ZD_SESSION_CLOSING),
        [ZD_SESSION_POISONED] = TO(ZD_SESSION_OPEN) | TO(ZD_SESSION_CLOSING),
        [ZD_SESSION_CLOSING] = 0,
};
const struct zd_sm zd_sm_session = {"session", ZD_ARRAY_LEN(session_names), session_names, session_moves};

static const char *const group_names[] = {"FORMING", "CONNECTING", "READY", "FAILED", "ABORTED"};
static const uint32_t group_moves[] = {
        [ZD_GROUP_FORMING] = TO(ZD_GROUP_READY) | TO(ZD_GROUP_CONNECTING) | TO(ZD_GROUP_ABORTED),
        [ZD_GROUP_CONNECTING] = TO(ZD_GROUP_READY) | TO(ZD_GROUP_ABORTED),
        [ZD_GROUP_READY] = TO(ZD_GROUP_FAILED) | TO(ZD_GROUP_ABORTED),
        [ZD_GROUP_FAILED] = TO(ZD_GROUP_READY) | TO(ZD_GROUP_CONNECTING) | TO(ZD_GROUP_ABORTED),
        [ZD_GROUP_ABORTED] = TO(ZD_GROUP_FAILED), /* a durable job's, when all ranks have left */
};
const struct zd_sm zd_sm_group = {"group", ZD_ARRAY_LEN(group_names), group_names, group_moves};
