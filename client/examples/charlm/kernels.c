/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.c - the float32 kernels.
 *
 * The sharded run and its references are compared bit for bit, so what must hold here is that an element's
 * value depends on its inputs alone: it is summed in one accumulator in ascending order, whichever tile it
 * falls into. The compiler may vectorise over elements, but not reorder a sum (no -ffast-math), nor fuse a
 * multiply and an add in one place and not in another (-ffp-contract=off in the Makefile).
 */
#include "kernels.h"

#include <string.h>

#define TILE_ROWS    4
#define TILE_COLUMNS 8

/* rows x TILE_COLUMNS elements of c, in registers over the whole depth. Inlined, so that `rows` is a
 * constant. */
static inline __attribute__((always_inline)) void
tile(size_t rows, struct charlm_matrix a, const float *restrict b, size_t n, size_t depth, float *restrict c)
{
	float sums[TILE_ROWS][TILE_COLUMNS] = {{0}};
	for (size_t k = 0; k < depth; k++) {
		for (size_t i = 0; i < rows; i++) {
			float left = a.data[i * a.row + k * a.column];
			for (size_t j = 0; j < TILE_COLUMNS; j++)
				sums[i][j] += left * b[k * n + j];
		}
	}
	for (size_t i = 0; i < rows; i++)
		memcpy(c + i * n, sums[i], sizeof(sums[i]));
}

/* The columns right of the last whole tile. */
static void edge(struct charlm_matrix a, const float *restrict b, size_t columns, size_t n, size_t depth,
                 float *restrict c)
{
	for (size_t j = 0; j < columns; j++) {
		float sum = 0;
		for (size_t k = 0; k < depth; k++)
			sum += a.data[k * a.column] * b[k * n + j];
		c[j] = sum;
	}
}

void charlm_matmul(struct charlm_matrix a, const float *b, size_t m, size_t n, size_t depth, float *c)
{
	size_t whole = n - n % TILE_COLUMNS;
	size_t i = 0;
	for (; i + TILE_ROWS <= m; i += TILE_ROWS) {
		struct charlm_matrix rows = {a.data + i * a.row, a.row, a.column};
		for (size_t j = 0; j < whole; j += TILE_COLUMNS)
			tile(TILE_ROWS, rows, b + j, n, depth, c + i * n + j);
	}
	for (; i < m; i++) {
		struct charlm_matrix row = {a.data + i * a.row, a.row, a.column};
		for (size_t j = 0; j < whole; j += TILE_COLUMNS)
			tile(1, row, b + j, n, depth, c + i * n + j);
	}
	for (i = 0; whole < n && i < m; i++) {
		struct charlm_matrix row = {a.data + i * a.row, a.row, a.column};
		edge(row, b + whole, n - whole, n, depth, c + i * n + whole);
	}
}

void charlm_transpose(const float *restrict in, size_t rows, size_t columns, float *restrict out)
{
	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < columns; j++)
			out[j * rows + i] = in[i * columns + j];
}

void charlm_column_sums(const float *restrict in, size_t rows, size_t columns, float *restrict out)
{
	memset(out, 0, columns * sizeof(*out));
	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < columns; j++)
			out[j] += in[i * columns + j];
}

/* The finalizer of splitmix64. */
static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

uint64_t charlm_hash(uint64_t seed, uint64_t stream, uint64_t index)
{
	const uint64_t golden = 0x9e3779b97f4a7c15u;
	uint64_t x = mix(seed + golden);
	x = mix(x + (stream + 1) * golden);
	return mix(x + (index + 1) * golden);
}
