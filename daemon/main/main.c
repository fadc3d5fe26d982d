/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - zerod, the daemon that owns a node's memory of sharded training. */
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/spin.h"
#include "base/std_fds.h"
#include "executor/nccl/cuda_comm_ids.h"
#include "main/activation.h"
#include "main/config.h"
#include "main/holder.h"
#include "main/log.h"
#include "main/options.h"
#include "main/service.h"
#include "server/loop.h"

int main(int argc, char **argv)
{
	uint64_t started_ns = zd_loop_now_ns();
	struct zd_options options;
	struct zd_config config;
	struct zd_err err;

	zd_std_fds_fill();
	/* Otherwise a call of free() may merge all small chunks that were freed before it, 10 ms for 10^5, or
	 * return all free memory to the kernel, 2 ms. */
	(void)mallopt(M_MXFAST, 0);
	(void)mallopt(M_TRIM_THRESHOLD, INT_MAX);
	if (argc > 1 && strcmp(argv[1], ZD_CUDA_IDS_PROGRAM_ARG) == 0)
		return zd_cuda_ids_main(argc - 2, argv + 2);
	if (argc > 1 && strcmp(argv[1], ZD_HOLDER_PROGRAM_ARG) == 0)
		return zd_holder_main(argc - 2, argv + 2);
	zd_activation_open();
	zd_options_parse(argc, argv, &options);
	if (zd_spin_check(&err) != 0 || zd_options_load(&options, stderr, &config, &err) != 0) {
		(void)fprintf(stderr, "zerod: %s\n", err.text);
		return ZD_EXIT_CONFIG;
	}
	if (options.check_config) {
		(void)puts("zerod: the configuration is valid");
		return ZD_EXIT_OK;
	}
	zd_log_open(options.foreground);
	zd_log_set_level(config.log_level);
	return zd_service_run(&options, &config, started_ns);
}
