/* SPDX-License-Identifier: Apache-2.0 */
/* test_bind.c - the socket file: made once, never stolen, replaced when stale, removed when ours. */
#include <stdio.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "proto/frame.h"
#include "server/bind.h"
#include "tests/support/test.h"

#define RACERS 8

static char dir[32];
static char path[64], lock_path[72];

static int make_folder(void **state)
{
	(void)state;
	strcpy(dir, "/tmp/zerod-bind-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	(void)snprintf(path, sizeof(path), "%s/s", dir);
	(void)snprintf(lock_path, sizeof(lock_path), "%s.lock", path);
	return 0;
}

/* Fails when a test leaves anything but the socket: a lock file, for one. */
static int remove_folder(void **state)
{
	(void)state;
	(void)unlink(path);
	return rmdir(dir);
}

#define MAKE_FOLDER_TEST(name) TEST_DEFINE(name, void, , name(), make_folder, remove_folder)

MAKE_FOLDER_TEST(test_made_and_removed)
{
	struct zd_bound bound;
	struct zd_err err;
	struct stat found;

	assert_int_equal(zd_bind(path, 0640, &bound, &err), 0);
	assert_int_equal(lstat(path, &found), 0);
	assert_true(S_ISSOCK(found.st_mode));
	assert_int_equal(found.st_mode & 07777, 0640);
	zd_bound_unlink(&bound);
	assert_int_equal(access(path, F_OK), -1);
	(void)close(bound.sock);
}

/* In the place of the C library's: notes the permissions that other users find before the next call. */
static mode_t mode_at_first;

int bind(int sock, __CONST_SOCKADDR_ARG address, socklen_t bytes)
{
	long rc = syscall(SYS_bind, sock, address.__sockaddr__, bytes);
	struct stat made;

	if (rc == 0 && lstat(address.__sockaddr_un__->sun_path, &made) == 0)
		mode_at_first = made.st_mode & 07777;
	return (int)rc;
}

/* With any umask, users whom the mode does not allow can at no time connect. */
MAKE_FOLDER_TEST(test_no_wider_permissions_at_first)
{
	static const mode_t masks[] = {0, 0022, 0077};
	mode_t before = umask(0);

	for (size_t i = 0; i < 3; i++) {
		struct zd_bound bound;
		struct zd_err err;
		struct stat made;

		(void)umask(masks[i]);
		assert_int_equal(zd_bind(path, 0660, &bound, &err), 0);
		assert_int_equal(mode_at_first & ~0660u, 0);
		assert_int_equal(lstat(path, &made), 0);
		assert_int_equal(made.st_mode & 07777, 0660);
		assert_int_equal(umask(masks[i]), masks[i]);
		zd_bound_unlink(&bound);
		(void)close(bound.sock);
	}
	(void)umask(before);
}

/* Every user who may read the folder can lock it. */
MAKE_FOLDER_TEST(test_locked_folder)
{
	int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct zd_bound bound;
	struct zd_err err;

	assert_int_equal(flock(folder, LOCK_EX), 0);
	assert_int_equal(zd_bind(path, 0666, &bound, &err), 0);
	zd_bound_unlink(&bound);
	(void)close(bound.sock);
	(void)close(folder);
}

/* A daemon that was killed while it held the lock leaves the file. */
MAKE_FOLDER_TEST(test_lock_left_behind)
{
	struct zd_bound bound;
	struct zd_err err;
	int file = open(lock_path, O_CREAT | O_WRONLY, 0600);

	assert_int_equal(close(file), 0);
	assert_int_equal(zd_bind(path, 0666, &bound, &err), 0);
	assert_int_equal(access(lock_path, F_OK), -1);
	zd_bound_unlink(&bound);
	(void)close(bound.sock);
}

static void expect_bad_lock(const char *text)
{
	struct zd_bound bound;
	struct zd_err err;

	assert_int_equal(zd_bind(path, 0666, &bound, &err), ZEROD_E_EXISTS);
	if (!strstr(err.text, text))
		fail_msg("expected '%s', found '%s'", text, err.text);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(unlink(lock_path), 0);
}

/* Files that others made, who could keep them locked. */
MAKE_FOLDER_TEST(test_locks_of_others)
{
	int file = open(lock_path, O_CREAT | O_WRONLY, 0600);

	assert_int_equal(fchmod(file, 0604), 0);
	(void)close(file);
	expect_bad_lock("s.lock: expected a file of the daemon's user alone");
	assert_int_equal(symlink("/etc/passwd", lock_path), 0);
	expect_bad_lock("s.lock: expected a file of the daemon's user alone");
	assert_int_equal(mkfifo(lock_path, 0600), 0);
	expect_bad_lock("s.lock: expected a file of the daemon's user alone");
	if (geteuid() != 0)
		return;
	file = open(lock_path, O_CREAT | O_WRONLY, 0600);
	assert_int_equal(fchown(file, 12345, 12345), 0);
	(void)close(file);
	expect_bad_lock("s.lock: expected a file of the daemon's user alone");
}

MAKE_FOLDER_TEST(test_refused_while_served)
{
	struct zd_bound first, second = {.sock = -7};
	struct zd_err err;
	char expected[128];

	assert_int_equal(zd_bind(path, 0666, &first, &err), 0);
	assert_int_equal(zd_bind(path, 0666, &second, &err), ZEROD_E_EXISTS);
	(void)snprintf(expected, sizeof(expected), "%s: already running (pid %d)", path, (int)getpid());
	assert_string_equal(err.text, expected);
	assert_int_equal(second.sock, -7);
	(void)close(first.sock);
}

MAKE_FOLDER_TEST(test_stale_is_replaced)
{
	struct zd_bound first, second;
	struct zd_err err;
	char other[80];

	(void)snprintf(other, sizeof(other), "%s-other", path);
	assert_int_equal(zd_bind(path, 0666, &first, &err), 0);
	(void)close(first.sock);
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(link(path, other), 0); /* its inode is not given to the second */
	assert_int_equal(zd_bind(path, 0666, &second, &err), 0);
	/* The first daemon, late, must not remove the second's. */
	zd_bound_unlink(&first);
	assert_int_equal(access(path, F_OK), 0);
	zd_bound_unlink(&second);
	assert_int_equal(access(path, F_OK), -1);
	(void)close(second.sock);
	assert_int_equal(unlink(other), 0);
}

MAKE_FOLDER_TEST(test_not_a_socket)
{
	struct zd_bound bound;
	struct zd_err err;
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	(void)fputs("precious", file);
	(void)fclose(file);
	assert_int_equal(zd_bind(path, 0666, &bound, &err), ZEROD_E_EXISTS);
	assert_non_null(strstr(err.text, "exists and is not a socket"));
	assert_int_equal(access(path, F_OK), 0);
}

MAKE_FOLDER_TEST(test_dangling_link)
{
	struct zd_bound bound;
	struct zd_err err;

	assert_int_equal(symlink("/nonexistent", path), 0);
	assert_int_equal(zd_bind(path, 0666, &bound, &err), ZEROD_E_EXISTS);
	assert_non_null(strstr(err.text, "is not a socket"));
}

MAKE_FOLDER_TEST(test_other_kind_of_server)
{
	int sock = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_un address;
	struct zd_bound bound;
	struct zd_err err;

	assert_int_equal(zd_frame_address(path, &address, &err), 0);
	assert_int_equal(bind(sock, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(sock, 1), 0);
	assert_int_equal(zd_bind(path, 0666, &bound, &err), ZEROD_E_EXISTS);
	assert_non_null(strstr(err.text, "another kind of server"));
	(void)close(sock);
}

MAKE_FOLDER_TEST(test_bad_paths)
{
	struct zd_bound bound;
	struct zd_err err;
	char longest[120] = "/tmp/";

	memset(longest + 5, 'x', 103);
	assert_int_equal(zd_bind(longest, 0666, &bound, &err), ZEROD_E_INVALID);
	assert_non_null(strstr(err.text, "the limit is 107"));
	assert_int_equal(zd_bind("", 0666, &bound, &err), ZEROD_E_INVALID);
	assert_int_equal(zd_bind("/nonexistent/folder/s", 0666, &bound, &err), ZEROD_E_NOT_FOUND);
	assert_string_equal(err.text, "/nonexistent/folder/s: the folder /nonexistent/folder does not exist");
	assert_int_equal(zd_bind("/etc/passwd/s", 0666, &bound, &err), ZEROD_E_SYSTEM);
}

/* Several daemons started at once over a stale socket: one wins, and the others name it. */
MAKE_FOLDER_TEST(test_race)
{
	struct zd_bound stale;
	struct zd_err err;
	int go[2], done[2], winners = 0;
	pid_t pids[RACERS];
	char byte = 0;

	assert_int_equal(zd_bind(path, 0666, &stale, &err), 0);
	(void)close(stale.sock);
	assert_int_equal(pipe(go), 0);
	assert_int_equal(pipe(done), 0);
	for (int i = 0; i < RACERS; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			struct zd_bound bound;
			int rc;

			(void)close(go[1]);
			(void)close(done[1]);
			(void)!read(go[0], &byte, 1); /* ends when the parent closes it */
			rc = zd_bind(path, 0666, &bound, &err);
			/* The winner listens until all have tried. */
			if (rc == 0)
				(void)!read(done[0], &byte, 1);
			_exit(rc == 0 ? 1 : rc == ZEROD_E_EXISTS ? 0 : 2);
		}
	}
	(void)close(go[1]);
	for (int waited = 0; waited < RACERS; waited++) {
		int raw;

		/* All but the winner end by themselves. */
		if (waited == RACERS - 1)
			(void)close(done[1]);
		assert_true(waitpid(-1, &raw, 0) > 0);
		assert_true(WIFEXITED(raw));
		assert_in_range(WEXITSTATUS(raw), 0, 1);
		winners += WEXITSTATUS(raw);
	}
	assert_int_equal(winners, 1);
	(void)close(go[0]);
	(void)close(done[0]);
}

int main(void)
{
	(void)alarm(60);
	return test_run(NULL, NULL);
}
