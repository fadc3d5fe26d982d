/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fence_wait.c - threads that wait for the daemon's counters.
 *
 * A thread that waits for a counter first spins for a few microseconds, because most transfers end in this
 * time, and then sleeps on the counter. A daemon that has died wakes no thread. A sleep is therefore divided
 * into slices, and the thread checks the connection between them.
 */
#include "client/lib/conn/fence_wait.h"

#include "client/lib/base/interrupt.h"
#include "client/lib/base/options.h"
#include "client/lib/conn/request.h"

#define SPINS 200u

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void check_connection(struct zerod_client *client)
{
	ZC_LOCKED(&client->lock);
	zc_drain(client);
}

/* Returns 0, ABORTED, DEADLINE, INTERRUPTED, or the status with which the connection broke, without a
 * text. */
static int wait_one(struct zerod_client *client, struct zc_fence fence, uint64_t deadline_ns)
{
	uint64_t looked_ns = zc_now_ns(), ask_ns = zc_ask_from(client);

	for (unsigned i = 0; i < SPINS; i++) {
		int rc = zc_fence_judge(zc_fence_counter(client, fence.timeline), fence.value);

		if (rc)
			return rc < 0 ? rc : 0;
		relax();
	}
	for (;;) {
		uint64_t counter = zc_fence_counter(client, fence.timeline);
		int rc = zc_fence_judge(counter, fence.value);
		uint64_t now_ns = zc_now_ns();

		if (rc)
			return rc < 0 ? rc : 0;
		if (client->broken_status)
			return client->broken_status;
		if (now_ns >= deadline_ns)
			return ZEROD_E_DEADLINE;
		zc_fence_sleep(&client->daemon_page[fence.timeline], counter,
		               deadline_ns - now_ns < ZC_POLL_SLICE_NS ? deadline_ns - now_ns
		                                                       : ZC_POLL_SLICE_NS);
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
		                  "an abort has ended the wait for %s: discard the results since then, and "
		                  "reset the session",
		                  what);
	case ZEROD_E_DEADLINE:
	case ZEROD_E_INTERRUPTED:
		return zd_err_set(err, rc, "waited for %s: timeline %u is at %llu, expected %llu", what,
		                  fence.timeline,
		                  (unsigned long long)zc_fence_counter(client, fence.timeline),
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

void zc_aborts_settle(struct zerod_client *client)
{
	uint64_t deadline_ns = zc_now_ns() + ZC_GRACE_NS;
	const uint64_t *counter;

	while ((counter = zc_fence_find_abort(client)) && !client->broken_status && zc_now_ns() < deadline_ns)
		zc_fence_sleep(counter, ZD_FENCE_ABORTED, ZC_POLL_SLICE_NS);
}
