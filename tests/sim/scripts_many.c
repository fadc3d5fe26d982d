/* SPDX-License-Identifier: Apache-2.0 */
/* scripts_many.c - the scenarios of tests/contract/test_many.c: many gathers and releases at once are as many
 * requests. */
#include "scripts.h"

#define CONTRACT "test_many"

#define GATHER_ALL(tag)                                                                                      \
	GATHER(0, tag), GATHER(1, tag), GATHER(2, tag), GATHER(3, tag), GATHER(4, tag), GATHER(5, tag)
#define USE_ALL(tag) USE(0, tag), USE(1, tag), USE(2, tag), USE(3, tag), USE(4, tag), USE(5, tag)
#define RELEASE_ALL(tag)                                                                                     \
	RELEASE(0, tag), RELEASE(1, tag), RELEASE(2, tag), RELEASE(3, tag), RELEASE(4, tag), RELEASE(5, tag)
#define LIVE_ALL(copies)                                                                                     \
	LIVE(0, copies), LIVE(1, copies), LIVE(2, copies), LIVE(3, copies), LIVE(4, copies), LIVE(5, copies)

OPS(many) = {GATHER_ALL(TAG), USE_ALL(TAG), LIVE_ALL(1), RELEASE_ALL(TAG), LIVE_ALL(0)};
SCRIPT(many, many, "many", .world = 2, .nunits = 6, .repeats = 3);

/* The same unit twice is held twice. */
OPS(twice) = {GATHER(0, TAG),  GATHER(1, TAG),  GATHER(0, TAG), USE(0, TAG),
              RELEASE(0, TAG), RELEASE(1, TAG), LIVE(0, 1),     LIVE(1, 0),
              USE(0, TAG),     RELEASE(0, TAG), LIVE(0, 0),     NOT_HELD(0, TAG)};
SCRIPT(twice, twice, "the-same-twice", .world = 2, .nunits = 2, .repeats = 3);

OPS(failed) = {REWRITE(ALL, 2),
               MEET,
               GATHER(0, TAG),
               GATHER(1, TAG),
               REFUSED(ALL, GATHER, 2, TAG, 1 + ZD_SIM_VERSION, STALE_VERSION, "version 1 of unit 'u2'"),
               GATHER(3, TAG),
               USE(0, TAG),
               USE(1, TAG),
               USE(3, TAG),
               LIVE(2, 0),
               RELEASE(0, TAG),
               RELEASE(1, TAG),
               RELEASE(3, TAG),
               LIVE(0, 0),
               LIVE(1, 0),
               LIVE(3, 0)};
SCRIPT(failed, failed, "failed-gather-among-many", .world = 2, .nunits = 4, .repeats = 2);

OPS(not_held) = {GATHER(0, TAG),
                 GATHER(1, TAG),
                 GATHER(2, TAG),
                 USE(1, TAG),
                 RELEASE(1, TAG),
                 RELEASE(0, TAG),
                 REFUSED(ALL, RELEASE, 1, TAG, 0, NOT_HELD, "unit 'u1'"),
                 RELEASE(2, TAG),
                 LIVE(0, 0),
                 LIVE(1, 0),
                 LIVE(2, 0)};
SCRIPT(not_held, not_held, "not-held-among-many", .world = 2, .nunits = 3, .repeats = 3);

const struct zd_sim_script *const zd_sim_scripts_many[] = {&many, &twice, &failed, &not_held, NULL};
