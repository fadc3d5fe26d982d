/* SPDX-License-Identifier: Apache-2.0 */
/* script.c - lists of records: read, written, mutated. */
#include "tests/fuzz/script.h"

#include <string.h>

#define MAX_RECORDS 256u
#define SCRATCH     (1u << 20)

bool fuzz_script_next(const uint8_t **at, size_t *left, struct fuzz_record *record)
{
	const uint8_t *header = *at;
	size_t nbytes;

	if (*left < FUZZ_HEADER_BYTES)
		return false;
	nbytes = header[2] | (size_t)header[3] << 8;
	*at += FUZZ_HEADER_BYTES;
	*left -= FUZZ_HEADER_BYTES;
	if (nbytes > *left)
		nbytes = *left;
	*record = (struct fuzz_record){header[0] % FUZZ_KINDS, header[1] % FUZZ_CLIENTS, *at, nbytes};
	*at += nbytes;
	*left -= nbytes;
	return true;
}

size_t fuzz_script_put(uint8_t *at, size_t room, enum fuzz_what what, unsigned who, const void *bytes,
                       size_t nbytes)
{
	if (nbytes > UINT16_MAX || room < FUZZ_HEADER_BYTES + nbytes)
		return 0;
	at[0] = (uint8_t)what;
	at[1] = (uint8_t)who;
	at[2] = (uint8_t)nbytes;
	at[3] = (uint8_t)(nbytes >> 8);
	if (nbytes > 0)
		memcpy(at + FUZZ_HEADER_BYTES, bytes, nbytes);
	return FUZZ_HEADER_BYTES + nbytes;
}

/* ---- Mutation ------------------------------------------------------------------------------------------ */

struct list {
	struct fuzz_record records[MAX_RECORDS];
	size_t count;
};

static uint32_t next_random(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

static void insert(struct list *list, size_t index, const struct fuzz_record *record)
{
	struct fuzz_record copy = *record; /* may be one of the list's own */

	if (list->count == MAX_RECORDS)
		return;
	memmove(&list->records[index + 1], &list->records[index], (list->count - index) * sizeof(copy));
	list->records[index] = copy;
	list->count++;
}

static void take_out(struct list *list, size_t index)
{
	list->count--;
	memmove(&list->records[index], &list->records[index + 1],
	        (list->count - index) * sizeof(list->records[0]));
}

/* A record that did not exist before. */
static void insert_new(struct list *list, uint32_t *random, fuzz_make_fn *make)
{
	static uint8_t bytes[FUZZ_PACKET_BYTES];
	struct fuzz_record record = {.who = next_random(random) % FUZZ_CLIENTS, .bytes = bytes};

	if (next_random(random) % 4 > 0) {
		record.what = FUZZ_REQUESTS;
		record.nbytes = make(next_random(random), bytes);
	} else {
		record.what = FUZZ_CLOSE + next_random(random) % (FUZZ_KINDS - FUZZ_CLOSE);
		bytes[0] = (uint8_t)(next_random(random) % 4);
		bytes[1] = (uint8_t)(next_random(random) % 5);
		record.nbytes = record.what == FUZZ_CLOSE ? 0 : 2;
	}
	insert(list, next_random(random) % (list->count + 1), &record);
}

static void change_content(struct list *list, size_t index)
{
	static uint8_t bytes[2 * UINT16_MAX];
	struct fuzz_record *record = &list->records[index];

	if (record->nbytes > 0)
		memcpy(bytes, record->bytes, record->nbytes);
	record->nbytes = LLVMFuzzerMutate(bytes, record->nbytes, record->nbytes + 64);
	if (record->nbytes > UINT16_MAX)
		record->nbytes = UINT16_MAX;
	record->bytes = bytes;
}

static void change(struct list *list, uint32_t *random, fuzz_make_fn *make)
{
	size_t index = list->count > 0 ? next_random(random) % list->count : 0;
	size_t other = list->count > 0 ? next_random(random) % list->count : 0;
	struct fuzz_record swapped;

	if (list->count == 0) {
		insert_new(list, random, make);
		return;
	}
	switch (next_random(random) % 8) {
	case 0:
	case 1:
	case 2:
		insert_new(list, random, make);
		break;
	case 3:
		take_out(list, index);
		break;
	case 4:
		insert(list, other, &list->records[index]);
		break;
	case 5:
		swapped = list->records[index];
		list->records[index] = list->records[other];
		list->records[other] = swapped;
		break;
	case 6:
		list->records[index].who = next_random(random) % FUZZ_CLIENTS;
		break;
	default:
		change_content(list, index);
		break;
	}
}

/* Each byte is a hash of its own: neighbours in the sequence of a linear generator depend on each other. */
size_t fuzz_make_picks(unsigned seed, uint8_t bytes[FUZZ_PACKET_BYTES])
{
	for (unsigned i = 0; i < FUZZ_PICKS_BYTES; i++) {
		uint32_t hash = (seed * FUZZ_PICKS_BYTES + i + 1) * 0x9e3779b9u;

		hash = (hash ^ hash >> 16) * 0x85ebca6bu;
		hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
		bytes[i] = (uint8_t)(hash ^ hash >> 16);
	}
	return FUZZ_PICKS_BYTES;
}

size_t fuzz_script_mutate(uint8_t *bytes, size_t nbytes, size_t room, unsigned seed, fuzz_make_fn *make)
{
	static uint8_t copy[SCRATCH];
	static struct list list;
	const uint8_t *at = copy;
	size_t left = nbytes < SCRATCH ? nbytes : SCRATCH, used = 0;
	uint32_t random = seed;

	memcpy(copy, bytes, left);
	list.count = 0;
	while (list.count < MAX_RECORDS && fuzz_script_next(&at, &left, &list.records[list.count]))
		list.count++;
	change(&list, &random, make);
	for (size_t i = 0; i < list.count; i++) {
		const struct fuzz_record *record = &list.records[i];

		used += fuzz_script_put(bytes + used, room - used, record->what, record->who, record->bytes,
		                        record->nbytes);
	}
	return used;
}
