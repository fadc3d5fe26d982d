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

#define REQUEST(KIND, name) zd_args_fn zd_args_##name;
#define REQUEST_FILLED(KIND, name, fill)                                                                     \
	zd_args_fn zd_args_##name;                                                                           \
	zd_fill_fn zd_fill_##fill;
#include "core/requests.def"

zd_answer_fn zd_answer_hello, zd_answer_goodbye, zd_answer_list, zd_answer_daemon_status;

#endif
