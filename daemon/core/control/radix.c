/* SPDX-License-Identifier: Apache-2.0 */
/* radix.c - a stable sort by numbers, some bits at a time, starting with the lowest. */
#include "core/control/radix.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define DIGIT_BITS 11u /* their counters fit the first cache */
#define DIGITS     (1u << DIGIT_BITS)

static uint64_t key_of(const unsigned char *item, size_t offset, size_t width)
{
	uint64_t wide;
	uint32_t narrow;
	if (width == sizeof(wide)) {
		memcpy(&wide, item + offset, sizeof(wide));
		return wide;
	}
	memcpy(&narrow, item + offset, sizeof(narrow));
	return narrow;
}

/* Finds the bits in which keys differ. Returns whether the items are in order. */
static bool compare_keys(const unsigned char *items, size_t count, size_t item_bytes, size_t offset,
                         size_t width, uint64_t *differ)
{
	uint64_t first = count > 0 ? key_of(items, offset, width) : 0, last = first;
	bool in_order = true;
	*differ = 0;
	for (size_t i = 1; i < count; i++) {
		uint64_t key = key_of(items + i * item_bytes, offset, width);
		in_order = in_order && last <= key;
		*differ |= first ^ key;
		last = key;
	}
	return in_order;
}

/* An item has few words: a call of memcpy() would take longer. */
static void copy_item(unsigned char *to, const unsigned char *from, size_t item_bytes)
{
	for (size_t at = 0; at < item_bytes; at += 8)
		memcpy(to + at, from + at, 8);
}

void zd_radix_sort(void *items, void *scratch, size_t count, size_t item_bytes, size_t offset, size_t width)
{
	unsigned char *from = items, *to = scratch, *swap;
	uint64_t differ;
	if (compare_keys(from, count, item_bytes, offset, width, &differ))
		return;
	/* The items are not in order: some bits differ. */
	for (unsigned shift = (unsigned)__builtin_ctzll(differ); shift < 64 && differ >> shift != 0;
	     shift += DIGIT_BITS) {
		size_t starts[DIGITS] = {0}, at = 0;
		if ((differ >> shift) % DIGITS == 0)
			continue;
		for (size_t i = 0; i < count; i++)
			starts[(key_of(from + i * item_bytes, offset, width) >> shift) % DIGITS]++;
		for (size_t digit = 0; digit < DIGITS; digit++) {
			size_t n = starts[digit];
			starts[digit] = at;
			at += n;
		}
		for (size_t i = 0; i < count; i++) {
			const unsigned char *item = from + i * item_bytes;
			size_t place = starts[(key_of(item, offset, width) >> shift) % DIGITS]++;
			copy_item(to + place * item_bytes, item, item_bytes);
		}
		swap = from;
		from = to;
		to = swap;
	}
	if (from != items)
		memcpy(items, from, count * item_bytes);
}
