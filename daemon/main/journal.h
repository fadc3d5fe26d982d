/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h - sends log lines to systemd's journal in its native protocol, without blocking.
 *
 * sd_journal_sendv() blocks while the journal does not read, and would block the loop and every trainer.
 */
#ifndef ZD_MAIN_JOURNAL_H
#define ZD_MAIN_JOURNAL_H

#include <sys/un.h>

struct zd_log_line;

#define ZD_JOURNAL_PATH "/run/systemd/journal/socket"

struct zd_journal {
	int sock;
	struct sockaddr_un address;
};

/* Returns 0, or -1 with errno. */
int zd_journal_open(struct zd_journal *journal, const char *path) __attribute__((warn_unused_result));
/* Sends the line with its fields as one entry. Returns 0, or -1 with errno; EAGAIN: the journal does not read
 * at present. Thread-safe. */
int zd_journal_send(const struct zd_journal *journal, const struct zd_log_line *line);

#endif
