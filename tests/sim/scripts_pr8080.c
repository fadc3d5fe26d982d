/* SPDX-License-Identifier: Apache-2.0 */
/* scripts_pr8080.c - the scenarios of tests/contract/test_pr8080.c: buckets and producers. */
#include "scripts.h"

#define CONTRACT "test_pr8080"

OPS(producers) = {BACKWARD(1), REDUCE(ALL, 0), REDUCE(ALL, 1), REDUCE(ALL, 2), REDUCE(ALL, 3), BACKWARD_END,
                  STEP};
SCRIPT(one_place, producers, "slots-are-reused-behind-their-reduction", .world = 4, .nunits = 4, .stage = 3,
       .nslots = 1, .repeats = 3);
SCRIPT(producers, producers, "producers", .world = 4, .nunits = 4, .stage = 3, .repeats = 3);

OPS(crossing) = {BACKWARD(1),        REDUCE(RANK(0), 0), REDUCE(RANK(0), 1), REDUCE(RANK(0), 2),
                 REDUCE(RANK(1), 2), REDUCE(RANK(1), 1), REDUCE(RANK(1), 0), REDUCE(RANK(2), 1),
                 REDUCE(RANK(2), 0), REDUCE(RANK(2), 2), BACKWARD_END,       STEP};
SCRIPT(crossing, crossing, "orders-cross-within-capacity", .world = 3, .nunits = 3, .stage = 2, .nslots = 3,
       .repeats = 2);

OPS(beyond) = {BACKWARD(1),
               REDUCE(RANK(0), 0),
               REDUCE(RANK(1), 1),
               MEET,
               REFUSED(RANK(0), RESERVE, 1, 0, 0, CAPACITY, NULL),
               REFUSED(RANK(1), RESERVE, 0, 0, 0, CAPACITY, NULL)};
SCRIPT(beyond, beyond, "orders-beyond-capacity", .world = 2, .nunits = 2, .stage = 3, .nslots = 1,
       .repeats = 1);

OPS(duplicate) = {BACKWARD(1),
                  REDUCE(ALL, 0),
                  REFUSED(ALL, RESERVE, 0, 0, 0, DUPLICATE, NULL),
                  REFUSED(ALL, SKIP, 0, 0, 0, DUPLICATE, NULL),
                  BACKWARD_END,
                  STEP};
SCRIPT(duplicate, duplicate, "duplicate", .world = 2, .nunits = 1, .stage = 3, .nslots = 2, .repeats = 2);

OPS(open_entry) = {BACKWARD(1),
                   RESERVE(ALL, 0),
                   REFUSED(ALL, BACKWARD_END, 0, 0, 0, STATE, NULL),
                   REFUSED(ALL, BUCKET_DESTROY, 0, 0, 0, BUSY, NULL),
                   FILL(ALL, 0),
                   BACKWARD_END,
                   STEP};
SCRIPT(open_entry, open_entry, "open-entries", .world = 2, .nunits = 1, .stage = 3, .nslots = 2,
       .repeats = 2);

OPS(experts) = {BACKWARD(1), REDUCE(RANK(0), 0), SKIP(ALL & ~RANK(0), 0), REDUCE(ALL, 1), BACKWARD_END, STEP};
SCRIPT(experts, experts, "expert-of-one-rank", .world = 4, .nunits = 2, .stage = 3, .repeats = 2);

const struct zd_sim_script *const zd_sim_scripts_pr8080[] = {&one_place, &producers,  &crossing, &beyond,
                                                             &duplicate, &open_entry, &experts,  NULL};
