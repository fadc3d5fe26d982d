/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_restart.c - GPU memory of a durable job outlives the daemon and the trainer, both killed inside
 * an update, or the daemon alone; over the driver's double.
 *
 * A trainer is this program with a socket for its argument: TRAIN commits step 1 and waits inside the update
 * of step 2, VERIFY expects step 1, GO_ON does both with one client, and makes two more
 * steps. For runs by hand on real GPUs two more arguments say how many units there are, and the bytes of
 * each.
 */
#include "tests/it/cuda_scene.h"
#include "tests/it/program.h"

#include <limits.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/daemon_fixture.h"

#define TRAIN     "train"
#define VERIFY    "verify"
#define GO_ON     "go on"
#define MAX_UNITS 64
#define COMMITTED 0x11
#define UNDONE    0xEE

static unsigned nunits = 2;
static uint64_t numel = 1u << 20; /* of each */

struct trainer {
	zerod_client *client;
	zerod_group *group;
	zerod_unit *units[MAX_UNITS];
	struct zerod_shard shards[MAX_UNITS];
	struct CUstream_st *stream;
	zerod_stream *wrapped;
};

static int take_unit(struct trainer *trainer, unsigned i)
{
	struct zerod_unit_options weights = ZEROD_INIT(weights);
	char name[16];

	(void)snprintf(name, sizeof(name), "w%u", i);
	trainer->shards[i] = (struct zerod_shard)ZEROD_INIT(trainer->shards[i]);
	weights.name = name, weights.dtype = ZEROD_UINT8, weights.numel = numel;
	return zerod_unit_register(trainer->group, &weights, &trainer->units[i]) ||
	       zerod_shard_get(trainer->units[i], &trainer->shards[i]);
}

static int join(const char *socket_path, struct trainer *trainer)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options join = ZEROD_INIT(join);
	int rc;

	trainer->stream = scene_stream(0);
	options.socket_path = socket_path;
	options.reconnect_ms = 20000;
	join.job = "lm", join.world_size = 1, join.flags = ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW;
	rc = zerod_connect(&options, &trainer->client) ||
	     zerod_group_join(trainer->client, &join, &trainer->group) ||
	     zerod_cuda_stream_wrap(trainer->client, trainer->stream, &trainer->wrapped);
	for (unsigned i = 0; i < nunits && rc == 0; i++)
		rc = take_unit(trainer, i);
	return rc;
}

static int write_shards(struct trainer *trainer, uint8_t value)
{
	int rc = zerod_update_begin(trainer->units, nunits, NULL, NULL);

	for (unsigned i = 0; i < nunits && rc == 0; i++)
		rc = scene_driver()->memsetD8Async((zd_cu_ptr)trainer->shards[i].data, value + i, numel,
		                                   trainer->stream);
	return rc ? rc : scene_driver()->streamSynchronize(trainer->stream);
}

static int begin(const char *socket_path, struct trainer *trainer)
{
	return join(socket_path, trainer) || write_shards(trainer, COMMITTED) ||
	       zerod_publish(trainer->units, nunits, NULL, 0, NULL, NULL) ||
	       zerod_commit(trainer->group, 1, NULL) || write_shards(trainer, UNDONE) ||
	       write(STDOUT_FILENO, "", 1) != 1;
}

static int train(const char *socket_path)
{
	struct trainer trainer;

	if (begin(socket_path, &trainer))
		return 1;
	for (;;)
		(void)pause();
}

static int check_bytes(struct trainer *trainer, unsigned unit)
{
	uint8_t *found = zd_calloc(1, numel);
	int rc = scene_driver()->memcpyDtoHAsync(found, (zd_cu_ptr)trainer->shards[unit].data, numel,
	                                         trainer->stream);

	if (rc == 0)
		rc = scene_driver()->streamSynchronize(trainer->stream);
	if (rc == 0) /* all bytes are equal */
		rc = found[0] != COMMITTED + unit || memcmp(found, found + 1, numel - 1) != 0;
	free(found);
	return rc;
}

static int verify(const char *socket_path)
{
	struct trainer trainer;
	struct zerod_group_info info = ZEROD_INIT(info);
	long began_ms = program_now_ms(), joined_ms;

	if (join(socket_path, &trainer) || zerod_group_get(trainer.group, &info))
		return 1;
	joined_ms = program_now_ms();
	for (unsigned i = 0; i < nunits; i++) {
		if (check_bytes(&trainer, i))
			return 2;
	}
	printf("%u shards of %llu bytes are those of step %llu; attached within %ld ms\n", nunits,
	       (unsigned long long)numel, (unsigned long long)info.committed_step, joined_ms - began_ms);
	return info.committed_step == 1 && !info.torn ? 0 : 3;
}

/* With a stream that has waited for the former daemon. */
static int step(struct trainer *trainer, uint64_t number)
{
	zerod_stream *stream = trainer->wrapped;
	void *data;

	return write_shards(trainer, COMMITTED) ||
	       zerod_publish(trainer->units, nunits, &stream, 1, NULL, NULL) ||
	       zerod_commit(trainer->group, number, NULL) ||
	       zerod_gather(trainer->units[0], NULL, stream, &data) ||
	       zerod_release(trainer->units[0], &stream, 1, NULL, NULL) || zerod_stream_synchronize(stream);
}

static int go_on(const char *socket_path)
{
	struct trainer trainer;
	struct zerod_group_info info = ZEROD_INIT(info);
	int rc;

	if (begin(socket_path, &trainer))
		return 1;
	do
		rc = zerod_group_barrier(trainer.group, NULL, NULL);
	while (rc == 0);
	if (rc != ZEROD_E_RESTARTED || zerod_group_get(trainer.group, &info) || info.committed_step != 1)
		return 2;
	for (unsigned i = 0; i < nunits; i++)
		if (zerod_shard_get(trainer.units[i], &trainer.shards[i]) || check_bytes(&trainer, i))
			return 3;
	if (step(&trainer, 2) || step(&trainer, 3))
		return 4;
	zerod_close(trainer.client);
	return 0;
}

static pid_t start(const char *what, const struct zd_daemon *daemon, int out)
{
	char *const args[] = {(char *)what, (char *)daemon->socket_path, NULL};
	char program[PATH_MAX];
	pid_t pid;

	case_program(program);
	pid = fork();
	assert_true(pid >= 0);
	if (pid > 0)
		return pid;
	(void)dup2(out, STDOUT_FILENO);
	(void)execv(program, args);
	_exit(126);
}

/* The daemon is killed while the trainer is inside of its update. So is a trainer that cannot go on. */
static void kill_and_restart(const char *what)
{
	static const char *const args[] = {"--backend", "cuda", "--keep-state", "holder", NULL};
	const struct zd_daemon_options options = {.args = args};
	struct zd_daemon daemon;
	int fds[2], status = 0;
	pid_t trainer;
	char byte;

	assert_int_equal(pipe(fds), 0);
	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	trainer = start(what, &daemon, fds[1]);
	(void)close(fds[1]);
	assert_int_equal(read(fds[0], &byte, 1), 1);
	assert_int_equal(zd_daemon_kill(&daemon), 0);
	if (strcmp(what, TRAIN) == 0) {
		assert_int_equal(kill(trainer, SIGKILL), 0);
		assert_int_equal(waitpid(trainer, NULL, 0), trainer);
	}
	assert_int_equal(zd_daemon_restart(&options, &daemon), 0);
	if (strcmp(what, TRAIN) == 0)
		trainer = start(VERIFY, &daemon, STDOUT_FILENO);
	assert_int_equal(waitpid(trainer, &status, 0), trainer);
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(zd_daemon_zeroctl(&daemon, "kill-job lm"), 0);
	assert_int_equal(zd_daemon_stop(&daemon), 0); /* it has nothing to keep */
	(void)close(fds[0]);
}

static char env[64];

CASE_TEST(test_both_are_killed, env)
{
	kill_and_restart(TRAIN);
}

CASE_TEST(test_the_daemon_is_killed, env)
{
	kill_and_restart(GO_ON);
}

int main(int argc, char **argv)
{
	if (argc == 4) {
		nunits = (unsigned)atoi(argv[2]);
		numel = strtoull(argv[3], NULL, 10);
	}
	if (argc >= 2 && strcmp(argv[0], TRAIN) == 0)
		return train(argv[1]);
	if (argc >= 2 && strcmp(argv[0], VERIFY) == 0)
		return verify(argv[1]);
	if (argc >= 2 && strcmp(argv[0], GO_ON) == 0)
		return go_on(argv[1]);
	return case_main_in_dir(argc, argv, env);
}
