/* SPDX-License-Identifier: Apache-2.0 */
/* scripts_versions.c - the scenarios of tests/contract/test_versions.c: what is gathered is what was
 * published, all of one version. */
#include "scripts.h"

#define CONTRACT "test_versions"

/* ---- Update and read exclude each other ---------------------------------------------------------------- */

/* The pushes are under way when the ranks ask to write. */
OPS(pushes) = {GATHER(0, TAG), MEET, UPDATE(ALL, 0), USE(0, TAG), RELEASE(0, TAG), PUBLISH(ALL, 0),
               TAKE(ALL, 0),   MEET};
SCRIPT(pushes, pushes, "update-waits-for-pushes", .world = 4, .nunits = 1, .repeats = 4);

/* Though the reader has published nothing new itself yet. */
OPS(behind) = {UPDATE(RANK(1), 0),
               MEET,
               ONLY(RANK(0), GATHER, 0, TAG, 1),
               AHEAD(RANK(0), UPDATE_BEGIN, 0, 0, 0),
               AHEAD(RANK(0), PUBLISH, 0, 0, 0),
               MEET_AHEAD,
               ONLY(RANK(1), EXPECT_TRANSFERS, 0, 0, 0),
               PUBLISH(RANK(1), 0),
               ONLY(RANK(0), USE, 0, TAG, 0),
               ONLY(RANK(0), RELEASE, 0, TAG, 0),
               TAKE(ALL, 0)};
SCRIPT(behind, behind, "gather-behind-an-update", .world = 2, .nunits = 1, .repeats = 1);

/* Read by all as soon as it may be, while streams write. */
OPS(writers) = {REWRITE(ALL, 0), TAKE(ALL, 0), REWRITE(ALL, 1), TAKE(ALL, 1), MEET};
SCRIPT(writers, writers, "publish-waits-for-its-writers", .world = 3, .nunits = 2, .repeats = 4);

OPS(between) = {REFUSED(ALL, PUBLISH, 0, 0, 0, STATE, "unit 'u0' is IDLE"),
                UPDATE(ALL, 0),
                REFUSED(ALL, UPDATE_BEGIN, 0, 0, 0, STATE, "unit 'u0' is UPDATING"),
                PUBLISH(ALL, 0),
                REFUSED(ALL, PUBLISH, 0, 0, 0, STATE, "unit 'u0' is IDLE"),
                TAKE(ALL, 0),
                MEET};
SCRIPT(between, between, "written-between-begin-and-publish", .world = 2, .nunits = 1, .repeats = 2);

/* ---- Which version ------------------------------------------------------------------------------------- */

#define OF_VERSION(v) (1 + (v)*ZD_SIM_VERSION)
OPS(stale) = {REWRITE(ALL, 0),
              MEET,
              ONLY(ALL, GATHER, 0, TAG, OF_VERSION(2)),
              USE(0, TAG),
              RELEASE(0, TAG),
              REFUSED(ALL, GATHER, 0, TAG, OF_VERSION(1), STALE_VERSION,
                      "version 1 of unit 'u0' is no longer held: rank 0 has version 2"),
              LIVE(0, 0),
              MEET,
              UPDATE(RANK(1), 0),
              MEET,
              REFUSED(RANK(0), GATHER, 0, TAG, OF_VERSION(2), STALE_VERSION, "rank 1 writes over version 2"),
              MEET,
              PUBLISH(RANK(1), 0),
              REWRITE(RANK(0), 0),
              TAKE(ALL, 0)};
SCRIPT(stale, stale, "version-no-longer-held", .world = 2, .nunits = 1, .repeats = 1);

/* Most ranks have nothing of the unit, and publish all the same. */
OPS(slow) = {REWRITE(ALL & ~RANK(3), 0),
             MEET,
             REFUSED(RANK(0), GATHER, 0, TAG, 1 + ZD_SIM_IMPATIENT, DEADLINE,
                     "rank 3 to publish version 2 of unit 'u0'"),
             MEET,
             ONLY(RANK(0), GATHER, 0, TAG, 1),
             MEET_AHEAD,
             REWRITE(RANK(3), 0),
             ONLY(RANK(0), USE, 0, TAG, 0),
             ONLY(RANK(0), RELEASE, 0, TAG, 0)};
SCRIPT(slow, slow, "slow-publisher-is-named", .world = 4, .nunits = 1, .tiny = true, .repeats = 1);

/* ---- Publish and copies that are there ----------------------------------------------------------------- */

OPS(forced) = {GATHER(0, OTHER),
               USE(0, OTHER),
               MEET,
               UPDATE(ALL, 0),
               REFUSED(RANK(0), PUBLISH, 0, 0, 0, BUSY, "unit 'u0' is held on rank 0 by 'plan'"),
               ONLY(ALL, PUBLISH, 0, 0, ZD_SIM_FORCE),
               USE(0, OTHER), /* as before */
               RELEASE(0, OTHER),
               LIVE(0, 0),
               TAKE(ALL, 0),
               MEET};
SCRIPT(forced, forced, "publish-with-leases", .world = 2, .copies = true, .nunits = 1, .repeats = 3);

OPS(prefetched) = {PREFETCH(0), MEET, LIVE(0, 1), MEET, REWRITE(ALL, 0), LIVE(0, 0), TAKE(ALL, 0), MEET};
SCRIPT(prefetched, prefetched, "publish-makes-copies-stale", .world = 2, .nunits = 1, .repeats = 4);

/* In place, and not before the last lease on the former version has ended, with its streams. */
OPS(refreshed) = {PERSISTENT(0, 1),
                  GATHER(0, TAG),
                  USE(0, TAG),
                  MEET,
                  UPDATE(ALL, 0),
                  ONLY(ALL, PUBLISH, 0, 0, ZD_SIM_FORCE),
                  GATHER(0, OTHER),
                  USE(0, TAG),
                  RELEASE(0, TAG),
                  USE(0, OTHER),
                  RELEASE(0, OTHER),
                  LIVE(0, 1),
                  MEET};
SCRIPT(refreshed, refreshed, "refreshed-when-nobody-reads-it", .world = 2, .copies = true, .nunits = 1,
       .repeats = 3);

/* ---- Commit -------------------------------------------------------------------------------------------- */

OPS(atomic) = {REWRITE(ALL, 0),
               REWRITE(RANK(0), 1),
               MEET,
               REFUSED(ALL, COMMIT, 0, 0, 1, STATE, "unit 'u1' has version 2 on rank 0 and 1 on rank 1"),
               UPDATE(RANK(1), 1),
               MEET,
               REFUSED(ALL, COMMIT, 0, 0, 1, STATE, "unit 'u1' is UPDATING on rank 1"),
               PUBLISH(RANK(1), 1),
               MEET,
               ONLY(ALL, COMMIT, 0, 0, 1),
               REFUSED(ALL, COMMIT, 0, 0, 1, STATE, "step 1 is committed")};
SCRIPT(atomic, atomic, "commit-is-atomic", .world = 2, .nunits = 2, .repeats = 1);

OPS(another_step) = {AHEAD(RANK(0), COMMIT, 0, 0, 7), MEET_AHEAD,
                     REFUSED(RANK(1), COMMIT, 0, 0, 8, MISMATCH, "rank 0 commits step 7; rank 1 says 8"),
                     ONLY(RANK(1), COMMIT, 0, 0, 7)};
SCRIPT(another_step, another_step, "commit-of-another-step", .world = 2, .nunits = 1, .repeats = 1);

const struct zd_sim_script *const zd_sim_scripts_versions[] = {
        &pushes, &behind,     &writers,   &between, &stale,        &slow,
        &forced, &prefetched, &refreshed, &atomic,  &another_step, NULL,
};
