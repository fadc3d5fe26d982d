/* SPDX-License-Identifier: Apache-2.0 */
/* test_holder.c - the process that holds descriptors, under what may happen to it. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "main/holder.h"
#include "tests/support/test.h"

static char folder[32], socket_path[64];
static pid_t child;

static struct sockaddr_un address;

static void begin(void)
{
	int listening = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	char number[16], *argv[] = {number};

	(void)snprintf(folder, sizeof(folder), "/tmp/zd-holder-XXXXXX");
	assert_non_null(mkdtemp(folder));
	(void)snprintf(socket_path, sizeof(socket_path), "%s/s", folder);
	address = (struct sockaddr_un){.sun_family = AF_UNIX};
	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s.state", socket_path);
	assert_int_equal(bind(listening, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listening, 4), 0);
	(void)snprintf(number, sizeof(number), "%d", listening);
	child = fork();
	if (child == 0)
		_exit(zd_holder_main(1, argv));
	(void)close(listening);
}

/* The holder ends when nothing is left to hold. */
static void end(struct zd_holder *holder)
{
	int status;

	zd_holder_close(holder);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(rmdir(folder), 0);
}

static void put(struct zd_holder *holder, const char *name)
{
	struct zd_err err;

	assert_int_equal(holder->store.put(holder->store.arg, name, STDIN_FILENO, &err), 0);
}

static void limit_descriptors(rlim_t most)
{
	struct rlimit limit;

	assert_int_equal(prlimit(child, RLIMIT_NOFILE, NULL, &limit), 0);
	limit.rlim_cur = most;
	assert_int_equal(prlimit(child, RLIMIT_NOFILE, &limit, NULL), 0);
}

/* How often it has slept. */
static unsigned count_sleeps(void)
{
	char path[64], line[128];
	unsigned count = 0;
	FILE *file;

	(void)snprintf(path, sizeof(path), "/proc/%d/status", (int)child);
	file = fopen(path, "re");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		(void)sscanf(line, "voluntary_ctxt_switches: %u", &count);
	(void)fclose(file);
	return count;
}

static bool has_ended(void)
{
	siginfo_t info = {.si_pid = 0};

	return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
}

/* The holder has the registry, and no room for more descriptors. */
static void fill(struct zd_holder *holder)
{
	struct zd_err err;

	begin();
	assert_int_equal(zd_holder_open(holder, socket_path, 0, &err), 0);
	put(holder, "registry");
	zd_holder_close(holder); /* waits until the holder has seen it */
	assert_int_equal(zd_holder_open(holder, socket_path, 0, &err), 0);
	assert_int_equal(holder->store.nfound, 1);
	assert_string_equal(holder->store.found[0].name, "registry");
	limit_descriptors(3);
}

/* There is none for the next daemon's connection, for a while. */
TEST(test_no_descriptor_for_a_daemon)
{
	struct zd_holder holder;
	struct zd_err err;
	unsigned slept;
	int waiting;

	fill(&holder);
	waiting = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	slept = count_sleeps();
	zd_holder_close(&holder);
	assert_int_equal(connect(waiting, (struct sockaddr *)&address, sizeof(address)), 0);
	while (!has_ended() && count_sleeps() < slept + 4)
		(void)sched_yield();
	assert_false(has_ended());
	(void)close(waiting);
	limit_descriptors(64);
	assert_int_equal(zd_holder_open(&holder, socket_path, 0, &err), 0);
	assert_int_equal(holder.store.nfound, 1);
	holder.store.remove(holder.store.arg, "registry");
	end(&holder);
}

/* It cannot take a descriptor of the state: it keeps no half of it. */
TEST(test_no_descriptor_for_the_state)
{
	struct zd_holder holder;

	fill(&holder);
	put(&holder, "segment-1");
	end(&holder);
}

/* No daemon comes: the holder ends, and leaves nothing. */
TEST(test_time_without_a_daemon)
{
	struct zd_holder holder;
	struct zd_err err;

	begin();
	assert_int_equal(zd_holder_open(&holder, socket_path, 1, &err), 0);
	put(&holder, "registry");
	end(&holder);
}

int main(void)
{
	(void)alarm(60);
	return test_run(NULL, NULL);
}
