/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handlers.h - what each kind of request means, one file per family.
 *
 * zd_args_*: a request for the engine. Translates the message, whose body is the one that the name says, into
 * the engine's arguments. Checks what would be dangerous to pass on (counts of repeated fields, fences); the
 * engine checks the rest.
 *
 * zd_fill_*: the body of the engine's reply to it, when there is one and the status is 0.
 *
 * zd_answer_*: a request that is answered here. Sends the reply itself, unless it returns an error.
 */
#ifndef ZD_API_HANDLERS_H
#define ZD_API_HANDLERS_H

#include "api/answer.h"

struct zd_api_session;

typedef int zd_args_fn(const Zd__Request *request, struct zd_arena *arena, struct zd_args *args,
                       struct zd_err *err);
typedef void zd_fill_fn(const struct zd_reply *reply, struct zd_answer *answer);
typedef int zd_answer_fn(struct zd_api_session *session, const Zd__Request *request, struct zd_err *err);

/* handle_session.c */
zd_answer_fn zd_answer_hello, zd_answer_goodbye;
zd_args_fn zd_args_session_reset;
zd_fill_fn zd_fill_session_reset;

/* handle_group.c */
zd_args_fn zd_args_group_join, zd_args_group_leave, zd_args_group_barrier, zd_args_unique_ids, zd_args_commit;
zd_fill_fn zd_fill_group_join, zd_fill_unique_ids;

/* handle_unit.c */
zd_args_fn zd_args_unit_register, zd_args_unit_unregister, zd_args_update_begin, zd_args_publish,
        zd_args_set_persistent, zd_args_set_slot, zd_args_set_frozen, zd_args_unit_load;
zd_fill_fn zd_fill_unit_register, zd_fill_update_begin, zd_fill_set_frozen;

/* handle_gather.c */
zd_args_fn zd_args_gather, zd_args_release;
zd_fill_fn zd_fill_gather, zd_fill_release;

/* handle_scope.c */
zd_args_fn zd_args_forward_begin, zd_args_forward_end, zd_args_claim_end, zd_args_scope_abandon,
        zd_args_context_begin, zd_args_context_end;
zd_fill_fn zd_fill_scope;

/* handle_reduce.c */
zd_args_fn zd_args_backward_begin, zd_args_bucket_create, zd_args_bucket_destroy, zd_args_bucket_reserve,
        zd_args_bucket_submit, zd_args_reduce_skip, zd_args_reduce_wait, zd_args_target_return,
        zd_args_backward_end, zd_args_backward_abandon, zd_args_group_agree, zd_args_step_begin,
        zd_args_step_get, zd_args_step_end;
zd_fill_fn zd_fill_backward_begin, zd_fill_bucket_create, zd_fill_bucket_reserve, zd_fill_group_agree,
        zd_fill_reduce_wait, zd_fill_step_begin, zd_fill_step_get;

/* handle_alloc.c */
zd_args_fn zd_args_alloc, zd_args_free;
zd_fill_fn zd_fill_alloc;

/* handle_segment.c */
zd_args_fn zd_args_segments_unmapped, zd_args_trim;
zd_fill_fn zd_fill_trim;

/* handle_list.c */
zd_answer_fn zd_answer_list;

/* handle_admin.c */
zd_args_fn zd_args_kill_session, zd_args_abort_group, zd_args_end_job;
zd_answer_fn zd_answer_daemon_status;

#endif
