/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_scope_client.c - scopes, claims and contexts over the library, against a daemon.
 */
#include "tests/it/scope_scene.h"
#include "tests/support/options.h"

#include <pthread.h>
#include <stdio.h>

static const zerod_scope none;

static zerod_unit *c; /* beside a and b: filled with 3 */

static int setup(void **state)
{
	(void)state;
	scene_setup("scope", 1); /* else a rank that is alone gathers no copy */
	c = new_unit(&me, "c", 3);
	return 0;
}

#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, scene_teardown)

static void expect_stale(zerod_ticket ticket)
{
	assert_status(me.client, zerod_wait(me.client, ticket, NULL, NULL), ZEROD_E_STALE);
}

static void expect_text(const char *text)
{
	if (!strstr(zerod_last_error(me.client), text))
		fail_msg("no '%s' in '%s'", text, zerod_last_error(me.client));
}

/* ---- Forwards and backwards ---------------------------------------------------------------------------- */

SETUP_TEST(test_swept_and_abandoned_scopes_have_no_tickets)
{
	zerod_scope left = forward(&me, none), claim = forward(&me, left), inner = forward(&me, left);
	zerod_ticket of_left = touch_begin(&me, a, left), of_claim = touch_begin(&me, b, claim),
	             of_inner = touch_begin(&me, c, inner);
	assert_status(me.client, zerod_forward_end(me.client, claim, 1, NULL, 0, NULL), ZEROD_OK);
	assert_status(me.client, zerod_scope_abandon(me.client, left, NULL, 0), ZEROD_OK);
	expect_stale(of_left);
	expect_stale(of_inner);
	assert_status(me.client, zerod_wait(me.client, of_claim, NULL, NULL), ZEROD_OK);
	assert_int_equal(gathered_bytes(&me), UNIT_BYTES);
	assert_status(me.client, zerod_claim_end(me.client, claim, NULL, 0, NULL), ZEROD_OK);
	expect_stale(of_claim); /* tickets live as long as the claim */
	left = forward(&me, none);
	of_left = touch_begin(&me, a, left);
	(void)forward(&me, none);
	expect_stale(of_left);
	assert_int_equal(gathered_bytes(&me), 0);
}

SETUP_TEST(test_scope_is_touched_a_thousand_times)
{
	zerod_scope scope = forward(&me, none);
	zerod_ticket first = touch_begin(&me, a, scope), slow = touch_begin(&me, a, scope);
	assert_status(me.client, zerod_wait(me.client, first, NULL, NULL), ZEROD_OK);
	for (int i = 0; i < 1000; i++)
		(void)touch(&me, a, scope);
	expect_stale(first); /* the library keeps the newest tickets */
	/* and those of threads that have not come to wait for theirs */
	assert_status(me.client, zerod_wait(me.client, slow, NULL, NULL), ZEROD_OK);
	assert_status(me.client, zerod_forward_end(me.client, scope, 0, NULL, 0, NULL), ZEROD_OK);
	assert_int_equal(gathered_bytes(&me), 0);
}

struct toucher {
	zerod_scope scope;
	int status;
};

static void *touch_often(void *arg)
{
	struct toucher *toucher = arg;
	struct zerod_gather_options options = ZEROD_INIT(options);
	options.scope = toucher->scope;
	for (int i = 0; i < 100 && !toucher->status; i++)
		toucher->status = zerod_gather(i % 2 ? a : b, &options, NULL, NULL);
	return NULL;
}

SETUP_TEST(test_threads_share_a_scope)
{
	struct toucher touchers[3] = {0};
	pthread_t threads[3];
	zerod_scope scope = forward(&me, none);
	for (int i = 0; i < 3; i++) {
		touchers[i].scope = scope;
		assert_int_equal(pthread_create(&threads[i], NULL, touch_often, &touchers[i]), 0);
	}
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(touchers[i].status, 0);
	}
	assert_int_equal(gathered_bytes(&me), 2 * UNIT_BYTES);
	assert_status(me.client, zerod_forward_end(me.client, scope, 0, NULL, 0, NULL), ZEROD_OK);
	assert_int_equal(gathered_bytes(&me), 0);
}

/* ---- Bad input ----------------------------------------------------------------------------------------- */

SETUP_TEST(test_arguments)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_unit *units[] = {a, NULL};
	zerod_ticket ticket;
	zerod_scope scope = forward(&me, none);
	options.scope = scope;
	options.tag = "plan";
	assert_status(me.client, zerod_gather_begin(a, &options, &ticket), ZEROD_E_INVALID);
	options.tag = NULL;
	options.uses = 2;
	assert_status(me.client, zerod_gather_begin(a, &options, &ticket), ZEROD_E_INVALID);
	options.uses = 1;
	options.flags = ZEROD_GATHER_PREFETCH;
	assert_status(me.client, zerod_gather_begin(a, &options, &ticket), ZEROD_E_INVALID);
	options = (struct zerod_gather_options){.struct_size = sizeof(options), .tag = "@scope 1"};
	assert_status(me.client, zerod_gather_begin(a, &options, &ticket), ZEROD_E_INVALID);
	expect_text("tags with '@'");
	assert_status(me.client, zerod_release(a, NULL, 0, TAGGED("@scope 1"), NULL), ZEROD_E_INVALID);
	assert_status(me.client, zerod_forward_begin(me.group, none, NULL, 0, NULL), ZEROD_E_INVALID);
	assert_int_equal(zerod_forward_begin(NULL, none, NULL, 0, &scope), ZEROD_E_INVALID);
	assert_int_equal(zerod_claim_end(NULL, scope, NULL, 0, NULL), ZEROD_E_INVALID);
	assert_status(me.client, zerod_context_begin(units, 2, NULL, &scope), ZEROD_E_INVALID);
	assert_status(me.client, zerod_context_begin(units, 1, NULL, NULL), ZEROD_E_INVALID);
	assert_int_equal(gathered_bytes(&me), 0);
}

SETUP_TEST(test_gather_in_an_unknown_scope_leaves_no_lease)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	options.scope.id = 123456789;
	assert_status(me.client, zerod_gather(a, &options, NULL, NULL), ZEROD_E_NOT_FOUND);
	assert_int_equal(gathered_bytes(&me), 0);
	assert_status(me.client, zerod_unit_unregister(a, NULL), ZEROD_OK);
}

SETUP_TEST(test_failed_gather_leaves_the_others_in_its_scope)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	zerod_scope scope = forward(&me, none);
	zerod_ticket ticket = touch_begin(&me, a, scope);
	options.scope = scope;
	options.version = 5; /* nobody publishes it */
	options.deadline_ms = 1;
	assert_status(me.client, zerod_gather(a, &options, NULL, NULL), ZEROD_E_DEADLINE);
	assert_status(me.client, zerod_wait(me.client, ticket, NULL, NULL), ZEROD_OK);
	assert_status(me.client, zerod_forward_end(me.client, scope, 0, NULL, 0, NULL), ZEROD_OK);
	expect_stale(ticket);
}

SETUP_TEST(test_scopes_are_left_when_the_rank_leaves)
{
	zerod_unit *units[] = {c};
	zerod_scope scope = forward(&me, none), context;
	(void)touch(&me, a, scope);
	(void)touch(&me, b, forward(&me, scope));
	assert_status(me.client, zerod_context_begin(units, 1, NULL, &context), ZEROD_OK);
	assert_int_equal(gathered_bytes(&me), 3 * UNIT_BYTES); /* the teardown expects 0 */
}

int main(void)
{
	return test_run(scene_start, scene_stop);
}
