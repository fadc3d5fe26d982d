/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scripts.c - the central rules of the four pull requests as scripts, beside tests/contract, which drives the same
 * scenarios over the library and a daemon.
 */
#include <stddef.h>

#include "base/mem.h"
#include "script.h"

#define ALL      ZD_SIM_ALL_RANKS
#define RANK(r)  (1u << (r))
#define TAG      0u
#define OTHER    1u
#define SCOPE(p) (ZD_SIM_TAGS + (p))

#define OP(op, ranks, unit, tag, arg, expect)                                                                \
	{                                                                                                    \
		ZD_SIM_##op, ranks, unit, tag, arg, expect                                                   \
	}
#define MEET               OP(BARRIER, ALL, 0, 0, 0, 0)
#define LIVE(unit, copies) OP(EXPECT_LIVE, ALL, unit, 0, copies, 0)
#define TRANSFERS(count)   OP(EXPECT_TRANSFERS, ALL, 0, 0, count, 0)
#define NO_GRADIENTS       OP(EXPECT_NO_GRADIENTS, ALL, 0, 0, 0, 0)
#define NO_BUCKETS         OP(EXPECT_NO_BUCKETS, ALL, 0, 0, 0, 0)

#define GATHER(unit, tag)        OP(GATHER, ALL, unit, tag, 1, 0)
#define GATHER_USES(unit, n)     OP(GATHER, ALL, unit, TAG, n, 0)
#define GATHER_FAILS(unit, why)  OP(GATHER, ALL, unit, TAG, 1, ZEROD_E_##why)
#define PREFETCH(unit)           OP(PREFETCH, ALL, unit, 0, 0, 0)
#define USE(unit, tag)           OP(USE, ALL, unit, tag, 0, 0)
#define RELEASE(unit, tag)       OP(RELEASE, ALL, unit, tag, 0, 0)
#define NOT_HELD(unit, tag)      OP(RELEASE, ALL, unit, tag, 0, ZEROD_E_NOT_HELD)
#define PERSISTENT(unit, yes)    OP(SET_PERSISTENT, ALL, unit, 0, yes, 0)
#define UPDATE(ranks, unit)      OP(UPDATE_BEGIN, ranks, unit, 0, 0, 0)
#define PUBLISH(ranks, unit)     OP(PUBLISH, ranks, unit, 0, 0, 0)
#define FORWARD(place)           OP(FORWARD_BEGIN, ALL, 0, place, 0, 0)
#define NESTED(place, parent)    OP(FORWARD_BEGIN, ALL, 0, place, (parent) + 1, 0)
#define FORWARD_END(place, grad) OP(FORWARD_END, ALL, 0, place, grad, 0)
#define CLAIM_END(place)         OP(CLAIM_END, ALL, 0, place, 0, 0)
#define ABANDON(place)           OP(SCOPE_ABANDON, ALL, 0, place, 0, 0)
#define CONTEXT(place, units)    OP(CONTEXT_BEGIN, ALL, 0, place, units, 0)
#define CONTEXT_END(place)       OP(CONTEXT_END, ALL, 0, place, 0, 0)
#define BACKWARD(boundary)       OP(BACKWARD_BEGIN, ALL, 0, 0, boundary, 0)
#define BACKWARD_END             OP(BACKWARD_END, ALL, 0, 0, 0, 0)
#define REDUCE(ranks, unit)      OP(RESERVE, ranks, unit, 0, 0, 0), OP(BUCKET_COMMIT, ranks, unit, 0, 0, 0)
#define SKIP(ranks, unit)        OP(SKIP, ranks, unit, 0, 0, 0)
#define STEP                     OP(STEP_BEGIN, ALL, 0, 0, 0, 0), OP(STEP_END, ALL, 0, 0, 0, 0)

#define SCRIPT(symbol, program, title, pr, ...)                                                              \
	static const struct zd_sim_script symbol = {.name = title,                                           \
	                                            .pull_request = (pr),                                    \
	                                            .ops = program##_ops,                                    \
	                                            .nops = ZD_ARRAY_LEN(program##_ops),                     \
	                                            __VA_ARGS__}
#define OPS(symbol) static const struct zd_sim_script_op symbol##_ops[]

/* ---- 8032: gathered storage follows leases ------------------------------------------------------------------------------- */

OPS(joins) = {GATHER(0, TAG),  GATHER(0, OTHER), USE(0, TAG),       USE(0, OTHER), LIVE(0, 1), NOT_HELD(0, 2),
              RELEASE(0, TAG), LIVE(0, 1),       RELEASE(0, OTHER), LIVE(0, 0),    MEET,       TRANSFERS(4)};
SCRIPT(joins, joins, "one-transfer", 8032, .world = 4, .nunits = 1, .repeats = 1);

OPS(slow) = {GATHER(0, TAG), USE(0, TAG), USE(0, TAG), USE(0, TAG), RELEASE(0, TAG), LIVE(0, 0),
             GATHER(1, TAG), USE(1, TAG), USE(1, TAG), LIVE(1, 1),  RELEASE(1, TAG), LIVE(1, 0)};
SCRIPT(slow, slow, "slow-consumers", 8032, .world = 2, .nunits = 2, .one_buffer = true, .repeats = 4);

OPS(uses) = {GATHER_USES(0, 3), RELEASE(0, TAG), LIVE(0, 1), USE(0, TAG),      RELEASE(0, TAG),
             LIVE(0, 1),        RELEASE(0, TAG), LIVE(0, 0), NOT_HELD(0, TAG), LIVE(0, 0)};
SCRIPT(uses, uses, "uses", 8032, .world = 3, .nunits = 1, .repeats = 2);

OPS(persistent) = {PERSISTENT(0, 1), GATHER(0, TAG),  RELEASE(0, TAG), LIVE(0, 1), GATHER(0, TAG),
                   USE(0, TAG),      RELEASE(0, TAG), LIVE(0, 1),      MEET,       TRANSFERS(3),
                   PERSISTENT(0, 0), LIVE(0, 0)};
SCRIPT(persistent, persistent, "persistent", 8032, .world = 3, .nunits = 1, .repeats = 1);

OPS(slot) = {GATHER(0, TAG), USE(0, TAG), GATHER_FAILS(1, SLOT_CONFLICT),
             LIVE(0, 1),     LIVE(1, 0),  RELEASE(0, TAG),
             GATHER(1, TAG), USE(1, TAG), RELEASE(1, TAG),
             PREFETCH(0),    LIVE(1, 0),  GATHER(0, TAG),
             RELEASE(0, TAG)};
SCRIPT(slot, slot, "slot", 8032, .world = 2, .nunits = 2, .one_slot = true, .repeats = 4);

OPS(busy) = {GATHER(0, TAG),
             USE(0, TAG),
             MEET,
             UPDATE(ALL, 0),
             OP(PUBLISH, ALL, 0, 0, 0, ZEROD_E_BUSY),
             RELEASE(0, TAG),
             PUBLISH(ALL, 0),
             GATHER(0, TAG),
             USE(0, TAG),
             RELEASE(0, TAG),
             MEET};
SCRIPT(busy, busy, "publish-while-held", 8032, .world = 3, .nunits = 1, .repeats = 3);

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
SCRIPT(publisher, publisher, "slow-publisher", 8032, .world = 4, .nunits = 2, .repeats = 3);

OPS(refreshed) = {
        PERSISTENT(0, 1), GATHER(0, TAG), USE(0, TAG), RELEASE(0, TAG), LIVE(0, 1), MEET, UPDATE(ALL, 0),
        PUBLISH(ALL, 0),  GATHER(0, TAG), USE(0, TAG), RELEASE(0, TAG), LIVE(0, 1), MEET};
SCRIPT(refreshed, refreshed, "persistent-refreshed", 8032, .world = 3, .nunits = 1, .repeats = 3);

/* ---- 8059: gathers outside the plan --------------------------------------------------------------------------------------- */

OPS(touched) = {FORWARD(0), GATHER(0, SCOPE(0)), USE(0, SCOPE(0)), FORWARD_END(0, 1), LIVE(0, 1),
                MEET,       GATHER(0, SCOPE(0)), USE(0, SCOPE(0)), CLAIM_END(0),      LIVE(0, 0)};
SCRIPT(touched, touched, "touched-in-forward", 8059, .world = 2, .nunits = 1, .repeats = 3);

OPS(tied) = {GATHER(0, TAG),  FORWARD(0), GATHER(0, SCOPE(0)), USE(0, SCOPE(0)), NOT_HELD(0, OTHER),
             RELEASE(0, TAG), LIVE(0, 1), FORWARD_END(0, 0),   LIVE(0, 0)};
SCRIPT(tied, tied, "tied", 8059, .world = 3, .nunits = 1, .frozen = true, .repeats = 3);

OPS(two) = {FORWARD(0),          GATHER(0, SCOPE(0)), FORWARD_END(0, 1), FORWARD(1),
            GATHER(0, SCOPE(1)), USE(0, SCOPE(1)),    FORWARD_END(1, 1), CLAIM_END(0),
            LIVE(0, 1),          CLAIM_END(1),        LIVE(0, 0)};
SCRIPT(two, two, "two-forwards", 8059, .world = 2, .nunits = 1, .repeats = 3);

OPS(abandoned) = {FORWARD(0),          GATHER(0, SCOPE(0)), USE(0, SCOPE(0)),  ABANDON(0), LIVE(0, 0),
                  FORWARD(0),          GATHER(0, SCOPE(0)), USE(0, SCOPE(0)),  FORWARD(1), LIVE(0, 0),
                  GATHER(1, SCOPE(1)), USE(1, SCOPE(1)),    FORWARD_END(1, 0), LIVE(1, 0)};
SCRIPT(abandoned, abandoned, "abandoned", 8059, .world = 2, .nunits = 2, .one_buffer = true, .repeats = 3);

OPS(beside) = {FORWARD(0),          GATHER(1, SCOPE(0)), FORWARD_END(0, 1), FORWARD(1),
               GATHER(0, SCOPE(1)), FORWARD(2),          LIVE(0, 1),        CLAIM_END(0),
               LIVE(1, 0),          FORWARD(0),          LIVE(0, 0),        FORWARD_END(0, 0)};
SCRIPT(beside, beside, "no-sweep-beside-a-claim", 8059, .world = 2, .nunits = 2, .repeats = 2);

OPS(nested) = {FORWARD(0),
               NESTED(1, 0),
               GATHER(0, SCOPE(1)),
               USE(0, SCOPE(1)),
               OP(FORWARD_END, ALL, 0, 0, 0, ZEROD_E_STATE),
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
SCRIPT(nested, nested, "nested", 8059, .world = 2, .nunits = 1, .repeats = 2);

OPS(contexts) = {CONTEXT(0, 3),       CONTEXT(1, 4),    OP(CONTEXT_BEGIN, ALL, 0, 2, 6, ZEROD_E_EXISTS),
                 LIVE(0, 1),          LIVE(1, 1),       LIVE(2, 1),
                 GATHER(1, SCOPE(0)), USE(1, SCOPE(0)), NOT_HELD(1, TAG),
                 CONTEXT_END(1),      LIVE(2, 0),       LIVE(1, 1),
                 CONTEXT_END(0),      LIVE(0, 0),       LIVE(1, 0)};
SCRIPT(contexts, contexts, "contexts", 8059, .world = 2, .nunits = 3, .repeats = 2);

OPS(fallback) = {PERSISTENT(0, 1), FORWARD(0),   GATHER(0, SCOPE(0)), USE(0, SCOPE(0)),  FORWARD_END(0, 0),
                 LIVE(0, 1),       FORWARD(0),   GATHER(0, SCOPE(0)), FORWARD_END(0, 1), PERSISTENT(0, 0),
                 LIVE(0, 1),       CLAIM_END(0), LIVE(0, 0)};
SCRIPT(fallback, fallback, "fallback-beside-persistence", 8059, .world = 2, .nunits = 1, .repeats = 2);

/* ---- 8036: targets and buckets live for a step --------------------------------------------------------------------------- */

OPS(between) = {BACKWARD(1), REDUCE(ALL, 0), REDUCE(ALL, 1), BACKWARD_END, STEP, MEET, NO_GRADIENTS, MEET};
SCRIPT(between, between, "nothing-between-steps", 8036, .world = 3, .nunits = 2, .stage = 3, .repeats = 3);

OPS(overflow) = {BACKWARD(1), REDUCE(ALL, 0), BACKWARD_END, STEP, MEET, NO_GRADIENTS, MEET};
SCRIPT(overflow, overflow, "overflow", 8036, .world = 2, .nunits = 1, .stage = 2, .overflows = true,
       .repeats = 2);

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
SCRIPT(parts, parts, "parts", 8036, .world = 2, .nunits = 2, .stage = 1, .repeats = 1);

#define MICRO(boundary)                                                                                      \
	BACKWARD(boundary), REDUCE(ALL, 0), REDUCE(ALL, 1), BACKWARD_END, MEET, NO_BUCKETS, MEET
OPS(accumulate) = {MICRO(0), MICRO(0), MICRO(0), MICRO(1), STEP, MEET, NO_GRADIENTS, MEET};
SCRIPT(accumulate2, accumulate, "accumulate-stage-2", 8036, .world = 2, .nunits = 2, .stage = 2,
       .repeats = 2);
SCRIPT(accumulate3, accumulate, "accumulate-stage-3", 8036, .world = 3, .nunits = 2, .stage = 3,
       .repeats = 2);

#define LOCAL BACKWARD(0), BACKWARD_END, MEET, NO_GRADIENTS, MEET
OPS(local) = {LOCAL, LOCAL, LOCAL, MICRO(1), STEP, MEET, NO_GRADIENTS, MEET};
SCRIPT(local, local, "accumulate-stage-1", 8036, .world = 2, .nunits = 2, .stage = 1, .repeats = 2);

/* ---- 8080: buckets and producers ------------------------------------------------------------------------------------------ */

OPS(producers) = {BACKWARD(1), REDUCE(ALL, 0), REDUCE(ALL, 1), REDUCE(ALL, 2), REDUCE(ALL, 3), BACKWARD_END,
                  STEP};
SCRIPT(one_place, producers, "slots-are-reused-behind-their-reduction", 8080, .world = 4, .nunits = 4,
       .stage = 3, .nslots = 1, .repeats = 3);
SCRIPT(producers, producers, "producers", 8080, .world = 4, .nunits = 4, .stage = 3, .repeats = 3);

OPS(crossing) = {BACKWARD(1),        REDUCE(RANK(0), 0), REDUCE(RANK(0), 1), REDUCE(RANK(0), 2),
                 REDUCE(RANK(1), 2), REDUCE(RANK(1), 1), REDUCE(RANK(1), 0), REDUCE(RANK(2), 1),
                 REDUCE(RANK(2), 0), REDUCE(RANK(2), 2), BACKWARD_END,       STEP};
SCRIPT(crossing, crossing, "orders-cross-within-capacity", 8080, .world = 3, .nunits = 3, .stage = 2,
       .nslots = 3, .repeats = 2);

OPS(beyond) = {BACKWARD(1),
               REDUCE(RANK(0), 0),
               REDUCE(RANK(1), 1),
               MEET,
               OP(RESERVE, RANK(0), 1, 0, 0, ZEROD_E_CAPACITY),
               OP(RESERVE, RANK(1), 0, 0, 0, ZEROD_E_CAPACITY)};
SCRIPT(beyond, beyond, "orders-beyond-capacity", 8080, .world = 2, .nunits = 2, .stage = 3, .nslots = 1,
       .repeats = 1);

OPS(duplicate) = {BACKWARD(1),
                  REDUCE(ALL, 0),
                  OP(RESERVE, ALL, 0, 0, 0, ZEROD_E_DUPLICATE),
                  OP(SKIP, ALL, 0, 0, 0, ZEROD_E_DUPLICATE),
                  BACKWARD_END,
                  STEP};
SCRIPT(duplicate, duplicate, "duplicate", 8080, .world = 2, .nunits = 1, .stage = 3, .nslots = 2,
       .repeats = 2);

OPS(open_entry) = {BACKWARD(1),
                   OP(RESERVE, ALL, 0, 0, 0, 0),
                   OP(BACKWARD_END, ALL, 0, 0, 0, ZEROD_E_STATE),
                   OP(BUCKET_DESTROY, ALL, 0, 0, 0, ZEROD_E_BUSY),
                   OP(BUCKET_COMMIT, ALL, 0, 0, 0, 0),
                   BACKWARD_END,
                   STEP};
SCRIPT(open_entry, open_entry, "open-entries", 8080, .world = 2, .nunits = 1, .stage = 3, .nslots = 2,
       .repeats = 2);

OPS(experts) = {BACKWARD(1), REDUCE(RANK(0), 0), SKIP(ALL & ~RANK(0), 0), REDUCE(ALL, 1), BACKWARD_END, STEP};
SCRIPT(experts, experts, "expert-of-one-rank", 8080, .world = 4, .nunits = 2, .stage = 3, .repeats = 2);

const struct zd_sim_script *const zd_sim_scripts[] = {
        &joins,    &slow,     &uses,      &persistent,  &slot,        &busy,   &publisher, &refreshed,
        &touched,  &tied,     &two,       &abandoned,   &beside,      &nested, &contexts,  &fallback,
        &between,  &overflow, &parts,     &accumulate2, &accumulate3, &local,  &producers, &one_place,
        &crossing, &beyond,   &duplicate, &open_entry,  &experts,     NULL,
};
