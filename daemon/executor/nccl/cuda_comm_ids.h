/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_ids.h - unique ids for communicators. A separate process makes the ids of each request.
 *
 * The process that creates an id with NCCL listens for the ranks, with a thread and descriptors, until all of
 * them have connected. NCCL has no call that ends this. In the daemon, ids whose ranks never connect would
 * therefore accumulate. A child process therefore creates the ids of each request. It runs the daemon's own
 * program as zd_cuda_ids_main(). The daemon ends it when its ranks have used all of the ids, or when the
 * ranks' time to connect has expired. The child process also ends with the daemon.
 *
 * Not thread-safe: only cuda_comm_tasks calls these functions. Only deinit waits.
 */
#ifndef ZD_EXECUTOR_CUDA_COMM_IDS_H
#define ZD_EXECUTOR_CUDA_COMM_IDS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "base/err.h"
#include "executor/nccl/cuda_comm_local_ranks.h"

#define ZD_CUDA_IDS_PROGRAM_ARG "--unique-ids" /* argv[1] of the child process */
/* The number of requests whose ids can wait for their ranks at a time. */
#define ZD_CUDA_IDS_MOST         64u
#define ZD_CUDA_IDS_MOST_OF_USER 16u

/* A request for ids. */
struct zd_cuda_ids {
	LIST_ENTRY(zd_cuda_ids) link;
	void *arg; /* the caller's; NULL when the caller has received the result */
	uint32_t uid, count;
	pid_t pid;
	int to, from;                /* ends of pipes: the process runs while `to` is open */
	bool killed;                 /* SIGKILL was sent; the process is to be reaped */
	uint8_t *bytes;              /* the received bytes: the status, then the ids or a text */
	uint32_t room, used;         /* bytes: allocated, received */
	bool made;                   /* the result is known, success or failure */
	struct zd_err err;           /* the result, if `made` */
	struct zd_cuda_comm_id *ids; /* the ids, which the table of local ranks expects; NULL: not made */
	uint64_t deadline_ns;        /* for making the ids, and for the ranks to connect */
};

struct zd_cuda_id_makers {
	struct zd_cuda_comm_local_ranks *local_ranks;
	LIST_HEAD(, zd_cuda_ids) all;
};

void zd_cuda_ids_init(struct zd_cuda_id_makers *makers, struct zd_cuda_comm_local_ranks *local_ranks);
/* Kills all processes, and waits until they have ended. The caller must have taken all results. */
void zd_cuda_ids_deinit(struct zd_cuda_id_makers *makers);

/* Starts a process that creates `count` ids for a user. If the user, or the daemon, has too many requests,
 * the user's oldest one that no rank has used is ended. nccl_path can be NULL. Errors: LIMIT (too many
 * requests, and ranks use all of the user's), SYSTEM. */
int zd_cuda_ids_start(struct zd_cuda_id_makers *makers, const char *nccl_path, uint32_t uid, uint32_t count,
                      uint64_t deadline_ns, void *arg, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Reads the processes' output, and ends processes that are not needed any more. Returns whether ids are being
 * created. If so, the caller has to poll again, because no event wakes it. */
bool zd_cuda_ids_poll(struct zd_cuda_id_makers *makers, uint64_t now_ns);
/* Returns a request whose result has not been taken: `ids`, or NULL with the error in `err`. Returns NULL if
 * there is none. The caller sets `arg` to NULL and completes the request. */
struct zd_cuda_ids *zd_cuda_ids_take(struct zd_cuda_id_makers *makers);
/* Fails the requests whose ids are being made. */
void zd_cuda_ids_stop(struct zd_cuda_id_makers *makers, const struct zd_err *why);
/* Returns whether a process runs. If so, the caller has to call zd_cuda_ids_poll() from time to time. */
static inline bool zd_cuda_ids_any(const struct zd_cuda_id_makers *makers)
{
	return !LIST_EMPTY(&makers->all);
}

/* Runs the child process. `argv` starts after ZD_CUDA_IDS_PROGRAM_ARG: the number of ids, then NCCL's file if
 * it is not the default one. Writes the ids to standard output, and runs until standard input ends. Returns
 * an exit status. */
int zd_cuda_ids_main(int argc, char **argv);

#endif
