/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_comm_ids.c - unique ids for communicators, each request's made by a process of its own. */
#include "executor/nccl/cuda_comm_ids.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "proto/limits.h"

#define THIS_PROGRAM "/proc/self/exe"
#define TEXT_BYTES   sizeof(((struct zd_err *)0)->text)

/* The first word that the process writes: 0 or ZEROD_E_*. The ids follow, or an error text. */
typedef int32_t status_word;

void zd_cuda_ids_init(struct zd_cuda_id_makers *makers, struct zd_cuda_comm_local_ranks *local_ranks)
{
	*makers = (struct zd_cuda_id_makers){.local_ranks = local_ranks};
	LIST_INIT(&makers->all);
}

/* SIGKILL is sufficient, because the process owns only NCCL's thread and sockets for the ranks. */
static void end_ids(struct zd_cuda_id_makers *makers, struct zd_cuda_ids *ids)
{
	zd_assert(!ids->arg && !ids->killed);
	if (ids->ids)
		zd_cuda_comm_local_ranks_forget(makers->local_ranks, ids->ids, ids->count);
	(void)close(ids->to);
	(void)close(ids->from);
	(void)kill(ids->pid, SIGKILL);
	ids->killed = true;
}

static void forget(struct zd_cuda_ids *ids)
{
	LIST_REMOVE(ids, link);
	free(ids->ids);
	free(ids->bytes);
	free(ids);
}

void zd_cuda_ids_deinit(struct zd_cuda_id_makers *makers)
{
	struct zd_cuda_ids *ids, *next;
	for (ids = LIST_FIRST(&makers->all); ids; ids = next) {
		next = LIST_NEXT(ids, link);
		if (!ids->killed)
			end_ids(makers, ids);
		(void)waitpid(ids->pid, NULL, 0);
		forget(ids);
	}
}

/* ---- Starting ------------------------------------------------------------------------------------------ */

/* The user's oldest request that is answered and whose ids no rank of this daemon has used: its job ended
 * before the ranks could join. */
static struct zd_cuda_ids *find_stale(const struct zd_cuda_id_makers *makers, uint32_t uid)
{
	struct zd_cuda_ids *ids, *oldest = NULL;
	LIST_FOREACH (ids, &makers->all, link) {
		if (ids->uid == uid && !ids->killed && ids->ids && !ids->arg &&
		    !zd_cuda_comm_local_ranks_are_waited_with(makers->local_ranks, ids->ids, ids->count))
			oldest = ids;
	}
	return oldest;
}

static int make_room(struct zd_cuda_id_makers *makers, uint32_t uid, struct zd_err *err)
{
	struct zd_cuda_ids *ids, *stale;
	uint32_t all = 0, of_user = 0;
	LIST_FOREACH (ids, &makers->all, link) {
		all += !ids->killed;
		of_user += !ids->killed && ids->uid == uid;
	}
	if (all < ZD_CUDA_IDS_MOST && of_user < ZD_CUDA_IDS_MOST_OF_USER)
		return 0;
	stale = find_stale(makers, uid);
	if (!stale)
		return zd_err_set(err, ZEROD_E_LIMIT,
		                  "unique ids of %" PRIu32 " requests wait for their ranks, %" PRIu32
		                  " of uid %" PRIu32 "; at most %u, %u of one user",
		                  all, of_user, uid, ZD_CUDA_IDS_MOST, ZD_CUDA_IDS_MOST_OF_USER);
	end_ids(makers, stale);
	return 0;
}

struct pipes {
	int in[2], out[2];
};

static void close_pipe(int pipe[2])
{
	(void)close(pipe[0]);
	(void)close(pipe[1]);
}

static int open_pipes(struct pipes *pipes, struct zd_err *err)
{
	if (pipe2(pipes->in, O_CLOEXEC))
		return zd_err_errno(err, errno, "a pipe for unique ids");
	if (pipe2(pipes->out, O_CLOEXEC)) {
		int error = errno;
		close_pipe(pipes->in);
		return zd_err_errno(err, error, "a pipe for unique ids");
	}
	(void)fcntl(pipes->out[0], F_SETFL, O_NONBLOCK);
	return 0;
}

/* The process starts with no signal blocked or handled, whichever thread calls this. */
static int spawn(const struct pipes *pipes, char *const argv[], pid_t *pid)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none, all;
	(void)sigemptyset(&none);
	(void)sigfillset(&all);
	(void)posix_spawn_file_actions_init(&actions);
	(void)posix_spawn_file_actions_adddup2(&actions, pipes->in[0], STDIN_FILENO);
	(void)posix_spawn_file_actions_adddup2(&actions, pipes->out[1], STDOUT_FILENO);
	(void)posix_spawnattr_init(&attributes);
	(void)posix_spawnattr_setsigmask(&attributes, &none);
	(void)posix_spawnattr_setsigdefault(&attributes, &all);
	(void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	int rc = posix_spawn(pid, THIS_PROGRAM, &actions, &attributes, argv, environ);
	(void)posix_spawnattr_destroy(&attributes);
	(void)posix_spawn_file_actions_destroy(&actions);
	return rc;
}

int zd_cuda_ids_start(struct zd_cuda_id_makers *makers, const char *nccl_path, uint32_t uid, uint32_t count,
                      uint64_t deadline_ns, void *arg, struct zd_err *err)
{
	char name[] = "zerod", what[] = ZD_CUDA_IDS_PROGRAM_ARG, number[12];
	char *argv[] = {name, what, number, (char *)nccl_path, NULL};
	struct zd_cuda_ids *ids;
	struct pipes pipes;
	pid_t pid;
	int rc = make_room(makers, uid, err);
	if (!rc)
		rc = open_pipes(&pipes, err);
	if (rc)
		return rc;
	(void)snprintf(number, sizeof(number), "%" PRIu32, count);
	rc = spawn(&pipes, argv, &pid);
	(void)close(pipes.in[0]);
	(void)close(pipes.out[1]);
	if (rc) {
		(void)close(pipes.in[1]);
		(void)close(pipes.out[0]);
		return zd_err_errno(err, rc, "starting a process for unique ids");
	}
	ids = zd_calloc(1, sizeof(*ids));
	ids->arg = arg;
	ids->uid = uid;
	ids->count = count;
	ids->pid = pid;
	ids->to = pipes.in[1];
	ids->from = pipes.out[0];
	ids->deadline_ns = deadline_ns;
	ids->room =
	        (uint32_t)(sizeof(status_word) + zd_max_u64(count * sizeof(struct zd_nccl_id), TEXT_BYTES));
	ids->bytes = zd_calloc(1, ids->room);
	LIST_INSERT_HEAD(&makers->all, ids, link);
	return 0;
}

/* ---- Output of the processes --------------------------------------------------------------------------- */

static void failed(struct zd_cuda_ids *ids, int status, const char *text)
{
	(void)zd_err_set(&ids->err, status, "%s", text);
	ids->made = true;
}

/* Reads the status if it has arrived. Otherwise returns false. */
static bool has_status(const struct zd_cuda_ids *ids, status_word *status)
{
	if (ids->used < sizeof(*status))
		return false;
	memcpy(status, ids->bytes, sizeof(*status));
	return true;
}

/* The process has closed its end of the pipe. Its error text, if any, has therefore arrived completely. */
static void ended(struct zd_cuda_ids *ids)
{
	char text[TEXT_BYTES] = {0};
	status_word status;
	if (has_status(ids, &status) && status != 0) {
		memcpy(text, ids->bytes + sizeof(status),
		       zd_min_u64(ids->used - sizeof(status), sizeof(text) - 1));
		failed(ids, status < 0 ? status : ZEROD_E_SYSTEM, text);
		return;
	}
	failed(ids, ZEROD_E_SYSTEM, "the process that creates unique ids has ended");
}

static void note_ids_made(const struct zd_cuda_id_makers *makers, struct zd_cuda_ids *ids)
{
	ids->ids = zd_calloc(ids->count, sizeof(*ids->ids));
	for (uint32_t i = 0; i < ids->count; i++)
		memcpy(&ids->ids[i].id, ids->bytes + sizeof(status_word) + i * sizeof(ids->ids[i].id),
		       sizeof(ids->ids[i].id));
	zd_cuda_comm_local_ranks_expect(makers->local_ranks, ids->ids, ids->count);
	ids->made = true;
}

static void read_more(const struct zd_cuda_id_makers *makers, struct zd_cuda_ids *ids)
{
	status_word status;
	ssize_t got;
	do {
		got = read(ids->from, ids->bytes + ids->used, ids->room - ids->used);
		ids->used += got > 0 ? (uint32_t)got : 0;
	} while ((got > 0 && ids->used < ids->room) || (got < 0 && errno == EINTR));
	if (has_status(ids, &status) && status == 0 &&
	    ids->used >= sizeof(status) + ids->count * sizeof(struct zd_nccl_id))
		note_ids_made(makers, ids);
	else if (got == 0)
		ended(ids);
}

static bool is_needed(const struct zd_cuda_id_makers *makers, const struct zd_cuda_ids *ids, uint64_t now_ns)
{
	if (ids->arg)
		return true;
	return ids->ids && !zd_cuda_comm_local_ranks_are_used(makers->local_ranks, ids->ids, ids->count) &&
	       now_ns < ids->deadline_ns;
}

bool zd_cuda_ids_poll(struct zd_cuda_id_makers *makers, uint64_t now_ns)
{
	struct zd_cuda_ids *ids, *next;
	bool under_way = false;
	for (ids = LIST_FIRST(&makers->all); ids; ids = next) {
		next = LIST_NEXT(ids, link);
		if (!ids->made)
			read_more(makers, ids);
		if (!ids->made && now_ns >= ids->deadline_ns)
			failed(ids, ZEROD_E_SYSTEM, "NCCL has not created unique ids in time");
		under_way |= !ids->made;
		if (!ids->killed && !is_needed(makers, ids, now_ns))
			end_ids(makers, ids);
		if (ids->killed && waitpid(ids->pid, NULL, WNOHANG) != 0)
			forget(ids);
	}
	return under_way;
}

struct zd_cuda_ids *zd_cuda_ids_take(struct zd_cuda_id_makers *makers)
{
	struct zd_cuda_ids *ids;
	LIST_FOREACH (ids, &makers->all, link) {
		if (ids->made && ids->arg)
			break;
	}
	return ids;
}

void zd_cuda_ids_stop(struct zd_cuda_id_makers *makers, const struct zd_err *why)
{
	struct zd_cuda_ids *ids;
	LIST_FOREACH (ids, &makers->all, link) {
		if (!ids->made)
			failed(ids, why->status, why->text);
	}
}

/* ---- The program --------------------------------------------------------------------------------------- */

static bool write_all(int to, const void *bytes, size_t count)
{
	const char *at = bytes;
	while (count > 0) {
		ssize_t written = write(to, at, count);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return false;
		at += written;
		count -= (size_t)written;
	}
	return true;
}

/* Closes all descriptors of the daemon except the pipes and the log. NCCL writes to standard output, where
 * its messages would mix with the ids. Standard output therefore becomes the log. Returns a descriptor of the
 * pipe for the ids, or -1. */
static int take_output(void)
{
	(void)syscall(SYS_close_range, STDERR_FILENO + 1, ~0u, 0);
	int to = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	(void)setvbuf(stdout, NULL, _IOLBF, 0); /* the process may be killed at any time */
	return to >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0 ? to : -1;
}

/* Ends the process when the daemon closes its end of the pipe or exits, even while NCCL is busy. */
static void *end_with_input(void *unused)
{
	char byte;
	ssize_t got;
	do {
		got = read(STDIN_FILENO, &byte, 1);
	} while (got > 0 || (got < 0 && errno == EINTR));
	(void)unused;
	_exit(EXIT_SUCCESS);
}

static int make(uint32_t count, const char *path, struct zd_nccl_id *ids, struct zd_err *err)
{
	const struct zd_nccl *nccl;
	int rc = zd_nccl_load(path, &nccl, err);
	for (uint32_t i = 0; i < count && !rc; i++)
		rc = zd_nccl_err(nccl, nccl->getUniqueId(&ids[i]), err, "a unique id for a communicator");
	return rc;
}

int zd_cuda_ids_main(int argc, char **argv)
{
	static struct zd_nccl_id ids[ZD_MAX_UNIQUE_IDS];
	struct zd_err err = ZD_ERR_NONE;
	unsigned long count = argc > 0 ? strtoul(argv[0], NULL, 10) : 0;
	int to = take_output();
	pthread_t watcher;
	if (count == 0 || count > ZD_MAX_UNIQUE_IDS || to < 0 ||
	    pthread_create(&watcher, NULL, end_with_input, NULL))
		return EXIT_FAILURE;
	status_word status = make((uint32_t)count, argc > 1 ? argv[1] : NULL, ids, &err);
	bool good = write_all(to, &status, sizeof(status)) &&
	            (status ? write_all(to, err.text, strlen(err.text))
	                    : write_all(to, ids, count * sizeof(*ids)));
	if (status || !good)
		return EXIT_FAILURE;
	(void)pthread_join(watcher, NULL); /* never returns: the watcher calls _exit() */
	return EXIT_SUCCESS;
}
