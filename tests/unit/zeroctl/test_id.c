/* SPDX-License-Identifier: Apache-2.0 */
/* test_id.c - what an id on the command line names, and what people see of ids. */
#include <stdio.h>

#include "client/zeroctl/ctl.h"

#include "proto/limits.h"
#include "tests/support/test.h"

#define ID(owner, number) ((json_int_t)(owner) << (ZD_ID_NUMBER_BITS + ZD_ID_KIND_BITS) | (number))

enum { ROOT = 0, NOBODY = 65534 }; /* uids that have the same names everywhere */

const struct zd_ctl_listing zd_ctl_jobs_listing;
static char failure[256];

int zd_ctl_fail(int status, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	(void)vsnprintf(failure, sizeof(failure), format, args);
	va_end(args);
	return status;
}

int zd_ctl_list_fetch(struct zd_ctl *ctl, const struct zd_ctl_listing *listing, json_t **rows)
{
	(void)ctl;
	(void)listing;
	(void)rows;
	return ZEROD_E_STATE;
}

/* 1 and 2 of root, 2 of nobody. */
static json_t *some_rows(void)
{
	json_t *rows = json_pack("[{s:I,s:i},{s:I,s:i},{s:I,s:i}]", "id", ID(7, 1), "uid", ROOT, "id",
	                         ID(7, 2), "uid", ROOT, "id", ID(9, 2), "uid", NOBODY);
	zd_ctl_add_users(rows);
	return rows;
}

static json_int_t find(const char *text)
{
	json_t *rows = some_rows();
	uint64_t id = 0;
	int status = zd_ctl_find_id(rows, text, &id);
	json_decref(rows);
	return status ? status : (json_int_t)id;
}

TEST(test_an_id_is_a_number_or_a_users)
{
	assert_int_equal(find("1"), ID(7, 1));
	assert_int_equal(find("root/2"), ID(7, 2));
	assert_int_equal(find("0/2"), ID(7, 2));
	assert_int_equal(find("65534/2"), ID(9, 2));
	assert_int_equal(find("2"), ZEROD_E_INVALID);
	assert_non_null(strstr(failure, "root/2 or nobody/2"));
	static const char *const none[] = {"3", "65534/1", "root/3", "nosuchuser/1", "root/", "/1", "x", "0"};
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		assert_int_equal(find(none[i]), 0);
}

TEST(test_a_name_may_be_the_id_of_another)
{
	json_t *rows = some_rows();
	uint64_t id;
	assert_int_equal(zd_ctl_choose_id(rows, json_array_get(rows, 0), "1", &id), 0);
	assert_int_equal(id, ID(7, 1));
	assert_int_equal(zd_ctl_choose_id(rows, json_array_get(rows, 0), "x", &id), 0);
	assert_int_equal(id, ID(7, 1));
	assert_int_equal(zd_ctl_choose_id(rows, NULL, "x", &id), 0);
	assert_int_equal(id, 0);
	assert_int_equal(zd_ctl_choose_id(rows, json_array_get(rows, 2), "1", &id), ZEROD_E_INVALID);
	assert_non_null(strstr(failure, "nobody/2"));
	json_decref(rows);
}

TEST(test_people_see_numbers)
{
	json_t *shown = json_pack("{s:I,s:[{s:I,s:I}],s:I}", "id", ID(7, 3), "rows", "session", ID(9, 4),
	                          "bytes", ID(9, 4), "parent", (json_int_t)0);
	json_t *wanted = json_pack("{s:i,s:[{s:i,s:I}],s:i}", "id", 3, "rows", "session", 4, "bytes",
	                           ID(9, 4), "parent", 0);
	zd_ctl_show_ids(shown);
	assert_true(json_equal(shown, wanted));
	json_decref(shown);
	json_decref(wanted);
}
