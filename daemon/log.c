/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - where log lines go.
 *
 * A service manager that connects stderr to the journal says so in JOURNAL_STREAM: then lines are sent there
 * natively, so that fields stay fields. A line that the journal does not take goes to stderr. Nothing waits
 * for whoever reads stderr.
 */
#include "daemon/log.h"

#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

#include "base/log.h"
#include "base/mem.h"

#define FIELD_BYTES 160 /* a key, "=" and a value */
#define TEXT_BYTES  1100
#define LINE_BYTES  4096 /* PIPE_BUF: a pipe takes them as a whole */

static const char *level_name(enum zd_log_level level)
{
	switch (level) {
	case ZD_LOG_ERROR:
		return "error";
	case ZD_LOG_WARNING:
		return "warning";
	case ZD_LOG_NOTICE:
		return "notice";
	case ZD_LOG_INFO:
		return "info";
	case ZD_LOG_DEBUG:
		return "debug";
	}
	return "?";
}

struct text {
	char bytes[LINE_BYTES];
	size_t used;
};

/* What does not fit is cut. */
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
	add(text, "%s.%03ldZ %s: %s", when, now.tv_nsec / 1000000, level_name(line->level), line->text);
	for (size_t i = 0; i < line->nfields; i++)
		add(text, " %s=%s", line->fields[i].key, line->fields[i].value);
	add(text, "\n");
}

/* A pipe or a terminal that nobody reads from would stop the thread, and with the loop's all trainers: lines
 * are lost then, and counted. What is writable takes a text as a whole, so that lines of several threads do
 * not mix. */
static void to_stderr(const struct zd_log_line *line)
{
	static atomic_uint lost;
	struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
	struct text text = {.used = 0};
	unsigned nlost;

	if (poll(&room, 1, 0) != 1 || !(room.revents & POLLOUT)) {
		(void)atomic_fetch_add(&lost, 1);
		return;
	}
	nlost = atomic_exchange(&lost, 0);
	if (nlost > 0)
		add(&text, "zerod: %u lines of the log are lost: nobody read them\n", nlost);
	add_line(&text, line);
	if (write(STDERR_FILENO, text.bytes, text.used) < 0)
		(void)atomic_fetch_add(&lost, nlost + 1);
}

static struct iovec field(char *buffer, size_t room_bytes, const char *key, const char *value)
{
	int bytes = snprintf(buffer, room_bytes, "%s=%s", key, value);

	return (struct iovec){.iov_base = buffer,
	                      .iov_len = (size_t)bytes < room_bytes ? (size_t)bytes : room_bytes - 1};
}

static void to_journal(const struct zd_log_line *line)
{
	struct iovec parts[3 + ZD_LOG_MAX_FIELDS];
	char message[TEXT_BYTES], fields[2 + ZD_LOG_MAX_FIELDS][FIELD_BYTES], priority[4];
	int nparts = 0;

	(void)snprintf(priority, sizeof(priority), "%d", (int)line->level);
	parts[nparts++] = field(message, sizeof(message), "MESSAGE", line->text);
	parts[nparts++] = field(fields[0], FIELD_BYTES, "PRIORITY", priority);
	parts[nparts++] = field(fields[1], FIELD_BYTES, "SYSLOG_IDENTIFIER", "zerod");
	for (size_t i = 0; i < line->nfields; i++)
		parts[nparts++] = field(fields[2 + i], FIELD_BYTES, line->fields[i].key,
		                        line->fields[i].value);
	if (sd_journal_sendv(parts, nparts) < 0)
		to_stderr(line);
}

/* JOURNAL_STREAM holds device and inode of the journal's end of stderr; it is inherited by programs whose
 * stderr is something else by then. */
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
	zd_log_set_sink(!foreground && stderr_is_journal() ? to_journal : to_stderr);
}
