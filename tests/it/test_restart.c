/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_restart.c - durable jobs outlive a daemon that is killed, with --keep-state holder: what clients of
 * the next daemon find.
 */
#include "tests/it/client_scene.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/options.h"

#define NUMEL      4096u
#define COMMITTED  0x11
#define UNDONE     0xEE
#define ALLOCATED  0x22
#define DEADLINE   20000u
#define SHORT_WAIT 300u

static const char *const keep[] = {"--keep-state", "holder", NULL};
static const struct zd_daemon_options options_ = {.args = keep};

struct trainer {
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;
	struct zerod_shard shard;
	zerod_allocation *allocation;
	uint8_t *bytes;
};

static int join(const struct zd_daemon *daemon, struct trainer *trainer)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options group = ZEROD_INIT(group);

	options.socket_path = daemon->socket_path;
	options.deadline_ms = DEADLINE;
	group.job = "lm";
	group.world_size = 1;
	group.flags = ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW;
	int rc = zerod_connect(&options, &trainer->client);
	return rc ? rc : zerod_group_join(trainer->client, &group, &trainer->group);
}

static int take_unit(struct trainer *trainer, unsigned deadline_ms)
{
	struct zerod_unit_options unit = ZEROD_INIT(unit);

	unit.name = "w";
	unit.dtype = ZEROD_UINT8;
	unit.numel = NUMEL;
	unit.deadline_ms = deadline_ms;
	int rc = zerod_unit_register(trainer->group, &unit, &trainer->unit);
	return rc ? rc : zerod_shard_get(trainer->unit, SIZED(&trainer->shard));
}

static int take_allocation(struct trainer *trainer)
{
	struct zerod_alloc_options alloc = ZEROD_INIT(alloc);

	alloc.job = "lm";
	alloc.name = "moments";
	alloc.bytes = NUMEL;
	alloc.flags = ZEROD_ALLOC_DURABLE;
	int rc = zerod_alloc(trainer->client, &alloc, &trainer->allocation, (void **)&trainer->bytes);
	return rc;
}

static void write_shard(struct trainer *trainer, uint8_t value)
{
	assert_int_equal(zerod_update_begin(&trainer->unit, 1, NULL, NULL), 0);
	memset(trainer->shard.data, value, NUMEL);
}

/* Step 1 is committed, and an update of step 2 has begun. */
static void train(const struct zd_daemon *daemon, struct trainer *trainer)
{
	assert_int_equal(join(daemon, trainer), 0);
	assert_int_equal(take_unit(trainer, 0), 0);
	assert_int_equal(take_allocation(trainer), 0);
	memset(trainer->bytes, ALLOCATED, NUMEL);
	write_shard(trainer, COMMITTED);
	assert_int_equal(zerod_publish(&trainer->unit, 1, NULL, 0, NULL, NULL), 0);
	assert_int_equal(zerod_commit(trainer->group, 1, NULL), 0);
	write_shard(trainer, UNDONE);
}

static void expect_step_1(struct trainer *trainer)
{
	struct zerod_group_info info = ZEROD_INIT(info);

	assert_int_equal(zerod_group_get(trainer->group, &info), 0);
	assert_int_equal(info.committed_step, 1);
	assert_false(info.torn);
	assert_int_equal(trainer->shard.version, 1);
	for (unsigned i = 0; i < NUMEL; i++)
		assert_int_equal(((uint8_t *)trainer->shard.data)[i], COMMITTED);
}

static void kill_and_restart(struct zd_daemon *daemon)
{
	assert_int_equal(zd_daemon_kill(daemon), 0);
	assert_int_equal(zd_daemon_restart(&options_, daemon), 0);
}

TEST(test_trainer_and_daemon_die)
{
	struct zd_daemon daemon;
	struct trainer trainer;
	pid_t child;
	int status;

	assert_int_equal(zd_daemon_start(&options_, &daemon), 0);
	child = fork();
	if (child == 0) {
		train(&daemon, &trainer);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	kill_and_restart(&daemon);
	assert_int_equal(join(&daemon, &trainer), 0);
	assert_int_equal(take_unit(&trainer, 0), 0);
	expect_step_1(&trainer);
	assert_int_equal(take_allocation(&trainer), 0);
	for (unsigned i = 0; i < NUMEL; i++)
		assert_int_equal(trainer.bytes[i], ALLOCATED);
	zerod_close(trainer.client);
	assert_int_equal(zd_daemon_zeroctl(&daemon, "end-job lm"), 0);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

/* A daemon that cannot restore the state does not start, and leaves it to another one. */
TEST(test_a_failed_start_loses_nothing)
{
	static const char *const wrong[] = {"--devices 1 --arena 64M", "--devices 2 --arena 4K"};
	struct trainer trainer = {0}, next = {0};
	struct zd_daemon daemon;
	char command[512];

	assert_int_equal(zd_daemon_start(&options_, &daemon), 0);
	train(&daemon, &trainer);
	assert_int_equal(zd_daemon_kill(&daemon), 0);
	zerod_close(trainer.client);
	for (unsigned i = 0; i < 2; i++) {
		(void)snprintf(command, sizeof(command),
		               "%s/bin/zerod --backend host %s --keep-state holder --socket %s 2>/dev/null",
		               getenv("BUILD") ? getenv("BUILD") : "build", wrong[i], daemon.socket_path);
		assert_int_equal(WEXITSTATUS(system(command)), 1);
	}
	assert_int_equal(zd_daemon_restart(&options_, &daemon), 0);
	assert_int_equal(join(&daemon, &next), 0);
	assert_int_equal(take_unit(&next, 0), 0);
	expect_step_1(&next);
	zerod_close(next.client);
	assert_int_equal(zd_daemon_zeroctl(&daemon, "end-job lm"), 0);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

/* Another process may still write what it was updating. */
TEST(test_a_living_trainer_is_awaited)
{
	struct zd_daemon daemon;
	struct trainer trainer;
	int ready[2];
	pid_t child;
	char byte;

	assert_int_equal(zd_daemon_start(&options_, &daemon), 0);
	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		train(&daemon, &trainer);
		(void)!write(ready[1], "", 1);
		for (;;)
			(void)pause();
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	kill_and_restart(&daemon);
	assert_int_equal(join(&daemon, &trainer), 0);
	assert_int_equal(take_unit(&trainer, SHORT_WAIT), ZEROD_E_DEADLINE);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(take_unit(&trainer, 0), 0);
	expect_step_1(&trainer);
	zerod_close(trainer.client);
	assert_int_equal(zd_daemon_zeroctl(&daemon, "end-job lm"), 0);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
	(void)close(ready[0]);
	(void)close(ready[1]);
}

/* ---- The process that holds state ---------------------------------------------------------------------- */

static int listen_at(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", path);
	if (bind(sock, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(sock, 1) < 0)
		return -1;
	return sock;
}

/* The process that holds state is adopted by this one. */
static pid_t find_holder(const struct zd_daemon *daemon)
{
	char path[64];
	pid_t found = 0, pid;
	FILE *children;

	(void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	children = fopen(path, "re");
	assert_non_null(children);
	while (fscanf(children, "%d", &pid) == 1)
		found = pid != daemon->pid ? pid : found;
	(void)fclose(children);
	return found;
}

static void start_training(struct zd_daemon *daemon, pid_t *holder)
{
	struct trainer trainer;

	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	assert_int_equal(zd_daemon_start(&options_, daemon), 0);
	train(daemon, &trainer);
	zerod_close(trainer.client);
	*holder = find_holder(daemon);
	assert_int_not_equal(*holder, 0);
}

static void kill_holder(pid_t holder)
{
	assert_int_equal(kill(holder, SIGKILL), 0);
	assert_int_equal(waitpid(holder, NULL, 0), holder);
}

/* Ends the job, if it is there, and the holder with it. */
static void end_all(struct zd_daemon *daemon, bool has_job)
{
	if (has_job)
		assert_int_equal(zd_daemon_zeroctl(daemon, "end-job lm"), 0);
	assert_int_equal(zd_daemon_stop(daemon), 0);
	while (waitpid(-1, NULL, 0) > 0)
		continue;
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

static bool says_lost(const struct zd_daemon *daemon, const char *why)
{
	char command[256];

	(void)snprintf(command, sizeof(command), "status --json | grep -q '\"state_lost\": *\"%s'", why);
	return zd_daemon_zeroctl(daemon, command) == 0;
}

/* The daemon gives all that it has to another one. */
TEST(test_the_holder_ends)
{
	struct zd_daemon daemon;
	struct trainer next;
	pid_t holder;

	start_training(&daemon, &holder);
	kill_holder(holder);
	assert_int_equal(zd_daemon_wait_log(&daemon, "another process holds durable state, all of it"), 0);
	kill_and_restart(&daemon);
	assert_int_equal(join(&daemon, &next), 0);
	assert_int_equal(take_unit(&next, 0), 0);
	expect_step_1(&next);
	zerod_close(next.client);
	assert_true(says_lost(&daemon, "\""));
	end_all(&daemon, true);
}

/* The next daemon says so, and the one behind it does not. */
TEST(test_the_holder_ends_with_the_daemon)
{
	struct zd_daemon daemon;
	pid_t holder;

	start_training(&daemon, &holder);
	assert_int_equal(zd_daemon_kill(&daemon), 0);
	kill_holder(holder);
	assert_int_equal(zd_daemon_restart(&options_, &daemon), 0);
	assert_int_equal(zd_daemon_wait_log(&daemon, "error: durable state is lost: the former daemon has"),
	                 0);
	assert_true(says_lost(&daemon, "the former daemon has stored durable jobs"));
	assert_int_equal(zd_daemon_zeroctl(&daemon, "status | grep -q 'SERVING; durable state is lost'"), 0);
	kill_and_restart(&daemon);
	assert_true(says_lost(&daemon, "\""));
	end_all(&daemon, false);
}

/* No job was left, or the daemon was told to begin without them. */
TEST(test_nothing_is_lost)
{
	static const char *const discard[] = {"--keep-state", "holder", "--discard-state", NULL};
	static const struct zd_daemon_options discards = {.args = discard};
	struct zd_daemon daemon;
	pid_t holder;

	for (int discarded = 0; discarded < 2; discarded++) {
		start_training(&daemon, &holder);
		if (!discarded)
			assert_int_equal(zd_daemon_zeroctl(&daemon, "end-job lm"), 0);
		assert_int_equal(zd_daemon_kill(&daemon), 0);
		kill_holder(holder);
		assert_int_equal(zd_daemon_restart(discarded ? &discards : &options_, &daemon), 0);
		assert_true(says_lost(&daemon, "\""));
		end_all(&daemon, false);
	}
}

/* No other one can be started: the daemon serves on, and says what it cannot do any more. */
TEST(test_no_holder_comes)
{
	struct zd_daemon daemon;
	char path[128];
	pid_t holder;

	start_training(&daemon, &holder);
	(void)snprintf(path, sizeof(path), "%s.state", daemon.socket_path);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
	kill_holder(holder);
	assert_int_equal(zd_daemon_wait_log(&daemon, "durable jobs will not outlive this daemon"), 0);
	assert_int_equal(rmdir(path), 0);
	kill_and_restart(&daemon);
	assert_true(says_lost(&daemon, "the former daemon could not store"));
	end_all(&daemon, false);
}

/* zeroctl lists it, and ends it if no daemon uses it. */
TEST(test_a_holder_is_ended)
{
	struct zd_daemon daemon;
	char command[256];
	pid_t holder;

	start_training(&daemon, &holder);
	(void)snprintf(command, sizeof(command),
	               "holders --raw --columns socket,pid,daemon | grep -q '%s %d yes'", daemon.socket_path,
	               (int)holder);
	assert_int_equal(zd_daemon_zeroctl(&daemon, command), 0);
	(void)snprintf(command, sizeof(command),
	               "holders --end %s 2>&1 | grep -q 'BUSY\\|a daemon uses the holder'",
	               daemon.socket_path);
	assert_int_equal(zd_daemon_zeroctl(&daemon, command), 0);
	assert_int_equal(zd_daemon_kill(&daemon), 0);
	(void)snprintf(command, sizeof(command), "holders --end %s >/dev/null", daemon.socket_path);
	assert_int_equal(zd_daemon_zeroctl(&daemon, command), 0);
	assert_int_equal(waitpid(holder, NULL, 0), holder);
	assert_int_equal(zd_daemon_restart(&options_, &daemon), 0);
	assert_true(says_lost(&daemon, "the former daemon has stored durable jobs"));
	end_all(&daemon, false);
}

/* It would get the memory of all users. */
TEST(test_a_holder_of_another_user)
{
	char dir[] = "/tmp/zerod-holder-XXXXXX", socket_path[64], path[64], output[4096];
	const char *const args[] = {"--backend",    "host",   "--devices",    "1", "--socket", socket_path,
	                            "--keep-state", "holder", "--foreground", NULL};
	int status;
	pid_t holder;

	if (geteuid() != 0)
		skip();
	assert_non_null(mkdtemp(dir));
	assert_int_equal(chmod(dir, 0777), 0);
	(void)snprintf(socket_path, sizeof(socket_path), "%s/s", dir);
	(void)snprintf(path, sizeof(path), "%s/s.state", dir);
	holder = fork();
	if (holder == 0)
		_exit(setuid(65534) == 0 && listen_at(path) >= 0 ? pause() : 1);
	while (access(path, F_OK) != 0)
		assert_int_equal(waitpid(holder, &status, WNOHANG), 0);
	assert_int_equal(zd_daemon_run(args, &status, output, sizeof(output)), 0);
	assert_int_equal(status, 1);
	assert_non_null(strstr(output, "s.state is the socket of another user"));
	assert_int_equal(kill(holder, SIGKILL), 0);
	assert_int_equal(waitpid(holder, NULL, 0), holder);
	assert_int_equal(unlink(path), 0);
	(void)snprintf(path, sizeof(path), "%s/s.lock", dir);
	(void)unlink(path);
	assert_int_equal(rmdir(dir), 0);
}
