/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_context.c - enters and leaves the contexts of the GPUs that a client has opened. */
#include "client/lib/segments/cuda_context.h"

int zc_cuda_enter(const struct zd_cuda *driver, struct CUctx_st *context, struct zc_cuda_scope *scope)
{
	scope->mode = ZD_CU_CAPTURE_RELAXED;
	(void)driver->threadExchangeStreamCaptureMode(&scope->mode);
	return zd_cuda_enter(driver, context, &scope->pushed);
}

void zc_cuda_enter_last(const struct zd_cuda *driver, struct CUctx_st *context, struct zc_cuda_scope *scope)
{
	int result = zc_cuda_enter(driver, context, scope);

	(void)result;
}

void zc_cuda_leave(const struct zd_cuda *driver, const struct zc_cuda_scope *scope)
{
	int mode = scope->mode;

	zd_cuda_leave(driver, scope->pushed);
	(void)driver->threadExchangeStreamCaptureMode(&mode);
}

struct zc_gpu *zc_gpu_find(struct zc_cuda *cuda, uint32_t index)
{
	for (unsigned i = 0; cuda && i < cuda->ngpus; i++)
		if (cuda->gpus[i].joined && cuda->gpus[i].index == index)
			return &cuda->gpus[i];
	return NULL;
}
