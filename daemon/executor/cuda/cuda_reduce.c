/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_reduce.c - a reduction of GPU memory, summed by the CPU. */
#include "executor/cuda/cuda_reduce.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "executor/host/host_kernels.h"

/* At least a block of each of ZD_MAX_WORLD inputs and of the target; with few inputs, much larger pieces. */
#define STAGING_BYTES (32ull << 20)
_Static_assert((ZD_MAX_WORLD + 1ull) * ZD_HOST_REDUCE_BLOCK_NUMEL * sizeof(float) <= STAGING_BYTES,
               "every world can be reduced");

/* A piece of the reduction: elements `first` to `first + numel`. The staging memory holds it input after
 * input, then the target. input_each and target_each: bytes of an element. */
struct piece {
	uint64_t first, numel;
	uint64_t input_each, target_each;
};

static uint8_t *input_at(const struct zd_cuda_reducer *reducer, const struct piece *piece, uint32_t input)
{
	return reducer->staging + input * piece->numel * piece->input_each;
}

static int make_staging(struct zd_cuda_reducer *reducer, struct zd_err *err)
{
	void *at = NULL;
	if (reducer->staging)
		return 0;
	int rc = zd_cuda_device_err(
	        reducer->device,
	        reducer->device->cuda->memHostAlloc(&at, STAGING_BYTES, ZD_CU_HOST_ALLOC_PORTABLE), err,
	        "pinned memory for reductions");
	if (!rc)
		reducer->staging = at;
	return rc;
}

void zd_cuda_reducer_deinit(struct zd_cuda_reducer *reducer)
{
	if (reducer->staging)
		(void)reducer->device->cuda->memFreeHost(reducer->staging);
	reducer->staging = NULL;
}

static int wait(const struct zd_cuda_reducer *reducer, struct zd_err *err)
{
	return zd_cuda_device_err(reducer->device, reducer->device->cuda->streamSynchronize(reducer->stream),
	                          err, "a reduction's copies");
}

static int fetch(const struct zd_cuda_reducer *reducer, const struct zd_cuda_task *task,
                 const struct piece *piece, struct zd_err *err)
{
	const struct zd_cuda *cuda = reducer->device->cuda;
	uint32_t ninputs = task->u.reduce.desc.ninputs;
	int result = 0;
	for (uint32_t i = 0; i < ninputs && !result; i++)
		result = cuda->memcpyDtoHAsync(input_at(reducer, piece, i),
		                               task->u.reduce.inputs[i] + piece->first * piece->input_each,
		                               piece->numel * piece->input_each, reducer->stream);
	if (!result && !task->u.reduce.desc.overwrite)
		result = cuda->memcpyDtoHAsync(input_at(reducer, piece, ninputs),
		                               task->u.reduce.target + piece->first * piece->target_each,
		                               piece->numel * piece->target_each, reducer->stream);
	/* Also after an error: no copy may write into the staging memory once it is reused. */
	int rc = zd_cuda_device_err(reducer->device, result, err, "fetching a reduction's inputs");
	struct zd_err ignored;
	int waited = wait(reducer, rc ? &ignored : err);
	return rc ? rc : waited;
}

static int put_back(const struct zd_cuda_reducer *reducer, const struct zd_cuda_task *task,
                    const struct piece *piece, struct zd_err *err)
{
	int rc = zd_cuda_device_err(reducer->device,
	                            reducer->device->cuda->memcpyHtoDAsync(
	                                    task->u.reduce.target + piece->first * piece->target_each,
	                                    input_at(reducer, piece, task->u.reduce.desc.ninputs),
	                                    piece->numel * piece->target_each, reducer->stream),
	                            err, "storing a reduction's result");
	return rc ? rc : wait(reducer, err);
}

/* The partial sums continue from piece to piece. Pieces are whole blocks: the result is that of one pass. */
static int reduce_piece(const struct zd_cuda_reducer *reducer, const struct zd_cuda_task *task,
                        const struct piece *piece, struct zd_host_reduce *run, const void **inputs,
                        struct zd_err *err)
{
	int rc = fetch(reducer, task, piece, err);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < run->ninputs; i++)
		inputs[i] = input_at(reducer, piece, i);
	run->numel = piece->numel;
	run->done_numel = 0;
	run->target = input_at(reducer, piece, run->ninputs);
	(void)zd_host_reduce_run(run, zd_align_up(piece->numel, ZD_HOST_REDUCE_BLOCK_NUMEL));
	return put_back(reducer, task, piece, err);
}

int zd_cuda_reduce(struct zd_cuda_reducer *reducer, struct zd_cuda_task *task, struct zd_err *err)
{
	const struct zd_reduce_desc *desc = &task->u.reduce.desc;
	struct piece piece = {.input_each = zerod_dtype_bytes(desc->input_dtype),
	                      .target_each = zerod_dtype_bytes(desc->target_dtype)};
	uint64_t most = STAGING_BYTES / (desc->ninputs * piece.input_each + piece.target_each);
	int rc = make_staging(reducer, err);
	if (rc)
		return rc;
	const void **inputs = zd_calloc(desc->ninputs ? desc->ninputs : 1, sizeof(*inputs));
	struct zd_host_reduce run = {
	        .input_dtype = desc->input_dtype,
	        .target_dtype = desc->target_dtype,
	        .ninputs = desc->ninputs,
	        .inputs = inputs,
	        .prescale = desc->prescale,
	        .postscale = desc->postscale,
	        .overwrite = desc->overwrite,
	        .isa = zd_host_isa_best(),
	};
	most -= most % ZD_HOST_REDUCE_BLOCK_NUMEL;
	for (; !rc && piece.first < desc->numel; piece.first += piece.numel) {
		piece.numel = zd_min_u64(most, desc->numel - piece.first);
		rc = reduce_piece(reducer, task, &piece, &run, inputs, err);
	}
	if (!rc)
		task->completion.result = zd_host_reduce_result(&run);
	free(inputs);
	return rc;
}
