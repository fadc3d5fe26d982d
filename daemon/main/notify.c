/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.c - reports the daemon's state to the service manager.
 *
 * While the manager's queue is full, messages wait in the outbox, and a timer retries. When too many states
 * wait, later ones are dropped. Descriptors are not: the store's room bounds them.
 */
#include "main/notify.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "server/loop.h"

#define RETRY_MS    20u
#define END_WAIT_MS 5000
#define MOST_STATES 64u

static void on_retry(uv_timer_t *timer);

/* `rc`: the outbox's result. */
static int go_on(struct zd_notify *notify, int rc)
{
	int error = errno;

	if (rc != 0)
		zd_log(ZD_LOG_WARNING, "notifying the service manager: %s", strerror(error));
	else if (notify->box.count > 0)
		(void)uv_timer_start(&notify->retry, on_retry, RETRY_MS, 0);
	errno = error;
	return rc;
}

static void on_retry(uv_timer_t *timer)
{
	struct zd_notify *notify = timer->data;
	bool stores = notify->box.named != NULL;

	if (go_on(notify, zd_outbox_flush(&notify->box)) != 0 && stores)
		notify->error = errno;
}

/* Parses a path, or '@' and a name in the abstract namespace. */
static int take_address(struct zd_outbox *box, const char *text)
{
	size_t bytes = text ? strlen(text) : 0;

	if (bytes < 2 || bytes >= sizeof(box->address.sun_path) || (text[0] != '/' && text[0] != '@'))
		return -1;
	box->address.sun_family = AF_UNIX;
	memcpy(box->address.sun_path, text, bytes + 1);
	box->address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes + (text[0] == '/'));
	if (text[0] == '@')
		box->address.sun_path[0] = '\0';
	return 0;
}

void zd_notify_open(struct zd_notify *notify, struct zd_loop *loop)
{
	*notify = (struct zd_notify){.sock = -1};
	(void)uv_timer_init(&loop->uv, &notify->retry);
	notify->retry.data = notify;
	zd_outbox_init(&notify->box, -1);
	if (take_address(&notify->box, getenv("NOTIFY_SOCKET")) == 0)
		notify->sock = notify->box.sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
		                                         0);
}

void zd_notify_close(struct zd_notify *notify)
{
	if (notify->sock >= 0) {
		zd_outbox_drain(&notify->box, END_WAIT_MS);
		(void)close(notify->sock);
	}
	notify->sock = -1;
	uv_close((uv_handle_t *)&notify->retry, NULL);
}

void zd_notify_state(struct zd_notify *notify, const char *format, ...)
{
	char text[ZD_NOTIFY_BYTES];
	va_list args;

	if (notify->sock < 0 || notify->box.nunnamed >= MOST_STATES)
		return;
	va_start(args, format);
	int bytes = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (bytes < 0 || (size_t)bytes >= sizeof(text))
		return;
	text[bytes] = '\n'; /* in the place of the zero */
	(void)go_on(notify, zd_outbox_send(&notify->box, text, (size_t)bytes + 1, NULL, -1));
}

int zd_notify_store(struct zd_notify *notify, const char *name, int fd)
{
	char text[128];
	int bytes = snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);

	if (notify->sock < 0) {
		errno = ENOTCONN;
		return -1;
	}
	return go_on(notify, zd_outbox_send(&notify->box, text, (size_t)bytes, name, fd));
}

void zd_notify_remove(struct zd_notify *notify, const char *name)
{
	char text[128];
	int bytes = snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);

	if (notify->sock >= 0 && !zd_outbox_cancel(&notify->box, name))
		(void)go_on(notify, zd_outbox_send(&notify->box, text, (size_t)bytes, NULL, -1));
}

void zd_notify_alive(struct zd_notify *notify)
{
	static const char text[] = "WATCHDOG=1\n";

	if (notify->sock >= 0)
		(void)sendto(notify->sock, text, sizeof(text) - 1, MSG_DONTWAIT | MSG_NOSIGNAL,
		             (const struct sockaddr *)&notify->box.address, notify->box.address_bytes);
}

uint64_t zd_notify_watchdog_us(void)
{
	const char *pid = getenv("WATCHDOG_PID"), *period = getenv("WATCHDOG_USEC");

	return period && (!pid || strtol(pid, NULL, 10) == getpid()) ? strtoull(period, NULL, 10) : 0;
}
