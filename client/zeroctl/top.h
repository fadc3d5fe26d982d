/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top.h - the parts of `zeroctl top`: a model of samples, the user's view of it, pictures, and the screen.
 *
 * Model, view and picture are plain functions: they know no terminal, no clock and no daemon. Only
 * top_screen.c knows ncurses, and only verb_top.c asks the daemon.
 *
 * Every text of the model is escaped (zd_ctl_shown()) when it enters the model. No line of a picture is wider
 * than the picture.
 */
#ifndef ZD_CTL_TOP_H
#define ZD_CTL_TOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

#include <jansson.h>

#define ZD_TOP_LEAST_COLUMNS 40u
#define ZD_TOP_LEAST_LINES   8u
#define ZD_TOP_HISTORY       20u /* rates of each device that are kept */
#define ZD_TOP_LEAST_DELAY_S 0.05
#define ZD_TOP_MOST_DELAY_S  86400.0

/* ---- Model: top_model.c, top_waits.c ------------------------------------------------------------------- */

/* The answers of one moment: the status, and the rows of the listings. The model copies from them. */
struct zd_top_sample {
	uint64_t at_ns; /* of a clock that never goes back */
	json_t *status, *devices, *sessions, *groups, *buffers, *allocations;
};

struct zd_top_device {
	uint32_t index;
	char *model;                                                   /* of a GPU, or the device's name */
	bool usable;                                                   /* neither failed nor denied */
	uint64_t arena_bytes, gathered_bytes, kept_bytes, other_bytes; /* kept: shards, durable allocations */
	uint64_t gathered_total;                                       /* a counter */
	size_t nrates;
	double rates[ZD_TOP_HISTORY]; /* gathered bytes per second, the latest last */
};

/* Columns of sessions, in the order in which they are shown. */
enum zd_top_column {
	ZD_TOP_ID,
	ZD_TOP_NAME,
	ZD_TOP_USER,
	ZD_TOP_PID,
	ZD_TOP_JOB,
	ZD_TOP_RANK,
	ZD_TOP_HELD,
	ZD_TOP_RATE,
	ZD_TOP_WAITS,
	ZD_TOP_NCOLUMNS
};

struct zd_top_session {
	uint64_t id, held_bytes; /* of allocations, and of gathered buffers of its ranks */
	uint64_t requests;       /* a counter */
	double rate;             /* requests per second; < 0: not known yet */
	uint32_t pid;
	char *name, *user, *job;
	char *rank;  /* "world/3", with commas between those of several groups */
	char *waits; /* of its requests, with "; " between */
	bool seen;   /* in the latest sample */
};

struct zd_top_wait {
	char *subject, *text; /* "session 7 trainer", "gather: rank 1 to publish version 2" */
	char *job, *user, *name;
};

struct zd_top_model {
	char *(*user_of)(uint32_t uid); /* returns a text from malloc(); NULL: the number is shown */
	uint64_t at_ns, pid;            /* of the latest sample; of its daemon; 0: there was none */
	char *title;                    /* "zerod 0.1.0, host, SERVING, up 3.2 s" */
	char *trouble;                  /* why there is no newer sample; NULL: there is one */
	size_t ndevices, nsessions, nwaits;
	struct zd_top_device *devices;
	struct zd_top_session *sessions; /* in the order in which they are shown */
	struct zd_top_wait *waits;
};

void zd_top_model_deinit(struct zd_top_model *model);
/* Copies the sample. Rates are differences to the previous sample. Remaining sessions keep their order, and
 * new ones follow them by id. After a restart of the daemon the model starts again. */
void zd_top_update(struct zd_top_model *model, const struct zd_top_sample *sample);
/* Sets why there is no newer sample. NULL: there is one. Only the first line is stored. */
void zd_top_set_trouble(struct zd_top_model *model, const char *text);
/* Sorts the sessions. Sessions that are equal in this column remain in their order. */
void zd_top_sort(struct zd_top_model *model, enum zd_top_column column, bool descending);
/* Whether the column is best sorted from its highest value. */
bool zd_top_is_number(enum zd_top_column column);
const char *zd_top_column_title(enum zd_top_column column);
/* Parses the title of a column. With a '-' before it: descending. Errors: INVALID, without a message. */
int zd_top_parse_sort(const char *text, enum zd_top_column *column, bool *descending)
        __attribute__((warn_unused_result));
/* Whether the filter, which may be "", occurs in one of the texts without regard to the case of letters. */
bool zd_top_matches(const char *filter, const char *name, const char *user, const char *job);

/* top_waits.c: fills the waits of model and sessions; the sessions are those of the sample. */
void zd_top_update_waits(struct zd_top_model *model, const struct zd_top_sample *sample);
void zd_top_wait_deinit(struct zd_top_wait *wait);
/* Finds the session by id in the model; NULL: it has none. */
struct zd_top_session *zd_top_find_session(const struct zd_top_model *model, uint64_t id);

/* ---- View: top_keys.c ---------------------------------------------------------------------------------- */

enum zd_top_pane { ZD_TOP_SESSIONS, ZD_TOP_DEVICES, ZD_TOP_PANE_WAITS, ZD_TOP_NPANES };

/* The use of the bottom line. */
enum zd_top_mode { ZD_TOP_BROWSE, ZD_TOP_FILTER, ZD_TOP_DELAY, ZD_TOP_HELP };

#define ZD_TOP_ENTRY 64u

struct zd_top_view {
	enum zd_top_mode mode;
	enum zd_top_pane pane; /* that arrows scroll */
	enum zd_top_column sort;
	bool descending, paused;
	double delay_s;
	char filter[ZD_TOP_ENTRY], entry[ZD_TOP_ENTRY];
	size_t scroll[ZD_TOP_NPANES], help_scroll;
	/* Set by the layout: the lines of each pane, and how far it scrolls at most. */
	size_t lines[ZD_TOP_NPANES], most_scroll[ZD_TOP_NPANES], help_lines, help_most_scroll;
};

/* Keys are characters, or one of these. */
enum zd_top_key {
	ZD_TOP_KEY_NONE = 0,
	ZD_TOP_KEY_UP = -1,
	ZD_TOP_KEY_DOWN = -2,
	ZD_TOP_KEY_PAGE_UP = -3,
	ZD_TOP_KEY_PAGE_DOWN = -4,
	ZD_TOP_KEY_HOME = -5,
	ZD_TOP_KEY_END = -6,
	ZD_TOP_KEY_BACKSPACE = -7,
	ZD_TOP_KEY_ENTER = -8,
	ZD_TOP_KEY_ESCAPE = -9,
	ZD_TOP_KEY_RESIZE = -10,
	ZD_TOP_KEY_SIGNAL = -11, /* SIGINT, SIGTERM */
	ZD_TOP_KEY_GONE = -12,   /* the terminal has gone */
};

/* Applies the key to the view; returns false when the key ends the program. */
bool zd_top_press(struct zd_top_view *view, int key);

/* ---- Pictures: top_layout.c, top_frame.c, top_table.c -------------------------------------------------- */

enum zd_top_style {
	ZD_TOP_PLAIN,
	ZD_TOP_BOLD,
	ZD_TOP_HEAD,
	ZD_TOP_ACTIVE_HEAD, /* of the pane that arrows scroll */
	ZD_TOP_GATHERED,
	ZD_TOP_KEPT,
	ZD_TOP_OTHER,
	ZD_TOP_FREE,
	ZD_TOP_WARNING,
	ZD_TOP_NSTYLES
};

struct zd_top_span {
	enum zd_top_style style;
	char *text;
};

struct zd_top_line {
	size_t width, nspans;
	struct zd_top_span *spans;
};

struct zd_top_picture {
	size_t columns, nlines;
	struct zd_top_line *lines;
};

/* Makes a picture of this size. Scroll positions of the view that are beyond the end are corrected. */
void zd_top_layout(const struct zd_top_model *model, struct zd_top_view *view, size_t columns, size_t nlines,
                   struct zd_top_picture *picture);
void zd_top_picture_deinit(struct zd_top_picture *picture);
/* top_frame.c: the first line, the last line, and the help in all lines between them. */
void zd_top_draw_title(struct zd_top_picture *picture, const struct zd_top_model *model,
                       const struct zd_top_view *view);
void zd_top_draw_bottom(struct zd_top_picture *picture, const struct zd_top_view *view);
void zd_top_draw_help(struct zd_top_picture *picture, struct zd_top_view *view);
/* Adds the text, cut to the rest of the line. Takes ownership of `text`. */
void zd_top_add(struct zd_top_picture *picture, size_t line, enum zd_top_style style, char *text);
/* Adds blanks up to this column. */
void zd_top_pad(struct zd_top_picture *picture, size_t line, enum zd_top_style style, size_t column);

struct zd_top_table_column {
	const char *title;
	const char *legend; /* in place of the title if it fits; NULL: none */
	bool right;
	unsigned spare; /* if the picture is too narrow, columns with a higher one are left out first */
	size_t least;   /* the minimum to which it is cut; 0: it is never cut */
	size_t width;   /* its minimum if there is room */
};

/* Chooses the width of each column from its title, its cells and the picture's width; 0: left out. */
void zd_top_fit(const struct zd_top_table_column *columns, size_t ncolumns, char *const *cells, size_t nrows,
                size_t total, size_t *widths);
/* Adds a cell: cut, aligned, and with the gap to the next one in front unless it is the line's first. */
void zd_top_add_cell(struct zd_top_picture *picture, size_t line, enum zd_top_style style,
                     const struct zd_top_table_column *column, size_t width, const char *text);
/* Bytes in at most 9 columns, "12.3 GiB"; rates of requests in at most 6, "12.3k". */
char *zd_top_bytes(double bytes) __attribute__((returns_nonnull));
char *zd_top_count(double count) __attribute__((returns_nonnull));

/* ---- Screen: top_screen.c ------------------------------------------------------------------------------ */

/* Takes the terminal over. SYSTEM, with a message: there is no terminal, or TERM names no usable one. */
int zd_top_screen_open(void) __attribute__((warn_unused_result));
/* Restores the terminal. */
void zd_top_screen_close(void);
void zd_top_screen_size(size_t *columns, size_t *nlines);
void zd_top_screen_draw(const struct zd_top_picture *picture);
/* Waits for a key at most so long; < 0: for ever. Returns the key, NONE after this time. */
int zd_top_screen_wait(int64_t timeout_ns);

#endif
