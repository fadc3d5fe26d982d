/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_promise.c - promised fences: they pass in the order of their kind, a broken one frees all streams that
 * wait for its kind, and none changes a counter after a reset or the session's end.
 */
#include "core/engine/promise.h"
#include "tests/support/core_driver.h"

struct rig {
	struct core_driver *core;
	struct zd_engine *engine;
	uint64_t id;
	struct zd_session *session;
};

static void start(struct rig *rig)
{
	rig->core = core_new(NULL);
	rig->engine = core_engine(rig->core);
	rig->id = core_open(rig->core, CORE_ALICE);
	rig->session = zd_session_find(rig->engine, rig->id);
}

static struct zd_promise *make(const struct rig *rig, enum zd_promise_kind kind)
{
	return zd_promise_new(rig->engine, rig->session, &rig->engine->devices[1], kind);
}

static uint64_t counter(const struct rig *rig, struct zd_fence fence)
{
	return core_timeline(rig->core, rig->id, fence.timeline);
}

TEST(test_lanes_pass_in_order)
{
	struct rig rig;
	start(&rig);
	struct zd_promise *first = make(&rig, ZD_PROMISE_GATHERS), *second = make(&rig, ZD_PROMISE_GATHERS);
	struct zd_promise *other = make(&rig, ZD_PROMISE_ENTRIES);
	struct zd_fence before = first->fence, after = second->fence, elsewhere = other->fence;
	assert_int_equal(before.timeline, after.timeline);
	assert_int_not_equal(before.timeline, elsewhere.timeline);
	zd_promise_keep(rig.engine, second);
	assert_int_equal(counter(&rig, after), 0);
	zd_promise_keep(rig.engine, other);
	assert_int_equal(counter(&rig, elsewhere), elsewhere.value);
	zd_promise_keep(rig.engine, first);
	assert_int_equal(counter(&rig, after), after.value);
	core_end(rig.core);
}

TEST(test_a_broken_one_frees_its_kind)
{
	struct rig rig;
	start(&rig);
	struct zd_promise *kept = make(&rig, ZD_PROMISE_STEPS), *broken = make(&rig, ZD_PROMISE_STEPS);
	struct zd_promise *other = make(&rig, ZD_PROMISE_STEPS);
	struct zd_fence last = other->fence;
	zd_promise_break(rig.engine, broken);
	assert_int_equal(counter(&rig, last), ZD_FENCE_ABORTED);
	assert_int_equal(rig.session->state, ZD_SESSION_POISONED);
	core_do(rig.core, rig.id, ZD_REQ_SESSION_RESET, 0);
	assert_int_equal(counter(&rig, last), last.value);
	struct zd_promise *next = make(&rig, ZD_PROMISE_STEPS);
	struct zd_fence fence = next->fence;
	zd_promise_keep(rig.engine, next);
	zd_promise_keep(rig.engine, kept); /* void: the counter does not go back */
	zd_promise_break(rig.engine, other);
	assert_int_equal(counter(&rig, fence), fence.value);
	core_end(rig.core);
}

TEST(test_a_session_ends_before_its_promises)
{
	struct rig rig;
	start(&rig);
	struct zd_promise *first = make(&rig, ZD_PROMISE_GATHERS), *second = make(&rig, ZD_PROMISE_GATHERS);
	zd_promise_keep(rig.engine, second);
	core_close(rig.core, rig.id);
	zd_promise_keep(rig.engine, first);
	core_end(rig.core);
}
