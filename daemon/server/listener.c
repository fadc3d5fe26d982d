/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.c - accepts connections.
 *
 * If a connection cannot be accepted for lack of descriptors, the socket remains readable, and the loop would
 * spin. One descriptor is therefore reserved. It is closed to accept the connection, which is closed at once,
 * and opened again. The client sees that its connection was closed. Existing sessions are not affected.
 */
#include "server/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "server/loop.h"

#define ACCEPT_NS    20000u /* the loop's time for connections, in one iteration: 1 or 2 are accepted */
#define PAUSE_MS     100u
#define MOST_WAITING 4096u /* at most, at a listening socket, with the kernel's usual settings */
#define COMPLAIN_NS  1000000000u

static void on_readable(uv_poll_t *handle, int status, int events);

static void resume(struct zd_listener *listener)
{
	int rc = uv_poll_start(&listener->readiness, UV_READABLE, on_readable);

	zd_assert(rc == 0); /* fails only for handles that are closing */
}

static void on_pause_over(uv_timer_t *timer)
{
	struct zd_listener *listener = timer->data;

	if (listener->spare < 0)
		listener->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	resume(listener);
}

static void pause_accepting(struct zd_listener *listener)
{
	(void)uv_poll_stop(&listener->readiness);
	(void)uv_timer_start(&listener->pause, on_pause_over, PAUSE_MS, 0);
}

/* Logs at most one line per second. */
static void complain(struct zd_listener *listener, const char *why)
{
	uint64_t now_ns = zd_loop_now_ns();

	listener->refused++;
	if (listener->complained_ns && now_ns - listener->complained_ns < COMPLAIN_NS)
		return;
	zd_log(ZD_LOG_ERROR, "connections refused: %" PRIu64 " (%s)", listener->refused, why);
	listener->complained_ns = now_ns;
	listener->refused = 0;
}

/* Accepts the oldest waiting connection with the spare descriptor, and closes it. */
static void refuse_one(struct zd_listener *listener, int errno_value)
{
	int sock;

	complain(listener, strerror(errno_value));
	if (listener->spare < 0) {
		pause_accepting(listener);
		return;
	}
	(void)close(listener->spare);
	sock = accept4(listener->sock, NULL, NULL, SOCK_CLOEXEC);
	if (sock >= 0)
		(void)close(sock);
	listener->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (sock < 0)
		pause_accepting(listener);
}

static void on_readable(uv_poll_t *handle, int status, int events)
{
	struct zd_listener *listener = handle->data;
	uint64_t began_ns = zd_loop_now_ns();
	struct zd_err err;

	(void)events;
	if (status < 0) {
		complain(listener, uv_strerror(status));
		pause_accepting(listener);
		return;
	}
	do {
		int sock = accept4(listener->sock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (sock >= 0) {
			if (listener->accepted(listener->arg, sock, &err) != 0)
				complain(listener, err.text);
			continue;
		}
		/* Any other error concerns a single connection, which has ended already. */
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			refuse_one(listener, errno);
		return;
	} while (zd_loop_now_ns() - began_ns < ACCEPT_NS);
}

int zd_listener_open(struct zd_listener *listener, struct zd_loop *loop, int sock,
                     int (*accepted)(void *arg, int sock, struct zd_err *err), void *arg, struct zd_err *err)
{
	*listener = (struct zd_listener){.sock = sock, .accepted = accepted, .arg = arg};
	listener->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (listener->spare < 0)
		return zd_err_errno(err, errno, "opening /dev/null as a descriptor in reserve");
	int rc = uv_poll_init(&loop->uv, &listener->readiness, sock);
	if (rc) {
		(void)close(listener->spare);
		return zd_loop_error(err, rc, "watching the listening socket");
	}
	(void)uv_timer_init(&loop->uv, &listener->pause);
	listener->readiness.data = listener->pause.data = listener;
	resume(listener);
	return 0;
}

void zd_listener_close(struct zd_listener *listener)
{
	if (listener->spare >= 0)
		(void)close(listener->spare);
	listener->spare = -1;
	uv_close((uv_handle_t *)&listener->readiness, NULL);
	uv_close((uv_handle_t *)&listener->pause, NULL);
}

void zd_listener_reject(int sock)
{
	int waiting;

	for (unsigned i = 0; i < MOST_WAITING; i++) { /* limited: clients may reconnect */
		waiting = accept4(sock, NULL, NULL, SOCK_CLOEXEC);
		if (waiting < 0)
			return;
		(void)close(waiting);
	}
}
