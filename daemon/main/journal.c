/* SPDX-License-Identifier: Apache-2.0 */
/* journal.c - entries of the journal: each is a datagram of fields. */
#include "main/journal.h"

#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"

#define MAX_FIELDS  (3 + ZD_LOG_MAX_FIELDS)
#define FIELD_PARTS 5

int zd_journal_open(struct zd_journal *journal, const char *path)
{
	*journal = (struct zd_journal){.address = {.sun_family = AF_UNIX}};
	(void)snprintf(journal->address.sun_path, sizeof(journal->address.sun_path), "%s", path);
	journal->sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	return journal->sock < 0 ? -1 : 0;
}

static struct iovec part(const void *bytes, size_t nbytes)
{
	return (struct iovec){.iov_base = (void *)bytes, .iov_len = nbytes};
}

struct entry {
	uint64_t lengths[MAX_FIELDS];
	struct iovec parts[MAX_FIELDS * FIELD_PARTS];
	size_t nfields, nparts;
};

/* The form for values with any bytes, newlines included: key, newline, length, value, newline. */
static void add_field(struct entry *entry, const char *key, const char *value)
{
	uint64_t *length = &entry->lengths[entry->nfields++];

	*length = htole64(strlen(value));
	entry->parts[entry->nparts++] = part(key, strlen(key));
	entry->parts[entry->nparts++] = part("\n", 1);
	entry->parts[entry->nparts++] = part(length, sizeof(*length));
	entry->parts[entry->nparts++] = part(value, strlen(value));
	entry->parts[entry->nparts++] = part("\n", 1);
}

int zd_journal_send(const struct zd_journal *journal, const struct zd_log_line *line)
{
	struct entry entry = {.nfields = 0};
	struct msghdr message = {
	        .msg_name = (void *)&journal->address,
	        .msg_namelen = sizeof(journal->address),
	        .msg_iov = entry.parts,
	};
	char priority[4];
	ssize_t sent;

	(void)snprintf(priority, sizeof(priority), "%d", (int)line->level);
	add_field(&entry, "MESSAGE", line->text);
	add_field(&entry, "PRIORITY", priority);
	add_field(&entry, "SYSLOG_IDENTIFIER", "zerod");
	for (size_t i = 0; i < line->nfields; i++)
		add_field(&entry, line->fields[i].key, line->fields[i].value);
	message.msg_iovlen = entry.nparts;
	do
		sent = sendmsg(journal->sock, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -1 : 0;
}
