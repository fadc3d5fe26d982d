// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_nccl.c - NCCL inside the trainers, loaded at run time: what zerod is measured against.
 */
#include "client/zerobench/cuda_gpu.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

#define NCCL_INT8 0 /* ncclDataType_t */

struct nccl_comm;

struct functions {
	int (*getVersion)(int *version);
	int (*getUniqueId)(struct zd_nccl_id *id);
	int (*commInitRank)(struct nccl_comm **comm, int nranks, struct zd_nccl_id id, int rank);
	int (*commDestroy)(struct nccl_comm *comm);
	int (*allGather)(const void *send, void *receive, size_t count, int dtype, struct nccl_comm *comm,
	                 struct CUstream_st *stream);
	const char *(*getErrorString)(int result);
	const char *(*getLastError)(struct nccl_comm *comm);
};

static const struct zd_library_function names[] = {
        {"ncclGetVersion", offsetof(struct functions, getVersion)},
        {"ncclGetUniqueId", offsetof(struct functions, getUniqueId)},
        {"ncclCommInitRank", offsetof(struct functions, commInitRank)},
        {"ncclCommDestroy", offsetof(struct functions, commDestroy)},
        {"ncclAllGather", offsetof(struct functions, allGather)},
        {"ncclGetErrorString", offsetof(struct functions, getErrorString)},
        {"ncclGetLastError", offsetof(struct functions, getLastError)},
};

struct zd_nccl {
	struct functions call;
	struct nccl_comm *comm;
	uint32_t rank;
	char version[320];
};

static int nccl_status(const struct zd_nccl *nccl, int result, struct zd_err *err, const char *call)
{
	if (result == 0)
		return 0;
	return zd_err_set(err, ZEROD_E_DEVICE, "%s: %s; %s", call, nccl->call.getErrorString(result),
	                  nccl->call.getLastError(nccl->comm));
}

static int ask_version(struct zd_nccl *nccl, const char *where, struct zd_err *err)
{
	int version = 0;
	int status = nccl_status(nccl, nccl->call.getVersion(&version), err, "ncclGetVersion");
	snprintf(nccl->version, sizeof(nccl->version), "NCCL %d.%d.%d, %s", version / 10000,
	         version % 10000 / 100, version % 100, where);
	return status;
}

int zd_nccl_new(const char *path, struct zd_nccl **nccl, struct zd_err *err)
{
	static const char *const libraries[] = {"libnccl.so.2", NULL};
	char where[256];
	void *library;
	struct zd_nccl *made = zd_calloc(1, sizeof(*made));
	setenv("NCCL_NVLS_ENABLE", "0", 0);
	int status = zd_library_load(libraries, path, &library, where, sizeof(where), err);
	if (!status)
		status = zd_library_functions(library, where, names, ZD_ARRAY_LEN(names), &made->call, err);
	if (!status)
		status = ask_version(made, where, err);
	if (status) {
		free(made);
		return status;
	}
	*nccl = made;
	return 0;
}

const char *zd_nccl_version(const struct zd_nccl *nccl)
{
	return nccl->version;
}

int zd_nccl_make_id(const struct zd_nccl *nccl, struct zd_nccl_id *id, struct zd_err *err)
{
	return nccl_status(nccl, nccl->call.getUniqueId(id), err, "ncclGetUniqueId");
}

int zd_nccl_join(struct zd_nccl *nccl, const struct zd_nccl_id *id, uint32_t nranks, uint32_t rank,
                 struct zd_err *err)
{
	nccl->rank = rank;
	return nccl_status(nccl, nccl->call.commInitRank(&nccl->comm, (int)nranks, *id, (int)rank), err,
	                   "ncclCommInitRank");
}

int zd_nccl_all_gather(const struct zd_nccl *nccl, zd_cu_ptr buffer, uint64_t slice_bytes,
                       struct CUstream_st *stream, struct zd_err *err)
{
	char *whole = (char *)buffer; /* NOLINT(performance-no-int-to-ptr): NCCL wants it so */
	return nccl_status(nccl,
	                   nccl->call.allGather(whole + nccl->rank * slice_bytes, whole, slice_bytes,
	                                        NCCL_INT8, nccl->comm, stream),
	                   err, "ncclAllGather");
}

void zd_nccl_free(struct zd_nccl *nccl)
{
	if (!nccl)
		return;
	if (nccl->comm)
		(void)nccl->call.commDestroy(nccl->comm);
	free(nccl);
}
