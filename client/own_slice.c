/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_slice.c - the rank's own part of its gathered copies, which the daemon may leave to its client.
 *
 * A copy within one GPU is slow when another process issues it, so daemons on GPUs fill a gathered buffer but for the slice
 * that the rank owns itself. One copy serves all gathers of one transfer, whoever waits first makes it. What must hold:
 *   - nothing is copied into a buffer that is not held any more: on GPUs, the lease is looked at and the copy is enqueued
 *     in one step under the client's lock, and every release since carries a fence behind it (zc_streams_fence());
 *   - a shard is not written before the copies that read it have ended: an update that has begun makes what is due and
 *     waits for all of it. Answers come in order, so those of all gathers that were granted before it are here.
 */
#include "client/internal.h"

#include <string.h>

#include "client/cuda.h"

void zc_own_slice_leave(struct zc_unit *unit, uint64_t transfer, const struct zc_location *from,
                        const struct zc_location *buffer)
{
	uint64_t offset_bytes = unit->offset_numel * zerod_dtype_bytes(unit->dtype);
	struct zc_own_slice *own = &unit->own;

	if (transfer && transfer == own->transfer)
		return; /* it joined one that is copied already, or will be */
	*own = (struct zc_own_slice){.transfer = transfer, .due = true, .from = *from, .to = *buffer};
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

/* Copies that are due, of several units: enqueued together. */
struct due {
	struct zerod_client *client;
	unsigned count;
	struct zc_own_slice *slices[COPIES_AT_ONCE];
	struct zc_copy copies[COPIES_AT_ONCE];
};

/* With the lock. What could not be enqueued is due again. */
static int enqueue(struct due *due, struct zd_err *err)
{
	int rc = zc_cuda_copy(due->client, due->copies, due->count, err);

	for (unsigned i = 0; i < due->count; i++) {
		if (rc)
			due->slices[i]->due = true;
		else
			due->slices[i]->copied = due->copies[i].copied;
	}
	due->count = 0;
	return rc;
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
	                         .bytes = own->to.bytes};
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

static int copy_on_gpu(struct zerod_client *client, struct zc_op *const *ops, uint32_t count,
                       struct zc_fence_merge *copied, struct zd_err *err)
{
	struct due due;
	int failed, rc;

	due.client = client; /* large: only what is used is written */
	due.count = 0;
	pthread_mutex_lock(&client->lock);
	rc = check_held(ops, count, err);
	for (uint32_t i = 0; i < count && !rc; i++)
		if (ops[i]->unit->own.due)
			rc = collect(&due, &ops[i]->unit->own, err);
	failed = enqueue(&due, err);
	rc = rc ? rc : failed;
	for (uint32_t i = 0; i < count && !rc; i++)
		if (ops[i]->unit->own.copied.value)
			zc_fence_merge_add(copied, ops[i]->unit->own.copied);
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
	struct due due;
	int failed, rc = 0;

	if (!client->on_gpus)
		return 0;
	due.client = client;
	due.count = 0;
	pthread_mutex_lock(&client->lock);
	for (uint32_t i = 0; i < count && !rc; i++)
		if (units[i]->shared->own.due)
			rc = collect(&due, &units[i]->shared->own, err);
	failed = enqueue(&due, err);
	rc = rc ? rc : failed;
	pthread_mutex_unlock(&client->lock);
	return rc ? rc : zc_cuda_copies_finish(client, err);
}
