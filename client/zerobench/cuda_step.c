// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_step.c - synthetic training steps on GPUs: products of matrices on the trainer's own stream.
 */
#include "client/zerobench/cuda_bench.h"
#include "client/zerobench/step.h"

struct gpu_work {
	struct zd_cuda_trainer *trainer;
	struct zd_gpu_memory gradient; /* copied into entries, or by the baseline to `elsewhere` */
	struct zd_gpu_memory elsewhere;
	struct CUevent_st *marks[2];
};

static int compute(void *arg, uint32_t amount)
{
	const struct gpu_work *work = arg;
	const struct zd_cuda_trainer *trainer = work->trainer;
	return zd_gemm_append(trainer->gemm, trainer->gpu.stream, amount, trainer->member->err);
}

static int write_gradient(void *arg, void *to, uint64_t bytes)
{
	const struct gpu_work *work = arg;
	const struct zd_gpu *gpu = &work->trainer->gpu;
	const zd_cu_ptr at = to ? (zd_cu_ptr)(uintptr_t)to : work->elsewhere.at;
	return zd_cuda_err(gpu->cuda, gpu->cuda->memcpyAsync(at, work->gradient.at, bytes, gpu->stream),
	                   work->trainer->member->err, "writing a gradient");
}

static int record(const struct gpu_work *work, unsigned mark)
{
	const struct zd_gpu *gpu = &work->trainer->gpu;
	return zd_cuda_err(gpu->cuda, gpu->cuda->eventRecord(work->marks[mark], gpu->stream),
	                   work->trainer->member->err, "an event");
}

static int mark(void *arg)
{
	return record(arg, 0);
}

static int measure_work(void *arg, uint64_t *ns)
{
	const struct gpu_work *work = arg;
	const struct zd_gpu *gpu = &work->trainer->gpu;
	struct zd_err *err = work->trainer->member->err;
	float ms = 0;
	int status = record(work, 1);
	if (!status)
		status = zd_cuda_check(work->trainer, zerod_stream_synchronize(work->trainer->stream),
		                       "zerod_stream_synchronize");
	if (!status)
		status = zd_cuda_err(gpu->cuda,
		                     gpu->cuda->eventElapsedTime(&ms, work->marks[0], work->marks[1]), err,
		                     "the time between events");
	if (!status)
		*ns = (uint64_t)((double)ms * 1e6);
	return status;
}

static int prepare_work(struct gpu_work *work, uint64_t bytes)
{
	const struct zd_gpu *gpu = &work->trainer->gpu;
	struct zd_err *err = work->trainer->member->err;
	int status = zd_gpu_memory_new(gpu, bytes, 0, &work->gradient, err);
	if (!status)
		status = zd_gpu_memory_new(gpu, bytes, 0, &work->elsewhere, err);
	for (unsigned i = 0; i < 2 && !status; i++)
		status = zd_cuda_err(gpu->cuda, gpu->cuda->eventCreate(&work->marks[i], 0), err, "events");
	return status;
}

int zd_cuda_step(struct zd_cuda_trainer *trainer)
{
	const struct zd_bench *bench = trainer->run->bench;
	struct gpu_work gpu = {.trainer = trainer};
	const struct zd_step_work work = {&gpu, compute, write_gradient, mark, measure_work};
	int status = prepare_work(&gpu, bench->options.max_bytes + 256);
	if (!status)
		status = zd_step_rank(trainer->member, bench, &trainer->rank, trainer->stream, &work,
		                      trainer->run->steps);
	zd_gpu_memory_free(&trainer->gpu, &gpu.gradient);
	zd_gpu_memory_free(&trainer->gpu, &gpu.elsewhere);
	for (unsigned i = 0; i < 2; i++)
		if (gpu.marks[i])
			(void)trainer->gpu.cuda->eventDestroy(gpu.marks[i]);
	return status;
}

static int member_main(struct zd_member *member, void *arg)
{
	return zd_cuda_trainer_main(member, arg);
}

int zd_cuda_steps(struct zd_cuda_run *run, struct zd_bench *bench, struct zd_err *err)
{
	run->steps = zd_shared_new(sizeof(*run->steps), err);
	if (!run->steps)
		return ZEROD_E_SYSTEM;
	int status = zd_team_run(run->ranks, member_main, run, err);
	if (!status)
		zd_step_report(bench, run->steps);
	zd_shared_free(run->steps, sizeof(*run->steps));
	return status;
}
