/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handlers.h - the handlers of requests that need more than the engine.
 *
 * zd_answer_*: a request that the api handles without the engine. Sends the reply, unless it returns an
 * error.
 */
#ifndef ZD_SERVER_HANDLERS_H
#define ZD_SERVER_HANDLERS_H

#include "server/answer.h"

struct zd_api;

typedef int zd_answer_fn(struct zd_api_session *session, const Zd__Request *request, struct zd_err *err);

/* Checks the unique ids of a GROUP_JOIN, which the engine cannot check. A daemon must have made them for the
 * session's user and this group, and they must not have expired. Removes the stamp of the ids in `args`.
 * Errors: see zd_id_stamp_check(). */
int zd_check_group_join(const struct zd_api_session *session, struct zd_args *args, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Puts the stamp before the ids of a reply to UNIQUE_IDS. Can change the reply to an error. */
void zd_stamp_ids(const struct zd_reply *reply, struct zd_answer *answer);

zd_answer_fn zd_answer_hello, zd_answer_goodbye, zd_answer_list, zd_answer_daemon_status, zd_answer_metrics,
        zd_answer_events, zd_answer_drain;

/* Returns the size of the process's private memory, without segments and fence pages, which are shared. 0 if
 * /proc does not report it. */
uint64_t zd_resident_bytes(const struct zd_api *api);

#endif
