/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox.h - messages to a process that does not always read: the service manager, or the holder of
 * descriptors.
 *
 * Sending never blocks. If the socket has no room, messages wait in the outbox, in order, with a copy of
 * their descriptor. The owner calls zd_outbox_flush() until the outbox is empty.
 */
#ifndef ZD_MAIN_OUTBOX_H
#define ZD_MAIN_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/un.h>

struct zd_outbox_message;

struct zd_outbox {
	int sock; /* -1: closed */
	struct sockaddr_un address;
	socklen_t address_bytes;                  /* 0: the socket is connected */
	TAILQ_HEAD(, zd_outbox_message) messages; /* that wait */
	struct zd_outbox_message *named;          /* of these, by name */
	size_t count, nunnamed;                   /* of `messages` */
};

/* The outbox does not own the socket. */
void zd_outbox_init(struct zd_outbox *box, int sock);
/* Drops all messages that wait. */
void zd_outbox_clear(struct zd_outbox *box);

/* Sends the message with a copy of the descriptor (-1: none), at once or with a later flush. A message with a
 * name can be cancelled, and replaces a waiting message with the same name. Returns 0, or -1 with errno. On
 * failure this message and all waiting messages are dropped, because the other side does not exist. */
int zd_outbox_send(struct zd_outbox *box, const void *bytes, size_t nbytes, const char *name, int fd)
        __attribute__((warn_unused_result));
/* Drops the waiting message with this name. Returns false if there is none. */
bool zd_outbox_cancel(struct zd_outbox *box, const char *name);
/* Sends waiting messages while the socket has room. Returns as zd_outbox_send(). */
int zd_outbox_flush(struct zd_outbox *box) __attribute__((warn_unused_result));
/* As zd_outbox_flush(), but waits up to `wait_ms` for room, and drops the remaining messages. */
void zd_outbox_drain(struct zd_outbox *box, int wait_ms);

#endif
