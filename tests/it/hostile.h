/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostile.h - a daemon, a well-behaved job on it, and the proof that neither notices what a test does.
 *
 * HOSTILE_TEST(fn) runs a test between two rounds of the witness: two ranks that update, publish and gather a
 * unit through libzerod and look at every byte. Afterwards the daemon must be exactly what it was: as many
 * sessions, jobs, groups, charged bytes and open descriptors as before. hostile_start() and hostile_stop()
 * are the group's set-up and tear-down.
 */
#ifndef ZD_TESTS_HOSTILE_H
#define ZD_TESTS_HOSTILE_H

#include <pthread.h>
#include <time.h>

#include <zerod.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/raw_client.h"
#include "tests/support/test.h"

#define HOSTILE_RANKS    2u
#define HOSTILE_NUMEL    10007u /* a prime: the last shard is padded */
#define HOSTILE_RETRY_NS 2000000L
#define HOSTILE_RETRIES  5000 /* 10 s */

/* The daemon's state, which must be the same before and after a hostile client. */
struct hostile_state {
	uint32_t sessions, jobs, groups;
	uint64_t bytes;
	int fds;
};

static struct {
	struct zd_daemon daemon;
	struct raw_client observer;
	zerod_client *client[HOSTILE_RANKS];
	zerod_group *group[HOSTILE_RANKS];
	zerod_unit *unit[HOSTILE_RANKS];
	int32_t round;
	struct hostile_state before;
} hostile = {.observer.sock = -1};

/* The client that misbehaves; closed after each test, also one that failed. */
static struct raw_client raw = {.sock = -1};

static inline const char *hostile_socket(void)
{
	return hostile.daemon.socket_path;
}

/* ---- The witness --------------------------------------------------------------------------------------- */

static inline void *hostile_join(void *arg)
{
	const uint32_t rank = *(const uint32_t *)arg;
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group = ZEROD_INIT(group);

	options.socket_path = hostile_socket();
	options.name = "witness";
	group.job = "witness";
	group.world_size = HOSTILE_RANKS;
	group.rank = group.device = rank;
	if (zerod_connect(&options, &hostile.client[rank]) == 0)
		(void)!zerod_group_join(hostile.client[rank], &group, &hostile.group[rank]);
	return NULL;
}

static inline void hostile_check(uint32_t rank, int status)
{
	if (status)
		print_error("witness, rank %u: %s: %s\n", rank, zerod_status_name(status),
		            zerod_last_error(hostile.client[rank]));
	assert_int_equal(status, 0);
}

static inline void hostile_publish(uint32_t rank)
{
	struct zerod_shard shard = ZEROD_INIT(shard);

	hostile_check(rank, zerod_update_begin(&hostile.unit[rank], 1, NULL, NULL));
	hostile_check(rank, zerod_shard_get(hostile.unit[rank], &shard));
	for (uint64_t i = 0; i < shard.true_numel; i++)
		((int32_t *)shard.data)[i] = hostile.round * 100000 + (int32_t)(shard.offset_numel + i);
	hostile_check(rank, zerod_publish(&hostile.unit[rank], 1, NULL, 0, NULL, NULL));
}

/* Makes a round: every rank writes, then every rank gathers the bytes of all ranks. */
static inline void hostile_witness(void)
{
	hostile.round++;
	for (uint32_t rank = 0; rank < HOSTILE_RANKS; rank++)
		hostile_publish(rank);
	for (uint32_t rank = 0; rank < HOSTILE_RANKS; rank++) {
		const int32_t *data = NULL;

		hostile_check(rank, zerod_gather(hostile.unit[rank], NULL, NULL, (void **)&data));
		for (uint32_t i = 0; i < HOSTILE_NUMEL; i++)
			assert_int_equal(data[i], hostile.round * 100000 + (int32_t)i);
		hostile_check(rank, zerod_release(hostile.unit[rank], NULL, 0, NULL, NULL));
	}
}

static inline void hostile_witness_begin(void)
{
	static const uint32_t ranks[HOSTILE_RANKS] = {0, 1};
	pthread_t threads[HOSTILE_RANKS];

	for (uint32_t rank = 0; rank < HOSTILE_RANKS; rank++)
		assert_int_equal(pthread_create(&threads[rank], NULL, hostile_join, (void *)&ranks[rank]), 0);
	for (uint32_t rank = 0; rank < HOSTILE_RANKS; rank++)
		pthread_join(threads[rank], NULL);
	for (uint32_t rank = 0; rank < HOSTILE_RANKS; rank++) {
		struct zerod_unit_options unit = ZEROD_INIT(unit);

		assert_non_null(hostile.group[rank]);
		unit.name = "w";
		unit.dtype = ZEROD_INT32;
		unit.numel = HOSTILE_NUMEL;
		hostile_check(rank, zerod_unit_register(hostile.group[rank], &unit, &hostile.unit[rank]));
	}
	hostile_witness();
}

static inline void hostile_witness_end(void)
{
	for (uint32_t rank = 0; rank < HOSTILE_RANKS; rank++) {
		zerod_close(hostile.client[rank]);
		hostile.client[rank] = NULL;
	}
}

/* All that the client has sent so far has been begun. */
static inline void hostile_sync(struct raw_client *client)
{
	(void)raw_expect(client, raw_send(client, RAW(DAEMON_STATUS, daemon_status, DaemonStatus)), 0);
}

/* ---- Before and after ---------------------------------------------------------------------------------- */

static inline void hostile_look(struct hostile_state *state)
{
	uint64_t id = raw_send(&hostile.observer, RAW(DAEMON_STATUS, daemon_status, DaemonStatus));
	const Zd__DaemonStatusReply *status = raw_expect(&hostile.observer, id, 0)->daemon_status;
	const Zd__Usage *usage = status->usage;

	*state = (struct hostile_state){
	        .sessions = status->sessions,
	        .jobs = status->jobs,
	        .groups = status->groups,
	        .bytes = usage->shard_bytes + usage->gathered_bytes + usage->bucket_bytes +
	                 usage->staging_bytes + usage->target_bytes + usage->allocation_bytes,
	        .fds = zd_daemon_count_fds(&hostile.daemon),
	};
	raw_forget(&hostile.observer);
}

static inline bool hostile_same(const struct hostile_state *a, const struct hostile_state *b)
{
	return a->sessions == b->sessions && a->jobs == b->jobs && a->groups == b->groups &&
	       a->bytes == b->bytes && a->fds == b->fds;
}

/* Ends of sessions are the daemon's to notice. */
static inline void hostile_expect_unchanged(void)
{
	const struct timespec retry = {.tv_nsec = HOSTILE_RETRY_NS};
	struct hostile_state now;

	for (int i = 0; i < HOSTILE_RETRIES; i++) {
		hostile_look(&now);
		if (hostile_same(&now, &hostile.before))
			return;
		(void)nanosleep(&retry, NULL);
	}
	print_error("before: %u sessions, %u jobs, %u groups, %llu bytes, %d descriptors\n"
	            "after:  %u sessions, %u jobs, %u groups, %llu bytes, %d descriptors\n",
	            hostile.before.sessions, hostile.before.jobs, hostile.before.groups,
	            (unsigned long long)hostile.before.bytes, hostile.before.fds, now.sessions, now.jobs,
	            now.groups, (unsigned long long)now.bytes, now.fds);
	fail();
}

static inline int hostile_before(void **state)
{
	(void)state;
	hostile_witness();
	hostile_look(&hostile.before);
	return 0;
}
static inline int hostile_after(void **state)
{
	(void)state;
	raw_close(&raw);
	hostile_expect_unchanged();
	hostile_witness();
	return 0;
}
#define HOSTILE_TEST(name) TEST_DEFINE(name, void, , name(), hostile_before, hostile_after)

/* `*state`: struct zd_daemon_options, or NULL. */
static inline int hostile_start(void **state)
{
	if (zd_daemon_start(*state, &hostile.daemon) != 0)
		return -1;
	raw_open(&hostile.observer, hostile_socket());
	hostile_witness_begin();
	return 0;
}

static inline int hostile_stop(void **state)
{
	(void)state;
	hostile_witness_end();
	raw_close(&hostile.observer);
	return zd_daemon_stop(&hostile.daemon);
}

#endif
