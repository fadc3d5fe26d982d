/* SPDX-License-Identifier: Apache-2.0 */
/* scripts_pr8032.c - the scenarios of tests/contract/test_pr8032.c: gathered storage follows leases. */
#include "scripts.h"

#define CONTRACT "test_pr8032"

OPS(joins) = {GATHER(0, TAG),  GATHER(0, OTHER), USE(0, TAG),       USE(0, OTHER), LIVE(0, 1), NOT_HELD(0, 2),
              RELEASE(0, TAG), LIVE(0, 1),       RELEASE(0, OTHER), LIVE(0, 0),    MEET,       TRANSFERS(4)};
SCRIPT(joins, joins, "one-transfer", .world = 4, .nunits = 1, .repeats = 1);

OPS(slow) = {GATHER(0, TAG), USE(0, TAG), USE(0, TAG), USE(0, TAG), RELEASE(0, TAG), LIVE(0, 0),
             GATHER(1, TAG), USE(1, TAG), USE(1, TAG), LIVE(1, 1),  RELEASE(1, TAG), LIVE(1, 0)};
SCRIPT(slow, slow, "slow-consumers", .world = 2, .nunits = 2, .one_buffer = true, .repeats = 4);

OPS(uses) = {GATHER_USES(0, 3), RELEASE(0, TAG), LIVE(0, 1), USE(0, TAG),      RELEASE(0, TAG),
             LIVE(0, 1),        RELEASE(0, TAG), LIVE(0, 0), NOT_HELD(0, TAG), LIVE(0, 0)};
SCRIPT(uses, uses, "uses", .world = 3, .nunits = 1, .repeats = 2);

OPS(persistent) = {PERSISTENT(0, 1), GATHER(0, TAG),  RELEASE(0, TAG), LIVE(0, 1), GATHER(0, TAG),
                   USE(0, TAG),      RELEASE(0, TAG), LIVE(0, 1),      MEET,       TRANSFERS(3),
                   PERSISTENT(0, 0), LIVE(0, 0)};
SCRIPT(persistent, persistent, "persistent", .world = 3, .nunits = 1, .repeats = 1);

OPS(slot) = {GATHER(0, TAG), USE(0, TAG), REFUSED(ALL, GATHER, 1, TAG, 1, SLOT_CONFLICT, NULL),
             LIVE(0, 1),     LIVE(1, 0),  RELEASE(0, TAG),
             GATHER(1, TAG), USE(1, TAG), RELEASE(1, TAG),
             PREFETCH(0),    LIVE(1, 0),  GATHER(0, TAG),
             RELEASE(0, TAG)};
SCRIPT(slot, slot, "slot", .world = 2, .nunits = 2, .one_slot = true, .repeats = 4);

OPS(busy) = {GATHER(0, TAG),
             USE(0, TAG),
             MEET,
             UPDATE(ALL, 0),
             REFUSED(ALL, PUBLISH, 0, 0, 0, BUSY, NULL),
             RELEASE(0, TAG),
             PUBLISH(ALL, 0),
             GATHER(0, TAG),
             USE(0, TAG),
             RELEASE(0, TAG),
             MEET};
SCRIPT(busy, busy, "publish-while-held", .world = 3, .nunits = 1, .copies = true, .repeats = 3);

OPS(publisher) = {UPDATE(ALL & ~RANK(1), 0),
                  PUBLISH(ALL & ~RANK(1), 0),
                  GATHER(1, TAG),
                  USE(1, TAG),
                  RELEASE(1, TAG),
                  UPDATE(RANK(1), 0),
                  PUBLISH(RANK(1), 0),
                  GATHER(0, TAG),
                  USE(0, TAG),
                  RELEASE(0, TAG),
                  MEET};
SCRIPT(publisher, publisher, "slow-publisher", .world = 4, .nunits = 2, .repeats = 3);

OPS(refreshed) = {
        PERSISTENT(0, 1), GATHER(0, TAG), USE(0, TAG), RELEASE(0, TAG), LIVE(0, 1), MEET, UPDATE(ALL, 0),
        PUBLISH(ALL, 0),  GATHER(0, TAG), USE(0, TAG), RELEASE(0, TAG), LIVE(0, 1), MEET};
SCRIPT(refreshed, refreshed, "persistent-refreshed", .world = 3, .nunits = 1, .repeats = 3);

const struct zd_sim_script *const zd_sim_scripts_pr8032[] = {
        &joins, &slow, &uses, &persistent, &slot, &busy, &publisher, &refreshed, NULL};
