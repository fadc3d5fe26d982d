/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_comm_local_ranks.c - the ranks of each communicator that are in this daemon. */
#include "executor/nccl/cuda_comm_local_ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

#define MOST_NAMED 16u

void zd_cuda_comm_local_ranks_init(struct zd_cuda_comm_local_ranks *local_ranks)
{
	zd_cuda_gate_init(&local_ranks->gate);
	LIST_INIT(&local_ranks->ranks);
	LIST_INIT(&local_ranks->expected);
	pthread_mutex_init(&local_ranks->lock, NULL);
}

void zd_cuda_comm_local_ranks_deinit(struct zd_cuda_comm_local_ranks *local_ranks)
{
	zd_assert(LIST_EMPTY(&local_ranks->ranks) && LIST_EMPTY(&local_ranks->expected));
	pthread_mutex_destroy(&local_ranks->lock);
	zd_cuda_gate_deinit(&local_ranks->gate);
}

static bool same_comm(const struct zd_cuda_comm_rank *a, const struct zd_cuda_comm_rank *b)
{
	return memcmp(&a->id, &b->id, sizeof(a->id)) == 0;
}

/* Rejects a pair of ranks that cannot both belong to one communicator. */
static int check_rank(const struct zd_cuda_comm_rank *there, const struct zd_cuda_comm_rank *rank,
                      struct zd_err *err)
{
	if (there->nranks != rank->nranks)
		return zd_err_set(err, ZEROD_E_MISMATCH,
		                  "group '%s': rank %" PRIu32 " is one of %" PRIu32 ", rank %" PRIu32
		                  " with the same unique id one of %" PRIu32,
		                  rank->group, zd_cuda_comm_world_rank(there, there->rank), there->nranks,
		                  zd_cuda_comm_world_rank(rank, rank->rank), rank->nranks);
	if (there->rank == rank->rank)
		return zd_err_set(err, ZEROD_E_EXISTS,
		                  "group '%s': rank %" PRIu32 " already exists with the same unique id",
		                  rank->group, zd_cuda_comm_world_rank(rank, rank->rank));
	if (there->device == rank->device)
		return zd_err_set(err, ZEROD_E_EXISTS,
		                  "group '%s': ranks %" PRIu32 " and %" PRIu32 " on device %" PRIu32
		                  ": NCCL supports one rank per GPU",
		                  rank->group, zd_cuda_comm_world_rank(there, there->rank),
		                  zd_cuda_comm_world_rank(rank, rank->rank), rank->device);
	return 0;
}

int zd_cuda_comm_local_ranks_add(struct zd_cuda_comm_local_ranks *local_ranks, struct zd_cuda_comm_rank *rank,
                                 struct zd_err *err)
{
	const struct zd_cuda_comm_rank *there;
	int rc = 0;
	pthread_mutex_lock(&local_ranks->lock);
	LIST_FOREACH (there, &local_ranks->ranks, link) {
		if (!rc && same_comm(there, rank))
			rc = check_rank(there, rank, err);
	}
	if (!rc)
		LIST_INSERT_HEAD(&local_ranks->ranks, rank, link);
	pthread_mutex_unlock(&local_ranks->lock);
	return rc;
}

/* The caller holds the lock. */
static void use_id(struct zd_cuda_comm_local_ranks *local_ranks, const struct zd_nccl_id *id)
{
	struct zd_cuda_comm_id *expected;
	LIST_FOREACH (expected, &local_ranks->expected, link)
		expected->used |= memcmp(&expected->id, id, sizeof(*id)) == 0;
}

void zd_cuda_comm_local_ranks_remove(struct zd_cuda_comm_local_ranks *local_ranks,
                                     struct zd_cuda_comm_rank *rank)
{
	pthread_mutex_lock(&local_ranks->lock);
	LIST_REMOVE(rank, link);
	use_id(local_ranks, &rank->id);
	pthread_mutex_unlock(&local_ranks->lock);
}

void zd_cuda_comm_local_ranks_met(struct zd_cuda_comm_local_ranks *local_ranks,
                                  const struct zd_cuda_comm_rank *rank)
{
	pthread_mutex_lock(&local_ranks->lock);
	use_id(local_ranks, &rank->id);
	pthread_mutex_unlock(&local_ranks->lock);
}

void zd_cuda_comm_local_ranks_expect(struct zd_cuda_comm_local_ranks *local_ranks,
                                     struct zd_cuda_comm_id *ids, uint32_t count)
{
	pthread_mutex_lock(&local_ranks->lock);
	for (uint32_t i = 0; i < count; i++)
		LIST_INSERT_HEAD(&local_ranks->expected, &ids[i], link);
	pthread_mutex_unlock(&local_ranks->lock);
}

void zd_cuda_comm_local_ranks_forget(struct zd_cuda_comm_local_ranks *local_ranks,
                                     struct zd_cuda_comm_id *ids, uint32_t count)
{
	pthread_mutex_lock(&local_ranks->lock);
	for (uint32_t i = 0; i < count; i++)
		LIST_REMOVE(&ids[i], link);
	pthread_mutex_unlock(&local_ranks->lock);
}

void zd_cuda_comm_local_ranks_wait(struct zd_cuda_comm_local_ranks *local_ranks, const unsigned char *id)
{
	struct zd_cuda_comm_id *expected;
	pthread_mutex_lock(&local_ranks->lock);
	LIST_FOREACH (expected, &local_ranks->expected, link)
		expected->waited |= memcmp(&expected->id, id, sizeof(expected->id)) == 0;
	pthread_mutex_unlock(&local_ranks->lock);
}

bool zd_cuda_comm_local_ranks_are_waited_with(struct zd_cuda_comm_local_ranks *local_ranks,
                                              const struct zd_cuda_comm_id *ids, uint32_t count)
{
	const struct zd_cuda_comm_rank *rank;
	bool waited = false;
	pthread_mutex_lock(&local_ranks->lock);
	for (uint32_t i = 0; i < count; i++)
		waited |= ids[i].waited;
	LIST_FOREACH (rank, &local_ranks->ranks, link) {
		for (uint32_t i = 0; i < count; i++)
			waited |= memcmp(&rank->id, &ids[i].id, sizeof(rank->id)) == 0;
	}
	pthread_mutex_unlock(&local_ranks->lock);
	return waited;
}

bool zd_cuda_comm_local_ranks_are_used(struct zd_cuda_comm_local_ranks *local_ranks,
                                       const struct zd_cuda_comm_id *ids, uint32_t count)
{
	bool used = true;
	pthread_mutex_lock(&local_ranks->lock);
	for (uint32_t i = 0; i < count; i++)
		used &= ids[i].used;
	pthread_mutex_unlock(&local_ranks->lock);
	return used;
}

/* ---- Texts --------------------------------------------------------------------------------------------- */

struct lookup {
	struct zd_cuda_comm_local_ranks *local_ranks;
	const struct zd_cuda_comm_rank *rank;
};

static bool is_here(const void *arg, uint32_t rank)
{
	const struct lookup *lookup = arg;
	const struct zd_cuda_comm_rank *there;
	LIST_FOREACH (there, &lookup->local_ranks->ranks, link) {
		if (there->rank == rank && same_comm(there, lookup->rank))
			return true;
	}
	return false;
}

static bool is_absent(const void *arg, uint32_t rank)
{
	return !is_here(arg, rank);
}

static const char *format_ranks(struct zd_cuda_comm_local_ranks *local_ranks,
                                const struct zd_cuda_comm_rank *rank,
                                bool (*is)(const void *arg, uint32_t rank),
                                char text[ZD_CUDA_COMM_RANKS_TEXT])
{
	const struct lookup lookup = {local_ranks, rank};
	pthread_mutex_lock(&local_ranks->lock);
	(void)zd_cuda_comm_ranks_text(rank, is, &lookup, text);
	pthread_mutex_unlock(&local_ranks->lock);
	return text;
}

const char *zd_cuda_comm_local_ranks_text(struct zd_cuda_comm_local_ranks *local_ranks,
                                          const struct zd_cuda_comm_rank *rank,
                                          char text[ZD_CUDA_COMM_RANKS_TEXT])
{
	return format_ranks(local_ranks, rank, is_here, text);
}

const char *zd_cuda_comm_local_ranks_absent(struct zd_cuda_comm_local_ranks *local_ranks,
                                            const struct zd_cuda_comm_rank *rank,
                                            char text[ZD_CUDA_COMM_RANKS_TEXT])
{
	return format_ranks(local_ranks, rank, is_absent, text);
}

const char *zd_cuda_comm_ranks_text(const struct zd_cuda_comm_rank *self,
                                    bool (*is)(const void *arg, uint32_t rank), const void *arg,
                                    char text[ZD_CUDA_COMM_RANKS_TEXT])
{
	uint32_t nranks = self->nranks, count = 0, named = 0;
	for (uint32_t rank = 0; rank < nranks; rank++)
		count += is(arg, rank);
	size_t used = (size_t)snprintf(text, ZD_CUDA_COMM_RANKS_TEXT, "%s",
	                               count == 0 ? "" : (count == 1 ? "rank " : "ranks "));
	for (uint32_t rank = 0; rank < nranks && named < MOST_NAMED; rank++) {
		if (!is(arg, rank))
			continue;
		const char *before = named == 0 ? "" : (named + 1 == count ? " and " : ", ");
		used += (size_t)snprintf(text + used, ZD_CUDA_COMM_RANKS_TEXT - used, "%s%" PRIu32, before,
		                         zd_cuda_comm_world_rank(self, rank));
		named++;
	}
	if (named < count)
		(void)snprintf(text + used, ZD_CUDA_COMM_RANKS_TEXT - used, " and %" PRIu32 " more",
		               count - named);
	return text;
}
