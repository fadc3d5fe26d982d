/* SPDX-License-Identifier: Apache-2.0 */
/* types.c - the table of request kinds; each row is defined where its family is. */
#include "core/internal.h"
#include "core/reduce.h"

extern const struct zd_request_type zd_req_session_reset, zd_req_group_join, zd_req_group_leave,
        zd_req_unique_ids, zd_req_unit_register, zd_req_unit_unregister, zd_req_update_begin, zd_req_publish,
        zd_req_commit, zd_req_set_persistent, zd_req_gather, zd_req_release, zd_req_forward_begin,
        zd_req_forward_end, zd_req_claim_end, zd_req_scope_abandon, zd_req_context_begin, zd_req_context_end,
        zd_req_alloc, zd_req_free, zd_req_kill_session, zd_req_abort_group, zd_req_end_job, zd_req_trim,
        zd_req_segments_unmapped;

const struct zd_request_type *const zd_request_types[ZD_NREQUESTS] = {
        [ZD_REQ_SESSION_RESET] = &zd_req_session_reset,
        [ZD_REQ_GROUP_JOIN] = &zd_req_group_join,
        [ZD_REQ_GROUP_LEAVE] = &zd_req_group_leave,
        [ZD_REQ_UNIQUE_IDS] = &zd_req_unique_ids,
        [ZD_REQ_UNIT_REGISTER] = &zd_req_unit_register,
        [ZD_REQ_UNIT_UNREGISTER] = &zd_req_unit_unregister,
        [ZD_REQ_UPDATE_BEGIN] = &zd_req_update_begin,
        [ZD_REQ_PUBLISH] = &zd_req_publish,
        [ZD_REQ_COMMIT] = &zd_req_commit,
        [ZD_REQ_SET_PERSISTENT] = &zd_req_set_persistent,
        [ZD_REQ_GATHER] = &zd_req_gather,
        [ZD_REQ_RELEASE] = &zd_req_release,
        [ZD_REQ_FORWARD_BEGIN] = &zd_req_forward_begin,
        [ZD_REQ_FORWARD_END] = &zd_req_forward_end,
        [ZD_REQ_CLAIM_END] = &zd_req_claim_end,
        [ZD_REQ_SCOPE_ABANDON] = &zd_req_scope_abandon,
        [ZD_REQ_CONTEXT_BEGIN] = &zd_req_context_begin,
        [ZD_REQ_CONTEXT_END] = &zd_req_context_end,
        [ZD_REQ_BACKWARD_BEGIN] = &zd_req_backward_begin,
        [ZD_REQ_BUCKET_CREATE] = &zd_req_bucket_create,
        [ZD_REQ_BUCKET_DESTROY] = &zd_req_bucket_destroy,
        [ZD_REQ_BUCKET_RESERVE] = &zd_req_bucket_reserve,
        [ZD_REQ_BUCKET_COMMIT] = &zd_req_bucket_commit,
        [ZD_REQ_REDUCE_SKIP] = &zd_req_reduce_skip,
        [ZD_REQ_BACKWARD_END] = &zd_req_backward_end,
        [ZD_REQ_STEP_BEGIN] = &zd_req_step_begin,
        [ZD_REQ_STEP_END] = &zd_req_step_end,
        [ZD_REQ_ALLOC] = &zd_req_alloc,
        [ZD_REQ_FREE] = &zd_req_free,
        [ZD_REQ_KILL_SESSION] = &zd_req_kill_session,
        [ZD_REQ_ABORT_GROUP] = &zd_req_abort_group,
        [ZD_REQ_END_JOB] = &zd_req_end_job,
        [ZD_REQ_TRIM] = &zd_req_trim,
        [ZD_REQ_SEGMENTS_UNMAPPED] = &zd_req_segments_unmapped,
};
