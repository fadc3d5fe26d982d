/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ending.h - ends of sessions, of ranks that leave, of durable jobs, and of deferred teardowns, a bounded
 * number of objects at a time.
 *
 * A session may hold 10^5 objects, and freeing all of them in one event would keep other users waiting. So an
 * end is a function that frees some objects and is called again. The first step is made in the event that
 * begins the end: one of few objects is complete then. Later steps are made by zd_engine_end_step().
 *
 * No request sees a state between two steps of ends of the uid that it concerns: zd_endings_finish() comes
 * first. Completions of operations, deadlines and other uids' requests may come between.
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
 * `ending` freed or unused; only then may `*budget` be left. */
typedef bool zd_ending_fn(struct zd_engine *e, struct zd_ending *ending, uint32_t *budget);

/* Embedded in the object that ends. */
struct zd_ending {
	zd_ending_fn *step;
	struct zd_owner *owner; /* of which it is a reference */
	TAILQ_ENTRY(zd_ending) link;
};

/* Makes the first step, and leaves the rest to zd_engine_end_step(). */
void zd_ending_begin(struct zd_engine *e, struct zd_owner *owner, struct zd_ending *ending,
                     zd_ending_fn *step);
/* The same after the owner's ends that are incomplete. */
void zd_ending_begin_last(struct zd_engine *e, struct zd_owner *owner, struct zd_ending *ending,
                          zd_ending_fn *step);
/* Takes back an end that is incomplete: another one will free its objects. */
void zd_ending_cancel(struct zd_engine *e, struct zd_ending *ending);
/* Completes the owner's ends. The owner may be freed with them. */
void zd_endings_finish(struct zd_engine *e, struct zd_owner *owner);
/* The same before a request of the uid; requests that wait are tried then. */
void zd_endings_finish_of(struct zd_engine *e, uint32_t uid);
/* Completes all ends before an administrator's request that may concern another uid's objects. */
void zd_endings_finish_for(struct zd_engine *e, const struct zd_session *session);

/* Counts one object. False: it has to wait for the next step. */
static inline bool zd_ending_may_free(uint32_t *budget)
{
	if (*budget == 0)
		return false;
	--*budget;
	return true;
}

#endif
