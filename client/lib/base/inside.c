/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inside.c - threads that are inside of a client that reconnects: no call begins with one connection and ends
 * with another.
 */
#include "client/lib/base/inside.h"

#include "client/lib/base/enter.h"
#include "client/lib/base/interrupt.h"

static _Thread_local const struct zerod_client *inside_of;

void zc_inside_stay(const struct zerod_client *client)
{
	inside_of = client;
	zc_ask_never(true);
}

/* The last thread to go wakes the one that connects again. */
static void count_out(struct zerod_client *client)
{
	if (atomic_fetch_sub(&client->ninside, 1) > 1 || !client->closed)
		return;
	ZC_LOCKED(&client->lock);
	(void)pthread_cond_broadcast(&client->reopened);
}

struct zc_inside zc_inside_begin(struct zerod_client *client)
{
	struct zc_inside inside = {.before = inside_of};

	if (!client || client->reconnect_ms == 0 || inside_of == client || zc_is_forked(client))
		return inside;
	while (atomic_fetch_add(&client->ninside, 1), client->closed) {
		count_out(client);
		pthread_mutex_lock(&client->lock);
		while (client->closed)
			pthread_cond_wait(&client->reopened, &client->lock);
		pthread_mutex_unlock(&client->lock);
	}
	inside.client = client;
	inside_of = client;
	return inside;
}

void zc_inside_end(struct zc_inside *inside)
{
	if (!inside->client)
		return;
	inside_of = inside->before;
	count_out(inside->client);
}

const struct zerod_client *zc_inside_close(struct zerod_client *client)
{
	const struct zerod_client *before = inside_of;

	pthread_mutex_lock(&client->lock);
	client->closed = true;
	while (client->ninside > 0)
		pthread_cond_wait(&client->reopened, &client->lock);
	pthread_mutex_unlock(&client->lock);
	inside_of = client;
	return before;
}

void zc_inside_open(struct zerod_client *client, const struct zerod_client *before)
{
	inside_of = before;
	zc_ask_never(false);
	ZC_LOCKED(&client->lock);
	client->closed = false;
	(void)pthread_cond_broadcast(&client->reopened);
}
