// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_nccl.c - NCCL inside the trainers: what zerod is measured against.
 */
#include "client/zerobench/cuda_gpu.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

struct zd_nccl_rank {
	const struct zd_nccl *nccl;
	struct ncclComm *comm;
	uint32_t rank;
	char version[320];
};

int zd_nccl_rank_new(const char *path, struct zd_nccl_rank **rank, struct zd_err *err)
{
	static const char *const libraries[] = {"libnccl.so.2", NULL};
	const struct zd_nccl *nccl;
	struct zd_nccl_rank *made;
	char where[256];
	void *library;
	setenv("NCCL_NVLS_ENABLE", "0", 0);
	int status = zd_library_load(libraries, path, &library, where, sizeof(where), err);
	if (!status)
		status = zd_nccl_load(where, &nccl, err);
	if (status)
		return status;
	made = zd_calloc(1, sizeof(*made));
	made->nccl = nccl;
	snprintf(made->version, sizeof(made->version), "NCCL %d.%d.%d, %s", nccl->version / 10000,
	         nccl->version % 10000 / 100, nccl->version % 100, where);
	*rank = made;
	return 0;
}

const char *zd_nccl_rank_version(const struct zd_nccl_rank *rank)
{
	return rank->version;
}

int zd_nccl_rank_make_id(const struct zd_nccl_rank *rank, struct zd_nccl_id *id, struct zd_err *err)
{
	return zd_nccl_err(rank->nccl, rank->nccl->getUniqueId(id), err, "ncclGetUniqueId");
}

int zd_nccl_rank_join(struct zd_nccl_rank *rank, const struct zd_nccl_id *id, uint32_t nranks, uint32_t index,
                      struct zd_err *err)
{
	struct zd_nccl_config config = ZD_NCCL_CONFIG;
	config.blocking = 1;
	rank->rank = index;
	return zd_nccl_err(rank->nccl,
	                   rank->nccl->commInitRankConfig(&rank->comm, (int)nranks, *id, (int)index, &config),
	                   err, "ncclCommInitRankConfig");
}

int zd_nccl_rank_all_gather(const struct zd_nccl_rank *rank, zd_cu_ptr buffer, uint64_t slice_bytes,
                            struct CUstream_st *stream, struct zd_err *err)
{
	return zd_nccl_err(rank->nccl,
	                   rank->nccl->allGather(buffer + rank->rank * slice_bytes, buffer, slice_bytes,
	                                         ZD_NCCL_INT8, rank->comm, stream),
	                   err, "ncclAllGather");
}

static int type_of(enum zerod_dtype dtype)
{
	return dtype == ZEROD_FLOAT32   ? ZD_NCCL_FLOAT32
	       : dtype == ZEROD_FLOAT16 ? ZD_NCCL_FLOAT16
	                                : ZD_NCCL_BFLOAT16;
}

int zd_nccl_rank_all_reduce(const struct zd_nccl_rank *rank, zd_cu_ptr gradients, zd_cu_ptr sum,
                            uint64_t numel, enum zerod_dtype dtype, struct CUstream_st *stream,
                            struct zd_err *err)
{
	return zd_nccl_err(
	        rank->nccl,
	        rank->nccl->allReduce(gradients, sum, numel, type_of(dtype), ZD_NCCL_SUM, rank->comm, stream),
	        err, "ncclAllReduce");
}

int zd_nccl_rank_reduce_scatter(const struct zd_nccl_rank *rank, zd_cu_ptr gradients, zd_cu_ptr slice,
                                uint64_t numel, enum zerod_dtype dtype, struct CUstream_st *stream,
                                struct zd_err *err)
{

	return zd_nccl_err(rank->nccl,
	                   rank->nccl->reduceScatter(gradients, slice, numel, type_of(dtype), ZD_NCCL_SUM,
	                                             rank->comm, stream),
	                   err, "ncclReduceScatter");
}

void zd_nccl_rank_free(struct zd_nccl_rank *rank)
{
	if (!rank)
		return;
	if (rank->comm)
		(void)rank->nccl->commDestroy(rank->comm);
	free(rank);
}
