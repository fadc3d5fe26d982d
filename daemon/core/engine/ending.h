/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ending.h - ends of sessions, of ranks that leave, of durable jobs, and of deferred teardowns, in steps with
 * a bounded number of objects.
 *
 * A session can hold 10^5 objects. Freeing all of them in one event would delay other users. An end is
 * therefore a function that frees some objects and is called again. The event that starts the end makes the
 * first step, which completes an end of few objects. zd_engine_end_step() makes later steps.
 *
 * Requests never see a state between two steps of an end of the uid that they concern, because
 * zd_endings_finish() is called first. Completions of operations, deadlines and other uids' requests can
 * occur between steps.
 */
#ifndef ZD_CORE_ENGINE_ENDING_H
#define ZD_CORE_ENGINE_ENDING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct zd_ending;
struct zd_engine;
struct zd_owner;
struct zd_session;

/* Frees objects until `*budget`, which it decrements for each, is 0. Returns whether the end is complete, and
 * `ending` freed or unused. Only then can `*budget` be greater than 0. */
typedef bool zd_ending_fn(struct zd_engine *e, struct zd_ending *ending, uint32_t *budget);

/* Embedded in the object that ends. */
struct zd_ending {
	zd_ending_fn *step;
	struct zd_owner *owner; /* has a reference */
	TAILQ_ENTRY(zd_ending) link;
};

/* Makes the first step. zd_engine_end_step() makes the others. */
void zd_ending_begin(struct zd_engine *e, struct zd_owner *owner, struct zd_ending *ending,
                     zd_ending_fn *step);
/* As zd_ending_begin(), after the owner's incomplete ends. */
void zd_ending_begin_last(struct zd_engine *e, struct zd_owner *owner, struct zd_ending *ending,
                          zd_ending_fn *step);
/* Cancels an incomplete end. Another end will free its objects. */
void zd_ending_cancel(struct zd_engine *e, struct zd_ending *ending);
/* Completes the owner's ends. This can free the owner. */
void zd_endings_finish(struct zd_engine *e, struct zd_owner *owner);
/* Completes the ends of the uid before one of its requests, and then tries its waiting requests. */
void zd_endings_finish_of(struct zd_engine *e, uint32_t uid);
/* Completes all ends before an administrator's request that can concern another uid's objects. */
void zd_endings_finish_for(struct zd_engine *e, const struct zd_session *session);

/* Counts one object. Returns false if the object has to wait for the next step. */
static inline bool zd_ending_may_free(uint32_t *budget)
{
	if (*budget == 0)
		return false;
	--*budget;
	return true;
}

#endif
