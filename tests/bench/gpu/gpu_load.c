/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_load.c - a trainer's load: bf16 matrix products by cuBLAS, back to back on a stream of the lowest
 * priority. The operands are random: a product of zeros runs faster than real data does.
 */
#include "gpu_common.h"

#include <cublas_v2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct gpu_load {
	cublasHandle_t blas;
	CUstream stream;
	CUdeviceptr matrix[3];
	int side;
};

static void blas_must(cublasStatus_t status, const char *call)
{
	if (status == CUBLAS_STATUS_SUCCESS)
		return;
	fprintf(stderr, "%s: cuBLAS status %d\n", call, (int)status);
	_exit(1);
}

/* Values in [-0.5, 0.5), truncated to bf16. */
static void fill_random(CUdeviceptr at, size_t numel, uint64_t seed)
{
	uint16_t *values = malloc(numel * sizeof(*values));

	SYS_MUST(values ? 0 : -1);
	for (size_t i = 0; i < numel; i++) {
		float value = (float)(gpu_random(&seed) >> 40) / (float)(1 << 24) - 0.5f;
		uint32_t bits;

		memcpy(&bits, &value, sizeof(bits));
		values[i] = (uint16_t)(bits >> 16);
	}
	GPU_MUST(cuMemcpyHtoD(at, values, numel * sizeof(*values)));
	free(values);
}

struct gpu_load *gpu_load_new(int side)
{
	struct gpu_load *load = calloc(1, sizeof(*load));
	size_t numel = (size_t)side * (size_t)side;

	SYS_MUST(load ? 0 : -1);
	load->side = side;
	load->stream = gpu_stream(false);
	blas_must(cublasCreate(&load->blas), "cublasCreate");
	blas_must(cublasSetStream(load->blas, load->stream), "cublasSetStream");
	for (uint64_t i = 0; i < 3; i++)
		GPU_MUST(cuMemAlloc(&load->matrix[i], numel * sizeof(uint16_t)));
	fill_random(load->matrix[0], numel, 1);
	fill_random(load->matrix[1], numel, 2);
	gpu_load_queue(load, 5);
	gpu_load_finish(load);
	return load;
}

void gpu_load_queue(struct gpu_load *load, int products)
{
	const float one = 1, zero = 0;
	int side = load->side;

	for (int i = 0; i < products; i++)
		blas_must(cublasGemmEx(load->blas, CUBLAS_OP_N, CUBLAS_OP_N, side, side, side, &one,
		                       (void *)load->matrix[0], CUDA_R_16BF, side, (void *)load->matrix[1],
		                       CUDA_R_16BF, side, &zero, (void *)load->matrix[2], CUDA_R_16BF, side,
		                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
		          "cublasGemmEx");
}

void gpu_load_finish(struct gpu_load *load)
{
	GPU_MUST(cuStreamSynchronize(load->stream));
}
