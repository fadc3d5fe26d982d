/* SPDX-License-Identifier: Apache-2.0 */
/* test_daemon_trouble.c - a daemon short of descriptors or with small files, and a killed client whose child
 * keeps its socket: the other clients do not notice. */
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zerod.h>

#include "../support/daemon_fixture.h"
#include "tests/support/test.h"

#define ATTEMPTS    32
#define DEADLINE_S  30
#define ALLOC_BYTES (1u << 20)
#define HELLO_FDS   4 /* that a connection costs until the hello is answered */

static int try_connect(const struct zd_daemon *daemon, zerod_client **client)
{
	struct zerod_options options = ZEROD_INIT(options);

	options.socket_path = daemon->socket_path;
	options.deadline_ms = 30000;
	return zerod_connect(&options, client);
}

static uint64_t allocated_bytes(zerod_client *client)
{
	struct zerod_device_info info = ZEROD_INIT(info);

	assert_int_equal(zerod_device_get(client, 0, &info), 0);
	return info.allocated_bytes;
}

/* The limit that leaves the process `left` descriptors to open: it bounds their numbers, not their count. */
static rlim_t limit_leaving(pid_t pid, int left)
{
	char path[64];
	struct stat found;
	rlim_t number = 0;

	for (;; number++) {
		(void)snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)pid, (unsigned)number);
		if (lstat(path, &found) != 0 && left-- == 0)
			return number;
	}
}

/* With few descriptors left, connections fail one way or the other, but do not hang; with enough again, they
 * work. */
TEST(test_descriptors_exhausted)
{
	struct zd_daemon daemon;
	zerod_client *client, *late = NULL;
	struct rlimit before, low;
	rlim_t limits[HELLO_FDS];

	assert_int_equal(zd_daemon_start(NULL, &daemon), 0);
	assert_int_equal(try_connect(&daemon, &client), 0);
	assert_int_equal(allocated_bytes(client), 0); /* by then it has closed what came with the hello */
	assert_int_equal(prlimit(daemon.pid, RLIMIT_NOFILE, NULL, &before), 0);
	/* All before the first attempt: the daemon closes an attempt's descriptors after the client has seen
	 * its end, and answers other clients in between. */
	for (int left = 0; left < HELLO_FDS; left++)
		limits[left] = limit_leaving(daemon.pid, left);
	for (int left = 0; left < HELLO_FDS; left++) {
		low = (struct rlimit){.rlim_cur = limits[left], .rlim_max = before.rlim_max};
		assert_int_equal(prlimit(daemon.pid, RLIMIT_NOFILE, &low, NULL), 0);
		for (int i = 0; i < ATTEMPTS; i++)
			assert_int_not_equal(try_connect(&daemon, &late), 0);
		assert_int_equal(allocated_bytes(client), 0);
	}
	assert_int_equal(prlimit(daemon.pid, RLIMIT_NOFILE, &before, NULL), 0);
	assert_int_equal(try_connect(&daemon, &late), 0);
	zerod_close(late);
	zerod_close(client);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

/* Allocates, tells, and waits to be killed; a child of it keeps the connection open. */
_Noreturn static void run_victim(const struct zd_daemon *daemon, int told, int keep)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);
	zerod_client *client;
	zerod_allocation *buffer;
	void *data;
	char byte = 1;

	options.job = "job";
	options.bytes = ALLOC_BYTES;
	if (try_connect(daemon, &client) != 0 || zerod_alloc(client, &options, &buffer, &data) != 0)
		byte = 0;
	if (byte && fork() == 0) {
		(void)!read(keep, &byte, 1); /* until the test ends it */
		_exit(0);
	}
	(void)!write(told, &byte, 1);
	for (;;)
		(void)pause();
}

TEST(test_killed_client)
{
	struct zd_daemon daemon;
	zerod_client *client;
	const struct timespec retry = {.tv_nsec = 1000000};
	int told[2], keep[2], raw, rounds = 0;
	char byte = 0;
	pid_t victim;

	assert_int_equal(zd_daemon_start(NULL, &daemon), 0);
	assert_int_equal(pipe(told), 0);
	assert_int_equal(pipe(keep), 0);
	victim = fork();
	if (victim == 0) {
		(void)close(keep[1]);
		run_victim(&daemon, told[1], keep[0]);
	}
	assert_int_equal(read(told[0], &byte, 1), 1);
	assert_int_equal(byte, 1);
	assert_int_equal(try_connect(&daemon, &client), 0);
	assert_int_equal(allocated_bytes(client), ALLOC_BYTES);
	assert_int_equal(kill(victim, SIGKILL), 0);
	assert_int_equal(waitpid(victim, &raw, 0), victim);
	while (allocated_bytes(client) > 0 && rounds++ < DEADLINE_S * 1000)
		(void)nanosleep(&retry, NULL);
	assert_int_equal(allocated_bytes(client), 0);
	(void)close(keep[0]);
	(void)close(keep[1]);
	(void)close(told[0]);
	(void)close(told[1]);
	zerod_close(client);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

/* A session whose pages are beyond RLIMIT_FSIZE fails; the kernel's signal does not end the daemon. */
TEST(test_file_size_limit)
{
	const struct rlimit limit = {.rlim_cur = 1024, .rlim_max = RLIM_INFINITY};
	struct zd_daemon daemon;
	zerod_client *client, *other;

	assert_int_equal(zd_daemon_start(NULL, &daemon), 0);
	assert_int_equal(try_connect(&daemon, &client), 0);
	assert_int_equal(prlimit(daemon.pid, RLIMIT_FSIZE, &limit, NULL), 0);
	assert_int_equal(try_connect(&daemon, &other), ZEROD_E_NO_MEMORY);
	assert_int_equal(allocated_bytes(client), 0);
	zerod_close(client);
	assert_int_equal(zd_daemon_stop(&daemon), 0);
}

int main(void)
{
	(void)alarm(240);
	return test_run(NULL, NULL);
}
