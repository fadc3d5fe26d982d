/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scope_rig.h - two ranks, three units at version 1, and rank 0's scopes in words.
 */
#ifndef ZD_TESTS_SCOPE_RIG_H
#define ZD_TESTS_SCOPE_RIG_H

#include "base/mem.h"
#include "tests/support/core_driver.h"

#define UNIT_BYTES 512ull

struct rig {
	struct core_driver *core;
	struct core_team team;
	uint64_t session; /* rank 0's */
	uint64_t a, b, c; /* units */
};

static inline void start(struct rig *rig, const struct core_options *options)
{
	rig->core = core_new(options);
	rig->team = core_team_new(rig->core, "job", 2, false);
	rig->session = rig->team.session[0];
	rig->a = core_team_unit(&rig->team, "a", UNIT_BYTES);
	rig->b = core_team_unit(&rig->team, "b", UNIT_BYTES);
	rig->c = core_team_unit(&rig->team, "c", UNIT_BYTES);
}

/* A test of `rig`, whose driver has options such as ".copies = true". */
#define RIG_TEST(name, ...)                                                                                  \
	CORE_RIG_TEST(name, struct rig, rig, start(rig, &(struct core_options){__VA_ARGS__}), core_rig_end)

static inline uint64_t gathered_bytes(struct rig *rig)
{
	return core_usage(rig->core).gathered_bytes;
}

static inline uint64_t begin(struct rig *rig, uint64_t parent)
{
	uint64_t request = core_forward_begin(rig->core, rig->session, rig->team.group, parent, NULL, 0);
	return core_expect(rig->core, request, 0)->u.scope.scope;
}

static inline void forward_end(struct rig *rig, uint64_t scope, bool grad)
{
	core_expect(rig->core, core_forward_end(rig->core, rig->session, scope, grad), 0);
}

static inline const struct zd_reply *end(struct rig *rig, enum zd_request_kind kind, uint64_t scope)
{
	return core_expect(rig->core, core_scope_end(rig->core, rig->session, kind, scope, NULL, 0), 0);
}

static inline void expect_end_fails(struct rig *rig, enum zd_request_kind kind, uint64_t scope, int status,
                                    const char *text)
{
	core_expect_error(rig->core, core_scope_end(rig->core, rig->session, kind, scope, NULL, 0), status,
	                  text);
}

/* The gather's bytes are version 1. */
static inline const struct zd_reply *touch(struct rig *rig, uint64_t unit, uint64_t scope)
{
	const struct zd_reply *reply = core_expect(rig->core,
	                                           core_gather_in(rig->core, rig->session, unit, scope), 0);
	core_team_check(&rig->team, reply, 1);
	return reply;
}

static inline uint64_t context(struct rig *rig, const uint64_t *units, uint32_t nunits)
{
	uint64_t request = core_context_begin(rig->core, rig->session, units, nunits);
	return core_expect(rig->core, request, 0)->u.scope.scope;
}

static inline uint64_t fallbacks(struct rig *rig)
{
	struct zd_engine_totals totals;
	zd_engine_totals(core_engine(rig->core), &totals);
	return totals.fallback_gathers;
}

/* The scope's row says this. */
static inline void expect_row(struct rig *rig, uint64_t scope, const char *tag, const char *state,
                              uint32_t units)
{
	struct core_row row;
	core_row(rig->core, ZD__TABLE__SCOPES, scope, &row);
	assert_string_equal(row.name, tag);
	assert_string_equal(row.state, state);
	assert_int_equal(row.row->scope->units, units);
	assert_int_equal(row.row->scope->bytes, units * UNIT_BYTES);
	assert_true(row.row->scope->session == rig->session);
}

static inline uint32_t nscopes(struct rig *rig)
{
	struct core_row row;
	return core_rows(rig->core, ZD__TABLE__SCOPES, &row, 1);
}

#endif
