/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl.h - NCCL, loaded at run time.
 *
 * As with the driver (driver.h), nothing here needs NCCL's headers to build: the few types, numbers and
 * functions of its stable binary interface that zerod uses are declared below, and
 * tests/unit/driver/test_nccl.c compares each with nccl.h where there is one. Functions are called through
 * the table, `nccl->allGather(...)`, and give an ncclResult_t as int; addresses of devices are numbers here
 * and pointers there, which is the same to a call. zd_nccl_err() turns a result into one of ours with NCCL's
 * words for it.
 *
 * A communicator is used by one thread at a time. One that is nonblocking answers ZD_NCCL_IN_PROGRESS, and
 * takes no other call than commGetAsyncError() and commAbort() until commGetAsyncError() says something else.
 */
#ifndef ZD_DRIVER_NCCL_H
#define ZD_DRIVER_NCCL_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/driver.h"

struct zd_err;

/*
 * The oldest version that is used, 2.24.3. In those before it, ranks of one process write straight into each
 * other's buffers, also into ones that nobody has registered: a sibling's kernel could still write into the
 * gathered buffer of a rank whose communicator was aborted, when that memory has long been given on. Now what
 * is not registered, as nothing of the daemon's is, comes by way of NCCL's own buffers, and only the kernels
 * of a rank's own communicator write into its memory.
 */
#define ZD_NCCL_OLDEST      22403
#define ZD_NCCL_OLDEST_TEXT "2.24.3"

/* ---- Types --------------------------------------------------------------------------------------------- */

struct ncclComm;

/* Passed by value. */
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
 * The version whose configuration this is: 2.18.1, the first that has all of it. Newer ones read as many
 * bytes of it as its `size` says, and take their defaults for whatever came after its `version`.
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

/* F(member, NCCL's name, its arguments). Counts are of elements: of one rank's part where the parts of all
 * make a whole. */
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

/* The same for those that give a text. */
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
 * Loads NCCL from the file `path`, or libnccl.so.2 from where the dynamic linker looks if that is NULL. The
 * first call that succeeds decides for the process, and the library stays loaded; later ones give the same
 * table whatever their path. Threads may call it at the same time. Errors: NOT_FOUND with the linker's words;
 * UNSUPPORTED (a function that is missing, or both versions, in the text); DEVICE with NCCL's words.
 */
int zd_nccl_load(const char *path, const struct zd_nccl **nccl, struct zd_err *err)
        __attribute__((warn_unused_result));

/*
 * 0 for success. Else sets `err` to "WHAT: TEXT", TEXT being NCCL's for that result - PEER_LOST for a remote
 * error, SYSTEM for a system error, DEVICE for all others - and returns its status. NCCL's last error is
 * logged and not in `err`: there is one for the whole process, so that it may be an old one, or of another
 * user's group, with addresses that are none of a client's business.
 */
int zd_nccl_err(const struct zd_nccl *nccl, int result, struct zd_err *err, const char *what, ...)
        __attribute__((format(printf, 4, 5), warn_unused_result));

#endif
