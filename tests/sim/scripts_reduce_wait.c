/* SPDX-License-Identifier: Apache-2.0 */
/* scripts_reduce_wait.c - the scenarios of tests/contract/test_reduce_wait.c: reduced gradients before the
 * step. */
#include "scripts.h"

#define CONTRACT "test_reduce_wait"

#define BACKWARD_OF(ranks, boundary)    ONLY(ranks, BACKWARD_BEGIN, 0, 0, boundary)
#define BACKWARD_END_OF(ranks)          ONLY(ranks, BACKWARD_END, 0, 0, 0)
#define BLOCKS                          (ZD_SIM_LOAN_BLOCKS | ZD_SIM_LOAN_WRITES)
#define WAIT(ranks, unit)               ONLY(ranks, REDUCE_WAIT, unit, 0, BLOCKS)
#define WAIT_AHEAD(ranks, unit)         ONLY(ranks, REDUCE_WAIT, unit, 0, ZD_SIM_LOAN_AHEAD)
#define NO_SUM(ranks, unit, why, words) REFUSED(ranks, REDUCE_WAIT, unit, 0, BLOCKS, why, words)
#define RAISE(ranks)                    ONLY(ranks, BACKWARD_ABANDON, 0, 0, 0)

OPS(sums) = {BACKWARD(0),        REDUCE(ALL, 0),
             WAIT(ALL, 0),       REDUCE(ALL, 1),
             BACKWARD_END,       WAIT(ALL, 0),
             WAIT_AHEAD(ALL, 1), BACKWARD(0),
             REDUCE(ALL, 0),     WAIT_AHEAD(ALL, 0),
             REDUCE(ALL, 1),     BACKWARD_END,
             WAIT(ALL, 1),       STEP};
SCRIPT(sums, sums, "sum-before-the-step", .world = 2, .nunits = 2, .stage = 3, .repeats = 3);

OPS(readers) = {BACKWARD(0),
                REDUCE(RANK(0), 0),
                SKIP(RANK(1), 0),
                BACKWARD_END,
                WAIT_AHEAD(RANK(1), 0),
                BACKWARD(0),
                REDUCE(RANK(0), 0),
                SKIP(RANK(1), 0),
                BACKWARD_END,
                STEP,
                MEET,
                NO_GRADIENTS,
                MEET};
SCRIPT(readers, readers, "reader-holds-the-next-sum", .world = 2, .nunits = 1, .stage = 2, .repeats = 4);

OPS(refusals) = {NO_SUM(ALL, 0, STATE, "has neither reduced nor skipped unit 'u0'"),
                 BACKWARD(0),
                 NO_SUM(ALL, 0, STATE, "has neither reduced nor skipped unit 'u0'"),
                 REDUCE(RANK(0), 0),
                 NO_SUM(RANK(0), 0, DEADLINE, "unit 'u0' (rank 1)"),
                 MEET,
                 REDUCE(RANK(1), 0),
                 SKIP(ALL, 1),
                 NO_SUM(ALL, 1, NOT_FOUND, "all ranks have skipped it"),
                 WAIT(ALL, 0),
                 BACKWARD_END,
                 MEET,
                 NO_SUM(ALL, 1, NOT_FOUND, "all ranks have skipped it"),
                 MEET,
                 RAISE(RANK(1)),
                 MEET,
                 NO_SUM(ALL, 0, STATE, "rank 1 has abandoned"),
                 STEP,
                 MEET,
                 NO_GRADIENTS,
                 MEET};
SCRIPT(refusals, refusals, "sums-that-are-refused", .world = 2, .nunits = 2, .stage = 3, .backwards = 1,
       .repeats = 2);

/* tests/contract/test_windows.c: test_a_rank_raises_anywhere(); here in stage 1, before the boundary. */
OPS(raises) = {BACKWARD(0),
               BACKWARD_END,
               MEET,
               RAISE(RANK(1)),
               BACKWARD_OF(RANK(0), 1),
               REDUCE(RANK(0), 0),
               BACKWARD_END_OF(RANK(0)),
               STEP,
               MEET,
               NO_GRADIENTS,
               MEET};
SCRIPT(raises, raises, "raises-before-the-boundary", .world = 2, .nunits = 1, .stage = 1, .backwards = 2,
       .repeats = 3);

const struct zd_sim_script *const zd_sim_scripts_reduce_wait[] = {&sums, &readers, &refusals, &raises, NULL};
