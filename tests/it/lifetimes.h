/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifetimes.h - trainers that are processes of their own, so that they can be killed, and what they leave in
 * the daemon.
 *
 * The test's own process has no thread and no libzerod client: it forks, and looks through a raw client. A
 * trainer says when it is where it should be, and then stays there until it is killed. What it cannot do it
 * says too, and the test fails.
 */
#ifndef ZD_TESTS_LIFETIMES_H
#define ZD_TESTS_LIFETIMES_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <zerod.h>
#include <zerod_host.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/raw_client.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIFE_GONE_MS 5000 /* the daemon is some times slower */
#else
#define LIFE_GONE_MS 1000 /* the promise: a killed client leaves nothing for longer than that */
#endif
#define LIFE_WAIT_MS  20000
#define LIFE_RETRY_NS 1000000L
#define LIFE_SAY      400
#define LIFE_TRAINERS 4

static struct zd_daemon life_daemon;
static struct raw_client life_observer = {.sock = -1};
static pid_t life_trainers[LIFE_TRAINERS]; /* not reaped yet; 0: none */

static inline int64_t life_now_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void life_retry(void)
{
	(void)nanosleep(&(const struct timespec){.tv_nsec = LIFE_RETRY_NS}, NULL);
}

/* ---- Trainers ------------------------------------------------------------------------------------------ */

/* In the trainer's process. */
struct trainer {
	int told; /* where to say things */
	uint32_t rank, world_size;
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit, *second;
	zerod_bucket *bucket;
	zerod_stream *stuck; /* a stream that runs something without an end */
};

typedef void trainer_fn(struct trainer *trainer);

struct trainer_process {
	pid_t pid;
	int says;
};

/* A line for the test; the first byte is '+' when all is well. */
static inline void trainer_say(const struct trainer *trainer, const char *line)
{
	(void)!write(trainer->told, line, strlen(line) + 1);
}

static inline void trainer_ready(const struct trainer *trainer)
{
	trainer_say(trainer, "+ready");
}

_Noreturn static inline void trainer_stay(void)
{
	for (;;)
		(void)pause();
}

static inline void trainer_check_at(const struct trainer *trainer, int status, const char *call)
{
	char line[LIFE_SAY];

	if (status == 0)
		return;
	(void)snprintf(line, sizeof(line), "-rank %u: %s: %s: %s", trainer->rank, call,
	               zerod_status_name(status), zerod_last_error(trainer->client));
	trainer_say(trainer, line);
	_exit(1);
}
#define TRY(trainer, call) trainer_check_at(trainer, call, #call)

static inline void trainer_connect(struct trainer *trainer)
{
	struct zerod_options options = ZEROD_INIT(options);

	options.socket_path = life_daemon.socket_path;
	options.name = "trainer";
	options.deadline_ms = ZEROD_NO_DEADLINE;
	TRY(trainer, zerod_connect(&options, &trainer->client));
}

static inline void trainer_join(struct trainer *trainer)
{
	struct zerod_group_options options = ZEROD_INIT(options);

	trainer_connect(trainer);
	options.job = "job";
	options.world_size = trainer->world_size;
	options.rank = options.device = trainer->rank;
	TRY(trainer, zerod_group_join(trainer->client, &options, &trainer->group));
}

static inline zerod_unit *trainer_register(struct trainer *trainer, const char *name, uint64_t numel,
                                           uint32_t slot)
{
	struct zerod_unit_options options = ZEROD_INIT(options);
	zerod_unit *unit = NULL;

	options.name = name;
	options.dtype = ZEROD_FLOAT32;
	options.numel = numel;
	options.slot = slot;
	TRY(trainer, zerod_unit_register(trainer->group, &options, &unit));
	return unit;
}

static inline void trainer_publish(struct trainer *trainer, zerod_unit *unit)
{
	TRY(trainer, zerod_update_begin(&unit, 1, NULL, NULL));
	TRY(trainer, zerod_publish(&unit, 1, NULL, 0, NULL, NULL));
}

/* Joined, with one published unit. */
static inline void trainer_open(struct trainer *trainer)
{
	trainer_join(trainer);
	trainer->unit = trainer_register(trainer, "u", 1000, ZEROD_NO_SLOT);
	trainer_publish(trainer, trainer->unit);
}

static inline void trainer_gather(struct trainer *trainer, zerod_unit *unit, const char *tag)
{
	struct zerod_gather_options options = ZEROD_INIT(options);

	options.tag = tag;
	TRY(trainer, zerod_gather(unit, &options, NULL, NULL));
}

static inline void trainer_block(void *arg)
{
	(void)arg;
	trainer_stay();
}

static inline void trainer_make_stuck(struct trainer *trainer)
{
	TRY(trainer, zerod_host_stream_create(trainer->client, &trainer->stuck));
	TRY(trainer, zerod_host_stream_launch(trainer->stuck, trainer_block, NULL));
}

static inline void life_fork(trainer_fn *run, uint32_t rank, uint32_t world_size,
                             struct trainer_process *process)
{
	struct trainer trainer = {.rank = rank, .world_size = world_size};
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	process->pid = fork();
	assert_true(process->pid >= 0);
	if (process->pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)close(ends[0]);
		(void)close(life_observer.sock);
		trainer.told = ends[1];
		run(&trainer);
		trainer_stay();
	}
	(void)close(ends[1]);
	process->says = ends[0];
	for (size_t i = 0; i < LIFE_TRAINERS; i++) {
		if (life_trainers[i] == 0) {
			life_trainers[i] = process->pid;
			break;
		}
	}
}

/* Waits for the trainer's next line, which must be this one. */
static inline void life_expect(const struct trainer_process *process, const char *expected)
{
	struct pollfd readable = {.fd = process->says, .events = POLLIN};
	char line[LIFE_SAY] = "nothing";
	size_t used = 0;

	for (;;) {
		if (poll(&readable, 1, LIFE_WAIT_MS) <= 0 || read(process->says, line + used, 1) != 1)
			break;
		if (line[used++] == '\0' || used == sizeof(line) - 1)
			break;
	}
	line[sizeof(line) - 1] = '\0';
	assert_string_equal(line, expected);
}

static inline void life_kill(const struct trainer_process *process)
{
	assert_int_equal(kill(process->pid, SIGKILL), 0);
}

static inline void life_reap(const struct trainer_process *process)
{
	int status;

	while (waitpid(process->pid, &status, 0) < 0 && errno == EINTR)
		continue;
	(void)close(process->says);
	for (size_t i = 0; i < LIFE_TRAINERS; i++)
		if (life_trainers[i] == process->pid)
			life_trainers[i] = 0;
}

/* ---- Looking ------------------------------------------------------------------------------------------- */

/* The observer forgets what it was told before. */
static inline const Zd__ListReply *life_list(Zd__Table table)
{
	uint64_t id;

	raw_forget(&life_observer);
	id = raw_send(&life_observer, RAW(LIST, list, List, .table = table));
	return raw_expect(&life_observer, id, 0)->list;
}

/* Charged or in blocks, quarantine included, or in segments. */
static inline uint64_t life_bytes(void)
{
	const Zd__ListReply *devices = life_list(ZD__TABLE__DEVICES);
	uint64_t bytes = 0;

	for (size_t i = 0; i < devices->n_rows; i++) {
		const Zd__DeviceRow *device = devices->rows[i]->device;

		bytes += device->segment_bytes + device->block_bytes + device->quarantine_bytes;
	}
	return bytes;
}

static const struct life_table {
	Zd__Table table;
	const char *name;
	size_t rows; /* when nobody but the observer is there */
} life_tables[] = {
        {ZD__TABLE__BUFFERS, "buffers", 0},         {ZD__TABLE__BUCKETS, "buckets", 0},
        {ZD__TABLE__ALLOCATIONS, "allocations", 0}, {ZD__TABLE__UNITS, "units", 0},
        {ZD__TABLE__GROUPS, "groups", 0},           {ZD__TABLE__JOBS, "jobs", 0},
        {ZD__TABLE__SESSIONS, "sessions", 1},
};
#define LIFE_TABLES (sizeof(life_tables) / sizeof(life_tables[0]))

static inline bool life_is_empty(void)
{
	for (size_t i = 0; i < LIFE_TABLES; i++)
		if (life_list(life_tables[i].table)->n_rows != life_tables[i].rows)
			return false;
	return life_bytes() == 0;
}

/* Checks that nothing is left LIFE_GONE_MS after the kill. */
static inline void life_expect_gone(int64_t killed_ms)
{
	bool empty = life_is_empty();

	while (!empty && life_now_ms() - killed_ms < LIFE_GONE_MS) {
		life_retry();
		empty = life_is_empty();
	}
	for (size_t i = 0; i < LIFE_TABLES && !empty; i++)
		print_error("%zu %s are left, ", life_list(life_tables[i].table)->n_rows,
		            life_tables[i].name);
	if (!empty)
		print_error("%llu bytes, %lld ms after the kill\n", (unsigned long long)life_bytes(),
		            (long long)(life_now_ms() - killed_ms));
	assert_true(empty);
}

static inline bool life_somebody_waits(const char *text)
{
	const Zd__ListReply *sessions = life_list(ZD__TABLE__SESSIONS);

	for (size_t i = 0; i < sessions->n_rows; i++)
		for (size_t j = 0; j < sessions->rows[i]->session->n_waits; j++)
			if (strstr(sessions->rows[i]->session->waits[j], text))
				return true;
	return false;
}

/* Until some session's request waits for that. */
static inline void life_expect_waits(const char *text)
{
	int64_t deadline_ms = life_now_ms() + LIFE_WAIT_MS;

	while (!life_somebody_waits(text)) {
		if (life_now_ms() >= deadline_ms)
			fail_msg("nobody waits for '%s'", text);
		life_retry();
	}
}

/* ---- The group of tests -------------------------------------------------------------------------------- */

static inline int life_start(void **state)
{
	const struct zd_daemon_options options = {.config = "[devices]\ngather_budget = 1M\n"};

	(void)state;
	if (zd_daemon_start(&options, &life_daemon) != 0)
		return -1;
	raw_open(&life_observer, life_daemon.socket_path);
	return 0;
}

/* After a test, also one that failed. */
static inline int life_after(void **state)
{
	(void)state;
	for (size_t i = 0; i < LIFE_TRAINERS; i++) {
		if (life_trainers[i] == 0)
			continue;
		(void)kill(life_trainers[i], SIGKILL);
		(void)waitpid(life_trainers[i], NULL, 0);
		life_trainers[i] = 0;
	}
	return 0;
}
#define LIFE_TEST(name) TEST_DEFINE(name, void, , name(), NULL, life_after)

static inline int life_stop(void **state)
{
	(void)state;
	raw_close(&life_observer);
	return zd_daemon_stop(&life_daemon);
}

#endif
