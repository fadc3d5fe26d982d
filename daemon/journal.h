/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h - lines to systemd's journal, in its native protocol, without waiting for anybody.
 *
 * sd_journal_sendv() waits when the journal does not read, and with it the loop and every trainer.
 */
#ifndef ZD_DAEMON_JOURNAL_H
#define ZD_DAEMON_JOURNAL_H

#include <sys/un.h>

struct zd_log_line;

#define ZD_JOURNAL_PATH "/run/systemd/journal/socket"

struct zd_journal {
	int sock;
	struct sockaddr_un address;
};

/* 0, or -1 with errno. */
int zd_journal_open(struct zd_journal *journal, const char *path) __attribute__((warn_unused_result));
/* The line with its fields, as one entry. 0, or -1 with errno; EAGAIN: the journal does not read at present.
 * Any thread may call it. */
int zd_journal_send(const struct zd_journal *journal, const struct zd_log_line *line);

#endif
