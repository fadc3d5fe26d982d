/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_comm_roster.h - who of a communicator's ranks is in this daemon.
 *
 * NCCL does not say for whom a rank waits, and waits for ever for one that came twice, or with another number
 * of ranks. What the daemon's own ranks say of themselves is known here, and is refused where it cannot fit
 * together.
 */
#ifndef ZD_BACKEND_CUDA_COMM_ROSTER_H
#define ZD_BACKEND_CUDA_COMM_ROSTER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "backend/cuda_comm_gate.h"
#include "core/engine.h"
#include "driver/nccl.h"

struct zd_err;

/* One rank; the caller's memory while it is in the roster. */
struct zd_cuda_comm_rank {
	LIST_ENTRY(zd_cuda_comm_rank) link;
	const char *group;
	struct zd_nccl_id id;
	uint32_t nranks, rank, device;
	struct zd_comm_world world;
};

/* What words call a rank of the communicator. */
static inline uint32_t zd_cuda_comm_world_rank(const struct zd_cuda_comm_rank *self, uint32_t rank)
{
	return self->world.first + rank * (1 + self->world.between);
}

/* An id that was made here; the caller's memory while the roster expects its ranks. */
struct zd_cuda_comm_id {
	LIST_ENTRY(zd_cuda_comm_id) link;
	struct zd_nccl_id id;
	bool waited; /* with it, by who has no room yet */
	bool used;   /* ranks have met with it, or one that was here has gone: nobody will come any more */
};

/* Of a daemon. Thread-safe. */
struct zd_cuda_comm_roster {
	struct zd_cuda_comm_gate gate;
	pthread_mutex_t lock; /* what follows */
	LIST_HEAD(, zd_cuda_comm_rank) ranks;
	LIST_HEAD(, zd_cuda_comm_id) expected;
};

void zd_cuda_comm_roster_init(struct zd_cuda_comm_roster *roster);
/* Nobody is in it. */
void zd_cuda_comm_roster_deinit(struct zd_cuda_comm_roster *roster);

/* Errors: EXISTS for a rank that is there already, or another one of the communicator on the same GPU;
 * MISMATCH for another number of ranks. */
int zd_cuda_comm_roster_add(struct zd_cuda_comm_roster *roster, struct zd_cuda_comm_rank *rank,
                            struct zd_err *err) __attribute__((warn_unused_result));
void zd_cuda_comm_roster_remove(struct zd_cuda_comm_roster *roster, struct zd_cuda_comm_rank *rank);
/* All ranks of its communicator have met. */
void zd_cuda_comm_roster_met(struct zd_cuda_comm_roster *roster, const struct zd_cuda_comm_rank *rank);

void zd_cuda_comm_roster_expect(struct zd_cuda_comm_roster *roster, struct zd_cuda_comm_id *ids,
                                uint32_t count);
void zd_cuda_comm_roster_forget(struct zd_cuda_comm_roster *roster, struct zd_cuda_comm_id *ids,
                                uint32_t count);
/* One that has no room yet has come with it. */
void zd_cuda_comm_roster_wait(struct zd_cuda_comm_roster *roster, const unsigned char *id);
/* Has a rank with one of them come, and not gone: others may be on their way. */
bool zd_cuda_comm_roster_are_waited_with(struct zd_cuda_comm_roster *roster,
                                         const struct zd_cuda_comm_id *ids, uint32_t count);
/* Are all of them used. */
bool zd_cuda_comm_roster_are_used(struct zd_cuda_comm_roster *roster, const struct zd_cuda_comm_id *ids,
                                  uint32_t count);

#define ZD_CUDA_COMM_RANKS_TEXT 200
/* "ranks 0 and 2": those of the communicator of that rank that are here. Returns `text`. */
const char *zd_cuda_comm_roster_text(struct zd_cuda_comm_roster *roster, const struct zd_cuda_comm_rank *rank,
                                     char text[ZD_CUDA_COMM_RANKS_TEXT]);

/* The same of those that are not. */
const char *zd_cuda_comm_roster_absent(struct zd_cuda_comm_roster *roster,
                                       const struct zd_cuda_comm_rank *rank,
                                       char text[ZD_CUDA_COMM_RANKS_TEXT]);

/* "rank 3", "ranks 1 and 3", "ranks 0, 2 and 3": those of the communicator of that rank that `is` names; cut
 * behind some, with how many more there are. "" if there is none. Returns `text`. */
const char *zd_cuda_comm_ranks_text(const struct zd_cuda_comm_rank *self,
                                    bool (*is)(const void *arg, uint32_t rank), const void *arg,
                                    char text[ZD_CUDA_COMM_RANKS_TEXT]);

#endif
