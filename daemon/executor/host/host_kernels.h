/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_kernels.h - the reduction on the CPU.
 *
 * For every element, in float32 and in this order, each step rounded:
 *     acc = 0;  for each input in order: acc = acc + input * prescale;  acc = acc * postscale;
 *     unless overwrite: acc = acc + target;  target = acc, rounded to nearest even in the target's dtype
 * A nan is stored as the one quiet nan of its dtype (0x7fc00000, 0x7fc0, 0x7e00), because the payload of
 * a sum of nans depends on the order of an instruction's operands.
 *
 * Statistics are of the stored values: the square of element i is added, in double, to partial sum i mod
 * ZD_HOST_REDUCE_SUMS, and the partial sums are added in order. Results are therefore equal bit by bit in
 * every run, with every instruction set, and for every division of the work into pieces.
 */
#ifndef ZD_EXECUTOR_HOST_KERNELS_H
#define ZD_EXECUTOR_HOST_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/command.h"

#define ZD_HOST_REDUCE_SUMS        16
#define ZD_HOST_REDUCE_BLOCK_NUMEL 1024u /* the partial results of a block remain in the L1 cache */

enum zd_host_isa {
	ZD_HOST_ISA_GENERIC, /* the compiler's target */
	ZD_HOST_ISA_AVX2,    /* x86-64 with AVX2 and F16C */
	ZD_HOST_ISA_AVX512,  /* and with AVX-512 F, BW and VL */
	ZD_HOST_NISAS
};

struct zd_host_reduce {
	uint64_t numel;
	enum zerod_dtype input_dtype;  /* a floating-point type */
	enum zerod_dtype target_dtype; /* float32, float16, bfloat16 */
	uint32_t ninputs;
	const void *const *inputs; /* numel elements each, aligned to their dtype */
	void *target;              /* as the inputs; can be one of them, but must not partly overlap one */
	float prescale, postscale;
	bool overwrite;
	enum zd_host_isa isa; /* must be supported */

	/* progress; initially zero */
	uint64_t done_numel;
	double sums[ZD_HOST_REDUCE_SUMS];
	bool overflow;
};

bool zd_host_isa_supported(enum zd_host_isa isa);
/* Returns the fastest instruction set of this machine. Cheap after the first call. */
enum zd_host_isa zd_host_isa_best(void);

/* Reduces the next `numel` elements, or the remaining ones if fewer. `numel` must be a multiple of
 * ZD_HOST_REDUCE_BLOCK_NUMEL. Returns true when all elements are done. */
bool zd_host_reduce_run(struct zd_host_reduce *reduce, uint64_t numel);
/* Returns the statistics of all elements that are done. */
struct zd_op_result zd_host_reduce_result(const struct zd_host_reduce *reduce);

#endif
