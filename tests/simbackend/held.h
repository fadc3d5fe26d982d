/* SPDX-License-Identifier: Apache-2.0 */
/*
 * held.h - a command as the adversary holds it back: it moves piece by piece, ends with its store, and is
 * told of later.
 *
 * Between two of these steps any other command may take its own. What ends in order is what backend.h and
 * engine.h promise, and nothing else: commands that signal one timeline, and a device's creations and
 * destructions of segments, of which only so many fit into the arena.
 */
#ifndef ZD_TESTS_SIMBACKEND_HELD_H
#define ZD_TESTS_SIMBACKEND_HELD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "executor/host/host_executor.h"
#include "tests/simbackend/temper.h"

#define ZD_HELD_PIECES 4u

enum zd_held_stage { ZD_HELD_MOVES, ZD_HELD_ENDS, ZD_HELD_TELLS };

struct zd_held {
	TAILQ_ENTRY(zd_held) next;
	struct zd_host_task *task; /* NULL once it has ended */
	enum zd_held_stage stage;
	uint64_t due_ns;                /* takes no step before */
	struct zd_held *after;          /* ends before this one may; NULL: none is left */
	struct zd_held *before;         /* the one that waits so for this */
	struct zd_sim_rng rng;          /* of this command alone */
	bool scribbles;                 /* nobody may count on what its target holds between begin and end */
	uint32_t npieces, left;         /* of a copy or fill, and those that have not moved: */
	uint8_t pieces[ZD_HELD_PIECES]; /* the first `left`; which is next is drawn */
	struct zd_completion completion;
};

TAILQ_HEAD(zd_held_list, zd_held);

/* Owns the task. */
struct zd_held *zd_held_new(struct zd_host_task *task, const struct zd_temper *temper,
                            const struct zd_sim_rng *rng, uint64_t now_ns);
void zd_held_free(struct zd_held *held);

/* Whether the two tasks, neither of which has ended, must end in the order of submission. */
bool zd_held_ordered(const struct zd_held *a, const struct zd_held *b);
/* Whether the task may take its next step, when its time has come. */
bool zd_held_may_go(const struct zd_held *held);

/* Takes the next step. True when that was the last one. */
bool zd_held_step(struct zd_held *held, struct zd_host_executor *executor, const struct zd_temper *temper,
                  uint64_t now_ns);
/* Ends at once, failed unless it has ended already. */
void zd_held_fail(struct zd_held *held, struct zd_host_executor *executor, int status, const char *error);

#endif
