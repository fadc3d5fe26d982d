/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test.c - the tests that registered themselves.
 */
#include "tests/support/test.h"

#include <errno.h>

static struct test *tests;

/* The order in which a file's constructors run is the compiler's choice. */
void test_add(struct test *test)
{
	struct test **at = &tests;
	while (*at && (*at)->number < test->number)
		at = &(*at)->next;
	test->next = *at;
	*at = test;
}

int test_run(int (*setup)(void **state), int (*teardown)(void **state))
{
	static struct CMUnitTest units[512];
	size_t count = 0;
	for (struct test *test = tests; test && count < sizeof(units) / sizeof(units[0]); test = test->next)
		units[count++] = test->unit;
	return _cmocka_run_group_tests(program_invocation_short_name, units, count, setup, teardown);
}
