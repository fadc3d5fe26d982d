/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rest_races.c - a packet is written into the ring while its reader comes to rest: the reader finds it,
 * or is woken.
 *
 * Both are let go at once, round after round: where a store of one of them may be seen after its next load,
 * some packet in many thousands is left in the ring of a reader that sleeps. With one processor, or beside
 * programs that keep the processors busy, there is nothing to see.
 */
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "proto/endpoint.h"
#include "tests/support/rounds.h"
#include "tests/support/test.h"

#include "server/loop.c" /* NOLINT(bugprone-suspicious-include): for may_sleep() */

#define MOST_ROUNDS 100000u

struct race {
	struct zd_endpoint sender, reader;
	struct zd_loop loop;
	struct zd_poll_source poll_source;
	atomic_uint begun, ended; /* rounds */
	uint8_t in[ZD_MAX_PACKET_BYTES];
};

static void *send_each_round(void *arg)
{
	struct race *race = arg;

	for (unsigned round = 1; rounds_await(&race->begun, round); round++) {
		rounds_dally(round * 2654435761u >> 27);
		if (zd_endpoint_send(&race->sender, &round, sizeof(round), NULL, 0, NULL)) {
			atomic_store_explicit(&race->ended, ROUNDS_OVER, memory_order_release);
			return race;
		}
		atomic_store_explicit(&race->ended, round, memory_order_release);
	}
	return NULL;
}

static bool is_readable(const struct zd_endpoint *link)
{
	struct pollfd poll_for = {.fd = link->sock, .events = POLLIN};

	return poll(&poll_for, 1, 0) == 1;
}

static void drain(struct race *race, unsigned round)
{
	int fds[ZD_MAX_PACKET_FDS], rc;
	unsigned got = 0, nfds;
	size_t nbytes;

	while (got != round || is_readable(&race->reader)) { /* the byte that wakes */
		rc = zd_endpoint_try_recv(&race->reader, race->in, sizeof(race->in), &nbytes, fds, &nfds,
		                          NULL);
		assert_true(rc == 0 || rc == ZD_FRAME_AGAIN);
		if (rc == 0)
			memcpy(&got, race->in, sizeof(got));
	}
}

/* `look` begins to look; `rest` comes to rest, and says whether it may. It comes the later the more often it
 * was too early: by the socket comes what was sent when nobody looked any more. */
static void run_rounds(struct race *race, void (*look)(struct race *race), bool (*rest)(struct race *race))
{
	struct rounds rounds = rounds_of(MOST_ROUNDS);
	unsigned steps = 0;
	bool is_lost = false;
	pthread_t thread;
	void *failed;

	assert_int_equal(pthread_create(&thread, NULL, send_each_round, race), 0);
	while (!is_lost && rounds_next(&rounds)) {
		bool rests, is_due;

		look(race);
		atomic_store_explicit(&race->begun, rounds.begun, memory_order_release);
		rounds_dally(steps);
		rests = rest(race);
		if (!rounds_await(&race->ended, rounds.begun))
			break;
		is_due = zd_endpoint_is_due(&race->reader);
		if (rests && is_due)
			is_lost = !is_readable(&race->reader);
		else if (is_due)
			steps -= steps > 0;
		else
			steps++;
		if (!is_lost)
			drain(race, rounds.begun);
	}
	atomic_store_explicit(&race->begun, ROUNDS_OVER, memory_order_release);
	assert_int_equal(pthread_join(thread, &failed), 0);
	assert_null(failed);
	assert_false(is_lost);
}

static bool link_has(const void *arg)
{
	return zd_endpoint_is_due(&((const struct race *)arg)->reader);
}

static int setup(void **state)
{
	struct race *race = zd_calloc(1, sizeof(*race));
	struct zd_ring *ring = aligned_alloc(64, sizeof(*ring));
	int ends[2];

	assert_non_null(ring);
	memset(ring, 0, sizeof(*ring));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	race->sender = (struct zd_endpoint){.sock = ends[0], .out.ring = ring};
	race->reader = (struct zd_endpoint){.sock = ends[1], .in.ring = ring};
	assert_int_equal(setenv("ZEROD_SPIN", "always", 1), 0);
	assert_int_equal(zd_loop_init(&race->loop, NULL), 0);
	zd_loop_allow_spinning(&race->loop);
	race->poll_source = (struct zd_poll_source){.has = link_has, .arg = race, .polling = &ring->polling};
	*state = race;
	return 0;
}

static int teardown(void **state)
{
	struct race *race = *state;

	zd_loop_deinit(&race->loop);
	(void)close(race->sender.sock);
	(void)close(race->reader.sock);
	free(race->reader.in.ring);
	free(race);
	return 0;
}

#define RACE_TEST(name) FIXTURE_TEST(name, struct race *race, setup, teardown)

/* ---- A thread of its own ------------------------------------------------------------------------------- */

static void look_at_link(struct race *race)
{
	zd_endpoint_start_polling(&race->reader);
}

static bool rest_at_link(struct race *race)
{
	return zd_endpoint_rest(&race->reader);
}

RACE_TEST(test_a_link_comes_to_rest)
{
	run_rounds(race, look_at_link, rest_at_link);
}

/* ---- The loop ------------------------------------------------------------------------------------------ */

static void look_by_loop(struct race *race)
{
	zd_loop_list(&race->loop, &race->poll_source);
}

static bool rest_of_loop(struct race *race)
{
	return may_sleep(&race->loop);
}

RACE_TEST(test_the_loop_comes_to_rest)
{
	run_rounds(race, look_by_loop, rest_of_loop);
	zd_loop_drop(&race->loop, &race->poll_source);
}
