/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_slice.c - the rank's own part of its gathered buffers, which the daemon may leave to its client.
 *
 * A copy within one GPU is slow when another process issues it. So daemons on GPUs fill a gathered buffer
 * except for the slice that the rank itself owns. One copy serves all gathers of one transfer, and is made at
 * the first wait: small ones by the waiting GPU's stream itself, all others by a stream of the library's.
 * Invariants:
 *   - nothing is copied into a buffer without a lease: on GPUs, checking the lease and enqueueing the copy
 *     are one step under the client's lock, and every later release has a fence behind the copy
 *     (zc_streams_fence());
 *   - a waiting stream depends on no other stream of the caller's: a copy that such a stream has not reached
 *     yet is repeated, with the same bytes, by the library's stream;
 *   - a shard is not written before the copies that read it have ended: an update that has begun makes the
 *     copies that are due and waits for all copies. Answers arrive in order, so the answers of all gathers
 *     that were granted before the update have arrived by then;
 *   - a shard is not freed before these copies have ended, and no copy begins while it is moved
 *     (placement.c).
 */
#include "client/client.h"

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
	own->transfer = transfer;
	own->due = true;
	own->from = *from;
	own->to = *buffer;
	own->copied = (struct zc_fence){0};
	own->to.offset += offset_bytes;
	own->to.bytes = zc_unit_shard_bytes(unit);
}

/* The daemon has filled the own slice of this transfer itself. The record of another transfer is dropped: its
 * buffer's place may belong to another unit by now. */
void zc_own_slice_is_there(struct zc_unit *unit, uint64_t transfer)
{
	struct zc_own_slice *own = &unit->own;

	if (transfer == own->transfer)
		return; /* joined when the shard had been written since, which waited for the copy */
	own->transfer = transfer;
	own->due = false;
	own->copied = (struct zc_fence){0};
}

/* The transfer of a slice that has been copied stays known, so that a further gather of that transfer needs
 * no copy. */
void zc_own_slice_drop(struct zc_unit *unit)
{
	if (unit->own.due)
		unit->own.transfer = 0;
	unit->own.due = false;
}

/* ---- By the CPU ---------------------------------------------------------------------------------------- */

/* The first thread copies; all others wait for that copy. */
static int copy_on_host(struct zerod_client *client, struct zc_unit *unit, struct zd_err *err)
{
	struct zc_hold_list mine =
	        LIST_HEAD_INITIALIZER(mine); /* another thread may release the unit meanwhile */
	struct zc_own_slice *own = &unit->own;
	void *from = NULL, *to = NULL;
	int rc = 0;

	pthread_mutex_lock(&client->copy_lock);
	pthread_mutex_lock(&client->lock);
	if (own->due) {
		rc = zc_strict_hold(client, unit, &own->to, &mine, err);
		if (!rc)
			rc = zc_location_map(client, &own->to, &to, err);
		if (!rc)
			rc = zc_location_map(client, &own->from, &from, err);
		own->due = rc != 0;
	}
	pthread_mutex_unlock(&client->lock);
	if (from)
		memcpy(to, from, zc_unit_shard_bytes(unit));
	zc_holds_drop(client, &mine);
	pthread_mutex_unlock(&client->copy_lock);
	return rc;
}

/* ---- By the GPU ---------------------------------------------------------------------------------------- */

#define COPIES_AT_ONCE 64u
/* Own slices up to this size are copied by the consumer's stream itself, in the time that the pushes into the
 * same buffer take anyway. */
#define NEAR_BYTES (4ull << 20)

static bool has_passed(const struct zerod_client *client, struct zc_fence fence)
{
	uint64_t counter;

	if (fence.value == 0)
		return true;
	counter = __atomic_load_n(&client->gpu_page[fence.timeline], __ATOMIC_ACQUIRE);
	return zc_fence_reached(counter, fence.value);
}

static bool is_library_stream(uint32_t timeline)
{
	return timeline >= ZEROD_MAX_STREAMS;
}

/* Returns the place for the stream's last copy of the shard; NULL: too many other streams read the shard
 * now. */
static struct zc_fence *reader_place(const struct zerod_client *client, struct zc_own_slice *own,
                                     uint32_t timeline)
{
	struct zc_fence *place = NULL;

	if (is_library_stream(timeline))
		return &own->readers[0];
	for (unsigned i = 1; i < ZC_SHARD_READERS; i++) {
		if (own->readers[i].timeline == timeline)
			return &own->readers[i];
		if (has_passed(client, own->readers[i]))
			place = &own->readers[i];
	}
	return place;
}

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
	due->client = client; /* large: only the used part is written */
	due->stream = stream;
	due->count = 0;
}

/* With the lock. Copies that could not be enqueued are due again. */
static int settle(struct due *due, int rc)
{
	for (unsigned i = 0; i < due->count; i++) {
		struct zc_own_slice *own = due->slices[i];
		struct zc_fence copied = due->copies[i].copied, *place;

		own->due = rc != 0;
		if (rc)
			continue;
		own->copied = copied;
		place = reader_place(due->client, own, copied.timeline);
		zd_assert(place); /* there was one when it was collected */
		*place = copied;
	}
	due->count = 0;
	return rc;
}

/* With the lock. */
static int enqueue_due(struct due *due, struct zd_err *err)
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
static int add_due(struct due *due, struct zc_own_slice *own, struct zd_err *err)
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
	return due->count == COPIES_AT_ONCE ? enqueue_due(due, err) : 0;
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

/* Whether the copy is in a stream of the caller's that has not reached it yet. */
static bool is_held_up(const struct zerod_client *client, const struct zc_own_slice *own,
                       const zerod_stream *stream)
{
	struct zc_fence copied = own->copied;

	return copied.value && !is_library_stream(copied.timeline) &&
	       !(stream && stream->timeline == copied.timeline) && !has_passed(client, copied);
}

/* Enqueues small copies on the waiting stream (NULL: none), all others on the library's. With the lock. */
static int collect_due(struct zc_op *const *ops, uint32_t count, struct due *near, struct due *far,
                       struct zd_err *err)
{
	const zerod_stream *stream = near ? near->stream : NULL;
	int failed, rc = check_held(ops, count, err);

	for (uint32_t i = 0; i < count && !rc; i++) {
		struct zc_own_slice *own = &ops[i]->unit->own;
		bool is_near = stream && own->to.bytes <= NEAR_BYTES &&
		               reader_place(far->client, own, stream->timeline);

		if (own->due)
			rc = add_due(is_near ? near : far, own, err);
		else if (is_held_up(far->client, own, stream))
			rc = add_due(far, own, err);
	}
	failed = enqueue_due(far, err);
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
                         zerod_stream *stream, struct zc_stream_wait *wait, struct zc_fence_merge *copied,
                         struct zd_err *err)
{
	struct due near, far;
	bool locked;
	int rc;

	due_init(&near, client, stream);
	due_init(&far, client, NULL);
	pthread_mutex_lock(&client->lock);
	rc = collect_due(ops, count, &near, &far, err);
	merge_copied(ops, count, copied);
	wait->copied = &copied->fences;
	wait->copies = near.copies;
	wait->ncopies = near.count;
	locked = near.count > 0;
	if (!locked)
		pthread_mutex_unlock(&client->lock);
	if (!rc)
		rc = stream->ops->wait(stream, wait, err);
	(void)settle(&near, rc);
	if (locked)
		pthread_mutex_unlock(&client->lock);
	return rc;
}

int zc_own_slices_await(struct zerod_client *client, struct zc_op *const *ops, uint32_t count,
                        uint64_t deadline_ns, struct zd_err *err)
{
	uint64_t ask_ns = zc_ask_from(client);
	int failed = 0;
	uint32_t i = 0;

	pthread_mutex_lock(&client->lock);
	while (i < count && !failed) {
		const struct zc_unit *unit = ops[i]->unit;

		if (unit->moving && (unit->own.due || is_held_up(client, &unit->own, NULL))) {
			failed = zc_cond_await(client, &client->moved, deadline_ns, &ask_ns);
			i = 0;
		} else {
			i++;
		}
	}
	if (failed)
		(void)zd_err_set(err, failed, "waited for another thread that moves unit '%s'",
		                 ops[i]->unit->name);
	pthread_mutex_unlock(&client->lock);
	return failed;
}

int zc_own_slices_copy(struct zerod_client *client, struct zc_op *const *ops, uint32_t count,
                       struct zc_fence_merge *copied, struct zd_err *err)
{
	int rc = 0;

	if (client->on_gpus)
		return copy_on_gpu(client, ops, count, copied, err);
	for (uint32_t i = 0; i < count && !rc; i++)
		rc = copy_on_host(client, ops[i]->unit, err);
	return rc;
}

/* With the lock. */
static void add_readers(const struct zerod_client *client, const struct zc_own_slice *own,
                        struct zc_fence_merge *readers)
{
	for (unsigned i = 0; i < ZC_SHARD_READERS; i++)
		if (!has_passed(client, own->readers[i]))
			zc_fence_merge_add(readers, own->readers[i]);
}

/* Makes the copies that are due, and finds the streams that read the units' shards. With the lock. */
static int find_readers(struct zerod_client *client, struct zc_unit *const *units, uint32_t count,
                        struct zc_fence_merge *readers, struct zd_err *err)
{
	struct due due;
	int failed, rc = 0;

	due_init(&due, client, NULL);
	for (uint32_t i = 0; i < count && !rc; i++)
		if (units[i]->own.due)
			rc = add_due(&due, &units[i]->own, err);
	failed = enqueue_due(&due, err);
	for (uint32_t i = 0; i < count; i++)
		add_readers(client, &units[i]->own, readers);
	return rc ? rc : failed;
}

static int settle_on_host(struct zerod_client *client, struct zc_unit *const *units, uint32_t count,
                          struct zd_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < count && !rc; i++)
		rc = copy_on_host(client, units[i], err);
	return rc;
}

/* While this waits, another thread may have copied once more what is held up. Nobody does so any more when
 * all have passed. */
int zc_own_slices_settle(struct zerod_client *client, struct zc_unit *const *units, uint32_t count,
                         uint64_t deadline_ns, struct zc_fence_merge *copied, struct zd_err *err)
{
	struct zc_fence_merge readers;
	int rc;

	if (!client->on_gpus)
		return settle_on_host(client, units, count, err);
	if (copied) {
		pthread_mutex_lock(&client->lock);
		rc = find_readers(client, units, count, copied, err);
		pthread_mutex_unlock(&client->lock);
		return rc;
	}
	do {
		zc_fence_merge_init(&readers);
		pthread_mutex_lock(&client->lock);
		rc = find_readers(client, units, count, &readers, err);
		pthread_mutex_unlock(&client->lock);
		if (!rc)
			rc = zc_cuda_copies_wait(client, &readers.fences, deadline_ns, err);
	} while (!rc && readers.fences.count > 0);
	return rc;
}
