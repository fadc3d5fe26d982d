/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - float32 kernels whose results do not depend on how they are called: one order of summation
 * each. */
#ifndef CHARLM_KERNELS_H
#define CHARLM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* A matrix read by strides, so that a transpose costs nothing: element (i, j) is data[i * row + j *
 * column]. */
struct charlm_matrix {
	const float *data;
	size_t row, column;
};

/* Computes c = a * b: `c` is m x n and `b` is depth x n, both row-major. Each element of `c` is summed from 0
 * to depth-1. */
void charlm_matmul(struct charlm_matrix a, const float *b, size_t m, size_t n, size_t depth, float *c);

/* Stores the transpose of `in` (rows x columns) in `out` (columns x rows). */
void charlm_transpose(const float *in, size_t rows, size_t columns, float *out);

/* Computes out[j] = sum over i of in[i][j], from the first row to the last. */
void charlm_column_sums(const float *in, size_t rows, size_t columns, float *out);

/* Returns a hash of three numbers with 64 well-mixed bits: random access into a random sequence. */
uint64_t charlm_hash(uint64_t seed, uint64_t stream, uint64_t index);

#endif
