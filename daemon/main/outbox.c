/* SPDX-License-Identifier: Apache-2.0 */
/* outbox.c - messages to a process that may not read. */
#include "main/outbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

#define uthash_fatal(msg) zd_assert(!(msg))
#include <uthash.h>

#define RETRY_MS 10

struct zd_outbox_message {
	TAILQ_ENTRY(zd_outbox_message) link;
	UT_hash_handle hh;
	char *name; /* NULL: it cannot be cancelled */
	int fd;     /* -1: none */
	size_t nbytes;
	char bytes[];
};

void zd_outbox_init(struct zd_outbox *box, int sock)
{
	*box = (struct zd_outbox){.sock = sock};
	TAILQ_INIT(&box->messages);
}

static void message_free(struct zd_outbox *box, struct zd_outbox_message *message)
{
	TAILQ_REMOVE(&box->messages, message, link);
	if (message->name)
		HASH_DEL(box->named, message);
	else
		box->nunnamed--;
	box->count--;
	if (message->fd >= 0)
		(void)close(message->fd);
	free(message->name);
	free(message);
}

void zd_outbox_clear(struct zd_outbox *box)
{
	struct zd_outbox_message *message, *next;

	for (message = TAILQ_FIRST(&box->messages); message; message = next) {
		next = TAILQ_NEXT(message, link);
		message_free(box, message);
	}
}

/* ETOOMANYREFS: messages that were not read have as many descriptors as this user may have open. */
static bool waits(int error)
{
	return error == EAGAIN || error == ENOBUFS || error == ENOMEM || error == ETOOMANYREFS;
}

/* Returns 0, or -1 with errno. */
static int send_now(struct zd_outbox *box, const void *bytes, size_t nbytes, int fd)
{
	struct iovec part = {.iov_base = (void *)bytes, .iov_len = nbytes};
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	ssize_t sent;

	if (box->address_bytes > 0) {
		header.msg_name = &box->address;
		header.msg_namelen = box->address_bytes;
	}
	if (fd >= 0) {
		header.msg_control = control.bytes;
		header.msg_controllen = sizeof(control.bytes);
		struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
	}
	do
		sent = sendmsg(box->sock, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -1 : 0;
}

static int add(struct zd_outbox *box, const void *bytes, size_t nbytes, const char *name, int fd)
{
	int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (fd >= 0 && copy < 0)
		return -1;
	if (name)
		(void)zd_outbox_cancel(box, name);
	struct zd_outbox_message *message = zd_calloc(1, sizeof(*message) + nbytes);
	message->fd = copy;
	message->nbytes = nbytes;
	memcpy(message->bytes, bytes, nbytes);
	TAILQ_INSERT_TAIL(&box->messages, message, link);
	box->count++;
	if (name) {
		message->name = zd_strdup(name);
		HASH_ADD_KEYPTR(hh, box->named, message->name, strlen(message->name), message);
	} else {
		box->nunnamed++;
	}
	return 0;
}

int zd_outbox_send(struct zd_outbox *box, const void *bytes, size_t nbytes, const char *name, int fd)
{
	if (zd_outbox_flush(box) != 0)
		return -1;
	if (box->count == 0 && send_now(box, bytes, nbytes, fd) == 0)
		return 0;
	if (box->count == 0 && !waits(errno))
		return -1;
	return add(box, bytes, nbytes, name, fd);
}

bool zd_outbox_cancel(struct zd_outbox *box, const char *name)
{
	struct zd_outbox_message *message;

	HASH_FIND(hh, box->named, name, strlen(name), message);
	if (message)
		message_free(box, message);
	return message != NULL;
}

int zd_outbox_flush(struct zd_outbox *box)
{
	struct zd_outbox_message *message, *next;
	int error;

	for (message = TAILQ_FIRST(&box->messages); message; message = next) {
		next = TAILQ_NEXT(message, link);
		if (send_now(box, message->bytes, message->nbytes, message->fd) != 0) {
			error = errno;
			if (waits(error))
				return 0;
			zd_outbox_clear(box);
			errno = error;
			return -1;
		}
		message_free(box, message);
	}
	return 0;
}

/* poll() does not report room at the address of a socket that is not connected. */
void zd_outbox_drain(struct zd_outbox *box, int wait_ms)
{
	const struct timespec retry = {.tv_nsec = RETRY_MS * 1000000L};
	int rc = zd_outbox_flush(box);

	for (int waited_ms = 0; rc == 0 && box->count > 0 && waited_ms < wait_ms; waited_ms += RETRY_MS) {
		(void)nanosleep(&retry, NULL);
		rc = zd_outbox_flush(box);
	}
	zd_outbox_clear(box);
}
