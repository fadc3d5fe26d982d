/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fence.c - counters in shared memory: waits for the daemon's counters, and stores to the client's.
 *
 * A thread that waits for a counter first spins for a few microseconds, since most transfers have ended by
 * then, and then sleeps on the counter's low word, a futex that the daemon wakes after each store. The word
 * may repeat after 2^32 values, and a wake-up may be for another value, so only the whole counter is
 * compared. A daemon that has died wakes no thread, so a sleep is divided into slices, and the thread checks
 * the connection between them.
 */
#include "client/client.h"
#include "client/options.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPINS     200u
#define NS_PER_S  1000000000u
#define MASK_BITS 64u

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static uint64_t load_counter(const struct zerod_client *client, uint32_t timeline)
{
	return __atomic_load_n(&client->daemon_page[timeline], __ATOMIC_ACQUIRE);
}

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

/* ---- Waiting ------------------------------------------------------------------------------------------- */

static int judge(uint64_t counter, uint64_t value)
{
	if (counter == ZD_FENCE_ABORTED)
		return ZEROD_E_ABORTED;
	return zc_fence_reached(counter, value);
}

int zc_fences_poll(const struct zerod_client *client, const struct zc_fences *fences)
{
	const struct zc_fence *list = zc_fences_list(fences);
	int all = 1;

	for (unsigned i = 0; i < fences->count; i++) {
		int rc = judge(load_counter(client, list[i].timeline), list[i].value);

		if (rc < 0)
			return rc;
		all &= rc;
	}
	return all;
}

/* Spurious returns are fine: the caller polls again. */
static void sleep_on(const uint64_t *counter, uint64_t seen, uint64_t sleep_ns)
{
	struct timespec timeout = {.tv_sec = (time_t)(sleep_ns / NS_PER_S),
	                           .tv_nsec = (long)(sleep_ns % NS_PER_S)};

	(void)syscall(SYS_futex, low_word(counter), FUTEX_WAIT, (uint32_t)seen, &timeout, NULL, 0);
}

static void check_connection(struct zerod_client *client)
{
	pthread_mutex_lock(&client->lock);
	zc_drain(client);
	pthread_mutex_unlock(&client->lock);
}

/* 0, ABORTED, DEADLINE, INTERRUPTED, or why the connection broke; no text. */
static int wait_one(struct zerod_client *client, struct zc_fence fence, uint64_t deadline_ns)
{
	uint64_t looked_ns = zc_now_ns(), ask_ns = zc_ask_from(client);

	for (unsigned i = 0; i < SPINS; i++) {
		int rc = judge(load_counter(client, fence.timeline), fence.value);

		if (rc)
			return rc < 0 ? rc : 0;
		relax();
	}
	for (;;) {
		uint64_t counter = load_counter(client, fence.timeline);
		int rc = judge(counter, fence.value);
		uint64_t now_ns = zc_now_ns();

		if (rc)
			return rc < 0 ? rc : 0;
		if (client->broken_status)
			return client->broken_status;
		if (now_ns >= deadline_ns)
			return ZEROD_E_DEADLINE;
		sleep_on(&client->daemon_page[fence.timeline], counter,
		         deadline_ns - now_ns < ZC_POLL_SLICE_NS ? deadline_ns - now_ns : ZC_POLL_SLICE_NS);
		if (zc_ask(client, &ask_ns))
			return ZEROD_E_INTERRUPTED;
		/* However short the sleeps are, which signals cut. */
		now_ns = zc_now_ns();
		if (now_ns - looked_ns >= ZC_POLL_SLICE_NS) {
			check_connection(client);
			looked_ns = now_ns;
		}
	}
}

static int explain(struct zerod_client *client, int rc, struct zc_fence fence, const char *what,
                   struct zd_err *err)
{
	if (rc == ZEROD_E_ABORTED && zc_is_hung_up(client)) {
		(void)zd_err_set(err, ZEROD_E_DISCONNECTED, "the daemon closed the connection");
		return zc_read_last_words(client, err);
	}
	switch (rc) {
	case ZEROD_E_ABORTED:
		client->poisoned = true;
		return zd_err_set(err, rc,
		                  "the wait for %s was freed by an abort: discard what followed, then reset "
		                  "the session",
		                  what);
	case ZEROD_E_DEADLINE:
	case ZEROD_E_INTERRUPTED:
		return zd_err_set(err, rc, "waited for %s: timeline %u is at %llu, expected %llu", what,
		                  fence.timeline, (unsigned long long)load_counter(client, fence.timeline),
		                  (unsigned long long)fence.value);
	default:
		return zd_err_set(err, rc, "%s", client->broken_text);
	}
}

int zc_fences_wait(struct zerod_client *client, const struct zc_fences *fences, uint64_t deadline_ns,
                   const char *what, struct zd_err *err)
{
	const struct zc_fence *list = zc_fences_list(fences);

	for (unsigned i = 0; i < fences->count; i++) {
		int rc = wait_one(client, list[i], deadline_ns);

		if (rc)
			return explain(client, rc, list[i], what, err);
	}
	return 0;
}

const uint64_t *zc_abort_find(const struct zerod_client *client)
{
	for (uint32_t i = 0; i < client->ntimelines && i < ZD_AWAITED_TIMELINES; i++)
		if (load_counter(client, i) == ZD_FENCE_ABORTED)
			return &client->daemon_page[i];
	return NULL;
}

void zc_aborts_settle(struct zerod_client *client)
{
	uint64_t deadline_ns = zc_now_ns() + ZC_GRACE_NS;
	const uint64_t *counter;

	while ((counter = zc_abort_find(client)) && !client->broken_status && zc_now_ns() < deadline_ns)
		sleep_on(counter, ZD_FENCE_ABORTED, ZC_POLL_SLICE_NS);
}

/* ---- Our own counters ---------------------------------------------------------------------------------- */

void zc_timeline_signal(struct zerod_client *client, uint32_t timeline, uint64_t value)
{
	uint64_t *counter = &client->client_page[timeline];

	__atomic_store_n(counter, value, __ATOMIC_RELEASE);
	(void)syscall(SYS_futex, low_word(counter), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
