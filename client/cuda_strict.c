/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_strict.c - strict clients on GPUs: access is taken away before the daemon hears that a stream has come
 * so far.
 *
 * What a stream holds falls when the stream has run what was in it at the release, and only then may the
 * daemon give the place to another unit (strict.c). On a GPU nothing but the CPU can take access away, and no
 * function of a stream may call the driver. So a strict client's GPUs write their counters into a page of
 * their own, client->gpu_page, and one thread carries each value over to the page that the daemon reads, when
 * it has dropped the holds that end with it. What must hold:
 *   - every value that a GPU writes is carried, with holds or without, since values of a timeline come in
 *     order;
 *   - who asks within this process whether a GPU has come so far looks at the GPUs' page: no work of a GPU
 *     ever waits for this thread, whose calls of the driver might wait for it.
 */
#include "client/cuda_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define FIRST_PAUSE_NS 10000l
#define LAST_PAUSE_NS  1000000l /* a stream may have much to do */

/* A value that a GPU will write, and what is held until then. */
struct zc_carry {
	struct zc_fence fence;
	struct zc_hold_list holds;
	TAILQ_ENTRY(zc_carry) link;
};

/* ---- Values -------------------------------------------------------------------------------------------- */

static struct zc_carry *new_carry(struct zd_err *err)
{
	struct zc_carry *carry = calloc(1, sizeof(*carry));

	if (carry)
		LIST_INIT(&carry->holds);
	else
		(void)zd_err_errno(err, ENOMEM, "holding gathered buffers for a stream");
	return carry;
}

static void free_carry(struct zerod_client *client, struct zc_carry *carry)
{
	zc_holds_drop(client, &carry->holds);
	free(carry);
}

int zc_carry_new(struct zerod_client *client, const struct zc_hold_list *holds, struct zc_carry **made,
                 struct zd_err *err)
{
	struct zc_carry *carry;
	int rc = 0;

	if (!client->strict)
		return 0;
	carry = new_carry(err);
	if (!carry)
		return ZEROD_E_SYSTEM;
	if (holds)
		rc = zc_holds_copy(client, holds, &carry->holds, err);
	if (rc)
		free(carry);
	else
		*made = carry;
	return rc;
}

int zc_carry_copies(struct zerod_client *client, const struct zc_copy *copies, unsigned count,
                    struct zc_carry **made, struct zd_err *err)
{
	struct zc_carry *carry;
	int rc = 0;

	if (!client->strict)
		return 0;
	carry = new_carry(err);
	if (!carry)
		return ZEROD_E_SYSTEM;
	for (unsigned i = 0; i < count && !rc; i++)
		rc = zc_strict_hold_segment(client, copies[i].segment, &carry->holds, err);
	if (rc)
		free_carry(client, carry);
	else
		*made = carry;
	return rc;
}

void zc_carry_put(struct zerod_client *client, struct zc_carry *carry, struct zc_fence fence, int rc)
{
	struct zc_cuda *cuda = client->cuda;

	if (!carry)
		return;
	if (rc) {
		free_carry(client, carry);
		return;
	}
	carry->fence = fence;
	pthread_mutex_lock(&cuda->carrier.lock);
	TAILQ_INSERT_TAIL(&cuda->carrier.queue, carry, link);
	pthread_cond_broadcast(&cuda->carrier.changed);
	pthread_mutex_unlock(&cuda->carrier.lock);
}

/* With the carrier's lock: the first one that its GPU has written. Of one timeline that is the lowest. */
static struct zc_carry *find_written(const struct zerod_client *client, const struct zc_carrier *carrier)
{
	struct zc_carry *carry;

	TAILQ_FOREACH (carry, &carrier->queue, link)
		if (zc_fence_reached(zc_counter_load(client->gpu_page, carry->fence.timeline),
		                     carry->fence.value))
			return carry;
	return NULL;
}

void zc_carry_settle(struct zerod_client *client)
{
	struct zc_cuda *cuda = client->cuda;

	if (!client->strict || !cuda)
		return;
	pthread_mutex_lock(&cuda->carrier.lock);
	while (find_written(client, &cuda->carrier))
		pthread_cond_wait(&cuda->carrier.changed, &cuda->carrier.lock);
	pthread_mutex_unlock(&cuda->carrier.lock);
}

/* ---- The thread ---------------------------------------------------------------------------------------- */

/* With the carrier's lock, which is given back meanwhile: it stays in the queue until all is done. */
static void carry_over(struct zerod_client *client, struct zc_carrier *carrier, struct zc_carry *carry)
{
	pthread_mutex_unlock(&carrier->lock);
	zc_holds_drop(client, &carry->holds);
	zc_timeline_signal(client, carry->fence.timeline, carry->fence.value);
	pthread_mutex_lock(&carrier->lock);
	TAILQ_REMOVE(&carrier->queue, carry, link);
	pthread_cond_broadcast(&carrier->changed);
	free(carry);
}

/* With the carrier's lock, which is given back meanwhile. GPUs wake nobody. */
static long pause_before_looking(struct zc_carrier *carrier, long pause_ns)
{
	const struct timespec pause = {.tv_nsec = pause_ns};

	pthread_mutex_unlock(&carrier->lock);
	(void)nanosleep(&pause, NULL);
	pthread_mutex_lock(&carrier->lock);
	return pause_ns * 2 < LAST_PAUSE_NS ? pause_ns * 2 : LAST_PAUSE_NS;
}

static void *carrier_main(void *arg)
{
	struct zerod_client *client = arg;
	struct zc_carrier *carrier = &((struct zc_cuda *)client->cuda)->carrier;
	long pause_ns = FIRST_PAUSE_NS;

	pthread_mutex_lock(&carrier->lock);
	while (!carrier->stop) {
		struct zc_carry *carry = find_written(client, carrier);

		if (carry) {
			carry_over(client, carrier, carry);
			pause_ns = FIRST_PAUSE_NS;
		} else if (TAILQ_EMPTY(&carrier->queue)) {
			pthread_cond_wait(&carrier->changed, &carrier->lock);
			pause_ns = FIRST_PAUSE_NS;
		} else {
			pause_ns = pause_before_looking(carrier, pause_ns);
		}
	}
	pthread_mutex_unlock(&carrier->lock);
	return NULL;
}

/* ---- Its life ------------------------------------------------------------------------------------------ */

void zc_carrier_init(struct zc_carrier *carrier)
{
	TAILQ_INIT(&carrier->queue);
	pthread_mutex_init(&carrier->lock, NULL);
	pthread_cond_init(&carrier->changed, NULL);
}

int zc_carrier_start(struct zerod_client *client, struct zc_carrier *carrier, struct zd_err *err)
{
	sigset_t all, before;
	int error;

	if (!client->strict || carrier->running)
		return 0;
	(void)sigfillset(&all); /* signals are the application's threads' business */
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&carrier->thread, NULL, carrier_main, client);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return zd_err_errno(err, error, "watching for strict views");
	carrier->running = true;
	return 0;
}

void zc_carrier_stop(struct zerod_client *client, struct zc_carrier *carrier)
{
	if (carrier->running) {
		pthread_mutex_lock(&carrier->lock);
		carrier->stop = true;
		pthread_cond_broadcast(&carrier->changed);
		pthread_mutex_unlock(&carrier->lock);
		(void)pthread_join(carrier->thread, NULL);
	}
	client->strict = false; /* the mappings go as a whole, or stay for a GPU that still works */
	zc_carrier_forget(client, carrier);
	pthread_mutex_destroy(&carrier->lock);
	pthread_cond_destroy(&carrier->changed);
}

void zc_carrier_forget(struct zerod_client *client, struct zc_carrier *carrier)
{
	struct zc_carry *carry;

	while ((carry = TAILQ_FIRST(&carrier->queue))) {
		TAILQ_REMOVE(&carrier->queue, carry, link);
		free_carry(client, carry);
	}
}
