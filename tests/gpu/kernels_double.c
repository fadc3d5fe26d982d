/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_double.c - the kernels of kernels.cu on the CPU, for the driver's double; real GPUs run the others.
 */
#include <stdint.h>
#include <time.h>

#include "tests/double/kernel.h"

static uint64_t mix(uint64_t value)
{
	value = (value ^ value >> 33) * 0xff51afd7ed558ccdull;
	value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53ull;
	return value ^ value >> 33;
}

static uint64_t word(uint64_t seed, uint64_t index, uint64_t true_bytes)
{
	const uint64_t value = mix(seed ^ mix(index + 1)), first = index * 8;

	if (first >= true_bytes)
		return 0;
	return true_bytes - first >= 8 ? value : value & ((1ull << (true_bytes - first) * 8) - 1);
}

static bool fill(struct double_reach *reach, const uint64_t *args)
{
	const uint64_t first = args[1], count = args[2];
	uint64_t done = 0;

	while (done < count) {
		size_t bytes = (count - done) * sizeof(uint64_t);
		uint64_t *words = reach->at(reach, args[0] + done * sizeof(uint64_t), &bytes);

		if (!words || bytes < sizeof(*words))
			return false;
		for (size_t i = 0; i < bytes / sizeof(*words); i++)
			words[i] = word(args[4], first + done + i, args[3]);
		done += bytes / sizeof(*words);
	}
	return true;
}

static void note(uint64_t *found, uint64_t index, uint64_t value)
{
	__atomic_fetch_add(&found[0], 1, __ATOMIC_RELAXED);
	__atomic_store_n(&found[1], ~index, __ATOMIC_RELAXED);
	__atomic_store_n(&found[2], value, __ATOMIC_RELAXED);
}

static bool compare(struct double_reach *reach, const uint64_t *args)
{
	const uint64_t count = args[1];
	size_t found_bytes = 3 * sizeof(uint64_t);
	uint64_t *found = reach->at(reach, args[4], &found_bytes);
	uint64_t done = 0;

	if (!found || found_bytes < 3 * sizeof(uint64_t))
		return false;
	while (done < count) {
		size_t bytes = (count - done) * sizeof(uint64_t);
		const uint64_t *words = reach->at(reach, args[0] + done * sizeof(uint64_t), &bytes);

		if (!words || bytes < sizeof(*words))
			return false;
		for (size_t i = 0; i < bytes / sizeof(*words); i++)
			if (words[i] != word(args[3], done + i, args[2]))
				note(found, done + i, words[i]);
		done += bytes / sizeof(*words);
	}
	return true;
}

/* A kernel that takes its time is what is asked for, and not waited for. */
static bool delay(struct double_reach *reach, const uint64_t *args)
{
	(void)reach;
	(void)nanosleep(&(const struct timespec){.tv_sec = (time_t)(args[0] / 1000000000u),
	                                         .tv_nsec = (long)(args[0] % 1000000000u)},
	                NULL);
	return true;
}

DOUBLE_KERNEL(stress_fill) = {.nargs = 5, .run = fill};
DOUBLE_KERNEL(stress_compare) = {.nargs = 5, .run = compare};
DOUBLE_KERNEL(stress_delay) = {.nargs = 1, .run = delay};
