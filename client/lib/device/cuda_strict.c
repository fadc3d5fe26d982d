/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_strict.c - strict clients on GPUs: access is revoked before the daemon sees the fence that permits the
 * reuse of the memory.
 *
 * A stream's holds end when the stream has run all work that was in it at the release. Only then may the
 * daemon give the memory to another unit (strict.c). On a GPU only the CPU can revoke access, and functions
 * that run on a stream must not call the driver. A strict client's GPUs therefore write their counters into
 * a separate page, client->gpu_page. A thread, the fence forwarder, drops the holds that end with a value,
 * and then copies the value to the page that the daemon reads. Invariants:
 *   - every value that a GPU writes is forwarded, with holds or without, because values of a timeline are in
 *     order;
 *   - code of this process that checks the progress of a GPU reads the GPUs' page. No work of a GPU therefore
 *     waits for the forwarder, whose calls of the driver can wait for that work.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/thread.h"
#include "client/lib/device/cuda_internal.h"
#include "client/lib/segments/strict.h"

#define FIRST_PAUSE_NS 10000l
#define LAST_PAUSE_NS  1000000l /* the limit, for streams with much work */

/* A value that a GPU will write, and the holds that last until then. */
struct zc_forwarded_fence {
	struct zc_fence fence;
	struct zc_hold_list holds;
	TAILQ_ENTRY(zc_forwarded_fence) link;
};

/* ---- Values -------------------------------------------------------------------------------------------- */

static struct zc_forwarded_fence *new_forwarded(struct zd_err *err)
{
	struct zc_forwarded_fence *forwarded = calloc(1, sizeof(*forwarded));

	if (forwarded)
		LIST_INIT(&forwarded->holds);
	else
		(void)zd_err_errno(err, ENOMEM, "holding gathered buffers for a stream");
	return forwarded;
}

static void free_forwarded(struct zerod_client *client, struct zc_forwarded_fence *forwarded)
{
	zc_holds_drop(client, &forwarded->holds);
	free(forwarded);
}

int zc_forwarded_fence_new(struct zerod_client *client, const struct zc_hold_list *holds,
                           struct zc_forwarded_fence **made, struct zd_err *err)
{
	struct zc_forwarded_fence *forwarded;
	int rc = 0;

	if (!client->strict)
		return 0;
	forwarded = new_forwarded(err);
	if (!forwarded)
		return ZEROD_E_SYSTEM;
	if (holds)
		rc = zc_holds_copy(client, holds, &forwarded->holds, err);
	if (rc)
		free(forwarded);
	else
		*made = forwarded;
	return rc;
}

int zc_forwarded_fence_new_for_copies(struct zerod_client *client, const struct zc_copy *copies,
                                      unsigned count, struct zc_forwarded_fence **made, struct zd_err *err)
{
	struct zc_forwarded_fence *forwarded;
	int rc = 0;

	if (!client->strict)
		return 0;
	forwarded = new_forwarded(err);
	if (!forwarded)
		return ZEROD_E_SYSTEM;
	for (unsigned i = 0; i < count && !rc; i++)
		if (!copies[i].segment->is_file)
			rc = zc_strict_hold_segment(client, copies[i].segment, &forwarded->holds, err);
	if (rc)
		free_forwarded(client, forwarded);
	else
		*made = forwarded;
	return rc;
}

void zc_forwarded_fence_enqueue(struct zerod_client *client, struct zc_forwarded_fence *forwarded,
                                struct zc_fence fence, int rc)
{
	struct zc_cuda *cuda = client->cuda;

	if (!forwarded)
		return;
	if (rc) {
		free_forwarded(client, forwarded);
		return;
	}
	forwarded->fence = fence;
	ZC_LOCKED(&cuda->forwarder.lock);
	TAILQ_INSERT_TAIL(&cuda->forwarder.queue, forwarded, link);
	pthread_cond_broadcast(&cuda->forwarder.changed);
}

/* Finds the first queued value that its GPU has written; of one timeline, the lowest. With the forwarder's
 * lock. */
static struct zc_forwarded_fence *find_written(const struct zerod_client *client,
                                               const struct zc_fence_forwarder *forwarder)
{
	struct zc_forwarded_fence *forwarded;

	TAILQ_FOREACH (forwarded, &forwarder->queue, link)
		if (zc_fence_reached(zc_counter_load(client->gpu_page, forwarded->fence.timeline),
		                     forwarded->fence.value))
			return forwarded;
	return NULL;
}

void zc_fence_forwarder_settle(struct zerod_client *client)
{
	struct zc_cuda *cuda = client->cuda;

	if (!client->strict || !cuda)
		return;
	pthread_mutex_lock(&cuda->forwarder.lock);
	while (find_written(client, &cuda->forwarder))
		pthread_cond_wait(&cuda->forwarder.changed, &cuda->forwarder.lock);
	pthread_mutex_unlock(&cuda->forwarder.lock);
}

/* ---- The thread ---------------------------------------------------------------------------------------- */

/* Drops the holds and forwards the value, which remains in the queue until then. With the forwarder's lock,
 * which is released in between. */
static void forward_fence(struct zerod_client *client, struct zc_fence_forwarder *forwarder,
                          struct zc_forwarded_fence *forwarded)
{
	pthread_mutex_unlock(&forwarder->lock);
	zc_holds_drop(client, &forwarded->holds);
	zc_fence_signal(client, forwarded->fence.timeline, forwarded->fence.value);
	pthread_mutex_lock(&forwarder->lock);
	TAILQ_REMOVE(&forwarder->queue, forwarded, link);
	pthread_cond_broadcast(&forwarder->changed);
	free(forwarded);
}

/* Pauses between polls, because GPUs wake no thread. The forwarder's lock is released meanwhile. */
static long sleep_before_polling(struct zc_fence_forwarder *forwarder, long pause_ns)
{
	const struct timespec pause = {.tv_nsec = pause_ns};

	pthread_mutex_unlock(&forwarder->lock);
	(void)nanosleep(&pause, NULL);
	pthread_mutex_lock(&forwarder->lock);
	return pause_ns * 2 < LAST_PAUSE_NS ? pause_ns * 2 : LAST_PAUSE_NS;
}

static void *forwarder_main(void *arg)
{
	struct zerod_client *client = arg;
	struct zc_fence_forwarder *forwarder = &((struct zc_cuda *)client->cuda)->forwarder;
	long pause_ns = FIRST_PAUSE_NS;

	pthread_mutex_lock(&forwarder->lock);
	while (!forwarder->stop) {
		struct zc_forwarded_fence *forwarded = find_written(client, forwarder);

		if (forwarded) {
			forward_fence(client, forwarder, forwarded);
			pause_ns = FIRST_PAUSE_NS;
		} else if (TAILQ_EMPTY(&forwarder->queue)) {
			pthread_cond_wait(&forwarder->changed, &forwarder->lock);
			pause_ns = FIRST_PAUSE_NS;
		} else {
			pause_ns = sleep_before_polling(forwarder, pause_ns);
		}
	}
	pthread_mutex_unlock(&forwarder->lock);
	return NULL;
}

/* ---- Its life ------------------------------------------------------------------------------------------ */

void zc_fence_forwarder_init(struct zc_fence_forwarder *forwarder)
{
	TAILQ_INIT(&forwarder->queue);
	pthread_mutex_init(&forwarder->lock, NULL);
	pthread_cond_init(&forwarder->changed, NULL);
}

int zc_fence_forwarder_start(struct zerod_client *client, struct zc_fence_forwarder *forwarder,
                             struct zd_err *err)
{
	int error;

	if (!client->strict || forwarder->running)
		return 0;
	error = zd_thread_create(&forwarder->thread, forwarder_main, client);
	if (error)
		return zd_err_errno(err, error, "watching for strict views");
	forwarder->running = true;
	return 0;
}

void zc_fence_forwarder_stop(struct zerod_client *client, struct zc_fence_forwarder *forwarder)
{
	if (forwarder->running) {
		pthread_mutex_lock(&forwarder->lock);
		forwarder->stop = true;
		pthread_cond_broadcast(&forwarder->changed);
		pthread_mutex_unlock(&forwarder->lock);
		(void)pthread_join(forwarder->thread, NULL);
	}
	client->strict = false; /* the mappings are freed as a whole, or remain for a GPU that still works */
	zc_fence_forwarder_forget(client, forwarder);
	pthread_mutex_destroy(&forwarder->lock);
	pthread_cond_destroy(&forwarder->changed);
}

void zc_fence_forwarder_forget(struct zerod_client *client, struct zc_fence_forwarder *forwarder)
{
	struct zc_forwarded_fence *forwarded;

	while ((forwarded = TAILQ_FIRST(&forwarder->queue))) {
		TAILQ_REMOVE(&forwarder->queue, forwarded, link);
		free_forwarded(client, forwarded);
	}
}
