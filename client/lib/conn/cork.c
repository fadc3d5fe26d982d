/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cork.c - batches: requests that a thread collects and sends together.
 *
 * A batch belongs to one thread of one client, and only that thread fills and sends it. Requests are sent in
 * the order of the thread's calls: a call that waits for its answer is the last of the batch, in the same
 * packet if it fits. A batch whose thread ended without uncorking is freed with the client; its tickets are
 * never answered.
 */
#include <stdlib.h>
#include <string.h>

#include "client/lib/base/enter.h"
#include "client/lib/base/errors.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

struct zc_batch *zc_batch_find(struct zerod_client *client)
{
	uint64_t thread = zc_thread_serial();
	struct zc_batch *batch;

	if (atomic_load_explicit(&client->ncorked, memory_order_relaxed) == 0)
		return NULL;
	ZC_LOCKED(&client->lock);
	LIST_FOREACH (batch, &client->batches, link)
		if (batch->thread == thread)
			break;
	return batch;
}

static int send_batch(struct zerod_client *client, struct zc_batch *batch, uint64_t deadline_ns,
                      struct zd_err *err)
{
	int rc;

	if (batch->count == 0)
		return 0;
	rc = zc_transmit(client, batch->bytes, batch->nbytes, batch->ids, batch->count, deadline_ns, err);
	if (rc && !batch->failure.status)
		batch->failure = *err;
	batch->count = 0;
	batch->nbytes = 0;
	return rc;
}

void zc_batch_add(struct zerod_client *client, struct zc_batch *batch, const uint8_t *bytes, size_t nbytes,
                  uint64_t id)
{
	struct zd_err ignored; /* the batch's failure, and its requests' */

	if (batch->count == ZD_MAX_BATCH || batch->nbytes + nbytes > sizeof(batch->bytes))
		(void)send_batch(client, batch, zc_default_ns(client), &ignored);
	memcpy(batch->bytes + batch->nbytes, bytes, nbytes);
	batch->nbytes += nbytes;
	batch->ids[batch->count++] = id;
}

int zc_batch_add_last(struct zerod_client *client, struct zc_batch *batch, const uint8_t *bytes,
                      size_t nbytes, uint64_t id, uint64_t deadline_ns, struct zd_err *err)
{
	zc_batch_add(client, batch, bytes, nbytes, id);
	return send_batch(client, batch, deadline_ns, err);
}

void zc_flush(struct zerod_client *client)
{
	struct zc_batch *batch = zc_batch_find(client);
	struct zd_err ignored;

	if (batch)
		(void)send_batch(client, batch, zc_default_ns(client), &ignored);
}

/* A batch is large. One is therefore stored for the next cork. */
static struct zc_batch *take_batch(struct zerod_client *client)
{
	struct zc_batch *batch;

	pthread_mutex_lock(&client->lock);
	batch = client->spare_batch;
	client->spare_batch = NULL;
	pthread_mutex_unlock(&client->lock);
	return batch ? batch : malloc(sizeof(*batch));
}

static void give_batch_back(struct zerod_client *client, struct zc_batch *batch)
{
	struct zc_batch *surplus = batch;

	pthread_mutex_lock(&client->lock);
	LIST_REMOVE(batch, link);
	if (!client->spare_batch) {
		client->spare_batch = batch;
		surplus = NULL;
	}
	pthread_mutex_unlock(&client->lock);
	free(surplus);
}

void zerod_cork(zerod_client *client)
{
	struct zc_batch *batch;
	struct zd_err *err;
	ZC_INSIDE(client);

	if (zc_enter_quietly(client, &err))
		return;
	batch = zc_batch_find(client);
	if (batch) {
		batch->depth++;
		return;
	}
	batch = take_batch(client);
	if (!batch) /* requests are then sent one by one, which is only slower */
		return;
	batch->thread = zc_thread_serial();
	batch->depth = 1;
	batch->failure.status = 0;
	batch->count = 0;
	batch->nbytes = 0;
	pthread_mutex_lock(&client->lock);
	LIST_INSERT_HEAD(&client->batches, batch, link);
	pthread_mutex_unlock(&client->lock);
	atomic_fetch_add(&client->ncorked, 1);
}

int zerod_uncork(zerod_client *client)
{
	struct zc_batch *batch;
	struct zd_err *err;
	ZC_INSIDE(client);
	int rc = zc_enter_quietly(client, &err);

	if (rc == ZEROD_E_FORKED || !client)
		return rc;
	batch = zc_batch_find(client);
	if (!batch)
		return rc ? rc : zd_err_set(err, ZEROD_E_STATE, "uncork without a cork by this thread");
	if (--batch->depth > 0)
		return rc;
	pthread_mutex_lock(&client->lock);
	zc_outstanding_drain(client, batch->count);
	pthread_mutex_unlock(&client->lock);
	(void)send_batch(client, batch, zc_default_ns(client), err);
	rc = batch->failure.status;
	if (rc)
		*err = batch->failure;
	atomic_fetch_sub(&client->ncorked, 1);
	give_batch_back(client, batch);
	return rc;
}

void zc_batches_free(struct zerod_client *client)
{
	struct zc_batch *batch;

	while ((batch = LIST_FIRST(&client->batches))) {
		LIST_REMOVE(batch, link);
		free(batch);
	}
	free(client->spare_batch);
}
