/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_chaos.c - trainers and the daemon are killed and stopped at random moments, and come again: no byte of
 * a committed step is wrong, no request is stuck, and nothing is left at the end.
 *
 * Four durable jobs with shadows have two ranks each, one process a rank. A rank fills its shard with a
 * pattern of the step, publishes and commits, and checks what it finds whenever it joins. After the
 * daemon's end the first rank of a job goes on with its handles; the second one closes its client. $KILLS is
 * the number of kills and stops (100), $SEED the seed (1): `make check-chaos`. The moments are random sleeps;
 * nothing depends on them. With $ZEROD_TEST_BACKEND=cuda the shards are on two GPUs.
 */
#include "tests/it/client_scene.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "driver/driver.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/options.h"

#define NJOBS       4
#define NRANKS      2 /* of a job */
#define NTRAINERS   (NJOBS * NRANKS)
#define NUNITS      3
#define SHARD_BYTES 4096u
#define DEADLINE_MS 60000u
#define STUCK_S     90 /* a trainer without progress for so long is stuck */
#define PAUSE_US    4000u

static const char *const on_host[] = {"--keep-state", "holder", NULL};
static const char *const on_gpus[] = {"--keep-state", "holder", "--backend", "cuda", NULL};
static struct zd_daemon_options options_ = {.args = on_host, .devices = 2};

/* The memory that all processes share. */
static struct shared {
	atomic_ulong steps[NTRAINERS]; /* that a trainer has committed or found */
	atomic_bool ends;              /* trainers end at their next step */
	atomic_bool wrong;
	char why[256];
} * shared;

struct trainer {
	unsigned job, rank;
	zerod_client *client;
	zerod_group *group;
	zerod_unit *units[NUNITS];
	struct zerod_shard shards[NUNITS];
	const struct zd_cuda *driver; /* NULL: shards are in host memory */
};

static uint64_t random_;

static unsigned draw(unsigned n)
{
	random_ = random_ * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)((random_ >> 33) % n);
}

static void nap(unsigned us)
{
	const struct timespec time = {.tv_nsec = (long)us * 1000};

	(void)nanosleep(&time, NULL);
}

/* ---- A trainer ----------------------------------------------------------------------------------------- */

static uint8_t pattern(const struct trainer *trainer, unsigned unit, uint64_t step)
{
	return step == 0 ? 0 : (uint8_t)(step * 31 + trainer->job * 7 + trainer->rank * 3 + unit + 1);
}

static _Noreturn void wrong(const struct trainer *trainer, const char *what, uint64_t step)
{
	(void)snprintf(shared->why, sizeof(shared->why), "job %u, rank %u, step %llu: %s", trainer->job,
	               trainer->rank, (unsigned long long)step, what);
	atomic_store(&shared->wrong, true);
	_exit(1);
}

static void expect_driver(const struct trainer *trainer, int rc)
{
	if (rc != 0)
		wrong(trainer, "the driver failed", (uint64_t)rc);
}

static void open_device(struct trainer *trainer)
{
	struct CUctx_st *context = NULL;
	struct zd_err err;

	if (options_.args != on_gpus)
		return;
	if (zd_cuda_load(&trainer->driver, &err))
		wrong(trainer, "there is no driver", 0);
	expect_driver(trainer, trainer->driver->devicePrimaryCtxRetain(&context, (int)trainer->rank));
	expect_driver(trainer, trainer->driver->ctxSetCurrent(context));
}

static void fill_shard(const struct trainer *trainer, unsigned unit, uint8_t value)
{
	void *shard = trainer->shards[unit].data;

	if (!trainer->driver) {
		memset(shard, value, SHARD_BYTES);
		return;
	}
	expect_driver(trainer, trainer->driver->memsetD8Async((zd_cu_ptr)shard, value, SHARD_BYTES, NULL));
	expect_driver(trainer, trainer->driver->streamSynchronize(NULL));
}

static void read_shard(const struct trainer *trainer, unsigned unit, uint8_t bytes[SHARD_BYTES])
{
	const void *shard = trainer->shards[unit].data;

	if (!trainer->driver) {
		memcpy(bytes, shard, SHARD_BYTES);
		return;
	}
	expect_driver(trainer, trainer->driver->memcpyDtoHAsync(bytes, (zd_cu_ptr)shard, SHARD_BYTES, NULL));
	expect_driver(trainer, trainer->driver->streamSynchronize(NULL));
}

static int take_unit(struct trainer *trainer, unsigned i)
{
	struct zerod_unit_options unit = ZEROD_INIT(unit);
	char name[8];

	(void)snprintf(name, sizeof(name), "w%u", i);
	unit.name = name;
	unit.dtype = ZEROD_UINT8;
	unit.numel = (uint64_t)NRANKS * SHARD_BYTES;
	int rc = zerod_unit_register(trainer->group, &unit, &trainer->units[i]);
	return rc ? rc : zerod_shard_get(trainer->units[i], SIZED(&trainer->shards[i]));
}

static int join(const char *socket_path, struct trainer *trainer)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group = ZEROD_INIT(group);
	char job[8];

	(void)snprintf(job, sizeof(job), "job%u", trainer->job);
	options.socket_path = socket_path;
	options.deadline_ms = DEADLINE_MS;
	options.reconnect_ms = trainer->rank == 0 ? DEADLINE_MS : 0;
	group.job = job;
	group.world_size = NRANKS;
	group.rank = trainer->rank;
	group.device = trainer->rank;
	group.flags = ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW;
	int rc = zerod_connect(&options, &trainer->client);
	if (rc == 0)
		rc = zerod_group_join(trainer->client, &group, &trainer->group);
	for (unsigned i = 0; i < NUNITS && rc == 0; i++)
		rc = take_unit(trainer, i);
	return rc;
}

static void check_bytes(const struct trainer *trainer, uint64_t step)
{
	for (unsigned i = 0; i < NUNITS; i++) {
		uint8_t bytes[SHARD_BYTES], wanted = pattern(trainer, i, step);

		read_shard(trainer, i, bytes);
		if (bytes[0] != wanted || memcmp(bytes, bytes + 1, SHARD_BYTES - 1) != 0)
			wrong(trainer, "a shard has other bytes than the committed step", step);
	}
}

static int train_step(struct trainer *trainer, uint64_t step)
{
	int rc = zerod_update_begin(trainer->units, NUNITS, NULL, NULL);

	for (unsigned i = 0; i < NUNITS && rc == 0; i++)
		fill_shard(trainer, i, pattern(trainer, i, step));
	if (rc == 0)
		rc = zerod_publish(trainer->units, NUNITS, NULL, 0, NULL, NULL);
	return rc ? rc : zerod_commit(trainer->group, step, NULL);
}

/* From the last commit, until an error or the end. */
static int go_on(struct trainer *trainer, atomic_ulong *steps)
{
	struct zerod_group_info info = ZEROD_INIT(info);
	int rc = zerod_group_get(trainer->group, &info);

	for (unsigned i = 0; i < NUNITS && rc == 0; i++)
		rc = zerod_shard_get(trainer->units[i], SIZED(&trainer->shards[i]));
	if (rc == 0 && info.torn)
		wrong(trainer, "the group is torn", info.committed_step);
	if (rc == 0 && info.committed_step < atomic_load(steps))
		wrong(trainer, "a committed step is lost", info.committed_step);
	if (rc == 0)
		check_bytes(trainer, info.committed_step);
	for (uint64_t step = info.committed_step + 1; rc == 0 && !atomic_load(&shared->ends); step++) {
		rc = train_step(trainer, step);
		if (rc == 0)
			atomic_store(steps, step);
	}
	return rc;
}

/* Until an error, which is a kill of another process, or the end. */
static int train(const char *socket_path, struct trainer *trainer, atomic_ulong *steps)
{
	int rc = join(socket_path, trainer);

	if (rc == 0) {
		do
			rc = go_on(trainer, steps);
		while (rc == ZEROD_E_RESTARTED);
	}
	return rc;
}

static _Noreturn void trainer_main(const char *socket_path, unsigned index)
{
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (!atomic_load(&shared->ends)) {
		struct trainer trainer = {.job = index / NRANKS, .rank = index % NRANKS};
		int rc;

		open_device(&trainer);
		rc = train(socket_path, &trainer, &shared->steps[index]);
		if (rc == ZEROD_E_DEADLINE)
			wrong(&trainer, zerod_last_error(trainer.client), atomic_load(&shared->steps[index]));
		zerod_close(trainer.client);
	}
	_exit(0);
}

/* ---- Kills --------------------------------------------------------------------------------------------- */

static pid_t trainers[NTRAINERS];

static void start_trainer(const struct zd_daemon *daemon, unsigned index)
{
	trainers[index] = fork();
	assert_true(trainers[index] >= 0);
	if (trainers[index] == 0)
		trainer_main(daemon->socket_path, index);
}

static void kill_one(struct zd_daemon *daemon)
{
	unsigned victim = draw(NTRAINERS + 2), what = draw(4);
	bool is_daemon = victim >= NTRAINERS;
	pid_t pid = is_daemon ? daemon->pid : trainers[victim];

	nap(draw(PAUSE_US));
	if (what == 0) {
		assert_int_equal(kill(pid, SIGSTOP), 0);
		nap(draw(PAUSE_US));
		assert_int_equal(kill(pid, SIGCONT), 0);
	} else if (is_daemon) {
		assert_int_equal(zd_daemon_kill(daemon), 0);
		assert_int_equal(zd_daemon_restart(&options_, daemon), 0);
	} else {
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		start_trainer(daemon, victim);
	}
}

/* All trainers go on. */
static void expect_progress(void)
{
	unsigned long before[NTRAINERS];
	time_t give_up = time(NULL) + STUCK_S;

	for (unsigned i = 0; i < NTRAINERS; i++)
		before[i] = atomic_load(&shared->steps[i]);
	for (unsigned i = 0; i < NTRAINERS; i++) {
		while (atomic_load(&shared->steps[i]) == before[i] && !atomic_load(&shared->wrong)) {
			if (time(NULL) > give_up)
				fail_msg("trainer %u is stuck at step %lu", i, before[i]);
			nap(1000);
		}
	}
	if (atomic_load(&shared->wrong))
		fail_msg("%s", shared->why);
}

static void run(const char *command, const char *argument, const struct zd_daemon *daemon)
{
	char line[256];

	(void)snprintf(line, sizeof(line), "%s/bin/zeroctl --socket %s %s %s >/dev/null",
	               getenv("BUILD") ? getenv("BUILD") : "build", daemon->socket_path, command, argument);
	assert_int_equal(system(line), 0);
}

TEST(test_chaos)
{
	unsigned kills = getenv("KILLS") ? (unsigned)atoi(getenv("KILLS")) : 100;
	struct zd_daemon daemon;
	char job[8];

	if (getenv("ZEROD_TEST_BACKEND") && strcmp(getenv("ZEROD_TEST_BACKEND"), "cuda") == 0)
		options_ = (struct zd_daemon_options){.args = on_gpus};
	random_ = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : 1;
	assert_int_equal(zd_daemon_start(&options_, &daemon), 0);
	for (unsigned i = 0; i < NTRAINERS; i++)
		start_trainer(&daemon, i);
	for (unsigned i = 1; i <= kills && !atomic_load(&shared->wrong); i++) {
		kill_one(&daemon);
		if (i % 50 == 0)
			expect_progress();
		if (i % (kills / 10 + 1) == 0)
			print_message("%u of %u kills and stops\n", i, kills);
	}
	expect_progress();
	atomic_store(&shared->ends, true);
	for (unsigned i = 0; i < NTRAINERS; i++)
		assert_int_equal(kill(trainers[i], SIGKILL), 0);
	for (unsigned i = 0; i < NTRAINERS; i++)
		assert_int_equal(waitpid(trainers[i], NULL, 0), trainers[i]);
	for (unsigned i = 0; i < NJOBS; i++) {
		(void)snprintf(job, sizeof(job), "job%u", i);
		run("kill-job", job, &daemon);
	}
	assert_int_equal(zd_daemon_stop(&daemon), 0); /* which fails if the holder still holds something */
}

int main(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 1;
	return test_run(NULL, NULL);
}
