/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interrupt.c - the program's function that gives up a wait: struct zerod_options, `interrupted`.
 *
 * A wait calls the function after each ZC_ASK_NS. Shorter waits cost nothing more. The library's own threads
 * never call it.
 */
#include "client/client.h"
#include "client/options.h"

#include <errno.h>

static _Thread_local bool asks_never;

void zc_ask_never(bool never)
{
	asks_never = never;
}

uint64_t zc_ask_from(const struct zerod_client *client)
{
	return client->interrupted && !asks_never ? zc_now_ns() + ZC_ASK_NS : UINT64_MAX;
}

bool zc_ask(const struct zerod_client *client, uint64_t *due_ns)
{
	bool given_up;

	if (*due_ns == UINT64_MAX || zc_now_ns() < *due_ns)
		return false;
	asks_never = true; /* a call that it makes is not given up */
	given_up = client->interrupted(client->interrupted_context);
	asks_never = false;
	*due_ns = zc_now_ns() + ZC_ASK_NS;
	return given_up;
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

	if (zc_cond_wait(wake, &client->lock, until_ns) && until_ns == deadline_ns)
		return ZEROD_E_DEADLINE;
	return zc_ask_locked(client, due_ns) ? ZEROD_E_INTERRUPTED : 0;
}

int zc_wait_own_answer(struct zerod_client *client, struct zc_op *op, uint64_t deadline_ns)
{
	uint64_t grace_ns;
	int rc = zc_wait_answer(client, op, deadline_ns);

	if (rc != ZEROD_E_INTERRUPTED || !op->sent || client->session == 0)
		return rc;
	pthread_mutex_unlock(&client->lock);
	zc_request_cancel(client, op->id);
	grace_ns = zc_now_ns() + ZC_GRACE_NS;
	pthread_mutex_lock(&client->lock);
	while (!op->answered && zc_wait_progress(client, op, grace_ns))
		;
	zc_hand_over(client);
	if (!op->answered)
		return rc;
	if (op->status == ZEROD_E_DEADLINE)
		op->status = rc;
	return 0;
}
