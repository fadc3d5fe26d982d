/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_restart.c - GPU memory of a durable job outlives the daemon and the trainer, both killed inside
 * an update; over the driver's double.
 *
 * A trainer is this program with a socket for its argument: TRAIN commits step 1 and waits inside the update
 * of step 2, VERIFY expects step 1.
 */
#include "tests/it/cuda_scene.h"

#include <limits.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/daemon_fixture.h"

#define TRAIN     "train"
#define VERIFY     "verify"
#define NUMEL     (1u << 20)
#define COMMITTED 0x11
#define UNDONE    0xEE

struct trainer {
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;
	struct zerod_shard shard;
	struct CUstream_st *stream;
};

static int join(const char *socket_path, struct trainer *trainer)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options join = ZEROD_INIT(join);
	struct zerod_unit_options weights = ZEROD_INIT(weights);

	trainer->stream = scene_stream(0);
	trainer->shard = (struct zerod_shard)ZEROD_INIT(trainer->shard);
	options.socket_path = socket_path;
	join.job = "lm", join.world_size = 1, join.flags = ZEROD_GROUP_DURABLE | ZEROD_GROUP_SHADOW;
	weights.name = "w", weights.dtype = ZEROD_UINT8, weights.numel = NUMEL;
	return zerod_connect(&options, &trainer->client) ||
	       zerod_group_join(trainer->client, &join, &trainer->group) ||
	       zerod_unit_register(trainer->group, &weights, &trainer->unit) ||
	       zerod_shard_get(trainer->unit, &trainer->shard);
}

static int write_shard(struct trainer *trainer, uint8_t value)
{
	return zerod_update_begin(&trainer->unit, 1, NULL, NULL) ||
	       scene_driver()->memsetD8Async((zd_cu_ptr)trainer->shard.data, value, NUMEL, trainer->stream) ||
	       scene_driver()->streamSynchronize(trainer->stream);
}

static int train(const char *socket_path)
{
	struct trainer trainer;

	if (join(socket_path, &trainer) || write_shard(&trainer, COMMITTED) ||
	    zerod_publish(&trainer.unit, 1, NULL, 0, NULL, NULL) || zerod_commit(trainer.group, 1, NULL) ||
	    write_shard(&trainer, UNDONE) || write(STDOUT_FILENO, "", 1) != 1)
		return 1;
	for (;;)
		(void)pause();
}

static int verify(const char *socket_path)
{
	static uint8_t found[NUMEL];
	struct trainer trainer;
	struct zerod_group_info info = ZEROD_INIT(info);

	if (join(socket_path, &trainer) || zerod_group_get(trainer.group, &info) ||
	    scene_driver()->memcpyDtoHAsync(found, (zd_cu_ptr)trainer.shard.data, NUMEL, trainer.stream) ||
	    scene_driver()->streamSynchronize(trainer.stream))
		return 1;
	for (unsigned i = 0; i < NUMEL; i++) {
		if (found[i] != COMMITTED)
			return 2;
	}
	return info.committed_step == 1 && !info.torn ? 0 : 3;
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

static void test_both_are_killed(void **state)
{
	static const char *const args[] = {"--backend", "cuda", "--keep-state", "holder", NULL};
	const struct zd_daemon_options options = {.args = args};
	struct zd_daemon daemon;
	int fds[2], status = 0;
	pid_t trainer;
	char byte, command[256];

	(void)state;
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(zd_daemon_start(&options, &daemon), 0);
	trainer = start(TRAIN, &daemon, fds[1]);
	(void)close(fds[1]);
	assert_int_equal(read(fds[0], &byte, 1), 1);
	assert_int_equal(zd_daemon_kill(&daemon), 0);
	assert_int_equal(kill(trainer, SIGKILL), 0);
	assert_int_equal(waitpid(trainer, NULL, 0), trainer);
	assert_int_equal(zd_daemon_restart(&options, &daemon), 0);
	trainer = start(VERIFY, &daemon, STDOUT_FILENO);
	assert_int_equal(waitpid(trainer, &status, 0), trainer);
	assert_int_equal(WEXITSTATUS(status), 0);
	(void)snprintf(command, sizeof(command), "%s/bin/zeroctl --socket %s kill-job lm", getenv("BUILD"),
	               daemon.socket_path);
	assert_int_equal(system(command), 0);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
	(void)close(fds[0]);
}

int main(int argc, char **argv)
{
	static char dir[] = CASE_DIR, env[64];
	struct a_case cases[] = {CASE(test_both_are_killed, env)};
	int failed;

	if (argc == 2 && strcmp(argv[0], TRAIN) == 0)
		return train(argv[1]);
	if (argc == 2 && strcmp(argv[0], VERIFY) == 0)
		return verify(argv[1]);
	if (argc == 1 && !mkdtemp(dir))
		return 1;
	(void)snprintf(env, sizeof(env), "ZD_DOUBLE_DIR=%s", dir);
	failed = case_main(cases, ZD_ARRAY_LEN(cases), argc, argv);
	if (argc == 1)
		case_remove_dir(dir);
	return failed;
}
