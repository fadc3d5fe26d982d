/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scripts.h - the words that scripts are written in. A file of scripts defines CONTRACT, its file of
 * tests/contract.
 */
#ifndef ZD_SIM_SCRIPTS_H
#define ZD_SIM_SCRIPTS_H

#include <stddef.h>

#include "base/mem.h"
#include "script.h"

#define ALL      ZD_SIM_ALL_RANKS
#define RANK(r)  (1u << (r))
#define TAG      0u
#define OTHER    1u
#define THIRD    2u
#define SCOPE(p) (ZD_SIM_TAGS + (p))

/*
 * An operation of these ranks that must succeed; one that must be refused, in these words; the same two,
 * where the rank goes on before it has the reply.
 */
#define ONLY(ranks, op, unit, tag, arg)                                                                      \
	{                                                                                                    \
		ZD_SIM_##op, ranks, unit, tag, arg, 0, NULL, false                                           \
	}
#define REFUSED(ranks, op, unit, tag, arg, why, words)                                                       \
	{                                                                                                    \
		ZD_SIM_##op, ranks, unit, tag, arg, ZEROD_E_##why, words, false                              \
	}
#define AHEAD(ranks, op, unit, tag, arg)                                                                     \
	{                                                                                                    \
		ZD_SIM_##op, ranks, unit, tag, arg, 0, NULL, true                                            \
	}
#define AHEAD_REFUSED(ranks, op, unit, tag, arg, why, words)                                                 \
	{                                                                                                    \
		ZD_SIM_##op, ranks, unit, tag, arg, ZEROD_E_##why, words, true                               \
	}

/* All ranks meet: when they have all replies; whatever they still wait for. */
#define MEET                  ONLY(ALL, BARRIER, 0, 0, 0)
#define MEET_AHEAD            AHEAD(ALL, BARRIER, 0, 0, 0)
#define SLEEP(ranks, seconds) AHEAD(ranks, SLEEP, 0, 0, seconds)
#define ASLEEP(ranks, rank)   ONLY(ranks, EXPECT_ASLEEP, 0, 0, rank)
#define LIVE(unit, copies)    ONLY(ALL, EXPECT_LIVE, unit, 0, copies)
#define TRANSFERS(count)      ONLY(ALL, EXPECT_TRANSFERS, 0, 0, count)
#define NO_GRADIENTS          ONLY(ALL, EXPECT_NO_GRADIENTS, 0, 0, 0)
#define NO_BUCKETS            ONLY(ALL, EXPECT_NO_BUCKETS, 0, 0, 0)

#define GATHER(unit, tag)    ONLY(ALL, GATHER, unit, tag, 1)
#define GATHER_USES(unit, n) ONLY(ALL, GATHER, unit, TAG, n)
#define PREFETCH(unit)       ONLY(ALL, PREFETCH, unit, 0, 0)
#define USE(unit, tag)       ONLY(ALL, USE, unit, tag, 0)
#define RELEASE(unit, tag)   ONLY(ALL, RELEASE, unit, tag, 0)
#define TAKE(ranks, unit)                                                                                    \
	ONLY(ranks, GATHER, unit, TAG, 1), ONLY(ranks, USE, unit, TAG, 0), ONLY(ranks, RELEASE, unit, TAG, 0)
#define NOT_HELD(unit, tag)      REFUSED(ALL, RELEASE, unit, tag, 0, NOT_HELD, NULL)
#define PERSISTENT(unit, yes)    ONLY(ALL, SET_PERSISTENT, unit, 0, yes)
#define UPDATE(ranks, unit)      ONLY(ranks, UPDATE_BEGIN, unit, 0, 0)
#define PUBLISH(ranks, unit)     ONLY(ranks, PUBLISH, unit, 0, 0)
#define REWRITE(ranks, unit)     UPDATE(ranks, unit), PUBLISH(ranks, unit)
#define FORWARD(place)           ONLY(ALL, FORWARD_BEGIN, 0, place, 0)
#define NESTED(place, parent)    ONLY(ALL, FORWARD_BEGIN, 0, place, (parent) + 1)
#define FORWARD_END(place, grad) ONLY(ALL, FORWARD_END, 0, place, grad)
#define CLAIM_END(place)         ONLY(ALL, CLAIM_END, 0, place, 0)
#define ABANDON(place)           ONLY(ALL, SCOPE_ABANDON, 0, place, 0)
#define CONTEXT(place, units)    ONLY(ALL, CONTEXT_BEGIN, 0, place, units)
#define CONTEXT_END(place)       ONLY(ALL, CONTEXT_END, 0, place, 0)
#define BACKWARD(boundary)       ONLY(ALL, BACKWARD_BEGIN, 0, 0, boundary)
#define BACKWARD_END             ONLY(ALL, BACKWARD_END, 0, 0, 0)
#define RESERVE(ranks, unit)     ONLY(ranks, RESERVE, unit, 0, 0)
#define FILL(ranks, unit)        ONLY(ranks, BUCKET_SUBMIT, unit, 0, 0)
#define REDUCE(ranks, unit)      RESERVE(ranks, unit), FILL(ranks, unit)
#define SKIP(ranks, unit)        ONLY(ranks, SKIP, unit, 0, 0)
#define STEP                     ONLY(ALL, STEP_BEGIN, 0, 0, 0), ONLY(ALL, STEP_END, 0, 0, 0)
#define MICRO(boundary)                                                                                      \
	BACKWARD(boundary), REDUCE(ALL, 0), REDUCE(ALL, 1), BACKWARD_END, MEET, NO_BUCKETS, MEET
#define REJOIN(ranks)           ONLY(ranks, JOIN, 0, 0, 0)
#define REGISTER(ranks, unit)   ONLY(ranks, REGISTER, unit, 0, 0)
#define UNREGISTER(ranks, unit) ONLY(ranks, UNREGISTER, unit, 0, 0)

#define OPS(symbol) static const struct zd_sim_script_op symbol##_ops[]
#define SCRIPT(symbol, program, title, ...)                                                                  \
	static const struct zd_sim_script symbol = {.name = title,                                           \
	                                            .contract = CONTRACT,                                    \
	                                            .ops = program##_ops,                                    \
	                                            .nops = ZD_ARRAY_LEN(program##_ops),                     \
	                                            __VA_ARGS__}

#endif
