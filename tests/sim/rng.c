/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng.c - where every random choice and every byte of the simulation comes from.
 *
 * Numbers are splitmix64, seeded by (seed, stream): each operation has a stream of its own. Memory contents
 * are numbered: content k is the same bytes wherever it is written, so a reader needs only k to know what it
 * must find.
 */
#include <string.h>

#include "sim.h"

static uint64_t scramble(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

uint64_t zd_sim_mix(uint64_t a, uint64_t b)
{
	uint64_t x = scramble(scramble(a + 0x9e3779b97f4a7c15ull) ^ b);

	return x ? x : 1;
}

void zd_sim_rng_init(struct zd_sim_rng *rng, uint64_t seed, uint64_t stream)
{
	rng->state = zd_sim_mix(seed, stream);
}

uint64_t zd_sim_next(struct zd_sim_rng *rng)
{
	rng->state += 0x9e3779b97f4a7c15ull;
	return scramble(rng->state);
}

uint64_t zd_sim_below(struct zd_sim_rng *rng, uint64_t bound)
{
	return zd_sim_next(rng) % bound;
}

uint64_t zd_sim_between(struct zd_sim_rng *rng, uint64_t low, uint64_t high)
{
	return low + zd_sim_below(rng, high - low + 1);
}

bool zd_sim_percent(struct zd_sim_rng *rng, uint32_t percent)
{
	return zd_sim_below(rng, 100) < percent;
}

uint64_t zd_sim_delay(struct zd_sim_rng *rng, uint64_t scale_ns)
{
	uint64_t draw = zd_sim_below(rng, 16);

	if (draw == 0)
		return zd_sim_below(rng, 50 * scale_ns + 1);
	if (draw < 5)
		return 0;
	return zd_sim_below(rng, scale_ns + 1);
}

static uint32_t pattern_word(uint64_t key, size_t index)
{
	return (uint32_t)(key ^ (key >> 32)) + (uint32_t)index * 2654435761u;
}

void zd_sim_pattern_write(uint64_t key, uint8_t *bytes, size_t nbytes)
{
	size_t words = nbytes / sizeof(uint32_t), tail = nbytes % sizeof(uint32_t);

	if (key == 0) {
		memset(bytes, 0, nbytes);
		return;
	}
	for (size_t i = 0; i < words; i++) {
		uint32_t word = pattern_word(key, i);
		memcpy(bytes + i * sizeof(word), &word, sizeof(word));
	}
	if (tail) {
		uint32_t word = pattern_word(key, words);
		memcpy(bytes + words * sizeof(word), &word, tail);
	}
}

size_t zd_sim_pattern_check(uint64_t key, const uint8_t *bytes, size_t nbytes)
{
	size_t words = nbytes / sizeof(uint32_t), tail = nbytes % sizeof(uint32_t);

	for (size_t i = 0; i < words; i++) {
		uint32_t found;
		memcpy(&found, bytes + i * sizeof(found), sizeof(found));
		if (found != (key ? pattern_word(key, i) : 0))
			return i * sizeof(found);
	}
	uint32_t last = key ? pattern_word(key, words) : 0;
	return memcmp(bytes + words * sizeof(last), &last, tail) == 0 ? nbytes : words * sizeof(last);
}
