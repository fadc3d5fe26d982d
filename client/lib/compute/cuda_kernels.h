/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_kernels.h - the library's kernels on one GPU: casts, the sum of a reduce-scatter, and an optimizer's
 * update.
 *
 * The library loads them when it opens the GPU and never later, because loading can wait for the GPU's work.
 * A GPU without kernels serves all other calls. A call that needs a kernel returns the reason. A kernel runs
 * in the order of its stream. The stream must be of the context in which the kernels were loaded, and that
 * context must be current for all calls.
 */
#ifndef ZD_CLIENT_CUDA_KERNELS_H
#define ZD_CLIENT_CUDA_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include <zerod.h>

#include "base/err.h"
#include "client/kernels/kernels.h"
#include "client/lib/compute/cast.h"
#include "client/lib/compute/optimizer.h"
#include "driver/driver.h"

#define ZC_WIDE_DTYPES     3u /* float32, float16, bfloat16: cast from, and reduced into */
#define ZC_FLOATING_DTYPES 5u /* and the float8s: cast to, and reduced */

struct zc_kernels {
	const struct zd_cuda *driver;
	struct CUmod_st *module; /* NULL: they could not be loaded */
	/* By dtype less float32. NULL from a dtype to itself. */
	struct CUfunc_st *cast[ZC_WIDE_DTYPES][ZC_FLOATING_DTYPES];
	struct CUfunc_st *reduce[ZC_FLOATING_DTYPES][ZC_WIDE_DTYPES];
	struct CUfunc_st *update[ZC_UPDATE_KINDS][2]; /* of float32 masters, and of split ones */
	/* ADAM and SGD, from terms of float32, and of bfloat16 */
	struct CUfunc_st *of_terms[2][2][2];
	struct zd_err failure; /* UNSUPPORTED, quotes the driver; status 0 when they are loaded */
};

/*
 * The sum of a reduce-scatter. For every element, in float32 and in this order, each step rounded:
 *     acc = 0;  for each input in order: acc = acc + input * prescale;  acc = acc * postscale;
 *     unless overwrite: acc = acc + target;  target = acc, rounded to nearest even in the target's dtype
 * A nan is stored as the one quiet nan of its dtype. The target therefore has the same bits as the daemon's
 * sum by the CPU.
 *
 * Statistics are of the stored values. The squares are added in double, in an order that depends only on
 * numel and the inputs' dtype (kernels/kernels.h): equal in every run and on every GPU. The CPU's order
 * differs. The two sums therefore differ by less than numel * 2^-52 of their value. A sum that is nan can be
 * any nan.
 */
struct zc_reduce {
	enum zerod_dtype input_dtype;  /* a floating one */
	enum zerod_dtype target_dtype; /* float32, float16, bfloat16 */
	uint32_t ninputs;              /* 1 to ZC_REDUCE_MOST_INPUTS */
	const zd_cu_ptr *inputs;       /* numel elements each; read by the call */
	zd_cu_ptr target; /* as the inputs; can be one of them, but must not partly overlap one */
	uint64_t numel;
	float prescale, postscale;
	bool overwrite;
	uint32_t lane; /* below ZC_REDUCE_LANES; reductions of one lane run in order */
};

/* Loads the kernels for the GPU, which messages call `name`. Stores a failure in kernels->failure. */
void zc_kernels_load(const struct zd_cuda *driver, const char *name, struct zc_kernels *kernels);
/* Unloads the kernels, which must not be running. Can be called after a failed load. */
void zc_kernels_unload(struct zc_kernels *kernels);

/* Returns 0, or UNSUPPORTED with the reason why the GPU has no kernels. */
int zc_kernels_check(const struct zc_kernels *kernels, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Enqueues a conversion between different dtypes, with the same bits as zc_cast(). UNSUPPORTED (no kernels),
 * INVALID (an address is not aligned for its elements), NO_MEMORY, DEVICE. */
int zc_kernels_cast(const struct zc_kernels *kernels, struct CUstream_st *stream,
                    const struct zc_conversion *conversion, struct zd_err *err)
        __attribute__((warn_unused_result));
/* Enqueues the reduction. `result` is the address at which the stream stores a struct zc_reduce_result:
 * memory that the GPU may write, aligned to 8 bytes. Errors as above; UNSUPPORTED also for dtypes, LIMIT for
 * too many inputs. */
int zc_kernels_reduce(const struct zc_kernels *kernels, struct CUstream_st *stream,
                      const struct zc_reduce *reduce, zd_cu_ptr result, struct zd_err *err)
        __attribute__((warn_unused_result));

/* Enqueues an update, with the same bits as zc_update_run(). The arrays are aligned. Errors as above. */
int zc_kernels_update(const struct zc_kernels *kernels, struct CUstream_st *stream,
                      const struct zc_update *update, struct zd_err *err) __attribute__((warn_unused_result));

/* ---- cuda_fatbin.c ------------------------------------------------------------------------------------- */

/* Returns the kernels as machine code for the GPUs that the build supports, or NULL if the build had no CUDA
 * compiler. */
const void *zc_kernels_fatbin(void);

#endif
