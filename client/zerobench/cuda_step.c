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

static void compute(void *arg, uint32_t amount)
{
	const struct gpu_work *work = arg;
	const struct zd_cuda_trainer *trainer = work->trainer;
	zd_member_need(zd_gemm_append(trainer->gemm, trainer->gpu.stream, amount, trainer->member->err));
}

static void write_gradient(void *arg, void *to, uint64_t bytes)
{
	const struct gpu_work *work = arg;
	const struct zd_gpu *gpu = &work->trainer->gpu;
	const zd_cu_ptr at = to ? (zd_cu_ptr)(uintptr_t)to : work->elsewhere.at;
	zd_cuda_check(work->trainer, gpu->cuda->memcpyAsync(at, work->gradient.at, bytes, gpu->stream),
	              "writing a gradient");
}

static void record(const struct gpu_work *work, unsigned mark)
{
	const struct zd_gpu *gpu = &work->trainer->gpu;
	zd_cuda_check(work->trainer, gpu->cuda->eventRecord(work->marks[mark], gpu->stream), "an event");
}

static void mark(void *arg)
{
	record(arg, 0);
}

static uint64_t measure_work(void *arg)
{
	const struct gpu_work *work = arg;
	float ms = 0;
	record(work, 1);
	ZD_CALL(&work->trainer->rank, zerod_stream_synchronize, work->trainer->stream);
	zd_cuda_check(work->trainer,
	              work->trainer->gpu.cuda->eventElapsedTime(&ms, work->marks[0], work->marks[1]),
	              "the time between events");
	return (uint64_t)((double)ms * 1e6);
}

void zd_cuda_step(struct zd_cuda_trainer *trainer)
{
	const struct zd_bench *bench = trainer->run->bench;
	const uint64_t bytes = bench->options.max_bytes + 256;
	struct gpu_work gpu = {.trainer = trainer};
	const struct zd_step_work work = {&gpu, compute, write_gradient, mark, measure_work};
	zd_cuda_memory_new(trainer, bytes, &gpu.gradient);
	zd_cuda_memory_new(trainer, bytes, &gpu.elsewhere);
	for (unsigned i = 0; i < 2; i++)
		zd_cuda_check(trainer, trainer->gpu.cuda->eventCreate(&gpu.marks[i], 0), "events");
	zd_step_rank(bench, &trainer->rank, trainer->stream, &work, trainer->run->steps);
	zd_gpu_memory_free(&trainer->gpu, &gpu.gradient);
	zd_gpu_memory_free(&trainer->gpu, &gpu.elsewhere);
	for (unsigned i = 0; i < 2; i++)
		(void)trainer->gpu.cuda->eventDestroy(gpu.marks[i]);
}

static void member_main(const struct zd_member *member, void *arg)
{
	zd_cuda_trainer_main(member, arg);
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
