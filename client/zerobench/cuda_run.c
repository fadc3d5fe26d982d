// SPDX-License-Identifier: Apache-2.0
/*
 * cuda_run.c - gathers and reductions on GPUs: the team, and the data that its members need before they are
 * forked. The parent never calls CUDA.
 */
#include "client/zerobench/cuda_bench.h"

#include <stdio.h>

#include "base/mem.h"

int zd_bench_count_gpus(uint32_t *count, struct zd_err *err)
{
	struct zd_gpu_list list = {0};
	int status = zd_gpu_list(&list, err);
	if (!status)
		*count = list.count;
	return status;
}

/* Reads the names of one daemon's devices. All daemons have the same number of devices. */
static int learn_devices(struct zd_cuda_run *run, uint32_t node, struct zd_err *err)
{
	const uint32_t count = run->devices / run->bench->options.nodes;
	char(*names)[sizeof(run->names[0])] = run->names + (size_t)node * count;
	zerod_client *client;
	int status = zd_bench_connect(run->bench->socket_paths[node], &client, err);
	if (status)
		return status;
	for (uint32_t i = 0; i < count && !status; i++) {
		struct zerod_device_info info = ZEROD_INIT(info);
		status = zerod_device_get(client, i, &info);
		if (status)
			zd_err_set(err, status, "%s: %s", zerod_status_name(status),
			           zerod_last_error(client));
		else
			snprintf(names[i], sizeof(names[i]), "%s", info.name);
	}
	zerod_close(client);
	return status;
}

static void member_main(const struct zd_member *member, void *arg)
{
	const struct zd_cuda_run *run = arg;
	if (member->index < run->ranks)
		zd_cuda_trainer_main(member, run);
	else
		zd_cuda_pusher_main(member, run);
}

static int check_options(const struct zd_cuda_run *run, struct zd_err *err)
{
	const struct zd_bench_options *options = &run->bench->options;
	uint32_t rows = 0;
	for (uint64_t bytes = options->min_bytes; bytes <= options->max_bytes; bytes *= options->factor)
		rows++;
	if (rows > ZD_CUDA_MAX_ROWS)
		return zd_err_set(err, ZEROD_E_INVALID, "%u sizes are more than %u", rows, ZD_CUDA_MAX_ROWS);
	if (run->ranks % run->bench->options.nodes ||
	    (run->bench->options.nodes > 1 && run->ranks > run->devices))
		return zd_err_set(err, ZEROD_E_INVALID,
		                  "%u ranks on %u GPUs cannot be in %u daemons alike, on a GPU each",
		                  run->ranks, run->devices, run->bench->options.nodes);
	if (run->ranks > ZD_CUDA_MAX_RANKS)
		return zd_err_set(err, ZEROD_E_INVALID, "%u ranks are more than %u", run->ranks,
		                  ZD_CUDA_MAX_RANKS);
	return 0;
}

int zd_bench_cuda(struct zd_bench *bench, struct zd_err *err)
{
	struct zd_cuda_run run = {.bench = bench, .ranks = bench->options.ranks};
	run.devices = zd_bench_devices_used(bench);
	int status = check_options(&run, err);
	run.node_ranks = run.ranks / bench->options.nodes;
	for (uint32_t node = 0; node < bench->options.nodes && !status; node++)
		status = learn_devices(&run, node, err);
	if (status)
		return status;
	run.nsamples = (uint64_t)(ZD_CUDA_CALLS + 1) * bench->options.iters * run.ranks;
	const size_t shared_bytes = sizeof(*run.shared) + run.nsamples * sizeof(run.shared->samples[0]);
	run.shared = zd_shared_new(shared_bytes, err);
	if (!run.shared)
		return ZEROD_E_SYSTEM;
	if (bench->options.op == ZD_BENCH_STEP) {
		status = zd_cuda_steps(&run, bench, err);
	} else {
		status = zd_team_run(run.ranks + 1, member_main, &run, err);
		zd_cuda_report(bench, &run); /* also the measurements before a failure */
	}
	zd_shared_free(run.shared, shared_bytes);
	return status;
}
