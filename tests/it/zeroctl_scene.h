/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zeroctl_scene.h - zeroctl run to its end against a daemon, and what it printed with --json.
 */
#ifndef ZD_TESTS_ZEROCTL_SCENE_H
#define ZD_TESTS_ZEROCTL_SCENE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/it/program.h"

#define ZEROCTL_MAX_ARGS 12

/* zeroctl --socket PATH with the words of `line`. */
static inline struct program zeroctl_run(const char *socket_path, const char *line)
{
	const char *args[ZEROCTL_MAX_ARGS + 4] = {"zeroctl", "--socket", socket_path};
	char words[256];
	struct program program;
	size_t count = 3;
	snprintf(words, sizeof(words), "%s", line);
	for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
		assert_true(count < ZEROCTL_MAX_ARGS + 3);
		args[count++] = word;
	}
	program_start(&program, args, NULL);
	program_wait(&program);
	return program;
}

/* The parsed output of a verb with --json, checked for what all have in common. */
static inline json_t *zeroctl_listing(const char *socket_path, const char *line, const char *verb)
{
	char with_json[256];
	snprintf(with_json, sizeof(with_json), "%s --json", line);
	struct program program = zeroctl_run(socket_path, with_json);
	assert_string_equal(program.err_text, "");
	assert_int_equal(program.status, 0);
	json_error_t error;
	json_t *object = json_loads(program.out_text, 0, &error);
	assert_non_null(object);
	program_free(&program);
	assert_int_equal(json_integer_value(json_object_get(object, "schema")), 1);
	assert_string_equal(json_string_value(json_object_get(object, "verb")), verb);
	assert_true(json_is_array(json_object_get(object, "rows")));
	return object;
}

static inline json_t *row_where(const json_t *object, const char *key, const char *value)
{
	size_t index;
	json_t *row;
	json_array_foreach(json_object_get(object, "rows"), index, row)
	{
		if (strcmp(json_string_value(json_object_get(row, key)), value) == 0)
			return row;
	}
	return NULL;
}

static inline json_int_t integer(const json_t *row, const char *key)
{
	const json_t *value = json_object_get(row, key);
	assert_true(json_is_integer(value));
	return json_integer_value(value);
}

#endif
