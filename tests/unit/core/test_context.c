/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User contexts: units gathered as a whole, or not at all.
 */
#include "scope_rig.h"

#include <stdio.h>

RIG_TEST(test_context_holds_all_its_units)
{
	const uint64_t units[] = {rig->a, rig->b};
	char tag[32];
	uint64_t id = context(rig, units, 2);
	(void)snprintf(tag, sizeof(tag), "@context %llu", ZD_ID_NUMBER(id));
	expect_row(rig, id, tag, "OPEN", 2);
	assert_int_equal(gathered_bytes(rig), 2 * UNIT_BYTES);
	/* addresses come from gathers that join */
	uint32_t copies = core_count(rig->core, ZD_CMD_COPY);
	touch(rig, rig->a, id);
	touch(rig, rig->a, id);
	assert_int_equal(core_count(rig->core, ZD_CMD_COPY), copies);
	core_expect(rig->core, core_release(rig->core, rig->session, rig->a), ZEROD_E_NOT_HELD);
	assert_true(end(rig, ZD_REQ_CONTEXT_END, id)->u.scope.ended[0] == id);
	assert_int_equal(gathered_bytes(rig), 0);
	expect_end_fails(rig, ZD_REQ_CONTEXT_END, id, ZEROD_E_NOT_FOUND, "or it has ended");
}

RIG_TEST(test_context_ends_behind_its_streams)
{
	const uint64_t units[] = {rig->a, rig->b, rig->c};
	const struct zd_fence fence = {3, 7};
	uint64_t id = context(rig, units, 3);
	core_expect(rig->core, core_scope_end(rig->core, rig->session, ZD_REQ_CONTEXT_END, id, &fence, 1), 0);
	assert_int_equal(core_count(rig->core, ZD_CMD_WATCH), 1);
	assert_int_equal(core_quarantine(rig->core, 0), 3 * UNIT_BYTES);
	core_pass(rig->core, rig->session, 3, 7);
	assert_int_equal(core_quarantine(rig->core, 0), 0);
}

/* ---- Waiting ------------------------------------------------------------------------------------------- */

/* A unit without a version: whoever gathers it waits. */
static uint64_t unpublished(struct rig *rig)
{
	return core_team_register(&rig->team, &(struct core_unit){.name = "late", .numel = 128});
}

RIG_TEST(test_context_waits_as_a_whole)
{
	uint64_t late = unpublished(rig);
	const uint64_t units[] = {rig->a, late, rig->b}, overlap[] = {rig->b};
	struct core_row rows[2];
	uint64_t request = core_context_begin(rig->core, rig->session, units, 3);
	core_expect_waits(rig->core, request, "context_begin: rank 0 to publish version 1 of unit 'late'");
	assert_int_equal(core_rows(rig->core, ZD__TABLE__SCOPES, rows, 1), 1);
	assert_string_equal(rows[0].state, "GATHERING");
	uint64_t id = rows[0].id;
	assert_int_equal(core_rows(rig->core, ZD__TABLE__BUFFERS, rows, 2), 2);
	uint32_t waiting = strcmp(rows[0].state, "WAITING") == 0 ? 0 : 1;
	assert_string_equal(rows[waiting].state, "WAITING");
	assert_string_equal(rows[waiting].name, "late");
	assert_string_equal(rows[1 - waiting].name, "a");
	assert_string_equal(rows[waiting].row->buffer->holders[0]->tag,
	                    rows[1 - waiting].row->buffer->holders[0]->tag);
	/* its units are taken already, and it has no name yet */
	core_expect(rig->core, core_context_begin(rig->core, rig->session, overlap, 1), ZEROD_E_EXISTS);
	expect_end_fails(rig, ZD_REQ_CONTEXT_END, id, ZEROD_E_NOT_FOUND, "this session has no");
	core_expect(rig->core, core_simple(rig->core, rig->session, ZD_REQ_UNIT_UNREGISTER, rig->b),
	            ZEROD_E_BUSY);
	core_team_publish(&rig->team, late);
	assert_true(core_expect(rig->core, request, 0)->u.scope.scope == id);
	assert_int_equal(gathered_bytes(rig), 3 * UNIT_BYTES);
	end(rig, ZD_REQ_CONTEXT_END, id);
}

/* As it was before the context, and its units are free for another one. */
static void expect_undone(struct rig *rig, uint64_t bytes)
{
	const uint64_t units[] = {rig->a, rig->b, rig->c};
	assert_int_equal(nscopes(rig), 0);
	assert_int_equal(gathered_bytes(rig), bytes);
	end(rig, ZD_REQ_CONTEXT_END, context(rig, units, 3));
}

RIG_TEST(test_failing_gather_gives_everything_back)
{
	const struct core_unit halves[] = {{.name = "late", .numel = 128}, {.name = "late", .numel = 256}};
	uint64_t request = core_register(rig->core, rig->session, rig->team.group, &halves[0]);
	const uint64_t units[] = {rig->a, rig->c, core_expect(rig->core, request, 0)->u.unit_register.unit};
	request = core_context_begin(rig->core, rig->session, units, 3);
	assert_int_equal(gathered_bytes(rig), 2 * UNIT_BYTES);
	core_expect(rig->core, core_register(rig->core, rig->team.session[1], rig->team.group, &halves[1]),
	            ZEROD_E_MISMATCH);
	core_expect_error(rig->core, request, ZEROD_E_MISMATCH, "'late'");
	expect_undone(rig, 0);
}

RIG_TEST(test_context_beyond_the_budget_fails_at_once, .gather_budget_bytes = 2 * UNIT_BYTES)
{
	const uint64_t units[] = {rig->a, rig->b, rig->c};
	core_expect_error(rig->core, core_context_begin(rig->core, rig->session, units, 3), ZEROD_E_NO_MEMORY,
	                  "3 units need 1536 bytes; the gather budget of device 0 is 1024");
	assert_int_equal(nscopes(rig), 0);
	end(rig, ZD_REQ_CONTEXT_END, context(rig, units, 2));
}

/* ---- Bad input ----------------------------------------------------------------------------------------- */

RIG_TEST(test_bad_sets_of_units)
{
	struct core_join alone = {.group = "alone", .world_size = 1};
	const struct core_unit shape = {.name = "x", .numel = 1};
	uint64_t group = core_join_ok(rig->core, rig->session, &alone);
	const uint64_t other[] = {rig->a, core_register_ok(rig->core, rig->session, group, &shape)};
	const uint64_t twice[] = {rig->a, rig->b, rig->a}, unknown[] = {rig->a, 123456789};
	core_expect_error(rig->core, core_context_begin(rig->core, rig->session, other, 2), ZEROD_E_INVALID,
	                  "unit 'x' is of another group");
	core_expect_error(rig->core, core_context_begin(rig->core, rig->session, twice, 3), ZEROD_E_INVALID,
	                  "unit 'a' is given twice");
	core_expect(rig->core, core_context_begin(rig->core, rig->session, unknown, 2), ZEROD_E_NOT_FOUND);
	core_expect(rig->core, core_context_begin(rig->core, rig->session, NULL, 0), ZEROD_E_LIMIT);
	core_expect(rig->core,
	            core_context_begin(rig->core, rig->session, twice, ZD_MAX_UNITS_PER_REQUEST + 1),
	            ZEROD_E_LIMIT);
	expect_undone(rig, 0);
}

RIG_TEST(test_contexts_are_no_forward_scopes)
{
	const uint64_t units[] = {rig->a};
	uint64_t id = context(rig, units, 1);
	expect_end_fails(rig, ZD_REQ_FORWARD_END, id, ZEROD_E_INVALID, "is a user context");
	expect_end_fails(rig, ZD_REQ_CLAIM_END, id, ZEROD_E_INVALID, "is a user context");
	expect_end_fails(rig, ZD_REQ_SCOPE_ABANDON, id, ZEROD_E_INVALID, "is a user context");
	core_expect_error(rig->core,
	                  core_forward_begin(rig->core, rig->session, rig->team.group, id, NULL, 0),
	                  ZEROD_E_INVALID, "is a user context");
	core_expect_error(rig->core, core_gather_in(rig->core, rig->session, rig->b, id), ZEROD_E_INVALID,
	                  "unit 'b' is not in context");
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	end(rig, ZD_REQ_CONTEXT_END, id);
}
