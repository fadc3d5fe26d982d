/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_watch.c - a thread that releases the client's GPU streams when the daemon has died.
 *
 * A CPU thread that waits for the daemon checks the connection between two sleeps. A GPU's stream does not,
 * and would wait for ever for a counter that the dead daemon does not write. One thread per client therefore
 * sleeps until the connection ends, without reading before that, and then stores ZD_FENCE_ABORTED in the
 * daemon's place. The streams then continue with undefined data, but the client is broken and poisoned by
 * then. If the connection ends while the daemon lives, copies in progress on the daemon's GPUs still write
 * their counters. The thread therefore polls the page until the client is closed.
 */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/thread.h"
#include "client/lib/conn/request.h"
#include "client/lib/device/cuda_internal.h"

#define REPEAT_MS 20

void zc_waits_abort(struct zerod_client *client)
{
	for (uint32_t i = 0; i < client->ntimelines; i++)
		__atomic_store_n(&client->daemon_page[i], (uint64_t)ZD_FENCE_ABORTED, __ATOMIC_RELEASE);
}

/* Marks the client lost before its streams are released, so that a caller that sees a stream continue finds
 * the reason. The streams are released before the lock is taken, because the holder of the lock can wait in a
 * driver call for a full stream. */
static void take_loss(struct zerod_client *client)
{
	struct zd_err err;

	client->lost = true;
	client->poisoned = true;
	zc_waits_abort(client);
	(void)zd_err_set(&err, ZEROD_E_DISCONNECTED, "the daemon closed the connection");
	(void)zc_read_last_words(client, &err);
}

/* False when the watch is to stop. POLLHUP is reported whether it is asked for or not. */
static bool await_loss(const struct zerod_client *client, const struct zc_cuda *cuda)
{
	struct pollfd fds[] = {{.fd = client->endpoint.sock, .events = POLLRDHUP},
	                       {.fd = cuda->stop, .events = POLLIN}};

	while (poll(fds, 2, -1) < 0 && errno == EINTR)
		;
	return !(fds[1].revents & POLLIN);
}

static bool pause_watch(const struct zc_cuda *cuda)
{
	struct pollfd stop = {.fd = cuda->stop, .events = POLLIN};

	return poll(&stop, 1, REPEAT_MS) != 1;
}

static void *watch_main(void *arg)
{
	struct zerod_client *client = arg;
	const struct zc_cuda *cuda = client->cuda;

	if (!await_loss(client, cuda))
		return NULL;
	take_loss(client);
	do
		zc_waits_abort(client);
	while (pause_watch(cuda));
	return NULL;
}

int zc_watch_start(struct zerod_client *client, struct zc_cuda *cuda, struct zd_err *err)
{
	int error;

	if (cuda->watching)
		return 0;
	cuda->stop = eventfd(0, EFD_CLOEXEC);
	if (cuda->stop < 0)
		return zd_err_errno(err, errno, "watching the connection");
	error = zd_thread_create(&cuda->watcher, watch_main, client);
	if (error) {
		(void)close(cuda->stop);
		return zd_err_errno(err, error, "watching the connection");
	}
	cuda->watching = true;
	return 0;
}

void zc_watch_stop(struct zc_cuda *cuda)
{
	if (!cuda->watching)
		return;
	(void)eventfd_write(cuda->stop, 1);
	(void)pthread_join(cuda->watcher, NULL);
	zc_watch_forget(cuda);
}

void zc_watch_forget(struct zc_cuda *cuda)
{
	if (cuda->watching)
		(void)close(cuda->stop);
	cuda->watching = false;
}
