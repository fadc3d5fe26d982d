/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_gpu.h - a GPU as a measuring process uses it: its primary context, a stream, memory, and marks that
 * report to the CPU how far a stream has proceeded.
 *
 * CUDA does not survive fork(): a process that opens a GPU must not fork afterwards, and its parent must not
 * have opened one before the fork. Functions return 0 or a status with its text, and expect the GPU's context
 * to be current. zd_gpu_open() makes it current for its thread.
 */
#ifndef ZD_BENCH_CUDA_GPU_H
#define ZD_BENCH_CUDA_GPU_H

#include <stdatomic.h>
#include <stdbool.h>

#include "driver/driver.h"
#include "driver/nccl.h"
#include "zerod.h"

struct zd_err;

#define ZD_GPU_MAX   16
#define ZD_GPU_MARKS 512 /* of a GPU: 64-bit counters in host memory, written by streams */

struct zd_gpu {
	const struct zd_cuda *cuda;
	int ordinal; /* as this process sees it */
	struct CUctx_st *context;
	struct CUstream_st *stream; /* non-blocking, of the highest priority */
	_Atomic uint64_t *marks;
	zd_cu_ptr marks_at;
};

/* Opens the GPU with the UUID `name`, as the daemon reports it. Errors: NOT_FOUND (with the GPUs that this
 * process sees), DEVICE. */
int zd_gpu_open(struct zd_gpu *gpu, const char *name, struct zd_err *err) __attribute__((warn_unused_result));
/* Opens the GPU with this number. */
int zd_gpu_open_ordinal(struct zd_gpu *gpu, int ordinal, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Closes the GPU. A zeroed struct is allowed. */
void zd_gpu_close(struct zd_gpu *gpu);
/* Makes the context current for another thread. */
int zd_gpu_enter(const struct zd_gpu *gpu, struct zd_err *err) __attribute__((warn_unused_result));

/* The number of GPUs and their UUIDs, read by a child process so that the caller can still fork. */
struct zd_gpu_list {
	uint32_t count;
	char names[ZD_GPU_MAX][ZD_CUDA_UUID_TEXT];
	uint64_t memory_bytes; /* of the smallest */
};
int zd_gpu_list(struct zd_gpu_list *list, struct zd_err *err) __attribute__((warn_unused_result));

/* Creates another non-blocking stream. */
int zd_gpu_stream(const struct zd_gpu *gpu, bool high_priority, struct CUstream_st **stream,
                  struct zd_err *err) __attribute__((warn_unused_result));

/* Appends a store of `value` into the mark to the stream. */
int zd_gpu_mark(const struct zd_gpu *gpu, struct CUstream_st *stream, unsigned mark, uint64_t value,
                struct zd_err *err) __attribute__((warn_unused_result));
/* Spins until the mark has reached `value`. Errors: DEADLINE after 30 s, DEVICE if the stream has failed
 * meanwhile. */
int zd_gpu_await(const struct zd_gpu *gpu, struct CUstream_st *stream, unsigned mark, uint64_t value,
                 struct zd_err *err) __attribute__((warn_unused_result));
int zd_gpu_synchronize(const struct zd_gpu *gpu, struct CUstream_st *stream, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Memory on the GPU. If ngpus is not 0, it is also mapped for GPUs 0..ngpus-1. */
struct zd_gpu_memory {
	zd_cu_memory handle;
	zd_cu_ptr at; /* 0: none */
	uint64_t bytes;
};
int zd_gpu_memory_new(const struct zd_gpu *gpu, uint64_t bytes, uint32_t ngpus, struct zd_gpu_memory *memory,
                      struct zd_err *err) __attribute__((warn_unused_result));
void zd_gpu_memory_free(const struct zd_gpu *gpu, struct zd_gpu_memory *memory);

/* Copies in the order of the GPU's stream, and waits for the copy. */
int zd_gpu_write(const struct zd_gpu *gpu, zd_cu_ptr to, const void *from, uint64_t bytes, struct zd_err *err)
        __attribute__((warn_unused_result));
int zd_gpu_read(const struct zd_gpu *gpu, void *to, zd_cu_ptr from, uint64_t bytes, struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- Libraries that are not the driver (cuda_library.c) ------------------------------------------------ */

/*
 * Loads the first of `names` (NULL at the end) that is found: only at `path` if that is given, otherwise in
 * the folders of the dynamic linker, under $CUDA_HOME and /usr/local/cuda*, and among the packages of the
 * Python in $PATH and in the usual places. Libraries remain loaded. `where` (at least 256 bytes) receives the
 * file's name. The text of NOT_FOUND lists the searched places.
 */
int zd_library_load(const char *const *names, const char *path, void **library, char *where,
                    size_t where_bytes, struct zd_err *err) __attribute__((warn_unused_result));

struct zd_library_function {
	const char *name;
	size_t offset; /* of the pointer in the caller's table */
};
/* Finds the functions. Errors: UNSUPPORTED, with the name of a missing function. */
int zd_library_functions(void *library, const char *where, const struct zd_library_function *functions,
                         size_t count, void *table, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- A trainer's load (cuda_gemm.c) -------------------------------------------------------------------- */

/*
 * Products of bf16 matrices by cuBLAS, back to back on a stream of the lowest priority. A measurement calls
 * zd_gemm_fill() before each piece of work, so that the GPU has products for the next few milliseconds. A
 * thread that launches them would contend for the driver's locks with the measured calls.
 */
struct zd_gemm;

int zd_gemm_new(const struct zd_gpu *gpu, uint32_t side, const char *cublas_path, struct zd_gemm **gemm,
                struct zd_err *err) __attribute__((warn_unused_result));
/* Waits for the queued products and frees the object. NULL is allowed. */
void zd_gemm_free(struct zd_gemm *gemm);
/* Queues products until there are enough. NULL is allowed. */
int zd_gemm_fill(struct zd_gemm *gemm, struct zd_err *err) __attribute__((warn_unused_result));
/* Runs products for half a second, so that the GPU's clocks are those of this load. NULL is allowed. */
int zd_gemm_settle(struct zd_gemm *gemm, struct zd_err *err) __attribute__((warn_unused_result));
/* Appends products to another stream of the GPU. */
int zd_gemm_append(struct zd_gemm *gemm, struct CUstream_st *stream, uint32_t products, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Whether a product is running. */
bool zd_gemm_runs(struct zd_gemm *gemm);
/* Waits for the queued products. */
int zd_gemm_finish(struct zd_gemm *gemm, struct zd_err *err) __attribute__((warn_unused_result));

#define ZD_GEMM_RUNS 20
/* Returns the number of products of a run. */
uint32_t zd_gemm_run_products(const struct zd_gemm *gemm);
/* Queues ZD_GEMM_RUNS runs of products with an event before and after each run. zd_gemm_timed_end() waits for
 * the events and returns the time of a product of each run, in ns. */
int zd_gemm_timed_begin(struct zd_gemm *gemm, struct zd_err *err) __attribute__((warn_unused_result));
int zd_gemm_timed_end(struct zd_gemm *gemm, uint64_t product_ns[ZD_GEMM_RUNS], struct zd_err *err)
        __attribute__((warn_unused_result));

/* ---- NCCL (cuda_nccl.c) -------------------------------------------------------------------------------- */

/* A rank's communicator of NCCL. */
struct zd_nccl_rank;

/* Loads NCCL. NVLink multicast is off unless NCCL_NVLS_ENABLE turns it on. `copy_engines`: gathers use no SM.
 * Errors: those of zd_library_load() and of zd_nccl_load(), and UNSUPPORTED for a version without copy
 * engines. */
int zd_nccl_rank_new(const char *path, bool copy_engines, struct zd_nccl_rank **rank, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns "2.28.9" and the file that NCCL was loaded from. */
const char *zd_nccl_rank_version(const struct zd_nccl_rank *rank);
/* Makes the unique id. Called by one rank, for all. */
int zd_nccl_rank_make_id(const struct zd_nccl_rank *rank, struct zd_nccl_id *id, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Connects the rank. Called by all ranks at once; the current context is that of the rank's GPU. */
int zd_nccl_rank_join(struct zd_nccl_rank *rank, const struct zd_nccl_id *id, uint32_t nranks, uint32_t index,
                      struct zd_err *err) __attribute__((warn_unused_result));

/* With copy engines, makes memory of so many bytes in which all ranks gather; otherwise does nothing. All
 * ranks call it, with the same number. */
int zd_nccl_rank_make_window(struct zd_nccl_rank *rank, uint64_t bytes, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Returns the address at which NCCL gathers the content of `buffer`: the buffer's, or that of its window. */
zd_cu_ptr zd_nccl_rank_place(const struct zd_nccl_rank *rank, zd_cu_ptr buffer);
/* Gathers in place: this rank's slice lies at index * slice_bytes of `buffer`. */
int zd_nccl_rank_all_gather(const struct zd_nccl_rank *rank, zd_cu_ptr buffer, uint64_t slice_bytes,
                            struct CUstream_st *stream, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Sums `numel` elements of all ranks, in place or not. float32, float16 or bfloat16. */
int zd_nccl_rank_all_reduce(const struct zd_nccl_rank *rank, zd_cu_ptr gradients, zd_cu_ptr sum,
                            uint64_t numel, enum zerod_dtype dtype, struct CUstream_st *stream,
                            struct zd_err *err) __attribute__((warn_unused_result));
/* Sums the slices of all ranks in `gradients`, and stores this rank's sums, `numel` elements, in `slice`. */
int zd_nccl_rank_reduce_scatter(const struct zd_nccl_rank *rank, zd_cu_ptr gradients, zd_cu_ptr slice,
                                uint64_t numel, enum zerod_dtype dtype, struct CUstream_st *stream,
                                struct zd_err *err) __attribute__((warn_unused_result));
/* Frees the communicator; NULL is allowed. */
void zd_nccl_rank_free(struct zd_nccl_rank *rank);

#endif
