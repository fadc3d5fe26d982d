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

/* With the lock; the unit's copy is held. */
static int enqueue(struct zerod_client *client, struct zc_own_slice *own, struct zd_err *err)
{
	void *from, *to;
	int rc = zc_location_map(client, &own->to, &to, err);

	if (!rc)
		rc = zc_location_map(client, &own->from, &from, err);
	if (!rc)
		rc = zc_cuda_copy(client, zc_segment_find(client, own->to.segment), to, from, own->to.bytes,
		                  &own->copied, err);
	own->due = rc != 0;
	return rc;
}

static int copy_on_gpu(struct zerod_client *client, struct zc_op *op, struct zc_fence *copied,
                       struct zd_err *err)
{
	struct zc_own_slice *own = &op->unit->own;
	int rc = 0;

	pthread_mutex_lock(&client->lock);
	if (!op->lease)
		rc = zd_err_set(err, ZEROD_E_STALE, "unit '%s' was released meanwhile", op->unit->name);
	else if (own->due)
		rc = enqueue(client, own, err);
	if (!rc)
		*copied = own->copied;
	pthread_mutex_unlock(&client->lock);
	return rc;
}

int zc_own_slice_copy(struct zerod_client *client, struct zc_op *op, struct zc_fence *own, struct zd_err *err)
{
	if (client->on_gpus)
		return copy_on_gpu(client, op, own, err);
	*own = (struct zc_fence){0};
	return copy_on_host(client, op, err);
}

int zc_own_slices_settle(struct zerod_client *client, zerod_unit *const *units, uint32_t count,
                         struct zd_err *err)
{
	int rc = 0;

	if (!client->on_gpus)
		return 0;
	pthread_mutex_lock(&client->lock);
	for (uint32_t i = 0; i < count && !rc; i++)
		if (units[i]->shared->own.due)
			rc = enqueue(client, &units[i]->shared->own, err);
	pthread_mutex_unlock(&client->lock);
	return rc ? rc : zc_cuda_copies_finish(client, err);
}
