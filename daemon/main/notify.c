/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.c - reports the daemon's state to the service manager.
 *
 * While the manager's queue is full, states wait in `pending`, in order and joined to one message, and a
 * timer retries. When `pending` is full, later states are dropped.
 */
#include "main/notify.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "server/loop.h"

#define RETRY_MS   100u
#define FD_WAIT_MS 1000

/* Returns 0, or -1 with errno. */
static int send_now(const struct zd_notify *notify, const char *text, size_t nbytes)
{
	ssize_t sent;

	do
		sent = sendto(notify->sock, text, nbytes, MSG_DONTWAIT | MSG_NOSIGNAL,
		              (const struct sockaddr *)&notify->address, notify->address_bytes);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -1 : 0;
}

static void on_retry(uv_timer_t *timer);

static void send_pending(struct zd_notify *notify)
{
	if (send_now(notify, notify->pending, notify->npending) == 0) {
		notify->npending = 0;
	} else if (errno == EAGAIN || errno == ENOBUFS) {
		(void)uv_timer_start(&notify->retry, on_retry, RETRY_MS, 0);
	} else {
		zd_log(ZD_LOG_WARNING, "notifying the service manager: %s", strerror(errno));
		notify->npending = 0;
	}
}

static void on_retry(uv_timer_t *timer)
{
	send_pending(timer->data);
}

/* Parses a path, or '@' and a name in the abstract namespace. */
static int take_address(struct zd_notify *notify, const char *text)
{
	size_t bytes = text ? strlen(text) : 0;

	if (bytes < 2 || bytes >= sizeof(notify->address.sun_path) || (text[0] != '/' && text[0] != '@'))
		return -1;
	notify->address.sun_family = AF_UNIX;
	memcpy(notify->address.sun_path, text, bytes + 1);
	notify->address_bytes =
	        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes + (text[0] == '/'));
	if (text[0] == '@')
		notify->address.sun_path[0] = '\0';
	return 0;
}

void zd_notify_open(struct zd_notify *notify, struct zd_loop *loop)
{
	*notify = (struct zd_notify){.sock = -1};
	(void)uv_timer_init(&loop->uv, &notify->retry);
	notify->retry.data = notify;
	if (take_address(notify, getenv("NOTIFY_SOCKET")) == 0)
		notify->sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

void zd_notify_close(struct zd_notify *notify)
{
	if (notify->sock >= 0)
		(void)close(notify->sock);
	notify->sock = -1;
	uv_close((uv_handle_t *)&notify->retry, NULL);
}

void zd_notify_state(struct zd_notify *notify, const char *format, ...)
{
	char *at = notify->pending + notify->npending;
	size_t room = sizeof(notify->pending) - notify->npending;
	va_list args;
	int bytes;

	if (notify->sock < 0)
		return;
	va_start(args, format);
	bytes = vsnprintf(at, room, format, args);
	va_end(args);
	if (bytes < 0 || (size_t)bytes + 1 >= room)
		return;
	at[bytes] = '\n';
	notify->npending += (size_t)bytes + 1;
	send_pending(notify);
}

int zd_notify_fd(struct zd_notify *notify, const char *state, int fd)
{
	struct iovec part = {.iov_base = (char *)state, .iov_len = strlen(state)};
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct msghdr header = {.msg_name = &notify->address,
	                        .msg_namelen = notify->address_bytes,
	                        .msg_iov = &part,
	                        .msg_iovlen = 1};
	struct pollfd writable = {.fd = notify->sock, .events = POLLOUT};

	if (notify->sock < 0) {
		errno = ENOTCONN;
		return -1;
	}
	if (fd >= 0) {
		struct cmsghdr *rights;

		header.msg_control = control.bytes;
		header.msg_controllen = sizeof(control.bytes);
		rights = CMSG_FIRSTHDR(&header);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
	}
	(void)poll(&writable, 1, FD_WAIT_MS);
	return sendmsg(notify->sock, &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 0;
}

void zd_notify_alive(struct zd_notify *notify)
{
	static const char text[] = "WATCHDOG=1\n";

	if (notify->sock >= 0)
		(void)send_now(notify, text, sizeof(text) - 1);
}
