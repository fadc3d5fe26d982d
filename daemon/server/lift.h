/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lift.h - requests as the core has them: a request's message by value, with its lists checked.
 *
 * A plan of each kind says what is to be copied and checked. It is made of the message's descriptor, so a field
 * that is added to a message needs nothing here.
 */
#ifndef ZD_SERVER_LIFT_H
#define ZD_SERVER_LIFT_H

#include "core/engine.h"
#include "proto/frame.h"
#include "proto/zerod.pb-c.h"

struct zd_err;

/* Makes the plans; before the first zd_lift(). */
void zd_lift_plan(void);
/* Sets *args to the request's message, whose lists it refers to. Lists of messages are converted, in the arena.
 * Errors: LIMIT for lists that are too long, INVALID for a fence with an invalid timeline or value. */
int zd_lift(const Zd__Request *request, enum zd_request_kind kind, struct zd_arena *arena,
            struct zd_args *args, struct zd_err *err) __attribute__((warn_unused_result));

#endif
