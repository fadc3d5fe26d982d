/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h - the arguments of the kernels of kernels.cu, and the constants that both sides of a launch
 * share. The file is valid C and CUDA C++.
 *
 * Each kernel has one argument, a structure by value. Addresses are device memory, aligned for their
 * elements. A kernel's name has the dtypes that it reads and writes: zerod_cast_float32_bfloat16,
 * zerod_reduce_bfloat16_float32.
 */
#ifndef ZD_CLIENT_KERNELS_KERNELS_H
#define ZD_CLIENT_KERNELS_KERNELS_H

#include <stdint.h>

#define ZC_VECTOR_BYTES 16u /* largest load, if all addresses are aligned to it */
/* Elements of one load. A thread's registers could not hold the sums of more elements. */
#define ZC_VECTOR_NUMEL(element_bytes)                                                                       \
	(ZC_VECTOR_BYTES / (element_bytes) < 8u ? ZC_VECTOR_BYTES / (element_bytes) : 8u)
#define ZC_THREADS 1024u /* of a block */

/* ---- Casts --------------------------------------------------------------------------------------------- */

/* At most: as many threads as fit on the 132 multiprocessors of an H100 or H200. */
#define ZC_CAST_BLOCKS 264u

struct zc_cast_args {
	uint64_t from, to; /* must not overlap */
	uint64_t numel;
	uint32_t vectors; /* both are aligned to ZC_VECTOR_BYTES */
	uint32_t pad;
};

/* ---- Reductions ---------------------------------------------------------------------------------------- */

#define ZC_REDUCE_MOST_INPUTS 64u
#define ZC_REDUCE_PARTS       132u /* blocks at most, each with its sum of squares: one a multiprocessor */
#define ZC_REDUCE_LANES       8u   /* reductions that can run on one GPU at a time */

/*
 * The order of the squares depends only on numel and the inputs' dtype. ZC_VECTOR_NUMEL elements are a
 * vector. A chunk has one vector per thread of a block. Block (c mod ZC_REDUCE_PARTS) processes chunk c, and
 * thread v processes vector v of a chunk. The number of blocks is the number of chunks, at most
 * ZC_REDUCE_PARTS. A thread adds the squares of its elements in order. Then the sums are added in pairs, the
 * upper half to the lower half, until one remains: first of the 32 threads of each warp, then of the block's
 * 32 warps, then of the blocks, in the same order as the threads of a block.
 */
struct zc_reduce_args {
	uint64_t inputs[ZC_REDUCE_MOST_INPUTS]; /* the first ninputs */
	uint64_t target; /* can be one of the inputs, but must not partly overlap one */
	uint64_t result; /* struct zc_reduce_result */
	uint64_t numel;
	float prescale, postscale;
	uint32_t ninputs;
	uint32_t overwrite; /* 0: the sum is added to the target */
	uint32_t vectors;   /* inputs and target are aligned to ZC_VECTOR_BYTES */
	uint32_t lane;
};

/* The statistics of the stored values. */
struct zc_reduce_result {
	double sum_squares;
	uint64_t overflow; /* 1: an element is inf or nan */
};

/* ---- Updates by an optimizer --------------------------------------------------------------------------- */

#define ZC_UPDATE_THREADS 256u  /* of a block: more would leave a thread too few registers for its elements */
#define ZC_UPDATE_BLOCKS  1056u /* at most: 8 for each of the 132 multiprocessors */
#define ZC_UPDATE_NUMEL   8u    /* elements that a thread updates at once, if all addresses allow it */

/* The numbers of a step, for a rule. Numbers that a rule does not use have neutral values. */
struct zc_update_numbers {
	float lr;           /* Adam: over the correction of m */
	float keep;         /* AdamW: the factor of the master */
	float decay;        /* the part of the master that is added to the gradient */
	float beta1, rest1; /* rest: of the gradient; Adam's 1 - beta, SGD's 1 - dampening */
	float beta2, rest2;
	float root, eps; /* root: of the correction of v */
	float sign;      /* of the gradient: -1 to maximize */
	uint32_t nesterov, first;
};

struct zc_update_args {
	uint64_t shard, low; /* low 0: the shard is float32, and its own master */
	uint64_t m, v;       /* 0: not used by the rule */
	uint64_t values;     /* gradients, or masters; float32 */
	uint64_t numel;
	uint64_t scale, overflow; /* a float32 each; 0: none */
	struct zc_update_numbers numbers;
	uint32_t vectors; /* all are aligned to ZC_VECTOR_BYTES */
	uint32_t pad;
};

#define ZC_MOST_TERMS 64u

/* An update whose gradients are sums of terms: ((0 + term[0] * prescale) + ...) * postscale. */
struct zc_terms_args {
	struct zc_update_args update;  /* without values; `vectors` includes the terms */
	uint64_t terms[ZC_MOST_TERMS]; /* the first `count`, of `update.numel` elements each */
	float prescale, postscale;
	uint32_t count;
	uint32_t pad;
};

#endif
