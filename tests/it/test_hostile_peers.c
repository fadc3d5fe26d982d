/* SPDX-License-Identifier: Apache-2.0 */
/* test_hostile_peers.c - clients that the daemon does not serve, or serves within limits only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "tests/support/daemon_fixture.h"
#include "tests/support/raw_client.h"

static struct zd_daemon peers_daemon;
static struct raw_client raw = {.sock = -1};

static int close_all(void **state)
{
	(void)state;
	raw_close(&raw);
	return zd_daemon_stop(&peers_daemon);
}

static uint64_t send_hello(struct raw_client *client)
{
	return raw_send(client, RAW(HELLO, hello, Hello, .version_min = 1, .version_max = 1));
}

/* ---- Processes that cannot be watched ------------------------------------------------------------------ */

/* The kernel reports pid 0 for a process outside the daemon's pid namespace. */
static void test_outside_the_pid_namespace(void **state)
{
	int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	int started;

	(void)state;
	assert_true(own >= 0);
	if (unshare(CLONE_NEWPID) != 0) {
		(void)close(own);
		skip();
	}
	started = zd_daemon_start(NULL, &peers_daemon); /* process 1 of the new namespace */
	assert_int_equal(setns(own, CLONE_NEWPID), 0);
	(void)close(own);
	assert_int_equal(started, 0);
	for (int i = 0; i < 2; i++) {
		raw_connect(&raw, peers_daemon.socket_path);
		RAW_EXPECT_ERROR(&raw, send_hello(&raw), ZEROD_E_PERMISSION, "pid namespace", "pid 0");
		raw_expect_end(&raw);
		raw_close(&raw);
	}
	/* A connection without a hello ends, too, when its client closes it. */
	raw_connect(&raw, peers_daemon.socket_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(test_outside_the_pid_namespace, close_all),
	};

	return cmocka_run_group_tests_name("hostile peers", tests, NULL, NULL);
}
