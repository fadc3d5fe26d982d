/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_double.h - the inside of NCCL's double: communicators between threads and processes of one host, by
 * way of a file in shared memory that the unique id names. What a call asks for becomes moves between ranks;
 * a kernel on the driver's double makes them, in the order of its stream, and waits for its peers there, as a
 * kernel of NCCL's does.
 *
 * A communicator is its caller's, one thread at a time; a kernel looks at what is constant and at `aborted`.
 * It goes when its kernels have ended, or never where its GPU was lost under them. Where NCCL would hang, the
 * double does: with a rank that came twice, another number of ranks, or counts that differ.
 */
#ifndef ZD_DOUBLE_NCCL_DOUBLE_H
#define ZD_DOUBLE_NCCL_DOUBLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "driver/nccl.h"

#define NCCL_RANKS 16
#define NCCL_CHUNK ((size_t)64 << 10)

/* ---- The driver ---------------------------------------------------------------------------------------- */

/* The double's functions that are called, as the process has them already. */
struct nccl_driver {
	int (*ctxGetCurrent)(struct CUctx_st **context);
	int (*ctxPushCurrent)(struct CUctx_st *context);
	int (*ctxPopCurrent)(struct CUctx_st **context);
	int (*moduleLoadData)(struct CUmod_st **module, const void *image);
	int (*moduleUnload)(struct CUmod_st *module);
	int (*moduleGetFunction)(struct CUfunc_st **function, struct CUmod_st *module, const char *name);
	int (*streamQuery)(struct CUstream_st *stream);
	int (*launchKernel)(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
	                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
	                    struct CUstream_st *stream, void **params, void **extra);
};

/* ---- Ranks: nccl_ranks.c ------------------------------------------------------------------------------- */

/* From one rank to another: the sender fills it, the receiver empties it. */
struct nccl_channel {
	atomic_bool full;
	uint32_t bytes;
	char data[NCCL_CHUNK];
};

struct nccl_shared {
	atomic_uint users;
	atomic_uint nranks;  /* of whoever came first */
	atomic_uint arrived; /* bit i: rank i has */
	atomic_uint begun;   /* bit i: rank i has asked for an operation */
	atomic_bool broken;  /* they do not fit together */
	struct nccl_channel channels[NCCL_RANKS][NCCL_RANKS];
};

/* Of a new name; 0 or a result. */
int nccl_ranks_name(struct zd_nccl_id *id);
/* This rank arrives; NULL: the system has said no. */
struct nccl_shared *nccl_ranks_join(const struct zd_nccl_id *id, int nranks, int rank);
/* All have arrived: nobody needs the file's name any more. */
bool nccl_ranks_complete(struct nccl_shared *shared, const struct zd_nccl_id *id);
/* If they never were complete, the last one takes the name along. */
void nccl_ranks_leave(struct nccl_shared *shared, const struct zd_nccl_id *id);

/* ---- Communicators: nccl.c ----------------------------------------------------------------------------- */

enum nccl_pending { NCCL_NOTHING, NCCL_INIT, NCCL_LAUNCH, NCCL_FINALIZE };

struct nccl_work;

struct ncclComm {
	LIST_ENTRY(ncclComm) link;
	atomic_bool aborted;
	atomic_int async;    /* what went wrong; 0: nothing */
	atomic_uint kernels; /* that have not ended */
	atomic_uint running; /* of them, that have begun */
	struct nccl_driver driver;
	struct CUctx_st *context;
	struct CUmod_st *module;
	struct CUfunc_st *function;
	struct zd_nccl_id id;
	int nranks, rank;
	unsigned blocks;
	bool blocking, connected; /* as far as that is asked for */
	struct nccl_shared *shared;
	enum nccl_pending pending;
	unsigned polls;         /* for so many it stays pending */
	struct nccl_work *work; /* to be launched, or of the group that is open */
	struct CUstream_st *stream;
	STAILQ_HEAD(, nccl_work) works; /* launched */
};

/* ---- Moves: nccl_moves.c ------------------------------------------------------------------------------- */

struct nccl_move {
	bool sends;
	int peer;
	zd_cu_ptr at;
	size_t bytes, done;
	char *staged;
};

/* The sends and receives of a kernel. */
struct nccl_work {
	STAILQ_ENTRY(nccl_work) link;
	atomic_bool ended;
	struct ncclComm *comm;
	int sums; /* the type of what is received from all ranks and summed up; -1: it is not */
	int nmoves;
	struct nccl_move moves[2 * NCCL_RANKS];
};

struct nccl_work *nccl_work_new(struct ncclComm *comm);
void nccl_work_free(struct nccl_work *work);
void nccl_work_send(struct nccl_work *work, int peer, zd_cu_ptr at, size_t bytes);
void nccl_work_receive(struct nccl_work *work, int peer, zd_cu_ptr at, size_t bytes);
/* Bytes of an element; 0: the double does not know the type. */
size_t nccl_type_bytes(int type);

/* The program's text, as far as the driver's double looks at it. */
#define NCCL_KERNEL_NAME "zd_nccl"
#define NCCL_KERNEL_TEXT ".version 8.0\n.visible .entry " NCCL_KERNEL_NAME "()\n"

#endif
