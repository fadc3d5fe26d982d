/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak_readers.c - readers take snapshots of a job that trains as fast as it can, and compare each byte.
 *
 * Four ranks, a process each, update, publish and commit without a pause. Those without shadows rest after
 * some commits, since the next update ends a snapshot. Each word of a unit is a function of the step, the
 * rank and the offset. Two readers, a process each, copy all units of a commit. Half of $SNAPSHOTS (10000)
 * are of a job without shadows, and half of a durable one with shadows. Meanwhile readers and ranks are
 * killed at random moments ($SEED), and the daemon in the middle of each half. Prints the figures. Exits with
 * 1 at a wrong word, at an error that no kill explains, and without progress.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <signal.h>

#include <zerod.h>
#include <zerod_read.h>

#include "base/err.h"
#include "base/mem.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/options.h"

#define NRANKS      4u
#define NREADERS    2u
#define NPROCESSES  (NRANKS + NREADERS)
#define NUNITS      3u
#define NUMEL       (NRANKS * 2048u - 3) /* words; not in equal shards */
#define SHARD_NUMEL 2048u
#define BYTES       (NUMEL * sizeof(uint32_t))
#define DEADLINE_MS 60000u
#define PAUSE_US    20000u

static const char *const keep[] = {"--keep-state", "holder", NULL};
static const struct zd_daemon_options options_ = {.args = keep};
static struct zd_daemon daemon_;
static bool shadows; /* of this half's job */

/* The memory that all processes share. */
static struct shared {
	atomic_ulong snapshots, stale, ended, bytes, steps;
	atomic_bool wrong;
	char why[256];
} * shared;

static uint64_t random_;

static unsigned draw(unsigned n)
{
	random_ = random_ * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)((random_ >> 33) % n);
}

static void nap(unsigned us)
{
	(void)nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

static _Noreturn void wrong(const char *what, uint64_t step, const char *text)
{
	(void)snprintf(shared->why, sizeof(shared->why), "step %llu: %s: %s", (unsigned long long)step, what,
	               text);
	atomic_store(&shared->wrong, true);
	_exit(1);
}

static uint32_t word(uint64_t step, uint32_t unit, uint32_t rank, uint32_t offset)
{
	uint64_t mixed = (step * 64 + rank * 8 + unit) * 0x9e3779b97f4a7c15u + offset * 0x85ebca6bull;

	return (uint32_t)(mixed >> 32 ^ mixed);
}

static const char *unit_name(uint32_t unit)
{
	static const char *const names[NUNITS] = {"a", "b", "c"};
	return names[unit];
}

static int open_client(const char *name, zerod_client **client)
{
	struct zerod_options options = ZEROD_INIT(options);

	options.socket_path = daemon_.socket_path;
	options.deadline_ms = DEADLINE_MS;
	options.name = name;
	return zerod_connect(&options, client);
}

/* ---- A rank -------------------------------------------------------------------------------------------- */

struct trainer {
	uint32_t rank;
	zerod_client *client;
	zerod_group *group;
	zerod_unit *units[NUNITS];
	struct zerod_shard shards[NUNITS];
};

static int join(struct trainer *t)
{
	struct zerod_group_options group = ZEROD_INIT(group);
	int rc = open_client("trainer", &t->client);

	group.job = "soak";
	group.world_size = NRANKS;
	group.rank = t->rank;
	group.device = t->rank % 2;
	group.flags = shadows ? ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW : 0;
	if (rc == 0)
		rc = zerod_group_join(t->client, &group, &t->group);
	for (uint32_t i = 0; i < NUNITS && rc == 0; i++) {
		rc = zerod_unit_register(t->group,
		                         OPTIONS_OF(zerod_unit_options, .name = unit_name(i),
		                                    .dtype = ZEROD_FLOAT32, .numel = NUMEL),
		                         &t->units[i]);
		if (rc == 0)
			rc = zerod_shard_get(t->units[i], SIZED(&t->shards[i]));
	}
	return rc;
}

static int train_step(const struct trainer *t, uint64_t step)
{
	int rc = zerod_update_begin(t->units, NUNITS, NULL, NULL);

	for (uint32_t i = 0; i < NUNITS && rc == 0; i++) {
		for (uint32_t offset = 0; offset < t->shards[i].true_numel; offset++)
			((uint32_t *)t->shards[i].data)[offset] = word(step, i, t->rank, offset);
	}
	if (rc == 0)
		rc = zerod_publish(t->units, NUNITS, NULL, 0, NULL, NULL);
	return rc ? rc : zerod_commit(t->group, step, NULL);
}

static _Noreturn void trainer_main(uint32_t rank)
{
	for (;; nap(1000)) {
		struct trainer t = {.rank = rank};
		struct zerod_group_info info = ZEROD_INIT(info);
		int rc = join(&t);

		if (rc == 0)
			rc = zerod_group_get(t.group, &info);
		for (uint64_t step = info.committed_step; rc == 0;) {
			rc = train_step(&t, ++step);
			atomic_fetch_add(&shared->steps, rc == 0 && rank == 0);
			if (!shadows && step % 8 == 0)
				nap(2000);
		}
		if (rc == ZEROD_E_DEADLINE)
			wrong("a rank is stuck", info.committed_step, zerod_last_error(t.client));
		zerod_close(t.client);
	}
}

/* ---- A reader ------------------------------------------------------------------------------------------ */

struct reader {
	zerod_client *client;
	zerod_allocation *into;
	void *data;
	struct zerod_committed commit;
};

static void check(const struct reader *r, uint32_t unit)
{
	for (uint32_t i = 0; i < NUMEL; i++) {
		uint32_t found = ((const uint32_t *)r->data)[i];
		uint32_t wanted = word(r->commit.step, unit, i / SHARD_NUMEL, i % SHARD_NUMEL);
		char text[96];

		if (found == wanted)
			continue;
		(void)snprintf(text, sizeof(text), "unit '%s', word %u is %08x and not %08x", unit_name(unit),
		               i, found, wanted);
		wrong("a snapshot is torn", r->commit.step, text);
	}
}

/* The next snapshot, whole or stale. Every second one is pinned, and outlives commits. */
static int take_snapshot(struct reader *r)
{
	uint32_t pin = r->commit.step % 2 ? ZEROD_COMMIT_PIN : 0;
	int rc = zerod_commit_wait(r->client, OPTIONS_OF(zerod_commit_source, .job = "soak", .flags = pin),
	                           r->commit.step, SIZED(&r->commit));

	for (uint32_t i = 0; i < NUNITS && rc == 0; i++) {
		if (pin)
			nap(1000);
		rc = zerod_unit_read(r->client,
		                     OPTIONS_OF(zerod_unit_read_options, .group = r->commit.group,
		                                .step = r->commit.step, .unit = unit_name(i), .bytes = BYTES,
		                                .into = r->into),
		                     NULL);
		if (rc == 0) {
			check(r, i);
			atomic_fetch_add(&shared->bytes, BYTES);
		}
	}
	atomic_fetch_add(&shared->snapshots, rc == 0);
	atomic_fetch_add(&shared->stale, rc == ZEROD_E_STALE_VERSION);
	return rc == ZEROD_E_STALE_VERSION ? 0 : rc;
}

static bool is_of_a_kill(int rc)
{
	return rc == ZEROD_E_NOT_FOUND || rc == ZEROD_E_PEER_LOST || rc == ZEROD_E_TORN ||
	       rc == ZEROD_E_RESTARTED || rc == ZEROD_E_CONNECT || rc == ZEROD_E_DISCONNECTED;
}

static _Noreturn void reader_main(void)
{
	for (;; nap(1000)) {
		struct reader r = {0};
		int rc = open_client("reader", &r.client);

		if (rc == 0)
			rc = zerod_alloc(r.client,
			                 OPTIONS_OF(zerod_alloc_options, .job = "reader", .bytes = BYTES),
			                 &r.into, &r.data);
		while (rc == 0)
			rc = take_snapshot(&r);
		if (!is_of_a_kill(rc))
			wrong("a reader fails", r.commit.step, zerod_last_error(r.client));
		atomic_fetch_add(&shared->ended, 1);
		zerod_close(r.client);
	}
}

/* ---- Kills --------------------------------------------------------------------------------------------- */

static pid_t processes[NPROCESSES];

static void start(uint32_t i)
{
	processes[i] = fork();
	if (processes[i] != 0)
		return;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (i < NRANKS)
		trainer_main(i);
	reader_main();
}

static void end(uint32_t i)
{
	(void)kill(processes[i], SIGKILL);
	(void)waitpid(processes[i], NULL, 0);
}

/* One half. Returns 0, or -1 after saying why. */
static int soak(unsigned long wanted)
{
	unsigned long readers = 0, ranks = 0, last = 0;
	bool killed = false;
	time_t since = time(NULL), began = since;
	int rc = zd_daemon_start(&options_, &daemon_);

	memset(shared, 0, sizeof(*shared));
	for (uint32_t i = 0; i < NPROCESSES; i++)
		start(i);
	while (rc == 0 && shared->snapshots < wanted && !shared->wrong && time(NULL) - since < 90) {
		uint32_t victim = draw(4) ? NRANKS + draw(NREADERS) : draw(NRANKS);

		if (shared->snapshots != last)
			since = time(NULL);
		last = shared->snapshots;
		nap(draw(PAUSE_US));
		if (!killed && last >= wanted / 2) {
			killed = true;
			rc = zd_daemon_kill(&daemon_) || zd_daemon_restart(&options_, &daemon_);
		} else if (draw(4) == 0) {
			end(victim);
			start(victim);
			*(victim < NRANKS ? &ranks : &readers) += 1;
		}
	}
	for (uint32_t i = 0; i < NPROCESSES; i++)
		end(i);
	printf("%s shadows: %lu snapshots of %lu steps, %lu stale, %lu bytes, %ld s; "
	       "killed: %lu readers, %lu ranks, the daemon %s; readers that began anew: %lu\n",
	       shadows ? "with" : "without", shared->snapshots, shared->steps, shared->stale, shared->bytes,
	       (long)(time(NULL) - began), readers, ranks, killed ? "once" : "not", shared->ended);
	if (shared->wrong)
		printf("%s\n", shared->why);
	else if (shared->snapshots < wanted)
		printf("no snapshot for 90 s\n");
	if (shadows && rc == 0)
		rc = zd_daemon_zeroctl(&daemon_, "kill-job soak");
	return zd_daemon_stop(&daemon_) || rc || shared->wrong || shared->snapshots < wanted ? -1 : 0;
}

int main(void)
{
	unsigned long wanted = getenv("SNAPSHOTS") ? strtoul(getenv("SNAPSHOTS"), NULL, 10) : 10000;
	int rc;

	random_ = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : 1;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 1;
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	rc = soak(wanted / 2);
	shadows = true;
	return rc || soak(wanted - wanted / 2) ? 1 : 0;
}
