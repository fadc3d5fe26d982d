/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scripts_room.c - the scenarios of tests/contract/test_room.c: the memory of a released copy becomes an
 * allocation, when everybody who was given it has unmapped it.
 */
#include "scripts.h"

#define CONTRACT "test_room"

#define ALLOC(ranks) ONLY(ranks, ALLOC, 0, 1, 0)
#define FREE(ranks)  ONLY(ranks, FREE, 0, 0, 0)

OPS(released) = {TAKE(ALL, 0),
                 MEET,
                 ALLOC(ALL),
                 MEET,
                 REFUSED(ALL, ALLOC, 0, 1, 1, NO_MEMORY, "do not fit on device 0"), /* beside the first */
                 FREE(ALL),
                 GATHER(0, TAG),
                 USE(0, TAG),
                 MEET,
                 REFUSED(ALL, ALLOC, 0, 1, 0, NO_MEMORY, "do not fit on device 0"),
                 RELEASE(0, TAG)};
SCRIPT(released, released, "released-copies-make-room", .world = 1, .nunits = 1, .full = true, .large = true,
       .copies = true, .repeats = 3);

OPS(asked) = {TAKE(RANK(0), 0), MEET, ALLOC(RANK(1)), FREE(RANK(1)), MEET};
SCRIPT(asked, asked, "another-process-is-asked", .world = 2, .nunits = 1, .full = true, .large = true,
       .repeats = 3);

/* Of processes that do not unmap by themselves, as tests/it/test_trim.c has one. */
OPS(ends) = {TAKE(RANK(0), 0),
             MEET,
             AHEAD(RANK(1), ALLOC, 0, 1, 0),
             MEET_AHEAD,
             ONLY(RANK(0), DIE, 0, 0, 0),
             ONLY(RANK(0), OPEN, 0, 0, 0),
             FREE(RANK(1)),
             MEET};
SCRIPT(ends, ends, "process-that-ends-need-not-answer", .world = 2, .nunits = 1, .full = true, .large = true,
       .repeats = 1);

const struct zd_sim_script *const zd_sim_scripts_room[] = {&released, &asked, &ends, NULL};
