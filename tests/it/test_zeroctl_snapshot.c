/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_zeroctl_snapshot.c - zeroctl snapshot writes a page whose data is that of the daemon, whatever names
 * users choose, and a file that is there as a whole or not at all.
 */
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/it/scope_scene.h"
#include "tests/it/zeroctl_scene.h"

#define DATA_BEGIN "<script type=\"application/json\" id=\"data\">"
#define DATA_END   "</script>"
#define EVIL       "</script><img src=x onerror=alert(1)>\"'&<!--"
#define BIDI                                                                                                 \
	"a\xe2\x80\xae\xe2\x80\x8b"                                                                          \
	"b" /* U+202E, U+200B */

static char folder[] = "/tmp/zerod-test-snapshot.XXXXXX";
static char page_path[128];

static int setup(void **state)
{
	(void)state;
	scene_setup("snaps", 1);
	strcpy(folder + strlen(folder) - 6, "XXXXXX");
	assert_non_null(mkdtemp(folder));
	snprintf(page_path, sizeof(page_path), "%s/page.html", folder);
	return 0;
}

/* How many files the folder has, hidden ones too. */
static unsigned count_files(void)
{
	DIR *dir = opendir(folder);
	unsigned count = 0;

	assert_non_null(dir);
	for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
		count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
	closedir(dir);
	return count;
}

static int teardown(void **state)
{
	(void)unlink(page_path);
	assert_int_equal(rmdir(folder), 0);
	return scene_teardown(state);
}

#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, teardown)

static char *read_page(void)
{
	FILE *file = fopen(page_path, "r");
	char *text = NULL;
	size_t bytes = 0;

	assert_non_null(file);
	assert_true(getdelim(&text, &bytes, '\0', file) > 0);
	fclose(file);
	return text;
}

static char *write_and_read_page(void)
{
	char line[256];
	struct program program;

	snprintf(line, sizeof(line), "snapshot -o %s", page_path);
	program = zeroctl_run(daemon_.socket_path, line);
	assert_string_equal(program.err_text, "");
	assert_string_equal(program.out_text, "");
	assert_int_equal(program.status, 0);
	program_free(&program);
	assert_int_equal(count_files(), 1);
	return read_page();
}

/* The page's only element with data, up to the first end tag, as a browser finds it. */
static json_t *data_of(const char *page)
{
	const char *begin = strstr(page, DATA_BEGIN), *end = begin ? strstr(begin, DATA_END) : NULL;
	json_error_t error;
	json_t *data;

	assert_non_null(end);
	begin += strlen(DATA_BEGIN);
	data = json_loadb(begin, (size_t)(end - begin), 0, &error);
	if (!data)
		fail_msg("the page's data is no JSON: %s", error.text);
	return data;
}

static void allocate(const char *name)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);
	zerod_allocation *allocation;
	void *data;

	options.job = "snaps";
	options.name = name;
	options.bytes = 5000;
	assert_status(me.client, zerod_alloc(me.client, &options, &allocation, &data), ZEROD_OK);
}

static const json_t *find_block(const json_t *data, const char *name)
{
	size_t i;
	json_t *row;

	json_array_foreach(json_object_get(data, "map"), i, row)
	{
		const char *found = json_string_value(json_object_get(row, "name"));

		if (found && strcmp(found, name) == 0)
			return row;
	}
	fail_msg("no block of '%s'", name);
	return NULL;
}

SETUP_TEST(page_and_json_have_the_daemons_map)
{
	json_t *map, *data, *json;
	char *page;

	assert_status(me.client, zerod_gather(a, NULL, NULL, NULL), ZEROD_OK);
	allocate("moments");
	page = write_and_read_page();
	data = data_of(page);
	json = zeroctl_json(daemon_.socket_path, "snapshot --json");
	map = zeroctl_json(daemon_.socket_path, "map --json");
	assert_true(json_equal(json_object_get(data, "map"), json_object_get(map, "rows")));
	assert_true(json_equal(json_object_get(json, "map"), json_object_get(map, "rows")));
	assert_string_equal(json_string_value(json_object_get(find_block(data, "moments"), "job")), "snaps");
	assert_non_null(strstr(page, "prefers-color-scheme"));
	assert_null(strstr(page, ".js@")); /* no part of the template is left */
	assert_null(strstr(page, "@data@"));
	assert_null(strstr(page, "src="));
	assert_null(strstr(page, "http:"));
	json_decref(map);
	json_decref(json);
	json_decref(data);
	free(page);
}

/* The events give and free the blocks that the map has now. */
SETUP_TEST(events_lead_to_the_map)
{
	json_t *data, *row;
	const json_t *events;
	json_int_t bytes = 0;
	size_t i;
	char *page;

	assert_status(me.client, zerod_gather(a, NULL, NULL, NULL), ZEROD_OK);
	assert_status(me.client, zerod_release(a, NULL, 0, NULL, NULL), ZEROD_OK);
	allocate("moments");
	page = write_and_read_page();
	data = data_of(page);
	events = json_object_get(data, "events");
	assert_true(json_is_true(json_object_get(events, "whole")));
	assert_int_equal(integer(events, "complete_from_ns"), integer(events, "known_from_ns"));
	json_array_foreach(json_object_get(events, "rows"), i, row)
	{
		const char *kind = json_string_value(json_object_get(row, "kind"));

		assert_true(integer(row, "time_ns") >= integer(events, "known_from_ns"));
		assert_true(integer(row, "time_ns") <= integer(events, "now_ns"));
		if (strcmp(kind, "block_give") == 0)
			bytes += integer(row, "bytes");
		else if (strcmp(kind, "block_free") == 0)
			bytes -= integer(row, "bytes");
	}
	assert_true(i > 4);
	json_array_foreach(json_object_get(data, "map"), i, row)
	{
		if (strcmp(json_string_value(json_object_get(row, "kind")), "block") == 0)
			bytes -= integer(row, "bytes");
	}
	assert_int_equal(bytes, 0);
	json_decref(data);
	free(page);
}

SETUP_TEST(names_cannot_leave_the_data)
{
	json_t *data, *json;
	char *page;

	allocate(EVIL);
	allocate(BIDI);
	page = write_and_read_page();
	data = data_of(page);
	json = zeroctl_json(daemon_.socket_path, "snapshot --json");
	assert_null(strstr(page, "<img"));
	assert_null(strstr(page, "<!--\""));
	assert_null(strstr(page, "\xe2\x80\xae"));
	(void)find_block(data, EVIL);
	(void)find_block(data, "a\\u202e\\u200bb"); /* as it can be shown */
	(void)find_block(json, EVIL);
	(void)find_block(json, BIDI); /* as it is */
	json_decref(json);
	json_decref(data);
	free(page);
}

SETUP_TEST(filters_name_something)
{
	json_t *data, *row;
	size_t i;

	allocate("moments");
	zeroctl_fails(daemon_.socket_path, "snapshot --json --device 9", 3,
	              "NOT_FOUND: no device 9; there are 2");
	zeroctl_fails(daemon_.socket_path, "snapshot --json --job nobody", 3,
	              "NOT_FOUND: no job is called 'nobody'");
	data = zeroctl_json(daemon_.socket_path, "snapshot --json --device 1 --job snaps");
	assert_int_equal(json_array_size(json_object_get(data, "devices")), 1);
	json_array_foreach(json_object_get(data, "map"), i, row)
	{
		assert_int_equal(integer(row, "device"), 1);
		assert_string_not_equal(json_string_value(json_object_get(row, "kind")), "unused");
	}
	json_array_foreach(json_object_get(json_object_get(data, "events"), "rows"), i, row)
	        assert_int_equal(integer(row, "device"), 1);
	json_decref(data);
}

SETUP_TEST(what_cannot_be_written_is_named)
{
	char line[256];

	zeroctl_fails(daemon_.socket_path, "snapshot", 2, "snapshot needs -o FILE");
	zeroctl_fails(daemon_.socket_path, "snapshot -o /dev/full", 30,
	              "cannot write '/dev/full': No space left on device");
	snprintf(line, sizeof(line), "snapshot -o %s/none/page.html", folder);
	zeroctl_fails(daemon_.socket_path, line, 30, "/none/page.html': No such file or directory");
	snprintf(line, sizeof(line), "snapshot -o %s", folder);
	zeroctl_fails(daemon_.socket_path, line, 30, "': Is a directory");
	snprintf(line, sizeof(line), "snapshot --job nobody -o %s", page_path);
	zeroctl_fails(daemon_.socket_path, line, 3, "NOT_FOUND");
	assert_int_equal(count_files(), 0);
}

/* The file before stays as it is until the new one is whole. */
SETUP_TEST(a_failure_keeps_the_file_before)
{
	char line[256];
	char *page;
	struct stat info;

	free(write_and_read_page());
	snprintf(line, sizeof(line), "snapshot --device 9 -o %s", page_path);
	zeroctl_fails(daemon_.socket_path, line, 3, "NOT_FOUND");
	page = read_page();
	assert_non_null(strstr(page, "</html>"));
	assert_int_equal(stat(page_path, &info), 0);
	assert_int_equal(info.st_mode & 0600, 0600);
	assert_int_equal(count_files(), 1);
	free(page);
}

static void expect_content(const char *path, const char *text)
{
	char content[16] = "";
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	(void)fread(content, 1, sizeof(content) - 1, file);
	assert_int_equal(fclose(file), 0);
	assert_string_equal(content, text);
}

/* In a folder like /tmp anybody makes links and files under names that others will use. */
SETUP_TEST(other_users_links_and_files_stay)
{
	static const char *const verbs[] = {"snapshot", "trace --seconds 0.1"};
	char target[128], line[256];

	if (geteuid() != 0)
		skip(); /* only root makes files of others */
	snprintf(target, sizeof(target), "%s/target", folder);
	for (size_t i = 0; i < 2; i++) {
		snprintf(line, sizeof(line), "%s -o %s", verbs[i], page_path);
		FILE *file = fopen(target, "w");
		assert_true(file && fputs("kept", file) >= 0 && fclose(file) == 0);
		assert_int_equal(symlink(target, page_path), 0);
		assert_int_equal(lchown(page_path, 65534, 65534), 0);
		zeroctl_fails(daemon_.socket_path, line, 30, "it is a symbolic link of another user");
		expect_content(target, "kept");
		assert_int_equal(lchown(page_path, 0, 0), 0);
		assert_int_equal(chown(target, 65534, 65534), 0);
		zeroctl_fails(daemon_.socket_path, line, 30, "it is a file of another user");
		expect_content(target, "kept");
		assert_int_equal(unlink(target), 0);
		struct program program = zeroctl_run(daemon_.socket_path,
		                                     line); /* one's own link is followed */
		assert_int_equal(program.status, 0);
		program_free(&program);
		expect_content(target, i ? "{\"displayTimeUn" : "<!DOCTYPE html>");
		assert_int_equal(count_files(), 2);
		assert_int_equal(unlink(target) | unlink(page_path), 0);
	}
}

/* A limit of the size of files stands for the disk. */
SETUP_TEST(a_full_disk_leaves_nothing)
{
	struct rlimit before, full;
	char line[256];

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	full = (struct rlimit){.rlim_cur = 4096, .rlim_max = before.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
	snprintf(line, sizeof(line), "snapshot -o %s", page_path);
	zeroctl_fails(daemon_.socket_path, line, 30, "/page.html': File too large");
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	signal(SIGXFSZ, SIG_DFL);
	assert_int_equal(count_files(), 0);
}

/* The daemon stands still, so the file is unfinished when the signal comes. */
SETUP_TEST(an_interrupt_leaves_nothing)
{
	const char *args[] = {"zeroctl", "--socket", daemon_.socket_path, "snapshot", "-o", page_path, NULL};
	struct program program;
	const long deadline = program_now_ms() + PROGRAM_DEADLINE_MS;

	assert_int_equal(kill(daemon_.pid, SIGSTOP), 0);
	program_start(&program, args, NULL);
	while (count_files() == 0 && program_now_ms() < deadline)
		usleep(1000);
	assert_int_equal(count_files(), 1);
	assert_int_equal(kill(program.pid, SIGINT), 0);
	program_wait(&program);
	assert_int_equal(kill(daemon_.pid, SIGCONT), 0);
	assert_int_equal(program.status, 128 + SIGINT);
	assert_int_equal(count_files(), 0);
	program_free(&program);
}

/* More than a pipe holds, of which the reader takes nothing. */
SETUP_TEST(a_closed_pipe_is_no_failure)
{
	const char *args[] = {"zeroctl", "--socket", daemon_.socket_path, "snapshot", "-o", "-", NULL};
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
	return test_run(scene_start, scene_stop);
}
