/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_listed.c - when NVML stops listing a killed process, and when its memory is free: idle, with a kernel
 * running, with a parked wait, and with a forked child alive that never calls CUDA.
 */
#include "gpu_common.h"

#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum victim_does { IDLE, KERNEL, PARKED, FORKED };

static const char *const DOES[] = {"idle", "with a kernel running", "with a wait parked",
                                   "with a forked child alive"};

#define VICTIM_BYTES (4 * GIB)
#define DEADLINE_US  5e6

static void victim_main(int sock, void *arg)
{
	enum victim_does does = *(enum victim_does *)arg;
	int page_fd = gpu_page_new(4096);
	struct gpu_page page;
	CUdeviceptr memory;
	pid_t forked = 0;
	CUstream stream;
	char byte;

	gpu_open(0);
	stream = gpu_stream(true);
	page = gpu_page_map(page_fd, 4096);
	GPU_MUST(cuMemAlloc(&memory, VICTIM_BYTES));
	if (does == KERNEL) {
		long long cycles = 20000000000ll;
		void *args[] = {&page.device, &cycles};

		GPU_MUST(cuLaunchKernel(gpu_kernel("hold"), 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
	}
	if (does == PARKED)
		GPU_MUST(cuStreamWaitValue64(stream, page.device, 1, CU_STREAM_WAIT_VALUE_GEQ));
	if (does == FORKED) {
		forked = (pid_t)SYS_MUST(fork());
		if (forked == 0) {
			for (;;)
				pause();
		}
	}
	gpu_put(sock, &forked, sizeof(forked));
	(void)recv(sock, &byte, 1, 0);
}

/* Polls until the process is not listed; -1 when it still is after the deadline. */
static double unlisted_us(struct gpu_nvml *nvml, pid_t pid, double begin)
{
	while (gpu_nvml_lists(nvml, pid))
		if (gpu_now_us() - begin > DEADLINE_US)
			return -1;
	return gpu_now_us() - begin;
}

static double freed_us(struct gpu_nvml *nvml, double below_mib, double begin)
{
	while (gpu_nvml_used_mib(nvml) > below_mib)
		if (gpu_now_us() - begin > DEADLINE_US)
			return -1;
	return gpu_now_us() - begin;
}

static void measure(struct gpu_nvml *nvml, enum victim_does does, int round)
{
	double used = gpu_nvml_used_mib(nvml), begin, reaped, unlisted, freed;
	struct gpu_child victim = gpu_child_start(victim_main, &does);
	bool listed;
	pid_t forked;

	gpu_get(victim.sock, &forked, sizeof(forked));
	listed = gpu_nvml_lists(nvml, victim.pid);
	begin = gpu_now_us();
	gpu_child_kill(&victim);
	reaped = gpu_now_us() - begin;
	unlisted = unlisted_us(nvml, victim.pid, begin);
	freed = freed_us(nvml, used + 1024, begin);
	printf("  killed %s, %d: listed before %s; reaped after %.0f us, unlisted after %.0f, memory free "
	       "after %.0f "
	       "(-1: not within 5 s)\n",
	       DOES[does], round, listed ? "yes" : "no", reaped, unlisted, freed);
	if (!forked)
		return;
	printf("    its forked child is listed: %s", gpu_nvml_lists(nvml, forked) ? "yes" : "no");
	begin = gpu_now_us();
	SYS_MUST(kill(forked, SIGKILL));
	unlisted = unlisted_us(nvml, victim.pid, begin);
	freed = freed_us(nvml, used + 1024, begin);
	printf("; after its kill: unlisted after %.0f us, memory free after %.0f\n", unlisted, freed);
}

static void nvml_main(int sock, void *arg)
{
	struct gpu_nvml *nvml = gpu_nvml_open(0);
	struct gpu_samples samples = {0};

	(void)sock;
	(void)arg;
	for (int i = 0; i < 200; i++) {
		double begin = gpu_now_us();

		(void)gpu_nvml_lists(nvml, getpid());
		gpu_samples_add(&samples, gpu_now_us() - begin);
	}
	gpu_samples_print("  one listing by NVML", &samples);
	for (enum victim_does does = IDLE; does <= FORKED; does++)
		for (int round = 1; round <= (does == FORKED ? 2 : 3); round++)
			measure(nvml, does, round);
	gpu_samples_free(&samples);
}

int main(void)
{
	struct gpu_child child;

	alarm(120);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("when a killed process of 4 GiB is no longer listed\n");
	child = gpu_child_start(nvml_main, NULL);
	return gpu_child_wait(&child) != 0;
}
