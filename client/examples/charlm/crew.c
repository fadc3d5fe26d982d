/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.c - the processes of a run.
 *
 * Each worker is a fork with one packet socket to the launcher. The socket's end is also how the launcher
 * learns that a worker is gone, and a worker whose launcher is gone is ended by the kernel; so neither
 * outlives the other.
 */
#include "run.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zerod.h>

#define MAX_WORKERS 64

int charlm_tell(int channel, const struct charlm_message *message)
{
	ssize_t sent;
	do {
		sent = send(channel, message, sizeof(*message), MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)sizeof(*message) ? 0 : -1;
}

int charlm_pause(int channel)
{
	struct charlm_message message = {.kind = CHARLM_PAUSED};
	if (charlm_tell(channel, &message) != 0)
		return -1;
	char answer;
	ssize_t received;
	do {
		received = recv(channel, &answer, 1, 0);
	} while (received < 0 && errno == EINTR);
	return received == 1 ? 0 : -1;
}

/* ---- The worker's side --------------------------------------------------------------------------------- */

/* Never returns. */
static void live(const struct charlm_crew *crew, const struct charlm_worker *self, int channel,
                 pid_t launcher)
{
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != launcher)
		exit(EXIT_FAILURE);
	for (uint32_t i = 0; i < crew->count; i++)
		if (crew->workers[i].pid != 0)
			(void)close(crew->workers[i].channel);
	exit(self->work(self->plan, self->index, self->outcome, channel));
}

/* ---- The launcher's side ------------------------------------------------------------------------------- */

static int spawn(const struct charlm_crew *crew, struct charlm_worker *worker)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
		fprintf(stderr, "charlm: socketpair: %s\n", strerror(errno));
		return -ZEROD_E_SYSTEM;
	}
	(void)fflush(NULL); /* or the child prints what is buffered once more */
	pid_t launcher = getpid();
	pid_t pid = fork();
	if (pid == 0) {
		(void)close(ends[0]);
		live(crew, worker, ends[1], launcher);
	}
	(void)close(ends[1]);
	if (pid < 0) {
		fprintf(stderr, "charlm: fork: %s\n", strerror(errno));
		(void)close(ends[0]);
		return -ZEROD_E_SYSTEM;
	}
	worker->pid = pid;
	worker->channel = ends[0];
	worker->last = (struct charlm_message){0};
	return 0;
}

struct watch {
	struct charlm_crew *crew;
	int status;  /* of the first that failed */
	bool ending; /* the others were told to end */
};

static void fail(struct watch *watch, int status)
{
	if (watch->status == 0)
		watch->status = status;
	if (watch->ending)
		return;
	watch->ending = true;
	for (uint32_t i = 0; i < watch->crew->count; i++)
		if (watch->crew->workers[i].pid != 0)
			(void)kill(watch->crew->workers[i].pid, SIGTERM);
}

/* On a terminal the progress is a line without an end. */
static void begin_message(void)
{
	(void)fflush(stdout);
	fputs(isatty(STDOUT_FILENO) != 0 ? "\ncharlm: " : "charlm: ", stderr);
}

static void reap(struct watch *watch, struct charlm_worker *worker)
{
	int status = 0;
	while (waitpid(worker->pid, &status, 0) < 0 && errno == EINTR)
		;
	(void)close(worker->channel);
	worker->pid = 0;
	if (worker->last.kind == CHARLM_FAILED)
		return; /* said so already */
	if (WIFSIGNALED(status)) {
		if (watch->ending && WTERMSIG(status) == SIGTERM)
			return; /* by fail() */
		begin_message();
		fprintf(stderr, "%s %u was ended by signal %d (%s)\n", worker->title, worker->index,
		        WTERMSIG(status), strsignal(WTERMSIG(status)));
		fail(watch, 128 + WTERMSIG(status));
	} else if (worker->last.kind != CHARLM_DONE || WEXITSTATUS(status) != 0) {
		begin_message();
		fprintf(stderr, "%s %u ended early with status %d\n", worker->title, worker->index,
		        WEXITSTATUS(status));
		fail(watch, WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : EXIT_FAILURE);
	}
}

static void go_on_when_all_paused(struct watch *watch)
{
	struct charlm_crew *crew = watch->crew;
	for (uint32_t i = 0; i < crew->count; i++)
		if (crew->workers[i].last.kind != CHARLM_PAUSED)
			return;
	int status = crew->paused(crew->arg);
	if (status != 0) {
		fail(watch, status);
		return;
	}
	for (uint32_t i = 0; i < crew->count;
	     i++) /* one that is gone meanwhile is seen by its socket's end */
		(void)!send(crew->workers[i].channel, "", 1, MSG_NOSIGNAL);
}

static void hear(struct watch *watch, struct charlm_worker *worker)
{
	struct charlm_message message;
	ssize_t received = recv(worker->channel, &message, sizeof(message), 0);
	if (received < 0 && errno == EINTR)
		return;
	if (received != (ssize_t)sizeof(message)) {
		reap(watch, worker);
		return;
	}
	worker->last = message;
	if (message.kind == CHARLM_FAILED) {
		begin_message();
		fprintf(stderr, "%s %u: %s\n", worker->title, worker->index, message.text);
		fail(watch, message.status);
	} else if (message.kind == CHARLM_PAUSED) {
		go_on_when_all_paused(watch);
	} else if (watch->crew->heard != NULL) {
		watch->crew->heard(watch->crew->arg, watch->crew, worker);
	}
}

/* Waits for a message and hears all that have come. Returns false when no worker is left. */
static bool turn(struct watch *watch)
{
	struct charlm_crew *crew = watch->crew;
	struct pollfd polls[MAX_WORKERS];
	struct charlm_worker *running[MAX_WORKERS];
	nfds_t count = 0;
	for (uint32_t i = 0; i < crew->count; i++) {
		if (crew->workers[i].pid == 0)
			continue;
		running[count] = &crew->workers[i];
		polls[count++] = (struct pollfd){.fd = crew->workers[i].channel, .events = POLLIN};
	}
	if (count == 0)
		return false;
	if (poll(polls, count, -1) <= 0)
		return true; /* EINTR */
	for (nfds_t i = 0; i < count; i++)
		if (polls[i].revents != 0)
			hear(watch, running[i]);
	return true;
}

int charlm_crew_run(struct charlm_crew *crew)
{
	struct watch watch = {.crew = crew};
	if (crew->count > MAX_WORKERS)
		return -ZEROD_E_LIMIT;
	for (uint32_t i = 0; i < crew->count && watch.status == 0; i++) {
		int status = spawn(crew, &crew->workers[i]);
		if (status != 0)
			fail(&watch, status);
	}
	while (turn(&watch))
		;
	return watch.status;
}
