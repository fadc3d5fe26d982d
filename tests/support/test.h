/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test.h - tests that register themselves, with the headers that cmocka's header and all tests need.
 *
 * test_main.c is the main() of a test program that defines none. It runs the tests in the order of the file.
 */
#ifndef ZD_TESTS_TEST_H
#define ZD_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct test {
	struct CMUnitTest unit;
	unsigned number; /* in the file */
	struct test *next;
};
void test_add(struct test *test);
/* Runs the tests between a setup and a teardown of the program. Returns how many failed. */
int test_run(int (*setup)(void **state), int (*teardown)(void **state));

/* Begins the definition of a test: TEST(test_name) { ... } */
#define TEST(name) TEST_DEFINE(name, void, , name(), NULL, NULL)
/* The test has the parameter `fixture`, such as "struct scene *scene": what setup() stored in *state.
 * teardown() also runs after a failed test. */
#define FIXTURE_TEST(name, fixture, setup, teardown)                                                         \
	TEST_DEFINE(name, fixture, , name(*state), setup, teardown)

#define TEST_DEFINE(name, parameter, before, call, setup, teardown)                                          \
	static void name(parameter);                                                                         \
	static void name##_run(void **state)                                                                 \
	{                                                                                                    \
		(void)state;                                                                                 \
		before;                                                                                      \
		call;                                                                                        \
	}                                                                                                    \
	__attribute__((constructor)) static void name##_add(void)                                            \
	{                                                                                                    \
		static struct test test = {{#name, name##_run, setup, teardown, NULL}, __COUNTER__, NULL};   \
		test_add(&test);                                                                             \
	}                                                                                                    \
	static void name(parameter)

#endif
