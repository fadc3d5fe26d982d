/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress_plan.c - what all ranks have to agree on without talking: units, contents, which round updates what,
 * and the round with which all end.
 */
#include "tests/gpu/stress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define UPDATES_ONE_OF 4
#define COMMITS_EACH   8
#define LAST_ROUND     (1ull << 63) /* in shared->round: no higher one is begun */
#define SLOT_MAX_BYTES (16ull << 20)

static uint64_t mix(uint64_t value)
{
	value = (value ^ value >> 33) * 0xff51afd7ed558ccdull;
	value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53ull;
	return value ^ value >> 33;
}

uint64_t stress_random(uint64_t *state)
{
	return mix(*state += 0x9e3779b97f4a7c15ull);
}

uint64_t stress_seed(const struct stress *stress, uint32_t unit, uint64_t version)
{
	return mix(mix(mix(stress->options.seed) ^ (unit + 1)) ^ version);
}

bool stress_updates(const struct stress *stress, uint64_t round, uint32_t unit)
{
	return round == 1 || mix(mix(stress->options.seed ^ round) + unit) % UPDATES_ONE_OF == 0;
}

bool stress_commits(const struct stress *stress, uint64_t round)
{
	return stress->options.kill ? round % (COMMITS_EACH / 4) == 0 : round % COMMITS_EACH == 0;
}

/* ---- Units --------------------------------------------------------------------------------------------- */

static uint64_t padded_bytes(const struct stress *stress, const struct stress_unit *unit)
{
	const uint64_t bytes_each = zerod_dtype_bytes(unit->dtype);
	const uint64_t ranks = stress->options.ranks;
	const uint64_t shard_numel = (unit->numel + ranks - 1) / ranks;

	return zd_align_up(shard_numel * bytes_each, 256) * ranks;
}

/* All magnitudes alike, and what is at the edges. */
static uint64_t choose_numel(const struct stress *stress, uint32_t index, uint64_t bytes_each,
                             uint64_t *random)
{
	const uint64_t most = zd_max_u64(stress->options.max_bytes / bytes_each, 1);
	uint64_t bits = 0, numel;

	switch (index) {
	case 0:
		return 1;
	case 1:
		return stress->options.ranks > 1 ? stress->options.ranks - 1 : 1;
	case 2:
		return zd_min_u64(most, 65537);
	case 3:
		return most;
	default:
		break;
	}
	while (bits < 63 && most >> (bits + 1))
		bits++;
	numel = 1ull << (stress_random(random) % (bits + 1));
	return zd_min_u64(numel + stress_random(random) % numel, most);
}

/* As many as fit into an eighth of the arenas, so that there is room for copies of them. */
void stress_plan_units(struct stress *stress)
{
	static const enum zerod_dtype dtypes[] = {ZEROD_UINT8, ZEROD_BFLOAT16, ZEROD_FLOAT32, ZEROD_INT64};
	const uint64_t room = stress->options.arena_bytes * stress->options.devices / 8;
	uint64_t random = stress->options.seed, used = 0;
	uint32_t count = 0;

	for (uint32_t i = 0; i < stress->options.units && count < STRESS_UNITS; i++) {
		struct stress_unit *unit = &stress->units[count];

		unit->dtype = dtypes[i % ZD_ARRAY_LEN(dtypes)];
		unit->numel = choose_numel(stress, i, zerod_dtype_bytes(unit->dtype), &random);
		unit->padded_bytes = padded_bytes(stress, unit);
		unit->gathered_bytes = stress->options.strict
		                               ? zd_align_up(unit->padded_bytes, STRESS_SEGMENT_BYTES)
		                               : unit->padded_bytes;
		if (used + unit->gathered_bytes > room)
			continue;
		used += unit->gathered_bytes;
		(void)snprintf(unit->name, sizeof(unit->name), "unit%u", i);
		unit->slot = i % 8 == 5 && unit->padded_bytes <= SLOT_MAX_BYTES ? i : ZEROD_NO_SLOT;
		count++;
	}
	stress->options.units = count;
}

/* ---- Rounds -------------------------------------------------------------------------------------------- */

bool stress_enter_round(const struct stress *stress, uint64_t round)
{
	_Atomic uint64_t *highest = &stress->shared->round;
	uint64_t was = atomic_load(highest);

	while (round > (was & ~LAST_ROUND)) {
		if (was & LAST_ROUND)
			return false;
		if (atomic_compare_exchange_weak(highest, &was, round))
			break;
	}
	return true;
}

void stress_end_rounds(const struct stress *stress)
{
	atomic_fetch_or(&stress->shared->round, LAST_ROUND);
}

int stress_fail(const struct stress *stress, uint32_t rank, int status, const char *format, ...)
{
	struct stress_shared *shared = stress->shared;
	char words[sizeof(shared->failure)];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(words, sizeof(words), format, args);
	va_end(args);
	if (!atomic_exchange(&shared->failed, true))
		(void)snprintf(shared->failure, sizeof(shared->failure), "rank %u: %.500s", rank, words);
	return status;
}
