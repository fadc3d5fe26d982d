/* SPDX-License-Identifier: Apache-2.0 */
/* scripts_pr8036.c - the scenarios of tests/contract/test_pr8036.c: targets and buckets live for a step. */
#include "scripts.h"

#define CONTRACT "test_pr8036"

OPS(between) = {BACKWARD(1), REDUCE(ALL, 0), REDUCE(ALL, 1), BACKWARD_END, STEP, MEET, NO_GRADIENTS, MEET};
SCRIPT(between, between, "nothing-between-steps", .world = 3, .nunits = 2, .stage = 3, .repeats = 3);

OPS(overflow) = {BACKWARD(1), REDUCE(ALL, 0), BACKWARD_END, STEP, MEET, NO_GRADIENTS, MEET};
SCRIPT(overflow, overflow, "overflow", .world = 2, .nunits = 1, .stage = 2, .overflows = true, .repeats = 2);

/* The part that reduces comes first, in the middle, last. */
OPS(parts) = {BACKWARD(1),
              REDUCE(ALL, 0),
              REDUCE(ALL, 1),
              GATHER(0, TAG),
              USE(0, TAG),
              RELEASE(0, TAG),
              GATHER(1, TAG),
              RELEASE(1, TAG),
              BACKWARD_END,
              MEET,
              NO_BUCKETS,
              MEET,
              STEP,
              BACKWARD(1),
              GATHER(0, TAG),
              RELEASE(0, TAG),
              REDUCE(ALL, 1),
              REDUCE(ALL, 0),
              GATHER(1, TAG),
              USE(1, TAG),
              RELEASE(1, TAG),
              BACKWARD_END,
              MEET,
              NO_BUCKETS,
              MEET,
              STEP,
              BACKWARD(1),
              GATHER(0, TAG),
              RELEASE(0, TAG),
              GATHER(1, TAG),
              RELEASE(1, TAG),
              REDUCE(ALL, 0),
              REDUCE(ALL, 1),
              BACKWARD_END,
              MEET,
              NO_BUCKETS,
              MEET,
              STEP,
              MEET,
              NO_GRADIENTS,
              MEET};
SCRIPT(parts, parts, "parts", .world = 2, .nunits = 2, .stage = 1, .repeats = 1);

OPS(accumulate) = {MICRO(0), MICRO(0), MICRO(0), MICRO(1), STEP, MEET, NO_GRADIENTS, MEET};
SCRIPT(accumulate2, accumulate, "accumulate-stage-2", .world = 2, .nunits = 2, .stage = 2, .repeats = 2);
SCRIPT(accumulate3, accumulate, "accumulate-stage-3", .world = 3, .nunits = 2, .stage = 3, .repeats = 2);

#define LOCAL BACKWARD(0), BACKWARD_END, MEET, NO_GRADIENTS, MEET
OPS(local) = {LOCAL, LOCAL, LOCAL, MICRO(1), STEP, MEET, NO_GRADIENTS, MEET};
SCRIPT(local, local, "accumulate-stage-1", .world = 2, .nunits = 2, .stage = 1, .repeats = 2);

const struct zd_sim_script *const zd_sim_scripts_pr8036[] = {&between,     &overflow, &parts, &accumulate2,
                                                             &accumulate3, &local,    NULL};
