/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c - waits for commits by a descriptor, without a thread.
 *
 * The descriptor is an epoll instance with the client's socket and an eventfd. The program calls
 * zerod_watch_take() when it is readable, which reads the socket if no other thread does so. The thread that
 * receives the answer writes the eventfd. While a client has watches, its endpoint rests whenever no thread
 * reads, so that the daemon's packets arrive by the socket.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/text.h"
#include "client/lib/base/enter.h"
#include "client/lib/base/options.h"
#include "client/lib/calls/read.h"
#include "client/lib/conn/request.h"
#include "client/lib/conn/watch.h"

static int take_answer(struct zerod_client *client, struct zc_op *op, const Zd__Reply *reply,
                       struct zd_err *err)
{
	struct zerod_watch *watch = *(struct zerod_watch **)op->data;
	int rc;

	(void)client;
	if (!watch)
		return 0;
	rc = zc_commit_wait_take(reply, watch->saved, &watch->made, err);
	if (rc && rc != ZEROD_E_UNSUPPORTED)
		return rc;
	if (rc)
		watch->failure = *err;
	watch->answered = true;
	zc_watch_wake(watch);
	return 0;
}

static void take_failure(struct zerod_client *client, struct zc_op *op)
{
	struct zerod_watch *watch = *(struct zerod_watch **)op->data;

	(void)client;
	if (!watch)
		return;
	(void)zd_err_set(&watch->failure, op->status, "%s",
	                 op->error && op->error[0] ? op->error : zerod_status_name(op->status));
	watch->answered = true;
	zc_watch_wake(watch);
}

static const struct zc_ticket_type watching = {
        .what = "a watch",
        .body = ZD__REPLY__BODY_COMMIT_WAIT,
        .answered = take_answer,
        .failed = take_failure,
        .deinit = zc_ticket_free_data,
};

void zc_watches_forget(struct zerod_client *client)
{
	struct zerod_watch *watch;

	while ((watch = LIST_FIRST(&client->watches))) {
		LIST_REMOVE(watch, link);
		watch->client = NULL;
		if (!zc_is_forked(client)) /* the parent has the eventfd as well */
			zc_watch_wake(watch);
	}
}

static void free_watch(struct zerod_watch *watch)
{
	if (watch->epoll >= 0)
		(void)close(watch->epoll);
	if (watch->event >= 0)
		(void)close(watch->event);
	free(watch);
}

/* NULL: SYSTEM. */
static struct zerod_watch *open_watch(struct zerod_client *client, struct zd_err *err)
{
	struct epoll_event readable = {.events = EPOLLIN};
	struct zerod_watch *watch = calloc(1, sizeof(*watch));

	if (!watch) {
		(void)zd_err_errno(err, ENOMEM, "opening a watch");
		return NULL;
	}
	watch->client = client;
	watch->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	watch->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (watch->event < 0 || watch->epoll < 0 ||
	    epoll_ctl(watch->epoll, EPOLL_CTL_ADD, watch->event, &readable) ||
	    epoll_ctl(watch->epoll, EPOLL_CTL_ADD, client->endpoint.sock, &readable)) {
		(void)zd_err_errno(err, errno, "opening a watch");
		free_watch(watch);
		return NULL;
	}
	return watch;
}

static int post(struct zerod_watch *watch, Zd__CommitWait *wait, uint32_t deadline_ms, struct zd_err *err)
{
	struct zerod_client *client = watch->client;
	Zd__Request request = ZD_REQUEST(COMMIT_WAIT, commit_wait, wait);
	struct zerod_watch **data = malloc(sizeof(struct zerod_watch *));
	zerod_ticket ticket = {0};
	int rc;

	if (!data)
		return zd_err_errno(err, ENOMEM, "opening a watch");
	*data = watch;
	rc = zc_post_other(client, &watching, data, NULL, &request, deadline_ms, &ticket, err);
	if (rc)
		return rc;
	watch->id = ticket.id;
	zc_flush(client);
	ZC_LOCKED(&client->lock);
	LIST_INSERT_HEAD(&client->watches, watch, link);
	zc_drain(client);
	return 0;
}

int zerod_commit_watch(zerod_client *client, const struct zerod_commit_source *source, uint64_t after,
                       zerod_watch **watch)
{
	Zd__CommitWait wait = ZD__COMMIT_WAIT__INIT;
	struct zerod_watch *opened;
	uint32_t deadline_ms = 0;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter(client, &err);

	if (!rc && !watch)
		rc = zd_err_set(err, ZEROD_E_INVALID, "watch is NULL");
	if (!rc)
		rc = zc_commit_wait_make(source, after, &wait, &deadline_ms, err);
	if (rc)
		return rc;
	opened = open_watch(client, err);
	if (!opened)
		return ZEROD_E_SYSTEM;
	opened->saved = wait.saved;
	rc = post(opened, &wait, deadline_ms, err);
	if (rc)
		free_watch(opened);
	else
		*watch = opened;
	return rc;
}

int zerod_watch_fd(const zerod_watch *watch)
{
	return watch ? watch->epoll : -1;
}

int zerod_watch_take(zerod_watch *watch, struct zerod_committed *committed)
{
	struct zerod_client *client = watch ? watch->client : NULL;
	struct zd_err *err;
	uint64_t woken;
	bool answered;
	ZC_INSIDE(client);
	int rc = zc_enter_quietly(client, &err);

	if (watch && !client)
		rc = zd_err_set(err, ZEROD_E_STATE, "the client was closed");
	if (!rc)
		rc = zc_result_check(committed, "committed", err);
	if (rc || !client)
		return rc;
	pthread_mutex_lock(&client->lock);
	if (!watch->answered && read(watch->event, &woken, sizeof(woken)) >= -1)
		zc_drain(client);
	answered = watch->answered;
	pthread_mutex_unlock(&client->lock);
	if (!answered)
		return zd_err_set(err, ZEROD_E_BUSY, "there is no later commit yet");
	if (watch->failure.status)
		return zd_err_set(err, watch->failure.status, "%s", watch->failure.text);
	zc_result_fill(committed, &watch->made, sizeof(watch->made));
	return 0;
}

void zerod_watch_end(zerod_watch *watch)
{
	struct zerod_client *client = watch ? watch->client : NULL;
	bool waits = false;
	ZC_INSIDE(client);

	if (!watch || (client && zc_is_forked(client)))
		return;
	if (client) {
		pthread_mutex_lock(&client->lock);
		struct zc_op *op = zc_op_find(client, watch->id);
		if (op) {
			*(struct zerod_watch **)op->data = NULL;
			waits = !op->answered && client->session;
			zc_ticket_drop(client, op);
		}
		LIST_REMOVE(watch, link);
		pthread_mutex_unlock(&client->lock);
	}
	if (waits)
		zc_transmit_cancel(client, watch->id);
	free_watch(watch);
}
