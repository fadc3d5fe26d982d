/* SPDX-License-Identifier: Apache-2.0 */
/* scripts_windows.c - the scenarios of tests/contract/test_windows.c: any number of backwards in a step. */
#include "scripts.h"

#define CONTRACT "test_windows"

OPS(losses) = {BACKWARD(0),  REDUCE(ALL, 0), REDUCE(ALL, 1), BACKWARD_END, BACKWARD(0), REDUCE(ALL, 0),
               BACKWARD_END, STEP,           MEET,           NO_GRADIENTS, MEET};
SCRIPT(losses, losses, "two-losses", .world = 3, .nunits = 2, .stage = 3, .repeats = 3);

OPS(kept) = {MICRO(1), STEP, MICRO(1), MICRO(0), STEP, MICRO(0), MICRO(1), MICRO(1), STEP};
SCRIPT(kept, kept, "graph-that-is-kept", .world = 2, .nunits = 2, .stage = 2, .repeats = 1);

#define COUNTS "rank 1 runs 2 backwards in this step, rank 0 runs 1"
OPS(counts) = {BACKWARD(0),
               REDUCE(ALL, 0),
               BACKWARD_END,
               MEET,
               AHEAD_REFUSED(RANK(0), STEP_BEGIN, 0, 0, 0, MISMATCH, COUNTS),
               MEET_AHEAD,
               REFUSED(RANK(1), BACKWARD_BEGIN, 0, 0, 0, MISMATCH, COUNTS),
               REFUSED(RANK(1), STEP_BEGIN, 0, 0, 0, MISMATCH, COUNTS),
               MEET,
               NO_GRADIENTS,
               MEET};
SCRIPT(counts, counts, "counts-that-differ", .world = 2, .nunits = 1, .stage = 3, .repeats = 2);

const struct zd_sim_script *const zd_sim_scripts_windows[] = {&losses, &kept, &counts, NULL};
