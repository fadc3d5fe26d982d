/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strict - finds the code that reads a weight after its release. Run it with a daemon: zerod --backend host
 * --foreground
 *
 *     strict [SOCKET]
 *
 * A view that outlives the release shows later contents of the memory, without an error. A strict client
 * loses its access at the release: the first stale read ends the process, at the line that reads. Here a
 * child process reads. (On GPUs a kernel or copy fails with CUDA_ERROR_ILLEGAL_ADDRESS.)
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zerod.h>

#include "host.h"

#define NUMEL 1024

static zerod_client *client;

/* Ends the process with the library's text if a call has failed. */
static void check(int status, const char *what)
{
	if (status == ZEROD_OK)
		return;
	fprintf(stderr, "strict: %s: %s: %s\n", what, zerod_status_name(status), zerod_last_error(client));
	exit(-status);
}

static zerod_unit *join_and_register(const char *socket_path, int strict)
{
	struct zerod_options options = ZEROD_INIT(options);
	struct zerod_group_options place = ZEROD_INIT(place);
	struct zerod_unit_options weights = ZEROD_INIT(weights);
	zerod_group *group;
	zerod_unit *unit;
	char job[32];

	options.socket_path = socket_path;
	options.strict = strict; /* 1 while a bug is searched: no other change is needed */
	check(zerod_connect(&options, &client), "connect");
	need_host_devices(client);
	(void)snprintf(job, sizeof(job), "strict-%d-%d", (int)getpid(), strict);
	place.job = job;
	place.world_size = 1;
	check(zerod_group_join(client, &place, &group), "join");
	weights.name = "weights";
	weights.dtype = ZEROD_FLOAT32;
	weights.numel = NUMEL;
	check(zerod_unit_register(group, &weights, &unit), "register");
	check(zerod_update_begin(&unit, 1, NULL, NULL), "update_begin");
	check(zerod_publish(&unit, 1, NULL, 0, NULL, NULL), "publish");
	return unit;
}

/* A child has the access that its parent has. Returns whether it survives the read. */
static int can_be_read(const volatile float *view)
{
	const struct rlimit no_core = {0, 0};
	int status = 0;
	pid_t child;

	(void)fflush(stdout);
	child = fork();
	if (child == 0) {
		(void)setrlimit(RLIMIT_CORE, &no_core);
		(void)*view;
		_exit(EXIT_SUCCESS);
	}
	return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
	       WEXITSTATUS(status) == EXIT_SUCCESS;
}

static void keep_a_view(const char *socket_path, int strict)
{
	zerod_unit *unit = join_and_register(socket_path, strict);
	void *view;

	check(zerod_gather(unit, NULL, NULL, &view), "gather");
	printf("%s, before the release: %s\n", strict ? "strict" : "normal",
	       can_be_read(view) ? "read" : "fault");
	check(zerod_release(unit, NULL, 0, NULL, NULL), "release");
	printf("%s, after the release: %s\n", strict ? "strict" : "normal",
	       can_be_read(view) ? "read" : "fault");
	zerod_close(client);
}

int main(int argc, char **argv)
{
	keep_a_view(argc > 1 ? argv[1] : NULL, 0);
	keep_a_view(argc > 1 ? argv[1] : NULL, 1);
	return EXIT_SUCCESS;
}
