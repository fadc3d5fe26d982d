/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_scope_strict.c - strict clients and scopes: what a scope holds can be touched until it ends, and no
 * longer.
 */
#include "tests/it/scope_scene.h"

#include <fcntl.h>
#include <unistd.h>

static const zerod_scope none;

static int setup(void **state)
{
	(void)state;
	scene_setup("scope", 1);
	return 0;
}

#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, scene_teardown)

/* The kernel says EFAULT where a load would raise SIGSEGV. */
static bool can_touch(const uint8_t *data)
{
	int ends[2];
	bool could;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	could = write(ends[1], data, 1) == 1;
	assert_true(could || errno == EFAULT);
	close(ends[0]);
	close(ends[1]);
	return could;
}

SETUP_TEST(test_scope_and_tag_hold_the_pages_together)
{
	void *data;
	zerod_scope scope = forward(&me, none);
	(void)touch(&me, a, scope);
	assert_status(me.client, zerod_gather(a, NULL, NULL, &data), ZEROD_OK);
	assert_status(me.client, zerod_forward_end(me.client, scope, 0, NULL, 0, NULL), ZEROD_OK);
	assert_true(can_touch(data));
	assert_status(me.client, zerod_release(a, NULL, 0, NULL, NULL), ZEROD_OK);
	assert_false(can_touch(data));
}

/* The stream reads after the scope has ended, and finds its pages. */
static void expect_pages_until(struct gated *gated)
{
	assert_true(can_touch(gated->data));
	gated_finish(&me, gated, 1);
	assert_false(can_touch(gated->data));
}

SETUP_TEST(test_streams_keep_the_pages_of_what_is_abandoned)
{
	struct gated gated;
	zerod_scope scope = forward(&me, none);
	gated_open(&me, &gated, touch(&me, a, forward(&me, scope)));
	assert_status(me.client, zerod_scope_abandon(me.client, scope, &gated.stream, 1), ZEROD_OK);
	expect_pages_until(&gated);
}

SETUP_TEST(test_streams_keep_the_pages_of_what_is_swept)
{
	struct gated gated;
	zerod_scope scope;
	gated_open(&me, &gated, touch(&me, a, forward(&me, none)));
	assert_status(me.client, zerod_forward_begin(me.group, none, &gated.stream, 1, &scope), ZEROD_OK);
	expect_pages_until(&gated);
}

SETUP_TEST(test_views_of_a_context_fault_when_it_has_ended)
{
	zerod_unit *units[] = {a, b};
	zerod_scope context;
	assert_status(me.client, zerod_context_begin(units, 2, NULL, &context), ZEROD_OK);
	const uint8_t *of_a = touch(&me, a, context), *of_b = touch(&me, b, context);
	assert_true(can_touch(of_a) && can_touch(of_b));
	assert_status(me.client, zerod_context_end(me.client, context, NULL, 0, NULL), ZEROD_OK);
	assert_false(can_touch(of_a) || can_touch(of_b));
}

int main(void)
{
	return test_run(scene_start, scene_stop);
}
