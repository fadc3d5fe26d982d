/* SPDX-License-Identifier: Apache-2.0 */
/* test_daemon_trouble.c - a daemon short of descriptors, or with small files: its clients do not notice. */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zerod.h>

#include "../support/daemon_fixture.h"
#include "tests/support/test.h"

#define ATTEMPTS  32
#define HELLO_FDS 4 /* that a connection costs until the hello is answered */

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
