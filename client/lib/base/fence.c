/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fence.c - counters in shared memory: the daemon's, and stores to the client's.
 *
 * A thread sleeps on a counter's low word, a futex that the daemon wakes after each store. The word can
 * repeat after 2^32 values, and a wake-up can be for another value. Only the whole counter is therefore
 * compared.
 */
#include "client/lib/base/fence.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S  1000000000u
#define MASK_BITS 64u

/* The half of a counter that changes with every value. */
static const uint32_t *low_word(const uint64_t *counter)
{
	return (const uint32_t *)counter + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

/* ---- Fences of replies --------------------------------------------------------------------------------- */

int zc_fences_take(const struct zerod_client *client, size_t count, Zd__Fence *const *from,
                   struct zc_fences *fences, struct zd_err *err)
{
	struct zc_fences taken = {.count = (unsigned)count};
	struct zc_fence *to = taken.few;

	if (count > ZD_TIMELINES)
		return zd_err_set(err, ZEROD_E_PROTOCOL, "the daemon sent %zu fences", count);
	for (size_t i = 0; i < count; i++)
		if (from[i]->timeline >= client->ntimelines || from[i]->value == 0 ||
		    from[i]->value >= ZD_FENCE_ABORTED)
			return zd_err_set(err, ZEROD_E_PROTOCOL,
			                  "the daemon sent a fence at %llu of timeline %u",
			                  (unsigned long long)from[i]->value, from[i]->timeline);
	if (count > ZC_FEW_FENCES) {
		taken.many = calloc(count, sizeof(*taken.many));
		if (!taken.many)
			return zd_err_errno(err, ENOMEM, "taking fences");
		to = taken.many;
	}
	for (size_t i = 0; i < count; i++)
		to[i] = (struct zc_fence){from[i]->timeline, from[i]->value};
	*fences = taken;
	return 0;
}

void zc_fences_deinit(struct zc_fences *fences)
{
	free(fences->many);
	fences->many = NULL;
	fences->count = 0;
}

/* ---- Fences of several replies ------------------------------------------------------------------------- */

void zc_fence_merge_init(struct zc_fence_merge *merge)
{
	merge->fences = (struct zc_fences){.many = merge->list};
	memset(merge->seen, 0, sizeof(merge->seen));
}

void zc_fence_merge_add(struct zc_fence_merge *merge, struct zc_fence fence)
{
	uint64_t *seen = &merge->seen[fence.timeline / MASK_BITS], bit = 1ull << fence.timeline % MASK_BITS;
	struct zc_fence *known;

	if (!(*seen & bit)) {
		*seen |= bit;
		merge->at[fence.timeline] = (uint16_t)merge->fences.count;
		merge->list[merge->fences.count++] = fence;
		return;
	}
	known = &merge->list[merge->at[fence.timeline]];
	if (!zc_fence_reached(known->value, fence.value))
		known->value = fence.value;
}

/* ---- Polling ------------------------------------------------------------------------------------------- */

int zc_fences_poll(const struct zerod_client *client, const struct zc_fences *fences)
{
	const struct zc_fence *list = zc_fences_list(fences);
	int all = 1;

	for (unsigned i = 0; i < fences->count; i++) {
		int rc = zc_fence_judge(zc_fence_counter(client, list[i].timeline), list[i].value);

		if (rc < 0)
			return rc;
		all &= rc;
	}
	return all;
}

void zc_fence_sleep(const uint64_t *counter, uint64_t seen, uint64_t sleep_ns)
{
	struct timespec timeout = {.tv_sec = (time_t)(sleep_ns / NS_PER_S),
	                           .tv_nsec = (long)(sleep_ns % NS_PER_S)};

	(void)syscall(SYS_futex, low_word(counter), FUTEX_WAIT, (uint32_t)seen, &timeout, NULL, 0);
}

const uint64_t *zc_fence_find_abort(const struct zerod_client *client)
{
	for (uint32_t i = 0; i < client->ntimelines && i < ZD_AWAITED_TIMELINES; i++)
		if (zc_fence_counter(client, i) == ZD_FENCE_ABORTED)
			return &client->daemon_page[i];
	return NULL;
}

/* ---- Our own counters ---------------------------------------------------------------------------------- */

void zc_fence_signal(struct zerod_client *client, uint32_t timeline, uint64_t value)
{
	uint64_t *counter = &client->client_page[timeline];

	__atomic_store_n(counter, value, __ATOMIC_RELEASE);
	(void)syscall(SYS_futex, low_word(counter), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
