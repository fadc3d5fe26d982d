/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_ids.h - unique ids for communicators, made by processes of their own.
 *
 * Where NCCL has made an id it listens for the ranks, with a thread and descriptors, until all of them have
 * met, and has no call that ends this. Ids whose ranks never meet would add up for as long as the daemon
 * runs. So each request's are made by a process, the daemon's own program as zd_cuda_ids_main(), which ends
 * when this daemon's ranks have met with all of them, when the time that ranks have to meet is over, or with
 * the daemon.
 *
 * Not thread-safe: cuda_comm_tasks's own. Nothing here waits.
 */
#ifndef ZD_BACKEND_CUDA_COMM_IDS_H
#define ZD_BACKEND_CUDA_COMM_IDS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "backend/cuda_comm_roster.h"
#include "base/err.h"

#define ZD_CUDA_IDS_PROGRAM_ARG "--unique-ids" /* argv[1] of the program that makes them */
/* Requests whose ids may be waiting for their ranks at a time. */
#define ZD_CUDA_IDS_MOST         64u
#define ZD_CUDA_IDS_MOST_OF_USER 16u

/* Of one request. */
struct zd_cuda_ids {
	LIST_ENTRY(zd_cuda_ids) link;
	void *arg; /* the caller's; NULL once it has been told */
	uint32_t uid, count;
	pid_t pid;
	int to, from;                /* ends of pipes: while `to` is open the process stays */
	bool killed;                 /* and to be reaped */
	uint8_t *bytes;              /* what has come: how it went, then the ids or a text */
	uint32_t room, used;         /* of them */
	bool made;                   /* or it has failed */
	struct zd_err err;           /* then: status 0, or why */
	struct zd_cuda_comm_id *ids; /* that the roster expects; NULL: they are not made */
	uint64_t deadline_ns;        /* to be made, and for the ranks to meet */
};

struct zd_cuda_id_makers {
	struct zd_cuda_comm_roster *roster;
	LIST_HEAD(, zd_cuda_ids) all;
};

void zd_cuda_ids_init(struct zd_cuda_id_makers *makers, struct zd_cuda_comm_roster *roster);
/* Kills all processes, and waits until they are gone. Whoever asked has been told. */
void zd_cuda_ids_deinit(struct zd_cuda_id_makers *makers);

/* Begins to make `count` ids for a user, whose oldest make room where the user has too many; nccl_path may be
 * NULL. Errors: LIMIT (ranks wait with all of the user's, or there are too many of others), SYSTEM. */
int zd_cuda_ids_start(struct zd_cuda_id_makers *makers, const char *nccl_path, uint32_t uid, uint32_t count,
                      uint64_t deadline_ns, void *arg, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Reads what has come, and ends processes that nobody needs. True: some are being made, and only another call
 * will tell. */
bool zd_cuda_ids_poll(struct zd_cuda_id_makers *makers, uint64_t now_ns);
/* Some that are made, `ids`, or have failed, and whose asker has not been told; NULL: none. The caller takes
 * `arg` out, and tells. */
struct zd_cuda_ids *zd_cuda_ids_take(struct zd_cuda_id_makers *makers);
/* Those that are being made fail with these words. */
void zd_cuda_ids_stop(struct zd_cuda_id_makers *makers, const struct zd_err *why);
/* Is there a process: then zd_cuda_ids_poll() is to be called now and then. */
static inline bool zd_cuda_ids_any(const struct zd_cuda_id_makers *makers)
{
	return !LIST_EMPTY(&makers->all);
}

/* The program: `argv` is behind ZD_CUDA_IDS_PROGRAM_ARG: how many, and NCCL's file if it is not the usual
 * one. Writes them to standard output and stays until standard input ends. Returns an exit status. */
int zd_cuda_ids_main(int argc, char **argv);

#endif
