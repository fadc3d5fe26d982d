/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_slice.c - the rank's own part of its gathered copies, which the daemon may leave to its client.
 *
 * A copy within one GPU is slow when another process issues it, so daemons on GPUs fill a gathered buffer but for the slice
 * that the rank owns itself. One copy serves all gathers of one transfer, whoever waits first makes it: a GPU's stream makes small
 * ones itself, all others are made by a stream of the library's. What must hold:
 *   - nothing is copied into a buffer that is not held any more: on GPUs, the lease is looked at and the copy is enqueued
 *     in one step under the client's lock, and every release since carries a fence behind it (zc_streams_fence());
 *   - copies of one unit's shard end in the order in which they were enqueued, so that the last one's fence stands for all;
 *   - a shard is not written before the copies that read it have ended: an update that has begun makes what is due and
 *     waits for all of it. Answers come in order, so those of all gathers that were granted before it are here.
 */
#include "client/internal.h"

#include <string.h>

#include "client/cuda.h"
#include "client/stream.h"

void zc_own_slice_leave(struct zc_unit *unit, uint64_t transfer, const struct zc_location *from,
                        const struct zc_location *buffer)
{
	uint64_t offset_bytes = unit->offset_numel * zerod_dtype_bytes(unit->dtype);
	struct zc_own_slice *own = &unit->own;

	if (transfer && transfer == own->transfer)
		return; /* it joined one that is copied already, or will be */
	*own = (struct zc_own_slice){
	        .transfer = transfer, .due = true, .from = *from, .to = *buffer, .copied = own->copied};
	own->to.offset += offset_bytes;
	own->to.bytes = zc_unit_shard_bytes(unit);
}

void zc_own_slice_drop(struct zc_unit *unit)
{
	unit->own.transfer = 0;
	unit->own.due = false;
}

/* ---- By the CPU ---------------------------------------------------------------------------------------------- */

/* Once, whoever waits first; the others wait for that. */
static int copy_on_host(struct zerod_client *client, struct zc_op *op, struct zd_err *err)
{
	struct zc_hold_list mine =
	        LIST_HEAD_INITIALIZER(mine); /* another thread may release the unit meanwhile */
	struct zc_own_slice *own = &op->unit->own;
	void *from = NULL, *to = NULL;
	int rc = 0;

	pthread_mutex_lock(&client->copy_lock);
	pthread_mutex_lock(&client->lock);
	if (own->due) {
		rc = zc_strict_hold(client, op, &mine, err);
		if (!rc)
			rc = zc_location_map(client, &own->to, &to, err);
		if (!rc)
			rc = zc_location_map(client, &own->from, &from, err);
		own->due = rc != 0;
	}
	pthread_mutex_unlock(&client->lock);
	if (from)
		memcpy(to, from, zc_unit_shard_bytes(op->unit));
	zc_holds_drop(client, &mine);
	pthread_mutex_unlock(&client->copy_lock);
	return rc;
}

/* ---- By the GPU ---------------------------------------------------------------------------------------------- */

#define COPIES_AT_ONCE 64u
/* What the consumer's stream copies itself: in the time of a copy that the pushes to it take anyway. */
#define NEAR_BYTES (4ull << 20)

/* Copies that are due, of several units: enqueued together. */
struct due {
	struct zerod_client *client;
	zerod_stream *stream; /* NULL: one of the library's */
	unsigned count;
	struct zc_own_slice *slices[COPIES_AT_ONCE];
	struct zc_copy copies[COPIES_AT_ONCE];
};

static void due_init(struct due *due, struct zerod_client *client, zerod_stream *stream)
{
	due->client = client; /* large: only what is used is written */
	due->stream = stream;
	due->count = 0;
}

/* With the lock. What could not be enqueued is due again. */
static int settle(struct due *due, int rc)
{
	for (unsigned i = 0; i < due->count; i++) {
		if (rc)
			due->slices[i]->due = true;
		else
			due->slices[i]->copied = due->copies[i].copied;
	}
	due->count = 0;
	return rc;
}

/* With the lock. */
static int enqueue(struct due *due, struct zd_err *err)
{
	const struct zc_fences none = {.count = 0};
	struct zc_stream_wait wait = {
	        .fences = &none, .copied = &none, .copies = due->copies, .ncopies = due->count};

	if (due->count == 0)
		return 0;
	return settle(due, due->stream ? due->stream->ops->wait(due->stream, &wait, err)
	                               : zc_cuda_copy(due->client, due->copies, due->count, err));
}

/* With the lock; the unit's copy is held. */
static int collect(struct due *due, struct zc_own_slice *own, struct zd_err *err)
{
	struct zc_copy *copy = &due->copies[due->count];
	void *from, *to;
	int rc = zc_location_map(due->client, &own->to, &to, err);

	if (!rc)
		rc = zc_location_map(due->client, &own->from, &from, err);
	if (rc)
		return rc;
	*copy = (struct zc_copy){.segment = zc_segment_find(due->client, own->to.segment),
	                         .to = to,
	                         .from = from,
	                         .bytes = own->to.bytes,
	                         .after = own->copied};
	due->slices[due->count++] = own;
	own->due = false;
	return due->count == COPIES_AT_ONCE ? enqueue(due, err) : 0;
}

/* With the lock. */
static int check_held(struct zc_op *const *ops, uint32_t count, struct zd_err *err)
{
	for (uint32_t i = 0; i < count; i++)
		if (!ops[i]->lease)
			return zd_err_set(err, ZEROD_E_STALE, "unit '%s' was released meanwhile",
			                  ops[i]->unit->name);
	return 0;
}

/* With the lock: those that are due, all by one stream, or the small ones by one and the others by another. */
static int collect_due(struct zc_op *const *ops, uint32_t count, struct due *near, struct due *far,
                       struct zd_err *err)
{
	int failed, rc = check_held(ops, count, err);

	for (uint32_t i = 0; i < count && !rc; i++) {
		struct zc_own_slice *own = &ops[i]->unit->own;

		if (own->due)
			rc = collect(near && own->to.bytes <= NEAR_BYTES ? near : far, own, err);
	}
	failed = enqueue(far, err);
	return rc ? rc : failed;
}

static void merge_copied(struct zc_op *const *ops, uint32_t count, struct zc_fence_merge *copied)
{
	for (uint32_t i = 0; i < count; i++)
		if (ops[i]->unit->own.copied.value)
			zc_fence_merge_add(copied, ops[i]->unit->own.copied);
}

static int copy_on_gpu(struct zerod_client *client, struct zc_op *const *ops, uint32_t count,
                       struct zc_fence_merge *copied, struct zd_err *err)
{
	struct due due;
	int rc;

	due_init(&due, client, NULL);
	pthread_mutex_lock(&client->lock);
	rc = collect_due(ops, count, NULL, &due, err);
	if (!rc)
		merge_copied(ops, count, copied);
	pthread_mutex_unlock(&client->lock);
	return rc;
}

int zc_own_slices_append(struct zerod_client *client, struct zc_op *const *ops, uint32_t count,
                         zerod_stream *stream, const struct zc_fences *fences, struct zd_err *err)
{
	struct zc_stream_wait wait = {.fences = fences};
	struct zc_fence_merge copied;
	struct due near, far;
	bool locked;
	int rc;

	zc_fence_merge_init(&copied);
	due_init(&near, client, stream);
	due_init(&far, client, NULL);
	pthread_mutex_lock(&client->lock);
	rc = collect_due(ops, count, &near, &far, err);
	merge_copied(ops, count, &copied);
	wait.copied = &copied.fences;
	wait.copies = near.copies;
	wait.ncopies = near.count;
	locked = near.count > 0;
	if (!locked)
		pthread_mutex_unlock(&client->lock);
	if (!rc)
		rc = stream->ops->wait(stream, &wait, err);
	(void)settle(&near, rc);
	if (locked)
		pthread_mutex_unlock(&client->lock);
	return rc;
}

int zc_own_slices_copy(struct zerod_client *client, struct zc_op *const *ops, uint32_t count,
                       struct zc_fence_merge *copied, struct zd_err *err)
{
	int rc = 0;

	if (client->on_gpus)
		return copy_on_gpu(client, ops, count, copied, err);
	for (uint32_t i = 0; i < count && !rc; i++)
		rc = copy_on_host(client, ops[i], err);
	return rc;
}

int zc_own_slices_settle(struct zerod_client *client, zerod_unit *const *units, uint32_t count,
                         struct zd_err *err)
{
	struct zc_fence_merge copied;
	struct due due;
	int failed, rc = 0;

	if (!client->on_gpus)
		return 0;
	zc_fence_merge_init(&copied);
	due_init(&due, client, NULL);
	pthread_mutex_lock(&client->lock);
	for (uint32_t i = 0; i < count && !rc; i++)
		if (units[i]->shared->own.due)
			rc = collect(&due, &units[i]->shared->own, err);
	failed = enqueue(&due, err);
	rc = rc ? rc : failed;
	for (uint32_t i = 0; i < count; i++)
		if (units[i]->shared->own.copied.value)
			zc_fence_merge_add(&copied, units[i]->shared->own.copied);
	pthread_mutex_unlock(&client->lock);
	return rc ? rc : zc_cuda_copies_wait(client, &copied.fences, err);
}
