/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scripts_bad_requests.c - the scenarios of tests/contract/test_bad_requests.c: each is refused in words that
 * name it, and changes nothing.
 */
#include "scripts.h"

#define CONTRACT "test_bad_requests"

#define NOBODYS(ranks, unit, tag, words) REFUSED(ranks, RELEASE, unit, tag, 0, NOT_HELD, words)

OPS(not_held) = {NOBODYS(RANK(0), 0, TAG, "rank 0 does not hold unit 'u0' under tag 'default'"),
                 ONLY(RANK(0), GATHER, 0, OTHER, 1),
                 MEET,
                 NOBODYS(RANK(0), 1, OTHER, "rank 0 does not hold unit 'u1' under tag 'plan'"),
                 NOBODYS(RANK(0), 0, THIRD, "rank 0 does not hold unit 'u0' under tag 'eager'"),
                 NOBODYS(RANK(1), 0, OTHER, "rank 1 does not hold unit 'u0' under tag 'plan'"),
                 MEET,
                 ONLY(RANK(0), EXPECT_LIVE, 0, 0, 1),
                 ONLY(RANK(0), USE, 0, OTHER, 0),
                 ONLY(RANK(0), RELEASE, 0, OTHER, 0),
                 NOBODYS(RANK(0), 0, OTHER, "rank 0 does not hold unit 'u0' under tag 'plan'"),
                 LIVE(0, 0)};
SCRIPT(not_held, not_held, "release-of-what-is-not-held", .world = 2, .nunits = 2, .repeats = 2);

OPS(after_end) = {ONLY(RANK(0), GATHER, 0, OTHER, 1),
                  ONLY(RANK(0), USE, 0, OTHER, 0),
                  MEET,
                  ONLY(RANK(0), DIE, 0, 0, 0),
                  ONLY(RANK(0), OPEN, 0, 0, 0),
                  REJOIN(RANK(0)),
                  REGISTER(RANK(0), 0),
                  LIVE(0, 0),
                  NOBODYS(RANK(0), 0, OTHER, "rank 0 does not hold unit 'u0' under tag 'plan'"),
                  MEET,
                  REFUSED(RANK(1), GATHER, 0, 0, 1, PEER_LOST, "is gone"), /* told once */
                  REWRITE(RANK(0), 0),
                  TAKE(ALL, 0),
                  MEET};
SCRIPT(after_end, after_end, "release-after-the-sessions-end", .world = 2, .nunits = 1, .repeats = 2);

OPS(ended_twice) = {FORWARD(0),
                    GATHER(0, SCOPE(0)),
                    FORWARD_END(0, 1),
                    REFUSED(ALL, FORWARD_END, 0, 0, 0, STATE, "it is a claim"),
                    FORWARD(1),
                    GATHER(1, SCOPE(1)),
                    REFUSED(ALL, CLAIM_END, 0, 1, 0, STATE, "has not ended"),
                    LIVE(0, 1),
                    CLAIM_END(0),
                    REFUSED(ALL, CLAIM_END, 0, 0, 0, NOT_FOUND, "or it has ended"),
                    REFUSED(ALL, SCOPE_ABANDON, 0, 0, 0, NOT_FOUND, "or it has ended"),
                    LIVE(0, 0),
                    LIVE(1, 1),
                    USE(1, SCOPE(1)),
                    FORWARD_END(1, 0),
                    LIVE(1, 0)};
SCRIPT(ended_twice, ended_twice, "scope-ended-twice", .world = 2, .nunits = 2, .repeats = 3);

/* It holds what it has, in everybody's sight, for as long as the rank is there and no longer. */
OPS(never_ended) = {FORWARD(0),
                    GATHER(0, SCOPE(0)),
                    FORWARD_END(0, 1),
                    MEET,
                    UPDATE(ALL, 0),
                    REFUSED(RANK(0), PUBLISH, 0, 0, 0, BUSY, "unit 'u0' is held on rank 0 by '@claim "),
                    REFUSED(RANK(1), PUBLISH, 0, 0, 0, BUSY, "unit 'u0' is held on rank 1 by '@claim "),
                    LIVE(0, 1),
                    MEET,
                    ONLY(RANK(0), LEAVE, 0, 0, 0),
                    REJOIN(RANK(0)),
                    MEET,
                    ONLY(RANK(0), EXPECT_LIVE, 0, 0, 0),
                    ONLY(RANK(1), EXPECT_LIVE, 0, 0, 1),
                    ONLY(RANK(1), CLAIM_END, 0, 0, 0)};
SCRIPT(never_ended, never_ended, "scope-never-ended", .world = 2, .nunits = 1, .copies = true, .repeats = 1);

#define NO_SUCH "this session has no scope, claim or context 123456"
OPS(unknown) = {REFUSED(ALL, FORWARD_END, 0, 0, 1, NOT_FOUND, NO_SUCH),
                REFUSED(ALL, CLAIM_END, 0, 0, 0, NOT_FOUND, NO_SUCH),
                REFUSED(ALL, GATHER, 0, SCOPE(0), 0, NOT_FOUND, NO_SUCH), LIVE(0, 0)};
SCRIPT(unknown, unknown, "claim-for-an-unknown-scope", .world = 2, .nunits = 1, .repeats = 2);

OPS(too_wide) = {BACKWARD(1), REFUSED(ALL, RESERVE, 0, 0, 0, NO_MEMORY, " bytes"), NO_BUCKETS, MEET,
                 BACKWARD_END};
SCRIPT(too_wide, too_wide, "reserve-larger-than-any-bucket", .world = 2, .nunits = 1, .stage = 3,
       .apart = true, .too_wide = true, .repeats = 1);

OPS(entry_twice) = {BACKWARD(1),
                    REDUCE(RANK(0), 0),
                    REFUSED(RANK(0), BUCKET_SUBMIT, 0, 0, 0, STATE, "of unit 'u0' is submitted already"),
                    MEET,
                    REDUCE(RANK(1), 0),
                    BACKWARD_END,
                    STEP,
                    MEET};
SCRIPT(entry_twice, entry_twice, "entry-submitted-twice", .world = 2, .nunits = 1, .stage = 3, .repeats = 2);

OPS(step_twice) = {ONLY(ALL, COMMIT, 0, 0, 1), MEET,
                   REFUSED(ALL, COMMIT, 0, 0, 1, STATE, "step 1 is committed; 1 is not after it"),
                   REFUSED(ALL, COMMIT, 0, 0, 0, STATE, "0 is not after it")};
SCRIPT(step_twice, step_twice, "step-committed-twice", .world = 3, .nunits = 1, .repeats = 1);

OPS(no_sums) = {REFUSED(ALL, BUCKET_CREATE, 0, 0, 0, UNSUPPORTED, "only floating ones"),
                REFUSED(ALL, BACKWARD_BEGIN, 0, 0, 1, UNSUPPORTED, NULL),
                MEET,
                NO_GRADIENTS,
                MEET,
                BACKWARD(1),
                REDUCE(ALL, 0),
                BACKWARD_END,
                STEP,
                MEET};
SCRIPT(no_sums, no_sums, "dtypes-that-no-target-holds", .world = 2, .nunits = 1, .stage = 3, .repeats = 3);

const struct zd_sim_script *const zd_sim_scripts_bad_requests[] = {
        &not_held, &after_end,   &ended_twice, &never_ended, &unknown,
        &too_wide, &entry_twice, &step_twice,  &no_sums,     NULL,
};
