/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of `zeroctl top`: rates, the order of sessions, the filter, what each session has, and waits.
 */
#include <locale.h>
#include <stdio.h>
#include <zerod.h>

#include "client/zeroctl/top.h"
#include "tests/unit/zeroctl/top_scene.h"

static struct top_scene scene;

static int setup(void **state)
{
	(void)state;
	top_scene_init(&scene);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	top_scene_deinit(&scene);
	return 0;
}

#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, teardown)

static void expect_order(const char *ids)
{
	char text[128] = "";
	for (size_t i = 0; i < scene.model.nsessions; i++)
		(void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%d", i ? " " : "",
		               (int)scene.model.sessions[i].id);
	assert_string_equal(text, ids);
}

static struct zd_top_session *session(uint64_t id)
{
	struct zd_top_session *found = zd_top_find_session(&scene.model, id);
	assert_non_null(found);
	return found;
}

/* ---- Rates --------------------------------------------------------------------------------------------- */

SETUP_TEST(test_rates_are_differences_over_the_time_between)
{
	top_scene_device(&scene, 0, 1000);
	top_scene_session(&scene, 7, "a", 100);
	top_scene_take(&scene, 1.0);
	assert_int_equal(scene.model.devices[0].nrates, 0);
	assert_true(session(7)->rate < 0);
	top_scene_device(&scene, 0, 4000);
	top_scene_session(&scene, 7, "a", 110);
	top_scene_take(&scene, 3.0);
	assert_int_equal(scene.model.devices[0].nrates, 1);
	assert_true(scene.model.devices[0].rates[0] == 1500);
	assert_true(session(7)->rate == 5);
	top_scene_device(&scene, 0, 4000);
	top_scene_session(&scene, 7, "a", 110);
	top_scene_take(&scene, 3.5);
	assert_int_equal(scene.model.devices[0].nrates, 2);
	assert_true(scene.model.devices[0].rates[1] == 0);
	assert_true(session(7)->rate == 0);
}

SETUP_TEST(test_a_counter_that_has_fallen_gives_no_rate)
{
	top_scene_device(&scene, 0, 4000);
	top_scene_session(&scene, 7, "a", 100);
	top_scene_take(&scene, 1.0);
	top_scene_device(&scene, 0, 10);
	top_scene_session(&scene, 7, "a", 1);
	top_scene_take(&scene, 2.0);
	assert_int_equal(scene.model.devices[0].nrates, 0);
	assert_true(session(7)->rate < 0);
	top_scene_device(&scene, 0, 20);
	top_scene_session(&scene, 7, "a", 3);
	top_scene_take(&scene, 3.0);
	assert_true(scene.model.devices[0].rates[0] == 10);
	assert_true(session(7)->rate == 2);
}

SETUP_TEST(test_another_daemon_begins_anew)
{
	top_scene_device(&scene, 0, 1000);
	top_scene_session(&scene, 7, "a", 100);
	top_scene_take(&scene, 1.0);
	scene.daemon_pid++;
	top_scene_device(&scene, 0, 5000);
	top_scene_session(&scene, 7, "another", 500);
	top_scene_take(&scene, 2.0);
	assert_int_equal(scene.model.devices[0].nrates, 0);
	assert_true(session(7)->rate < 0);
	assert_string_equal(session(7)->name, "another");
}

SETUP_TEST(test_the_history_keeps_the_latest_rates)
{
	const unsigned count = ZD_TOP_HISTORY + 5;
	uint64_t total = 0;
	for (unsigned i = 0; i <= count; i++) {
		total += i;
		top_scene_device(&scene, 0, total);
		top_scene_take(&scene, 1.0 + i);
	}
	assert_int_equal(scene.model.devices[0].nrates, ZD_TOP_HISTORY);
	assert_true(scene.model.devices[0].rates[ZD_TOP_HISTORY - 1] == count);
	assert_true(scene.model.devices[0].rates[0] == count - ZD_TOP_HISTORY + 1);
}

SETUP_TEST(test_a_device_that_goes_takes_nothing_along)
{
	top_scene_device(&scene, 0, 1000);
	top_scene_device(&scene, 1, 1000);
	top_scene_take(&scene, 1.0);
	top_scene_device(&scene, 0, 1500);
	top_scene_take(&scene, 2.0);
	assert_int_equal(scene.model.ndevices, 1);
	assert_true(scene.model.devices[0].rates[0] == 500);
}

/* ---- Order --------------------------------------------------------------------------------------------- */

static void take_four(double at_s, unsigned a, unsigned b, unsigned c, unsigned d)
{
	top_scene_session(&scene, 1, "n", a);
	top_scene_session(&scene, 2, "n", b);
	top_scene_session(&scene, 3, "n", c);
	top_scene_session(&scene, 4, "n", d);
	top_scene_take(&scene, at_s);
}

SETUP_TEST(test_equal_rows_keep_their_order)
{
	take_four(1, 0, 0, 0, 0);
	expect_order("1 2 3 4");
	take_four(2, 0, 5, 0, 9);
	zd_top_sort(&scene.model, ZD_TOP_RATE, true);
	expect_order("4 2 1 3");
	zd_top_sort(&scene.model, ZD_TOP_NAME, false);
	expect_order("4 2 1 3");
	zd_top_sort(&scene.model, ZD_TOP_NAME, true);
	expect_order("4 2 1 3");
	take_four(3, 3, 8, 3, 12);
	zd_top_sort(&scene.model, ZD_TOP_RATE, true);
	expect_order("4 2 1 3");
	zd_top_sort(&scene.model, ZD_TOP_RATE, false);
	expect_order("4 2 1 3");
	take_four(4, 3, 8, 4, 12);
	zd_top_sort(&scene.model, ZD_TOP_RATE, false);
	expect_order("4 2 1 3");
}

SETUP_TEST(test_new_rows_follow_and_gone_ones_leave_no_gap)
{
	take_four(1, 0, 0, 0, 0);
	zd_top_sort(&scene.model, ZD_TOP_ID, true);
	expect_order("4 3 2 1");
	top_scene_session(&scene, 1, "n", 0);
	top_scene_session(&scene, 3, "n", 0);
	top_scene_session(&scene, 5, "n", 0);
	top_scene_session(&scene, 6, "n", 0);
	top_scene_take(&scene, 2);
	expect_order("3 1 5 6");
	zd_top_sort(&scene.model, ZD_TOP_NAME, true);
	expect_order("3 1 5 6");
}

SETUP_TEST(test_numbers_are_sorted_as_numbers_and_ranks_as_ranks)
{
	top_scene_session(&scene, 2, "n", 0);
	top_scene_session(&scene, 10, "n", 0);
	top_scene_member(&scene, "job", "world", 10, 2);
	top_scene_member(&scene, "job", "world", 9, 10);
	top_scene_take(&scene, 1);
	zd_top_sort(&scene.model, ZD_TOP_ID, true);
	expect_order("10 2");
	zd_top_sort(&scene.model, ZD_TOP_RANK, true);
	expect_order("2 10");
}

SETUP_TEST(test_columns_are_named_by_their_titles)
{
	enum zd_top_column column;
	bool descending;
	assert_int_equal(zd_top_parse_sort("-held", &column, &descending), 0);
	assert_int_equal(column, ZD_TOP_HELD);
	assert_true(descending);
	assert_int_equal(zd_top_parse_sort("Req/s", &column, &descending), 0);
	assert_int_equal(column, ZD_TOP_RATE);
	assert_false(descending);
	assert_int_equal(zd_top_parse_sort("size", &column, &descending), ZEROD_E_INVALID);
}

SETUP_TEST(test_a_filter_finds_name_user_and_job)
{
	assert_true(zd_top_matches("", "", "", ""));
	assert_true(zd_top_matches("TRAIN", "my trainer", "", ""));
	assert_true(zd_top_matches("ali", "", "Alice", ""));
	assert_true(zd_top_matches("7b", "", "", "lm-7B"));
	assert_false(zd_top_matches("7b", "a", "b", "c"));
}

/* ---- What sessions have -------------------------------------------------------------------------------- */

SETUP_TEST(test_a_session_holds_allocations_and_buffers)
{
	top_scene_session(&scene, 1, "a", 0);
	top_scene_session(&scene, 2, "b", 0);
	top_scene_member(&scene, "job", "world", 0, 1);
	top_scene_member(&scene, "job", "world", 1, 2);
	top_scene_allocation(&scene, 1, 0, 100, false);
	top_scene_allocation(&scene, 0, 0, 1000, true); /* durable, and no session's just now */
	top_scene_buffer(&scene, "job", "world", 0, 10, "AVAILABLE", 1);
	top_scene_buffer(&scene, "job", "world", 1, 20, "AVAILABLE", 0); /* its rank's */
	top_scene_buffer(&scene, "job", "world", 1, 40, "WAITING", 2);   /* has no storage yet */
	top_scene_device(&scene, 0, 0);
	top_scene_take(&scene, 1);
	assert_int_equal(session(1)->held_bytes, 110);
	assert_int_equal(session(2)->held_bytes, 20);
	assert_string_equal(session(2)->rank, "world/1");
	assert_int_equal(scene.model.devices[0].kept_bytes, TOP_SHARDS + 1000);
	assert_int_equal(scene.model.devices[0].other_bytes, TOP_ALLOCATIONS - 1000 + TOP_BUCKETS);
	assert_int_equal(scene.model.devices[0].gathered_bytes, TOP_GATHERED);
}

SETUP_TEST(test_a_wait_names_the_session_of_its_rank)
{
	top_scene_session(&scene, 1, "a", 0);
	top_scene_session(&scene, 2, "b", 0);
	top_scene_member(&scene, "job", "world", 0, 1);
	top_scene_member(&scene, "job", "world", 1, 2);
	top_scene_wait(&scene, "gather: rank 1 to publish version 2 of unit 'w' (has 1)");
	top_scene_take(&scene, 1);
	assert_string_equal(session(2)->waits, "gather: rank 1 to publish version 2 of unit 'w' (has 1)");
	assert_int_equal(scene.model.nwaits, 1);
	assert_string_equal(scene.model.waits[0].subject, "session 2 b");
	assert_string_equal(scene.model.waits[0].text,
	                    "gather: rank 1 to publish version 2 of unit 'w' (has 1) "
	                    "[rank 1: session 2, pid 1002]");
}

SETUP_TEST(test_a_group_waits_for_the_ranks_that_it_misses)
{
	scene.group_state = "FORMING";
	top_scene_session(&scene, 1, "a", 0);
	top_scene_member(&scene, "job", "world", 0, 1);
	top_scene_member(&scene, "job", "world", 1, 0);
	top_scene_member(&scene, "job", "world", 2, 0);
	top_scene_take(&scene, 1);
	assert_int_equal(scene.model.nwaits, 1);
	assert_string_equal(scene.model.waits[0].subject, "group job/world");
	assert_string_equal(scene.model.waits[0].text, "FORMING: to be joined by rank 1, 2");
}

SETUP_TEST(test_names_are_escaped)
{
	top_scene_session(&scene, 1, "a\u202eb\u200b\x1b[2J", 0);
	top_scene_member(&scene, "j\u202e", "w\u2066", 0, 1);
	top_scene_wait(&scene, "rank 0 of '\u202e'");
	top_scene_buffer(&scene, "j\u202e", "w\u2066", 0, 10, "AVAILABLE", 0);
	top_scene_take(&scene, 1);
	assert_string_equal(session(1)->name, "a\\u202eb\\u200b\\u001b[2J");
	assert_string_equal(session(1)->rank, "w\\u2066/0");
	assert_string_equal(session(1)->waits, "rank 0 of '\\u202e'");
	assert_int_equal(scene.model.nwaits, 2);
	for (size_t i = 0; i < scene.model.nwaits; i++) {
		assert_null(strstr(scene.model.waits[i].subject, "\u202e"));
		assert_null(strstr(scene.model.waits[i].text, "\u202e"));
		assert_null(strstr(scene.model.waits[i].subject, "\u2066"));
	}
	zd_top_set_trouble(&scene.model, "gone\u202e\nsecond line");
	assert_string_equal(scene.model.trouble, "gone\\u202e");
}

int main(void)
{
	(void)setlocale(LC_CTYPE, "C.UTF-8");
	return test_run(NULL, NULL);
}
