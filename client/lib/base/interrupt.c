/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interrupt.c - the program's function that can end a wait: struct zerod_options, `interrupted`.
 *
 * A wait calls the function after each ZC_ASK_NS. Shorter waits have no additional cost. The library's own
 * threads never call it.
 */
#include "client/lib/base/interrupt.h"

#include "client/lib/base/client.h"
#include "client/lib/base/options.h"

static _Thread_local bool asks_never;

bool zc_ask_never(bool never)
{
	bool before = asks_never;

	asks_never = never;
	return before;
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
	asks_never = true; /* its own calls cannot be interrupted */
	given_up = client->interrupted(client->interrupted_context);
	asks_never = false;
	*due_ns = zc_now_ns() + ZC_ASK_NS;
	return given_up;
}

int zc_ask_slice_ms(const struct zerod_client *client)
{
	return client->interrupted ? (int)(ZC_ASK_NS / 1000000u) : ZC_RECEIVE_SLICE_MS;
}
