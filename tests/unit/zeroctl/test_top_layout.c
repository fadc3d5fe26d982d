/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pictures of `zeroctl top`: nothing is wider than the picture at any size, columns that matter least are
 * left out first, and keys change what is seen.
 */
#include <locale.h>
#include <stdio.h>
#include <zerod.h>

#include "client/zeroctl/ctl.h"
#include "client/zeroctl/top.h"
#include "tests/unit/zeroctl/top_scene.h"

static struct top_scene scene;
static struct zd_top_view view;
static char *screen; /* the picture's lines, with a newline behind each */

/* Devices 0 and 1, and sessions 1 to 30, of which 1 waits. */
static int setup(void **state)
{
	(void)state;
	top_scene_init(&scene);
	view = (struct zd_top_view){.delay_s = 2};
	for (int sample = 0; sample < 2; sample++) {
		top_scene_device(&scene, 0, (uint64_t)sample * 3 << 30);
		top_scene_device(&scene, 1, 0);
		for (uint64_t id = 1; id <= 30; id++) {
			char name[16];
			(void)snprintf(name, sizeof(name), "trainer.%d", (int)id);
			top_scene_session(&scene, id, name, (uint64_t)sample * 12345);
			if (id == 1)
				top_scene_wait(&scene, "gather: rank 1 to publish version 2 of unit 'w' (has "
				                       "1)");
		}
		for (uint64_t id = 1; id <= 30; id++)
			top_scene_member(&scene, "job", "world", (int)id - 1, id);
		top_scene_allocation(&scene, 2, 0, 5 << 20, false);
		top_scene_take(&scene, 1 + sample);
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	top_scene_deinit(&scene);
	free(screen);
	screen = NULL;
	return 0;
}

#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, teardown)

/* Makes the picture, checks its sizes, and keeps it as a text. */
static void draw(size_t columns, size_t nlines)
{
	struct zd_top_picture picture;
	size_t nbytes = 0;
	free(screen);
	FILE *file = open_memstream(&screen, &nbytes);
	zd_top_layout(&scene.model, &view, columns, nlines, &picture);
	assert_int_equal(picture.nlines, nlines);
	for (size_t i = 0; i < nlines; i++) {
		size_t width = 0;
		for (size_t j = 0; j < picture.lines[i].nspans; j++) {
			width += zd_ctl_text_width(picture.lines[i].spans[j].text);
			fputs(picture.lines[i].spans[j].text, file);
		}
		fputc('\n', file);
		if (width > columns || width != picture.lines[i].width)
			fail_msg("line %zu has %zu columns of %zu", i, width, columns);
	}
	zd_top_picture_deinit(&picture);
	fclose(file);
}

static void expect(const char *text)
{
	if (!strstr(screen, text))
		fail_msg("no '%s' in\n%s", text, screen);
}

static void expect_not(const char *text)
{
	if (strstr(screen, text))
		fail_msg("'%s' in\n%s", text, screen);
}

static void expect_line(size_t number, const char *text)
{
	const char *line = screen;
	for (size_t i = 0; i < number; i++)
		line = strchr(line, '\n') + 1;
	const size_t length = strcspn(line, "\n");
	if (length != strlen(text) || strncmp(line, text, length) != 0)
		fail_msg("expected line %zu '%s' in\n%s", number, text, screen);
}

static void press(const char *keys)
{
	for (; *keys; keys++)
		assert_true(zd_top_press(&view, *keys));
}

/* ---- Sizes --------------------------------------------------------------------------------------------- */

SETUP_TEST(test_60x12)
{
	draw(60, 12);
	expect_line(0, "zerod 0.1.0, host, SERVING, up 2.0 s, every 2 s");
	expect_line(1, "DEV  MEMORY                    USED    GATHERED  HISTORY    ");
	expect_line(2, "  0  [#==+.....]   44%  0.4/1.0 GiB   3.0 GiB/s            \u2588");
	expect_line(3, "  1  [#==+.....]   44%  0.4/1.0 GiB       0 B/s             ");
	expect_line(4, "ID\u25b2  NAME       JOB  RANK           HELD   REQ/S   1-4 of 30");
	expect_line(9, "WHO                  WAITS FOR                              ");
	expect("12.3k");
	expect_line(11, "q quit  h help  / filter  < > sort  p pause  r reverse");
}

SETUP_TEST(test_80x24_has_more_columns)
{
	draw(80, 24);
	expect("USER");
	expect("PID");
	expect("JOB");
	expect("MODEL");
	expect("USED");
	expect("session 1 trainer.1  gather: rank 1 to publish version 2");
	expect("Tab pane");
}

SETUP_TEST(test_200x50_cuts_nothing)
{
	draw(200, 50);
	expect("#gathered =shards +other");
	expect("[#####==========++.....................]");
	expect("trainer.30");
	expect("gather: rank 1 to publish version 2 of unit 'w' (has 1) [rank 1: session 2, pid 1002]");
	expect_not("\u2026");
	expect_not(" of 30");
}

SETUP_TEST(test_the_least_size)
{
	draw(ZD_TOP_LEAST_COLUMNS, ZD_TOP_LEAST_LINES);
	expect("NAME");
	expect("HELD");
	expect("1-1 of 30");
	expect("q quit  h help  / filter  < > sort");
	draw(39, 12);
	expect_line(0, "terminal too small (39x12; needs 40x8)");
	draw(60, 7);
	expect_line(0, "terminal too small (60x7; needs 40x8)");
	draw(10, 1);
	draw(1, 1);
	draw(0, 0);
}

SETUP_TEST(test_no_size_is_overrun)
{
	for (int mode = 0; mode < 4; mode++) {
		view.mode = (enum zd_top_mode)mode;
		for (size_t columns = 1; columns < 130; columns += 3)
			for (size_t nlines = 1; nlines < 40; nlines++)
				draw(columns, nlines);
	}
}

SETUP_TEST(test_an_empty_model_is_drawn)
{
	zd_top_model_deinit(&scene.model);
	zd_top_set_trouble(&scene.model, "no daemon listens on /run/x");
	draw(60, 12);
	expect_line(0, "no daemon, trying every 2 s: no daemon listens on /run/x");
}

SETUP_TEST(test_wide_characters_count_as_two_columns)
{
	scene.daemon_pid++;
	top_scene_device(&scene, 0, 0);
	top_scene_session(&scene, 1, "\u6a21\u578b\u8bad\u7ec3\u5668\u6a21\u578b\u8bad\u7ec3\u5668", 0);
	top_scene_session(&scene, 2, "e\u0301", 0); /* one column */
	top_scene_member(&scene, "\u4f5c\u4e1a", "\u4e16\u754c", 0, 1);
	top_scene_take(&scene, 9);
	for (size_t columns = ZD_TOP_LEAST_COLUMNS; columns < 100; columns++)
		draw(columns, 12);
	draw(100, 12);
	expect("\u6a21\u578b\u8bad\u7ec3\u5668\u6a21\u578b\u8bad\u7ec3\u5668  1000 ");
	expect("e\u0301                     1000");
	draw(40, 12);
	expect("\u2026");
}

SETUP_TEST(test_each_part_has_a_character)
{
	scene.model.devices[1].gathered_bytes = 1;
	scene.model.devices[1].kept_bytes = 1;
	scene.model.devices[1].other_bytes = 1;
	draw(60, 12);
	expect("[#=+......]    1%");
	scene.model.devices[1].gathered_bytes = scene.model.devices[1].arena_bytes; /* beyond it as a whole */
	draw(60, 12);
	expect("[#########]  101%");
}

/* ---- Keys ---------------------------------------------------------------------------------------------- */

SETUP_TEST(test_a_filter_is_typed)
{
	press("/Trainer.2x");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_BACKSPACE));
	draw(80, 24);
	expect("filter: Trainer.2_");
	expect("trainer.2 ");
	expect("trainer.29");
	expect_not("trainer.1");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_ENTER));
	draw(80, 24);
	expect("filter 'Trainer.2', Esc clears  q quit");
	expect_not("trainer.1");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_ESCAPE));
	draw(80, 24);
	expect("trainer.1 ");
	press("/q"); /* a letter here */
	assert_true(zd_top_press(&view, 0x6a21));
	assert_string_equal(view.filter, "q\u6a21");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_BACKSPACE));
	assert_string_equal(view.filter, "q");
	assert_true(zd_top_press(&view, 0x1b)); /* no control character gets in */
	assert_string_equal(view.filter, "q");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_ESCAPE));
	assert_string_equal(view.filter, "");
	for (int i = 0; i < 200; i++)
		press(i ? "x" : "/");
	assert_int_equal(strlen(view.filter), ZD_TOP_ENTRY - 1);
	draw(40, 8);
}

SETUP_TEST(test_a_delay_is_typed)
{
	press("d0.5");
	draw(60, 12);
	expect("delay in seconds: 0.5_");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_ENTER));
	assert_true(view.delay_s == 0.5);
	static const char *const wrong[] = {"d0", "d", "dx", "d1x", "d1e99", "d-1", "dnan", "d0.01"};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		press(wrong[i]);
		assert_true(zd_top_press(&view, ZD_TOP_KEY_ENTER));
		assert_true(view.delay_s == 0.5);
	}
	press("d7");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_ESCAPE));
	assert_true(view.delay_s == 0.5);
}

SETUP_TEST(test_sort_reverse_pause_help_quit)
{
	press("s");
	assert_int_equal(view.sort, ZD_TOP_NAME);
	assert_false(view.descending);
	press("<<");
	assert_int_equal(view.sort, ZD_TOP_WAITS);
	press("<");
	assert_int_equal(view.sort, ZD_TOP_RATE);
	assert_true(view.descending);
	press("r");
	assert_false(view.descending);
	press(" ");
	draw(60, 12);
	expect_line(0, "PAUSED zerod 0.1.0, host, SERVING, up 2.0 s, every 2 s");
	press("p");
	assert_false(view.paused);
	press("?");
	draw(60, 12);
	expect("sort by the next or previous column");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_DOWN));
	draw(60, 12);
	expect_not("q          quit");
	press("x");
	draw(60, 12);
	expect("trainer.1");
	assert_false(zd_top_press(&view, 'q'));
	assert_false(zd_top_press(&view, ZD_TOP_KEY_SIGNAL));
	press("h");
	assert_false(zd_top_press(&view, 'q'));
}

SETUP_TEST(test_panes_scroll_to_their_ends)
{
	draw(60, 12);
	expect("1-4 of 30");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_PAGE_DOWN));
	draw(60, 12);
	expect("5-8 of 30");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_UP));
	draw(60, 12);
	expect("4-7 of 30");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_END));
	assert_true(zd_top_press(&view, ZD_TOP_KEY_DOWN));
	assert_true(zd_top_press(&view, ZD_TOP_KEY_PAGE_DOWN));
	draw(60, 12);
	expect("27-30 of 30");
	draw(60, 40); /* all fit: nothing is scrolled away */
	expect("trainer.1 ");
	assert_true(zd_top_press(&view, ZD_TOP_KEY_HOME));
	press("\t\t");
	draw(60, 12);
	assert_int_equal(view.pane, ZD_TOP_PANE_WAITS);
	assert_true(zd_top_press(&view, ZD_TOP_KEY_DOWN));
	draw(60, 12);
	expect("session 1");
	press("\t");
	assert_int_equal(view.pane, ZD_TOP_SESSIONS);
}

SETUP_TEST(test_numbers_are_short)
{
	static const struct {
		double value;
		const char *bytes, *count;
	} cases[] = {
	        {0, "0 B", "0"},
	        {999, "999 B", "999"},
	        {1023, "1023 B", "1.0k"},
	        {1024, "1.0 KiB", "1.0k"},
	        {1023.9 * 1024, "1.0 MiB", "1.0M"},
	        {12345678, "11.8 MiB", "12.3M"},
	        {123456789012345.0, "112 TiB", "123457G"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *bytes = zd_top_bytes(cases[i].value), *count = zd_top_count(cases[i].value);
		assert_string_equal(bytes, cases[i].bytes);
		assert_string_equal(count, cases[i].count);
		free(bytes);
		free(count);
	}
}

int main(void)
{
	(void)setlocale(LC_CTYPE, "C.UTF-8");
	return test_run(NULL, NULL);
}
