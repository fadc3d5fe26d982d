/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl.h - NCCL, loaded at run time.
 *
 * As with the driver (driver.h), the build does not need NCCL's headers. This file declares the few types,
 * numbers and functions of NCCL's stable binary interface that zerod uses. If nccl.h exists,
 * tests/unit/driver/test_nccl.c compares each with it. Functions are called through the table,
 * `nccl->allGather(...)`, and return an ncclResult_t as int. Device addresses are declared as numbers here
 * and as pointers in nccl.h, which does not change the calling convention. zd_nccl_err() translates a result
 * into a status of zerod with NCCL's text.
 *
 * One thread at a time uses a communicator. A call of a nonblocking communicator can return
 * ZD_NCCL_IN_PROGRESS. Until commGetAsyncError() returns another result, only commGetAsyncError() and
 * commAbort() may be called.
 */
#ifndef ZD_DRIVER_NCCL_H
#define ZD_DRIVER_NCCL_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/driver.h"

struct zd_err;

/*
 * The oldest supported version, 2.24.3. In earlier versions, ranks of one process write directly into each
 * other's buffers, even if these are unregistered. After the communicator of a rank was aborted and its
 * memory was reused, the kernel of another rank could still write into its gathered buffer. Since 2.24.3,
 * data for unregistered buffers passes through NCCL's own buffers. All of the daemon's buffers are
 * unregistered. Only the kernels of a rank's own communicator then write into the rank's memory.
 */
#define ZD_NCCL_OLDEST      22403
#define ZD_NCCL_OLDEST_TEXT "2.24.3"

/* ---- Types --------------------------------------------------------------------------------------------- */

struct ncclComm;

/* A unique id; passed by value. */
struct zd_nccl_id {
	char bytes[128];
};

enum zd_nccl_result {
	ZD_NCCL_SUCCESS = 0,
	ZD_NCCL_UNHANDLED_CUDA_ERROR = 1,
	ZD_NCCL_SYSTEM_ERROR = 2,
	ZD_NCCL_INTERNAL_ERROR = 3,
	ZD_NCCL_INVALID_ARGUMENT = 4,
	ZD_NCCL_INVALID_USAGE = 5,
	ZD_NCCL_REMOTE_ERROR = 6,
	ZD_NCCL_IN_PROGRESS = 7,
};

enum zd_nccl_type {
	ZD_NCCL_INT8 = 0,
	ZD_NCCL_FLOAT16 = 6,
	ZD_NCCL_FLOAT32 = 7,
	ZD_NCCL_BFLOAT16 = 9,
};

#define ZD_NCCL_SUM 0 /* ncclRedOp_t */

#define ZD_NCCL_CONFIG_MAGIC 0xcafebeefu
#define ZD_NCCL_UNDEFINED    INT_MIN /* of a field: NCCL's default */

/*
 * The version of this configuration: 2.18.1, the first that has all of these fields. Newer versions of NCCL
 * read `size` bytes, and use their defaults for fields that are newer than `version`.
 */
#define ZD_NCCL_CONFIG_VERSION 21801

struct zd_nccl_config {
	size_t size;
	unsigned int magic, version;
	int blocking;
	int cga_cluster_size;
	int min_ctas, max_ctas;
	const char *net_name; /* NULL: NCCL's choice */
	int split_share;
};

#define ZD_NCCL_CONFIG                                                                                       \
	{                                                                                                    \
		.size = sizeof(struct zd_nccl_config), .magic = ZD_NCCL_CONFIG_MAGIC,                        \
		.version = ZD_NCCL_CONFIG_VERSION, .blocking = ZD_NCCL_UNDEFINED,                            \
		.cga_cluster_size = ZD_NCCL_UNDEFINED, .min_ctas = ZD_NCCL_UNDEFINED,                        \
		.max_ctas = ZD_NCCL_UNDEFINED, .net_name = NULL, .split_share = ZD_NCCL_UNDEFINED            \
	}

/* ---- Functions ----------------------------------------------------------------------------------------- */

/* F(member, NCCL's name, its arguments). Counts are of elements. If the ranks' parts form a whole, a count is
 * of one rank's part. */
#define ZD_NCCL_FUNCTIONS(F)                                                                                 \
	F(getVersion, ncclGetVersion, (int *version))                                                        \
	F(getUniqueId, ncclGetUniqueId, (struct zd_nccl_id * id))                                            \
	F(commInitRankConfig, ncclCommInitRankConfig,                                                        \
	  (struct ncclComm * *comm, int nranks, struct zd_nccl_id id, int rank,                              \
	   struct zd_nccl_config *config))                                                                   \
	F(commGetAsyncError, ncclCommGetAsyncError, (struct ncclComm * comm, int *result))                   \
	F(commFinalize, ncclCommFinalize, (struct ncclComm * comm))                                          \
	F(commDestroy, ncclCommDestroy, (struct ncclComm * comm))                                            \
	F(commAbort, ncclCommAbort, (struct ncclComm * comm))                                                \
	F(groupStart, ncclGroupStart, (void))                                                                \
	F(groupEnd, ncclGroupEnd, (void))                                                                    \
	F(allGather, ncclAllGather,                                                                          \
	  (zd_cu_ptr send, zd_cu_ptr receive, size_t count, int type, struct ncclComm *comm,                 \
	   struct CUstream_st *stream))                                                                      \
	F(reduceScatter, ncclReduceScatter,                                                                  \
	  (zd_cu_ptr send, zd_cu_ptr receive, size_t count, int type, int op, struct ncclComm *comm,         \
	   struct CUstream_st *stream))                                                                      \
	F(allReduce, ncclAllReduce,                                                                          \
	  (zd_cu_ptr send, zd_cu_ptr receive, size_t count, int type, int op, struct ncclComm *comm,         \
	   struct CUstream_st *stream))                                                                      \
	F(broadcast, ncclBroadcast,                                                                          \
	  (zd_cu_ptr send, zd_cu_ptr receive, size_t count, int type, int root, struct ncclComm *comm,       \
	   struct CUstream_st *stream))                                                                      \
	F(send, ncclSend,                                                                                    \
	  (zd_cu_ptr send, size_t count, int type, int peer, struct ncclComm *comm,                          \
	   struct CUstream_st *stream))                                                                      \
	F(receive, ncclRecv,                                                                                 \
	  (zd_cu_ptr receive, size_t count, int type, int peer, struct ncclComm *comm,                       \
	   struct CUstream_st *stream))

/* The same for functions that return a text. */
#define ZD_NCCL_TEXTS(F)                                                                                     \
	F(getErrorString, ncclGetErrorString, (int result))                                                  \
	F(getLastError, ncclGetLastError, (struct ncclComm * comm))

struct zd_nccl {
	/* 22809 is 2.28.9. */
	int version;
#define ZD_NCCL_MEMBER(member, name, args) int(*member) args;         /* NOLINT: a declarator */
#define ZD_NCCL_TEXT(member, name, args)   const char *(*member)args; /* NOLINT: a declarator */
	ZD_NCCL_FUNCTIONS(ZD_NCCL_MEMBER)
	ZD_NCCL_TEXTS(ZD_NCCL_TEXT)
#undef ZD_NCCL_TEXT
#undef ZD_NCCL_MEMBER
};

/*
 * Loads NCCL from the file `path`; NULL: libnccl.so.2, as the dynamic linker finds it. The first call that
 * succeeds decides for the process, and the library stays loaded; later calls return the same table for any
 * path. Thread-safe. Errors: NOT_FOUND with the linker's text; UNSUPPORTED (with the missing function, or
 * both versions, in the text); DEVICE with NCCL's text.
 */
int zd_nccl_load(const char *path, const struct zd_nccl **nccl, struct zd_err *err)
        __attribute__((warn_unused_result));

/*
 * Returns 0 for success. Otherwise sets `err` to "WHAT: TEXT", with NCCL's text for that result, and returns
 * its status: PEER_LOST for a remote error, SYSTEM for a system error, DEVICE for all others. NCCL's last
 * error is only logged. NCCL has one for the whole process. It can therefore be old, or of another user's
 * group, with addresses that clients must not see.
 */
int zd_nccl_err(const struct zd_nccl *nccl, int result, struct zd_err *err, const char *what, ...)
        __attribute__((format(printf, 4, 5), warn_unused_result));

#endif
