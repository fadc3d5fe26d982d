/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fence.h - fences of the daemon, for which streams and threads wait, and fences of streams, for which the
 * daemon waits.
 */
#ifndef ZD_CLIENT_FENCE_H
#define ZD_CLIENT_FENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <zerod.h>

#include "base/err.h"
#include "client/lib/base/client.h"
#include "proto/limits.h"
#include "proto/zerod.pb-c.h"

struct zc_fence {
	uint32_t timeline;
	uint64_t value;
};

/* The number of fences that need no allocation: most gathers have one fence a device. */
#define ZC_FEW_FENCES 8u

struct zc_fences {
	unsigned count;
	struct zc_fence few[ZC_FEW_FENCES];
	struct zc_fence *many; /* NULL: `few` holds them */
};

static inline const struct zc_fence *zc_fences_list(const struct zc_fences *fences)
{
	return fences->many ? fences->many : fences->few;
}

/* The highest fence of each timeline. Values of a timeline rise: this fence implies the others. */
struct zc_fence_merge {
	struct zc_fences fences; /* of `list`: not to be deinitialised */
	uint64_t seen[ZD_TIMELINES / 64];
	uint16_t at[ZD_TIMELINES]; /* the index in the list, for timelines that were seen */
	struct zc_fence list[ZD_TIMELINES];
};

/* Fences after all work now in some streams, as a request carries them. */
struct zc_fence_args {
	size_t count;
	Zd__Fence fences[ZD_MAX_FENCES];
	Zd__Fence *pointers[ZD_MAX_FENCES];
};

/* Whether the counter has reached the value. Signed and cyclic, like the daemon's comparison. */
static inline bool zc_fence_reached(uint64_t counter, uint64_t value)
{
	return (int64_t)(counter - value) >= 0;
}

static inline uint64_t zc_fence_counter(const struct zerod_client *client, uint32_t timeline)
{
	return __atomic_load_n(&client->daemon_page[timeline], __ATOMIC_ACQUIRE);
}

/* Returns 1 if the fence has passed, 0 if not, or ZEROD_E_ABORTED. */
static inline int zc_fence_judge(uint64_t counter, uint64_t value)
{
	if (counter == ZD_FENCE_ABORTED)
		return ZEROD_E_ABORTED;
	return zc_fence_reached(counter, value);
}

/* Copies and checks fences on the daemon's page. */
int zc_fences_take(const struct zerod_client *client, size_t count, Zd__Fence *const *from,
                   struct zc_fences *fences, struct zd_err *err) __attribute__((warn_unused_result));
void zc_fences_deinit(struct zc_fences *fences);
void zc_fence_merge_init(struct zc_fence_merge *merge);
void zc_fence_merge_add(struct zc_fence_merge *merge, struct zc_fence fence);
/* Returns 1 if all fences have passed, 0 if not, or ZEROD_E_ABORTED. */
int zc_fences_poll(const struct zerod_client *client, const struct zc_fences *fences);
/* Sleeps while the counter is `seen`. Spurious returns are fine: the caller polls again. */
void zc_fence_sleep(const uint64_t *counter, uint64_t seen, uint64_t sleep_ns);
/* Returns an aborted counter, among those for which streams wait, or NULL. */
const uint64_t *zc_fence_find_abort(const struct zerod_client *client);
/* Stores into the client's page and wakes the threads that sleep on it. */
void zc_fence_signal(struct zerod_client *client, uint32_t timeline, uint64_t value);

#endif
