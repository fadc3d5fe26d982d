/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scripts_known_failures.c - the scenarios of tests/contract/test_known_failures.c: ranks that do not do the
 * same, awkward shapes, careless calls.
 */
#include "scripts.h"

#define CONTRACT "test_known_failures"

/* ---- Ranks that do not do the same --------------------------------------------------------------------- */

#define TOUR(r, a, b, c, d, e, f)                                                                            \
	TAKE(RANK(r), a), TAKE(RANK(r), b), TAKE(RANK(r), c), TAKE(RANK(r), d), TAKE(RANK(r), e),            \
	        TAKE(RANK(r), f)
OPS(orders) = {TOUR(0, 0, 1, 2, 3, 4, 5), TOUR(1, 5, 4, 3, 2, 1, 0), TOUR(2, 2, 3, 4, 5, 0, 1),
               TOUR(3, 3, 2, 1, 0, 5, 4)};
SCRIPT(orders, orders, "different-orders", .world = 4, .nunits = 6, .one_buffer = true, .repeats = 3);

/* Threads of one rank are tags: joined, with one tag for two of them, and one after the other. */
OPS(threads) = {GATHER(0, TAG),
                GATHER(0, OTHER),
                GATHER(0, THIRD),
                GATHER(0, TAG),
                USE(0, TAG),
                USE(0, OTHER),
                LIVE(0, 1),
                RELEASE(0, TAG),
                RELEASE(0, OTHER),
                LIVE(0, 1),
                RELEASE(0, TAG),
                NOT_HELD(0, TAG),
                USE(0, THIRD),
                LIVE(0, 1),
                RELEASE(0, THIRD),
                LIVE(0, 0),
                MEET,
                TRANSFERS(3),
                MEET,
                GATHER(0, TAG),
                RELEASE(0, TAG),
                GATHER(0, OTHER),
                USE(0, OTHER),
                RELEASE(0, OTHER),
                GATHER(0, THIRD),
                USE(0, THIRD),
                RELEASE(0, THIRD),
                LIVE(0, 0),
                MEET,
                TRANSFERS(12)};
SCRIPT(threads, threads, "threads-gather-one-unit", .world = 3, .nunits = 1, .repeats = 1);

OPS(expert) = {TAKE(RANK(1), 0), BACKWARD(1), REDUCE(RANK(1), 0), SKIP(ALL & ~RANK(1), 0), SKIP(ALL, 1),
               BACKWARD_END,     STEP};
SCRIPT(expert, expert, "expert-used-by-one-rank", .world = 3, .nunits = 2, .stage = 3, .repeats = 2);

#define NAMED "rank 1 ended backward 1 without a gradient or skip for unit 'u0'"
OPS(forgotten) = {BACKWARD(1), REDUCE(RANK(0), 0),
                  AHEAD_REFUSED(RANK(0), BACKWARD_END, 0, 0, 0, MISMATCH, NAMED), MEET_AHEAD,
                  REFUSED(RANK(1), BACKWARD_END, 0, 0, 0, MISMATCH, NAMED)};
SCRIPT(forgotten, forgotten, "forgotten-skip-is-named", .world = 2, .nunits = 1, .stage = 3, .repeats = 1);

/* Rank 1 goes, and a process takes its place, whose shard is in no copy that is there. If rank 1 left in
 * order, the others gather on until then. They are told once, by whatever needs rank 1 first. */
#define OTHERS     (ALL & ~RANK(1))
#define TOLD       REFUSED(OTHERS, GATHER, 0, TAG, 1, PEER_LOST, "rank 1")
#define COMES_BACK MEET, REJOIN(RANK(1)), REGISTER(RANK(1), 0), MEET, ONLY(RANK(1), EXPECT_LIVE, 0, 0, 0)
#define GOES_ON    REWRITE(RANK(1), 0), TAKE(ALL, 0), MEET
OPS(leaves) = {REWRITE(ALL, 0),
               ONLY(RANK(1), GATHER, 0, TAG, 1),
               ONLY(OTHERS, PREFETCH, 0, 0, 0),
               MEET,
               ONLY(RANK(1), LEAVE, 0, 0, 0),
               MEET,
               TAKE(OTHERS, 0),
               COMES_BACK,
               MEET,
               TOLD,
               GOES_ON};
SCRIPT(leaves, leaves, "rank-that-leaves-early", .world = 3, .nunits = 1, .repeats = 2);

OPS(left) = {ONLY(RANK(1), GATHER, 0, TAG, 1),
             BACKWARD(1),
             REDUCE(OTHERS, 0),
             AHEAD_REFUSED(OTHERS, BACKWARD_END, 0, 0, 0, PEER_LOST, "rank 1"),
             MEET_AHEAD,
             ONLY(RANK(1), LEAVE, 0, 0, 0),
             MEET,
             TAKE(OTHERS, 0),
             COMES_BACK,
             GOES_ON};
SCRIPT(left, left, "rank-that-leaves-while-others-wait", .world = 3, .nunits = 1, .stage = 3, .repeats = 2);

OPS(dies) = {ONLY(RANK(1), GATHER, 0, TAG, 1),
             BACKWARD(1),
             REDUCE(OTHERS, 0),
             AHEAD_REFUSED(OTHERS, BACKWARD_END, 0, 0, 0, PEER_LOST, "rank 1"),
             MEET_AHEAD,
             ONLY(RANK(1), DIE, 0, 0, 0),
             ONLY(RANK(1), OPEN, 0, 0, 0),
             MEET,
             TOLD,
             COMES_BACK,
             GOES_ON};
SCRIPT(dies, dies, "rank-that-dies-while-others-wait", .world = 3, .nunits = 1, .stage = 3, .repeats = 2);

/* ---- Shapes and dtypes --------------------------------------------------------------------------------- */

OPS(sizes) = {TAKE(ALL, 0),    TAKE(ALL, 1),    TAKE(ALL, 2),    TAKE(ALL, 3),   MEET,
              REWRITE(ALL, 0), REWRITE(ALL, 1), REWRITE(ALL, 2), REWRITE(ALL, 3)};
SCRIPT(sizes, sizes, "awkward-sizes", .world = 4, .nunits = 4, .repeats = 3);

OPS(tiny) = {TAKE(ALL, 0),   TAKE(ALL, 1), TAKE(ALL, 2), BACKWARD(1),     REDUCE(ALL, 0),  REDUCE(ALL, 1),
             REDUCE(ALL, 2), BACKWARD_END, STEP,         REWRITE(ALL, 0), REWRITE(ALL, 1), REWRITE(ALL, 2)};
SCRIPT(tiny, tiny, "smaller-than-the-world", .world = 4, .nunits = 3, .stage = 3, .tiny = true, .repeats = 3);

/* Shards change places: what is behind the elements is zero, whatever was there. */
OPS(padding) = {TAKE(ALL, 0),       TAKE(ALL, 1),       MEET,
                UNREGISTER(ALL, 0), UNREGISTER(ALL, 1), MEET,
                REGISTER(ALL, 1),   REGISTER(ALL, 0),   REWRITE(ALL, 0),
                REWRITE(ALL, 1)};
SCRIPT(padding, padding, "padding-of-a-used-block", .world = 2, .nunits = 2, .repeats = 4);

OPS(views) = {REFUSED(ALL, REGISTER, 0, 0, ZD_SIM_VIEW_BEYOND, INVALID, "view 'last' of 2 elements"),
              LIVE(0, 0), TAKE(ALL, 0)};
SCRIPT(views, views, "views", .world = 2, .nunits = 1, .repeats = 2);

OPS(dtypes) = {
        GATHER(0, TAG),  GATHER(1, TAG),  GATHER(2, TAG),  GATHER(3, TAG),  GATHER(4, TAG),  GATHER(5, TAG),
        USE(0, TAG),     USE(1, TAG),     USE(2, TAG),     USE(3, TAG),     USE(4, TAG),     USE(5, TAG),
        RELEASE(0, TAG), RELEASE(1, TAG), RELEASE(2, TAG), RELEASE(3, TAG), RELEASE(4, TAG), RELEASE(5, TAG),
        BACKWARD(1),     REDUCE(ALL, 0),  REDUCE(ALL, 1),  REDUCE(ALL, 2),  BACKWARD_END,    STEP};
SCRIPT(dtypes, dtypes, "mixed-dtypes", .world = 2, .nunits = 6, .stage = 2, .all_dtypes = true, .repeats = 2);

/* ---- Registration -------------------------------------------------------------------------------------- */

OPS(mismatch) = {UNREGISTER(RANK(1), 0),
                 MEET,
                 REFUSED(RANK(1), REGISTER, 0, 0, ZD_SIM_LARGER, MISMATCH, "rank 1 says"),
                 MEET,
                 REFUSED(RANK(0), GATHER, 0, TAG, 1, MISMATCH, "rank 1 says"),
                 REFUSED(RANK(1), REGISTER, 0, 0, ZD_SIM_TURNED, MISMATCH, "last[0,1]"),
                 REFUSED(RANK(0), REGISTER, 0, 0, ZD_SIM_LARGER, MISMATCH, "rank 0 says"),
                 MEET,
                 REGISTER(ALL, 0),
                 MEET,
                 REWRITE(RANK(1), 0),
                 TAKE(ALL, 0),
                 MEET};
SCRIPT(mismatch, mismatch, "another-shape-is-a-mismatch", .world = 2, .nunits = 1, .viewed = true,
       .repeats = 2);

/* All have left it, and nothing is awaited but copies into buffers that nobody has. */
OPS(reshaped) = {TAKE(ALL, 0),
                 MEET,
                 PREFETCH(0),
                 MEET,
                 UNREGISTER(ALL, 0),
                 MEET,
                 ONLY(RANK(0), RESHAPE, 0, 0, 0),
                 MEET,
                 REGISTER(ALL, 0),
                 REWRITE(ALL, 0)};
SCRIPT(reshaped, reshaped, "another-shape-when-all-have-left", .world = 3, .nunits = 1, .repeats = 3);

OPS(tied) = {REGISTER(ALL, 0),
             GATHER(0, TAG),
             GATHER(0, OTHER),
             USE(0, TAG),
             RELEASE(0, TAG),
             LIVE(0, 1),
             USE(0, OTHER),
             BACKWARD(1),
             REDUCE(ALL, 0),
             REFUSED(ALL, RESERVE, 0, 0, 0, DUPLICATE, "'u0'"),
             RELEASE(0, OTHER),
             LIVE(0, 0),
             BACKWARD_END,
             STEP,
             MEET,
             TRANSFERS(2)};
SCRIPT(tied, tied, "tied-parameters", .world = 2, .nunits = 1, .stage = 3, .nslots = 2, .repeats = 1);

/* ---- Careless calls ------------------------------------------------------------------------------------ */

OPS(prefetches) = {
        PREFETCH(0),      PREFETCH(1),     PREFETCH(2),     MEET,        LIVE(0, 1), LIVE(1, 1),
        LIVE(2, 1),       GATHER(1, TAG),  GATHER(3, TAG),  USE(3, TAG), LIVE(0, 0), LIVE(2, 1),
        NOT_HELD(2, TAG), GATHER(0, TAG),  USE(0, TAG),     LIVE(2, 0),  LIVE(1, 1), USE(1, TAG),
        RELEASE(0, TAG),  RELEASE(3, TAG), RELEASE(1, TAG), LIVE(1, 0),  MEET,       TRANSFERS(10)};
SCRIPT(prefetches, prefetches, "prefetches-never-used", .world = 2, .nunits = 4, .apart = true, .ncopies = 3,
       .repeats = 1);

OPS(edit) = {ONLY(RANK(0), GATHER, 0, TAG, 1),
             ONLY(RANK(0), EDIT, 0, TAG, 0),
             TAKE(RANK(1), 0),
             ONLY(RANK(0), RELEASE, 0, TAG, 0),
             LIVE(0, 0),
             TAKE(ALL, 0)};
SCRIPT(edit, edit, "edit-without-publishing", .world = 2, .nunits = 1, .one_buffer = true, .repeats = 4);

/* First come, first served, but for prefetches; who never fits is told at once. Unit 3 is as large as two of
 * the others. */
OPS(budget) = {GATHER(0, TAG),  USE(0, TAG),     REFUSED(ALL, GATHER, 4, TAG, 1, NO_MEMORY, "gather budget"),
               LIVE(0, 1),      GATHER(3, TAG),  GATHER(1, TAG),
               RELEASE(0, TAG), USE(3, TAG),     AHEAD(ALL, EXPECT_LIVE, 1, 0, 0),
               RELEASE(3, TAG), USE(1, TAG),     LIVE(3, 0),
               GATHER(0, TAG),  USE(0, TAG),     PREFETCH(3),
               GATHER(2, TAG),  RELEASE(0, TAG), USE(2, TAG),
               RELEASE(1, TAG), RELEASE(2, TAG), MEET,
               LIVE(3, 1)};
SCRIPT(budget, budget, "budget-is-kept-in-order", .world = 2, .nunits = 5, .apart = true, .ncopies = 2,
       .large = true, .too_large = true, .repeats = 3);

/* A stream may wait for a copy as often as it likes; nothing of that brings it back. */
OPS(end) = {GATHER(0, TAG),
            REFUSED(ALL, UNREGISTER, 0, 0, 0, BUSY, "held by"),
            USE(0, TAG),
            USE(0, TAG),
            RELEASE(0, TAG),
            NOT_HELD(0, TAG),
            LIVE(0, 0),
            TAKE(ALL, 0),
            NOT_HELD(0, TAG),
            LIVE(0, 0),
            MEET,
            TRANSFERS(4)};
SCRIPT(end, end, "release-after-the-end", .world = 2, .nunits = 1, .repeats = 1);

const struct zd_sim_script *const zd_sim_scripts_known_failures[] = {
        &orders, &threads, &expert,   &forgotten, &leaves, &left,       &dies, &sizes,  &tiny, &padding,
        &views,  &dtypes,  &mismatch, &reshaped,  &tied,   &prefetches, &edit, &budget, &end,  NULL,
};
