/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_deferred_teardown.c - trainers on GPUs that are killed: what zeroctl shows until their processes
 * have left, and that their memory comes back; over the doubles of the driver and of NVML.
 *
 * A trainer is this program with a socket for its argument: it joins, registers a unit, may fork a child, and
 * waits.
 */
#include <zerod.h>

#include "tests/it/zeroctl_scene.h"
#include "tests/support/daemon_fixture.h"
#include "tests/unit/driver/cases.h"

#define FORKS "forking "

/* ---- The trainer --------------------------------------------------------------------------------------- */

static int hold_memory(const char *socket_path)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options join = ZEROD_INIT(join);
	struct zerod_unit_options layer = ZEROD_INIT(layer);
	zerod_client *client;
	zerod_group *group;
	zerod_unit *unit;

	options.socket_path = socket_path;
	join.job = "job", join.world_size = 1;
	layer.name = "w", layer.dtype = ZEROD_FLOAT32, layer.numel = 1 << 18;
	return zerod_connect(&options, &client) || zerod_group_join(client, &join, &group) ||
	       zerod_unit_register(group, &layer, &unit);
}

static int trainer_main(bool forks, const char *socket_path)
{
	pid_t child = 0;

	if (hold_memory(socket_path))
		return 1;
	if (forks)
		child = fork();
	if (forks && child == 0)
		for (;;)
			(void)pause();
	if (write(STDOUT_FILENO, &child, sizeof(child)) != sizeof(child))
		return 1;
	for (;;)
		(void)pause();
}

static struct case_process start_trainer(const struct zd_daemon *daemon, bool forks)
{
	char *const args[] = {(char *)(forks ? FORKS "trainer" : "trainer"), (char *)daemon->socket_path,
	                      NULL};
	struct case_process trainer = case_spawn(args);

	case_await(&trainer);
	return trainer;
}

/* ---- What zeroctl shows -------------------------------------------------------------------------------- */

/* `zeroctl abort-group` aborts the new group of that name, not the remains of the former one. */
static void abort_next_of_name(const struct zd_daemon *daemon)
{
	const char *const args[] = {"zeroctl",     "--socket",  daemon->socket_path,
	                            "abort-group", "job/world", NULL};
	struct case_process trainer = start_trainer(daemon, false);
	struct program zeroctl;

	zeroctl_wait_table(daemon->socket_path, "groups", "OVER", true);
	program_start(&zeroctl, args, NULL);
	program_wait(&zeroctl);
	assert_string_equal(zeroctl.err_text, "");
	assert_int_equal(zeroctl.status, 0);
	program_free(&zeroctl);
	zeroctl_wait_table(daemon->socket_path, "groups", "ABORTED", true);
	case_kill(&trainer);
}

static void start_daemon(struct zd_daemon *daemon)
{
	static const char *const args[] = {"--backend", "cuda", NULL};
	const struct zd_daemon_options options = {.args = args};

	assert_int_equal(zd_daemon_start(&options, daemon), 0);
}

static char env[64];

CASE_TEST(test_forked_child_keeps_the_memory, env)
{
	struct zd_daemon daemon;
	struct case_process trainer;
	char reason[64];

	start_daemon(&daemon);
	trainer = start_trainer(&daemon, true);
	case_kill(&trainer);
	(void)snprintf(reason, sizeof(reason), "process %d to leave device 0", (int)trainer.pid);
	zeroctl_wait_table(daemon.socket_path, "sessions", reason, true);
	zeroctl_wait_table(daemon.socket_path, "sessions", "CLOSING", true);
	zeroctl_wait_table(daemon.socket_path, "jobs", "\"job\"", true);
	abort_next_of_name(&daemon);
	assert_int_equal(kill(trainer.child, SIGKILL), 0);
	zeroctl_wait_table(daemon.socket_path, "sessions", reason, false);
	zeroctl_wait_table(daemon.socket_path, "jobs", "\"job\"", false);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

int main(int argc, char **argv)
{
	if (argc == 2 && strstr(argv[0], "trainer"))
		return trainer_main(strncmp(argv[0], FORKS, strlen(FORKS)) == 0, argv[1]);
	return case_main_in_dir(argc, argv, env);
}
