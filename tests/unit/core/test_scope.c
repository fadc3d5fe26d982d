/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward scopes and claims: gathering outside the plan, and who still needs what was gathered.
 */
#include "scope_rig.h"

#include <stdio.h>

/* ---- What holds ---------------------------------------------------------------------------------------- */

RIG_TEST(test_unit_is_held_once_however_often_it_is_touched)
{
	struct core_row buffer;
	uint64_t scope = begin(rig, 0);
	for (int i = 0; i < 5; i++)
		touch(rig, rig->a, scope);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__BUFFERS, &buffer, 1), 1);
	assert_int_equal(buffer.row->buffer->n_holders, 1);
	assert_int_equal(buffer.row->buffer->holders[0]->uses, 1);
	assert_int_equal(fallbacks(rig), 1);
	forward_end(rig, scope, false);
	assert_int_equal(gathered_bytes(rig), 0);
}

RIG_TEST(test_fallbacks_are_counted_apart)
{
	struct core_row devices[2];
	uint64_t outer = begin(rig, 0);
	touch(rig, rig->a, outer);
	uint64_t inner = begin(rig, outer);
	touch(rig, rig->a, inner);
	touch(rig, rig->b, inner);
	core_expect(rig->core, core_gather(rig->core, rig->session, rig->a), 0);
	const uint64_t units[] = {rig->c};
	uint64_t kept = context(rig, units, 1);
	touch(rig, rig->c, kept);
	assert_int_equal(fallbacks(rig), 3);
	assert_int_equal(core_rows(rig->core, ZD__TABLE__DEVICES, devices, 2), 2);
	assert_int_equal(devices[0].row->device->fallback_gathers, 3);
	assert_int_equal(devices[0].row->device->gathers, 3); /* transfers, of a, b and c */
	assert_int_equal(devices[1].row->device->fallback_gathers, 0);
}

RIG_TEST(test_fallback_beside_set_persistent)
{
	uint64_t scope = begin(rig, 0);
	uint64_t offset = touch(rig, rig->a, scope)->place.offset;
	core_expect(rig->core, core_set_persistent(rig->core, rig->session, rig->a, true), 0);
	forward_end(rig, scope, false);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	scope = begin(rig, 0);
	assert_int_equal(touch(rig, rig->a, scope)->place.offset, offset);
	core_expect(rig->core, core_set_persistent(rig->core, rig->session, rig->a, false), 0);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES); /* the scope's now */
	forward_end(rig, scope, false);
	assert_int_equal(gathered_bytes(rig), 0);
}

/* ---- Nesting, abandoning ------------------------------------------------------------------------------- */

RIG_TEST(test_nested_scopes_end_one_by_one)
{
	char text[64];
	uint64_t outer = begin(rig, 0);
	touch(rig, rig->a, outer);
	uint64_t inner = begin(rig, outer);
	struct core_row row;
	core_row(rig->core, ZD__TABLE__SCOPES, inner, &row);
	assert_true(row.row->scope->parent == outer);
	touch(rig, rig->a, inner);
	(void)snprintf(text, sizeof(text), "scope %llu is open inside scope %llu", ZD_ID_NUMBER(inner),
	               ZD_ID_NUMBER(outer));
	core_expect_error(rig->core, core_forward_end(rig->core, rig->session, outer, true), ZEROD_E_STATE,
	                  text);
	forward_end(rig, inner, true);
	forward_end(rig, outer, false); /* a claim inside it stays */
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	end(rig, ZD_REQ_CLAIM_END, inner);
	assert_int_equal(gathered_bytes(rig), 0);
}

RIG_TEST(test_abandoned_forward_is_dropped_with_what_is_open_inside)
{
	uint64_t before = begin(rig, 0);
	touch(rig, rig->a, before);
	forward_end(rig, before, true);
	uint64_t outer = begin(rig, 0);
	touch(rig, rig->a, outer);
	uint64_t ended = begin(rig, outer);
	touch(rig, rig->b, ended);
	forward_end(rig, ended, true);
	uint64_t inner = begin(rig, outer);
	uint64_t innermost = begin(rig, inner);
	touch(rig, rig->c, innermost);
	const struct zd_reply *reply = end(rig, ZD_REQ_SCOPE_ABANDON, outer);
	assert_int_equal(reply->u.scope.n_ended, 3);
	assert_true(reply->u.scope.ended[0] == outer && reply->u.scope.ended[1] == inner &&
	            reply->u.scope.ended[2] == innermost);
	/* the claims of forwards that ended stay, inside it too */
	assert_int_equal(nscopes(rig), 2);
	assert_int_equal(gathered_bytes(rig), 2 * UNIT_BYTES);
	end(rig, ZD_REQ_SCOPE_ABANDON, ended);
	end(rig, ZD_REQ_CLAIM_END, before);
	assert_int_equal(gathered_bytes(rig), 0);
}

RIG_TEST(test_scopes_of_another_rank_are_not_swept)
{
	uint64_t mine = begin(rig, 0);
	touch(rig, rig->a, mine);
	uint64_t request = core_forward_begin(rig->core, rig->team.session[1], rig->team.group, 0, NULL, 0);
	assert_int_equal(core_expect(rig->core, request, 0)->u.scope.n_ended, 0);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	forward_end(rig, mine, false);
}

/* ---- Streams ------------------------------------------------------------------------------------------- */

/* Bytes fall at once, blocks are free when the streams have passed, one watch for all units. */
static void expect_fenced(struct rig *rig, uint64_t request, uint64_t value)
{
	uint32_t watches = core_count(rig->core, ZD_CMD_WATCH);
	core_expect(rig->core, request, 0);
	assert_int_equal(watches, 1);
	assert_int_equal(gathered_bytes(rig), 0);
	assert_int_equal(core_quarantine(rig->core, 0), 2 * UNIT_BYTES);
	core_pass(rig->core, rig->session, 3, value);
	assert_int_equal(core_quarantine(rig->core, 0), 0);
}

RIG_TEST(test_sweep_ends_behind_the_streams_of_the_next_forward)
{
	const struct zd_fence fence = {3, 7};
	uint64_t scope = begin(rig, 0);
	touch(rig, rig->a, scope);
	touch(rig, rig->b, begin(rig, scope));
	expect_fenced(rig, core_forward_begin(rig->core, rig->session, rig->team.group, 0, &fence, 1), 7);
}

RIG_TEST(test_session_dies_with_a_watch_under_way)
{
	const struct zd_fence fence = {3, 7};
	uint64_t scope = begin(rig, 0);
	touch(rig, rig->a, scope);
	core_expect(rig->core,
	            core_scope_end(rig->core, rig->session, ZD_REQ_SCOPE_ABANDON, scope, &fence, 1), 0);
	touch(rig, rig->b, begin(rig, 0));
	core_close(rig->core, rig->session);
	assert_int_equal(gathered_bytes(rig), 0);
	assert_int_equal(nscopes(rig), 0);
}

/* ---- Ends sent right behind gathers -------------------------------------------------------------------- */

/* A gather in the scope that waits for the first version. */
static uint64_t send_waiting_gather(struct rig *rig, uint64_t scope, uint64_t *unit)
{
	const struct core_unit late = {.name = "late", .numel = 128};
	*unit = core_register_ok(rig->core, rig->session, rig->team.group, &late);
	uint64_t request = core_gather_in(rig->core, rig->session, *unit, scope);
	core_expect_waits(rig->core, request, "publish version 1 of unit 'late'");
	return request;
}

static void register_on_rank_1(struct rig *rig, uint64_t unit)
{
	const struct core_unit late = {.name = "late", .numel = 128};
	core_register_ok(rig->core, rig->team.session[1], rig->team.group, &late);
	core_team_publish(&rig->team, unit);
}

RIG_TEST(test_forward_end_waits_for_its_gathers)
{
	uint64_t unit, scope = begin(rig, 0);
	uint64_t gather = send_waiting_gather(rig, scope, &unit);
	uint64_t forward = core_forward_end(rig->core, rig->session, scope, true);
	uint64_t claim = core_scope_end(rig->core, rig->session, ZD_REQ_CLAIM_END, scope, NULL, 0);
	core_expect_waits(rig->core, forward, "its own gather of unit 'late'");
	/* in the order sent, a claim that is none yet is an error */
	core_expect_error(rig->core, claim, ZEROD_E_STATE, "has not ended on rank 0");
	register_on_rank_1(rig, unit);
	core_team_check(&rig->team, core_expect(rig->core, gather, 0), 1);
	core_expect(rig->core, forward, 0);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	end(rig, ZD_REQ_CLAIM_END, scope);
}

RIG_TEST(test_forward_end_does_not_wait_for_a_gather_behind_it)
{
	uint64_t first, scope = begin(rig, 0);
	uint64_t gather = send_waiting_gather(rig, scope, &first);
	uint64_t forward = core_forward_end(rig->core, rig->session, scope, false);
	uint64_t behind = core_gather_in(rig->core, rig->session, first, scope);
	register_on_rank_1(rig, first);
	core_expect(rig->core, gather, 0);
	core_expect(rig->core, forward, 0);
	core_expect_error(rig->core, behind, ZEROD_E_NOT_FOUND, "ended before unit 'late' came");
	assert_int_equal(gathered_bytes(rig), 0);
}

RIG_TEST(test_abandoning_ends_gathers_that_wait)
{
	uint64_t unit, scope = begin(rig, 0);
	uint64_t gather = send_waiting_gather(rig, scope, &unit);
	uint64_t forward = core_forward_end(rig->core, rig->session, scope, true);
	end(rig, ZD_REQ_SCOPE_ABANDON, scope);
	core_expect_error(rig->core, gather, ZEROD_E_NOT_FOUND, "ended before unit 'late' came");
	core_expect_error(rig->core, forward, ZEROD_E_NOT_FOUND, "has ended");
	core_do(rig->core, rig->session, ZD_REQ_UNIT_UNREGISTER, unit);
}

RIG_TEST(test_fallback_gathers_obey_the_budget, .gather_budget_bytes = 2 * UNIT_BYTES)
{
	uint64_t claim = begin(rig, 0);
	touch(rig, rig->a, claim);
	touch(rig, rig->b, claim);
	forward_end(rig, claim, true);
	uint64_t scope = begin(rig, 0);
	uint64_t request = core_gather_in(rig->core, rig->session, rig->c, scope);
	core_expect_waits(rig->core, request, "gather budget");
	end(rig, ZD_REQ_CLAIM_END, claim);
	core_team_check(&rig->team, core_expect(rig->core, request, 0), 1);
	assert_int_equal(core_usage(rig->core).peak_gathered_bytes, 2 * UNIT_BYTES);
}

/* ---- Ends of ranks and groups -------------------------------------------------------------------------- */

RIG_TEST(test_survivor_of_a_failed_group_ends_its_claims)
{
	uint64_t scope = begin(rig, 0);
	touch(rig, rig->a, scope);
	core_close(rig->core, rig->team.session[1]);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	forward_end(rig, scope, true);
	core_expect_error(rig->core, core_forward_begin(rig->core, rig->session, rig->team.group, 0, NULL, 0),
	                  ZEROD_E_PEER_LOST, "rank 1");
	core_expect(rig->core, core_gather_in(rig->core, rig->session, rig->b, scope), ZEROD_E_PEER_LOST);
	end(rig, ZD_REQ_CLAIM_END, scope);
	assert_int_equal(gathered_bytes(rig), 0);
}

RIG_TEST(test_a_claim_keeps_its_unit_registered_and_unpublished)
{
	char text[32];
	uint64_t scope = begin(rig, 0);
	touch(rig, rig->a, scope);
	forward_end(rig, scope, true);
	(void)snprintf(text, sizeof(text), "'@claim %llu'", ZD_ID_NUMBER(scope));
	core_expect_error(rig->core, core_simple(rig->core, rig->session, ZD_REQ_UNIT_UNREGISTER, rig->a),
	                  ZEROD_E_BUSY, text);
	core_expect(rig->core, core_update(rig->core, rig->session, rig->a), 0);
	core_expect_error(rig->core, core_publish(rig->core, rig->session, rig->a), ZEROD_E_BUSY, text);
	end(rig, ZD_REQ_CLAIM_END, scope);
	core_expect(rig->core, core_publish(rig->core, rig->session, rig->a), 0);
}

/* ---- Bad input ----------------------------------------------------------------------------------------- */

RIG_TEST(test_ends_out_of_turn)
{
	uint64_t scope = begin(rig, 0);
	touch(rig, rig->a, scope);
	expect_end_fails(rig, ZD_REQ_CLAIM_END, scope, ZEROD_E_STATE, "has not ended on rank 0");
	expect_end_fails(rig, ZD_REQ_CONTEXT_END, scope, ZEROD_E_INVALID, "is a forward scope");
	forward_end(rig, scope, true);
	core_expect_error(rig->core, core_forward_end(rig->core, rig->session, scope, false), ZEROD_E_STATE,
	                  "it is a claim");
	core_expect_error(rig->core,
	                  core_forward_begin(rig->core, rig->session, rig->team.group, scope, NULL, 0),
	                  ZEROD_E_STATE, "has ended on rank 0");
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	end(rig, ZD_REQ_CLAIM_END, scope);
	expect_end_fails(rig, ZD_REQ_CLAIM_END, scope, ZEROD_E_NOT_FOUND, "or it has ended");
	expect_end_fails(rig, ZD_REQ_SCOPE_ABANDON, scope, ZEROD_E_NOT_FOUND, "or it has ended");
	expect_end_fails(rig, ZD_REQ_FORWARD_END, scope, ZEROD_E_NOT_FOUND, "or it has ended");
}

RIG_TEST(test_unknown_scopes)
{
	uint64_t theirs =
	        core_expect(rig->core,
	                    core_forward_begin(rig->core, rig->team.session[1], rig->team.group, 0, NULL, 0),
	                    0)
	                ->u.scope.scope;
	const uint64_t ids[] = {theirs, 123456789};
	for (size_t i = 0; i < 2; i++) {
		for (int kind = ZD_REQ_FORWARD_END; kind <= ZD_REQ_SCOPE_ABANDON; kind++)
			expect_end_fails(rig, (enum zd_request_kind)kind, ids[i], ZEROD_E_NOT_FOUND,
			                 "this session has no scope");
		core_expect(rig->core, core_gather_in(rig->core, rig->session, rig->a, ids[i]),
		            ZEROD_E_NOT_FOUND);
		core_expect(rig->core,
		            core_forward_begin(rig->core, rig->session, rig->team.group, ids[i], NULL, 0),
		            ZEROD_E_NOT_FOUND);
	}
	core_expect(rig->core, core_forward_begin(rig->core, rig->session, 123456789, 0, NULL, 0),
	            ZEROD_E_NOT_FOUND);
	assert_int_equal(nscopes(rig), 1);
	assert_int_equal(gathered_bytes(rig), 0);
}

RIG_TEST(test_bad_gathers_in_a_scope)
{
	uint64_t scope = begin(rig, 0);
	struct zd_args args = {.kind = ZD_REQ_GATHER};
	args.u.gather.unit = rig->a;
	args.u.gather.scope = scope;
	args.u.gather.tag = (char *)CORE_TAG;
	core_expect_error(rig->core, core_send(rig->core, rig->session, &args), ZEROD_E_INVALID, "no tag");
	args.u.gather.tag = (char *)"";
	args.u.gather.uses = 2;
	core_expect_error(rig->core, core_send(rig->core, rig->session, &args), ZEROD_E_INVALID, "uses");
	args.u.gather.uses = 1;
	args.u.gather.prefetch = true;
	core_expect_error(rig->core, core_send(rig->core, rig->session, &args), ZEROD_E_INVALID, "prefetch");
	assert_int_equal(gathered_bytes(rig), 0);
}

RIG_TEST(test_scopes_of_another_group)
{
	struct core_join alone = {.group = "alone", .world_size = 1};
	uint64_t group = core_join_ok(rig->core, rig->session, &alone);
	uint64_t scope = core_expect(rig->core,
	                             core_forward_begin(rig->core, rig->session, group, 0, NULL, 0), 0)
	                         ->u.scope.scope;
	core_expect_error(rig->core, core_gather_in(rig->core, rig->session, rig->a, scope), ZEROD_E_INVALID,
	                  "is of group 'alone', unit 'a' of 'world'");
	core_expect_error(rig->core,
	                  core_forward_begin(rig->core, rig->session, rig->team.group, scope, NULL, 0),
	                  ZEROD_E_INVALID, "is of group 'alone', not of 'world'");
	assert_int_equal(nscopes(rig), 1);
}

RIG_TEST(test_bad_fences_change_nothing)
{
	const struct zd_fence bad = {ZD_TIMELINES, 1};
	uint64_t scope = begin(rig, 0);
	touch(rig, rig->a, scope);
	core_expect(rig->core, core_scope_end(rig->core, rig->session, ZD_REQ_SCOPE_ABANDON, scope, &bad, 1),
	            ZEROD_E_INVALID);
	core_expect(rig->core, core_forward_begin(rig->core, rig->session, rig->team.group, 0, &bad, 1),
	            ZEROD_E_INVALID);
	assert_int_equal(nscopes(rig), 1);
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
}

RIG_TEST(test_too_many_scopes)
{
	uint64_t outer = begin(rig, 0);
	for (uint32_t i = 1; i < ZD_MAX_SCOPES; i++)
		(void)begin(rig, outer);
	core_expect_error(rig->core,
	                  core_forward_begin(rig->core, rig->session, rig->team.group, outer, NULL, 0),
	                  ZEROD_E_LIMIT, "1024 scopes");
	(void)begin(rig, 0); /* which sweeps them */
	assert_int_equal(nscopes(rig), 1);
}

RIG_TEST(test_tags_of_scopes_cannot_be_named)
{
	char tag[32];
	uint64_t scope = begin(rig, 0);
	touch(rig, rig->a, scope);
	(void)snprintf(tag, sizeof(tag), "@scope %llu", ZD_ID_NUMBER(scope));
	core_expect_error(rig->core, core_release_tag(rig->core, rig->session, rig->a, tag, NULL, 0),
	                  ZEROD_E_INVALID, "the daemon's");
	core_expect_error(rig->core, core_gather_tag(rig->core, rig->session, rig->a, tag, 1),
	                  ZEROD_E_INVALID, "the daemon's");
	assert_int_equal(gathered_bytes(rig), UNIT_BYTES);
	forward_end(rig, scope, false);
}
