/* SPDX-License-Identifier: Apache-2.0 */
/* waiters.c - threads that sleep until an answer has arrived, or until they must read. */
#include <time.h>

#include "client/lib/base/interrupt.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

#define NS_PER_S 1000000000u

void zc_wake(struct zerod_client *client, const struct zc_op *op)
{
	struct zc_waiter *waiter;

	TAILQ_FOREACH (waiter, &client->waiters, link)
		if (waiter->op == op || !waiter->op)
			pthread_cond_signal(&waiter->wake);
}

void zc_hand_over(struct zerod_client *client)
{
	struct zc_waiter *next = TAILQ_FIRST(&client->waiters);

	if (next && !client->reading)
		pthread_cond_signal(&next->wake);
}

void zc_outstanding_return(struct zerod_client *client, unsigned count)
{
	client->outstanding -= count;
	zc_wake(client, NULL);
}

/* Not with pthread_cond_clockwait(): glibc has it since 2.30. */
void zc_cond_init(pthread_cond_t *wake)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

/* Waits on the condition of zc_cond_init() until the deadline; UINT64_MAX: for ever. Returns ETIMEDOUT, or 0
 * as pthread_cond_wait(). */
static int cond_wait(pthread_cond_t *wake, pthread_mutex_t *lock, uint64_t deadline_ns)
{
	struct timespec until = {.tv_sec = (time_t)(deadline_ns / NS_PER_S),
	                         .tv_nsec = (long)(deadline_ns % NS_PER_S)};

	if (deadline_ns == UINT64_MAX)
		return pthread_cond_wait(wake, lock);
	return pthread_cond_timedwait(wake, lock, &until);
}

void zc_waiter_sleep(struct zerod_client *client, const struct zc_op *op, uint64_t deadline_ns)
{
	struct zc_waiter waiter = {.op = op};

	zc_cond_init(&waiter.wake);
	if (client->interrupted && deadline_ns > zc_now_ns() + ZC_ASK_NS)
		deadline_ns = zc_now_ns() + ZC_ASK_NS;
	TAILQ_INSERT_TAIL(&client->waiters, &waiter, link);
	(void)cond_wait(&waiter.wake, &client->lock, deadline_ns); /* the caller checks the clock itself */
	TAILQ_REMOVE(&client->waiters, &waiter, link);
	pthread_cond_destroy(&waiter.wake);
}

bool zc_ask_locked(struct zerod_client *client, uint64_t *due_ns)
{
	bool given_up;

	if (*due_ns == UINT64_MAX || zc_now_ns() < *due_ns)
		return false;
	zc_hand_over(client);
	pthread_mutex_unlock(&client->lock);
	given_up = zc_ask(client, due_ns);
	pthread_mutex_lock(&client->lock);
	return given_up;
}

int zc_cond_await(struct zerod_client *client, pthread_cond_t *wake, uint64_t deadline_ns, uint64_t *due_ns)
{
	uint64_t until_ns = *due_ns < deadline_ns ? *due_ns : deadline_ns;

	if (cond_wait(wake, &client->lock, until_ns) && until_ns == deadline_ns)
		return ZEROD_E_DEADLINE;
	return zc_ask_locked(client, due_ns) ? ZEROD_E_INTERRUPTED : 0;
}
