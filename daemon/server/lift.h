/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lift.h - converts messages for the core, which has them by value.
 *
 * A plan of each kind lists the fields to copy, check and convert. It is made of the messages' descriptors: a
 * new field of a message needs no change here.
 */
#ifndef ZD_SERVER_LIFT_H
#define ZD_SERVER_LIFT_H

#include "server/answer.h"

/* Creates the plans. Called first. */
void zd_lift_plan(void);
/* Sets *args to the request's message, whose lists it refers to. Lists of messages are converted, in the
 * arena. Errors: LIMIT for lists that are too long. */
int zd_lift(const Zd__Request *request, enum zd_request_kind kind, struct zd_arena *arena,
            struct zd_args *args, struct zd_err *err) __attribute__((warn_unused_result));
/* Makes the body of a reply with status 0, if it has one: its message, with places and fences, in the arena.
 * Notes the segments of the places in the answer. */
void zd_lower(const struct zd_reply *reply, struct zd_answer *answer);

#endif
