/* SPDX-License-Identifier: Apache-2.0 */
/* scripts_pr8059.c - the scenarios of tests/contract/test_pr8059.c: gathers outside the plan. */
#include "scripts.h"

#define CONTRACT "test_pr8059"

OPS(touched) = {FORWARD(0), GATHER(0, SCOPE(0)), USE(0, SCOPE(0)), FORWARD_END(0, 1), LIVE(0, 1),
                MEET,       GATHER(0, SCOPE(0)), USE(0, SCOPE(0)), CLAIM_END(0),      LIVE(0, 0)};
SCRIPT(touched, touched, "touched-in-forward", .world = 2, .nunits = 1, .repeats = 3);

OPS(tied) = {GATHER(0, TAG),  FORWARD(0), GATHER(0, SCOPE(0)), USE(0, SCOPE(0)), NOT_HELD(0, OTHER),
             RELEASE(0, TAG), LIVE(0, 1), FORWARD_END(0, 0),   LIVE(0, 0)};
SCRIPT(tied, tied, "tied", .world = 3, .nunits = 1, .frozen = true, .repeats = 3);

OPS(two) = {FORWARD(0),          GATHER(0, SCOPE(0)), FORWARD_END(0, 1), FORWARD(1),
            GATHER(0, SCOPE(1)), USE(0, SCOPE(1)),    FORWARD_END(1, 1), CLAIM_END(0),
            LIVE(0, 1),          CLAIM_END(1),        LIVE(0, 0)};
SCRIPT(two, two, "two-forwards", .world = 2, .nunits = 1, .repeats = 3);

OPS(abandoned) = {FORWARD(0),          GATHER(0, SCOPE(0)), USE(0, SCOPE(0)),  ABANDON(0), LIVE(0, 0),
                  FORWARD(0),          GATHER(0, SCOPE(0)), USE(0, SCOPE(0)),  FORWARD(1), LIVE(0, 0),
                  GATHER(1, SCOPE(1)), USE(1, SCOPE(1)),    FORWARD_END(1, 0), LIVE(1, 0)};
SCRIPT(abandoned, abandoned, "abandoned", .world = 2, .nunits = 2, .one_buffer = true, .repeats = 3);

OPS(beside) = {FORWARD(0),          GATHER(1, SCOPE(0)), FORWARD_END(0, 1), FORWARD(1),
               GATHER(0, SCOPE(1)), FORWARD(2),          LIVE(0, 1),        CLAIM_END(0),
               LIVE(1, 0),          FORWARD(0),          LIVE(0, 0),        FORWARD_END(0, 0)};
SCRIPT(beside, beside, "no-sweep-beside-a-claim", .world = 2, .nunits = 2, .repeats = 2);

OPS(nested) = {FORWARD(0),
               NESTED(1, 0),
               GATHER(0, SCOPE(1)),
               USE(0, SCOPE(1)),
               REFUSED(ALL, FORWARD_END, 0, 0, 0, STATE, NULL),
               FORWARD_END(1, 1),
               FORWARD_END(0, 0),
               LIVE(0, 1),
               CLAIM_END(1),
               LIVE(0, 0),
               FORWARD(0),
               NESTED(1, 0),
               GATHER(0, SCOPE(1)),
               ABANDON(0),
               LIVE(0, 0)};
SCRIPT(nested, nested, "nested", .world = 2, .nunits = 1, .repeats = 2);

OPS(contexts) = {CONTEXT(0, 3),       CONTEXT(1, 4),    REFUSED(ALL, CONTEXT_BEGIN, 0, 2, 6, EXISTS, NULL),
                 LIVE(0, 1),          LIVE(1, 1),       LIVE(2, 1),
                 GATHER(1, SCOPE(0)), USE(1, SCOPE(0)), NOT_HELD(1, TAG),
                 CONTEXT_END(1),      LIVE(2, 0),       LIVE(1, 1),
                 CONTEXT_END(0),      LIVE(0, 0),       LIVE(1, 0)};
SCRIPT(contexts, contexts, "contexts", .world = 2, .nunits = 3, .repeats = 2);

OPS(fallback) = {PERSISTENT(0, 1), FORWARD(0),   GATHER(0, SCOPE(0)), USE(0, SCOPE(0)),  FORWARD_END(0, 0),
                 LIVE(0, 1),       FORWARD(0),   GATHER(0, SCOPE(0)), FORWARD_END(0, 1), PERSISTENT(0, 0),
                 LIVE(0, 1),       CLAIM_END(0), LIVE(0, 0)};
SCRIPT(fallback, fallback, "fallback-beside-persistence", .world = 2, .nunits = 1, .repeats = 2);

const struct zd_sim_script *const zd_sim_scripts_pr8059[] = {
        &touched, &tied, &two, &abandoned, &beside, &nested, &contexts, &fallback, NULL};
