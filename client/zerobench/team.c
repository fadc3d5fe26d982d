// SPDX-License-Identifier: Apache-2.0
/*
 * team.c - the processes of a measurement, and how they end together.
 *
 * Members wait for each other at a barrier in shared memory. The parent does not: it waits for the ends of
 * the members. If a member fails, the parent therefore detects it at once, kills the others, and reports
 * which member failed and why. It never waits for an act of a member.
 */
#include "bench.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct zd_team {
	pthread_barrier_t barrier;
	unsigned count;
	pid_t pids[2 * ZD_BENCH_MAX_RANKS]; /* 0: it has ended */
	struct zd_err errors[2 * ZD_BENCH_MAX_RANKS];
};

/* Signals are blocked in the parent, which polls for them, so that no signal is lost between a poll and a
 * wait. SIGPIPE is one of them: the reader of the table can have seen enough. */
static sigset_t awaited_signals(bool children)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGPIPE);
	if (children)
		sigaddset(&set, SIGCHLD);
	return set;
}

void zd_bench_catch_signals(void)
{
	const sigset_t set = awaited_signals(true);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

void zd_bench_child_signals(void)
{
	sigset_t none;
	sigemptyset(&none);
	signal(SIGINT, SIG_IGN); /* a terminal sends it to the parent as well, which ends us in order */
	signal(SIGHUP, SIG_IGN);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

bool zd_bench_interrupted(void)
{
	const sigset_t set = awaited_signals(false);
	static bool interrupted;
	if (sigtimedwait(&set, NULL, &(struct timespec){0}) > 0)
		interrupted = true;
	return interrupted;
}

void *zd_shared_new(size_t bytes, struct zd_err *err)
{
	void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared != MAP_FAILED)
		return shared;
	zd_err_errno(err, errno, "cannot map %zu bytes for results", bytes);
	return NULL;
}

void zd_shared_free(void *shared, size_t bytes)
{
	if (shared)
		munmap(shared, bytes);
}

void zd_member_barrier(const struct zd_member *member)
{
	pthread_barrier_wait(&member->team->barrier);
}

void zd_member_need(int status)
{
	if (status)
		_exit(1);
}

void zd_member_check(const struct zd_member *member, int status, const zerod_client *client, const char *call)
{
	if (status)
		zd_member_need(zd_err_set(member->err, status, "%s: %s: %s", call, zerod_status_name(status),
		                          zerod_last_error(client)));
}

_Noreturn static void run_member(struct zd_team *team, unsigned index, pid_t parent,
                                 void (*fn)(const struct zd_member *member, void *arg), void *arg)
{
	/* A member does not outlive its parent, in whatever way the parent ends. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	zd_bench_child_signals();
	const struct zd_member member = {.team = team, .index = index, .err = &team->errors[index]};
	fn(&member, arg);
	_exit(0);
}

static void kill_members(struct zd_team *team)
{
	for (unsigned i = 0; i < team->count; i++)
		if (team->pids[i])
			kill(team->pids[i], SIGKILL);
	for (unsigned i = 0; i < team->count; i++) {
		while (team->pids[i] && waitpid(team->pids[i], NULL, 0) < 0 && errno == EINTR)
			continue;
		team->pids[i] = 0;
	}
}

/* A member whose peer has failed can end before the peer does. */
static unsigned find_cause(const struct zd_team *team, unsigned index)
{
	for (unsigned i = 0; i < team->count && team->errors[index].status == ZEROD_E_PEER_LOST; i++)
		if (team->errors[i].status && team->errors[i].status != ZEROD_E_PEER_LOST)
			return i;
	return index;
}

/* Translates a member's exit status into its error, or that of the peer that made it fail. 0: success. */
static int judge(struct zd_team *team, unsigned index, int wait_status, struct zd_err *err)
{
	if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0)
		return 0;
	index = find_cause(team, index);
	const struct zd_err *said = &team->errors[index];
	if (said->status)
		return zd_err_set(err, said->status, "process %u: %s", index, said->text);
	if (WIFSIGNALED(wait_status))
		return zd_err_set(err, ZEROD_E_SYSTEM, "process %u was ended by signal %d (%s)", index,
		                  WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
	return zd_err_set(err, ZEROD_E_SYSTEM, "process %u ended with exit code %d", index,
	                  WEXITSTATUS(wait_status));
}

/* Handles the end of a child. If the child is not a member but a private daemon, its end is a failure. The
 * owner of the daemon collects its status. */
static int take_end(struct zd_team *team, pid_t pid, struct zd_err *err)
{
	for (unsigned i = 0; i < team->count; i++) {
		int wait_status;
		if (team->pids[i] != pid)
			continue;
		if (waitpid(pid, &wait_status, 0) < 0)
			return zd_err_errno(err, errno, "cannot wait for process %u", i);
		team->pids[i] = 0;
		return judge(team, i, wait_status, err);
	}
	return zd_err_set(err, ZEROD_E_DISCONNECTED,
	                  "the private daemon ended in the middle of the measurement");
}

/* Waits for the next end of a child, or for a signal that ends the measurement. */
static int await_one(struct zd_team *team, struct zd_err *err)
{
	const sigset_t set = awaited_signals(true);
	for (;;) {
		siginfo_t ended = {0};
		if (zd_bench_interrupted())
			return zd_err_set(err, ZEROD_E_ABORTED, "interrupted");
		if (waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT | WNOHANG))
			return zd_err_errno(err, errno, "cannot wait for the ranks");
		if (ended.si_pid)
			return take_end(team, ended.si_pid, err);
		const int number = sigwaitinfo(&set, NULL);
		if (number > 0 && number != SIGCHLD)
			return zd_err_set(err, ZEROD_E_ABORTED, "interrupted");
	}
}

static bool any_left(const struct zd_team *team)
{
	for (unsigned i = 0; i < team->count; i++)
		if (team->pids[i])
			return true;
	return false;
}

static int init_barrier(struct zd_team *team)
{
	pthread_barrierattr_t attributes;
	pthread_barrierattr_init(&attributes);
	pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	int failure = pthread_barrier_init(&team->barrier, &attributes, team->count);
	pthread_barrierattr_destroy(&attributes);
	return failure;
}

int zd_team_run(unsigned count, void (*fn)(const struct zd_member *member, void *arg), void *arg,
                struct zd_err *err)
{
	struct zd_team *team = zd_shared_new(sizeof(*team), err);
	if (!team)
		return ZEROD_E_SYSTEM;
	team->count = count;
	int status = 0;
	int failure = init_barrier(team);
	if (failure)
		status = zd_err_errno(err, failure, "cannot create a barrier of %u processes", count);
	const pid_t parent = getpid();
	fflush(NULL); /* otherwise each child would also write the buffered output */
	for (unsigned i = 0; i < count && !status; i++) {
		pid_t pid = fork();
		if (pid == 0)
			run_member(team, i, parent, fn, arg);
		if (pid < 0)
			status = zd_err_errno(err, errno, "cannot fork process %u of %u", i, count);
		else
			team->pids[i] = pid;
	}
	while (!status && any_left(team))
		status = await_one(team, err);
	kill_members(team);
	zd_shared_free(team, sizeof(*team));
	return status;
}
