// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_nccl.c - NCCL in the trainers, against which zerod is measured.
 *
 * From 2.28 on, NCCL can gather with copy engines, under its policy to use no SM, in memory of its own that
 * all ranks have registered as a symmetric window. The policy comes from the environment, which NCCL reads
 * once.
 */
#include "client/zerobench/cuda_gpu.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

#define COPY_ENGINES_SINCE 22800
#define WINDOW_SYMMETRIC   1
#define POLICY_ZERO        "2"
#define WINDOW_ALIGN_BYTES (2u << 20)

/* The functions that are needed only for copy engines. */
struct window_functions {
	int (*mem_alloc)(void **memory, size_t bytes);
	int (*mem_free)(void *memory);
	int (*register_window)(struct ncclComm *comm, void *memory, size_t bytes, void **window, int flags);
	int (*deregister_window)(struct ncclComm *comm, void *window);
};

struct zd_nccl_rank {
	const struct zd_nccl *nccl;
	struct ncclComm *comm;
	uint32_t rank;
	bool copy_engines;
	struct window_functions functions; /* only with copy engines, as are: */
	void *memory, *window;
	char version[384];
};

static int find_window_functions(struct zd_nccl_rank *rank, void *library, const char *where,
                                 struct zd_err *err)
{
	static const struct zd_library_function names[] = {
	        {"ncclMemAlloc", offsetof(struct window_functions, mem_alloc)},
	        {"ncclMemFree", offsetof(struct window_functions, mem_free)},
	        {"ncclCommWindowRegister", offsetof(struct window_functions, register_window)},
	        {"ncclCommWindowDeregister", offsetof(struct window_functions, deregister_window)},
	};
	if (rank->nccl->version < COPY_ENGINES_SINCE)
		return zd_err_set(err, ZEROD_E_UNSUPPORTED,
		                  "%s: its gathers use SMs; for copy engines 2.28 or newer is needed",
		                  rank->version);
	return zd_library_functions(library, where, names, ZD_ARRAY_LEN(names), &rank->functions, err);
}

int zd_nccl_rank_new(const char *path, bool copy_engines, struct zd_nccl_rank **rank, struct zd_err *err)
{
	static const char *const libraries[] = {"libnccl.so.2", NULL};
	const struct zd_nccl *nccl;
	struct zd_nccl_rank *made;
	char where[256];
	void *library;
	setenv("NCCL_NVLS_ENABLE", "0", 0);
	if (copy_engines)
		setenv("NCCL_CTA_POLICY", POLICY_ZERO, 1);
	int status = zd_library_load(libraries, path, &library, where, sizeof(where), err);
	if (!status)
		status = zd_nccl_load(where, &nccl, err);
	if (status)
		return status;
	made = zd_calloc(1, sizeof(*made));
	made->nccl = nccl;
	made->copy_engines = copy_engines;
	snprintf(made->version, sizeof(made->version), "NCCL %d.%d.%d%s, %s", nccl->version / 10000,
	         nccl->version % 10000 / 100, nccl->version % 100,
	         copy_engines ? " with copy engines (zero-CTA policy, symmetric windows)" : "", where);
	status = copy_engines ? find_window_functions(made, library, where, err) : 0;
	if (status)
		free(made);
	else
		*rank = made;
	return status;
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

int zd_nccl_rank_make_window(struct zd_nccl_rank *rank, uint64_t bytes, struct zd_err *err)
{
	const uint64_t room_bytes = zd_align_up(bytes, WINDOW_ALIGN_BYTES);
	if (!rank->copy_engines)
		return 0;
	int status = zd_nccl_err(rank->nccl, rank->functions.mem_alloc(&rank->memory, room_bytes), err,
	                         "ncclMemAlloc of %llu bytes", (unsigned long long)room_bytes);
	return status ? status
	              : zd_nccl_err(rank->nccl,
	                            rank->functions.register_window(rank->comm, rank->memory, room_bytes,
	                                                            &rank->window, WINDOW_SYMMETRIC),
	                            err, "ncclCommWindowRegister");
}

zd_cu_ptr zd_nccl_rank_place(const struct zd_nccl_rank *rank, zd_cu_ptr buffer)
{
	return rank->memory ? (zd_cu_ptr)(uintptr_t)rank->memory : buffer;
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
	if (rank->window)
		(void)rank->functions.deregister_window(rank->comm, rank->window);
	if (rank->memory)
		(void)rank->functions.mem_free(rank->memory);
	if (rank->comm)
		(void)rank->nccl->commDestroy(rank->comm);
	free(rank);
}
