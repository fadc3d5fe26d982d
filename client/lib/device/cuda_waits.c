/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_waits.c - waits of GPU streams that have not been seen to pass.
 *
 * A GPU does not report that an abort has ended its wait. The counter shows the abort, by the value
 * ZD_FENCE_ABORTED. The library therefore stores each wait until it has passed. Work after an aborted wait
 * has used undefined data, and the session is poisoned.
 */
#include "client/lib/device/cuda_internal.h"

void zc_open_waits_add(struct zc_open_waits *waits, uint32_t timeline, uint64_t value)
{
	uint64_t *mask = &waits->mask[timeline / MASK_BITS], bit = 1ull << timeline % MASK_BITS;

	if (!(*mask & bit) || !zc_fence_reached(waits->value[timeline], value))
		waits->value[timeline] = value;
	*mask |= bit;
}

bool zc_open_waits_aborted(struct zc_open_waits *waits, const struct zerod_client *client)
{
	bool aborted = false;

	for (uint32_t i = 0; i < ZD_TIMELINES / MASK_BITS; i++) {
		for (uint64_t left = waits->mask[i]; left; left &= left - 1) {
			uint32_t timeline = i * MASK_BITS + (uint32_t)__builtin_ctzll(left);
			uint64_t counter = zc_counter_load(client->daemon_page, timeline);

			if (counter == ZD_FENCE_ABORTED)
				aborted = true;
			else if (zc_fence_reached(counter, waits->value[timeline]))
				waits->mask[i] &= ~(left & -left);
		}
	}
	return aborted;
}

void zc_open_waits_reset(struct zc_open_waits *waits)
{
	for (uint32_t i = 0; i < ZD_TIMELINES / MASK_BITS; i++)
		waits->mask[i] = 0;
}

void zc_open_waits_leave(struct zerod_client *client, const struct zc_open_waits *open)
{
	struct zc_cuda *cuda = client->cuda;
	ZC_LOCKED(&client->lock);

	for (uint32_t i = 0; i < client->ntimelines; i++)
		if (open->mask[i / MASK_BITS] & 1ull << i % MASK_BITS)
			zc_open_waits_add(&cuda->left, i, open->value[i]);
}

bool zc_cuda_left_aborted(struct zerod_client *client)
{
	struct zc_cuda *cuda = client->cuda;

	return cuda && zc_open_waits_aborted(&cuda->left, client);
}

void zc_cuda_left_reset(struct zerod_client *client)
{
	struct zc_cuda *cuda = client->cuda;

	if (cuda)
		zc_open_waits_reset(&cuda->left);
}
