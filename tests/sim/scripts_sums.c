/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scripts_sums.c - the scenarios of tests/contract/test_sums.c: what a reduction comes to, which the model
 * computes for itself.
 *
 * Sum or mean, factor and dtypes are drawn from the seed.
 */
#include "scripts.h"

#define CONTRACT "test_sums"

OPS(factors) = {BACKWARD(1), REDUCE(ALL, 0), BACKWARD_END, STEP};
SCRIPT(factors, factors, "sum-mean-and-prescale", .world = 4, .nunits = 1, .stage = 3, .repeats = 4);

OPS(options) = {BACKWARD(1),
                REDUCE(RANK(0), 0),
                RESERVE(RANK(1), 0),
                MEET,
                REFUSED(RANK(1), BUCKET_SUBMIT, 0, 0, 0, MISMATCH, "rank 0 reduces by "),
                FILL(RANK(1), 0),
                BACKWARD_END,
                STEP,
                MEET};
SCRIPT(options, options, "options-that-differ", .world = 2, .nunits = 1, .stage = 3, .repeats = 2);

/* The last rank first, and the other way round. */
OPS(order) = {BACKWARD(1),  REDUCE(RANK(3), 0),
              MEET,         REDUCE(RANK(2), 0),
              MEET,         REDUCE(RANK(1), 0),
              MEET,         REDUCE(RANK(0), 0),
              BACKWARD_END, STEP,
              BACKWARD(1),  REDUCE(RANK(0), 0),
              MEET,         REDUCE(RANK(2), 0),
              MEET,         REDUCE(RANK(3), 0),
              MEET,         REDUCE(RANK(1), 0),
              BACKWARD_END, STEP};
SCRIPT(order, order, "bits-of-rank-order", .world = 4, .nunits = 1, .stage = 2, .repeats = 2);

OPS(accumulated) = {MICRO(0), MICRO(0), MICRO(0), MICRO(0), MICRO(1), STEP, MEET};
SCRIPT(accumulated, accumulated, "accumulation", .world = 2, .nunits = 2, .stage = 2, .repeats = 2);
SCRIPT(overwritten, accumulated, "overwrite-keeps-the-last", .world = 2, .nunits = 2, .stage = 3,
       .overwrites = true, .repeats = 2);

OPS(mixed) = {
        BACKWARD(0), REDUCE(ALL, 0), REDUCE(ALL, 1), REDUCE(ALL, 2), BACKWARD_END, MEET, NO_BUCKETS, MEET,
        BACKWARD(1), REDUCE(ALL, 2), REDUCE(ALL, 1), REDUCE(ALL, 0), BACKWARD_END, MEET, NO_BUCKETS, MEET,
        STEP};
SCRIPT(mixed, mixed, "gradients-of-three-dtypes", .world = 2, .nunits = 3, .stage = 2, .mixes = true,
       .repeats = 3);

OPS(overflow) = {BACKWARD(1),
                 RESERVE(ALL, 0),
                 ONLY(RANK(1), BUCKET_SUBMIT, 0, 0, ZD_SIM_INF),
                 FILL(ALL & ~RANK(1), 0),
                 BACKWARD_END,
                 STEP,
                 MEET,
                 NO_GRADIENTS,
                 MEET,
                 BACKWARD(1),
                 REDUCE(ALL, 0),
                 BACKWARD_END,
                 STEP};
SCRIPT(overflow, overflow, "overflow-on-one-rank", .world = 4, .nunits = 1, .stage = 3, .repeats = 2);

const struct zd_sim_script *const zd_sim_scripts_sums[] = {
        &factors, &options, &order, &accumulated, &mixed, &overwritten, &overflow, NULL,
};
