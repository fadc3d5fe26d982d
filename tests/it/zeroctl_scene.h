/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zeroctl_scene.h - zeroctl run to its end against a daemon, and what it printed with --json.
 */
#ifndef ZD_TESTS_ZEROCTL_SCENE_H
#define ZD_TESTS_ZEROCTL_SCENE_H

#include <jansson.h>

#include "tests/it/program.h"
#include "tests/support/test.h"

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

/* The parsed output of a line with --json. */
static inline json_t *zeroctl_json(const char *socket_path, const char *line)
{
	struct program program = zeroctl_run(socket_path, line);
	json_error_t error;
	json_t *object = json_loads(program.out_text, 0, &error);
	assert_string_equal(program.err_text, "");
	assert_int_equal(program.status, 0);
	assert_non_null(object);
	program_free(&program);
	return object;
}

/* The same of a listing, checked for what all have in common. */
static inline json_t *zeroctl_listing(const char *socket_path, const char *line, const char *verb)
{
	char with_json[256];
	snprintf(with_json, sizeof(with_json), "%s --json", line);
	json_t *object = zeroctl_json(socket_path, with_json);
	assert_int_equal(json_integer_value(json_object_get(object, "schema")), 1);
	assert_string_equal(json_string_value(json_object_get(object, "verb")), verb);
	assert_true(json_is_array(json_object_get(object, "rows")));
	return object;
}

/* Expects that the line fails with this status, says the text, and prints nothing. */
static inline void zeroctl_fails(const char *socket_path, const char *line, int status, const char *text)
{
	struct program program = zeroctl_run(socket_path, line);
	assert_int_equal(program.status, status);
	assert_string_equal(program.out_text, "");
	if (!strstr(program.err_text, text))
		fail_msg("zeroctl %s says \"%s\", not \"%s\"", line, program.err_text, text);
	program_free(&program);
}

/* Waits until the table has the text, or no longer has it. */
static inline void zeroctl_wait_table(const char *socket_path, const char *table, const char *text,
                                      bool shown)
{
	const char *const args[] = {"zeroctl", "--socket", socket_path, table, "--json", NULL};
	long give_up_ms = program_now_ms() + PROGRAM_DEADLINE_MS;
	bool found = !shown;
	while (found != shown) {
		struct program zeroctl;
		program_start(&zeroctl, args, NULL);
		program_wait(&zeroctl);
		assert_int_equal(zeroctl.status, 0);
		found = strstr(zeroctl.out_text, text) != NULL;
		if (found != shown && program_now_ms() > give_up_ms)
			fail_msg("'%s' is %sin %s", text, shown ? "not " : "still ", zeroctl.out_text);
		program_free(&zeroctl);
	}
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
