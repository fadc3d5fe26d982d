/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scripts_ahead.c - the scenarios of tests/contract/test_ahead.c: a rank asks for much, and then its CPU does
 * nothing for ten seconds. Nobody waits for it, and it has lost nothing when it goes on.
 */
#include "scripts.h"

#define CONTRACT "test_ahead"
#define LONG     10 /* seconds; everything else takes microseconds */

/* Rank 0 waits for versions that rank 1 publishes meanwhile, and has streams that read. */
OPS(gathers) = {REWRITE(RANK(0), 0),
                TAKE(RANK(0), 1),
                AHEAD(RANK(0), GATHER, 0, TAG, 1),
                AHEAD(RANK(0), PREFETCH, 2, 0, 0),
                MEET_AHEAD,
                SLEEP(RANK(0), LONG),
                REWRITE(RANK(1), 0),
                REWRITE(RANK(1), 2),
                TAKE(RANK(1), 0),
                ASLEEP(RANK(1), 0),
                USE(0, TAG),
                RELEASE(0, TAG),
                REWRITE(RANK(0), 2),
                MEET};
SCRIPT(gathers, gathers, "gathers-of-a-cpu-that-sleeps", .world = 2, .nunits = 3, .repeats = 2);

/* Rank 0's slices are summed, and rank 1's backward ends. */
OPS(sums) = {BACKWARD(0),
             REDUCE(RANK(0), 0),
             REDUCE(RANK(0), 1),
             AHEAD(RANK(0), BACKWARD_END, 0, 0, 0),
             MEET_AHEAD,
             SLEEP(RANK(0), LONG),
             REDUCE(RANK(1), 0),
             REDUCE(RANK(1), 1),
             ONLY(RANK(1), BACKWARD_END, 0, 0, 0),
             ASLEEP(RANK(1), 0),
             MEET,
             STEP,
             MEET};
SCRIPT(sums, sums, "sums-of-a-cpu-that-sleeps", .world = 2, .nunits = 2, .stage = 3, .nslots = 2,
       .repeats = 2);

/* Rank 0's process unmaps what it has released, as in tests/contract/test_room.c. */
OPS(memory) = {TAKE(RANK(0), 0),
               MEET,
               SLEEP(RANK(0), LONG),
               ONLY(RANK(1), ALLOC, 0, 1, 0),
               ONLY(RANK(1), FREE, 0, 0, 0),
               ASLEEP(RANK(1), 0),
               MEET};
SCRIPT(memory, memory, "memory-of-a-cpu-that-sleeps", .world = 2, .nunits = 1, .full = true, .large = true,
       .repeats = 2);

const struct zd_sim_script *const zd_sim_scripts_ahead[] = {&gathers, &sums, &memory, NULL};
