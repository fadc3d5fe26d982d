// SPDX-License-Identifier: Apache-2.0
/*
 * id.c - ids as people type and see them: an object's number, or USER/NUMBER.
 *
 * Rows have the ids of the protocol until they are printed, because these refer to one object each.
 */
#include "ctl.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"

int zd_ctl_parse_id(const char *text, uint64_t *id)
{
	char *end;
	errno = 0;
	unsigned long long number = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end || errno || number == 0)
		return ZEROD_E_INVALID;
	*id = number;
	return 0;
}

void zd_ctl_show_ids(json_t *value)
{
	static const char *const keys[] = {"id", "session", "parent", "job_id", "object"};
	const char *key;
	size_t i;
	json_t *item;
	json_object_foreach(value, key, item) zd_ctl_show_ids(item);
	json_array_foreach(value, i, item) zd_ctl_show_ids(item);
	for (i = 0; json_is_object(value) && i < ZD_ARRAY_LEN(keys); i++) {
		item = json_object_get(value, keys[i]);
		if (json_is_integer(item))
			(void)json_integer_set(item, zd_ctl_number(json_integer_value(item)));
	}
}

/* "alice/3" */
static char *id_text(const json_t *row)
{
	return zd_ctl_text("%s/%" JSON_INTEGER_FORMAT, zd_ctl_string(row, "user"),
	                   zd_ctl_number(zd_ctl_integer(row, "id")));
}

static int fail_ambiguous(const json_t *a, const json_t *b, const char *text)
{
	char *first = id_text(a), *second = id_text(b);
	int status = zd_ctl_fail(ZEROD_E_INVALID, "INVALID: several users have an id %s: give %s or %s", text,
	                         first, second);
	free(first);
	free(second);
	return status;
}

int zd_ctl_find_id(const json_t *rows, const char *text, uint64_t *id)
{
	const json_t *found = NULL;
	size_t i;
	json_t *row;
	json_array_foreach((json_t *)rows, i, row)
	{
		char *number = zd_ctl_text("%" JSON_INTEGER_FORMAT, zd_ctl_number(zd_ctl_integer(row, "id")));
		const char *rest = zd_ctl_behind_name(row, number, text);
		const bool is_named = rest && !*rest;
		free(number);
		if (is_named && found)
			return fail_ambiguous(found, row, text);
		found = is_named ? row : found;
	}
	*id = (uint64_t)zd_ctl_integer(found, "id");
	return 0;
}

int zd_ctl_choose_id(const json_t *rows, const json_t *named, const char *text, uint64_t *id)
{
	uint64_t found = 0;
	int status = zd_ctl_find_id(rows, text, &found);
	if (status)
		return status;
	if (found && named && found != (uint64_t)zd_ctl_integer(named, "id")) {
		char *other = id_text(named);
		status = zd_ctl_fail(ZEROD_E_INVALID,
		                     "INVALID: '%s' is the id of one object and the name of another, whose "
		                     "id is %s: use that id, or the first object's name",
		                     text, other);
		free(other);
		return status;
	}
	*id = found ? found : (uint64_t)zd_ctl_integer(named, "id");
	return 0;
}
