/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - the destination of log lines.
 *
 * A service manager that connects stderr to the journal sets JOURNAL_STREAM. Lines are then sent in the
 * journal's native protocol, which keeps their fields. Writing a line never blocks.
 */
#include "main/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "main/journal.h"

#define LINE_BYTES 4096 /* PIPE_BUF: a pipe accepts so many bytes as a whole */

static struct zd_journal journal;

struct text {
	char bytes[LINE_BYTES];
	size_t used;
};

/* Appends a text, cut to the room that is left. */
__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
	size_t room_bytes = sizeof(text->bytes) - text->used;
	va_list args;
	int bytes;

	va_start(args, format);
	bytes = vsnprintf(text->bytes + text->used, room_bytes, format, args);
	va_end(args);
	text->used += zd_min_u64((uint64_t)bytes, room_bytes - 1);
}

/* "2026-01-31T12:00:00.123Z notice: text ZEROD_PID=12" */
static void add_line(struct text *text, const struct zd_log_line *line)
{
	struct timespec now;
	struct tm utc;
	char when[32];

	(void)clock_gettime(CLOCK_REALTIME, &now);
	(void)gmtime_r(&now.tv_sec, &utc);
	(void)strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &utc);
	add(text, "%s.%03ldZ %s: %s", when, now.tv_nsec / 1000000, zd_log_level_name(line->level),
	    line->text);
	for (size_t i = 0; i < line->nfields; i++) {
		char shown[sizeof(line->fields[i].value) * ZD_TEXT_ESCAPE_GROWTH];
		(void)zd_text_escape(line->fields[i].value, shown, sizeof(shown));
		add(text, " %s=%s", line->fields[i].key, shown);
	}
	add(text, "\n");
}

/* A writable pipe accepts up to LINE_BYTES as a whole. Lines of several threads therefore do not mix. Returns
 * 0, or -1. */
static int write_stderr(const struct zd_log_line *line)
{
	struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
	struct text text = {.used = 0};

	if (poll(&room, 1, 0) != 1 || !(room.revents & POLLOUT))
		return -1;
	add_line(&text, line);
	return write(STDERR_FILENO, text.bytes, text.used) < 0 ? -1 : 0;
}

/* If the journal cannot be reached, the line is written to stderr. */
static int write_journal(const struct zd_log_line *line)
{
	if (zd_journal_send(&journal, line) == 0)
		return 0;
	return errno == EAGAIN ? -1 : write_stderr(line);
}

/* Writing never waits for a reader, because that would block the thread and, with the loop, all trainers.
 * Lines that cannot be written are dropped and counted. */
static void deliver(const struct zd_log_line *line, int (*write_line)(const struct zd_log_line *line))
{
	static atomic_uint lost;
	unsigned nlost = atomic_exchange(&lost, 0);
	char text[64];
	const struct zd_log_line told = {.level = ZD_LOG_WARNING, .text = text};

	(void)snprintf(text, sizeof(text), "%u lines of the log are lost: nobody read them", nlost);
	if (nlost > 0 && write_line(&told) < 0)
		(void)atomic_fetch_add(&lost, nlost + 1);
	else if (write_line(line) < 0)
		(void)atomic_fetch_add(&lost, 1);
}

static void to_stderr(const struct zd_log_line *line)
{
	deliver(line, write_stderr);
}

static void to_journal(const struct zd_log_line *line)
{
	deliver(line, write_journal);
}

/* JOURNAL_STREAM has the device and inode of the journal's stream. Programs inherit the variable even if
 * their stderr is another file. Both are therefore compared. */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat found;
	char *end;

	if (!stream)
		return false;
	device = strtoull(stream, &end, 10);
	if (*end != ':')
		return false;
	inode = strtoull(end + 1, NULL, 10);
	return fstat(STDERR_FILENO, &found) == 0 && found.st_dev == (dev_t)device &&
	       found.st_ino == (ino_t)inode;
}

void zd_log_open(bool foreground)
{
	bool native = !foreground && stderr_is_journal() && zd_journal_open(&journal, ZD_JOURNAL_PATH) == 0;

	zd_log_set_sink(native ? to_journal : to_stderr);
}
