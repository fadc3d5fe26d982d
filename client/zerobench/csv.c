// SPDX-License-Identifier: Apache-2.0
/*
 * csv.c - results as comma-separated values.
 *
 * A member of an object within a row becomes a column "name.member". The columns are those of all rows, in
 * the order in which they first occur. If a row has no value for a column, its field is empty.
 */
#include "bench.h"

#include <stdio.h>

/* Adds the members of `object` to `flat`, with the prefix before each name. */
static void flatten(const char *prefix, const json_t *object, json_t *flat)
{
	const char *key;
	json_t *value;
	/* NOLINTNEXTLINE(bugprone-casting-through-void): the macro wants an object that it could change */
	json_object_foreach((json_t *)object, key, value)
	{
		char name[128];
		snprintf(name, sizeof(name), "%s%s%s", prefix, *prefix ? "." : "", key);
		if (json_is_object(value))
			flatten(name, value, flat);
		else
			json_object_set(flat, name, value);
	}
}

static void print_text(const char *text, FILE *file)
{
	fputc('"', file);
	for (; *text; text++)
		fprintf(file, *text == '"' ? "\"\"" : "%c", *text);
	fputc('"', file);
}

static void print_value(const json_t *value, FILE *file)
{
	if (json_is_string(value))
		print_text(json_string_value(value), file);
	else if (json_is_integer(value))
		fprintf(file, "%lld", (long long)json_integer_value(value));
	else if (json_is_real(value))
		fprintf(file, "%g", json_real_value(value));
	else if (json_is_boolean(value))
		fprintf(file, "%d", (int)json_is_true(value));
}

void zd_csv_print(const json_t *objects, FILE *file)
{
	json_t *rows = json_array(), *columns = json_object(), *object, *value;
	const char *key, *separator = "";
	size_t index;
	json_array_foreach(objects, index, object)
	{
		json_t *flat = json_object();
		flatten("", object, flat);
		json_object_update(columns, flat);
		json_array_append_new(rows, flat);
	}
	json_object_foreach(columns, key, value)
	{
		fprintf(file, "%s", separator);
		print_text(key, file);
		separator = ",";
	}
	fputc('\n', file);
	json_array_foreach(rows, index, object)
	{
		separator = "";
		json_object_foreach(columns, key, value)
		{
			fprintf(file, "%s", separator);
			print_value(json_object_get(object, key), file);
			separator = ",";
		}
		fputc('\n', file);
	}
	json_decref(columns);
	json_decref(rows);
}
