// SPDX-License-Identifier: Apache-2.0
/*
 * top_screen.c - the terminal of `zeroctl top`, with ncurses.
 *
 * SIGINT, SIGTERM and SIGWINCH are blocked except inside ppoll(), so that none arrives between a check and
 * the wait. ncurses handles SIGWINCH. A get_wch() after it returns KEY_RESIZE.
 */
#include "top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <curses.h>

#include "base/mem.h"
#include "ctl.h"
#include "interrupt.h"

#define ESCAPE_DELAY_MS 25 /* the time in which the rest of a key's sequence can follow ESC */

static SCREEN *screen;
static sigset_t signals_before;
static attr_t styles[ZD_TOP_NSTYLES];

static void catch_signals(void)
{
	sigset_t blocked;
	zd_ctl_catch_signals();
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGINT);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGWINCH);
	sigprocmask(SIG_BLOCK, &blocked, &signals_before);
}

/* Without colours only the characters distinguish the parts. */
static void choose_styles(void)
{
	static const struct {
		enum zd_top_style style;
		short colour;
	} colours[] = {
	        {ZD_TOP_GATHERED, COLOR_GREEN},
	        {ZD_TOP_KEPT, COLOR_BLUE},
	        {ZD_TOP_OTHER, COLOR_MAGENTA},
	        {ZD_TOP_WARNING, COLOR_RED},
	};
	const char *no_color = getenv("NO_COLOR");
	styles[ZD_TOP_BOLD] = A_BOLD;
	styles[ZD_TOP_HEAD] = A_REVERSE | A_DIM;
	styles[ZD_TOP_ACTIVE_HEAD] = A_REVERSE;
	styles[ZD_TOP_FREE] = A_DIM;
	styles[ZD_TOP_WARNING] = A_BOLD;
	if ((no_color && *no_color) || !has_colors() || start_color() == ERR || use_default_colors() == ERR)
		return;
	for (size_t i = 0; i < ZD_ARRAY_LEN(colours); i++) {
		const short pair = (short)(i + 1);
		if (init_pair(pair, colours[i].colour, -1) != ERR)
			styles[colours[i].style] |= COLOR_PAIR(pair);
	}
}

int zd_top_screen_open(void)
{
	const char *terminal = getenv("TERM");
	if (!isatty(STDOUT_FILENO))
		return zd_ctl_fail(ZD_CTL_USAGE,
		                   "standard output is not a terminal, which `top` needs; `zeroctl "
		                   "watch` and the lists are for pipes and files");
	if (!isatty(STDIN_FILENO))
		return zd_ctl_fail(ZD_CTL_USAGE,
		                   "standard input is not a terminal, from which `top` reads keys; `zeroctl "
		                   "watch` needs none");
	catch_signals();
	screen = newterm(NULL, stdout, stdin);
	/* "dumb" can be opened and cannot be drawn on. */
	const char *move_cursor = screen ? tigetstr("cup") : NULL;
	if (!move_cursor || (intptr_t)move_cursor == -1) {
		zd_top_screen_close();
		return zd_ctl_fail(
		        ZD_CTL_USAGE,
		        "the terminal '%s' (TERM) is not known, or cannot move its cursor; `zeroctl "
		        "watch` works on every one",
		        terminal ? terminal : "");
	}
	(void)cbreak();
	(void)noecho();
	(void)nonl();
	(void)curs_set(0);
	(void)keypad(stdscr, TRUE);
	(void)nodelay(stdscr, TRUE);
	(void)set_escdelay(ESCAPE_DELAY_MS);
	choose_styles();
	return 0;
}

void zd_top_screen_close(void)
{
	if (screen) {
		(void)endwin();
		delscreen(screen);
		screen = NULL;
	}
	sigprocmask(SIG_SETMASK, &signals_before, NULL);
}

void zd_top_screen_size(size_t *columns, size_t *nlines)
{
	*columns = (size_t)getmaxx(stdscr);
	*nlines = (size_t)getmaxy(stdscr);
}

void zd_top_screen_draw(const struct zd_top_picture *picture)
{
	(void)erase();
	for (size_t i = 0; i < picture->nlines; i++) {
		const struct zd_top_line *line = &picture->lines[i];
		(void)move((int)i, 0);
		for (size_t j = 0; j < line->nspans; j++) {
			(void)attrset(styles[line->spans[j].style]);
			(void)addstr(line->spans[j].text);
		}
	}
	(void)attrset(A_NORMAL);
	(void)refresh();
}

/* ---- Keys ---------------------------------------------------------------------------------------------- */

static int translate(wint_t key)
{
	switch (key) {
	case KEY_UP:
		return ZD_TOP_KEY_UP;
	case KEY_DOWN:
		return ZD_TOP_KEY_DOWN;
	case KEY_PPAGE:
		return ZD_TOP_KEY_PAGE_UP;
	case KEY_NPAGE:
		return ZD_TOP_KEY_PAGE_DOWN;
	case KEY_HOME:
		return ZD_TOP_KEY_HOME;
	case KEY_END:
		return ZD_TOP_KEY_END;
	case KEY_BACKSPACE:
		return ZD_TOP_KEY_BACKSPACE;
	case KEY_ENTER:
		return ZD_TOP_KEY_ENTER;
	case KEY_RESIZE:
		return ZD_TOP_KEY_RESIZE;
	default:
		return ZD_TOP_KEY_NONE;
	}
}

/* Returns the next key that has arrived, or NONE. */
static int read_key(void)
{
	wint_t key;
	const int kind = get_wch(&key);
	if (kind == KEY_CODE_YES)
		return translate(key);
	if (kind == ERR)
		return ZD_TOP_KEY_NONE;
	switch (key) {
	case '\r':
	case '\n':
		return ZD_TOP_KEY_ENTER;
	case 0x1b:
		return ZD_TOP_KEY_ESCAPE;
	case 0x7f:
	case '\b':
		return ZD_TOP_KEY_BACKSPACE;
	default:
		return (int)key;
	}
}

int zd_top_screen_wait(int64_t timeout_ns)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	const struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
	                                 .tv_nsec = timeout_ns % 1000000000};
	sigset_t waiting = signals_before;
	int key = read_key(); /* ncurses may have read more than one */
	if (key != ZD_TOP_KEY_NONE)
		return key;
	sigdelset(&waiting, SIGINT);
	sigdelset(&waiting, SIGTERM);
	sigdelset(&waiting, SIGWINCH);
	const int ready = zd_ctl_interrupted() ? 0
	                                       : ppoll(&input, 1, timeout_ns < 0 ? NULL : &timeout, &waiting);
	if (zd_ctl_interrupted())
		return ZD_TOP_KEY_SIGNAL;
	key = read_key();
	if (key == ZD_TOP_KEY_NONE && ready > 0 && (input.revents & (POLLHUP | POLLERR | POLLNVAL)))
		return ZD_TOP_KEY_GONE;
	return key;
}
