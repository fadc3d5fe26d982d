// SPDX-License-Identifier: Apache-2.0
/*
 * test_zeroctl_tables.c - zeroctl's tables: on terminals of several widths, into pipes, and where there is
 * nothing to show.
 */
#include "tests/it/zeroctl_scene.h"

#include <locale.h>
#include <pty.h>
#include <wchar.h>

#include <zerod.h>

#include "tests/support/daemon_fixture.h"

#define LONG_NAME "a.model.of.many.layers.0.attention.query_key_value.weight"
#define WIDE_NAME "gr\u00f6\u00dfe.\u5c42.\u5c42.\u5c42.\u5c42.\u5c42.\u5c42.\u5c42.\u5c42"

static struct zd_daemon node;
static zerod_client *client;
static zerod_group *group;

static zerod_unit *gathered_unit(const char *name)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit;

	options.name = name;
	options.dtype = ZEROD_FLOAT32;
	options.numel = 1000;
	assert_int_equal(zerod_unit_register(group, &options, &unit), 0);
	assert_int_equal(zerod_update_begin(&unit, 1, NULL, NULL), 0);
	assert_int_equal(zerod_publish(&unit, 1, NULL, 0, NULL, NULL), 0);
	assert_int_equal(zerod_gather(unit, NULL, NULL, NULL), 0);
	return unit;
}

static int start(void **state)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options join = ZEROD_INIT(join);

	(void)state;
	if (!setlocale(LC_CTYPE, "C.UTF-8") || zd_daemon_start(NULL, &node))
		return -1;
	options.socket_path = node.socket_path;
	options.strict = 1; /* else a rank that is alone gathers no copy */
	join.job = "tables";
	join.world_size = 1;
	if (zerod_connect(&options, &client) || zerod_group_join(client, &join, &group))
		return -1;
	gathered_unit(LONG_NAME);
	gathered_unit(WIDE_NAME);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	zerod_close(client);
	return zd_daemon_stop(&node);
}

static struct program zeroctl(const char *line)
{
	return zeroctl_run(node.socket_path, line);
}

/* ---- On a terminal ------------------------------------------------------------------------------------- */

/* Returns what `zeroctl LINE` writes to a terminal of so many columns, stderr included. */
static char *on_terminal(unsigned short columns, const char *line, const char *no_color)
{
	const struct winsize size = {.ws_row = 50, .ws_col = columns};
	struct program program = {.out = -1, .err = -1, .out_text = calloc(1, 1), .err_text = calloc(1, 1)};
	char path[4096], command[4400];
	const char *build = getenv("BUILD");

	snprintf(path, sizeof(path), "%s/bin/zeroctl", build ? build : "build");
	snprintf(command, sizeof(command), "%s %s", path, line);
	program.pid = forkpty(&program.out, NULL, NULL, &size);
	assert_true(program.pid >= 0);
	if (program.pid == 0) {
		setenv("ZEROD_SOCKET", node.socket_path, 1);
		setenv("TERM", "xterm", 1);
		unsetenv("COLUMNS");
		if (no_color)
			setenv("NO_COLOR", no_color, 1);
		else
			unsetenv("NO_COLOR");
		execl("/bin/sh", "sh", "-c", command, NULL);
		_exit(127);
	}
	program_wait(&program);
	assert_int_equal(program.status, 0);
	free(program.err_text);
	return program.out_text;
}

/* Removes the terminal's codes and carriage returns. */
static char *plain(char *text)
{
	char *to = text;

	for (const char *from = text; *from;) {
		if (*from == '\033')
			from += strcspn(from, "m") + 1;
		else if (*from == '\r')
			from++;
		else
			*to++ = *from++;
	}
	*to = '\0';
	return text;
}

static int columns_of(const char *line)
{
	wchar_t wide[1024];
	size_t count = mbstowcs(wide, line, 1024);

	assert_true(count < 1024);
	return wcswidth(wide, count);
}

/* Returns the columns of the widest line behind the first `skip` ones. */
static int widest(char *text)
{
	int most = 0;

	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		int columns = strncmp(line, "zeroctl: ", 9) == 0 ? 0 : columns_of(line);

		assert_true(columns >= 0);
		most = columns > most ? columns : most;
	}
	return most;
}

TEST(no_table_is_wider_than_the_terminal)
{
	static const char *const verbs[] = {"devices", "jobs",    "sessions",        "groups",
	                                    "units",   "buffers", "watch --count 1", "trim --keep 1G"};
	static const unsigned short widths[] = {1, 20, 60, 80, 120, 200};

	for (size_t v = 0; v < sizeof(verbs) / sizeof(verbs[0]); v++) {
		for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
			char *text = plain(on_terminal(widths[w], verbs[v], NULL));

			if (w < 2 && strncmp(verbs[v], "watch", 5) == 0) {
				free(text); /* its record of the status is as wide as it is */
				continue;
			}
			if (widest(text) > widths[w])
				fail_msg("zeroctl %s at %u columns", verbs[v], widths[w]);
			free(text);
		}
	}
}

TEST(names_are_cut_and_numbers_are_not)
{
	char *narrow = plain(on_terminal(60, "buffers", NULL));
	char *wide = plain(on_terminal(60, "buffers --wide", NULL));
	char *broad = plain(on_terminal(200, "buffers", NULL));

	assert_non_null(strstr(narrow, "\u2026"));
	assert_null(strstr(narrow, LONG_NAME));
	assert_non_null(strstr(narrow, "AVAILABLE"));
	assert_non_null(strstr(narrow, "of 13 columns do not fit; --wide shows all"));
	assert_non_null(strstr(wide, LONG_NAME));
	assert_null(strstr(wide, "do not fit"));
	assert_non_null(strstr(broad, LONG_NAME));
	assert_non_null(strstr(broad, "4 KiB"));
	assert_null(strstr(broad, "\u2026"));
	free(narrow);
	free(wide);
	free(broad);
}

TEST(colours_are_for_terminals)
{
	char *coloured = on_terminal(200, "devices", NULL);
	char *asked_not_to = on_terminal(200, "devices", "1");
	struct program piped = zeroctl("devices");

	assert_non_null(strchr(coloured, '\033'));
	assert_null(strchr(asked_not_to, '\033'));
	assert_null(strchr(piped.out_text, '\033'));
	free(coloured);
	free(asked_not_to);
	program_free(&piped);
}

/* ---- Into pipes ---------------------------------------------------------------------------------------- */

TEST(pipes_get_whole_lines)
{
	struct program program = zeroctl("buffers");

	assert_string_equal(program.err_text, "");
	assert_non_null(strstr(program.out_text, LONG_NAME));
	assert_non_null(strstr(program.out_text, WIDE_NAME));
	assert_non_null(strstr(program.out_text, "HOLDERS"));
	program_free(&program);
}

static void expect_output(const char *line, const char *text)
{
	struct program program = zeroctl(line);

	assert_string_equal(program.err_text, "");
	assert_string_equal(program.out_text, text);
	assert_int_equal(program.status, 0);
	program_free(&program);
}

TEST(columns_are_chosen_by_title_or_key)
{
	expect_output("devices --columns name,device,arena_bytes --bytes", "NAME   DEVICE     ARENA\n"
	                                                                   "host0       0  67108864\n"
	                                                                   "host1       1  67108864\n");
	expect_output("devices --columns PCI,Model --no-headings", "-  -\n-  -\n");
	expect_output("devices --columns blocks%,budget --raw", "BLOCKS% BUDGET\n"
	                                                        "<1% 67108864\n"
	                                                        "0% 67108864\n");
	expect_output(
	        "units --columns unit,registered --raw --no-headings", LONG_NAME
	        " 1\n"
	        "gr\\xc3\\xb6\\xc3\\x9fe.\\xe5\\xb1\\x82.\\xe5\\xb1\\x82.\\xe5\\xb1\\x82.\\xe5\\xb1\\x82."
	        "\\xe5\\xb1\\x82.\\xe5\\xb1\\x82.\\xe5\\xb1\\x82.\\xe5\\xb1\\x82 1\n");
	expect_output("buffers --columns waits,rank --raw --no-headings",
	              "- 0\n- 0\n"); /* never an empty word */
}

TEST(an_unknown_column_lists_the_known)
{
	zeroctl_fails(node.socket_path, "alloc --columns id,colour", 2,
	              "--columns: no column 'colour'; there are ID,JOB,NAME,SESSION,DEVICE,BYTES,AGE");
	zeroctl_fails(node.socket_path, "watch --columns id", 2,
	              "--columns: no column 'id'; there are JOB,GROUP,UNIT");
	zeroctl_fails(node.socket_path, "jobs --columns id,", 2, "--columns: no column ''");
	zeroctl_fails(node.socket_path, "jobs --columns ", 2, "--columns"); /* its value is missing */
	zeroctl_fails(node.socket_path, "jobs --sort colour", 2,
	              "--sort: no column 'colour'; there are ID,JOB,USER");
	zeroctl_fails(node.socket_path, "jobs --json --columns id", 2, "--columns is for tables");
	zeroctl_fails(node.socket_path, "jobs --json --raw", 2, "--raw is for tables");
	zeroctl_fails(node.socket_path, "status --wide", 2, "status takes no --wide");
}

TEST(empty_tables_say_so)
{
	static const struct {
		const char *line, *text;
	} empty[] = {
	        {"scopes", "no scopes\n"},
	        {"buckets", "no buckets\n"},
	        {"alloc", "no allocations\n"},
	        {"alloc --job tables", "no allocations of job tables\n"},
	};

	for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
		struct program program = zeroctl(empty[i].line);
		json_t *object = zeroctl_listing(node.socket_path, empty[i].line,
		                                 i < 3 ? empty[i].line : "alloc");

		assert_int_equal(program.status, 0);
		assert_string_equal(program.out_text, "");
		assert_string_equal(program.err_text, empty[i].text);
		assert_int_equal(json_array_size(json_object_get(object, "rows")), 0);
		json_decref(object);
		program_free(&program);
	}
}

/* The reader is gone before the first line is written. */
TEST(a_closed_pipe_ends_it_silently)
{
	const char *const args[] = {"zeroctl", "buffers", "--socket", node.socket_path, NULL};
	struct program program;

	program_start(&program, args, NULL);
	close(program.out);
	program.out = -1;
	program_wait(&program);
	assert_string_equal(program.err_text, "");
	assert_int_equal(program.status, 128 + SIGPIPE);
	program_free(&program);
}

int main(void)
{
	return test_run(start, stop);
}
