/* SPDX-License-Identifier: Apache-2.0 */
/* test_creds.c - who is at the other end of a socket, and whom the daemon can serve. */
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "server/creds.h"
#include "server/keeper.h"
#include "tests/support/test.h"

#define SOME_UID    12345
#define NOBODYS_UID 65534
#define CANNOT      77

/* A pair whose ends report this user. */
static void open_pair(uid_t uid, int pair[2])
{
	assert_int_equal(seteuid(uid), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(seteuid(0), 0);
}

/* Runs the check in a child that has left the namespaces; 0, a status made positive, or CANNOT. */
static int check_elsewhere(int sock, int namespaces, const char *text)
{
	int wait_status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		struct zd_creds creds;
		struct zd_err err = ZD_ERR_NONE;
		int rc;

		if (unshare(namespaces) != 0)
			_exit(CANNOT);
		/* A pid namespace is that of children. */
		if ((namespaces & CLONE_NEWPID) && (pid = fork()) != 0) {
			(void)waitpid(pid, &wait_status, 0);
			_exit(WEXITSTATUS(wait_status));
		}
		rc = zd_creds_get(sock, &creds, &err);
		if (rc == 0)
			rc = zd_creds_check(&creds, &err);
		if (rc && !strstr(err.text, text))
			_exit(1);
		_exit(-rc);
	}
	assert_int_equal(waitpid(pid, &wait_status, 0), pid);
	assert_true(WIFEXITED(wait_status));
	return WEXITSTATUS(wait_status);
}

/* The pidfd is that of the process that made the pair. */
TEST(test_pidfd_is_the_peers)
{
	struct zd_creds creds;
	struct zd_err err;
	struct pollfd end = {.events = POLLIN};
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(zd_creds_get(pair[0], &creds, &err), 0);
	assert_int_equal(creds.pid, getpid());
	assert_int_equal(creds.uid, geteuid());
	assert_int_equal(zd_creds_check(&creds, &err), 0);
	end.fd = creds.pidfd;
	assert_int_equal(poll(&end, 1, 0), 0);
	zd_creds_deinit(&creds);
	assert_int_equal(creds.pidfd, -1);
	(void)close(pair[0]);
	(void)close(pair[1]);
}

/* Where all users have a uid, overflowuid is nobody's own. */
TEST(test_nobody_is_a_user)
{
	struct zd_creds creds;
	struct zd_err err;
	int pair[2];

	if (geteuid() != 0)
		skip();
	open_pair(NOBODYS_UID, pair);
	assert_int_equal(zd_creds_get(pair[0], &creds, &err), 0);
	assert_int_equal(creds.uid, NOBODYS_UID);
	assert_int_equal(zd_creds_check(&creds, &err), 0);
	zd_creds_deinit(&creds);
	(void)close(pair[0]);
	(void)close(pair[1]);
}

static void expect_refused(uid_t uid, int namespaces, const char *text)
{
	int pair[2], found;

	if (geteuid() != 0)
		skip();
	open_pair(uid, pair);
	found = check_elsewhere(pair[0], namespaces, text);
	(void)close(pair[0]);
	(void)close(pair[1]);
	if (found == CANNOT)
		skip();
	assert_int_equal(found, -ZEROD_E_PERMISSION);
}

TEST(test_user_without_a_uid)
{
	expect_refused(SOME_UID, CLONE_NEWUSER, "has no uid in the daemon's user namespace (uid 65534)");
}

TEST(test_process_without_a_pid)
{
	expect_refused(0, CLONE_NEWPID, "outside the daemon's pid namespace (pid 0)");
}

/* As ps shows it; a number that is no process has none. */
TEST(test_start_of_a_process)
{
	char line[1024];
	unsigned long long started;
	FILE *file = fopen("/proc/self/stat", "re");

	assert_non_null(file);
	assert_non_null(fgets(line, sizeof(line), file));
	assert_int_equal(fclose(file), 0);
	assert_int_equal(
	        sscanf(strrchr(line, ')') + 1,
	               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
	               &started),
	        1);
	assert_int_equal(zd_process_started(getpid()), started);
	assert_int_equal(zd_process_started(0), 0);
}

int main(void)
{
	(void)alarm(60);
	return test_run(NULL, NULL);
}
