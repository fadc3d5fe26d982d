/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errors.c - the text of the last failure, per client and thread.
 *
 * A thread stores the texts in a few slots of thread-local storage. This needs no lock and no allocation, and
 * no memory has to be freed. The text is also available for a client that could not be created, and in a
 * forked child. A serial number identifies a client, because its address can be reused. A thread that fails
 * on more clients than it has slots replaces the least recently used text.
 */
#include "client/lib/base/errors.h"

#include "client/lib/base/client.h"

#define ERROR_SLOTS 6

struct error_slot {
	uint64_t serial; /* 0: no client */
	uint64_t used;   /* when, on the thread's own count */
	struct zd_err err;
};

static _Thread_local struct error_slot slots[ERROR_SLOTS];
static _Thread_local uint64_t uses;

static struct error_slot *find_slot(uint64_t serial)
{
	for (size_t i = 0; i < ERROR_SLOTS; i++)
		if (slots[i].serial == serial)
			return &slots[i];
	return NULL;
}

/* Slot 0 is for failures without a client and is never assigned to one. */
static struct error_slot *take_slot(uint64_t serial)
{
	struct error_slot *oldest = &slots[1];

	for (size_t i = 2; i < ERROR_SLOTS; i++)
		if (slots[i].used < oldest->used)
			oldest = &slots[i];
	oldest->serial = serial;
	oldest->err.status = 0;
	oldest->err.text[0] = '\0';
	return oldest;
}

struct zd_err *zc_err(const struct zerod_client *client)
{
	struct error_slot *slot = client ? find_slot(client->serial) : &slots[0];

	if (!slot)
		slot = take_slot(client->serial);
	slot->used = ++uses;
	return &slot->err;
}

uint64_t zc_thread_serial(void)
{
	static atomic_uint_fast64_t last;
	static _Thread_local uint64_t serial;

	if (serial == 0)
		serial = atomic_fetch_add(&last, 1) + 1;
	return serial;
}

const char *zerod_last_error(const zerod_client *client)
{
	const struct error_slot *slot = client ? find_slot(client->serial) : &slots[0];

	/* A later call failed before it knew its client: its caller asks with the one that it has. */
	if (slots[0].err.status != 0 && (!slot || slots[0].used > slot->used))
		slot = &slots[0];
	return slot ? slot->err.text : "";
}
