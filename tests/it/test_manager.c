/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_manager.c - durable jobs in the descriptor store of a service manager (--keep-state systemd). This
 * program plays the manager: it does not read, its store is full, or it has lost descriptors.
 */
#include "tests/it/client_scene.h"

#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/options.h"

#define SEGMENT_BYTES 65536u
#define MOST_STORED   256u
#define BURST         64u /* segments: more than any queue of datagrams takes (net.unix.max_dgram_qlen) */

static const char *const keep[] = {"--keep-state", "systemd", NULL};
static const char config[] = "[devices]\nsegment = 64K\n";

/* ---- The manager --------------------------------------------------------------------------------------- */

static struct {
	char name[32];
	int fd;
} stored[MOST_STORED];
static unsigned nstored;

static void drop(unsigned index)
{
	(void)close(stored[index].fd);
	stored[index] = stored[--nstored];
}

static unsigned find(const char *name)
{
	unsigned index = 0;

	while (index < nstored && strcmp(stored[index].name, name) != 0)
		index++;
	return index;
}

static void on_note(const char *note, int fd)
{
	char name[32] = "";

	if (sscanf(note, "FDSTORE=1\nFDNAME=%31s", name) == 1) {
		assert_true(fd >= 0 && nstored < MOST_STORED);
		(void)snprintf(stored[nstored].name, sizeof(stored[0].name), "%s", name);
		stored[nstored++].fd = fd;
	} else if (sscanf(note, "FDSTOREREMOVE=1\nFDNAME=%31s", name) == 1) {
		for (unsigned index = find(name); index < nstored; index = find(name))
			drop(index);
	}
}

static void read_all(const struct zd_daemon *daemon)
{
	char note[1024];

	while (zd_daemon_read_note(daemon, note, sizeof(note)))
		continue;
}

static void read_more(const struct zd_daemon *daemon)
{
	struct pollfd readable = {.fd = daemon->notify, .events = POLLIN};

	assert_int_equal(poll(&readable, 1, 10000), 1);
	read_all(daemon);
}

static void start(struct zd_daemon *daemon, const char *room)
{
	const struct zd_daemon_options options = {.args = keep, .config = config};

	while (nstored > 0)
		drop(0);
	assert_int_equal(setenv("FDSTORE", room, 1), 0);
	zd_daemon_on_note = on_note;
	assert_int_equal(zd_daemon_start(&options, daemon), 0);
}

/* The next daemon gets what is stored. */
static void kill_and_restart(struct zd_daemon *daemon)
{
	struct zd_daemon_options options = {.args = keep, .config = config};
	static char names[MOST_STORED * 33];
	int fds[MOST_STORED];

	assert_int_equal(zd_daemon_kill(daemon), 0);
	read_all(daemon);
	names[0] = '\0';
	for (unsigned i = 0; i < nstored; i++) {
		strcat(strcat(names, i ? ":" : ""), stored[i].name);
		fds[i] = stored[i].fd;
	}
	options.passed_fds = fds;
	options.npassed = nstored;
	options.passed_names = names;
	assert_int_equal(zd_daemon_restart(&options, daemon), 0);
}

static void end_job(const struct zd_daemon *daemon, const char *job)
{
	char command[64];

	(void)snprintf(command, sizeof(command), "end-job %s", job);
	assert_int_equal(zd_daemon_zeroctl(daemon, command), 0);
}

/* Ends the job that is left, and then the daemon. */
static void end(struct zd_daemon *daemon, const char *job)
{
	if (job)
		end_job(daemon, job);
	while (job && nstored > 1) /* the registry */
		read_more(daemon);
	assert_int_equal(zd_daemon_stop(daemon), 0);
}

/* ---- Trainers ------------------------------------------------------------------------------------------ */

struct trainer {
	const char *job;
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;
	struct zerod_shard shard;
};

static void join(const struct zd_daemon *daemon, const char *job, struct trainer *trainer)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group = ZEROD_INIT(group);
	struct zerod_unit_options unit = ZEROD_INIT(unit);

	options.socket_path = daemon->socket_path;
	options.deadline_ms = 20000;
	trainer->job = group.job = job;
	group.world_size = 1;
	group.flags = ZEROD_GROUP_DURABLE;
	unit.name = "w";
	unit.dtype = ZEROD_UINT8;
	unit.numel = 4096;
	assert_int_equal(zerod_connect(&options, &trainer->client), 0);
	assert_int_equal(zerod_group_join(trainer->client, &group, &trainer->group), 0);
	assert_int_equal(zerod_unit_register(trainer->group, &unit, &trainer->unit), 0);
	assert_int_equal(zerod_shard_get(trainer->unit, SIZED(&trainer->shard)), 0);
}

static int commit(struct trainer *trainer, unsigned step)
{
	assert_int_equal(zerod_update_begin(&trainer->unit, 1, NULL, NULL), 0);
	memset(trainer->shard.data, (int)step, 4096);
	assert_int_equal(zerod_publish(&trainer->unit, 1, NULL, 0, NULL, NULL), 0);
	return zerod_commit(trainer->group, step, NULL);
}

static int allocate(const struct trainer *trainer, unsigned number)
{
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);
	zerod_allocation *allocation;
	char name[32];
	void *bytes;

	(void)snprintf(name, sizeof(name), "state %u", number);
	alloc.job = trainer->job;
	alloc.name = name;
	alloc.bytes = SEGMENT_BYTES;
	alloc.flags = ZEROD_ALLOC_DURABLE;
	return zerod_alloc(trainer->client, &alloc, &allocation, &bytes);
}

static void expect_step(const struct zd_daemon *daemon, const char *job, unsigned step)
{
	struct zerod_group_info info = ZEROD_INIT(info);
	struct trainer trainer;

	join(daemon, job, &trainer);
	assert_int_equal(zerod_group_get(trainer.group, &info), 0);
	assert_int_equal(info.committed_step, step);
	assert_int_equal(((uint8_t *)trainer.shard.data)[4095], step);
	zerod_close(trainer.client);
}

static bool says(const struct zd_daemon *daemon, const char *lost)
{
	char command[256];

	(void)snprintf(command, sizeof(command), "status --json | grep -q '\"state_lost\": *\"%s'", lost);
	return zd_daemon_zeroctl(daemon, command) == 0;
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

/* Each call would wait for the manager otherwise, and the daemon would give up. */
TEST(test_manager_does_not_read)
{
	struct zd_daemon daemon;
	struct trainer trainer;

	start(&daemon, "256");
	join(&daemon, "lm", &trainer);
	for (unsigned i = 0; i < BURST; i++)
		assert_int_equal(allocate(&trainer, i), 0);
	assert_int_equal(commit(&trainer, 1), 0);
	while (nstored < BURST + 2) /* with the registry, and the unit's */
		read_more(&daemon);
	assert_int_equal(commit(&trainer, 2), 0);
	kill_and_restart(&daemon);
	zerod_close(trainer.client);
	expect_step(&daemon, "lm", 2);
	assert_true(says(&daemon, "\""));
	end(&daemon, "lm");
}

/* The descriptors that wait belong to one job. */
TEST(test_daemon_is_killed_with_descriptors_that_wait)
{
	struct zd_daemon daemon;
	struct trainer trainer, other;

	start(&daemon, "256");
	join(&daemon, "other", &other);
	assert_int_equal(commit(&other, 1), 0);
	join(&daemon, "lm", &trainer);
	for (unsigned i = 0; i < BURST; i++)
		assert_int_equal(allocate(&trainer, i), 0);
	assert_int_equal(commit(&trainer, 1), 0);
	assert_int_equal(commit(&other, 2), 0);
	kill_and_restart(&daemon);
	zerod_close(trainer.client);
	zerod_close(other.client);
	assert_int_equal(zd_daemon_wait_log(&daemon, "job 'lm' (uid "), 0);
	assert_int_equal(zd_daemon_wait_log(&daemon, "restored durable jobs of the former daemon: 1"), 0);
	assert_true(says(&daemon, "incomplete jobs: 1, the last one"));
	expect_step(&daemon, "other", 2);
	join(&daemon, "lm", &trainer);
	assert_int_equal(commit(&trainer, 1), 0);
	zerod_close(trainer.client);
	kill_and_restart(&daemon);
	assert_true(says(&daemon, "\""));
	expect_step(&daemon, "other", 2);
	end_job(&daemon, "other");
	end(&daemon, "lm");
}

TEST(test_full_store)
{
	struct zd_daemon daemon;
	struct trainer trainer, other;

	start(&daemon, "5");
	join(&daemon, "other", &other);
	join(&daemon, "lm", &trainer);
	assert_int_equal(allocate(&trainer, 0), 0);
	assert_int_equal(allocate(&trainer, 1), 0);
	assert_int_equal(allocate(&trainer, 2), ZEROD_E_LIMIT);
	assert_non_null(strstr(zerod_last_error(trainer.client),
	                       "the store of durable jobs has room for 4 segments, and keeps 4"));
	assert_int_equal(commit(&trainer, 1), 0);
	assert_int_equal(commit(&other, 1), 0);
	zerod_close(other.client);
	end_job(&daemon, "other");
	assert_int_equal(allocate(&trainer, 2), 0);
	kill_and_restart(&daemon);
	zerod_close(trainer.client);
	expect_step(&daemon, "lm", 1);
	end(&daemon, "lm");
}

/* Nothing may be restored that has bytes of step 2 and is called step 1. */
TEST(test_manager_is_gone)
{
	struct zd_daemon daemon;
	struct trainer trainer;
	char path[128];

	start(&daemon, "256");
	join(&daemon, "lm", &trainer);
	assert_int_equal(commit(&trainer, 1), 0);
	read_all(&daemon);
	(void)snprintf(path, sizeof(path), "%s/notify", daemon.dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(allocate(&trainer, 0), 0);
	assert_int_equal(commit(&trainer, 2), ZEROD_E_SYSTEM);
	assert_non_null(strstr(zerod_last_error(trainer.client),
	                       "durable jobs will not outlive this daemon: giving segment-"));
	kill_and_restart(&daemon);
	zerod_close(trainer.client);
	assert_true(says(&daemon, "the former daemon could not store its durable jobs any more"));
	expect_step(&daemon, "lm", 0);
	end(&daemon, "lm");
}

TEST(test_no_registry)
{
	struct zd_daemon daemon;
	struct trainer trainer;
	char path[128];

	start(&daemon, "256");
	join(&daemon, "lm", &trainer);
	read_all(&daemon);
	drop(find("registry"));
	(void)snprintf(path, sizeof(path), "%s.kept", daemon.socket_path);
	assert_int_equal(unlink(path), 0);
	kill_and_restart(&daemon);
	zerod_close(trainer.client);
	assert_true(says(&daemon, "the store has segments of durable jobs, and no registry"));
	end(&daemon, NULL);
}

int main(void)
{
	(void)alarm(60);
	return test_run(NULL, NULL);
}
