/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_check.h - what the checks of the library's kernels share: a GPU with the kernels loaded, and an
 * image, which is the same bytes on the GPU and twice on the CPU. A check fills it, lets the GPU and the CPU
 * work on it, and compares all of it: what was to be written, and that nothing else was.
 */
#ifndef ZD_TESTS_GPU_KERNELS_CHECK_H
#define ZD_TESTS_GPU_KERNELS_CHECK_H

#include "base/err.h"
#include "client/lib/compute/cuda_kernels.h"
#include "client/zerobench/cuda_gpu.h"

#define IMAGE_BYTES (48ull << 20)
#define SLOT_ALIGN  256u

struct checks {
	struct zd_gpu gpu;
	struct zc_kernels kernels;
	struct zd_gpu_memory memory; /* IMAGE_BYTES */
	uint8_t *wanted, *found;     /* the image on the CPU, and what was read back */
	uint64_t used;               /* of it */
	uint64_t random;
	struct zd_err err;
	char why[512]; /* of a check that failed */
};

/* Keeps the reason. Returns false. */
bool checks_fail(struct checks *checks, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* xorshift64*: the same numbers in every run. */
uint64_t checks_random(struct checks *checks);
/* Elements of a floating dtype: gradient-like numbers, or with `wild` any bits and special values. */
void checks_fill(struct checks *checks, enum zerod_dtype dtype, void *values, uint64_t numel, bool wild);

/* The next place in the image, and `skipped` elements behind an aligned address: its offset. */
uint64_t checks_place(struct checks *checks, enum zerod_dtype dtype, uint64_t numel, unsigned skipped);
zd_cu_ptr checks_on_gpu(const struct checks *checks, uint64_t place);
/* The image goes to the GPU; it comes back behind all that the GPU's stream has to do. */
bool checks_upload(struct checks *checks);
bool checks_download(struct checks *checks);
/* Whether both images are the same. Reports where they differ. */
bool checks_compare(struct checks *checks);

/* The checks print a line of TAP each. */
typedef bool check_fn(struct checks *checks);
bool check_reduce_pair(struct checks *checks, enum zerod_dtype input, enum zerod_dtype target);
bool check_cast_pair(struct checks *checks, enum zerod_dtype from, enum zerod_dtype to);
check_fn check_reduce_lanes, check_updates, check_refusals;

/* Prints bandwidths. */
bool measure_kernels(struct checks *checks);

#endif
