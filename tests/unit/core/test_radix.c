/* SPDX-License-Identifier: Apache-2.0 */
/* test_radix.c - the sort of a journal's objects, beside the order that a comparison gives. */
#include "core/control/radix.h"
#include "tests/support/test.h"

#define ITEMS 3000u

struct item {
	uint64_t wide;
	uint32_t narrow, place;
};

static uint64_t seed = 1;

static uint64_t next_random(void)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return seed >> 20;
}

/* By `narrow` and then by `wide`, of which many are the same; others stay in their order. */
static void check_order(const struct item *items, size_t count)
{
	for (size_t i = 1; i < count; i++) {
		const struct item *a = &items[i - 1], *b = &items[i];

		assert_true(a->narrow <= b->narrow);
		if (a->narrow == b->narrow)
			assert_true(a->wide < b->wide || (a->wide == b->wide && a->place < b->place));
	}
}

TEST(test_order)
{
	static const uint64_t wide[] = {0, 1, 7, 255, 0x1FF00, UINT32_MAX, UINT64_MAX, UINT64_C(0xFF) << 56};
	static const uint32_t narrow[] = {0, 1, 0x700, 0xF0000000, UINT32_MAX};
	static const size_t counts[] = {0, 1, 2, 3, 100, ITEMS};
	static struct item items[ITEMS], scratch[ITEMS];

	for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
		for (size_t w = 0; w < sizeof(wide) / sizeof(wide[0]); w++)
			for (size_t n = 0; n < sizeof(narrow) / sizeof(narrow[0]); n++) {
				uint64_t found = 0;

				for (uint32_t i = 0; i < counts[c]; i++)
					items[i] = (struct item){next_random() * next_random() & wide[w],
					                         (uint32_t)next_random() & narrow[n], i};
				zd_radix_sort(items, scratch, counts[c], sizeof(items[0]),
				              offsetof(struct item, wide), sizeof(items[0].wide));
				zd_radix_sort(items, scratch, counts[c], sizeof(items[0]),
				              offsetof(struct item, narrow), sizeof(items[0].narrow));
				check_order(items, counts[c]);
				for (size_t i = 0; i < counts[c]; i++)
					found += items[i].place;
				assert_int_equal(found, counts[c] * (counts[c] - (counts[c] > 0)) / 2);
			}
}
