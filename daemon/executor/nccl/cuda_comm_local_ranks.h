/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_local_ranks.h - the ranks of each communicator that are in this daemon.
 *
 * NCCL does not report for which rank a rank waits. It also waits forever when a rank joins twice, or with
 * another number of ranks. The table knows the ranks of this daemon, and rejects ranks that conflict.
 */
#ifndef ZD_EXECUTOR_CUDA_COMM_LOCAL_RANKS_H
#define ZD_EXECUTOR_CUDA_COMM_LOCAL_RANKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "core/command.h"
#include "driver/nccl.h"
#include "executor/cuda/cuda_gate.h"

/* A rank of a communicator. The caller owns the memory, which must remain while the rank is in the table. */
struct zd_cuda_comm_rank {
	LIST_ENTRY(zd_cuda_comm_rank) link;
	const char *group;
	struct zd_nccl_id id;
	uint32_t nranks, rank, device;
	struct zd_comm_world world;
};

/* Returns the number that texts use for a rank of the communicator. */
static inline uint32_t zd_cuda_comm_world_rank(const struct zd_cuda_comm_rank *self, uint32_t rank)
{
	return self->world.first + rank * (1 + self->world.between);
}

/* An id that this daemon created. The caller owns the memory, which must remain while the table expects its
 * ranks. */
struct zd_cuda_comm_id {
	LIST_ENTRY(zd_cuda_comm_id) link;
	struct zd_nccl_id id;
	bool waited; /* a rank with this id waits for room on its GPU */
	bool used;   /* the ranks have connected, or one was removed: no other rank will use this id */
};

/* The daemon's table. Thread-safe. */
struct zd_cuda_comm_local_ranks {
	struct zd_cuda_gate gate;
	pthread_mutex_t lock; /* protects the lists */
	LIST_HEAD(, zd_cuda_comm_rank) ranks;
	LIST_HEAD(, zd_cuda_comm_id) expected;
};

void zd_cuda_comm_local_ranks_init(struct zd_cuda_comm_local_ranks *local_ranks);
/* Frees the table, whose lists must be empty. */
void zd_cuda_comm_local_ranks_deinit(struct zd_cuda_comm_local_ranks *local_ranks);

/* Adds the rank. Errors: EXISTS if the rank is already in the table, or another rank of the communicator is
 * on the same GPU; MISMATCH if the number of ranks differs. */
int zd_cuda_comm_local_ranks_add(struct zd_cuda_comm_local_ranks *local_ranks, struct zd_cuda_comm_rank *rank,
                                 struct zd_err *err) __attribute__((warn_unused_result));
void zd_cuda_comm_local_ranks_remove(struct zd_cuda_comm_local_ranks *local_ranks,
                                     struct zd_cuda_comm_rank *rank);
/* Called when all ranks of the rank's communicator have connected. */
void zd_cuda_comm_local_ranks_met(struct zd_cuda_comm_local_ranks *local_ranks,
                                  const struct zd_cuda_comm_rank *rank);

void zd_cuda_comm_local_ranks_expect(struct zd_cuda_comm_local_ranks *local_ranks,
                                     struct zd_cuda_comm_id *ids, uint32_t count);
void zd_cuda_comm_local_ranks_forget(struct zd_cuda_comm_local_ranks *local_ranks,
                                     struct zd_cuda_comm_id *ids, uint32_t count);
/* Records that a rank with this id waits for room on its GPU. */
void zd_cuda_comm_local_ranks_wait(struct zd_cuda_comm_local_ranks *local_ranks, const unsigned char *id);
/* Returns whether a rank with one of the ids has joined or waited for room. Others can then follow. */
bool zd_cuda_comm_local_ranks_are_waited_with(struct zd_cuda_comm_local_ranks *local_ranks,
                                              const struct zd_cuda_comm_id *ids, uint32_t count);
/* Returns whether all of the ids are used. */
bool zd_cuda_comm_local_ranks_are_used(struct zd_cuda_comm_local_ranks *local_ranks,
                                       const struct zd_cuda_comm_id *ids, uint32_t count);

#define ZD_CUDA_COMM_RANKS_TEXT 200
/* Writes the communicator's ranks that are in this daemon: "ranks 0 and 2". Returns `text`. */
const char *zd_cuda_comm_local_ranks_text(struct zd_cuda_comm_local_ranks *local_ranks,
                                          const struct zd_cuda_comm_rank *rank,
                                          char text[ZD_CUDA_COMM_RANKS_TEXT]);

/* Writes the ranks that are not in this daemon. */
const char *zd_cuda_comm_local_ranks_absent(struct zd_cuda_comm_local_ranks *local_ranks,
                                            const struct zd_cuda_comm_rank *rank,
                                            char text[ZD_CUDA_COMM_RANKS_TEXT]);

/* Writes the communicator's ranks for which `is` returns true: "rank 3", "ranks 0, 2 and 3". A long list ends
 * with the number of further ranks. "" if there is none. Returns `text`. */
const char *zd_cuda_comm_ranks_text(const struct zd_cuda_comm_rank *self,
                                    bool (*is)(const void *arg, uint32_t rank), const void *arg,
                                    char text[ZD_CUDA_COMM_RANKS_TEXT]);

#endif
